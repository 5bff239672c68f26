//! Flows, random or from captures, and their hashes.

use super::FEWEST;
use picnic_core::error::ConfigError;
use picnic_core::packet::layers;
use picnic_hash::{Key, Toeplitz, V4Tuple, jhash_v4, lookup2};
use picnic_ports::pcap::CaptureFile;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;
use std::path::Path;

/// The kinds of random flows.
pub(super) const POPULATIONS: [&str; 3] = ["internet", "campus", "four-clients"];

/// Bytes of a generator, two kinds of hash, and two that must fail.
pub(super) const HASHES: [&str; 6] =
    ["chance", "toeplitz", "lookup2", "lookup3", "xor-ports", "toeplitz-01"];
/// Connections that four clients have ports for.
pub(super) const FOUR_CLIENTS: u32 = 100_000;

pub(super) fn must_fail(hash: &str) -> bool {
    matches!(hash, "xor-ports" | "toeplitz-01")
}

/// The name for the connections of a capture file: different from workloads and random flows.
pub(super) fn population(path: &Path) -> String {
    format!("capture {}", path.display())
}

/// The TCP connections over IPv4 of a capture file, each once, by its first packet.
pub(super) fn connections(path: &Path) -> Result<Vec<V4Tuple>, ConfigError> {
    let wrong =
        |words: String| ConfigError::new("captures", format!("{}: {words}", path.display()));
    let file = CaptureFile::load(path).map_err(wrong)?;
    let (mut seen, mut flows) = (HashSet::new(), Vec::new());
    for (data, _) in (0..file.len()).filter_map(|index| file.packet(index)) {
        let layers = layers::parse_of(data, data.len());
        let Some(tuple) = layers.flow_v4(data).filter(|_| layers.packet_type.is_tcp()) else {
            continue;
        };
        let [a, b, c, d, e, f, g, h, i, j, k, l] = tuple;
        let (from, to) = (([a, b, c, d], [i, j]), ([e, f, g, h], [k, l]));
        // Both directions are one connection.
        if seen.insert((from.min(to), from.max(to))) {
            let [from_port, to_port] = [from.1, to.1].map(u16::from_be_bytes);
            flows.push(V4Tuple::new(from.0, to.0, from_port, to_port));
        }
    }
    match flows.len() < FEWEST as usize {
        true => Err(wrong(format!(
            "found {} TCP connections over IPv4, too few to tell, allowed: {FEWEST} or more",
            flows.len()
        ))),
        false => Ok(flows),
    }
}

/// Connections of a population to one server, without duplicates.
pub(super) fn drawn(population: &str, count: usize, random: &mut ChaCha8Rng) -> Vec<V4Tuple> {
    let server = [192, 0, 2, random.random_range(1..=254)];
    let mut seen = HashSet::with_capacity(count);
    let mut flows = Vec::with_capacity(count);
    let first_port = random.random_range(32_768..60_999_u32 - FOUR_CLIENTS / 4);
    let net: u8 = random.random();
    while flows.len() < count {
        let number = flows.len() as u32;
        let [a, b, c, d] = random.random::<u32>().to_be_bytes();
        let port = random.random_range(32_768..61_000_u16);
        let (address, port) = match population {
            // Unicast.
            "internet" => ([1 + a % 223, b, c, d], port),
            "campus" => ([172, 16, c, d], port),
            _ => ([10, 0, net, 1 + (number % 4) as u8], (first_port + number / 4) as u16),
        };
        if seen.insert((address, port)) {
            flows.push(V4Tuple::new(address, server, port, 80));
        }
    }
    flows
}

pub(super) fn hashes(hash: &str, flows: &[V4Tuple]) -> Vec<u32> {
    let mut out = vec![0; flows.len()];
    match hash {
        "lookup2" => {
            out.iter_mut().zip(flows).for_each(|(out, flow)| *out = lookup2(flow.input(), 0));
        }
        "lookup3" => jhash_v4(flows, 0, &mut out),
        "xor-ports" => out.iter_mut().zip(flows).for_each(|(out, flow)| {
            let [.., p0, p1, q0, q1] = *flow.input();
            *out = u32::from(u16::from_be_bytes([p0, p1]) ^ u16::from_be_bytes([q0, q1]));
        }),
        "toeplitz-01" => {
            let mut bytes = [0; Key::MIN_BYTES];
            bytes[Key::MIN_BYTES - 1] = 1;
            let key = Key::from_bytes(&bytes).unwrap_or(Key::MICROSOFT);
            Toeplitz::new(&key).hash_v4(flows, &mut out);
        }
        _ => Toeplitz::new(&Key::MICROSOFT).hash_v4(flows, &mut out),
    }
    out
}

/// The input of Ent.
pub(super) fn low_bytes(hash: &str, flows: &[V4Tuple], random: &mut ChaCha8Rng) -> Vec<u8> {
    if hash == "chance" {
        return (0..flows.len()).map(|_| random.random()).collect();
    }
    hashes(hash, flows).into_iter().map(|hash| hash as u8).collect()
}
