//! The doorbell of a process: an eventfd, whose other holders ring it.

use picnic_core::doorbell::Doorbell;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd, rung by one process and waited for by another.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A new one.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// One of another process.
    pub fn of(event: OwnedFd) -> Self {
        Bell(event)
    }

    /// The same, for another process.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Forgets that it was rung.
    pub fn quiet(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Doorbell for Bell {
    fn ring(&self) {
        // A full counter has been rung often enough.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}
