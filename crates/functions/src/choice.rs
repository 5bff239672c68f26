//! Sampling: every Nth packet, or a random share drawn from the run's seed.
//!
//! Source: RFC 5475, sections 5.1 (systematic count-based) and 5.2.2.1 (uniform probabilistic
//! sampling).

use picnic_core::random::Random;
use picnic_core::registry::BuildContext;

/// Selects packets.
#[derive(Debug)]
pub(crate) enum Choice {
    /// Every Nth packet; `left` counts down to the next one.
    Count { every: u32, left: u32 },
    /// A packet is taken if the next number drawn is below the threshold, of 2^32.
    Random { numbers: Random, every: u32, threshold: u64 },
}

impl Choice {
    /// One in `every`; with `random`, drawn from the run's seed.
    pub(crate) fn new(every: u32, random: bool, context: &BuildContext) -> Choice {
        if !random {
            return Choice::Count { every, left: 0 };
        }
        // Each place in a chain draws its own numbers.
        let place = Random::from_state(context.position as u64).next();
        let numbers = Random::from_state(context.seed ^ place);
        Choice::Random { numbers, every, threshold: threshold(every) }
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
            Choice::Random { numbers, threshold, .. } => numbers.next() >> 32 < *threshold,
        }
    }
}

/// The share of 2^32 for one in `every`.
fn threshold(every: u32) -> u64 {
    (1 << 32) / u64::from(every)
}
