//! Which task runs next: one trait, one policy per file.
//!
//! A scheduler is asked at every yield. [`Scheduler::decide`] is figure 1 of the
//! paper: a periodic task if one is due (part I), else another that leaves the
//! next periodic one its time (part II), else none (part III).
//!
//! Guarantees: a decision allocates nothing and reads no clock; the same
//! candidates give the same decision.
//!
//! Source: NICOS 4.5 and 4.6.

use crate::ticket::Candidate;
use picnic_core::time::Time;

/// What is to run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The task at this place among the candidates.
    Run(usize),
    /// Nothing, until this time or until a task becomes ready; `None`: until then only.
    Idle(Option<Time>),
}

/// A scheduling policy.
pub trait Scheduler: Send {
    /// Part I: the periodic task that is to run now.
    fn periodic(&mut self, now: Time, tasks: &[Candidate]) -> Option<usize>;

    /// When part I will next have one, if nothing else happens: slack ends then.
    fn next_periodic(&self, now: Time, tasks: &[Candidate]) -> Option<Time>;

    /// Part II: a task that is not periodic, to run for at most `slack_ns`.
    fn filler(&mut self, now: Time, slack_ns: u64, tasks: &[Candidate]) -> Option<usize>;

    /// Tasks came, went, or changed their periods.
    fn tasks_changed(&mut self, _now: Time, _tasks: &[Candidate]) {}

    /// Picks among `tasks`.
    fn decide(&mut self, now: Time, tasks: &[Candidate]) -> Decision {
        if let Some(task) = self.periodic(now, tasks) {
            return Decision::Run(task);
        }
        let next = self.next_periodic(now, tasks);
        let slack_ns = next.map_or(u64::MAX, |next| next.since(now));
        match self.filler(now, slack_ns, tasks) {
            Some(task) => Decision::Run(task),
            None => Decision::Idle(next),
        }
    }
}
