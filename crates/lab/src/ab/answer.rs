//! The answer: an estimate, its verdict in a sentence, and notes.

use super::pairs::{Found, Pairs};
use super::{Candidates, Question, Side};
use crate::compare::{Interval, Judgement, pairs_for};
use crate::outcome::{Comparison, Figure, Outcome, Point, Series, Source, in_words};
use crate::plot::{Band, Dot, Drawing, Line};
use crate::unit::Unit;
use serde_json::Value;
use std::time::Duration;

/// Void pairs reported individually.
const TOLD: usize = 3;
/// Effects to suggest for another question, in percent.
const EFFECTS: [f64; 6] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0];

impl Question {
    pub(super) fn outcome(&self, found: Found) -> Outcome {
        let Found { pairs: mut all, round } = found;
        let mut outcome = Outcome::of(Source::Measured);
        outcome.settings = self.settings();
        let mut functions = Series { name: "functions".into(), points: Vec::new() };
        if let Some(first) = all.first() {
            first.functions[0].add_to(&mut functions, &self.baseline.name);
        }
        let mut idle = Vec::new();
        for (side, pairs) in self.candidates.sides().zip(&all) {
            pairs.functions[1].add_to(&mut functions, &side.name);
            idle.extend(pairs.functions[1].idle(side));
        }
        match &self.candidates {
            Candidates::One(_) => {
                let Some(pairs) = all.first_mut() else { return outcome };
                self.compare(&mut outcome, pairs, round);
            }
            Candidates::Sweep { key, sides } => self.sweep(&mut outcome, key, sides, &all, round),
        }
        // A function that did nothing has no effect, at any ratio.
        outcome.notes.splice(0..0, idle);
        if !functions.points.is_empty() {
            outcome.series.push(functions);
        }
        for void in all.iter().map(|pairs| &pairs.void).filter(|void| !void.is_empty()) {
            void.iter().take(TOLD).for_each(|void| outcome.note(void.why.clone()));
            if let Some(more @ 1..) = void.len().checked_sub(TOLD) {
                outcome.note(format!("{more} more pairs are void"));
            }
        }
        outcome
    }

    fn compare(&self, outcome: &mut Outcome, pairs: &mut Pairs, round: Duration) {
        let comparison = self.comparison(pairs, "candidate");
        self.answer(outcome, "candidate", &comparison, round);
        outcome.compare(comparison);
        for (key, [before, after]) in std::mem::take(&mut pairs.latencies) {
            // The question is about one figure, and only that one is judged.
            let sides = (("baseline", before), ("candidate", after));
            let compared = Comparison::of(key, sides.0, sides.1);
            outcome.compare(Comparison { rule: None, ..compared });
        }
        for (name, cards) in ["baseline", "candidate"].into_iter().zip(&pairs.cards) {
            for card in cards {
                let key = format!("{name}_latency_ns");
                outcome.distribute(card.clone().keyed(&key));
            }
        }
        let [before, after] = std::mem::take(&mut pairs.busy);
        if !before.is_empty() {
            let sides = (("baseline", before), ("candidate", after));
            outcome.compare(Comparison::of("busy_cores", sides.0, sides.1));
        }
        for (name, others) in ["baseline", "candidate"].into_iter().zip(&pairs.others) {
            if !others.is_empty() {
                let figure = Figure::of(&format!("{name}_others_fraction"), others.clone());
                let label = format!("cores used by other processes, {name}");
                outcome.add(figure.called(&label));
            }
        }
        let [before, after] = std::mem::take(&mut pairs.by_core);
        for (core, (before, after)) in before.into_iter().zip(after).enumerate() {
            let point = Point::at("core", core)
                .with(Figure::of("baseline_busy_fraction", before))
                .with(Figure::of("candidate_busy_fraction", after));
            outcome.series("processor").push(point);
        }
    }

    fn sweep(
        &self,
        outcome: &mut Outcome,
        key: &str,
        sides: &[(String, Side)],
        all: &[Pairs],
        round: Duration,
    ) {
        for ((value, _), pairs) in sides.iter().zip(all) {
            let comparison = self.comparison(pairs, "candidate");
            self.answer(outcome, &format!("{key}={value}"), &comparison, round);
            let [_, busy] = &pairs.busy;
            let [_, others] = &pairs.others;
            let point = Point::at(&key_word(key), number_or_word(value))
                .comparing(comparison)
                .with(Figure::of("busy_cores", busy.clone()).in_detail())
                .with(Figure::of("others_fraction", others.clone()).in_detail());
            outcome.series("sweep").push(point);
        }
        outcome.note("each interval has 95 % confidence; all of them together have less");
    }

    /// The answer in a sentence, with the noise.
    fn answer(&self, outcome: &mut Outcome, name: &str, comparison: &Comparison, round: Duration) {
        let Some(judgement) = comparison.judgement() else { return };
        let text = judgement.text(comparison.ratios().len());
        let effect = Unit::Fraction.text(self.effect);
        outcome.note(match judgement.interval {
            Some(_) => format!("{name}: {text}; effects below {effect} are ignored"),
            None => format!("{name}: {text}"),
        });
        if let Some(itself) = judgement.itself_text() {
            let differs = judgement.itself.is_some_and(|itself| self.rule().differs(&itself));
            let why = match differs {
                true => "; the load changed during the measurement, so there is no verdict",
                false => "",
            };
            outcome.note(format!("{name}: the baseline against itself: {itself}{why}"));
        }
        if let Some(decides) = self.decides(&judgement, round) {
            outcome.note(format!("{name}: {decides}"));
        }
        if matches!(self.candidates, Candidates::One(_)) {
            outcome.tell("verdict", judgement.verdict.to_string());
        }
    }

    /// What would settle an open question, in time and in words.
    fn decides(&self, judgement: &Judgement, round: Duration) -> Option<String> {
        let (needed, interval) = (judgement.pairs_needed?, judgement.interval?);
        let time = |pairs: usize| duration(round.as_secs_f64() * pairs as f64);
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let effect = Unit::Fraction.short_text(self.effect);
        let mut text = format!(
            "noise ±{}: detecting an effect of {effect} takes about {} (--most-pairs {needed}); use a quieter \
             machine",
            percent(interval.half_width()),
            time(needed)
        );
        if let Some((percent, pairs)) = self.smaller_question(&interval) {
            text += &format!(", or try --effect {percent}, which takes about {}", time(pairs));
        }
        Some(text)
    }

    /// The smallest round effect, in percent, that the allowed pairs could show, and their number.
    fn smaller_question(&self, interval: &Interval) -> Option<(f64, usize)> {
        let larger = EFFECTS.into_iter().filter(|percent| *percent > self.effect * 100.0);
        let mut asked = larger.map(|percent| (percent, pairs_for(interval, percent / 100.0)));
        asked.find(|(_, pairs)| *pairs <= self.most_pairs)
    }
}

/// A time in words.
fn duration(seconds: f64) -> String {
    const UNITS: [(f64, &str); 4] =
        [(86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")];
    let (size, unit) =
        UNITS.into_iter().find(|(size, _)| seconds >= 2.0 * size).unwrap_or(UNITS[3]);
    match (seconds / size).ceil() {
        count if count > 1.0 => format!("{count:.0} {unit}"),
        _ => "1 second".into(),
    }
}

/// A card file's key as one word: `interrupt_rx_usecs`.
pub(super) fn key_word(key: &str) -> String {
    let letters = key.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '_' });
    letters.collect::<String>().replace("__", "_").trim_matches('_').to_owned()
}

/// A swept value for programs: a number if possible.
fn number_or_word(value: &str) -> Value {
    let number = serde_json::from_str::<serde_json::Number>(value);
    number.map_or_else(|_| Value::from(value), Value::Number)
}

/// The changes against the baseline, with the baseline's own noise; none if there are too few
/// pairs.
pub fn drawing(outcome: &Outcome) -> Option<Drawing> {
    let sweep = outcome.series.iter().find(|series| series.name == "sweep");
    let points: Vec<(Option<f64>, String, &Comparison)> = match sweep {
        Some(series) => {
            let points = series.points.iter().filter_map(|point| {
                let (_, label) = point.labels.iter().next()?;
                let name = label.as_str().map_or_else(|| label.to_string(), str::to_owned);
                Some((label.as_f64(), name, point.comparisons.first()?))
            });
            points.collect()
        }
        None => vec![(None, "candidate".into(), outcome.whole.comparisons.first()?)],
    };
    let judged = points.iter().filter_map(|(x, name, comparison)| {
        let judgement = comparison.judgement()?;
        Some((*x, name.clone(), judgement.interval?, judgement.itself))
    });
    let judged: Vec<_> = judged.collect();
    let are_numbers = judged.iter().all(|(x, ..)| x.is_some());
    let dots = judged.iter().enumerate().map(|(place, (x, _, interval, _))| Dot {
        x: if are_numbers { x.unwrap_or_default() } else { place as f64 },
        y: interval.ratio - 1.0,
        low: interval.low - 1.0,
        high: interval.high - 1.0,
    });
    let mut dots: Vec<_> = dots.collect();
    if are_numbers {
        dots.sort_by(|one, other| one.x.total_cmp(&other.x));
    }
    let itself: Vec<_> = judged.iter().filter_map(|(.., itself)| *itself).collect();
    let band = itself.iter().copied().reduce(|one, other| Interval {
        low: one.low.min(other.low),
        high: one.high.max(other.high),
        ..one
    });
    let (_, _, first) = points.first()?;
    let x = sweep.and_then(|series| series.points.first()?.labels.keys().next().cloned());
    let x = x.unwrap_or_default();
    let subject = in_words(&first.key);
    (!dots.is_empty()).then(|| Drawing {
        title: format!("{subject}: change against the baseline"),
        x_label: in_words(&x),
        x_unit: Unit::of_key(&x),
        y_label: format!("change of {subject}, with its 95 % interval"),
        y_unit: Unit::Change,
        bars: match are_numbers {
            true => Vec::new(),
            false => judged.iter().map(|(_, name, ..)| name.clone()).collect(),
        },
        lines: vec![Line { name: "change".into(), points: dots }],
        marks: Vec::new(),
        band: band.map(|band| Band {
            label: "noise: the baseline against itself".into(),
            low: band.low - 1.0,
            high: band.high - 1.0,
        }),
        is_logarithmic: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_words() {
        let words = [0.3, 40.0, 180.0, 54_000.0, 400_000.0].map(duration);
        assert_eq!(words, ["1 second", "40 seconds", "3 minutes", "15 hours", "5 days"]);
    }

    #[test]
    fn swept_values_are_numbers_if_possible() {
        assert_eq!(number_or_word("10000"), 10_000);
        assert_eq!(number_or_word("0.5"), 0.5);
        assert_eq!(number_or_word("jhash"), "jhash");
    }

    #[test]
    fn keys_are_words() {
        assert_eq!(key_word("interrupt.rx_usecs"), "interrupt_rx_usecs");
        assert_eq!(key_word("rx[0].hash"), "rx_0_hash");
    }
}
