//! EDF with everything else in the background, without checking whether it fits: the careless
//! alternative.

use picnic_core::time::Time;
use picnic_os::schedulers::edf::Edf;
use picnic_os::schedulers::slack::{FirstFit, SlackPolicy};
use picnic_os::schedulers::{Decision, Discipline, Scheduler, to_completion};
use picnic_os::ticket::Candidate;

/// The scheduler.
pub(super) struct EdfBackground;

impl Scheduler for EdfBackground {
    fn periodic(&mut self, now: Time, tasks: &[Candidate]) -> Option<usize> {
        Edf.periodic(now, tasks)
    }

    fn next_periodic(&self, now: Time, tasks: &[Candidate]) -> Option<Time> {
        Edf.next_periodic(now, tasks)
    }

    fn filler(&mut self, _now: Time, _slack_ns: u64, tasks: &[Candidate]) -> Option<usize> {
        FirstFit.choose(u64::MAX, tasks)
    }

    fn decide(&mut self, now: Time, tasks: &[Candidate]) -> Decision {
        to_completion(self, now, tasks)
    }

    fn discipline(&self) -> Discipline {
        Discipline::Completion
    }
}
