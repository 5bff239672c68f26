//! The buffer space: the address range of all pools of a process, and access to packet bytes.
//!
//! One range of addresses is reserved for all pools. A descriptor names its buffer by its place in
//! that range (32 bits, in units of 64 bytes), so it needs neither pointer nor handle to reach its
//! bytes. Memory is mapped per pool, on 2 MiB pages if available.
//!
//! Guarantees: a range belongs to one pool at a time; only reserved addresses are ever mapped over.

#![allow(unsafe_code)]

use super::desc::Descriptor;
use crate::error::PoolError;
use crate::time::Time;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Size of a buffer's header: chain links and capacity, outside the data's first line.
pub(super) const SEGMENT_HEADER_BYTES: u16 = 64;
/// Unit of a buffer's place in bytes.
pub(super) const UNIT: usize = 64;
pub(super) const HUGE_PAGE: usize = 2 << 20;
/// Addresses reserved (not memory used) for all pools of the process.
pub(super) const SPACE_BYTES: usize = 32 << 30;

/// The first line of every buffer.
#[repr(C)]
struct SegmentHeader {
    /// Bytes from the start of the buffer to its end.
    capacity: u32,
    /// Next segment of a chained packet: its buffer, offset and length.
    next_buffer: u32,
    next_offset: u16,
    next_length: u16,
    /// In the first segment of a chain: the whole packet's length.
    total_length: u32,
    /// Whether `next_*` are valid.
    has_next: u32,
    /// In the first segment of a chain: the buffer of its last.
    last_buffer: u32,
}

// ---------------------------------------------------------------- the buffer space

/// Where the buffer space starts; null until the first pool is made.
static SPACE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Free ranges of the buffer space, as (start, length) in bytes, sorted; `None` until reserved.
static RANGES: Mutex<Option<Vec<(usize, usize)>>> = Mutex::new(None);

fn take_range(bytes: usize) -> Result<usize, PoolError> {
    let mut ranges = RANGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let ranges = match &mut *ranges {
        Some(ranges) => ranges,
        unreserved => {
            // SAFETY: a fresh mapping of the kernel's choosing touches no memory of ours.
            let start = unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    SPACE_BYTES + HUGE_PAGE,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE,
                )
            }
            .map_err(|source| PoolError::Map { bytes: SPACE_BYTES, source })?;
            let aligned = (start as usize).next_multiple_of(HUGE_PAGE) as *mut u8;
            SPACE.store(aligned, Ordering::Release);
            unreserved.insert(vec![(0, SPACE_BYTES)])
        }
    };
    let index = ranges
        .iter()
        .position(|&(_, length)| length >= bytes)
        .ok_or(PoolError::SpaceExhausted { bytes })?;
    let (start, length) = ranges[index];
    if length == bytes {
        ranges.remove(index);
    } else {
        ranges[index] = (start + bytes, length - bytes);
    }
    Ok(start)
}

fn give_range(start: usize, bytes: usize) {
    let mut ranges = RANGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(ranges) = &mut *ranges {
        let index = ranges.partition_point(|&(other, _)| other < start);
        ranges.insert(index, (start, bytes));
        ranges.dedup_by(|next, previous| {
            let adjacent = previous.0 + previous.1 == next.0;
            if adjacent {
                previous.1 += next.1;
            }
            adjacent
        });
    }
}

#[inline(always)]
pub(super) fn address(buffer: u32) -> *mut u8 {
    // Relaxed is enough: the holder of a descriptor got it, by some chain of synchronisation, from
    // the pool that stored this before making it.
    SPACE.load(Ordering::Relaxed).wrapping_add(buffer as usize * UNIT)
}

/// Memory in the buffer space, of one pool.
#[derive(Debug)]
pub(super) struct Mapping {
    start: usize,
    bytes: usize,
    huge_pages: bool,
}

impl Mapping {
    /// Maps `bytes` bytes, a multiple of 2 MiB, of which the first `used` will be used.
    ///
    /// # Errors
    /// [`PoolError`]: no address space left, or no memory.
    pub(super) fn new(bytes: usize, used: usize) -> Result<Self, PoolError> {
        let start = take_range(bytes)?;
        let place = SPACE.load(Ordering::Acquire).wrapping_add(start);
        match map(place, bytes, used) {
            Ok(huge_pages) => Ok(Mapping { start, bytes, huge_pages }),
            Err(Unmapped { source, reserved }) => {
                if reserved {
                    give_range(start, bytes);
                }
                Err(PoolError::Map { bytes, source })
            }
        }
    }

    /// The place of its first byte.
    pub(super) fn first(&self) -> u32 {
        (self.start / UNIT) as u32
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is on 2 MiB pages.
    pub(super) fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Returns the memory to the system. It is replaced, not unmapped, so that the buffer space
    /// stays reserved.
    ///
    /// # Safety
    /// Nothing refers to it, and it is not used again.
    pub(super) unsafe fn unmap(&mut self) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the range is this mapping's own, and nothing refers to it.
        let reserved =
            unsafe { map_at(address(self.first()), self.bytes, ProtFlags::empty(), flags) };
        if reserved.is_ok() {
            give_range(self.start, self.bytes);
        }
    }
}

/// Why a range has no memory, and whether it is still reserved.
struct Unmapped {
    source: Errno,
    reserved: bool,
}

/// Puts memory at `place`; true if on 2 MiB pages.
///
/// The range must never be unmapped, even briefly: a mapping of another thread could be placed
/// there and would be overwritten. So steps that can fail are tried elsewhere first, and for
/// ordinary pages the reservation is made accessible instead of being mapped over.
fn map(place: *mut u8, bytes: usize, used: usize) -> Result<bool, Unmapped> {
    if huge_pages_for(bytes) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::HUGETLB;
        // SAFETY: the range lies in the reserved buffer space and was taken only for this pool.
        let huge = unsafe { map_at(place, bytes, ACCESS, flags | MapFlags::POPULATE) };
        if huge.is_ok() {
            return Ok(true);
        }
        // The pages were taken meanwhile. The kernel may have ended the reservation before
        // noticing: restore it, but not over a mapping made since.
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a mapping that replaces none touches no memory of ours.
        unsafe { map_at(place, bytes, ProtFlags::empty(), flags) }
            .map_err(|source| Unmapped { source, reserved: false })?;
    }
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the range is reserved for this pool alone, and stays mapped throughout.
    unsafe {
        rustix::mm::mprotect(place.cast(), bytes, access)
            .map_err(|source| Unmapped { source, reserved: true })?;
        // Transparent huge pages are nearly as good as reserved ones, but a whole one is cleared
        // for a pool that uses a few pages. A refusal changes speed, not correctness.
        if used >= HUGE_PAGE / 2 {
            let _ = rustix::mm::madvise(place.cast(), bytes, Advice::LinuxHugepage);
        }
    }
    Ok(false)
}

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Whether the system has 2 MiB pages for `bytes` at this moment.
fn huge_pages_for(bytes: usize) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB;
    // SAFETY: a fresh mapping of the kernel's choosing touches no memory of ours, and it is
    // unmapped before anyone could refer to it.
    unsafe {
        let probe = map_at(std::ptr::null_mut(), bytes, ACCESS, flags);
        probe.and_then(|probe| rustix::mm::munmap(probe, bytes)).is_ok()
    }
}

/// # Safety
/// With `FIXED`, nothing may refer to an existing mapping at `place`.
unsafe fn map_at(
    place: *mut u8,
    bytes: usize,
    access: ProtFlags,
    flags: MapFlags,
) -> Result<*mut c_void, Errno> {
    // SAFETY: the caller guarantees `place`; without `FIXED` nothing is replaced.
    unsafe { rustix::mm::mmap_anonymous(place.cast(), bytes, access, flags) }
}

// ---------------------------------------------------------------- bytes of a descriptor
//
// Invariant of this module and `desc`: for a live descriptor, `buffer` is the place of a buffer of
// a mapped pool, taken off its free list and put back only when the descriptor is given up;
// [offset, offset + length) lies within the buffer's capacity, after its header. `Descriptor` is
// not `Clone`, so one descriptor has exclusive use of the buffer. `lend` gives up descriptors in
// favour of a borrower, and makes new ones when their buffers return.

/// A descriptor of `length` bytes at `offset` of a buffer that has no other descriptor.
///
/// Built from whole words: narrow stores would be read back wider when the descriptor is moved at
/// once, and the processor stalls such a read until the stores are done.
#[inline(always)]
pub(super) fn descriptor(buffer: u32, offset: u16, length: u16, now: Time, wire: u8) -> Descriptor {
    let place = u64::from(buffer) | u64::from(offset) << 32 | u64::from(length) << 48;
    let origin = now.as_nanos() & ((1 << 48) - 1) | u64::from(wire) << 48;
    // SAFETY: `Descriptor` is 32 bytes of `repr(C)` integers without padding, so any bits are a
    // value; the offsets of the fields written here are asserted beside it. (x86-64 and all other
    // targets of this crate are little-endian, as checked below.)
    unsafe { std::mem::transmute::<[u64; 4], Descriptor>([place, origin, 0, 0]) }
}

const _: () = assert!(cfg!(target_endian = "little"), "descriptors are built from words");

/// A descriptor as four words, for changes that must not be narrower.
#[inline(always)]
pub(super) fn words_mut(descriptor: &mut Descriptor) -> &mut [u64; 4] {
    // SAFETY: same size, stricter alignment, integers without padding on both sides. A caller
    // in `desc` that wrote word 0 could break this module's invariant; none does.
    unsafe { &mut *std::ptr::from_mut(descriptor).cast() }
}

/// A descriptor as four words.
#[inline(always)]
pub(super) fn words(descriptor: &Descriptor) -> &[u64; 4] {
    // SAFETY: same size, stricter alignment, integers without padding on both sides.
    unsafe { &*std::ptr::from_ref(descriptor).cast() }
}

/// Moves a descriptor in whole words, which the compiler would not always do.
///
/// # Safety
/// `from` holds a descriptor that is not used again; `to` may be written.
#[inline(always)]
pub(crate) unsafe fn relocate(
    from: *const MaybeUninit<Descriptor>,
    to: *mut MaybeUninit<Descriptor>,
) {
    let from = from.cast::<AtomicU64>();
    let to = to.cast::<u64>();
    for word in 0..4 {
        // SAFETY: both are 32 bytes, aligned to 32. Relaxed atomic loads are plain loads that
        // are not merged into wider ones; see the note on whole words in `desc`.
        unsafe { to.add(word).write((*from.add(word)).load(Ordering::Relaxed)) };
    }
}

/// As [`relocate`], with one store instead of four: a store to a line that another core holds
/// occupies its entry of the store buffer until the line arrives, and there are few.
///
/// # Safety
/// As `relocate`; the processor has AVX2.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn relocate_wide(
    from: *const MaybeUninit<Descriptor>,
    to: *mut MaybeUninit<Descriptor>,
) {
    // SAFETY: 32 bytes are read and written, both aligned to 32, as the caller promises. Words
    // are loaded one by one, as in `relocate`.
    unsafe {
        std::arch::asm!(
            "vmovq {low}, qword ptr [{from}]",
            "vmovhps {low}, {low}, qword ptr [{from} + 8]",
            "vmovq {high}, qword ptr [{from} + 16]",
            "vmovhps {high}, {high}, qword ptr [{from} + 24]",
            "vinserti128 {low:y}, {low:y}, {high}, 1",
            "vmovdqa ymmword ptr [{to}], {low:y}",
            from = in(reg) from,
            to = in(reg) to,
            low = out(xmm_reg) _,
            high = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Takes a descriptor from its place, by whole words.
///
/// # Safety
/// `from` holds a descriptor that is not used again.
#[inline(always)]
pub(crate) unsafe fn relocated(from: *const MaybeUninit<Descriptor>) -> Descriptor {
    let mut to = MaybeUninit::uninit();
    // SAFETY: the caller's promise for `from`; `to` is our own.
    unsafe { relocate(from, &raw mut to) };
    // SAFETY: just written.
    unsafe { to.assume_init() }
}

#[inline(always)]
pub(super) fn bytes(descriptor: &Descriptor) -> &[u8] {
    // SAFETY: by the invariant the range is mapped, initialised (fresh mappings are zero)
    // and not written while `descriptor` is borrowed.
    unsafe {
        std::slice::from_raw_parts(
            address(descriptor.buffer).add(descriptor.offset as usize),
            descriptor.length as usize,
        )
    }
}

#[inline(always)]
pub(super) fn bytes_mut(descriptor: &mut Descriptor) -> &mut [u8] {
    // SAFETY: as in `bytes`; the exclusive borrow of the only descriptor is exclusive
    // access to the bytes.
    unsafe {
        std::slice::from_raw_parts_mut(
            address(descriptor.buffer).add(descriptor.offset as usize),
            descriptor.length as usize,
        )
    }
}

/// The `count` bytes before a packet; none if its headroom has fewer.
#[inline(always)]
pub(super) fn in_front(descriptor: &Descriptor, count: u16) -> Option<&[u8]> {
    if count > descriptor.headroom() {
        return None;
    }
    // SAFETY: as in `bytes`: headroom lies in the same buffer, after its header.
    Some(unsafe {
        std::slice::from_raw_parts(
            address(descriptor.buffer).add((descriptor.offset - count) as usize),
            count as usize,
        )
    })
}

#[inline(always)]
pub(super) fn prefetch(descriptor: &Descriptor) {
    crate::prefetch::for_read(address(descriptor.buffer).wrapping_add(descriptor.offset as usize));
}

/// The same for all lines of the descriptor's bytes.
#[inline(always)]
pub(super) fn prefetch_all(descriptor: &Descriptor) {
    let first = address(descriptor.buffer).wrapping_add(descriptor.offset as usize);
    let before = descriptor.offset as usize % UNIT;
    for at in (0..before + descriptor.length as usize).step_by(UNIT) {
        crate::prefetch::for_read(first.wrapping_sub(before).wrapping_add(at));
    }
}

/// Writes the header of a buffer that nothing refers to yet.
///
/// # Safety
/// `capacity` bytes from the buffer's place on are mapped and have no other owner.
pub(super) unsafe fn prepare(buffer: u32, capacity: u32) {
    // SAFETY: as the caller promises.
    unsafe {
        address(buffer).cast::<SegmentHeader>().write(SegmentHeader {
            capacity,
            next_buffer: 0,
            next_offset: 0,
            next_length: 0,
            total_length: 0,
            has_next: 0,
            last_buffer: 0,
        });
    }
}

#[inline(always)]
fn header<'a>(buffer: u32) -> &'a SegmentHeader {
    // SAFETY: every buffer starts with a header written when its pool was made; callers
    // hold the descriptor (or the chain's head) that owns the buffer.
    unsafe { &*address(buffer).cast::<SegmentHeader>() }
}

#[inline(always)]
fn header_mut<'a>(buffer: u32) -> &'a mut SegmentHeader {
    // SAFETY: as in `header`; callers hold the owner exclusively and keep one such
    // reference at a time.
    unsafe { &mut *address(buffer).cast::<SegmentHeader>() }
}

pub(super) fn capacity(descriptor: &Descriptor) -> u32 {
    header(descriptor.buffer).capacity
}

#[cold]
pub(super) fn chain_length(descriptor: &Descriptor) -> u32 {
    header(descriptor.buffer).total_length
}

/// Marks a packet as chained: its total length, its last buffer.
#[inline]
pub(super) fn set_chain(head: &mut Descriptor, length: u32, last_buffer: u32) {
    head.set_chained(true);
    let header = header_mut(head.buffer);
    header.total_length = length;
    header.last_buffer = last_buffer;
}

/// The last buffer of a packet.
#[inline]
fn last_buffer(packet: &Descriptor) -> u32 {
    if packet.is_chained() { header(packet.buffer).last_buffer } else { packet.buffer }
}

#[cold]
pub(super) fn add_chain_length(descriptor: &mut Descriptor, difference: i32) {
    let header = header_mut(descriptor.buffer);
    header.total_length = header.total_length.wrapping_add_signed(difference);
}

pub(super) fn segments(descriptor: &Descriptor) -> impl Iterator<Item = &[u8]> {
    let mut next = Some((descriptor.buffer, descriptor.offset, descriptor.length));
    let chained = descriptor.is_chained();
    std::iter::from_fn(move || {
        let (buffer, offset, length) = next?;
        next = chained.then(|| next_segment(buffer)).flatten();
        // SAFETY: the head of the chain owns all its buffers; links are written by
        // `join` with ranges inside their buffers, and the head is borrowed.
        Some(unsafe {
            std::slice::from_raw_parts(address(buffer).add(offset as usize), length as usize)
        })
    })
}

fn next_segment(buffer: u32) -> Option<(u32, u16, u16)> {
    let header = header(buffer);
    (header.has_next != 0).then_some((header.next_buffer, header.next_offset, header.next_length))
}

// ---------------------------------------------------------------- chains

/// Makes one packet of these parts, in order; each is a packet in one buffer.
pub(super) fn link(mut head: Descriptor, parts: impl Iterator<Item = Descriptor>) -> Descriptor {
    let (mut last, mut total) = (head.buffer, u32::from(head.length));
    for part in parts {
        total += u32::from(part.length);
        last = join(last, part, 0);
    }
    if last != head.buffer {
        set_chain(&mut head, total, last);
    }
    head
}

/// Appends the bytes of another packet, in place, without the first `skip` of its first segment;
/// returns it if the result would be longer than `most`, or its first segment is shorter.
#[inline(always)]
pub(super) fn append(
    head: &mut Descriptor,
    part: Descriptor,
    skip: u16,
    most: u32,
) -> Result<(), Descriptor> {
    let (before, last) = match head.is_chained() {
        true => (header(head.buffer).total_length, header(head.buffer).last_buffer),
        false => (u32::from(head.length), head.buffer),
    };
    let total = before + part.length() - u32::from(skip.min(part.length));
    if skip > part.length || total > most {
        return Err(part);
    }
    let last_of_part = last_buffer(&part);
    join(last, part, skip);
    set_chain(head, total, last_of_part);
    Ok(())
}

/// Links `part`, without its first `skip` bytes, after the segment in buffer `last`, and returns
/// its last buffer: from here on the chain's head owns it. Its first segment has those bytes.
#[inline]
pub(super) fn join(last: u32, part: Descriptor, skip: u16) -> u32 {
    let link = header_mut(last);
    link.next_buffer = part.buffer;
    link.next_offset = part.offset + skip;
    link.next_length = part.length - skip;
    link.has_next = 1;
    part.buffer
}

/// Moves bytes from a chain's further buffers into the first, until it has `count` of them, is
/// full, or there are no more. If there is no room after its own bytes, those move forward.
#[cold]
pub(super) fn gather_front(head: &mut Descriptor, count: u16) {
    let missing = count.saturating_sub(head.length);
    let behind = capacity(head).saturating_sub(u32::from(head.offset) + u32::from(head.length));
    let behind = u16::try_from(behind).unwrap_or(u16::MAX);
    let shift = missing.saturating_sub(behind).min(head.headroom());
    let mut left = missing.min(behind.saturating_add(shift));
    let start = head.offset - shift;
    // SAFETY: both ranges lie in the head's buffer after its header, as `shift` is no more than the
    // headroom; the exclusive borrow of the head is exclusive access to it.
    unsafe {
        let buffer = address(head.buffer);
        let (from, to) = (buffer.add(head.offset as usize), buffer.add(start as usize));
        std::ptr::copy(from, to, head.length as usize);
    }
    let (mut last, mut length) = (head.buffer, head.length);
    while left != 0 {
        let Some((buffer, offset, in_segment)) = next_segment(last) else { break };
        let taken = left.min(in_segment);
        // SAFETY: `taken` bytes of a segment that the head owns go after the head's bytes, which
        // have room for all `left` there. No two segments share a buffer.
        unsafe {
            let from = address(buffer).add(offset as usize);
            let to = address(head.buffer).add(start as usize + length as usize);
            std::ptr::copy_nonoverlapping(from, to, taken as usize);
        }
        let link = header_mut(last);
        link.next_offset += taken;
        link.next_length -= taken;
        (last, left, length) = (buffer, left - taken, length + taken);
    }
    (head.offset, head.length) = (start, length);
}

/// Walks a chain, unlinking each buffer before handing it on.
pub(super) fn take_chain(descriptor: Descriptor, mut hand_on: impl FnMut(u32)) {
    take_segments(descriptor, |(buffer, ..)| hand_on(buffer));
}

/// Walks a chain, unlinking each segment before handing it on: buffer, offset, length.
pub(super) fn take_segments(descriptor: Descriptor, mut hand_on: impl FnMut((u32, u16, u16))) {
    let mut next = Some((descriptor.buffer, descriptor.offset, descriptor.length));
    while let Some(segment) = next {
        next = next_segment(segment.0);
        header_mut(segment.0).has_next = 0;
        hand_on(segment);
    }
}
