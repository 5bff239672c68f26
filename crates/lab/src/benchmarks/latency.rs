//! Added latency, wire to target routine, by packet rate.
//!
//! | figure | the target | against |
//! |---|---|---|
//! | `sleeping` | sleeps between packets, is woken for each burst | a bare futex wake at that rate |
//! | `polling` | looks at its ring all the time | nothing: no wake is in it |
//!
//! The borrowed core spins. At high rates a target that sleeps finds its next packets before it
//! is asleep again, so its figure falls from a wake's towards polling's: the gate at work. The
//! same holds for the bare wake, of which each counts, those too that found the sleeper on its
//! way; how many came with each interrupt, and with each wake, stands beside. The three take
//! turns, rate by rate.

use super::doorbell::{bare_wake, card_latency};
use super::median;
use clap::Args;
use serde_json::{Value, json};

/// Longer than any run: the target never sleeps.
const POLL_ALWAYS_USECS: u32 = 1_000_000;

#[derive(Debug, Args)]
pub struct LatencyArgs {
    /// Packets per second, one figure each
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [1_000, 5_000, 10_000, 20_000, 40_000, 80_000],
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    rates: Vec<u64>,
    /// Rounds: each measures all in turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
}

#[derive(Default)]
struct Samples {
    bare: Vec<f64>,
    sleeping: Vec<f64>,
    ratio: Vec<f64>,
    polling: Vec<f64>,
    polling_p99: Vec<f64>,
    per_wake: Vec<f64>,
    per_interrupt: Vec<f64>,
}

pub fn run(args: &LatencyArgs) -> anyhow::Result<Value> {
    anyhow::ensure!(args.seconds > 0.0, "--seconds must be above zero");
    let mut samples: Vec<Samples> = args.rates.iter().map(|_| Samples::default()).collect();
    for _ in 0..args.rounds {
        for (&rate, samples) in args.rates.iter().zip(&mut samples) {
            let bare = bare_wake(rate, args.seconds)?;
            let sleeping = card_latency(rate, args.seconds, 0)?;
            let polling = card_latency(rate, args.seconds, POLL_ALWAYS_USECS)?;
            samples.bare.push(bare.p50);
            samples.per_wake.push(bare.per_wake);
            samples.sleeping.push(sleeping.p50);
            samples.per_interrupt.extend(sleeping.packets_per_interrupt);
            samples.ratio.push(sleeping.p50 / bare.p50);
            samples.polling.push(polling.p50);
            samples.polling_p99.push(polling.p99);
        }
    }
    let curve: Vec<Value> = args
        .rates
        .iter()
        .zip(&mut samples)
        .map(|(rate, samples)| {
            let ratio = median(&mut samples.ratio);
            json!({
                "rate_pps": rate,
                "bare_futex_wake_p50_ns": median(&mut samples.bare),
                "bare_packets_per_wake": median(&mut samples.per_wake),
                "sleeping_p50_ns": median(&mut samples.sleeping),
                "packets_per_interrupt": median(&mut samples.per_interrupt),
                "sleeping_ratio": ratio,
                "sleeping_ratio_min": samples.ratio.first(),
                "sleeping_ratio_max": samples.ratio.last(),
                "polling_p50_ns": median(&mut samples.polling),
                "polling_p99_ns": median(&mut samples.polling_p99),
            })
        })
        .collect();
    Ok(json!({
        "benchmark": "latency",
        "rounds": args.rounds,
        "seconds": args.seconds,
        "curve": curve,
    }))
}
