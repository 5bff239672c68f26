//! A spinlock: an owner, a queue, and a cost of handing it over.
//!
//! ```
//! use picnic_core::time::Time;
//! use picnic_sim::machine::Lock;
//!
//! let mut lock = Lock::default();
//! // Core 0 holds it for 300 ns; core 1 asks 100 ns later and waits for 200.
//! let at = Time::from_nanos;
//! lock.take(at(0), at(0), 0, 300, 0);
//! let taken = lock.take(at(100), at(100), 1, 300, 50);
//! assert_eq!((taken.waited_ns, taken.total_ns()), (200, 200 + 50 + 300));
//! ```
//!
//! A piece of work asks at its start for locks that it takes later. A core that asks for an earlier
//! time in between gets the lock first, if it fits.
//!
//! Guarantees: at one time, one core has it; cores get it in the order in which they ask; a core
//! that waits spins; a holder keeps it for the stated time, since interrupts are off for that time.
//!
//! Source: KNET, "6% CPU in locks".

use picnic_core::time::Time;
use std::collections::VecDeque;

/// A lock.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    /// Times at which cores hold it, in order, without those that have ended.
    holds: VecDeque<(Time, Time, usize)>,
    /// The core that had it before these.
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
    /// A piece of work that begins `now` asks for the lock at `asked_at`, to hold it for `hold_ns`;
    /// `hand_over_ns` is the cost if another core had it last.
    pub fn take(
        &mut self,
        now: Time,
        asked_at: Time,
        core: usize,
        hold_ns: u64,
        hand_over_ns: u64,
    ) -> Taken {
        while let Some(&(_, end, core)) = self.holds.front()
            && end <= now
        {
            self.owner = Some(core);
            self.holds.pop_front();
        }
        let moving = |owner: Option<usize>| {
            if owner.is_some_and(|owner| owner != core) { hand_over_ns } else { 0 }
        };
        let (mut at, mut owner, mut place) = (asked_at, self.owner, 0);
        for &(start, end, core) in &self.holds {
            if at + (moving(owner) + hold_ns) <= start {
                break;
            }
            (at, owner, place) = (at.max(end), Some(core), place + 1);
        }
        let taken = Taken {
            waited_ns: at.since(asked_at),
            handed_over_ns: moving(owner),
            held_ns: hold_ns,
        };
        self.holds.insert(place, (at, asked_at + taken.total_ns(), core));
        self.taken += 1;
        self.contended += u64::from(taken.waited_ns != 0);
        taken
    }

    /// The core that has it last, of those that have asked.
    pub fn owner(&self) -> Option<usize> {
        self.holds.back().map(|&(_, _, core)| core).or(self.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanoseconds: u64) -> Time {
        Time::from_nanos(nanoseconds)
    }

    #[test]
    fn a_lock_that_is_taken_later_is_free_until_then() {
        let mut lock = Lock::default();
        // A piece that begins at 0 takes it at 1000.
        lock.take(at(0), at(1000), 0, 300, 50);
        // There is room for 300 ns at 700, but no later.
        assert_eq!(lock.take(at(0), at(700), 1, 300, 50).waited_ns, 0);
        assert_eq!(lock.take(at(10), at(710), 1, 300, 50).waited_ns, 590);
        assert_eq!((lock.contended, lock.owner()), (1, Some(1)));
        // Past times are forgotten, but the last owner is not.
        assert_eq!(lock.take(at(5000), at(5000), 1, 300, 50).total_ns(), 300);
        assert_eq!(lock.holds.len(), 1);
    }

    #[test]
    fn n_waiters_wait_for_earlier_ones() {
        let (hold_ns, hand_over_ns) = (300, 150);
        let mut lock = Lock::default();
        for core in 0..8 {
            let taken = lock.take(at(0), at(0), core as usize, hold_ns, hand_over_ns);
            // The first gets it at once, without a previous owner.
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
            let taken = lock.take(at(round * 1000), at(round * 1000), 3, 100, 70);
            assert_eq!(taken.total_ns(), 100);
        }
        assert_eq!(lock.take(at(9_000), at(9_000), 4, 100, 70).total_ns(), 170);
        assert_eq!(lock.contended, 0);
    }

    #[test]
    fn without_a_cost_it_costs_nothing() {
        let mut lock = Lock::default();
        for core in 0..10 {
            assert_eq!(lock.take(at(0), at(0), core, 0, 0).total_ns(), 0);
        }
    }
}
