//! The in-flight area: where a restarted card goes on in the rings of a guest.
//!
//! Chains are completed in order and at once, so nothing is in flight when a burst is over, and a
//! burst that was cut off is taken again from the driver's own ring. What a ring cannot say itself
//! is kept here: for split rings nothing, since their used index says it; for packed rings, whose
//! used descriptors overwrite available ones, what a burst returns, before it is returned.
//!
//! Guarantees: the area is hostile, like all memory that a front end shares: each value is copied
//! once and checked. A chain that another back end left in flight, out of order, is returned unused.
//!
//! Source: QEMU, docs/interop/vhost-user.rst, "Inflight I/O tracking".

use super::memory::{GuestMemoryMmap, Watch, map};
use super::place;
use super::ring::{BrokenRing, Layout, MAX_SIZE};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Error, Result as Answer};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, GuestAddress, VolatileMemory};

/// Alignment of each ring's part.
const ALIGNMENT: u64 = 64;
const VERSION: u16 = 1;

// Offsets within a ring's part.
const VERSION_AT: usize = 8;
const SIZE_AT: usize = 10;
/// Split: the last head that was returned.
const LAST_HEAD_AT: usize = 12;
/// Split: the used index when the area was last right.
const USED_AT: usize = 14;
const SPLIT_HEADER: usize = 16;
/// Split, of a descriptor: in flight (1 byte), next of its batch (at 6), counter (at 8).
const SPLIT_ENTRY: usize = 16;
/// Packed: the first entry of the list of free ones, and before the last burst.
const FREE_AT: [usize; 2] = [12, 14];
/// Packed: the place of the next used descriptor, the one before the last burst, and both wrap
/// counters, in one word.
const PLACES_AT: usize = 16;
const PACKED_HEADER: usize = 32;
/// Packed, of a descriptor: in flight (1 byte), next free entry (at 2), entry of the chain's last
/// descriptor (at 4), places of its chain (at 6), counter (at 8); number, flags and length (at 16).
const PACKED_ENTRY: usize = 32;
/// The wrap counter beside a place.
const WRAP: u16 = 1 << 15;
/// Flags of a packed descriptor.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// An area that a front end shares, for some rings.
#[derive(Debug)]
pub struct Inflight {
    area: MmapRegion<Watch>,
    rings: u16,
    /// Descriptors of each ring.
    size: u16,
    is_packed: bool,
}

/// Bytes of a ring's part.
fn part(size: u16, is_packed: bool) -> u64 {
    let (header, entry) = match is_packed {
        true => (PACKED_HEADER, PACKED_ENTRY),
        false => (SPLIT_HEADER, SPLIT_ENTRY),
    };
    ((header + entry * usize::from(size)) as u64).next_multiple_of(ALIGNMENT)
}

const OUTSIDE: BrokenRing = BrokenRing("its addresses are not in the guest's memory");
const FOREIGN: BrokenRing = BrokenRing("its in-flight area is not for such a ring");

impl Inflight {
    /// An area of zeros for these rings, and its description.
    ///
    /// # Errors
    /// There are no such rings, or there is no memory.
    pub(super) fn make(
        asked: &VhostUserInflight,
        rings: usize,
        is_packed: bool,
    ) -> Answer<(VhostUserInflight, File)> {
        let (count, size) = (asked.num_queues, asked.queue_size);
        if usize::from(count) > rings || count == 0 || size == 0 || u32::from(size) > MAX_SIZE {
            return Err(Error::InvalidOperation("an in-flight area for rings that are not there"));
        }
        let bytes = u64::from(count) * part(size, is_packed);
        let io = |error: rustix::io::Errno| Error::ReqHandlerError(error.into());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("picnic-inflight", flags).map_err(io)?;
        ftruncate(&file, bytes).map_err(io)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(io)?;
        Ok((VhostUserInflight::new(bytes, 0, count, size), file.into()))
    }

    /// The area that a front end kept.
    ///
    /// # Errors
    /// It is no file, shorter than its rings need, or for rings that are not there.
    pub(super) fn new(
        described: &VhostUserInflight,
        file: File,
        rings: usize,
        is_packed: bool,
        bell: &Arc<OwnedFd>,
    ) -> Answer<Self> {
        let (count, size) = (described.num_queues, described.queue_size);
        let needed = u64::from(count) * part(size, is_packed);
        if usize::from(count) > rings || size == 0 || described.mmap_size < needed {
            return Err(Error::InvalidOperation("an in-flight area for rings that are not there"));
        }
        let file = FileOffset::new(file, described.mmap_offset);
        let area = map(file, described.mmap_size, bell, None)?;
        Ok(Inflight { area, rings: count, size, is_packed })
    }

    /// Where a ring goes on, if its part says so; nothing is in flight afterwards.
    ///
    /// # Errors
    /// The part is for another ring, or wrong.
    pub(super) fn resume(
        self: &Arc<Self>,
        ring: usize,
        layout: &Layout,
        memory: &GuestMemoryMmap,
    ) -> Result<Option<u16>, BrokenRing> {
        if ring >= usize::from(self.rings) {
            return Ok(None);
        }
        if layout.size > self.size || layout.is_packed != self.is_packed {
            return Err(FOREIGN);
        }
        let part = Part { area: self.clone(), at: ring * part(self.size, self.is_packed) as usize };
        match layout.is_packed {
            true => part.resume_packed(layout, memory),
            false => part.resume_split(layout, memory),
        }
    }

    /// The part of a packed ring, which the ring keeps up to date.
    pub(super) fn part(self: &Arc<Self>, ring: usize) -> Option<Part> {
        let at = ring * part(self.size, self.is_packed) as usize;
        let is_kept = self.is_packed && ring < usize::from(self.rings);
        is_kept.then(|| Part { area: self.clone(), at })
    }
}

/// Where a packed ring's part has the entry of a descriptor.
fn packed_entry(index: u16) -> usize {
    PACKED_HEADER + PACKED_ENTRY * usize::from(index)
}

/// A ring's part of the area.
#[derive(Clone, Debug)]
pub struct Part {
    area: Arc<Inflight>,
    at: usize,
}

impl Part {
    #[inline]
    fn get<T: vm_memory::AtomicAccess>(&self, at: usize) -> Result<T, BrokenRing> {
        let area = self.area.area.as_volatile_slice();
        area.load(self.at + at, Ordering::Acquire).map_err(|_| FOREIGN)
    }

    #[inline]
    fn set<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) -> Result<(), BrokenRing> {
        let area = self.area.area.as_volatile_slice();
        area.store(value, self.at + at, Ordering::Release).map_err(|_| FOREIGN)
    }

    /// Whether the part is in use; if not, it is from now on.
    fn is_in_use(&self) -> Result<bool, BrokenRing> {
        if self.get::<u16>(VERSION_AT)? == 0 {
            self.set(SIZE_AT, self.area.size)?;
            self.set(VERSION_AT, VERSION)?;
            return Ok(false);
        }
        let is_known = self.get::<u16>(VERSION_AT)? == VERSION;
        if !is_known || self.get::<u16>(SIZE_AT)? != self.area.size {
            return Err(FOREIGN);
        }
        Ok(true)
    }

    fn resume_split(
        &self,
        layout: &Layout,
        memory: &GuestMemoryMmap,
    ) -> Result<Option<u16>, BrokenRing> {
        let outside = |_| OUTSIDE;
        let get = |address| {
            let value = memory.load::<u16>(GuestAddress(address), Ordering::Acquire);
            value.map(u16::from_le).map_err(outside)
        };
        let used = get(layout.used.wrapping_add(2))?;
        if !self.is_in_use()? {
            self.set(USED_AT, used)?;
            return Ok(None);
        }
        let entry = |head: u16| SPLIT_HEADER + SPLIT_ENTRY * usize::from(head);
        // The driver saw these returned; their entries may not say so yet. More than the ring has
        // were not returned at once: the area is as old as the ring is new.
        let batch = used.wrapping_sub(self.get(USED_AT)?);
        let mut head = self.get::<u16>(LAST_HEAD_AT)?;
        for _ in 0..batch.min(layout.size) {
            if head >= layout.size {
                return Err(FOREIGN);
            }
            self.set(entry(head), 0_u8)?;
            head = self.get(entry(head) + 6)?;
        }
        let mut left = Vec::new();
        for head in 0..layout.size {
            if self.get::<u8>(entry(head))? != 0 {
                left.push((self.get::<u64>(entry(head) + 8)?, head));
            }
        }
        left.sort_unstable();
        let slot = |index: u16| u64::from(index & (layout.size - 1));
        let mut is_in_order = true;
        for (index, &(_, head)) in (used..=u16::MAX).chain(0..used).zip(&left) {
            is_in_order &= get(layout.available.wrapping_add(4 + 2 * slot(index)))? == head;
        }
        // In order, they are next in the driver's ring, and are taken from there.
        let mut next = used;
        for &(_, head) in left.iter().filter(|_| !is_in_order) {
            let at = layout.used.wrapping_add(4 + 8 * slot(next));
            let unused = u64::from(head).to_le_bytes();
            memory.write_slice(&unused, GuestAddress(at)).map_err(outside)?;
            next = next.wrapping_add(1);
        }
        fence(Ordering::Release);
        let index = GuestAddress(layout.used.wrapping_add(2));
        memory.store(next.to_le(), index, Ordering::Release).map_err(outside)?;
        for (_, head) in left {
            self.set(entry(head), 0_u8)?;
        }
        self.set(USED_AT, next)?;
        Ok(Some(next))
    }

    /// Places of the next used descriptor: after the last burst, and before it.
    fn places(&self) -> Result<[u16; 2], BrokenRing> {
        let [a, b, c, d, new_wrap, old_wrap, ..] = u64::from_le(self.get(PLACES_AT)?).to_le_bytes();
        let (new, old) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let place = |index: u16, wrap: u8| index & !WRAP | if wrap != 0 { WRAP } else { 0 };
        Ok([place(new, new_wrap), place(old, old_wrap)])
    }

    /// A used descriptor that a burst will show: the chain's places, and the half with its flags.
    ///
    /// # Errors
    /// The area is too small, which was checked.
    #[inline]
    pub(super) fn note(&self, index: u16, places: u16, half: u64) -> Result<(), BrokenRing> {
        let at = packed_entry(index);
        self.set(at + 6, places)?;
        // The ring has the length first, the area has it last.
        self.set(at + 16, half.rotate_right(32).to_le())
    }

    fn noted(&self, index: u16) -> Result<(u16, u64), BrokenRing> {
        let at = packed_entry(index);
        Ok((self.get(at + 6)?, u64::from_le(self.get(at + 16)?).rotate_right(32)))
    }

    /// Before any of a burst's used descriptors is written, all of which are noted: where the next
    /// ones will be, and where the burst starts. After they were written: twice the former.
    ///
    /// # Errors
    /// As above.
    #[inline]
    pub(super) fn set_places(&self, new: u16, old: u16) -> Result<(), BrokenRing> {
        let [places, wraps] =
            [[new & !WRAP, old & !WRAP], [new >> 15, old >> 15]].map(|both| both.map(u64::from));
        let word = places[0] | places[1] << 16 | wraps[0] << 32 | wraps[1] << 40;
        self.set(PLACES_AT, word.to_le())
    }

    fn resume_packed(
        &self,
        layout: &Layout,
        memory: &GuestMemoryMmap,
    ) -> Result<Option<u16>, BrokenRing> {
        if !self.is_in_use()? {
            self.set_places(layout.base, layout.base)?;
            return Ok(None);
        }
        let [new, old] = self.places()?;
        if old & !WRAP >= layout.size || new & !WRAP >= layout.size {
            return Err(FOREIGN);
        }
        // A burst is shown by its first descriptor, which was available in its pass until then. Its
        // driver may have made it available again since, in the next pass.
        let at = layout.descriptors.wrapping_add(16 * u64::from(old & !WRAP) + 14);
        let flags = memory.load::<u16>(GuestAddress(at), Ordering::Acquire);
        let flags = u16::from_le(flags.map_err(|_| OUTSIDE)?);
        let hidden = if old & WRAP != 0 { AVAILABLE } else { USED };
        let is_hidden = new != old && flags & (AVAILABLE | USED) == hidden;
        let left = self.left_packed(new == old || is_hidden)?;
        let next = match is_hidden {
            false if left.is_empty() => new,
            true if left.is_empty() => {
                self.show(layout, memory, old, new)?;
                new
            }
            _ => return_unused(layout, memory, if is_hidden { old } else { new }, &left)?,
        };
        for index in (0..self.area.size).filter(|_| !left.is_empty()) {
            self.set(packed_entry(index), 0_u8)?;
        }
        self.set_places(next, next)?;
        Ok(Some(next))
    }

    /// Chains that another back end left in flight, in the order in which it took them: the places
    /// of each, and its number. What it did last counts unless `is_undone`.
    fn left_packed(&self, is_undone: bool) -> Result<Vec<(u16, u16)>, BrokenRing> {
        let size = self.area.size;
        // Those of the burst that it returned last may still say "in flight", but are free.
        let mut free = self.get::<u16>(FREE_AT[usize::from(is_undone)])?;
        for _ in 0..size {
            if free >= size {
                break;
            }
            self.set(packed_entry(free), 0_u8)?;
            free = self.get(packed_entry(free) + 2)?;
        }
        let mut left = Vec::new();
        for head in 0..size {
            let at = packed_entry(head);
            if self.get::<u8>(at)? != 0 {
                let last = self.get::<u16>(at + 4)?;
                let last = if last < size { last } else { head };
                let number = self.get::<u16>(packed_entry(last) + 16)?;
                left.push((
                    self.get::<u64>(at + 8)?,
                    self.get::<u16>(at + 6)?,
                    u16::from_le(number),
                ));
            }
        }
        left.sort_unstable();
        Ok(left.into_iter().map(|(_, places, number)| (places, number)).collect())
    }

    /// Writes the used descriptors of a burst that was noted as a whole, the first one last.
    fn show(
        &self,
        layout: &Layout,
        memory: &GuestMemoryMmap,
        old: u16,
        new: u16,
    ) -> Result<(), BrokenRing> {
        let (size, end) = (u32::from(layout.size), u32::from(new & !WRAP));
        let start = u32::from(old & !WRAP);
        // Places of the burst: to the next pass, or within one.
        let burst = if (old ^ new) & WRAP != 0 { end + size } else { end }.checked_sub(start);
        let burst = burst.filter(|&places| places != 0 && places <= size).ok_or(FOREIGN)?;
        let (mut used, mut done) = (Vec::new(), 0);
        while done < burst {
            let index = ((start + done) % size) as u16;
            let (places, half) = self.noted(index)?;
            if places == 0 {
                return Err(FOREIGN);
            }
            used.push((index, half));
            done += u32::from(places);
        }
        if done != burst {
            return Err(FOREIGN);
        }
        place::write(layout, memory, &used).ok_or(OUTSIDE)
    }
}

/// Where a packed ring goes on whose chains another back end left in flight, from this place on. As
/// long as the driver's descriptors are there, they are taken again; if some were overwritten, all
/// are returned unused.
fn return_unused(
    layout: &Layout,
    memory: &GuestMemoryMmap,
    used: u16,
    left: &[(u16, u16)],
) -> Result<u16, BrokenRing> {
    let size = layout.size;
    let all: u32 = left.iter().map(|&(places, _)| u32::from(places)).sum();
    if all > size.into() || left.iter().any(|&(places, _)| places == 0) {
        return Err(FOREIGN);
    }
    let (mut next, mut is_there, mut unused) = (used, true, Vec::new());
    for &(places, number) in left {
        unused.push((next, place::unused(number, next)));
        for left in (0..places).rev() {
            let half = place::half(layout, memory, next & !WRAP).ok_or(OUTSIDE)?;
            is_there &= place::is_available((half >> 48) as u16, next);
            // The last one has the number.
            is_there &= left != 0 || (half >> 32) as u16 == number;
            next = place::after(next, 1, size);
        }
    }
    if is_there {
        return Ok(used);
    }
    place::write(layout, memory, &unused).ok_or(OUTSIDE)?;
    Ok(next)
}
