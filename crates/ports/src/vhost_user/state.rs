//! The state of a guest for figures, as its front end has described it so far.

use super::pair::bits::*;
use picnic_core::attachment::GuestState;

/// The most faults that are kept.
const FAULTS: usize = 256;

/// Names of the features, as in the specification.
const NAMES: [(u64, &str); 21] = [
    (CSUM, "csum"),
    (GUEST_CSUM, "guest_csum"),
    (MTU, "mtu"),
    (GUEST_TSO4, "guest_tso4"),
    (GUEST_TSO6, "guest_tso6"),
    (GUEST_ECN, "guest_ecn"),
    (HOST_TSO4, "host_tso4"),
    (HOST_TSO6, "host_tso6"),
    (HOST_ECN, "host_ecn"),
    (MRG_RXBUF, "mrg_rxbuf"),
    (STATUS, "status"),
    (CTRL_VQ, "ctrl_vq"),
    (GUEST_ANNOUNCE, "guest_announce"),
    (MQ, "mq"),
    (LOG_ALL, "log_all"),
    (RING_INDIRECT, "indirect_desc"),
    (RING_EVENT_IDX, "event_idx"),
    (PROTOCOL_FEATURES, "protocol_features"),
    (VERSION_1, "version_1"),
    (RING_PACKED, "ring_packed"),
    (IN_ORDER, "in_order"),
];

/// The part of the state that messages of the front end change.
#[derive(Clone, Debug, Default)]
pub(super) struct Negotiated {
    /// The features that both sides have; 0 before they are negotiated.
    pub(super) features: u64,
    pub(super) mtu: usize,
    /// Queues of which both rings have started and are enabled.
    pub(super) ready_queues: u64,
    /// Why rings could not be used.
    pub(super) faults: Vec<String>,
}

impl Negotiated {
    pub(super) fn state(&self) -> GuestState {
        let has = |feature: u64| self.features & feature != 0;
        let format = if has(RING_PACKED) { "packed" } else { "split" };
        GuestState {
            ready_queues: self.ready_queues,
            rings: (self.features != 0).then_some(format),
            features: NAMES.iter().filter(|(bit, _)| has(*bit)).map(|(_, name)| *name).collect(),
            mtu: self.mtu as u64,
            ..GuestState::default()
        }
    }
}

/// Keeps a fault, unless it is known.
pub(super) fn keep(faults: &mut Vec<String>, fault: String) {
    if faults.len() < FAULTS && !faults.contains(&fault) {
        faults.push(fault);
    }
}

/// A ring's fault in words.
pub(super) fn of_ring(ring: usize, why: &str) -> String {
    format!("ring {ring}: {why}")
}
