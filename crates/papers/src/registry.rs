//! The experiments and the benchmarks: one line each.
//!
//! ```
//! use picnic_lab::experiment::Effort;
//! use picnic_lab::{registry::build, runner};
//! use picnic_papers::registry::EXPERIMENTS;
//! let entry = EXPERIMENTS.iter().find(|entry| entry.name == "nicos-firewall").unwrap();
//! let settings = [("rules", "16"), ("milliseconds", "1")].map(|(k, v)| (k.into(), v.into()));
//! let experiment = build(entry, &settings)?;
//! let outcome = runner::outcome(entry.name, &*experiment, Effort::Usual, &mut |_, _| {})?;
//! assert_eq!(outcome.series[0].points.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::benchmarks::{
    chain, classifier, dispatch, doorbell, feed, firewall, functions, hash, hybrid, idle, kernel,
    latency, link, moderation, modes, os, overload, tcp, web, wire,
};
use crate::knet_livelock::KnetLivelock;
use crate::knet_web::KnetWeb;
use crate::nicos_edf::NicosEdf;
use crate::nicos_firewall::NicosFirewall;
use crate::picnic_latency::PicnicLatency;
use crate::picnic_scaling::PicnicScaling;
use crate::picnic_utilization::PicnicUtilization;
use crate::placement_single::PlacementSingle;
use crate::rows::PAPERS;
use crate::rss_randomness::RssRandomness;
use crate::web_servers::{
    KnetApache, KnetPages, KnetSendfile, KnetWebfs, RssBulk, RssWeb, WebServers,
};
use picnic_core::registry::Entry;
use picnic_lab::experiment::Measured;
use picnic_lab::registry::{ExperimentEntry, Lists};

/// THE LIST of experiments: what a feature gives.
pub const EXPERIMENTS: &[ExperimentEntry] = &[
    Entry::of::<PicnicUtilization>(),
    Entry::of::<PicnicLatency>(),
    Entry::of::<PicnicScaling>(),
    Entry::of::<RssRandomness>(),
    Entry::of::<WebServers<RssWeb>>(),
    Entry::of::<WebServers<RssBulk>>(),
    Entry::of::<KnetLivelock>(),
    Entry::of::<KnetWeb>(),
    Entry::of::<WebServers<KnetWebfs>>(),
    Entry::of::<WebServers<KnetSendfile>>(),
    Entry::of::<WebServers<KnetApache>>(),
    Entry::of::<WebServers<KnetPages>>(),
    Entry::of::<NicosEdf>(),
    Entry::of::<NicosFirewall>(),
    Entry::of::<PlacementSingle>(),
];

/// THE LIST of benchmarks: what the card costs on this machine.
pub const BENCHMARKS: &[ExperimentEntry] = &[
    Entry::of::<Measured<dispatch::Dispatch>>(),
    Entry::of::<Measured<hash::Hash>>(),
    Entry::of::<Measured<doorbell::Wake>>(),
    Entry::of::<Measured<os::NicOs>>(),
    Entry::of::<Measured<chain::Chains>>(),
    Entry::of::<Measured<functions::Functions>>(),
    Entry::of::<Measured<classifier::Classifying>>(),
    Entry::of::<Measured<kernel::Kernel>>(),
    Entry::of::<Measured<firewall::Firewall>>(),
    Entry::of::<Measured<feed::Feed>>(),
    Entry::of::<Measured<hybrid::Hybrid>>(),
    Entry::of::<Measured<latency::Latency>>(),
    Entry::of::<Measured<overload::Overload>>(),
    Entry::of::<Measured<idle::Idle>>(),
    Entry::of::<Measured<link::Links>>(),
    Entry::of::<Measured<wire::Wires>>(),
    Entry::of::<Measured<tcp::Tcp>>(),
    Entry::of::<Measured<web::Web>>(),
    Entry::of::<Measured<moderation::Moderation>>(),
    Entry::of::<Measured<modes::Modes>>(),
];

/// What a program can name that has these experiments beside those of this crate.
pub const fn lists(others: &'static [ExperimentEntry]) -> Lists {
    Lists { experiments: EXPERIMENTS, benchmarks: BENCHMARKS, papers: PAPERS, others }
}
