//! A burst: up to 64 descriptors that go through the card together.
//!
//! ```
//! use picnic_core::packet::{burst::Burst, pool::{Pool, PoolConfig}};
//! let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
//! let mut burst = Burst::new();
//! burst.push(pool.packet(b"one").unwrap()).unwrap();
//! for packet in burst.drain() {
//!     pool.free(packet);
//! }
//! ```
//!
//! Guarantees: no allocation; a full burst gives the descriptor back.

#![allow(unsafe_code)]

use super::desc::Descriptor;
use super::space;
use crate::ring::spsc::{Consumer, Producer};
use std::collections::VecDeque;
use std::fmt;
use std::mem::MaybeUninit;

/// Descriptors a burst can hold.
pub const BURST: usize = 64;

/// Up to [`BURST`] descriptors, in order.
pub struct Burst {
    length: usize,
    slots: [MaybeUninit<Descriptor>; BURST],
}

impl Default for Burst {
    fn default() -> Self {
        Burst::new()
    }
}

impl Burst {
    /// An empty burst.
    #[inline(always)]
    pub const fn new() -> Self {
        Burst { length: 0, slots: [const { MaybeUninit::uninit() }; BURST] }
    }

    /// Descriptors in the burst.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Descriptors that still fit.
    #[inline(always)]
    pub fn room(&self) -> usize {
        BURST - self.length
    }

    /// Appends a descriptor; a full burst gives it back.
    #[inline(always)]
    pub fn push(&mut self, descriptor: Descriptor) -> Result<(), Descriptor> {
        match self.slots.get_mut(self.length) {
            Some(slot) => {
                slot.write(descriptor);
                self.length += 1;
                Ok(())
            }
            None => Err(descriptor),
        }
    }

    /// Appends the value of `make` and lends it out, in place; `None` if there is none or the burst
    /// is full.
    #[inline(always)]
    pub fn push_with(
        &mut self,
        make: impl FnOnce() -> Option<Descriptor>,
    ) -> Option<&mut Descriptor> {
        let slot = self.slots.get_mut(self.length)?;
        let descriptor = slot.write(make()?);
        self.length += 1;
        Some(descriptor)
    }

    /// Appends descriptors until there are no more or the burst is full.
    #[inline(always)]
    pub(crate) fn extend(&mut self, descriptors: impl Iterator<Item = Descriptor>) {
        let mut added = 0;
        for (slot, descriptor) in self.slots.iter_mut().skip(self.length).zip(descriptors) {
            slot.write(descriptor);
            added += 1;
        }
        self.length += added;
    }

    /// Appends descriptors of a ring while there is room; returns their number.
    #[inline(always)]
    pub fn fill_from(&mut self, ring: &mut Consumer<Descriptor>) -> usize {
        let before = self.length;
        let mut to = self.slots[before..].iter_mut();
        ring.take_with(to.len(), |from| {
            if let Some(slot) = to.next() {
                // SAFETY: a slot handed out by `take_with` holds a descriptor and is not used
                // again. Another core wrote it, so it need not be read by words.
                *slot = unsafe { from.read() };
                self.length += 1;
            }
        });
        self.length - before
    }

    /// The descriptors, in order.
    #[inline(always)]
    pub fn as_slice(&self) -> &[Descriptor] {
        // SAFETY: the first `length` slots are initialised, always.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), self.length) }
    }

    /// The descriptors, in order, to be changed.
    #[inline(always)]
    pub fn as_mut_slice(&mut self) -> &mut [Descriptor] {
        // SAFETY: as in `as_slice`.
        unsafe { std::slice::from_raw_parts_mut(self.slots.as_mut_ptr().cast(), self.length) }
    }

    /// Takes all descriptors out, in order. Those not taken from the iterator stay.
    #[inline(always)]
    pub fn drain(&mut self) -> Drain<'_> {
        // Zero first: a leaked drain must not leave descriptors to be read twice.
        let length = std::mem::take(&mut self.length);
        Drain { burst: self, next: 0, length }
    }

    /// Appends all descriptors to a queue.
    #[inline]
    pub fn move_to(&mut self, to: &mut VecDeque<Descriptor>) {
        // Zero first: moved descriptors must not be read twice.
        let length = std::mem::take(&mut self.length);
        to.extend(self.slots[..length].iter().map(|slot| {
            // SAFETY: slots below the length the burst had are initialised; each is read once,
            // and the burst counts as empty.
            unsafe { space::relocated(slot) }
        }));
    }

    /// Appends up to `count` of the oldest descriptors of a queue while there is room.
    #[inline]
    pub fn move_from(&mut self, from: &mut VecDeque<Descriptor>, count: usize) {
        let count = count.min(from.len()).min(self.room());
        let (first, second) = from.as_slices();
        let oldest = first.iter().chain(second).take(count);
        for (slot, descriptor) in self.slots[self.length..].iter_mut().zip(oldest) {
            let from = (&raw const *descriptor).cast();
            // SAFETY: a descriptor is read, and forgotten below; the slot has none.
            unsafe { space::relocate(from, slot) };
        }
        self.length += count;
        forget_oldest(from, count);
    }

    /// Removes the last descriptor.
    #[inline]
    pub fn pop(&mut self) -> Option<Descriptor> {
        self.length = self.length.checked_sub(1)?;
        // SAFETY: the slot was within `length` until just now, so it is initialised, and it no
        // longer is, so it is read once.
        Some(unsafe { space::relocated(&raw const self.slots[self.length]) })
    }

    /// Keeps the descriptors that `keep` returns; order is kept.
    #[inline(always)]
    pub fn retain(&mut self, mut keep: impl FnMut(Descriptor) -> Option<Descriptor>) {
        let length = std::mem::take(&mut self.length);
        for index in 0..length {
            // SAFETY: slots below the old length are initialised; each is read once, and
            // written again only at or below the place just read.
            let descriptor = unsafe { space::relocated(&raw const self.slots[index]) };
            if let Some(descriptor) = keep(descriptor) {
                self.slots[self.length].write(descriptor);
                self.length += 1;
            }
        }
    }
}

/// Moves up to `count` of the oldest descriptors of a queue to the end of another.
#[inline]
pub fn move_oldest(from: &mut VecDeque<Descriptor>, count: usize, to: &mut VecDeque<Descriptor>) {
    let count = count.min(from.len());
    to.reserve(count);
    let (first, second) = from.as_slices();
    let (first, second) =
        (&first[..count.min(first.len())], &second[..count - count.min(first.len())]);
    for part in [first, second] {
        to.extend(part.iter().map(|descriptor| {
            // SAFETY: each is read once, and forgotten below; there is room, so that nothing
            // unwinds in between.
            unsafe { space::relocated((&raw const *descriptor).cast()) }
        }));
    }
    forget_oldest(from, count);
}

/// Removes descriptors from a queue that have been moved elsewhere.
#[inline]
fn forget_oldest(queue: &mut VecDeque<Descriptor>, count: usize) {
    const { assert!(!std::mem::needs_drop::<Descriptor>()) };
    queue.drain(..count);
}

impl fmt::Debug for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// Takes descriptors out of a burst, oldest first.
#[derive(Debug)]
pub struct Drain<'a> {
    burst: &'a mut Burst,
    next: usize,
    length: usize,
}

impl Iterator for Drain<'_> {
    type Item = Descriptor;

    #[inline(always)]
    fn next(&mut self) -> Option<Descriptor> {
        if self.next == self.length {
            return None;
        }
        // SAFETY: `next` is below the length the burst had, so the slot is initialised; `next`
        // moves past it and the burst counts as empty meanwhile, so it is read once.
        let descriptor = unsafe { space::relocated(self.burst.slots.as_ptr().add(self.next)) };
        self.next += 1;
        Some(descriptor)
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.length - self.next, Some(self.length - self.next))
    }
}

impl ExactSizeIterator for Drain<'_> {}

impl Drop for Drain<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.next != self.length {
            self.close_gap();
        }
    }
}

impl Drain<'_> {
    /// Moves the descriptors to the rings of their queues, slot to slot, in order: the `n`th of the
    /// burst goes to the ring that `ring` finds for `queues[n]`.
    ///
    /// Stops at the first whose ring has no room or does not exist, and returns it with its queue;
    /// call again for the rest. `None` at the end of the burst or of `queues`.
    #[inline(always)]
    pub(crate) fn scatter<R>(
        &mut self,
        queues: &[u16],
        rings: &mut [R],
        ring: impl Fn(&mut R) -> &mut Producer<Descriptor>,
    ) -> Option<(u16, Descriptor)> {
        let slots = self.burst.slots.as_ptr();
        #[cfg(target_arch = "x86_64")]
        let wide = std::arch::is_x86_feature_detected!("avx2");
        for &queue in queues.get(self.next..self.length.min(queues.len()))? {
            // SAFETY: as in `next`: initialised, and read once, since `next` moves past it.
            let from = unsafe { slots.add(self.next) };
            self.next += 1;
            let staged = rings.get_mut(usize::from(queue)).is_some_and(|found| {
                ring(found).stage_with(|to| {
                    #[cfg(target_arch = "x86_64")]
                    if wide {
                        // SAFETY: `from` holds a descriptor, `to` is a free slot of the same size,
                        // and the processor has the feature.
                        return unsafe { space::relocate_wide(from, to) };
                    }
                    // SAFETY: as above.
                    unsafe { space::relocate(from, to) }
                })
            });
            if !staged {
                // SAFETY: it was not moved, so this is the only time it is read.
                return Some((queue, unsafe { space::relocated(from) }));
            }
        }
        None
    }

    #[cold]
    fn close_gap(&mut self) {
        let left = self.length - self.next;
        // SAFETY: `left` initialised slots move down to the front of the same array; `copy`
        // allows the ranges to overlap.
        unsafe {
            let slots = self.burst.slots.as_mut_ptr();
            std::ptr::copy(slots.add(self.next), slots, left);
        }
        self.burst.length = left;
    }
}
