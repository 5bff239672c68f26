//! Guards: who looks at packets before everybody else, at the card and at the driver.
//!
//! A card has one guard at most: NIC OS's filters, as a rule. It stands at the head of both
//! chains, before each host queue, and before each tx ring. It stays when chains are swapped.

use crate::attachment::QueueOut;
use crate::function::Function;
use crate::ledger::{DropReason, Stage};
use crate::packet::burst::Burst;
use crate::packet::desc::Descriptor;
use crate::time::Time;

/// Makes what stands guard over a card, once for each place.
pub trait Guard {
    /// The head of the rx or tx chain, on the borrowed core.
    fn function(&self, stage: Stage) -> Option<Box<dyn Function>>;

    /// What the target core shows each burst to before the host is given it.
    fn queue(&self, queue: u16) -> Option<Box<dyn QueueGuard>>;

    /// What the target core asks about each packet that the host sends.
    fn screen(&self, queue: u16) -> Option<Box<dyn Screen>>;
}

/// Judges what a host is about to be given, on the target core.
pub trait QueueGuard: Send {
    /// Drops from the burst what the host is not to have.
    fn receive(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>);
}

/// Judges what a host sends, on the target core, before it is on the tx ring.
pub trait Screen: Send {
    /// Called before each burst; false if it will let all of it pass, and need not be asked.
    fn begin(&mut self) -> bool;

    /// Why a packet may not be sent; `None` if it may.
    fn refuses(&mut self, packet: &mut Descriptor) -> Option<DropReason>;
}
