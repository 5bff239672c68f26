//! Wires of the kernel's interfaces: packets a second that one core sends and receives.
//!
//! ```text
//!  generator ─▶ wire 1 (c0) ══ veth ══ (w0) wire 2 ─▶ consumed
//! ```
//!
//! All of it is on the borrowed core, the kernel's part of sending too: how many packets come out
//! for each second that its thread has run. Ports take turns, so that what the veth and the
//! kernel cost is in each figure alike. A veth has no hardware to put packets into memory: the
//! figures rank ports here, and say little of a real NIC.

use super::idle::processor_time;
use super::median;
use crate::workloads::hosts::{Hosts, Role};
use crate::workloads::tools;
use clap::Args;
use picnic_control::{Launch, Registries};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::function::{Function, PacketMut, Verdict, per_packet};
use picnic_core::registry::{BuildContext, Component, Entry};
use picnic_machine::signals;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Args)]
pub struct WireArgs {
    /// Ports, each of which sends to each
    #[arg(long, value_delimiter = ',', default_values_t = ["packet".to_owned(), "xdp".to_owned()])]
    ports: Vec<String>,
    /// Bytes of a packet
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(60..=1514))]
    size: u64,
    /// Rounds: each measures all in turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 0.7)]
    seconds: f64,
}

/// Has a flow from the generator sent, and what is received consumed.
struct Through;

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoKeys {}

impl Component for Through {
    type Product = Box<dyn Function>;
    type Config = NoKeys;
    const NAME: &'static str = "through";
    const HELP: &'static str = "from the first wire to the second, and no further";

    fn build(_: NoKeys, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(per_packet(|packet: &mut PacketMut<'_>| match packet.wire {
            0 => Verdict::Transmit(1),
            _ => Verdict::Consume,
        })))
    }
}

static FUNCTIONS: &[Entry<Box<dyn Function>>] = &[Entry::of::<Through>()];

pub fn run(args: &WireArgs) -> anyhow::Result<Value> {
    anyhow::ensure!(args.seconds > 0.0, "--seconds must be above zero");
    tools::need(&[])?;
    let hosts = Hosts::build("bench", 1500)?;
    let ways: Vec<(&str, &str)> =
        args.ports.iter().flat_map(|from| args.ports.iter().map(|to| (&**from, &**to))).collect();
    let mut samples = vec![Vec::new(); ways.len()];
    for _ in 0..args.rounds {
        for (&way, samples) in ways.iter().zip(&mut samples) {
            samples.push(measure(args, &hosts, way)?);
        }
    }
    let mut first = f64::NAN;
    let ways: Vec<Value> = ways
        .iter()
        .zip(&mut samples)
        .map(|((from, to), samples)| {
            let pps = median(samples);
            first = if first.is_nan() { pps } else { first };
            json!({
                "sends": from,
                "receives": to,
                "pps_of_core": pps,
                "pps_of_core_min": samples.first(),
                "pps_of_core_max": samples.last(),
                "ratio_to_first": pps / first,
            })
        })
        .collect();
    Ok(json!({
        "benchmark": "wire",
        "rounds": args.rounds,
        "seconds": args.seconds,
        "packet_bytes": args.size,
        "ways": ways,
    }))
}

/// Packets received for each second that the borrowed core's thread has run.
fn measure(args: &WireArgs, hosts: &Hosts, (from, to): (&str, &str)) -> anyhow::Result<f64> {
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
    // Let rings fill and the veth's own routine get going.
    signals::sleep(Duration::from_millis(200))?;
    let received = || running.view().wires.last().map_or(0, |wire| wire.counters.rx_packets.get());
    let (before, start) = (received(), processor_time()?);
    signals::sleep(Duration::from_secs_f64(args.seconds))?;
    let (packets, elapsed) = (received() - before, processor_time()? - start);
    let report = running.stop()?;
    anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: a bug");
    Ok(packets as f64 * 1e9 / elapsed.max(1) as f64)
}
