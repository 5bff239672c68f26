//! The buffer pool: one mapping of fixed buffers, on the borrowed core.
//!
//! ```
//! use picnic_core::packet::pool::{Pool, PoolConfig};
//! let (mut pool, mut returns) = Pool::new(&PoolConfig::default(), 1).unwrap();
//! let packet = pool.packet(b"hello").unwrap();
//! assert_eq!(packet.data(), b"hello");
//! returns[0].give_back(packet); // on the target core
//! returns[0].publish();
//! assert_eq!(pool.outstanding(), 0); // on the borrowed core
//! ```
//!
//! Guarantees: exhaustion is a value (`None`), never a panic; a buffer is either
//! home or owned by exactly one [`Descriptor`]; buffers come home from target
//! cores over one return ring per queue, so no ring has two producers.
//!
//! All pools of a process live in one reserved range of addresses, the *buffer
//! space*. A descriptor names its buffer by its place in that range (32 bits, in
//! units of 64 bytes), so it needs no pointer and no handle to reach its bytes.
//! Memory is mapped per pool (2 MiB pages if the system has them to give) and
//! unmapped when the pool is dropped with every buffer home; with one missing,
//! the mapping stays, so that no descriptor ever points at nothing.

#![allow(unsafe_code)]

use super::desc::Descriptor;
use crate::error::PoolError;
use crate::ring::spsc::{self, Consumer, Producer};
use crate::time::Time;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use schemars::JsonSchema;
use serde::Deserialize;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Start of each buffer: chain links and capacity, out of the data's first line.
pub(super) const SEGMENT_HEADER_BYTES: u16 = 64;
/// The longest packet a chain may hold, in bytes.
pub const MAX_PACKET_BYTES: usize = 1 << 17;

/// Bytes that a descriptor's place of a buffer is counted in.
pub(super) const UNIT: usize = 64;
const HUGE_PAGE: usize = 2 << 20;
/// Addresses reserved (not memory used) for all pools of the process.
const SPACE_BYTES: usize = 32 << 30;

/// Size and shape of a pool; the `[pool]` section of the card file.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// Buffers in the pool, 64 to 1048576.
    pub buffers: u32,
    /// Bytes of packet one buffer holds, 64 to 61440; longer packets are chained.
    pub buffer_size: u32,
    /// Bytes kept free in front of each packet, a multiple of 64 up to 1024.
    pub headroom: u32,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig { buffers: 8192, buffer_size: 2048, headroom: 128 }
    }
}

impl PoolConfig {
    /// What is out of range, if anything: key, value found, values allowed.
    pub fn validate(&self) -> Result<(), PoolError> {
        let check = |key, found: u32, low, high, step: u32| {
            if (low..=high).contains(&found) && found.is_multiple_of(step) {
                Ok(())
            } else {
                Err(PoolError::OutOfRange { key, found, low, high, step })
            }
        };
        check("buffers", self.buffers, 64, 1 << 20, 1)?;
        check("buffer_size", self.buffer_size, 64, 61_440, 1)?;
        check("headroom", self.headroom, 0, 1024, 64)?;
        if self.mapped_bytes() > SPACE_BYTES {
            return Err(PoolError::TooLarge {
                buffers: self.buffers,
                stride: self.stride(),
                bytes: self.stride() * self.buffers as usize,
                allowed: SPACE_BYTES,
            });
        }
        Ok(())
    }

    /// Bytes of memory that the pool maps.
    pub fn mapped_bytes(&self) -> usize {
        (self.stride() * self.buffers as usize).next_multiple_of(HUGE_PAGE)
    }

    /// Bytes from one buffer to the next: an odd number of lines, so that the same place
    /// in all buffers spreads over all sets of every cache.
    fn stride(&self) -> usize {
        let bytes =
            SEGMENT_HEADER_BYTES as usize + self.headroom as usize + self.buffer_size as usize;
        (bytes.div_ceil(UNIT) | 1) * UNIT
    }
}

/// What stands in the first line of every buffer.
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
    /// Whether `next_*` mean anything.
    has_next: u32,
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
fn address(buffer: u32) -> *mut u8 {
    // Relaxed is enough: whoever holds a descriptor got it, by some chain of
    // synchronisation, from the pool that stored this before making it.
    SPACE.load(Ordering::Relaxed).wrapping_add(buffer as usize * UNIT)
}

// ---------------------------------------------------------------- bytes of a descriptor
//
// Invariant of this module and `desc`: of a live descriptor, `buffer` is the place of a
// buffer of a mapped pool, taken off its free list and put back only when the descriptor
// is given up; [offset, offset + length) lies within the buffer's capacity, behind its
// header. `Descriptor` is not `Clone`, so one descriptor has the buffer to itself. `lend` gives
// descriptors up in favour of a borrower, and makes them anew when their buffers come back.

/// A descriptor of `length` bytes at `offset` of a buffer that nothing else stands for.
///
/// Built from whole words: narrow stores would be read back wider when the descriptor is
/// moved on at once, and the processor makes such a read wait for the stores.
#[inline(always)]
pub(super) fn descriptor(buffer: u32, offset: u16, length: u16, now: Time, wire: u8) -> Descriptor {
    let place = u64::from(buffer) | u64::from(offset) << 32 | u64::from(length) << 48;
    let origin = now.as_nanos() & ((1 << 48) - 1) | u64::from(wire) << 48;
    // SAFETY: `Descriptor` is 32 bytes of `repr(C)` integers without padding, so any bits are
    // a value; the places of the fields written here are asserted beside it. (x86-64 and all
    // other targets of this crate are little-endian, as checked below.)
    unsafe { std::mem::transmute::<[u64; 4], Descriptor>([place, origin, 0, 0]) }
}

const _: () = assert!(cfg!(target_endian = "little"), "descriptors are built from words");

/// A descriptor as the four words it is, for changes that must not be narrower.
#[inline(always)]
pub(super) fn words_mut(descriptor: &mut Descriptor) -> &mut [u64; 4] {
    // SAFETY: same size, stricter alignment, integers without padding on both sides. A caller
    // in `desc` that wrote word 0 could break this module's invariant; none does.
    unsafe { &mut *std::ptr::from_mut(descriptor).cast() }
}

/// Moves a descriptor to another place by whole words, whatever the compiler would rather do.
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

/// As [`relocate`], with one store in place of four: a store to a line that another core holds
/// keeps its entry of the store buffer until the line has come, and there are few.
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

#[inline(always)]
pub(super) fn prefetch(descriptor: &Descriptor) {
    crate::prefetch::for_read(address(descriptor.buffer).wrapping_add(descriptor.offset as usize));
}

fn header<'a>(buffer: u32) -> &'a SegmentHeader {
    // SAFETY: every buffer starts with a header written when its pool was made; callers
    // hold the descriptor (or the chain's head) that owns the buffer.
    unsafe { &*address(buffer).cast::<SegmentHeader>() }
}

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
        // `Pool::packet` and `link` with ranges inside their buffers, and the head is borrowed.
        Some(unsafe {
            std::slice::from_raw_parts(address(buffer).add(offset as usize), length as usize)
        })
    })
}

fn next_segment(buffer: u32) -> Option<(u32, u16, u16)> {
    let header = header(buffer);
    (header.has_next != 0).then_some((header.next_buffer, header.next_offset, header.next_length))
}

/// Where a pool's buffers are, for those that reach them by themselves (AF_XDP, DMA).
///
/// The buffers lie one stride apart from the start on. Each begins with a header, which is the
/// pool's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolMemory {
    address: usize,
    bytes: usize,
    first: u32,
    stride: u32,
    headroom: u16,
    huge_pages: bool,
}

impl PoolMemory {
    /// Where it starts: a multiple of 2 MiB.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Its bytes: a multiple of 2 MiB.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of each buffer behind its header: headroom and packet.
    pub fn room(&self) -> usize {
        self.stride() - SEGMENT_HEADER_BYTES as usize
    }

    /// Bytes that are to be kept free in front of each packet.
    pub fn headroom(&self) -> usize {
        self.headroom.into()
    }

    /// Whether it stands on 2 MiB pages.
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Bytes from one buffer to the next.
    pub fn stride(&self) -> usize {
        self.stride as usize * UNIT
    }

    /// The first buffer's place in the buffer space.
    pub(super) fn first(&self) -> u32 {
        self.first
    }
}

// ---------------------------------------------------------------- the pool

/// The borrowed core's end of a buffer pool.
#[derive(Debug)]
pub struct Pool {
    /// Buffers at home, most recently used last: their lines are the likeliest in cache.
    free: Vec<u32>,
    returns: Vec<Consumer<u32>>,
    /// Place of the first buffer, past the last, and from one to the next, in units.
    first: u32,
    end: u32,
    stride: u32,
    buffers: u32,
    offset: u16,
    buffer_size: u32,
    start: usize,
    bytes: usize,
    huge_pages: bool,
    /// Requests that found no buffer.
    exhausted: u64,
}

impl Pool {
    /// Maps a pool, with one return ring for each of `queues` target queues.
    ///
    /// # Errors
    /// [`PoolError`]: a size out of range, no address space left, or no memory.
    pub fn new(config: &PoolConfig, queues: usize) -> Result<(Pool, Vec<ReturnSender>), PoolError> {
        config.validate()?;
        let stride = config.stride();
        let bytes = config.mapped_bytes();
        let start = take_range(bytes)?;
        let place = SPACE.load(Ordering::Acquire).wrapping_add(start);
        let huge_pages = match map(place, bytes) {
            Ok(huge_pages) => huge_pages,
            Err(Unmapped { source, reserved }) => {
                if reserved {
                    give_range(start, bytes);
                }
                return Err(PoolError::Map { bytes, source });
            }
        };
        let (first, stride_units) = ((start / UNIT) as u32, (stride / UNIT) as u32);
        let mut free = Vec::with_capacity(config.buffers as usize);
        for index in 0..config.buffers {
            let buffer = first + index * stride_units;
            // SAFETY: the buffer lies in the mapping just made and nothing refers to it yet.
            unsafe {
                address(buffer).cast::<SegmentHeader>().write(SegmentHeader {
                    capacity: stride as u32,
                    next_buffer: 0,
                    next_offset: 0,
                    next_length: 0,
                    total_length: 0,
                    has_next: 0,
                });
            }
            free.push(buffer);
        }
        shuffle(&mut free);
        // A return ring has room for every buffer there is: giving back cannot fail.
        let (senders, returns) = (0..queues)
            .map(|_| spsc::channel(config.buffers as usize))
            .map(|(producer, consumer)| (ReturnSender { ring: producer }, consumer))
            .unzip();
        let pool = Pool {
            free,
            returns,
            first,
            end: first + config.buffers * stride_units,
            stride: stride_units,
            buffers: config.buffers,
            offset: SEGMENT_HEADER_BYTES + config.headroom as u16,
            buffer_size: config.buffer_size,
            start,
            bytes,
            huge_pages,
            exhausted: 0,
        };
        Ok((pool, senders))
    }

    /// Takes a buffer for a packet of `length` bytes in one segment.
    ///
    /// `None` if no buffer is home or `length` exceeds [`Pool::buffer_size`]. The bytes
    /// hold whatever the buffer held before.
    #[inline(always)]
    pub fn allocate(&mut self, length: usize) -> Option<Descriptor> {
        self.allocate_at(length, Time::ZERO, 0)
    }

    /// As [`Pool::allocate`], for a packet received at `now` on `wire`.
    #[inline(always)]
    pub(crate) fn allocate_at(&mut self, length: usize, now: Time, wire: u8) -> Option<Descriptor> {
        if length > self.buffer_size as usize {
            return None;
        }
        if self.free.is_empty() {
            self.collect_or_count();
        }
        let buffer = self.free.pop()?;
        Some(descriptor(buffer, self.offset, length as u16, now, wire))
    }

    #[cold]
    fn collect_or_count(&mut self) {
        self.collect();
        if self.free.is_empty() {
            self.exhausted += 1;
        }
    }

    /// Descriptors for `count` packets of `length` bytes each, received at `now` on `wire`; fewer
    /// if fewer buffers are home, none if `length` exceeds one buffer. All must be taken.
    #[inline(always)]
    pub(crate) fn allocate_many(
        &mut self,
        count: usize,
        length: usize,
        now: Time,
        wire: u8,
    ) -> impl Iterator<Item = Descriptor> + '_ {
        let count = match length <= self.buffer_size as usize {
            true if self.ensure(count) => count,
            true => self.free.len(),
            false => 0,
        };
        let offset = self.offset;
        let buffers = self.free.drain(self.free.len() - count..).rev();
        buffers.map(move |buffer| descriptor(buffer, offset, length as u16, now, wire))
    }

    /// A packet holding `data`, chained over several buffers if one is too small.
    ///
    /// `None` if too few buffers are home or `data` exceeds [`MAX_PACKET_BYTES`].
    #[inline]
    pub fn packet(&mut self, data: &[u8]) -> Option<Descriptor> {
        if data.len() > self.buffer_size as usize {
            return self.chained_packet(data);
        }
        let mut descriptor = self.allocate(data.len())?;
        descriptor.data_mut().copy_from_slice(data);
        Some(descriptor)
    }

    /// A packet of the same bytes as `packet`, in buffers of its own; what is known of it (see
    /// [`Descriptor::copy_metadata`]) is not copied.
    ///
    /// `None` if too few buffers are home or the bytes exceed [`MAX_PACKET_BYTES`].
    #[inline]
    pub fn copy(&mut self, packet: &Descriptor) -> Option<Descriptor> {
        if packet.is_chained() {
            return self.chain(packet.length() as usize, packet.segments());
        }
        self.packet(packet.data())
    }

    #[cold]
    fn chained_packet(&mut self, data: &[u8]) -> Option<Descriptor> {
        self.chain(data.len(), std::iter::once(data))
    }

    /// A packet of `length` bytes, which `pieces` hold one after the other.
    #[cold]
    fn chain<'a>(
        &mut self,
        length: usize,
        mut pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Descriptor> {
        if length > MAX_PACKET_BYTES {
            return None;
        }
        let size = self.buffer_size as usize;
        if !self.ensure(length.div_ceil(size).max(1)) {
            self.exhausted += 1;
            return None;
        }
        let mut piece: &[u8] = &[];
        let mut head = self.segment(length.min(size), &mut piece, &mut pieces)?;
        if length <= size {
            return Some(head);
        }
        head.set_chained(true);
        header_mut(head.buffer).total_length = length as u32;
        let mut last = head.buffer;
        for start in (size..length).step_by(size) {
            let segment = self.segment(size.min(length - start), &mut piece, &mut pieces)?;
            let link = header_mut(last);
            link.next_buffer = segment.buffer;
            link.next_offset = segment.offset;
            link.next_length = segment.length;
            link.has_next = 1;
            last = segment.buffer;
            // The head owns the segment's buffer from here on.
        }
        Some(head)
    }

    /// A buffer filled from what is left of `piece` and the pieces behind it.
    fn segment<'a>(
        &mut self,
        length: usize,
        piece: &mut &'a [u8],
        pieces: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Option<Descriptor> {
        let mut segment = self.allocate(length)?;
        let mut room = segment.data_mut();
        while !room.is_empty() {
            if piece.is_empty() {
                let Some(next) = pieces.next() else { break };
                *piece = next;
            }
            let count = room.len().min(piece.len());
            let (filled, empty) = room.split_at_mut(count);
            let (copied, left) = piece.split_at(count);
            filled.copy_from_slice(copied);
            (room, *piece) = (empty, left);
        }
        Some(segment)
    }

    /// Whether `count` buffers are home, after looking at the return rings if need be.
    #[inline]
    pub fn ensure(&mut self, count: usize) -> bool {
        if self.free.len() < count {
            self.collect();
        }
        self.free.len() >= count
    }

    /// Has the lines that the next `count` packets start with fetched for writing.
    #[inline]
    pub fn prefetch_for_write(&self, count: usize) {
        for &buffer in self.free.iter().rev().take(count) {
            crate::prefetch::for_write(address(buffer).wrapping_add(self.offset as usize));
        }
    }

    /// Has the lines that the next `count` packets start with fetched for reading.
    #[inline]
    pub fn prefetch_for_read(&self, count: usize) {
        for &buffer in self.free.iter().rev().take(count) {
            crate::prefetch::for_read(address(buffer).wrapping_add(self.offset as usize));
        }
    }

    /// Takes in the buffers that target cores have given back.
    #[inline(never)]
    pub fn collect(&mut self) {
        let own = self.own();
        for ring in &mut self.returns {
            let returned = ring.refresh();
            // The lines are another core's; asked for together they come together.
            ring.prefetch_slots(returned);
            ring.take_with(returned, |buffer| {
                // SAFETY: `take_with` hands out slots that hold a value.
                let buffer = unsafe { (*buffer).assume_init_read() };
                if own.contains(&buffer) {
                    // Never grows: there are no more buffers than the list was made for.
                    self.free.push(buffer);
                }
            });
            ring.release();
        }
    }

    /// The places of this pool's buffers.
    ///
    /// A buffer of another pool, freed here by mistake, is let go: it stays missing where it
    /// belongs, which keeps that pool mapped. Were it taken in, the count of buffers at home
    /// would no longer say whether a descriptor is still out there.
    #[inline(always)]
    fn own(&self) -> std::ops::Range<u32> {
        self.first..self.end
    }

    /// Takes a packet's buffers back, on the borrowed core.
    #[inline(always)]
    pub fn free(&mut self, descriptor: Descriptor) {
        if descriptor.is_chained() {
            return self.free_chain(descriptor);
        }
        if self.own().contains(&descriptor.buffer) {
            self.free.push(descriptor.buffer);
        }
    }

    #[cold]
    fn free_chain(&mut self, descriptor: Descriptor) {
        let own = self.own();
        take_chain(descriptor, |buffer| {
            if own.contains(&buffer) {
                self.free.push(buffer);
            }
        });
    }

    /// Buffers not at home: in rings, in functions, in wires.
    pub fn outstanding(&mut self) -> usize {
        self.collect();
        self.buffers as usize - self.free.len()
    }

    /// Buffers in the pool.
    pub fn buffers(&self) -> usize {
        self.buffers as usize
    }

    /// Buffers at home, return rings not looked at.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Bytes of packet that one buffer holds.
    pub fn buffer_size(&self) -> usize {
        self.buffer_size as usize
    }

    /// Bytes mapped.
    pub fn mapped_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the pool stands on 2 MiB pages.
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Where its buffers are; see [`Loans`](super::lend::Loans).
    pub fn memory(&self) -> PoolMemory {
        PoolMemory {
            address: address(self.first) as usize,
            bytes: self.bytes,
            first: self.first,
            stride: self.stride,
            headroom: self.offset - SEGMENT_HEADER_BYTES,
            huge_pages: self.huge_pages,
        }
    }

    /// How often no buffer could be given.
    pub fn exhausted(&self) -> u64 {
        self.exhausted
    }

    /// The number of the packet's first buffer in this pool, 0 up to `buffers`.
    #[inline]
    pub fn buffer_index(&self, descriptor: &Descriptor) -> usize {
        (descriptor.buffer.wrapping_sub(self.first) / self.stride) as usize
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.outstanding() != 0 {
            // Somewhere a descriptor lives on. Its bytes must too.
            return;
        }
        if let Some(place) = NonNull::new(address(self.first)) {
            // SAFETY: the range is this pool's own, and with every buffer home nothing
            // refers to it. It is replaced, not unmapped, so that the buffer space stays
            // reserved.
            let reserved = unsafe {
                rustix::mm::mmap_anonymous(
                    place.as_ptr().cast(),
                    self.bytes,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::FIXED,
                )
            };
            if reserved.is_ok() {
                give_range(self.start, self.bytes);
            }
        }
    }
}

/// A target core's end of a return ring.
#[derive(Debug)]
pub struct ReturnSender {
    ring: Producer<u32>,
}

impl ReturnSender {
    /// Gives a packet's buffers back; they are seen by the pool after `publish`.
    #[inline(always)]
    pub fn give_back(&mut self, descriptor: Descriptor) {
        if descriptor.is_chained() {
            take_chain(descriptor, |buffer| Self::send(&mut self.ring, buffer));
        } else {
            Self::send(&mut self.ring, descriptor.buffer);
        }
    }

    #[inline(always)]
    fn send(ring: &mut Producer<u32>, buffer: u32) {
        // Room for every buffer of the pool was made, so this cannot fail; were it to, the
        // buffer would be missing from the pool and show there.
        let _ = ring.stage(buffer);
    }

    /// Makes what was given back visible, with one release store.
    #[inline]
    pub fn publish(&mut self) {
        self.ring.publish();
    }
}

/// Puts the buffers in an order without a pattern, the same every time.
///
/// In order, their first lines lie a fixed stride apart, and the prefetcher of a core that
/// reads one after the other fetches those the borrowed core is about to write anew
/// (`docs/decisions/008-out-of-the-prefetchers-way.md`).
fn shuffle(buffers: &mut [u32]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..buffers.len()).rev() {
        // xorshift64 (Marsaglia 2003): any generator would do.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        buffers.swap(last, (state % (last as u64 + 1)) as usize);
    }
}

/// One packet of these parts, in this order; each is a packet in one buffer.
pub(super) fn link(mut head: Descriptor, parts: impl Iterator<Item = Descriptor>) -> Descriptor {
    let (mut last, mut total) = (head.buffer, u32::from(head.length));
    for part in parts {
        let link = header_mut(last);
        link.next_buffer = part.buffer;
        link.next_offset = part.offset;
        link.next_length = part.length;
        link.has_next = 1;
        (last, total) = (part.buffer, total + u32::from(part.length));
        // The head owns the part's buffer from here on.
    }
    if last != head.buffer {
        head.set_chained(true);
        header_mut(head.buffer).total_length = total;
    }
    head
}

/// Walks a chain, unlinking each buffer before it is handed on.
fn take_chain(descriptor: Descriptor, mut hand_on: impl FnMut(u32)) {
    take_segments(descriptor, |(buffer, ..)| hand_on(buffer));
}

/// Walks a chain, unlinking each segment before it is handed on: buffer, offset, length.
pub(super) fn take_segments(descriptor: Descriptor, mut hand_on: impl FnMut((u32, u16, u16))) {
    let mut next = Some((descriptor.buffer, descriptor.offset, descriptor.length));
    while let Some(segment) = next {
        next = next_segment(segment.0);
        header_mut(segment.0).has_next = 0;
        hand_on(segment);
    }
}

/// Why a range has no memory, and whether it is still reserved.
struct Unmapped {
    source: Errno,
    reserved: bool,
}

/// Puts memory at `place`; true if on 2 MiB pages.
///
/// The range must not be without a mapping for a moment: another thread's could land in it,
/// and would be overwritten. So what may fail is tried elsewhere first, and ordinary pages are
/// not mapped over the reservation, but the reservation is made accessible.
fn map(place: *mut u8, bytes: usize) -> Result<bool, Unmapped> {
    if huge_pages_for(bytes) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::HUGETLB;
        // SAFETY: the range lies in the reserved buffer space and was taken for this pool alone.
        let huge = unsafe { map_at(place, bytes, ACCESS, flags | MapFlags::POPULATE) };
        if huge.is_ok() {
            return Ok(true);
        }
        // Someone else took the pages meanwhile. The kernel may have ended the reservation
        // before it saw that: make it again, but not over what may stand there by now.
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
        // Transparent huge pages do nearly as well where there are no reserved ones. A
        // refusal changes speed, not meaning.
        let _ = rustix::mm::madvise(place.cast(), bytes, Advice::LinuxHugepage);
    }
    Ok(false)
}

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Whether the system has 2 MiB pages to give for `bytes`, at this moment.
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
/// With `FIXED`, nothing may refer to what is mapped at `place`.
unsafe fn map_at(
    place: *mut u8,
    bytes: usize,
    access: ProtFlags,
    flags: MapFlags,
) -> Result<*mut c_void, Errno> {
    // SAFETY: the caller answers for `place`; without `FIXED` nothing is replaced.
    unsafe { rustix::mm::mmap_anonymous(place.cast(), bytes, access, flags) }
}
