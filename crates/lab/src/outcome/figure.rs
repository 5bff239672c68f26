//! A figure: its key, unit, source and repeats.

use super::{Source, in_words, to_15_digits};
use crate::compare::{Interval, Judgement, Rule, Spread, spread};
use crate::fit::Basis;
use crate::unit::Unit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A figure: one value for each repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    /// Its name for programs, with the unit among its words.
    pub key: String,
    /// The unit of its values.
    pub unit: Unit,
    /// Where it comes from.
    pub source: Source,
    /// In the order of measurement; empty if unavailable.
    pub values: Vec<f64>,
    /// Its name for people, if not its key in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<String>,
    /// For programs only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detail: bool,
    /// Each value is a change from one side of a pair to the other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) of_pairs: bool,
    /// Its 95 % interval, if not derived from pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bounds: Option<[f64; 2]>,
    /// The underlying fit, if a paper's machine was fitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
}

impl Figure {
    /// A figure with these repeats, to 15 digits. Values that are not numbers are dropped.
    pub fn of(key: &str, mut values: Vec<f64>) -> Self {
        values.retain(|value| value.is_finite());
        values.iter_mut().for_each(|value| *value = to_15_digits(*value));
        let unit = Unit::of_key(key);
        let source = Source::default();
        let (label, detail, of_pairs, bounds, basis) = (None, false, false, None, None);
        Figure { key: key.into(), unit, source, values, label, detail, of_pairs, bounds, basis }
    }

    /// The change between two sides measured alternately, from the ratio of each pair.
    pub fn of_pairs(key: &str, ratios: &[f64]) -> Self {
        let changes = ratios.iter().map(|ratio| ratio - 1.0).collect();
        Figure { of_pairs: true, ..Figure::of(key, changes) }
    }

    /// A figure of one value; unavailable if none.
    pub fn one(key: &str, value: impl Into<Option<f64>>) -> Self {
        Figure::of(key, value.into().into_iter().collect())
    }

    /// A number of things.
    pub fn count(key: &str, count: u64) -> Self {
        Figure::one(key, count as f64)
    }

    /// With this name for people.
    #[must_use]
    pub fn called(self, label: &str) -> Self {
        Figure { label: Some(label.into()), ..self }
    }

    /// Under another key of the same unit.
    #[must_use]
    pub fn keyed(self, key: &str) -> Self {
        Figure { key: key.into(), ..self }
    }

    /// With its 95 % interval; none if an end is unknown.
    #[must_use]
    pub fn within(self, low: Option<f64>, high: Option<f64>) -> Self {
        Figure { bounds: low.zip(high).map(<[f64; 2]>::from), ..self }
    }

    /// Of a fitted machine: predicted, or the fit point itself.
    #[must_use]
    pub fn resting_on(self, basis: Basis) -> Self {
        let source = if basis.fitted.is_some() { Source::Fitted } else { Source::Predicted };
        Figure { source, basis: Some(basis), ..self }
    }

    /// For programs only: it is not in tables.
    #[must_use]
    pub fn in_detail(self) -> Self {
        Figure { detail: true, ..self }
    }

    /// Its name for people.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| in_words(&self.key))
    }

    /// The spread of its values; `None` if unavailable.
    pub fn spread(&self) -> Option<Spread> {
        spread(&mut self.values.clone())
    }

    /// The judgement of its pairs, if they were measured and are enough.
    pub fn judgement(&self) -> Option<Judgement> {
        if !self.is_measured_in_pairs() {
            return None;
        }
        let ratios: Vec<_> = self.values.iter().map(|change| change + 1.0).collect();
        Some(Rule::default().judge(&ratios))
    }

    /// Whether its pairs include measurement noise.
    pub(crate) fn is_measured_in_pairs(&self) -> bool {
        self.of_pairs && self.source == Source::Measured
    }

    /// The change between the sides, with its 95 % interval.
    fn interval(&self) -> Option<Interval> {
        self.judgement()?.interval
    }

    /// The median for people; the estimate, if there are enough pairs.
    pub fn text(&self) -> String {
        if let Some(interval) = self.interval() {
            return self.unit.text(interval.ratio - 1.0);
        }
        self.spread().map_or_else(|| "unavailable".into(), |spread| self.unit.text(spread.median))
    }

    /// The range of its values for people; the estimate's interval, if there are enough pairs.
    /// Empty for fewer than two.
    pub fn range_text(&self) -> String {
        if let Some(Interval { low, high, .. }) = self.interval() {
            return format!("95 %: {}", self.unit.range(low - 1.0, high - 1.0));
        }
        if let Some([low, high]) = self.bounds {
            return format!("95 %: {}", self.unit.range(low, high));
        }
        match self.spread() {
            Some(spread) if spread.count > 1 => self.unit.range(spread.lowest, spread.highest),
            _ => String::new(),
        }
    }

    pub(super) fn put(&self, fields: &mut Map<String, Value>) {
        let Some(spread) = self.spread() else {
            fields.insert(self.key.clone(), Value::Null);
            return;
        };
        fields.insert(self.key.clone(), self.unit.json(spread.median));
        if spread.count > 1 {
            fields.insert(format!("{}_min", self.key), self.unit.json(spread.lowest));
            fields.insert(format!("{}_max", self.key), self.unit.json(spread.highest));
        }
        let Some(Judgement { verdict, interval: Some(interval), pairs_needed, .. }) =
            self.judgement()
        else {
            return;
        };
        // The change and its interval are one estimate.
        fields.insert(self.key.clone(), json!(interval.ratio - 1.0));
        fields.insert(format!("{}_low_95", self.key), json!(interval.low - 1.0));
        fields.insert(format!("{}_high_95", self.key), json!(interval.high - 1.0));
        fields.insert(format!("verdict_{}", self.key), json!(verdict));
        if let Some(pairs) = pairs_needed {
            fields.insert(format!("pairs_needed_{}", self.key), json!(pairs));
        }
    }
}
