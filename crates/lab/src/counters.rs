//! Hardware counters of cores: cycles, instructions and cache misses, if the machine has them.
//!
//! ```
//! use picnic_lab::counters::Counters;
//! match Counters::start([0]) {
//!     Ok(counters) => println!("{:.0} cycles", counters.stop()?.cycles),
//!     Err(why) => println!("unavailable: {why}"),
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Everything that runs on a core is counted, including the kernel. If there are more events than
//! counters, the kernel multiplexes them, and counts are extrapolated to the whole time. Virtual
//! machines often have none: then a figure reads "unavailable", and facts say why.
//!
//! Source: perf_event_open(2).

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use std::io::{self, ErrorKind};

const EVENTS: [Hardware; 3] =
    [Hardware::CPU_CYCLES, Hardware::INSTRUCTIONS, Hardware::CACHE_MISSES];

/// Running counters.
#[derive(Debug)]
pub struct Counters(Vec<[Counter; EVENTS.len()]>);

/// Their counts, summed over all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Cycles in which the cores were not halted.
    pub cycles: f64,
    /// Instructions retired.
    pub instructions: f64,
    /// Cache misses, mostly of the last level.
    pub cache_misses: f64,
}

impl Counters {
    /// Starts counting on these cores.
    ///
    /// # Errors
    /// Why it is not possible, for people.
    pub fn start(cores: impl IntoIterator<Item = usize>) -> Result<Self, String> {
        let counters = cores.into_iter().map(|core| {
            let [cycles, instructions, misses] = EVENTS.map(|event| {
                let mut builder = Builder::new(event);
                builder.any_pid().one_cpu(core).include_kernel().enabled(true);
                builder.build().map_err(|error| reason(&error))
            });
            Ok([cycles?, instructions?, misses?])
        });
        counters.collect::<Result<_, _>>().map(Counters)
    }

    /// The counts since the start.
    ///
    /// # Errors
    /// The kernel gave a counter no time, or another error.
    pub fn stop(mut self) -> io::Result<Counted> {
        let mut counted = Counted::default();
        for core in &mut self.0 {
            let [cycles, instructions, misses] = core.each_mut().map(whole);
            counted.cycles += cycles?;
            counted.instructions += instructions?;
            counted.cache_misses += misses?;
        }
        Ok(counted)
    }
}

/// A counter's count, extrapolated to the whole time.
fn whole(counter: &mut Counter) -> io::Result<f64> {
    let read = counter.read_count_and_time()?;
    if read.time_running == 0 {
        return Err(io::Error::other("a hardware counter had no time to count"));
    }
    Ok(read.count as f64 * (read.time_enabled as f64 / read.time_running as f64))
}

/// Why a counter is not available, for people.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Unsupported => "this machine has none".into(),
        ErrorKind::PermissionDenied => {
            "they need root, or kernel.perf_event_paranoid of 0 or less".into()
        }
        _ => error.to_string(),
    }
}

/// Whether a core has counters, as a fact of the machine.
pub(crate) fn told(core: usize) -> String {
    match Counters::start([core]) {
        Ok(_) => "cycles, instructions, cache misses".into(),
        Err(why) => format!("unavailable: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_count_or_explain_why_not() {
        match Counters::start([0]) {
            Ok(counters) => {
                assert_eq!(told(0), "cycles, instructions, cache misses");
                // A counter without time is an error, not a count of zero.
                assert!(counters.stop().is_ok_and(|counted| counted.cycles > 0.0));
            }
            Err(why) => assert_eq!(told(0), format!("unavailable: {why}")),
        }
        assert!(Counters::start([1 << 20]).is_err());
    }

    #[test]
    fn missing_counters_are_explained() {
        assert_eq!(reason(&ErrorKind::NotFound.into()), "this machine has none");
        assert!(reason(&ErrorKind::PermissionDenied.into()).contains("perf_event_paranoid"));
    }
}
