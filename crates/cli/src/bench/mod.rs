//! `picnic bench`: what the card costs on this machine, by ratio and median.
//!
//! Nothing here is a test: times vary with the machine. Figures of one call are
//! measured interleaved, so that a drift of the machine's speed hits all alike.

mod chain;
mod classifier;
mod dispatch;
mod doorbell;
mod facts;
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
pub(crate) fn run(args: &BenchArgs, json: bool) -> anyhow::Result<()> {
    let mut result = match &args.what {
        What::Dispatch(args) => dispatch::run(args)?,
        What::Hash(args) => hash::run(args)?,
        What::Doorbell(args) => doorbell::run(args)?,
        What::Os(args) => os::run(args)?,
        What::Chain(args) => chain::run(args)?,
        What::Classifier(args) => classifier::run(args)?,
        What::Latency(args) => latency::run(args)?,
        What::Overload(args) => overload::run(args)?,
        What::Idle(args) => idle::run(args)?,
        What::Wire(args) => wire::run(args)?,
        What::Tcp(args) => tcp::run(args)?,
        What::Web(args) => web::run(args)?,
        What::Moderation(args) => moderation::run(args)?,
    };
    if let (Some(result), Value::Object(facts)) = (result.as_object_mut(), facts::facts()) {
        result.extend(facts);
    }
    if json {
        return output::print_json(&result);
    }
    output::print(&text(&result))
}

/// A result for people: a line for each figure, then the tables.
fn text(result: &Value) -> String {
    let Some(fields) = result.as_object() else { return String::new() };
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    let mut tables = String::new();
    for (name, value) in fields {
        match value.as_array() {
            Some(rows) => tables += &format!("\n{name}\n{}", table(rows)),
            None => text += &format!("{name:width$}  {}\n", figure(value)),
        }
    }
    text + &tables
}

/// A figure as people read it.
fn figure(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if value.is_f64() => format!("{number:.3}"),
        _ => value.to_string().trim_matches('"').to_owned(),
    }
}

/// Objects of the same fields, one a line.
fn table(rows: &[Value]) -> String {
    let objects: Vec<_> = rows.iter().filter_map(Value::as_object).collect();
    let names: Vec<&String> = objects.first().map_or(Vec::new(), |first| first.keys().collect());
    let cell = |value: Option<&Value>| value.map_or_else(String::new, figure);
    let cells: Vec<Vec<String>> = objects
        .iter()
        .map(|object| names.iter().map(|name| cell(object.get(name.as_str()))).collect())
        .collect();
    let widths: Vec<usize> = names
        .iter()
        .enumerate()
        .map(|(place, name)| cells.iter().map(|row| row[place].len()).fold(name.len(), usize::max))
        .collect();
    let line = |words: &mut dyn Iterator<Item = &String>| {
        let padded: Vec<_> =
            words.zip(&widths).map(|(word, width)| format!("{word:>width$}")).collect();
        padded.join("  ") + "\n"
    };
    let mut text = line(&mut names.iter().copied());
    for row in &cells {
        text += &line(&mut row.iter());
    }
    text
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
    use serde_json::json;

    #[test]
    fn figures_stand_under_each_other_and_rows_in_a_table() {
        let result = json!({ "benchmark": "x", "long_name_ns": 1.5, "curve": [
            { "rate_pps": 1000, "p50_ns": 20.25 }, { "rate_pps": 20, "p50_ns": 3.0 },
        ] });
        let expected = "benchmark     x\nlong_name_ns  1.500\n\ncurve\n\
                        rate_pps  p50_ns\n    1000  20.250\n      20   3.000\n";
        assert_eq!(text(&result), expected);
    }

    #[test]
    fn the_median_of_two_is_the_upper_one() {
        assert_eq!(median(&mut [3.0, 1.0]), 3.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert!(median(&mut []).is_nan());
    }
}
