//! The doors of the borrowed core: a fate for every packet, each one counted.
//!
//! [`Out`] is a function's view: next, steer, transmit, drop, consume. [`Doors`] is the
//! implementation.
//!
//! Guarantees: a packet sent through a door has left the function; order within a door is kept;
//! packets that a door cannot take are dropped and counted.

mod doors;

pub use doors::{Doors, Fate, TargetRing, WireProgress};

use crate::function::Verdict;
use crate::ledger::{DropReason, Stage};
use crate::packet::burst::{BURST, Burst};
use crate::packet::desc::Descriptor;
use crate::time::Time;

/// The rest of a chain, after the running function.
pub trait Onward {
    /// Takes a burst through the rest of the chain; leaves it empty.
    fn carry_on(&mut self, now: Time, burst: &mut Burst, doors: &mut Doors);
}

/// The doors as a function sees them.
pub struct Out<'a> {
    now: Time,
    stage: Stage,
    doors: &'a mut Doors,
    onward: &'a mut dyn Onward,
    emitted: Burst,
    dropped: u32,
}

impl<'a> Out<'a> {
    /// The doors for one call of one function. End it with [`Out::finish`].
    // Always inline, so that the burst, of 2 KiB, is made in place.
    #[inline(always)]
    pub fn new(now: Time, stage: Stage, doors: &'a mut Doors, onward: &'a mut dyn Onward) -> Self {
        Out { now, stage, doors, onward, emitted: Burst::new(), dropped: 0 }
    }

    /// Hands a packet to the next function, ahead of the packets left in the burst.
    #[inline]
    pub fn next(&mut self, packet: Descriptor) {
        if let Err(packet) = self.emitted.push(packet) {
            // Full: the rest of the chain takes these, then there is room.
            self.carry_on();
            let _ = self.emitted.push(packet);
        }
    }

    fn carry_on(&mut self) {
        self.onward.carry_on(self.now, &mut self.emitted, self.doors);
        // It must leave nothing; anything left has no other door.
        while let Some(packet) = self.emitted.pop() {
            self.drop(packet, DropReason::BurstFull);
        }
    }

    /// Sends a packet to a target queue.
    #[inline(always)]
    pub fn steer(&mut self, packet: Descriptor, queue: u16) {
        self.doors.steer(packet, queue);
    }

    /// Sends a burst to target queues, packet `n` to `queues[n]`; see [`Doors::steer_burst`].
    #[inline]
    pub fn steer_burst(&mut self, burst: &mut Burst, queues: &[u16]) {
        self.doors.steer_burst(burst, queues);
    }

    /// Sends a packet out by a wire.
    #[inline]
    pub fn transmit(&mut self, packet: Descriptor, wire: u8) {
        self.doors.transmit(packet, wire);
    }

    /// Drops a packet, counted under `reason` at this chain.
    #[inline]
    pub fn drop(&mut self, packet: Descriptor, reason: DropReason) {
        self.dropped += 1;
        self.doors.drop(packet, reason, self.stage);
    }

    /// Keeps a packet for good: it is counted as consumed.
    #[inline]
    pub fn consume(&mut self, packet: Descriptor) {
        self.doors.consume(packet);
    }

    /// Applies a verdict to a packet.
    #[inline]
    pub fn dispose(&mut self, packet: Descriptor, verdict: Verdict) {
        match verdict {
            Verdict::Next => self.next(packet),
            Verdict::Steer(queue) => self.steer(packet, queue),
            Verdict::Transmit(wire) => self.transmit(packet, wire),
            Verdict::Drop(reason) => self.drop(packet, reason),
            Verdict::Consume => self.consume(packet),
        }
    }

    /// Whether a wire is up, if its port knows.
    #[inline]
    pub fn wire_is_up(&self, wire: u8) -> bool {
        self.doors.wires_up.get(usize::from(wire)).is_some_and(|&is_up| is_up)
    }

    /// Number of state changes of wires: if it is the same, all wires are as before.
    #[inline(always)]
    pub fn wire_changes(&self) -> u64 {
        self.doors.wire_changes
    }

    /// The chain of the function: `Stage::Rx` or `Stage::Tx`.
    #[inline(always)]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// A new packet holding `data`: counted as in. `None` without buffers.
    pub fn make(&mut self, data: &[u8]) -> Option<Descriptor> {
        let packet = self.doors.pool.packet(data)?;
        self.doors.count_made();
        Some(packet)
    }

    /// A new packet of `length` bytes, concatenated from `pieces`: counted as in. `None` without
    /// buffers. See [`Pool::gather`](crate::packet::pool::Pool::gather).
    #[inline]
    pub fn gather<'p>(
        &mut self,
        length: usize,
        pieces: impl Iterator<Item = &'p [u8]>,
    ) -> Option<Descriptor> {
        let packet = self.doors.pool.gather(length, pieces)?;
        self.doors.count_made();
        Some(packet)
    }

    /// Appends the bytes of `part`, without the first `skip` (its headers), to `packet`; `part` is
    /// counted as consumed and no byte moves.
    ///
    /// # Errors
    /// `part` again, and nothing done, if the result would be longer than a packet may be, or its
    /// first segment is shorter than `skip`.
    #[inline]
    pub fn merge(
        &mut self,
        packet: &mut Descriptor,
        part: Descriptor,
        skip: u16,
    ) -> Result<(), Descriptor> {
        packet.append_behind(part, skip)?;
        self.doors.ended += 1;
        self.doors.ledger.card.consumed.add(1);
        Ok(())
    }

    /// Puts the first `count` bytes of a packet into a buffer of their own; the others stay in
    /// place. It is the same packet, with the same metadata.
    ///
    /// # Errors
    /// The packet again, and nothing done, if no buffer is available, or its first segment does not
    /// have more than `count` bytes.
    #[inline]
    pub fn split(&mut self, mut packet: Descriptor, count: u16) -> Result<Descriptor, Descriptor> {
        let (count, data) = (usize::from(count), packet.data());
        if count >= data.len() || count > self.doors.pool.buffer_size() {
            return Err(packet);
        }
        let Some(mut head) = self.doors.pool.packet(&data[..count]) else { return Err(packet) };
        head.copy_metadata(&packet);
        packet.pull_front(count as u16);
        if let Err(mut packet) = head.append(packet) {
            packet.push_front(count as u16);
            self.doors.pool.free(head);
            return Err(packet);
        }
        Ok(head)
    }

    /// Whether `count` buffers are available: as many packets of one buffer can be made.
    #[inline]
    pub fn has_buffers(&mut self, count: usize) -> bool {
        self.doors.pool.ensure(count)
    }

    /// Bytes of packet that one buffer holds.
    #[inline]
    pub fn buffer_size(&self) -> usize {
        self.doors.pool.buffer_size()
    }

    /// A copy of a packet, bytes and metadata: counted as in. `None` without buffers.
    pub fn copy(&mut self, packet: &Descriptor) -> Option<Descriptor> {
        let mut copy = self.doors.pool.copy(packet)?;
        copy.copy_metadata(packet);
        self.doors.count_made();
        Some(copy)
    }

    /// Ends the call: packets handed on go through the rest of the chain.
    ///
    /// Returns packets dropped through these doors.
    // By reference, since moving the burst inside would copy 2 KiB.
    #[inline]
    pub fn finish(&mut self) -> u32 {
        if !self.emitted.is_empty() {
            self.carry_on();
        }
        self.dropped
    }
}

/// The most descriptors in one call of a function; rings hold at least this many.
pub const MAX_BURST: usize = BURST;
