//! Preemption of cores, as measured by their own loops, and the packets lost because of it.
//!
//! A loop reads the clock once per turn and knows its deliberate pauses. The rest of a turn is
//! microseconds of work. If it takes the threshold or longer, the core was preempted: by another
//! thread, the kernel, or another virtual machine. Shorter absences go unnoticed, and a function
//! that takes milliseconds for a burst looks like an absence.
//!
//! A drop is attributed to an absence of the borrowed core until the wires are empty again and the
//! target rings, which then got all at once, half empty; and to an absence of a target core if its
//! ring has no room; in both cases at most for the length of the absence after its end.
//!
//! Guarantees: it reads no clock, and writes no counter without an absence; under
//! overload, an absence explains at most the drops of twice its length.

use picnic_control::monitor::{Absences, TargetTimes};
use picnic_core::time::Time;
use picnic_engine::poll::Card;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The shortest recorded absence, in nanoseconds, if the tolerance of a card is unknown.
const LONGEST_THRESHOLD_NS: u64 = 500_000;
/// A turn that rings several doorbells takes nearly as long.
const SHORTEST_THRESHOLD_NS: u64 = 100_000;

/// The shortest absence to record for a card that tolerates this many nanoseconds: two shorter ones
/// in a row lose nothing.
pub(crate) fn threshold_ns(tolerates_ns: Option<u64>) -> u64 {
    let half = |ns: u64| (ns / 2).clamp(SHORTEST_THRESHOLD_NS, LONGEST_THRESHOLD_NS);
    tolerates_ns.map_or(LONGEST_THRESHOLD_NS, half)
}

/// Checks the length of each turn of the borrowed core.
#[derive(Debug)]
pub(crate) struct Absence<'a> {
    found: &'a Absences,
    threshold_ns: u64,
    /// Packets dropped so far, while an absence has consequences; and until when it may.
    open: Option<(u64, Time)>,
}

impl<'a> Absence<'a> {
    /// Records absences in `found`.
    pub(crate) fn new(found: &'a Absences, threshold_ns: u64) -> Self {
        found.threshold_ns.set(threshold_ns);
        Absence { found, threshold_ns, open: None }
    }

    /// A turn that ended at `now` took `ns` nanoseconds, including `willing_ns` of deliberate
    /// pauses. `state` returns whether packets are left at the wires or crowd a target ring, and the
    /// number of drops so far. Returns the length of an absence in it.
    #[inline]
    pub(crate) fn turn(
        &mut self,
        now: Time,
        ns: u64,
        willing_ns: u64,
        state: impl FnOnce() -> (bool, u64),
    ) -> Option<u64> {
        let absent_ns = ns.saturating_sub(willing_ns);
        if absent_ns >= self.threshold_ns || self.open.is_some() {
            let (is_behind, dropped) = state();
            self.note(now, absent_ns, is_behind, dropped);
        }
        (absent_ns >= self.threshold_ns).then_some(absent_ns)
    }

    #[cold]
    fn note(&mut self, now: Time, absent_ns: u64, is_behind: bool, dropped: u64) {
        if let Some((before, until)) = self.open.take() {
            // Packets of an absence are shed by the first turn after it, and by later ones until the
            // card has caught up.
            self.found.drops.add(dropped.saturating_sub(before));
            self.open = (is_behind && now < until).then_some((dropped, until));
        }
        if absent_ns >= self.threshold_ns {
            self.found.absent(now, absent_ns);
            let until = now + absent_ns;
            let until = self.open.map_or(until, |(_, open)| open.max(until));
            self.open = Some((dropped, until));
        }
    }
}

/// The time since when a target core has been due to check its queues.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Presence(AtomicU64);

/// Not due: the core rests, and no doorbell has rung.
const RESTS: u64 = u64::MAX;

impl Presence {
    /// The core checks its queues at `now`. Earlier absences are recorded before, and visible to
    /// readers of this.
    #[inline]
    pub(crate) fn looks(&self, now: Time) {
        self.0.store(now.as_nanos(), Ordering::Release);
    }

    /// The core is about to rest.
    #[inline]
    pub(crate) fn rests(&self) {
        self.0.store(RESTS, Ordering::Relaxed);
    }

    /// Its doorbell rings at `now`.
    #[inline]
    pub(crate) fn is_rung(&self, now: Time) {
        if self.0.load(Ordering::Relaxed) == RESTS {
            self.0.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// When it was rung, if it rested and has not looked since.
    #[inline]
    pub(crate) fn rung(&self) -> Option<Time> {
        let since = self.0.load(Ordering::Acquire);
        (since != RESTS).then(|| Time::from_nanos(since))
    }

    /// Nanoseconds since it was due, at `now`.
    #[inline]
    pub(crate) fn missed_ns(&self, now: Time) -> u64 {
        now.as_nanos().saturating_sub(self.0.load(Ordering::Acquire))
    }
}

/// A target core as the borrowed core sees it.
pub(crate) struct Seen {
    pub(crate) presence: Arc<Presence>,
    pub(crate) times: Arc<TargetTimes>,
    /// Its queues.
    pub(crate) queues: Vec<usize>,
}

/// Checks for drops at full target rings, on the borrowed core.
pub(crate) struct RingDrops {
    targets: Vec<(Seen, u64)>,
    seen: u64,
    /// Drops attributed to absences of target cores.
    put_down: u64,
}

impl RingDrops {
    /// None so far.
    pub(crate) fn new(targets: Vec<Seen>) -> Self {
        RingDrops {
            targets: targets.into_iter().map(|seen| (seen, 0)).collect(),
            seen: 0,
            put_down: 0,
        }
    }

    /// After a turn that began at `start`; `clock` is read if there are more.
    #[inline]
    pub(crate) fn look(&mut self, card: &Card, start: Time, clock: impl FnOnce() -> Time) {
        let all = card.doors().ring_full();
        if all != self.seen {
            self.seen = all;
            let of = |queue: usize| {
                card.doors().targets.get(queue).map(|ring| ring.counters().ring_full.get())
            };
            self.note(start, clock(), of);
        }
    }

    #[cold]
    fn note(&mut self, start: Time, now: Time, full: impl Fn(usize) -> Option<u64>) {
        for (Seen { presence, times, queues }, before) in &mut self.targets {
            let all: u64 = queues.iter().filter_map(|&queue| full(queue)).sum();
            let more = all.saturating_sub(std::mem::replace(before, all));
            let absences = &times.absences;
            let is_away = presence.missed_ns(now) >= absences.threshold_ns.get()
                || start.as_nanos() < absences.recovers_by_ns.get();
            if more != 0 && is_away {
                absences.drops.add(more);
                self.put_down += more;
            }
        }
    }

    /// Drops that an absence of a target core explains.
    pub(crate) fn put_down(&self) -> u64 {
        self.put_down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    #[test]
    fn absences_are_counted_with_the_drops_until_the_wires_are_empty() {
        let found = Absences::default();
        let threshold_ns = threshold_ns(None);
        let mut absence = Absence::new(&found, threshold_ns);
        let never = || -> (bool, u64) { panic!("nothing is read while the core is the card's") };
        absence.turn(at(0), threshold_ns - 1, 0, never);
        // A deliberate rest is no absence, nor is a rest that ended early.
        absence.turn(at(0), 20 * threshold_ns, 20 * threshold_ns, never);
        absence.turn(at(0), threshold_ns, u64::MAX, never);
        // Preempted for 4 and then 2 milliseconds; the second includes a rest that ended late.
        absence.turn(at(0), 4_000_000, 0, || (false, 10));
        absence.turn(at(0), 2_000_000, 0, || (true, 110));
        absence.turn(at(0), 100, 0, || (true, 115));
        absence.turn(at(0), 100, 0, || (false, 118));
        absence.turn(at(0), 100, 0, never);
        absence.turn(at(0), 3_000_000, 2_000_000, || (false, 200));
        absence.turn(at(100), 100, 0, || (true, 200));
        // It never catches up: later drops have another cause.
        absence.turn(at(1_000_000), 100, 0, || (true, 207));
        absence.turn(at(1_000_100), 100, 0, never);
        let counts = [&found.total_ns, &found.times, &found.longest_ns];
        assert_eq!(counts.map(|count| count.get()), [7_000_000, 3, 4_000_000]);
        assert_eq!(found.drops.get(), 100 + 5 + 3 + 7);
    }

    #[test]
    fn the_threshold_follows_what_a_card_tolerates() {
        for (tolerates_ns, expected) in [
            (None, 500_000),
            (Some(u64::MAX), 500_000),
            (Some(600_000), 300_000),
            (Some(124_000), 100_000),
        ] {
            assert_eq!(threshold_ns(tolerates_ns), expected, "{tolerates_ns:?}");
        }
    }

    #[test]
    fn a_core_is_missed_while_it_works_or_from_when_it_was_rung() {
        let presence = Presence::default();
        presence.looks(at(5));
        presence.is_rung(at(7));
        assert_eq!(presence.missed_ns(at(9)), 4);
        presence.rests();
        assert_eq!(presence.missed_ns(at(99)), 0);
        presence.is_rung(at(200));
        presence.is_rung(at(300));
        assert_eq!(presence.missed_ns(at(300)), 100);
    }

    #[test]
    fn full_ring_drops_are_attributed_to_the_preempted_core() {
        let seen = |queues| {
            let times = Arc::new(TargetTimes::default());
            times.absences.threshold_ns.set(1_000);
            Seen { presence: Arc::default(), times, queues }
        };
        let mut drops = RingDrops::new(vec![seen(vec![0, 2]), seen(vec![1])]);
        let [first, second] = [0, 1].map(|index: usize| {
            let seen = &drops.targets[index].0;
            (seen.presence.clone(), seen.times.clone())
        });
        let mut note = |now, full: [u64; 3]| {
            drops.note(at(now), at(now), |queue| full.get(queue).copied());
            [first.1.absences.drops.get(), second.1.absences.drops.get(), drops.put_down()]
        };
        first.0.looks(at(10_000));
        second.0.looks(at(10_000));
        assert_eq!(note(10_999, [3, 4, 5]), [0; 3], "both are there");
        assert_eq!(note(11_000, [4, 4, 6]), [2, 0, 2]);
        // It is back; for the same time again, a full ring may be a consequence.
        first.0.looks(at(12_000));
        first.1.absences.absent(at(12_000), 2_000);
        // A shorter absence does not shorten that.
        first.1.absences.absent(at(12_100), 1_000);
        assert_eq!(note(13_999, [4, 4, 7]), [3, 0, 3]);
        first.0.looks(at(14_000));
        assert_eq!(note(14_000, [9, 4, 9]), [3, 0, 3]);
        second.0.rests();
        assert_eq!(note(90_000, [9, 8, 9]), [3, 0, 3], "nobody has rung");
    }
}
