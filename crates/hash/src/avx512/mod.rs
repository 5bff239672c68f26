//! The hashes on AVX-512: the one module of this crate with `unsafe` in it.
//!
//! # Guarantees
//!
//! What needs an instruction is reached only after detecting it at run time;
//! the results are those of the portable forms.
//!
//! Source: Rust reference, "The `target_feature` attribute": what must hold
//! before such a function is called.

mod jhash;
mod toeplitz;

use std::arch::x86_64::*;

pub(crate) use jhash::jhash_v6;
pub(crate) use toeplitz::Gfni;

/// Hashes a burst `N` tuples at a time.
///
/// What does not fill a block at the end is hashed in one that overlaps the block
/// before it; a burst shorter than one block is copied into one. Masked loads
/// would read shorter blocks in place, but where their masked part reaches a page
/// that is not there, the processor takes hundreds of cycles to find no fault.
#[inline(always)]
fn in_blocks<T: Copy + Default, const N: usize>(
    tuples: &[T],
    out: &mut [u32],
    hash: impl Fn(&[T; N], &mut [u32; N]),
) {
    let len = tuples.len().min(out.len());
    let (tuples, out) = (&tuples[..len], &mut out[..len]);
    let (blocks, rest) = tuples.as_chunks();
    for (block, out) in blocks.iter().zip(out.as_chunks_mut().0) {
        hash(block, out);
    }
    if rest.is_empty() {
        return;
    }
    if let (Some(block), Some(out)) = (tuples.last_chunk(), out.last_chunk_mut()) {
        hash(block, out);
    } else {
        let (mut block, mut hashes) = ([T::default(); N], [0; N]);
        block[..len].copy_from_slice(tuples);
        hash(&block, &mut hashes);
        out.copy_from_slice(&hashes[..len]);
    }
}

/// One 16-byte chunk of each of four IPv6 tuples: source (0), destination (1) or ports (2).
///
/// Chunk c of tuple i is row 3i + c of the twelve that three vectors hold, and
/// no two of a chunk's rows have the same place in their vectors: they can be
/// blended, and stay where they are, at place (3i + c) mod 4.
#[inline]
#[target_feature(enable = "avx512f")]
fn v6_chunk<const CHUNK: usize>(rows: [__m512i; 3]) -> __m512i {
    // Two 64-bit lanes to a row.
    const fn lanes(vector: usize, chunk: usize) -> u8 {
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
    let r01 = _mm512_mask_blend_epi64(const { lanes(1, CHUNK) }, r0, r1);
    _mm512_mask_blend_epi64(const { lanes(2, CHUNK) }, r01, r2)
}
