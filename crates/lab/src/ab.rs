//! `picnic lab ab`: a user's own question, two cards or more measured in turns.
//!
//! The sides take turns, forwards and backwards, and the ratio of each pair is judged
//! ([`crate::compare`]): after the pairs asked for, after twice as many and so on, until the
//! verdict is clear or there are no more to be had.
//!
//! Guarantees: a pair of which a side lost packets for lack of room, or had a client that was
//! full, does not count, and is said not to. What is built for a workload is in the journal before
//! it is made ([`picnic_machine::testbed`]).

mod cost;
mod figure;
mod place;
mod workload;

pub use figure::{CARD_FIGURES, CardFigure, ComparedFigure, Reading};
pub use workload::{Kind, Workload};

use crate::compare::{Rule, Verdict, order};
use crate::distribution::Distribution;
use crate::experiment::LabError;
use crate::outcome::{Comparison, Figure, Outcome, Point, Source};
use crate::unit::Unit;
use picnic_control::Registries;
use picnic_core::config::Sections;
use place::{Card, Measured, MeasuringPlace, about};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Rounds that may all be void before there is no sense in more.
const VOID_AT_FIRST: usize = 3;
/// Void pairs that are told one by one.
const TOLD: usize = 3;

/// Who is told the share done, and what is at work.
pub type Progress<'a> = dyn FnMut(f64, &str) + 'a;

/// A card that is compared.
#[derive(Clone, Debug)]
pub struct Side {
    /// What it is called in the result.
    pub name: String,
    /// Its file; none for the demonstration card.
    pub path: Option<PathBuf>,
    /// `KEY=VALUE`s that change it.
    pub set: Vec<String>,
}

/// What the candidates are.
#[derive(Clone, Debug)]
pub enum Candidates {
    /// One.
    One(Side),
    /// One for each value of a key.
    Sweep {
        /// The key.
        key: String,
        /// Its values, and the cards that have them.
        sides: Vec<(String, Side)>,
    },
}

/// A question.
#[derive(Clone, Debug)]
pub struct Question {
    /// What is compared with.
    pub baseline: Side,
    /// What is compared.
    pub candidates: Candidates,
    /// Who talks through the card; none for the card alone.
    pub workload: Option<Workload>,
    /// What is compared of them.
    pub figure: ComparedFigure,
    /// Whether more of it is better.
    pub more_is_better: bool,
    /// Less than this share is no effect.
    pub effect: f64,
    /// Pairs that are measured at least.
    pub pairs: usize,
    /// Pairs that are measured at most, while the verdict is not clear.
    pub most_pairs: usize,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// The share of packets that a side may lose for lack of room.
    pub allowed_loss: f64,
    /// Whether a client may be full.
    pub full_client: bool,
    /// Whether the card's own cost is measured, too.
    pub cost: bool,
}

/// Values of one candidate, each beside that of the baseline.
#[derive(Debug, Default)]
struct Pairs {
    baseline: Vec<f64>,
    candidate: Vec<f64>,
    /// Cores that were busy in all, and by core.
    busy: [Vec<f64>; 2],
    by_core: [Vec<Vec<f64>>; 2],
    /// From request to answer, if the client has told, by key.
    latencies: BTreeMap<&'static str, [Vec<f64>; 2]>,
    /// From arrival to target routine, in each run of the card.
    cards: [Vec<Distribution>; 2],
    void: Vec<String>,
}

impl Question {
    /// Measures until it can be answered; `progress` is told the share done, from 0 to 1, and what
    /// is at work.
    ///
    /// # Errors
    /// A card file is wrong; this machine cannot do it; the workload fails or prints no figure;
    /// all pairs are void.
    pub fn run(
        &self,
        registries: Registries,
        sections: &Sections,
        progress: &mut Progress<'_>,
    ) -> Result<Outcome, LabError> {
        let place =
            MeasuringPlace::build(registries, sections, self.seconds, self.workload.as_ref())?;
        let sides: Vec<&Side> =
            [&self.baseline].into_iter().chain(self.candidates.sides()).collect();
        for side in &sides {
            place.check(side, &self.figure)?;
        }
        let cost = match self.cost {
            true => Some(cost::measure(self, &place, progress)?),
            false => None,
        };
        let pairs = self.measure(&place, &sides, progress)?;
        let mut outcome = self.outcome(pairs);
        if let Some(cost) = cost {
            outcome.series.push(cost);
        }
        progress(1.0, "done");
        Ok(outcome)
    }

    fn rule(&self) -> Rule {
        let looks = std::iter::successors(Some(self.pairs), |pairs| Some(pairs * 2));
        let looks = looks.take_while(|pairs| *pairs <= self.most_pairs).count();
        Rule { effect: self.effect, more_is_better: self.more_is_better, looks: looks.max(1) }
    }

    fn measure(
        &self,
        place: &MeasuringPlace<'_>,
        sides: &[&Side],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Pairs>, LabError> {
        let mut pairs: Vec<Pairs> = sides[1..].iter().map(|_| Pairs::default()).collect();
        let (mut goal, mut round) = (self.pairs, 0);
        loop {
            let counted = pairs.iter().map(|pairs| pairs.baseline.len()).min().unwrap_or(0);
            if counted >= goal {
                let is_clear = pairs.iter().all(|pairs| self.is_clear(pairs));
                if is_clear || goal * 2 > self.most_pairs {
                    return Ok(pairs);
                }
                goal *= 2;
            }
            if round >= VOID_AT_FIRST && counted == 0 || round >= 2 * self.most_pairs {
                return self.without_more(pairs);
            }
            let mut values: Vec<Option<Measured>> = sides.iter().map(|_| None).collect();
            for (done, index) in order(round, sides.len()).enumerate() {
                let side = sides[index];
                let share = (counted as f64 + done as f64 / sides.len() as f64) / goal as f64;
                progress(share.min(1.0), &format!("pair {} of {goal}: {}", counted + 1, side.name));
                let measured = place.measure(Card::As(side), &self.figure);
                values[index] = Some(about(measured, round + 1, &side.name)?);
            }
            let mut values = values.into_iter().flatten();
            let Some(baseline) = values.next() else { continue };
            for ((pairs, candidate), side) in pairs.iter_mut().zip(values).zip(&sides[1..]) {
                self.add(pairs, round + 1, &baseline, (&candidate, &side.name));
            }
            round += 1;
        }
    }

    /// There are fewer pairs than were asked for.
    fn without_more(&self, pairs: Vec<Pairs>) -> Result<Vec<Pairs>, LabError> {
        if pairs.iter().any(|pairs| !pairs.baseline.is_empty()) {
            return Ok(pairs);
        }
        let why = pairs.iter().find_map(|pairs| pairs.void.last()).cloned().unwrap_or_default();
        Err(LabError::Failed(format!("no pair counts: {why}")))
    }

    fn is_clear(&self, pairs: &Pairs) -> bool {
        self.comparison(pairs, "candidate").judgement().is_some_and(|judgement| {
            judgement.interval.is_some() && judgement.verdict != Verdict::TooNoisy
        })
    }

    fn add(
        &self,
        pairs: &mut Pairs,
        number: usize,
        baseline: &Measured,
        (candidate, name): (&Measured, &str),
    ) {
        let why = [(baseline, &*self.baseline.name), (candidate, name)].into_iter().find_map(
            |(measured, name)| {
                let why = measured.void(self.allowed_loss, self.full_client)?;
                Some(format!("pair {number} is void: {name} {why}"))
            },
        );
        match (why, baseline.value, candidate.value) {
            (Some(why), ..) => pairs.void.push(why),
            (None, Some(before), Some(after)) => {
                pairs.baseline.push(before);
                pairs.candidate.push(after);
                let sides = [baseline, candidate];
                for (place, measured) in sides.into_iter().enumerate() {
                    for (key, ns) in &measured.latencies {
                        pairs.latencies.entry(key).or_default()[place].push(*ns);
                    }
                    if let Some(window) = &measured.window {
                        pairs.cards[place]
                            .push(Distribution::of_card("latency_ns", &window.report));
                    }
                }
                if sides.iter().any(|side| side.load.cores.is_empty()) {
                    // Too short a time for the kernel to have told.
                    return;
                }
                for (place, measured) in sides.into_iter().enumerate() {
                    pairs.busy[place].push(busy_cores(measured));
                    let by_core = &mut pairs.by_core[place];
                    for core in &measured.load.cores {
                        by_core.resize_with(by_core.len().max(core.core + 1), Vec::new);
                        by_core[core.core].push(1.0 - core.idle);
                    }
                }
            }
            _ => pairs.void.push(format!("pair {number} is void: it has no {}", self.figure.key())),
        }
    }

    fn comparison(&self, pairs: &Pairs, candidate: &str) -> Comparison {
        let Pairs { baseline, candidate: values, .. } = pairs;
        let sides = (("baseline", baseline.clone()), (candidate, values.clone()));
        Comparison::of(self.figure.key(), sides.0, sides.1).judged_by(self.rule())
    }

    fn outcome(&self, mut all: Vec<Pairs>) -> Outcome {
        let mut outcome = Outcome::of(Source::Measured);
        outcome.settings = self.settings();
        match &self.candidates {
            Candidates::One(_) => {
                let Some(pairs) = all.first_mut() else { return outcome };
                let comparison = self.comparison(pairs, "candidate");
                self.answer(&mut outcome, "candidate", &comparison);
                outcome.compare(comparison);
                for (key, [before, after]) in std::mem::take(&mut pairs.latencies) {
                    // One figure was asked about, and only that one is judged.
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
                let [before, after] = std::mem::take(&mut pairs.by_core);
                for (core, (before, after)) in before.into_iter().zip(after).enumerate() {
                    let point = Point::at("core", core)
                        .with(Figure::of("baseline_busy_fraction", before))
                        .with(Figure::of("candidate_busy_fraction", after));
                    outcome.series("processor").push(point);
                }
            }
            Candidates::Sweep { key, sides } => {
                for ((value, _), pairs) in sides.iter().zip(&all) {
                    let comparison = self.comparison(pairs, "candidate");
                    self.answer(&mut outcome, &format!("{key}={value}"), &comparison);
                    let [_, busy] = &pairs.busy;
                    let point = Point::at(&key_word(key), value.as_str())
                        .comparing(comparison)
                        .with(Figure::of("busy_cores", busy.clone()).in_detail());
                    outcome.series("sweep").push(point);
                }
                outcome.note("each interval is one of 95 %; together they miss more often");
            }
        }
        for void in all.iter().map(|pairs| &pairs.void).filter(|void| !void.is_empty()) {
            void.iter().take(TOLD).for_each(|why| outcome.note(why.clone()));
            if let Some(more @ 1..) = void.len().checked_sub(TOLD) {
                outcome.note(format!("{more} more pairs are void"));
            }
        }
        outcome
    }

    /// The answer in a sentence.
    fn answer(&self, outcome: &mut Outcome, name: &str, comparison: &Comparison) {
        let Some(judgement) = comparison.judgement() else { return };
        let told = judgement.text(comparison.ratios().len());
        let sentence = match judgement.interval {
            Some(_) => {
                let effect = Unit::Fraction.text(self.effect);
                let needed = judgement.pairs_needed.map_or(String::new(), |pairs| {
                    format!("; about {pairs} pairs could decide it (--most-pairs)")
                });
                format!("{name}: {told}; less than {effect} is no effect{needed}")
            }
            None => format!("{name}: {told}"),
        };
        outcome.note(sentence);
        if matches!(self.candidates, Candidates::One(_)) {
            outcome.tell("verdict", judgement.verdict.to_string());
        }
    }

    fn settings(&self) -> serde_json::Value {
        let side = |side: &Side| json!({ "name": side.name, "path": side.path, "set": side.set });
        let sides: Vec<_> = self.candidates.sides().map(side).collect();
        json!({
            "baseline": side(&self.baseline), "candidates": sides,
            "workload": self.workload.as_ref().map(Workload::command),
            "figure": self.figure.key(), "more_is_better": self.more_is_better,
            "effect": self.effect, "pairs": self.pairs, "most_pairs": self.most_pairs,
            "seconds": self.seconds, "allowed_loss": self.allowed_loss,
            "full_client": self.full_client,
        })
    }
}

impl Candidates {
    fn sides(&self) -> impl Iterator<Item = &Side> {
        let (one, many) = match self {
            Candidates::One(side) => (Some(side), &[][..]),
            Candidates::Sweep { sides, .. } => (None, &sides[..]),
        };
        one.into_iter().chain(many.iter().map(|(_, side)| side))
    }
}

/// A card file's key as a word of ours: `interrupt_rx_usecs`.
fn key_word(key: &str) -> String {
    let letters = key.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '_' });
    letters.collect::<String>().replace("__", "_").trim_matches('_').to_owned()
}

/// How many cores were busy, all parts added up.
fn busy_cores(measured: &Measured) -> f64 {
    match &measured.load.cores[..] {
        [] => f64::NAN,
        cores => cores.iter().map(|core| 1.0 - core.idle).sum(),
    }
}

#[cfg(test)]
mod tests;
