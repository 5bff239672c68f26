//! The figures used by admission: from the card file, or from wires and cost profile.
//!
//! Guarantee: nothing is guessed. A wire that reports no rate is ignored, and the report says so;
//! without a cost profile packets cost nothing, and the report says that too.

use crate::doorbells::Doorbells;
use crate::keys::OsSection;
use crate::path::{Costs, Intake, PacketPath};
use picnic_core::config::{Amount, CardFile};
use picnic_core::port::{Arrivals, Rate};
use serde::Serialize;

/// The surroundings of a NIC OS: arrivals at the card's wires, and the cost of packets.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// By wire.
    pub arrivals: Vec<Arrivals>,
    /// From a profile, if any.
    pub costs: Option<ProfileCosts>,
}

/// A cost profile's figures of the packet path.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileCosts {
    /// Nanoseconds of a turn, without its packets and doorbells.
    pub turn_ns: u64,
    /// Nanoseconds of each packet.
    pub packet_ns: u64,
    /// Nanoseconds of a doorbell among many.
    pub doorbell_ns: u64,
    /// Nanoseconds of the longest doorbell.
    pub longest_doorbell_ns: u64,
    /// Whether a figure is a guess: neither measured on a machine nor set for a simulated one.
    pub is_assumed: bool,
    /// Interruptions of a core, if they were measured.
    pub interruptions: Option<Interrupted>,
    /// The profile's name.
    pub origin: String,
}

/// Frequency and length of interruptions of a core on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interrupted {
    /// Interruptions in a second.
    pub per_second: f64,
    /// Nanoseconds of the shortest that counts.
    pub shortest_ns: u64,
    /// Nanoseconds of the longest.
    pub longest_ns: u64,
}

/// A figure with its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The figure, if any.
    pub value: Option<u64>,
    /// Its origin, or the reason for having none.
    pub from: String,
}

/// Admission's figures of a wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WireReport {
    /// Its name.
    pub name: String,
    /// Packets per second.
    pub rate_pps: Origin,
    /// Packets that wait without loss; none if unlimited or not reported.
    pub room: Origin,
}

/// The figures used by admission.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathReport {
    /// By wire; one entry for all of them if the rate is stated.
    pub wires: Vec<WireReport>,
    /// Nanoseconds of a turn, without its packets and doorbells.
    pub turn_ns: Origin,
    /// Nanoseconds of each packet.
    pub packet_ns: Origin,
    /// Nanoseconds of a doorbell among many.
    pub doorbell_ns: Origin,
    /// Nanoseconds that the path may take after a segment.
    pub catch_up_ns: u64,
    /// Share of the core that packets need at these rates.
    pub packets_fraction: f64,
    /// Nanoseconds that the core may be interrupted without loss, in addition to the card file's
    /// tasks; null if arrivals are unknown, or all of them wait.
    pub tolerates_ns: Option<u64>,
    /// Interruptions of this machine's cores; null if they were not measured.
    pub interruptions: Option<Interrupted>,
    /// Checks that were not made, and why.
    pub notes: Vec<String>,
}

/// The key's own value, or the reported one.
fn amount(key: &Amount, name: &str, told: Option<u64>, from: &str) -> Origin {
    match key {
        Amount::Chosen(value) => Origin { value: Some(*value), from: format!("os.{name}") },
        Amount::Auto => Origin { value: told, from: from.into() },
    }
}

/// The packet path of a card, with the origin of its figures.
pub(super) fn packet_path(
    keys: &OsSection,
    file: &CardFile,
    around: &Surroundings,
) -> (PacketPath, PathReport) {
    let profile = around.costs.as_ref();
    let from = profile.map_or("no cost profile is known", |costs| &costs.origin);
    let turn_ns =
        amount(&keys.packet_turn_ns, "packet_turn_ns", profile.map(|costs| costs.turn_ns), from);
    let packet_ns =
        amount(&keys.packet_ns, "packet_ns", profile.map(|costs| costs.packet_ns), from);
    let doorbell_ns =
        amount(&keys.doorbell_ns, "doorbell_ns", profile.map(|costs| costs.doorbell_ns), from);
    let each_ns = doorbell_ns.value.unwrap_or(0);
    let longest_ns = match (&keys.doorbell_ns, profile) {
        (Amount::Auto, Some(costs)) => costs.longest_doorbell_ns,
        _ => each_ns,
    };
    let wires = wires(keys, file, &around.arrivals);
    let intakes = wires.iter().filter_map(|(report, burst)| {
        let room = report.room.value;
        Some(Intake {
            name: report.name.clone(),
            pps: report.rate_pps.value?,
            burst: *burst,
            // Unreported room is not checked.
            room: room.unwrap_or(u64::MAX),
        })
    });
    let costs = Costs {
        turn_ns: turn_ns.value.unwrap_or(0),
        packet_ns: packet_ns.value.unwrap_or(0),
        burst: if file.interrupt.per_packet { 1 } else { file.card.burst as u64 },
        wires: file.wires.len() as u64,
        catch_up_ns: keys.catch_up_us * 1_000,
        doorbells: Doorbells::of(&file.interrupt, file.host.queues, each_ns, longest_ns),
        interruption_ns: keys.interruption_us * 1_000,
        ring: file.host.ring_size as u64,
    };
    let mut path = PacketPath::new(intakes.collect(), costs);
    if keys.line_rate_pps != Amount::Auto {
        path = path.stated();
    }
    let mut notes = Vec::new();
    if !path.catches_up() && !path.is_stated() {
        notes.push(format!(
            "{} packets/s x {} ns per packet is more than the core has: the card loses packets at \
             that rate without any task, and admission asks only for room while a segment runs; \
             state os.line_rate_pps",
            path.pps(),
            path.per_packet_ns()
        ));
    }
    let report = PathReport {
        wires: wires.into_iter().map(|(report, _)| report).collect(),
        turn_ns,
        packet_ns,
        doorbell_ns,
        catch_up_ns: costs.catch_up_ns,
        packets_fraction: path.share_ppb() as f64 / 1e9,
        tolerates_ns: path.tolerates_ns(0),
        interruptions: profile.and_then(|costs| costs.interruptions),
        notes,
    };
    (path, report)
}

/// The known arrivals at each wire, and in total.
fn wires(keys: &OsSection, file: &CardFile, arrivals: &[Arrivals]) -> Vec<(WireReport, u64)> {
    let untold = Arrivals { origin: "the wire does not report anything".into(), ..<_>::default() };
    let told = |index: usize| arrivals.get(index).unwrap_or(&untold);
    let room = |arrivals: &Arrivals| {
        let told = arrivals.room.filter(|&room| room != u64::MAX);
        let from = match arrivals.room {
            Some(u64::MAX) => "all wait",
            Some(_) => arrivals.room_origin,
            None => "the wire does not report it",
        };
        amount(&keys.receive_room, "receive_room", told, from)
    };
    if let Amount::Chosen(pps) = keys.line_rate_pps {
        // All may arrive at the wire with the least room, in the longest bursts.
        let wires = || (0..file.wires.len()).map(told);
        let least = wires().map(room).min_by_key(|room| room.value.unwrap_or(u64::MAX));
        let burst = wires().map(|wire| wire.burst).fold(1, u64::max);
        let name = match &*file.wires {
            [wire] => wire.name.clone(),
            _ => "the wires".into(),
        };
        let rate_pps = Origin { value: Some(pps), from: "os.line_rate_pps".into() };
        let room = least.unwrap_or_else(|| room(&untold));
        return vec![(WireReport { name, rate_pps, room }, burst)];
    }
    let wires = file.wires.iter().enumerate().map(|(index, wire)| {
        let arrivals = told(index);
        let value = match arrivals.rate {
            Rate::Pps(pps) => Some(pps),
            Rate::Untold | Rate::Asked => None,
        };
        let rate_pps = Origin { value, from: arrivals.origin.clone() };
        (WireReport { name: wire.name.clone(), rate_pps, room: room(arrivals) }, arrivals.burst)
    });
    wires.collect()
}
