//! Latencies by queue: percentiles, differences, and HdrHistogram's text.
//!
//! Guarantee: latencies that pass through JSON keep their percentiles, to the two recorded digits.

use crate::report::LatencyReport;
use hdrhistogram::Histogram;
use picnic_engine::target::latency_histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The latencies of one queue, from wire to target routine, one packet in 16.
#[derive(Clone, Debug)]
pub struct QueueLatency {
    /// The queue.
    pub queue: u16,
    /// Nanoseconds.
    pub histogram: Histogram<u64>,
}

/// The same in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Recorded {
    /// The queue.
    pub queue: u16,
    /// Pairs of nanoseconds and number of packets; shortest first.
    pub counts: Vec<(u64, u64)>,
}

impl QueueLatency {
    /// Its JSON form.
    pub fn recorded(&self) -> Recorded {
        let values = self.histogram.iter_recorded();
        let counts =
            values.map(|value| (value.value_iterated_to(), value.count_since_last_iteration()));
        Recorded { queue: self.queue, counts: counts.collect() }
    }
}

impl Recorded {
    /// The histogram of this JSON form.
    pub fn histogram(&self) -> Histogram<u64> {
        merged(std::slice::from_ref(self))
    }

    /// The difference from `before`, of the same queue.
    #[must_use]
    pub fn since(&self, before: &Recorded) -> Recorded {
        let before: BTreeMap<_, _> = before.counts.iter().copied().collect();
        let left = self.counts.iter().map(|&(value, count)| {
            (value, count.saturating_sub(before.get(&value).copied().unwrap_or(0)))
        });
        Recorded { queue: self.queue, counts: left.filter(|&(_, count)| count != 0).collect() }
    }
}

/// All of them in one histogram.
pub fn merged(parts: &[Recorded]) -> Histogram<u64> {
    let mut histogram = latency_histogram();
    for &(value, count) in parts.iter().flat_map(|part| &part.counts) {
        // No recorded value exceeds the maximum.
        histogram.saturating_record_n(value, count);
    }
    histogram
}

impl LatencyReport {
    /// Percentiles and mean; the parts of the mean are not in the histogram.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return LatencyReport::default();
        }
        let at = |percentile| Some(histogram.value_at_percentile(percentile));
        LatencyReport {
            p50: at(50.0),
            p99: at(99.0),
            p999: at(99.9),
            mean: Some(histogram.mean().round() as u64),
            ..LatencyReport::default()
        }
    }
}

/// The percentiles in the format of HdrHistogram's tools, in nanoseconds.
pub fn text(histogram: &Histogram<u64>) -> String {
    let mut text = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    let mut total = 0;
    // Writing to a string does not fail.
    for step in histogram.iter_quantiles(5) {
        total += step.count_since_last_iteration();
        let (value, quantile) = (step.value_iterated_to() as f64, step.quantile_iterated_to());
        let _ = write!(text, "{value:12.3} {quantile:2.12} {total:10}");
        let _ = match quantile < 1.0 {
            true => writeln!(text, " {:14.2}", 1.0 / (1.0 - quantile)),
            false => writeln!(text),
        };
    }
    let _ = writeln!(
        text,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        histogram.mean(),
        histogram.stdev()
    );
    let _ = writeln!(
        text,
        "#[Max     = {:12.3}, Total count    = {:12}]",
        histogram.max() as f64,
        histogram.len()
    );
    let _ = writeln!(
        text,
        "#[Buckets = {:12}, SubBuckets     = {:12}]",
        histogram.buckets(),
        histogram.distinct_values()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn recorded(values: &[u64]) -> QueueLatency {
        let mut histogram = latency_histogram();
        values.iter().for_each(|&value| histogram.saturating_record(value));
        QueueLatency { queue: 3, histogram }
    }

    proptest! {
        #[test]
        fn json_keeps_latencies_and_windows_subtract(
            first in prop::collection::vec(1..10_000_000_u64, 0..200),
            then in prop::collection::vec(1..10_000_000_u64, 0..200),
        ) {
            let before = recorded(&first).recorded();
            let all = recorded(&[first, then.clone()].concat()).recorded();
            let text = serde_json::to_string(&all).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Recorded>(&text).unwrap(), &all);
            prop_assert_eq!(all.histogram(), recorded(&[]).histogram.clone() + all.histogram());
            prop_assert_eq!(all.since(&before), recorded(&then).recorded());
            let report = LatencyReport::of(&all.since(&before).histogram());
            prop_assert_eq!(report.p50, LatencyReport::of(&recorded(&then).histogram).p50);
        }
    }

    #[test]
    fn windows_with_fewer_latencies_are_empty() {
        let (more, less) = (recorded(&[5, 5]).recorded(), recorded(&[5]).recorded());
        assert_eq!(less.since(&more), recorded(&[]).recorded());
    }

    #[test]
    fn percentile_text_matches_hdrhistogram() {
        let values: Vec<_> = (1..=100).map(|value| value * 1000).collect();
        let histogram = recorded(&values).histogram;
        let text = text(&histogram);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0].split_whitespace().count(), 4);
        assert_eq!(lines[1], "");
        let mut last = (0.0, 0.0, 0);
        for line in lines[2..].iter().take_while(|line| !line.starts_with('#')) {
            let fields: Vec<_> = line.split_whitespace().collect();
            let (value, quantile): (f64, f64) =
                (fields[0].parse().unwrap(), fields[1].parse().unwrap());
            let total: u64 = fields[2].parse().unwrap();
            assert!(value >= last.0 && quantile >= last.1 && total >= last.2, "{line}");
            assert_eq!(fields.len(), if quantile < 1.0 { 4 } else { 3 }, "{line}");
            last = (value, quantile, total);
        }
        assert_eq!((last.1, last.2), (1.0, 100));
        // Five steps for each half of the remainder, like those tools.
        let is_figure = |line: &&str| !line.starts_with('#');
        let steps = lines[2..].iter().take_while(|line| is_figure(line)).count();
        assert_eq!(steps, histogram.iter_quantiles(5).count());
        assert!(lines.iter().any(|line| line.starts_with("#[Mean    =")), "{text}");
        assert!(lines.iter().any(|line| line.contains("Total count    =          100]")), "{text}");
    }
}
