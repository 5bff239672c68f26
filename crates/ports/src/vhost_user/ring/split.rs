//! Split rings: descriptors, a ring of the available chains, and a ring of the used ones.
//!
//! Source: Virtual I/O Device 1.2, 2.7.7 and 2.7.10 (suppression of notifications), 2.7.5.3
//! (indirect descriptors).

use super::super::memory::{GuestMemoryMmap, VolatileSlice};
use super::{
    BrokenRing, Chain, DESCRIPTOR_BYTES, Descriptor, INDIRECT, Layout, Lookup, MAX_SIZE, NEXT,
    Piece, SHRUNK, Table, area,
};
use picnic_core::prefetch::for_write;
use std::sync::atomic::{Ordering, fence};
use vm_memory::{Bytes, VolatileMemory};

/// In the driver's area: it wants no interrupts.
const NO_INTERRUPT: u16 = 1;
/// In the device's area: it wants no kicks.
const NO_NOTIFY: u16 = 1;

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
        let turn = ring.turn(memory)?;
        let used = load(&turn.used, 2)?;
        (ring.used, ring.published) = (used, used);
        // Chains are completed in order at once, so the used index is the place. The base may be
        // another: DPDK's virtio-user, as the server, gives 0 to a back end that was restarted.
        (ring.next, ring.available) = (used, used);
        Ok(ring)
    }

    /// Index of the next available chain.
    pub(super) fn base(&self) -> u16 {
        self.next
    }

    /// Takes and completes chains until dropped.
    ///
    /// # Errors
    /// The ring is not in this memory.
    #[inline]
    pub fn turn<'t>(&'t mut self, memory: &'t GuestMemoryMmap) -> Result<Turn<'t>, BrokenRing> {
        let Layout { size, descriptors, available, used, .. } = self.layout;
        let size = usize::from(size);
        let mut lookup = Lookup::from(memory);
        Ok(Turn {
            descriptors: area(&mut lookup, descriptors, DESCRIPTOR_BYTES * size)?,
            available: area(&mut lookup, available, 6 + 2 * size)?,
            used: area(&mut lookup, used, 6 + 8 * size)?,
            ring: self,
            memory,
            is_read: false,
        })
    }
}

/// A burst's work on a split ring.
#[derive(Debug)]
pub struct Turn<'t> {
    ring: &'t mut SplitRing,
    memory: &'t GuestMemoryMmap,
    descriptors: VolatileSlice<'t>,
    available: VolatileSlice<'t>,
    used: VolatileSlice<'t>,
    /// The driver's index was read in this turn.
    is_read: bool,
}

#[inline]
fn load(area: &VolatileSlice<'_>, at: usize) -> Result<u16, BrokenRing> {
    let value = area.load::<u16>(at, Ordering::Acquire);
    value.map(u16::from_le).map_err(|_| SHRUNK)
}

impl Turn<'_> {
    #[inline]
    fn store(&self, at: usize, value: u16) -> Result<(), BrokenRing> {
        self.used.store(value.to_le(), at, Ordering::Release).map_err(|_| SHRUNK)
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.ring.layout.size - 1))
    }

    /// A copy of a descriptor.
    #[inline]
    fn descriptor(&self, index: u16) -> Option<Descriptor> {
        let at = usize::from(index) * DESCRIPTOR_BYTES;
        let half = |at| self.descriptors.load::<u64>(at, Ordering::Relaxed).map(u64::from_le).ok();
        Some(Descriptor::of(half(at)?, half(at + 8)?))
    }

    /// Chains that may be taken, by the driver's index when it was last read.
    #[inline]
    fn waiting(&self) -> Result<u16, BrokenRing> {
        let waiting = self.ring.available.wrapping_sub(self.ring.next);
        if waiting > self.ring.layout.size {
            return Err(BrokenRing("its driver made more chains available than it has"));
        }
        Ok(waiting)
    }

    /// The pieces of a chain; `None` if it is not a chain of this kind.
    #[inline]
    fn add(&self, head: u16, writable: bool, pieces: &mut Vec<Piece>) -> Option<u64> {
        let first = self.descriptor(head)?;
        match first.flags & (NEXT | INDIRECT) == 0 {
            true => first.add_to(pieces, writable),
            false => self.walk(first, writable, pieces),
        }
    }

    /// Follows a chain from its first descriptor on.
    fn walk(
        &self,
        mut descriptor: Descriptor,
        writable: bool,
        pieces: &mut Vec<Piece>,
    ) -> Option<u64> {
        let size = self.ring.layout.size;
        let mut table: Option<Table> = None;
        let (mut length, mut entries) = (0, size);
        // A chain that is longer than the ring has a loop.
        for _ in 0..size {
            let index = if descriptor.flags & INDIRECT != 0 {
                if table.is_some() {
                    return None;
                }
                let found = Table::of(&descriptor, &self.ring.layout)?;
                (table, entries) = (Some(found), found.entries);
                0
            } else {
                length += descriptor.add_to(pieces, writable)?;
                if descriptor.flags & NEXT == 0 {
                    return Some(length);
                }
                Some(descriptor.next).filter(|&next| next < entries)?
            };
            descriptor = match table {
                None => self.descriptor(index)?,
                Some(table) => table.entry(self.memory, index)?,
            };
        }
        None
    }
}

impl super::Turn for Turn<'_> {
    fn is_waiting(&mut self) -> Result<bool, BrokenRing> {
        self.ring.available = load(&self.available, 2)?;
        Ok(self.waiting()? != 0)
    }

    #[inline]
    fn take(
        &mut self,
        writable: bool,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<Chain>, BrokenRing> {
        let next = self.ring.next;
        if self.ring.available == next {
            if self.is_read || !self.is_waiting()? {
                self.is_read = true;
                return Ok(None);
            }
            self.is_read = true;
        }
        let slot = self.slot(next);
        let head = load(&self.available, 4 + 2 * slot)?;
        if head >= self.ring.layout.size {
            return Err(BrokenRing("its driver made a descriptor available that it lacks"));
        }
        // In order, it is returned in the same slot.
        for_write(self.used.ptr_guard().as_ptr().wrapping_add(4 + 8 * slot));
        self.ring.next = next.wrapping_add(1);
        let before = pieces.len();
        let length = self.add(head, writable, pieces);
        if length.is_none() {
            pieces.truncate(before);
        }
        let (is_good, length) = (length.is_some(), length.unwrap_or(0));
        let pieces = (pieces.len() - before) as u16;
        Ok(Some(Chain { head, places: 1, pieces, length, is_good }))
    }

    #[inline]
    fn put_back(&mut self, chains: &[Chain]) {
        self.ring.next = self.ring.next.wrapping_sub(chains.len() as u16);
    }

    #[inline]
    fn complete(&mut self, chain: &Chain, written: u32) -> Result<(), BrokenRing> {
        let entry = u64::from(chain.head) | u64::from(written) << 32;
        let at = 4 + 8 * self.slot(self.ring.used);
        self.used.get_ref(at).map_err(|_| SHRUNK)?.store(entry.to_le());
        self.ring.used = self.ring.used.wrapping_add(1);
        Ok(())
    }

    #[inline]
    fn publish(&mut self) -> Result<bool, BrokenRing> {
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
            return Ok(load(&self.available, 0)? & NO_INTERRUPT == 0);
        }
        let event = load(&self.available, 4 + 2 * usize::from(self.ring.layout.size))?;
        Ok(new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old))
    }

    fn listen(&mut self) -> Result<bool, BrokenRing> {
        match self.ring.layout.event_idx {
            true => self.store(4 + 8 * usize::from(self.ring.layout.size), self.ring.next)?,
            false => self.store(0, 0)?,
        }
        // The wish before the index: the driver writes the index before it reads the wish.
        fence(Ordering::SeqCst);
        self.is_waiting()
    }

    fn ignore(&mut self) -> Result<(), BrokenRing> {
        // By index, the wish for a kick ends by itself once the index has passed.
        if self.ring.layout.event_idx { Ok(()) } else { self.store(0, NO_NOTIFY) }
    }
}
