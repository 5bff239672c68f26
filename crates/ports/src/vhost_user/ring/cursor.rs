//! Copies between the guest's memory and the card's, along the pieces of chains.
//!
//! Guarantees: nothing outside the guest's memory is read or written; what is contiguous for the
//! guest may be in several mappings.

use super::super::memory::GuestMemoryMmap;
use super::Piece;
use vm_memory::{GuestAddress, GuestMemoryBackend};

/// Reads from the guest's memory, which may be in several mappings.
#[inline]
pub(super) fn read(
    memory: &GuestMemoryMmap,
    address: GuestAddress,
    mut to: &mut [u8],
) -> Option<()> {
    for slice in memory.get_slices(address, to.len()) {
        let slice = slice.ok()?;
        let (part, rest) = std::mem::take(&mut to).split_at_mut_checked(slice.len())?;
        slice.copy_to(part);
        to = rest;
    }
    Some(())
}

/// Writes to it.
#[inline]
fn write(memory: &GuestMemoryMmap, address: GuestAddress, mut from: &[u8]) -> Option<()> {
    for slice in memory.get_slices(address, from.len()) {
        let slice = slice.ok()?;
        let (part, rest) = from.split_at_checked(slice.len())?;
        slice.copy_from(part);
        from = rest;
    }
    Some(())
}

/// A place in the pieces of chains, from which bytes are copied, or to which.
#[derive(Debug)]
pub struct Cursor<'c> {
    memory: &'c GuestMemoryMmap,
    pieces: std::slice::Iter<'c, Piece>,
    address: u64,
    left: usize,
}

impl<'c> Cursor<'c> {
    /// The start of these pieces.
    #[inline]
    pub fn new(memory: &'c GuestMemoryMmap, pieces: &'c [Piece]) -> Self {
        Cursor { memory, pieces: pieces.iter(), address: 0, left: 0 }
    }

    /// The next piece of up to `wanted` bytes: address and length.
    #[inline]
    fn advance(&mut self, wanted: usize) -> Option<(GuestAddress, usize)> {
        while self.left == 0 {
            let piece = self.pieces.next()?;
            (self.address, self.left) = (piece.address, piece.length as usize);
        }
        let (address, length) = (GuestAddress(self.address), wanted.min(self.left));
        // An address that is no more is not in the guest's memory either.
        self.address = self.address.wrapping_add(length as u64);
        self.left -= length;
        Some((address, length))
    }

    /// Fills `to` from the guest's memory; `None` if the pieces are too short, or not in it.
    #[inline]
    pub fn read(&mut self, mut to: &mut [u8]) -> Option<()> {
        while !to.is_empty() {
            let (address, length) = self.advance(to.len())?;
            let (part, rest) = std::mem::take(&mut to).split_at_mut_checked(length)?;
            read(self.memory, address, part)?;
            to = rest;
        }
        Some(())
    }

    /// Writes `from` to the guest's memory; `None` if the pieces are too short, or not in it.
    #[inline]
    pub fn write(&mut self, mut from: &[u8]) -> Option<()> {
        while !from.is_empty() {
            let (address, length) = self.advance(from.len())?;
            let (part, rest) = from.split_at_checked(length)?;
            write(self.memory, address, part)?;
            from = rest;
        }
        Some(())
    }
}
