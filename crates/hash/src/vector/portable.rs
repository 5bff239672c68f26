//! The vector operations as loops, so that tests run on any processor.
//!
//! # Guarantees
//!
//! Equal to the instructions; tested where the processor has them.
//!
//! Source: Intel 64 manual, volume 2, the operation of each instruction.

use super::{ByteLanes, Lanes};
use crate::{V4Tuple, V6Tuple};
use proptest::prelude::*;

/// A value that no hash takes by accident in this many cases.
pub(crate) const UNTOUCHED: u32 = 0x5eed_5eed;

pub(crate) fn v4() -> impl Strategy<Value = V4Tuple> {
    any::<([u8; 4], [u8; 4], u16, u16)>().prop_map(|(s, d, p, q)| V4Tuple::new(s, d, p, q))
}

pub(crate) fn v6() -> impl Strategy<Value = V6Tuple> {
    any::<([u8; 16], [u8; 16], u16, u16)>().prop_map(|(s, d, p, q)| V6Tuple::new(s, d, p, q))
}

#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Vector = [u8; 64];

/// Lane i of `BYTES` bytes.
fn lane<const BYTES: usize>(vector: &Vector, i: usize) -> [u8; BYTES] {
    vector.as_chunks().0[i]
}

/// A vector of lanes of `BYTES` bytes.
fn vector<const BYTES: usize>(lane: impl Fn(usize) -> [u8; BYTES]) -> Vector {
    let mut vector = [0; 64];
    let lanes = vector.as_chunks_mut().0.iter_mut();
    lanes.enumerate().for_each(|(i, place)| *place = lane(i));
    vector
}

fn u32s(a: &Vector, b: &Vector, of: impl Fn(u32, u32) -> u32) -> Vector {
    let number = |vector, i| u32::from_le_bytes(lane(vector, i));
    vector(|i| of(number(a, i), number(b, i)).to_le_bytes())
}

/// Lanes of each 128 bits from `from` on, alternately of `a` and `b`.
fn unpacked<const BYTES: usize>(a: &Vector, b: &Vector, from: usize) -> Vector {
    let count = 16 / BYTES;
    vector::<BYTES>(|i| {
        let (begin, place) = (i / count * count, i % count);
        lane([a, b][place % 2], begin + from + place / 2)
    })
}

impl Lanes for Portable {
    type Vector = Vector;

    fn of_bytes(self, bytes: &[u8; 64]) -> Vector {
        *bytes
    }

    fn of_u32(self, lanes: [u32; 16]) -> Vector {
        vector(|i| lanes[i].to_le_bytes())
    }

    fn of_u64(self, lanes: &[u64; 8]) -> Vector {
        vector(|i| lanes[i].to_le_bytes())
    }

    fn of_v4(self, tuples: &[V4Tuple; 4]) -> Vector {
        vector(|i| *tuples[i].as_bytes())
    }

    fn of_v6(self, tuples: &[V6Tuple; 4]) -> [Vector; 3] {
        let chunk = |i: usize| tuples[i / 3].as_bytes().as_chunks::<16>().0[i % 3];
        [0, 4, 8].map(|first| vector(|i| chunk(first + i)))
    }

    fn to_u32(self, vector: Vector) -> [u32; 16] {
        std::array::from_fn(|i| u32::from_le_bytes(lane(&vector, i)))
    }

    fn xor(self, a: Vector, b: Vector) -> Vector {
        vector(|i| [a[i] ^ b[i]])
    }

    fn xor3(self, a: Vector, b: Vector, c: Vector) -> Vector {
        vector(|i| [a[i] ^ b[i] ^ c[i]])
    }

    fn add_u32(self, a: Vector, b: Vector) -> Vector {
        u32s(&a, &b, u32::wrapping_add)
    }

    fn sub_u32(self, a: Vector, b: Vector) -> Vector {
        u32s(&a, &b, u32::wrapping_sub)
    }

    fn rotate_left_u32<const BY: i32>(self, a: Vector) -> Vector {
        u32s(&a, &a, |lane, _| lane.rotate_left(BY as u32))
    }

    fn unpack_low_u32(self, a: Vector, b: Vector) -> Vector {
        unpacked::<4>(&a, &b, 0)
    }

    fn unpack_high_u32(self, a: Vector, b: Vector) -> Vector {
        unpacked::<4>(&a, &b, 2)
    }

    fn unpack_low_u64(self, a: Vector, b: Vector) -> Vector {
        unpacked::<8>(&a, &b, 0)
    }

    fn unpack_high_u64(self, a: Vector, b: Vector) -> Vector {
        unpacked::<8>(&a, &b, 1)
    }

    fn blend_u64(self, mask: u8, a: Vector, b: Vector) -> Vector {
        vector::<8>(|i| lane(if mask >> i & 1 == 1 { &b } else { &a }, i))
    }

    fn shuffle_u128<const ORDER: i32>(self, a: Vector, b: Vector) -> Vector {
        vector::<16>(|i| lane([&a, &b][i / 2], (ORDER >> (2 * i) & 3) as usize))
    }

    fn permute_u32(self, order: Vector, a: Vector) -> Vector {
        vector::<4>(|i| lane(&a, usize::from(order[4 * i] & 15)))
    }
}

impl ByteLanes for Portable {
    fn permute_u8(self, order: Vector, a: Vector) -> Vector {
        vector(|i| [a[usize::from(order[i] & 63)]])
    }

    fn permute2_u8(self, a: Vector, order: Vector, b: Vector) -> Vector {
        vector(|i| [[&a, &b][usize::from(order[i] >> 6 & 1)][usize::from(order[i] & 63)]])
    }

    fn multiply_bits(self, bytes: Vector, matrices: Vector) -> Vector {
        let bit = |i: usize, bit: usize| {
            let row = matrices[i / 8 * 8 + 7 - bit];
            ((row & bytes[i]).count_ones() as u8 & 1) << bit
        };
        vector(|i| [(0..8).map(|at| bit(i, at)).sum()])
    }
}
