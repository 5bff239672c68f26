//! Guards: check packets before all other parts, at the card and at the driver.
//!
//! A card has at most one guard, usually NIC OS's filters. It runs at the head of both chains,
//! before each host queue, and before each tx ring, and stays when chains are swapped.

use crate::attachment::QueueOut;
use crate::function::Function;
use crate::ledger::{DropReason, Stage};
use crate::packet::burst::Burst;
use crate::packet::desc::Descriptor;
use crate::time::Time;
use std::fmt;
use std::sync::Arc;

/// Makes the parts of a guard, once for each place.
pub trait Guard {
    /// The head of the rx or tx chain, on the borrowed core.
    fn function(&self, stage: Stage) -> Option<Box<dyn Function>>;

    /// The guard before a host queue, on the target core.
    fn queue(&self, queue: u16) -> Option<Box<dyn QueueGuard>>;

    /// The screen for packets that the host sends, on the target core.
    fn screen(&self, queue: u16) -> Option<Box<dyn Screen>>;

    /// Its counts by group, for any thread.
    fn groups(&self) -> Option<Arc<dyn Groups>> {
        None
    }
}

/// Reads the counts of a guard's groups of filters, from any thread.
pub trait Groups: fmt::Debug + Send + Sync {
    /// The current counts, in the order of the groups.
    fn counts(&self) -> Vec<GroupCounts>;
}

/// The counts of a group of filters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Its name.
    pub name: String,
    /// Its filters.
    pub filters: u64,
    /// Packets that they matched: a packet counts for each filter.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that they dropped because they could not be read.
    pub unreadable_packets: u64,
}

/// Judges packets about to be delivered to a host, on the target core.
pub trait QueueGuard: Send {
    /// Drops packets that the host must not receive.
    fn receive(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>);
}

/// Judges packets that a host sends, on the target core, before they are on the tx ring.
pub trait Screen: Send {
    /// Called before each burst; false if the whole burst will pass unchecked.
    fn begin(&mut self) -> bool;

    /// Why a packet may not be sent; `None` if it may.
    fn refuses(&mut self, packet: &mut Descriptor) -> Option<DropReason>;
}
