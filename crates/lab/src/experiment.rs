//! What experiments and benchmarks are, and what they are given to run with.
//!
//! Both are entries of a registry: a name, a line of help, typed settings with defaults. A
//! benchmark asks what the card costs on this machine; an experiment what a feature gives, as
//! one of the papers has asked before.

use crate::outcome::{Outcome, Source};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

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
    /// Where its figures come from.
    pub fn source(self) -> Source {
        match self {
            World::Sim => Source::Modelled,
            World::Host => Source::Measured,
        }
    }
}

/// An experiment or a benchmark, with its settings.
pub trait Experiment {
    /// Runs it.
    ///
    /// # Errors
    /// Why it could not be done.
    fn run(&self, run: &mut Run<'_>) -> Result<Outcome, LabError>;
}

/// Who is told the share done, from 0 to 1, and what is at work.
type Progress<'a> = Box<dyn FnMut(f64, &str) + 'a>;

/// What an experiment is given while it runs.
pub struct Run<'a> {
    progress: Progress<'a>,
}

impl<'a> Run<'a> {
    /// `progress` is told the share done, from 0 to 1, and what is at work.
    pub fn new(progress: impl FnMut(f64, &str) + 'a) -> Self {
        Run { progress: Box::new(progress) }
    }

    /// Tells that so much is done, and what is next.
    pub fn progress(&mut self, share: f64, what: &str) {
        (self.progress)(share.clamp(0.0, 1.0), what);
    }

    /// Tells that so many of all rounds are done.
    pub fn round(&mut self, done: u64, of: u64) {
        self.progress(done as f64 / of.max(1) as f64, &format!("round {} of {of}", done + 1));
    }
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

/// A benchmark: its settings, and how it measures.
pub trait Benchmark: DeserializeOwned + Serialize + JsonSchema + 'static {
    /// Its name on the command line.
    const NAME: &'static str;
    /// One line of help, as in all registries.
    const HELP: &'static str;
    /// Settings that have it done in a second or two, as TOML.
    const QUICK: &'static str;

    /// What the types and ranges of its settings do not say. An error names the key.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Measures.
    ///
    /// # Errors
    /// This machine cannot do it ([`LabError::Unavailable`]), or it went wrong.
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

impl<B: Benchmark> Experiment for Measured<B> {
    fn run(&self, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let mut outcome = self.0.measure(run)?;
        outcome.settings = serde_json::to_value(&self.0).unwrap_or_default();
        run.progress(1.0, "done");
        Ok(outcome)
    }
}

/// Why an experiment gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A setting is wrong.
    #[error(transparent)]
    Setting(#[from] ConfigError),
    /// This machine cannot do it.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// It went wrong.
    #[error("{0}")]
    Failed(String),
    /// It went wrong, with causes.
    #[error(transparent)]
    Other(anyhow::Error),
}

impl From<anyhow::Error> for LabError {
    fn from(error: anyhow::Error) -> Self {
        error.downcast::<LabError>().unwrap_or_else(LabError::Other)
    }
}

impl LabError {
    /// As the error that it was, so that it is told as others are.
    pub fn into_cause(self) -> anyhow::Error {
        match self {
            LabError::Setting(error) => error.into(),
            LabError::Other(error) => error,
            error => error.into(),
        }
    }
}
