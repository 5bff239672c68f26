//! Hands lists from the handle to a core, which takes the newest between two bursts.
//!
//! The handle puts a new list into the slot; the core sees the generation change, takes the new
//! list and leaves its old one. Only the newest list is kept, so a sleeping core delays no thread.
//!
//! Guarantees: the core neither waits nor frees. It tries the lock once per change, and again at
//! its next burst if the handle holds the lock.

use super::code::CoreCode;
use super::table::{Page, Table};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The code of one filter, for a core.
#[derive(Default)]
pub(super) enum CodeSlot {
    /// No code.
    #[default]
    Empty,
    /// The code that the core has.
    Kept,
    /// New code.
    Here(Box<CoreCode>),
}

/// A list, with the code and counters it needs.
#[derive(Default)]
pub(super) struct Delivery {
    pub(super) generation: u64,
    pub(super) table: Arc<Table>,
    pub(super) pages: Vec<Arc<Page>>,
    pub(super) code: Vec<CodeSlot>,
}

impl Delivery {
    /// Takes over the code to keep.
    fn inherit(&mut self, old: &mut Delivery) {
        for (new, old) in self.code.iter_mut().zip(&mut old.code) {
            if matches!(new, CodeSlot::Kept) {
                *new = std::mem::take(old);
            }
        }
    }
}

#[derive(Default)]
struct Slot {
    fresh: Option<Delivery>,
    retired: Option<Delivery>,
}

/// Between the handle and one core.
#[derive(Default)]
pub(super) struct Exchange {
    /// Generation of the newest list.
    generation: AtomicU64,
    /// Generation of the list in use by the core.
    taken: AtomicU64,
    slot: Mutex<Slot>,
}

impl Exchange {
    /// Makes a list the newest.
    pub(super) fn publish(&self, mut delivery: Delivery) {
        let generation = delivery.generation;
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let retired = slot.retired.take();
        let mut passed_over = slot.fresh.take();
        if let Some(passed_over) = &mut passed_over {
            delivery.inherit(passed_over);
        }
        slot.fresh = Some(delivery);
        self.generation.store(generation, Ordering::Release);
        drop(slot);
        // Freed here, with the lock released.
        drop((retired, passed_over));
    }

    /// Frees the content that the core left in the slot.
    pub(super) fn reclaim(&self) {
        let retired = self.slot.lock().unwrap_or_else(PoisonError::into_inner).retired.take();
        drop(retired);
    }

    /// Generation of the list in use by the core.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Replaces `current` with a newer list, if there is one and the lock is free.
    #[inline(always)]
    pub(super) fn refresh(&self, current: &mut Delivery) {
        if self.generation.load(Ordering::Acquire) != current.generation {
            self.take(current);
        }
    }

    #[cold]
    fn take(&self, current: &mut Delivery) {
        let mut slot: MutexGuard<'_, Slot> = match self.slot.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(mut fresh) = slot.fresh.take() else { return };
        fresh.inherit(current);
        self.taken.store(fresh.generation, Ordering::Release);
        // Empty since the list was published: nothing is freed.
        slot.retired = Some(std::mem::replace(current, fresh));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::CallbackVerdict;

    /// User code that owns filters: dropping it, the core asks for its list.
    struct Owned {
        exchange: Arc<Exchange>,
        generation: Arc<AtomicU64>,
    }

    impl Drop for Owned {
        fn drop(&mut self) {
            let mut core = Delivery::default();
            self.exchange.refresh(&mut core);
            self.generation.store(core.generation, Ordering::Relaxed);
        }
    }

    #[test]
    fn cores_take_lists_while_old_ones_are_freed() {
        let (exchange, generation) = (Arc::<Exchange>::default(), Arc::<AtomicU64>::default());
        let owned = Owned { exchange: exchange.clone(), generation: generation.clone() };
        let callback = move |_: &mut picnic_core::function::PacketMut<'_>| {
            let _owned = &owned;
            CallbackVerdict::Next
        };
        let code = CoreCode { callback: Some(Box::new(callback)), ..CoreCode::default() };
        let code = vec![CodeSlot::Here(Box::new(code))];
        exchange.publish(Delivery { generation: 1, code, ..Delivery::default() });
        assert_eq!(generation.load(Ordering::Relaxed), 0);
        exchange.publish(Delivery { generation: 2, ..Delivery::default() });
        assert_eq!(generation.load(Ordering::Relaxed), 2);
    }
}
