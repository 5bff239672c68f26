//! Per-queue interrupt enable with polling, after KNET and Mogul's scheme.
//!
//! ```text
//!          interrupt()              begin()             rearm(), ring empty
//!  Armed ──────────────▶ Scheduled ─────────▶ Polling ──────────────────────▶ Armed
//!                                                ▲ rearm(), ring not empty │
//!                                                └─────────────────────────┘
//! ```
//!
//! The borrowed core interrupts a queue only while its gate is armed; the target core disables its
//! own queue's interrupt by not re-arming while there is work, and checks the ring once more after
//! re-arming, so that no wake-up is lost:
//!
//! * borrowed core: publish the ring, [`Gate::order_publish`], [`Gate::interrupt`];
//! * target core: find the ring empty, [`Gate::rearm`], check the ring again, and
//!   [`Gate::resume`] if packets arrived in between.
//!
//! A device whose interrupt cannot be masked pends it even while the target works ([`Gate::pend`]);
//! the target takes a pending interrupt at each poll and sleeps only if there is none
//! ([`Gate::rest`]). A pending interrupt is not pended twice.
//!
//! The two fences make it impossible that the target misses the descriptor *and*
//! the borrowed core misses the armed gate. Model: `ring/models.rs`.
//! Source: KNET, "per-queue interrupt activation"; Mogul and Ramakrishnan, 1997.

use crate::sync::{AtomicU32, Ordering, fence};

/// The state of a queue's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GateState {
    /// The next packet interrupts the target.
    Armed = 0,
    /// An interrupt has been sent.
    Scheduled = 1,
    /// The target is polling the queue; packets need no interrupt.
    Polling = 2,
}

/// One queue's gate, shared by the borrowed core and the target core.
///
/// A single number for which every value is valid, so that two processes can share its memory.
#[derive(Debug)]
#[repr(C, align(128))]
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
    /// A gate whose target does not wait yet: the target arms it.
    pub fn new() -> Self {
        Gate(AtomicU32::new(POLLING))
    }

    /// Borrowed core: orders earlier ring publishes before later reads of gates.
    ///
    /// One call serves all queues of a burst.
    #[inline]
    pub fn order_publish() {
        fence(Ordering::SeqCst);
    }

    /// Borrowed core: whether an interrupt would be accepted now.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ARMED
    }

    /// Borrowed core: takes the armed gate. If true, the caller must ring the doorbell once.
    #[inline]
    pub fn interrupt(&self) -> bool {
        // A plain load first: a gate that is not armed costs no locked instruction.
        self.is_armed()
            && self
                .0
                .compare_exchange(ARMED, SCHEDULED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Borrowed core: pends an interrupt even while the target works, as a device without masking
    /// does. The caller rings the doorbell. False if one was already pending.
    #[inline]
    pub fn pend(&self) -> bool {
        self.0.swap(SCHEDULED, Ordering::AcqRel) != SCHEDULED
    }

    /// Target core: the interrupt has arrived; returns whether there was one.
    #[inline]
    pub fn begin(&self) -> bool {
        self.0.compare_exchange(SCHEDULED, POLLING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Target core: enables the interrupt again. The caller must then check the ring once more.
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

    /// Target core: work was found after `rearm`; back to polling.
    ///
    /// False if the borrowed core was faster: its interrupt has been sent, and `begin` takes it.
    #[inline]
    pub fn resume(&self) -> bool {
        self.0.compare_exchange(ARMED, POLLING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The state of the gate, for display.
    pub fn state(&self) -> GateState {
        match self.0.load(Ordering::Relaxed) {
            ARMED => GateState::Armed,
            SCHEDULED => GateState::Scheduled,
            _ => GateState::Polling,
        }
    }
}
