//! Hooks: observe packets at the points of a card.
//!
//! ```
//! use picnic_core::hook::{Hook, HookPoint, Hooks, Observer};
//! use picnic_core::{ledger::Stage, packet::desc::Descriptor, time::Time};
//! use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
//!
//! #[derive(Clone, Default)]
//! struct Count(Arc<AtomicUsize>);
//! impl Observer for Count {
//!     fn observe(&mut self, _now: Time, _stage: Stage, packets: &[Descriptor]) {
//!         self.0.fetch_add(packets.len(), Ordering::Relaxed);
//!     }
//! }
//! impl Hook for Count {
//!     fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
//!         matches!(point, HookPoint::Queue { .. }).then(|| Box::new(self.clone()) as _)
//!     }
//! }
//! let hooks = Hooks::none().with(Count::default());
//! # assert!(!hooks.observers(&HookPoint::Queue { index: 0, guest: None }).is_empty());
//! ```
//!
//! | point | observers are shown |
//! |---|---|
//! | wire | packets received by the card, and packets taken by the wire for transmission |
//! | function | packets entering it |
//! | target queue | packets about to be delivered to the host |
//!
//! Guarantees: an observer changes nothing, sees packets in order, and is used by one thread
//! at a time. A point without observers costs one branch per burst. To change packets, wrap
//! the port, as the fault injector does.

use crate::direction::Direction;
use crate::ledger::Stage;
use crate::packet::desc::Descriptor;
use crate::time::Time;
use std::fmt;
use std::sync::Arc;

/// A point of a card that packets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint<'a> {
    /// A wire, both ways: stages `wire` and `wire_tx`.
    Wire {
        /// Its number.
        index: usize,
        /// Its name.
        name: &'a str,
    },
    /// A function, at its entrance.
    Function {
        /// The chain it is in, and so the stage of what enters it.
        direction: Direction,
        /// Its place there, from 0.
        position: usize,
        /// Its name in the card file.
        name: &'a str,
    },
    /// A target queue, before the host: stage `target`.
    Queue {
        /// Its number.
        index: u16,
        /// Name of its guest, if it has one.
        guest: Option<&'a str>,
    },
}

/// Observes the packets of one point, on the thread that handles them there.
///
/// It is part of the data path: it takes no lock that could block and allocates nothing.
pub trait Observer: Send {
    /// Every wire of the card waits until polled: the observer may wait for room instead of missing
    /// packets, since none are lost meanwhile. Called once, before any burst.
    fn may_wait(&mut self) {}

    /// A burst is about to be shown. False if it is not wanted: neither [`Observer::observe`] nor
    /// [`Observer::end`] follows.
    fn begin(&mut self) -> bool {
        true
    }

    /// Packets of the burst, in order, possibly in several calls.
    fn observe(&mut self, now: Time, stage: Stage, packets: &[Descriptor]);

    /// The burst has been shown.
    fn end(&mut self) {}
}

/// Places observers at the points of a card: when it is built, and when functions are swapped in.
pub trait Hook: Send + Sync {
    /// An observer for this point, if wanted.
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>>;
}

/// A hook, or none.
impl<H: Hook> Hook for Option<H> {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        self.as_ref()?.observer(point)
    }
}

/// The hooks of a card. Clones are the same hooks.
#[derive(Clone, Default)]
pub struct Hooks(Vec<Arc<dyn Hook>>);

impl Hooks {
    /// No hooks.
    pub fn none() -> Self {
        Hooks::default()
    }

    /// The same hooks and one more, which sees packets after them.
    #[must_use]
    pub fn with(mut self, hook: impl Hook + 'static) -> Self {
        self.0.push(Arc::new(hook));
        self
    }

    /// All observers of a point.
    pub fn observers(&self, point: &HookPoint<'_>) -> Observers {
        self.0.iter().filter_map(|hook| hook.observer(point)).collect()
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hooks").field(&self.0.len()).finish()
    }
}

struct ObserverSlot {
    observer: Box<dyn Observer>,
    /// It wants the current burst.
    open: bool,
}

/// The observers of one point.
#[derive(Default)]
pub struct Observers(Vec<ObserverSlot>);

impl Observers {
    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls [`Observer::may_wait`] of each.
    pub fn may_wait(&mut self) {
        self.0.iter_mut().for_each(|seat| seat.observer.may_wait());
    }

    /// Shows a burst.
    #[inline(always)]
    pub fn show(&mut self, now: Time, stage: Stage, packets: &[Descriptor]) {
        if !self.is_empty() {
            self.show_all(now, stage, packets);
        }
    }

    #[inline(never)]
    fn show_all(&mut self, now: Time, stage: Stage, packets: &[Descriptor]) {
        if !packets.is_empty() && self.begin() {
            self.observe(now, stage, packets);
            self.end();
        }
    }

    /// A burst is about to be shown in parts; false if no observer wants it. Ended by
    /// [`Observers::end`].
    pub fn begin(&mut self) -> bool {
        let mut any = false;
        for seat in &mut self.0 {
            seat.open = seat.observer.begin();
            any |= seat.open;
        }
        any
    }

    /// Shows a part of a burst.
    pub fn observe(&mut self, now: Time, stage: Stage, packets: &[Descriptor]) {
        for seat in self.0.iter_mut().filter(|seat| seat.open) {
            seat.observer.observe(now, stage, packets);
        }
    }

    /// The burst has been shown.
    pub fn end(&mut self) {
        for seat in self.0.iter_mut().filter(|seat| seat.open) {
            seat.observer.end();
        }
    }
}

impl FromIterator<Box<dyn Observer>> for Observers {
    fn from_iter<I: IntoIterator<Item = Box<dyn Observer>>>(observers: I) -> Self {
        let seat = |observer| ObserverSlot { observer, open: false };
        Observers(observers.into_iter().map(seat).collect())
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observers").field(&self.0.len()).finish()
    }
}
