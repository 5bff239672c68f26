//! A modelled machine's speed: real time for a virtual second, and memory.
//!
//! Eight cores, four links of 1 Gb/s, a web server that is loaded as PICNIC's was (figure 8), and the
//! engine's own code on the borrowed core. One thread does all of it.

use super::measured;
use anyhow::Context;
use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_core::time::Time;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome};
use picnic_sim::machine::Profile;
use picnic_sim::{Simulation, registries};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Machine {
    /// Rounds
    #[schemars(range(min = 1, max = 10_000))]
    rounds: u32,
    /// Virtual milliseconds of each
    #[schemars(range(min = 1, max = 100_000))]
    milliseconds: u32,
}

impl Default for Machine {
    fn default() -> Self {
        Machine { rounds: 5, milliseconds: 1000 }
    }
}

/// Virtual time until windows are open.
const WARM_UP_NS: u64 = 50_000_000;

impl Benchmark for Machine {
    const NAME: &'static str = "machine";
    const HELP: &'static str = "real time per virtual second: eight cores, 4 Gb/s of web load";
    const QUICK: &'static str = "rounds = 1\nmilliseconds = 50";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        let (mut real, mut gbps) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            run.round(round.into(), self.rounds.into());
            let (real_s, bits_per_s) = web(u64::from(self.milliseconds) * 1_000_000)?;
            real.push(real_s);
            gbps.push(bits_per_s / 1e9);
        }
        let mut outcome = measured();
        outcome
            .add(Figure::of("real_s_per_virtual_s", real).called("real time of a virtual second"));
        outcome.add(Figure::of("sent_gbps", gbps).called("sent by the modelled server"));
        outcome.add(Figure::one("peak_memory_mib", peak_memory_mib()?));
        Ok(outcome)
    }
}

/// Real seconds for a virtual one, and bits that the server sent in that.
fn web(run_ns: u64) -> anyhow::Result<(f64, f64)> {
    let wire = "[[wire]]\nport = \"peers\"\nconnections = 50\nfile_bytes = 65160\ndelay_us = 75\n";
    let text = format!(
        "[card]\nborrowed_core = 7\nidle = \"spin\"\n[pool]\nbuffers = 32768\n{}[[rx]]\n\
         function = \"rss\"\n[host]\nattachment = \"model\"\nqueues = 6\ncores = 7\n\
         [interrupt]\nper_packet = true\ngate = \"none\"\n",
        wire.repeat(4)
    );
    let file = CardFile::parse(&text, None)?;
    let launch = Launch::new(&file, registries());
    let mut simulation = Simulation::on_machine(launch, 1, &Profile::named("x5355")?)?;
    simulation.run_until(Time::from_nanos(WARM_UP_NS));
    let sent = |simulation: &Simulation| -> u64 {
        simulation.view().wires.iter().map(|wire| wire.counters.tx_bytes.get()).sum()
    };
    let (before, start) = (sent(&simulation), Instant::now());
    simulation.run_until(Time::from_nanos(WARM_UP_NS + run_ns));
    let (real_s, bits) = (start.elapsed().as_secs_f64(), (sent(&simulation) - before) as f64 * 8.0);
    let virtual_s = run_ns as f64 / 1e9;
    anyhow::ensure!(simulation.ledger().balanced(), "the ledger does not balance: this is a bug");
    simulation.finish();
    Ok((real_s / virtual_s, bits / virtual_s))
}

/// The most memory that this process has had resident.
fn peak_memory_mib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.context("/proc/self/status has no VmHWM")? / 1024.0)
}
