//! A piece of the arena with its allocator, whose results are checked.

use super::UNIT_BYTES;
use crate::alloc::{Allocator, Figures};
use crate::task::TaskId;
use picnic_core::stats::Counter;
use picnic_filter::code::{AllocatorCounts, AllocatorHandle};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One bit for each unit of a region: whether it is allocated.
struct Units(Box<[u64]>);

impl Units {
    fn new(bytes: usize) -> Self {
        Units(vec![0; (bytes / UNIT_BYTES).div_ceil(64)].into())
    }

    /// The words of a run of units, each with its bits.
    #[inline]
    fn words(run: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        let mut first = run.start;
        std::iter::from_fn(move || {
            let count =
                (64 - first % 64).min(run.end.checked_sub(first).filter(|&left| left != 0)?);
            let bits = (u64::MAX >> (64 - count)) << (first % 64);
            let word = first / 64;
            first += count;
            Some((word, bits))
        })
    }

    /// Marks units as allocated; false, and no change, if one of them is already.
    #[inline]
    fn claim(&mut self, run: Range<usize>) -> bool {
        if Self::words(run.clone()).any(|(word, bits)| self.0[word] & bits != 0) {
            return false;
        }
        Self::words(run).for_each(|(word, bits)| self.0[word] |= bits);
        true
    }

    #[inline]
    fn release(&mut self, run: Range<usize>) {
        Self::words(run).for_each(|(word, bits)| self.0[word] &= !bits);
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// The part of an installed allocator that the list of filters has.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// Its filter is in the list.
    installed: AtomicBool,
    /// Its filter was removed, or never added.
    closed: AtomicBool,
    broken: AtomicBool,
    requests: Counter,
    bytes: Counter,
}

impl AllocatorHandle for Listed {
    fn install(&self) {
        self.installed.store(true, Ordering::Release);
    }

    fn uninstall(&self) {
        self.closed.store(true, Ordering::Release);
    }

    fn counts(&self) -> AllocatorCounts {
        AllocatorCounts {
            requests: self.requests.get(),
            bytes: self.bytes.get(),
            broken: self.broken.load(Ordering::Relaxed),
        }
    }
}

/// The answer of an allocator.
pub(super) enum Answer {
    /// A place within the region.
    Place(usize),
    /// It has no room.
    Exhausted,
    /// It returned a wrong place, or panicked.
    Wrong,
}

/// A piece of the arena with its allocator.
pub(super) struct Region {
    /// Its place in the arena.
    pub(super) bytes: Range<usize>,
    allocator: Box<dyn Allocator>,
    units: Units,
    pub(super) blocks: usize,
    /// The task that installed it; none for the arena itself.
    pub(super) owner: Option<TaskId>,
    pub(super) listed: Option<Arc<Listed>>,
    /// Nothing more is allocated from it.
    pub(super) retired: bool,
    /// Its allocator is not called any more.
    broken: bool,
    /// The region has ended, its bytes are returned.
    pub(super) gone: bool,
}

impl Region {
    /// Hands the bytes to an allocator; `None` if that panics.
    pub(super) fn new(
        arena: &mut [u8],
        bytes: Range<usize>,
        mut allocator: Box<dyn Allocator>,
        owner: Option<TaskId>,
        listed: Option<Arc<Listed>>,
    ) -> Option<Self> {
        let mine = &mut arena[bytes.clone()];
        catch_unwind(AssertUnwindSafe(|| allocator.reset(mine))).ok()?;
        Some(Region {
            units: Units::new(bytes.len()),
            bytes,
            allocator,
            blocks: 0,
            owner,
            listed,
            retired: false,
            broken: false,
            gone: false,
        })
    }

    /// Whether new allocations are made here.
    #[inline]
    pub(super) fn serves(&self) -> bool {
        let is_installed =
            |listed: &Arc<Listed>| listed.installed.load(Ordering::Acquire) && !self.is_closed();
        !self.retired && self.listed.as_ref().is_none_or(is_installed)
    }

    /// Whether its filter was removed.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.listed.as_ref().is_some_and(|listed| listed.closed.load(Ordering::Acquire))
    }

    /// Asks the allocator for a number of bytes, and checks the answer. An allocator is user code.
    #[inline]
    pub(super) fn allocate(&mut self, arena: &mut [u8], bytes: usize, align: usize) -> Answer {
        let mine = &mut arena[self.bytes.clone()];
        let allocator = &mut self.allocator;
        let asked = catch_unwind(AssertUnwindSafe(|| allocator.allocate(mine, bytes, align)));
        let place = match asked {
            Ok(Some(place)) => place,
            Ok(None) => return Answer::Exhausted,
            Err(_) => return Answer::Wrong,
        };
        let end = place.checked_add(bytes).filter(|&end| end <= self.bytes.len());
        let Some(end) = end.filter(|_| place.is_multiple_of(align)) else { return Answer::Wrong };
        if !self.units.claim(place / UNIT_BYTES..end / UNIT_BYTES) {
            return Answer::Wrong;
        }
        self.blocks += 1;
        if let Some(listed) = &self.listed {
            listed.requests.add(1);
            listed.bytes.add(bytes as u64);
        }
        Answer::Place(place)
    }

    /// Frees an allocation; false if the allocator refuses or panics.
    #[inline]
    pub(super) fn free(&mut self, arena: &mut [u8], place: usize, bytes: usize) -> bool {
        self.units.release(place / UNIT_BYTES..(place + bytes) / UNIT_BYTES);
        self.blocks -= 1;
        if self.broken {
            return true;
        }
        let (mine, allocator) = (&mut arena[self.bytes.clone()], &mut self.allocator);
        catch_unwind(AssertUnwindSafe(|| allocator.free(mine, place))).unwrap_or(false)
    }

    /// Its allocator is not called any more.
    pub(super) fn retire_broken(&mut self) {
        (self.retired, self.broken) = (true, true);
        if let Some(listed) = &self.listed {
            listed.broken.store(true, Ordering::Relaxed);
        }
    }

    /// Its state, as its allocator reports it; nothing if that panics.
    pub(super) fn figures(&self, arena: &[u8]) -> Figures {
        let mine = &arena[self.bytes.clone()];
        catch_unwind(AssertUnwindSafe(|| self.allocator.figures(mine))).unwrap_or_default()
    }

    /// Allocated bytes, counted from the places that were returned.
    #[cfg(test)]
    pub(super) fn allocated_bytes(&self) -> usize {
        self.units.count() * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_claimed_once() {
        let mut units = Units::new(16 * 200);
        assert!(units.claim(60..130) && units.count() == 70);
        assert!(!units.claim(0..61) && !units.claim(129..200) && !units.claim(64..65));
        assert!(units.claim(0..60) && units.claim(130..200) && units.claim(5..5));
        units.release(60..130);
        assert_eq!(units.count(), 130);
        assert!(units.claim(64..128));
    }
}
