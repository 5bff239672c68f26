//! What an experiment is, and what it returns.

use picnic_core::error::ConfigError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Where an experiment runs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum World {
    /// On a virtual processor: modelled, the same for the same seed
    #[default]
    Sim,
    /// On cores of this machine: measured
    Host,
}

impl World {
    /// What its figures are: `measured` or `modelled`.
    pub fn label(self) -> &'static str {
        match self {
            World::Sim => "modelled",
            World::Host => "measured",
        }
    }
}

/// An experiment, with its settings.
pub trait Experiment {
    /// Runs it; `progress` is told the share done, from 0 to 1, and what is at work.
    ///
    /// # Errors
    /// Why it could not be done.
    fn run(&self, progress: &mut dyn FnMut(f64, &str)) -> Result<Outcome, LabError>;
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The figures: fields in snake_case with the unit as suffix.
    pub figures: Map<String, Value>,
    /// The same for people.
    pub tables: Vec<Table>,
    /// What a reader must know to judge them.
    pub notes: Vec<String>,
}

/// A table: columns, then rows as long as these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Headings. Words stand left in the first column; figures right in the others.
    pub columns: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
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
}
