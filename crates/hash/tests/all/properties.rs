//! Properties for every key, input and burst length.
//!
//! Guarantees: the forms of each hash agree; the hash is linear; a burst call writes no more than
//! it should; a symmetric key gives both directions the same hash.
//!
//! Source: the crate's own documentation.

use picnic_hash::{
    Backend, IndirectionTable, Key, Toeplitz, V4Tuple, V6Tuple, jhash_v4, jhash_v6, lookup3,
    lookup3_3words, lookup3_words, reference,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A value that no hash takes by accident in this many cases; it marks unwritten slots.
const UNTOUCHED: u32 = 0x5eed_5eed;

fn keys() -> impl Strategy<Value = Key> {
    vec(any::<u8>(), 40..=64).prop_map(|bytes| Key::from_bytes(&bytes).unwrap())
}

fn v4() -> impl Strategy<Value = V4Tuple> {
    any::<([u8; 4], [u8; 4], u16, u16)>().prop_map(|(s, d, p, q)| V4Tuple::new(s, d, p, q))
}

fn v6() -> impl Strategy<Value = V6Tuple> {
    any::<([u8; 16], [u8; 16], u16, u16)>().prop_map(|(s, d, p, q)| V6Tuple::new(s, d, p, q))
}

/// Runs a burst form over an output of the same length and checks the result.
fn check(
    expected: impl Iterator<Item = u32>,
    out_len: usize,
    burst: impl FnOnce(&mut [u32]),
) -> Result<(), TestCaseError> {
    let mut out = vec![UNTOUCHED; out_len];
    burst(&mut out);
    let expected: Vec<u32> = expected.chain(std::iter::repeat(UNTOUCHED)).take(out_len).collect();
    prop_assert_eq!(out, expected);
    Ok(())
}

proptest! {
    #[test]
    fn toeplitz_forms_agree_over_any_bytes(key in keys(), input in vec(any::<u8>(), 0..80)) {
        prop_assert_eq!(Toeplitz::new(&key).hash(&input), reference(&key, &input));
    }

    #[test]
    fn toeplitz_bursts_are_the_reference_of_each_v4(
        key in keys(), tuples in vec(v4(), 0..100), out_len in 0..100_usize,
    ) {
        let toeplitz = Toeplitz::new(&key);
        let expected = || tuples.iter().map(|tuple| reference(&key, tuple.input()));
        for len in [out_len, tuples.len()] {
            check(expected(), len, |out| toeplitz.hash_v4(&tuples, out))?;
            check(expected(), len, |out| toeplitz.hash_v4_table(&tuples, out))?;
        }
    }

    #[test]
    fn toeplitz_bursts_are_the_reference_of_each_v6(
        key in keys(), tuples in vec(v6(), 0..100), out_len in 0..100_usize,
    ) {
        let toeplitz = Toeplitz::new(&key);
        let expected = || tuples.iter().map(|tuple| reference(&key, tuple.input()));
        for len in [out_len, tuples.len()] {
            check(expected(), len, |out| toeplitz.hash_v6(&tuples, out))?;
            check(expected(), len, |out| toeplitz.hash_v6_table(&tuples, out))?;
        }
    }

    #[test]
    fn toeplitz_is_linear(key in keys(), pairs in vec(any::<(u8, u8)>(), 0..60)) {
        let toeplitz = Toeplitz::new(&key);
        let (left, right): (Vec<u8>, Vec<u8>) = pairs.iter().copied().unzip();
        let sum: Vec<u8> = pairs.iter().map(|(a, b)| a ^ b).collect();
        prop_assert_eq!(
            toeplitz.hash(&sum),
            toeplitz.hash(&left) ^ toeplitz.hash(&right)
        );
    }

    #[test]
    fn zero_ports_give_the_hash_of_the_addresses(
        key in keys(), source in any::<[u8; 16]>(), destination in any::<[u8; 16]>(),
    ) {
        let toeplitz = Toeplitz::new(&key);
        let tuple = V6Tuple::addresses(source, destination);
        prop_assert_eq!(
            toeplitz.hash(tuple.input()),
            reference(&key, &[source, destination].concat())
        );
        let (source, destination) =
            (*source.first_chunk().unwrap(), *destination.first_chunk().unwrap());
        let tuple = V4Tuple::addresses(source, destination);
        prop_assert_eq!(
            toeplitz.hash(tuple.input()),
            reference(&key, &[source, destination].concat())
        );
    }

    #[test]
    fn a_symmetric_key_hashes_both_directions_alike(
        secret in any::<[u8; 2]>(), v4 in v4(), v6 in v6(),
    ) {
        for key in [Key::symmetric(), Key::from_bytes(&secret.repeat(24)).unwrap()] {
            prop_assert!(key.is_symmetric());
            let toeplitz = Toeplitz::new(&key);
            let mut hashes = [0; 2];
            toeplitz.hash_v4(&[v4, v4.reversed()], &mut hashes);
            prop_assert_eq!(hashes[0], hashes[1]);
            toeplitz.hash_v6(&[v6, v6.reversed()], &mut hashes);
            prop_assert_eq!(hashes[0], hashes[1]);
        }
    }

    #[test]
    fn key_text_reads_back(key in keys()) {
        prop_assert_eq!(key.to_string().parse::<Key>(), Ok(key));
    }

    #[test]
    fn any_text_for_a_key_is_a_key_or_an_error(text in "[0-9a-fA-F:é ]{0,140}") {
        let _ = text.parse::<Key>();
    }

    #[test]
    fn jhash_over_words_is_jhash_over_their_bytes(words in vec(any::<u32>(), 0..40), init: u32) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        prop_assert_eq!(lookup3_words(&words, init), lookup3(&bytes, init));
        if let [a, b, c] = words[..] {
            prop_assert_eq!(lookup3_3words(a, b, c, init), lookup3(&bytes, init));
        }
    }

    #[test]
    fn jhash_of_three_words(words: [u32; 3], init: u32) {
        let [a, b, c] = words;
        prop_assert_eq!(lookup3_3words(a, b, c, init), lookup3_words(&words, init));
    }

    #[test]
    fn jhash_bursts_are_lookup3_of_each(
        v4 in vec(v4(), 0..100), v6 in vec(v6(), 0..100), init: u32, out_len in 0..100_usize,
    ) {
        for len in [out_len, v4.len(), v6.len()] {
            let expected = v4.iter().map(|tuple| lookup3(tuple.input(), init));
            check(expected, len, |out| jhash_v4(&v4, init, out))?;
            let expected = v6.iter().map(|tuple| lookup3(tuple.input(), init));
            check(expected, len, |out| jhash_v6(&v6, init, out))?;
        }
    }

    #[test]
    fn indirection_is_the_remainder_then_the_entry(
        entries in vec(0..9_u16, 1..=300), hashes in vec(any::<u32>(), 0..50),
    ) {
        let table = IndirectionTable::from_entries(&entries, 9).unwrap();
        let mut queues = vec![0; hashes.len()];
        table.lookup_burst(&hashes, &mut queues);
        for (&hash, queue) in hashes.iter().zip(queues) {
            prop_assert_eq!(queue, entries[hash as usize % entries.len()]);
        }
    }

    #[test]
    fn uniform_is_even_to_one_entry(entries in 1..=4096_usize, queues in 1..=600_u16) {
        let counts = IndirectionTable::uniform(entries, queues).unwrap().counts();
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        prop_assert!(most - least <= 1);
        prop_assert_eq!(counts.iter().sum::<usize>(), entries);
    }
}

/// The properties above also cover the vector forms if this processor has them.
#[test]
fn vector_forms_that_cannot_run_here_are_named() {
    #[cfg(target_arch = "x86_64")]
    let has_avx512 = std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    let has_avx512 = false;
    if Toeplitz::new(&Key::MICROSOFT).backend() == Backend::Table {
        let reason = "this processor lacks GFNI or AVX-512 (F, BW, VBMI)";
        picnic_testing::skip("the_toeplitz_hash_by_vector", reason);
    }
    if !has_avx512 {
        picnic_testing::skip("the_jhash_by_vector", "this processor lacks AVX-512F");
    }
}

#[test]
fn key_allows_only_single_colons_between_bytes() {
    let bytes = "01".repeat(40);
    let found = |text: &str| text.parse::<Key>().map_err(|error| error.to_string());
    assert!(found(&bytes).is_ok() && found(&format!("01:{}", &bytes[2..])).is_ok());
    for text in [format!(":{bytes}"), format!("01::{}", &bytes[2..]), format!("0:1{}", &bytes[2..])]
    {
        assert!(found(&text).unwrap_err().contains(':'), "{text}");
    }
}
