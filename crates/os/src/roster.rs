//! The tasks of a card: the executor's state of each.
//!
//! Tasks have places, and so do the schedulers' candidates: the same number in both. The place of
//! an ended task has a candidate that is never ready, until another task takes it.

use crate::admission::Demand;
use crate::figures::{Distribution, TaskCounters};
use crate::memory::Charge;
use crate::path::PacketPath;
use crate::task::{End, Obey, TaskCell, TaskFuture, TaskId};
use crate::ticket::{Candidate, Ticket};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::task::Waker;

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "TaskState")]
pub enum State {
    /// It can run.
    Ready,
    /// It waits for its next release.
    Release,
    /// It waits for time or an event.
    Waiting,
    /// It is suspended until it is resumed.
    Suspended,
    /// It has returned.
    Returned,
    /// It has panicked.
    Panicked,
    /// It was killed.
    Killed,
    /// It was killed for a segment that exceeded its bound.
    Overran,
    /// It ran until the card was stopped.
    Stopped,
}

impl From<End> for State {
    fn from(end: End) -> Self {
        match end {
            End::Returned => State::Returned,
            End::Panicked => State::Panicked,
            End::Killed => State::Killed,
            End::Overran => State::Overran,
            End::Stopped => State::Stopped,
        }
    }
}

/// One task.
pub(crate) struct Task {
    pub(crate) cell: Arc<TaskCell>,
    pub(crate) waker: Waker,
    pub(crate) future: TaskFuture,
    /// The bytes of its future and cell in card memory.
    pub(crate) charge: Charge,
    /// Applies the orders of its commands, if it has any.
    pub(crate) obey: Option<Obey>,
    pub(crate) name: Arc<str>,
    pub(crate) kind: Option<&'static str>,
    pub(crate) bounds_from: Arc<str>,
    /// Its demand on the core, for admission.
    pub(crate) demand: Demand,
    pub(crate) period_ns: Option<u64>,
    /// Ready, Release or Waiting, suspended or not.
    pub(crate) state: State,
    pub(crate) suspended: bool,
    /// When the current invocation was released or became ready; if it waits for its release, when
    /// that is.
    pub(crate) ready_at: Time,
    /// There is an invocation that has not ended.
    pub(crate) open: bool,
    /// It has run a segment.
    pub(crate) begun: bool,
    pub(crate) counters: Arc<TaskCounters>,
    pub(crate) times: Box<Times>,
}

impl Task {
    /// Updates its ticket: the bounds of the next segment, until the one after it may begin.
    pub(crate) fn stamp(&self, ticket: &mut Ticket, path: &PacketPath) {
        let (wcet_ns, remaining_ns) = self.cell.bounds();
        // No slack is measured for a periodic one; timetables have its bounds when warm.
        let is_first =
            self.period_ns.is_none() && self.counters.segments.get() < self.demand.segments;
        let segments = self.demand.segments.max(1);
        let beside_ns = path.segment_ns(0, is_first).saturating_mul(segments);
        ticket.wcet_ns = path.until_next_ns(path.segment_ns(wcet_ns, is_first));
        ticket.remaining_ns =
            path.until_next_of_ns(remaining_ns.saturating_add(beside_ns), segments);
    }
}

/// A task's distributions of times.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// From release, or from becoming ready, to the end of the invocation.
    pub response: Distribution,
    /// From release, or from becoming ready, to the first segment.
    pub jitter: Distribution,
}

/// A task that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) id: TaskId,
    pub(crate) name: Arc<str>,
    pub(crate) kind: Option<&'static str>,
    pub(crate) bounds_from: Arc<str>,
    pub(crate) period_ns: Option<u64>,
    pub(crate) priority: u8,
    pub(crate) state: State,
    pub(crate) counters: Arc<TaskCounters>,
    pub(crate) times: Box<Times>,
}

/// A place without a task, for schedulers.
pub(crate) const VACANT: Candidate = Candidate {
    ticket: Ticket {
        wcet_ns: 0,
        remaining_ns: 0,
        period_ns: None,
        priority: 0,
        next_release: Time::MAX,
        next_deadline: Time::MAX,
    },
    ready: false,
    begun: false,
    since: 0,
};
