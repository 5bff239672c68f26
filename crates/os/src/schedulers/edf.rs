//! Non-preemptive earliest deadline first.
//!
//! Among the ready periodic tasks, the one with the earliest deadline; at equal deadlines the
//! higher priority, then the task that has waited longer. A task runs to the end of its invocation.
//! An aperiodic task runs if all of its invocation fits before the next release, so none causes a
//! missed deadline.
//!
//! Source: NICOS 4.6, "Common Schedulers"; Jeffay, Stanat and Martel, "On Non-Preemptive Scheduling
//! of Periodic and Sporadic Tasks", RTSS 1991.

use super::{Decision, Discipline, Scheduler, next_release, to_completion, whole_filler};
use crate::admission::Order;
use crate::ticket::Candidate;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::Deserialize;

/// The scheduler.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edf;

/// It has no keys.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EdfConfig {}

impl Component for Edf {
    type Product = Box<dyn Scheduler>;
    type Config = EdfConfig;
    const NAME: &'static str = "edf";
    const HELP: &'static str = "non-preemptive earliest deadline first, to completion";

    fn build(_: EdfConfig, _: &BuildContext) -> Result<Box<dyn Scheduler>, ConfigError> {
        Ok(Box::new(Edf))
    }
}

impl Scheduler for Edf {
    fn periodic(&mut self, _now: Time, tasks: &[Candidate]) -> Option<usize> {
        let ready = tasks.iter().enumerate().filter(|(_, task)| task.ready && task.is_periodic());
        // Not by a key of three parts, which each comparison would store and load again.
        let earliest = ready.min_by(|(_, a), (_, b)| {
            let by_deadline = a.ticket.next_deadline.cmp(&b.ticket.next_deadline);
            let by_priority = || b.ticket.priority.cmp(&a.ticket.priority);
            by_deadline.then_with(by_priority).then_with(|| a.since.cmp(&b.since))
        });
        earliest.map(|(index, _)| index)
    }

    fn next_periodic(&self, _now: Time, tasks: &[Candidate]) -> Option<Time> {
        next_release(tasks)
    }

    fn filler(&mut self, _now: Time, slack_ns: u64, tasks: &[Candidate]) -> Option<usize> {
        whole_filler(slack_ns, tasks)
    }

    fn decide(&mut self, now: Time, tasks: &[Candidate]) -> Decision {
        to_completion(self, now, tasks)
    }

    fn discipline(&self) -> Discipline {
        Discipline::Completion
    }

    fn order(&self) -> Order {
        Order::EarliestDeadline
    }
}
