//! Fit on few figures, predict the rest, and say what each prediction depends on.
//!
//! ```no_run
//! use picnic_lab::experiment::Effort;
//! use picnic_lab::fit::{Measure, Testbed};
//! use picnic_lab::paper::number;
//! use picnic_lab::unit::Unit;
//! use picnic_sim::machine::{Cost, Profile};
//!
//! fn rate(profile: &Profile, _: Effort) -> Result<f64, String> {
//!     Ok(1e9 / profile.costs.get(Cost::CardPacket))
//! }
//! let full = number("core full", 350e3, Unit::PerSecond).ours("full_pps").modelled(rate);
//! let measures = vec![Measure { experiment: "latency", figure: full }];
//! let testbed = Testbed { profile: Profile::named("netburst")?, measures };
//! println!("{:#?}", testbed.predict(None, Effort::Quick, &mut |_, _| {}));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Only costs marked `fitted` change, at most two and no more than there are fit points. A fit point
//! proves nothing and has no verdict. Each prediction is repeated with every assumed cost at ±25 %,
//! and the fit is repeated each time: a fitted cost follows, so that varying it alone is left out.
//! If the verdict changes with a cost, it depends on that cost. Short runs show which verdicts may
//! change at all; only these are repeated in full.

use crate::compare::{Finding, PaperVerdict};
use crate::experiment::Effort;
use crate::outcome::Figure;
use crate::paper::{Holds, PaperFigure, PaperValue};
use crate::unit::Unit;
use picnic_machine::signals;
use picnic_sim::machine::{Cost, Profile, Source};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Largest difference of a fit from the paper's figure.
const NEAR: f64 = 0.01;
/// Runs after which a fit has failed.
const MOST_RUNS: usize = 14;
/// Fitted costs of one machine, at most.
const MOST_FITTED: usize = 2;
/// How much farther than its sketch a figure may move.
const SLACK: f64 = 1.5;
/// By how much costs are varied.
const VARIED: [f64; 2] = [0.75, 1.25];

/// The fit that a figure of a modelled machine rests on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Basis {
    /// The cost that was fitted to this figure; none if the figure was predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitted: Option<String>,
    /// Costs that change the verdict, each followed by the change: `wake_ns (x 0.75: ...)`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// The value by a formula.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formula: Option<f64>,
}

impl Basis {
    /// The verdict, if the fit decides it; else the figure itself does.
    pub fn verdict(&self) -> Option<PaperVerdict> {
        let (finding, why) = match (&self.fitted, &self.depends_on[..]) {
            (Some(cost), _) => (Finding::Fitted, format!("{cost} was chosen for it")),
            (None, []) => return None,
            (None, costs) => (Finding::DependsOnWhatWasFitted, costs.join("; ")),
        };
        Some(PaperVerdict { finding, why })
    }
}

/// A figure of a paper that a modelled machine gives.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// The row of the papers' table.
    pub experiment: &'static str,
    /// The figure, with its model.
    pub figure: PaperFigure,
}

impl Measure {
    /// Its name, as fit points of profiles give it.
    pub fn name(&self) -> String {
        format!("{}: {}", self.experiment, self.figure.what)
    }

    /// The model's figure on this machine.
    ///
    /// # Errors
    /// It has no model, or the model cannot run.
    pub fn run(&self, profile: &Profile, effort: Effort) -> Result<f64, String> {
        let model = self.figure.model.ok_or_else(|| format!("{}: has no model", self.name()))?;
        (model.run)(profile, effort)
    }

    /// The paper's number, or the bound that its words set.
    fn paper(&self) -> Option<f64> {
        match (self.figure.paper, self.figure.holds) {
            (PaperValue::Number(value, _), _) => Some(value),
            (_, Some(Holds { least: f64::MIN, most, .. })) => Some(most),
            (_, holds) => Some(holds?.least),
        }
    }

    fn finding(&self, ours: f64) -> Option<Finding> {
        self.figure.judge_value(ours).map(|verdict| verdict.finding)
    }

    /// How far ours is from the paper's: 0 if it is the same.
    pub fn off(&self, ours: f64) -> f64 {
        let paper = self.paper().unwrap_or(f64::NAN);
        match self.figure.unit() {
            Unit::Change => (1.0 + ours) / (1.0 + paper) - 1.0,
            _ => ours / paper - 1.0,
        }
    }

    fn text(&self, value: f64) -> String {
        self.figure.unit().text(value)
    }
}

/// A paper's machine and the figures that were measured on it.
#[derive(Clone, Debug)]
pub struct Testbed {
    /// The machine.
    pub profile: Profile,
    /// Its figures, fit points among them.
    pub measures: Vec<Measure>,
}

/// A figure of a paper beside ours.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// Which.
    pub name: String,
    /// The paper's figure.
    pub paper: Option<f64>,
    /// Ours, modelled.
    pub ours: f64,
    /// The formula's value.
    pub formula: Option<f64>,
    /// Ours beside the paper's.
    pub verdict: Option<PaperVerdict>,
    /// The costs that the verdict depends on, with the verdicts that they lead to.
    pub depends_on: Vec<String>,
    #[serde(skip)]
    measure: Measure,
}

impl Prediction {
    /// Ours as a figure of the experiment.
    pub fn figure(&self) -> Figure {
        let Prediction { formula, depends_on, ours, .. } = self.clone();
        figure(&self.measure, ours, Basis { fitted: None, depends_on, formula })
    }

    /// For people: paper, ours, formula, verdict.
    pub fn texts(&self) -> [String; 4] {
        let text = |value: f64| self.measure.text(value);
        let formula = self.formula.map_or("–".into(), text);
        let PaperFigure { paper, holds, .. } = self.measure.figure;
        let paper = match (holds, self.paper) {
            (Some(Holds { least: f64::MIN, .. }), Some(bound)) => format!("≤ {}", text(bound)),
            (Some(_), Some(bound)) => format!("≥ {}", text(bound)),
            _ => paper.text(),
        };
        [paper, text(self.ours), formula, self.finding()]
    }

    /// The verdict for people; "depends on COST" if one changes it.
    fn finding(&self) -> String {
        let costs: Vec<&str> =
            self.depends_on.iter().filter_map(|line| line.split(' ').next()).collect();
        match (&self.verdict, &costs[..]) {
            (_, [_, ..]) => format!("depends on {}", costs.join(", ")),
            (Some(verdict), []) => verdict.finding.to_string(),
            (None, []) => "–".into(),
        }
    }
}

/// A cost that was fitted.
#[derive(Clone, Debug, Serialize)]
pub struct Fitted {
    /// Its key.
    pub cost: &'static str,
    /// Its value.
    pub value: f64,
    /// The figure that it was fitted to.
    pub point: String,
    /// The paper's figure.
    pub paper: Option<f64>,
    /// Ours.
    pub ours: f64,
    #[serde(skip)]
    measure: Measure,
}

impl Fitted {
    /// Ours as a figure of the experiment.
    pub fn figure(&self) -> Figure {
        let fitted = Some(self.cost.to_owned());
        figure(&self.measure, self.ours, Basis { fitted, ..Basis::default() })
    }

    /// For people: the cost, the paper's figure, ours.
    pub fn texts(&self) -> [String; 3] {
        let digits = if self.value >= 100.0 { 0 } else { 3 };
        let cost = format!("{} = {:.digits$}", self.cost, self.value);
        [cost, self.measure.figure.paper.text(), self.measure.text(self.ours)]
    }
}

fn figure(measure: &Measure, ours: f64, basis: Basis) -> Figure {
    let PaperFigure { what, ours: key, .. } = measure.figure;
    Figure::one(key.unwrap_or(what), ours).called(what).resting_on(basis)
}

/// The result of a fit.
#[derive(Clone, Debug, Serialize)]
pub struct Fit {
    /// The profile.
    pub profile: String,
    /// The fitted costs.
    pub fitted: Vec<Fitted>,
    /// The predicted figures.
    pub predictions: Vec<Prediction>,
    /// The machine with its fitted costs.
    #[serde(skip)]
    pub machine: Profile,
}

/// The share done from 0 to 1, and the current step.
pub type Watch<'a> = dyn FnMut(f64, &str) + 'a;

impl Testbed {
    /// Fits, predicts and varies: the figures of one row of the papers' table, or of all.
    ///
    /// # Errors
    /// The fit does not converge, or a figure is unavailable.
    pub fn predict(
        &self,
        experiment: Option<&str>,
        effort: Effort,
        watch: &mut Watch<'_>,
    ) -> Result<Fit, String> {
        watch(0.0, "fit");
        let mut slopes = [None; MOST_FITTED];
        let (fitted, at) = self.fit(&self.profile, effort, &mut slopes)?;
        let is_point = |measure: &Measure| fitted.iter().any(|fit| fit.point == measure.name());
        let is_asked = |measure: &&Measure| {
            experiment.is_none_or(|experiment| measure.experiment == experiment)
                && !is_point(measure)
        };
        let measures: Vec<Measure> = self.measures.iter().filter(is_asked).copied().collect();
        let all = |profile: &Profile| -> Result<Vec<f64>, String> {
            measures.iter().map(|measure| measure.run(profile, effort)).collect()
        };
        let ours = all(&at)?;
        let costs = self.assumed(measures.is_empty());
        let varied = |cost: Cost, factor: f64| -> Result<Profile, String> {
            let mut other = at.clone();
            other.costs.set(cost, factor * at.costs.get(cost));
            Ok(self.fit(&other, effort, &mut slopes.clone())?.1)
        };
        // A sketch of each cost shows where a verdict may change: only there the runs are whole.
        let sketch = |profile: &Profile| -> Result<Vec<f64>, String> {
            measures.iter().map(|measure| measure.run(profile, Effort::Sketch)).collect()
        };
        let base = if costs.is_empty() { Vec::new() } else { sketch(&at)? };
        let most = VARIED[1];
        let sketched = in_parallel(
            &costs,
            |&cost| varied(cost, most).and_then(|other| sketch(&other)),
            &mut |done| watch(0.5 * done as f64 / costs.len() as f64, "costs at ±25 %: sketches"),
        )?;
        let suspects = suspects(&measures, &ours, &costs, &base, &sketched);
        let confirmed = in_parallel(
            &suspects,
            |((cost, factor), places)| -> Result<Vec<f64>, String> {
                let other = varied(*cost, *factor)?;
                places.iter().map(|place| measures[*place].run(&other, effort)).collect()
            },
            &mut |done| {
                watch(0.5 + 0.5 * done as f64 / suspects.len() as f64, "costs at ±25 %: suspects");
            },
        )?;
        let predictions = measures.iter().zip(ours).enumerate().map(|(place, (measure, ours))| {
            let changed = suspects.iter().zip(&confirmed).filter_map(|((of, places), values)| {
                let at = places.iter().position(|other| *other == place)?;
                Some((of, values.as_ref().map(|values| values[at]).map_err(String::as_str)))
            });
            Prediction {
                name: measure.name(),
                paper: measure.paper(),
                ours,
                formula: measure.figure.model.and_then(|model| Some(model.formula?(&at))),
                verdict: measure.figure.judge_value(ours),
                depends_on: depends_on(measure, ours, changed),
                measure: *measure,
            }
        });
        let predictions = predictions.collect();
        Ok(Fit { profile: at.name.clone(), fitted, predictions, machine: at })
    }

    /// The assumed costs that are not 0; none if there is nothing to predict.
    fn assumed(&self, is_idle: bool) -> Vec<Cost> {
        let assumed = self.profile.of_source(Source::Assumed);
        let costs = assumed.map(|(cost, _)| cost).filter(|_| !is_idle);
        costs.filter(|cost| self.profile.costs.get(*cost) != 0.0).collect()
    }

    /// Changes the costs marked `fitted` until their points equal the paper's.
    /// `slopes` are the known slopes of the points by their costs, in logarithms.
    fn fit(
        &self,
        profile: &Profile,
        effort: Effort,
        slopes: &mut [Option<f64>; MOST_FITTED],
    ) -> Result<(Vec<Fitted>, Profile), String> {
        let mut points = Vec::new();
        for (cost, point) in profile.fitted() {
            let measure = self.measures.iter().find(|measure| measure.name() == point);
            let measure = measure.ok_or_else(|| {
                let known: Vec<_> = self.measures.iter().map(Measure::name).collect();
                format!("{}: found point {point}, allowed: {}", cost.key(), known.join("; "))
            })?;
            points.push((cost, measure));
        }
        if points.len() > MOST_FITTED {
            let found = points.len();
            return Err(format!("found {found} fitted costs, allowed: at most {MOST_FITTED}"));
        }
        let names: Vec<_> = points.iter().map(|(_, measure)| measure.name()).collect();
        let apart = |why: String| match &names[..] {
            [_] => why,
            _ => format!("these points pull apart: {}: {why}", names.join("; ")),
        };
        let mut at = profile.clone();
        let mut found = vec![f64::NAN; points.len()];
        // Each of two costs moves the other's point: alternate until both converge.
        for _ in 0..if points.len() > 1 { 4 } else { 1 } {
            for (place, (cost, measure)) in points.iter().enumerate() {
                found[place] =
                    fit_one(&mut at, *cost, measure, effort, &mut slopes[place]).map_err(apart)?;
            }
        }
        for (place, (_, measure)) in points.iter().enumerate() {
            if points.len() > 1 {
                found[place] = measure.run(&at, effort)?;
            }
            if measure.off(found[place]).abs() > 2.0 * NEAR {
                let text = measure.figure.unit().text(found[place]);
                return Err(apart(format!("{} is {text}", measure.name())));
            }
        }
        let fitted = points.iter().zip(found).map(|((cost, measure), ours)| Fitted {
            cost: cost.key(),
            value: at.costs.get(*cost),
            point: measure.name(),
            paper: measure.paper(),
            ours,
            measure: **measure,
        });
        Ok((fitted.collect(), at))
    }
}

/// Costs with their factors, each with the places of the measures whose verdict it may change.
type Suspects = Vec<((Cost, f64), Vec<usize>)>;

/// The suspects by sketches of the higher costs: a figure is taken to follow its cost in a straight
/// line, and half as far again.
fn suspects(
    measures: &[Measure],
    ours: &[f64],
    costs: &[Cost],
    base: &[f64],
    sketched: &[Result<Vec<f64>, String>],
) -> Suspects {
    let mut found = Suspects::new();
    for (&cost, sketch) in costs.iter().zip(sketched) {
        for factor in VARIED {
            let may_change = |&place: &usize| {
                let (measure, ours) = (&measures[place], ours[place]);
                // No fit: that is what it depends on.
                let Ok(sketch) = sketch else { return true };
                let change = SLACK * (sketch[place] - base[place]) * (factor - 1.0).signum();
                measure.finding(ours + change) != measure.finding(ours)
            };
            let places: Vec<usize> = (0..measures.len()).filter(may_change).collect();
            if !places.is_empty() {
                found.push(((cost, factor), places));
            }
        }
    }
    found
}

/// The costs that change the verdict, each with the values that it leads to.
fn depends_on<'a>(
    measure: &Measure,
    ours: f64,
    changed: impl Iterator<Item = (&'a (Cost, f64), Result<f64, &'a str>)>,
) -> Vec<String> {
    let verdict = measure.finding(ours);
    let mut found: Vec<(Cost, String)> = Vec::new();
    for (&(cost, factor), value) in changed {
        let text = match value {
            Ok(value) if measure.finding(value) == verdict => continue,
            Ok(value) => {
                let finding = measure.finding(value).map_or(String::new(), |of| of.to_string());
                format!("x {factor}: {}, {finding}", measure.text(value))
            }
            Err(why) => format!("x {factor}: {why}"),
        };
        match found.last_mut().filter(|(last, _)| *last == cost) {
            Some((_, texts)) => *texts += &format!(", {text}"),
            None => found.push((cost, text)),
        }
    }
    found.into_iter().map(|(cost, texts)| format!("{} ({texts})", cost.key())).collect()
}

/// Changes one cost until one figure equals the paper's; returns the figure.
fn fit_one(
    at: &mut Profile,
    cost: Cost,
    measure: &Measure,
    effort: Effort,
    slope: &mut Option<f64>,
) -> Result<f64, String> {
    let mut value = at.costs.get(cost);
    let mut of = |value: f64| -> Result<(f64, f64), String> {
        at.costs.set(cost, value);
        let ours = measure.run(at, effort)?;
        Ok((ours, measure.off(ours)))
    };
    let (mut ours, mut off) = of(value)?;
    let (mut last_value, mut last_off) = (value, off);
    let mut best = (f64::INFINITY, value, ours);
    // Where it was too low, and where too high.
    let mut bounds = [None::<f64>; 2];
    for run in 0..MOST_RUNS {
        if off.abs() < best.0 {
            best = (off.abs(), value, ours);
        }
        if off.abs() <= NEAR {
            break;
        }
        bounds[usize::from(off > 0.0)] = Some(value);
        if run != 0 && last_off != off {
            *slope = Some((off - last_off) / (value / last_value).ln());
        }
        let step = match slope.filter(|slope| *slope != 0.0 && (run == 0 || last_off != off)) {
            None => value * if run % 2 == 0 { 1.1 } else { 0.9 },
            // Along the line through the last two, in logarithms.
            Some(slope) => {
                let next = value * (-off / slope).clamp(-0.7, 0.7).exp();
                match bounds {
                    [Some(a), Some(b)] if !(a.min(b)..=a.max(b)).contains(&next) => (a * b).sqrt(),
                    _ => next,
                }
            }
        };
        (last_value, last_off) = (value, off);
        value = step.clamp(cost.most() * 1e-9, cost.most());
        (ours, off) = of(value)?;
    }
    let (off, value, ours) = best;
    at.costs.set(cost, value);
    if off <= 2.0 * NEAR {
        return Ok(ours);
    }
    Err(format!(
        "the fit does not converge: {} at {value:.4} gives {} for {}, the paper has {}",
        cost.key(),
        measure.text(ours),
        measure.name(),
        measure.figure.paper.text()
    ))
}

/// Does the same for all items on all processors; the results are in the order of the items. `done`
/// receives the number of items done.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    of: impl Fn(&T) -> R + Sync,
    done: &mut dyn FnMut(usize),
) -> Result<Vec<R>, String> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..workers {
            let (sender, next, of) = (sender.clone(), &next, &of);
            scope.spawn(move || {
                while let Some((place, item)) = {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    items.get(place).map(|item| (place, item))
                } {
                    // A stop was requested.
                    if signals::sleep(Duration::ZERO).is_err() {
                        return;
                    }
                    let _ = sender.send((place, of(item)));
                }
            });
        }
        drop(sender);
        for (count, (place, result)) in receiver.into_iter().enumerate() {
            results[place] = Some(result);
            done(count + 1);
        }
    });
    results.into_iter().collect::<Option<_>>().ok_or_else(|| "interrupted".into())
}

#[cfg(test)]
mod tests;
