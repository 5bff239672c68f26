//! Vectors by AVX-512: the only module of this crate with `unsafe`.
//!
//! # Guarantees
//!
//! Instructions are used only after run-time detection: a `Has` or `Gfni` value exists only if the
//! processor has every instruction that it requires.
//!
//! Source: Rust reference, "The `target_feature` attribute": conditions for calling such a
//! function.

use std::arch::x86_64::*;

use crate::vector::{self, ByteLanes, Lanes, Matrices};
use crate::{Key, V4Tuple, V6Tuple};

/// Hashes a burst if this processor has the instructions; returns whether it has.
///
/// `start` is the initial value of each state word.
#[inline]
pub(crate) fn jhash_v4(tuples: &[V4Tuple], start: u32, out: &mut [u32]) -> bool {
    #[target_feature(enable = "avx512f")]
    fn burst(has: Has<false>, tuples: &[V4Tuple], start: u32, out: &mut [u32]) {
        vector::jhash_v4(has, tuples, start, out);
    }
    let has = Has::detect();
    if let Some(has) = has {
        // SAFETY: `has` exists, so the processor has the feature that `burst` enables.
        unsafe { burst(has, tuples, start, out) }
    }
    has.is_some()
}

/// Like `jhash_v4`, for IPv6 tuples.
#[inline]
pub(crate) fn jhash_v6(tuples: &[V6Tuple], start: u32, out: &mut [u32]) -> bool {
    #[target_feature(enable = "avx512f")]
    fn burst(has: Has<false>, tuples: &[V6Tuple], start: u32, out: &mut [u32]) {
        vector::jhash_v6(has, tuples, start, out);
    }
    let has = Has::detect();
    if let Some(has) = has {
        // SAFETY: `has` exists, so the processor has the feature that `burst` enables.
        unsafe { burst(has, tuples, start, out) }
    }
    has.is_some()
}

/// A key made ready for the Toeplitz hash.
#[derive(Clone)]
pub(crate) struct Gfni {
    has: Has<true>,
    matrices: Matrices,
}

impl Gfni {
    /// Prepares the key, or returns nothing if this processor lacks an instruction.
    pub(crate) fn new(key: &Key) -> Option<Gfni> {
        Has::detect().map(|has| Gfni { has, matrices: Matrices::new(key) })
    }

    pub(crate) fn hash_v4(&self, tuples: &[V4Tuple], out: &mut [u32]) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
        fn burst(gfni: &Gfni, tuples: &[V4Tuple], out: &mut [u32]) {
            gfni.matrices.hash_v4(gfni.has, tuples, out);
        }
        // SAFETY: a `Has<true>` exists, so the processor has the features that `burst` enables.
        unsafe { burst(self, tuples, out) }
    }

    pub(crate) fn hash_v6(&self, tuples: &[V6Tuple], out: &mut [u32]) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
        fn burst(gfni: &Gfni, tuples: &[V6Tuple], out: &mut [u32]) {
            gfni.matrices.hash_v6(gfni.has, tuples, out);
        }
        // SAFETY: as for `hash_v4`.
        unsafe { burst(self, tuples, out) }
    }
}

/// This processor has AVX-512F; with `GFNI`, also BW, VBMI and Galois field instructions.
#[derive(Clone, Copy)]
struct Has<const GFNI: bool>(());

impl<const GFNI: bool> Has<GFNI> {
    #[inline]
    fn detect() -> Option<Self> {
        let has_gfni = is_x86_feature_detected!("gfni")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi");
        is_enough(GFNI, is_x86_feature_detected!("avx512f"), has_gfni).then_some(Has(()))
    }
}

/// Whether a processor has the features that a form needs.
fn is_enough(needs_gfni: bool, has_avx512f: bool, has_gfni: bool) -> bool {
    has_avx512f && (!needs_gfni || has_gfni)
}

#[test]
fn a_form_needs_all_of_its_instructions() {
    for (has_avx512f, has_gfni) in [(false, false), (false, true), (true, false), (true, true)] {
        assert_eq!(is_enough(false, has_avx512f, has_gfni), has_avx512f);
        assert_eq!(is_enough(true, has_avx512f, has_gfni), has_avx512f && has_gfni);
    }
}

/// Bits of [`_mm512_ternarylogic_epi64`] that make it a XOR of three.
const XOR3: i32 = 0x96;

/// Methods that are one instruction of AVX-512F.
macro_rules! instructions {
    ($($name:ident($($operand:ident),*) = $instruction:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($operand: __m512i),*) -> __m512i {
            // SAFETY: a `Has` exists, so the processor has the instruction.
            unsafe { $instruction($($operand),*) }
        }
    )*};
}

impl<const GFNI: bool> Lanes for Has<GFNI> {
    type Vector = __m512i;

    instructions! {
        xor(a, b) = _mm512_xor_si512;
        add_u32(a, b) = _mm512_add_epi32;
        sub_u32(a, b) = _mm512_sub_epi32;
        unpack_low_u32(a, b) = _mm512_unpacklo_epi32;
        unpack_high_u32(a, b) = _mm512_unpackhi_epi32;
        unpack_low_u64(a, b) = _mm512_unpacklo_epi64;
        unpack_high_u64(a, b) = _mm512_unpackhi_epi64;
        permute_u32(order, a) = _mm512_permutexvar_epi32;
    }

    #[inline(always)]
    fn of_bytes(self, bytes: &[u8; 64]) -> __m512i {
        // SAFETY: `bytes` is 64 readable bytes, and AVX-512F is present, as in all that follow.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn of_u32(self, lanes: [u32; 16]) -> __m512i {
        // SAFETY: `lanes` is 64 readable bytes.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn of_u64(self, lanes: &[u64; 8]) -> __m512i {
        // SAFETY: `lanes` is 64 readable bytes.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn of_v4(self, tuples: &[V4Tuple; 4]) -> __m512i {
        // SAFETY: four tuples of 16 bytes are 64 readable bytes.
        unsafe { _mm512_loadu_si512(tuples.as_ptr().cast()) }
    }

    #[inline(always)]
    fn of_v6(self, tuples: &[V6Tuple; 4]) -> [__m512i; 3] {
        let at = tuples.as_ptr().cast::<__m512i>();
        // SAFETY: four tuples of 48 bytes are three vectors of 64 readable bytes.
        unsafe {
            [_mm512_loadu_si512(at), _mm512_loadu_si512(at.add(1)), _mm512_loadu_si512(at.add(2))]
        }
    }

    #[inline(always)]
    fn to_u32(self, vector: __m512i) -> [u32; 16] {
        let mut lanes = [0; 16];
        // SAFETY: `lanes` is 64 writable bytes.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), vector) };
        lanes
    }

    #[inline(always)]
    fn xor3(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        // SAFETY: AVX-512F is present.
        unsafe { _mm512_ternarylogic_epi64::<XOR3>(a, b, c) }
    }

    #[inline(always)]
    fn rotate_left_u32<const BY: i32>(self, a: __m512i) -> __m512i {
        // SAFETY: AVX-512F is present.
        unsafe { _mm512_rol_epi32::<BY>(a) }
    }

    #[inline(always)]
    fn blend_u64(self, mask: u8, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: AVX-512F is present.
        unsafe { _mm512_mask_blend_epi64(mask, a, b) }
    }

    #[inline(always)]
    fn shuffle_u128<const ORDER: i32>(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: AVX-512F is present.
        unsafe { _mm512_shuffle_i64x2::<ORDER>(a, b) }
    }
}

impl ByteLanes for Has<true> {
    #[inline(always)]
    fn permute_u8(self, order: __m512i, a: __m512i) -> __m512i {
        // SAFETY: VBMI is present, as for the next two.
        unsafe { _mm512_permutexvar_epi8(order, a) }
    }

    #[inline(always)]
    fn permute2_u8(self, a: __m512i, order: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_permutex2var_epi8(a, order, b) }
    }

    #[inline(always)]
    fn multiply_bits(self, bytes: __m512i, matrices: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(bytes, matrices) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::portable::{Portable, v4, v6};
    use proptest::prelude::*;

    /// An operation on the lanes of three vectors, for any implementation.
    type Operation<L> = fn(L, [<L as Lanes>::Vector; 3]) -> <L as Lanes>::Vector;

    fn operations<L: Lanes>() -> [Operation<L>; 15] {
        [
            |l, [a, b, _]| l.xor(a, b),
            |l, [a, b, c]| l.xor3(a, b, c),
            |l, [a, b, _]| l.add_u32(a, b),
            |l, [a, b, _]| l.sub_u32(a, b),
            |l, [a, ..]| l.rotate_left_u32::<7>(a),
            |l, [a, b, _]| l.unpack_low_u32(a, b),
            |l, [a, b, _]| l.unpack_high_u32(a, b),
            |l, [a, b, _]| l.unpack_low_u64(a, b),
            |l, [a, b, _]| l.unpack_high_u64(a, b),
            |l, [a, b, _]| l.blend_u64(0x9a, a, b),
            |l, [a, b, _]| l.shuffle_u128::<0x63>(a, b),
            |l, [a, b, _]| l.permute_u32(a, b),
            |l, _| l.of_u32(std::array::from_fn(|i| i as u32 * 77)),
            |l, _| l.of_u64(&std::array::from_fn(|i| i as u64 * 0x1_2345_6789)),
            |l, _| l.of_bytes(&std::array::from_fn(|i| i as u8)),
        ]
    }

    fn byte_operations<L: ByteLanes>() -> [Operation<L>; 3] {
        [
            |l, [a, b, _]| l.permute_u8(a, b),
            |l, [a, b, c]| l.permute2_u8(a, b, c),
            |l, [a, b, _]| l.multiply_bits(a, b),
        ]
    }

    fn agree<L: Lanes>(
        has: L,
        inputs: [[u32; 16]; 3],
        operations: &[(Operation<L>, Operation<Portable>)],
    ) {
        for (number, (by_instruction, by_loop)) in operations.iter().enumerate() {
            let found = has.to_u32(by_instruction(has, inputs.map(|lanes| has.of_u32(lanes))));
            let expected = by_loop(Portable, inputs.map(|lanes| Portable.of_u32(lanes)));
            assert_eq!(found, Portable.to_u32(expected), "operation {number}");
        }
    }

    proptest! {
        #[test]
        fn loops_equal_the_instructions(
            inputs: [[u32; 16]; 3], v4 in proptest::array::uniform4(v4()),
            v6 in proptest::array::uniform4(v6()),
        ) {
            if let Some(has) = Has::<false>::detect() {
                let both: Vec<_> = operations().into_iter().zip(operations()).collect();
                agree(has, inputs, &both);
                prop_assert_eq!(has.to_u32(has.of_v4(&v4)), Portable.to_u32(Portable.of_v4(&v4)));
                prop_assert_eq!(
                    has.of_v6(&v6).map(|row| has.to_u32(row)),
                    Portable.of_v6(&v6).map(|row| Portable.to_u32(row))
                );
            }
            if let Some(has) = Has::<true>::detect() {
                let both: Vec<_> = byte_operations().into_iter().zip(byte_operations()).collect();
                agree(has, inputs, &both);
            }
        }
    }
}
