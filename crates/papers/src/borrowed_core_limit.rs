//! The limit of one borrowed core: minimum-size packets to several queues, each polled by a core.
//!
//! First, for each number of queues, the generator offers as much as the borrowed core takes: the
//! peak. Then packets arrive at random at shares of this peak, and latency is recorded from arrival
//! to the target routine. Nothing sleeps, so that latencies have no wake-up in them. The generator
//! reuses its frames and runs on the borrowed core as well: with real wires, the core has less to do.
//!
//! Source: Shenango (NSDI 2019) and Caladan (OSDI 2020), whose iokernel is one core that passes
//! packets to all others. Their figures are of other machines and stacks.

use super::cards::{CardRun, within};
use super::columns::{self, Column, hidden, shown};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::median;
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Point, Source};
use picnic_lab::paper::{Row, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_machine::topology::cores;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// A frame of 64 bytes without its check sequence.
const FRAME_BYTES: u16 = 60;
/// Packets that may wait at the wire, as in the ring of a NIC.
const BACKLOG: u32 = 1024;
/// Latency is flat while its 99th percentile is at most this many times that of the lowest load.
const FLAT: f64 = 10.0;
/// The label of the peak, and that of loads.
const PART: &str = "part";
const LOAD: &str = "load_ratio";

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs: only on the host
    pub world: World,
    /// Numbers of queues, each with its own target core
    pub queues: Vec<u16>,
    /// Offered loads, as shares of the peak
    pub loads: Vec<f64>,
    /// How long each load is offered, in milliseconds; 300 if not said: less for --quick
    pub milliseconds: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Host,
            queues: vec![1, 2, 4, 6, 8, 12],
            loads: vec![0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0],
            milliseconds: None,
        }
    }
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        host_only(self.world)?;
        if self.queues.is_empty() {
            return Err(ConfigError::new("queues", "missing, expected one or more"));
        }
        self.queues.iter().try_for_each(|&queues| within("queues", queues.into(), 1.0, 256.0))?;
        self.loads.iter().try_for_each(|&load| within("loads", load, 0.01, 10.0))?;
        within("milliseconds", self.milliseconds.unwrap_or(1) as f64, 1.0, 10_000.0)
    }
}

/// Refuses the sim world, for an experiment whose machine is not modelled.
pub(crate) fn host_only(world: World) -> Result<(), ConfigError> {
    match world {
        World::Host => Ok(()),
        World::Sim => Err(ConfigError::new("world", "found \"sim\", allowed: \"host\"")),
    }
}

/// The experiment.
#[derive(Debug)]
pub struct BorrowedCoreLimit(Settings);

impl Component for BorrowedCoreLimit {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "borrowed-core-limit";
    const HELP: &'static str = "packets/s of a borrowed core by queues, and latency by load";

    fn example(_: &Path) -> Option<String> {
        Some("queues = [1]\nloads = [0.1, 0.5]\nmilliseconds = 5".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        Ok(Box::new(BorrowedCoreLimit(settings)))
    }
}

impl Reproduces for BorrowedCoreLimit {
    const PAPER: Row = row(
        "Shenango, Caladan",
        "64-byte packets by one core to N others, as their iokernel does",
        &[
            words("packets/s of one core", "of another machine").ours("peak_pps"),
            words("with the most queues, to the peak", "of another machine")
                .ours("most_queues_to_peak_ratio"),
            words("p99 flat up to a share of the peak", "of another machine")
                .ours("flat_up_to_fraction"),
        ],
    );
}

/// The card of a number of targets, all busy polling; `rate` is from [`at_rate`], or empty for the peak.
fn card(targets: &[usize], rate: &str) -> String {
    format!(
        "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nsize = {FRAME_BYTES}\n\
         flows = 4096\nframes = \"reuse\"\n{rate}[[rx]]\nfunction = \"rss\"\n[host]\n\
         attachment = \"app\"\nqueues = {}\ntarget_cores = {targets:?}\n[interrupt]\n\
         poll_usecs = 1000000\n",
        targets.len()
    )
}

/// The wire's keys at a load.
fn at_rate(rate_pps: f64) -> String {
    format!("rate_pps = {rate_pps}\narrivals = \"random\"\nbacklog = {BACKLOG}\n")
}

/// The cards of all numbers of queues, at the peak and at a load.
#[cfg(test)]
pub(crate) fn all_cards() -> Vec<String> {
    let of = |&queues: &u16| {
        let targets: Vec<usize> = (0..queues.into()).collect();
        [card(&targets, ""), card(&targets, &at_rate(1e6))]
    };
    Settings::default().queues.iter().flat_map(of).collect()
}

/// Columns of each number of queues.
const PEAKS: [Column; 4] = [
    shown("delivered_pps", "delivered"),
    shown("borrowed_cycles_per_packet", "cycles per packet"),
    hidden("borrowed_cache_misses_per_packet", "misses"),
    shown("busiest_target_fraction", "busiest target core"),
];
/// Columns of each load.
const LOADS: [Column; 5] = [
    shown("delivered_pps", "delivered"),
    shown("dropped_fraction", "dropped"),
    shown("p50_ns", "p50"),
    shown("p99_ns", "p99"),
    shown("p999_ns", "p999"),
];

impl Experiment for BorrowedCoreLimit {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let of = |&queues: &u16| {
            let at = || Spec::at("queues", queues).measured(effort.repeats());
            let peak = at().and(PART, "peak");
            let follows = Some(peak.name());
            let by_load = |&load: &f64| Spec { follows: follows.clone(), ..at().and(LOAD, load) };
            let loads: Vec<_> = self.0.loads.iter().map(by_load).collect();
            [vec![peak], loads].concat()
        };
        self.0.queues.iter().flat_map(of).collect()
    }

    fn cores(&self, point: &Spec) -> usize {
        point.number("queues") as usize + 1
    }

    fn measure(&self, point: &Spec, _: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let queues = point.number("queues") as usize;
        let rate = match point.word(PART) {
            "peak" => String::new(),
            _ => {
                let peak = run.followed.map(|found| median(&found.values(0, "delivered_pps")));
                let Some(peak) = peak.filter(|&peak| peak > 0.0) else {
                    return Err(LabError::Failed("nothing was delivered at the peak".into()));
                };
                let rate_pps = (peak * point.number(LOAD)).round();
                at_rate(rate_pps)
            }
        };
        let targets: Vec<_> = cores().into_iter().take(queues).collect();
        let text = card(&targets, &rate);
        let usual = run.effort.of(100, 300, 1000);
        let time = Duration::from_millis(self.0.milliseconds.unwrap_or(usual));
        let card = CardRun::of(World::Host, &text, run.seed, time);
        let passed = CardRun { warm_up: time / 3, ..card }.run_until_delivered()?;
        let dropped: u64 = passed.report.drops.values().sum();
        let offered = dropped + passed.report.ledger.delivered;
        let latency = &passed.report.latency_ns;
        let awake = passed.report.target_cores.iter().map(|core| 1.0 - core.asleep_fraction);
        let mut outcome = Outcome::of(Source::Measured);
        outcome.add(Figure::one("delivered_pps", passed.delivered_pps));
        outcome.add(Figure::one("dropped_fraction", dropped as f64 / offered.max(1) as f64));
        for (key, value) in
            [("p50_ns", latency.p50), ("p99_ns", latency.p99), ("p999_ns", latency.p999)]
        {
            outcome.add(Figure::one(key, value.map(|ns| ns as f64)));
        }
        outcome.add(Figure::one("busiest_target_fraction", awake.fold(0.0, f64::max)));
        passed.per_packet().into_iter().for_each(|figure| outcome.add(figure));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut outcome = Outcome::with_settings(Source::Measured, &self.0);
        let (peaks, loads): (Vec<_>, Vec<_>) =
            points.iter().partition(|found| found.spec.word(PART) == "peak");
        let rate = |found: &MeasuredPoint| median(&found.values(0, "delivered_pps"));
        let queues = |found: &MeasuredPoint| found.spec.number("queues");
        let best = peaks.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)));
        let values = best.map_or(Vec::new(), |found| found.values(0, "delivered_pps"));
        outcome.add(Figure::of("peak_pps", values).called("packets/s of the borrowed core"));
        let most = peaks.iter().max_by(|a, b| queues(a).total_cmp(&queues(b)));
        let share = best.zip(most).map(|(best, most)| rate(most) / rate(best));
        outcome.add(
            Figure::one("most_queues_to_peak_ratio", share)
                .called("with the most queues, to the peak"),
        );
        let flat = most.and_then(|most| flat_up_to(&loads, queues(most)));
        outcome.add(
            Figure::one("flat_up_to_fraction", flat)
                .called("p99 within 10 times its least, up to load"),
        );
        for found in peaks {
            let point = Point::at("queues", queues(found) as u64);
            outcome.series("peaks").push(columns::row(point, (found, 0), &PEAKS));
        }
        for found in loads {
            let point = Point::with_labels(found.spec.labels.clone());
            outcome.series("loads").push(columns::row(point, (found, 0), &LOADS));
        }
        outcome.note(
            "the borrowed core makes the packets as well: with real wires it would be less loaded",
        );
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::lines("packets/s by queues", "peaks", "queues", "delivered_pps"),
            Plot::lines("99th percentile by load", "loads", LOAD, "p99_ns").by("queues"),
        ]
    }
}

/// The highest load up to which latency is flat, of the points with this number of queues.
fn flat_up_to(loads: &[&MeasuredPoint], queues: f64) -> Option<f64> {
    let of = loads.iter().filter(|found| found.spec.number("queues") == queues);
    let mut own: Vec<_> =
        of.map(|found| (found.spec.number(LOAD), median(&found.values(0, "p99_ns")))).collect();
    own.sort_by(|a, b| a.0.total_cmp(&b.0));
    let least = own.first()?.1;
    let flat = own.iter().take_while(|(_, p99)| *p99 <= least * FLAT);
    flat.last().map(|(load, _)| *load)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_share_and_flat_part_follow_from_the_points() {
        let point = |queues: u16, load: Option<f64>, rate: f64, p99: f64| {
            let spec = Spec::at("queues", queues);
            let spec = match load {
                Some(load) => spec.and(LOAD, load),
                None => spec.and(PART, "peak"),
            };
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::of("delivered_pps", vec![rate; 3]));
            outcome.add(Figure::of("p99_ns", vec![p99; 3]));
            MeasuredPoint { spec, sides: vec![outcome] }
        };
        let points = [
            point(1, None, 8e6, 0.0),
            point(1, Some(0.1), 8e5, 300.0),
            point(4, None, 10e6, 0.0),
            point(8, None, 9e6, 0.0),
            point(8, Some(0.8), 7.2e6, 4000.0),
            point(8, Some(0.1), 0.9e6, 500.0),
            point(8, Some(1.0), 9e6, 80_000.0),
        ];
        let outcome = BorrowedCoreLimit(Settings::default()).conclude(&points);
        assert_eq!(outcome.median("peak_pps"), Some(10e6));
        assert_eq!(outcome.median("most_queues_to_peak_ratio"), Some(0.9));
        assert_eq!(outcome.median("flat_up_to_fraction"), Some(0.8));
        let sim = Settings { world: World::Sim, ..Settings::default() };
        assert_eq!(sim.validate().unwrap_err().key, "world");
    }
}
