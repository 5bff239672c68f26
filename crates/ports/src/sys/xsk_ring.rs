//! Rings shared with the kernel: single producer, single consumer, indices that only grow.
//!
//! ```text
//! we produce: fill, transmit         room ─▶ stage ─▶ publish
//! we consume: receive, completion    ready ─▶ peek ─▶ take ─▶ release
//! ```
//!
//! Guarantees: no slot outside the ring is read or written, for any index from the kernel; an
//! invalid index reads as an empty ring to its consumer and as a full one to its producer.
//!
//! Source: Documentation/networking/af_xdp.rst; include/uapi/linux/if_xdp.h.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The offsets of a ring's parts in its mapping, in bytes.
pub(super) type Offsets = libc::xdp_ring_offset;

/// The content of a ring's slots: integers, for which all bits are valid.
pub(super) trait Slot: Copy {}
impl Slot for u64 {}
impl Slot for libc::xdp_desc {}

/// The memory of a ring: the kernel's, mapped. Tests have their own.
#[derive(Debug)]
enum Memory {
    Mapped {
        at: NonNull<u8>,
        bytes: usize,
    },
    #[cfg(test)]
    Owned(#[allow(dead_code)] std::sync::Arc<[std::sync::atomic::AtomicU64]>),
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self {
            // SAFETY: mapped in `Shared::map`; the one value that refers to it goes with it.
            Memory::Mapped { at, bytes } => unsafe {
                libc::munmap(at.as_ptr().cast(), *bytes);
            },
            #[cfg(test)]
            Memory::Owned(_) => {}
        }
    }
}

/// The state shared by both sides of a ring.
#[derive(Debug)]
pub(super) struct Shared<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    slots: NonNull<T>,
    /// Slots, less one.
    mask: u32,
    _memory: Memory,
}

// SAFETY: the pointers are into the memory, which belongs to this value and to no thread.
unsafe impl<T: Slot> Send for Shared<T> {}

impl<T: Slot> Shared<T> {
    /// Maps the ring of a socket at `page_offset`; it has `size` slots, a power of two.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page_offset: libc::off_t,
        offsets: &Offsets,
        size: u32,
    ) -> io::Result<Self> {
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let fd = socket.as_raw_fd();
        // SAFETY: a fresh mapping of the kernel's choosing touches no memory of ours.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, page_offset) };
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => {
                // SAFETY: mapped with room for all slots after the other parts, as the kernel
                // has laid them out.
                Ok(unsafe { Self::at(at, offsets, size, Memory::Mapped { at, bytes }) })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// # Safety
    /// From `at` on lies a ring of `size` slots, a power of two, with its parts at `offsets`,
    /// while `memory` lives.
    unsafe fn at(at: NonNull<u8>, offsets: &Offsets, size: u32, memory: Memory) -> Self {
        debug_assert!(size.is_power_of_two());
        // SAFETY: as the caller says; the kernel aligns the parts to whole lines.
        unsafe {
            Shared {
                producer: at.add(offsets.producer as usize).cast(),
                consumer: at.add(offsets.consumer as usize).cast(),
                flags: at.add(offsets.flags as usize).cast(),
                slots: at.add(offsets.desc as usize).cast(),
                mask: size - 1,
                _memory: memory,
            }
        }
    }

    #[inline(always)]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: within the memory, aligned, and only ever used as an atomic by both sides.
        unsafe { self.producer.as_ref() }
    }

    #[inline(always)]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    /// Whether the kernel needs a system call to continue.
    #[inline(always)]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `producer`.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline(always)]
    fn read(&self, index: u32) -> T {
        // SAFETY: masked, so within the slots; any bits are a value. The kernel does not write
        // slots that it has published until they are released.
        unsafe { self.slots.add((index & self.mask) as usize).read() }
    }

    #[inline(always)]
    fn write(&self, index: u32, value: T) {
        // SAFETY: masked, so within the slots. The kernel does not read slots until they are
        // published.
        unsafe { self.slots.add((index & self.mask) as usize).write(value) }
    }
}

/// The side that puts in: fill and transmit rings.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Shared<T>,
    /// Staged up to here, not all of it published.
    next: u32,
    /// The consumer's index when last read.
    consumed: u32,
}

impl<T: Slot> Producer<T> {
    pub(super) fn new(ring: Shared<T>) -> Self {
        let next = ring.producer().load(Ordering::Relaxed);
        let consumed = ring.consumer().load(Ordering::Acquire);
        Producer { ring, next, consumed }
    }

    /// Whether `count` more can be staged.
    #[inline(always)]
    pub(super) fn has_room(&mut self, count: usize) -> bool {
        self.free() >= count || {
            self.consumed = self.ring.consumer().load(Ordering::Acquire);
            self.free() >= count
        }
    }

    #[inline(always)]
    fn free(&self) -> usize {
        (self.ring.mask + 1).saturating_sub(self.next.wrapping_sub(self.consumed)) as usize
    }

    /// Puts one in; false if the ring is full.
    #[inline(always)]
    pub(super) fn stage(&mut self, value: T) -> bool {
        let room = self.has_room(1);
        if room {
            self.ring.write(self.next, value);
            self.next = self.next.wrapping_add(1);
        }
        room
    }

    /// Hands staged entries to the kernel, with one release store.
    #[inline(always)]
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Those that the kernel has not taken yet.
    #[inline]
    pub(super) fn waiting(&mut self) -> usize {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.consumed) as usize
    }

    #[inline(always)]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// The side that takes out: receive and completion rings.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Shared<T>,
    /// Taken up to here, not all of it released.
    next: u32,
    /// The producer's index when last read.
    produced: u32,
}

impl<T: Slot> Consumer<T> {
    pub(super) fn new(ring: Shared<T>) -> Self {
        let next = ring.consumer().load(Ordering::Relaxed);
        Consumer { ring, next, produced: next }
    }

    /// Those that are there to be taken, read anew if fewer than `wanted` are known of.
    #[inline(always)]
    pub(super) fn ready(&mut self, wanted: usize) -> usize {
        if self.known() < wanted {
            self.produced = self.ring.producer().load(Ordering::Acquire);
        }
        self.known()
    }

    #[inline(always)]
    fn known(&self) -> usize {
        let count = self.produced.wrapping_sub(self.next);
        if count > self.ring.mask + 1 { 0 } else { count as usize }
    }

    /// The one `ahead` of the next, if it is known to be there.
    #[inline(always)]
    pub(super) fn peek(&self, ahead: usize) -> Option<T> {
        (ahead < self.known()).then(|| self.ring.read(self.next.wrapping_add(ahead as u32)))
    }

    /// Takes the next, if one is known to be there.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<T> {
        let value = self.peek(0)?;
        self.next = self.next.wrapping_add(1);
        Some(value)
    }

    /// Returns the taken entries to the kernel, with one release store.
    #[inline(always)]
    pub(super) fn release(&mut self) {
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    /// Both sides of one ring, its indices at `start`.
    fn ring(size: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
        let offsets = Offsets { producer: 0, consumer: 64, flags: 128, desc: 192 };
        let memory: Arc<[AtomicU64]> = (0..24 + size).map(|_| AtomicU64::new(0)).collect();
        let side = || {
            let at = NonNull::new(memory.as_ptr().cast_mut()).unwrap().cast();
            // SAFETY: laid out as the offsets say, of atomics, so that it may be written through
            // a shared reference; used by one thread.
            let shared = unsafe { Shared::at(at, &offsets, size, Memory::Owned(memory.clone())) };
            shared.producer().store(start, Ordering::Relaxed);
            shared.consumer().store(start, Ordering::Relaxed);
            shared
        };
        (Producer::new(side()), Consumer::new(side()))
    }

    #[test]
    fn invalid_indices_give_no_slots() {
        for start in [0, 5, u32::MAX - 1] {
            let (mut producer, mut consumer) = ring(8, start);
            let ours = producer.ring.producer().load(Ordering::Relaxed);
            consumer.ring.producer().store(ours.wrapping_add(9), Ordering::Relaxed);
            assert_eq!((consumer.ready(1), consumer.take()), (0, None));
            consumer.ring.producer().store(ours.wrapping_sub(1), Ordering::Relaxed);
            assert_eq!((consumer.ready(1), consumer.take()), (0, None));
            producer.ring.consumer().store(ours.wrapping_add(1), Ordering::Relaxed);
            producer.consumed = ours.wrapping_add(1);
            assert!(!producer.has_room(1) && !producer.stage(1));
        }
    }

    #[test]
    fn wakeup_flag_requests_a_system_call() {
        let (producer, _) = ring(8, 0);
        assert!(!producer.needs_wakeup());
        // SAFETY: as in `needs_wakeup`.
        unsafe { producer.ring.flags.as_ref() }.store(1, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }

    proptest! {
        /// Against a queue with the same bounds: nothing lost, doubled, reordered or seen early.
        #[test]
        fn a_ring_is_a_bounded_queue(
            order in 0_u32..7,
            start in prop_oneof![any::<u32>(), (0_u32..200).prop_map(|back| u32::MAX - back)],
            steps in prop::collection::vec((0_u8..6, 0_usize..80), 1..300),
        ) {
            let size = 1_u32 << order;
            let (mut producer, mut consumer) = ring(size, start);
            // Staged, published, taken but not released: together the content of the ring.
            let (mut staged, mut published) = (VecDeque::new(), VecDeque::new());
            let (mut taken, mut number) = (0, 0_u64);
            for (step, count) in steps {
                let held = staged.len() + published.len() + taken;
                match step {
                    0 | 1 => {
                        let room = size as usize - held;
                        prop_assert_eq!(producer.has_room(count), room >= count);
                        for place in 0..count {
                            let staged_one = producer.stage(number);
                            prop_assert_eq!(staged_one, place < room);
                            if staged_one {
                                staged.push_back(number);
                                number += 1;
                            }
                        }
                    }
                    2 => {
                        producer.publish();
                        published.append(&mut staged);
                        prop_assert_eq!(producer.waiting(), published.len() + taken);
                    }
                    3 | 4 => {
                        prop_assert_eq!(consumer.ready(usize::MAX), published.len());
                        prop_assert_eq!(consumer.peek(count), published.get(count).copied());
                        for _ in 0..count {
                            let one = consumer.take();
                            prop_assert_eq!(one, published.pop_front());
                            taken += usize::from(one.is_some());
                        }
                    }
                    _ => {
                        consumer.release();
                        taken = 0;
                    }
                }
            }
        }
    }
}
