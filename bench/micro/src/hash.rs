//! The hash functions, per packet, in bursts of 64 over 4096 flows.

use super::{measured, time_per_packet};
use picnic_hash::{Key, Toeplitz, V4Tuple, V6Tuple, jhash_v4, jhash_v6};
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hint::black_box;

const FLOWS: usize = 4096;
const BURST: usize = 64;
/// Passes over all flows per timing: long enough for the clock.
const PASSES: usize = 16;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Hash {
    /// Interleaved repeats of each figure
    #[schemars(range(min = 1, max = 100_000))]
    repeats: u32,
}

impl Default for Hash {
    fn default() -> Self {
        Hash { repeats: 51 }
    }
}

impl Benchmark for Hash {
    const NAME: &'static str = "hash";
    const HELP: &'static str = "the hash functions, per packet, in bursts of 64";
    const QUICK: &'static str = "repeats = 3";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        Ok(measure(self, run))
    }
}

fn measure(args: &Hash, run: &mut Run<'_>) -> Outcome {
    let toeplitz = Toeplitz::new(&Key::MICROSOFT);
    let v4: Vec<_> = (0..FLOWS as u32).map(v4_flow).collect();
    let v6: Vec<_> = (0..FLOWS as u32).map(v6_flow).collect();
    let mut hashes = [0; BURST];
    let mut times: [Vec<f64>; 6] = Default::default();
    for round in 0..args.repeats {
        run.round(round.into(), args.repeats.into());
        times[0].push(per_burst(&v4, |burst| toeplitz.hash_v4(burst, &mut hashes)));
        times[1].push(per_burst(&v4, |burst| toeplitz.hash_v4_table(burst, &mut hashes)));
        times[2].push(per_burst(&v6, |burst| toeplitz.hash_v6(burst, &mut hashes)));
        times[3].push(per_burst(&v6, |burst| toeplitz.hash_v6_table(burst, &mut hashes)));
        times[4].push(per_burst(&v4, |burst| jhash_v4(burst, 0, &mut hashes)));
        times[5].push(per_burst(&v6, |burst| jhash_v6(burst, 0, &mut hashes)));
        black_box(&hashes);
    }
    let backend = toeplitz.backend().to_string();
    // Without the vector form, the "vector" figures would be the table's.
    let vector = |times: Vec<f64>| if backend == "vector" { times } else { Vec::new() };
    let [v4_vector, v4_table, v6_vector, v6_table, jhash, jhash6] = times;
    let mut outcome = measured();
    outcome.tell("backend", backend.as_str());
    outcome.tell("burst", BURST);
    outcome.tell("flows", FLOWS);
    for (key, times) in [
        ("toeplitz_v4_vector_ns", vector(v4_vector)),
        ("toeplitz_v4_table_ns", v4_table),
        ("toeplitz_v6_vector_ns", vector(v6_vector)),
        ("toeplitz_v6_table_ns", v6_table),
        ("jhash_ns", jhash),
        ("jhash_v6_ns", jhash6),
    ] {
        outcome.add(Figure::of(key, times));
    }
    outcome
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
