//! Distributions of times: complete histograms, so that no percentile is chosen in advance.
//!
//! Values have the resolution of their source, such as the two digits of the card's histograms;
//! none is interpolated.
//!
//! ```
//! use picnic_lab::distribution::Distribution;
//! let latency = Distribution::of("request_ns", [(1_000, 90), (5_000, 9), (70_000, 1)]);
//! assert_eq!((latency.count(), latency.at(0.5), latency.at(0.99)), (100, Some(1_000), Some(5_000)));
//! ```

use crate::outcome::{Source, Table, in_words};
use crate::plot::{Dot, Drawing, Line};
use crate::unit::Unit;
use picnic_control::report::Report;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Percentiles in tables and fields, with their names.
const TOLD: [(f64, &str); 4] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p999")];
/// Percentiles that are drawn.
const DRAWN: [f64; 12] = [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999];

/// Values and their counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// Its name for programs, with the unit among its words.
    pub key: String,
    /// The source of the values.
    pub source: Source,
    /// Its name for people, if not its key in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// In ascending order, without duplicates and zero counts.
    counts: Vec<(u64, u64)>,
}

impl Distribution {
    /// A distribution of these values with their counts, in any order.
    pub fn of(key: &str, counts: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
        for (value, count) in counts.into_iter().filter(|&(_, count)| count != 0) {
            let sum = sums.entry(value).or_default();
            *sum = sum.saturating_add(count);
        }
        let counts = sums.into_iter().collect();
        Distribution { key: key.into(), source: Source::default(), label: None, counts }
    }

    /// A distribution of a card's packets, from arrival to target routine, over all queues.
    pub fn of_card(key: &str, report: &Report) -> Self {
        let queues = report.latencies.iter().flatten();
        Distribution::of(key, queues.flat_map(|queue| queue.counts.iter().copied()))
    }

    /// With this name for people.
    #[must_use]
    pub fn called(self, label: &str) -> Self {
        Distribution { label: Some(label.into()), ..self }
    }

    /// Under this key.
    #[must_use]
    pub fn keyed(self, key: &str) -> Self {
        Distribution { key: key.into(), ..self }
    }

    /// With the counts of another added.
    #[must_use]
    pub fn and(self, other: &Distribution) -> Self {
        let counts = self.counts.iter().chain(&other.counts).copied();
        Distribution { counts: Distribution::of(&self.key, counts).counts, ..self }
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// The lowest value that this share of all does not exceed; none if empty.
    pub fn at(&self, share: f64) -> Option<u64> {
        let wanted = (share * self.count() as f64).ceil().max(1.0) as u64;
        let mut sum = 0_u64;
        let reached = self.counts.iter().find(|(_, count)| {
            sum = sum.saturating_add(*count);
            sum >= wanted
        });
        reached.or(self.counts.last()).map(|&(value, _)| value)
    }

    /// Its name for people.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| in_words(&self.key))
    }

    /// For programs: the usual percentiles, and all counts.
    pub(crate) fn json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("count".into(), self.count().into());
        for (share, name) in TOLD {
            fields.insert(name.into(), self.at(share).into());
        }
        fields.insert("max".into(), self.at(1.0).into());
        fields.insert("counts".into(), json!(self.counts));
        Value::Object(fields)
    }

    fn unit(&self) -> Unit {
        Unit::of_key(&self.key)
    }
}

/// For people: a row each; none if empty.
pub(crate) fn table(all: &[Distribution]) -> Option<Table> {
    let columns = ["distribution", "count"].into_iter().chain(TOLD.map(|(_, name)| name));
    let columns: Vec<_> = columns.chain(["longest"]).map(String::from).collect();
    let row = |one: &Distribution| {
        let shares = TOLD.iter().map(|(share, _)| *share).chain([1.0]);
        let text = |value: Option<u64>| {
            value.map_or_else(|| "unavailable".into(), |value| one.unit().text(value as f64))
        };
        let values = shares.map(|share| text(one.at(share)));
        let count = Unit::Count.text(one.count() as f64);
        [one.label(), count].into_iter().chain(values).collect::<Vec<_>>()
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    (!rows.is_empty()).then_some(Table { title: String::new(), columns, rows, words: 1 })
}

/// The share of values up to each value, a line each; none if empty.
pub(crate) fn drawing(all: &[Distribution]) -> Option<Drawing> {
    let line = |one: &Distribution| {
        let dot = |share: f64| {
            let x = one.at(share)? as f64;
            Some(Dot { x, y: share, low: share, high: share })
        };
        // A percentile beyond this number of values is not drawn: it would repeat the maximum.
        let is_counted = |share: &f64| (1.0 - share) * one.count() as f64 >= 1.0;
        let points: Vec<_> = DRAWN.into_iter().filter(is_counted).filter_map(dot).collect();
        (!points.is_empty()).then(|| Line { name: one.label(), points })
    };
    let lines: Vec<_> = all.iter().filter_map(line).collect();
    let first = all.first().filter(|_| !lines.is_empty())?;
    Some(Drawing {
        title: "distribution of times".into(),
        x_label: "time".into(),
        x_unit: first.unit(),
        y_label: "share of all below".into(),
        y_unit: Unit::Fraction,
        bars: Vec::new(),
        lines,
        marks: Vec::new(),
        band: None,
        is_logarithmic: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_agree_with_sorted_values(
            mut values in proptest::collection::vec(0_u64..50, 1..200),
            share in 0.0_f64..=1.0,
        ) {
            let whole = Distribution::of("wait_ns", values.iter().map(|&value| (value, 1)));
            let (front, back) = values.split_at(values.len() / 2);
            let half = |part: &[u64]| Distribution::of("wait_ns", part.iter().map(|&v| (v, 1)));
            prop_assert_eq!(&half(front).and(&half(back)), &whole);
            values.sort_unstable();
            let place = ((share * values.len() as f64).ceil() as usize).max(1) - 1;
            prop_assert_eq!(whole.at(share), Some(values[place]));
            prop_assert_eq!(whole.count(), values.len() as u64);
            let text = serde_json::to_string(&whole).unwrap();
            prop_assert_eq!(serde_json::from_str::<Distribution>(&text).unwrap(), whole);
        }
    }

    #[test]
    fn tables_have_percentiles_and_fields_all_counts() {
        let one = Distribution::of("request_ns", [(2_000_000, 1), (1_000, 998), (5_000, 1)]);
        let found = table(std::slice::from_ref(&one)).unwrap();
        assert_eq!(
            found.columns,
            ["distribution", "count", "p50", "p90", "p99", "p999", "longest"]
        );
        let row = ["request", "1,000", "1.00 µs", "1.00 µs", "1.00 µs", "5.00 µs", "2.00 ms"];
        assert_eq!(found.rows, [row]);
        let wanted = json!({
            "count": 1000, "p50": 1000, "p90": 1000, "p99": 1000, "p999": 5000, "max": 2_000_000,
            "counts": [[1000, 998], [5000, 1], [2_000_000, 1]],
        });
        assert_eq!(one.json(), wanted);
        assert_eq!(table(&[]), None);
    }

    #[test]
    fn only_supported_percentiles_are_drawn() {
        let drawn = drawing(&[Distribution::of("wait_ns", (1..=100).map(|n| (n, 1)))]).unwrap();
        let last = drawn.lines[0].points.last().unwrap();
        assert_eq!((last.x, last.y), (99.0, 0.99));
        assert_eq!((drawn.x_unit, drawn.y_unit), (Unit::Nanoseconds, Unit::Fraction));
        assert_eq!(drawing(&[Distribution::of("wait_ns", [])]), None);
        assert_eq!(Distribution::of("wait_ns", [(5, 0)]).at(0.5), None);
    }
}
