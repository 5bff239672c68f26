//! What can be asked of a card's tasks over its socket: `task.*`.
//!
//! ```
//! use picnic_control::protocol::{Request, request};
//! use picnic_control::tasks::{TaskRef, TaskRequest, Which};
//! let params = serde_json::json!({ "task": "heartbeat" });
//! let Ok(Request::Task(asked)) = request("task.kill", params.as_object().unwrap().clone()) else {
//!     panic!()
//! };
//! assert_eq!(asked, TaskRequest::Kill(Which { task: TaskRef::Name("heartbeat".into()) }));
//! ```
//!
//! Tasks go by number or name. Whether there is such a task, and which kinds can be
//! created, the card says: docs/control.md.

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::fmt;

/// What a client can ask of tasks.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskRequest {
    /// `task.list`: all tasks, those that have ended first.
    List,
    /// `task.show`: one task with its times.
    Show(Which),
    /// `task.create`: a task more, as `[[task]]` describes it.
    Create(Create),
    /// `task.kill`.
    Kill(Which),
    /// `task.suspend`.
    Suspend(Which),
    /// `task.resume`.
    Resume(Which),
    /// `task.set_priority`.
    SetPriority(SetPriority),
}

/// Parameters that name a task.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// The task.
    pub task: TaskRef,
}

/// Parameters of `task.set_priority`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct SetPriority {
    /// The task.
    pub task: TaskRef,
    /// Among equals, a higher number goes first.
    pub priority: u8,
}

/// Parameters of `task.create`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// Its kind, as `[[task]]` names it.
    pub task: String,
    /// The other keys of `[[task]]`.
    #[serde(default)]
    pub keys: Map<String, Value>,
}

/// A task, as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskRef {
    /// By its number, which no other task of the card ever has.
    Number(u64),
    /// By its name, if one living task is called so.
    Name(String),
}

impl fmt::Display for TaskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskRef::Number(number) => write!(f, "{number}"),
            TaskRef::Name(name) => write!(f, "\"{name}\""),
        }
    }
}

impl<'de> Deserialize<'de> for TaskRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = TaskRef;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a task's number or name")
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<TaskRef, E> {
                Ok(TaskRef::Number(number))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<TaskRef, E> {
                let wrong = || E::invalid_value(Unexpected::Signed(number), &self);
                u64::try_from(number).map(TaskRef::Number).map_err(|_| wrong())
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<TaskRef, E> {
                Ok(TaskRef::Name(name.into()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}
