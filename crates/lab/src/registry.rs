//! The experiments that can be named, and the papers' table.
//!
//! The lab has none of its own: the program that uses it sets them.

use crate::experiment::Experiment;
use crate::paper::Row;
use picnic_core::config::{KeyHelp, Section};
use picnic_core::error::{ConfigError, not_among};
use picnic_core::registry::{BuildContext, Component, Entry};
use std::sync::OnceLock;

/// An experiment or a benchmark.
pub type ExperimentEntry = Entry<Box<dyn Experiment>>;

/// An experiment that measures again what a paper has measured.
pub trait Reproduces: Component<Product = Box<dyn Experiment>> {
    /// What the paper found, without the experiment's name.
    const PAPER: Row;
}

/// A row of the papers' table, and the experiment that answers it.
#[derive(Clone, Copy)]
pub struct PaperEntry {
    /// What the paper found.
    pub row: Row,
    /// None if nothing answers it yet.
    pub experiment: Option<ExperimentEntry>,
}

impl PaperEntry {
    /// An experiment with its row.
    pub const fn of<E: Reproduces>() -> Self {
        PaperEntry { row: E::PAPER.named(E::NAME), experiment: Some(Entry::of::<E>()) }
    }

    /// A row that no experiment answers, and why.
    pub const fn unanswered(name: &'static str, row: Row, why: &'static str) -> Self {
        let row = Row { unanswered: Some(why), ..row.named(name) };
        PaperEntry { row, experiment: None }
    }
}

/// Those of the papers, and those of the program's own.
static LISTS: OnceLock<(&[PaperEntry], &[ExperimentEntry])> = OnceLock::new();

/// From now on these can be named. Once a program.
pub fn set(papers: &'static [PaperEntry], others: &'static [ExperimentEntry]) {
    let _ = LISTS.set((papers, others));
}

fn lists() -> (&'static [PaperEntry], &'static [ExperimentEntry]) {
    LISTS.get().copied().unwrap_or_default()
}

/// All experiments that can be named.
pub fn experiments() -> impl Iterator<Item = &'static ExperimentEntry> {
    let (papers, others) = lists();
    papers.iter().filter_map(|paper| paper.experiment.as_ref()).chain(others)
}

/// The papers' table.
pub fn papers() -> impl Iterator<Item = &'static Row> {
    lists().0.iter().map(|paper| &paper.row)
}

/// Builds an entry from keys and values as a command line has them: TOML, or text that needs no
/// quotes. Lists are given whole, item by item, or with commas if their items are no free text.
///
/// # Errors
/// The key that is wrong, what was found and what is allowed.
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
