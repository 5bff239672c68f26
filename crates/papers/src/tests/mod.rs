//! The lab with these experiments: folders and reports.

mod folder;
mod report;

/// Lets the lab name the experiments of this crate.
fn listed() {
    picnic_lab::registry::set(crate::registry::PAPERS, &[]);
}
