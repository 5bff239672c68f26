//! THE LIST: the papers' table, and the experiments that reproduce it.
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

use crate::knet_livelock::KnetLivelock;
use crate::nicos_edf::NicosEdf;
use crate::nicos_firewall::NicosFirewall;
use crate::picnic_latency::PicnicLatency;
use crate::picnic_scaling::PicnicScaling;
use crate::picnic_utilization::PicnicUtilization;
use crate::placement_single::PlacementSingle;
use crate::rss_randomness::RssRandomness;
use crate::web_servers::{KnetApache, KnetPages, KnetSendfile, KnetWebfs, RssBulk, RssWeb};
use picnic_lab::paper::{number, row, words};
use picnic_lab::registry::{ExperimentEntry, PaperEntry};
use picnic_lab::unit::Unit;

const MODEL: &str = "needs the costs of an integrated and of a discrete NIC in the simulator";

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
    PaperEntry::unanswered(
        "inic-rx",
        row(
            "INIC",
            "receive bandwidth and CPU by I/O size, integrated against discrete",
            &[
                number("bandwidth", 0.075, Unit::Change),
                number("relative CPU above 1 KB", -0.20, Unit::Change),
            ],
        ),
        MODEL,
    ),
    PaperEntry::unanswered(
        "inic-tx",
        row("INIC", "the same of transmit", &[words("all", "like inic-rx")]),
        MODEL,
    ),
    PaperEntry::unanswered(
        "inic-connections",
        row(
            "INIC",
            "the same by number of connections",
            &[words("better", "only past 16 connections")],
        )
        .corrected("\"> 16\" in the figure, \"≥ 32\" in the text"),
        MODEL,
    ),
    PaperEntry::unanswered(
        "inic-cpus",
        row("INIC", "the same by number of CPUs", &[words("better", "only past 16 CPUs")]),
        MODEL,
    ),
    PaperEntry::unanswered(
        "inic-latency",
        row("INIC", "ping-pong latency", &[number("latency", -6.0, Unit::Microseconds)]),
        MODEL,
    ),
    PaperEntry::unanswered(
        "inic-breakdown",
        row(
            "INIC",
            "per-packet cost by part, context switches, interrupts, cache misses, memory traffic",
            &[
                words("driver cost", "halves"),
                number("L2 data misses", -0.076, Unit::Change),
                words("L2 data misses a packet", "1.5 fewer"),
            ],
        ),
        MODEL,
    ),
    PaperEntry::of::<NicosEdf>(),
    PaperEntry::of::<NicosFirewall>(),
    PaperEntry::unanswered(
        "nicos-storm",
        row(
            "NICOS 4.7",
            "Lamport total ordering among 5 nodes, on the card and on the host",
            &[
                number("latency, host to card", 2.38, Unit::Ratio),
                number("throughput, card to host", 1.57, Unit::Ratio),
            ],
        )
        .corrected("768 Mb/s over the stated 100 Mb/s link cannot be: ratios only"),
        "needs several cards in one simulated network, and the ordering protocol",
    ),
    PaperEntry::of::<PlacementSingle>(),
    PaperEntry::unanswered(
        "placement-multi",
        row(
            "PLACEMENT",
            "one connection per NIC, four NICs",
            &[
                number("same core", -0.15, Unit::Change),
                words("best", "two cores that share an L2 at high rates, one core at low ones"),
            ],
        ),
        "needs four NICs, and pairs of cores for four connections",
    ),
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
