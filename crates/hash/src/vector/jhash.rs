//! lookup3 by vector: sixteen tuples at a time, one 32-bit lane each.
//!
//! Most work is to group equal words; the mixing is the scalar one, lane by lane, with rotation as
//! one instruction.
//!
//! # Guarantees
//!
//! Writes a hash for each tuple up to the length of `out`, and nothing past it.
//!
//! Source: `crate::jhash`, which has the same rounds.

use super::{Block, Lanes, in_blocks, v6_chunk};
use crate::{V4Tuple, V6Tuple};

/// Hashes a burst; `start` is the initial value of each state word.
#[inline(always)]
pub(crate) fn jhash_v4<L: Lanes>(lanes: L, tuples: &[V4Tuple], start: u32, out: &mut [u32]) {
    in_blocks(tuples, out, Jhash { lanes, start });
}

/// Hashes a burst; `start` is the initial value of each state word.
#[inline(always)]
pub(crate) fn jhash_v6<L: Lanes>(lanes: L, tuples: &[V6Tuple], start: u32, out: &mut [u32]) {
    in_blocks(tuples, out, Jhash { lanes, start });
}

struct Jhash<L> {
    lanes: L,
    start: u32,
}

impl<L: Lanes> Block<V4Tuple, 16> for Jhash<L> {
    #[inline(always)]
    fn hash(&self, tuples: &[V4Tuple; 16]) -> [u32; 16] {
        let Jhash { lanes, start } = *self;
        let [a, b, c, d] = tuples.as_chunks().0 else { return [0; 16] };
        let groups = [lanes.of_v4(a), lanes.of_v4(b), lanes.of_v4(c), lanes.of_v4(d)];
        let [source, destination, ports, _] = columns(lanes, groups);
        let start = lanes.of_u32([start; 16]);
        let hashes = finish3(lanes, add(lanes, [start; 3], [source, destination, ports]));
        // Tuple i of group g is in lane 4i + g.
        let order = lanes.of_u32([0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]);
        lanes.to_u32(lanes.permute_u32(order, hashes))
    }
}

impl<L: Lanes> Block<V6Tuple, 16> for Jhash<L> {
    #[inline(always)]
    fn hash(&self, tuples: &[V6Tuple; 16]) -> [u32; 16] {
        let Jhash { lanes, start } = *self;
        let [a, b, c, d] = tuples.as_chunks().0 else { return [0; 16] };
        let groups = [lanes.of_v6(a), lanes.of_v6(b), lanes.of_v6(c), lanes.of_v6(d)];
        lanes.to_u32(hash_block(lanes, groups, start))
    }
}

/// The hashes of sixteen tuples, given as four groups of four that lie in three vectors each.
#[inline(always)]
fn hash_block<L: Lanes>(lanes: L, groups: [[L::Vector; 3]; 4], start: u32) -> L::Vector {
    // In a chunk the tuples of a group are in places 0 3 2 1, in the next 1 0 3 2,
    // in the third 2 1 0 3; the last two are rotated to agree with the first.
    let w = columns(lanes, chunks::<0, L>(lanes, groups));
    let x = rotated::<0x39, L>(lanes, columns(lanes, chunks::<1, L>(lanes, groups)));
    let y = rotated::<0x4e, L>(lanes, columns(lanes, chunks::<2, L>(lanes, groups)));

    let start = lanes.of_u32([start; 16]);
    let state = mix3(lanes, add(lanes, [start; 3], [w[0], w[1], w[2]]));
    let state = mix3(lanes, add(lanes, state, [w[3], x[0], x[1]]));
    let hashes = finish3(lanes, add(lanes, state, [x[2], x[3], y[0]]));
    // Tuple i of group g is in lane 4 (3i mod 4) + g.
    let order = lanes.of_u32([0, 12, 8, 4, 1, 13, 9, 5, 2, 14, 10, 6, 3, 15, 11, 7]);
    lanes.permute_u32(order, hashes)
}

/// One chunk of each group.
#[inline(always)]
fn chunks<const CHUNK: usize, L: Lanes>(lanes: L, groups: [[L::Vector; 3]; 4]) -> [L::Vector; 4] {
    let [g0, g1, g2, g3] = groups;
    [
        v6_chunk::<CHUNK, L>(lanes, g0),
        v6_chunk::<CHUNK, L>(lanes, g1),
        v6_chunk::<CHUNK, L>(lanes, g2),
        v6_chunk::<CHUNK, L>(lanes, g3),
    ]
}

/// Each column's 128 bits in another order.
#[inline(always)]
fn rotated<const ORDER: i32, L: Lanes>(lanes: L, columns: [L::Vector; 4]) -> [L::Vector; 4] {
    let [c0, c1, c2, c3] = columns;
    [
        lanes.shuffle_u128::<ORDER>(c0, c0),
        lanes.shuffle_u128::<ORDER>(c1, c1),
        lanes.shuffle_u128::<ORDER>(c2, c2),
        lanes.shuffle_u128::<ORDER>(c3, c3),
    ]
}

/// Words j of four chunks side by side, for j from 0 to 3, within each 128 bits.
#[inline(always)]
fn columns<L: Lanes>(lanes: L, chunks: [L::Vector; 4]) -> [L::Vector; 4] {
    let [c0, c1, c2, c3] = chunks;
    let (low01, high01) = (lanes.unpack_low_u32(c0, c1), lanes.unpack_high_u32(c0, c1));
    let (low23, high23) = (lanes.unpack_low_u32(c2, c3), lanes.unpack_high_u32(c2, c3));
    [
        lanes.unpack_low_u64(low01, low23),
        lanes.unpack_high_u64(low01, low23),
        lanes.unpack_low_u64(high01, high23),
        lanes.unpack_high_u64(high01, high23),
    ]
}

#[inline(always)]
fn add<L: Lanes>(lanes: L, state: [L::Vector; 3], block: [L::Vector; 3]) -> [L::Vector; 3] {
    let ([a, b, c], [x, y, z]) = (state, block);
    [lanes.add_u32(a, x), lanes.add_u32(b, y), lanes.add_u32(c, z)]
}

#[inline(always)]
fn mix3<L: Lanes>(lanes: L, state: [L::Vector; 3]) -> [L::Vector; 3] {
    #[inline(always)]
    fn turn<const BY: i32, L: Lanes>(lanes: L, [x, y, z]: [L::Vector; 3]) -> [L::Vector; 3] {
        let x = lanes.xor(lanes.sub_u32(x, z), lanes.rotate_left_u32::<BY>(z));
        [y, lanes.add_u32(z, y), x]
    }
    let turned = turn::<6, L>(lanes, turn::<4, L>(lanes, state));
    let turned = turn::<16, L>(lanes, turn::<8, L>(lanes, turned));
    turn::<4, L>(lanes, turn::<19, L>(lanes, turned))
}

#[inline(always)]
fn finish3<L: Lanes>(lanes: L, state: [L::Vector; 3]) -> L::Vector {
    #[inline(always)]
    fn turn<const BY: i32, L: Lanes>(lanes: L, to: L::Vector, from: L::Vector) -> L::Vector {
        lanes.sub_u32(lanes.xor(to, from), lanes.rotate_left_u32::<BY>(from))
    }
    let [a, b, c] = state;
    let c = turn::<14, L>(lanes, c, b);
    let a = turn::<11, L>(lanes, a, c);
    let b = turn::<25, L>(lanes, b, a);
    let c = turn::<16, L>(lanes, c, b);
    let a = turn::<4, L>(lanes, a, c);
    let b = turn::<14, L>(lanes, b, a);
    turn::<24, L>(lanes, c, b)
}

#[cfg(test)]
mod tests {
    use super::super::portable::{Portable, UNTOUCHED, v4, v6};
    use super::*;
    use crate::jhash::LOOKUP3_START;
    use crate::lookup3;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ipv4_burst_by_loops_equals_lookup3(
            tuples in vec(v4(), 0..70), init: u32, length in 0..70_usize,
        ) {
            let mut out = vec![UNTOUCHED; length];
            let start = LOOKUP3_START.wrapping_add(12).wrapping_add(init);
            jhash_v4(Portable, &tuples, start, &mut out);
            let hashes = tuples.iter().map(|tuple| lookup3(tuple.input(), init));
            let expected: Vec<_> = hashes.chain(std::iter::repeat(UNTOUCHED)).take(length).collect();
            prop_assert_eq!(out, expected);
        }

        #[test]
        fn ipv6_burst_by_loops_equals_lookup3(
            tuples in vec(v6(), 0..70), init: u32, length in 0..70_usize,
        ) {
            let mut out = vec![UNTOUCHED; length];
            let start = LOOKUP3_START.wrapping_add(36).wrapping_add(init);
            jhash_v6(Portable, &tuples, start, &mut out);
            let hashes = tuples.iter().map(|tuple| lookup3(tuple.input(), init));
            let expected: Vec<_> = hashes.chain(std::iter::repeat(UNTOUCHED)).take(length).collect();
            prop_assert_eq!(out, expected);
        }
    }
}
