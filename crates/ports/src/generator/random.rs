//! Random numbers: a few cycles each, the same for the same seed everywhere.
//!
//! Guarantees: no division; the sequence depends on the seed alone. Not for secrets.
//!
//! Source: wyrand (Wang Yi, wyhash final version 4); Lemire, "Fast random integer
//! generation in an interval", 2019 (multiply and shift, without the rejection step: the
//! bias is below `bound` / 2^32).

/// A wyrand generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator whose stream is its own for each `seed` and `stream`.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Random(seed);
        let seed = mixer.next();
        Random(seed ^ Random(stream).next().rotate_left(32))
    }

    /// 64 random bits.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let product = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        (product >> 64) as u64 ^ product as u64
    }

    /// A number below `bound`.
    #[inline(always)]
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        scale(self.next(), bound)
    }

    /// A number in `low..=high`.
    #[inline(always)]
    pub(crate) fn within(&mut self, low: u16, high: u16) -> u16 {
        low + self.below(u32::from(high - low) + 1) as u16
    }

    /// True with probability `share`, from 0 to 1.
    pub(crate) fn chance(&mut self, share: f64) -> bool {
        // 53 bits: the precision of a double. Never 1, so a share of 1 is always met.
        ((self.next() >> 11) as f64) < share * (1_u64 << 53) as f64
    }
}

/// The upper half of `bits` brought into `0..bound`.
#[inline(always)]
pub(crate) fn scale(bits: u64, bound: u32) -> u32 {
    (((bits >> 32) * u64::from(bound)) >> 32) as u32
}
