//! Task sets that do under EDF what the paper's did: a fit, and what it predicts.
//!
//! Under EDF the paper's processor idles for 28.6 % of the time, and the time between two invocations
//! is 22.9 ms for its task A, deviating by about as much, and 26.0 ms for its task B, deviating by a
//! tenth. A set is drawn as all are. The shortest two tasks that are not periodic become A and B:
//! they are first by priority, and A thinks for exponentially distributed times, B for constant ones.
//! Three numbers are fitted to runs under EDF alone: the mean times that A and B think, and a factor
//! for those of all others. A set that does not fit is drawn again. All figures under other
//! schedulers are predictions.

use super::CONTENDERS;
use super::draw::TaskSet;
use super::processor::{Invocation, Run};
use picnic_lab::compare::Moments;
use picnic_lab::experiment::LabError;
use picnic_lab::fit::Basis;
use picnic_lab::outcome::{Figure, Outcome, Point, Series};
use picnic_lab::plot::Plot;
use std::sync::Arc;

/// A task of the paper, under EDF.
struct Like {
    name: &'static str,
    /// Mean time between two invocations.
    mean_ms: f64,
    /// Standard deviation, as a share of the mean.
    deviation: [f64; 2],
    /// Mean under EDF++.
    plus_ms: f64,
}

const LIKE: [Like; 2] = [
    Like { name: "A", mean_ms: 22.9, deviation: [0.75, 1.25], plus_ms: 22.9 * (1.0 - 0.53) },
    Like { name: "B", mean_ms: 26.0, deviation: [0.05, 0.15], plus_ms: 26.0 * (1.0 - 0.57) },
];
/// Share of the time that the paper's processor idles under EDF.
const IDLE: f64 = 0.286;
/// How near a fitted set has to be: to the share of idle time, and to the means, as a share.
const NEAR: (f64, f64) = (0.01, 0.03);
/// Runs under EDF after which a set does not fit.
const MOST_RUNS: usize = 20;
/// Change of the idle share if the others think e times as long. A first guess is enough: each run
/// corrects the one before.
const SLOPE: f64 = 0.06;
/// Share of the difference that one run corrects.
const STEP: f64 = 0.7;
/// Invocations that are drawn, as far as there are.
const DRAWN: usize = 60;

/// A set with the places of its tasks A and B.
pub(super) struct Matched {
    pub(super) set: Arc<TaskSet>,
    pub(super) tasks: [usize; 2],
}

/// Fits a drawn set; none if it does not fit. `run` runs it under EDF.
pub(super) fn fit(
    mut set: TaskSet,
    run: &mut dyn FnMut(&Arc<TaskSet>) -> Result<Run, LabError>,
) -> Result<Option<Matched>, LabError> {
    let mut others: Vec<usize> = (0..set.tasks.len()).collect();
    others.retain(|&task| set.tasks[task].period_ns.is_none());
    others.sort_by_key(|&task| set.tasks[task].bounds_ns.iter().sum::<u64>());
    let [a, b, rest @ ..] = &others[..] else { return Ok(None) };
    let tasks = [*a, *b];
    for (&task, like) in tasks.iter().zip(&LIKE) {
        let own = &mut set.tasks[task];
        (own.priority, own.think_ns) = (1, like.mean_ms * 0.75e6);
    }
    set.tasks[*b].is_regular = true;
    for _ in 0..MOST_RUNS {
        let tried = Arc::new(set.clone());
        let found = run(&tried)?;
        let idle = 1.0 - found.busy_fraction;
        let between = tasks.map(|task| between(&found.of_tasks[task]));
        let mut is_near = (idle - IDLE).abs() < NEAR.0;
        for ((&task, like), between) in tasks.iter().zip(&LIKE).zip(&between) {
            let Some(mean_ms) = between.mean() else { return Ok(None) };
            is_near &= (mean_ms / like.mean_ms - 1.0).abs() < NEAR.1;
            let own = &mut set.tasks[task].think_ns;
            *own = (*own + STEP * (like.mean_ms - mean_ms) * 1e6).max(0.0);
        }
        if is_near {
            let deviates = between.iter().zip(&LIKE).all(|(between, like)| {
                let share = between.standard_deviation().zip(between.mean());
                let [low, high] = like.deviation;
                share.is_some_and(|(deviation, mean)| (low..=high).contains(&(deviation / mean)))
            });
            return Ok(deviates.then_some(Matched { set: tried, tasks }));
        }
        let factor = ((IDLE - idle) / SLOPE).clamp(-1.0, 1.0).exp();
        rest.iter().for_each(|&task| set.tasks[task].think_ns *= factor);
    }
    Ok(None)
}

fn moments(values: impl Iterator<Item = f64>) -> Moments {
    let mut moments = Moments::default();
    values.for_each(|value| moments.add(value));
    moments
}

fn between(invocations: &[Invocation]) -> Moments {
    moments(invocations.iter().filter_map(|one| one.between_ms))
}

/// Adds A and B of fitted sets, one value per set; of the first set each invocation of A, if wanted.
pub(super) fn add(
    outcome: &mut Outcome,
    runs: &[Vec<Run>; CONTENDERS.len()],
    tasks: &[[usize; 2]],
    with_invocations: bool,
) {
    for (which, like) in LIKE.iter().enumerate() {
        for (contender, runs) in CONTENDERS.iter().zip(runs) {
            let of = |list: fn(&[Invocation]) -> Moments, part: fn(&Moments) -> Option<f64>| {
                let own = runs.iter().zip(tasks).map(|(run, tasks)| &run.of_tasks[tasks[which]]);
                // Zero without data, so that each set has its place.
                own.map(|own| part(&list(own)).unwrap_or(0.0)).collect::<Vec<_>>()
            };
            let response = |list: &[Invocation]| moments(list.iter().map(|one| one.response_ms));
            let deviation = Moments::standard_deviation;
            let mut point = Point::at("task", like.name);
            point.labels.extend(contender.point().labels);
            let point = point
                .with(Figure::of("between_mean_ms", of(between, Moments::mean)))
                .with(Figure::of("between_stddev_ms", of(between, deviation)))
                .with(Figure::of("response_mean_ms", of(response, Moments::mean)))
                .with(Figure::of("response_stddev_ms", of(response, deviation)));
            outcome.series("tasks").push(point);
        }
    }
    if !with_invocations {
        return;
    }
    for (contender, runs) in CONTENDERS.iter().zip(runs) {
        let (Some(run), Some([a, _])) = (runs.first(), tasks.first()) else { return };
        let named = contender.name();
        for (number, one) in run.of_tasks[*a].iter().enumerate().skip(1).take(DRAWN) {
            let point = Point::at("scheduler", named.clone()).and("invocation", number);
            let point = point.with(Figure::one("between_ms", one.between_ms));
            let point = point.with(Figure::one("response_ms", one.response_ms));
            outcome.series("invocations").push(point);
        }
    }
}

/// Adds the figures of tasks A and B under each scheduler, with the changes against EDF, and the
/// fitted and predicted figures of the paper.
pub(super) fn conclude(outcome: &mut Outcome, found: &Outcome) {
    let series = |name: &str| found.series.iter().find(|series| series.name == name);
    let Some(tasks) = series("tasks") else { return };
    let of = |point: &Point, key: &str| point.figure(key).map_or(Vec::new(), |one| one.values);
    for points in tasks.points.chunks(CONTENDERS.len()) {
        let name = points[0].labels["task"].as_str().unwrap_or_default().to_lowercase();
        for (index, point) in points.iter().enumerate() {
            let mut row = Point::with_labels(point.labels.clone());
            for (key, label) in [("between", "between"), ("response", "response")] {
                let [mean, deviation] =
                    ["mean", "stddev"].map(|part| of(point, &format!("{key}_{part}_ms")));
                let plain = of(&points[0], &format!("{key}_mean_ms"));
                let changes = mean.iter().zip(&plain).map(|(own, plain)| own / plain - 1.0);
                let change = Figure::of(&format!("{key}_change"), changes.collect());
                let mean = Figure::of(&format!("{key}_mean_ms"), mean).called(label);
                let deviation =
                    Figure::of(&format!("{key}_stddev_ms"), deviation).called("deviation");
                let named = format!("task {}, {label}", name.to_uppercase());
                match (index, key) {
                    (0, "between") => {
                        let cost = format!("time that {} thinks", name.to_uppercase());
                        let keyed = mean.clone().keyed(&format!("matched_edf_{name}_between_ms"));
                        outcome.add(fitted(keyed, &named, &cost));
                    }
                    (1, _) => {
                        let keyed = change.clone().keyed(&format!("matched_{name}_{key}_change"));
                        outcome.add(predicted(keyed, &named));
                    }
                    _ => {}
                }
                row = row.with(mean).with(deviation).with(change.in_detail());
            }
            outcome.series("tasks").push(row);
        }
    }
    if let Some(Series { points, .. }) = series("invocations") {
        points.iter().for_each(|point| outcome.series("invocations").push(point.clone()));
    }
    outcome.note(
        "matched: sets whose EDF run idles 28.6 ± 1 %, with a task like the paper's A (22.9 ms \
         between two invocations, deviation near the mean) and B (26.0 ms, a tenth). Fitted: the \
         times that A, B and the others think. All figures under edf-plus are predictions",
    );
}

/// A figure that the fit was made for.
pub(super) fn fitted(figure: Figure, label: &str, what: &str) -> Figure {
    let basis = Basis { fitted: Some(what.into()), ..Basis::default() };
    figure.called(label).in_detail().resting_on(basis)
}

/// A figure that follows from the fit.
pub(super) fn predicted(figure: Figure, label: &str) -> Figure {
    figure.called(label).in_detail().resting_on(Basis::default())
}

/// The paper's figures 2 and 3.
pub(super) fn plots() -> Vec<Plot> {
    let of_task = |like: &Like| {
        let title = format!("figure 3, task {}: between invocations, ready to end", like.name);
        let plot = Plot::bars(&title, "tasks", "between_mean_ms").and("response_mean_ms");
        let plot = plot.only("task", like.name).marked("paper: edf", None, like.mean_ms);
        plot.marked("paper: edf++", None, like.plus_ms)
    };
    let title = "figure 2, task A: time between invocations";
    let second = Plot::lines(title, "invocations", "invocation", "between_ms").by("scheduler");
    [second].into_iter().chain(LIKE.iter().map(of_task)).collect()
}
