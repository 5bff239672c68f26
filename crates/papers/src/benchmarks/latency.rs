//! Added latency, wire to target routine, by packet rate.
//!
//! Latencies are from arrival, or as `stamp` says.
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
use super::{above_zero, all_within, measured};
use picnic_core::error::ConfigError;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longer than any run: the target never sleeps.
const POLL_ALWAYS_USECS: u32 = 1_000_000;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Latency {
    /// Packets per second, one line each
    rates: Vec<u64>,
    /// Rounds: each measures all in turns
    #[schemars(range(min = 1, max = 1000))]
    rounds: u32,
    /// Seconds of each measurement
    seconds: f64,
}

impl Default for Latency {
    fn default() -> Self {
        let rates = vec![1_000, 5_000, 10_000, 20_000, 40_000, 80_000];
        Latency { rates, rounds: 5, seconds: 0.3 }
    }
}

#[derive(Default)]
struct Samples {
    bare: Vec<f64>,
    sleeping: Vec<f64>,
    polling: Vec<f64>,
    polling_p99: Vec<f64>,
    per_wake: Vec<f64>,
    per_interrupt: Vec<f64>,
}

impl Benchmark for Latency {
    const NAME: &'static str = "latency";
    const HELP: &'static str = "added latency from wire to target routine, by packet rate";
    const QUICK: &'static str = "rates = [1000, 20000]\nrounds = 1\nseconds = 0.2";

    fn check(&self) -> Result<(), ConfigError> {
        all_within("rates", &self.rates, 1, 10_000_000)?;
        above_zero("seconds", self.seconds)
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        let mut samples: Vec<Samples> = self.rates.iter().map(|_| Samples::default()).collect();
        let mut stamp = None;
        for round in 0..self.rounds {
            run.round(round.into(), self.rounds.into());
            for (&rate, samples) in self.rates.iter().zip(&mut samples) {
                let bare = bare_wake(rate, self.seconds)?;
                let sleeping = card_latency(rate, self.seconds, 0)?;
                let polling = card_latency(rate, self.seconds, POLL_ALWAYS_USECS)?;
                samples.bare.push(bare.p50);
                samples.per_wake.push(bare.per_wake);
                samples.sleeping.push(sleeping.p50);
                samples.per_interrupt.extend(sleeping.packets_per_interrupt);
                stamp = Some(sleeping.stamp);
                samples.polling.push(polling.p50);
                samples.polling_p99.push(polling.p99);
            }
        }
        let mut outcome = measured();
        if let Some(stamp) = stamp {
            outcome.tell("stamp", stamp.to_string());
        }
        let mut curve = outcome.series("curve");
        for (&rate, samples) in self.rates.iter().zip(samples) {
            let sides = (("bare_futex_wake", samples.bare), ("sleeping", samples.sleeping));
            let point = Point::at("rate_pps", rate)
                .comparing(Comparison::of("p50_ns", sides.0, sides.1))
                .with(Figure::of("bare_packets_per_wake", samples.per_wake).in_detail())
                .with(Figure::of("packets_per_interrupt", samples.per_interrupt).in_detail())
                .with(Figure::of("polling_p50_ns", samples.polling))
                .with(Figure::of("polling_p99_ns", samples.polling_p99));
            curve.push(point);
        }
        Ok(outcome)
    }
}
