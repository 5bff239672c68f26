//! A card shared by the kernel and the poll engine, against each engine alone.
//!
//! Four cards with `rss` by JHash after one filter, in turn: kernel alone; shared, all packets in
//! the kernel; poll engine alone (port `xdp`); shared, all packets in the poll engine. The kernel's
//! target core gets packets by cpumap, the poll engine's discards them. Frames of 60 bytes are sent
//! as in `firewall`. The figure is packets per second of the borrowed core's processor time: that
//! of the thread that polls the driver, also given to the card in the poll engine, plus the poll
//! engine's own. Packets that found no room do not count, but their time does.

use super::firewall::{Bed, Load, RING_SIZE};
use super::measured;
use picnic_control::{Executor, Launch, Registries};
use picnic_lab::compare::order;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point};
use picnic_lab::workloads::hosts::Role;
use picnic_lab::workloads::tools;
use picnic_machine::napi::{Polling, named, schedule};
use picnic_machine::undo::{Journal, Machine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Hybrid {
    /// Milliseconds of each measurement
    #[schemars(range(min = 10, max = 60_000))]
    milliseconds: u64,
    /// Rounds: each measures all four in turn
    #[schemars(range(min = 1, max = 1000))]
    rounds: u32,
}

impl Default for Hybrid {
    fn default() -> Self {
        Hybrid { milliseconds: 500, rounds: 9 }
    }
}

impl Benchmark for Hybrid {
    const NAME: &'static str = "hybrid";
    const HELP: &'static str = "a card shared by kernel and poll engine, and each alone (root)";
    const QUICK: &'static str = "milliseconds = 50\nrounds = 1";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

const EXECUTORS: &[&dyn Executor] =
    &[&picnic_kernel::Kernel, &picnic_kernel::Hybrid, &picnic_host::run::Host];
/// Engines, and their action on all packets.
const SIDES: [(&str, &str); 4] =
    [("kernel", "accept"), ("hybrid", "accept"), ("poll", "poll"), ("hybrid", "poll")];

fn measure(args: &Hybrid, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    tools::need_kernel_engine(picnic_kernel::is_built())?;
    tools::need(&[("ethtool", "ethtool")])?;
    let mut found = [const { Vec::new() }; SIDES.len()];
    for round in 0..args.rounds {
        run.round(round.into(), args.rounds.into());
        for side in order(round as usize, SIDES.len()) {
            let bed = Bed::build(Duration::from_millis(args.milliseconds))?;
            found[side].push(capacity(&bed, SIDES[side])?);
        }
    }
    let mut outcome = measured();
    let mut series = outcome.series("all_packets");
    let [kernel, stays, poll, goes] = found;
    for (engine, alone, shared) in [("kernel", kernel, stays), ("poll", poll, goes)] {
        let nanoseconds = shared.iter().map(|rate| 1e9 / rate).collect();
        series.push(
            Point::at("engine", engine)
                .comparing(Comparison::of("pps_of_core", (engine, alone), ("hybrid", shared)))
                .with(Figure::of("hybrid_ns_per_packet", nanoseconds).called("hybrid, a packet")),
        );
    }
    Ok(outcome)
}

/// Packets per second of the borrowed core's time.
fn capacity(bed: &Bed, (engine, action): (&str, &str)) -> anyhow::Result<f64> {
    let ([client, borrowed], netns) = (bed.cores, bed.hosts.netns(Role::Card));
    let (idle, host) = match engine {
        "kernel" => ("", "attachment = \"stack\"\nhandover = \"cpumap\"\n"),
        _ => ("idle = \"block\"\n", "attachment = \"app\"\n"),
    };
    let text = format!(
        "[card]\nengine = \"{engine}\"\nborrowed_core = {borrowed}\n{idle}[[wire]]\nport = \"xdp\"\n\
         interface = \"w0\"\nnamespace = \"{netns}\"\n[[filter]]\nprotocol = \"udp\"\n\
         action = \"{action}\"\n[[rx]]\nfunction = \"rss\"\nhash = \"jhash\"\n[host]\n{host}\
         queues = 1\ntarget_cores = [{client}]\nring_size = {RING_SIZE}\n"
    );
    let card = picnic_host::sections().parse(&text, None)?;
    let registries = Registries { executors: EXECUTORS, ..picnic_host::registries() };
    let machine = Machine::this();
    let mut journal = Journal::create(&machine, "hybrid")?;
    let mut polling = match engine {
        "poll" => Some(Polling::start(&machine, &mut journal, "w0", Some(&netns))?),
        _ => None,
    };
    let running = Launch::new(&card, registries).start_alone()?;
    if let Some(polling) = &mut polling {
        polling.pin(&machine, &mut journal, borrowed)?;
    }
    // The clock thread updates its figures.
    std::thread::sleep(Duration::from_millis(100));
    let own = running.monitor().report().borrowed_core.thread.map(|thread| thread as i32);
    let threads: Vec<_> = named(&machine, "napi/w0-").into_iter().chain(own).collect();
    let spent = || {
        let all = threads.iter().filter_map(|&thread| schedule(thread));
        all.map(|found| found.run_ns).sum::<u64>()
    };
    let before = spent();
    bed.send(Load::Flood)?;
    let spent = spent() - before;
    let report = running.stop()?;
    journal.undo()?;
    anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: this is a bug");
    Ok(report.wires[0].rx_packets as f64 / (spent as f64 / 1e9))
}
