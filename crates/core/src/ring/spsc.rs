//! Single-producer, single-consumer ring: one release store per burst.
//!
//! ```
//! let (mut producer, mut consumer) = picnic_core::ring::spsc::channel::<u32>(8);
//! assert!(producer.stage(7).is_ok()); // written, not yet visible
//! assert_eq!(consumer.available(), 0);
//! producer.publish(); // one release store makes the burst visible
//! assert_eq!(consumer.available(), 1);
//! assert_eq!(consumer.pop(), Some(7));
//! consumer.release(); // one release store returns the slots
//! ```
//!
//! Successive lines of slots are not adjacent in memory but spread over it by `Layout`. A consumer
//! that keeps up reads just behind the producer, and with adjacent lines its hardware prefetcher
//! would fetch those that the producer is about to write: each then changes cores twice more
//! (`docs/performance.md`).
//!
//! Guarantees: first in, first out; nothing is lost or duplicated; a push into a full ring returns
//! the value. Each end caches the other's index and re-reads it only if the cached one means full
//! (or empty), so that in steady state the index lines move once per burst, not once per packet.
//! Checked by loom (`ring/models.rs`) and against a queue model (`tests/all/ring.rs`).

#![allow(unsafe_code)]

use crate::sync::{Arc, AtomicUsize, CachePadded, Ordering, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// The place of the `n`th value of a ring: in units of cache lines, at `n * step` modulo the ring's
/// lines. The step is odd and the number of lines a power of two, so every line is used; it is
/// about five eighths of the ring, so that no simple stride appears.
#[derive(Clone, Copy)]
struct Layout {
    capacity: usize,
    /// Step between lines, in slots.
    step: usize,
    /// Masks for the line of a slot and for the place within the line.
    line_mask: usize,
    slot_mask: usize,
}

const LINE_BYTES: usize = 64;

/// Slots of a line, as a shift.
const fn line_shift<T>() -> u32 {
    match size_of::<T>() {
        0 => 0,
        size if LINE_BYTES.is_multiple_of(size) => (LINE_BYTES / size).trailing_zeros(),
        _ => 0,
    }
}

impl Layout {
    fn new<T>(capacity: usize) -> Self {
        let shift = line_shift::<T>();
        let lines = (capacity >> shift).max(1);
        Layout {
            capacity,
            step: ((lines * 5 / 8) | 1) << shift,
            line_mask: (lines - 1) << shift,
            slot_mask: (capacity - 1) & ((1 << shift) - 1),
        }
    }

    /// Always below the capacity.
    #[inline(always)]
    fn slot<T>(&self, index: usize) -> usize {
        let line = (index >> const { line_shift::<T>() }).wrapping_mul(self.step);
        line & self.line_mask | index & self.slot_mask
    }
}

type Slot<T> = UnsafeCell<MaybeUninit<T>>;

struct Shared<T> {
    /// Slots given back by the consumer; only the consumer stores it.
    head: CachePadded<AtomicUsize>,
    /// Slots made visible by the producer; only the producer stores it.
    tail: CachePadded<AtomicUsize>,
    layout: Layout,
    /// Slots to skip at the start, so that lines of slots are cache lines.
    start: usize,
    slots: Box<[Slot<T>]>,
}

// SAFETY: a slot is touched by one side at a time. The producer writes slots in
// [tail, head + capacity), the consumer reads slots in [head, tail), and each
// range changes hands by a release store that the other side acquires. `T` moves
// from one thread to the other, hence `T: Send`.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; the slots hold values that may be sent.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let tail = self.tail.0.load(Ordering::Relaxed);
        let mut index = self.head.0.load(Ordering::Relaxed);
        while index != tail {
            // SAFETY: both ends are gone (they hold the only references), so this
            // thread owns all slots; those in [head, tail) were written and not read.
            self.slots[self.start + self.layout.slot::<T>(index)]
                .with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            index = index.wrapping_add(1);
        }
    }
}

/// Bytes of the memory that both ends of a ring share; `None` if they cannot be counted.
pub fn bytes<T>(capacity: usize) -> Option<usize> {
    let slots = capacity.checked_next_power_of_two()?.checked_add((1 << line_shift::<T>()) - 1)?;
    slots.checked_mul(size_of::<Slot<T>>())?.checked_add(size_of::<Shared<T>>())
}

/// The two ends of a ring with room for `capacity` values, rounded up to a power of two.
///
/// # Panics
/// If `capacity` is zero. Set-up code only: configuration is validated before.
pub fn channel<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity > 0, "a ring needs at least one slot");
    let capacity = capacity.next_power_of_two();
    let layout = Layout::new::<T>(capacity);
    let spare = (1 << line_shift::<T>()) - 1;
    let slots: Box<[Slot<T>]> =
        (0..capacity + spare).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let past_line = slots.as_ptr() as usize % LINE_BYTES;
    let start = match past_line {
        0 => 0,
        past => ((LINE_BYTES - past) / size_of::<T>().max(1)).min(spare),
    };
    let shared = Arc::new(Shared {
        head: CachePadded(AtomicUsize::new(0)),
        tail: CachePadded(AtomicUsize::new(0)),
        layout,
        start,
        slots,
    });
    let slots = Slots { first: &raw const shared.slots[start], layout };
    let producer = Producer { shared: shared.clone(), slots, tail: 0, published: 0, head: 0 };
    let consumer = Consumer { shared, slots, head: 0, released: 0, tail: 0, values: PhantomData };
    (producer, consumer)
}

/// An end's own access to the slots, without reading shared state.
struct Slots<T> {
    /// Slot 0; `layout.capacity` of them exist as long as the end has its `Shared`.
    first: *const Slot<T>,
    layout: Layout,
}

impl<T> Clone for Slots<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slots<T> {}

// SAFETY: the pointer is to the slots of the end's `Shared`, which may be sent and shared if
// `T` may be sent (above); the layout is plain numbers.
unsafe impl<T: Send> Send for Slots<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Slots<T> {}

impl<T> Slots<T> {
    #[inline(always)]
    fn at(&self, index: usize) -> &Slot<T> {
        // SAFETY: a layout's slots are below its capacity, so within the allocation, which lives as
        // long as the end that holds this. Which accesses to a slot are allowed is up to the end.
        unsafe { &*self.first.add(self.layout.slot::<T>(index)) }
    }
}

/// The end that writes.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    slots: Slots<T>,
    /// Next slot to write.
    tail: usize,
    /// The tail last made visible to the consumer.
    published: usize,
    /// The consumer's head as last read.
    head: usize,
}

impl<T> Producer<T> {
    /// Slots in the ring.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.slots.layout.capacity
    }

    /// Whether `count` more values fit; reads the consumer's index only if the cached one says no.
    #[inline]
    pub fn has_room(&mut self, count: usize) -> bool {
        if self.capacity() - self.tail.wrapping_sub(self.head) >= count {
            return true;
        }
        self.head = self.shared.head.0.load(Ordering::Acquire);
        self.capacity() - self.tail.wrapping_sub(self.head) >= count
    }

    /// Writes a value without making it visible yet; a full ring returns it.
    #[inline(always)]
    pub fn stage(&mut self, value: T) -> Result<(), T> {
        if !self.has_room(1) {
            return Err(value);
        }
        // SAFETY: by has_room the slot at `tail` lies in [tail, head + capacity): the consumer has
        // released it (acquired in has_room) and will not read it before `publish`, so this side
        // has exclusive access.
        self.slots.at(self.tail).with_mut(|slot| unsafe { (*slot).write(value) });
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Has `write` fill the next slot, without making it visible yet; false if the ring is full.
    ///
    /// `write` must initialise the slot: this is for the crate's own moves.
    #[inline(always)]
    pub(crate) fn stage_with(&mut self, write: impl FnOnce(*mut MaybeUninit<T>)) -> bool {
        if !self.has_room(1) {
            return false;
        }
        self.slots.at(self.tail).with_mut(write);
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Makes all staged values visible with one release store; returns their number.
    #[inline]
    pub fn publish(&mut self) -> usize {
        let count = self.tail.wrapping_sub(self.published);
        if count != 0 {
            self.published = self.tail;
            self.shared.tail.0.store(self.tail, Ordering::Release);
        }
        count
    }

    /// Stages and publishes one value; a full ring returns it.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        self.stage(value)?;
        self.publish();
        Ok(())
    }

    /// Values in the ring, including staged ones, as far as this side knows.
    pub fn occupancy(&self) -> usize {
        self.tail.wrapping_sub(self.shared.head.0.load(Ordering::Acquire))
    }

    /// Whether at least half of its places are taken, as far as this side knows.
    pub fn is_half_full(&self) -> bool {
        2 * self.occupancy() >= self.slots.layout.capacity
    }

    /// Requests ownership of the lines that the next `count` values will be written to.
    #[inline]
    pub fn prefetch_slots(&self, count: usize) {
        #[cfg(not(loom))]
        for ahead in (0..count).step_by(1 << line_shift::<T>()) {
            let slot = self.slots.at(self.tail.wrapping_add(ahead));
            slot.with(|slot| crate::prefetch::for_write(slot.cast()));
        }
        #[cfg(loom)]
        let _ = count;
    }
}

/// The end that reads.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    slots: Slots<T>,
    /// Next slot to read.
    head: usize,
    /// The head last made visible to the producer.
    released: usize,
    /// The producer's tail as last read.
    tail: usize,
    /// `peek` lends values through a shared reference: `Sync` only if `T` is.
    values: PhantomData<T>,
}

impl<T> Consumer<T> {
    /// Values that can be popped now; reads the producer's index only if none are known.
    #[inline]
    pub fn available(&mut self) -> usize {
        let known = self.tail.wrapping_sub(self.head);
        if known != 0 {
            return known;
        }
        self.refresh()
    }

    /// Reads the producer's index again and returns how many values can be popped now.
    #[inline]
    pub fn refresh(&mut self) -> usize {
        self.tail = self.shared.tail.0.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.head)
    }

    /// Takes the oldest value. `release` returns its slot to the producer.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        if self.available() == 0 {
            return None;
        }
        // SAFETY: by `available` the slot at `head` lies in [head, tail): the producer has
        // published it (acquired in `available`) and does not touch it until it is released. It is
        // read once, since `head` moves past it here.
        let value = self.slots.at(self.head).with(|slot| unsafe { (*slot).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        Some(value)
    }

    /// Hands up to `count` of the oldest values to `take`, a line of slots at a time. `release`
    /// returns their slots to the producer.
    #[inline(always)]
    pub(crate) fn take_with(&mut self, count: usize, mut take: impl FnMut(*const MaybeUninit<T>)) {
        let mut left = count.min(self.tail.wrapping_sub(self.head));
        while left != 0 {
            let in_line = self.head & self.slots.layout.slot_mask;
            let run = (self.slots.layout.slot_mask + 1 - in_line).min(left);
            let first = self.slots.at(self.head) as *const Slot<T>;
            for ahead in 0..run {
                // SAFETY: slots of a line are adjacent. These are in [head, tail) and read once, as
                // in `pop`: `head` moves past them below. (`take` is this crate's own and does not
                // panic.)
                unsafe { (*first.add(ahead)).with(&mut take) };
            }
            self.head = self.head.wrapping_add(run);
            left -= run;
        }
    }

    /// The value `ahead` places after the oldest, if it has arrived.
    #[inline(always)]
    pub fn peek(&self, ahead: usize) -> Option<&T> {
        if ahead >= self.tail.wrapping_sub(self.head) {
            return None;
        }
        let slot = self.slots.at(self.head.wrapping_add(ahead));
        // SAFETY: the slot lies in [head, tail) and stays this side's until it is popped,
        // which takes `&mut self` and so ends the borrow first.
        Some(slot.with(|slot| unsafe { (*slot).assume_init_ref() }))
    }

    /// Prefetches the lines that hold the next `count` values.
    #[inline]
    pub fn prefetch_slots(&self, count: usize) {
        #[cfg(not(loom))]
        for ahead in (0..count).step_by(1 << line_shift::<T>()) {
            let slot = self.slots.at(self.head.wrapping_add(ahead));
            slot.with(|slot| crate::prefetch::for_read(slot.cast()));
        }
        #[cfg(loom)]
        let _ = count;
    }

    /// Returns all popped slots with one release store; whether there were any.
    #[inline]
    pub fn release(&mut self) -> bool {
        let has_popped = self.released != self.head;
        if has_popped {
            self.released = self.head;
            self.shared.head.0.store(self.head, Ordering::Release);
        }
        has_popped
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // Values staged but never published have no other owner: make them visible, so that the
        // consumer, or the ring's own drop, finds them.
        self.publish();
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("capacity", &self.slots.layout.capacity)
            .finish_non_exhaustive()
    }
}
