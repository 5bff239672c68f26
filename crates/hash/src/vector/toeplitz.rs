//! Toeplitz by vector: bit matrices applied to eight packets at a time.
//!
//! `gf2p8affineqb` multiplies each byte of a 64-bit lane by one 8 × 8 matrix
//! of bits, and a lane has room for one byte of each of eight packets. So a
//! burst is turned on its side: lane p holds byte p of every packet. What input
//! byte p gives to hash byte k depends on the key bits from 8(p + k) alone, so
//! one array of matrices serves all: the lanes from p on, for hash byte k, take
//! the matrices from p + k on.
//!
//! # Guarantees
//!
//! A burst of any length is hashed by vector; see [`in_blocks`].
//!
//! Source: Intel, "Galois Field New Instructions (GFNI) Technology Guide" and
//! the Intel 64 manual, volume 2, GF2P8AFFINEQB and VPERMI2B.

use super::{Block, ByteLanes, Lanes, in_blocks, v6_chunk};
use crate::{Key, V4Tuple, V6Tuple};

/// Lanes of padded IPv6 input, and the three matrices past them that hash bytes 1 to 3 reach.
const MATRICES: usize = 40 + 3;

/// The key as bit matrices: number q maps input byte p to hash byte k, wherever p + k = q.
#[derive(Clone)]
pub(crate) struct Matrices([u64; MATRICES]);

/// Byte indices for one permutation.
#[repr(align(64))]
struct Indices([u8; 64]);

/// Turns the addresses of eight IPv4 tuples on their side: lane p holds byte p of each.
const V4_ADDRESSES: Indices = {
    let mut indices = [0; 64];
    let mut at = 0;
    while at < 64 {
        let (lane, packet) = (at / 8, at % 8);
        indices[at] = (16 * packet + lane) as u8;
        at += 1;
    }
    Indices(indices)
};

/// Turns their ports on their side, in the low four lanes and again in the high four.
const V4_PORTS: Indices = {
    let mut indices = [0; 64];
    let mut at = 0;
    while at < 64 {
        let (lane, packet) = (at / 8 % 4, at % 8);
        indices[at] = (16 * packet + 8 + lane) as u8;
        at += 1;
    }
    Indices(indices)
};

/// Puts the hash bytes of sixteen packets together; see [`OfV4`] for the lanes' order.
const V4_HASHES: Indices = {
    let mut indices = [0; 64];
    let mut at = 0;
    while at < 64 {
        // Memory holds the last hash byte, k = 3, first.
        let (packet, k) = (at / 4, 3 - at % 4);
        let lane = 4 * (k / 2) + 2 * (packet / 8) + k % 2;
        indices[at] = (8 * lane + packet % 8) as u8;
        at += 1;
    }
    Indices(indices)
};

/// Turns half a chunk of eight IPv6 tuples on its side; `chunk` as in [`v6_chunk`].
const fn v6_turn(chunk: usize, half: usize) -> Indices {
    let mut indices = [0; 64];
    let mut at = 0;
    while at < 64 {
        let (lane, packet) = (at / 8, at % 8);
        let row = (3 * (packet % 4) + chunk) % 4;
        indices[at] = (64 * (packet / 4) + 16 * row + 8 * half + lane) as u8;
        at += 1;
    }
    Indices(indices)
}

const V6_TURNS: [Indices; 5] =
    [v6_turn(0, 0), v6_turn(0, 1), v6_turn(1, 0), v6_turn(1, 1), v6_turn(2, 0)];

/// Puts the hash bytes of eight packets together; see [`OfV6`] for the lanes' order.
const V6_HASHES: Indices = {
    let mut indices = [0; 64];
    let mut at = 0;
    while at < 32 {
        let (packet, k) = (at / 4, 3 - at % 4);
        let lane = 4 * (k / 2) + k % 2;
        indices[at] = (8 * lane + packet) as u8;
        at += 1;
    }
    Indices(indices)
};

impl Matrices {
    pub(crate) fn new(key: &Key) -> Self {
        // Row c of a matrix makes bit c of the hash byte, both counted from the high end.
        let row = |q: usize, c: usize| (key.window(8 * q + c) >> 24) as u8;
        let matrix = |q| u64::from_le_bytes(std::array::from_fn(|c| row(q, c)));
        Matrices(std::array::from_fn(matrix))
    }

    /// `N` matrices from `at` on. Callers' constants keep within the array.
    #[inline(always)]
    fn from<const N: usize>(&self, at: usize) -> &[u64; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).unwrap_or(&[0; N])
    }

    /// Eight matrices, one to a lane.
    #[inline(always)]
    fn eight<L: Lanes>(&self, lanes: L, at: usize) -> L::Vector {
        lanes.of_u64(self.from(at))
    }

    /// Four matrices, one to a lane, twice.
    #[inline(always)]
    fn four_twice<L: Lanes>(&self, lanes: L, at: usize) -> L::Vector {
        let [m0, m1, m2, m3] = *self.from(at);
        lanes.of_u64(&[m0, m1, m2, m3, m0, m1, m2, m3])
    }

    #[inline(always)]
    pub(crate) fn hash_v4<L: ByteLanes>(&self, lanes: L, tuples: &[V4Tuple], out: &mut [u32]) {
        let eight = |k: usize| self.eight(lanes, k);
        let addresses = [eight(0), eight(1), eight(2), eight(3)];
        let twice = |k: usize| self.four_twice(lanes, 8 + k);
        let ports = [twice(0), twice(1), twice(2), twice(3)];
        in_blocks(tuples, out, OfV4 { lanes, addresses, ports });
    }

    #[inline(always)]
    pub(crate) fn hash_v6<L: ByteLanes>(&self, lanes: L, tuples: &[V6Tuple], out: &mut [u32]) {
        in_blocks(tuples, out, OfV6 { lanes, matrices: self });
    }
}

struct OfV4<L: Lanes> {
    lanes: L,
    addresses: [L::Vector; 4],
    ports: [L::Vector; 4],
}

impl<L: ByteLanes> Block<V4Tuple, 16> for OfV4<L> {
    #[inline(always)]
    fn hash(&self, tuples: &[V4Tuple; 16]) -> [u32; 16] {
        let lanes = self.lanes;
        let [r0, r1, r2, r3] = tuples.as_chunks().0 else { return [0; 16] };
        let (r0, r1, r2, r3) = (lanes.of_v4(r0), lanes.of_v4(r1), lanes.of_v4(r2), lanes.of_v4(r3));
        // a: the first eight packets, b: the last eight, p: the ports of a, then the ports of b.
        let turn = lanes.of_bytes(&V4_ADDRESSES.0);
        let a = lanes.permute2_u8(r0, turn, r1);
        let b = lanes.permute2_u8(r2, turn, r3);
        let turn = lanes.of_bytes(&V4_PORTS.0);
        let (low, high) = (lanes.permute2_u8(r0, turn, r1), lanes.permute2_u8(r2, turn, r3));
        let p = lanes.blend_u64(0xf0, low, high);
        let sums = [
            self.sum(0, a, b, p),
            self.sum(1, a, b, p),
            self.sum(2, a, b, p),
            self.sum(3, a, b, p),
        ];
        // Lanes: a0 a1 b0 b1 a2 a3 b2 b3, by packets and hash byte.
        lanes.to_u32(lanes.permute_u8(lanes.of_bytes(&V4_HASHES.0), fold(lanes, sums)))
    }
}

impl<L: ByteLanes> OfV4<L> {
    /// For hash byte `k`: four lanes to add up for a, then four for b.
    #[inline(always)]
    fn sum(&self, k: usize, a: L::Vector, b: L::Vector, p: L::Vector) -> L::Vector {
        let lanes = self.lanes;
        let a = lanes.multiply_bits(a, self.addresses[k]);
        let b = lanes.multiply_bits(b, self.addresses[k]);
        let p = lanes.multiply_bits(p, self.ports[k]);
        let low = lanes.shuffle_u128::<0x44>(a, b);
        let high = lanes.shuffle_u128::<0xee>(a, b);
        lanes.xor3(low, high, p)
    }
}

struct OfV6<'a, L> {
    lanes: L,
    matrices: &'a Matrices,
}

impl<L: ByteLanes> Block<V6Tuple, 8> for OfV6<'_, L> {
    #[inline(always)]
    fn hash(&self, tuples: &[V6Tuple; 8]) -> [u32; 8] {
        let lanes = self.lanes;
        let [first, second] = tuples.as_chunks().0 else { return [0; 8] };
        let (first, second) = (lanes.of_v6(first), lanes.of_v6(second));
        let (low, high) = (v6_chunk::<0, L>(lanes, first), v6_chunk::<0, L>(lanes, second));
        let (s0, s1) = (turn(lanes, low, 0, high), turn(lanes, low, 1, high));
        let (low, high) = (v6_chunk::<1, L>(lanes, first), v6_chunk::<1, L>(lanes, second));
        let (d0, d1) = (turn(lanes, low, 2, high), turn(lanes, low, 3, high));
        let (low, high) = (v6_chunk::<2, L>(lanes, first), v6_chunk::<2, L>(lanes, second));
        let bytes = [s0, s1, d0, d1, turn(lanes, low, 4, high)];
        let sums = [self.sum(0, bytes), self.sum(1, bytes), self.sum(2, bytes), self.sum(3, bytes)];
        // Eight lanes are added here, so the halves that `fold` keeps apart are combined.
        let folded = fold(lanes, sums);
        let sum = lanes.xor(folded, lanes.shuffle_u128::<0xb1>(folded, folded));
        let hashes = lanes.to_u32(lanes.permute_u8(lanes.of_bytes(&V6_HASHES.0), sum));
        hashes.first_chunk().copied().unwrap_or([0; 8])
    }
}

impl<L: ByteLanes> OfV6<'_, L> {
    /// For hash byte `k`: eight lanes to add up.
    #[inline(always)]
    fn sum(&self, k: usize, bytes: [L::Vector; 5]) -> L::Vector {
        let [s0, s1, d0, d1, ports] = bytes;
        let (s0, s1) = (self.times(s0, k), self.times(s1, 8 + k));
        let (d0, d1) = (self.times(d0, 16 + k), self.times(d1, 24 + k));
        self.lanes.xor3(self.lanes.xor3(s0, s1, self.times(ports, 32 + k)), d0, d1)
    }

    #[inline(always)]
    fn times(&self, bytes: L::Vector, at: usize) -> L::Vector {
        self.lanes.multiply_bits(bytes, self.matrices.eight(self.lanes, at))
    }
}

/// Half a chunk of eight tuples turned on its side; `by` is which of [`V6_TURNS`].
#[inline(always)]
fn turn<L: ByteLanes>(lanes: L, low: L::Vector, by: usize, high: L::Vector) -> L::Vector {
    lanes.permute2_u8(low, lanes.of_bytes(&V6_TURNS[by].0), high)
}

/// Adds up lanes that lie in one half of a vector: each half of `sums[k]` has four lanes for
/// hash byte k; the result has lanes 0 1 for the low half, 0 1 for the high, then 2 3, 2 3.
#[inline(always)]
fn fold<L: Lanes>(lanes: L, sums: [L::Vector; 4]) -> L::Vector {
    let [s0, s1, s2, s3] = sums;
    let s01 = lanes.xor(lanes.unpack_low_u64(s0, s1), lanes.unpack_high_u64(s0, s1));
    let s23 = lanes.xor(lanes.unpack_low_u64(s2, s3), lanes.unpack_high_u64(s2, s3));
    lanes.xor(lanes.shuffle_u128::<0x88>(s01, s23), lanes.shuffle_u128::<0xdd>(s01, s23))
}

#[cfg(test)]
mod tests {
    use super::super::portable::{Portable, UNTOUCHED, v4, v6};
    use super::*;
    use crate::reference;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn burst_by_loops_equals_the_reference(
            key in vec(any::<u8>(), 40..=64), v4 in vec(v4(), 0..70), v6 in vec(v6(), 0..70),
            length in 0..70_usize,
        ) {
            let key = Key::from_bytes(&key).unwrap();
            let matrices = Matrices::new(&key);
            let expected = |inputs: Vec<&[u8]>| -> Vec<u32> {
                let hashes = inputs.into_iter().map(|input| reference(&key, input));
                hashes.chain(std::iter::repeat(UNTOUCHED)).take(length).collect()
            };
            let mut out = vec![UNTOUCHED; length];
            matrices.hash_v4(Portable, &v4, &mut out);
            prop_assert_eq!(out, expected(v4.iter().map(|tuple| &tuple.input()[..]).collect()));
            let mut out = vec![UNTOUCHED; length];
            matrices.hash_v6(Portable, &v6, &mut out);
            prop_assert_eq!(out, expected(v6.iter().map(|tuple| &tuple.input()[..]).collect()));
        }
    }
}
