//! The known experiments, and the papers' table.
//!
//! The lab has no experiments: the program that uses it sets them.

use crate::experiment::Experiment;
use crate::paper::Row;
use picnic_core::config::{KeyHelp, Section};
use picnic_core::error::{ConfigError, not_among};
use picnic_core::registry::{BuildContext, Component, Entry};
use std::sync::OnceLock;

/// An experiment or a benchmark.
pub type ExperimentEntry = Entry<Box<dyn Experiment>>;

/// An experiment that reproduces a paper's measurement.
pub trait Reproduces: Component<Product = Box<dyn Experiment>> {
    /// The paper's findings, without the experiment's name.
    const PAPER: Row;
}

/// A row of the papers' table, with its experiment.
#[derive(Clone, Copy)]
pub struct PaperEntry {
    /// The paper's findings.
    pub row: Row,
    /// None if not reproduced yet.
    pub experiment: Option<ExperimentEntry>,
}

impl PaperEntry {
    /// An experiment with its row.
    pub const fn of<E: Reproduces>() -> Self {
        PaperEntry { row: E::PAPER.named(E::NAME), experiment: Some(Entry::of::<E>()) }
    }

    /// A row without an experiment, and why.
    pub const fn unanswered(name: &'static str, row: Row, why: &'static str) -> Self {
        let row = Row { unanswered: Some(why), ..row.named(name) };
        PaperEntry { row, experiment: None }
    }
}

/// The papers' experiments, and the program's own.
static LISTS: OnceLock<(&[PaperEntry], &[ExperimentEntry])> = OnceLock::new();

/// Sets the known experiments. Once per program.
pub fn set(papers: &'static [PaperEntry], others: &'static [ExperimentEntry]) {
    let _ = LISTS.set((papers, others));
}

fn lists() -> (&'static [PaperEntry], &'static [ExperimentEntry]) {
    LISTS.get().copied().unwrap_or_default()
}

/// All known experiments.
pub fn experiments() -> impl Iterator<Item = &'static ExperimentEntry> {
    let (papers, others) = lists();
    papers.iter().filter_map(|paper| paper.experiment.as_ref()).chain(others)
}

/// The papers' table.
pub fn papers() -> impl Iterator<Item = &'static Row> {
    lists().0.iter().map(|paper| &paper.row)
}

/// Builds an entry from keys and values as on a command line: TOML, or text without quotes. Lists
/// are given whole, item by item, or with commas if their items are not free text.
///
/// # Errors
/// The wrong key, with the found and allowed values.
pub fn build(
    entry: &ExperimentEntry,
    settings: &[(String, String)],
) -> Result<Box<dyn Experiment>, ConfigError> {
    let keys = entry.keys();
    let mut table = toml::Table::new();
    for (name, text) in settings {
        let Some(key) = keys.iter().find(|key| key.name == *name) else {
            let allowed = keys.iter().map(|key| key.name.as_str());
            return Err(ConfigError::new(name, not_among("key ", name, allowed)));
        };
        match (value(key, text), table.get_mut(name)) {
            (toml::Value::Array(more), Some(toml::Value::Array(items))) => items.extend(more),
            (value, _) => drop(table.insert(name.clone(), value)),
        }
    }
    table.insert("experiment".into(), entry.name.into());
    let section = Section::from_text("experiment", &table.to_string())?;
    entry.build(&section, &BuildContext::default())
}

fn value(key: &KeyHelp, text: &str) -> toml::Value {
    let scalar = |text: &str| {
        let parsed = toml::from_str::<toml::Table>(&format!("value = {text}\n")).ok();
        let parsed = parsed.filter(|table| table.len() == 1);
        parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| text.trim().into())
    };
    match key.r#type.strip_prefix("list of ") {
        Some("string") => match scalar(text) {
            list @ toml::Value::Array(_) => list,
            _ => toml::Value::Array(vec![text.into()]),
        },
        Some(_) if !text.trim_start().starts_with('[') => {
            toml::Value::Array(text.split(',').map(scalar).collect())
        }
        None if key.r#type.starts_with("string") => text.into(),
        _ => scalar(text),
    }
}
