//! Fits a model to few figures, predicts the others, and determines what each prediction depends
//! on.
//!
//! ```no_run
//! use picnic_lab::experiment::Effort;
//! use picnic_lab::fit::{Measure, Testbed, Wanted};
//! use picnic_lab::unit::Unit;
//! use picnic_sim::machine::{Cost, Profile};
//!
//! fn rate(profile: &Profile, _: Effort) -> Result<f64, String> {
//!     Ok(1e9 / profile.costs.get(Cost::CardPacket))
//! }
//! const FULL: &[Measure] = &[Measure::new("full at 350 packets/ms", 350e3, Unit::PerSecond, rate)];
//! let testbed = Testbed { profile: "netburst", measures: FULL };
//! println!("{:#?}", testbed.predict(Effort::Quick));
//! ```
//!
//! Only costs marked `fitted` change, at most two and no more than fit points. A fit point proves
//! nothing and has no verdict. Each prediction is repeated with every assumed cost at ±25 %,
//! refitting each time: fitted costs follow. If the verdict changes with a cost, it depends on that
//! cost.

use crate::compare::{Finding, Paper, PaperVerdict};
use crate::experiment::Effort;
use crate::unit::Unit;
use picnic_sim::machine::{Cost, Profile, Source};
use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The accuracy of a fit.
const NEAR: f64 = 0.01;
/// Runs after which a fit has failed.
const MOST_RUNS: usize = 14;
/// The largest number of fitted costs of a machine.
const MOST_FITTED: usize = 2;
/// Variations of costs.
const VARIED: [f64; 2] = [0.75, 1.25];

/// When a figure agrees with the paper's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// Within this share of it.
    Near(f64),
    /// As a gain: [`Paper::judge`].
    Gain,
    /// No more than it.
    AtMost,
    /// No less than it.
    AtLeast,
}

/// A figure of a paper, and how to obtain it from a machine.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Its name: row of the papers' table, colon, figure. Fit points of profiles name it.
    pub name: &'static str,
    /// The paper's figure.
    pub paper: f64,
    /// Its unit.
    pub unit: Unit,
    /// When ours agrees.
    pub wanted: Wanted,
    /// Runs it.
    pub run: fn(&Profile, Effort) -> Result<f64, String>,
    /// A formula for comparison.
    pub formula: Option<fn(&Profile) -> f64>,
}

impl Measure {
    /// A figure that must be within a tenth of the paper's; a gain is judged as such.
    pub const fn new(
        name: &'static str,
        paper: f64,
        unit: Unit,
        run: fn(&Profile, Effort) -> Result<f64, String>,
    ) -> Self {
        let wanted = match unit {
            Unit::Change => Wanted::Gain,
            _ => Wanted::Near(0.1),
        };
        Measure { name, paper, unit, wanted, run, formula: None }
    }

    /// Judged in another way.
    #[must_use]
    pub const fn wanted(self, wanted: Wanted) -> Self {
        Measure { wanted, ..self }
    }

    /// With a formula for comparison.
    #[must_use]
    pub const fn formula(self, formula: fn(&Profile) -> f64) -> Self {
        Measure { formula: Some(formula), ..self }
    }

    /// Judges ours against the paper's.
    fn judge(&self, ours: f64) -> PaperVerdict {
        let paper = self.paper;
        let (is_same, allowed) = match self.wanted {
            Wanted::Gain => {
                let paper = Paper { ratio: 1.0 + paper, within: 0.1, fitted_to: None };
                return paper.judge(Ok((1.0 + ours, 1.0 + ours)));
            }
            Wanted::Near(within) => {
                let (low, high) = (paper / (1.0 + within), paper * (1.0 + within));
                ((low..=high).contains(&ours), self.unit.range(low, high))
            }
            Wanted::AtMost => (ours <= paper, format!("at most {}", self.unit.text(paper))),
            Wanted::AtLeast => (ours >= paper, format!("at least {}", self.unit.text(paper))),
        };
        let finding = if is_same { Finding::Reproduced } else { Finding::NotReproduced };
        PaperVerdict { finding, why: format!("ours {}, allowed {allowed}", self.unit.text(ours)) }
    }

    /// The deviation of ours from the paper's: 0 if they agree.
    fn off(&self, ours: f64) -> f64 {
        match self.unit {
            Unit::Change => (1.0 + ours) / (1.0 + self.paper) - 1.0,
            _ => ours / self.paper - 1.0,
        }
    }
}

/// A paper's machine, and the figures measured on it.
#[derive(Clone, Copy, Debug)]
pub struct Testbed {
    /// The profile's name.
    pub profile: &'static str,
    /// Its figures, including fit points.
    pub measures: &'static [Measure],
}

/// A cost that was fitted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// Its key.
    pub cost: &'static str,
    /// Its value.
    pub value: f64,
    /// The figure that it was fitted to.
    pub point: &'static str,
    /// The paper's figure.
    pub paper: f64,
    /// Ours.
    pub ours: f64,
    #[serde(skip)]
    unit: Unit,
}

/// A figure that was not used for the fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Its name.
    pub name: &'static str,
    /// The paper's figure.
    pub paper: f64,
    /// Ours, modelled.
    pub ours: f64,
    /// The result of the formula.
    pub formula: Option<f64>,
    /// The comparison with the paper's.
    pub verdict: PaperVerdict,
    /// The costs that the verdict depends on, with the changed verdicts.
    pub depends_on: Vec<String>,
    #[serde(skip)]
    unit: Unit,
}

impl Prediction {
    /// For people: paper, ours, formula.
    pub fn texts(&self) -> [String; 3] {
        let formula = self.formula.map_or("–".into(), |value| self.unit.text(value));
        [self.unit.text(self.paper), self.unit.text(self.ours), formula]
    }

    /// The verdict for people; "depends on COST" if one changes it.
    pub fn finding(&self) -> String {
        match self.depends_on.first() {
            None => self.verdict.finding.to_string(),
            Some(first) => {
                let cost = first.split(' ').next().unwrap_or_default();
                format!("depends on {cost}")
            }
        }
    }
}

impl Fitted {
    /// For people: paper, ours.
    pub fn texts(&self) -> [String; 2] {
        [self.unit.text(self.paper), self.unit.text(self.ours)]
    }
}

/// The result of a fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The profile.
    pub profile: String,
    /// The fitted costs.
    pub fitted: Vec<Fitted>,
    /// The predictions.
    pub predictions: Vec<Prediction>,
}

impl Testbed {
    /// Fits, predicts and varies.
    ///
    /// # Errors The fit does not converge, or a figure cannot be obtained.
    pub fn predict(&self, effort: Effort) -> Result<Fit, String> {
        let profile = Profile::named(self.profile).map_err(|error| error.to_string())?;
        self.predict_of(&profile, effort)
    }

    /// The same for a profile from elsewhere.
    ///
    /// # Errors As for [`Testbed::predict`].
    pub fn predict_of(&self, profile: &Profile, effort: Effort) -> Result<Fit, String> {
        let (fitted, at) = self.fit(profile, effort)?;
        let is_point = |measure: &&Measure| !fitted.iter().any(|fit| fit.point == measure.name);
        let measures: Vec<_> = self.measures.iter().filter(is_point).collect();
        let all = |profile: &Profile| -> Result<Vec<f64>, String> {
            measures.iter().map(|measure| (measure.run)(profile, effort)).collect()
        };
        let ours = all(&at)?;
        let varied: Vec<(Cost, f64)> = profile
            .of_source(Source::Assumed)
            .filter(|(cost, _)| profile.costs.get(*cost) != 0.0)
            .flat_map(|(cost, _)| VARIED.map(|factor| (cost, factor)))
            .collect();
        let changed = in_parallel(&varied, |&(cost, factor)| {
            let mut other = at.clone();
            other.costs.set(cost, factor * at.costs.get(cost));
            let (_, other) = self.fit(&other, effort)?;
            all(&other)
        });
        let predictions =
            measures.iter().zip(&ours).enumerate().map(|(place, (measure, &ours))| {
                let verdict = measure.judge(ours);
                let mut depends_on = Vec::new();
                for (&(cost, factor), changed) in varied.iter().zip(&changed) {
                    let what = match changed {
                        Ok(values) => {
                            let other = measure.judge(values[place]);
                            if other.finding == verdict.finding {
                                continue;
                            }
                            format!("{}, {}", measure.unit.text(values[place]), other.finding)
                        }
                        Err(why) => format!("no fit: {why}"),
                    };
                    depends_on.push(format!("{} x {factor}: {what}", cost.key()));
                }
                Prediction {
                    name: measure.name,
                    paper: measure.paper,
                    ours,
                    formula: measure.formula.map(|formula| formula(&at)),
                    verdict,
                    depends_on,
                    unit: measure.unit,
                }
            });
        let predictions = predictions.collect();
        Ok(Fit { profile: profile.name.clone(), fitted, predictions })
    }

    /// Changes the fitted costs until their points agree with the paper's.
    fn fit(&self, profile: &Profile, effort: Effort) -> Result<(Vec<Fitted>, Profile), String> {
        let mut points = Vec::new();
        for (cost, point) in profile.fitted() {
            let measure = self.measures.iter().find(|measure| measure.name == point);
            let measure = measure.ok_or_else(|| {
                let known: Vec<_> = self.measures.iter().map(|measure| measure.name).collect();
                format!("{}: found point {point}, allowed: {}", cost.key(), known.join("; "))
            })?;
            points.push((cost, measure));
        }
        if points.len() > MOST_FITTED {
            let found = points.len();
            return Err(format!("found {found} fitted costs, allowed: at most {MOST_FITTED}"));
        }
        let mut at = profile.clone();
        let mut found = vec![f64::NAN; points.len()];
        // Two costs affect each other's points: alternate until both are stable.
        for _ in 0..if points.len() > 1 { 4 } else { 1 } {
            for (place, (cost, measure)) in points.iter().enumerate() {
                found[place] = fit_one(&mut at, *cost, measure, effort)?;
            }
        }
        for (place, (_, measure)) in points.iter().enumerate() {
            if points.len() > 1 {
                found[place] = (measure.run)(&at, effort)?;
            }
            if measure.off(found[place]).abs() > 2.0 * NEAR {
                let names: Vec<_> = points.iter().map(|(_, measure)| measure.name).collect();
                return Err(format!("these points contradict each other: {}", names.join("; ")));
            }
        }
        let fitted = points.iter().zip(found).map(|((cost, measure), ours)| Fitted {
            cost: cost.key(),
            value: at.costs.get(*cost),
            point: measure.name,
            paper: measure.paper,
            ours,
            unit: measure.unit,
        });
        Ok((fitted.collect(), at))
    }
}

/// Changes one cost until one figure agrees with the paper's; returns its value.
fn fit_one(at: &mut Profile, cost: Cost, measure: &Measure, effort: Effort) -> Result<f64, String> {
    let mut value = at.costs.get(cost);
    let mut of = |value: f64| -> Result<(f64, f64), String> {
        at.costs.set(cost, value);
        let ours = (measure.run)(at, effort)?;
        Ok((ours, measure.off(ours)))
    };
    let (mut ours, mut off) = of(value)?;
    let (mut last_value, mut last_off) = (value, off);
    let mut best = (f64::INFINITY, value, ours);
    // Bounds from below and above.
    let mut bounds = [None::<f64>; 2];
    for run in 0..MOST_RUNS {
        if off.abs() < best.0 {
            best = (off.abs(), value, ours);
        }
        if off.abs() <= NEAR {
            break;
        }
        bounds[usize::from(off > 0.0)] = Some(value);
        let step = if run == 0 || last_off == off {
            value * if run % 2 == 0 { 1.1 } else { 0.9 }
        } else {
            // Along the line through the last two, in logarithms.
            let slope = (off - last_off) / (value / last_value).ln();
            let next = value * (-off / slope).clamp(-0.7, 0.7).exp();
            match bounds {
                [Some(a), Some(b)] if !(a.min(b)..=a.max(b)).contains(&next) => (a * b).sqrt(),
                _ => next,
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
        "the fit does not converge: {} at {value:.4} gives {} for {}, in the paper: {}",
        cost.key(),
        measure.unit.text(ours),
        measure.name,
        measure.unit.text(measure.paper)
    ))
}

/// Does the same for all items on all processors; results are in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<R>>> = Mutex::new(items.iter().map(|_| None).collect());
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(place) else { return };
                    let result = of(item);
                    let mut results =
                        results.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    results[place] = Some(result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(fitted: &[(&str, &str)]) -> Profile {
        let mut text = String::from("help = \"x\"\n[topology]\npackages = [[[0]]]\n[costs]\n");
        for (key, point) in fitted {
            text += &format!(
                "{key} = {{ value = 1000, unit = \"ns\", source = \"fitted\", from = \"x\", \
                 point = \"{point}\" }}\n"
            );
        }
        text += "wake_ns = { value = 100, unit = \"ns\", source = \"assumed\", from = \"x\" }\n";
        text += "free_ns = { value = 100, unit = \"ns\", source = \"datasheet\", from = \"x\" }\n";
        Profile::parse("x", "x.toml", &text).unwrap()
    }

    fn get(profile: &Profile, cost: Cost) -> f64 {
        profile.costs.get(cost)
    }

    /// A service rate, and a latency of 20 services and a wake-up.
    const RATE: Measure = Measure::new("rate", 350e3, Unit::PerSecond, |profile, _| {
        Ok(1e9 / (get(profile, Cost::CardPacket) + get(profile, Cost::Wake)))
    });
    const LATENCY: Measure = Measure::new("latency", 57_143.0, Unit::Nanoseconds, |profile, _| {
        Ok(20.0 * (get(profile, Cost::CardPacket) + get(profile, Cost::Wake)))
    });
    const WAKE: Measure =
        Measure::new("wake", 100.0, Unit::Nanoseconds, |profile, _| Ok(get(profile, Cost::Wake)));
    const NEVER: Measure =
        Measure::new("never", 7.0, Unit::Count, |profile, _| Ok(get(profile, Cost::Free)));

    #[test]
    fn one_cost_is_fitted_and_others_predicted() {
        let testbed = Testbed { profile: "x", measures: &[RATE, LATENCY, WAKE] };
        let fit = testbed.predict_of(&profile(&[("card_packet_ns", "rate")]), Effort::Quick);
        let fit = fit.unwrap();
        let wanted = 1e9 / 350e3 - 100.0;
        assert!((fit.fitted[0].value / wanted - 1.0).abs() < 0.02, "{:?}", fit.fitted);
        // The fit point itself is not a prediction.
        let names: Vec<_> = fit.predictions.iter().map(|prediction| prediction.name).collect();
        assert_eq!(names, ["latency", "wake"]);
        let [latency, wake] = &fit.predictions[..] else { panic!("{fit:#?}") };
        // It follows the fit: changing a cost that the fit compensates has no effect.
        assert_eq!(latency.finding(), "reproduced", "{latency:#?}");
        assert_eq!(wake.finding(), "depends on wake_ns");
        assert_eq!(wake.depends_on.len(), 2);
    }

    #[test]
    fn impossible_fits_name_the_point() {
        let testbed = Testbed { profile: "x", measures: &[RATE, NEVER] };
        let error = testbed.predict_of(&profile(&[("card_packet_ns", "never")]), Effort::Quick);
        let error = error.unwrap_err();
        assert!(error.starts_with("the fit does not converge: card_packet_ns"), "{error}");
        let error = testbed.predict_of(&profile(&[("card_packet_ns", "nothing")]), Effort::Quick);
        assert_eq!(error.unwrap_err(), "card_packet_ns: found point nothing, allowed: rate; never");
    }

    #[test]
    fn two_points_of_one_figure_contradict() {
        const OTHER: Measure = Measure::new("other", 700e3, Unit::PerSecond, RATE.run);
        let testbed = Testbed { profile: "x", measures: &[RATE, OTHER] };
        let both = profile(&[("card_packet_ns", "rate"), ("switch_ns", "other")]);
        let error = testbed.predict_of(&both, Effort::Quick).unwrap_err();
        assert!(error.contains("does not converge: switch_ns"), "{error}");
        const FASTER: Measure = Measure::new("faster", 700e3, Unit::PerSecond, |profile, _| {
            Ok(1e9 / (get(profile, Cost::CardPacket) + 0.5 * get(profile, Cost::Switch)))
        });
        const SLOWER: Measure = Measure::new("slower", 350e3, Unit::PerSecond, |profile, _| {
            Ok(1e9 / (get(profile, Cost::CardPacket) + 0.499 * get(profile, Cost::Switch)))
        });
        let testbed = Testbed { profile: "x", measures: &[FASTER, SLOWER] };
        let both = profile(&[("card_packet_ns", "faster"), ("switch_ns", "slower")]);
        let error = testbed.predict_of(&both, Effort::Quick).unwrap_err();
        assert!(error.contains("faster") || error.contains("converge"), "{error}");
    }

    #[test]
    fn results_of_parallel_work_are_in_order() {
        let items: Vec<_> = (0..100).collect();
        assert_eq!(in_parallel(&items, |item| item * 2), (0..200).step_by(2).collect::<Vec<_>>());
    }
}
