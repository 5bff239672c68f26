//! The split ring of virtio, seen from the device.
//!
//! ```text
//! driver ─▶ available ─▶ Turn::take ─▶ Chain ─▶ Cursor ─▶ packet
//! driver ◀─ used      ◀─ Turn::complete, Turn::publish
//! ```
//!
//! The driver is hostile: it may write any byte of its memory at any time. Each index and each
//! descriptor is therefore copied once, and the copy is checked.
//!
//! Guarantees: no panic and no access outside the guest's memory, whatever the memory holds; a
//! [`Turn::take`] reads at most as many descriptors as the ring has. Chains are completed in the
//! order in which they were made available.
//!
//! Source: Virtual I/O Device 1.2, 2.7 (split virtqueues), 2.7.7 and 2.7.10 (suppression of
//! notifications), 2.7.5.3 (indirect descriptors).

use super::memory::{GuestMemoryMmap, VolatileSlice};
use std::sync::atomic::{Ordering, fence};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

/// Most descriptors of a ring.
pub const MAX_SIZE: u32 = 32_768;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const DESCRIPTOR_BYTES: usize = 16;
/// In the driver's area: it wants no interrupts.
const NO_INTERRUPT: u16 = 1;
/// In the device's area: it wants no kicks.
const NO_NOTIFY: u16 = 1;

/// Where a ring is, and what was negotiated for it.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Descriptors: a power of two.
    pub size: u16,
    /// Guest address of the descriptors.
    pub descriptors: u64,
    /// Guest address of the available ring, the driver's area.
    pub available: u64,
    /// Guest address of the used ring, the device's area.
    pub used: u64,
    /// Index of the next available chain.
    pub base: u16,
    /// Both sides suppress notifications by index.
    pub event_idx: bool,
    /// Chains may be in tables of their own.
    pub indirect: bool,
}

/// Why a ring cannot be used (any longer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenRing(pub &'static str);

/// A piece of guest memory that a descriptor names; not checked until it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Guest address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
}

/// A chain taken off the available ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its first descriptor.
    pub head: u16,
    /// Bytes of all its pieces.
    pub length: u64,
    /// Whether it can be used: if not, it must be completed with length 0.
    pub is_good: bool,
}

/// The device's side of a split ring.
#[derive(Debug)]
pub struct SplitRing {
    layout: Layout,
    /// The next chain to take.
    next: u16,
    /// The driver's index, when last read.
    available: u16,
    /// The next used entry to write.
    used: u16,
    /// The index that the driver last saw.
    published: u16,
    /// The driver has not yet seen any.
    is_fresh: bool,
}

impl SplitRing {
    /// A ring in this memory.
    ///
    /// # Errors
    /// Its areas are not aligned, not in the memory, or not contiguous there.
    pub fn new(layout: Layout, memory: &GuestMemoryMmap) -> Result<Self, BrokenRing> {
        if !layout.size.is_power_of_two() || u32::from(layout.size) > MAX_SIZE {
            return Err(BrokenRing("its size is no power of two up to 32768"));
        }
        let alignments = [(layout.descriptors, 16), (layout.available, 2), (layout.used, 4)];
        if alignments.iter().any(|(address, alignment)| address % alignment != 0) {
            return Err(BrokenRing("its addresses are not aligned"));
        }
        let mut ring = SplitRing {
            layout,
            next: layout.base,
            available: layout.base,
            used: 0,
            published: 0,
            is_fresh: true,
        };
        let used = ring.turn(memory)?.load(Area::Used, 2)?;
        (ring.used, ring.published) = (used, used);
        Ok(ring)
    }

    /// Where the device stands, for the front end.
    pub fn base(&self) -> u16 {
        self.next
    }

    /// Takes and completes chains until dropped.
    ///
    /// # Errors
    /// The ring is not in this memory.
    #[inline]
    pub fn turn<'t>(&'t mut self, memory: &'t GuestMemoryMmap) -> Result<Turn<'t>, BrokenRing> {
        let Layout { size, descriptors, available, used, .. } = self.layout;
        let area = |address, bytes| {
            let slice = memory.get_slice(GuestAddress(address), bytes);
            slice.map_err(|_| BrokenRing("it is not in the guest's memory"))
        };
        let size = usize::from(size);
        Ok(Turn {
            descriptors: area(descriptors, DESCRIPTOR_BYTES * size)?,
            available: area(available, 6 + 2 * size)?,
            used: area(used, 6 + 8 * size)?,
            ring: self,
            memory,
        })
    }
}

#[derive(Clone, Copy)]
enum Area {
    Available,
    Used,
}

/// A burst's work on a ring.
#[derive(Debug)]
pub struct Turn<'t> {
    ring: &'t mut SplitRing,
    memory: &'t GuestMemoryMmap,
    descriptors: VolatileSlice<'t>,
    available: VolatileSlice<'t>,
    used: VolatileSlice<'t>,
}

const SHRUNK: BrokenRing = BrokenRing("its area is too small");

impl Turn<'_> {
    fn area(&self, area: Area) -> &VolatileSlice<'_> {
        match area {
            Area::Available => &self.available,
            Area::Used => &self.used,
        }
    }

    #[inline]
    fn load(&self, area: Area, at: usize) -> Result<u16, BrokenRing> {
        let value = self.area(area).load::<u16>(at, Ordering::Acquire);
        value.map(u16::from_le).map_err(|_| SHRUNK)
    }

    #[inline]
    fn store(&self, at: usize, value: u16) -> Result<(), BrokenRing> {
        self.used.store(value.to_le(), at, Ordering::Release).map_err(|_| SHRUNK)
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.ring.layout.size - 1))
    }

    /// Chains that may be taken.
    ///
    /// # Errors
    /// The driver claims more than the ring has: it must not be used any longer.
    #[inline]
    pub fn waiting(&mut self) -> Result<u16, BrokenRing> {
        if self.ring.available == self.ring.next {
            self.ring.available = self.load(Area::Available, 2)?;
        }
        let waiting = self.ring.available.wrapping_sub(self.ring.next);
        if waiting > self.ring.layout.size {
            return Err(BrokenRing("its driver made more chains available than it has"));
        }
        Ok(waiting)
    }

    /// Takes a chain and adds its pieces to `pieces`; all must be for the device to write to, or
    /// all to read from. `None` if no chain is available. A chain with more pieces than `pieces` has
    /// capacity for is not good: nothing is allocated.
    ///
    /// # Errors
    /// The ring must not be used any longer.
    #[inline]
    pub fn take(
        &mut self,
        writable: bool,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<Chain>, BrokenRing> {
        if self.waiting()? == 0 {
            return Ok(None);
        }
        let at = 4 + 2 * self.slot(self.ring.next);
        let head = self.load(Area::Available, at)?;
        if head >= self.ring.layout.size {
            return Err(BrokenRing("its driver made a descriptor available that it lacks"));
        }
        self.ring.next = self.ring.next.wrapping_add(1);
        let before = pieces.len();
        let length = self.walk(head, writable, pieces);
        if length.is_none() {
            pieces.truncate(before);
        }
        Ok(Some(Chain { head, length: length.unwrap_or(0), is_good: length.is_some() }))
    }

    /// Follows a chain; `None` if it is not a chain of this kind.
    #[inline]
    fn walk(&self, head: u16, writable: bool, pieces: &mut Vec<Piece>) -> Option<u64> {
        let size = self.ring.layout.size;
        let (mut table, mut entries) = (None, size);
        let (mut index, mut length) = (head, 0);
        // A chain that is longer than the ring has a loop.
        for _ in 0..size {
            let mut copy = [0; DESCRIPTOR_BYTES];
            let at = usize::from(index) * DESCRIPTOR_BYTES;
            match table {
                None => self.descriptors.read_slice(&mut copy, at).ok()?,
                Some(table) => {
                    let address = GuestAddress(u64::checked_add(table, at as u64)?);
                    read(self.memory, address, &mut copy)?;
                }
            }
            let descriptor = Descriptor::of(copy);
            if descriptor.flags & INDIRECT != 0 {
                let bytes = descriptor.length as usize;
                let is_allowed = self.ring.layout.indirect && table.is_none() && pieces_fit(bytes);
                if !is_allowed || descriptor.flags & NEXT != 0 {
                    return None;
                }
                entries = (bytes / DESCRIPTOR_BYTES).min(usize::from(size)) as u16;
                (table, index) = (Some(descriptor.address), 0);
                continue;
            }
            let is_full = pieces.len() == pieces.capacity();
            if (descriptor.flags & WRITE != 0) != writable || is_full {
                return None;
            }
            pieces.push(Piece { address: descriptor.address, length: descriptor.length });
            length += u64::from(descriptor.length);
            if descriptor.flags & NEXT == 0 {
                return Some(length);
            }
            index = Some(descriptor.next).filter(|&next| next < entries)?;
        }
        None
    }

    /// Puts back the last chains that were taken and not completed.
    #[inline]
    pub fn put_back(&mut self, chains: u16) {
        self.ring.next = self.ring.next.wrapping_sub(chains);
    }

    /// Returns a chain, in the order of taking, with the number of bytes written to it.
    ///
    /// # Errors
    /// The ring must not be used any longer.
    #[inline]
    pub fn complete(&mut self, head: u16, written: u32) -> Result<(), BrokenRing> {
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        let at = 4 + 8 * self.slot(self.ring.used);
        self.used.write_slice(&entry, at).map_err(|_| SHRUNK)?;
        self.ring.used = self.ring.used.wrapping_add(1);
        Ok(())
    }

    /// Shows completed chains to the driver; whether it wants an interrupt for them.
    ///
    /// # Errors
    /// The ring must not be used any longer.
    #[inline]
    pub fn publish(&mut self) -> Result<bool, BrokenRing> {
        let (old, new) = (self.ring.published, self.ring.used);
        if old == new {
            return Ok(false);
        }
        self.store(2, new)?;
        self.ring.published = new;
        // The index before the driver's wishes: it writes them before it reads the index.
        fence(Ordering::SeqCst);
        if std::mem::take(&mut self.ring.is_fresh) {
            return Ok(true);
        }
        if !self.ring.layout.event_idx {
            return Ok(self.load(Area::Available, 0)? & NO_INTERRUPT == 0);
        }
        let event = self.load(Area::Available, 4 + 2 * usize::from(self.ring.layout.size))?;
        Ok(new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old))
    }

    /// Asks the driver to kick at the next chain; whether there is one already, which it may not
    /// kick for.
    ///
    /// # Errors
    /// The ring must not be used any longer.
    pub fn listen(&mut self) -> Result<bool, BrokenRing> {
        match self.ring.layout.event_idx {
            true => self.store(4 + 8 * usize::from(self.ring.layout.size), self.ring.next)?,
            false => self.store(0, 0)?,
        }
        // The wish before the index: the driver writes the index before it reads the wish.
        fence(Ordering::SeqCst);
        Ok(self.waiting()? != 0)
    }

    /// Asks the driver not to kick.
    ///
    /// # Errors
    /// The ring must not be used any longer.
    pub fn ignore(&mut self) -> Result<(), BrokenRing> {
        // By index, the wish for a kick ends by itself once the index has passed.
        if self.ring.layout.event_idx { Ok(()) } else { self.store(0, NO_NOTIFY) }
    }
}

/// Whether an indirect table of this many bytes is one.
fn pieces_fit(bytes: usize) -> bool {
    bytes != 0 && bytes.is_multiple_of(DESCRIPTOR_BYTES)
}

/// A descriptor, copied.
struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    #[inline]
    fn of(copy: [u8; DESCRIPTOR_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = copy;
        Descriptor {
            address: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            length: u32::from_le_bytes([i, j, k, l]),
            flags: u16::from_le_bytes([m, n]),
            next: u16::from_le_bytes([o, p]),
        }
    }
}

/// Reads from the guest's memory, which may be in several mappings.
#[inline]
fn read(memory: &GuestMemoryMmap, address: GuestAddress, mut to: &mut [u8]) -> Option<()> {
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
