//! The tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod commands;
#[path = "../../../../crates/papers/tests/worlds/conformance.rs"]
mod conformance;

use picnic_lab::document::Kind;
use picnic_lab::registry::ExperimentEntry;

/// Entries that must conform.
fn all() -> impl Iterator<Item = (Kind, &'static ExperimentEntry)> {
    picnic_micro::BENCHMARKS.iter().map(|entry| (Kind::Benchmark, entry))
}
