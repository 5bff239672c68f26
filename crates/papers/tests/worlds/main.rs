//! All tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod conformance;
mod interrupts;
mod nicos_edf;
mod nicos_firewall;

use picnic_lab::document::Kind;
use picnic_lab::registry::ExperimentEntry;

/// Entries that must conform.
fn all() -> impl Iterator<Item = (Kind, &'static ExperimentEntry)> {
    let papers = picnic_papers::registry::PAPERS.iter();
    papers.filter_map(|paper| Some((Kind::Experiment, paper.experiment.as_ref()?)))
}
