//! The schedulers that card files can name: one line each.

use super::Scheduler;
use super::cyclic::Cyclic;
use super::edf::Edf;
use super::event::Event;
use super::plus::{CyclicPlus, EdfPlus};
use picnic_core::registry::Entry;

/// The list of schedulers.
pub const SCHEDULERS: &[Entry<Box<dyn Scheduler>>] = &[
    Entry::of::<EdfPlus>(),
    Entry::of::<Edf>(),
    Entry::of::<CyclicPlus>(),
    Entry::of::<Cyclic>(),
    Entry::of::<Event>(),
];
