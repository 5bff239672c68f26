//! Figures of papers, compared with ours.
//!
//! Figures from other hardware do not transfer; ratios and shapes do. Each figure has the paper's
//! value and, if an experiment reproduces it, the key of ours in that experiment's whole run. A row
//! without an experiment has the reason.

use crate::compare::{Finding, LEAST_PAIRS, Paper, PaperVerdict};
use crate::outcome::Figure;
use crate::unit::Unit;
use serde::Serialize;

/// A value in a paper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PaperValue {
    /// A number of this unit.
    Number(f64, Unit),
    /// In words.
    Words(&'static str),
}

impl PaperValue {
    /// For people.
    pub fn text(&self) -> String {
        match self {
            PaperValue::Number(value, unit) => unit.short_text(*value),
            PaperValue::Words(words) => (*words).into(),
        }
    }
}

/// A figure of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PaperFigure {
    /// What it measures.
    pub what: &'static str,
    /// The paper's value.
    pub paper: PaperValue,
    /// The key of ours in the experiment's whole run; none if it has no such figure.
    pub ours: Option<&'static str>,
    /// The condition on ours under which the paper's statement holds, if it can be checked.
    pub holds: Option<Holds>,
}

/// A bound on our figure under which a statement holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Holds {
    /// The name of ours, for people.
    pub of: &'static str,
    /// The lower bound.
    pub least: f64,
    /// The upper bound.
    pub most: f64,
}

impl Holds {
    /// The answer, with our figure.
    fn text(&self, ours: &Figure) -> String {
        let Some(spread) = ours.spread() else { return "not measured".into() };
        // The middle half: extreme repeats only show the machine's noise.
        let is_in = |value: f64| (self.least..=self.most).contains(&value);
        let answer = match (is_in(spread.lower_quartile), is_in(spread.upper_quartile)) {
            (true, true) => "yes",
            (false, false) => "no",
            _ => "not sure",
        };
        format!("{answer} ({} {})", self.of, ours.text())
    }
}

/// A row of the papers' table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The experiment's name, whether it exists or not.
    pub name: &'static str,
    /// Paper and place.
    pub source: &'static str,
    /// What is measured.
    pub what: &'static str,
    /// The paper's findings.
    pub figures: &'static [PaperFigure],
    /// What is incorrect in the paper's statement, if anything.
    pub correction: Option<&'static str>,
    /// Why there is no experiment yet, if there is none.
    pub unanswered: Option<&'static str>,
}

/// A figure that the paper gives as a number.
pub const fn number(what: &'static str, value: f64, unit: Unit) -> PaperFigure {
    PaperFigure { what, paper: PaperValue::Number(value, unit), ours: None, holds: None }
}

/// A figure that the paper gives in words.
pub const fn words(what: &'static str, words: &'static str) -> PaperFigure {
    PaperFigure { what, paper: PaperValue::Words(words), ours: None, holds: None }
}

/// Prefix of keys of figures for which client, server and target queues share cores.
pub const SHARED_CORES: &str = "shared_cores_";

/// The relative deviation allowed: other machines, and the reading accuracy of a figure.
const WITHIN: f64 = 0.10;

impl PaperFigure {
    /// With the key of ours.
    #[must_use]
    pub const fn ours(self, key: &'static str) -> Self {
        PaperFigure { ours: Some(key), ..self }
    }

    /// True if ours, with this name for people, is at least this.
    #[must_use]
    pub const fn at_least(self, least: f64, of: &'static str) -> Self {
        PaperFigure { holds: Some(Holds { of, least, most: f64::MAX }), ..self }
    }

    /// True if ours, with this name for people, is at most this.
    #[must_use]
    pub const fn at_most(self, most: f64, of: &'static str) -> Self {
        PaperFigure { holds: Some(Holds { of, least: f64::MIN, most }), ..self }
    }

    /// Ours for people, with the comparison to the paper's.
    pub fn text(&self, ours: &Figure) -> String {
        let mut text = match (&self.holds, ours.range_text()) {
            (Some(holds), _) => holds.text(ours),
            (None, range) if range.is_empty() => ours.text(),
            (None, range) => format!("{} ({range})", ours.text()),
        };
        if ours.key.starts_with(SHARED_CORES) {
            text += ", on shared cores";
        }
        match self.judge(ours) {
            Some(PaperVerdict { finding: Finding::Reproduced, .. }) => {
                format!("{text}: reproduced")
            }
            Some(PaperVerdict { finding, why }) => format!("{text}: {finding}: {why}"),
            None => text,
        }
    }

    /// The comparison with the paper's, if both are ratios; figures from other hardware do not
    /// transfer.
    pub fn judge(&self, ours: &Figure) -> Option<PaperVerdict> {
        let (ratio, shift) = match self.paper {
            PaperValue::Number(change, Unit::Change) => (1.0 + change, 1.0),
            PaperValue::Number(ratio, Unit::Ratio) => (ratio, 0.0),
            _ => return None,
        };
        let paper = Paper { ratio, within: WITHIN, fitted_to: None };
        Some(paper.judge(interval(ours).map(|(low, high)| (low + shift, high + shift))))
    }
}

/// The range of ours, or why nothing can be concluded.
fn interval(ours: &Figure) -> Result<(f64, f64), String> {
    let spread = ours.spread().ok_or("unavailable")?;
    if ours.key.starts_with(SHARED_CORES) {
        return Err("client, server and target queues share cores".into());
    }
    if !ours.is_measured_in_pairs() {
        // The middle half: extreme repeats only show the machine's noise.
        return Ok((spread.lower_quartile, spread.upper_quartile));
    }
    let interval = ours.judgement().and_then(|judgement| judgement.interval);
    let interval = interval.map(|interval| (interval.low - 1.0, interval.high - 1.0));
    interval.ok_or_else(|| format!("{} pairs count, {LEAST_PAIRS} are needed", spread.count))
}

/// A row without corrections.
pub const fn row(source: &'static str, what: &'static str, figures: &'static [PaperFigure]) -> Row {
    Row { name: "", source, what, figures, correction: None, unanswered: None }
}

impl Row {
    /// With a correction of the paper.
    #[must_use]
    pub const fn corrected(self, correction: &'static str) -> Self {
        Row { correction: Some(correction), ..self }
    }

    /// Of the experiment of this name.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Self {
        Row { name, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Finding;

    #[test]
    fn ratios_of_pairs_are_judged_by_their_interval() {
        let gain = number("", 0.12, Unit::Change);
        let judge = |key: &str, around: f64, noise: f64, pairs: u8| {
            let ratio = |n: u8| around * (1.0 + noise * (f64::from(n % 5) - 2.0));
            let ratios: Vec<_> = (0..pairs).map(ratio).collect();
            gain.judge(&Figure::of_pairs(key, &ratios)).unwrap()
        };
        let finding = |around, noise, pairs| judge("knet_gain", around, noise, pairs).finding;
        assert_eq!(finding(1.12, 0.01, 10), Finding::Reproduced);
        assert_eq!(finding(1.00, 0.01, 10), Finding::NotReproduced);
        assert_eq!(finding(1.40, 0.01, 10), Finding::NotReproduced);
        // Their middle half alone would be enough, their interval is not.
        assert_eq!(finding(1.12, 0.06, 10), Finding::NotMeasurableHere);
        let few = judge("knet_gain", 1.12, 0.01, 9);
        assert_eq!(few.finding, Finding::NotMeasurableHere);
        assert_eq!(few.why, "9 pairs count, 10 are needed");
        let shared = judge("shared_cores_knet_gain", 1.12, 0.01, 10);
        assert_eq!(shared.finding, Finding::NotMeasurableHere);
        assert_eq!(shared.why, "client, server and target queues share cores");
    }

    #[test]
    fn only_ratios_are_judged() {
        let twice = number("", 1.0, Unit::Change);
        let judge = |gain: f64| twice.judge(&Figure::one("throughput_gain", gain)).unwrap();
        assert_eq!(judge(1.05).finding, Finding::Reproduced);
        assert_eq!(judge(0.5).finding, Finding::NotReproduced);
        let speed = number("", 5e9, Unit::BitsPerSecond);
        assert_eq!(speed.judge(&Figure::one("delivered_bps", 5e9)), None);
    }
}
