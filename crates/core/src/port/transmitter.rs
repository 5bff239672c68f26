//! Transmission to a wire: every packet is sent, kept until it is sent, or dropped and counted.

use crate::hook::Observers;
use crate::ledger::{CardLedger, DropReason, Stage};
use crate::packet::burst::move_oldest;
use crate::packet::desc::Descriptor;
use crate::packet::offload;
use crate::packet::pool::Pool;
use crate::stats::WireCounters;
use crate::time::Time;
use std::collections::VecDeque;
use std::fmt;

/// Hands packets to a wire from the queue of waiting packets, oldest first.
pub struct Transmitter<'a> {
    pool: &'a mut Pool,
    queue: &'a mut VecDeque<Descriptor>,
    counters: &'a WireCounters,
    ledger: &'a CardLedger,
    finish_checksums: bool,
    may_wait: bool,
    observers: Option<(&'a mut Observers, Time)>,
    notes: Option<DropNotes<'a>>,
}

/// The dropped packets of a call, for those who watch theirs.
struct DropNotes<'a> {
    /// Packets the wire had taken before this call.
    taken: u64,
    /// Bit 0 is the first packet taken.
    dropped: &'a mut u64,
}

impl DropNotes<'_> {
    /// Notes that the packet after all those taken or dropped in this call is dropped.
    fn note(&mut self, taken: u64) {
        let place = taken.wrapping_sub(self.taken) as u32 + self.dropped.count_ones();
        *self.dropped |= 1_u64.checked_shl(place).unwrap_or(0);
    }
}

impl<'a> Transmitter<'a> {
    /// A transmitter over a wire's queue.
    pub fn new(
        pool: &'a mut Pool,
        queue: &'a mut VecDeque<Descriptor>,
        counters: &'a WireCounters,
        ledger: &'a CardLedger,
    ) -> Self {
        Transmitter {
            pool,
            queue,
            counters,
            ledger,
            finish_checksums: false,
            may_wait: false,
            observers: None,
            notes: None,
        }
    }

    /// The same transmitter, which completes partial checksums if `finish` is set.
    #[must_use]
    pub fn finishing_checksums(mut self, finish: bool) -> Self {
        self.finish_checksums = finish;
        self
    }

    /// The same transmitter; `may_wait` tells whether packets wait for the wire without loss.
    #[must_use]
    pub fn waiting_for_room(mut self, may_wait: bool) -> Self {
        self.may_wait = may_wait;
        self
    }

    /// Whether every wire of the card waits until it is polled, so that the port may block here on
    /// its output without loss. Otherwise it drops and counts.
    #[inline]
    pub fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// The same transmitter, which notes drops in `dropped`: bit 0 is the first packet taken.
    #[must_use]
    pub(crate) fn noting(mut self, dropped: &'a mut u64) -> Self {
        self.notes = Some(DropNotes { taken: self.taken(), dropped });
        self
    }

    /// Packets that the wire has ever taken and not lost: sent at once, kept, or kept and sent.
    fn taken(&self) -> u64 {
        self.counters.tx_packets.get() + self.counters.tx_kept.get()
    }

    /// The same transmitter, which shows every packet that the wire takes to `observers`.
    #[must_use]
    pub fn observed(mut self, observers: &'a mut Observers, now: Time) -> Self {
        self.observers = Some((observers, now));
        self
    }

    /// The oldest packet, left in the queue.
    #[inline]
    pub fn peek(&self) -> Option<&Descriptor> {
        self.queue.front()
    }

    /// The waiting packets, oldest first, left in the queue: for ports that send many at once and
    /// only then know how many were taken.
    #[inline]
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &Descriptor> {
        self.queue.iter()
    }

    /// Takes the oldest packet. It must end in [`Transmitter::sent`] or [`Transmitter::drop`].
    // Not an iterator: between two packets the port calls the other methods.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub fn next(&mut self) -> Option<Descriptor> {
        let mut packet = self.queue.pop_front()?;
        if self.finish_checksums {
            offload::finish_checksum(&mut packet);
        }
        Some(packet)
    }

    #[inline(always)]
    fn show(&mut self, packet: &Descriptor) {
        if let Some((observers, now)) = &mut self.observers {
            observers.observe(*now, Stage::WireTx, std::slice::from_ref(packet));
        }
    }

    /// The wire has the packet's bytes: counts it and returns the buffer.
    #[inline]
    pub fn sent(&mut self, packet: Descriptor) {
        self.show(&packet);
        self.counters.tx_packets.add(1);
        self.counters.tx_bytes.add(u64::from(packet.length()));
        self.ledger.transmitted.add(1);
        self.pool.free(packet);
    }

    /// The pool, for ports that lend buffers.
    #[inline(always)]
    pub fn pool(&mut self) -> &mut Pool {
        self.pool
    }

    /// The wire has this packet, whose buffers are about to be lent: in flight until
    /// [`Transmitter::left`].
    #[inline]
    pub fn keep(&mut self, packet: &Descriptor) {
        self.show(packet);
        self.counters.tx_kept.add(1);
    }

    /// The wire has up to `most` of the oldest packets, each as by [`Transmitter::next`] and
    /// [`Transmitter::keep`]; they are appended to `kept`.
    #[inline]
    pub fn keep_many(&mut self, most: usize, kept: &mut VecDeque<Descriptor>) {
        let count = most.min(self.queue.len());
        let before = kept.len();
        move_oldest(self.queue, count, kept);
        if self.finish_checksums {
            kept.range_mut(before..).for_each(offload::finish_checksum);
        }
        if self.observers.is_some() {
            kept.range(before..).for_each(|packet| self.show(packet));
        }
        self.counters.tx_kept.add(count as u64);
    }

    /// A packet of `bytes` bytes that was kept has been sent, and its buffers are back: counts it.
    #[inline]
    pub fn left(&mut self, bytes: u32) {
        self.have_left(1, bytes.into());
    }

    /// As [`Transmitter::left`], for several packets with their total bytes.
    #[inline]
    pub fn have_left(&mut self, packets: u64, bytes: u64) {
        self.counters.tx_kept.set(self.counters.tx_kept.get().saturating_sub(packets));
        self.counters.tx_packets.add(packets);
        self.counters.tx_bytes.add(bytes);
        self.ledger.transmitted.add(packets);
    }

    /// Packets that were kept will never be sent, and their buffers are back: counts them.
    #[cold]
    pub fn lose(&mut self, packets: u64, reason: DropReason) {
        if let Some(notes) = &mut self.notes {
            // They were taken in an earlier call.
            notes.taken = notes.taken.wrapping_sub(packets);
        }
        self.counters.tx_kept.set(self.counters.tx_kept.get().saturating_sub(packets));
        self.ledger.drops.add(reason, Stage::WireTx, packets);
    }

    /// The wire cannot send this packet: counts it and returns the buffer.
    #[inline]
    pub fn drop(&mut self, packet: Descriptor, reason: DropReason) {
        let taken = self.taken();
        if let Some(notes) = &mut self.notes {
            notes.note(taken);
        }
        self.ledger.drops.add(reason, Stage::WireTx, 1);
        self.pool.free(packet);
    }
}

impl fmt::Debug for Transmitter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transmitter").field("queue", &self.queue).finish_non_exhaustive()
    }
}
