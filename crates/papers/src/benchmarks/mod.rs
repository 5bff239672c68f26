//! `picnic bench`: what the card costs on this machine, by ratio and median.
//!
//! Nothing here is a test: times vary with the machine. Figures of one call are
//! measured interleaved, so that a drift of the machine's speed hits all alike.

pub(crate) mod chain;
pub(crate) mod classifier;
pub(crate) mod dispatch;
pub(crate) mod doorbell;
pub(crate) mod feed;
pub(crate) mod firewall;
pub(crate) mod functions;
pub(crate) mod hash;
pub(crate) mod hybrid;
pub(crate) mod idle;
pub(crate) mod kernel;
pub(crate) mod latency;
pub(crate) mod link;
pub(crate) mod moderation;
pub(crate) mod modes;
pub(crate) mod os;
pub(crate) mod overload;
pub(crate) mod tcp;
pub(crate) mod web;
pub(crate) mod wire;

use picnic_core::error::ConfigError;
use picnic_lab::outcome::{Outcome, Source};
use std::time::Instant;

/// An outcome of what is measured here.
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

/// Nanoseconds that one call of `body` takes, divided by `packets`.
fn time_per_packet(packets: usize, body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_nanos() as f64 / packets as f64
}
