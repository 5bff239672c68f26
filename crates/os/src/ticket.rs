//! The ticket: a scheduler's information on a task.
//!
//! A task has one, updated before every yield, so that it always describes the next segment.
//!
//! Source: NICOS 4.6, "Related Definitions" and "`<EDF>`++ Algorithm".

use picnic_core::time::Time;

/// A scheduler's information on one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Bound of the next segment, in nanoseconds, under the cost profile: from its start until
    /// another may begin, including a switch, cold caches the first time through, and the packet
    /// path catching up after it.
    pub wcet_ns: u64,
    /// The same for the rest until the task next waits for its release or for an event: for
    /// schedulers that run tasks to completion.
    pub remaining_ns: u64,
    /// Nanoseconds between two releases; `None` if the task is not periodic.
    pub period_ns: Option<u64>,
    /// Among equals, a higher number goes first.
    pub priority: u8,
    /// A periodic task's next release: the release of its current invocation, while it is ready.
    pub next_release: Time,
    /// When the invocation released then must have ended: one period later.
    pub next_deadline: Time,
}

/// A task for a scheduler. Its place in the slice identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its ticket.
    pub ticket: Ticket,
    /// Whether it can run now. Otherwise it waits for its release or for an event.
    pub ready: bool,
    /// It has run a segment of its current invocation, but not the last.
    pub begun: bool,
    /// When it became ready, as an increasing number: lower has waited longer.
    pub since: u64,
}

impl Candidate {
    /// Whether the task is released by time.
    pub fn is_periodic(&self) -> bool {
        self.ticket.period_ns.is_some()
    }
}
