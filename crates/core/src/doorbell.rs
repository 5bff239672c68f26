//! The doorbell: how one core tells another that there is work.

use std::os::fd::BorrowedFd;

/// Wakes the thread that waits for it. Supplied by the world: a futex on real cores, an event on
/// virtual ones.
pub trait Doorbell: Send + Sync {
    /// Rings. If no thread waits, the ring is kept: the next wait returns at once.
    fn ring(&self);

    /// The eventfd that other processes can ring it by; none if they cannot.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Wakes no thread: for threads that poll by the clock or in turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDoorbell;

impl Doorbell for NoDoorbell {
    fn ring(&self) {}
}
