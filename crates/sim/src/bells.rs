//! Virtual doorbells: a ring is recorded, and the world makes it an event.
//!
//! Guarantee: rings are taken in the order in which they were rung.

use crate::event::Actor;
use picnic_core::doorbell::Doorbell;
use std::sync::{Arc, Mutex, MutexGuard};

/// The rings of one turn, in order.
#[derive(Debug, Default)]
pub(crate) struct Rings(Mutex<Vec<Actor>>);

impl Rings {
    fn list(&self) -> MutexGuard<'_, Vec<Actor>> {
        // A list of names is complete, even if its last writer panicked.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes the rings since the last call into `list`, which is cleared first.
    pub(crate) fn take(&self, list: &mut Vec<Actor>) {
        list.clear();
        list.append(&mut self.list());
    }
}

/// The doorbell of one virtual core.
#[derive(Debug)]
pub(crate) struct VirtualDoorbell {
    pub(crate) rings: Arc<Rings>,
    pub(crate) wakes: Actor,
}

impl Doorbell for VirtualDoorbell {
    fn ring(&self) {
        self.rings.list().push(self.wakes);
    }
}
