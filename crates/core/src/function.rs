//! The NIC function: the interface that users implement.
//!
//! The paper's `init / process_packet / exit` become a builder, a closure and a drop:
//!
//! ```
//! use picnic_core::function::{PacketMut, Verdict, per_packet};
//! // Every packet of 60 bytes or fewer to queue 1, the others to the next function.
//! let function = per_packet(|packet: &mut PacketMut<'_>| {
//!     if packet.data().len() <= 60 { Verdict::Steer(1) } else { Verdict::Next }
//! });
//! # let _: Box<dyn picnic_core::function::Function> = Box::new(function);
//! ```
//!
//! A function that works on whole bursts, holds packets back or makes new ones
//! implements [`Function`] itself.

use crate::command::Prepared;
use crate::direction::Direction;
use crate::kernel::{Form, KernelCounts};
use crate::ledger::DropReason;
use crate::out::Out;
use crate::packet::burst::Burst;
use crate::packet::desc::Descriptor;
use crate::time::Time;
use std::ops::{Deref, DerefMut};

/// A step of the rx or tx chain, run on the borrowed core.
///
/// It receives bursts, never blocks, allocates nothing in steady state and sends every packet
/// through one door of `out`. Packets left in `burst` when `process` returns go to the next
/// function, so a function that changes nothing does nothing.
pub trait Function: Send {
    /// Handles a burst.
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>);

    /// When `flush` must be called for held packets, if any.
    fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// Releases held packets that are due; all of them if `now` is `Time::MAX`.
    fn flush(&mut self, _now: Time, _out: &mut Out<'_>) {}

    /// Packets held at present, for the ledger.
    fn held(&self) -> usize {
        0
    }

    /// Whether it segments super-frames, so that hosts may send them ahead of it.
    fn cuts_super_frames(&self) -> bool {
        false
    }

    /// Whether it works only if packets of a flow are in order.
    fn needs_order(&self) -> bool {
        false
    }

    /// The setting after which packets of a flow may be out of order in this chain, if any.
    fn breaks_order(&self, _direction: Direction) -> Option<Disorder> {
        None
    }

    /// Its own name, if its registry entry covers many functions: a plugin's.
    fn name(&self) -> Option<&str> {
        None
    }

    /// Its current form in the kernel engine, after all orders; for functions with commands there.
    fn kernel_form(&self) -> Option<Form> {
        None
    }

    /// Records the counts of its kernel form.
    fn note_kernel(&mut self, _counts: &KernelCounts) {}

    /// Applies an order made by one of its commands, between bursts; false if it is for another
    /// function, or cannot be done. A function with commands implements it as `order.apply(self,
    /// now)`.
    fn obey(&mut self, _order: &mut Prepared, _now: Time) -> bool {
        false
    }
}

/// A setting of a function after which packets of a flow may be out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disorder {
    /// The key.
    pub key: &'static str,
    /// Its value.
    pub found: &'static str,
    /// The setting that would keep the order, for people.
    pub allowed: &'static str,
}

/// The fate of a packet, for per-packet functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On to the next function; after the last, to the default queue or wire.
    Next,
    /// To a target queue.
    Steer(u16),
    /// Out by a wire.
    Transmit(u8),
    /// Gone, and counted.
    Drop(DropReason),
    /// The function keeps the packet.
    Consume,
}

/// A packet lent to a per-packet function: everything but its ownership.
#[derive(Debug)]
pub struct PacketMut<'a>(&'a mut Descriptor);

impl<'a> From<&'a mut Descriptor> for PacketMut<'a> {
    #[inline(always)]
    fn from(packet: &'a mut Descriptor) -> Self {
        PacketMut(packet)
    }
}

impl Deref for PacketMut<'_> {
    type Target = Descriptor;
    #[inline(always)]
    fn deref(&self) -> &Descriptor {
        self.0
    }
}

impl DerefMut for PacketMut<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Descriptor {
        self.0
    }
}

/// Makes a function from a closure that judges one packet at a time. The packet's headers are in
/// one buffer, if they fit.
pub fn per_packet<F>(process_packet: F) -> PerPacket<F>
where
    F: FnMut(&mut PacketMut<'_>) -> Verdict + Send,
{
    PerPacket(process_packet)
}

/// A function made from a closure; see [`per_packet`].
#[derive(Debug)]
pub struct PerPacket<F>(F);

impl<F> Function for PerPacket<F>
where
    F: FnMut(&mut PacketMut<'_>) -> Verdict + Send,
{
    #[inline]
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        burst.retain(|mut packet| {
            packet.gather_headers();
            match (self.0)(&mut PacketMut(&mut packet)) {
                Verdict::Next => Some(packet),
                verdict => {
                    out.dispose(packet, verdict);
                    None
                }
            }
        });
    }
}
