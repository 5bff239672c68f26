//! `[os]` and `[[task]]`: NIC OS on the card, and the tasks it starts with.
//!
//! ```toml
//! [os]
//! scheduler = "edf-plus"
//! line_rate_pps = 1_000_000
//!
//! [[task]]
//! task = "heartbeat"
//! period_us = 1000
//! ```
//!
//! A card with either of the two has a NIC OS. The keys here are common to all
//! schedulers and tasks; their own stand beside them.

use super::section::{Section, Source, read, select};
use crate::error::ConfigError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::DeTable;

/// What becomes of a task whose segment took longer than its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overrun {
    /// It is counted.
    #[default]
    Warn,
    /// It is counted, and the task is killed.
    Kill,
}

/// What becomes of a task with which the set could not be scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// It is refused, with the arithmetic.
    #[default]
    Refuse,
    /// It is let in all the same, and counted.
    Override,
}

/// `[os]`: NIC OS as a whole.
#[derive(Clone, Debug)]
pub struct OsSection {
    /// Keys that do not belong to the scheduler.
    pub keys: OsKeys,
    /// The scheduler and its own keys.
    pub scheduler: Section,
}

/// The keys of `[os]` that do not belong to the scheduler.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct OsKeys {
    /// Tasks there may be at a time, 1 to 1024.
    pub tasks: usize,
    /// Bytes of memory on the card for tasks, 4096 to 1073741824.
    pub arena_bytes: usize,
    /// Bytes of host memory that tasks may have, up to 1099511627776.
    pub host_bytes: usize,
    /// What becomes of a task whose segment takes longer than its bound: "warn" or "kill".
    pub overrun: Overrun,
    /// Nanoseconds that a decision and a switch may take on top of a bound, up to 1000000000.
    pub switch_ns: u64,
    /// Nanoseconds more that each segment of a task may take the first time through, before its
    /// code and memory are in the caches, up to 1000000000.
    pub cold_ns: u64,
    /// Cost profile that the tasks' bounds are made under, relative to the card file, as
    /// `picnic wcet calibrate` writes one; "" for the built-in one.
    pub cost_profile: PathBuf,
    /// A task with which the set cannot be scheduled: "refuse", or "override" and count it.
    pub admission: Admission,
    /// Packets that come in per second at most, all wires together; 0: not stated.
    pub line_rate_pps: u64,
    /// Packets that the wires keep while a segment runs, for admission.
    pub receive_room: u64,
    /// Nanoseconds of the packet path between two segments, for admission.
    pub packet_turn_ns: u64,
    /// Nanoseconds until a transfer between card and host begins: modelled.
    pub transfer_latency_ns: u64,
    /// Bytes of it per microsecond from then on, 1 or more: modelled.
    pub transfer_bytes_per_us: u64,
}

impl OsKeys {
    /// The file of the cost profile; `None` for the built-in one.
    pub fn cost_profile(&self) -> Option<&Path> {
        Some(self.cost_profile.as_path()).filter(|path| !path.as_os_str().is_empty())
    }
}

impl Default for OsKeys {
    fn default() -> Self {
        OsKeys {
            tasks: 64,
            arena_bytes: 1 << 20,
            host_bytes: 16 << 20,
            overrun: Overrun::Warn,
            switch_ns: 1_000,
            cold_ns: 50_000,
            cost_profile: PathBuf::new(),
            admission: Admission::Refuse,
            line_rate_pps: 0,
            receive_room: 1_024,
            packet_turn_ns: 0,
            transfer_latency_ns: 1_000,
            transfer_bytes_per_us: 8_000,
        }
    }
}

/// `[[task]]`: one task.
#[derive(Clone, Debug)]
pub struct TaskSection {
    /// Keys that do not belong to the task itself.
    pub keys: TaskKeys,
    /// The task and its own keys.
    pub task: Section,
}

/// The keys of `[[task]]` that do not belong to the task itself. What is left out is as the
/// task has it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct TaskKeys {
    /// Name of the task, for output.
    pub name: Option<String>,
    /// Microseconds between two releases; 0: not periodic.
    pub period_us: Option<u64>,
    /// Microseconds from the start to the first release.
    pub offset_us: Option<u64>,
    /// Among equals, a higher number goes first, 0 to 255.
    pub priority: Option<u8>,
    /// Nanoseconds that each of its segments may take, in place of its own bounds.
    pub wcet_ns: Option<u64>,
}

const OS_KEYS: &[&str] = &[
    "scheduler",
    "tasks",
    "arena_bytes",
    "host_bytes",
    "overrun",
    "switch_ns",
    "cold_ns",
    "cost_profile",
    "admission",
    "line_rate_pps",
    "receive_room",
    "packet_turn_ns",
    "transfer_latency_ns",
    "transfer_bytes_per_us",
];
const TASK_KEYS: &[&str] = &["task", "name", "period_us", "offset_us", "priority", "wcet_ns"];

pub(super) fn os(source: &Arc<Source>, table: &DeTable<'_>) -> Result<OsSection, ConfigError> {
    let own = select(table, |key| key != "scheduler" && OS_KEYS.contains(&key));
    let keys = read(source, "os", own)?;
    let scheduler =
        Section::of(source, table, "os".into(), OS_KEYS, "scheduler", Some("edf-plus"))?;
    Ok(OsSection { keys, scheduler })
}

pub(super) fn task(
    source: &Arc<Source>,
    table: &DeTable<'_>,
    path: String,
) -> Result<TaskSection, ConfigError> {
    let own = select(table, |key| key != "task" && TASK_KEYS.contains(&key));
    let keys = read(source, &path, own)?;
    let task = Section::of(source, table, path, TASK_KEYS, "task", None)?;
    Ok(TaskSection { keys, task })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys_of;

    #[test]
    fn the_lists_name_every_key() {
        let names = |keys: Vec<crate::config::KeyHelp>| -> Vec<String> {
            keys.into_iter().map(|key| key.name).collect()
        };
        assert_eq!(names(keys_of::<OsKeys>()), OS_KEYS[1..]);
        assert_eq!(names(keys_of::<TaskKeys>()), TASK_KEYS[1..]);
    }
}
