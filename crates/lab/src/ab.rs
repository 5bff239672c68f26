//! `picnic lab ab`: compares two or more cards in alternating runs.
//!
//! The sides are measured in random order, the baseline twice in each round, and the ratio of each
//! pair is judged against that of the baseline to itself ([`crate::compare`]): after the requested
//! pairs, after twice as many and so on, until the verdict is clear, or the noise is too high for
//! the largest number of pairs.
//!
//! Guarantees: a pair does not count, and is reported, if a side lost packets for lack of room, had
//! a saturated client, or ran while other processes used more of the cores than allowed. Everything
//! built for a workload is in the journal before it is made ([`picnic_machine::testbed`]).

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
pub(crate) use place::{Card, MeasuringPlace};
pub use workload::{Kind, Workload};

use crate::compare::Rule;
use crate::experiment::LabError;
use crate::outcome::Outcome;
use crate::timeline;
use picnic_control::Registries;
use picnic_core::config::Sections;
use place::Measured;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use std::path::PathBuf;

/// Receives the share done, and the current task.
pub type Progress<'a> = dyn FnMut(f64, &str) + 'a;

/// One of the compared cards.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its name in the result.
    pub name: String,
    /// Its file; none for the demonstration card.
    pub path: Option<PathBuf>,
    /// Changes of the card as `KEY=VALUE`.
    pub set: Vec<String>,
}

/// The candidates.
#[derive(Clone, Debug)]
pub enum Candidates {
    /// A single one.
    One(Side),
    /// One per value of a key.
    Sweep {
        /// The key.
        key: String,
        /// Its values, and their cards.
        sides: Vec<(String, Side)>,
    },
}

/// A comparison to be made.
#[derive(Clone, Debug)]
pub struct Question {
    /// The side compared against.
    pub baseline: Side,
    /// Whether the baseline is no card: client and server joined by a veth.
    pub plain: bool,
    /// Whether client and server stay off the candidate's borrowed core, whichever side is
    /// measured.
    pub apart: bool,
    /// The sides compared with it.
    pub candidates: Candidates,
    /// The traffic through the card; none for the card alone.
    pub workload: Option<Workload>,
    /// The figure to compare.
    pub figure: ComparedFigure,
    /// Whether more is better.
    pub more_is_better: bool,
    /// The smallest relevant effect, as a share.
    pub effect: f64,
    /// The least number of pairs.
    pub pairs: usize,
    /// The largest number of pairs, while the verdict is not clear.
    pub most_pairs: usize,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// Limits within which a pair counts.
    pub allowed: Allowed,
    /// Whether the client sends packets as on a wire, unmerged.
    pub wire_frames: bool,
    /// Seed of the order of sides.
    pub seed: u64,
    /// Whether the card's own cost is measured, too.
    pub cost: bool,
    /// The folder for a timeline of each side, if wanted.
    pub timelines: Option<PathBuf>,
}

impl Question {
    /// Measures until the question is answered; `progress` receives the share done, from 0 to 1,
    /// and the current task.
    ///
    /// # Errors
    /// A card file is wrong; this machine cannot do it; the workload fails or prints no figure; no
    /// pair counts.
    pub fn run(
        &self,
        registries: Registries,
        sections: &Sections,
        progress: &mut Progress<'_>,
    ) -> Result<Outcome, LabError> {
        let sides: Vec<&Side> =
            [&self.baseline].into_iter().chain(self.candidates.sides()).collect();
        let apart = sides.last().copied().filter(|_| self.apart);
        let cards = &sides[usize::from(self.plain)..];
        let asked = (self.seconds, self.workload.as_ref(), &self.figure, cards);
        let setup = (self.wire_frames, apart);
        let place = MeasuringPlace::checked(registries, sections, asked, setup)?;
        let cost = match self.cost {
            true => Some(cost::measure(self, &place, progress)?),
            false => None,
        };
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut measure = |side: &Side| {
            let is_plain = self.plain && std::ptr::eq(side, &self.baseline);
            place.measure(if is_plain { Card::None } else { Card::As(side) }, &self.figure)
        };
        if let Some(folder) = &self.timelines {
            for side in &sides {
                progress(0.0, &format!("{}, for its timeline", side.name));
                timeline::record(folder, &side.name, || measure(side))?;
            }
        }
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

/// The number of busy cores, as a sum of shares.
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
