//! Interrupt moderation under web load: packets per interrupt, and what they cost in latency.
//!
//! A queue is interrupted when 64 packets wait or the delay is over. One queue, so that all packets
//! count for one interrupt; with more, each has its share of the packets and interrupts of its own.
//! The rounds go through all delays in turns.
//!
//! Source: KNET (per-queue interrupt activation), which has 45 packets per interrupt at saturation.

use super::median;
use super::traffic::{Joined, TrafficArgs, packets_per_interrupt};
use super::web::ask;
use crate::workloads::hosts::SERVER;
use crate::workloads::web::{Load, Server, TOOLS};
use clap::Args;
use picnic_core::config::Setting;
use serde_json::{Value, json};

/// Bytes of the file that is asked for.
const FILE_BYTES: usize = 1024;

#[derive(Debug, Args)]
pub struct ModerationArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Connections kept open
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=50_000))]
    connections: u64,
    /// Microseconds a packet may wait for others, one line each; 0 is an interrupt at once
    #[arg(long, value_delimiter = ',', default_values_t = [0, 20, 100, 500, 2000])]
    rx_usecs: Vec<u32>,
    /// Packets that may wait
    #[arg(long, default_value_t = 64)]
    rx_frames: u32,
}

#[derive(Default)]
struct Samples {
    requests: Vec<f64>,
    latency: Vec<f64>,
    per_interrupt: Vec<f64>,
    interrupts: Vec<f64>,
}

pub fn run(args: &ModerationArgs) -> anyhow::Result<Value> {
    let joined = Joined::build(&args.traffic, &TOOLS)?;
    let cores = joined.programs_cores();
    let _server = Server::start(&joined.hosts, cores.max(2), FILE_BYTES)?;
    let connections = args.connections as usize;
    let load = Load { connections, threads: cores, seconds: args.traffic.seconds };
    let mut samples: Vec<Samples> = args.rx_usecs.iter().map(|_| Samples::default()).collect();
    let mut errors = 0;
    for _ in 0..args.traffic.rounds {
        for (&rx_usecs, samples) in args.rx_usecs.iter().zip(&mut samples) {
            let changed = vec![
                Setting::number("host.queues", 1),
                Setting::number("interrupt.rx_usecs", rx_usecs),
                Setting::number("interrupt.rx_frames", args.rx_frames),
            ];
            let (figures, report) = joined.behind_card(changed, || ask(load, &joined, SERVER))?;
            errors += figures.errors.total();
            let interrupts: u64 = report.queues.iter().map(|queue| queue.interrupts).sum();
            samples.requests.push(figures.requests_per_second);
            samples.latency.push(figures.request_latency_ns.p50 as f64);
            samples.per_interrupt.push(packets_per_interrupt(&report));
            samples.interrupts.push(interrupts as f64 / report.duration_s);
        }
    }
    let table: Vec<Value> = args
        .rx_usecs
        .iter()
        .zip(&mut samples)
        .map(|(rx_usecs, samples)| {
            json!({
                "rx_usecs": rx_usecs,
                "requests_per_second": median(&mut samples.requests),
                "request_p50_ns": median(&mut samples.latency),
                "packets_per_interrupt": median(&mut samples.per_interrupt),
                "interrupts_per_second": median(&mut samples.interrupts),
            })
        })
        .collect();
    Ok(json!({
        "benchmark": "moderation",
        "rx_frames": args.rx_frames,
        "connections": args.connections,
        "errors": errors,
        "programs_cores": joined.programs_cores(),
        "rounds": args.traffic.rounds,
        "seconds": args.traffic.seconds,
        "moderation": table,
    }))
}
