//! `[os]` and `[[task]]`: NIC OS on the card, and the tasks it starts with.
//!
//! ```toml
//! [os]
//! scheduler = "edf-plus"
//! line_rate_pps = 1_000_000   # or "auto": as the wires tell
//!
//! [[task]]
//! task = "heartbeat"
//! period_us = 1000
//! ```
//!
//! A card with either of the two has a NIC OS. The keys here are common to all
//! schedulers and tasks; their own stand beside them.

use picnic_core::config::{Amount, Names, SectionConfig, SectionEntry, Shape};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What a card file can say of NIC OS.
pub const SECTIONS: &[SectionEntry] =
    &[SectionEntry::of::<OsSection>(), SectionEntry::of::<TaskSection>()];

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

/// The keys of `[os]` that do not belong to the scheduler.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct OsSection {
    /// Tasks there may be at a time.
    #[schemars(range(min = 1, max = 1024))]
    pub tasks: usize,
    /// Bytes of memory on the card for tasks.
    #[schemars(range(min = 4096, max = 1073741824))]
    pub arena_bytes: usize,
    /// Bytes of host memory that tasks may have.
    #[schemars(range(max = 1099511627776u64))]
    pub host_bytes: usize,
    /// What becomes of a task whose segment takes longer than its bound: "warn" or "kill".
    pub overrun: Overrun,
    /// Nanoseconds that a decision and a switch may take on top of a bound.
    #[schemars(range(max = 1000000000))]
    pub switch_ns: u64,
    /// Nanoseconds more that each segment of a task may take the first time through, before its
    /// code and memory are in the caches. A task that is not periodic begins only in a slack that
    /// holds that, too.
    #[schemars(range(max = 1000000000))]
    pub cold_ns: u64,
    /// Cost profile that the tasks' bounds are made under, relative to the card file, as
    /// `picnic wcet calibrate` writes one; "" for the built-in one.
    pub cost_profile: PathBuf,
    /// A task with which the set cannot be scheduled: "refuse", or "override" and count it.
    pub admission: Admission,
    /// Packets that come in per second at most, all wires together, for admission: a number, 0 if
    /// it is not to be asked, or "auto", as the wires tell (`picnic check` shows it).
    pub line_rate_pps: Amount,
    /// Packets that wait at each wire without loss while a segment runs: a number, or "auto", as
    /// the wires' rings have it.
    pub receive_room: Amount,
    /// Nanoseconds that a turn of the packet path takes at most, its packets and doorbells aside: a
    /// number, or "auto", as the cost profile has it.
    pub packet_turn_ns: Amount,
    /// Nanoseconds that waking a target core takes: a number, or "auto", as the cost profile has it.
    /// Moderation says how often it is woken.
    pub doorbell_ns: Amount,
    /// Nanoseconds more for each packet of a turn: a number, or "auto", as the cost profile has it
    /// for a card with `rss`.
    pub packet_ns: Amount,
    /// Microseconds that the packet path may take behind a segment to empty the wires, before the
    /// next may begin all the same.
    #[schemars(range(max = 1000000000))]
    pub catch_up_us: u64,
    /// Microseconds for which the borrowed core may be interrupted, beside a segment, without loss:
    /// admission keeps room and time for the packets of that. 0: none.
    #[schemars(range(max = 1000000000))]
    pub interruption_us: u64,
    /// Nanoseconds until a transfer between card and host begins: modelled.
    pub transfer_latency_ns: u64,
    /// Bytes of it per microsecond from then on: modelled.
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

/// The keys of `[[task]]` that do not belong to the task itself. What is left out is as the
/// task has it.
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
    /// Nanoseconds that each of its segments may take, in place of its own bounds.
    pub wcet_ns: Option<u64>,
}

impl SectionConfig for TaskSection {
    const NAME: &'static str = "task";
    const HELP: &'static str = "A task, one [[task]] for each; see `picnic tasks`.";
    const SHAPE: Shape = Shape::List { least: 0, most: 1024, built_in: false };
    const NAMES: Option<Names> = Some(Names { key: "task", default: None, example: "heartbeat" });
}
