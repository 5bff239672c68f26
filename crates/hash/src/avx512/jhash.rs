//! lookup3 by vector: sixteen IPv6 tuples at a time, one 32-bit lane each.
//!
//! The work is in bringing like words together; the mixing is then the scalar
//! one, lane by lane, with the rotation as one instruction.
//!
//! # Guarantees
//!
//! Reads the tuples and writes the hashes, and nothing next to them.
//!
//! Source: `crate::jhash`, whose rounds these are.

use std::arch::x86_64::*;

use super::{in_blocks, v6_chunk};
use crate::V6Tuple;

/// Hashes a burst if this processor has the instructions; says whether it had.
///
/// `start` is what each word of the state begins with.
#[inline]
pub(crate) fn jhash_v6(tuples: &[V6Tuple], start: u32, out: &mut [u32]) -> bool {
    let able = is_x86_feature_detected!("avx512f");
    if able {
        // SAFETY: the feature that `jhash_v6_burst` enables has just been detected.
        unsafe { jhash_v6_burst(tuples, start, out) }
    }
    able
}

#[target_feature(enable = "avx512f")]
fn jhash_v6_burst(tuples: &[V6Tuple], start: u32, out: &mut [u32]) {
    in_blocks::<V6Tuple, 16>(tuples, out, |block, out| {
        let at = block.as_ptr().cast::<__m512i>();
        // SAFETY: sixteen tuples of 48 bytes are twelve vectors of 64, and i is below twelve.
        let row = |i: usize| unsafe { _mm512_loadu_si512(at.add(i)) };
        let group = |g: usize| [row(3 * g), row(3 * g + 1), row(3 * g + 2)];
        let hashes = jhash_v6_block([group(0), group(1), group(2), group(3)], start);
        // SAFETY: `out` is sixteen words, one vector.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), hashes) };
    });
}

/// The hashes of sixteen tuples, given as four groups of four that lie in three vectors each.
#[inline]
#[target_feature(enable = "avx512f")]
fn jhash_v6_block(groups: [[__m512i; 3]; 4], start: u32) -> __m512i {
    let [g0, g1, g2, g3] = groups;
    // In a chunk the tuples of a group are in places 0 3 2 1, in the next 1 0 3 2,
    // in the third 2 1 0 3; the last two are rotated to agree with the first.
    let [w0, w1, w2, w3] =
        columns([v6_chunk::<0>(g0), v6_chunk::<0>(g1), v6_chunk::<0>(g2), v6_chunk::<0>(g3)]);
    let [w4, w5, w6, w7] =
        columns([v6_chunk::<1>(g0), v6_chunk::<1>(g1), v6_chunk::<1>(g2), v6_chunk::<1>(g3)])
            .map(|column| _mm512_shuffle_i64x2::<0x39>(column, column));
    let [w8, ..] =
        columns([v6_chunk::<2>(g0), v6_chunk::<2>(g1), v6_chunk::<2>(g2), v6_chunk::<2>(g3)])
            .map(|column| _mm512_shuffle_i64x2::<0x4e>(column, column));

    let start = _mm512_set1_epi32(start as i32);
    let state = mix3(add([start; 3], [w0, w1, w2]));
    let state = mix3(add(state, [w3, w4, w5]));
    let hashes = finish3(add(state, [w6, w7, w8]));
    // Tuple i of group g is in lane 4 (3i mod 4) + g.
    let order = _mm512_setr_epi32(0, 12, 8, 4, 1, 13, 9, 5, 2, 14, 10, 6, 3, 15, 11, 7);
    _mm512_permutexvar_epi32(order, hashes)
}

/// Words j of four chunks side by side, for j from 0 to 3, within each 128 bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn columns(chunks: [__m512i; 4]) -> [__m512i; 4] {
    let [c0, c1, c2, c3] = chunks;
    let (low01, high01) = (_mm512_unpacklo_epi32(c0, c1), _mm512_unpackhi_epi32(c0, c1));
    let (low23, high23) = (_mm512_unpacklo_epi32(c2, c3), _mm512_unpackhi_epi32(c2, c3));
    [
        _mm512_unpacklo_epi64(low01, low23),
        _mm512_unpackhi_epi64(low01, low23),
        _mm512_unpacklo_epi64(high01, high23),
        _mm512_unpackhi_epi64(high01, high23),
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add(state: [__m512i; 3], block: [__m512i; 3]) -> [__m512i; 3] {
    let ([a, b, c], [x, y, z]) = (state, block);
    [_mm512_add_epi32(a, x), _mm512_add_epi32(b, y), _mm512_add_epi32(c, z)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn mix3(state: [__m512i; 3]) -> [__m512i; 3] {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn turn<const BY: i32>([x, y, z]: [__m512i; 3]) -> [__m512i; 3] {
        let x = _mm512_xor_si512(_mm512_sub_epi32(x, z), _mm512_rol_epi32::<BY>(z));
        [y, _mm512_add_epi32(z, y), x]
    }
    let turned = turn::<8>(turn::<6>(turn::<4>(state)));
    turn::<4>(turn::<19>(turn::<16>(turned)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn finish3(state: [__m512i; 3]) -> __m512i {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn turn<const BY: i32>(to: __m512i, from: __m512i) -> __m512i {
        _mm512_sub_epi32(_mm512_xor_si512(to, from), _mm512_rol_epi32::<BY>(from))
    }
    let [a, b, c] = state;
    let c = turn::<14>(c, b);
    let a = turn::<11>(a, c);
    let b = turn::<25>(b, a);
    let c = turn::<16>(c, b);
    let a = turn::<4>(a, c);
    let b = turn::<14>(b, a);
    turn::<24>(c, b)
}
