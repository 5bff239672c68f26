//! The tx path: tx rings, chain, wires. Read it top to bottom.
//!
//! 1. Take packets from the target queues' tx rings by deficit round robin: each
//!    queue in turn may send a quantum of bytes, so queues with small packets and
//!    queues with large ones share the wires by bytes (Shreedhar, Varghese 1995).
//! 2. Take them through the tx chain, to the queue of the wire they are for.
//! 3. Let each wire take what it can. While a wire's backlog is full, tx rings
//!    are left alone: the back-pressure reaches the target, which counts it.

use crate::chain::Chain;
use crate::rx::Wire;
use picnic_core::out::Doors;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::port::Transmitter;
use picnic_core::ring::spsc::Consumer;
use picnic_core::time::Time;

/// Bytes a queue may send per turn: the largest frame on an ordinary wire.
pub const QUANTUM_BYTES: u32 = 1514;

/// The borrowed core's end of one queue's tx ring.
pub struct TxRing {
    ring: Consumer<Descriptor>,
    deficit: u32,
}

impl TxRing {
    /// The borrowed core's end of a tx ring.
    pub fn new(ring: Consumer<Descriptor>) -> Self {
        TxRing { ring, deficit: 0 }
    }

    /// Whether packets wait in it.
    pub fn is_waiting(&mut self) -> bool {
        self.ring.available() != 0
    }
}

/// The tx rings of a card and whose turn it is.
pub struct TxRings {
    rings: Vec<TxRing>,
    turn: usize,
    /// A full burst ended the last queue's turn: it goes on with what it has left.
    interrupted: bool,
}

impl TxRings {
    /// Rings by queue.
    pub fn new(rings: Vec<TxRing>) -> Self {
        TxRings { rings, turn: 0, interrupted: false }
    }

    /// Whether packets wait in any of them.
    pub fn is_waiting(&mut self) -> bool {
        self.rings.iter_mut().any(TxRing::is_waiting)
    }

    /// Fills a burst, queue by queue, a quantum of bytes each.
    fn take(&mut self, burst: &mut Burst, limit: usize) {
        let count = self.rings.len();
        // Once round, starting where the last burst ended.
        for _ in 0..count {
            let interrupted = std::mem::take(&mut self.interrupted);
            let ring = &mut self.rings[self.turn];
            if ring.ring.available() == 0 {
                // An idle queue saves nothing up.
                ring.deficit = 0;
                self.turn = (self.turn + 1) % count;
                continue;
            }
            if !interrupted {
                ring.deficit = ring.deficit.saturating_add(QUANTUM_BYTES);
            }
            loop {
                if burst.len() >= limit {
                    self.interrupted = true;
                    ring.ring.release();
                    return;
                }
                let Some(length) = ring.next_length() else {
                    ring.deficit = 0;
                    break;
                };
                if length > ring.deficit {
                    break;
                }
                ring.deficit -= length;
                if let Some(packet) = ring.ring.pop() {
                    // Cannot be full: `limit` is no more than a burst.
                    let _ = burst.push(packet);
                }
            }
            ring.ring.release();
            self.turn = (self.turn + 1) % count;
        }
    }
}

impl TxRing {
    fn next_length(&mut self) -> Option<u32> {
        if self.ring.available() == 0 {
            return None;
        }
        self.ring.peek(0).map(Descriptor::length)
    }
}

/// Takes one burst from the tx rings towards the wires; returns packets taken.
#[inline]
pub fn submit(
    now: Time,
    rings: &mut TxRings,
    limit: usize,
    burst: &mut Burst,
    chain: &mut Chain,
    doors: &mut Doors,
) -> usize {
    // Room in every wire's backlog for a whole burst, or nothing is taken.
    let backlog = doors.wire_backlog;
    if doors.wires.iter().any(|waiting| waiting.len() + limit > backlog) {
        return 0;
    }
    rings.take(burst, limit.min(BURST));
    let taken = burst.len();
    if taken != 0 {
        doors.ledger.card.submitted.add(taken as u64);
        chain.run(now, burst, doors);
    }
    taken
}

/// Lets the wires take what waits for them, and end what they keep; packets taken, if any wire
/// was asked.
pub fn transmit(now: Time, wires: &mut [Wire], doors: &mut Doors) -> Option<usize> {
    let mut taken = None;
    let queues = doors.wires.iter_mut().zip(&mut doors.progress);
    for (wire, (waiting, progress)) in wires.iter_mut().zip(queues) {
        if waiting.is_empty() && wire.counters.tx_kept.get() == 0 {
            continue;
        }
        let before = waiting.len();
        let card = &doors.ledger.card;
        let mut dropped = 0;
        let mut transmitter = Transmitter::new(&mut doors.pool, waiting, &wire.counters, card)
            .finishing_checksums(!wire.port.takes_partial_checksums())
            .noting(progress, &mut dropped);
        wire.port.transmit(now, &mut transmitter);
        let ended = before - waiting.len();
        progress.advance(ended);
        taken = Some(taken.unwrap_or(0) + ended);
    }
    taken
}

/// Has every wire give back what it keeps and has lent out: the card has ended.
pub fn stop(wires: &mut [Wire], doors: &mut Doors) {
    for (wire, waiting) in wires.iter_mut().zip(&mut doors.wires) {
        let card = &doors.ledger.card;
        wire.port.stop(&mut Transmitter::new(&mut doors.pool, waiting, &wire.counters, card));
    }
}
