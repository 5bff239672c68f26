//! busy: work of a stated length, in segments: a load for experiments.
//!
//! ```toml
//! [[task]]
//! task = "busy"          # periodic: one invocation per release
//! period_us = 1000
//! segments_ns = [20_000, 50_000]
//!
//! [[task]]
//! task = "busy"          # not periodic: one invocation after another
//! segments_ns = [30_000]
//! pause_us = 500         # from the end of one to the start of the next
//! ```
//!
//! Each segment takes its stated time: by working on a real core, by advancing the clock on a
//! virtual one. Its bound is the same time, unless `bound_percent` changes it to provoke overruns.
//! The cost profile has no influence.
//!
//! `picnic ctl busy pause-us 50` increases the load of a task that is not periodic while it runs.

use crate::graphs::Task;
use picnic_core::command::{CommandEntry, CommandError, ComponentChange, Get, Inspect, Set};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_os::config::Setup;
use picnic_os::context::Nic;
use picnic_os::task::{Bounds, TaskSpec, program};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The task.
#[derive(Debug)]
pub struct Busy;

/// Its keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Nanoseconds of work in each segment of an invocation.
    #[schemars(inner(range(min = 1, max = LONGEST_NS)))]
    pub segments_ns: Vec<u64>,
    /// Bound of a segment, in percent of its work.
    pub bound_percent: u64,
    /// Microseconds between two invocations of a task that is not periodic; 0: only a yield.
    pub pause_us: u64,
    /// Invocations after which the task ends; 0: never.
    pub invocations: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { segments_ns: vec![10_000], bound_percent: 100, pause_us: 1_000, invocations: 0 }
    }
}

const MOST_SEGMENTS: usize = 256;
const LONGEST_NS: u64 = 1_000_000_000;

impl Component for Busy {
    type Product = Setup;
    type Config = Config;
    const NAME: &'static str = "busy";
    const HELP: &'static str = "work of a stated length, in segments: a load for measurements";
    const COMMANDS: &'static [CommandEntry] =
        &[CommandEntry::of::<Get<Arc<Load>>>(), CommandEntry::of::<Set<NewPause>>()];

    fn build(config: Config, _: &BuildContext) -> Result<Setup, ConfigError> {
        let count = config.segments_ns.len();
        if !(1..=MOST_SEGMENTS).contains(&count) {
            let message = format!("found {count} segments, allowed: 1 to {MOST_SEGMENTS}");
            return Err(ConfigError::new("segments_ns", message));
        }
        let bound = |ns: &u64| ns.saturating_mul(config.bound_percent) / 100;
        let segments: Vec<u64> = config.segments_ns.iter().map(bound).collect();
        let remaining = (0..count).map(|index| segments[index..].iter().sum());
        let bounds = Bounds { remaining: remaining.collect(), segments: segments.into() };
        let spec = TaskSpec::new(Self::NAME).bounds(bounds);
        let load = Arc::new(Load::default());
        load.pause_us.set(config.pause_us);
        let shown = load.clone();
        Ok(Setup { spec, program: program(move |nic| work(nic, config, load)).obeying(shown) })
    }
}

/// Its bounds are stated.
impl Task for Busy {}

/// State that a load shares with its commands.
#[derive(Debug, Default)]
pub struct Load {
    pause_us: Counter,
    /// 1 for a periodic task, which has no pause.
    periodic: Counter,
    invocations: Counter,
}

/// State of a load.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct State {
    /// Microseconds between two invocations (before the change, for `set`); null if periodic.
    pub pause_us: Option<u64>,
    /// Invocations done.
    pub invocations: u64,
}

impl Inspect for Load {
    type State = State;
    const HELP: &'static str = "its pause and its number of invocations";

    fn inspect(&self) -> State {
        State {
            pause_us: (self.periodic.get() == 0).then(|| self.pause_us.get()),
            invocations: self.invocations.get(),
        }
    }
}

/// The arguments of `busy.set`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPause {
    /// Microseconds between two invocations, from the next pause on; 0: only a yield.
    pub pause_us: u64,
}

impl ComponentChange for NewPause {
    const HELP: &'static str = "change the pause; the result has the state before";
    const EXAMPLE: &'static str = r#"{"pause_us": 500}"#;
    type Of = Arc<Load>;
    type New = u64;

    fn prepare(self, _: &BuildContext) -> Result<u64, CommandError> {
        Ok(self.pause_us)
    }

    fn apply(pause_us: &mut u64, load: &mut Arc<Load>, _now: Time) -> bool {
        let has_pause = load.periodic.get() == 0;
        if has_pause {
            load.pause_us.set(*pause_us);
        }
        has_pause
    }

    fn refusal(pause_us: u64, _: State) -> CommandError {
        let message = format!("found {pause_us}, but the task is periodic and has no pause");
        CommandError::argument("pause_us", message)
    }
}

async fn work(nic: Nic, config: Config, load: Arc<Load>) {
    load.periodic.set(nic.is_periodic().into());
    let is_last = |index: usize| index + 1 == config.segments_ns.len();
    let mut invocations = 0;
    loop {
        for (index, &work_ns) in config.segments_ns.iter().enumerate() {
            nic.work(work_ns);
            if !is_last(index) {
                nic.next_segment(index as u16 + 1);
                nic.yield_now().await;
            }
        }
        invocations += 1;
        load.invocations.set(invocations);
        let pause_us = load.pause_us.get();
        if invocations == config.invocations {
            return;
        }
        nic.next_segment(0);
        match nic.is_periodic() {
            true => nic.next_release().await,
            false if pause_us == 0 => nic.yield_now().await,
            // From the end of the current segment, if its work is known.
            false => {
                let last_ns = config.segments_ns.last().copied().unwrap_or(0);
                nic.sleep_ns(last_ns.saturating_add(pause_us.saturating_mul(1_000))).await;
            }
        }
    }
}
