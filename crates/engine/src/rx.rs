//! The rx path: wire, chain, target rings, doorbells. Read it top to bottom.
//!
//! 1. Take a burst from the wire. Without buffers the wire sheds: overload is
//!    dropped before work is spent on it.
//! 2. Take it through the rx chain; the functions steer descriptors to rings.
//! 3. Publish the rings, one release store each, and interrupt the queues that
//!    moderation says are due.
//!
//! A patient wire (a file, a generator running flat out) loses nothing by
//! waiting, so it is asked only while every target ring, and every wire's queue
//! for what functions send, can take a whole burst. A card that has no other
//! wires is *offline*: its targets wait for room on their tx rings, and its
//! outputs for the disk, so that nothing is lost at all.

use crate::chain::Chain;
use picnic_core::hook::Observers;
use picnic_core::ledger::Stage;
use picnic_core::out::Doors;
use picnic_core::packet::burst::Burst;
use picnic_core::port::{Capabilities, Receiver, WirePort};
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use std::sync::Arc;

/// A wire of the card.
pub struct Wire {
    /// Its port.
    pub port: Box<dyn WirePort>,
    /// What the port can do by itself.
    pub capabilities: Capabilities,
    /// Its counts.
    pub counters: Arc<WireCounters>,
    pub(crate) observers: Observers,
    /// What the clock of real time showed at the card's time zero, in nanoseconds, if known.
    pub(crate) realtime_zero: Option<u64>,
    /// Packets until the next whose wait is recorded.
    sample_in: u32,
}

/// One packet of so many has its latency recorded, at the wire as at the target routine.
pub(crate) const LATENCY_SAMPLE: u32 = 16;

impl Wire {
    /// A wire, with counters at zero; what passes it is shown to `observers`.
    pub(crate) fn new(port: Box<dyn WirePort>, observers: Observers) -> Self {
        let capabilities = port.capabilities();
        Wire {
            port,
            capabilities,
            counters: Arc::default(),
            observers,
            realtime_zero: None,
            sample_in: 0,
        }
    }

    /// Records how long packets have waited here.
    fn sample_waits(&mut self, now: Time, burst: &Burst) {
        let mut index = self.sample_in as usize;
        let (mut waited_ns, mut packets) = (0, 0);
        while let Some(packet) = burst.as_slice().get(index) {
            waited_ns += packet.age(now);
            packets += 1;
            index += LATENCY_SAMPLE as usize;
        }
        self.sample_in = (index - burst.len()) as u32;
        if packets != 0 {
            self.counters.waited_ns.add(waited_ns);
            self.counters.waited_packets.add(packets);
        }
    }
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
    if wire.capabilities.patient && !doors.have_room(limit) {
        return 0;
    }
    let card = &doors.ledger.card;
    let mut receiver =
        Receiver::new(&mut doors.pool, burst, &wire.counters, card, now, index, limit)
            .with_realtime(wire.realtime_zero);
    wire.port.receive(now, &mut receiver);
    drop(receiver);
    let received = burst.len();
    if received != 0 {
        if wire.capabilities.arrival {
            wire.sample_waits(now, burst);
        }
        wire.observers.show(now, Stage::Wire, burst.as_slice());
        chain.run(now, burst, doors);
    }
    received
}
