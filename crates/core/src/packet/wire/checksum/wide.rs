//! Sums of long pieces, by vectors of 32 bytes where the processor has them.
//!
//! # Guarantees
//!
//! What needs AVX2 is reached only after it was detected at run time. It is the same loop, compiled
//! once more for these vectors: half the steps that a processor of any age can be asked for.
//!
//! Source: Rust reference, "The `target_feature` attribute": what must hold before such a function
//! is called.

#![cfg_attr(target_arch = "x86_64", allow(unsafe_code))]

/// Words below which the call costs more than it saves.
#[cfg(target_arch = "x86_64")]
const LEAST: usize = 16;

/// Sum of the 32-bit halves of `words`, as they lie in memory.
#[inline]
pub(super) fn sum_halves(words: &[[u8; 8]]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn by_avx2(words: &[[u8; 8]]) -> u64 {
            sum(words)
        }
        if words.len() >= LEAST && std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor was asked for the feature that `by_avx2` enables.
            return unsafe { by_avx2(words) };
        }
    }
    sum(words)
}

#[inline(always)]
fn sum(words: &[[u8; 8]]) -> u64 {
    // Two 32-bit halves in a 64-bit sum leave the carries room for 16 GiB of data, and have no carry
    // chain, which lets the compiler use vector adds.
    words.iter().fold(0, |total, word| {
        let word = u64::from_ne_bytes(*word);
        total + (word & 0xffff_ffff) + (word >> 32)
    })
}
