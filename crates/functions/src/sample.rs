//! `sample`: marks one packet in so many, and may send it to a queue of its own.
//!
//! ```toml
//! [[rx]]
//! function = "sample"
//! every = 1000
//! queue = 3                # left out: the marked packet goes on like the others
//! ```
//!
//! Of each run of `every` packets, over all flows together, the first is taken; or,
//! with `random`, each packet with a chance of one in `every`, drawn from the run's
//! seed. The packet itself is taken, not a copy: with `queue` it leaves its flow, and
//! where it arrives among its flow's other packets is not defined.
//!
//! Guarantees: packets that go on, marked or not, keep their order; the same seed
//! takes the same packets. Source: RFC 5475, sections 5.1 (systematic count-based)
//! and 5.2.2.1 (uniform probabilistic sampling).

use crate::settings::check_queue;
use picnic_core::command::{Command, CommandEntry, CommandError, Order, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Marks, and may steer, one packet in so many.
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
    /// One packet in this many is taken, 1 to 4294967295.
    pub every: u32,
    /// Whether packets are drawn at random, from the run's seed, and not counted off.
    pub random: bool,
    /// The mark that a taken packet gets.
    pub mark: u32,
    /// The queue that taken packets are steered to; left out, they go on.
    pub queue: Option<u16>,
    /// Whether packets not taken are dropped, counted as filtered.
    pub drop_rest: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config { every: 100, random: false, mark: 1, queue: None, drop_rest: false }
    }
}

const NOT_ZERO: &str = "found 0, allowed is 1 to 4294967295";

#[derive(Debug)]
enum Choice {
    /// Packets until the next one is taken.
    Count { every: u32, left: u32 },
    /// A packet is taken if the next number drawn is below the threshold, of 2^32.
    Random { state: u64, every: u32, threshold: u64 },
}

impl Choice {
    #[inline]
    fn take(&mut self) -> bool {
        match self {
            Choice::Count { every, left } => {
                let taken = *left == 0;
                *left = if taken { *every } else { *left } - 1;
                taken
            }
            Choice::Random { state, threshold, .. } => draw(state) >> 32 < *threshold,
        }
    }
}

/// The part of 2^32 that one in so many is.
fn threshold(every: u32) -> u64 {
    (1 << 32) / u64::from(every)
}

/// The next number of SplitMix64 (Steele, Lea, Flood, 2014).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl Component for Sample {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "sample";
    const HELP: &'static str = "mark one packet in so many; it may have a queue of its own";
    const COMMANDS: &'static [CommandEntry] =
        &[CommandEntry::of::<Get>(), CommandEntry::of::<Set>()];

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        let Config { every, random, mark, queue, drop_rest } = config;
        if every == 0 {
            return Err(ConfigError::new("every", NOT_ZERO));
        }
        if let Some(queue) = queue {
            check_queue("queue", queue, context.queues)?;
        }
        let choice = if random {
            // Each place in a chain draws numbers of its own.
            let mut place = context.position as u64;
            let state = context.seed ^ draw(&mut place);
            Choice::Random { state, every, threshold: threshold(every) }
        } else {
            Choice::Count { every, left: 0 }
        };
        Ok(Box::new(Sample { choice, mark, queue, drop_rest }))
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

/// The arguments of `sample.get`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Get {}

/// The arguments of `sample.set`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// One packet in this many is taken from now on, 1 to 4294967295.
    pub every: u32,
}

/// The result of `sample.get` and `sample.set`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Rate {
    /// One packet in this many is taken, or was before the change.
    pub every: u32,
}

/// Asks for the rate, or puts another in its place.
#[derive(Debug)]
pub struct Exchange {
    new: Option<u32>,
    old: u32,
}

impl Order for Exchange {
    type Target = Sample;

    fn apply(&mut self, sample: &mut Sample, _now: Time) -> bool {
        self.old = match &mut sample.choice {
            Choice::Count { every, left } => {
                let new = self.new.unwrap_or(*every);
                // No longer to the next one than the new rate asks for.
                *left = (*left).min(new - 1);
                std::mem::replace(every, new)
            }
            Choice::Random { every, threshold, .. } => {
                let new = self.new.unwrap_or(*every);
                *threshold = self::threshold(new);
                std::mem::replace(every, new)
            }
        };
        true
    }
}

impl Command for Get {
    const NAME: &'static str = "get";
    const HELP: &'static str = "the rate in force";
    type Order = Exchange;
    type Reply = Rate;

    fn prepare(self, _: &BuildContext) -> Result<Exchange, CommandError> {
        Ok(Exchange { new: None, old: 0 })
    }

    fn reply(order: Exchange) -> Result<Rate, CommandError> {
        Ok(Rate { every: order.old })
    }
}

impl Command for Set {
    const NAME: &'static str = "set";
    const HELP: &'static str = "change the rate; the result has the one before";
    const EXAMPLE: &'static str = r#"{"every": 10}"#;
    type Order = Exchange;
    type Reply = Rate;

    fn prepare(self, _: &BuildContext) -> Result<Exchange, CommandError> {
        match self.every {
            0 => Err(CommandError::argument("every", NOT_ZERO)),
            every => Ok(Exchange { new: Some(every), old: 0 }),
        }
    }

    fn reply(order: Exchange) -> Result<Rate, CommandError> {
        Get::reply(order)
    }
}
