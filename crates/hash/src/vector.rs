//! Burst hashes on 512-bit vectors, for any implementation of the operations.
//!
//! [`Lanes`] and [`ByteLanes`] are the operations needed. `crate::avx512` implements them with
//! processor instructions; tests also implement them with loops, so this code is tested on every
//! machine.
//!
//! # Guarantees
//!
//! - The results equal the results of the portable forms, for bursts of any length.
//! - Everything is inlined into the function that enables the instructions.
//!
//! Source: Intel 64 manual, volume 2: each operation is one of its instructions.

mod jhash;
#[cfg(test)]
pub(crate) mod portable;
mod toeplitz;

use crate::{V4Tuple, V6Tuple};

#[cfg(target_arch = "x86_64")]
pub(crate) use {jhash::jhash_v4, jhash::jhash_v6, toeplitz::Matrices};

/// Vectors of 64 bytes, seen as lanes of 32, 64 or 128 bits, lowest first. A value of the type
/// proves that this machine can compute with them.
pub(crate) trait Lanes: Copy {
    type Vector: Copy;

    fn of_bytes(self, bytes: &[u8; 64]) -> Self::Vector;
    fn of_u32(self, lanes: [u32; 16]) -> Self::Vector;
    fn of_u64(self, lanes: &[u64; 8]) -> Self::Vector;
    /// Tuples as in memory.
    fn of_v4(self, tuples: &[V4Tuple; 4]) -> Self::Vector;
    /// Tuples as in memory.
    fn of_v6(self, tuples: &[V6Tuple; 4]) -> [Self::Vector; 3];
    fn to_u32(self, vector: Self::Vector) -> [u32; 16];

    fn xor(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn xor3(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    fn add_u32(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub_u32(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn rotate_left_u32<const BY: i32>(self, a: Self::Vector) -> Self::Vector;

    /// Of each 128 bits, the low lanes of both, alternating.
    fn unpack_low_u32(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Of each 128 bits, the high lanes of both, alternating.
    fn unpack_high_u32(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Of each 128 bits, the low lane of both.
    fn unpack_low_u64(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Of each 128 bits, the high lane of both.
    fn unpack_high_u64(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Lanes of `b` where `mask` has a bit, of `a` elsewhere.
    fn blend_u64(self, mask: u8, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Two lanes of `a`, then two of `b`, selected by two bits of `ORDER` each.
    fn shuffle_u128<const ORDER: i32>(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Lane i is the one of `a` that lane i of `order` names.
    fn permute_u32(self, order: Self::Vector, a: Self::Vector) -> Self::Vector;
}

/// The same vectors, seen as bytes.
pub(crate) trait ByteLanes: Lanes {
    /// Byte i is the one of `a` that byte i of `order` names.
    fn permute_u8(self, order: Self::Vector, a: Self::Vector) -> Self::Vector;
    /// Byte i is the one of `a`, then `b`, that byte i of `order` names.
    fn permute2_u8(self, a: Self::Vector, order: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Each byte times the bit matrix in its 64-bit lane of `matrices`. Byte 7 - i of a matrix is
    /// the row that makes bit i.
    fn multiply_bits(self, bytes: Self::Vector, matrices: Self::Vector) -> Self::Vector;
}

/// Hashes `N` tuples at a time: not a closure, since closures are not always inlined.
trait Block<T, const N: usize> {
    fn hash(&self, tuples: &[T; N]) -> [u32; N];
}

/// Hashes a burst `N` tuples at a time.
///
/// A partial block at the end is hashed as a full block that overlaps the one before; a burst
/// shorter than a block is copied into one. Masked loads could read short blocks in place, but if
/// the masked part reaches an unmapped page, the processor takes hundreds of cycles to suppress the
/// fault.
#[inline(always)]
fn in_blocks<T: Copy + Default, const N: usize>(
    tuples: &[T],
    out: &mut [u32],
    by: impl Block<T, N>,
) {
    let len = tuples.len().min(out.len());
    let (tuples, out) = (&tuples[..len], &mut out[..len]);
    let (blocks, rest) = tuples.as_chunks();
    for (block, out) in blocks.iter().zip(out.as_chunks_mut().0) {
        *out = by.hash(block);
    }
    if rest.is_empty() {
        return;
    }
    if let (Some(block), Some(out)) = (tuples.last_chunk(), out.last_chunk_mut()) {
        *out = by.hash(block);
    } else {
        let mut block = [T::default(); N];
        block[..len].copy_from_slice(tuples);
        out.copy_from_slice(&by.hash(&block)[..len]);
    }
}

/// One 16-byte chunk of each of four IPv6 tuples: source (0), destination (1) or ports (2).
///
/// Chunk c of tuple i is row 3i + c of the twelve that three vectors hold, and
/// no two of a chunk's rows have the same place in their vectors: they can be
/// blended, and stay where they are, at place (3i + c) mod 4.
#[inline(always)]
fn v6_chunk<const CHUNK: usize, L: Lanes>(lanes: L, rows: [L::Vector; 3]) -> L::Vector {
    // Two 64-bit lanes to a row.
    const fn mask(vector: usize, chunk: usize) -> u8 {
        let (mut mask, mut place) = (0, 0);
        while place < 4 {
            if (4 * vector + place) % 3 == chunk {
                mask |= 0b11 << (2 * place);
            }
            place += 1;
        }
        mask
    }
    let [r0, r1, r2] = rows;
    let r01 = lanes.blend_u64(const { mask(1, CHUNK) }, r0, r1);
    lanes.blend_u64(const { mask(2, CHUNK) }, r01, r2)
}
