//! Interrupt moderation under web load: packets per interrupt, and what they cost in latency.
//!
//! A queue is interrupted when 64 packets wait or the delay is over. One queue, so that all packets
//! count for one interrupt; with more, each has its share of the packets and interrupts of its own.
//! The rounds go through all delays in turns.
//!
//! Source: KNET (per-queue interrupt activation), which has 45 packets per interrupt at saturation.

use super::web::ask;
use super::{all_within, measured};
use crate::workloads::joined::{Joined, Traffic, packets_per_interrupt};
use picnic_core::config::Setting;
use picnic_core::error::ConfigError;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome, Point};
use picnic_lab::workloads::hosts::SERVER;
use picnic_lab::workloads::web::{FILE, Load, Server, TOOLS};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bytes of the file that is asked for.
const FILE_BYTES: usize = 1024;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Moderation {
    #[serde(flatten)]
    traffic: Traffic,
    /// Connections kept open
    #[schemars(range(min = 1, max = 50_000))]
    connections: u64,
    /// Microseconds a packet may wait for others, one line each; 0 is an interrupt at once
    rx_usecs: Vec<u64>,
    /// Packets that may wait
    rx_frames: u32,
}

impl Default for Moderation {
    fn default() -> Self {
        let rx_usecs = vec![0, 20, 100, 500, 2000];
        Moderation { traffic: Traffic::default(), connections: 400, rx_usecs, rx_frames: 64 }
    }
}

#[derive(Default)]
struct Samples {
    requests: Vec<f64>,
    latency: Vec<f64>,
    per_interrupt: Vec<f64>,
    interrupts: Vec<f64>,
}

impl Benchmark for Moderation {
    const NAME: &'static str = "moderation";
    const HELP: &'static str = "packets per interrupt and latency, by delay (root, nginx, wrk)";
    const QUICK: &'static str = "rounds = 1\nseconds = 1\nconnections = 20\nrx_usecs = [20]";

    fn check(&self) -> Result<(), ConfigError> {
        all_within("rx_usecs", &self.rx_usecs, 0, u32::MAX.into())
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

fn measure(args: &Moderation, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    let joined = Joined::build(&args.traffic, &TOOLS)?;
    let cores = joined.programs_cores();
    let _server = Server::start(&joined.hosts, cores.max(2), FILE_BYTES)?;
    let connections = args.connections as usize;
    let load = Load { connections, threads: cores, seconds: args.traffic.seconds, path: FILE };
    let mut samples: Vec<Samples> = args.rx_usecs.iter().map(|_| Samples::default()).collect();
    let (mut outcome, mut errors) = (measured(), 0);
    for round in 0..args.traffic.rounds {
        run.round(round.into(), args.traffic.rounds.into());
        for (&rx_usecs, samples) in args.rx_usecs.iter().zip(&mut samples) {
            let changed = vec![
                Setting::number("host.queues", 1),
                Setting::number("interrupt.rx_usecs", rx_usecs as u32),
                Setting::number("interrupt.rx_frames", args.rx_frames),
            ];
            let (figures, report) = joined.behind_card(changed, || ask(load, &joined, SERVER))?;
            errors += figures.errors.total();
            let interrupts: u64 = report.queues.iter().map(|queue| queue.interrupts).sum();
            samples.requests.push(figures.requests_per_second);
            samples.latency.push(figures.request_latency_ns.p50 as f64);
            let key = format!("request_at_{rx_usecs}_usecs_ns");
            let label = format!("request, {rx_usecs} µs");
            outcome.distribute(figures.request_distribution.keyed(&key).called(&label));
            samples.per_interrupt.push(packets_per_interrupt(&report));
            samples.interrupts.push(interrupts as f64 / report.duration_s);
        }
    }
    outcome.add(Figure::count("errors", errors));
    outcome.tell("programs_cores", joined.programs_cores());
    let mut series = outcome.series("moderation");
    for (&rx_usecs, samples) in args.rx_usecs.iter().zip(samples) {
        let point = Point::at("rx_usecs", rx_usecs)
            .with(Figure::of("requests_per_second", samples.requests))
            .with(Figure::of("request_p50_ns", samples.latency))
            .with(Figure::of("packets_per_interrupt", samples.per_interrupt))
            .with(Figure::of("interrupts_per_second", samples.interrupts));
        series.push(point);
    }
    Ok(outcome)
}
