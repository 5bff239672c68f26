//! The figures of a guest: the sums of its queues, and its state.
//!
//! Each packet of its queues has one fate, so the ledger balances for each guest, too:
//! `in_packets = packets + transmitted + dropped + in_flight`. Packets that functions drop before a
//! queue is chosen, or after the guest sent them, belong to the card's ledger alone.

use crate::figures::{Figure, Figures, Kind, Shown, Span, figures};
use picnic_core::attachment::{Guest, GuestState};
use picnic_core::ledger::QueueLedger;
use picnic_engine::view::{QueueView, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;

/// Whether a guest can receive packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GuestPhase {
    /// No front end is connected.
    #[default]
    Waiting,
    /// A front end is connected; the guest's driver uses no queue yet.
    Connected,
    /// The guest's driver uses at least one queue.
    Ready,
}

impl GuestPhase {
    /// All of them, in order.
    pub const ALL: [GuestPhase; 3] =
        [GuestPhase::Waiting, GuestPhase::Connected, GuestPhase::Ready];

    fn of(state: &GuestState) -> Self {
        match (state.is_connected, state.ready_queues) {
            (false, _) => GuestPhase::Waiting,
            (true, 0) => GuestPhase::Connected,
            (true, _) => GuestPhase::Ready,
        }
    }
}

impl fmt::Display for GuestPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GuestPhase::Waiting => "waiting",
            GuestPhase::Connected => "connected",
            GuestPhase::Ready => "ready",
        })
    }
}

/// The counters of a guest's queues.
#[derive(Clone, Copy, Debug)]
pub struct GuestQueues<'v> {
    queues: &'v [QueueView],
    ledgers: &'v [QueueLedger],
}

impl<'v> GuestQueues<'v> {
    /// The queues of this guest.
    pub fn of(view: &'v View, guest: &dyn Guest) -> Self {
        let range = guest.queues();
        let range = usize::from(range.start)..usize::from(range.end);
        GuestQueues {
            queues: view.queues.get(range.clone()).unwrap_or_default(),
            ledgers: view.ledger.queues.get(range).unwrap_or_default(),
        }
    }

    fn views(&self, count: fn(&QueueView) -> u64) -> u64 {
        self.queues.iter().map(count).sum()
    }

    fn ledgers(&self, count: fn(&QueueLedger) -> u64) -> u64 {
        self.ledgers.iter().map(count).sum()
    }

    fn ring_full(&self) -> u64 {
        self.views(|queue| queue.steer.ring_full.get())
    }

    fn drops(&self) -> BTreeMap<String, u64> {
        let mut drops = BTreeMap::new();
        let at_rings = Some(("ring_full", self.ring_full())).filter(|(_, count)| *count != 0);
        let on_cores = self.ledgers.iter().flat_map(|ledger| ledger.drops.nonzero());
        for (reason, count) in
            on_cores.map(|(reason, _, count)| (reason.name(), count)).chain(at_rings)
        {
            *drops.entry(reason.to_owned()).or_default() += count;
        }
        drops
    }
}

figures! {
    /// A guest's figures.
    GuestReport from (name: &str, state: &GuestState, of: &GuestQueues<'_>) {
        /// Name of the guest.
        Label guest: String = name.into() => { live: "guest" };
        /// "waiting" for a front end such as QEMU, "connected" to one, or "ready": the guest's
        /// driver uses queues.
        Label state: GuestPhase = GuestPhase::of(state) => {
            live: "state", heading: "state", totals: 9, rates: 9
        };
        /// Times that a front end connected.
        Counter connections: u64 = state.connections => {
            unit: Times, metric: "picnic_guest_connections"
        };
        /// Queues that the guest's driver uses: both rings are enabled.
        Gauge ready_queues: u64 = state.ready_queues => {
            unit: Queues, metric: "picnic_guest_ready", live: "ready_queues",
            heading: "queues", of: "queues", totals: 8, rates: 8
        };
        /// Queues of the guest.
        Gauge queues: u64 = of.queues.len() as u64 => {
            unit: Queues, metric: "picnic_guest", live: "queues"
        };
        /// Format of its rings: "split" or "packed"; null before the features are negotiated.
        Label rings: Option<String> = state.rings.map(Into::into) => {
            heading: "rings", totals: 3, rates: 1
        };
        /// Rings that the card has stopped using because their content was wrong; they are used
        /// again when the front end restarts them. `faults` has the reasons.
        Gauge broken_rings: u64 = state.broken_rings => {
            unit: Rings, metric: "picnic_guest_broken", live: "broken_rings"
        };
        /// Bytes of its longest packet without the Ethernet header, as negotiated.
        Gauge mtu_bytes: u64 = state.mtu => { unit: Bytes, heading: "mtu", totals: 2 };
        /// Names of the features that both sides use, as in the specification of virtio.
        Label features: Vec<String> = state.features.iter().map(|&name| name.into()).collect();
        /// Packets handed to the guest.
        Counter packets: u64 = of.views(|queue| queue.target.packets.get()) => {
            unit: Packets, metric: "picnic_guest_delivered", live: "pps", heading: "packets",
            totals: 9, pace: 5, rates: 9
        };
        /// Bytes handed to the guest.
        Counter bytes: u64 = of.views(|queue| queue.target.bytes.get()) => {
            unit: Bytes, metric: "picnic_guest_delivered", live: "bits_per_s",
            heading: "bytes", totals: 4, rates: 4
        };
        /// Packets that the guest sent.
        Counter transmitted: u64 = of.views(|queue| queue.target.transmitted.get()) => {
            unit: Packets, metric: "picnic_guest_transmitted", live: "tx_pps",
            heading: "tx packets", totals: 9, pace: 5, rates: 9
        };
        /// Bytes that the guest sent.
        Counter transmitted_bytes: u64 =
            of.views(|queue| queue.target.transmitted_bytes.get()) => {
            unit: Bytes, metric: "picnic_guest_transmitted", live: "tx_bits_per_s",
            heading: "tx bytes", totals: 4, rates: 4
        };
        /// Packets for the guest and of it that were dropped at its queues; `drops` has the
        /// reasons.
        Loss dropped: u64 = of.ring_full() + of.ledgers(|queue| queue.drops.total()) => {
            unit: Packets, live: "dropped_pps", heading: "dropped", totals: 9, rates: 9
        };
        /// These packets, by reason.
        Losses drops: BTreeMap<String, u64> = of.drops() => {
            unit: Packets, metric: "picnic_guest_dropped"
        };
        /// Packets that entered its queues from either side, also if they found them full.
        Counter in_packets: u64 = of.views(|queue| queue.steer.packets.get()) + of.ring_full()
            + of.ledgers(|queue| queue.made.get()) => { unit: Packets };
        /// Packets in its target rings.
        Gauge in_flight: u64 = of
            .views(|queue| queue.steer.packets.get())
            .saturating_sub(of.ledgers(|queue| queue.taken.get())) => { unit: Packets };
        /// Reasons why rings could not be used or connections ended, each once.
        Label faults: Vec<String> = state.faults.clone();
    }
}

impl GuestReport {
    /// All guests of a card.
    pub fn all(view: &View) -> Vec<GuestReport> {
        let guests = view.guests.iter();
        let report = |guest: &std::sync::Arc<dyn Guest>| {
            let of = GuestQueues::of(view, &**guest);
            GuestReport::read(guest.name(), &guest.state(), &of)
        };
        guests.map(report).collect()
    }
}
