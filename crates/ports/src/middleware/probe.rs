//! Probes: places of a running card where captures start and end at any time.
//!
//! A [`Probe`] observes a wire, a queue or a function from when the card is built, or a function is
//! swapped in. Its [`Handle`] adds and removes points of a capture, from any thread.
//!
//! Guarantees: without a capture, a burst costs one load of a flag that is not written. Points are
//! made and freed on the handle's side. Both sides only try the lock between them, so the data path
//! never waits and never calls the kernel: a burst that finds it held passes, and the next one
//! tries again.

#[cfg(test)]
mod tests;

use crate::capture::Point;
use picnic_core::hook::Observer;
use picnic_core::ledger::Stage;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// Captures at a time.
pub const MOST: usize = 4;

/// Requests to a probe, and their results.
#[derive(Default)]
struct PointChange {
    /// Points to remove, then points to add, by capture.
    take: [bool; MOST],
    put: [Option<Box<Point>>; MOST],
    /// Removed points, for the handle's side to free.
    gone: [Option<Box<Point>>; MOST],
}

#[derive(Default)]
struct Slot {
    is_changed: AtomicBool,
    change: Mutex<PointChange>,
}

impl Slot {
    fn try_lock(&self) -> Option<MutexGuard<'_, PointChange>> {
        match self.change.try_lock() {
            Ok(change) => Some(change),
            // Each of its states is complete.
            Err(TryLockError::Poisoned(change)) => Some(change.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The data path's end.
pub struct Probe {
    slot: Arc<Slot>,
    points: [Option<Box<Point>>; MOST],
    is_open: bool,
}

/// The other end: adds and removes captures.
#[derive(Clone)]
pub struct Handle(Arc<Slot>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

impl Probe {
    /// A probe without captures.
    pub fn new() -> (Probe, Handle) {
        let slot = Arc::new(Slot::default());
        let probe = Probe { slot: slot.clone(), points: Default::default(), is_open: false };
        (probe, Handle(slot))
    }

    #[cold]
    fn obey(&mut self) {
        let Some(mut change) = self.slot.try_lock() else { return };
        let change = &mut *change;
        for (index, point) in self.points.iter_mut().enumerate() {
            if std::mem::take(&mut change.take[index]) {
                change.gone[index] = point.take();
            }
            if change.put[index].is_some() {
                *point = change.put[index].take();
            }
        }
        self.is_open = self.points.iter().any(Option::is_some);
        self.slot.is_changed.store(false, Ordering::Relaxed);
    }
}

impl Observer for Probe {
    #[inline]
    fn begin(&mut self) -> bool {
        if self.slot.is_changed.load(Ordering::Relaxed) {
            self.obey();
        }
        self.is_open
    }

    fn observe(&mut self, now: Time, stage: Stage, packets: &[Descriptor]) {
        for point in self.points.iter_mut().flatten() {
            point.observe(now, stage, packets);
        }
    }

    fn end(&mut self) {
        for point in self.points.iter_mut().flatten() {
            point.publish();
        }
    }
}

impl Handle {
    /// Adds a capture's point as number `index`, below [`MOST`]; the next burst sees it.
    pub fn put(&self, index: usize, point: Point) {
        let point = Some(Box::new(point));
        let freed = self.change(|change| {
            (change.put[index].take(), change.gone[index].take(), change.put[index] = point)
        });
        drop(freed);
    }

    /// Frees a removed point, if the burst that removed it has run.
    pub fn collect(&self, index: usize) {
        drop(self.change(|change| change.gone[index].take()));
    }

    /// Removes a capture's point: nothing is captured after the current burst.
    pub fn take(&self, index: usize) {
        let freed = self.change(|change| {
            change.take[index] = true;
            (change.put[index].take(), change.gone[index].take())
        });
        drop(freed);
    }

    /// Whether the observed object is gone: replaced by a swap, or the card has ended.
    pub fn is_orphaned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn change<R>(&self, make: impl FnOnce(&mut PointChange) -> R) -> R {
        loop {
            if let Some(mut change) = self.0.try_lock() {
                let made = make(&mut change);
                self.0.is_changed.store(true, Ordering::Relaxed);
                return made;
            }
            std::thread::sleep(Duration::from_micros(10));
        }
    }
}
