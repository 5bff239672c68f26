//! The same figure of two sides, measured alternately.

use super::{Figure, Source, in_words, to_15_digits};
use crate::compare::{self, Interval, Judgement, Rule, counted};
use crate::unit::Unit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A side of a comparison: its name and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Side {
    /// Its name in snake_case.
    pub name: String,
    /// In the order of measurement.
    pub values: Vec<f64>,
}

/// Both sides of a comparison, and their ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The baseline.
    pub baseline: f64,
    /// The candidate.
    pub candidate: f64,
    /// Candidate by baseline.
    pub ratio: f64,
}

/// The same figure of two sides, measured alternately.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The figure's name for programs, with the unit among its words.
    pub key: String,
    /// The unit of both sides.
    pub unit: Unit,
    /// Where it comes from.
    pub source: Source,
    /// The side compared against.
    pub baseline: Side,
    /// The side compared with it.
    pub candidate: Side,
    /// The baseline measured a second time in each pair; empty if it was not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub again: Vec<f64>,
    /// The rule for judging the ratio; none if no direction is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
}

impl Comparison {
    /// Repeats of both sides, pair by pair: baseline, then candidate. Pairs with a value that is not
    /// a number are dropped.
    pub fn of(
        key: &str,
        (baseline, baseline_values): (&str, Vec<f64>),
        (candidate, candidate_values): (&str, Vec<f64>),
    ) -> Self {
        let unit = Unit::of_key(key);
        let rule = |more_is_better| Rule { more_is_better, ..Rule::default() };
        let pairs = baseline_values.into_iter().zip(candidate_values);
        let are_numbers = |pair: &(f64, f64)| pair.0.is_finite() && pair.1.is_finite();
        let (baseline_values, candidate_values): (Vec<_>, Vec<_>) =
            pairs.filter(are_numbers).unzip();
        let side = |name: &str, values: Vec<f64>| Side {
            name: name.into(),
            values: values.into_iter().map(to_15_digits).collect(),
        };
        Comparison {
            key: key.into(),
            unit,
            rule: unit.more_is_better().map(rule),
            source: Source::default(),
            baseline: side(baseline, baseline_values),
            candidate: side(candidate, candidate_values),
            again: Vec::new(),
        }
    }

    /// With the baseline measured a second time in each pair.
    #[must_use]
    pub fn beside(self, again: Vec<f64>) -> Self {
        Comparison { again: again.into_iter().map(to_15_digits).collect(), ..self }
    }

    /// Judged by this rule.
    #[must_use]
    pub fn judged_by(self, rule: Rule) -> Self {
        Comparison { rule: Some(rule), ..self }
    }

    /// The judgement; none if no direction is good.
    pub fn judgement(&self) -> Option<Judgement> {
        let itself = (!self.again.is_empty()).then(|| self.ratios_to_itself());
        self.rule.map(|rule| rule.judge_beside(&self.ratios(), itself.as_deref()))
    }

    /// Both sides and their ratio, as one estimate: geometric means of the pairs whose ratios
    /// count, so that the sides have this ratio. None without pairs.
    pub fn estimate(&self) -> Option<Estimate> {
        let pairs = self.candidate.values.iter().zip(&self.baseline.values);
        let pairs = pairs.map(|(&candidate, &baseline)| (candidate / baseline, baseline));
        let mut pairs: Vec<_> = pairs.filter(|(ratio, _)| ratio.is_finite()).collect();
        if pairs.is_empty() {
            return None;
        }
        pairs.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let is_counted = |&(ratio, baseline): &(f64, f64)| ratio > 0.0 && baseline > 0.0;
        if !pairs.iter().all(is_counted) {
            // Zero has no logarithm, but a rank.
            let ratio = pairs[pairs.len() / 2].0;
            let baseline = compare::median(&self.baseline.values);
            return Some(Estimate { baseline, candidate: ratio * baseline, ratio });
        }
        let pairs = &pairs[counted(pairs.len())];
        let mean = |of: fn(&(f64, f64)) -> f64| {
            (pairs.iter().map(|pair| of(pair).ln()).sum::<f64>() / pairs.len() as f64).exp()
        };
        let (ratio, baseline) = (mean(|pair| pair.0), mean(|pair| pair.1));
        Some(Estimate { baseline, candidate: ratio * baseline, ratio })
    }

    /// The baseline measured again by the baseline, pair by pair.
    fn ratios_to_itself(&self) -> Vec<f64> {
        let pairs = self.again.iter().zip(&self.baseline.values);
        pairs.map(|(again, baseline)| again / baseline).filter(|r| r.is_finite()).collect()
    }

    /// Candidate by baseline, pair by pair, if both are numbers and the baseline is not zero.
    pub fn ratios(&self) -> Vec<f64> {
        let pairs = self.candidate.values.iter().zip(&self.baseline.values);
        pairs.map(|(candidate, baseline)| candidate / baseline).filter(|r| r.is_finite()).collect()
    }

    /// The ratio as a figure.
    pub fn ratio(&self) -> Figure {
        let mut words: Vec<&str> = self.key.trim_end_matches("_per_second").split('_').collect();
        if self.unit.is_word(words.last().copied().unwrap_or("")) {
            words.pop();
        }
        let key = [&["ratio"], &words[..]].concat().join("_");
        let label = format!("{} / {}", in_words(&self.candidate.name), self.baseline.name);
        let ratio = Figure::of(&key, self.ratios()).called(&label);
        Figure { source: self.source, ..ratio }
    }

    /// Both sides as figures: baseline, then candidate.
    pub fn sides(&self) -> [Figure; 2] {
        [&self.baseline, &self.candidate].map(|side| {
            let key = format!("{}_{}", side.name, self.key);
            Figure { source: self.source, unit: self.unit, ..Figure::of(&key, side.values.clone()) }
        })
    }

    /// The compared figure, for people.
    pub fn label(&self) -> String {
        in_words(&self.key)
    }

    /// Both sides for people: baseline, then candidate.
    pub fn side_texts(&self) -> [String; 2] {
        let estimate = self.estimate();
        let texts =
            estimate.map(|of| [of.baseline, of.candidate].map(|value| self.unit.text(value)));
        texts.unwrap_or_else(|| self.sides().map(|side| side.text()))
    }

    /// The ratio for people: with its interval and verdict if there are enough pairs, otherwise
    /// with its spread.
    pub fn ratio_text(&self) -> String {
        let judgement = self.judgement();
        if let Some((verdict, interval)) = judgement.and_then(|j| Some((j.verdict, j.interval?))) {
            let range = Unit::Ratio.range(interval.low, interval.high);
            let range = range.trim_end_matches(" ×");
            return format!("{} (95 %: {range}), {verdict}", Unit::Ratio.text(interval.ratio));
        }
        let ratio = self.ratio();
        let text = self.estimate().map_or_else(|| ratio.text(), |of| Unit::Ratio.text(of.ratio));
        match ratio.range_text() {
            range if range.is_empty() => text,
            range => format!("{text} ({})", range.trim_end_matches(" ×")),
        }
    }

    pub(super) fn put(&self, fields: &mut Map<String, Value>) {
        let (ratio, sides) = (self.ratio(), self.sides());
        sides.iter().chain([&ratio]).for_each(|figure| figure.put(fields));
        if let Some(Estimate { baseline, candidate, ratio: estimate }) = self.estimate() {
            for (side, value) in sides.iter().zip([baseline, candidate]) {
                fields.insert(side.key.clone(), self.unit.json(to_15_digits(value)));
            }
            fields.insert(ratio.key.clone(), json!(to_15_digits(estimate)));
        }
        let Some(Judgement { verdict, interval, itself, pairs_needed }) = self.judgement() else {
            return;
        };
        let named = |what: &str| ratio.key.replacen("ratio", what, 1);
        for (key, interval) in [(ratio.key.clone(), interval), (named("itself_ratio"), itself)] {
            if let Some(Interval { ratio, low, high, .. }) = interval {
                fields.insert(format!("{key}_low_95"), json!(low));
                fields.insert(format!("{key}_high_95"), json!(high));
                fields.insert(key, json!(ratio));
            }
        }
        if interval.is_none() {
            return;
        }
        fields.insert(named("verdict"), json!(verdict));
        if let Some(pairs) = pairs_needed {
            fields.insert(named("pairs_needed"), json!(pairs));
        }
    }
}
