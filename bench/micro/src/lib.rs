//! Micro-benchmarks: the cost of single parts of a card on this machine, as ratios and medians.
//!
//! Nothing here is a test: times vary with the machine. Figures of one call are measured
//! interleaved, so that a drift of the machine's speed affects all equally.

#![forbid(unsafe_code)]

mod chain;
mod channel;
mod classifier;
mod dispatch;
mod doorbell;
mod feed;
mod firewall;
mod functions;
mod hash;
mod hybrid;
mod idle;
mod kernel;
mod link;
mod machine;
mod os;
mod storm;
mod timeline;
mod wire;

use picnic_core::error::ConfigError;
use picnic_core::registry::Entry;
use picnic_lab::experiment::Measured;
use picnic_lab::outcome::{Outcome, Source};
use picnic_lab::registry::ExperimentEntry;
use std::time::Instant;

/// The list of micro-benchmarks.
pub const BENCHMARKS: &[ExperimentEntry] = &[
    Entry::of::<Measured<dispatch::Dispatch>>(),
    Entry::of::<Measured<hash::Hash>>(),
    Entry::of::<Measured<doorbell::Wake>>(),
    Entry::of::<Measured<os::NicOs>>(),
    Entry::of::<Measured<storm::Storm>>(),
    Entry::of::<Measured<chain::Chains>>(),
    Entry::of::<Measured<channel::Channels>>(),
    Entry::of::<Measured<functions::Functions>>(),
    Entry::of::<Measured<classifier::Classifying>>(),
    Entry::of::<Measured<kernel::Kernel>>(),
    Entry::of::<Measured<firewall::Firewall>>(),
    Entry::of::<Measured<feed::Feed>>(),
    Entry::of::<Measured<hybrid::Hybrid>>(),
    Entry::of::<Measured<idle::Idle>>(),
    Entry::of::<Measured<link::Links>>(),
    Entry::of::<Measured<wire::Wires>>(),
    Entry::of::<Measured<machine::Machine>>(),
    Entry::of::<Measured<timeline::Events>>(),
];

/// An outcome of these measurements.
fn measured() -> Outcome {
    Outcome::of(Source::Measured)
}

/// Refuses a time that is not above zero.
fn above_zero(key: &str, seconds: f64) -> Result<(), ConfigError> {
    if seconds > 0.0 && seconds <= 86_400.0 {
        return Ok(());
    }
    Err(ConfigError::new(key, format!("found {seconds}, allowed: more than 0, up to 86400")))
}

/// Refuses an empty list, and items out of a range.
fn all_within(key: &str, items: &[u64], low: u64, high: u64) -> Result<(), ConfigError> {
    let allowed = format!("one or more, each {low} to {high}");
    let wrong = |found: &dyn std::fmt::Display| {
        Err(ConfigError::new(key, format!("found {found}, allowed: {allowed}")))
    };
    match items.iter().find(|item| !(low..=high).contains(*item)) {
        Some(item) => wrong(item),
        None if items.is_empty() => wrong(&"none"),
        None => Ok(()),
    }
}

/// Nanoseconds of one call of `body`, divided by `packets`.
fn time_per_packet(packets: usize, body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_nanos() as f64 / packets as f64
}
