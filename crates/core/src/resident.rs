//! A program on the borrowed core beside the packet path, such as NIC OS.
//!
//! A card gives its [`Resident`] a turn when the time it named has come or its [`Attention`] was
//! raised. A turn runs at most one segment. Between two turns the packet path runs until no wire
//! has a whole burst left, or the resident's patience ends: a resident delays a packet by at most
//! one segment, however many are due.
//!
//! Guarantees: a card without a resident, or with an idle one, pays a compare and two loads per
//! turn; every packet that a resident has is *held* in the ledger until it leaves by a door; a
//! segment starts at the time of its turn and ends at the next time the world reads, so its
//! duration is measured, not guessed.
//!
//! Source: NICOS 4.5: a dispatcher loop that runs one handler to its end.

use crate::command::Prepared;
use crate::doorbell::Doorbell;
use crate::out::Doors;
use crate::ring::gate::Gate;
use crate::stats::Counter;
use crate::time::Time;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A segment that was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its owner: a number of the resident's own.
    pub task: u32,
    /// Nanoseconds of work that it represents beyond its code: from the segment's start, a real
    /// core works for that time, a virtual one advances its clock.
    pub work_ns: u64,
    /// Its duration on a virtual core if it represents no further work, in nanoseconds.
    pub model_ns: u64,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It ran a segment. [`Resident::ended`] is called when that has ended.
    Ran(Segment),
    /// It ran none, and wants its next turn at this time, or when its attention is raised.
    Idle(Option<Time>),
}

/// The default patience of residents: a millisecond.
pub const PATIENCE_NS: u64 = 1_000_000;

/// A program on the borrowed core beside the packet path.
pub trait Resident: Send {
    /// Its attention, with the count of packets it holds.
    fn attention(&self) -> &Arc<Attention>;

    /// Does what is due at `now`, and runs at most one segment. Packets go through `doors`.
    fn turn(&mut self, now: Time, doors: &mut Doors) -> Turn;

    /// The segment of the last turn ended at `now`. Returns when the next turn is wanted.
    fn ended(&mut self, now: Time) -> Option<Time>;

    /// The longest wait for a turn while packets are left at the wires, in nanoseconds. Packets
    /// that arrive faster than the card takes them delay a segment by no more.
    fn patience_ns(&self) -> u64 {
        PATIENCE_NS
    }

    /// Applies an order, between bursts; replaced state is left in it. False if it is not for this
    /// resident, or cannot be done.
    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool;

    /// Ends everything it runs and gives up every packet and buffer. It wants no further turn.
    fn stop(&mut self, now: Time, doors: &mut Doors);
}

/// Memory that a resident watches because others write it without raising its attention, such as
/// other processes. All is called on the borrowed core.
pub trait Watch: Send + Sync {
    /// Whether there is something for the resident.
    fn has_news(&self) -> bool;

    /// The core is about to sleep: from now on, news rings its doorbell. It checks once more then.
    fn rest(&self);

    /// The core is awake: news need not ring.
    fn wake(&self);
}

/// Requests a resident's turn, and counts the packets it holds.
#[derive(Default)]
pub struct Attention {
    raised: AtomicBool,
    /// The resident waits for something that `watch` sees.
    watching: AtomicBool,
    held: Counter,
    bell: OnceLock<(Arc<Gate>, Arc<dyn Doorbell>)>,
    watch: OnceLock<Arc<dyn Watch>>,
}

impl Attention {
    /// Requests a turn; only on the borrowed core, which is awake.
    #[inline(always)]
    pub fn raise_here(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    /// Requests a turn from any thread. Wakes the borrowed core if it sleeps.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        if let Some((gate, doorbell)) = self.bell.get() {
            // The card arms its gate, then reads here; this side writes here, then reads the gate.
            Gate::order_publish();
            if gate.interrupt() {
                doorbell.ring();
            }
        }
    }

    /// Whether it is raised, or watched memory has news.
    #[inline(always)]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire) || self.watch().is_some_and(Watch::has_news)
    }

    /// Sets what watches memory for the resident. Once; later calls change nothing.
    pub fn watched_by(&self, watch: Arc<dyn Watch>) {
        let _ = self.watch.set(watch);
    }

    /// Whether the memory is watched now; only on the borrowed core.
    #[inline]
    pub fn set_watching(&self, watching: bool) {
        self.watching.store(watching, Ordering::Relaxed);
    }

    /// Whether the memory is watched.
    #[inline(always)]
    pub fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn watch(&self) -> Option<&dyn Watch> {
        match self.is_watching() {
            true => self.watch.get().map(|watch| &**watch),
            false => None,
        }
    }

    /// The core is about to sleep; it checks [`Attention::is_raised`] after this.
    pub fn rest(&self) {
        if let Some(watch) = self.watch() {
            watch.rest();
        }
    }

    /// The core is awake.
    pub fn wake(&self) {
        if let Some(watch) = self.watch() {
            watch.wake();
        }
    }

    /// The doorbell of the borrowed core; none before the card is assembled.
    pub fn doorbell(&self) -> Option<&Arc<dyn Doorbell>> {
        self.bell.get().map(|(_, doorbell)| doorbell)
    }

    /// Lowers it; the resident now checks.
    #[inline]
    pub fn lower(&self) {
        // Everything written before it was raised is visible from here on.
        self.raised.swap(false, Ordering::AcqRel);
    }

    /// Packets the resident holds. Only the borrowed core may write it.
    #[inline(always)]
    pub fn held(&self) -> &Counter {
        &self.held
    }

    /// Connects the gate and doorbell that wake the borrowed core. Once per card; later calls
    /// change nothing.
    pub fn connect(&self, gate: Arc<Gate>, doorbell: Arc<dyn Doorbell>) {
        let _ = self.bell.set((gate, doorbell));
    }
}

impl fmt::Debug for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attention")
            .field("raised", &self.raised)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}
