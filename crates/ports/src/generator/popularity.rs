//! Popularity: which flow the next packet belongs to, in constant time.
//!
//! Guarantees: every flow chosen is below the count; no division per packet.
//!
//! Source: Walker, "An efficient method for generating discrete random variables with
//! general distributions", 1977, with Vose's construction of 1991; Zipf's law as in
//! Breslau et al., "Web caching and Zipf-like distributions", 1999.

use super::random::{Random, scale};
use std::hint::select_unpredictable;

/// Chooses flows.
#[derive(Debug)]
pub(crate) enum Popularity {
    /// All in turn.
    Sequence { next: u32, flows: u32 },
    /// Each with the same probability.
    Uniform { random: Random, flows: u32 },
    /// Each with its own probability.
    Weighted { random: Random, table: AliasTable },
}

impl Popularity {
    /// Fills `chosen` with flow numbers.
    #[inline]
    pub(crate) fn choose(&mut self, chosen: &mut [u32]) {
        match self {
            Popularity::Sequence { next, flows } => {
                for place in chosen {
                    *place = *next;
                    *next = if *next + 1 == *flows { 0 } else { *next + 1 };
                }
            }
            Popularity::Uniform { random, flows } => {
                // One random number for two: 32 bits are enough for a flow.
                for pair in chosen.chunks_mut(2) {
                    let bits = random.next();
                    for (place, bits) in pair.iter_mut().zip([bits, bits << 32]) {
                        *place = scale(bits, *flows);
                    }
                }
            }
            Popularity::Weighted { random, table } => {
                for place in chosen {
                    *place = table.draw(random.next());
                }
            }
        }
    }
}

/// A table to draw from any distribution with one random number and one look.
#[derive(Debug)]
pub(crate) struct AliasTable(Vec<Slot>);

/// Of a slot's draws, `own` in 2^32 are for itself, the others for `alias`.
#[derive(Clone, Copy, Debug)]
struct Slot {
    own: u32,
    alias: u32,
}

impl AliasTable {
    /// A table for Zipf's law: the flow of rank `r`, from 1, has probability proportional to
    /// `1 / r^exponent`.
    pub(crate) fn zipf(flows: u32, exponent: f64) -> Self {
        let weights: Vec<f64> = (1..=flows).map(|rank| f64::from(rank).powf(-exponent)).collect();
        Self::new(&weights)
    }

    /// A table for weights, not all zero.
    pub(crate) fn new(weights: &[f64]) -> Self {
        let scale = weights.len() as f64 / weights.iter().sum::<f64>();
        let mut shares: Vec<f64> = weights.iter().map(|weight| weight * scale).collect();
        let mut slots: Vec<Slot> =
            (0..shares.len() as u32).map(|own| Slot { own: u32::MAX, alias: own }).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..shares.len()).partition(|&index| shares[index] < 1.0);
        // Each slot with less than its part is filled up by one with more.
        while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
            small.pop();
            slots[poor] = Slot { own: (shares[poor] * 2_f64.powi(32)) as u32, alias: rich as u32 };
            shares[rich] -= 1.0 - shares[poor];
            if shares[rich] < 1.0 {
                large.pop();
                small.push(rich);
            }
        }
        // The rest on either list differs from 1 only by rounding.
        AliasTable(slots)
    }

    #[inline(always)]
    fn draw(&self, bits: u64) -> u32 {
        let index = scale(bits, self.0.len() as u32);
        let Some(slot) = self.0.get(index as usize) else { return index };
        // No branch: nothing could predict it.
        select_unpredictable(bits as u32 > slot.own, slot.alias, index)
    }
}
