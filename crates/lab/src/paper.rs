//! Figures of papers, compared with ours.
//!
//! Figures from other hardware do not transfer; ratios and shapes do. Each figure has the paper's
//! value and, if an experiment reproduces it, the key of ours in that experiment's whole run. A row
//! without an experiment has the reason. A row may name the paper's machine: figures with a
//! [`Model`] follow from that machine's costs.

use crate::compare::{Finding, LEAST_PAIRS, Paper, PaperVerdict};
use crate::experiment::Effort;
use crate::outcome::Figure;
use crate::unit::Unit;
use picnic_sim::machine::Profile;
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

/// How a machine's costs give a figure.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Runs the machine. The error gives the reason for no figure.
    pub run: fn(&Profile, Effort) -> Result<f64, String>,
    /// The value by a formula, as a check.
    pub formula: Option<fn(&Profile) -> f64>,
}

/// The machine on which a paper measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Its profile.
    pub profile: &'static str,
    /// Cores that the row's figures need of a machine.
    pub cores: usize,
}

/// A figure of a paper.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PaperFigure {
    /// The measured figure.
    pub what: &'static str,
    /// The paper's value.
    pub paper: PaperValue,
    /// The key of ours in the experiment's whole run; none if it has no such figure.
    pub ours: Option<&'static str>,
    /// The condition on ours under which the paper's statement holds, if it can be checked.
    pub holds: Option<Holds>,
    /// How a modelled machine gives it; none if it cannot.
    #[serde(skip)]
    pub model: Option<Model>,
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
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// The experiment's name, whether it exists or not.
    pub name: &'static str,
    /// Paper and place.
    pub source: &'static str,
    /// The measured figure.
    pub what: &'static str,
    /// The paper's findings.
    pub figures: &'static [PaperFigure],
    /// An error in the paper's statement, if any.
    pub correction: Option<&'static str>,
    /// The reason for no experiment, if there is none yet.
    pub unanswered: Option<&'static str>,
    /// The paper's machine, if it is modelled.
    pub machine: Option<Machine>,
}

/// A figure that the paper gives as a number.
pub const fn number(what: &'static str, value: f64, unit: Unit) -> PaperFigure {
    let paper = PaperValue::Number(value, unit);
    PaperFigure { what, paper, ours: None, holds: None, model: None }
}

/// A figure that the paper gives in words.
pub const fn words(what: &'static str, words: &'static str) -> PaperFigure {
    PaperFigure { what, paper: PaperValue::Words(words), ours: None, holds: None, model: None }
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

    /// Given by a modelled machine.
    #[must_use]
    pub const fn modelled(self, run: fn(&Profile, Effort) -> Result<f64, String>) -> Self {
        PaperFigure { model: Some(Model { run, formula: None }), ..self }
    }

    /// Given by a modelled machine, and by a formula as a check.
    #[must_use]
    pub const fn modelled_and(
        self,
        run: fn(&Profile, Effort) -> Result<f64, String>,
        formula: fn(&Profile) -> f64,
    ) -> Self {
        PaperFigure { model: Some(Model { run, formula: Some(formula) }), ..self }
    }

    /// The unit of ours.
    pub fn unit(&self) -> Unit {
        match self.paper {
            PaperValue::Number(_, unit) => unit,
            PaperValue::Words(_) => Unit::of_key(self.ours.unwrap_or_default()),
        }
    }

    /// Our figure for people, and the verdict on the paper's.
    pub fn text(&self, ours: &Figure) -> String {
        let mut text = self.value_text(ours);
        if ours.key.starts_with(SHARED_CORES) {
            text += ", on shared cores";
        }
        match (self.judge(ours), &ours.basis) {
            (Some(verdict), Some(basis)) if basis.fitted.is_none() => {
                format!("{text}, predicted: {verdict}")
            }
            (Some(verdict), _) => format!("{text}: {verdict}"),
            (None, _) => text,
        }
    }

    /// Ours for people.
    pub fn value_text(&self, ours: &Figure) -> String {
        let formula = ours.basis.as_ref().and_then(|basis| basis.formula);
        match (&self.holds, formula, ours.range_text()) {
            (Some(holds), ..) => holds.text(ours),
            (None, Some(formula), _) => {
                format!("{} (by formula {})", ours.text(), self.unit().text(formula))
            }
            (None, None, range) if range.is_empty() => ours.text(),
            (None, None, range) => format!("{} ({range})", ours.text()),
        }
    }

    /// Ours beside the paper's, where both are ratios; figures of their hardware do not transfer,
    /// unless the paper's machine is modelled.
    pub fn judge(&self, ours: &Figure) -> Option<PaperVerdict> {
        if let Some(basis) = &ours.basis {
            // The middle half: sets that were fitted differ from one another.
            let spread = ours.spread()?;
            let judge = || self.judge_range(spread.lower_quartile, spread.upper_quartile);
            return basis.verdict().or_else(judge);
        }
        let shift = if self.unit() == Unit::Change { 1.0 } else { 0.0 };
        let interval = interval(ours).map(|(low, high)| (low + shift, high + shift));
        Some(self.ratio()?.judge(interval))
    }

    /// A value from the paper's own machine beside the paper's; none for words without a bound.
    pub fn judge_value(&self, ours: f64) -> Option<PaperVerdict> {
        self.judge_range(ours, ours)
    }

    /// The same for a range of values, all of which have to agree.
    fn judge_range(&self, lowest: f64, highest: f64) -> Option<PaperVerdict> {
        let (unit, shift) = (self.unit(), if self.unit() == Unit::Change { 1.0 } else { 0.0 });
        if let Some(ratio) = self.ratio() {
            return Some(ratio.judge(Ok((lowest + shift, highest + shift))));
        }
        let (low, high, allowed) = match (self.paper, self.holds) {
            (PaperValue::Number(paper, _), _) => {
                let (low, high) = (paper / (1.0 + WITHIN), paper * (1.0 + WITHIN));
                (low, high, unit.range(low, high))
            }
            (_, Some(Holds { least: f64::MIN, most, .. })) => {
                (f64::MIN, most, format!("at most {}", unit.text(most)))
            }
            (_, Some(Holds { least, .. })) => {
                (least, f64::MAX, format!("at least {}", unit.text(least)))
            }
            (PaperValue::Words(_), None) => return None,
        };
        let ours = match lowest == highest {
            true => unit.text(lowest),
            false => unit.range(lowest, highest),
        };
        let why = format!("ours {ours}; {allowed} would agree");
        let (finding, why) =
            match (lowest >= low && highest <= high, highest < low || lowest > high) {
                (true, _) => (Finding::Reproduced, why),
                (_, true) => (Finding::NotReproduced, why),
                _ => (Finding::NotMeasurableHere, format!("the sets differ too much: {why}")),
            };
        Some(PaperVerdict { finding, why })
    }

    /// The paper's ratio, if it gives one.
    fn ratio(&self) -> Option<Paper> {
        let ratio = match self.paper {
            PaperValue::Number(change, Unit::Change) => 1.0 + change,
            PaperValue::Number(ratio, Unit::Ratio) => ratio,
            _ => return None,
        };
        Some(Paper { ratio, within: WITHIN })
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
    Row { name: "", source, what, figures, correction: None, unanswered: None, machine: None }
}

impl Row {
    /// With a correction of the paper.
    #[must_use]
    pub const fn corrected(self, correction: &'static str) -> Self {
        Row { correction: Some(correction), ..self }
    }

    /// Measured on the machine of this profile; another machine needs as many cores.
    #[must_use]
    pub const fn on(self, profile: &'static str, cores: usize) -> Self {
        Row { machine: Some(Machine { profile, cores }), ..self }
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
