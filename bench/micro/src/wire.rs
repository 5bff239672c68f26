//! Wires of kernel interfaces: packets per second that one core sends and receives.
//!
//! ```text
//!  generator ─▶ wire 1 (c0) ══ veth ══ (w0) wire 2 ─▶ consumed
//! ```
//!
//! Everything runs on the borrowed core, including the kernel's part of sending; the figure is
//! packets received per second of its thread's processor time. Ports take turns, so each figure
//! includes the same cost of veth and kernel. A veth has no DMA, so the figures rank ports here and
//! say little about a real NIC.

use super::idle::processor_time;
use super::{above_zero, measured};
use picnic_control::{Launch, Registries};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::function::{Function, PacketMut, Verdict, per_packet};
use picnic_core::registry::{BuildContext, Component, Entry, NoKeys};
use picnic_lab::compare::median;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome, Point};
use picnic_lab::workloads::hosts::{Hosts, Role};
use picnic_lab::workloads::tools;
use picnic_machine::signals;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wires {
    /// Ports, each of which sends to each
    ports: Vec<String>,
    /// Bytes of a packet
    #[schemars(range(min = 60, max = 1514))]
    size: u64,
    /// Rounds: each measures all in turn
    #[schemars(range(min = 1, max = 1000))]
    rounds: u32,
    /// Seconds of each measurement
    seconds: f64,
}

impl Default for Wires {
    fn default() -> Self {
        let ports = ["packet", "xdp"].map(String::from).to_vec();
        Wires { ports, size: 60, rounds: 5, seconds: 0.7 }
    }
}

impl Benchmark for Wires {
    const NAME: &'static str = "wire";
    const HELP: &'static str = "packets/s of one core through kernel interfaces (root)";
    const QUICK: &'static str = "ports = [\"packet\"]\nrounds = 1\nseconds = 0.05";

    fn check(&self) -> Result<(), ConfigError> {
        above_zero("seconds", self.seconds)
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure_all(self, run)
    }
}

/// Sends a flow from the generator on, and consumes received packets.
struct Through;

impl Component for Through {
    type Product = Box<dyn Function>;
    type Config = NoKeys;
    const NAME: &'static str = "through";
    const HELP: &'static str = "send from the first wire to the second, and consume";

    fn build(_: NoKeys, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(per_packet(|packet: &mut PacketMut<'_>| match packet.wire {
            0 => Verdict::Transmit(1),
            _ => Verdict::Consume,
        })))
    }
}

static FUNCTIONS: &[Entry<Box<dyn Function>>] = &[Entry::of::<Through>()];

fn measure_all(args: &Wires, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    tools::need(&[])?;
    let hosts = Hosts::build("bench", 1500)?;
    let ways: Vec<(&str, &str)> =
        args.ports.iter().flat_map(|from| args.ports.iter().map(|to| (&**from, &**to))).collect();
    let mut samples = vec![Vec::new(); ways.len()];
    for round in 0..args.rounds {
        run.round(round.into(), args.rounds.into());
        for (&way, samples) in ways.iter().zip(&mut samples) {
            samples.push(measure(args, &hosts, way)?);
        }
    }
    let mut outcome = measured();
    let first = samples.first().map_or(f64::NAN, |samples| median(samples));
    let mut series = outcome.series("ways");
    for ((from, to), samples) in ways.iter().zip(samples) {
        let ratio = Figure::one("ratio_to_first", median(&samples) / first);
        let figure = Figure::of("pps_of_core", samples).called("packets per core-second");
        series.push(Point::at("sends", *from).and("receives", *to).with(figure).with(ratio));
    }
    Ok(outcome)
}

/// Packets received per second of the borrowed core's processor time.
fn measure(args: &Wires, hosts: &Hosts, (from, to): (&str, &str)) -> anyhow::Result<f64> {
    let wire = |port: &str, interface: &str, place: Role| {
        let namespace = hosts.netns(place);
        let port = format!("port = \"{port}\"\ninterface = \"{interface}\"\n");
        format!("[[wire]]\n{port}namespace = \"{namespace}\"\n")
    };
    let text = format!(
        "[card]\nname = \"wire\"\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nsize = {}\n{}{}\
         [[rx]]\nfunction = \"through\"\n[host]\nqueues = 1\n[pool]\nbuffers = 32768\n",
        args.size,
        wire(from, "c0", Role::Client),
        wire(to, "w0", Role::Card),
    );
    let registries = Registries { functions: FUNCTIONS, ..picnic_host::registries() };
    let card = CardFile::parse(&text, None)?;
    let running = Launch::new(&card, registries).start_alone()?;
    // Lets rings fill and the veth's own thread start.
    signals::sleep(Duration::from_millis(200))?;
    let received = || running.view().wires.last().map_or(0, |wire| wire.counters.rx_packets.get());
    let (before, start) = (received(), processor_time()?);
    signals::sleep(Duration::from_secs_f64(args.seconds))?;
    let (packets, elapsed) = (received() - before, processor_time()? - start);
    let report = running.stop()?;
    anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: this is a bug");
    Ok(packets as f64 * 1e9 / elapsed.max(1) as f64)
}
