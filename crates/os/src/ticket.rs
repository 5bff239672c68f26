//! The ticket: what a scheduler knows of a task.
//!
//! A task has one, and it is brought up to date before every yield, so that it
//! always tells of the segment to come.
//!
//! Source: NICOS 4.6, "Related Definitions" and "`<EDF>`++ Algorithm".

use picnic_core::time::Time;

/// What a scheduler knows of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Bound of the next segment, in nanoseconds, under the cost profile: from its start until
    /// another may begin, so with a switch, cold caches the first time through, and the packet
    /// path that catches up behind it.
    pub wcet_ns: u64,
    /// The same of all that is left until the task next waits for its release or for an event: for
    /// schedulers that let a task run to completion.
    pub remaining_ns: u64,
    /// Nanoseconds between two releases; `None` if the task is not periodic.
    pub period_ns: Option<u64>,
    /// Among equals, a higher number goes first.
    pub priority: u8,
    /// A periodic task's next release: that of its present invocation, while it is ready.
    pub next_release: Time,
    /// When the invocation released then must have ended: one period later.
    pub next_deadline: Time,
}

/// A task as a scheduler sees it. Its place in the slice is its name to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its ticket.
    pub ticket: Ticket,
    /// Whether it could run now. One that is not waits for its release or for an event.
    pub ready: bool,
    /// It has run a segment of its present invocation, and not the last.
    pub begun: bool,
    /// When it became ready, as a number that grows: lower waits longer.
    pub since: u64,
}

impl Candidate {
    /// Whether the task is released by time.
    pub fn is_periodic(&self) -> bool {
        self.ticket.period_ns.is_some()
    }
}
