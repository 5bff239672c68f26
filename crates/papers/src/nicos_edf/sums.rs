//! The figures of runs, stored one value per set, and their sums over all sets.

use super::CONTENDERS;
use super::processor::Run;
use picnic_lab::compare::Moments;
use picnic_lab::experiment::MeasuredPoint;
use picnic_lab::outcome::{Figure, Outcome, Point};

/// The figures of one scheduler over all sets.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) busy: Moments,
    pub(super) idle: Moments,
    pub(super) idles: Vec<f64>,
    pub(super) response: Moments,
    pub(super) between: Moments,
    pub(super) periodic_response: Moments,
    pub(super) jitter: Moments,
    pub(super) longest_jitter_ms: f64,
    pub(super) misses: u64,
    pub(super) missed_that_edf_kept: u64,
    pub(super) overruns: u64,
    pub(super) invocations: u64,
    pub(super) gains: Vec<f64>,
    pub(super) changes: Vec<f64>,
    pub(super) between_changes: Vec<f64>,
    pub(super) periodic_changes: Vec<f64>,
}

/// The figures of sets of one kind.
#[derive(Default)]
pub(super) struct Drawn {
    pub(super) sums: [Sum; CONTENDERS.len()],
    pub(super) sets: u64,
    pub(super) draw: u64,
    pub(super) refused: u64,
    pub(super) starved: u64,
    pub(super) unlike: u64,
    /// Tasks A and B of fitted sets.
    pub(super) tasks: Outcome,
}

/// The moments of a run, by their key.
type MomentsOf = (&'static str, fn(&Run) -> Moments);
const MOMENTS: [MomentsOf; 4] = [
    ("response", |run| run.response_ms),
    ("between_invocations", |run| run.between_ms),
    ("periodic_response", |run| run.periodic_response_ms),
    ("release_jitter", |run| run.jitter_ms),
];

/// The results of a scheduler's runs: a value each.
pub(super) fn raw(point: Point, runs: &[Run]) -> Point {
    let each = |key: &str, of: &dyn Fn(&Run) -> f64| Figure::of(key, runs.iter().map(of).collect());
    let mut point = point
        .with(each("busy_fraction", &|run| run.busy_fraction))
        .with(each("deadline_misses", &|run| run.misses as f64))
        .with(each("overruns", &|run| run.overruns as f64))
        .with(each("invocations", &|run| run.invocations as f64))
        .with(each("release_jitter_max_ms", &|run| run.longest_jitter_ms));
    for (key, of) in MOMENTS {
        // Zero without data, so that each set has its place.
        let mean = |run: &Run| of(run).mean().unwrap_or(0.0);
        let deviation = |run: &Run| of(run).standard_deviation().unwrap_or(0.0);
        point = point
            .with(each(&format!("{key}_mean_ms"), &mean))
            .with(each(&format!("{key}_stddev_ms"), &deviation))
            .with(each(&format!("{key}_count"), &|run| of(run).count() as f64));
    }
    point
}

/// Reads the `index`th run again.
fn read(point: &Point, index: usize) -> Run {
    let value = |key: &str| {
        let figure = point.figures.iter().find(|figure| figure.key == key);
        figure.and_then(|figure| figure.values.get(index)).copied().unwrap_or(0.0)
    };
    let [response_ms, between_ms, periodic_response_ms, jitter_ms] = MOMENTS.map(|(key, _)| {
        let (mean, deviation) =
            (value(&format!("{key}_mean_ms")), value(&format!("{key}_stddev_ms")));
        Moments::of(value(&format!("{key}_count")) as u64, mean, deviation)
    });
    Run {
        busy_fraction: value("busy_fraction"),
        misses: value("deadline_misses") as u64,
        overruns: value("overruns") as u64,
        invocations: value("invocations") as u64,
        longest_jitter_ms: value("release_jitter_max_ms"),
        response_ms,
        between_ms,
        periodic_response_ms,
        jitter_ms,
        ..Run::default()
    }
}

impl Drawn {
    pub(super) fn add(&mut self, found: &MeasuredPoint) {
        let count = |key: &str| found.values(0, key).iter().sum::<f64>() as u64;
        self.draw += count("sets_drawn");
        self.refused += count("sets_refused");
        self.starved += count("sets_starved");
        self.unlike += count("sets_unlike");
        let Some(side) = found.sides.first() else { return };
        let named = |name: &str| side.series.iter().find(|series| series.name == name);
        let Some(series) = named("schedulers") else { return };
        let mut of_tasks = Outcome::default();
        of_tasks.series = ["tasks", "invocations"].into_iter().filter_map(named).cloned().collect();
        self.tasks.repeat(of_tasks);
        for index in 0..found.spec.number("count") as usize {
            self.sets += 1;
            let runs: Vec<Run> = series.points.iter().map(|point| read(point, index)).collect();
            for (run, sum) in runs.iter().zip(&mut self.sums) {
                sum.add(run, &runs[0]);
            }
        }
    }
}

impl Sum {
    pub(super) fn add(&mut self, run: &Run, plain: &Run) {
        self.busy.add(run.busy_fraction);
        self.idle.add(1.0 - run.busy_fraction);
        self.idles.push(1.0 - run.busy_fraction);
        self.misses += run.misses;
        self.missed_that_edf_kept += run.misses.saturating_sub(plain.misses);
        self.overruns += run.overruns;
        self.invocations += run.invocations;
        self.response.merge(run.response_ms);
        self.between.merge(run.between_ms);
        self.jitter.merge(run.jitter_ms);
        self.longest_jitter_ms = self.longest_jitter_ms.max(run.longest_jitter_ms);
        self.periodic_response.merge(run.periodic_response_ms);
        self.gains.push(run.busy_fraction / plain.busy_fraction - 1.0);
        // Under EDF possibly nothing ran: then there is nothing to compare with.
        if let (Some(mean), Some(plain)) = (run.response_ms.mean(), plain.response_ms.mean()) {
            self.changes.push(mean / plain - 1.0);
        }
        if let (Some(mean), Some(plain)) = (run.between_ms.mean(), plain.between_ms.mean()) {
            self.between_changes.push(mean / plain - 1.0);
        }
        let (own, plain) = (run.periodic_response_ms.mean(), plain.periodic_response_ms.mean());
        if let (Some(mean), Some(plain)) = (own, plain) {
            self.periodic_changes.push(mean / plain - 1.0);
        }
    }
}
