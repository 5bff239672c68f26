//! The load of a client's busiest thread: a saturated client says nothing about a server.

use picnic_machine::testbed::Program;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The least share of the run that a thread must have existed for to count.
const SEEN: f64 = 0.5;

/// Run time of each thread of a client.
#[derive(Debug)]
pub(crate) struct Busiest {
    started: Instant,
    ended: Option<Duration>,
    /// First and last check, and the run time at each.
    threads: BTreeMap<i32, [(Duration, Duration); 2]>,
}

impl Busiest {
    pub(crate) fn start() -> Self {
        Busiest { started: Instant::now(), ended: None, threads: BTreeMap::new() }
    }

    pub(crate) fn look(&mut self, client: &Program) {
        let now = self.started.elapsed();
        for (thread, ran) in client.thread_times() {
            let looks = self.threads.entry(thread).or_insert([(now, ran); 2]);
            looks[1] = (now, ran);
        }
    }

    /// Time since its start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The client has ended: once.
    pub(crate) fn end(&mut self) {
        self.ended.get_or_insert(self.started.elapsed());
    }

    /// The share of time that the busiest one ran; none before the end.
    pub(crate) fn share(&self) -> Option<f64> {
        let whole = self.ended?.as_secs_f64();
        let shares = self.threads.values().filter_map(|[(first, ran_first), (last, ran_last)]| {
            let seen = last.saturating_sub(*first).as_secs_f64();
            let ran = ran_last.saturating_sub(*ran_first).as_secs_f64();
            (seen >= SEEN * whole).then(|| ran / seen)
        });
        shares.reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_load_is_relative_to_its_lifetime() {
        let ms = Duration::from_millis;
        let threads = BTreeMap::from([
            (1, [(ms(0), ms(0)), (ms(1000), ms(300))]),
            (2, [(ms(100), ms(5)), (ms(1000), ms(905))]),
            // A short-lived saturated thread does not count.
            (3, [(ms(0), ms(0)), (ms(20), ms(20))]),
        ]);
        let busiest = Busiest { started: Instant::now(), ended: Some(ms(1000)), threads };
        assert_eq!(busiest.share(), Some(1.0));
        assert_eq!(Busiest::start().share(), None);
    }
}
