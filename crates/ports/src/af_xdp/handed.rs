//! Sockets of wires that get their packets from the kernel engine's program.
//!
//! Guarantees: a socket is in the map while it is open.
//!
//! Source: Documentation/bpf/map_xskmap.rst.

use crate::sys::bpf::{Mark, SocketMap};
use picnic_core::shared::Shared;
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::sync::{Arc, OnceLock};

/// Queues of one interface, more than any has.
pub(super) const MOST_QUEUES: u32 = 1024;

/// A map of sockets, by wire and by queue of its interface, and the mark of the stamps that the
/// kernel engine writes before packets.
#[derive(Debug, Default)]
pub struct SharedSocketMap(OnceLock<(SocketMap, Mark)>);

impl SharedSocketMap {
    /// The map of a card, until the result is dropped.
    pub fn of(shared: &Shared) -> Arc<SharedSocketMap> {
        shared.get_or_make(SharedSocketMap::default)
    }

    /// Makes the map for `wires` wires: once per card.
    ///
    /// # Errors
    /// The kernel lacks such maps, or denies permission.
    pub fn make(&self, wires: usize) -> io::Result<()> {
        let map = SocketMap::new(wires as u32 * MOST_QUEUES)?;
        self.0
            .set((map, Mark::new()))
            .map_err(|_| io::Error::other("the card already has a socket map"))
    }

    /// The map, once it was made.
    pub fn map(&self) -> Option<BorrowedFd<'_>> {
        self.0.get().map(|(map, _)| map.as_fd())
    }

    /// The mark that follows the 64 bits of time in a stamp; zero before the map was made.
    pub fn mark(&self) -> u64 {
        self.stamps().map_or(0, Mark::get)
    }

    pub(crate) fn stamps(&self) -> Option<Mark> {
        self.0.get().map(|(_, mark)| *mark)
    }

    /// Routes a wire's packets of a queue to a socket.
    pub(crate) fn put(&self, wire: usize, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let (map, _) =
            self.0.get().ok_or_else(|| io::Error::other("the card has no socket map"))?;
        map.set(wire as u32 * MOST_QUEUES + queue, socket)
    }
}
