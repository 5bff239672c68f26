//! The host attachment: what stands behind the target queues.
//!
//! One [`HostQueue`] per target queue, each used by one target core only. The
//! target routine takes a burst from the ring and hands it over; every packet
//! leaves through [`QueueOut`].

use crate::command::Prepared;
use crate::error::ConfigError;
use crate::fill::FillReceiver;
use crate::guard::Screen;
use crate::ledger::{DropReason, QueueLedger, Stage};
use crate::packet::burst::Burst;
use crate::packet::desc::Descriptor;
use crate::packet::landing::Landing;
use crate::packet::pool::ReturnSender;
use crate::ring::spsc::Producer;
use crate::stats::TargetCounters;
use crate::time::Time;
use std::fmt;
use std::os::fd::BorrowedFd;

/// One target queue's host side.
pub trait HostQueue: Send {
    /// Handles a burst, as a driver's receive routine would.
    ///
    /// Returns the nanoseconds of further work this stands for: the world lets them pass,
    /// on a real core by working, on a virtual one by the clock.
    fn deliver(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64;

    /// Sends what the host has to send: [`QueueOut::buffer`] gives an empty buffer,
    /// [`QueueOut::submit`] puts it on the tx ring, [`QueueOut::unused`] takes it back.
    ///
    /// Called at every look at the queue, if the attachment asks for buffers
    /// ([`HostAttachment::wants_buffers`]). Returns the packets submitted.
    fn transmit(&mut self, _now: Time, _out: &mut QueueOut<'_>) -> usize {
        0
    }

    /// A descriptor that becomes readable when the host has something to send, to sleep on.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Of the work that `deliver` tells of, what the kernel does for each packet before an
    /// application can have it, in nanoseconds: with `host.system = "napi"` another core does it.
    fn stack_ns(&self) -> u64 {
        0
    }

    /// Whether what `deliver` does is an application's work, behind the driver's: interrupts that
    /// are not masked preempt it.
    fn is_application(&self) -> bool {
        false
    }

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
    /// The key that cannot be met, and what the system says.
    fn open_queue(&mut self, queue: u16) -> Result<Box<dyn HostQueue>, ConfigError>;

    /// Empty buffers that each queue wants at hand for what the host sends; zero for a host that
    /// sends nothing but echoes.
    fn wants_buffers(&self) -> usize {
        0
    }

    /// Obeys an order that one of its commands has made, on the borrowed core, between bursts; as
    /// `Function::obey`. What its queues are to know of it they share with it.
    fn obey(&mut self, _order: &mut Prepared, _now: Time) -> bool {
        false
    }

    /// Whether the target routine is to preempt what else runs on its core, as an interrupt
    /// would, unless the card file says otherwise (`host.priority`): for hosts that do the
    /// kernel's work and sleep without it.
    fn wants_real_time(&self) -> bool {
        false
    }
}

/// The doors of a target queue: delivered, transmitted or dropped, nothing else.
pub struct QueueOut<'a> {
    returns: &'a mut ReturnSender,
    tx: &'a mut Producer<Descriptor>,
    counters: &'a TargetCounters,
    ledger: &'a QueueLedger,
    fill: Option<&'a mut FillReceiver>,
    screen: Option<&'a mut dyn Screen>,
    /// Buffers that it had to do without, and needs to go on; 0 if none.
    starved: usize,
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
        QueueOut {
            returns,
            tx,
            counters,
            ledger,
            fill: None,
            screen: None,
            starved: 0,
            delivered: 0,
            bytes: 0,
        }
    }

    /// The same doors, with empty buffers for what the host sends.
    #[must_use]
    pub fn with_fill(mut self, fill: &'a mut FillReceiver) -> Self {
        self.fill = Some(fill);
        self
    }

    /// The same doors, with somebody who judges what the host sends.
    #[must_use]
    pub fn with_screen(mut self, screen: Option<&'a mut (dyn Screen + 'static)>) -> Self {
        if let Some(screen) = screen
            && screen.begin()
        {
            self.screen = Some(screen);
        }
        self
    }

    /// An empty buffer for a packet of the host's, as long as the pool makes them: fill it from
    /// the start, cut it to length. `None` without buffers, and while the tx ring is full: then
    /// the host keeps what it has, which is how the card pushes back.
    #[inline]
    pub fn buffer(&mut self) -> Option<Descriptor> {
        let room = self.tx.has_room(1);
        let buffer = self.fill.as_mut().filter(|_| room).and_then(|fill| fill.take());
        self.starved = self.starved.max(usize::from(buffer.is_none()));
        buffer
    }

    /// The buffer was not needed: kept for the next time. It must be as long as it was.
    #[inline]
    pub fn unused(&mut self, buffer: Descriptor) {
        match &mut self.fill {
            Some(fill) => fill.keep(buffer),
            None => self.returns.give_back(buffer),
        }
    }

    /// At least `count` empty buffers for a packet of unknown length; see [`Landing`]. `None`
    /// without them, and while the tx ring is full, as of [`QueueOut::buffer`].
    #[inline]
    pub fn landing(&mut self, count: usize) -> Option<&mut Landing> {
        let room = self.tx.has_room(1);
        let landing = self.fill.as_mut().filter(|_| room).and_then(|fill| fill.landing(count));
        self.starved = self.starved.max(if landing.is_none() { count.max(1) } else { 0 });
        landing
    }

    /// The host sends this packet, to wire `packet.wire` unless a tx function decides otherwise.
    #[inline]
    pub fn submit(&mut self, mut packet: Descriptor) {
        self.ledger.made.add(1);
        if let Some(screen) = &mut self.screen
            && let Some(reason) = screen.refuses(&mut packet)
        {
            return self.drop(packet, reason);
        }
        match self.tx.stage(packet) {
            Ok(()) => {
                self.ledger.submitted.add(1);
                self.counters.transmitted.add(1);
            }
            Err(packet) => self.drop(packet, DropReason::TxRingFull),
        }
    }

    /// The host sent this packet, but it cannot be taken: made, and dropped at once.
    #[cold]
    pub fn refuse(&mut self, packet: Descriptor, reason: DropReason) {
        self.ledger.made.add(1);
        self.drop(packet, reason);
    }

    /// Whether [`QueueOut::buffer`] or [`QueueOut::landing`] had to say no: the host may have more to send.
    #[inline]
    pub fn is_starved(&self) -> bool {
        self.starved != 0
    }

    /// Whether the host was refused buffers though it was given all that there were: the borrowed
    /// core may not know that there are none left. Tells it of the room.
    pub fn has_used_up_buffers(&mut self) -> bool {
        self.is_starved() && self.fill.as_mut().is_some_and(|fill| fill.release())
    }

    /// Buffers that the host needs at once to go on sending; 0 if it was refused none.
    #[inline]
    pub fn wanted(&self) -> usize {
        self.starved
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
        self.submit(packet);
    }

    /// The host cannot take the packet.
    #[inline]
    pub fn drop(&mut self, packet: Descriptor, reason: DropReason) {
        self.ledger.drops.add(reason, Stage::Target, 1);
        self.returns.give_back(packet);
    }
}

impl fmt::Debug for QueueOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueOut").field("delivered", &self.delivered).finish_non_exhaustive()
    }
}

impl Drop for QueueOut<'_> {
    fn drop(&mut self) {
        if let Some(fill) = &mut self.fill {
            fill.release();
        }
        self.returns.publish();
        self.tx.publish();
        self.ledger.delivered.add(self.delivered);
        self.counters.packets.add(self.delivered);
        self.counters.bytes.add(self.bytes);
    }
}
