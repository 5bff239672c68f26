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
//! They are obeyed on the borrowed core between bursts. What an order brings back
//! is left in it, and so is freed by whoever sent it; a list is written into memory
//! that came along, if that is enough.

use crate::executor::Os;
use crate::figures::TaskCounters;
use crate::roster::{State, Times};
use crate::task::{CreateError, Program, TaskId, TaskSpec};
use picnic_core::command::{Order, Prepared};
use picnic_core::time::Time;
use std::fmt;
use std::sync::Arc;

/// An order. The answer says whether it was done; a task that is not there makes it `false`.
pub enum TaskControl {
    /// Creates a task; the task is taken out, the result put in.
    Create {
        /// The task.
        task: Option<(TaskSpec, Program)>,
        /// What became of it.
        result: Option<Result<TaskId, CreateError>>,
    },
    /// Ends a task and releases all it has.
    Kill(TaskId),
    /// Lets a task run no more until it is resumed.
    Suspend(TaskId),
    /// Lets a suspended task run again.
    Resume(TaskId),
    /// Gives a task another priority.
    SetPriority(TaskId, u8),
    /// Lists all tasks, those that have ended first.
    List(Vec<TaskLine>),
    /// Has the scheduler obey an order that one of its commands has made.
    Scheduler(Prepared),
    /// Has a task obey an order that one of its commands has made.
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
    /// What it is, as card files name it.
    pub kind: Option<&'static str>,
    /// Where it stands.
    pub state: State,
    /// Nanoseconds between two releases; `None` if it is not periodic.
    pub period_ns: Option<u64>,
    /// Its priority.
    pub priority: u8,
    /// Bound of its next segment, in nanoseconds.
    pub wcet_ns: Option<u64>,
    /// Where its bounds come from.
    pub bounds_from: Arc<str>,
    /// Its counters, which go on.
    pub counters: Arc<TaskCounters>,
}

impl TaskControl {
    /// An order to create a task.
    pub fn create(spec: TaskSpec, program: Program) -> Self {
        TaskControl::Create { task: Some((spec, program)), result: None }
    }

    /// An order to list up to `tasks` tasks without taking memory on the borrowed core.
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
    /// Obeys an order; false if the task is not there, or there can be no more.
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
