//! The executor: tasks on the borrowed core, one segment per turn.
//!
//! ```
//! use picnic_os::executor::{Os, OsSettings};
//! use picnic_os::task::{TaskSpec, program};
//! # use picnic_os::schedulers::{Decision, Scheduler};
//! # use picnic_os::ticket::Candidate;
//! # fn build(scheduler: Box<dyn Scheduler>) {
//! let mut os = Os::new(&OsSettings::default(), scheduler);
//! let beat = program(|nic| async move {
//!     loop {
//!         let _ = nic.post(0, &[0xff; 60]);
//!         nic.next_release().await;
//!     }
//! });
//! os.create(TaskSpec::new("beat").periodic(1_000_000), beat).unwrap();
//! # }
//! ```
//!
//! A turn processes events (wakes, timers, frames that have ended, requests), asks the scheduler,
//! and polls one task. The task's actions are in its cell and in the outbox; the executor updates
//! its ticket and takes its packets to the doors. The segment ends, and its duration is known, at
//! the next time that the world reads.
//!
//! Guarantees: memory is allocated only when tasks are created or ended; a task that panics is
//! ended and counted, and the card continues; everything that an ended task had (memory, mailboxes,
//! packets) is released.
//!
//! Source: NICOS 4.2 and 4.5.

mod life;
mod orders;
mod switch;

pub use switch::{Named, Schedules, Switch};

use crate::config::Factory;
use crate::keys::{Admission, Overrun};
use crate::memory::{Memory, MemoryReport, TransferCost};
use crate::net::{Call, Outbox};
use crate::path::PacketPath;
use crate::report::OsReport;
use crate::roster::{Ended, Task, VACANT};
use crate::schedulers::{Decision, Scheduler};
use crate::shared::{Services, Shared, lock};
use crate::task::YIELDED;
use crate::task::{AWAITS_RELEASE, End, TaskId, TaskRequest};
use crate::ticket::Candidate;
use crate::timers::Timers;
use picnic_core::command::Prepared;
use picnic_core::out::Doors;
use picnic_core::resident::{Attention, Resident, Segment, Turn};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_filter::{FilterId, Filters};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

/// The sizes and policies of a NIC OS.
#[derive(Clone, Debug)]
pub struct OsSettings {
    /// Maximum number of tasks at a time.
    pub tasks: usize,
    /// Wires of the card.
    pub wires: u8,
    /// Bytes of a packet buffer: of the longest frame a task can send.
    pub buffer_size: usize,
    /// Bytes of the card's arena.
    pub arena_bytes: usize,
    /// Bytes of host memory that tasks may have.
    pub host_bytes: usize,
    /// What happens to a task whose segment exceeded its bound.
    pub overrun: Overrun,
    /// Allowance for a decision and a switch, in nanoseconds: a segment has overrun when it took
    /// longer than this plus its bound.
    pub switch_ns: u64,
    /// Additional time of a task's segment the first time through, in nanoseconds: bounds assume
    /// code and memory in the caches.
    pub cold_ns: u64,
    /// What happens to a task with which the set cannot be scheduled.
    pub admission: Admission,
    /// The work between two segments: for admission, and for what fits into a slack.
    pub path: PacketPath,
    /// The duration of transfers between card and host.
    pub transfer: TransferCost,
}

impl Default for OsSettings {
    fn default() -> Self {
        OsSettings {
            tasks: 64,
            wires: 1,
            buffer_size: 2048,
            arena_bytes: 1 << 20,
            host_bytes: 16 << 20,
            overrun: Overrun::Warn,
            switch_ns: 1_000,
            cold_ns: 50_000,
            admission: Admission::Refuse,
            path: PacketPath::default(),
            transfer: TransferCost::default(),
        }
    }
}

/// Counts of NIC OS as a whole; written by the borrowed core.
#[derive(Debug, Default)]
pub struct OsCounters {
    /// Decisions made.
    pub decisions: Counter,
    /// Decisions to run nothing.
    pub idle_decisions: Counter,
    /// Segments of tasks that ended by a panic.
    pub panics: Counter,
    /// Tasks created.
    pub created: Counter,
    /// Tasks refused admission.
    pub refused: Counter,
    /// Tasks admitted although admission refused them.
    pub overridden: Counter,
}

/// The segment that runs, or has run and is not known to have ended.
struct Running {
    slot: usize,
    id: TaskId,
    start: Time,
    bound_ns: u64,
    /// It was the last of its invocation.
    completes: bool,
    /// The next invocation begins at once.
    begins: bool,
    end: Option<End>,
}

/// NIC OS: runs on the borrowed core beside the packet path.
pub struct Os {
    shared: Arc<Shared>,
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) tasks: Vec<Option<Task>>,
    timers: Timers,
    /// Number of ready candidates.
    ready: usize,
    /// Orders tasks by when they became ready.
    sequence: u64,
    next_id: u64,
    running: Option<Running>,
    /// The stock of buffers may have gone down.
    stock_used: bool,
    /// The scheduler must be notified that tasks came, went or changed.
    changed: bool,
    calls: Vec<Call>,
    /// Filters of tasks that have ended, to be removed.
    orphans: Vec<FilterId>,
    requests: Vec<TaskRequest>,
    pub(crate) ended: Vec<Ended>,
    pub(crate) counters: Arc<OsCounters>,
    overrun: Overrun,
    admission: Admission,
    path: PacketPath,
    /// How long the core may be interrupted without loss, for all tasks so far.
    pub(crate) tolerates_ns: Option<u64>,
    pub(crate) scheduler_name: Arc<str>,
    /// The scheduler that follows.
    next_scheduler: Option<Named>,
    /// When tasks that wait no longer hold it up.
    switch_by: Option<Time>,
    /// A replaced one, until another thread can free it.
    retired: Option<Named>,
    /// Whether the scheduler has once picked a task that was not ready.
    has_erred: bool,
    pub(crate) factory: Factory,
    /// The report, once it has stopped.
    pub(crate) report: Arc<OnceLock<OsReport>>,
    pub(crate) notes: Vec<String>,
    stopped: bool,
}

/// Number of ended tasks whose figures are kept.
pub(crate) const MOST_ENDED: usize = 1024;
/// Notes that are kept.
const MOST_NOTES: usize = 16;

impl Os {
    /// A NIC OS without tasks.
    pub fn new(settings: &OsSettings, scheduler: Box<dyn Scheduler>) -> Self {
        let memory = Memory::new(settings.arena_bytes, settings.host_bytes, settings.transfer);
        let memory = Arc::new(Mutex::new(memory));
        let outbox = Outbox::new(settings.wires, settings.buffer_size, memory.clone());
        let tasks = settings.tasks.max(1);
        let path = settings.path.clone().switching(settings.switch_ns, settings.cold_ns);
        Os {
            shared: Arc::new(Shared::new(tasks, memory, outbox)),
            scheduler,
            candidates: vec![VACANT; tasks],
            tasks: (0..tasks).map(|_| None).collect(),
            timers: Timers::new(tasks),
            ready: 0,
            sequence: 0,
            next_id: 1,
            running: None,
            stock_used: true,
            changed: true,
            calls: Vec::new(),
            orphans: Vec::new(),
            requests: Vec::with_capacity(tasks),
            ended: Vec::new(),
            counters: Arc::default(),
            overrun: settings.overrun,
            admission: settings.admission,
            tolerates_ns: path.tolerates_ns(0),
            path,
            scheduler_name: "custom".into(),
            next_scheduler: None,
            switch_by: None,
            retired: None,
            has_erred: false,
            factory: Factory::without_kinds(tasks),
            report: Arc::default(),
            notes: Vec::new(),
            stopped: false,
        }
    }

    /// Services for code other than tasks, such as filters.
    pub fn services(&self) -> Services {
        Services(self.shared.clone())
    }

    /// Gives tasks the card's filters to install some of their own. Once; later calls change
    /// nothing.
    pub fn attach_filters(&mut self, filters: Filters) {
        let _ = self.shared.installed.filters.set(filters);
    }

    /// Counts of NIC OS as a whole.
    pub fn counters(&self) -> &Arc<OsCounters> {
        &self.counters
    }

    /// The state of its memory.
    pub fn memory_report(&self) -> MemoryReport {
        lock(&self.shared.memory).report()
    }

    /// Adds a note for the report.
    pub(crate) fn note(&mut self, note: String) {
        if self.notes.len() < MOST_NOTES {
            self.notes.push(note);
        }
    }

    /// Processes everything that has happened since the last turn.
    fn attend(&mut self, now: Time, doors: &mut Doors) {
        self.empty_outbox(doors);
        self.shared.channels.wake_tasks();
        for word in 0..self.shared.woken.len() {
            if self.shared.woken[word].load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut woken = self.shared.woken[word].swap(0, Ordering::AcqRel);
            while woken != 0 {
                self.make_ready(word * 64 + woken.trailing_zeros() as usize, now);
                woken &= woken - 1;
            }
        }
        if self.shared.requested.load(Ordering::Acquire) {
            self.grant(now);
        }
        self.remove_orphans();
        while let Some((slot, at)) = self.timers.take_due(now) {
            self.make_ready(slot, at);
        }
    }

    /// Takes frames of tasks to the doors, and notifies those who wait for their end.
    fn empty_outbox(&mut self, doors: &mut Doors) {
        let used = self.shared.outbox_used.swap(false, Ordering::Acquire);
        if !used && !self.stock_used && !doors.is_watched() {
            return;
        }
        let mut outbox = lock(&self.shared.outbox);
        outbox.flush(doors, &self.shared.attention);
        if !self.stopped {
            outbox.top_up(doors);
        }
        self.stock_used = used;
        if outbox.is_awaited() {
            outbox.settle(doors, &mut self.calls);
        }
        drop(outbox);
        let mut calls = std::mem::take(&mut self.calls);
        for call in calls.drain(..) {
            let task = call.task;
            if !call.make()
                && let Some(slot) = self.slot_of(task)
            {
                self.end(slot, End::Panicked);
            }
        }
        self.calls = calls;
    }

    /// Runs one segment of the task in this place.
    fn run(&mut self, slot: usize, now: Time) -> Option<Segment> {
        let task = self.tasks[slot].as_mut()?;
        let candidate = &mut self.candidates[slot];
        let bound_ns = task.cell.bounds().0;
        if !std::mem::replace(&mut task.begun, task.open) && task.open {
            task.times.jitter.record(now.since(task.ready_at));
        }
        task.cell.begin_segment();
        let mut context = Context::from_waker(&task.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(&mut context)));
        task.counters.segments.add(1);
        let mut running = Running {
            slot,
            id: task.cell.id,
            start: now,
            bound_ns,
            completes: false,
            begins: false,
            end: None,
        };
        let segment =
            Segment { task: slot as u32, work_ns: task.cell.work_ns(), model_ns: bound_ns };
        match polled {
            Ok(Poll::Pending) => {
                let woken = &self.shared.woken[slot / 64];
                let awaits_release = task.cell.has_paused(AWAITS_RELEASE);
                if task.cell.has_paused(YIELDED)
                    || woken.load(Ordering::Relaxed) & 1 << (slot % 64) != 0
                    || awaits_release && task.period_ns.is_none()
                {
                    if awaits_release && task.period_ns.is_none() {
                        // An aperiodic task waits for its release: one invocation ends here, and
                        // the next is ready at once, after all ready tasks.
                        (running.completes, running.begins) = (true, true);
                        task.begun = false;
                        task.cell.begin_invocation();
                    }
                    task.stamp(&mut candidate.ticket, &self.path);
                    candidate.begun = task.begun;
                    self.sequence += 1;
                    candidate.since = self.sequence;
                } else {
                    running.completes = self.pause(slot, awaits_release);
                }
            }
            Ok(Poll::Ready(())) => {
                running.completes = task.open;
                running.end = Some(End::Returned);
            }
            Err(_) => running.end = Some(End::Panicked),
        }
        self.running = Some(running);
        Some(segment)
    }

    /// The scheduler has picked a task that is not ready: it runs nothing.
    #[cold]
    fn note_error(&mut self, slot: usize) {
        self.counters.idle_decisions.add(1);
        if !std::mem::replace(&mut self.has_erred, true) {
            let name = &self.scheduler_name;
            self.note(format!("scheduler {name} picked task {slot}, which was not ready"));
        }
    }

    /// When the next turn is wanted.
    fn due(&self) -> Option<Time> {
        if self.ready != 0 { Some(Time::ZERO) } else { self.next_turn() }
    }

    /// The same, without a ready task.
    fn next_turn(&self) -> Option<Time> {
        self.timers.next().into_iter().chain(self.switch_by).min()
    }
}

impl Resident for Os {
    fn attention(&self) -> &Arc<Attention> {
        &self.shared.attention
    }

    fn turn(&mut self, now: Time, doors: &mut Doors) -> Turn {
        if self.stopped {
            return Turn::Idle(None);
        }
        self.shared.set_now(now);
        self.attend(now, doors);
        self.switch_if_idle(now);
        if std::mem::replace(&mut self.changed, false) {
            self.scheduler.tasks_changed(now, &self.candidates);
        }
        self.counters.decisions.add(1);
        let ran = match self.scheduler.decide(now, &self.candidates) {
            // A scheduler that picks a task which is not ready has picked none.
            Decision::Run(slot) if self.candidates.get(slot).is_some_and(|task| task.ready) => {
                self.run(slot, now)
            }
            Decision::Run(slot) => {
                self.note_error(slot);
                None
            }
            Decision::Idle(until) => {
                self.counters.idle_decisions.add(1);
                // No further release: `Time::MAX`.
                let until = until.filter(|&until| until != Time::MAX);
                return Turn::Idle(until.into_iter().chain(self.next_turn()).min());
            }
        };
        let Some(segment) = ran else { return Turn::Idle(self.next_turn()) };
        self.empty_outbox(doors);
        if self.shared.requested.load(Ordering::Acquire) {
            self.grant(now);
        }
        Turn::Ran(segment)
    }

    fn ended(&mut self, now: Time) -> Option<Time> {
        self.shared.channels.flush();
        let Some(running) = self.running.take() else { return self.due() };
        let Running { slot, id, start, bound_ns, completes, begins, end } = running;
        let Some(task) = self.tasks[slot].as_mut().filter(|task| task.cell.id == id) else {
            return self.due();
        };
        let took_ns = now.since(start);
        let counters = &task.counters;
        counters.busy_ns.add(took_ns);
        if took_ns > counters.longest_segment_ns.get() {
            counters.longest_segment_ns.set(took_ns);
        }
        let is_cold = counters.segments.get() <= task.demand.segments;
        let overran = took_ns > self.path.segment_ns(bound_ns, is_cold);
        if overran {
            counters.overruns.add(1);
        }
        if completes {
            self.complete(slot, now);
        }
        if begins {
            self.begin_again(slot, now);
        }
        match end {
            Some(end) => self.end(slot, end),
            None if overran && self.overrun == Overrun::Kill => self.end(slot, End::Overran),
            None => {}
        }
        // The next turn may come only with the next release.
        self.switch_if_idle(now);
        self.due()
    }

    fn patience_ns(&self) -> u64 {
        self.path.costs().catch_up_ns
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }

    fn stop(&mut self, now: Time, doors: &mut Doors) {
        if self.stopped {
            return;
        }
        self.shared.set_now(now);
        for slot in 0..self.tasks.len() {
            self.end(slot, End::Stopped);
        }
        self.shared.installed.remove_at_last(&mut self.orphans);
        self.stopped = true;
        lock(&self.shared.outbox).stop(doors);
        self.empty_outbox(doors);
        // All requests get an answer.
        self.grant(now);
        let _ = self.report.set(self.report());
    }
}

impl fmt::Debug for Os {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Os").field("ready", &self.ready).finish_non_exhaustive()
    }
}
