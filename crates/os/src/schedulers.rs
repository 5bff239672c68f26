//! Schedulers choose the next task: one trait, one policy per file.
//!
//! A scheduler is called at every yield. [`figure_one`] is figure 1 of the paper: a periodic task
//! if one is due (part I), else another that leaves the next periodic one its time (part II), else
//! none (part III).
//!
//! To add a scheduler, implement [`Scheduler`] in a separate file and add it to
//! [`registry::SCHEDULERS`].
//!
//! Guarantees: a decision allocates nothing and reads no clock; the same history of candidates
//! gives the same decision.
//!
//! Source: NICOS 4.5 and 4.6.

pub mod cyclic;
pub mod edf;
pub mod event;
pub mod plus;
pub mod registry;
pub mod slack;

use crate::admission::Order;
use crate::ticket::Candidate;
use picnic_core::command::Prepared;
use picnic_core::time::Time;

/// The next task to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The task at this place among the candidates. It will be run: a scheduler may rely on it.
    Run(usize),
    /// Nothing, until this time or until a task becomes ready; `None`: only until then.
    Idle(Option<Time>),
}

/// A scheduling policy.
pub trait Scheduler: Send {
    /// Part I: the periodic task to run now.
    fn periodic(&mut self, now: Time, tasks: &[Candidate]) -> Option<usize>;

    /// When part I will next have a task by time alone: slack ends then.
    fn next_periodic(&self, now: Time, tasks: &[Candidate]) -> Option<Time>;

    /// Part II: an aperiodic task that takes at most `slack_ns` nanoseconds.
    fn filler(&mut self, now: Time, slack_ns: u64, tasks: &[Candidate]) -> Option<usize>;

    /// Chooses among `tasks`.
    fn decide(&mut self, now: Time, tasks: &[Candidate]) -> Decision {
        figure_one(self, now, tasks)
    }

    /// How it runs tasks, for admission.
    fn discipline(&self) -> Discipline;

    /// The schedule that admission checks its tasks against.
    fn order(&self) -> Order {
        Order::Other
    }

    /// Applies an order made by one of its commands, between two decisions; see `Function::obey`.
    fn obey(&mut self, _order: &mut Prepared, _now: Time) -> bool {
        false
    }

    /// Tasks came, went, or changed their periods or priorities.
    fn tasks_changed(&mut self, _now: Time, _tasks: &[Candidate]) {}
}

/// How far a task runs before the next decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// To the end of its invocation.
    Completion,
    /// To its next yield.
    Segment,
}

/// The three parts of `<Sched>++`, NICOS figure 1.
pub fn figure_one<S>(scheduler: &mut S, now: Time, tasks: &[Candidate]) -> Decision
where
    S: Scheduler + ?Sized,
{
    if let Some(task) = scheduler.periodic(now, tasks) {
        return Decision::Run(task);
    }
    let next = scheduler.next_periodic(now, tasks);
    let slack_ns = next.map_or(u64::MAX, |next| next.since(now));
    match scheduler.filler(now, slack_ns, tasks) {
        Some(task) => Decision::Run(task),
        None => Decision::Idle(next),
    }
}

/// The three parts, except that a task that has begun runs to completion: for schedulers without
/// segments.
pub fn to_completion<S>(scheduler: &mut S, now: Time, tasks: &[Candidate]) -> Decision
where
    S: Scheduler + ?Sized,
{
    match tasks.iter().position(|task| task.begun && task.ready) {
        Some(task) => Decision::Run(task),
        None => figure_one(scheduler, now, tasks),
    }
}

/// The ready aperiodic task that certainly ends within the slack until it waits, and is first by
/// priority, then by waiting time.
pub fn whole_filler(slack_ns: u64, tasks: &[Candidate]) -> Option<usize> {
    first_by_priority(tasks, |task| task.ticket.remaining_ns <= slack_ns)
}

/// The ready aperiodic task that passes `fits`, and is first by priority, then by waiting time.
fn first_by_priority(tasks: &[Candidate], fits: impl Fn(&Candidate) -> bool) -> Option<usize> {
    let mut best: Option<(usize, u8, u64)> = None;
    for (index, task) in tasks.iter().enumerate() {
        if !task.ready || task.is_periodic() {
            continue;
        }
        let (priority, since) = (task.ticket.priority, task.since);
        let is_first = best.is_none_or(|(_, best_priority, best_since)| {
            priority > best_priority || (priority == best_priority && since < best_since)
        });
        if is_first && fits(task) {
            best = Some((index, priority, since));
        }
    }
    best.map(|(index, ..)| index)
}

/// The next release of a periodic task that is not ready now.
pub fn next_release(tasks: &[Candidate]) -> Option<Time> {
    let waiting = tasks.iter().filter(|task| task.is_periodic() && !task.ready);
    waiting.map(|task| task.ticket.next_release).min()
}
