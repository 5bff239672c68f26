//! Tasks: specification, program, and the state passed to the executor at a pause.
//!
//! ```
//! use picnic_os::task::{TaskSpec, program};
//! let spec = TaskSpec::new("beat").periodic(1_000_000).wcet_ns(2_000);
//! let beat = program(|nic| async move {
//!     loop {
//!         let _ = nic.post(0, &[0xff; 60]);
//!         nic.next_release().await;
//!     }
//! });
//! # let _ = (spec, beat);
//! ```
//!
//! A periodic task's body begins at its first release; `next_release` ends an invocation. An
//! invocation of any other task lasts from when it becomes ready until it waits for time or an
//! event, or calls `next_release`. The code between two pausing awaits is a segment.
//!
//! Source: NICOS 4.2 and 4.6.

use crate::context::Nic;
use crate::memory::MemoryError;
use crate::reply::Replier;
use crate::shared::Shared;
use picnic_core::command::Prepared;
use picnic_core::time::Time;
use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Wake;

/// A task's handle for control: a number that no other task of the card ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A running task.
pub type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Applies the orders of a task's commands.
pub(crate) type Obey = Box<dyn FnMut(&mut Prepared, Time) -> bool + Send>;

/// A task's code: given the card's services, it makes the future to run.
pub struct Program {
    start: Box<dyn FnOnce(Nic) -> TaskFuture + Send>,
    obey: Option<Obey>,
}

/// Makes a program from an async closure or function.
pub fn program<F, T>(body: F) -> Program
where
    F: FnOnce(Nic) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    Program { start: Box::new(move |nic| Box::pin(body(nic))), obey: None }
}

impl Program {
    /// With a target for the orders of the task's commands: state shared with the task, such as an
    /// `Arc` of its counters and settings. Both run on the borrowed core, one after the other.
    #[must_use]
    pub fn obeying<T: Send + 'static>(self, mut target: T) -> Self {
        Program { obey: Some(Box::new(move |order, now| order.apply(&mut target, now))), ..self }
    }

    /// Applies an order of one of the task's commands; false for other orders.
    pub fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        self.obey.as_mut().is_some_and(|obey| obey(order, now))
    }

    /// The task, and the target of its orders.
    pub(crate) fn start(self, nic: Nic) -> (TaskFuture, Option<Obey>) {
        ((self.start)(nic), self.obey)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("obeys", &self.obey.is_some()).finish_non_exhaustive()
    }
}

/// Bounds of a task's segments in nanoseconds, under their cost profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of each segment, by number. The first one a task runs is segment 0.
    pub segments: Arc<[u64]>,
    /// Of the rest, from the start of each segment until the task next waits.
    pub remaining: Arc<[u64]>,
}

impl Bounds {
    /// One bound for every segment, and for the rest.
    pub fn stated(wcet_ns: u64) -> Self {
        Bounds { segments: [wcet_ns].into(), remaining: [wcet_ns].into() }
    }

    fn at(bounds: &[u64], segment: usize) -> u64 {
        bounds.get(segment).or(bounds.last()).copied().unwrap_or(u64::MAX)
    }
}

/// A task's specification, apart from its code.
#[derive(Clone, Debug)]
pub struct TaskSpec {
    /// Its name, for people.
    pub name: String,
    /// Its kind, as card files name it; none for a task without a registry.
    pub kind: Option<&'static str>,
    /// Nanoseconds between two releases; `None` if it is not periodic.
    pub period_ns: Option<u64>,
    /// Nanoseconds from its creation to its first release.
    pub offset_ns: u64,
    /// Among equals, a higher number goes first.
    pub priority: u8,
    /// Bounds of its segments.
    pub bounds: Bounds,
    /// The origin of its bounds, for people: "stated", or the name of a cost profile.
    pub bounds_from: Cow<'static, str>,
}

/// The origin of stated bounds.
const STATED: &str = "stated";

/// The bound of a task that states none, in nanoseconds.
pub const DEFAULT_WCET_NS: u64 = 10_000;

impl TaskSpec {
    /// An aperiodic task of priority 0, with each segment bounded by [`DEFAULT_WCET_NS`].
    pub fn new(name: impl Into<String>) -> Self {
        TaskSpec {
            name: name.into(),
            kind: None,
            period_ns: None,
            offset_ns: 0,
            priority: 0,
            bounds: Bounds::stated(DEFAULT_WCET_NS),
            bounds_from: STATED.into(),
        }
    }

    /// Released with this period in nanoseconds.
    #[must_use]
    pub fn periodic(mut self, period_ns: u64) -> Self {
        self.period_ns = Some(period_ns.max(1));
        self
    }

    /// First released this many nanoseconds after its creation.
    #[must_use]
    pub fn offset_ns(mut self, offset_ns: u64) -> Self {
        self.offset_ns = offset_ns;
        self
    }

    /// Among equals, a higher number goes first.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Whether its bounds were stated, or left at the default.
    pub fn is_stated(&self) -> bool {
        self.bounds_from == STATED
    }

    /// States one bound for every segment.
    #[must_use]
    pub fn wcet_ns(mut self, wcet_ns: u64) -> Self {
        self.bounds = Bounds::stated(wcet_ns);
        self.bounds_from = STATED.into();
        self
    }

    /// Bounds by segment, as `#[task]` makes them.
    #[must_use]
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// Sets the origin of the bounds, such as the name of a cost profile.
    #[must_use]
    pub fn bounds_from(mut self, origin: impl Into<Cow<'static, str>>) -> Self {
        self.bounds_from = origin.into();
        self
    }
}

/// A task's request to the executor, handled after its segment.
pub(crate) enum TaskRequest {
    Create(Box<(TaskSpec, Program)>, Replier<Result<TaskId, CreateError>>),
    Kill(TaskId),
    Suspend(TaskId),
    Resume(TaskId),
    Priority(TaskId, u8),
    Note(TaskId, String),
}

/// Why a task was not created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The maximum number exists.
    #[error("the card has {0} tasks already (os.tasks)")]
    TooMany(usize),
    /// It was refused admission; the text has the arithmetic.
    #[error("{0}")]
    Refused(String),
    /// Its program panicked when making the task's future.
    #[error("the program panicked when it was started")]
    Panicked,
    /// Card memory has no room for it.
    #[error("{0} (os.arena_bytes)")]
    Memory(#[from] MemoryError),
    /// The card has been stopped.
    #[error("the card has been stopped")]
    Stopped,
}

/// Why a task no longer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its body returned.
    Returned,
    /// It panicked.
    Panicked,
    /// It was killed.
    Killed,
    /// A segment took longer than its bound, and the policy is `kill`.
    Overran,
    /// The card was stopped.
    Stopped,
}

/// The task continues: the next segment is ready to run.
pub(crate) const YIELDED: u8 = 1;
/// It waits for its next release.
pub(crate) const AWAITS_RELEASE: u8 = 2;

/// State shared by a task and the executor. The task writes it while it runs, the executor reads it
/// after the segment: both on the borrowed core, so plain loads and stores.
pub(crate) struct TaskCell {
    pub(crate) id: TaskId,
    pub(crate) slot: u32,
    pub(crate) is_periodic: bool,
    pub(crate) shared: Arc<Shared>,
    bounds: Bounds,
    /// Why it paused.
    flags: AtomicU8,
    /// The time it waits for; `Time::MAX` if none.
    until: AtomicU64,
    /// Invocations begun.
    invocation: AtomicU64,
    wcet_ns: AtomicU64,
    remaining_ns: AtomicU64,
    /// Work that the running segment represents.
    work_ns: AtomicU64,
    ended: AtomicBool,
}

const RELAXED: Ordering = Ordering::Relaxed;

impl TaskCell {
    pub(crate) fn new(id: TaskId, slot: u32, shared: Arc<Shared>, spec: &TaskSpec) -> Self {
        let cell = TaskCell {
            id,
            slot,
            is_periodic: spec.period_ns.is_some(),
            shared,
            bounds: spec.bounds.clone(),
            flags: AtomicU8::new(0),
            until: AtomicU64::new(u64::MAX),
            invocation: AtomicU64::new(0),
            wcet_ns: AtomicU64::new(0),
            remaining_ns: AtomicU64::new(0),
            work_ns: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        cell.next_segment(0);
        cell
    }

    // ------------------------------------------------------------ the task's side

    #[inline]
    pub(crate) fn pause(&self, why: u8) {
        self.flags.store(self.flags.load(RELAXED) | why, RELAXED);
    }

    #[inline]
    pub(crate) fn wait_until(&self, time: Time) {
        self.until.store(self.until.load(RELAXED).min(time.as_nanos()), RELAXED);
    }

    #[inline]
    pub(crate) fn next_segment(&self, segment: usize) {
        self.wcet_ns.store(Bounds::at(&self.bounds.segments, segment), RELAXED);
        self.remaining_ns.store(Bounds::at(&self.bounds.remaining, segment), RELAXED);
    }

    pub(crate) fn add_work(&self, work_ns: u64) {
        self.work_ns.store(self.work_ns.load(RELAXED).saturating_add(work_ns), RELAXED);
    }

    pub(crate) fn invocation(&self) -> u64 {
        self.invocation.load(RELAXED)
    }

    // ------------------------------------------------------------ the executor's side

    /// A segment is about to run.
    #[inline]
    pub(crate) fn begin_segment(&self) {
        self.flags.store(0, RELAXED);
        self.until.store(u64::MAX, RELAXED);
        self.work_ns.store(0, RELAXED);
    }

    pub(crate) fn begin_invocation(&self) {
        self.invocation.store(self.invocation.load(RELAXED) + 1, RELAXED);
    }

    #[inline]
    pub(crate) fn has_paused(&self, why: u8) -> bool {
        self.flags.load(RELAXED) & why != 0
    }

    #[inline]
    pub(crate) fn until(&self) -> Time {
        Time::from_nanos(self.until.load(RELAXED))
    }

    /// Bounds of the next segment and of the rest, in nanoseconds.
    #[inline]
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.wcet_ns.load(RELAXED), self.remaining_ns.load(RELAXED))
    }

    #[inline]
    pub(crate) fn work_ns(&self) -> u64 {
        self.work_ns.load(RELAXED)
    }

    /// The task has ended: remaining wakers have no effect.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

impl Wake for TaskCell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.ended.load(Ordering::Acquire) {
            self.shared.wake(self.slot);
        }
    }
}

impl fmt::Debug for TaskCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskCell").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_past_the_last_have_its_bound() {
        assert_eq!([0, 1, 2, 9].map(|segment| Bounds::at(&[5, 7], segment)), [5, 7, 7, 7]);
        assert_eq!(Bounds::at(&[], 0), u64::MAX);
    }
}
