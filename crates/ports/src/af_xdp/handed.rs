//! Sockets of wires whose program is another's: the kernel engine's, which hands packets over.
//!
//! Guarantees: a socket is in the map for as long as it is open.
//!
//! Source: Documentation/bpf/map_xskmap.rst.

use crate::sys::bpf::{Mark, SocketMap};
use picnic_core::shared::Shared;
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::sync::{Arc, OnceLock};

/// Queues of one interface, more than any has.
pub(super) const MOST_QUEUES: u32 = 1024;

/// A map of sockets, by wire and by queue of its interface, and the mark by which the stamps are
/// known that whoever hands packets over puts in front of them.
#[derive(Debug, Default)]
pub struct SharedSocketMap(OnceLock<(SocketMap, Mark)>);

impl SharedSocketMap {
    /// That of a card, for as long as the answer lives.
    pub fn of(shared: &Shared) -> Arc<SharedSocketMap> {
        shared.get_or_make(SharedSocketMap::default)
    }

    /// The map, made for so many wires: once a card.
    ///
    /// # Errors
    /// What the kernel says: it has no such maps, or the process no right to them.
    pub fn make(&self, wires: usize) -> io::Result<()> {
        let map = SocketMap::new(wires as u32 * MOST_QUEUES)?;
        self.0.set((map, Mark::new())).map_err(|_| io::Error::other("there is one already"))
    }

    /// The map, once it was made.
    pub fn map(&self) -> Option<BorrowedFd<'_>> {
        self.0.get().map(|(map, _)| map.as_fd())
    }

    /// The mark, behind 64 bits of time, of a stamp; zero before the map was made.
    pub fn mark(&self) -> u64 {
        self.stamps().map_or(0, Mark::get)
    }

    pub(crate) fn stamps(&self) -> Option<Mark> {
        self.0.get().map(|(_, mark)| *mark)
    }

    /// Has a wire's packets of a queue go to a socket.
    pub(crate) fn put(&self, wire: usize, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let (map, _) = self.0.get().ok_or_else(|| io::Error::other("nobody hands packets over"))?;
        map.set(wire as u32 * MOST_QUEUES + queue, socket)
    }
}
