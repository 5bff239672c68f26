//! Published test vectors for every form of each hash.
//!
//! Guarantees: a vector in the file that is not checked fails the test.
//!
//! Source: Microsoft, "Verifying the RSS Hash Calculation"; the jhash values come from the C code
//! of Bob Jenkins and of Linux, see `source` in each file.

use std::net::IpAddr;

use picnic_hash::{
    Key, Toeplitz, V4Tuple, V6Tuple, lookup2, lookup3, lookup3_3words, lookup3_words, reference,
};
use serde_json::Value;

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

fn hex(value: &Value) -> u32 {
    u32::from_str_radix(value.as_str().unwrap(), 16).unwrap()
}

#[test]
fn toeplitz() {
    let file = read(include_str!("../vectors/toeplitz.json"));
    let key: Key = file["key"].as_str().unwrap().parse().unwrap();
    assert_eq!(key, Key::MICROSOFT);
    let toeplitz = Toeplitz::new(&key);
    println!("backend: {}", toeplitz.backend());

    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for vector in file["vectors"].as_array().unwrap() {
        let address = |name| vector[name].as_str().unwrap().parse::<IpAddr>().unwrap();
        let port = |name| u16::try_from(number(&vector[name])).unwrap();
        let (with_ports, alone) = (hex(&vector["hash_4tuple"]), hex(&vector["hash_2tuple"]));
        match (address("src"), address("dst")) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let (source, destination) = (source.octets(), destination.octets());
                let tuple = V4Tuple::new(source, destination, port("sport"), port("dport"));
                v4.push((tuple, with_ports));
                v4.push((V4Tuple::addresses(source, destination), alone));
                let addresses = &tuple.input()[..8];
                assert_eq!(reference(&key, addresses), alone);
                assert_eq!(toeplitz.hash(addresses), alone);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (source, destination) = (source.octets(), destination.octets());
                let tuple = V6Tuple::new(source, destination, port("sport"), port("dport"));
                v6.push((tuple, with_ports));
                v6.push((V6Tuple::addresses(source, destination), alone));
                let addresses = &tuple.input()[..32];
                assert_eq!(reference(&key, addresses), alone);
                assert_eq!(toeplitz.hash(addresses), alone);
            }
            mixed => panic!("{mixed:?}"),
        }
    }
    assert_eq!((v4.len(), v6.len()), (10, 6));

    let (tuples, expected): (Vec<V4Tuple>, Vec<u32>) = v4.into_iter().unzip();
    let (mut table, mut vector) = (vec![0; tuples.len()], vec![0; tuples.len()]);
    toeplitz.hash_v4_table(&tuples, &mut table);
    toeplitz.hash_v4(&tuples, &mut vector);
    assert_eq!(table, expected);
    assert_eq!(vector, expected);
    for (tuple, expected) in tuples.iter().zip(expected) {
        assert_eq!(reference(&key, tuple.input()), expected);
        assert_eq!(toeplitz.hash(tuple.input()), expected);
    }

    let (tuples, expected): (Vec<V6Tuple>, Vec<u32>) = v6.into_iter().unzip();
    let (mut table, mut vector) = (vec![0; tuples.len()], vec![0; tuples.len()]);
    toeplitz.hash_v6_table(&tuples, &mut table);
    toeplitz.hash_v6(&tuples, &mut vector);
    assert_eq!(table, expected);
    assert_eq!(vector, expected);
    for (tuple, expected) in tuples.iter().zip(expected) {
        assert_eq!(reference(&key, tuple.input()), expected);
        assert_eq!(toeplitz.hash(tuple.input()), expected);
    }
}

#[test]
fn jhash() {
    let file = read(include_str!("../vectors/jhash.json"));
    let mut checked = 0;
    for (group, vectors) in file.as_object().unwrap() {
        let hash: fn(&[u8], u32) -> u32 = match group.as_str() {
            "source" => continue,
            "lookup3" | "lookup3_text" => lookup3,
            "lookup2" | "lookup2_text" => lookup2,
            other => panic!("group {other}"),
        };
        for vector in vectors.as_array().unwrap() {
            let key = match vector["key"].as_str() {
                Some(text) => text.as_bytes().to_vec(),
                None => (0..=255).take(number(&vector["key_len"]) as usize).collect(),
            };
            // The texts of lookup2 were hashed from 0.
            let init = vector.get("init").map_or(0, number);
            assert_eq!(hash(&key, init), hex(&vector["hash"]), "{group} {vector}");
            checked += 1;
            if group == "lookup3" && key.len() % 4 == 0 {
                let (words, _) = key.as_chunks();
                let words: Vec<u32> = words.iter().copied().map(u32::from_le_bytes).collect();
                assert_eq!(lookup3_words(&words, init), hex(&vector["hash"]), "{vector}");
            }
        }
    }
    assert_eq!(checked, 24 + 20 + 2 + 4);
}

#[test]
fn no_input_at_all() {
    assert_eq!(lookup3(&[], 5), 0xdead_beef + 5);
    assert_eq!(lookup3_words(&[], 5), 0xdead_beef + 5);
    assert_eq!(lookup3_3words(0, 0, 0, 5), lookup3(&[0; 12], 5));
    assert_eq!(Toeplitz::new(&Key::MICROSOFT).hash(&[]), 0);
    assert_eq!(reference(&Key::MICROSOFT, &[]), 0);
}
