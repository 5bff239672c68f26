//! Copies between the guest's memory and the card's, along the pieces of chains.
//!
//! Guarantees: nothing outside the guest's memory is read or written; what is contiguous for the
//! guest may be in several mappings.

use super::super::memory::{GuestMemoryMmap, VolatileSlice};
use super::Piece;
use picnic_core::prefetch::for_read;
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

/// Lines of a piece that are fetched ahead: a header and the headers of a packet.
const LINES: u64 = 2;
const LINE_BYTES: u64 = 64;

/// Fetches the start of a piece ahead of its use, if it is in the guest's memory.
#[inline]
pub(in super::super) fn prefetch(memory: &GuestMemoryMmap, piece: Option<&Piece>) {
    let Some(piece) = piece else { return };
    for line in 0..LINES {
        let at = line * LINE_BYTES;
        let address = GuestAddress(piece.address.wrapping_add(at));
        if at < piece.length.into()
            && let Ok(slice) = memory.get_slice(address, 1)
        {
            for_read(slice.ptr_guard().as_ptr());
        }
    }
}

/// A place in the pieces of chains, from which bytes are copied, or to which.
#[derive(Debug)]
pub struct Cursor<'c> {
    memory: &'c GuestMemoryMmap,
    pieces: std::slice::Iter<'c, Piece>,
    /// The rest of a piece.
    address: u64,
    left: usize,
    /// Its first part, in one mapping, once it was looked up.
    part: Option<VolatileSlice<'c>>,
}

impl<'c> Cursor<'c> {
    /// The start of these pieces.
    #[inline]
    pub fn new(memory: &'c GuestMemoryMmap, pieces: &'c [Piece]) -> Self {
        Cursor { memory, pieces: pieces.iter(), address: 0, left: 0, part: None }
    }

    /// The next up to `wanted` bytes in one mapping; `None` if the pieces are too short, or not in
    /// the guest's memory.
    #[inline]
    fn advance(&mut self, wanted: usize) -> Option<VolatileSlice<'c>> {
        while self.left == 0 {
            let piece = self.pieces.next()?;
            (self.address, self.left, self.part) = (piece.address, piece.length as usize, None);
        }
        let part = match self.part.take() {
            Some(part) => part,
            None => self.memory.get_slices(GuestAddress(self.address), self.left).next()?.ok()?,
        };
        let length = wanted.min(part.len());
        if length < part.len() {
            self.part = Some(part.offset(length).ok()?);
        }
        // An address that is no more is not in the guest's memory either.
        self.address = self.address.wrapping_add(length as u64);
        self.left -= length;
        part.subslice(0, length).ok()
    }

    /// Fills `to` from the guest's memory; `None` if the pieces are too short, or not in it.
    #[inline]
    pub fn read(&mut self, mut to: &mut [u8]) -> Option<()> {
        while !to.is_empty() {
            let slice = self.advance(to.len())?;
            let (part, rest) = std::mem::take(&mut to).split_at_mut_checked(slice.len())?;
            slice.copy_to(part);
            to = rest;
        }
        Some(())
    }

    /// Writes `from` to the guest's memory; `None` if the pieces are too short, or not in it.
    #[inline]
    pub fn write(&mut self, mut from: &[u8]) -> Option<()> {
        while !from.is_empty() {
            let slice = self.advance(from.len())?;
            let (part, rest) = from.split_at_checked(slice.len())?;
            slice.copy_from(part);
            from = rest;
        }
        Some(())
    }
}
