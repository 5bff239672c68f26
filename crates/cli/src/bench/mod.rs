//! `picnic bench`: what the card costs on this machine, by ratio and median.
//!
//! Nothing here is a test: times vary with the machine. Figures of one call are
//! measured interleaved, so that a drift of the machine's speed hits all alike.

mod chain;
mod dispatch;
mod doorbell;
mod facts;
mod hash;
mod tcp;
mod traffic;
mod web;

use crate::output;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::time::Instant;

/// Measure the card on this machine.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Wire to target queue: parse, hash, indirection, ring, one consumer core
    Dispatch(dispatch::DispatchArgs),
    /// The hash functions, per packet, in bursts of 64
    Hash(hash::HashArgs),
    /// Doorbell to target routine, against a bare futex wake
    Doorbell(doorbell::DoorbellArgs),
    /// A chain of `pass` functions, per packet
    Chain(chain::ChainArgs),
    /// Bulk TCP through card and tap, against a plain veth (root, iperf3)
    Tcp(tcp::TcpArgs),
    /// Requests per second of a web server behind the card, against a plain veth (root, nginx, wrk)
    Web(web::WebArgs),
}

/// Runs a benchmark.
pub(crate) fn run(args: &BenchArgs, json: bool) -> anyhow::Result<()> {
    let mut result = match &args.what {
        What::Dispatch(args) => dispatch::run(args)?,
        What::Hash(args) => hash::run(args)?,
        What::Doorbell(args) => doorbell::run(args)?,
        What::Chain(args) => chain::run(args)?,
        What::Tcp(args) => tcp::run(args)?,
        What::Web(args) => web::run(args)?,
    };
    if let (Some(result), Value::Object(facts)) = (result.as_object_mut(), facts::facts()) {
        result.extend(facts);
    }
    if json {
        return output::print_json(&result);
    }
    let mut text = String::new();
    if let Some(fields) = result.as_object() {
        let width = fields.keys().map(String::len).max().unwrap_or(0);
        for (name, value) in fields {
            match value.as_f64() {
                Some(number) if value.is_f64() => text += &format!("{name:width$}  {number:.3}\n"),
                _ => text += &format!("{name:width$}  {}\n", value.to_string().trim_matches('"')),
            }
        }
    }
    output::print(&text)
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
