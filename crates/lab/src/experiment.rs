//! Experiments and benchmarks, and the context that they run in.
//!
//! Both are entries of a registry: a name, a line of help, typed settings with defaults. A
//! benchmark measures the cost of the card on this machine; an experiment the gain of a feature,
//! usually as in a paper. It splits into points; the [runner](crate::runner) decides on their
//! repeats and order.

use crate::distribution::Distribution;
use crate::outcome::{Outcome, Source};
use crate::plot::Plot;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Where an experiment runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum World {
    /// On a virtual processor: modelled, the same for the same seed
    #[default]
    Sim,
    /// On cores of this machine: measured
    Host,
}

impl World {
    /// The source of its figures.
    pub fn source(self) -> Source {
        match self {
            World::Sim => Source::Modelled,
            World::Host => Source::Measured,
        }
    }
}

/// The effort for a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// All experiments in some minutes
    Quick,
    /// As the settings say
    #[default]
    Usual,
    /// More repeats, more points, longer
    Full,
    /// Shorter than any run whose figures are reported: to find what matters
    #[serde(skip)]
    Sketch,
}

impl Effort {
    /// Repeats of a measured point.
    pub fn repeats(self) -> u32 {
        self.of(3, 10, 20)
    }

    /// Times to settle and to measure: the first for all efforts, the others as for [`Effort::of`]. A
    /// sketch takes a fifth of them.
    pub fn lasts(self, settle: u64, quick: u64, usual: u64, full: u64) -> (u64, u64) {
        let share = if self == Effort::Sketch { 5 } else { 1 };
        (settle / share, self.of(quick, usual, full) / share)
    }

    /// The value for this effort.
    pub fn of<T>(self, quick: T, usual: T, full: T) -> T {
        match self {
            Effort::Quick | Effort::Sketch => quick,
            Effort::Usual => usual,
            Effort::Full => full,
        }
    }
}

/// A point of an experiment: the varied values, and the sides that take turns there.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The varied values, by key. The point's name is derived from them.
    pub labels: Map<String, Value>,
    /// Sides that take turns, repeat by repeat, in alternating order.
    pub sides: Vec<String>,
    /// Measurements of each side.
    pub repeats: u32,
    /// Whether each side is measured once more at first, and the result dropped.
    pub warm_up: bool,
    /// No repeat begins later than this after the first, once each side was measured.
    pub limit: Duration,
    /// The name of an earlier point that is measured on the same machine, and whose figures this
    /// one receives: [`Run::followed`].
    pub follows: Option<String>,
}

impl Default for Spec {
    /// One side, once, within ten minutes.
    fn default() -> Self {
        let limit = Duration::from_secs(600);
        let sides = vec!["all".into()];
        Spec { labels: Map::new(), sides, repeats: 1, warm_up: false, limit, follows: None }
    }
}

impl Spec {
    /// The point where `key` is `value`.
    pub fn at(key: &str, value: impl Into<Value>) -> Self {
        Spec::default().and(key, value)
    }

    /// With another varied value.
    #[must_use]
    pub fn and(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// With these sides.
    #[must_use]
    pub fn sides(self, sides: &[&str]) -> Self {
        Spec { sides: sides.iter().map(|side| (*side).into()).collect(), ..self }
    }

    /// With this number of measurements, after a warm-up.
    #[must_use]
    pub fn measured(self, repeats: u32) -> Self {
        Spec { repeats, warm_up: true, ..self }
    }

    /// Measurements of all sides in total.
    pub fn turns(&self) -> u64 {
        u64::from(self.repeats + u32::from(self.warm_up)) * self.sides.len() as u64
    }

    /// Its name among the points of its experiment: `scenario=mix,rules=16`.
    pub fn name(&self) -> String {
        if self.labels.is_empty() {
            return "all".into();
        }
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let words = self.labels.iter().map(|(key, value)| format!("{key}={}", text(value)));
        words.collect::<Vec<_>>().join(",")
    }

    /// A value of its labels as a number; 0 if it is not one.
    pub fn number(&self, key: &str) -> f64 {
        self.labels.get(key).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// A value of its labels as a word; empty if it is not one.
    pub fn word(&self, key: &str) -> &str {
        self.labels.get(key).and_then(Value::as_str).unwrap_or("")
    }
}

/// A measured point.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredPoint {
    /// The point.
    pub spec: Spec,
    /// The results of each side, in the order of [`Spec::sides`], all repeats in each figure.
    pub sides: Vec<Outcome>,
}

impl MeasuredPoint {
    /// The repeats of a figure of a side; none if it has no such figure.
    pub fn values(&self, side: usize, key: &str) -> Vec<f64> {
        let figures = self.sides.get(side).map_or(&[][..], |outcome| &outcome.whole.figures);
        figures.iter().find(|figure| figure.key == key).map_or(Vec::new(), |f| f.values.clone())
    }

    /// A histogram of a side, over all repeats.
    pub fn distribution(&self, side: usize, key: &str) -> Option<&Distribution> {
        self.sides.get(side)?.distributions.iter().find(|one| one.key == key)
    }
}

/// An experiment or a benchmark, with its settings. The [runner](crate::runner) runs it.
pub trait Experiment {
    /// Its points, in display order. The same settings and effort give the same points, with unique
    /// names.
    fn points(&self, effort: Effort) -> Vec<Spec>;

    /// Cores of this machine that a point needs. Other requirements are checked by its measurement.
    fn cores(&self, _point: &Spec) -> usize {
        1
    }

    /// Measures a side of a point once.
    ///
    /// # Errors
    /// Why it could not be measured.
    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError>;

    /// The result of all points. Points that failed are missing; there is at least one.
    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome;

    /// The drawings for a report.
    fn plots(&self) -> Vec<Plot> {
        Vec::new()
    }
}

/// Receives the share done, from 0 to 1, and the current task.
type Progress<'a> = Box<dyn FnMut(f64, &str) + 'a>;

/// The context of a measurement.
pub struct Run<'a> {
    progress: Progress<'a>,
    /// The effort.
    pub effort: Effort,
    /// Derived only from the point's name, so that it is the same on every shard.
    pub seed: u64,
    /// The results of the point that this one follows, if any.
    pub followed: Option<&'a MeasuredPoint>,
}

impl<'a> Run<'a> {
    /// `progress` receives the share done, from 0 to 1, and the current task.
    pub fn new(effort: Effort, seed: u64, progress: impl FnMut(f64, &str) + 'a) -> Self {
        Run { progress: Box::new(progress), effort, seed, followed: None }
    }

    /// The same, with the point that this one follows.
    #[must_use]
    pub fn behind(self, followed: Option<&'a MeasuredPoint>) -> Self {
        Run { followed, ..self }
    }

    /// Reports the share done, and the next task.
    pub fn progress(&mut self, share: f64, what: &str) {
        (self.progress)(share.clamp(0.0, 1.0), what);
    }

    /// Reports the rounds done.
    pub fn round(&mut self, done: u64, of: u64) {
        self.progress(done as f64 / of.max(1) as f64, &format!("round {} of {of}", done + 1));
    }
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// A benchmark: its settings, and how it measures.
pub trait Benchmark: DeserializeOwned + Serialize + JsonSchema + 'static {
    /// Its name on the command line.
    const NAME: &'static str;
    /// One line of help, as in all registries.
    const HELP: &'static str;
    /// Settings for a run of a second or two, as TOML.
    const QUICK: &'static str;

    /// Checks what types and ranges of its settings do not express. An error names its key.
    ///
    /// # Errors
    /// A wrong value.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Measures.
    ///
    /// # Errors
    /// This machine cannot do it ([`LabError::Unavailable`]), or it failed.
    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome>;
}

/// A benchmark as an entry of the registry.
#[derive(Debug)]
pub struct Measured<B>(B);

impl<B: Benchmark> Component for Measured<B> {
    type Product = Box<dyn Experiment>;
    type Config = B;
    const NAME: &'static str = B::NAME;
    const HELP: &'static str = B::HELP;

    fn example(_: &Path) -> Option<String> {
        Some(B::QUICK.into())
    }

    fn build(config: B, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        config.check()?;
        Ok(Box::new(Measured(config)))
    }
}

/// A single point: the rounds of a benchmark are among its settings.
impl<B: Benchmark> Experiment for Measured<B> {
    fn points(&self, _: Effort) -> Vec<Spec> {
        vec![Spec::default()]
    }

    fn measure(&self, _: &Spec, _: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        Ok(self.0.measure(run)?)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut outcome = points.iter().flat_map(|p| &p.sides).next().cloned().unwrap_or_default();
        outcome.settings = serde_json::to_value(&self.0).unwrap_or_default();
        outcome
    }
}

/// Why an experiment gave no result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A setting is wrong.
    #[error(transparent)]
    Setting(#[from] ConfigError),
    /// This machine cannot do it.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
    /// It failed, with causes.
    #[error(transparent)]
    Other(anyhow::Error),
}

impl From<anyhow::Error> for LabError {
    fn from(error: anyhow::Error) -> Self {
        error.downcast::<LabError>().unwrap_or_else(LabError::Other)
    }
}

impl LabError {
    /// The original error, to be reported as others are.
    pub fn into_cause(self) -> anyhow::Error {
        match self {
            LabError::Setting(error) => error.into(),
            LabError::Other(error) => error,
            error => error.into(),
        }
    }
}
