//! Sums of long pieces, by vectors of 32 bytes if the processor has them.
//!
//! One multiply-and-add operation turns sixteen words of 16 bits into eight sums of two; it takes
//! signed words. So 0x8000 is subtracted from each word before, and added for all at the end.
//!
//! # Guarantees
//!
//! Code that needs AVX2 is reached only after it was detected at run time.
//!
//! Source: Intel 64 manual, volume 2, VPMADDWD; Rust reference, "The `target_feature` attribute":
//! the conditions for calling such a function.

#![cfg_attr(target_arch = "x86_64", allow(unsafe_code))]

/// Words below which the call costs more than it saves.
#[cfg(target_arch = "x86_64")]
const LEAST: usize = 16;

/// Sum of the words of 16 bits, as they lie in memory, or of the same in pairs: both fold to the
/// same value.
#[inline]
pub(super) fn sum_words(words: &[[u8; 8]]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if words.len() >= LEAST && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature that `sum_by_avx2` enables.
        return unsafe { sum_by_avx2(words) };
    }
    sum_pairs(words)
}

#[inline(always)]
fn sum_pairs(words: &[[u8; 8]]) -> u64 {
    // Two 32-bit halves in a 64-bit sum leave room for the carries of 16 GiB of data, and without a
    // carry chain the compiler can use vector adds.
    words.iter().fold(0, |total, word| {
        let word = u64::from_ne_bytes(*word);
        total + (word & 0xffff_ffff) + (word >> 32)
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_by_avx2(words: &[[u8; 8]]) -> u64 {
    use std::arch::x86_64::*;

    /// Vectors until a sum of 32 bits may be full: each adds two words with a sign.
    const MOST: usize = 1 << 14;

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(sum: __m256i, vector: &[[u8; 8]; 4]) -> __m256i {
        // SAFETY: 32 bytes are read, of any alignment.
        let words = unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) };
        let with_sign = _mm256_xor_si256(words, _mm256_set1_epi16(i16::MIN));
        _mm256_add_epi32(sum, _mm256_madd_epi16(with_sign, _mm256_set1_epi16(1)))
    }

    let (vectors, rest) = words.as_chunks::<4>();
    let mut total = 0_i64;
    for part in vectors.chunks(MOST) {
        let zero = _mm256_setzero_si256();
        // Four sums, so that none depends on the one before.
        let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
        let (fours, last) = part.as_chunks::<4>();
        for [p, q, r, s] in fours {
            (a, b, c, d) = (add(a, p), add(b, q), add(c, r), add(d, s));
        }
        for vector in last {
            a = add(a, vector);
        }
        let sum = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
        let low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(sum));
        let high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256::<1>(sum));
        let sum = _mm256_add_epi64(low, high);
        let sum = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
        total += _mm_cvtsi128_si64(sum) + _mm_extract_epi64::<1>(sum);
    }
    let taken = 0x8000 * 16 * vectors.len() as i64;
    (total + taken) as u64 + sum_pairs(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folded value of a sum; all representations of 0 except 0 are 0xffff.
    fn folded(sum: u64) -> u64 {
        (sum % 0xffff) + if sum != 0 && sum.is_multiple_of(0xffff) { 0xffff } else { 0 }
    }

    /// Both forms, wherever they are used; by vector where the processor has it.
    #[test]
    fn vector_sums_equal_word_sums() {
        #[cfg(target_arch = "x86_64")]
        let has_avx2 = std::arch::is_x86_feature_detected!("avx2");
        #[cfg(not(target_arch = "x86_64"))]
        let has_avx2 = false;
        if !has_avx2 {
            picnic_testing::skip("sums_by_vector", "this processor lacks AVX2");
        }
        // The words with the largest signed values, and some between.
        let fills: [fn(usize) -> u16; 6] = [
            |_| 0,
            |_| 0x7fff,
            |_| 0x8000,
            |_| 0xffff,
            |place| if place % 2 == 0 { 0x8000 } else { 0x7fff },
            |place| (place as u16).wrapping_mul(0x9e37),
        ];
        // Around the start of vectors, and the overflow of a 32-bit sum.
        for length in (0..80).chain([(4 << 14) - 1, 4 << 14, (4 << 14) + 5, 3 * (4 << 14) + 3]) {
            for fill in fills {
                let word = |at: usize| fill(at).to_ne_bytes();
                let bytes = (0..4 * length).flat_map(word).collect::<Vec<u8>>();
                let (words, _) = bytes.as_chunks::<8>();
                let naive = (0..4 * length).map(|at| u64::from(fill(at))).sum::<u64>();
                assert_eq!(folded(sum_words(words)), folded(naive), "{length}");
                assert_eq!(folded(sum_pairs(words)), folded(naive), "{length}");
            }
        }
    }
}
