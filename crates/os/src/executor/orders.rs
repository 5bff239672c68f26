//! Orders to NIC OS: tasks are created and admitted, killed, suspended, resumed.

use super::Os;
use crate::admission::{self, Demand, Refusal};
use crate::context::Nic;
use crate::figures::TaskCounters;
use crate::keys::Admission;
use crate::memory::Kind;
use crate::roster::{State, Task, VACANT};
use crate::schedulers::Discipline;
use crate::shared::lock;
use crate::task::{CreateError, End, Program, TaskCell, TaskId, TaskRequest, TaskSpec};
use crate::ticket::Ticket;
use picnic_core::command::Prepared;
use picnic_core::time::Time;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// A task's demand on the core.
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
    /// Creates a task before the card runs: its time begins at zero.
    ///
    /// # Errors
    /// Why it was not created.
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
        let started = catch_unwind(AssertUnwindSafe(|| program.start(nic)));
        self.next_id += 1;
        let started = started.map_err(|_| CreateError::Panicked).and_then(|(future, obey)| {
            let bytes = size_of_val(&*future) + size_of::<TaskCell>();
            let charge = lock(&self.shared.memory).charge(id, Kind::Task, bytes)?;
            Ok((future, obey, charge))
        });
        // The program's allocations are not needed.
        let (future, obey, charge) =
            started.inspect_err(|_| lock(&self.shared.memory).release_all(id))?;
        let begins = now + spec.offset_ns;
        self.candidates[slot].ticket = Ticket {
            period_ns: spec.period_ns,
            priority: spec.priority,
            next_release: begins,
            next_deadline: spec.period_ns.map_or(Time::MAX, |period_ns| begins + period_ns),
            ..VACANT.ticket
        };
        let task = Task {
            waker: Waker::from(cell.clone()),
            cell,
            future,
            obey,
            charge,
            name: spec.name.into(),
            kind: spec.kind,
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
        };
        task.stamp(&mut self.candidates[slot].ticket, &self.path);
        self.tasks[slot] = Some(task);
        self.timers.set(slot, begins);
        self.changed = true;
        self.counters.created.add(1);
        Ok(id)
    }

    /// Whether the task may be added.
    fn admit(&mut self, spec: &TaskSpec) -> Result<(), CreateError> {
        let demand = demand_of(spec);
        let there = self.tasks.iter().flatten().map(|task| task.demand.segment_ns);
        let longest_ns = there.fold(demand.segment_ns, u64::max);
        let next = self.next_scheduler.as_ref().map(|next| &next.scheduler);
        let answer = [&self.scheduler].into_iter().chain(next).try_for_each(|scheduler| {
            self.judge(std::slice::from_ref(&demand), scheduler.order(), scheduler.discipline())
        });
        let tolerates_ns = self.path.tolerates_ns(self.path.segment_ns(longest_ns, true));
        let Err(refusal) = answer else {
            self.note_tolerance(tolerates_ns);
            return Ok(());
        };
        if self.admission == Admission::Refuse {
            self.counters.refused.add(1);
            return Err(CreateError::Refused(refusal.to_string()));
        }
        self.note_tolerance(tolerates_ns);
        self.override_admission(&refusal);
        Ok(())
    }

    /// Whether the tasks, and some more, can be scheduled.
    pub(super) fn judge(
        &self,
        more: &[Demand],
        order: admission::Order,
        discipline: Discipline,
    ) -> Result<(), Refusal> {
        let tasks = self.tasks.iter().flatten().map(|task| &task.demand);
        let demands: Vec<&Demand> = tasks.chain(more).collect();
        admission::admit(&demands, &self.path, order, discipline)
    }

    /// Counts what admission would refuse.
    pub(super) fn override_admission(&mut self, refusal: &Refusal) {
        self.counters.overridden.add(1);
        self.note(format!("admission overridden: {refusal}"));
    }

    /// Records the shortest tolerance of all sets of tasks so far.
    fn note_tolerance(&mut self, tolerates_ns: Option<u64>) {
        self.tolerates_ns = self.tolerates_ns.into_iter().chain(tolerates_ns).min();
    }

    pub(crate) fn slot_of(&self, id: TaskId) -> Option<usize> {
        self.tasks.iter().position(|task| task.as_ref().is_some_and(|task| task.cell.id == id))
    }

    /// Ends a task; whether it existed.
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
                // Releases during the pause are dropped; the next keeps to the grid.
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

    /// Makes a task apply an order of one of its commands; whether it did.
    pub(crate) fn obey_at(&mut self, id: TaskId, order: &mut Prepared, now: Time) -> bool {
        let Some(slot) = self.slot_of(id) else { return false };
        let obey = self.tasks[slot].as_mut().and_then(|task| task.obey.as_mut());
        obey.is_some_and(|obey| obey(order, now))
    }

    /// Handles requests of tasks.
    #[cold]
    pub(super) fn grant(&mut self, now: Time) {
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
                TaskRequest::Note(id, text) => {
                    let task = self.slot_of(id).and_then(|slot| self.tasks[slot].as_ref());
                    let name = task.map_or("", |task| &*task.name);
                    self.note(format!("task {name}: {text}"));
                }
            }
        }
        self.requests = requests;
    }
}
