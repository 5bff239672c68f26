//! Counters: written by one core, read by any, at the cost of plain adds.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that one thread writes and others may read at any time.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the thread that owns the counter may call this: it is a load and a store,
    /// not a locked instruction, and a second writer would lose counts.
    #[inline(always)]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Sets a gauge.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The count as last stored.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The target core's counters of one queue, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct TargetCounters {
    /// Packets handed to the host.
    pub packets: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Doorbells that found the queue scheduled (interrupts taken).
    pub interrupts: Counter,
    /// 1 while its host waits for buffers or for room on the tx ring, and must be notified.
    pub starved: Counter,
    /// Times the ring was polled.
    pub polls: Counter,
    /// Times it was empty.
    pub empty_polls: Counter,
    /// Packets the host gave to the tx ring.
    pub transmitted: Counter,
    /// Their bytes.
    pub transmitted_bytes: Counter,
    /// Nanoseconds from wire to target routine, one packet in 16.
    pub latency_ns: Counter,
    /// Packets that `latency_ns` sums.
    pub latency_packets: Counter,
}

/// The borrowed core's counters of one queue, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SteerCounters {
    /// Descriptors put on the target ring.
    pub packets: Counter,
    /// Doorbells rung.
    pub doorbells: Counter,
    /// Doorbells that found one already pending: the target takes both at once.
    pub coalesced: Counter,
    /// Descriptors dropped because the ring was full.
    pub ring_full: Counter,
    /// Descriptors in the ring when last published.
    pub depth: Counter,
    /// Packets taken from its tx ring.
    pub tx_taken: Counter,
    /// Packets of its tx ring that left by a wire, or were refused by it.
    pub tx_completed: Counter,
    /// Their bytes.
    pub tx_completed_bytes: Counter,
    /// Bytes of its tx ring that wait for wires, without stalled wires.
    pub tx_in_flight_bytes: Counter,
    /// Times that its tx ring had to wait for packets in flight.
    pub tx_limited: Counter,
}

/// The borrowed core's counters of one wire, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WireCounters {
    /// Packets taken into buffers. Arrivals are these and `rx_shed`, at every wire.
    pub rx_packets: Counter,
    /// Their bytes.
    pub rx_bytes: Counter,
    /// Packets dropped at the wire on arrival, each with its reason in the ledger. The card has the
    /// bytes of few of them, so bytes are not counted.
    pub rx_shed: Counter,
    /// Times the physical NIC would have interrupted, if moderated.
    pub interrupts: Counter,
    /// Packets transmitted.
    pub tx_packets: Counter,
    /// Their bytes.
    pub tx_bytes: Counter,
    /// Packets that the wire has taken and not sent yet, at this moment.
    pub tx_kept: Counter,
    /// Stamps later than the turn that took their packets, replaced by its time: those packets
    /// arrived during the turn, or clocks disagree.
    pub stamps_ahead: Counter,
    /// Nanoseconds that packets waited at the wire until they were taken, one packet in 16; for
    /// wires that know when packets arrive.
    pub waited_ns: Counter,
    /// Part of `waited_ns` until the physical NIC interrupted, if moderated.
    pub held_ns: Counter,
    /// Packets that `waited_ns` sums.
    pub waited_packets: Counter,
}
