//! Small requests to a web server behind the card, against a plain veth.
//!
//! nginx and wrk in the same two namespaces, both ways in turns.

use super::median;
use super::traffic::{Joined, Pairs, TrafficArgs, Way, packets_per_interrupt};
use crate::workloads::web::{Load, Server, TOOLS, WebFigures};
use clap::Args;
use picnic_machine::signals;
use serde_json::{Map, Value, json};
use std::time::Duration;

#[derive(Debug, Args)]
pub struct WebArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Connections kept open
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=50_000))]
    connections: u64,
    /// Bytes of the file that is asked for
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    bytes: u64,
}

pub fn run(args: &WebArgs) -> anyhow::Result<Value> {
    let joined = Joined::build(&args.traffic, &TOOLS)?;
    let cores = joined.programs_cores();
    let _server = Server::start(&joined.hosts, cores.max(2), args.bytes as usize)?;
    let load = Load {
        connections: args.connections as usize,
        threads: cores,
        seconds: args.traffic.seconds,
    };
    let mut pairs = Pairs::default();
    let (mut errors, mut per_interrupt, mut dropped) = (0, Vec::new(), 0);
    let mut latencies = (Vec::new(), Vec::new());
    for _ in 0..args.traffic.rounds {
        for way in [Way::Plain, Way::Card] {
            let (figures, report) = joined.during(way, || ask(load, &joined, way.address()))?;
            pairs.add(way, figures.requests_per_second);
            errors += figures.errors.total();
            let p50 = figures.request_latency_ns.p50 as f64;
            match way {
                Way::Plain => latencies.0.push(p50),
                Way::Card => latencies.1.push(p50),
            }
            if let Some(report) = report {
                dropped += report.ledger.dropped;
                per_interrupt.push(packets_per_interrupt(&report));
            }
        }
    }
    let mut fields = Map::new();
    fields.insert("benchmark".into(), json!("web"));
    pairs.report("requests_per_second", &mut fields);
    fields.insert("plain_request_p50_ns".into(), json!(median(&mut latencies.0)));
    fields.insert("card_request_p50_ns".into(), json!(median(&mut latencies.1)));
    fields.insert("packets_per_interrupt".into(), json!(median(&mut per_interrupt)));
    fields.insert("errors".into(), json!(errors));
    fields.insert("card_dropped".into(), json!(dropped));
    fields.insert("connections".into(), json!(args.connections));
    fields.insert("file_bytes".into(), json!(args.bytes));
    fields.insert("programs_cores".into(), json!(joined.programs_cores()));
    fields.insert("rounds".into(), json!(args.traffic.rounds));
    fields.insert("seconds".into(), json!(args.traffic.seconds));
    Ok(Value::Object(fields))
}

/// One run of wrk.
pub fn ask(load: Load, joined: &Joined<'_>, address: &str) -> anyhow::Result<WebFigures> {
    let mut asking = load.start(&joined.hosts, address)?;
    loop {
        if let Some(figures) = asking.finished()? {
            return Ok(figures);
        }
        signals::sleep(Duration::from_millis(20))?;
    }
}
