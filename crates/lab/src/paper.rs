//! A figure of a paper, and ours beside it.
//!
//! A figure made on their hardware does not transfer; the ratio and the shape do. Of each figure
//! stands here what the paper says and, where an experiment answers it, under which key of that
//! experiment's whole run ours stands. A row without an experiment says why not.

use crate::compare::{Finding, LEAST_PAIRS, Paper, PaperVerdict};
use crate::outcome::Figure;
use crate::unit::Unit;
use serde::Serialize;

/// What a paper gives.
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
    /// What it is of.
    pub what: &'static str,
    /// What the paper says.
    pub paper: PaperValue,
    /// The key of ours in the experiment's whole run; none if it has no such figure.
    pub ours: Option<&'static str>,
    /// What ours must be for the paper's words to be true; none if they say nothing of that kind.
    pub holds: Option<Holds>,
}

/// A bound that a figure of ours has to keep for a sentence to be true.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Holds {
    /// What ours is, for people.
    pub of: &'static str,
    /// Ours is not lower.
    pub least: f64,
    /// Ours is not higher.
    pub most: f64,
}

impl Holds {
    /// The answer, and ours.
    fn text(&self, ours: &Figure) -> String {
        let Some(spread) = ours.spread() else { return "not measured".into() };
        // The middle half: the outermost repeats say how noisy a machine is.
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
    /// The experiment's name, whether there is one or not.
    pub name: &'static str,
    /// Paper and place.
    pub source: &'static str,
    /// What is measured.
    pub what: &'static str,
    /// What the paper found.
    pub figures: &'static [PaperFigure],
    /// What of the paper cannot be as it stands there.
    pub correction: Option<&'static str>,
    /// Why no experiment answers it yet; none if one does.
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

/// In front of the key of what was got where client, server and target queues share cores.
pub const SHARED_CORES: &str = "shared_cores_";

/// How far from the paper's ratio ours may be: another machine, and what is read off a figure.
const WITHIN: f64 = 0.10;

impl PaperFigure {
    /// With the key of ours.
    #[must_use]
    pub const fn ours(self, key: &'static str) -> Self {
        PaperFigure { ours: Some(key), ..self }
    }

    /// True if ours, called so for people, is at least this.
    #[must_use]
    pub const fn at_least(self, least: f64, of: &'static str) -> Self {
        PaperFigure { holds: Some(Holds { of, least, most: f64::MAX }), ..self }
    }

    /// True if ours, called so for people, is at most this.
    #[must_use]
    pub const fn at_most(self, most: f64, of: &'static str) -> Self {
        PaperFigure { holds: Some(Holds { of, least: f64::MIN, most }), ..self }
    }

    /// Ours for people, and what it says of the paper's.
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

    /// Ours beside the paper's, where both are ratios; figures of their hardware do not transfer.
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

/// From where to where ours lies, or why nothing can be said.
fn interval(ours: &Figure) -> Result<(f64, f64), String> {
    let spread = ours.spread().ok_or("unavailable")?;
    if ours.key.starts_with(SHARED_CORES) {
        return Err("client, server and target queues share cores".into());
    }
    if !ours.is_measured_in_pairs() {
        // The middle half: the outermost repeats say how noisy a machine is.
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
    /// With what of the paper cannot be as it stands there.
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
        // Their middle half alone would do, their interval does not.
        assert_eq!(finding(1.12, 0.06, 10), Finding::NotMeasurableHere);
        let few = judge("knet_gain", 1.12, 0.01, 9);
        assert_eq!(few.finding, Finding::NotMeasurableHere);
        assert_eq!(few.why, "9 pairs count, 10 are needed");
        let shared = judge("shared_cores_knet_gain", 1.12, 0.01, 10);
        assert_eq!(shared.finding, Finding::NotMeasurableHere);
        assert_eq!(shared.why, "client, server and target queues share cores");
    }

    #[test]
    fn ratios_are_judged_and_figures_of_their_hardware_are_not() {
        let twice = number("", 1.0, Unit::Change);
        let judge = |gain: f64| twice.judge(&Figure::one("throughput_gain", gain)).unwrap();
        assert_eq!(judge(1.05).finding, Finding::Reproduced);
        assert_eq!(judge(0.5).finding, Finding::NotReproduced);
        let speed = number("", 5e9, Unit::BitsPerSecond);
        assert_eq!(speed.judge(&Figure::one("delivered_bps", 5e9)), None);
    }
}
