//! A spinlock: an owner, a queue, and a cost of handing it over.
//!
//! ```
//! use picnic_core::time::Time;
//! use picnic_sim::machine::Lock;
//!
//! let mut lock = Lock::default();
//! // Core 0 holds it for 300 ns; core 1 asks 100 ns later and waits for 200.
//! lock.take(Time::from_nanos(0), 0, 300, 0);
//! let taken = lock.take(Time::from_nanos(100), 1, 300, 50);
//! assert_eq!((taken.waited_ns, taken.total_ns()), (200, 200 + 50 + 300));
//! ```
//!
//! Guarantees: cores get it in the order of their requests; a waiting core spins; a holder keeps it
//! for the announced time, since interrupts are off meanwhile.
//!
//! Source: KNET, "6% CPU in locks".

use picnic_core::time::Time;

/// A lock.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    free_at: Time,
    owner: Option<usize>,
    /// Times taken.
    pub taken: u64,
    /// Times that a core had to wait.
    pub contended: u64,
}

/// The time a core needed for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Waiting for others.
    pub waited_ns: u64,
    /// Moving it from its last owner's cache.
    pub handed_over_ns: u64,
    /// Holding it.
    pub held_ns: u64,
}

impl Taken {
    /// All of it.
    pub fn total_ns(&self) -> u64 {
        self.waited_ns + self.handed_over_ns + self.held_ns
    }
}

impl Lock {
    /// A core requests the lock at `now`, to hold it for `hold_ns`; `hand_over_ns` is the cost if
    /// another core had it last.
    pub fn take(&mut self, now: Time, core: usize, hold_ns: u64, hand_over_ns: u64) -> Taken {
        let waited_ns = self.free_at.since(now);
        let is_elsewhere = self.owner.is_some_and(|owner| owner != core);
        let handed_over_ns = if is_elsewhere { hand_over_ns } else { 0 };
        let taken = Taken { waited_ns, handed_over_ns, held_ns: hold_ns };
        (self.free_at, self.owner) = (now + taken.total_ns(), Some(core));
        self.taken += 1;
        self.contended += u64::from(waited_ns != 0);
        taken
    }

    /// The core that last had it.
    pub fn owner(&self) -> Option<usize> {
        self.owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_waiters_wait_for_those_in_front() {
        let (hold_ns, hand_over_ns) = (300, 150);
        let mut lock = Lock::default();
        for core in 0..8 {
            let taken = lock.take(Time::from_nanos(0), core as usize, hold_ns, hand_over_ns);
            // The first gets it at once and from nobody.
            let moves = u64::from(core != 0);
            let wanted = core * hold_ns + core.saturating_sub(1) * hand_over_ns;
            assert_eq!((taken.waited_ns, taken.handed_over_ns), (wanted, moves * hand_over_ns));
        }
        assert_eq!((lock.taken, lock.contended, lock.owner()), (8, 7, Some(7)));
    }

    #[test]
    fn repeated_owners_have_no_handover() {
        let mut lock = Lock::default();
        for round in 0..5 {
            let taken = lock.take(Time::from_nanos(round * 1000), 3, 100, 70);
            assert_eq!(taken.total_ns(), 100);
        }
        assert_eq!(lock.take(Time::from_nanos(9_000), 4, 100, 70).total_ns(), 170);
        assert_eq!(lock.contended, 0);
    }

    #[test]
    fn without_a_cost_it_costs_nothing() {
        let mut lock = Lock::default();
        for core in 0..10 {
            assert_eq!(lock.take(Time::from_nanos(0), core, 0, 0).total_ns(), 0);
        }
    }
}
