//! Bulk TCP through packet wire, card and tap, against a plain veth.
//!
//! iperf3 in the same two namespaces, both ways and both directions in turns. With two cores the
//! borrowed core, client and server share them: the ratio then holds the card's whole work, not
//! only what it adds to the way of a packet.

use super::measured;
use crate::workloads::joined::{Joined, Pairs, Traffic, Way};
use anyhow::Context;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome};
use picnic_lab::workloads::hosts::Role;
use picnic_machine::signals;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::{Duration, Instant};

const PORT: u16 = 5201;
/// How long a server may be busy with the client before.
const PATIENCE: Duration = Duration::from_secs(5);

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Tcp {
    #[serde(flatten)]
    traffic: Traffic,
    /// Connections at the same time
    #[schemars(range(min = 1, max = 128))]
    streams: u64,
}

impl Default for Tcp {
    fn default() -> Self {
        Tcp { traffic: Traffic::default(), streams: 1 }
    }
}

impl Benchmark for Tcp {
    const NAME: &'static str = "tcp";
    const HELP: &'static str = "bulk TCP through card and tap, and a plain veth (root, iperf3)";
    const QUICK: &'static str = "rounds = 1\nseconds = 1";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

fn measure(args: &Tcp, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    let joined = Joined::build(&args.traffic, &[("iperf3", "iperf3")])?;
    let mut server =
        joined.hosts.start(Role::Server, &["iperf3", "-s", "-p", &PORT.to_string()])?;
    server.wait_for_port(PORT)?;
    let (mut to_server, mut to_client) = (Pairs::default(), Pairs::default());
    let mut again = Pairs::default();
    let (mut dropped, mut frame_bytes) = (0, [Vec::new(), Vec::new()]);
    for round in 0..args.traffic.rounds {
        run.round(round.into(), args.traffic.rounds.into());
        for reverse in [false, true] {
            let pairs = if reverse { &mut to_client } else { &mut to_server };
            for way in Way::in_turn(round) {
                let (flow, report) =
                    joined.during(way, || transfer(args, &joined, way.address(), reverse))?;
                pairs.add(way, flow.bits_per_second);
                again.add(way, flow.retransmits as f64);
                if let Some(report) = report {
                    dropped += report.ledger.dropped;
                    let wire = &report.wires[0];
                    let (bytes, packets) = match reverse {
                        true => (wire.tx_bytes, wire.tx_packets),
                        false => (wire.rx_bytes, wire.rx_packets),
                    };
                    frame_bytes[usize::from(reverse)].push((bytes / packets.max(1)) as f64);
                }
            }
        }
    }
    let mut outcome = measured();
    outcome.compare(to_server.compared("to_server_bps"));
    outcome.compare(to_client.compared("to_client_bps"));
    for side in again.compared("retransmits").sides() {
        outcome.add(side);
    }
    let [to_server, to_client] = frame_bytes;
    outcome.add(Figure::of("card_to_server_frame_bytes", to_server));
    outcome.add(Figure::of("card_to_client_frame_bytes", to_client));
    outcome.add(Figure::count("card_dropped", dropped));
    outcome.tell("programs_cores", joined.programs_cores());
    Ok(outcome)
}

struct Flow {
    bits_per_second: f64,
    retransmits: u64,
}

/// One run of iperf3's client.
fn transfer(args: &Tcp, joined: &Joined<'_>, address: &str, reverse: bool) -> anyhow::Result<Flow> {
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
