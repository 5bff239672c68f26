//! The host attachment: what stands behind the target queues.
//!
//! One [`HostQueue`] per target queue, each used by one target core only. The
//! target routine takes a burst from the ring and hands it over; every packet
//! leaves through [`QueueOut`].

use crate::ledger::{DropReason, QueueLedger, Stage};
use crate::packet::burst::Burst;
use crate::packet::desc::Descriptor;
use crate::packet::pool::ReturnSender;
use crate::ring::spsc::Producer;
use crate::stats::TargetCounters;
use crate::time::Time;

/// One target queue's host side.
pub trait HostQueue: Send {
    /// Handles a burst, as a driver's receive routine would.
    ///
    /// Returns the nanoseconds of further work this stands for: the world lets them pass,
    /// on a real core by working, on a virtual one by the clock.
    fn deliver(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64;

    /// Something to tell the user at the end: what a check came to, say.
    fn report(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Makes the host queues of a card.
pub trait HostAttachment: Send {
    /// The host side of queue `queue`.
    ///
    /// # Errors
    /// What the system refused, in words for the user.
    fn open_queue(&mut self, queue: u16) -> Result<Box<dyn HostQueue>, String>;
}

/// The doors of a target queue: delivered, transmitted or dropped, nothing else.
#[derive(Debug)]
pub struct QueueOut<'a> {
    returns: &'a mut ReturnSender,
    tx: &'a mut Producer<Descriptor>,
    counters: &'a TargetCounters,
    ledger: &'a QueueLedger,
    delivered: u64,
    bytes: u64,
}

impl<'a> QueueOut<'a> {
    /// The doors of one queue, for one burst.
    pub fn new(
        returns: &'a mut ReturnSender,
        tx: &'a mut Producer<Descriptor>,
        counters: &'a TargetCounters,
        ledger: &'a QueueLedger,
    ) -> Self {
        QueueOut { returns, tx, counters, ledger, delivered: 0, bytes: 0 }
    }

    /// The host has the packet; its buffer goes home.
    #[inline(always)]
    pub fn deliver(&mut self, packet: Descriptor) {
        self.delivered += 1;
        self.bytes += u64::from(packet.length());
        self.returns.give_back(packet);
    }

    /// The host has the packet and sends this one, in the same buffer, to wire `packet.wire`.
    #[inline]
    pub fn echo(&mut self, packet: Descriptor) {
        self.delivered += 1;
        self.bytes += u64::from(packet.length());
        self.ledger.made.add(1);
        match self.tx.stage(packet) {
            Ok(()) => {
                self.ledger.submitted.add(1);
                self.counters.transmitted.add(1);
            }
            Err(packet) => {
                self.ledger.drops.add(DropReason::TxRingFull, Stage::Target, 1);
                self.returns.give_back(packet);
            }
        }
    }

    /// The host cannot take the packet.
    #[inline]
    pub fn drop(&mut self, packet: Descriptor, reason: DropReason) {
        self.ledger.drops.add(reason, Stage::Target, 1);
        self.returns.give_back(packet);
    }
}

impl Drop for QueueOut<'_> {
    fn drop(&mut self) {
        self.returns.publish();
        self.tx.publish();
        self.ledger.delivered.add(self.delivered);
        self.counters.packets.add(self.delivered);
        self.counters.bytes.add(self.bytes);
    }
}
