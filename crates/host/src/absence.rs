//! Detects how long the borrowed core was preempted, in its own loop.
//!
//! The loop reads the clock once per turn and knows how long it rested by choice. The rest is work
//! of microseconds; if it is [`THRESHOLD_NS`] or more, the core was preempted: by another thread,
//! the kernel or the hypervisor. Shorter absences are not detected, and a function that takes
//! milliseconds for a burst would count as one.
//!
//! Guarantees: this reads no clock, and writes no counter while the card has the core.

use picnic_control::monitor::CoreTimes;

/// The shortest detected absence, in nanoseconds.
pub(crate) const THRESHOLD_NS: u64 = 500_000;

/// Checks the length of each turn.
#[derive(Debug)]
pub(crate) struct Absence<'a> {
    times: &'a CoreTimes,
    /// Packets dropped by the end of an absence, until the following turn has ended too.
    dropped_before: Option<u64>,
}

impl<'a> Absence<'a> {
    /// Records absences in `times`.
    pub(crate) fn new(times: &'a CoreTimes) -> Self {
        times.absence_threshold_ns.set(THRESHOLD_NS);
        Absence { times, dropped_before: None }
    }

    /// Notes a turn of `ns` nanoseconds, `willing_ns` of them rested by choice; `dropped` returns
    /// the packets dropped so far.
    #[inline]
    pub(crate) fn turn(&mut self, ns: u64, willing_ns: u64, dropped: impl Fn() -> u64) {
        let absent_ns = ns.saturating_sub(willing_ns);
        if absent_ns >= THRESHOLD_NS || self.dropped_before.is_some() {
            self.note(absent_ns, dropped());
        }
    }

    #[cold]
    fn note(&mut self, absent_ns: u64, dropped: u64) {
        // Packets that arrived during an absence are shed by the turn after it.
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
    fn absences_are_counted_with_the_drops_after_them() {
        let times = CoreTimes::default();
        let mut absence = Absence::new(&times);
        let never = || -> u64 { panic!("nothing is read while the core is the card's") };
        absence.turn(THRESHOLD_NS - 1, 0, never);
        // Rest by choice is not an absence, nor is one that ended early.
        absence.turn(20 * THRESHOLD_NS, 20 * THRESHOLD_NS, never);
        absence.turn(THRESHOLD_NS, u64::MAX, never);
        // Preempted for 4 ms and, right after, 2 ms; and a rest that ended late.
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
