//! What work costs on the virtual cores: a few numbers, all of them modelled.
//!
//! ```
//! let costs = picnic_sim::CostModel { card_packet_ns: 40, ..Default::default() };
//! assert_eq!(costs.doorbell_send_ns, 6_000);
//! ```
//!
//! Guarantee: every turn costs at least a nanosecond, so virtual time moves on.
//! None of these figures was measured on the machine that runs the simulation;
//! whatever is derived from them reads "modelled".

use crate::machine::{Cost, Profile};
use picnic_core::resident::Segment;
use picnic_engine::poll::Activity;
use picnic_engine::target::Polled;
use std::ops::RangeInclusive;

/// The costs of a simulated machine, in nanoseconds.
///
/// The doorbell's defaults are what a futex wake costs between virtual CPUs; the others are
/// the order of magnitude of a server core. A host's own work per packet comes on top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// One turn of the borrowed core, with or without packets. 50 by default.
    pub card_turn_ns: u64,
    /// One packet on the borrowed core: received, submitted or transmitted. 20 by default.
    pub card_packet_ns: u64,
    /// One packet that the borrowed core sends, each move; none if as `card_packet_ns`.
    pub card_send_ns: Option<u64>,
    /// A decision of NIC OS and the switch to a segment and back. 200 by default.
    pub switch_ns: u64,
    /// One look of a target core at its queues. 30 by default.
    pub target_turn_ns: u64,
    /// One packet taken off a target ring, the host's own work aside. 20 by default.
    pub target_packet_ns: u64,
    /// Finding one packet's core in software and handing it over behind a lock that nobody holds.
    /// 150 by default.
    pub handover_ns: u64,
    /// Taking one interrupt, for the core that is interrupted. 0 by default: the doorbell's way
    /// there holds it.
    pub interrupt_ns: u64,
    /// Ringing one doorbell, for the core that rings. 6000 by default.
    pub doorbell_send_ns: u64,
    /// From ringing to the first turn of the core woken; drawn for each doorbell, uniformly.
    /// 11000 to 28000 by default.
    pub doorbell_arrive_ns: RangeInclusive<u64>,
    /// How long a borrowed core with `idle = "adaptive"` spins before it blocks. 50000 by
    /// default.
    pub adaptive_spin_ns: u64,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            card_turn_ns: 50,
            card_packet_ns: 20,
            card_send_ns: None,
            switch_ns: 200,
            target_turn_ns: 30,
            target_packet_ns: 20,
            handover_ns: 150,
            interrupt_ns: 0,
            doorbell_send_ns: 6_000,
            doorbell_arrive_ns: 11_000..=28_000,
            adaptive_spin_ns: 50_000,
        }
    }
}

impl CostModel {
    /// The card's part of a machine's costs; its target cores have their own.
    pub fn of(profile: &Profile) -> Self {
        let ns = |cost| profile.costs.ns(cost);
        // A packet's turn costs what the profile says of a packet.
        let card_turn_ns = ns(Cost::CardPacket).clamp(1, 50);
        let way_ns = ns(Cost::InterruptWay);
        CostModel {
            card_turn_ns,
            card_packet_ns: ns(Cost::CardPacket).saturating_sub(card_turn_ns),
            card_send_ns: Some(ns(Cost::CardSend)),
            doorbell_send_ns: ns(Cost::InterruptSend),
            doorbell_arrive_ns: way_ns..=way_ns,
            ..CostModel::default()
        }
    }

    /// The work of a turn of the borrowed core, before others see anything of it.
    pub(crate) fn card_work(&self, activity: &Activity) -> u64 {
        if let Some(segment) = &activity.segment {
            return self.segment(segment);
        }
        let received_ns = activity.received as u64 * self.card_packet_ns;
        (self.card_turn_ns + received_ns + self.sent(activity.submitted)).max(1)
    }

    /// Handing packets to the wires, once the work is done.
    pub(crate) fn card_transmit(&self, activity: &Activity) -> u64 {
        self.sent(activity.transmitted)
    }

    fn sent(&self, packets: usize) -> u64 {
        packets as u64 * self.card_send_ns.unwrap_or(self.card_packet_ns)
    }

    /// What a segment takes: the switch, and the work it stands for, or else its bound.
    pub(crate) fn segment(&self, segment: &Segment) -> u64 {
        let work_ns = Some(segment.work_ns).filter(|&work_ns| work_ns != 0);
        work_ns.unwrap_or(segment.model_ns).saturating_add(self.switch_ns).max(1)
    }

    /// What a look at the queues costs, doorbells and the host's work aside.
    pub(crate) fn target(&self, polled: &Polled) -> u64 {
        let packets = polled.moved as u64 * self.target_packet_ns;
        let handed = polled.handed as u64 * self.handover_ns;
        let interrupts = polled.interrupts as u64 * self.interrupt_ns;
        (self.target_turn_ns + packets + handed + interrupts).max(1)
    }
}
