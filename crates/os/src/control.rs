//! Orders to a running NIC OS, from outside: `Command::Resident(Prepared::new(TaskControl::...))`.
//!
//! ```
//! use picnic_core::command::Prepared;
//! use picnic_os::control::TaskControl;
//! use picnic_os::task::TaskId;
//! let order = Prepared::new(TaskControl::Suspend(TaskId(3)));
//! # drop(order);
//! ```
//!
//! They are applied on the borrowed core between bursts. Results are left in the order, and so are
//! freed by the sender; a list is written into memory supplied with it, if large enough.

use crate::executor::{Os, Switch};
use crate::figures::TaskCounters;
use crate::roster::{State, Times};
use crate::task::{CreateError, Program, TaskId, TaskSpec};
use picnic_core::command::{Order, Prepared};
use picnic_core::time::Time;
use std::fmt;
use std::sync::Arc;

/// An order. The answer is whether it was done; `false` for a task that does not exist.
pub enum TaskControl {
    /// Creates a task; it is taken out, and the result put in.
    Create {
        /// The task.
        task: Option<(TaskSpec, Program)>,
        /// The result.
        result: Option<Result<TaskId, CreateError>>,
    },
    /// Ends a task and releases everything it has.
    Kill(TaskId),
    /// Suspends a task until it is resumed.
    Suspend(TaskId),
    /// Resumes a suspended task.
    Resume(TaskId),
    /// Gives a task another priority.
    SetPriority(TaskId, u8),
    /// Lists all tasks, ended ones first.
    List(Vec<TaskLine>),
    /// Replaces the scheduler, or says which there is.
    Switch(Switch),
    /// Makes the scheduler apply an order made by one of its commands.
    Scheduler(Prepared),
    /// Makes a task apply an order made by one of its commands.
    Task(TaskId, Prepared),
    /// Copies a task's distributions of times, ended or not.
    Times(TaskId, Option<Box<Times>>),
}

/// A task in a list.
#[derive(Clone, Debug)]
pub struct TaskLine {
    /// Its number.
    pub id: TaskId,
    /// Its name.
    pub name: Arc<str>,
    /// Its kind, as card files name it.
    pub kind: Option<&'static str>,
    /// Its state.
    pub state: State,
    /// Nanoseconds between two releases; `None` if it is not periodic.
    pub period_ns: Option<u64>,
    /// Its priority.
    pub priority: u8,
    /// Bound of its next segment, in nanoseconds.
    pub wcet_ns: Option<u64>,
    /// The origin of its bounds.
    pub bounds_from: Arc<str>,
    /// Its counters, which keep counting.
    pub counters: Arc<TaskCounters>,
}

impl TaskControl {
    /// An order to create a task.
    pub fn create(spec: TaskSpec, program: Program) -> Self {
        TaskControl::Create { task: Some((spec, program)), result: None }
    }

    /// An order to list up to `tasks` tasks without allocating on the borrowed core.
    pub fn list(tasks: usize) -> Self {
        TaskControl::List(Vec::with_capacity(tasks))
    }
}

impl Order for TaskControl {
    type Target = Os;

    fn apply(&mut self, os: &mut Os, now: Time) -> bool {
        match self {
            TaskControl::Create { task, result } => {
                let Some((spec, program)) = task.take() else { return false };
                let created = os.create_at(now, spec, program);
                result.insert(created).is_ok()
            }
            TaskControl::Kill(task) => os.kill(*task),
            TaskControl::Suspend(task) => os.suspend(*task),
            TaskControl::Resume(task) => os.resume(*task, now),
            TaskControl::SetPriority(task, priority) => os.set_priority(*task, *priority),
            TaskControl::List(lines) => {
                lines.clear();
                lines.extend(os.lines());
                true
            }
            TaskControl::Switch(switch) => os.switch(switch, now),
            TaskControl::Scheduler(order) => os.scheduler.obey(order, now),
            TaskControl::Task(task, order) => os.obey_at(*task, order, now),
            TaskControl::Times(task, times) => {
                *times = os.times(*task).cloned().map(Box::new);
                times.is_some()
            }
        }
    }
}

impl fmt::Debug for TaskControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskControl::Create { result, .. } => {
                f.debug_struct("Create").field("result", result).finish_non_exhaustive()
            }
            TaskControl::Kill(task) => f.debug_tuple("Kill").field(task).finish(),
            TaskControl::Suspend(task) => f.debug_tuple("Suspend").field(task).finish(),
            TaskControl::Resume(task) => f.debug_tuple("Resume").field(task).finish(),
            TaskControl::SetPriority(task, priority) => {
                f.debug_tuple("SetPriority").field(task).field(priority).finish()
            }
            TaskControl::List(lines) => f.debug_tuple("List").field(lines).finish(),
            TaskControl::Switch(switch) => f.debug_tuple("Switch").field(switch).finish(),
            TaskControl::Scheduler(order) => f.debug_tuple("Scheduler").field(order).finish(),
            TaskControl::Task(task, order) => {
                f.debug_tuple("Task").field(task).field(order).finish()
            }
            TaskControl::Times(task, times) => {
                f.debug_tuple("Times").field(task).field(times).finish()
            }
        }
    }
}

impl Os {
    /// Applies an order; false if the task does not exist, or there can be no more.
    pub fn control(&mut self, now: Time, order: &mut TaskControl) -> bool {
        order.apply(self, now)
    }

    /// All tasks, ended ones first.
    pub fn lines(&self) -> impl Iterator<Item = TaskLine> + '_ {
        let ended = self.ended.iter().map(|task| TaskLine {
            id: task.id,
            name: task.name.clone(),
            kind: task.kind,
            state: task.state,
            period_ns: task.period_ns,
            priority: task.priority,
            wcet_ns: None,
            bounds_from: task.bounds_from.clone(),
            counters: task.counters.clone(),
        });
        let living = self.tasks.iter().zip(&self.candidates).filter_map(|(task, candidate)| {
            let task = task.as_ref()?;
            Some(TaskLine {
                id: task.cell.id,
                name: task.name.clone(),
                kind: task.kind,
                state: if task.suspended { State::Suspended } else { task.state },
                period_ns: task.period_ns,
                priority: candidate.ticket.priority,
                wcet_ns: Some(task.cell.bounds().0),
                bounds_from: task.bounds_from.clone(),
                counters: task.counters.clone(),
            })
        });
        ended.chain(living)
    }

    /// A task's distributions of times, ended or not.
    pub fn times(&self, id: TaskId) -> Option<&Times> {
        if let Some(slot) = self.slot_of(id) {
            return self.tasks[slot].as_ref().map(|task| &*task.times);
        }
        self.ended.iter().find(|task| task.id == id).map(|task| &*task.times)
    }
}
