//! Overload: what is delivered when more is offered than the target can take.
//!
//! The capacity is measured with a wire that waits for the card; then packets are offered at
//! multiples of it, whether they can be taken or not. The rounds go through all multiples in
//! turns. The livelock of interrupt-driven stacks (Mogul, Ramakrishnan 1997) would show as a
//! delivered rate that falls beyond saturation.

use super::{above_zero, all_within, measured};
use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome, Point};
use picnic_lab::window::Window;
use picnic_lab::workloads::hosts::{Hosts, Role};
use picnic_lab::workloads::tools;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time for caches, rings and rates to settle.
const WARM_UP: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Host {
    /// A function in this process that works for a given time on each packet
    App,
    /// An interface of the kernel in a namespace of its own, its receive path the work (root)
    Tap,
}

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Overload {
    /// What the packets are delivered to: a function, or an interface of the kernel (root)
    host: Host,
    /// Nanoseconds that the app works on each packet
    #[schemars(range(min = 0, max = 1_000_000))]
    cost_ns: u64,
    /// What is offered, in multiples of the capacity
    multiples: Vec<u64>,
    /// Rounds: each measures all in turns
    #[schemars(range(min = 1, max = 1000))]
    rounds: u32,
    /// Seconds of each measurement
    seconds: f64,
}

impl Default for Overload {
    fn default() -> Self {
        let multiples = vec![1, 2, 5, 10];
        Overload { host: Host::App, cost_ns: 1000, multiples, rounds: 5, seconds: 0.5 }
    }
}

impl Benchmark for Overload {
    const NAME: &'static str = "overload";
    const HELP: &'static str = "what is delivered when 1 to 10 times the capacity is offered";
    const QUICK: &'static str = "multiples = [1, 5]\nrounds = 1\nseconds = 0.05";

    fn check(&self) -> Result<(), ConfigError> {
        all_within("multiples", &self.multiples, 1, 1_000_000)?;
        above_zero("seconds", self.seconds)
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

fn measure(args: &Overload, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    let hosts = match args.host {
        Host::App => None,
        Host::Tap => {
            tools::need(&[])?;
            Some(Hosts::build("bench", 1500)?)
        }
    };
    let mut capacity = Vec::new();
    let mut samples: Vec<Samples> = args.multiples.iter().map(|_| Samples::default()).collect();
    for round in 0..args.rounds {
        run.round(round.into(), args.rounds.into());
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
    let mut outcome = measured();
    outcome.add(Figure::of("capacity_pps", capacity));
    let mut series = outcome.series("overload");
    for (&multiple, samples) in args.multiples.iter().zip(samples) {
        let point = Point::at("multiple", multiple)
            .with(Figure::of("offered_pps", samples.offered))
            .with(Figure::of("delivered_pps", samples.delivered))
            .with(Figure::of("share_of_peak", samples.share))
            .with(Figure::of("dropped_at_wire_fraction", samples.at_wire));
        series.push(point);
    }
    Ok(outcome)
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
fn offer(args: &Overload, hosts: Option<&Hosts>, rate: u64) -> anyhow::Result<Offered> {
    let card = card(args, hosts, rate)?;
    let running = Launch::new(&card, picnic_host::registries()).start_alone()?;
    let window = Window::of(running, WARM_UP, Duration::from_secs_f64(args.seconds))?;
    let report = &window.report;
    let at_wire: u64 = report
        .drops_by_stage
        .iter()
        .filter(|(place, _)| place.ends_with("@wire"))
        .map(|(_, packets)| packets)
        .sum();
    Ok(Offered {
        offered_pps: window.rate(window.received),
        delivered_pps: window.rate(window.delivered),
        dropped_at_wire: at_wire as f64 / report.ledger.dropped.max(1) as f64,
    })
}

fn card(args: &Overload, hosts: Option<&Hosts>, rate: u64) -> anyhow::Result<CardFile> {
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
