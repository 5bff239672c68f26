//! `[os]` and `[[task]]`: NIC OS on the card, and the tasks it starts with.
//!
//! ```toml
//! [os]
//! scheduler = "edf-plus"
//! line_rate_pps = 1_000_000   # or "auto": as reported by the wires
//!
//! [[task]]
//! task = "heartbeat"
//! period_us = 1000
//! ```
//!
//! A card with either of the two has a NIC OS. The keys here are common to all
//! schedulers and tasks, which have further ones of their own.

use picnic_core::config::{Amount, Names, SectionConfig, SectionEntry, Shape};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The sections of NIC OS in a card file.
pub const SECTIONS: &[SectionEntry] =
    &[SectionEntry::of::<OsSection>(), SectionEntry::of::<TaskSection>()];

/// What happens to a task whose segment took longer than its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overrun {
    /// It is counted.
    #[default]
    Warn,
    /// It is counted, and the task is killed.
    Kill,
}

/// What happens to a task with which the set cannot be scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// It is refused, with the arithmetic.
    #[default]
    Refuse,
    /// It is admitted anyway, and counted.
    Override,
}

/// The keys of `[os]` that do not belong to the scheduler.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct OsSection {
    /// Maximum number of tasks at a time.
    #[schemars(range(min = 1, max = 1024))]
    pub tasks: usize,
    /// Bytes of memory on the card for tasks.
    #[schemars(range(min = 4096, max = 1073741824))]
    pub arena_bytes: usize,
    /// Bytes of host memory available to tasks.
    #[schemars(range(max = 1099511627776u64))]
    pub host_bytes: usize,
    /// What happens to a task whose segment takes longer than its bound: "warn" or "kill".
    pub overrun: Overrun,
    /// Allowance for a decision and a switch, in nanoseconds, on top of a bound.
    #[schemars(range(max = 1000000000))]
    pub switch_ns: u64,
    /// Additional nanoseconds of a task's segment the first time through, before its code and
    /// memory are in the caches. An aperiodic task begins only in a slack that includes this.
    #[schemars(range(max = 1000000000))]
    pub cold_ns: u64,
    /// Cost profile for the tasks' bounds, relative to the card file, as written by `picnic wcet
    /// calibrate`; "" for the built-in one.
    pub cost_profile: PathBuf,
    /// A task with which the set cannot be scheduled: "refuse", or "override" and count it.
    pub admission: Admission,
    /// Maximum packets per second of all wires together, for admission: a number, 0 to skip the
    /// check, or "auto", as reported by the wires (shown by `picnic check`).
    pub line_rate_pps: Amount,
    /// Packets that wait at each wire without loss while a segment runs: a number, or "auto", as
    /// reported by the wires.
    pub receive_room: Amount,
    /// Maximum nanoseconds of a turn of the packet path, without packets and doorbells: a number,
    /// or "auto", from the cost profile.
    pub packet_turn_ns: Amount,
    /// Nanoseconds to wake a target core: a number, or "auto", from the cost profile. Moderation
    /// determines how often it is woken.
    pub doorbell_ns: Amount,
    /// Additional nanoseconds per packet of a turn: a number, or "auto", from the cost profile for
    /// a card with `rss`.
    pub packet_ns: Amount,
    /// Microseconds that the packet path may take after a segment to empty the wires, before the
    /// next segment may begin anyway.
    #[schemars(range(max = 1000000000))]
    pub catch_up_us: u64,
    /// Microseconds that the borrowed core may be interrupted, in addition to a segment, without
    /// loss: admission reserves room and time for packets that arrive then. 0: none.
    #[schemars(range(max = 1000000000))]
    pub interruption_us: u64,
    /// Latency of a transfer between card and host, in nanoseconds: modelled.
    pub transfer_latency_ns: u64,
    /// Bytes per microsecond of a transfer: modelled.
    #[schemars(range(min = 1, max = 1099511627776u64))]
    pub transfer_bytes_per_us: u64,
}

impl SectionConfig for OsSection {
    const NAME: &'static str = "os";
    const HELP: &'static str =
        "NIC OS, which runs tasks on the borrowed core; see `picnic schedulers`.";
    const SHAPE: Shape = Shape::Optional;
    const NAMES: Option<Names> =
        Some(Names { key: "scheduler", default: Some("edf-plus"), example: "edf-plus" });
}

impl OsSection {
    /// The file of the cost profile; `None` for the built-in one.
    pub fn cost_profile(&self) -> Option<&Path> {
        Some(self.cost_profile.as_path()).filter(|path| !path.as_os_str().is_empty())
    }
}

impl Default for OsSection {
    fn default() -> Self {
        OsSection {
            tasks: 64,
            arena_bytes: 1 << 20,
            host_bytes: 16 << 20,
            overrun: Overrun::Warn,
            switch_ns: 1_000,
            cold_ns: 50_000,
            cost_profile: PathBuf::new(),
            admission: Admission::Refuse,
            line_rate_pps: Amount::Auto,
            receive_room: Amount::Auto,
            packet_turn_ns: Amount::Auto,
            doorbell_ns: Amount::Auto,
            packet_ns: Amount::Auto,
            catch_up_us: 1_000,
            interruption_us: 0,
            transfer_latency_ns: 1_000,
            transfer_bytes_per_us: 8_000,
        }
    }
}

/// The keys of `[[task]]` that do not belong to the task itself. Missing ones are as the task
/// defines them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct TaskSection {
    /// Name of the task, for output.
    pub name: Option<String>,
    /// Microseconds between two releases; 0: not periodic.
    pub period_us: Option<u64>,
    /// Microseconds from the start to the first release.
    pub offset_us: Option<u64>,
    /// Among equals, a higher number goes first.
    pub priority: Option<u8>,
    /// Maximum nanoseconds of each of its segments, replacing its own bounds.
    pub wcet_ns: Option<u64>,
}

impl SectionConfig for TaskSection {
    const NAME: &'static str = "task";
    const HELP: &'static str = "A task, one [[task]] for each; see `picnic tasks`.";
    const SHAPE: Shape = Shape::List { least: 0, most: 1024, built_in: false };
    const NAMES: Option<Names> = Some(Names { key: "task", default: None, example: "heartbeat" });
}
