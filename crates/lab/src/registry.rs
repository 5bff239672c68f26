//! The experiments and the benchmarks of the lab: one line each.

use crate::benchmarks::{
    chain, classifier, dispatch, doorbell, feed, firewall, functions, hash, hybrid, idle, kernel,
    latency, link, moderation, modes, os, overload, tcp, web, wire,
};
use crate::experiment::{Experiment, Measured};
use crate::experiments::knet_livelock::KnetLivelock;
use crate::experiments::knet_web::KnetWeb;
use crate::experiments::nicos_edf::NicosEdf;
use crate::experiments::nicos_firewall::NicosFirewall;
use crate::experiments::picnic_latency::PicnicLatency;
use crate::experiments::picnic_scaling::PicnicScaling;
use crate::experiments::picnic_utilization::PicnicUtilization;
use crate::experiments::placement_single::PlacementSingle;
use crate::experiments::rss_randomness::RssRandomness;
use crate::experiments::web_servers::{
    KnetApache, KnetPages, KnetSendfile, KnetWebfs, RssBulk, RssWeb, WebServers,
};
use picnic_core::config::{KeyHelp, Section};
use picnic_core::error::{ConfigError, not_among};
use picnic_core::registry::{BuildContext, Entry};
use std::sync::OnceLock;

/// A line of either list.
pub type ExperimentEntry = Entry<Box<dyn Experiment>>;

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

/// Those of the program, if it has some.
static OTHERS: OnceLock<&[ExperimentEntry]> = OnceLock::new();

/// From now on these can be named beside [`EXPERIMENTS`]. Once a program.
pub fn add(experiments: &'static [ExperimentEntry]) {
    let _ = OTHERS.set(experiments);
}

/// All experiments that can be named.
pub fn experiments() -> impl Iterator<Item = &'static ExperimentEntry> {
    EXPERIMENTS.iter().chain(OTHERS.get().into_iter().copied().flatten())
}

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
