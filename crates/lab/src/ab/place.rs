//! Where a side is measured: its card alone, or between programs.
//!
//! Alone, the card runs as in its file: usually with a generator or a capture and an app, and
//! without root. With a workload its first wire is the one between client and card, its host a tap
//! in the server's namespace ([`crate::workloads::hosts`]); the rest is as in the file.

use super::Side;
use super::figure::{CardFigure, ComparedFigure, latencies};
use super::workload::{ClientOutput, Way, Workload};
use crate::breakdown::{Kinds, Recorder, Samples};
use crate::card::changed;
use crate::meter::{Load, Meter};
use crate::window::Window;
use crate::workloads::hosts::{HOST_LINK, HOST_MAC, Hosts, Role, SERVER};
use crate::workloads::tools;
use anyhow::Context;
use picnic_control::error::RunError;
use picnic_control::{Launch, Registries, Running};
use picnic_core::config::{
    CardFile, DEMONSTRATION, HostSection, Sections, Setting, WireSection, keys_of,
};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_engine::build::STAMPING;
use picnic_machine::topology;
use serde::Serialize;
use std::time::Duration;

/// Time for caches, rings and rates to settle.
const WARM_UP: Duration = Duration::from_millis(50);
/// Bytes of a packet on the wire without its Ethernet header.
const MTU: u32 = 1500;
/// Share of time above which a client's thread counts as saturated.
const FULL: f64 = 0.95;

/// Sections that an empty card does not have.
const REMOVED: [&str; 4] = ["tx", "task", "filter", "os"];

/// Reasons of drops for lack of room, each with a remedy.
const NO_ROOM: [(DropReason, &str); 7] = [
    (DropReason::RingFull, "a larger host.ring_size"),
    (DropReason::PoolExhausted, "more pool.buffers"),
    (DropReason::BacklogFull, "a larger backlog of the wire"),
    (DropReason::WireFull, "a larger card.wire_backlog"),
    (DropReason::WireOverrun, "more slots at the wire"),
    (DropReason::TxRingFull, "a larger host.tx_ring_size"),
    (DropReason::HostRefused, "a faster host"),
];

/// Drops: the reason, the remedy, the count.
type Lost = Vec<(&'static str, &'static str, u64)>;

/// The result of measuring a side once.
pub(crate) struct Measured {
    /// The figure; none if there was none, such as a card's figure without a card.
    pub(super) value: Option<f64>,
    pub(crate) window: Option<Window>,
    pub(crate) load: Load,
    /// The share of packets lost for lack of room, and where, most first.
    pub(super) lost: (f64, Lost),
    /// The share of time that the client's busiest thread ran.
    pub(super) client: Option<f64>,
    /// Whether the client could not send all its requests.
    pub(super) at_limit: bool,
    /// Sampled stacks and interrupts by kind, if they were recorded.
    pub(crate) recorded: Option<(Samples, Vec<(String, u64)>)>,
    /// Request latencies, if the client reports them: keys and nanoseconds.
    pub(super) latencies: Vec<(&'static str, f64)>,
}

/// Limits within which a pair counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Allowed {
    /// The share of packets that a side may lose for lack of room.
    pub loss: f64,
    /// Whether a client may be saturated.
    pub full_client: bool,
    /// The share of all cores that other processes may use.
    pub others: f64,
}

/// Why a measurement does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Void {
    /// The reason and a remedy.
    pub(super) why: String,
    /// Whether the reason is other programs, which may end.
    pub(super) is_load: bool,
}

impl Measured {
    /// Why it does not count.
    pub(super) fn void(&self, allowed: &Allowed) -> Option<Void> {
        let own = |why| Some(Void { why, is_load: false });
        let (lost, places) = &self.lost;
        if *lost > allowed.loss {
            let room = places.first().map_or("", |(_, room, _)| room);
            let places = places.iter().map(|(reason, _, count)| format!("{count} {reason}"));
            let places = places.collect::<Vec<_>>().join(", ");
            let (percent, most) = (lost * 100.0, allowed.loss * 100.0);
            return own(format!(
                "it lost {percent:.1} % of its packets for lack of room ({places}), allowed: {most} %; \
                 try {room}, fewer packets, or --allow-loss {}",
                percent_above(*lost)
            ));
        }
        let others = self.load.others_fraction.filter(|share| *share > allowed.others);
        if let Some(share) = others {
            let why = format!(
                "other processes used {:.0} % of the cores, allowed: {} %; end them, use \
                 a quieter machine, or --allow-others {}",
                share * 100.0,
                allowed.others * 100.0,
                percent_above(share)
            );
            return Some(Void { why, is_load: true });
        }
        if self.at_limit && !allowed.full_client {
            return own("the client could not send all its requests; try a \
                        lower rate or --allow-full-client"
                .into());
        }
        match self.client {
            Some(share) if share >= FULL && !allowed.full_client => own(format!(
                "the client was saturated: a thread of it ran {:.0} % of the time; try a client with more \
                 threads, or --allow-full-client",
                share * 100.0
            )),
            _ => None,
        }
    }
}

/// A round percentage above this share.
fn percent_above(share: f64) -> f64 {
    let round = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0];
    round.into_iter().find(|percent| *percent >= share * 110.0).unwrap_or(100.0)
}

/// The card to measure.
#[derive(Clone, Copy)]
pub(crate) enum Card<'a> {
    /// None: client and server are joined by a veth.
    None,
    /// This one.
    As(&'a Side),
    /// This one with an empty function instead of its chains.
    Empty(&'a Side),
}

/// Where sides are measured.
pub(crate) struct MeasuringPlace<'a> {
    registries: Registries,
    sections: &'a Sections,
    seconds: f64,
    behind: Option<WorkloadSetup<'a>>,
    /// What is recorded while a side is measured.
    pub(crate) recorder: Option<Recorder>,
}

/// The programs.
struct WorkloadSetup<'a> {
    hosts: Hosts,
    workload: &'a Workload,
    /// Ended before the namespaces.
    server: Option<super::workload::Serving>,
}

impl Drop for WorkloadSetup<'_> {
    fn drop(&mut self) {
        self.server = None;
    }
}

impl<'a> MeasuringPlace<'a> {
    /// `wire_frames`: the client sends no super-frames; `apart`: the card whose borrowed core the
    /// programs avoid.
    pub(crate) fn build(
        registries: Registries,
        sections: &'a Sections,
        seconds: f64,
        workload: Option<&'a Workload>,
        (wire_frames, apart): (bool, Option<&Side>),
    ) -> anyhow::Result<Self> {
        let mut place =
            MeasuringPlace { registries, sections, seconds, behind: None, recorder: None };
        let Some(workload) = workload else { return Ok(place) };
        tools::need(&workload.tools)?;
        let mut hosts = Hosts::build("ab", MTU)?;
        hosts.join_plainly(MTU)?;
        if wire_frames {
            tools::need(&[("ethtool", "ethtool")])?;
            hosts.send_frames()?;
        }
        if let Some(side) = apart {
            let placement = topology::place(&place.card(side, false)?, &topology::available());
            hosts.keep_programs_off(&placement.map_err(RunError::from)?);
        }
        let server = workload.serve(&hosts)?;
        place.behind = Some(WorkloadSetup { hosts, workload, server });
        Ok(place)
    }

    /// The same, with all sides checked.
    pub(crate) fn checked(
        registries: Registries,
        sections: &'a Sections,
        (seconds, workload, figure, sides): (f64, Option<&'a Workload>, &ComparedFigure, &[&Side]),
        setup: (bool, Option<&Side>),
    ) -> anyhow::Result<Self> {
        let place = Self::build(registries, sections, seconds, workload, setup)?;
        sides.iter().try_for_each(|side| place.check(side, figure))?;
        Ok(place)
    }

    /// Whether there are client and server.
    pub(super) fn has_programs(&self) -> bool {
        self.behind.is_some()
    }

    /// Checks a side: its file, its parts, and whether it can have the figure.
    pub(crate) fn check(&self, side: &Side, figure: &ComparedFigure) -> anyhow::Result<()> {
        let file = self.card(side, false)?;
        let launch = Launch::new(&file, self.registries);
        launch.check()?;
        let ComparedFigure::Card(CardFigure { name, of_arrival: true, .. }) = figure else {
            return Ok(());
        };
        let known = launch.build()?.parts.know_arrival();
        if let Some(wire) = known.iter().position(|known| !known) {
            let port = file.wires[wire].port.name();
            let message = format!(
                "found \"{port}\", which does not know when packets arrive with these settings, but \
                 {name} needs arrival times; allowed: {STAMPING}"
            );
            return Err(file
                .locate(ConfigError::new(format!("wire[{wire}].port"), message))
                .into());
        }
        Ok(())
    }

    /// Measures once.
    pub(crate) fn measure(
        &self,
        card: Card<'_>,
        figure: &ComparedFigure,
    ) -> anyhow::Result<Measured> {
        let file = match card {
            Card::None => None,
            Card::As(side) => Some(self.card(side, false)?),
            Card::Empty(side) => Some(self.card(side, true)?),
        };
        let running = match &file {
            Some(file) => Some(Launch::new(file, self.registries).start_alone()?),
            None => None,
        };
        let recording = match &self.recorder {
            Some(of) => Some((of.start()?, Kinds::read(&of.cores), &of.cores)),
            None => None,
        };
        let meter = Meter::start();
        let (talked, window) = match (&self.behind, running) {
            (None, None) => anyhow::bail!("found neither a card nor a workload"),
            (None, Some(running)) => {
                let time = Duration::from_secs_f64(self.seconds);
                (None, Some(Window::of(running, WARM_UP, time)?))
            }
            (Some(behind), None) => (Some(behind.run(Way::Plain, self.seconds)?), None),
            (Some(behind), Some(running)) => {
                let way = Way::Card { link: HOST_LINK, mac: HOST_MAC };
                let body = |_: &mut dyn Running| behind.run(way, self.seconds);
                let (talked, window) = Window::around(running, body)?;
                (Some(talked), Some(window))
            }
        };
        let load = meter.stop();
        let recorded = match recording {
            Some((recording, before, cores)) => {
                let kinds = Kinds::read(cores).since(&before);
                Some((recording.stop()?, kinds))
            }
            None => None,
        };
        let (printed, client, at_limit) = talked.map_or((String::new(), None, false), |talked| {
            (talked.printed, talked.busiest, talked.at_limit)
        });
        let value = figure.read(window.as_ref(), &printed);
        if value.is_none() && matches!(figure, ComparedFigure::Printed(..)) {
            let last = printed.lines().rev().find(|line| !line.trim().is_empty());
            let last =
                last.map_or("it printed nothing".into(), |line| format!("its last line: {line}"));
            anyhow::bail!("the workload's output does not contain the figure: {last}");
        }
        let lost = window.as_ref().map_or((0.0, Lost::new()), lost);
        let latencies = latencies(&printed);
        Ok(Measured { value, window, load, lost, client, at_limit, recorded, latencies })
    }

    /// The card of a side, or the same without its chains.
    pub(crate) fn card(&self, side: &Side, is_empty: bool) -> Result<CardFile, ConfigError> {
        let path = side.path.as_deref();
        let mut text = path.map_or(Ok(DEMONSTRATION.to_owned()), CardFile::read)?;
        let wrong = |message| ConfigError::new("card", message);
        let mut set = side.set.clone();
        // Unchanged: errors have their lines.
        let file = changed(self.sections, &text, path, Vec::new(), &set)?;
        if is_empty {
            text = emptied(&text).map_err(wrong)?;
            // Settings of removed functions do not apply.
            set.retain(|setting| !is_of_chain(setting));
        }
        let Some(WorkloadSetup { hosts, .. }) = &self.behind else {
            return match is_empty {
                true => changed(self.sections, &text, path, Vec::new(), &set),
                false => Ok(file),
            };
        };
        let text = joined(&text).map_err(wrong)?;
        let settings = vec![
            Setting::text("wire[0].namespace", &hosts.netns(Role::Card)),
            Setting::text("host.namespace", &hosts.netns(Role::Server)),
        ];
        changed(self.sections, &text, path, settings, &set)
    }
}

impl WorkloadSetup<'_> {
    fn run(&self, way: Way, seconds: f64) -> anyhow::Result<ClientOutput> {
        self.workload.run(&self.hosts, way, seconds)
    }
}

/// Whether a `KEY=VALUE` concerns sections that an empty card does not have.
fn is_of_chain(setting: &str) -> bool {
    let key = setting.split(['=', '[', '.']).next().unwrap_or_default();
    key.trim() == "rx" || REMOVED.contains(&key.trim())
}

/// Drops for lack of room, as a share of the packets received.
fn lost(window: &Window) -> (f64, Lost) {
    let drops = NO_ROOM.iter().filter_map(|(reason, room)| {
        let count = *window.report.drops.get(reason.name())?;
        (count != 0).then_some((reason.name(), *room, count))
    });
    let mut drops: Lost = drops.collect();
    drops.sort_by_key(|(.., count)| std::cmp::Reverse(*count));
    let all: u64 = drops.iter().map(|(.., count)| count).sum();
    (all as f64 / window.report.ledger.r#in.max(1) as f64, drops)
}

fn table(text: &str) -> Result<toml::Table, String> {
    toml::from_str(text).map_err(|error| error.message().to_owned())
}

/// A card's text with its first wire and its host between client and server.
fn joined(text: &str) -> Result<String, String> {
    let mut card = table(text)?;
    let first = card.get("wire").and_then(|wires| wires.as_array()?.first()?.as_table());
    let wire_keys: Vec<_> = keys_of::<WireSection>().into_iter().map(|key| key.name).collect();
    let host_keys: Vec<_> = keys_of::<HostSection>().into_iter().map(|key| key.name).collect();
    let mut wire = named(first, "port", &["packet", "xdp"], &wire_keys);
    wire.insert("interface".into(), "w0".into());
    let host = card.get("host").and_then(toml::Value::as_table);
    let mut host = named(host, "attachment", &["tap"], &host_keys);
    host.insert("name".into(), HOST_LINK.into());
    host.insert("addresses".into(), toml::Value::Array(vec![format!("{SERVER}/24").into()]));
    // The client's kernel remembers it from one turn to the next.
    host.insert("mac".into(), HOST_MAC.into());
    host.insert("mtu".into(), i64::from(MTU).into());
    card.insert("wire".into(), toml::Value::Array(vec![wire.into()]));
    card.insert("host".into(), host.into());
    // A super-frame of 64 KiB takes five buffers of this size.
    let pool = toml::Table::from_iter(
        [("buffers", 4096), ("buffer_size", 16384)]
            .map(|(key, value): (&str, i64)| (key.to_owned(), toml::Value::Integer(value))),
    );
    card.entry("pool").or_insert_with(|| pool.into());
    Ok(card.to_string())
}

/// A section unchanged if it names one of these, otherwise with the first of them and the keys
/// common to all.
fn named(
    section: Option<&toml::Table>,
    key: &str,
    names: &[&str],
    common: &[String],
) -> toml::Table {
    let name = section.and_then(|section| section.get(key)?.as_str());
    let is_one = name.is_some_and(|name| names.contains(&name));
    let given = section.into_iter().flatten();
    let kept = given.filter(|(name, _)| is_one || common.contains(name) || *name == "fault");
    let mut kept: toml::Table = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    if !is_one {
        kept.insert(key.into(), names[0].into());
    }
    kept
}

/// A card's text with an empty function instead of its chains, and no tasks and filters.
fn emptied(text: &str) -> Result<String, String> {
    let mut card = table(text)?;
    let pass = toml::Table::from_iter([("function".to_owned(), toml::Value::from("pass"))]);
    card.insert("rx".into(), toml::Value::Array(vec![pass.into()]));
    for section in REMOVED {
        card.remove(section);
    }
    Ok(card.to_string())
}

/// Adds the side and pair to an error.
pub(super) fn about<T>(result: anyhow::Result<T>, pair: usize, side: &str) -> anyhow::Result<T> {
    result.with_context(|| format!("pair {pair}, {side}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_between_programs_keeps_all_but_its_ends() {
        let text = joined(
            "[[wire]]\nport = \"generator\"\nname = \"in\"\nrate_pps = 5\n[wire.fault]\ndrop = 0.1\n\
             [[rx]]\nplugin = \"a.so\"\n[host]\nqueues = 2\ncost_ns = 3\n",
        );
        let card = table(&text.unwrap()).unwrap();
        let wire = card["wire"][0].as_table().unwrap();
        assert_eq!(wire["port"].as_str(), Some("packet"));
        assert_eq!(wire["fault"]["drop"].as_float(), Some(0.1));
        assert!(wire.contains_key("name") && !wire.contains_key("rate_pps"), "{wire}");
        assert_eq!(card["host"]["queues"].as_integer(), Some(2));
        assert!(card["host"].get("cost_ns").is_none());
        assert_eq!(card["rx"][0]["plugin"].as_str(), Some("a.so"));
        let text = joined("[[wire]]\nport = \"xdp\"\ninterface = \"e0\"\nqueues = 2\n").unwrap();
        let wire = table(&text).unwrap()["wire"][0].clone();
        assert_eq!(wire["queues"].as_integer(), Some(2));
        assert_eq!(wire["interface"].as_str(), Some("w0"));
    }

    #[test]
    fn an_empty_card_has_one_function() {
        let text = emptied("[[rx]]\nfunction = \"rss\"\n[[tx]]\nfunction = \"tso\"\n").unwrap();
        let card = picnic_host::sections().parse(&text, None).unwrap();
        assert_eq!((card.rx.len(), card.tx.len(), card.rx[0].name()), (1, 0, "pass"));
        assert!(is_of_chain("rx[0].hash=jhash") && is_of_chain("tx=[]"));
        assert!(!is_of_chain("interrupt.rx_usecs=5"));
    }
}
