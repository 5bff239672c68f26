//! The hash functions, per packet, in bursts of 64 over 4096 flows.

use super::{median, time_per_packet};
use clap::Args;
use picnic_hash::{Key, Toeplitz, V4Tuple, V6Tuple, jhash_v4, jhash_v6};
use serde_json::{Value, json};
use std::hint::black_box;

const FLOWS: usize = 4096;
const BURST: usize = 64;
/// Passes over all flows per timing: long enough for the clock.
const PASSES: usize = 16;

#[derive(Debug, Args)]
pub struct HashArgs {
    /// Interleaved repeats of each figure
    #[arg(long, default_value_t = 51)]
    repeats: usize,
}

pub fn run(args: &HashArgs) -> anyhow::Result<Value> {
    let toeplitz = Toeplitz::new(&Key::MICROSOFT);
    let v4: Vec<_> = (0..FLOWS as u32).map(v4_flow).collect();
    let v6: Vec<_> = (0..FLOWS as u32).map(v6_flow).collect();
    let mut hashes = [0; BURST];
    let repeats = args.repeats.max(1);
    let mut times: [Vec<f64>; 6] = std::array::from_fn(|_| Vec::with_capacity(repeats));
    for _ in 0..repeats {
        times[0].push(per_burst(&v4, |burst| toeplitz.hash_v4(burst, &mut hashes)));
        times[1].push(per_burst(&v4, |burst| toeplitz.hash_v4_table(burst, &mut hashes)));
        times[2].push(per_burst(&v6, |burst| toeplitz.hash_v6(burst, &mut hashes)));
        times[3].push(per_burst(&v6, |burst| toeplitz.hash_v6_table(burst, &mut hashes)));
        times[4].push(per_burst(&v4, |burst| jhash_v4(burst, 0, &mut hashes)));
        times[5].push(per_burst(&v6, |burst| jhash_v6(burst, 0, &mut hashes)));
        black_box(&hashes);
    }
    let [v4_vector, v4_table, v6_vector, v6_table, jhash, jhash6] =
        times.each_mut().map(|times| median(times));
    let backend = toeplitz.backend().to_string();
    // Without the vector form the "vector" figures would be the table's under another name.
    let vector = |ns: f64| if backend == "vector" { json!(ns) } else { json!("unavailable") };
    Ok(json!({
        "benchmark": "hash",
        "toeplitz_v4_vector_ns": vector(v4_vector),
        "toeplitz_v4_table_ns": v4_table,
        "toeplitz_v6_vector_ns": vector(v6_vector),
        "toeplitz_v6_table_ns": v6_table,
        "jhash_ns": jhash,
        "jhash_v6_ns": jhash6,
        "backend": backend,
        "burst": BURST,
        "flows": FLOWS,
        "repeats": repeats,
    }))
}

fn per_burst<T>(tuples: &[T], mut hash: impl FnMut(&[T])) -> f64 {
    time_per_packet(FLOWS * PASSES, || {
        for _ in 0..PASSES {
            black_box(tuples).chunks(BURST).for_each(&mut hash);
        }
    })
}

fn v4_flow(index: u32) -> V4Tuple {
    let mixed = index.wrapping_mul(0x9e37_79b9);
    V4Tuple::new(mixed.to_be_bytes(), [10, 0, 0, 1], mixed as u16, 80)
}

fn v6_flow(index: u32) -> V6Tuple {
    let mixed = u128::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834);
    V6Tuple::new(mixed.to_be_bytes(), [0x20; 16], mixed as u16, 80)
}
