//! Virtual doorbells: a ring is noted, and the world makes an event of it.
//!
//! Guarantee: rings come out in the order in which they were rung.

use crate::event::Actor;
use picnic_core::doorbell::Doorbell;
use std::sync::{Arc, Mutex, MutexGuard};

/// The rings of one turn, in order.
#[derive(Debug, Default)]
pub(crate) struct Rings(Mutex<Vec<Actor>>);

impl Rings {
    fn list(&self) -> MutexGuard<'_, Vec<Actor>> {
        // A list of names is whole whatever its last writer did.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes out what was rung since the last call, into `list`, which is emptied first.
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
