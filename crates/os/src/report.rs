//! A NIC OS's report: for `picnic run`, and for the outcome of a simulation.

use crate::channel::ChannelReport;
use crate::control::TaskLine;
use crate::executor::Os;
use crate::figures::TimeFigures;
use crate::memory::MemoryReport;
use crate::roster::{State, Times};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A NIC OS's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OsReport {
    /// Its scheduler.
    pub scheduler: String,
    /// Decisions made.
    pub decisions: u64,
    /// Decisions to run nothing.
    pub idle_decisions: u64,
    /// Tasks that panicked.
    pub panics: u64,
    /// Tasks refused admission.
    pub refused: u64,
    /// Tasks admitted although admission refused them.
    pub overridden: u64,
    /// Nanoseconds that the core could be interrupted without loss, in addition to the tasks of the
    /// run; null if arrivals are unknown, or all of them wait.
    #[serde(default)]
    pub tolerates_ns: Option<u64>,
    /// Its memory.
    pub memory: MemoryReport,
    /// By task, ended ones first.
    pub tasks: Vec<TaskReport>,
    /// Channels to host processes, ended ones first.
    #[serde(default)]
    pub channels: Vec<ChannelReport>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A task's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskReport {
    /// Its number.
    pub task: u64,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: State,
    /// Nanoseconds between two releases; null if it is not periodic.
    pub period_ns: Option<u64>,
    /// Its priority.
    pub priority: u8,
    /// The origin of its bounds: "stated", "the card file", or the name of a cost profile.
    pub bounds_from: String,
    /// Segments run.
    pub segments: u64,
    /// Nanoseconds in them.
    pub busy_ns: u64,
    /// Nanoseconds of the longest.
    pub longest_segment_ns: u64,
    /// Segments that took longer than their bound.
    pub overruns: u64,
    /// Invocations begun.
    pub invocations: u64,
    /// Invocations ended.
    pub completed: u64,
    /// Invocations that ended after their deadline, or were skipped because of it.
    pub deadline_misses: u64,
    /// Releases skipped.
    pub releases_skipped: u64,
    /// From release, or from becoming ready, to the end of the invocation.
    pub response_ns: TimeFigures,
    /// From release, or from becoming ready, to the first segment.
    pub jitter_ns: TimeFigures,
}

impl TaskReport {
    /// The figures of a task in a list.
    pub fn new(line: &TaskLine, times: &Times) -> Self {
        let counts = &line.counters;
        TaskReport {
            task: line.id.0,
            name: line.name.to_string(),
            state: line.state,
            period_ns: line.period_ns,
            priority: line.priority,
            bounds_from: line.bounds_from.to_string(),
            segments: counts.segments.get(),
            busy_ns: counts.busy_ns.get(),
            longest_segment_ns: counts.longest_segment_ns.get(),
            overruns: counts.overruns.get(),
            invocations: counts.invocations.get(),
            completed: counts.completed.get(),
            deadline_misses: counts.deadline_misses.get(),
            releases_skipped: counts.releases_skipped.get(),
            response_ns: times.response.figures(),
            jitter_ns: times.jitter.figures(),
        }
    }
}

impl Os {
    /// Its current figures.
    pub fn report(&self) -> OsReport {
        let counters = self.counters();
        let tasks = self.lines().map(|line| {
            let times = self.times(line.id).cloned().unwrap_or_default();
            TaskReport::new(&line, &times)
        });
        OsReport {
            scheduler: self.scheduler_name.to_string(),
            decisions: counters.decisions.get(),
            idle_decisions: counters.idle_decisions.get(),
            panics: counters.panics.get(),
            refused: counters.refused.get(),
            overridden: counters.overridden.get(),
            tolerates_ns: self.tolerates_ns,
            memory: self.memory_report(),
            tasks: tasks.collect(),
            channels: self.services().channels().list(),
            notes: self.notes.clone(),
        }
    }
}
