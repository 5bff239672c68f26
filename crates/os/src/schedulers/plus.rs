//! `<Sched>++`: any scheduler, with the slack filled segment by segment.
//!
//! Part I is the scheduler it extends, asked at every yield. In part II, the tasks
//! that are not periodic run one segment at a time, those whose ticket says that
//! the segment to come ends before the next periodic task; a [`SlackPolicy`]
//! chooses among them.
//!
//! Guarantee: as long as no segment takes longer than its ticket says, a task that
//! is not periodic never delays one that is.
//!
//! Source: NICOS 4.6 and figure 1.

use super::cyclic::Cyclic;
use super::edf::Edf;
use super::slack::{self, SlackPolicy};
use super::{Discipline, Scheduler};
use crate::admission::Order;
use crate::ticket::Candidate;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::Deserialize;

/// A scheduler and the policy that fills its slack.
pub struct Plus<S> {
    base: S,
    policy: Box<dyn SlackPolicy>,
}

impl<S: Scheduler> Plus<S> {
    /// Extends `base`.
    pub fn new(base: S, policy: Box<dyn SlackPolicy>) -> Self {
        Plus { base, policy }
    }
}

impl<S: Scheduler> Scheduler for Plus<S> {
    fn periodic(&mut self, now: Time, tasks: &[Candidate]) -> Option<usize> {
        self.base.periodic(now, tasks)
    }

    fn next_periodic(&self, now: Time, tasks: &[Candidate]) -> Option<Time> {
        self.base.next_periodic(now, tasks)
    }

    fn filler(&mut self, _now: Time, slack_ns: u64, tasks: &[Candidate]) -> Option<usize> {
        self.policy.choose(slack_ns, tasks)
    }

    fn discipline(&self) -> Discipline {
        Discipline::Segment
    }

    fn order(&self) -> Order {
        self.base.order()
    }

    fn tasks_changed(&mut self, now: Time, tasks: &[Candidate]) {
        self.base.tasks_changed(now, tasks);
    }
}

/// Keys of the extended schedulers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlusConfig {
    /// Who fills the time before the next periodic task
    pub slack: slack::Choice,
}

/// `edf-plus`.
#[derive(Debug)]
pub struct EdfPlus;

impl Component for EdfPlus {
    type Product = Box<dyn Scheduler>;
    type Config = PlusConfig;
    const NAME: &'static str = "edf-plus";
    const HELP: &'static str = "edf, its slack filled by the segments that fit";

    fn build(config: PlusConfig, _: &BuildContext) -> Result<Box<dyn Scheduler>, ConfigError> {
        Ok(Box::new(Plus::new(Edf, config.slack.policy())))
    }
}

/// `cyclic-plus`.
#[derive(Debug)]
pub struct CyclicPlus;

impl Component for CyclicPlus {
    type Product = Box<dyn Scheduler>;
    type Config = PlusConfig;
    const NAME: &'static str = "cyclic-plus";
    const HELP: &'static str = "cyclic, its slack filled by the segments that fit";

    fn build(config: PlusConfig, _: &BuildContext) -> Result<Box<dyn Scheduler>, ConfigError> {
        Ok(Box::new(Plus::new(Cyclic::default(), config.slack.policy())))
    }
}
