//! The lab with these experiments: directories and reports.

mod folder;
mod report;

/// Registers the experiments of this crate with the lab.
fn listed() {
    picnic_lab::registry::set(crate::registry::PAPERS, &[]);
}
