//! Single-producer, single-consumer ring: one release store per burst.
//!
//! ```
//! let (mut producer, mut consumer) = picnic_core::ring::spsc::channel::<u32>(8);
//! assert!(producer.stage(7).is_ok()); // written, not yet visible
//! assert_eq!(consumer.available(), 0);
//! producer.publish(); // one release store makes the burst visible
//! assert_eq!(consumer.available(), 1);
//! assert_eq!(consumer.pop(), Some(7));
//! consumer.release(); // one release store gives the slots back
//! ```
//!
//! Successive lines of slots do not lie next to each other in memory but are spread over it
//! by [`Layout`]. A consumer that keeps up reads just behind the producer, and
//! with neighbouring lines its hardware prefetcher would fetch those the producer
//! is about to write: each then changes cores twice more
//! (`docs/decisions/008-out-of-the-prefetchers-way.md`).
//!
//! Guarantees: first in, first out; nothing lost, nothing doubled; a push into
//! a full ring gives the value back. Each end caches the other's index and
//! re-reads it only when the cached one says full (or empty), so that in steady
//! state the index lines move once per burst, not once per packet. Checked by
//! loom (`ring/models.rs`) and against a queue model (`tests/ring.rs`).

#![allow(unsafe_code)]

use crate::sync::{Arc, AtomicUsize, CachePadded, Ordering, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Where the `n`th value of a ring lies: in units of cache lines, at `n * step` modulo the
/// ring's lines. The step is odd and the number of lines a power of two, so every line has
/// its turn; it is about five eighths of the ring, so that no simple stride shows.
#[derive(Clone, Copy)]
struct Layout {
    mask: usize,
    /// Slots in a line are `1 << shift`.
    shift: u32,
    step: usize,
    /// Slots to skip at the start, so that lines of slots are cache lines.
    start: usize,
}

const LINE_BYTES: usize = 64;

impl Layout {
    fn new<T>(capacity: usize) -> Self {
        let per_line = match size_of::<T>() {
            0 => 1,
            size if LINE_BYTES.is_multiple_of(size) => (LINE_BYTES / size).min(capacity),
            _ => 1,
        };
        let lines = capacity / per_line;
        Layout {
            mask: capacity - 1,
            shift: per_line.trailing_zeros(),
            step: (lines * 5 / 8) | 1,
            start: 0,
        }
    }

    #[inline(always)]
    fn slot(&self, index: usize) -> usize {
        let index = index & self.mask;
        let line = (index >> self.shift).wrapping_mul(self.step) << self.shift;
        self.start + (line & self.mask | index & ((1 << self.shift) - 1))
    }
}

struct Shared<T> {
    /// Slots given back by the consumer; only the consumer stores it.
    head: CachePadded<AtomicUsize>,
    /// Slots made visible by the producer; only the producer stores it.
    tail: CachePadded<AtomicUsize>,
    layout: Layout,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
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
            self.slots[self.layout.slot(index)]
                .with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            index = index.wrapping_add(1);
        }
    }
}

/// The two ends of a ring with room for `capacity` values, rounded up to a power of two.
///
/// # Panics
/// If `capacity` is zero. Set-up code only: configuration is validated before.
pub fn channel<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity > 0, "a ring needs at least one slot");
    let capacity = capacity.next_power_of_two();
    let mut layout = Layout::new::<T>(capacity);
    let spare = (1 << layout.shift) - 1;
    let slots: Box<[UnsafeCell<MaybeUninit<T>>]> =
        (0..capacity + spare).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let past_line = slots.as_ptr() as usize % LINE_BYTES;
    if past_line != 0 {
        layout.start = ((LINE_BYTES - past_line) / size_of::<T>().max(1)).min(spare);
    }
    let shared = Arc::new(Shared {
        head: CachePadded(AtomicUsize::new(0)),
        tail: CachePadded(AtomicUsize::new(0)),
        layout,
        slots,
    });
    let producer = Producer { shared: shared.clone(), layout, tail: 0, published: 0, head: 0 };
    let consumer = Consumer { shared, layout, head: 0, released: 0, tail: 0, values: PhantomData };
    (producer, consumer)
}

/// The end that writes.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    layout: Layout,
    /// Next slot to write.
    tail: usize,
    /// What the consumer has been told.
    published: usize,
    /// The consumer's head as last read.
    head: usize,
}

impl<T> Producer<T> {
    /// Slots in the ring.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.layout.mask + 1
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

    /// Writes a value without making it visible yet; a full ring gives it back.
    #[inline(always)]
    pub fn stage(&mut self, value: T) -> Result<(), T> {
        if !self.has_room(1) {
            return Err(value);
        }
        // SAFETY: has_room says that the slot at `tail` lies in [tail, head + capacity):
        // the consumer has released it (acquired in has_room) and will not look at it
        // before `publish`. `Layout::slot` stays below its start plus the capacity, and the
        // slice is longer than that by its spare slots, so the index is in bounds.
        let slot = unsafe { self.shared.slots.get_unchecked(self.layout.slot(self.tail)) };
        // SAFETY: as above, this side has the slot to itself.
        slot.with_mut(|slot| unsafe { (*slot).write(value) });
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
        // SAFETY: as in `stage`.
        let slot = unsafe { self.shared.slots.get_unchecked(self.layout.slot(self.tail)) };
        slot.with_mut(write);
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Makes all staged values visible with one release store; returns how many there were.
    #[inline]
    pub fn publish(&mut self) -> usize {
        let count = self.tail.wrapping_sub(self.published);
        if count != 0 {
            self.published = self.tail;
            self.shared.tail.0.store(self.tail, Ordering::Release);
        }
        count
    }

    /// Stages and publishes one value; a full ring gives it back.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        self.stage(value)?;
        self.publish();
        Ok(())
    }

    /// Values in the ring, staged ones included, as far as this side knows.
    pub fn occupancy(&self) -> usize {
        self.tail.wrapping_sub(self.shared.head.0.load(Ordering::Acquire))
    }

    /// Asks the processor to own the lines that the next `count` values will be written to.
    #[inline]
    pub fn prefetch_slots(&self, count: usize) {
        #[cfg(not(loom))]
        for ahead in (0..count).step_by(1 << self.layout.shift) {
            let slot = &self.shared.slots[self.layout.slot(self.tail.wrapping_add(ahead))];
            slot.with(|slot| crate::prefetch::for_write(slot.cast()));
        }
        #[cfg(loom)]
        let _ = count;
    }
}

/// The end that reads.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    layout: Layout,
    /// Next slot to read.
    head: usize,
    /// What the producer has been told.
    released: usize,
    /// The producer's tail as last read.
    tail: usize,
    /// `peek` lends values through a shared reference: `Sync` only if `T` is.
    values: PhantomData<T>,
}

impl<T> Consumer<T> {
    /// Values that can be popped now; reads the producer's index only if none are known of.
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

    /// Takes the oldest value. Its slot goes back to the producer at `release`.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        if self.available() == 0 {
            return None;
        }
        // SAFETY: `available` says that the slot at `head` lies in [head, tail): the
        // producer has published it (acquired in `available`) and does not touch it until
        // it is released. It is read once, since `head` moves past it here.
        let slot = unsafe { self.shared.slots.get_unchecked(self.layout.slot(self.head)) };
        // SAFETY: as above, the slot was written and this side has it to itself.
        let value = slot.with(|slot| unsafe { (*slot).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        Some(value)
    }

    /// The value `ahead` places behind the oldest, if it has arrived.
    #[inline(always)]
    pub fn peek(&self, ahead: usize) -> Option<&T> {
        if ahead >= self.tail.wrapping_sub(self.head) {
            return None;
        }
        let slot = &self.shared.slots[self.layout.slot(self.head.wrapping_add(ahead))];
        // SAFETY: the slot lies in [head, tail) and stays this side's until it is popped,
        // which takes `&mut self` and so ends the borrow first.
        Some(slot.with(|slot| unsafe { (*slot).assume_init_ref() }))
    }

    /// Asks the processor for the lines that hold the next `count` values.
    #[inline]
    pub fn prefetch_slots(&self, count: usize) {
        #[cfg(not(loom))]
        for ahead in (0..count).step_by(1 << self.layout.shift) {
            let slot = &self.shared.slots[self.layout.slot(self.head.wrapping_add(ahead))];
            slot.with(|slot| crate::prefetch::for_read(slot.cast()));
        }
        #[cfg(loom)]
        let _ = count;
    }

    /// Gives all popped slots back with one release store.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            self.shared.head.0.store(self.head, Ordering::Release);
        }
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // What was staged but never published belongs to nobody else: make it visible, so
        // that the consumer, or the ring's own drop, finds it.
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
            .field("capacity", &(self.layout.mask + 1))
            .finish_non_exhaustive()
    }
}
