//! A card beside programs that thrash caches or the memory bus, without and with tasks on the card.
//!
//! The card has one target core. All other cores run the antagonist of each side in turns: `cache`
//! reads and writes lines of a buffer as large as the last-level cache, in random order; `memory`
//! copies through a buffer that no cache holds; `alone` leaves these cores idle. The task takes 5 %
//! of the borrowed core, and admission has accepted it with this packet rate.
//!
//! Admission promises that only measured interruptions of a core cause drops: the experiment reports
//! the largest number of drops that no interruption explains.
//!
//! Source: Caladan (OSDI 2020), whose antagonists take cache and memory bandwidth from programs
//! beside them. Its figures are of other machines and stacks.

use super::borrowed_core_limit::host_only;
use super::cards::{CardRun, within};
use super::columns::{self, Column, hidden, shown};
use anyhow::Context;
use picnic_control::report::Report;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::median;
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Point, Source};
use picnic_lab::paper::{Row, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_machine::topology::{Topology, available, cores};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::thread::{CpuSet, sched_setaffinity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// More than caches hold.
const STREAM_BYTES: usize = 128 << 20;
/// The last-level cache, if the system does not say.
const USUAL_CACHE_BYTES: u64 = 32 << 20;
/// Bytes of a cache line, in words.
const LINE_WORDS: usize = 8;
/// Lines between two checks for the end.
const BATCH: usize = 4096;
/// The task: 5 % of the borrowed core.
const TASK: &str = "[[task]]\ntask = \"busy\"\nperiod_us = 1000\nsegments_ns = [50_000]\n";

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs: only on the host
    pub world: World,
    /// Packets per second, which admission reckons with
    pub rate_pps: u64,
    /// How long each side runs, in milliseconds; 500 if not said: less for --quick
    pub milliseconds: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { world: World::Host, rate_pps: 200_000, milliseconds: None }
    }
}

impl Settings {
    fn card(&self, has_task: bool, target: usize) -> String {
        let rate_pps = self.rate_pps;
        let text = format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nflows = 64\n\
             rate_pps = {rate_pps}\narrivals = \"random\"\nbacklog = 1024\n[[rx]]\n\
             function = \"rss\"\n[host]\nattachment = \"app\"\nqueues = 1\n\
             target_cores = [{target}]\n[pool]\nbuffers = 8192\n[os]\nline_rate_pps = {rate_pps}\n"
        );
        if has_task { text + TASK } else { text }
    }
}

/// The experiment.
#[derive(Debug)]
pub struct Antagonist(Settings);

impl Component for Antagonist {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "antagonist";
    const HELP: &'static str = "a card beside programs that thrash caches or memory";

    fn example(_: &Path) -> Option<String> {
        Some("rate_pps = 50000\nmilliseconds = 20".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        host_only(settings.world)?;
        within("rate_pps", settings.rate_pps as f64, 1000.0, 1e7)?;
        within("milliseconds", settings.milliseconds.unwrap_or(1) as f64, 1.0, 60_000.0)?;
        Ok(Box::new(Antagonist(settings)))
    }
}

impl Reproduces for Antagonist {
    const PAPER: Row = row(
        "Caladan",
        "p99 and drops of a card beside programs that take cache and memory bandwidth",
        &[
            words("p99 beside a program that thrashes the cache", "of another machine")
                .ours("cache_off_p99_ratio"),
            words("p99 beside a program that thrashes memory", "of another machine")
                .ours("memory_off_p99_ratio"),
            words("drops that no interruption explains", "none: admission promises it")
                .ours("unexplained_drops")
                .at_most(0.0, "most of a run"),
        ],
    );
}

/// The cards without and with tasks.
#[cfg(test)]
pub(crate) fn all_cards() -> Vec<String> {
    [false, true].map(|has_task| Settings::default().card(has_task, 0)).into()
}

/// The side compared against comes first.
const SIDES: [&str; 3] = ["alone", "cache", "memory"];
/// Columns of each side.
const COLUMNS: [Column; 7] = [
    shown("p50_ns", "p50"),
    shown("p99_ns", "p99"),
    shown("p999_ns", "p999"),
    hidden("delivered_pps", "delivered"),
    shown("dropped_count", "dropped"),
    shown("unexplained_count", "unexplained"),
    hidden("interrupted_fraction", "core interrupted"),
];

impl Experiment for Antagonist {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let spec =
            |tasks: &&str| Spec::at("tasks", *tasks).sides(&SIDES).measured(effort.repeats());
        ["off", "on"].iter().map(spec).collect()
    }

    fn cores(&self, _: &Spec) -> usize {
        3
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let all = cores();
        let [target, others @ .., _] = &all[..] else {
            return Err(LabError::Unavailable("needs 3 cores".into()));
        };
        let text = self.0.card(point.word("tasks") == "on", *target);
        let usual = run.effort.of(100, 500, 2000);
        let time = Duration::from_millis(self.0.milliseconds.unwrap_or(usual));
        let thrashing = Thrashing::start(side, others, &available().topology)?;
        let card = CardRun::of(World::Host, &text, run.seed, time);
        let passed = CardRun { warm_up: time / 5, ..card }.run();
        drop(thrashing);
        let passed = passed?;
        let (report, latency) = (&passed.report, &passed.report.latency_ns);
        let mut outcome = Outcome::of(Source::Measured);
        for (key, value) in
            [("p50_ns", latency.p50), ("p99_ns", latency.p99), ("p999_ns", latency.p999)]
        {
            outcome.add(Figure::one(key, value.map(|ns| ns as f64)));
        }
        outcome.add(Figure::one("delivered_pps", passed.delivered_pps));
        outcome.add(Figure::count("dropped_count", report.ledger.dropped));
        outcome.add(Figure::count("unexplained_count", unexplained(report)));
        let taken = report.borrowed_core.taken_away.as_ref();
        let taken = taken.map(|taken| taken.total_ns as f64 / 1e9 / report.duration_s);
        outcome.add(Figure::one("interrupted_fraction", taken));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut outcome = Outcome::with_settings(Source::Measured, &self.0);
        for found in points {
            let tasks = found.spec.word("tasks");
            let alone = found.values(0, "p99_ns");
            for (side, name) in SIDES.iter().enumerate().skip(1) {
                let both = found.values(side, "p99_ns").into_iter().zip(&alone);
                let ratios = both.map(|(p99, alone)| p99 / alone).collect();
                let figure = Figure::of(&format!("{name}_{tasks}_p99_ratio"), ratios);
                outcome.add(figure.called(&format!("p99 beside {name}, tasks {tasks}, to alone")));
            }
            for (side, name) in SIDES.iter().enumerate() {
                let point = Point::at("tasks", tasks).and("beside", *name);
                outcome.series("sides").push(columns::row(point, (found, side), &COLUMNS));
            }
        }
        let sides = points.iter().flat_map(|found| {
            (0..SIDES.len()).flat_map(|side| found.values(side, "unexplained_count"))
        });
        let most = Figure::one("unexplained_drops", sides.reduce(f64::max));
        outcome.add(most.called("most unexplained drops of a run"));
        let medians = points.iter().map(|found| median(&found.values(0, "dropped_count")));
        if medians.fold(0.0, f64::max) > 0.0 {
            outcome.note("packets are dropped without an antagonist, too: see the interruptions");
        }
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        vec![Plot::bars("99th percentile", "sides", "p99_ns")]
    }
}

/// Drops of a run that no measured interruption explains.
fn unexplained(report: &Report) -> u64 {
    let borrowed = report.borrowed_core.taken_away.as_ref().map_or(0, |taken| taken.drops);
    let targets = report.target_cores.iter().filter_map(|core| core.taken_away.as_ref());
    let explained = borrowed + targets.map(|taken| taken.drops).sum::<u64>();
    report.ledger.dropped.saturating_sub(explained)
}

/// Running antagonists; they end when dropped.
struct Thrashing {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Thrashing {
    /// Starts the antagonist of a side on each of these cores.
    fn start(side: &str, cores: &[usize], topology: &Topology) -> anyhow::Result<Self> {
        let mut all = Thrashing { stop: Arc::default(), threads: Vec::new() };
        let work: fn(&mut [u64], &AtomicBool) -> u64 = match side {
            "cache" => shuffle,
            "memory" => stream,
            _ => return Ok(all),
        };
        for &core in cores {
            let bytes = match side {
                "cache" => last_level_bytes(topology, core) as usize,
                _ => STREAM_BYTES,
            };
            let stop = Arc::clone(&all.stop);
            let thread = std::thread::Builder::new().name("antagonist".into()).spawn(move || {
                let mut own = CpuSet::new();
                own.set(core);
                // Elsewhere it would take the card's cores.
                if sched_setaffinity(None, &own).is_err() {
                    return 0;
                }
                work(&mut vec![1; bytes / size_of::<u64>()], &stop)
            });
            all.threads.push(thread.context("cannot start an antagonist")?);
        }
        Ok(all)
    }
}

impl Drop for Thrashing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The size of a core's largest cache.
fn last_level_bytes(topology: &Topology, core: usize) -> u64 {
    let caches = topology.cores.get(&core).into_iter().flat_map(|core| &core.caches);
    caches.filter_map(|cache| cache.size_bytes).max().unwrap_or(USUAL_CACHE_BYTES)
}

/// Changes lines in random order; returns their number.
fn shuffle(buffer: &mut [u64], stop: &AtomicBool) -> u64 {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let (lines, mut done) = ((buffer.len() / LINE_WORDS).max(1), 0);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            let word = random.random_range(0..lines) * LINE_WORDS;
            if let Some(word) = buffer.get_mut(word) {
                *word = black_box(word.wrapping_add(1));
            }
        }
        done += BATCH as u64;
    }
    done
}

/// Copies one half of a buffer to the other; returns the number of copied lines.
fn stream(buffer: &mut [u64], stop: &AtomicBool) -> u64 {
    let (from, to) = buffer.split_at_mut(buffer.len() / 2);
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        for (from, to) in from.chunks(BATCH * LINE_WORDS).zip(to.chunks_mut(BATCH * LINE_WORDS)) {
            to[..from.len()].copy_from_slice(from);
            black_box(&mut *to);
            done += (from.len() / LINE_WORDS) as u64;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_testing::wait_until;

    #[test]
    fn antagonists_work_until_they_are_dropped() {
        for side in SIDES {
            let all = Thrashing::start(side, &cores()[..1], &available().topology).unwrap();
            assert_eq!(all.threads.len(), usize::from(side != "alone"));
        }
        for work in [shuffle, stream] {
            // A thread that gets no core until it is stopped has done nothing.
            wait_until("it works", || {
                let stop = Arc::new(AtomicBool::new(false));
                let stops = Arc::clone(&stop);
                let thread = std::thread::spawn(move || work(&mut vec![1; 1 << 16], &stops));
                std::thread::sleep(Duration::from_millis(20));
                stop.store(true, Ordering::Relaxed);
                thread.join().unwrap() > 0
            });
        }
    }

    #[test]
    fn ratios_are_to_the_card_alone_and_the_worst_drops_count() {
        let side = |p99: f64, unexplained: u64| {
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::of("p99_ns", vec![p99; 3]));
            outcome.add(Figure::count("dropped_count", unexplained));
            outcome.add(Figure::count("unexplained_count", unexplained));
            outcome
        };
        let found = |tasks: &str, unexplained| MeasuredPoint {
            spec: Spec::at("tasks", tasks).sides(&SIDES),
            sides: vec![side(1000.0, 0), side(1500.0, unexplained), side(4000.0, 0)],
        };
        let outcome = Antagonist(Settings::default()).conclude(&[found("off", 0), found("on", 7)]);
        assert_eq!(outcome.median("cache_off_p99_ratio"), Some(1.5));
        assert_eq!(outcome.median("memory_on_p99_ratio"), Some(4.0));
        assert_eq!(outcome.median("unexplained_drops"), Some(7.0));
    }
}
