//! Verdicts on a ratio: better, worse, no difference or too noisy.
//!
//! ```
//! use picnic_lab::compare::{Rule, Verdict};
//! let slower: Vec<f64> = (0..10).map(|n| 0.90 + f64::from(n % 3) / 100.0).collect();
//! assert_eq!(Rule::default().judge(&slower).verdict, Verdict::Worse);
//! // For times, less is better.
//! let of_times = Rule { more_is_better: false, ..Rule::default() };
//! assert_eq!(of_times.judge(&slower).verdict, Verdict::Better);
//! ```
//!
//! Guarantees: two equal sides are called better or worse in at most 5 % of cases, for any
//! noise, if the order of each pair was drawn at random; also if the pairs are judged repeatedly
//! while they come in, if all judgements are counted. With pairs of the baseline and itself, the
//! interval is at least as wide as theirs, and there is no verdict if they differ.

use super::interval::{Interval, LEAST_PAIRS};
use super::ranks::lean;
use crate::unit::Unit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The default smallest effect.
pub const SMALLEST_EFFECT: f64 = 0.02;

/// The share of cases in which a judgement may be wrong.
const MISS: f64 = 0.05;

/// The verdict of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better by the smallest effect or more, and not by chance.
    Better,
    /// Worse by the smallest effect or more, and not by chance.
    Worse,
    /// The whole interval is within the smallest effect.
    NoDifference,
    /// The pairs allow no other verdict.
    TooNoisy,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::NoDifference => "no difference",
            Verdict::TooNoisy => "too noisy",
        })
    }
}

/// The rule for judging ratios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rule {
    /// The smallest effect of interest, as a share: 0.02 for 2 %.
    pub effect: f64,
    /// Whether a ratio above 1 is better.
    pub more_is_better: bool,
    /// How often the pairs are judged while they come in; the interval is wider for it.
    pub looks: usize,
}

impl Default for Rule {
    fn default() -> Self {
        Rule { effect: SMALLEST_EFFECT, more_is_better: true, looks: 1 }
    }
}

/// A verdict and its basis.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The ratio; none if there are too few pairs.
    pub interval: Option<Interval>,
    /// The ratio of the baseline to itself; none if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub itself: Option<Interval>,
    /// About how many pairs are needed, if these are too noisy or too few.
    pub pairs_needed: Option<usize>,
}

impl Judgement {
    /// For people, with the number of pairs.
    pub fn text(&self, pairs: usize) -> String {
        match self.interval {
            Some(interval) => {
                format!("{}, {}, from {} pairs", self.verdict, change(&interval), interval.pairs)
            }
            None => format!(
                "{}, {pairs} valid pairs, {} needed",
                self.verdict,
                self.pairs_needed.unwrap_or_default()
            ),
        }
    }

    /// The baseline against itself, for people; none if it was not measured.
    pub fn itself_text(&self) -> Option<String> {
        self.itself.map(|itself| change(&itself))
    }
}

/// A ratio as a change, with its interval.
fn change(interval: &Interval) -> String {
    let text = |ratio: f64| Unit::Change.text(ratio - 1.0);
    let Interval { ratio, low, high, .. } = *interval;
    format!("{} (95 %: {} to {})", text(ratio), text(low), text(high))
}

impl Rule {
    /// Judges ratios, one per pair: candidate by baseline.
    pub fn judge(&self, ratios: &[f64]) -> Judgement {
        self.judge_beside(ratios, None)
    }

    /// The same with ratios of the baseline to itself, one per pair, if it was measured twice.
    pub fn judge_beside(&self, ratios: &[f64], itself: Option<&[f64]>) -> Judgement {
        let miss = MISS / self.looks.max(1) as f64;
        let itself = itself.map(|ratios| Interval::of(ratios, miss));
        let interval = match itself {
            // Too few of either.
            Some(None) => None,
            Some(Some(itself)) => Interval::of(ratios, miss).map(|own| own.as_wide_as(&itself)),
            None => Interval::of(ratios, miss),
        };
        let itself = itself.flatten();
        let mut verdict =
            interval.map_or(Verdict::TooNoisy, |interval| self.of_interval(&interval));
        if matches!(verdict, Verdict::Better | Verdict::Worse) {
            // A bootstrap of few pairs is only approximate; for signs, all cases are counted.
            let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
            if !lean(&logs, miss) {
                verdict = Verdict::TooNoisy;
            }
        }
        if itself.is_some_and(|itself| self.differs(&itself)) {
            verdict = Verdict::TooNoisy;
        }
        let pairs_needed = (verdict == Verdict::TooNoisy).then(|| match interval {
            Some(interval) => pairs_for(&interval, self.effect),
            None => LEAST_PAIRS,
        });
        Judgement { verdict, interval, itself, pairs_needed }
    }

    /// Whether the baseline differs from itself by the smallest effect or more.
    pub fn differs(&self, itself: &Interval) -> bool {
        !itself.holds(1.0) && !itself.is_within(self.effect, 1.0)
    }

    fn of_interval(&self, interval: &Interval) -> Verdict {
        let is_higher = interval.low > 1.0 && interval.ratio >= 1.0 + self.effect;
        let is_lower = interval.high < 1.0 && interval.ratio <= 1.0 / (1.0 + self.effect);
        match (is_higher, is_lower) {
            _ if interval.is_within(self.effect, 1.0) => Verdict::NoDifference,
            (true, _) if self.more_is_better => Verdict::Better,
            (_, true) if !self.more_is_better => Verdict::Better,
            (false, false) => Verdict::TooNoisy,
            _ => Verdict::Worse,
        }
    }
}

/// About how many pairs would show an effect of this size: noise falls with the square root of the
/// pairs, and half of the effect is left for the estimate.
pub(crate) fn pairs_for(interval: &Interval, effect: f64) -> usize {
    let times = (2.0 * interval.half_width() / effect).powi(2);
    (interval.pairs as f64 * times.max(1.5)).ceil() as usize
}

#[cfg(test)]
mod tests;
