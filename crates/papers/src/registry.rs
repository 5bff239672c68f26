//! The papers' table, and the list of the experiments that reproduce it.
//!
//! ```
//! use picnic_lab::experiment::Effort;
//! use picnic_lab::{registry::build, runner};
//! let entry = picnic_papers::registry::experiment("nicos-firewall").unwrap();
//! let settings = [("rules", "16"), ("milliseconds", "1")].map(|(k, v)| (k.into(), v.into()));
//! let experiment = build(entry, &settings)?;
//! let outcome = runner::outcome(entry.name, &*experiment, Effort::Usual, &mut |_, _| {})?;
//! assert_eq!(outcome.series[0].points.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::antagonist::Antagonist;
use crate::borrowed_core_limit::BorrowedCoreLimit;
use crate::inic::{InicBreakdown, InicConnections, InicCpus, InicLatency, InicRx, InicTx};
use crate::knet_livelock::KnetLivelock;
use crate::nicos_edf::NicosEdf;
use crate::nicos_firewall::NicosFirewall;
use crate::nicos_storm::NicosStorm;
use crate::picnic_latency::PicnicLatency;
use crate::picnic_scaling::PicnicScaling;
use crate::picnic_utilization::PicnicUtilization;
use crate::placement_multi::PlacementMulti;
use crate::placement_single::PlacementSingle;
use crate::rss_randomness::RssRandomness;
use crate::web_servers::{KnetApache, KnetPages, KnetSendfile, KnetWebfs, RssBulk, RssWeb};
use picnic_lab::registry::{ExperimentEntry, PaperEntry};

/// In the order of lists and reports: PICNIC's own first.
pub const PAPERS: &[PaperEntry] = &[
    PaperEntry::of::<PicnicUtilization>(),
    PaperEntry::of::<PicnicLatency>(),
    PaperEntry::of::<PicnicScaling>(),
    PaperEntry::of::<RssRandomness>(),
    PaperEntry::of::<RssWeb>(),
    PaperEntry::of::<RssBulk>(),
    PaperEntry::of::<KnetLivelock>(),
    PaperEntry::of::<KnetWebfs>(),
    PaperEntry::of::<KnetSendfile>(),
    PaperEntry::of::<KnetApache>(),
    PaperEntry::of::<KnetPages>(),
    PaperEntry::of::<InicRx>(),
    PaperEntry::of::<InicTx>(),
    PaperEntry::of::<InicConnections>(),
    PaperEntry::of::<InicCpus>(),
    PaperEntry::of::<InicLatency>(),
    PaperEntry::of::<InicBreakdown>(),
    PaperEntry::of::<NicosEdf>(),
    PaperEntry::of::<NicosFirewall>(),
    PaperEntry::of::<NicosStorm>(),
    PaperEntry::of::<PlacementSingle>(),
    PaperEntry::of::<PlacementMulti>(),
    PaperEntry::of::<BorrowedCoreLimit>(),
    PaperEntry::of::<Antagonist>(),
];

/// The experiment of this name.
pub fn experiment(name: &str) -> Option<&'static ExperimentEntry> {
    let mut all = PAPERS.iter().filter_map(|paper| paper.experiment.as_ref());
    all.find(|entry| entry.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_figures_and_keys_of_ours() {
        for (place, PaperEntry { row, experiment }) in PAPERS.iter().enumerate() {
            let name = row.name;
            assert!(!PAPERS[..place].iter().any(|other| other.row.name == name), "{name} twice");
            assert!(!row.figures.is_empty(), "{name}");
            let has_ours = row.figures.iter().any(|figure| figure.ours.is_some());
            assert_eq!(has_ours, experiment.is_some(), "{name}");
        }
    }
}
