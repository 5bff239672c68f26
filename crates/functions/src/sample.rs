//! `sample`: marks every Nth packet, and optionally steers it to a queue.
//!
//! ```toml
//! [[rx]]
//! function = "sample"
//! every = 1000
//! queue = 3                # default: the marked packet continues like the others
//! ```
//!
//! Of each `every` packets, over all flows together, the first is selected; or, with `random`, each
//! packet with a probability of one in `every`, drawn from the run's seed. The packet itself is
//! steered, not a copy: with `queue` it leaves its flow, and its order among the flow's other
//! packets is undefined.
//!
//! Guarantees: continuing packets, marked or not, keep their order; the same seed selects the
//! same packets. Source: RFC 5475, sections 5.1 (systematic count-based)
//! and 5.2.2.1 (uniform probabilistic sampling).

use crate::choice::Choice;
use crate::settings::check_queue;
use picnic_core::command::{
    CommandEntry, CommandError, ComponentChange, Get, Inspect, Prepared, Set,
};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::{InKernel, refuse};
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_forms::KernelForm;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Marks, and may steer, every Nth packet.
#[derive(Debug)]
pub struct Sample {
    choice: Choice,
    mark: u32,
    queue: Option<u16>,
    drop_rest: bool,
}

/// The keys of `sample`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Select one packet in this many.
    #[schemars(range(min = 1))]
    pub every: u32,
    /// Whether to select at random, from the run's seed, instead of every Nth.
    pub random: bool,
    /// The mark of selected packets.
    pub mark: u32,
    /// The queue for selected packets; default: they continue.
    pub queue: Option<u16>,
    /// Whether other packets are dropped, counted as filtered.
    pub drop_rest: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config { every: 100, random: false, mark: 1, queue: None, drop_rest: false }
    }
}

impl Component for Sample {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "sample";
    const HELP: &'static str = "mark every Nth packet, optionally steering it to a queue";
    const COMMANDS: &'static [CommandEntry] =
        &[CommandEntry::of::<Get<Sample>>(), CommandEntry::of::<Set<NewRate>>()];
    const KERNEL: Option<InKernel<Config>> = Some(InKernel {
        keys: &["every", "queue", "drop_rest"],
        beside: &[],
        commands: &[],
        form: |config, context| {
            config.check(context)?;
            let &Config { every, queue, drop_rest, .. } = config;
            if queue.is_none() && !drop_rest {
                // Otherwise it would only mark packets.
                return Err(refuse("queue", "none", "a queue, or drop_rest: marks are not kept"));
            }
            Ok(KernelForm::Sample { every, queue, drop_rest }.into())
        },
    });

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        config.check(context)?;
        let Config { every, random, mark, queue, drop_rest } = config;
        let choice = Choice::new(every, random, context);
        Ok(Box::new(Sample { choice, mark, queue, drop_rest }))
    }
}

impl Config {
    fn check(&self, context: &BuildContext) -> Result<(), ConfigError> {
        self.queue.map_or(Ok(()), |queue| check_queue("queue", queue, context.queues))
    }
}

impl Function for Sample {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        burst.retain(|mut packet| {
            if !self.choice.take() {
                if !self.drop_rest {
                    return Some(packet);
                }
                out.drop(packet, DropReason::Filtered);
                return None;
            }
            packet.mark = self.mark;
            match self.queue {
                Some(queue) => out.steer(packet, queue),
                None => return Some(packet),
            }
            None
        });
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}

/// The state of a `sample`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Rate {
    /// One packet in this many is selected (before the change, for `set`).
    #[schemars(extend("x-gauge" = true))]
    pub every: u32,
}

impl Inspect for Sample {
    type State = Rate;
    const HELP: &'static str = "the current rate";

    fn inspect(&self) -> Rate {
        Rate { every: self.choice.every() }
    }
}

/// The arguments of `sample.set`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRate {
    /// Select one packet in this many.
    #[schemars(range(min = 1))]
    pub every: u32,
}

impl ComponentChange for NewRate {
    const HELP: &'static str = "change the rate; the result has the previous one";
    const EXAMPLE: &'static str = r#"{"every": 10}"#;
    type Of = Sample;
    type New = u32;

    fn prepare(self, _: &BuildContext) -> Result<u32, CommandError> {
        Ok(self.every)
    }

    fn apply(every: &mut u32, sample: &mut Sample, _now: Time) -> bool {
        sample.choice.set(*every);
        true
    }
}
