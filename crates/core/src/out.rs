//! The doors of the borrowed core: a fate for every packet, each one counted.
//!
//! [`Out`] is what a function sees: next, steer, transmit, drop, consume.
//! [`Doors`] is what stands behind it.
//!
//! Guarantees: what is sent through a door has left the function's hands; order
//! within a door is kept; what a door cannot take becomes a counted drop.

mod doors;

pub use doors::{Doors, Fate, TargetRing, WireProgress};

use crate::function::Verdict;
use crate::ledger::{DropReason, Stage};
use crate::packet::burst::{BURST, Burst};
use crate::packet::desc::Descriptor;
use crate::time::Time;

/// The rest of a chain, behind the function that is running.
pub trait Onward {
    /// Takes a burst through the rest of the chain; leaves it empty.
    fn carry_on(&mut self, now: Time, burst: &mut Burst, doors: &mut Doors);
}

/// What a function sends packets through.
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
    // Always inline, so that the burst is made in its place: it is 2 KiB.
    #[inline(always)]
    pub fn new(now: Time, stage: Stage, doors: &'a mut Doors, onward: &'a mut dyn Onward) -> Self {
        Out { now, stage, doors, onward, emitted: Burst::new(), dropped: 0 }
    }

    /// Hands a packet to the next function, ahead of what is left in the burst.
    #[inline]
    pub fn next(&mut self, packet: Descriptor) {
        if let Err(packet) = self.emitted.push(packet) {
            // Full: the rest of the chain takes what there is, then there is room.
            self.carry_on();
            let _ = self.emitted.push(packet);
        }
    }

    fn carry_on(&mut self) {
        self.onward.carry_on(self.now, &mut self.emitted, self.doors);
        // It is to leave nothing; what it leaves all the same has no other door.
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

    /// Does with a packet what a verdict says.
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

    /// Whether a wire is up, as far as its port knows.
    #[inline]
    pub fn wire_is_up(&self, wire: u8) -> bool {
        self.doors.wires_up.get(usize::from(wire)).is_some_and(|&is_up| is_up)
    }

    /// How often any wire has gone down or come back: if it is what it was, all are as they were.
    #[inline(always)]
    pub fn wire_changes(&self) -> u64 {
        self.doors.wire_changes
    }

    /// The chain that the function stands in: `Stage::Rx` or `Stage::Tx`.
    #[inline(always)]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// A new packet holding `data`: counted as in. `None` if no buffers are home.
    pub fn make(&mut self, data: &[u8]) -> Option<Descriptor> {
        let packet = self.doors.pool.packet(data)?;
        self.doors.count_made();
        Some(packet)
    }

    /// A new packet of `length` bytes, which `pieces` hold one after the other: counted as in.
    /// `None` if no buffers are home. See [`Pool::gather`](crate::packet::pool::Pool::gather).
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

    /// Has `packet` go on with the bytes of `part`, but for the first `skip`, its headers; `part` is
    /// counted as consumed, no byte moves.
    ///
    /// # Errors
    /// `part` again, and nothing done, if both are longer than a packet may be, or its first
    /// segment does not have the bytes to be left out.
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

    /// Puts the first `count` bytes of a packet into a buffer of their own, in front of the others,
    /// which stay where they are. It is the same packet, with what is known of it.
    ///
    /// # Errors
    /// The packet again, and nothing done, if no buffer is home, or its first segment does not
    /// have that many bytes and more.
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

    /// Buffers that are home: as many packets of one buffer can be made.
    #[inline]
    pub fn has_buffers(&mut self, count: usize) -> bool {
        self.doors.pool.ensure(count)
    }

    /// Bytes of packet that one buffer holds.
    #[inline]
    pub fn buffer_size(&self) -> usize {
        self.doors.pool.buffer_size()
    }

    /// A copy of a packet, bytes and metadata: counted as in. `None` if no buffers are home.
    pub fn copy(&mut self, packet: &Descriptor) -> Option<Descriptor> {
        let mut copy = self.doors.pool.copy(packet)?;
        copy.copy_metadata(packet);
        self.doors.count_made();
        Some(copy)
    }

    /// Ends the call: what was handed on goes through the rest of the chain.
    ///
    /// Returns packets dropped through these doors.
    // By reference, as moving the burst inside would copy 2 KiB.
    #[inline]
    pub fn finish(&mut self) -> u32 {
        if !self.emitted.is_empty() {
            self.carry_on();
        }
        self.dropped
    }
}

/// Descriptors that one call of a function may be given; rings hold at least this many.
pub const MAX_BURST: usize = BURST;
