//! Seeded random numbers: SplitMix64, one stream per use.
//!
//! Guarantee: the same seed and stream give the same numbers, on any machine. Source: Steele, Lea,
//! Flood, "Fast splittable pseudorandom number generators", 2014.

use std::ops::RangeInclusive;

/// The increment of the stream: 2^64 divided by the golden ratio.
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream numbered `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        Random(mix(seed ^ mix(stream.wrapping_add(1).wrapping_mul(GAMMA))))
    }

    /// The stream that continues from this state.
    pub fn from_state(state: u64) -> Self {
        Random(state)
    }

    /// The next number.
    // Not an iterator: the stream has no end.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number of the range, all equally likely; its start if the range is empty.
    pub fn between(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let span = range.end().saturating_sub(*range.start());
        // The high half of a 128-bit product; the bias is below the span over 2^64.
        let offset = (u128::from(self.next()) * (u128::from(span) + 1)) >> 64;
        range.start() + offset as u64
    }
}

/// Spreads every bit of `word` over all of the result.
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_repeat() {
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            std::array::from_fn::<_, 8, _>(|_| random.next())
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
    }

    #[test]
    fn ranges_are_covered_and_never_left() {
        let mut random = Random::new(3, 0);
        let drawn: Vec<_> = (0..1000).map(|_| random.between(&(11..=20))).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&11), Some(&20)));
        assert_eq!(random.between(&(7..=7)), 7);
        let _ = random.between(&(0..=u64::MAX));
    }
}
