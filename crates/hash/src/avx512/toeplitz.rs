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
//! - A `Gfni` exists only where the processor has every instruction used here.
//! - A burst of any length takes the vector path; see [`in_blocks`].
//!
//! Source: Intel, "Galois Field New Instructions (GFNI) Technology Guide" and
//! the Intel 64 manual, volume 2, GF2P8AFFINEQB and VPERMI2B.

use std::arch::x86_64::*;

use super::{in_blocks, v6_chunk};
use crate::{Key, V4Tuple, V6Tuple};

/// Lanes of padded IPv6 input, and the three matrices past them that hash bytes 1 to 3 reach.
const MATRICES: usize = 40 + 3;

/// Bits of [`_mm512_ternarylogic_epi64`] that make it a XOR of three.
const XOR3: i32 = 0x96;

/// The key as bit matrices.
#[derive(Clone)]
pub(crate) struct Gfni {
    /// Matrix q maps input byte p to hash byte k, wherever p + k = q.
    matrices: [u64; MATRICES],
}

impl Gfni {
    /// The matrices of `key`, or nothing where this processor lacks an instruction.
    pub(crate) fn new(key: &Key) -> Option<Gfni> {
        let able = is_x86_feature_detected!("gfni")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi");
        // Row c of a matrix makes bit c of the hash byte, both counted from the high end.
        let row = |q: usize, c: usize| (key.window(8 * q + c) >> 24) as u8;
        let matrix = |q| u64::from_le_bytes(std::array::from_fn(|c| row(q, c)));
        able.then(|| Gfni { matrices: std::array::from_fn(matrix) })
    }

    pub(crate) fn hash_v4(&self, tuples: &[V4Tuple], out: &mut [u32]) {
        // SAFETY: `new` made this value only after detecting the features that
        // `hash_v4_burst` enables.
        unsafe { hash_v4_burst(&self.matrices, tuples, out) }
    }

    pub(crate) fn hash_v6(&self, tuples: &[V6Tuple], out: &mut [u32]) {
        // SAFETY: as for `hash_v4`; `hash_v6_burst` enables the same features.
        unsafe { hash_v6_burst(&self.matrices, tuples, out) }
    }
}

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

/// Puts the hash bytes of sixteen packets together; see [`v4_block`] for the lanes' order.
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

/// Puts the hash bytes of eight packets together; see [`v6_block`] for the lanes' order.
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

#[inline]
#[target_feature(enable = "avx512f")]
fn indices(from: &Indices) -> __m512i {
    // SAFETY: `from` is 64 readable bytes.
    unsafe { _mm512_loadu_si512(from.0.as_ptr().cast()) }
}

/// Eight matrices, one to a lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn eight(matrices: &[u64; 8]) -> __m512i {
    // SAFETY: `matrices` is 64 readable bytes; this load needs no alignment.
    unsafe { _mm512_loadu_si512(matrices.as_ptr().cast()) }
}

/// Four matrices, one to a lane, and the same again.
#[inline]
#[target_feature(enable = "avx512f")]
fn four_twice(matrices: &[u64; 4]) -> __m512i {
    let [m0, m1, m2, m3] = matrices.map(|matrix| matrix as i64);
    _mm512_setr_epi64(m0, m1, m2, m3, m0, m1, m2, m3)
}

/// `N` matrices from `at` on. Callers' constants keep within the array.
#[inline(always)]
fn from<const N: usize>(matrices: &[u64; MATRICES], at: usize) -> &[u64; N] {
    matrices.get(at..).and_then(|rest| rest.first_chunk()).unwrap_or(&[0; N])
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn hash_v4_burst(matrices: &[u64; MATRICES], tuples: &[V4Tuple], out: &mut [u32]) {
    let addresses = std::array::from_fn(|k| eight(from(matrices, k)));
    let ports = std::array::from_fn(|k| four_twice(from(matrices, 8 + k)));

    in_blocks::<V4Tuple, 16>(tuples, out, |block, out| {
        let at = block.as_ptr().cast::<__m512i>();
        // SAFETY: sixteen tuples of 16 bytes are four vectors of 64, and i is below four.
        let row = |i: usize| unsafe { _mm512_loadu_si512(at.add(i)) };
        let hashes = v4_block(&addresses, &ports, [row(0), row(1), row(2), row(3)]);
        // SAFETY: `out` is sixteen words, one vector.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), hashes) };
    });
}

/// The hashes of sixteen tuples, given as they lie in memory.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn v4_block(addresses: &[__m512i; 4], ports: &[__m512i; 4], rows: [__m512i; 4]) -> __m512i {
    let [r0, r1, r2, r3] = rows;
    // a: the first eight packets, b: the last eight, p: the ports of a, then those of b.
    let turn = indices(&V4_ADDRESSES);
    let a = _mm512_permutex2var_epi8(r0, turn, r1);
    let b = _mm512_permutex2var_epi8(r2, turn, r3);
    let turn = indices(&V4_PORTS);
    let p = _mm512_mask_blend_epi64(
        0xf0,
        _mm512_permutex2var_epi8(r0, turn, r1),
        _mm512_permutex2var_epi8(r2, turn, r3),
    );
    // For each hash byte: four lanes to add up for a, then four for b.
    let sums: [__m512i; 4] = std::array::from_fn(|k| {
        let a = _mm512_gf2p8affine_epi64_epi8::<0>(a, addresses[k]);
        let b = _mm512_gf2p8affine_epi64_epi8::<0>(b, addresses[k]);
        let p = _mm512_gf2p8affine_epi64_epi8::<0>(p, ports[k]);
        let low = _mm512_shuffle_i64x2::<0x44>(a, b);
        let high = _mm512_shuffle_i64x2::<0xee>(a, b);
        _mm512_ternarylogic_epi64::<XOR3>(low, high, p)
    });
    // Lanes: a0 a1 b0 b1 a2 a3 b2 b3, by packets and hash byte.
    _mm512_permutexvar_epi8(indices(&V4_HASHES), fold(sums))
}

/// Adds up lanes that lie in one half of a vector: each half of `sums[k]` has four lanes for
/// hash byte k; the result has lanes 0 1 for the low half, 0 1 for the high, then 2 3, 2 3.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold(sums: [__m512i; 4]) -> __m512i {
    let [s0, s1, s2, s3] = sums;
    let s01 = _mm512_xor_si512(_mm512_unpacklo_epi64(s0, s1), _mm512_unpackhi_epi64(s0, s1));
    let s23 = _mm512_xor_si512(_mm512_unpacklo_epi64(s2, s3), _mm512_unpackhi_epi64(s2, s3));
    _mm512_xor_si512(_mm512_shuffle_i64x2::<0x88>(s01, s23), _mm512_shuffle_i64x2::<0xdd>(s01, s23))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn hash_v6_burst(matrices: &[u64; MATRICES], tuples: &[V6Tuple], out: &mut [u32]) {
    in_blocks::<V6Tuple, 8>(tuples, out, |block, out| {
        let at = block.as_ptr().cast::<__m512i>();
        // SAFETY: eight tuples of 48 bytes are six vectors of 64, and i is below six.
        let row = |i: usize| unsafe { _mm512_loadu_si512(at.add(i)) };
        let hashes = v6_block(matrices, [row(0), row(1), row(2), row(3), row(4), row(5)]);
        // SAFETY: `out` is eight words, half a vector.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_castsi512_si256(hashes)) };
    });
}

/// The hashes of eight tuples, given as they lie in memory, in the low half of the result.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn v6_block(matrices: &[u64; MATRICES], rows: [__m512i; 6]) -> __m512i {
    let [r0, r1, r2, r3, r4, r5] = rows;
    let turn = |low, high, by: usize| _mm512_permutex2var_epi8(low, indices(&V6_TURNS[by]), high);
    let (low, high) = (v6_chunk::<0>([r0, r1, r2]), v6_chunk::<0>([r3, r4, r5]));
    let source = [turn(low, high, 0), turn(low, high, 1)];
    let (low, high) = (v6_chunk::<1>([r0, r1, r2]), v6_chunk::<1>([r3, r4, r5]));
    let destination = [turn(low, high, 2), turn(low, high, 3)];
    let (low, high) = (v6_chunk::<2>([r0, r1, r2]), v6_chunk::<2>([r3, r4, r5]));
    let ports = turn(low, high, 4);

    let sums: [__m512i; 4] = std::array::from_fn(|k| {
        let times = |bytes, at: usize| {
            _mm512_gf2p8affine_epi64_epi8::<0>(bytes, eight(from(matrices, at + k)))
        };
        let (s0, s1) = (times(source[0], 0), times(source[1], 8));
        let (d0, d1) = (times(destination[0], 16), times(destination[1], 24));
        let sum = _mm512_ternarylogic_epi64::<XOR3>(s0, s1, times(ports, 32));
        _mm512_ternarylogic_epi64::<XOR3>(sum, d0, d1)
    });
    // Eight lanes are to be added up here, so what `fold` keeps apart goes together.
    let folded = fold(sums);
    let sum = _mm512_xor_si512(folded, _mm512_shuffle_i64x2::<0xb1>(folded, folded));
    _mm512_permutexvar_epi8(indices(&V6_HASHES), sum)
}
