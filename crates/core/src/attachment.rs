//! The host attachment: the host side of the target queues.
//!
//! One [`HostQueue`] per target queue, each used by one target core only. The target routine takes
//! a burst from the ring and hands it over; every packet leaves through [`QueueOut`].

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
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The host side of one target queue.
pub trait HostQueue: Send {
    /// Handles a burst, as a driver's receive routine would.
    ///
    /// Returns the nanoseconds of further work that it represents: a real core works for that time,
    /// a virtual one advances its clock.
    fn deliver(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64;

    /// Sends the host's packets: [`QueueOut::buffer`] gives an empty buffer, [`QueueOut::submit`]
    /// puts it on the tx ring, [`QueueOut::unused`] returns it.
    ///
    /// Called each time the queue is polled, if the attachment asks for buffers
    /// ([`HostAttachment::wants_buffers`]). Returns the number of packets submitted.
    fn transmit(&mut self, _now: Time, _out: &mut QueueOut<'_>) -> usize {
        0
    }

    /// When the host has something to send by time alone, if it knows: the queue is polled then.
    fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// A descriptor that becomes readable when the host has something to send; used to sleep on.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The part of the work returned by `deliver` that the kernel does per packet before an
    /// application gets it, in nanoseconds: with `host.system = "napi"` another core does it.
    fn stack_ns(&self) -> u64 {
        0
    }

    /// Whether the work of `deliver` is an application's rather than the driver's: unmasked
    /// interrupts preempt it.
    fn is_application(&self) -> bool {
        false
    }

    /// Lines for the user at the end, such as the result of a check.
    fn report(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Makes the host queues of a card.
pub trait HostAttachment: Send {
    /// Opens the host side of queue `queue`.
    ///
    /// # Errors
    /// The key that cannot be met, and the system's error.
    fn open_queue(&mut self, queue: u16) -> Result<Box<dyn HostQueue>, ConfigError>;

    /// The virtual machines behind its queues, if there are any; called after a queue was opened.
    fn guests(&self) -> Vec<Arc<dyn Guest>> {
        Vec::new()
    }

    /// Empty buffers that each queue keeps available for packets of the host; zero for a host that
    /// only echoes.
    fn wants_buffers(&self) -> usize {
        0
    }

    /// Applies an order made by one of its commands, on the borrowed core, between bursts; see
    /// `Function::obey`. State that its queues need is shared with them.
    fn obey(&mut self, _order: &mut Prepared, _now: Time) -> bool {
        false
    }

    /// Whether the target routine should preempt other threads on its core, as an interrupt would,
    /// unless the card file sets `host.priority`: for hosts that do the kernel's work and sleep
    /// otherwise.
    fn wants_real_time(&self) -> bool {
        false
    }
}

/// A virtual machine that has some queues of a card, for figures and captures.
pub trait Guest: Send + Sync + fmt::Debug {
    /// Its name, which no other guest of the card has.
    fn name(&self) -> &str;

    /// Its queues.
    fn queues(&self) -> Range<u16>;

    /// Its current state; at the end of the card, the last one. Waits for no target core.
    fn state(&self) -> GuestState;
}

/// State of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestState {
    /// Whether a front end, such as QEMU, is connected.
    pub is_connected: bool,
    /// Times that one connected.
    pub connections: u64,
    /// Queues that the guest's driver uses.
    pub ready_queues: u64,
    /// Format of its rings, once negotiated: "split" or "packed".
    pub rings: Option<&'static str>,
    /// Names of the negotiated features.
    pub features: Vec<&'static str>,
    /// Bytes of its longest packet without the Ethernet header.
    pub mtu: u64,
    /// Rings that the card has stopped using because their content was wrong.
    pub broken_rings: u64,
    /// Reasons why rings could not be used or connections ended, each once.
    pub faults: Vec<String>,
}

/// The doors of a target queue: a packet is delivered, transmitted or dropped.
pub struct QueueOut<'a> {
    returns: &'a mut ReturnSender,
    tx: &'a mut Producer<Descriptor>,
    counters: &'a TargetCounters,
    ledger: &'a QueueLedger,
    fill: Option<&'a mut FillReceiver>,
    screen: Option<&'a mut dyn Screen>,
    /// Buffers that were refused and are needed to continue; 0 if none.
    starved: usize,
    delivered: u64,
    bytes: u64,
    submitted_bytes: u64,
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
            submitted_bytes: 0,
        }
    }

    /// The same doors, with empty buffers for packets of the host.
    #[must_use]
    pub fn with_fill(mut self, fill: &'a mut FillReceiver) -> Self {
        self.fill = Some(fill);
        self
    }

    /// The same doors, with a screen that judges packets of the host.
    #[must_use]
    pub fn with_screen(mut self, screen: Option<&'a mut (dyn Screen + 'static)>) -> Self {
        if let Some(screen) = screen
            && screen.begin()
        {
            self.screen = Some(screen);
        }
        self
    }

    /// An empty buffer for a packet of the host, as long as the pool makes them: fill it from the
    /// start and truncate it. `None` if there are no buffers or the tx ring is full: the host then
    /// keeps its packets, which is the card's back-pressure.
    #[inline]
    pub fn buffer(&mut self) -> Option<Descriptor> {
        let room = self.tx.has_room(1);
        let buffer = self.fill.as_mut().filter(|_| room).and_then(|fill| fill.take());
        self.starved = self.starved.max(usize::from(buffer.is_none()));
        buffer
    }

    /// Returns an unneeded buffer, at its original length, for later use.
    #[inline]
    pub fn unused(&mut self, buffer: Descriptor) {
        match &mut self.fill {
            Some(fill) => fill.keep(buffer),
            None => self.returns.give_back(buffer),
        }
    }

    /// At least `count` empty buffers for a packet of unknown length; see [`Landing`]. `None` in
    /// the same cases as [`QueueOut::buffer`].
    #[inline]
    pub fn landing(&mut self, count: usize) -> Option<&mut Landing> {
        let room = self.tx.has_room(1);
        let landing = self.fill.as_mut().filter(|_| room).and_then(|fill| fill.landing(count));
        self.starved = self.starved.max(if landing.is_none() { count.max(1) } else { 0 });
        landing
    }

    /// The host sends this packet, to wire `packet.wire` unless a tx function decides otherwise.
    #[inline]
    pub fn submit(&mut self, packet: Descriptor) {
        match self.screen {
            None => self.stage(packet),
            Some(_) => self.submit_screened(packet),
        }
    }

    // Not inline: a screen needs the descriptor in memory, from which it would be copied again.
    #[inline(never)]
    fn submit_screened(&mut self, mut packet: Descriptor) {
        match self.screen.as_mut().and_then(|screen| screen.refuses(&mut packet)) {
            None => self.stage(packet),
            Some(reason) => self.refuse(packet, reason),
        }
    }

    #[inline(always)]
    fn stage(&mut self, packet: Descriptor) {
        self.ledger.made.add(1);
        let length = packet.length();
        match self.tx.stage(packet) {
            Ok(()) => {
                self.submitted_bytes += u64::from(length);
                self.ledger.submitted.add(1);
                self.counters.transmitted.add(1);
            }
            Err(packet) => self.drop(packet, DropReason::TxRingFull),
        }
    }

    /// The host sent a packet that cannot be accepted: counts it as made and dropped.
    #[cold]
    pub fn refuse(&mut self, packet: Descriptor, reason: DropReason) {
        self.ledger.made.add(1);
        self.drop(packet, reason);
    }

    /// Whether [`QueueOut::buffer`] or [`QueueOut::landing`] returned `None`: the host may have
    /// more to send.
    #[inline]
    pub fn is_starved(&self) -> bool {
        self.starved != 0
    }

    /// Whether buffers were refused although the host had received all available ones: the borrowed
    /// core may not know that none are left. Tells it of the free slots.
    pub fn has_used_up_buffers(&mut self) -> bool {
        self.is_starved() && self.fill.as_mut().is_some_and(|fill| fill.release())
    }

    /// Buffers that the host needs to continue sending; 0 if none were refused.
    #[inline]
    pub fn wanted(&self) -> usize {
        self.starved
    }

    /// The host has received the packet; its buffer is returned.
    #[inline(always)]
    pub fn deliver(&mut self, packet: Descriptor) {
        self.delivered += 1;
        self.bytes += u64::from(packet.length());
        self.returns.give_back(packet);
    }

    /// The host has received the packet and echoes it, in the same buffer, to wire `packet.wire`.
    #[inline]
    pub fn echo(&mut self, packet: Descriptor) {
        self.delivered += 1;
        self.bytes += u64::from(packet.length());
        self.submit(packet);
    }

    /// The host cannot accept the packet.
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
        self.counters.transmitted_bytes.add(self.submitted_bytes);
    }
}
