//! What lives on the borrowed core beside the packet path: NIC OS, say.
//!
//! A card asks its [`Resident`] for a turn when the time it named has come or its
//! [`Attention`] was raised. A turn runs at most one segment. Between any two the
//! packet path runs until no wire has a whole burst left, or the resident's patience
//! ends: what a resident adds to the way of a packet is one segment at most, however
//! many have come in meanwhile.
//!
//! Guarantees: a card without a resident, or with an idle one, pays a compare and
//! two loads per turn; every packet a resident has is *held* in the ledger until
//! it leaves by a door; a segment starts at the time its turn is given and ends
//! at the next time the world reads, so what it took is measured, not guessed.
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
    /// Whose it was: a number of the resident's own.
    pub task: u32,
    /// Nanoseconds of work that it stands for beyond what its code does: the world lets them
    /// pass from the segment's start, on a real core by working, on a virtual one by the clock.
    pub work_ns: u64,
    /// What it takes on a virtual core if it stands for no further work, in nanoseconds.
    pub model_ns: u64,
}

/// What a resident did with its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It ran a segment. [`Resident::ended`] will tell it when that was over.
    Ran(Segment),
    /// It ran none, and wants its next turn at this time, or when its attention is raised.
    Idle(Option<Time>),
}

/// How long residents wait that say nothing of it: a millisecond.
pub const PATIENCE_NS: u64 = 1_000_000;

/// What lives on the borrowed core beside the packet path.
pub trait Resident: Send {
    /// How its attention is raised, and where the packets it holds are counted.
    fn attention(&self) -> &Arc<Attention>;

    /// Does what is due at `now`, and runs one segment at most. Packets go through `doors`.
    fn turn(&mut self, now: Time, doors: &mut Doors) -> Turn;

    /// The segment of the last turn ended at `now`. Returns when the next turn is wanted.
    fn ended(&mut self, now: Time) -> Option<Time>;

    /// How long it waits for its turn while packets are left at the wires, in nanoseconds. Packets
    /// that come faster than the card takes them delay a segment by no more.
    fn patience_ns(&self) -> u64 {
        PATIENCE_NS
    }

    /// Obeys an order, between bursts; what is replaced is left in it. False if it is not for
    /// this resident, or cannot be done.
    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool;

    /// Ends all it runs and lets go of every packet and buffer it has. It wants no turn again.
    fn stop(&mut self, now: Time, doors: &mut Doors);
}

/// How whoever has something for a resident makes it look, and how many packets it holds.
#[derive(Default)]
pub struct Attention {
    raised: AtomicBool,
    held: Counter,
    bell: OnceLock<(Arc<Gate>, Arc<dyn Doorbell>)>,
}

impl Attention {
    /// There is something to look at; to be called on the borrowed core, which is awake.
    #[inline(always)]
    pub fn raise_here(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    /// There is something to look at; from any thread. Wakes the borrowed core if it sleeps.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        if let Some((gate, doorbell)) = self.bell.get() {
            // The card arms its gate, then looks here; this side writes here, then looks there.
            Gate::order_publish();
            if gate.interrupt() {
                doorbell.ring();
            }
        }
    }

    /// Whether it is raised.
    #[inline(always)]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Lowers it; the resident now looks.
    #[inline]
    pub fn lower(&self) {
        // Whatever was written before it was raised is seen by what follows.
        self.raised.swap(false, Ordering::AcqRel);
    }

    /// Packets the resident holds. Only the borrowed core may write it.
    #[inline(always)]
    pub fn held(&self) -> &Counter {
        &self.held
    }

    /// What wakes the borrowed core. Once per card; later calls change nothing.
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
