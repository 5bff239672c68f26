//! How long the borrowed core was taken away, as its own loop sees it.
//!
//! The loop reads the clock once a turn and knows how long it rested in it by its own will. What
//! is left is work of microseconds; where it is [`THRESHOLD_NS`] or more, somebody else had the
//! core: another thread, the kernel, or the hypervisor another machine. Shorter absences are not
//! seen, and a function that takes milliseconds for a burst would be taken for one.
//!
//! Guarantees: no clock is read for it, and no counter written while the core is the card's.

use picnic_control::monitor::CoreTimes;

/// The shortest absence that is seen, in nanoseconds.
pub(crate) const THRESHOLD_NS: u64 = 500_000;

/// Looks at the length of each turn.
#[derive(Debug)]
pub(crate) struct Absence<'a> {
    times: &'a CoreTimes,
    /// Packets dropped by the end of an absence, until the turn behind it has ended too.
    dropped_before: Option<u64>,
}

impl<'a> Absence<'a> {
    /// Enters what it sees into `times`.
    pub(crate) fn new(times: &'a CoreTimes) -> Self {
        times.absence_threshold_ns.set(THRESHOLD_NS);
        Absence { times, dropped_before: None }
    }

    /// A turn took `ns` nanoseconds, `willing_ns` of them by its own will; `dropped` says how many
    /// packets have been dropped by now.
    #[inline]
    pub(crate) fn turn(&mut self, ns: u64, willing_ns: u64, dropped: impl Fn() -> u64) {
        let absent_ns = ns.saturating_sub(willing_ns);
        if absent_ns >= THRESHOLD_NS || self.dropped_before.is_some() {
            self.note(absent_ns, dropped());
        }
    }

    #[cold]
    fn note(&mut self, absent_ns: u64, dropped: u64) {
        // What came during an absence is shed by the first turn behind it.
        if let Some(before) = self.dropped_before.take() {
            self.times.absence_drops.add(dropped.saturating_sub(before));
        }
        if absent_ns >= THRESHOLD_NS {
            self.times.absent(absent_ns);
            self.dropped_before = Some(dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absences_are_counted_with_the_drops_of_the_turn_behind_them() {
        let times = CoreTimes::default();
        let mut absence = Absence::new(&times);
        let never = || -> u64 { panic!("nothing is read while the core is the card's") };
        absence.turn(THRESHOLD_NS - 1, 0, never);
        // A rest of its own is none, nor is one that ended early.
        absence.turn(20 * THRESHOLD_NS, 20 * THRESHOLD_NS, never);
        absence.turn(THRESHOLD_NS, u64::MAX, never);
        // Taken away for 4 and, straight after, 2 milliseconds; one of a rest that ended late.
        absence.turn(4_000_000, 0, || 10);
        absence.turn(2_000_000, 0, || 110);
        absence.turn(100, 0, || 115);
        absence.turn(100, 0, never);
        absence.turn(3_000_000, 2_000_000, || 200);
        absence.turn(100, 0, || 200);
        let counts = [&times.absent_ns, &times.absences, &times.longest_absence_ns];
        assert_eq!(counts.map(|count| count.get()), [7_000_000, 3, 4_000_000]);
        assert_eq!(times.absence_drops.get(), 105);
    }
}
