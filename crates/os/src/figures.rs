//! A task's figures: counters readable by any thread, distributions at the end.
//!
//! Counters have one writer, the borrowed core. Mean and deviation of times are exact (Welford's
//! running sums), percentiles have two significant digits.

use hdrhistogram::Histogram;
use picnic_core::stats::Counter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Times above this are recorded as this, in nanoseconds.
const MOST_NS: u64 = 100_000_000_000;

/// Counts of one task.
#[derive(Debug, Default)]
pub struct TaskCounters {
    /// Segments run.
    pub segments: Counter,
    /// Nanoseconds in them.
    pub busy_ns: Counter,
    /// Nanoseconds of the longest.
    pub longest_segment_ns: Counter,
    /// Segments that took longer than their ticket allowed.
    pub overruns: Counter,
    /// Invocations begun.
    pub invocations: Counter,
    /// Invocations ended.
    pub completed: Counter,
    /// Invocations of a periodic task that ended after their deadline, or never began before it.
    pub deadline_misses: Counter,
    /// Releases skipped because their deadline had passed before they could begin.
    pub releases_skipped: Counter,
}

/// A distribution of times.
#[derive(Clone, Debug)]
pub struct Distribution {
    histogram: Histogram<u64>,
    count: u64,
    max: u64,
    mean: f64,
    squares: f64,
}

impl Default for Distribution {
    fn default() -> Self {
        // The bounds are constants, so construction cannot fail, and the fallback is never used.
        let histogram = Histogram::new_with_bounds(1, MOST_NS, 2)
            .unwrap_or_else(|_| Histogram::new(2).unwrap_or_else(|_| unreachable!()));
        Distribution { histogram, count: 0, max: 0, mean: 0.0, squares: 0.0 }
    }
}

impl Distribution {
    /// Records a time in nanoseconds.
    pub fn record(&mut self, nanoseconds: u64) {
        self.histogram.saturating_record(nanoseconds.clamp(1, MOST_NS));
        self.count += 1;
        self.max = self.max.max(nanoseconds);
        let value = nanoseconds as f64;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// Number of times recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The figures; null if nothing was recorded.
    pub fn figures(&self) -> TimeFigures {
        if self.count == 0 {
            return TimeFigures::default();
        }
        TimeFigures {
            mean_ns: Some(self.mean),
            stddev_ns: Some((self.squares / self.count as f64).sqrt()),
            p50_ns: Some(self.histogram.value_at_percentile(50.0)),
            p99_ns: Some(self.histogram.value_at_percentile(99.0)),
            max_ns: Some(self.max),
        }
    }
}

/// A distribution's figures in nanoseconds; null if nothing was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeFigures {
    /// Mean.
    pub mean_ns: Option<f64>,
    /// Standard deviation.
    pub stddev_ns: Option<f64>,
    /// Median.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// Largest.
    pub max_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_exact() {
        let mut times = Distribution::default();
        assert_eq!(times.figures(), TimeFigures::default());
        for time in [2, 4, 4, 4, 5, 5, 7, 9] {
            times.record(time);
        }
        let figures = times.figures();
        assert_eq!((figures.mean_ns, figures.stddev_ns), (Some(5.0), Some(2.0)));
        assert_eq!((figures.p50_ns, figures.max_ns), (Some(4), Some(9)));
        assert_eq!(times.count(), 8);
    }

    #[test]
    fn percentiles_have_two_significant_digits() {
        for (time, p50) in [(1, 1), (2, 2), (123, 123), (12_300, 12_351)] {
            let mut times = Distribution::default();
            times.record(time);
            let figures = times.figures();
            assert_eq!((figures.p50_ns, figures.p99_ns), (Some(p50), Some(p50)), "{time}");
            assert_eq!(figures.max_ns, Some(time));
        }
    }
}
