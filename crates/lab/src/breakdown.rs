//! `picnic lab breakdown`: what a packet costs the cores of a card's host, by component.
//!
//! Measured, the stacks of whole cores are sampled while the card runs, alone or between client and
//! server, and each sample belongs to one component by a table that is data
//! (`breakdown/components.toml`). Context switches and interrupts are the kernel's counts. Modelled, it
//! is the sum of all pieces of work ([`picnic_sim::machine::Component`]).
//!
//! Guarantee: the shares of all components add up to 1.

mod components;
mod flame;
mod kept;
mod kinds;
mod perf;

pub(crate) use kept::{Kept, kept};
pub(crate) use kinds::Kinds;
pub(crate) use perf::{Recorder, Samples};

use crate::ab::{Card, ComparedFigure, MeasuringPlace, Progress, Side, Workload};
use crate::experiment::LabError;
use anyhow::Context;
use components::{Components, ORDER};
use flame::{KERNEL, Stacks};
use picnic_control::error::RunError;
use picnic_control::{Launch, Registries, Running};
use picnic_core::config::{CardFile, Sections};
use picnic_core::error::ConfigError;
use picnic_core::time::Time;
use picnic_machine::topology;
use picnic_sim::Simulation;
use picnic_sim::machine::{Accounts, Component, Profile};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Part of the virtual time that is not counted, at the start.
const WARM_UP: f64 = 0.2;

/// What a name begins with that `perf` does not know.
const UNKNOWN: &str = "[unknown]";

/// What to break down.
#[derive(Clone, Debug)]
pub struct Question {
    /// The card.
    pub side: Side,
    /// The traffic through it; none for the card alone.
    pub workload: Option<Workload>,
    /// How long it runs, in seconds.
    pub seconds: f64,
    /// The cores to sample; none for all target cores.
    pub cores: Option<Vec<usize>>,
    /// Whether the borrowed core is sampled as well, for the stacks only.
    pub borrowed: bool,
}

/// A component's part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// Its name.
    pub component: &'static str,
    /// Its share of the cores' time.
    pub fraction: f64,
    /// Its time for each packet that the host received or sent; null without packets.
    pub ns_per_packet: Option<f64>,
}

/// How often something happens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Its kind.
    pub kind: String,
    /// Number.
    pub count: u64,
    /// For each packet; null without packets.
    pub per_packet: Option<f64>,
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
pub struct Breakdown {
    /// `measured` or `modelled`.
    pub source: &'static str,
    /// The cores.
    pub cores: Vec<usize>,
    /// How long they were watched.
    pub seconds: f64,
    /// Packets that the host received or sent.
    pub packets: u64,
    /// Sampled stacks; null in a model.
    pub samples: Option<u64>,
    /// The parts of the cores' time, in the order of the way up the stack.
    pub components: Vec<Part>,
    /// Context switches and interrupts.
    pub events: Vec<Event>,
    /// The busy share by the kernel's own counts, beside that of the samples; null in a model.
    pub busy_fraction_of_kernel: Option<f64>,
    #[serde(skip)]
    stacks: Stacks,
}

impl Breakdown {
    /// The share of time that was not idle.
    pub fn busy_fraction(&self) -> f64 {
        let busy = self.components.iter().filter(|part| part.component != components::IDLE);
        busy.map(|part| part.fraction).sum()
    }

    /// Writes `stacks.folded`, `flame.svg` and `breakdown.json` into a folder.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn draw(&self, folder: &Path, title: &str) -> anyhow::Result<()> {
        let files = [
            (kept::STACKS, flame::folded(&self.stacks)),
            ("flame.svg", flame::svg(title, &self.stacks)),
            (kept::FILE, kept::text(self, title)?),
        ];
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot be made", folder.display()))?;
        for (name, text) in files {
            let path = folder.join(name);
            std::fs::write(&path, text)
                .with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        Ok(())
    }
}

impl Question {
    /// Measures on this machine.
    ///
    /// # Errors
    /// The card is wrong, a core is not one of its host's, or this machine allows no samples.
    pub fn run(
        &self,
        registries: Registries,
        sections: &Sections,
        progress: &mut Progress<'_>,
    ) -> Result<Breakdown, LabError> {
        let figure = ComparedFigure::of_card("delivered_pps").context("no such figure")?;
        let asked = (self.seconds, self.workload.as_ref(), &figure, &[&self.side][..]);
        let mut place = MeasuringPlace::checked(registries, sections, asked, (false, None))?;
        let file = place.card(&self.side, false).map_err(anyhow::Error::from)?;
        let placement = topology::place(&file, &topology::available()).map_err(RunError::from);
        let placement = placement.map_err(anyhow::Error::from)?;
        let cores = asked_cores(
            self.cores.as_deref(),
            placement.borrowed_core,
            &placement.target_cores,
            &topology::cores(),
        )?;
        perf::check()?;
        progress(0.0, &format!("sampling {}", named(&cores)));
        let borrowed = self.borrowed.then_some(placement.borrowed_core);
        let recorded = cores.iter().copied().chain(borrowed).collect();
        place.recorder = Some(Recorder { cores: recorded });
        let measured = place.measure(Card::As(&self.side), &figure)?;
        progress(1.0, "done");
        let (samples, kinds) = measured.recorded.context("nothing was recorded")?;
        let window = measured.window.context("no card was measured")?;
        let packets = window.delivered + window.transmitted;
        let shares = measured.load.cores.iter().filter(|share| cores.contains(&share.core));
        let busy: Vec<f64> = shares.map(|share| 1.0 - share.idle).collect();
        let switches = ("context switches, all cores".to_owned(), measured.load.context_switches);
        Ok(of_samples(
            &samples,
            std::process::id(),
            (cores, borrowed, window.seconds, packets),
            [switches].into_iter().chain(kinds),
            (!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64),
        )?)
    }
}

fn named(cores: &[usize]) -> String {
    let numbers: Vec<_> = cores.iter().map(usize::to_string).collect();
    format!("core{} {}", if cores.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

/// The cores to sample: those asked for, or the target cores.
fn asked_cores(
    asked: Option<&[usize]>,
    borrowed: usize,
    targets: &[usize],
    available: &[usize],
) -> Result<Vec<usize>, ConfigError> {
    let mut cores = asked.unwrap_or(targets).to_vec();
    cores.sort_unstable();
    cores.dedup();
    let wrong = |message| Err(ConfigError::new("cores", message));
    let allowed: Vec<_> = available.iter().copied().filter(|core| *core != borrowed).collect();
    if cores.contains(&borrowed) {
        let allowed = named(&allowed);
        return wrong(format!(
            "found {borrowed}, the borrowed core, whose time `picnic run` reports by function; \
             allowed: {allowed}"
        ));
    }
    match cores.iter().find(|core| !available.contains(core)) {
        Some(core) => wrong(format!("found {core}, allowed: {}", named(&allowed))),
        None if cores.is_empty() => wrong(format!("found none, allowed: {}", named(&allowed))),
        None => Ok(cores),
    }
}

fn of_samples(
    samples: &Samples,
    own: u32,
    (cores, borrowed, seconds, packets): (Vec<usize>, Option<usize>, f64, u64),
    events: impl Iterator<Item = (String, u64)>,
    busy_fraction_of_kernel: Option<f64>,
) -> anyhow::Result<Breakdown> {
    let table = Components::built_in()?;
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut stacks = Stacks::new();
    let mut all = 0_u64;
    for sample in &samples.0 {
        let functions = sample.frames.iter().rev().map(|frame| match frame.is_kernel {
            true => format!("{}{KERNEL}", frame.function),
            false => frame.function.clone(),
        });
        let core = sample.core;
        let whose = match (borrowed == Some(core), cores.contains(&core)) {
            (true, _) => format!("borrowed core {core}"),
            (false, true) => format!("core {core}"),
            (false, false) => continue,
        };
        if cores.contains(&core) {
            *counts.entry(table.of(sample, own)).or_default() += 1;
            all += 1;
        }
        let mut stack = vec![whose, sample.command.clone()];
        stack.extend(functions);
        // Frames without a symbol, one on the other, tell nothing.
        stack.dedup_by(|this, last| this == last && this.starts_with(UNKNOWN));
        *stacks.entry(stack).or_default() += 1;
    }
    let share = |component| counts.get(component).copied().unwrap_or(0) as f64 / all.max(1) as f64;
    let core_ns = seconds * 1e9 * cores.len() as f64;
    let components = parts(ORDER.map(|component| (component, share(component))), core_ns, packets);
    let events = events.map(|(kind, count)| event(kind, count, packets)).collect();
    let samples = Some(all);
    Ok(Breakdown {
        source: "measured",
        cores,
        seconds,
        packets,
        samples,
        components,
        events,
        busy_fraction_of_kernel,
        stacks,
    })
}

fn parts(
    shares: impl IntoIterator<Item = (&'static str, f64)>,
    core_ns: f64,
    packets: u64,
) -> Vec<Part> {
    let of = |(component, fraction): (&'static str, f64)| Part {
        component,
        fraction,
        ns_per_packet: (packets != 0).then(|| fraction * core_ns / packets as f64),
    };
    shares.into_iter().map(of).collect()
}

fn event(kind: String, count: u64, packets: u64) -> Event {
    Event { kind, count, per_packet: (packets != 0).then(|| count as f64 / packets as f64) }
}

/// The same on a modelled machine, in virtual time: no traffic but the card file's own.
///
/// # Errors
/// The card is wrong, or needs more than the machine has.
pub fn modelled(
    file: &CardFile,
    registries: Registries,
    profile: &Profile,
    seconds: f64,
) -> anyhow::Result<Breakdown> {
    let registries = picnic_sim::in_virtual_time(registries);
    let launch = Launch::new(file, registries);
    launch.check()?;
    let mut world = Simulation::on_machine(launch, file.card.seed, profile)?;
    let mut cores = world.monitor().placement.target_cores.clone();
    cores.sort_unstable();
    cores.dedup();
    world.run_until(Time::from_nanos((seconds * WARM_UP * 1e9) as u64));
    let before = Counts::of(&mut world, &cores);
    world.run_until(Time::from_nanos((seconds * (1.0 + WARM_UP) * 1e9) as u64));
    let after = Counts::of(&mut world, &cores);
    world.finish();
    let packets = after.packets - before.packets;
    let spent: Vec<Accounts> = after
        .accounts
        .iter()
        .zip(&before.accounts)
        .map(|(after, before)| after.since(before))
        .collect();
    let total: u64 = spent.iter().map(Accounts::total).sum();
    let share = |component: Component| {
        let ns: u64 = spent.iter().map(|accounts| accounts[component]).sum();
        (component.name(), ns as f64 / total.max(1) as f64)
    };
    let events = after.events.into_iter().zip(before.events);
    let events = events.map(|((kind, is), (_, was))| event(kind.into(), is - was, packets));
    Ok(Breakdown {
        source: "modelled",
        components: parts(Component::ALL.map(share), total as f64, packets),
        events: events.collect(),
        cores,
        seconds,
        packets,
        samples: None,
        busy_fraction_of_kernel: None,
        stacks: Stacks::new(),
    })
}

/// Counts of a model.
struct Counts {
    accounts: Vec<Accounts>,
    packets: u64,
    events: [(&'static str, u64); 3],
}

impl Counts {
    fn of(world: &mut Simulation, cores: &[usize]) -> Self {
        let accounts = cores.iter().filter_map(|core| world.accounts(*core)).collect();
        let host = world.host_figures().unwrap_or_default();
        let view = world.view();
        let delivered = view.queues.iter().map(|queue| queue.target.packets.get()).sum::<u64>();
        let sent = view.wires.iter().map(|wire| wire.counters.tx_packets.get()).sum::<u64>();
        let events = [
            ("context switches, all cores", host.switches),
            ("interrupts of the card", host.interrupts),
            ("wake-ups of processes on other cores", host.remote_wakes),
        ];
        Counts { accounts, packets: delivered + sent, events }
    }
}

#[cfg(test)]
mod tests;
