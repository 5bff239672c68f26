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
    /// What a turn of the borrowed core costs, doorbells aside.
    pub(crate) fn card(&self, activity: &Activity) -> u64 {
        if let Some(segment) = &activity.segment {
            return self.segment(segment);
        }
        let packets = activity.received + activity.submitted + activity.transmitted;
        (self.card_turn_ns + packets as u64 * self.card_packet_ns).max(1)
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
