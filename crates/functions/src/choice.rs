//! Sampling: every Nth packet, or a random share drawn from the run's seed.
//!
//! Source: RFC 5475, sections 5.1 (systematic count-based) and 5.2.2.1 (uniform probabilistic
//! sampling).

use picnic_core::registry::BuildContext;

/// Selects packets.
#[derive(Debug)]
pub(crate) enum Choice {
    /// Every Nth packet; `left` counts down to the next one.
    Count { every: u32, left: u32 },
    /// A packet is selected if the next random number is below the threshold, of 2^32.
    Random { state: u64, every: u32, threshold: u64 },
}

impl Choice {
    /// One in `every`; with `random`, drawn from the run's seed.
    pub(crate) fn new(every: u32, random: bool, context: &BuildContext) -> Choice {
        if !random {
            return Choice::Count { every, left: 0 };
        }
        // Each place in a chain has its own random numbers.
        let mut place = context.position as u64;
        let state = context.seed ^ draw(&mut place);
        Choice::Random { state, every, threshold: threshold(every) }
    }

    /// Refuses one in zero.
    pub(crate) fn check(every: u32) -> Result<(), &'static str> {
        if every == 0 { Err("found 0, allowed: 1 to 4294967295") } else { Ok(()) }
    }

    /// The N of one in N.
    pub(crate) fn every(&self) -> u32 {
        match self {
            Choice::Count { every, .. } | Choice::Random { every, .. } => *every,
        }
    }

    /// Replaces the rate.
    pub(crate) fn set(&mut self, new: u32) {
        match self {
            Choice::Count { every, left } => {
                // The next one comes no later than at the new rate.
                *left = (*left).min(new - 1);
                *every = new;
            }
            Choice::Random { every, threshold, .. } => {
                *threshold = self::threshold(new);
                *every = new;
            }
        }
    }

    /// Whether the next packet is selected.
    #[inline]
    pub(crate) fn take(&mut self) -> bool {
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

/// The share of 2^32 for one in `every`.
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
