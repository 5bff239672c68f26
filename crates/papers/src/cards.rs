//! Runs a card for a while, on virtual cores or on this machine's.

use picnic_control::report::Report;
use picnic_control::{Launch, Registries, Running};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_engine::view::View;
use picnic_filter::Filters;
use picnic_lab::counters::{Counted, Counters};
use picnic_lab::experiment::{LabError, Spec, World};
use picnic_lab::outcome::Figure;
use picnic_machine::napi::schedule;
use picnic_sim::machine::Profile;
use picnic_sim::{CostModel, Simulation};
use std::collections::BTreeSet;
use std::time::Duration;

/// A card to run.
pub(super) struct CardRun<'a> {
    pub(super) world: World,
    /// The card file.
    pub(super) text: &'a str,
    /// Filters on the card and at the driver.
    pub(super) filters: Option<Filters>,
    /// The costs of work in the sim world.
    pub(super) costs: CostModel,
    /// The machine in the sim world, whose costs then apply.
    pub(super) machine: Option<Profile>,
    /// Seed of random choices in the sim world.
    pub(super) seed: u64,
    /// Time until rings and rates have settled.
    pub(super) warm_up: Duration,
    /// The measured time.
    pub(super) time: Duration,
}

/// The result of a run.
pub(super) struct Passed {
    /// Offered to the wires, including shed packets, during the measured time.
    pub(super) offered_pps: f64,
    /// Received by the hosts, during the measured time.
    pub(super) delivered_pps: f64,
    /// For the whole run.
    pub(super) report: Report,
    /// Cycles and cache misses during the measured time; only in the host world.
    counted: Option<ByCore>,
    /// Run time of the targets' threads per packet delivered, in nanoseconds, from the kernel's
    /// counts during the measured time; only in the host world.
    pub(super) target_ns_per_packet: Option<f64>,
}

/// Counts of hardware counters, if available.
struct ByCore {
    borrowed: Option<Counted>,
    targets: Option<Counted>,
    /// Packets delivered in that time.
    packets: u64,
}

impl<'a> CardRun<'a> {
    /// A run without filters and warm-up, at the usual costs.
    pub(super) fn of(world: World, text: &'a str, seed: u64, time: Duration) -> Self {
        let (costs, warm_up) = (CostModel::default(), Duration::ZERO);
        CardRun { world, text, filters: None, costs, machine: None, seed, warm_up, time }
    }

    /// Runs it; again, for longer, if nothing was delivered: a core may be preempted for all of a
    /// short run.
    pub(super) fn run_until_delivered(mut self) -> Result<Passed, LabError> {
        let (warm_up, time) = (self.warm_up, self.time);
        let mut passed = self.run()?;
        for times in [10, 100] {
            if passed.delivered_pps == 0.0 {
                (self.warm_up, self.time) = (warm_up * times, time * times);
                passed = self.run()?;
            }
        }
        Ok(passed)
    }

    /// Runs it.
    pub(super) fn run(&self) -> Result<Passed, LabError> {
        let failed = |error: &dyn std::fmt::Display| LabError::Failed(error.to_string());
        let file = parsed(self.text)?;
        let launch = |registries| {
            let launch = Launch::new(&file, registries);
            match &self.filters {
                Some(filters) => launch.filters(filters.clone()),
                None => launch,
            }
        };
        let mut running: Box<dyn Running> = match self.world {
            World::Sim => {
                let launch = launch(picnic_sim::registries());
                let made = match &self.machine {
                    Some(machine) => Simulation::on_machine(launch, self.seed, machine),
                    None => Simulation::new(launch, self.seed, self.costs.clone()),
                };
                Box::new(made.map_err(|error| failed(&error))?)
            }
            World::Host => {
                let launch = launch(registries());
                launch.start_alone().map_err(|error| failed(&error))?
            }
        };
        running.pass(self.warm_up);
        let counters = (self.world == World::Host).then(|| {
            let placement = running.placement();
            let targets: BTreeSet<usize> = placement.target_cores.iter().copied().collect();
            [Counters::start([placement.borrowed_core]), Counters::start(targets)]
        });
        let is_host = self.world == World::Host;
        let ran_before = is_host.then(|| targets_ran_ns(&*running)).flatten();
        let (start, before) = (std::time::Instant::now(), counts(running.view()));
        running.pass(self.time);
        let seconds = match self.world {
            World::Sim => self.time.as_secs_f64(),
            World::Host => start.elapsed().as_secs_f64(),
        };
        let after = counts(running.view());
        let packets = after.1 - before.1;
        let ran_ns = ran_before.and_then(|before| Some(targets_ran_ns(&*running)? - before));
        let counted = counters.map(|counters| {
            let [borrowed, targets] = counters.map(|counters| counters.ok()?.stop().ok());
            ByCore { borrowed, targets, packets }
        });
        let report = running.stop().map_err(|error| failed(&error))?;
        if !report.ledger.balanced() {
            return Err(LabError::Failed("the ledger does not balance: this is a bug".into()));
        }
        Ok(Passed {
            offered_pps: (after.0 - before.0) as f64 / seconds,
            delivered_pps: packets as f64 / seconds,
            report,
            counted,
            target_ns_per_packet: ran_ns
                .filter(|_| packets != 0)
                .map(|ns| ns as f64 / packets as f64),
        })
    }
}

/// A card file with all sections of the host world, in any world.
fn parsed(text: &str) -> Result<CardFile, ConfigError> {
    picnic_host::sections().parse(text, None)
}

/// The host world, with tasks.
fn registries() -> Registries {
    Registries { tasks: picnic_tasks::registry::TASKS, ..picnic_host::registries() }
}

/// Run time of the targets' threads so far, in nanoseconds, if the kernel reports it.
fn targets_ran_ns(running: &dyn Running) -> Option<u64> {
    let cores = running.monitor().report().target_cores.into_iter();
    cores.map(|core| Some(schedule(i32::try_from(core.thread?).ok()?)?.run_ns)).sum()
}

/// Packets received, including shed ones, and delivered.
fn counts(view: &View) -> (u64, u64) {
    let received = view.wires.iter();
    let received = received.map(|w| w.counters.rx_packets.get() + w.counters.rx_shed.get()).sum();
    let delivered = view.queues.iter().map(|queue| queue.target.packets.get()).sum();
    (received, delivered)
}

impl Passed {
    /// Share of time that the target cores worked.
    pub(super) fn target_busy(&self) -> f64 {
        let cores = &self.report.target_cores;
        cores.iter().map(|core| 1.0 - core.asleep_fraction).sum::<f64>() / cores.len().max(1) as f64
    }

    /// Cycles and cache misses per packet delivered, of the borrowed core and of all target cores:
    /// "unavailable" without hardware counters, nothing in the sim world.
    pub(super) fn per_packet(&self) -> Vec<Figure> {
        let Some(ByCore { borrowed, targets, packets }) = &self.counted else { return Vec::new() };
        let figures = |core: &str, counted: &Option<Counted>| {
            let share = |of: fn(&Counted) -> f64| {
                counted.as_ref().filter(|_| *packets != 0).map(|found| of(found) / *packets as f64)
            };
            [
                Figure::one(&format!("{core}_cycles_per_packet"), share(|found| found.cycles)),
                Figure::one(
                    &format!("{core}_cache_misses_per_packet"),
                    share(|found| found.cache_misses),
                ),
            ]
        };
        [figures("borrowed", borrowed), figures("target", targets)].concat()
    }

    /// Interrupts taken by the target cores per second.
    pub(super) fn interrupts_per_second(&self) -> f64 {
        let taken: u64 = self.report.queues.iter().map(|queue| queue.interrupts).sum();
        taken as f64 / self.report.duration_s
    }
}

/// Repeats of a point: in the sim world one is as good as many.
pub(super) fn repeated(spec: Spec, world: World, repeats: u32) -> Spec {
    match world {
        World::Sim => spec,
        World::Host => spec.measured(repeats),
    }
}

/// Checks the range of a number.
pub(super) fn within(key: &str, found: f64, low: f64, high: f64) -> Result<(), ConfigError> {
    if (low..=high).contains(&found) {
        return Ok(());
    }
    Err(ConfigError::new(key, format!("found {found}, allowed: {low} to {high}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{antagonist, borrowed_core_limit, picnic_scaling};
    use picnic_core::time::Time;

    /// These cards need more cores than a small machine has: virtual ones build the same parts.
    #[test]
    fn cards_for_more_cores_than_this_machine_has_are_built_and_deliver() {
        let texts = antagonist::all_cards()
            .into_iter()
            .chain(borrowed_core_limit::all_cards())
            .chain(picnic_scaling::all_cards());
        for text in texts {
            let file = parsed(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let launch = Launch::new(&file, picnic_sim::in_virtual_time(registries()));
            let made = Simulation::new(launch, 1, CostModel::default());
            let mut world = made.unwrap_or_else(|error| panic!("{error}\n{text}"));
            world.run_until(Time::from_nanos(300_000));
            let (_, delivered) = counts(world.view());
            assert!(delivered > 0 && world.ledger().balanced(), "{text}");
        }
    }
}
