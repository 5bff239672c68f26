//! The rx path: wire, chain, target rings, doorbells. Read it top to bottom.
//!
//! 1. Take a burst from the wire. Without buffers the wire sheds: overload is
//!    dropped before work is spent on it.
//! 2. Take it through the rx chain; the functions steer descriptors to rings.
//! 3. Publish the rings, one release store each, and interrupt the queues that
//!    moderation says are due.
//!
//! A patient wire (a file, a generator running flat out) loses nothing by
//! waiting, so it is asked only while every target ring can take a whole burst.

use crate::chain::Chain;
use picnic_core::out::Doors;
use picnic_core::packet::burst::Burst;
use picnic_core::port::{Receiver, WirePort};
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use std::sync::Arc;

/// A wire of the card.
pub struct Wire {
    /// Its port.
    pub port: Box<dyn WirePort>,
    /// Its counts.
    pub counters: Arc<WireCounters>,
}

/// Takes one burst from a wire to the target rings; returns packets received.
#[inline]
pub fn receive(
    now: Time,
    wire: &mut Wire,
    index: u8,
    limit: usize,
    burst: &mut Burst,
    chain: &mut Chain,
    doors: &mut Doors,
) -> usize {
    if wire.port.is_patient() && !doors.targets_have_room(limit) {
        return 0;
    }
    let card = &doors.ledger.card;
    let mut receiver =
        Receiver::new(&mut doors.pool, burst, &wire.counters, card, now, index, limit);
    wire.port.receive(now, &mut receiver);
    drop(receiver);
    let received = burst.len();
    if received != 0 {
        chain.run(now, burst, doors);
    }
    received
}
