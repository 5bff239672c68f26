//! Packed rings: both sides write the same descriptors, and each has an area for its wishes.
//!
//! A descriptor is available, or used, if two of its flags say so for the current pass over the
//! ring; the wrap counter tells odd passes from even ones.
//!
//! Source: Virtual I/O Device 1.2, 2.8; its 2.8.10 for the suppression of notifications, 2.8.7 for
//! indirect descriptors.

use super::super::inflight::Part;
use super::super::memory::{GuestMemoryMmap, VolatileSlice};
use super::{
    BrokenRing, Chain, DESCRIPTOR_BYTES, Descriptor, INDIRECT, Layout, Lookup, MAX_SIZE, NEXT,
    Piece, SHRUNK, Table, WRITE, area,
};
use picnic_core::prefetch::for_write;
use std::sync::atomic::{Ordering, fence};
use vm_memory::Bytes;

const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;
/// The wrap counter beside a place.
const WRAP: u16 = 1 << 15;
/// Bytes of an area of wishes: a place with its wrap counter, and flags.
const WISH_BYTES: usize = 4;

/// A wish to be notified: always, never, at a place.
const ALWAYS: u32 = 0;
const NEVER: u32 = 1;
const AT_PLACE: u32 = 2;

/// A descriptor's place, and the pass over the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    index: u16,
    wrap: bool,
}

impl Place {
    fn of(bits: u16) -> Self {
        Place { index: bits & !WRAP, wrap: bits & WRAP != 0 }
    }

    fn bits(self) -> u16 {
        self.index | if self.wrap { WRAP } else { 0 }
    }

    /// Further by up to `size` places.
    #[inline]
    fn after(self, places: u16, size: u16) -> Self {
        // Both are at most 32768, and one is less.
        let index = self.index + places;
        let is_over = index >= size;
        Place { index: if is_over { index - size } else { index }, wrap: self.wrap != is_over }
    }

    /// Back by up to `size` places.
    #[inline]
    fn before(self, places: u16, size: u16) -> Self {
        let is_over = places > self.index;
        let index = if is_over { self.index + (size - places) } else { self.index - places };
        Place { index, wrap: self.wrap != is_over }
    }

    /// Whether a descriptor with these flags is available in this pass.
    #[inline]
    fn is_available(self, flags: u16) -> bool {
        flags & (AVAILABLE | USED) == if self.wrap { AVAILABLE } else { USED }
    }
}

/// The device's side of a packed ring.
#[derive(Debug)]
pub struct PackedRing {
    layout: Layout,
    /// The next descriptor to take.
    next: Place,
    /// Where the next chain is returned.
    used: Place,
    /// The first chain that was returned since the driver last saw any: its place, and the half
    /// of its descriptor with the flags, which is written last.
    first: Option<(Place, u64)>,
    /// Places returned since then.
    returned: u16,
    /// Places that the driver does not have.
    held: u16,
    /// The driver has not yet seen any.
    is_fresh: bool,
    /// Where another card goes on if this one ends.
    record: Option<Part>,
    /// With a record: the other chains that were returned since the driver last saw any.
    pending: Vec<(Place, u64)>,
}

impl PackedRing {
    /// A ring in this memory.
    ///
    /// # Errors
    /// Its areas are not aligned, not in the memory, or not contiguous there; its base is not in it.
    pub fn new(layout: Layout, memory: &GuestMemoryMmap) -> Result<Self, BrokenRing> {
        if layout.size == 0 || u32::from(layout.size) > MAX_SIZE {
            return Err(BrokenRing("its size is not 1 to 32768"));
        }
        let alignments = [(layout.descriptors, 16), (layout.available, 4), (layout.used, 4)];
        if alignments.iter().any(|(address, alignment)| address % alignment != 0) {
            return Err(BrokenRing("its addresses are not aligned"));
        }
        // No chain is in flight when a ring stops: both sides go on at the same place.
        let place = Place::of(layout.base);
        if place.index >= layout.size {
            return Err(BrokenRing("it starts at a descriptor that it lacks"));
        }
        let mut ring = PackedRing {
            layout,
            next: place,
            used: place,
            first: None,
            returned: 0,
            held: 0,
            is_fresh: true,
            record: None,
            pending: Vec::new(),
        };
        ring.turn(memory)?;
        Ok(ring)
    }

    /// Keeps a record of each burst, so that one that was cut off can be completed.
    pub(super) fn keep_record(&mut self, part: Option<Part>) {
        // Each chain has a place.
        self.pending = Vec::with_capacity(if part.is_some() { self.layout.size.into() } else { 0 });
        self.record = part;
    }

    /// The next descriptor to take, with its wrap counter.
    pub(super) fn base(&self) -> u16 {
        self.next.bits()
    }

    /// Takes and completes chains until dropped.
    ///
    /// # Errors
    /// The ring is not in this memory.
    #[inline]
    pub fn turn<'t>(&'t mut self, memory: &'t GuestMemoryMmap) -> Result<Turn<'t>, BrokenRing> {
        let Layout { size, descriptors, available, used, .. } = self.layout;
        let mut lookup = Lookup::from(memory);
        Ok(Turn {
            descriptors: area(&mut lookup, descriptors, DESCRIPTOR_BYTES * usize::from(size))?,
            driver: area(&mut lookup, available, WISH_BYTES)?,
            device: area(&mut lookup, used, WISH_BYTES)?,
            ring: self,
            memory,
            is_over: false,
        })
    }
}

/// A descriptor with its number, which is where those of split rings have their flags; its flags
/// are where those have their successor.
#[inline]
fn numbered(copy: Descriptor) -> (Descriptor, u16) {
    (Descriptor { flags: copy.next, next: 0, ..copy }, copy.flags)
}

/// A burst's work on a packed ring.
#[derive(Debug)]
pub struct Turn<'t> {
    ring: &'t mut PackedRing,
    memory: &'t GuestMemoryMmap,
    descriptors: VolatileSlice<'t>,
    driver: VolatileSlice<'t>,
    device: VolatileSlice<'t>,
    /// No further descriptor was available in this turn.
    is_over: bool,
}

impl Turn<'_> {
    /// The half of a descriptor with its flags: length, number, flags.
    #[inline]
    fn second_half(&self, place: Place) -> Result<u64, BrokenRing> {
        let at = usize::from(place.index) * DESCRIPTOR_BYTES + 8;
        let half = self.descriptors.load::<u64>(at, Ordering::Acquire);
        half.map(u64::from_le).map_err(|_| SHRUNK)
    }

    #[inline]
    fn set_second_half(&self, place: Place, half: u64, order: Ordering) -> Result<(), BrokenRing> {
        let at = usize::from(place.index) * DESCRIPTOR_BYTES + 8;
        self.descriptors.store(half.to_le(), at, order).map_err(|_| SHRUNK)
    }

    /// A copy of the descriptor at a place, if it is available, and its number. The flags are read
    /// first, together with all that is not the address.
    #[inline]
    fn descriptor(&self, place: Place) -> Result<Option<(Descriptor, u16)>, BrokenRing> {
        let half = self.second_half(place)?;
        if !place.is_available((half >> 48) as u16) {
            return Ok(None);
        }
        let at = usize::from(place.index) * DESCRIPTOR_BYTES;
        let address = self.descriptors.load::<u64>(at, Ordering::Relaxed).map_err(|_| SHRUNK)?;
        // Most are written when their chains return.
        for_write(self.descriptors.ptr_guard().as_ptr().wrapping_add(at));
        Ok(Some(numbered(Descriptor::of(u64::from_le(address), half))))
    }

    /// The pieces of a table; `None` if it is not one of this kind.
    fn add_table(
        &self,
        descriptor: &Descriptor,
        writable: bool,
        pieces: &mut Vec<Piece>,
    ) -> Option<u64> {
        let table = Table::of(descriptor, &self.ring.layout)?;
        let mut length = 0;
        for index in 0..table.entries {
            let (entry, _) = numbered(table.entry(self.memory, index)?);
            if entry.flags & INDIRECT != 0 {
                return None;
            }
            length += entry.add_to(pieces, writable)?;
        }
        Some(length)
    }

    fn wish(&self, flags: u32, place: Place) -> Result<(), BrokenRing> {
        let wish = u32::from(place.bits()) | flags << 16;
        self.device.store(wish.to_le(), 0, Ordering::Release).map_err(|_| SHRUNK)
    }
}

impl super::Turn for Turn<'_> {
    #[inline]
    fn is_waiting(&mut self) -> Result<bool, BrokenRing> {
        let flags = (self.second_half(self.ring.next)? >> 48) as u16;
        Ok(self.ring.held < self.ring.layout.size && self.ring.next.is_available(flags))
    }

    #[inline]
    fn take(
        &mut self,
        writable: bool,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<Chain>, BrokenRing> {
        if self.is_over {
            return Ok(None);
        }
        let size = self.ring.layout.size;
        let (mut place, mut places, before) = (self.ring.next, 0, pieces.len());
        let mut length = Some(0);
        loop {
            let is_held = self.ring.held + places == size;
            let found = if is_held { None } else { self.descriptor(place)? };
            let Some((descriptor, number)) = found else {
                if places == 0 {
                    self.is_over = true;
                    return Ok(None);
                }
                return Err(BrokenRing("its driver made a part of a chain available"));
            };
            // A chain that is wrong is followed to its end, which has its number.
            length = length.and_then(|length: u64| {
                let more = match descriptor.flags & INDIRECT != 0 {
                    false => descriptor.add_to(pieces, writable),
                    true if places != 0 => None,
                    true => self.add_table(&descriptor, writable, pieces),
                };
                Some(length + more?)
            });
            places += 1;
            place = place.after(1, size);
            if descriptor.flags & NEXT == 0 {
                if length.is_none() {
                    pieces.truncate(before);
                }
                self.ring.next = place;
                self.ring.held += places;
                let (is_good, length) = (length.is_some(), length.unwrap_or(0));
                let pieces = (pieces.len() - before) as u16;
                return Ok(Some(Chain { head: number, places, pieces, length, is_good }));
            }
        }
    }

    #[inline]
    fn put_back(&mut self, chains: &[Chain]) {
        for chain in chains {
            self.ring.next = self.ring.next.before(chain.places, self.ring.layout.size);
            self.ring.held -= chain.places;
        }
    }

    #[inline]
    fn complete(&mut self, chain: &Chain, written: u32) -> Result<(), BrokenRing> {
        let used = self.ring.used;
        let pass = if used.wrap { AVAILABLE | USED } else { 0 };
        let flags = pass | if written != 0 { WRITE } else { 0 };
        let half = u64::from(written) | u64::from(chain.head) << 32 | u64::from(flags) << 48;
        if let Some(part) = &self.ring.record {
            part.note(used.index, chain.places, half)?;
        }
        match self.ring.first {
            Some(_) if self.ring.record.is_some() => self.ring.pending.push((used, half)),
            None => self.ring.first = Some((used, half)),
            // The driver looks at the first before.
            Some(_) => self.set_second_half(used, half, Ordering::Relaxed)?,
        }
        self.ring.used = used.after(chain.places, self.ring.layout.size);
        self.ring.returned += chain.places;
        Ok(())
    }

    /// In order, the last chain's number stands for all before it, whose lengths a driver does not
    /// need: 2.8.9.
    #[inline]
    fn complete_read(&mut self, chains: &[Chain]) -> Result<(), BrokenRing> {
        match chains.last() {
            Some(last) if self.ring.layout.in_order => {
                let places = chains.iter().map(|chain| chain.places).sum();
                self.complete(&Chain { places, ..*last }, 0)
            }
            _ => chains.iter().try_for_each(|chain| self.complete(chain, 0)),
        }
    }

    #[inline]
    fn publish(&mut self) -> Result<bool, BrokenRing> {
        let Some((place, half)) = self.ring.first.take() else { return Ok(false) };
        let (old, new) = (place.bits(), self.ring.used.bits());
        if let Some(part) = &self.ring.record {
            part.set_places(new, old)?;
            for (place, half) in &self.ring.pending {
                self.set_second_half(*place, *half, Ordering::Relaxed)?;
            }
            self.ring.pending.clear();
        }
        self.set_second_half(place, half, Ordering::Release)?;
        if let Some(part) = &self.ring.record {
            part.set_places(new, new)?;
        }
        let returned = std::mem::take(&mut self.ring.returned);
        self.ring.held -= returned;
        // The descriptor before the driver's wishes: it writes them before it reads descriptors.
        fence(Ordering::SeqCst);
        if std::mem::take(&mut self.ring.is_fresh) {
            return Ok(true);
        }
        let wish = self.driver.load::<u32>(0, Ordering::Acquire).map_err(|_| SHRUNK)?;
        let wish = u32::from_le(wish);
        Ok(match wish >> 16 {
            NEVER => false,
            AT_PLACE if self.ring.layout.event_idx => {
                let (event, used) = (Place::of(wish as u16), self.ring.used);
                // The driver's place, counted in the device's pass.
                let before = if event.wrap == used.wrap { 0 } else { self.ring.layout.size };
                let event = event.index.wrapping_sub(before);
                used.index.wrapping_sub(event).wrapping_sub(1) < returned
            }
            _ => true,
        })
    }

    fn listen(&mut self) -> Result<bool, BrokenRing> {
        let flags = if self.ring.layout.event_idx { AT_PLACE } else { ALWAYS };
        self.wish(flags, self.ring.next)?;
        // The wish before the flags: the driver writes them before it reads the wish.
        fence(Ordering::SeqCst);
        self.is_waiting()
    }

    fn ignore(&mut self) -> Result<(), BrokenRing> {
        self.wish(NEVER, self.ring.next)
    }
}
