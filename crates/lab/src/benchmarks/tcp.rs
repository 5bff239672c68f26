//! Bulk TCP through packet wire, card and tap, against a plain veth.
//!
//! iperf3 in the same two namespaces, both ways and both directions in turns. With two cores the
//! borrowed core, client and server share them: the ratio then holds the card's whole work, not
//! only what it adds to the way of a packet.

use super::traffic::{Joined, Pairs, TrafficArgs, Way};
use crate::workloads::hosts::Role;
use anyhow::Context;
use clap::Args;
use picnic_machine::signals;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

const PORT: u16 = 5201;
/// How long a server may be busy with the client before.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub struct TcpArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Connections at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=128))]
    streams: u64,
}

pub fn run(args: &TcpArgs) -> anyhow::Result<Value> {
    let joined = Joined::build(&args.traffic, &[("iperf3", "iperf3")])?;
    let mut server =
        joined.hosts.start(Role::Server, &["iperf3", "-s", "-p", &PORT.to_string()])?;
    server.wait_for_port(PORT)?;
    let (mut to_server, mut to_client) = (Pairs::default(), Pairs::default());
    let (mut plain_again, mut card_again) = (0, 0);
    let (mut dropped, mut frame_bytes) = (0, Vec::new());
    for _ in 0..args.traffic.rounds {
        for reverse in [false, true] {
            let pairs = if reverse { &mut to_client } else { &mut to_server };
            for way in [Way::Plain, Way::Card] {
                let (flow, report) =
                    joined.during(way, || transfer(args, &joined, way.address(), reverse))?;
                pairs.add(way, flow.bits_per_second / 1e9);
                match way {
                    Way::Plain => plain_again += flow.retransmits,
                    Way::Card => card_again += flow.retransmits,
                }
                if let Some(report) = report {
                    dropped += report.ledger.dropped;
                    let wire = &report.wires[0];
                    let (bytes, packets) = match reverse {
                        true => (wire.tx_bytes, wire.tx_packets),
                        false => (wire.rx_bytes, wire.rx_packets),
                    };
                    frame_bytes.push((reverse, bytes / packets.max(1)));
                }
            }
        }
    }
    let mut fields = Map::new();
    fields.insert("benchmark".into(), json!("tcp"));
    to_server.report("to_server_gbps", &mut fields);
    to_client.report("to_client_gbps", &mut fields);
    let mean = |reverse| {
        let sizes: Vec<u64> =
            frame_bytes.iter().filter(|size| size.0 == reverse).map(|size| size.1).collect();
        sizes.iter().sum::<u64>() / sizes.len().max(1) as u64
    };
    fields.insert("card_to_server_frame_bytes".into(), json!(mean(false)));
    fields.insert("card_to_client_frame_bytes".into(), json!(mean(true)));
    fields.insert("plain_retransmits".into(), json!(plain_again));
    fields.insert("card_retransmits".into(), json!(card_again));
    fields.insert("card_dropped".into(), json!(dropped));
    fields.insert("streams".into(), json!(args.streams));
    fields.insert("programs_cores".into(), json!(joined.programs_cores()));
    fields.insert("rounds".into(), json!(args.traffic.rounds));
    fields.insert("seconds".into(), json!(args.traffic.seconds));
    Ok(Value::Object(fields))
}

struct Flow {
    bits_per_second: f64,
    retransmits: u64,
}

/// One run of iperf3's client.
fn transfer(
    args: &TcpArgs,
    joined: &Joined<'_>,
    address: &str,
    reverse: bool,
) -> anyhow::Result<Flow> {
    let (port, seconds) = (PORT.to_string(), args.traffic.seconds.to_string());
    let streams = args.streams.to_string();
    let mut words =
        vec!["iperf3", "-J", "-c", address, "-p", &port, "-t", &seconds, "-P", &streams];
    // What slow start does is not the question.
    words.extend(["-O", "1"]);
    if reverse {
        words.push("-R");
    }
    let start = Instant::now();
    loop {
        let mut client = joined.hosts.start(Role::Client, &words)?;
        while client.ended().is_none() {
            signals::sleep(Duration::from_millis(20))?;
        }
        let report: Value = serde_json::from_str(&client.output())
            .with_context(|| format!("iperf3: {}", client.last_words()))?;
        let (received, sent) = (&report["end"]["sum_received"], &report["end"]["sum_sent"]);
        match received["bits_per_second"].as_f64() {
            Some(bits_per_second) => {
                let retransmits = sent["retransmits"].as_u64().unwrap_or(0);
                return Ok(Flow { bits_per_second, retransmits });
            }
            // The server may not be done with the client before.
            None if start.elapsed() < PATIENCE => signals::sleep(Duration::from_millis(100))?,
            None => anyhow::bail!("iperf3: {}", report["error"]),
        }
    }
}
