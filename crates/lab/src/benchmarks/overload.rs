//! Overload: what is delivered when more is offered than the target can take.
//!
//! The capacity is measured with a wire that waits for the card; then packets are offered at
//! multiples of it, whether they can be taken or not. The rounds go through all multiples in
//! turns. The livelock of interrupt-driven stacks (Mogul, Ramakrishnan 1997) would show as a
//! delivered rate that falls beyond saturation.

use super::median;
use crate::workloads::hosts::{Hosts, Role};
use clap::{Args, ValueEnum};
use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_engine::view::View;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Time for caches, rings and rates to settle.
const WARM_UP: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Host {
    /// A function in this process that works for a given time on each packet
    App,
    /// An interface of the kernel in a namespace of its own, its receive path the work (root)
    Tap,
}

#[derive(Debug, Args)]
pub struct OverloadArgs {
    /// What the packets are delivered to
    #[arg(long, value_enum, default_value_t = Host::App)]
    host: Host,
    /// Nanoseconds that the app works on each packet
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    cost_ns: u64,
    /// What is offered, in multiples of the capacity
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 5, 10])]
    multiples: Vec<u64>,
    /// Rounds: each measures all in turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

pub fn run(args: &OverloadArgs) -> anyhow::Result<Value> {
    anyhow::ensure!(args.seconds > 0.0, "--seconds must be above zero");
    anyhow::ensure!(args.multiples.iter().all(|&multiple| multiple != 0), "a multiple is zero");
    let hosts = match args.host {
        Host::App => None,
        Host::Tap => Some(Hosts::build("bench", 1500)?),
    };
    let mut capacity = Vec::new();
    let mut samples: Vec<Samples> = args.multiples.iter().map(|_| Samples::default()).collect();
    for _ in 0..args.rounds {
        let peak = offer(args, hosts.as_ref(), 0)?.delivered_pps;
        capacity.push(peak);
        let mut round = Vec::new();
        for &multiple in &args.multiples {
            round.push(offer(args, hosts.as_ref(), (peak * multiple as f64) as u64)?);
        }
        // The peak of the round, wherever it was: the capacity may have been a little lower.
        let peak = round.iter().map(|offered| offered.delivered_pps).fold(peak, f64::max);
        for (samples, offered) in samples.iter_mut().zip(&round) {
            samples.offered.push(offered.offered_pps);
            samples.delivered.push(offered.delivered_pps);
            samples.share.push(offered.delivered_pps / peak);
            samples.at_wire.push(offered.dropped_at_wire);
        }
    }
    let table: Vec<Value> = args
        .multiples
        .iter()
        .zip(&mut samples)
        .map(|(multiple, samples)| {
            let share = median(&mut samples.share);
            json!({
                "multiple": multiple,
                "offered_pps": median(&mut samples.offered).round(),
                "delivered_pps": median(&mut samples.delivered).round(),
                "share_of_peak": share,
                "share_of_peak_min": samples.share.first(),
                "dropped_at_wire_fraction": median(&mut samples.at_wire),
            })
        })
        .collect();
    Ok(json!({
        "benchmark": "overload",
        "host": format!("{:?}", args.host).to_lowercase(),
        "capacity_pps": median(&mut capacity).round(),
        "rounds": args.rounds,
        "seconds": args.seconds,
        "overload": table,
    }))
}

#[derive(Default)]
struct Samples {
    offered: Vec<f64>,
    delivered: Vec<f64>,
    share: Vec<f64>,
    at_wire: Vec<f64>,
}

/// What came of one offered rate.
struct Offered {
    offered_pps: f64,
    delivered_pps: f64,
    /// The share of all drops that was dropped before any work.
    dropped_at_wire: f64,
}

/// Offers so many packets per second; zero for as many as the card asks for.
fn offer(args: &OverloadArgs, hosts: Option<&Hosts>, rate: u64) -> anyhow::Result<Offered> {
    let card = card(args, hosts, rate)?;
    let running = Launch::new(&card, picnic_host::registries()).start_alone()?;
    std::thread::sleep(WARM_UP);
    let (start, before) = (Instant::now(), counts(running.view()));
    std::thread::sleep(Duration::from_secs_f64(args.seconds));
    let (elapsed, after) = (start.elapsed().as_secs_f64(), counts(running.view()));
    let report = running.stop()?;
    anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: a bug");
    let at_wire: u64 = report
        .drops_by_stage
        .iter()
        .filter(|(place, _)| place.ends_with("@wire"))
        .map(|(_, packets)| packets)
        .sum();
    Ok(Offered {
        offered_pps: (after.0 - before.0) as f64 / elapsed,
        delivered_pps: (after.1 - before.1) as f64 / elapsed,
        dropped_at_wire: at_wire as f64 / report.ledger.dropped.max(1) as f64,
    })
}

/// Packets received, those shed included, and delivered.
fn counts(view: &View) -> (u64, u64) {
    let received = view.wires.iter().map(|wire| wire.counters.rx_packets.get()).sum();
    let delivered = view.queues.iter().map(|queue| queue.target.packets.get()).sum();
    (received, delivered)
}

fn card(args: &OverloadArgs, hosts: Option<&Hosts>, rate: u64) -> anyhow::Result<CardFile> {
    let host = match hosts {
        None => format!("attachment = \"app\"\ncost_ns = {}\n", args.cost_ns),
        Some(hosts) => format!(
            "attachment = \"tap\"\nname = \"h0\"\nnamespace = \"{}\"\n",
            hosts.netns(Role::Server)
        ),
    };
    Ok(CardFile::parse(
        &format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nrate_pps = {rate}\nburst = 32\n\
             [host]\nqueues = 2\n{host}"
        ),
        None,
    )?)
}
