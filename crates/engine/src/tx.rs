//! The tx path: tx rings, chain, wires. Read it top to bottom.
//!
//! 1. Take packets from the target queues' tx rings by deficit round robin (`picnic_core::turns`),
//!    so queues with small packets and queues with large ones share the borrowed core by bytes. A
//!    queue with enough packets in flight is skipped: its packets wait in its ring, and then at the
//!    host.
//!
//! 2. Pass them through the tx chain, to the lanes of their wire (`picnic_core::backlog`).
//!
//! 3. Let each wire take packets from its lanes in turn, by bytes. Packets it took are no longer in
//!    flight, which makes room for more.

use crate::chain::Chain;
use crate::rx::Wire;
use picnic_core::backlog::Backlog;
use picnic_core::out::Doors;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::port::Transmitter;
use picnic_core::ring::spsc::Consumer;
use picnic_core::stats::SteerCounters;
use picnic_core::time::Time;
use picnic_core::turns::{TurnEnd, Turns};
use std::collections::VecDeque;
use std::sync::Arc;

/// The borrowed core's end of one queue's tx ring.
pub struct TxRing {
    ring: Consumer<Descriptor>,
    counters: Arc<SteerCounters>,
    /// Its part of the burst: packets, bytes.
    taken: (usize, u64),
    /// At the last check, its packets in flight held it up.
    limited: bool,
    /// Packets taken, and buffers handed out, that its host was not told of.
    room: u32,
}

impl TxRing {
    /// The borrowed core's end of a tx ring.
    pub fn new(ring: Consumer<Descriptor>, counters: Arc<SteerCounters>) -> Self {
        TxRing { ring, counters, taken: (0, 0), limited: false, room: 0 }
    }

    /// Whether packets wait in it.
    pub fn is_waiting(&mut self) -> bool {
        self.ring.available() != 0
    }

    /// The length of the oldest packet, in bytes.
    fn next_length(&mut self) -> Option<u32> {
        if self.ring.available() == 0 {
            return None;
        }
        self.ring.peek(0).map(Descriptor::length)
    }

    /// Takes as many packets as deficit, limits and room in the burst allow.
    fn take(
        &mut self,
        queue: usize,
        deficit: &mut u32,
        burst: &mut Burst,
        limit: usize,
        backlog: &Backlog,
    ) -> TurnEnd {
        let (mut packets, mut bytes) = self.taken;
        let left = loop {
            let Some(length) = self.next_length() else { break TurnEnd::Empty };
            if length > *deficit {
                break TurnEnd::Spent;
            }
            let limited = !backlog.admits(queue, packets, bytes, length);
            if limited != self.limited {
                self.limited = limited;
                self.counters.tx_limited.add(limited.into());
            }
            if limited {
                break TurnEnd::Held;
            }
            if burst.len() >= limit {
                break TurnEnd::Full;
            }
            *deficit -= length;
            (packets, bytes) = (packets + 1, bytes + u64::from(length));
            if let Some(mut packet) = self.ring.pop() {
                packet.set_tx_queue(queue as u8);
                // Cannot be full: `limit` is at most a burst.
                let _ = burst.push(packet);
            }
        };
        if packets != self.taken.0 {
            self.counters.tx_taken.add((packets - self.taken.0) as u64);
            self.room = self.room.saturating_add((packets - self.taken.0) as u32);
            self.taken = (packets, bytes);
            self.ring.release();
        }
        left
    }
}

/// The tx rings of a card, served in turn.
pub struct TxRings {
    rings: Vec<TxRing>,
    turns: Turns,
}

impl TxRings {
    /// Rings by queue.
    pub fn new(rings: Vec<TxRing>) -> Self {
        TxRings { turns: Turns::new(rings.len()), rings }
    }

    /// Whether packets wait in any of them.
    pub fn is_waiting(&mut self) -> bool {
        self.rings.iter_mut().any(TxRing::is_waiting)
    }

    /// Whether any of them has a packet that the backlog has room for.
    pub(crate) fn may_submit(&mut self, backlog: &Backlog) -> bool {
        let mut rings = self.rings.iter_mut().enumerate();
        rings.any(|(queue, ring)| {
            ring.next_length().is_some_and(|length| backlog.admits(queue, 0, 0, length))
        })
    }

    /// Notes room for `count` more packets of a queue's host.
    pub(crate) fn note_room(&mut self, queue: usize, count: u32) {
        if let Some(ring) = self.rings.get_mut(queue) {
            ring.room = ring.room.saturating_add(count);
        }
    }

    /// The room last reported to each queue's host.
    pub(crate) fn take_room(&mut self) -> impl Iterator<Item = u32> {
        self.rings.iter_mut().map(|ring| std::mem::take(&mut ring.room))
    }

    /// Fills a burst, queue by queue, one quantum of bytes each, in rounds.
    fn take(&mut self, burst: &mut Burst, limit: usize, backlog: &Backlog) {
        self.rings.iter_mut().for_each(|ring| ring.taken = (0, 0));
        let earns = |ring: &mut TxRing| ring.is_waiting() && !ring.limited;
        self.turns.serve(&mut self.rings, earns, |queue, ring, deficit| {
            ring.take(queue, deficit, burst, limit, backlog)
        });
    }
}

/// Moves one burst from the tx rings towards the wires; returns packets taken.
#[inline]
pub fn submit(
    now: Time,
    rings: &mut TxRings,
    limit: usize,
    burst: &mut Burst,
    chain: &mut Chain,
    doors: &mut Doors,
) -> usize {
    rings.take(burst, limit.min(BURST), &doors.backlog);
    let taken = burst.len();
    if taken != 0 {
        doors.ledger.card.submitted.add(taken as u64);
        chain.run(now, burst, doors);
    }
    taken
}

/// Lets the wires take waiting packets and complete kept ones; returns packets taken, if any wire
/// was called.
pub fn transmit(now: Time, wires: &mut [Wire], offline: bool, doors: &mut Doors) -> Option<usize> {
    let mut taken = None;
    for (index, wire) in wires.iter_mut().enumerate() {
        let finish = !wire.capabilities.partial_checksums;
        let served = doors.serve_wire(index, now, &wire.counters, |transmitter| {
            let (port, observers) = (&mut wire.port, &mut wire.observers);
            let observed =
                !observers.is_empty() && transmitter.peek().is_some() && observers.begin();
            let mut transmitter = transmitter.finishing_checksums(finish).waiting_for_room(offline);
            if observed {
                port.transmit(now, &mut transmitter.observed(observers, now));
                observers.end();
            } else {
                port.transmit(now, &mut transmitter);
            }
        });
        if let Some(packets) = served {
            taken = Some(taken.unwrap_or(0) + packets);
        }
    }
    taken
}

/// Makes every wire return the buffers it keeps and has lent out: the card has ended.
pub fn stop(wires: &mut [Wire], doors: &mut Doors) {
    let mut none = VecDeque::new();
    for wire in wires {
        let card = &doors.ledger.card;
        let mut tx = Transmitter::new(&mut doors.pool, &mut none, &wire.counters, card);
        wire.notes = wire.port.stop(&mut tx);
    }
}
