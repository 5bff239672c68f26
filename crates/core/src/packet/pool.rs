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
//! Guarantees: exhaustion is a value (`None`), never a panic; a buffer is either free or owned by
//! exactly one [`Descriptor`]; buffers return from target cores over one ring per queue, so no ring
//! has two producers.
//!
//! Its memory, in the process's buffer space, is unmapped when the pool is dropped with all buffers
//! returned; if one is missing, the mapping stays, so that no descriptor ever points to unmapped
//! memory.

#![allow(unsafe_code)]

use super::desc::Descriptor;
use super::space::{
    self, HUGE_PAGE, Mapping, SEGMENT_HEADER_BYTES, SPACE_BYTES, UNIT, address, descriptor, join,
    take_chain,
};
use crate::error::PoolError;
use crate::ledger::DropReason;
use crate::random::Random;
use crate::ring::spsc::{self, Consumer, Producer};
use crate::time::Time;
use schemars::JsonSchema;
use serde::Deserialize;

/// The longest packet a chain may hold, in bytes.
pub const MAX_PACKET_BYTES: usize = 1 << 17;

/// Size and shape of a pool; the `[pool]` section of the card file.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// Buffers in the pool.
    #[schemars(range(min = 64, max = 1_048_576))]
    pub buffers: u32,
    /// Bytes of packet one buffer holds; longer packets are chained.
    #[schemars(range(min = 64, max = 61_440))]
    pub buffer_size: u32,
    /// Bytes kept free before each packet, a multiple of 64 up to 1024.
    #[schemars(extend("x-advanced" = true))]
    pub headroom: u32,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig { buffers: 8192, buffer_size: 2048, headroom: 128 }
    }
}

impl PoolConfig {
    /// Checks the ranges: an error has key, value found and values allowed.
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
                bytes: self.used_bytes(),
                allowed: SPACE_BYTES,
            });
        }
        Ok(())
    }

    /// Bytes of memory that the pool maps.
    pub fn mapped_bytes(&self) -> usize {
        self.used_bytes().next_multiple_of(HUGE_PAGE)
    }

    fn used_bytes(&self) -> usize {
        self.stride() * self.buffers as usize
    }

    /// Bytes from one buffer to the next: an odd number of lines, so that the same offset in all
    /// buffers spreads over all sets of every cache.
    fn stride(&self) -> usize {
        let bytes =
            SEGMENT_HEADER_BYTES as usize + self.headroom as usize + self.buffer_size as usize;
        (bytes.div_ceil(UNIT) | 1) * UNIT
    }
}

/// The place of a pool's buffers, for users that access them directly (AF_XDP, DMA).
///
/// The buffers lie one stride apart from the start on. Each begins with a header, which belongs to
/// the pool.
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
    /// Its start: a multiple of 2 MiB.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Its size in bytes: a multiple of 2 MiB.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of each buffer after its header: headroom and packet.
    pub fn room(&self) -> usize {
        self.stride() - SEGMENT_HEADER_BYTES as usize
    }

    /// Bytes to keep free before each packet.
    pub fn headroom(&self) -> usize {
        self.headroom.into()
    }

    /// Whether it is on 2 MiB pages.
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
    /// Free buffers, most recently used last: their lines are the likeliest in cache.
    free: Vec<u32>,
    returns: Vec<Consumer<u32>>,
    memory: Mapping,
    /// Place of the first buffer, past the last, and from one to the next, in units.
    first: u32,
    end: u32,
    stride: u32,
    buffers: u32,
    offset: u16,
    buffer_size: u32,
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
        let memory = Mapping::new(config.mapped_bytes(), config.used_bytes())?;
        let (first, stride_units) = (memory.first(), (stride / UNIT) as u32);
        let mut free = Vec::with_capacity(config.buffers as usize);
        for index in 0..config.buffers {
            let buffer = first + index * stride_units;
            // SAFETY: the buffer lies in the new mapping and nothing refers to it yet.
            unsafe { space::prepare(buffer, stride as u32) };
            free.push(buffer);
        }
        shuffle(&mut free);
        // A return ring has room for all buffers: giving back cannot fail.
        let (senders, returns) = (0..queues)
            .map(|_| spsc::channel(config.buffers as usize))
            .map(|(producer, consumer)| (ReturnSender { ring: producer }, consumer))
            .unzip();
        let pool = Pool {
            free,
            returns,
            memory,
            first,
            end: first + config.buffers * stride_units,
            stride: stride_units,
            buffers: config.buffers,
            offset: SEGMENT_HEADER_BYTES + config.headroom as u16,
            buffer_size: config.buffer_size,
            exhausted: 0,
        };
        Ok((pool, senders))
    }

    /// Takes a buffer for a packet of `length` bytes in one segment.
    ///
    /// `None` if no buffer is free or `length` exceeds [`Pool::buffer_size`]. The bytes have any
    /// content.
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
    /// if fewer buffers are free, none if `length` exceeds one buffer. All must be taken.
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
    /// `None` if too few buffers are free or `data` exceeds [`MAX_PACKET_BYTES`].
    #[inline]
    pub fn packet(&mut self, data: &[u8]) -> Option<Descriptor> {
        if data.len() > self.buffer_size as usize {
            return self.chained_packet(data);
        }
        let mut descriptor = self.allocate(data.len())?;
        descriptor.data_mut().copy_from_slice(data);
        Some(descriptor)
    }

    /// A packet with the same bytes as `packet`, in separate buffers; metadata (see
    /// [`Descriptor::copy_metadata`]) is not copied.
    ///
    /// `None` if too few buffers are free or the bytes exceed [`MAX_PACKET_BYTES`].
    #[inline]
    pub fn copy(&mut self, packet: &Descriptor) -> Option<Descriptor> {
        if packet.is_chained() {
            return self.chain(packet.length() as usize, packet.segments());
        }
        self.packet(packet.data())
    }

    /// A packet of `length` bytes, concatenated from `pieces`; bytes beyond them have any content.
    /// Chained over several buffers if one is too small.
    ///
    /// `None` if too few buffers are free or `length` exceeds [`MAX_PACKET_BYTES`].
    #[inline]
    pub fn gather<'a>(
        &mut self,
        length: usize,
        mut pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Descriptor> {
        if length > self.buffer_size as usize {
            return self.chain(length, pieces);
        }
        self.segment(length, &mut &[][..], &mut pieces)
    }

    /// Why a packet of `length` bytes cannot be made: never, or not now.
    #[cold]
    pub fn refusal(&self, length: usize) -> DropReason {
        match length > MAX_PACKET_BYTES.min(self.buffers() * self.buffer_size()) {
            true => DropReason::Oversize,
            false => DropReason::PoolExhausted,
        }
    }

    #[cold]
    fn chained_packet(&mut self, data: &[u8]) -> Option<Descriptor> {
        self.chain(data.len(), std::iter::once(data))
    }

    /// A packet of `length` bytes, concatenated from `pieces`.
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
        let mut last = head.buffer;
        for start in (size..length).step_by(size) {
            let segment = self.segment(size.min(length - start), &mut piece, &mut pieces)?;
            last = join(last, segment, 0);
        }
        space::set_chain(&mut head, length as u32, last);
        Some(head)
    }

    /// A buffer filled from the rest of `piece` and the following pieces.
    // Inline, so that the descriptor, just written, need not be moved.
    #[inline]
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

    /// Whether `count` buffers are free, after reading the return rings if necessary.
    #[inline]
    pub fn ensure(&mut self, count: usize) -> bool {
        if self.free.len() < count {
            self.collect();
        }
        self.free.len() >= count
    }

    /// Prefetches the first lines of the next `count` packets for writing.
    #[inline]
    pub fn prefetch_for_write(&self, count: usize) {
        for &buffer in self.free.iter().rev().take(count) {
            crate::prefetch::for_write(address(buffer).wrapping_add(self.offset as usize));
        }
    }

    /// Prefetches the first lines of the next `count` packets for reading.
    #[inline]
    pub fn prefetch_for_read(&self, count: usize) {
        for &buffer in self.free.iter().rev().take(count) {
            crate::prefetch::for_read(address(buffer).wrapping_add(self.offset as usize));
        }
    }

    /// Takes in the buffers that target cores have returned.
    #[inline(never)]
    pub fn collect(&mut self) {
        let own = self.own();
        for ring in &mut self.returns {
            let returned = ring.refresh();
            // The lines are another core's; requested together they arrive together.
            ring.prefetch_slots(returned);
            ring.take_with(returned, |buffer| {
                // SAFETY: `take_with` hands out slots that hold a value.
                let buffer = unsafe { (*buffer).assume_init_read() };
                if own.contains(&buffer) {
                    // Never grows: the list has room for all buffers.
                    self.free.push(buffer);
                }
            });
            ring.release();
        }
    }

    /// The places of this pool's buffers.
    ///
    /// A buffer of another pool, freed here by mistake, is ignored: it stays missing in its own
    /// pool, which keeps that pool mapped. If it were taken in, the count of free buffers would no
    /// longer show whether descriptors still exist.
    #[inline(always)]
    fn own(&self) -> std::ops::Range<u32> {
        self.first..self.end
    }

    /// Returns a packet's buffers, on the borrowed core.
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

    /// Buffers that are not free: in rings, in functions, in wires.
    pub fn outstanding(&mut self) -> usize {
        self.collect();
        self.buffers as usize - self.free.len()
    }

    /// Buffers in the pool.
    pub fn buffers(&self) -> usize {
        self.buffers as usize
    }

    /// Free buffers, without reading the return rings.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Bytes of packet that one buffer holds.
    pub fn buffer_size(&self) -> usize {
        self.buffer_size as usize
    }

    /// Bytes mapped.
    pub fn mapped_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Whether the pool is on 2 MiB pages.
    pub fn huge_pages(&self) -> bool {
        self.memory.huge_pages()
    }

    /// The place of its buffers; see [`Loans`](super::lend::Loans).
    pub fn memory(&self) -> PoolMemory {
        PoolMemory {
            address: address(self.first) as usize,
            bytes: self.memory.bytes(),
            first: self.first,
            stride: self.stride,
            headroom: self.offset - SEGMENT_HEADER_BYTES,
            huge_pages: self.memory.huge_pages(),
        }
    }

    /// Number of failed requests for a buffer.
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
            // A descriptor still exists. Its bytes must too.
            return;
        }
        // SAFETY: all buffers have returned, so nothing refers to them.
        unsafe { self.memory.unmap() };
    }
}

/// A target core's end of a return ring.
#[derive(Debug)]
pub struct ReturnSender {
    ring: Producer<u32>,
}

impl ReturnSender {
    /// Returns a packet's buffers; the pool sees them after `publish`.
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
        // There is room for every buffer of the pool, so this cannot fail; if it did, the buffer
        // would be missing from the pool and show there.
        let _ = ring.stage(buffer);
    }

    /// Makes returned buffers visible, with one release store.
    #[inline]
    pub fn publish(&mut self) {
        self.ring.publish();
    }
}

/// Puts the buffers in an irregular order, the same every time.
///
/// In regular order, their first lines lie a fixed stride apart, and the prefetcher of a core that
/// reads one after the other fetches those that the borrowed core is about to overwrite
/// (`docs/performance.md`).
fn shuffle(buffers: &mut [u32]) {
    let mut random = Random::new(0, 0);
    for last in (1..buffers.len()).rev() {
        buffers.swap(last, random.between(&(0..=last as u64)) as usize);
    }
}
