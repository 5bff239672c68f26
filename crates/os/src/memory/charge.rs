//! Bytes of the arena reserved for an object that lives elsewhere.

use super::arena::Name;
use std::fmt;
use std::sync::mpsc::Sender;

/// Reserves bytes of the arena for an object of the same size that lives on the heap: a task, a
/// mailbox, a filter. Put it into the object: the bytes return when it is dropped, on any thread.
#[must_use = "the bytes return when it is dropped"]
pub struct Charge {
    name: Name,
    returns: Sender<Name>,
}

impl Charge {
    pub(super) fn new(name: Name, returns: Sender<Name>) -> Self {
        Charge { name, returns }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Other threads must not hold the lock that the borrowed core takes: it frees the bytes
        // itself, at its next request. There is nothing to return once NIC OS has ended.
        let _ = self.returns.send(self.name);
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge").field("name", &self.name).finish_non_exhaustive()
    }
}
