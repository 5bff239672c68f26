//! The event dispatcher: handlers in the order of their events, each to completion.
//!
//! No periods, deadlines or priorities: a release is an event like any other. It promises no deadline,
//! so admission checks only that the wires lose no packet and that all of it fits.
//!
//! Source: NICOS 4.5, the simplest scheduler for a NIC.

use super::{Decision, Discipline, Scheduler};
use crate::ticket::Candidate;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component, NoKeys};
use picnic_core::time::Time;

/// The scheduler.
#[derive(Clone, Copy, Debug, Default)]
pub struct Event;

impl Component for Event {
    type Product = Box<dyn Scheduler>;
    type Config = NoKeys;
    const NAME: &'static str = "event";
    const HELP: &'static str = "handlers in the order of their events, each to completion";

    fn build(_: NoKeys, _: &BuildContext) -> Result<Box<dyn Scheduler>, ConfigError> {
        Ok(Box::new(Event))
    }
}

impl Scheduler for Event {
    fn periodic(&mut self, _now: Time, tasks: &[Candidate]) -> Option<usize> {
        // Those that have begun come first: there is one, unless a handler waits before its end.
        let mut first = (u64::MAX, None);
        for (index, task) in tasks.iter().enumerate().filter(|(_, task)| task.ready) {
            let place = task.since | u64::from(!task.begun) << 63;
            if place < first.0 {
                first = (place, Some(index));
            }
        }
        first.1
    }

    fn next_periodic(&self, _now: Time, _tasks: &[Candidate]) -> Option<Time> {
        None
    }

    fn filler(&mut self, _now: Time, _slack_ns: u64, _tasks: &[Candidate]) -> Option<usize> {
        None
    }

    fn decide(&mut self, now: Time, tasks: &[Candidate]) -> Decision {
        match self.periodic(now, tasks) {
            Some(task) => Decision::Run(task),
            None => Decision::Idle(None),
        }
    }

    fn discipline(&self) -> Discipline {
        Discipline::Completion
    }
}
