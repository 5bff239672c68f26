//! Per-queue interrupt enable with polling, after KNET and Mogul's scheme.
//!
//! ```text
//!          interrupt()              begin()             rearm(), ring empty
//!  Armed ──────────────▶ Scheduled ─────────▶ Polling ──────────────────────▶ Armed
//!                                                ▲ rearm(), ring not empty │
//!                                                └─────────────────────────┘
//! ```
//!
//! The borrowed core interrupts a queue only while its gate is armed; the target
//! core disables its own queue's interrupt by not re-arming while there is work,
//! and looks at the ring once more after re-arming, so that no wake-up is lost:
//!
//! * borrowed core: publish the ring, [`Gate::order_publish`], [`Gate::interrupt`];
//! * target core: find the ring empty, [`Gate::rearm`], look at the ring again,
//!   and [`Gate::resume`] if something came in between.
//!
//! A device whose interrupt cannot be masked pends it whether or not the target is at work
//! ([`Gate::pend`]); the target takes what is pending at each look and sleeps only if nothing is
//! ([`Gate::rest`]). One that is pending is not pended twice.
//!
//! The two fences make it impossible that the target misses the descriptor *and*
//! the borrowed core misses the armed gate. Model: `ring/models.rs`.
//! Source: KNET, "per-queue interrupt activation"; Mogul and Ramakrishnan, 1997.

use crate::sync::{AtomicU32, Ordering, fence};

/// Where a queue's gate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GateState {
    /// The next packet interrupts the target.
    Armed = 0,
    /// An interrupt is on its way.
    Scheduled = 1,
    /// The target is polling the queue; packets need no interrupt.
    Polling = 2,
}

/// One queue's gate, shared by the borrowed core and the target core.
#[derive(Debug)]
#[repr(align(128))]
pub struct Gate(AtomicU32);

const ARMED: u32 = GateState::Armed as u32;
const SCHEDULED: u32 = GateState::Scheduled as u32;
const POLLING: u32 = GateState::Polling as u32;

impl Default for Gate {
    fn default() -> Self {
        Gate::new()
    }
}

impl Gate {
    /// A gate whose target has not started to wait: the target arms it.
    pub fn new() -> Self {
        Gate(AtomicU32::new(POLLING))
    }

    /// Borrowed core: orders earlier ring publishes before later looks at gates.
    ///
    /// One call serves all queues of a burst.
    #[inline]
    pub fn order_publish() {
        fence(Ordering::SeqCst);
    }

    /// Borrowed core: whether an interrupt would be taken now.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ARMED
    }

    /// Borrowed core: takes the armed gate. If true, the caller rings the doorbell, once.
    #[inline]
    pub fn interrupt(&self) -> bool {
        // The plain load first: a gate that is not armed costs no locked instruction.
        self.is_armed()
            && self
                .0
                .compare_exchange(ARMED, SCHEDULED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Borrowed core: pends an interrupt whatever the target does, as a device does that cannot
    /// be masked. The caller rings the doorbell. False if one was pending already.
    #[inline]
    pub fn pend(&self) -> bool {
        self.0.swap(SCHEDULED, Ordering::AcqRel) != SCHEDULED
    }

    /// Target core: the interrupt has arrived; returns whether there was one.
    #[inline]
    pub fn begin(&self) -> bool {
        self.0.compare_exchange(SCHEDULED, POLLING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Target core: enables the interrupt again. The caller must now look at the ring once more.
    #[inline]
    pub fn rearm(&self) {
        self.0.store(ARMED, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Target core: as `rearm`, unless an interrupt is pending: then false, and `begin` takes it.
    #[inline]
    pub fn rest(&self) -> bool {
        let rests = self.0.compare_exchange(POLLING, ARMED, Ordering::AcqRel, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        rests.is_ok()
    }

    /// Target core: work turned up after `rearm`; back to polling.
    ///
    /// False if the borrowed core was faster: its interrupt is on the way, and `begin` takes it.
    #[inline]
    pub fn resume(&self) -> bool {
        self.0.compare_exchange(ARMED, POLLING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Where the gate stands, for display.
    pub fn state(&self) -> GateState {
        match self.0.load(Ordering::Relaxed) {
            ARMED => GateState::Armed,
            SCHEDULED => GateState::Scheduled,
            _ => GateState::Polling,
        }
    }
}
