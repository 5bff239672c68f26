//! The cost of work on the virtual cores: a few numbers, all of them modelled.
//!
//! ```
//! let costs = picnic_sim::CostModel { card_packet_ns: 40, ..Default::default() };
//! assert_eq!(costs.doorbell_send_ns, 6_000);
//! ```
//!
//! Guarantee: every turn costs at least a nanosecond, so virtual time advances. None of these
//! figures was measured on the machine that runs the simulation; everything derived from them is
//! marked "modelled".

use crate::machine::{Cost, Profile, WakeUps};
use picnic_core::resident::Segment;
use picnic_engine::poll::Activity;
use picnic_engine::target::Polled;
use picnic_os::config::ProfileCosts;
use std::ops::RangeInclusive;

/// The costs of a simulated machine, in nanoseconds.
///
/// The doorbell's defaults are those of a futex wake between virtual CPUs; the others are typical
/// of a server core. A host's own work per packet is added.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// One turn of the borrowed core, with or without packets. Default: 50.
    pub card_turn_ns: u64,
    /// One packet on the borrowed core: received, submitted or transmitted. Default: 20.
    pub card_packet_ns: u64,
    /// One packet sent by the borrowed core, for each move; none: `card_packet_ns`.
    pub card_send_ns: Option<u64>,
    /// A decision of NIC OS and the switch to a segment and back. Default: 200.
    pub switch_ns: u64,
    /// One poll of a target core's queues. Default: 30.
    pub target_turn_ns: u64,
    /// One packet taken off a target ring, without the host's own work. Default: 20.
    pub target_packet_ns: u64,
    /// Finding one packet's core in software and handing it over with an uncontended lock. Default:
    /// 150.
    pub handover_ns: u64,
    /// Taking one interrupt, for the interrupted core. Default: 0, since the doorbell's travel time
    /// includes it.
    pub interrupt_ns: u64,
    /// Ringing one doorbell, for the ringing core. Default: 6000.
    pub doorbell_send_ns: u64,
    /// From ringing to the first turn of the woken core; random for each doorbell, uniform.
    /// Default: 11000 to 28000.
    pub doorbell_arrive_ns: RangeInclusive<u64>,
    /// The same after each length of the woken core's sleep, if it matters; without chance.
    pub wake_ups: WakeUps,
    /// How long a borrowed core with `idle = "adaptive"` spins before it blocks. Default: 50000.
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
            wake_ups: WakeUps::default(),
            adaptive_spin_ns: 50_000,
        }
    }
}

impl CostModel {
    /// The card's part of a machine's costs; its target cores have their own.
    pub fn of(profile: &Profile) -> Self {
        let ns = |cost| profile.costs.ns(cost);
        // Unless turns have a cost of their own, a packet's turn costs the profile's time of a packet.
        let (card_turn_ns, of_packet_ns) = match ns(Cost::CardTurn) {
            0 => {
                let turn_ns = ns(Cost::CardPacket).clamp(1, 50);
                (turn_ns, ns(Cost::CardPacket).saturating_sub(turn_ns))
            }
            turn_ns => (turn_ns, ns(Cost::CardPacket)),
        };
        let way_ns = ns(Cost::InterruptWay);
        CostModel {
            card_turn_ns,
            card_packet_ns: of_packet_ns,
            card_send_ns: Some(ns(Cost::CardSend)),
            doorbell_send_ns: ns(Cost::InterruptSend),
            doorbell_arrive_ns: way_ns..=way_ns,
            wake_ups: profile.wake_ups.clone(),
            ..CostModel::default()
        }
    }

    /// What admission needs to know of them: exact, and without chance.
    pub(crate) fn of_path(&self) -> ProfileCosts {
        ProfileCosts {
            turn_ns: self.card_turn_ns.max(1),
            packet_ns: self.card_packet_ns,
            doorbell_ns: self.doorbell_send_ns,
            longest_doorbell_ns: self.doorbell_send_ns,
            is_assumed: false,
            interruptions: None,
            origin: "the simulator's costs".into(),
        }
    }

    /// The work of a turn of the borrowed core, before others see any of it.
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

    /// The duration of a segment: the switch, and the work it represents, or else its bound.
    pub(crate) fn segment(&self, segment: &Segment) -> u64 {
        let work_ns = Some(segment.work_ns).filter(|&work_ns| work_ns != 0);
        work_ns.unwrap_or(segment.model_ns).saturating_add(self.switch_ns).max(1)
    }

    /// The cost of polling the queues, without doorbells and the host's work.
    pub(crate) fn target(&self, polled: &Polled) -> u64 {
        let packets = polled.moved as u64 * self.target_packet_ns;
        let handed = polled.handed as u64 * self.handover_ns;
        let interrupts = polled.interrupts as u64 * self.interrupt_ns;
        (self.target_turn_ns + packets + handed + interrupts).max(1)
    }
}
