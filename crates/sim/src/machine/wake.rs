//! How long a core takes to wake, by how long it has slept.
//!
//! ```
//! let ways = picnic_sim::machine::WakeUps::new(vec![(0.0, 9e3), (2e4, 21e3)])?;
//! assert_eq!(ways.way_ns(10_000), Some(15_000));
//! assert_eq!(ways.way_ns(1_000_000), Some(21_000));
//! # Ok::<(), String>(())
//! ```

use std::fmt;

/// The longest sleep and the longest way that a table may have, in nanoseconds.
const MOST_NS: f64 = 1e9;

/// Pairs of a sleep and the way that follows it, in nanoseconds; none if each way is as long.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WakeUps(Vec<(f64, f64)>);

impl WakeUps {
    /// Takes the pairs in the order of the sleeps.
    ///
    /// # Errors
    /// There are none, the first is not of sleep 0, sleeps do not grow, or times are absurd.
    pub fn new(pairs: Vec<(f64, f64)>) -> Result<Self, String> {
        if pairs.first().is_none_or(|(slept, _)| *slept != 0.0) {
            return Err("expected a first pair [0, WAY]".into());
        }
        if !pairs.is_sorted_by(|a, b| a.0 < b.0) {
            return Err("expected pairs in the order of their sleeps".into());
        }
        let mut all = pairs.iter().flat_map(|(slept, way)| [*slept, *way]);
        if let Some(ns) = all.find(|ns| !(0.0..=MOST_NS).contains(ns)) {
            return Err(format!("found {ns}, allowed: 0 to {MOST_NS}"));
        }
        drop(all);
        Ok(WakeUps(pairs))
    }

    /// The way after a sleep: on the line between two pairs, and constant after the last.
    pub fn way_ns(&self, slept_ns: u64) -> Option<u64> {
        let slept = slept_ns as f64;
        let after = self.0.partition_point(|pair| pair.0 <= slept);
        let &(from, way) = self.0.get(after.checked_sub(1)?)?;
        let ns = match self.0.get(after) {
            Some((to, last)) => way + (last - way) * (slept - from) / (to - from),
            None => way,
        };
        Some(ns.round() as u64)
    }

    /// The way of a core that has just fallen asleep.
    pub fn shortest_sleep_ns(&self) -> Option<f64> {
        self.0.first().map(|pair| pair.1)
    }
}

impl fmt::Display for WakeUps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<_> =
            self.0.iter().map(|(slept, way)| format!("{way:.0} after {slept:.0}")).collect();
        f.write_str(&pairs.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_follow_the_line_between_pairs() {
        let ways = WakeUps::new(vec![(0.0, 9e3), (1e3, 17e3), (5e5, 37e3)]).unwrap();
        for (slept, wanted) in [(0, 9_000), (500, 13_000), (1_000, 17_000), (250_500, 27_000)] {
            assert_eq!(ways.way_ns(slept), Some(wanted), "{slept}");
        }
        assert_eq!(ways.way_ns(u64::MAX), Some(37_000));
        assert_eq!(WakeUps::default().way_ns(7), None);
        assert_eq!(ways.to_string(), "9000 after 0, 17000 after 1000, 37000 after 500000");
    }

    #[test]
    fn wrong_tables_are_refused() {
        for (pairs, wanted) in [
            (vec![], "[0, WAY]"),
            (vec![(1.0, 1.0)], "[0, WAY]"),
            (vec![(0.0, 1.0), (0.0, 2.0)], "order"),
            (vec![(0.0, 1.0), (1.0, -2.0)], "found -2, allowed: 0 to 1000000000"),
            (vec![(0.0, f64::NAN)], "found NaN"),
        ] {
            let error = WakeUps::new(pairs).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
