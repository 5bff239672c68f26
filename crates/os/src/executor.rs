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
//! A turn takes in what happened (wakes, timers, frames that have ended, requests),
//! asks the scheduler, and polls one task. Whatever the task did shows in its cell
//! and in the outbox; the executor brings its ticket up to date and takes what it
//! sent to the doors. When the segment ended, and so what it took, is what the
//! world says next.
//!
//! Guarantees: nothing is allocated but when tasks are created or ended; a task
//! that panics is ended and counted, and the card goes on; all that an ended task
//! had (memory, mailboxes, packets) is released.
//!
//! Source: NICOS 4.2 and 4.5.

use crate::admission::{self, Demand, PacketPath};
use crate::config::Factory;
use crate::context::Nic;
use crate::figures::TaskCounters;
use crate::memory::{Memory, MemoryReport, TransferCost};
use crate::net::{Call, Outbox};
use crate::roster::{Ended, State, Task, VACANT};
use crate::schedulers::{Decision, Scheduler};
use crate::shared::{Services, Shared, lock};
use crate::task::YIELDED;
use crate::task::{
    AWAITS_RELEASE, CreateError, End, Program, TaskCell, TaskId, TaskRequest, TaskSpec,
};
use crate::ticket::{Candidate, Ticket};
use crate::timers::Timers;
use picnic_core::command::Prepared;
use picnic_core::config::{Admission, Overrun};
use picnic_core::out::Doors;
use picnic_core::resident::{Attention, Resident, Segment, Turn};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_filter::{FilterId, Filters};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

/// The sizes and policies of a NIC OS.
#[derive(Clone, Debug)]
pub struct OsSettings {
    /// Tasks there may be at a time.
    pub tasks: usize,
    /// Wires of the card.
    pub wires: u8,
    /// Bytes of a packet buffer: of the longest frame a task can send.
    pub buffer_size: usize,
    /// Bytes of the card's arena.
    pub arena_bytes: usize,
    /// Bytes of host memory that tasks may have.
    pub host_bytes: usize,
    /// What becomes of a task whose segment took longer than its bound.
    pub overrun: Overrun,
    /// What a decision and a switch may take, in nanoseconds: a segment has overrun when it
    /// took longer than this and its bound together.
    pub switch_ns: u64,
    /// What each segment of a task may take on top of that the first time through, in
    /// nanoseconds: bounds are those of code and memory that are in the caches.
    pub cold_ns: u64,
    /// What becomes of a task with which the set could not be scheduled.
    pub admission: Admission,
    /// What the packet path needs, for admission.
    pub path: PacketPath,
    /// How long transfers between card and host take.
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
            path: PacketPath { line_rate_pps: 0, receive_room: 1_024, turn_ns: 0 },
            transfer: TransferCost::default(),
        }
    }
}

/// What is counted of NIC OS as a whole; written by the borrowed core.
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
    /// Tasks that were let in against what admission said.
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

/// NIC OS: what lives on the borrowed core beside the packets.
pub struct Os {
    shared: Arc<Shared>,
    scheduler: Box<dyn Scheduler>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) tasks: Vec<Option<Task>>,
    timers: Timers,
    /// Candidates that are ready.
    ready: usize,
    /// Orders tasks by when they became ready.
    sequence: u64,
    next_id: u64,
    running: Option<Running>,
    /// The stock of buffers may have gone down.
    stock_used: bool,
    /// The scheduler is to be told that tasks came, went or changed.
    changed: bool,
    calls: Vec<Call>,
    /// Filters of tasks that have ended, to be removed.
    orphans: Vec<FilterId>,
    requests: Vec<TaskRequest>,
    pub(crate) ended: Vec<Ended>,
    pub(crate) counters: Arc<OsCounters>,
    overrun: Overrun,
    switch_ns: u64,
    cold_ns: u64,
    admission: Admission,
    path: PacketPath,
    pub(crate) scheduler_name: String,
    pub(crate) factory: Factory,
    pub(crate) notes: Vec<String>,
    stopped: bool,
}

/// Tasks that have ended whose figures are kept.
pub(crate) const MOST_ENDED: usize = 1024;
/// Notes that are kept.
const MOST_NOTES: usize = 16;

/// What a task asks of the core.
fn demand_of(spec: &TaskSpec) -> Demand {
    let most = |bounds: &[u64]| bounds.iter().copied().max().unwrap_or(u64::MAX);
    Demand {
        name: spec.name.clone(),
        period_ns: spec.period_ns,
        invocation_ns: most(&spec.bounds.remaining),
        segment_ns: most(&spec.bounds.segments),
        segments: spec.bounds.segments.len() as u64,
    }
}

impl Os {
    /// A NIC OS without tasks.
    pub fn new(settings: &OsSettings, scheduler: Box<dyn Scheduler>) -> Self {
        let memory = Memory::new(settings.arena_bytes, settings.host_bytes, settings.transfer);
        let outbox = Outbox::new(settings.wires, settings.buffer_size);
        let tasks = settings.tasks.max(1);
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
            switch_ns: settings.switch_ns,
            cold_ns: settings.cold_ns,
            admission: settings.admission,
            path: settings.path,
            scheduler_name: "custom".into(),
            factory: Factory::without_kinds(tasks),
            notes: Vec::new(),
            stopped: false,
        }
    }

    /// What is open to whoever works beside tasks: filters, say.
    pub fn services(&self) -> Services {
        Services(self.shared.clone())
    }

    /// Gives tasks the card's filters to install some of their own. Once; later calls change
    /// nothing.
    pub fn attach_filters(&mut self, filters: Filters) {
        let _ = self.shared.installed.filters.set(filters);
    }

    /// What is counted of NIC OS as a whole.
    pub fn counters(&self) -> &Arc<OsCounters> {
        &self.counters
    }

    /// Creates a task, before the card runs: its time begins at zero.
    ///
    /// # Errors
    /// Why there is none.
    pub fn create(&mut self, spec: TaskSpec, program: Program) -> Result<TaskId, CreateError> {
        self.create_at(Time::ZERO, spec, program)
    }

    pub(crate) fn create_at(
        &mut self,
        now: Time,
        spec: TaskSpec,
        program: Program,
    ) -> Result<TaskId, CreateError> {
        if self.stopped {
            return Err(CreateError::Stopped);
        }
        let slot = self.tasks.iter().position(Option::is_none);
        let slot = slot.ok_or(CreateError::TooMany(self.tasks.len()))?;
        self.admit(&spec)?;
        let id = TaskId(self.next_id);
        let demand = demand_of(&spec);
        let cell = Arc::new(TaskCell::new(id, slot as u32, self.shared.clone(), &spec));
        let nic = Nic { cell: cell.clone() };
        let future = catch_unwind(AssertUnwindSafe(|| program(nic)));
        let future = future.map_err(|_| CreateError::Panicked)?;
        self.next_id += 1;
        let begins = now + spec.offset_ns;
        let (wcet_ns, remaining_ns) = cell.bounds();
        self.candidates[slot].ticket = Ticket {
            wcet_ns,
            remaining_ns,
            period_ns: spec.period_ns,
            priority: spec.priority,
            next_release: begins,
            next_deadline: spec.period_ns.map_or(Time::MAX, |period_ns| begins + period_ns),
        };
        self.tasks[slot] = Some(Task {
            waker: Waker::from(cell.clone()),
            cell,
            future,
            name: spec.name.into(),
            bounds_from: spec.bounds_from.into(),
            demand,
            period_ns: spec.period_ns,
            state: if spec.period_ns.is_some() { State::Release } else { State::Waiting },
            suspended: false,
            ready_at: begins,
            open: false,
            begun: false,
            counters: Arc::new(TaskCounters::default()),
            times: Box::default(),
        });
        self.timers.set(slot, begins);
        self.changed = true;
        self.counters.created.add(1);
        self.shared.attention.raise();
        Ok(id)
    }

    /// Whether the task may come to those that are there.
    fn admit(&mut self, spec: &TaskSpec) -> Result<(), CreateError> {
        let mut demands: Vec<_> =
            self.tasks.iter().flatten().map(|task| task.demand.clone()).collect();
        demands.push(demand_of(spec));
        let (order, discipline) = (self.scheduler.order(), self.scheduler.discipline());
        let Err(refusal) = admission::admit(&demands, self.path, order, discipline) else {
            return Ok(());
        };
        if self.admission == Admission::Refuse {
            self.counters.refused.add(1);
            return Err(CreateError::Refused(refusal.to_string()));
        }
        self.counters.overridden.add(1);
        if self.notes.len() < MOST_NOTES {
            self.notes.push(format!("admission overridden: {refusal}"));
        }
        Ok(())
    }

    /// How its memory stands.
    pub fn memory_report(&self) -> MemoryReport {
        lock(&self.shared.memory).report()
    }

    pub(crate) fn slot_of(&self, id: TaskId) -> Option<usize> {
        self.tasks.iter().position(|task| task.as_ref().is_some_and(|task| task.cell.id == id))
    }

    /// Ends a task; whether it was there.
    pub(crate) fn kill(&mut self, id: TaskId) -> bool {
        let slot = self.slot_of(id);
        slot.inspect(|&slot| self.end(slot, End::Killed)).is_some()
    }

    pub(crate) fn suspend(&mut self, id: TaskId) -> bool {
        let Some(slot) = self.slot_of(id) else { return false };
        let Some(task) = &mut self.tasks[slot] else { return false };
        task.suspended = true;
        let ticket = &mut self.candidates[slot].ticket;
        match task.state {
            State::Release => {
                self.timers.clear(slot);
                (ticket.next_release, ticket.next_deadline) = (Time::MAX, Time::MAX);
            }
            _ => ticket.next_release = Time::MAX,
        }
        self.set_ready(slot, false);
        self.changed = true;
        true
    }

    pub(crate) fn resume(&mut self, id: TaskId, now: Time) -> bool {
        let Some(slot) = self.slot_of(id) else { return false };
        let Some(task) = &mut self.tasks[slot] else { return false };
        if !std::mem::replace(&mut task.suspended, false) {
            return true;
        }
        match (task.state, task.period_ns) {
            (State::Release, Some(period_ns)) => {
                // The releases of the pause are none; the next keeps to the grid.
                let behind = now.since(task.ready_at).div_ceil(period_ns);
                task.ready_at = task.ready_at + behind * period_ns;
                self.await_release(slot);
            }
            (State::Ready, _) => {
                self.candidates[slot].ticket.next_release = task.ready_at;
                self.line_up(slot);
            }
            _ => {}
        }
        self.changed = true;
        true
    }

    pub(crate) fn set_priority(&mut self, id: TaskId, priority: u8) -> bool {
        let Some(slot) = self.slot_of(id) else { return false };
        self.candidates[slot].ticket.priority = priority;
        self.changed = true;
        true
    }

    // ------------------------------------------------------------ what happens to a task

    fn set_ready(&mut self, slot: usize, ready: bool) {
        let before = std::mem::replace(&mut self.candidates[slot].ready, ready);
        self.ready = self.ready + usize::from(ready) - usize::from(before);
    }

    /// The task is ready, behind all that are.
    fn line_up(&mut self, slot: usize) {
        self.sequence += 1;
        self.candidates[slot].since = self.sequence;
        self.set_ready(slot, true);
    }

    /// The task waits for its release, which is when `ready_at` says.
    fn await_release(&mut self, slot: usize) {
        let Some(task) = &mut self.tasks[slot] else { return };
        task.state = State::Release;
        let (wcet_ns, remaining_ns) = task.cell.bounds();
        let ticket = &mut self.candidates[slot].ticket;
        (ticket.wcet_ns, ticket.remaining_ns) = (wcet_ns, remaining_ns);
        if !task.suspended {
            ticket.next_release = task.ready_at;
            ticket.next_deadline = task.ready_at + task.period_ns.unwrap_or(0);
            self.timers.set(slot, task.ready_at);
        }
    }

    /// What the task waited for has come, at `at`.
    fn make_ready(&mut self, slot: usize, at: Time) {
        let Some(task) = &mut self.tasks[slot] else { return };
        let begins = match task.state {
            // A release, or a wake ahead of one: then the task looks and waits on.
            State::Release => at >= task.ready_at,
            State::Waiting => task.period_ns.is_none(),
            _ => return,
        };
        if begins {
            task.cell.begin_invocation();
            task.counters.invocations.add(1);
            (task.open, task.begun) = (true, false);
            if task.period_ns.is_none() {
                task.ready_at = at;
            }
        }
        task.state = State::Ready;
        let (wcet_ns, remaining_ns) = task.cell.bounds();
        let candidate = &mut self.candidates[slot];
        (candidate.ticket.wcet_ns, candidate.ticket.remaining_ns) = (wcet_ns, remaining_ns);
        candidate.begun = task.begun;
        self.timers.clear(slot);
        let Some(task) = &self.tasks[slot] else { return };
        if !task.suspended {
            self.candidates[slot].ticket.next_release = task.ready_at;
            self.line_up(slot);
        }
    }

    /// Ends a task and releases all it has.
    fn end(&mut self, slot: usize, end: End) {
        let Some(task) = self.tasks[slot].take() else { return };
        task.cell.end();
        self.timers.clear(slot);
        self.set_ready(slot, false);
        let priority = self.candidates[slot].ticket.priority;
        self.candidates[slot] = VACANT;
        self.changed = true;
        let Task { cell, future, name, bounds_from, period_ns, counters, times, .. } = task;
        // What the body has is dropped with it, and may panic in turn.
        if catch_unwind(AssertUnwindSafe(|| drop(future))).is_err() || end == End::Panicked {
            self.counters.panics.add(1);
        }
        lock(&self.shared.memory).release_all(cell.id);
        self.shared.installed.take(cell.id, &mut self.orphans);
        self.remove_orphans();
        let mut hooks = std::mem::take(&mut *lock(&self.shared.end_hooks));
        for hook in &mut hooks {
            hook(cell.id);
        }
        hooks.append(&mut lock(&self.shared.end_hooks));
        *lock(&self.shared.end_hooks) = hooks;
        if self.ended.len() == MOST_ENDED {
            self.ended.remove(0);
        }
        let state = end.into();
        let id = cell.id;
        self.ended.push(Ended {
            id,
            name,
            bounds_from,
            period_ns,
            priority,
            state,
            counters,
            times,
        });
        // It may have let go of packets.
        self.shared.attention.raise_here();
    }

    /// Removes the filters that ended tasks have left; once more next time if somebody else
    /// changes filters at this moment.
    fn remove_orphans(&mut self) {
        if !self.orphans.is_empty() {
            self.shared.installed.remove(&mut self.orphans);
            if !self.orphans.is_empty() {
                self.shared.attention.raise_here();
            }
        }
    }

    // ------------------------------------------------------------ a turn

    /// Takes in what has happened since the last turn.
    fn attend(&mut self, now: Time, doors: &mut Doors) {
        self.empty_outbox(doors);
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

    /// Takes what tasks have sent to the doors, and tells those who wait for its end.
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

    /// Does what tasks have asked for.
    #[cold]
    fn grant(&mut self, now: Time) {
        self.shared.requested.store(false, Ordering::Release);
        let mut requests = std::mem::take(&mut self.requests);
        std::mem::swap(&mut requests, &mut *lock(&self.shared.requests));
        for request in requests.drain(..) {
            match request {
                TaskRequest::Create(task, replier) => {
                    let (spec, program) = *task;
                    replier.answer(self.create_at(now, spec, program));
                }
                TaskRequest::Kill(id) => _ = self.kill(id),
                TaskRequest::Suspend(id) => _ = self.suspend(id),
                TaskRequest::Resume(id) => _ = self.resume(id, now),
                TaskRequest::Priority(id, priority) => _ = self.set_priority(id, priority),
            }
        }
        self.requests = requests;
    }

    /// Runs one segment of the task in this place.
    fn run(&mut self, slot: usize, now: Time) -> Option<Segment> {
        let task = self.tasks[slot].as_mut()?;
        let candidate = &mut self.candidates[slot];
        let bound_ns = candidate.ticket.wcet_ns;
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
                        // The release of a task that has none: one invocation ends here, and the
                        // next is ready at once, behind all that are.
                        running.completes = std::mem::replace(&mut task.open, false);
                        running.begins = true;
                        task.begun = false;
                        task.cell.begin_invocation();
                    }
                    let (wcet_ns, remaining_ns) = task.cell.bounds();
                    let ticket = &mut candidate.ticket;
                    (ticket.wcet_ns, ticket.remaining_ns) = (wcet_ns, remaining_ns);
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
                self.set_ready(slot, false);
            }
            Err(_) => {
                running.end = Some(End::Panicked);
                self.set_ready(slot, false);
            }
        }
        self.running = Some(running);
        Some(segment)
    }

    /// The task waits: for its release, for a time, for an event. Whether its invocation is over.
    fn pause(&mut self, slot: usize, awaits_release: bool) -> bool {
        self.set_ready(slot, false);
        let Some(task) = &mut self.tasks[slot] else { return false };
        let candidate = &mut self.candidates[slot];
        let until = task.cell.until();
        if awaits_release {
            let completes = std::mem::replace(&mut task.open, false);
            candidate.begun = false;
            task.state = State::Release;
            if !completes {
                // Woken ahead of its release, which it waits for still.
                self.await_release(slot);
            }
            return completes;
        }
        task.state = State::Waiting;
        if until != Time::MAX {
            self.timers.set(slot, until);
        }
        let (wcet_ns, remaining_ns) = task.cell.bounds();
        let ticket = &mut candidate.ticket;
        (ticket.wcet_ns, ticket.remaining_ns) = (wcet_ns, remaining_ns);
        // A periodic task that waits in the middle is due again when that is over, if one knows.
        ticket.next_release = until;
        if task.period_ns.is_some() {
            return false;
        }
        candidate.begun = false;
        std::mem::replace(&mut task.open, false)
    }

    /// The task's invocation ended at `now`.
    fn complete(&mut self, slot: usize, now: Time) {
        let Some(task) = &mut self.tasks[slot] else { return };
        task.counters.completed.add(1);
        task.times.response.record(now.since(task.ready_at));
        let Some(period_ns) = task.period_ns else { return };
        let next = task.ready_at + period_ns;
        if now > next {
            task.counters.deadline_misses.add(1);
        }
        // Releases whose own deadlines have gone by as well.
        let skipped = now.since(next) / period_ns;
        if skipped != 0 {
            task.counters.deadline_misses.add(skipped);
            task.counters.releases_skipped.add(skipped);
        }
        task.ready_at = next + skipped * period_ns;
        if task.state == State::Release {
            self.await_release(slot);
        }
    }

    /// The task's next invocation begins at `now`, with nothing to wait for.
    fn begin_again(&mut self, slot: usize, now: Time) {
        let Some(task) = &mut self.tasks[slot] else { return };
        task.counters.invocations.add(1);
        task.open = true;
        task.ready_at = now;
        if !task.suspended {
            self.candidates[slot].ticket.next_release = now;
        }
    }

    /// When the next turn is wanted.
    fn due(&self) -> Option<Time> {
        if self.ready != 0 { Some(Time::ZERO) } else { self.timers.next() }
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
        if std::mem::replace(&mut self.changed, false) {
            self.scheduler.tasks_changed(now, &self.candidates);
        }
        self.counters.decisions.add(1);
        let ran = match self.scheduler.decide(now, &self.candidates) {
            // A scheduler that picks a task which is not ready has picked none.
            Decision::Run(slot) if self.candidates.get(slot).is_some_and(|task| task.ready) => {
                self.run(slot, now)
            }
            Decision::Run(_) => None,
            Decision::Idle(until) => {
                self.counters.idle_decisions.add(1);
                // A release that is not to be says `Time::MAX`.
                let until = until.filter(|&until| until != Time::MAX);
                return Turn::Idle(until.into_iter().chain(self.timers.next()).min());
            }
        };
        let Some(segment) = ran else { return Turn::Idle(self.timers.next()) };
        self.empty_outbox(doors);
        if self.shared.requested.load(Ordering::Acquire) {
            self.grant(now);
        }
        Turn::Ran(segment)
    }

    fn ended(&mut self, now: Time) -> Option<Time> {
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
        let cold_ns = if is_cold { self.cold_ns } else { 0 };
        let overran = took_ns > bound_ns.saturating_add(self.switch_ns).saturating_add(cold_ns);
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
        self.due()
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
        self.stock_used = true;
        self.empty_outbox(doors);
        // Whoever asked for something is told.
        self.grant(now);
    }
}

impl fmt::Debug for Os {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Os").field("ready", &self.ready).finish_non_exhaustive()
    }
}
