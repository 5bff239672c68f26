//! Real-time priority of target routines, and its limits.
//!
//! An interrupt routine preempts, so a target routine that does the kernel's work runs at the
//! lowest real-time priority. It must not keep the core: under overload nothing else would ever run
//! (Mogul and Ramakrishnan, 1997). After 2 ms, the kernel moves such work to an ordinary thread
//! (`netdev_budget_usecs`, ksoftirqd), and so does `Preemption`: a routine that has not rested for
//! 2 ms continues as an ordinary thread, and preempts again after a rest. The kernel's own limit
//! for real-time threads would leave the others 50 ms of each second, after 950 ms without any.
//!
//! With `gate = "none"` the routine shall keep the core, like the paper's interrupt routine: it
//! preempts as long as packets arrive, and a watchdog ends this permanently after
//! `host.watchdog_ms` and reports it.

use picnic_core::time::Time;
use picnic_ports::schedule;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Longest time that a target routine may preempt without a pause, in nanoseconds.
const STRETCH_NS: u64 = 2_000_000;

/// Lets this process's threads return to real-time priority after it has dropped its privileges, as
/// far as permitted now.
pub(crate) fn permit_real_time() {
    let wanted = Some(schedule::REAL_TIME_PRIORITY.into());
    let Rlimit { current, maximum } = getrlimit(Resource::Rtprio);
    // None means no limit, the greatest here.
    let at_least = |limit: Option<u64>| limit.and_then(|limit| wanted.max(Some(limit)));
    let raised = Rlimit { current: at_least(current), maximum: at_least(maximum) };
    let _ = setrlimit(Resource::Rtprio, raised);
}

/// Whether the calling thread preempts ordinary ones, and since when.
#[derive(Debug)]
pub(crate) struct Preemption {
    /// It shall preempt, and may.
    wanted: bool,
    preempts: bool,
    /// Time of its last rest.
    since: Option<Time>,
    /// It stepped down, and could not return to real-time priority.
    refused: bool,
    /// Longest time without a pause if interrupts are not masked, in nanoseconds.
    watchdog_ns: u64,
    /// The watchdog has ended it.
    ended: bool,
}

impl Preemption {
    /// For the calling thread, which preempts from now on if `wanted`, for at most `watchdog_ms`
    /// while interrupts are not masked. The warning gives the reason if it does not.
    pub(crate) fn start(wanted: bool, watchdog_ms: u32) -> (Self, Option<String>) {
        let watchdog_ns = u64::from(watchdog_ms) * 1_000_000;
        let refused = if wanted { schedule::real_time().err() } else { None };
        let wanted = wanted && refused.is_none();
        let warning = refused.map(|error| {
            format!(
                "the target cores' threads run at normal priority ({error}): real-time priority \
                 needs CAP_SYS_NICE or `ulimit -r 1`; host.priority = \"normal\" selects this"
            )
        });
        let (since, refused, ended) = Default::default();
        (Preemption { wanted, preempts: wanted, since, refused, watchdog_ns, ended }, warning)
    }

    /// Whether the thread should preempt, and may.
    pub(crate) fn is_permitted(&self) -> bool {
        self.wanted
    }

    /// Notes work at `now`. True once it has worked for so long that it no longer preempts.
    /// `is_unmasked` is called only after a while.
    #[inline]
    pub(crate) fn works(&mut self, now: Time, is_unmasked: impl FnOnce() -> bool) -> bool {
        if !self.preempts {
            return false;
        }
        let stretch_ns = now.since(*self.since.get_or_insert(now));
        if stretch_ns < STRETCH_NS.min(self.watchdog_ns) {
            return false;
        }
        let is_unmasked = is_unmasked();
        let limit_ns = if is_unmasked { self.watchdog_ns } else { STRETCH_NS };
        stretch_ns >= limit_ns && self.give_way(is_unmasked)
    }

    #[cold]
    fn give_way(&mut self, for_good: bool) -> bool {
        // Always permitted: it is a step down.
        self.preempts = schedule::ordinary().is_err();
        if for_good {
            (self.wanted, self.ended) = (false, true);
        }
        self.since = None;
        !self.preempts
    }

    /// Notes a rest; it preempts again when it wakes.
    #[inline]
    pub(crate) fn rests(&mut self) {
        self.since = None;
        if self.wanted && !self.preempts {
            self.preempts = schedule::real_time().is_ok();
            self.refused |= !self.preempts;
        }
    }

    /// A note for the user at the end.
    pub(crate) fn report(&self) -> Option<String> {
        if self.ended {
            return Some(format!(
                "a target core's thread preempted its core for {} ms without a pause \
                 (interrupt.gate = \"none\"), and was stopped: it continued as an ordinary thread; \
                 host.watchdog_ms sets the limit",
                self.watchdog_ns / 1_000_000
            ));
        }
        self.refused.then(|| {
            "a target core's thread lost real-time priority under overload: without privileges it \
             needs `ulimit -r 1` before the start, or CAP_SYS_RESOURCE at the start, to get it \
             back"
                .into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwanted_preemption_changes_nothing() {
        let (mut preemption, warning) = Preemption::start(false, 500);
        assert!(warning.is_none() && !preemption.is_permitted());
        assert!(
            !preemption.works(Time::ZERO, || false)
                && !preemption.works(Time::from_nanos(STRETCH_NS), || false)
        );
        preemption.rests();
        assert!(!preemption.works(Time::from_nanos(2 * STRETCH_NS), || false));
    }

    #[test]
    fn unprivileged_threads_preempt_again_within_the_limit() {
        // A thread drops only its own privileges; the limit belongs to the process.
        std::thread::spawn(|| {
            let (mut preemption, _) = Preemption::start(true, 500);
            if !preemption.is_permitted() {
                let name = "unprivileged_threads_preempt_again_within_the_limit";
                return picnic_testing::skip(name, "real-time priority is not permitted here");
            }
            permit_real_time();
            let limit = getrlimit(Resource::Rtprio).current;
            picnic_confine::give_up(rustix::thread::CapabilitySet::empty()).unwrap();
            preemption.works(Time::ZERO, || false);
            assert!(
                preemption.works(Time::from_nanos(STRETCH_NS), || false)
                    && preemption.report().is_none()
            );
            preemption.rests();
            let refused = limit == Some(0);
            assert_eq!((preemption.preempts, preemption.report().is_some()), (!refused, refused));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_stretch_is_counted_from_the_last_rest() {
        // On its own thread, whose priority ends with it.
        std::thread::spawn(|| {
            let (mut preemption, warning) = Preemption::start(true, 500);
            if !preemption.is_permitted() {
                assert!(warning.is_some_and(|text| text.contains("CAP_SYS_NICE")));
                let name = "a_stretch_is_counted_from_the_last_rest";
                return picnic_testing::skip(name, "real-time priority is not permitted here");
            }
            let at = |micros: u64| Time::from_nanos(micros * 1000);
            assert!(!preemption.works(at(500), || false) && !preemption.works(at(2499), || false));
            preemption.rests();
            assert!(!preemption.works(at(3000), || false) && !preemption.works(at(4999), || false));
            assert!(preemption.works(at(5000), || false), "2 ms at a stretch");
            assert!(!preemption.works(at(50_000), || false), "given way already");
            preemption.rests();
            assert!(
                !preemption.works(at(60_000), || false) && preemption.works(at(62_000), || false)
            );
        })
        .join()
        .unwrap();
    }

    #[test]
    fn watchdog_ends_unmasked_preemption_for_good() {
        std::thread::spawn(|| {
            let (mut preemption, _) = Preemption::start(true, 30);
            if !preemption.is_permitted() {
                let name = "watchdog_ends_unmasked_preemption_for_good";
                return picnic_testing::skip(name, "real-time priority is not permitted here");
            }
            let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
            assert!(!preemption.works(at(5), || true) && !preemption.works(at(34), || true));
            preemption.rests();
            assert!(!preemption.works(at(40), || true) && !preemption.works(at(69), || true));
            assert!(preemption.report().is_none());
            assert!(preemption.works(at(70), || true), "30 ms since it last rested");
            assert!(preemption.report().unwrap().contains("for 30 ms"));
            preemption.rests();
            assert!(!preemption.preempts && !preemption.works(at(200), || true), "it was ended");
            assert!(!preemption.works(at(900), || false));
        })
        .join()
        .unwrap();
    }
}
