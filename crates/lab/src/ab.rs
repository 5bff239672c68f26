//! `picnic lab ab`: a user's own question, two cards or more measured in turns.
//!
//! The sides are measured in random order, the baseline twice in each round, and the ratio of each
//! pair is judged beside that of the baseline to itself ([`crate::compare`]): after the pairs asked
//! for, after twice as many and so on, until the verdict is clear, or no number of pairs that is
//! allowed could make it so.
//!
//! Guarantees: a pair does not count, and is reported, if a side lost packets for lack of room, had a
//! client that was full, or ran while other processes had more of the cores than is allowed. What
//! is built for a workload is in the journal before it is made ([`picnic_machine::testbed`]).

mod answer;
mod cost;
mod figure;
mod functions;
mod pairs;
mod place;
mod workload;

pub use answer::drawing;
pub use figure::{CARD_FIGURES, CardFigure, ComparedFigure, Reading};
pub use place::Allowed;
pub use workload::{Kind, Workload};

use crate::compare::Rule;
use crate::experiment::LabError;
use crate::outcome::Outcome;
use picnic_control::Registries;
use picnic_core::config::Sections;
use place::{Card, Measured, MeasuringPlace};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use std::path::PathBuf;

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
    /// Whether the baseline is no card: client and server joined by a veth.
    pub plain: bool,
    /// Whether client and server keep off the candidate's borrowed core, whichever side is measured.
    pub apart: bool,
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
    /// What a pair may have and still count.
    pub allowed: Allowed,
    /// Whether the client sends packets as a wire carries them, none merged.
    pub wire_frames: bool,
    /// Of the order in which sides are measured.
    pub seed: u64,
    /// Whether the card's own cost is measured, too.
    pub cost: bool,
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
        let sides: Vec<&Side> =
            [&self.baseline].into_iter().chain(self.candidates.sides()).collect();
        let apart = sides.last().copied().filter(|_| self.apart);
        let workload = self.workload.as_ref();
        let setup = (self.wire_frames, apart);
        let place = MeasuringPlace::build(registries, sections, self.seconds, workload, setup)?;
        for side in &sides[usize::from(self.plain)..] {
            place.check(side, &self.figure)?;
        }
        let cost = match self.cost {
            true => Some(cost::measure(self, &place, progress)?),
            false => None,
        };
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut measure = |side: &Side| {
            let is_plain = self.plain && std::ptr::eq(side, &self.baseline);
            place.measure(if is_plain { Card::None } else { Card::As(side) }, &self.figure)
        };
        let mut outcome =
            self.outcome(self.measure(&sides, &mut random, &mut measure, progress)?);
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

    fn settings(&self) -> serde_json::Value {
        let side = |side: &Side| json!({ "name": side.name, "path": side.path, "set": side.set });
        let sides: Vec<_> = self.candidates.sides().map(side).collect();
        json!({
            "baseline": side(&self.baseline), "candidates": sides,
            "workload": self.workload.as_ref().map(Workload::command),
            "figure": self.figure.key(), "more_is_better": self.more_is_better,
            "effect": self.effect, "pairs": self.pairs, "most_pairs": self.most_pairs,
            "seconds": self.seconds, "allowed": self.allowed, "wire_frames": self.wire_frames,
            "seed": self.seed,
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

/// How many cores were busy, all parts added up.
fn busy_cores(measured: &Measured) -> f64 {
    match &measured.load.cores[..] {
        [] => f64::NAN,
        cores => cores.iter().map(|core| 1.0 - core.idle).sum(),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod verdicts;
