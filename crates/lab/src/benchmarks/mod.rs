//! `picnic bench`: what the card costs on this machine, by ratio and median.
//!
//! Nothing here is a test: times vary with the machine. Figures of one call are
//! measured interleaved, so that a drift of the machine's speed hits all alike.

#![allow(missing_docs, unreachable_pub, private_interfaces)]

mod chain;
mod classifier;
mod dispatch;
mod doorbell;
mod hash;
mod idle;
mod latency;
mod moderation;
mod os;
mod overload;
mod tcp;
mod traffic;
mod web;
mod wire;

use clap::Subcommand;
use serde_json::Value;
use std::time::Instant;

/// Which.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Wire to target queue: parse, hash, indirection, ring, one consumer core
    Dispatch(dispatch::DispatchArgs),
    /// The hash functions, per packet, in bursts of 64
    Hash(hash::HashArgs),
    /// Doorbell to target routine, against a bare futex wake
    Doorbell(doorbell::DoorbellArgs),
    /// NIC OS: a decision, a yield and resume, and what it costs packets when idle
    Os(os::OsArgs),
    /// A chain of `pass` functions, per packet
    Chain(chain::ChainArgs),
    /// The filters' classifier, per packet, by number of rules; and one change
    Classifier(classifier::ClassifierArgs),
    /// Added latency from wire to target routine, by packet rate
    Latency(latency::LatencyArgs),
    /// What is delivered when 1, 2, 5, 10 times the capacity is offered
    Overload(overload::OverloadArgs),
    /// What a card without traffic costs, and how long its first packet waits (root)
    Idle(idle::IdleArgs),
    /// Packets per second of one core, sent and received by wires of the kernel's interfaces (root)
    Wire(wire::WireArgs),
    /// Bulk TCP through card and tap, against a plain veth (root, iperf3)
    Tcp(tcp::TcpArgs),
    /// Requests per second of a web server behind the card, against a plain veth (root, nginx, wrk)
    Web(web::WebArgs),
    /// Packets per interrupt, requests and latency of that server, by moderation (root, nginx, wrk)
    Moderation(moderation::ModerationArgs),
}

/// Runs a benchmark.
///
/// # Errors
/// This machine cannot do it, or it went wrong.
pub fn run(what: &What) -> anyhow::Result<Value> {
    match what {
        What::Dispatch(args) => dispatch::run(args),
        What::Hash(args) => hash::run(args),
        What::Doorbell(args) => doorbell::run(args),
        What::Os(args) => os::run(args),
        What::Chain(args) => chain::run(args),
        What::Classifier(args) => classifier::run(args),
        What::Latency(args) => latency::run(args),
        What::Overload(args) => overload::run(args),
        What::Idle(args) => idle::run(args),
        What::Wire(args) => wire::run(args),
        What::Tcp(args) => tcp::run(args),
        What::Web(args) => web::run(args),
        What::Moderation(args) => moderation::run(args),
    }
}

/// The middle value; the upper one of two.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Nanoseconds that one call of `body` takes, divided by `packets`.
fn time_per_packet(packets: usize, body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_nanos() as f64 / packets as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_two_is_the_upper_one() {
        assert_eq!(median(&mut [3.0, 1.0]), 3.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert!(median(&mut []).is_nan());
    }
}
