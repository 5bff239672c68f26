//! `<Sched>++`: any scheduler, with the slack filled segment by segment.
//!
//! Part I is the scheduler it extends, called at every yield. In part II, aperiodic tasks run one
//! segment at a time, if their ticket says that the next segment ends before the next periodic
//! task; a [`SlackPolicy`] chooses among them.
//!
//! Guarantee: if no segment exceeds its ticket, and packets arrive no faster than stated,
//! an aperiodic task never delays a periodic one: switch, cold caches and the packet path catching
//! up are in the ticket.
//!
//! Source: NICOS 4.6 and figure 1.

use super::cyclic::Cyclic;
use super::edf::Edf;
use super::slack::{self, SlackPolicy};
use super::{Discipline, Scheduler};
use crate::admission::Order;
use crate::ticket::Candidate;
use picnic_core::command::{
    CommandEntry, CommandError, ComponentChange, Get, Inspect, Prepared, Set,
};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A scheduler and the policy that fills its slack.
pub struct Plus<S> {
    base: S,
    slack: Slack,
}

/// Part II: the policy that fills the slack, and its counts.
struct Slack {
    policy: Box<dyn SlackPolicy>,
    /// Times there was slack, and times a segment fitted.
    offered: u64,
    filled: u64,
}

impl<S: Scheduler> Plus<S> {
    /// Extends `base`.
    pub fn new(base: S, policy: Box<dyn SlackPolicy>) -> Self {
        Plus { base, slack: Slack { policy, offered: 0, filled: 0 } }
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
        let chosen = self.slack.policy.choose(slack_ns, tasks);
        self.slack.offered += 1;
        self.slack.filled += u64::from(chosen.is_some());
        chosen
    }

    fn discipline(&self) -> Discipline {
        Discipline::Segment
    }

    fn order(&self) -> Order {
        self.base.order()
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(&mut self.slack, now)
    }

    fn tasks_changed(&mut self, now: Time, tasks: &[Candidate]) {
        self.base.tasks_changed(now, tasks);
    }
}

/// Keys of the extended schedulers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlusConfig {
    /// Policy that fills the time before the next periodic task
    pub slack: slack::Choice,
}

/// `edf-plus`.
#[derive(Debug)]
pub struct EdfPlus;

impl Component for EdfPlus {
    type Product = Box<dyn Scheduler>;
    type Config = PlusConfig;
    const NAME: &'static str = "edf-plus";
    const HELP: &'static str = "edf, with segments that fit filling the slack";
    const COMMANDS: &'static [CommandEntry] = COMMANDS;

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
    const HELP: &'static str = "cyclic, with segments that fit filling the slack";
    const COMMANDS: &'static [CommandEntry] = COMMANDS;

    fn build(config: PlusConfig, _: &BuildContext) -> Result<Box<dyn Scheduler>, ConfigError> {
        Ok(Box::new(Plus::new(Cyclic::default(), config.slack.policy())))
    }
}

/// The commands of a running extended scheduler.
const COMMANDS: &[CommandEntry] =
    &[CommandEntry::of::<Get<Slack>>(), CommandEntry::of::<Set<NewPolicy>>()];

/// Counts of the slack.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
struct Filled {
    /// Times there was slack before the next periodic task.
    offered: u64,
    /// Times a segment fitted and ran in it.
    filled: u64,
}

impl Inspect for Slack {
    type State = Filled;
    const HELP: &'static str = "how often there was slack, and how often it was filled";

    fn inspect(&self) -> Filled {
        Filled { offered: self.offered, filled: self.filled }
    }
}

/// The arguments of `set`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewPolicy {
    /// The new slack policy; the counts restart.
    slack: slack::Choice,
}

impl ComponentChange for NewPolicy {
    const HELP: &'static str = "change the slack policy; the result has the counts before";
    const EXAMPLE: &'static str = r#"{"slack": "best-fit"}"#;
    type Of = Slack;
    type New = Box<dyn SlackPolicy>;

    fn prepare(self, _: &BuildContext) -> Result<Box<dyn SlackPolicy>, CommandError> {
        Ok(self.slack.policy())
    }

    fn apply(policy: &mut Box<dyn SlackPolicy>, slack: &mut Slack, _now: Time) -> bool {
        std::mem::swap(policy, &mut slack.policy);
        (slack.offered, slack.filled) = (0, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticket::Ticket;

    #[test]
    fn filled_slack_is_counted() {
        let mut plus = Plus::new(Edf, slack::Choice::FirstFit.policy());
        let ticket = Ticket {
            wcet_ns: 50,
            remaining_ns: 50,
            period_ns: None,
            priority: 0,
            next_release: Time::ZERO,
            next_deadline: Time::MAX,
        };
        let task = Candidate { ticket, ready: true, begun: false, since: 0 };
        let counts = |plus: &Plus<Edf>| {
            let found = plus.slack.inspect();
            (found.offered, found.filled)
        };
        for (slack_ns, chosen, offered, filled) in
            [(49, None, 1, 0), (50, Some(0), 2, 1), (51, Some(0), 3, 2), (0, None, 4, 2)]
        {
            assert_eq!(plus.filler(Time::ZERO, slack_ns, &[task]), chosen);
            assert_eq!(counts(&plus), (offered, filled), "{slack_ns}");
        }
        // Another policy counts from zero.
        let mut policy = slack::Choice::BestFit.policy();
        assert!(NewPolicy::apply(&mut policy, &mut plus.slack, Time::ZERO));
        assert_eq!(counts(&plus), (0, 0));
        let longer = Candidate { ticket: Ticket { wcet_ns: 51, ..ticket }, since: 1, ..task };
        assert_eq!(plus.filler(Time::ZERO, 60, &[task, longer]), Some(1));
    }
}
