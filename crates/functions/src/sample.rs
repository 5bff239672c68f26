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
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::Deserialize;

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

#[derive(Debug)]
enum Choice {
    /// Packets until the next one is taken.
    Count { every: u32, left: u32 },
    /// A packet is taken if the next number drawn is below the threshold, of 2^32.
    Random { state: u64, threshold: u64 },
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
            Choice::Random { state, threshold } => draw(state) >> 32 < *threshold,
        }
    }
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

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        let Config { every, random, mark, queue, drop_rest } = config;
        if every == 0 {
            return Err(ConfigError::new("every", "found 0, allowed is 1 to 4294967295"));
        }
        if let Some(queue) = queue {
            check_queue("queue", queue, context.queues)?;
        }
        let choice = if random {
            // Each place in a chain draws numbers of its own.
            let mut place = context.position as u64;
            let state = context.seed ^ draw(&mut place);
            Choice::Random { state, threshold: (1 << 32) / u64::from(every) }
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
}
