//! Small requests to a web server behind the card, against a plain veth.
//!
//! nginx and wrk in the same two namespaces, both ways in turns.

use super::measured;
use crate::workloads::joined::{Joined, Pairs, Traffic, Way, packets_per_interrupt};
use picnic_lab::distribution::Distribution;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome};
use picnic_lab::workloads::web::{FILE, Load, Server, TOOLS, WebFigures};
use picnic_machine::signals;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Web {
    #[serde(flatten)]
    traffic: Traffic,
    /// Connections kept open
    #[schemars(range(min = 1, max = 50_000))]
    connections: u64,
    /// Bytes of the file that is asked for
    #[schemars(range(min = 1, max = 1_073_741_824))]
    bytes: u64,
}

impl Default for Web {
    fn default() -> Self {
        Web { traffic: Traffic::default(), connections: 200, bytes: 1024 }
    }
}

impl Benchmark for Web {
    const NAME: &'static str = "web";
    const HELP: &'static str = "a web server behind card and plain veth (root, nginx, wrk)";
    const QUICK: &'static str = "rounds = 1\nseconds = 1\nconnections = 20";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

fn measure(args: &Web, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    let joined = Joined::build(&args.traffic, &TOOLS)?;
    let cores = joined.programs_cores();
    let _server = Server::start(&joined.hosts, cores.max(2), args.bytes as usize)?;
    let load = Load {
        connections: args.connections as usize,
        threads: cores,
        seconds: args.traffic.seconds,
        path: FILE,
    };
    let mut outcome = measured();
    let (mut requests, mut latencies) = (Pairs::default(), Pairs::default());
    let (mut errors, mut per_interrupt, mut dropped) = (0, Vec::new(), 0);
    for round in 0..args.traffic.rounds {
        run.round(round.into(), args.traffic.rounds.into());
        for way in Way::in_turn(round) {
            let (figures, report) = joined.during(way, || ask(load, &joined, way.address()))?;
            requests.add(way, figures.requests_per_second);
            latencies.add(way, figures.request_latency_ns.p50 as f64);
            outcome.distribute(figures.request_distribution.keyed(&way.key("request_ns")));
            errors += figures.errors.total();
            if let Some(report) = report {
                outcome.distribute(Distribution::of_card("card_latency_ns", &report));
                dropped += report.ledger.dropped;
                per_interrupt.push(packets_per_interrupt(&report));
            }
        }
    }
    outcome.compare(requests.compared("requests_per_second"));
    outcome.compare(latencies.compared("request_p50_ns"));
    outcome.add(Figure::of("packets_per_interrupt", per_interrupt));
    outcome.add(Figure::count("errors", errors));
    outcome.add(Figure::count("card_dropped", dropped));
    outcome.tell("programs_cores", joined.programs_cores());
    Ok(outcome)
}

/// One run of wrk.
pub(crate) fn ask(load: Load, joined: &Joined<'_>, address: &str) -> anyhow::Result<WebFigures> {
    let mut asking = load.start(&joined.hosts, address)?;
    loop {
        if let Some(figures) = asking.finished()? {
            return Ok(figures);
        }
        signals::sleep(Duration::from_millis(20))?;
    }
}
