//! Copies between the guest's memory and the card's, along the pieces of chains.
//!
//! Guarantees: nothing outside the guest's memory is read or written; what is contiguous for the
//! guest may be in several mappings.

use super::super::memory::{GuestMemoryMmap, Region, VolatileSlice};
use super::Piece;
use picnic_core::prefetch::{for_read, for_write};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

/// The guest's memory, with the region of the last lookup at hand: most packets are in one.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'m> {
    memory: &'m GuestMemoryMmap,
    last: Option<&'m Region>,
}

impl<'m> From<&'m GuestMemoryMmap> for Lookup<'m> {
    fn from(memory: &'m GuestMemoryMmap) -> Self {
        Lookup { memory, last: None }
    }
}

impl<'m> Lookup<'m> {
    /// The first up to `length` bytes at an address, in one mapping; `None` if it is not in the
    /// memory.
    #[inline(always)]
    fn slice(&mut self, address: u64, length: usize) -> Option<VolatileSlice<'m>> {
        let last = self.last.and_then(|region| within(region, address, length));
        last.or_else(|| self.find(address, length))
    }

    /// The same, in another region.
    #[inline(never)]
    fn find(&mut self, address: u64, length: usize) -> Option<VolatileSlice<'m>> {
        let region = self.memory.find_region(GuestAddress(address))?;
        self.last = Some(region);
        within(region, address, length)
    }

    /// All `length` bytes at an address, if they are in one mapping.
    #[inline]
    pub(in super::super) fn whole(
        &mut self,
        address: u64,
        length: usize,
    ) -> Option<VolatileSlice<'m>> {
        self.slice(address, length).filter(|slice| slice.len() == length)
    }

    /// Fetches the start of a piece ahead of its use, if it is in the guest's memory: a header and
    /// the headers of a packet.
    #[inline]
    pub(in super::super) fn prefetch(&mut self, piece: Option<&Piece>, to_write: bool) {
        let Some(piece) = piece else { return };
        let Some(slice) = self.slice(piece.address, piece.length as usize) else { return };
        let fetch = if to_write { for_write } else { for_read };
        let start = slice.ptr_guard().as_ptr();
        fetch(start);
        if slice.len() > LINE_BYTES {
            fetch(start.wrapping_add(LINE_BYTES));
        }
    }
}

/// The first up to `length` bytes at an address, if it is in this region.
#[inline(always)]
fn within(region: &Region, address: u64, length: usize) -> Option<VolatileSlice<'_>> {
    let offset = address.checked_sub(region.start_addr().0)?;
    let left = region.len().checked_sub(offset).filter(|left| *left != 0)?;
    let length = length.min(usize::try_from(left).unwrap_or(length));
    region.get_slice(MemoryRegionAddress(offset), length).ok()
}

const LINE_BYTES: usize = 64;

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

/// A place in the pieces of chains, from which bytes are copied, or to which.
#[derive(Debug)]
pub struct Cursor<'c> {
    memory: Lookup<'c>,
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
    pub fn new(memory: impl Into<Lookup<'c>>, pieces: &'c [Piece]) -> Self {
        let memory = memory.into();
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
            None => self.memory.slice(self.address, self.left)?,
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
