//! The rings of virtio, seen from the device.
//!
//! ```text
//! driver ─▶ Turn::take ─▶ Chain ─▶ Cursor ─▶ packet
//! driver ◀─ Turn::complete, Turn::publish
//! ```
//!
//! Two formats: [`split`] has an area for each direction, [`packed`] one for both.
//!
//! The driver is hostile: it may write any byte of its memory at any time. Each index and each
//! descriptor is therefore copied once, and the copy is checked.
//!
//! Guarantees: no panic and no access outside the guest's memory, whatever the memory holds; a
//! [`Turn::take`] reads at most as many descriptors as the ring has, and as many of a table. Chains
//! are completed in the order in which they were made available.
//!
//! Source: Virtual I/O Device 1.2, 2.7 (split virtqueues) and 2.8 (packed virtqueues).

mod cursor;
pub mod packed;
pub mod split;

use super::inflight::Part;
use super::memory::{GuestMemoryMmap, VolatileSlice};
use cursor::read;
pub use cursor::{Cursor, Lookup};
use packed::PackedRing;
use split::SplitRing;
use vm_memory::GuestAddress;

/// Most descriptors of a ring.
pub const MAX_SIZE: u32 = 32_768;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const DESCRIPTOR_BYTES: usize = 16;

/// Where a ring is, and what was negotiated for it.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// One area for both directions.
    pub is_packed: bool,
    /// Descriptors: a power of two, unless packed.
    pub size: u16,
    /// Guest address of the descriptors.
    pub descriptors: u64,
    /// Guest address of the driver's area: the available ring, or its wish for interrupts.
    pub available: u64,
    /// Guest address of the device's area: the used ring, or its wish for kicks.
    pub used: u64,
    /// Where the device starts: see [`Queue::base`].
    pub base: u16,
    /// Both sides suppress notifications by index.
    pub event_idx: bool,
    /// Chains may be in tables of their own.
    pub indirect: bool,
    /// The driver knows that chains return in the order in which it made them available.
    pub in_order: bool,
}

/// Why a ring cannot be used (any longer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenRing(pub &'static str);

const SHRUNK: BrokenRing = BrokenRing("its area is too small");

/// A piece of guest memory that a descriptor names; not checked until it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Guest address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
}

/// A chain taken from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// What the driver knows it by: its first descriptor, or its number.
    pub head: u16,
    /// Places of the ring that it has.
    pub places: u16,
    /// Its pieces.
    pub pieces: u16,
    /// Bytes of all its pieces.
    pub length: u64,
    /// Whether it can be used: if not, it must be completed with length 0.
    pub is_good: bool,
}

/// A ring of either format.
#[derive(Debug)]
pub enum Queue {
    /// Descriptors, available ring and used ring.
    Split(SplitRing),
    /// One ring of descriptors.
    Packed(PackedRing),
}

impl Queue {
    /// A ring in this memory.
    ///
    /// # Errors
    /// Its areas are not aligned, not in the memory, or not contiguous there.
    pub fn new(layout: Layout, memory: &GuestMemoryMmap) -> Result<Self, BrokenRing> {
        Ok(match layout.is_packed {
            false => Queue::Split(SplitRing::new(layout, memory)?),
            true => Queue::Packed(PackedRing::new(layout, memory)?),
        })
    }

    /// The same ring, with a part of an in-flight area, which packed rings keep up to date.
    pub(super) fn recorded(mut self, part: Option<Part>) -> Self {
        if let Queue::Packed(ring) = &mut self {
            ring.keep_record(part);
        }
        self
    }

    /// Where the device stands, for the front end: the index of the next available chain, or the
    /// place of its first descriptor with the wrap counter in bit 15.
    pub fn base(&self) -> u16 {
        match self {
            Queue::Split(ring) => ring.base(),
            Queue::Packed(ring) => ring.base(),
        }
    }

    /// [`Turn::ignore`].
    ///
    /// # Errors
    /// The ring must not be used any longer.
    pub fn ignore(&mut self, memory: &GuestMemoryMmap) -> Result<(), BrokenRing> {
        match self {
            Queue::Split(ring) => ring.turn(memory)?.ignore(),
            Queue::Packed(ring) => ring.turn(memory)?.ignore(),
        }
    }

    /// [`Turn::is_waiting`].
    ///
    /// # Errors
    /// The ring must not be used any longer.
    pub fn is_waiting(&mut self, memory: &GuestMemoryMmap) -> Result<bool, BrokenRing> {
        match self {
            Queue::Split(ring) => ring.turn(memory)?.is_waiting(),
            Queue::Packed(ring) => ring.turn(memory)?.is_waiting(),
        }
    }
}

/// A burst's work on a ring. After an error the ring must not be used any longer.
pub trait Turn {
    /// Whether a chain may be taken.
    ///
    /// # Errors
    /// The driver claims more than the ring has.
    fn is_waiting(&mut self) -> Result<bool, BrokenRing>;

    /// Takes a chain and adds its pieces to `pieces`; all must be for the device to write to, or
    /// all to read from. `None` if no chain is available, also for the rest of the turn: the line
    /// that says so is the one that the driver writes next. A chain with more pieces than `pieces`
    /// has capacity for is not good: nothing is allocated.
    ///
    /// # Errors
    /// What the driver made available is no chain.
    fn take(
        &mut self,
        writable: bool,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<Chain>, BrokenRing>;

    /// Puts back the last chains that were taken and not completed.
    fn put_back(&mut self, chains: &[Chain]);

    /// Returns a chain, in the order of taking, with the number of bytes written to it.
    ///
    /// # Errors
    /// The ring is gone.
    fn complete(&mut self, chain: &Chain, written: u32) -> Result<(), BrokenRing>;

    /// Returns chains that were only read, in the order of taking.
    ///
    /// # Errors
    /// The ring is gone.
    fn complete_read(&mut self, chains: &[Chain]) -> Result<(), BrokenRing> {
        chains.iter().try_for_each(|chain| self.complete(chain, 0))
    }

    /// Shows completed chains to the driver; whether it wants an interrupt for them.
    ///
    /// # Errors
    /// The ring is gone.
    fn publish(&mut self) -> Result<bool, BrokenRing>;

    /// Asks the driver to kick at the next chain; whether there is one already, which it may not
    /// kick for.
    ///
    /// # Errors
    /// As [`Turn::is_waiting`].
    fn listen(&mut self) -> Result<bool, BrokenRing>;

    /// Asks the driver not to kick.
    ///
    /// # Errors
    /// The ring is gone.
    fn ignore(&mut self) -> Result<(), BrokenRing>;
}

/// An area of a ring, which is contiguous here, too.
#[inline]
fn area<'m>(
    memory: &mut Lookup<'m>,
    address: u64,
    bytes: usize,
) -> Result<VolatileSlice<'m>, BrokenRing> {
    memory.whole(address, bytes).ok_or(BrokenRing("it is not in the guest's memory"))
}

/// A descriptor, copied.
#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
    /// The descriptor that follows.
    next: u16,
}

impl Descriptor {
    /// The descriptor that these halves are.
    #[inline]
    fn of(address: u64, half: u64) -> Self {
        let (flags, next) = ((half >> 32) as u16, (half >> 48) as u16);
        Descriptor { address, length: half as u32, flags, next }
    }

    /// The piece of memory that it names, if it is of this kind and there is room; its length.
    #[inline]
    fn add_to(&self, pieces: &mut Vec<Piece>, writable: bool) -> Option<u64> {
        let is_full = pieces.len() == pieces.capacity();
        if (self.flags & WRITE != 0) != writable || is_full {
            return None;
        }
        pieces.push(Piece { address: self.address, length: self.length });
        Some(self.length.into())
    }
}

/// A table of descriptors beside the ring.
#[derive(Clone, Copy)]
struct Table {
    address: u64,
    entries: u16,
}

impl Table {
    /// The table that a descriptor names; its length is read once. Entries beyond the size of the
    /// ring are no entries.
    #[inline]
    fn of(descriptor: &Descriptor, layout: &Layout) -> Option<Table> {
        let bytes = descriptor.length as usize;
        let is_whole = bytes != 0 && bytes.is_multiple_of(DESCRIPTOR_BYTES);
        let is_allowed = layout.indirect && is_whole && descriptor.flags & NEXT == 0;
        let entries = (bytes / DESCRIPTOR_BYTES).min(layout.size.into()) as u16;
        is_allowed.then_some(Table { address: descriptor.address, entries })
    }

    /// A copy of an entry.
    #[inline]
    fn entry(&self, memory: &GuestMemoryMmap, index: u16) -> Option<Descriptor> {
        let at = u64::from(index) * DESCRIPTOR_BYTES as u64;
        let address = GuestAddress(self.address.checked_add(at)?);
        let mut copy = [[0; 8]; 2];
        read(memory, address, copy.as_flattened_mut())?;
        let [address, half] = copy.map(u64::from_le_bytes);
        Some(Descriptor::of(address, half))
    }
}
