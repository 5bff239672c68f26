//! Rounds of measurements: the baseline twice and each candidate once, in random order.
//!
//! A round gives each candidate a pair with the baseline, and the baseline a pair with itself. The
//! order is drawn anew for each round, so that an intermittent load favours no side, for any
//! period; the baseline's pairs with itself show the noise in the others.

use super::functions::Counts;
use super::place::{Measured, Void, about};
use super::{Progress, Question, Side, busy_cores};
use crate::compare::{Judgement, LEAST_PAIRS, shuffled};
use crate::distribution::Distribution;
use crate::experiment::LabError;
use crate::outcome::Comparison;
use rand::Rng;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Rounds without a valid pair after which the measurement stops.
const VOID_AT_FIRST: usize = 3;
/// If more than this multiple of the allowed pairs is needed, measuring stops early.
const HOPELESS: usize = 4;

/// Values of one candidate, each with the values of the baseline.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub(super) baseline: Vec<f64>,
    /// The baseline's second measurement of the round.
    pub(super) again: Vec<f64>,
    pub(super) candidate: Vec<f64>,
    /// Busy cores in total, and by core.
    pub(super) busy: [Vec<f64>; 2],
    pub(super) by_core: [Vec<Vec<f64>>; 2],
    /// The share of all cores used by other processes.
    pub(super) others: [Vec<f64>; 2],
    /// Request latencies, if the client reports them, by key.
    pub(super) latencies: BTreeMap<&'static str, [Vec<f64>; 2]>,
    /// From arrival to target routine, in each run of the card.
    pub(super) cards: [Vec<Distribution>; 2],
    /// Counts of the card's functions.
    pub(super) functions: [Counts; 2],
    pub(super) void: Vec<Void>,
}

/// All pairs of a question.
#[derive(Debug)]
pub(super) struct Found {
    /// By candidate.
    pub(super) pairs: Vec<Pairs>,
    /// The mean duration of a round.
    pub(super) round: Duration,
}

/// Measures a side once.
pub(super) type Measure<'a> = dyn FnMut(&Side) -> anyhow::Result<Measured> + 'a;

impl Question {
    /// Measures until the verdict is clear, the pairs are used up, or the noise is too high for the
    /// largest number of pairs.
    pub(super) fn measure(
        &self,
        sides: &[&Side],
        random: &mut impl Rng,
        measure: &mut Measure<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<Found, LabError> {
        // The baseline takes part twice.
        let taking_part: Vec<&Side> = [sides[0]].iter().chain(sides).copied().collect();
        let mut pairs: Vec<Pairs> = sides[1..].iter().map(|_| Pairs::default()).collect();
        let (mut goal, mut round, start) = (self.pairs, 0, Instant::now());
        loop {
            let counted = pairs.iter().map(|pairs| pairs.baseline.len()).min().unwrap_or(0);
            let found = |pairs: Vec<Pairs>| {
                let rounds = u32::try_from(round).unwrap_or(u32::MAX).max(1);
                Found { pairs, round: start.elapsed() / rounds }
            };
            if counted >= goal {
                let judged =
                    pairs.iter().map(|pairs| self.comparison(pairs, "candidate").judgement());
                let mut open = judged.flatten().filter(|judged| judged.pairs_needed.is_some());
                if open.all(|judged| self.is_hopeless(&judged)) || goal * 2 > self.most_pairs {
                    return Ok(found(pairs));
                }
                goal *= 2;
            }
            let is_void = counted == 0 && self.is_given_up(&pairs, round);
            if is_void || round >= 2 * self.most_pairs {
                return if is_void { Err(nothing_counts(&pairs)) } else { Ok(found(pairs)) };
            }
            let mut values: Vec<Option<Measured>> = taking_part.iter().map(|_| None).collect();
            let order = shuffled(random, taking_part.len());
            for (done, index) in order.into_iter().enumerate() {
                let side = taking_part[index];
                let share = (counted as f64 + done as f64 / taking_part.len() as f64) / goal as f64;
                let void = match round - counted.min(round) {
                    0 => String::new(),
                    void => format!(" ({void} void)"),
                };
                let pair = counted + 1;
                progress(share.min(1.0), &format!("pair {pair} of {goal}{void}: {}", side.name));
                values[index] = Some(about(measure(side), round + 1, &side.name)?);
            }
            let values: Vec<Measured> = values.into_iter().flatten().collect();
            let [baseline, again, candidates @ ..] = &values[..] else { continue };
            for ((pairs, candidate), side) in pairs.iter_mut().zip(candidates).zip(&sides[1..]) {
                self.add(pairs, round + 1, [baseline, again], (candidate, &side.name));
            }
            round += 1;
        }
    }

    /// Whether further rounds are pointless while no pair counts: a card that loses packets will
    /// lose more, but another program may end.
    fn is_given_up(&self, pairs: &[Pairs], round: usize) -> bool {
        let mut last = pairs.iter().filter_map(|pairs| pairs.void.last());
        let rounds = match last.all(|void| void.is_load) {
            true => 2 * LEAST_PAIRS,
            false => VOID_AT_FIRST,
        };
        round >= rounds
    }

    /// Whether the noise would be far too high even with all allowed pairs.
    fn is_hopeless(&self, judgement: &Judgement) -> bool {
        let is_wide = judgement.interval.is_some_and(|interval| {
            // Noise falls with the square root of the pairs.
            let at_most = (interval.pairs as f64 / self.most_pairs as f64).sqrt();
            interval.half_width() * at_most > 2.0 * interval.ratio.ln().abs()
        });
        is_wide && judgement.pairs_needed > Some(HOPELESS * self.most_pairs)
    }

    pub(super) fn add(
        &self,
        pairs: &mut Pairs,
        number: usize,
        [baseline, again]: [&Measured; 2],
        (candidate, name): (&Measured, &str),
    ) {
        let own = &*self.baseline.name;
        let measured = [(baseline, own), (again, own), (candidate, name)];
        let void = measured.into_iter().find_map(|(measured, name)| {
            let Void { why, is_load } = measured.void(&self.allowed)?;
            Some(Void { why: format!("pair {number} is void: {name}: {why}"), is_load })
        });
        match (void, baseline.value, again.value, candidate.value) {
            (Some(void), ..) => pairs.void.push(void),
            (None, Some(before), Some(again), Some(after)) => {
                pairs.baseline.push(before);
                pairs.again.push(again);
                pairs.candidate.push(after);
                let sides = [baseline, candidate];
                for (place, measured) in sides.into_iter().enumerate() {
                    for (key, ns) in &measured.latencies {
                        pairs.latencies.entry(key).or_default()[place].push(*ns);
                    }
                    pairs.others[place].extend(measured.load.others_fraction);
                    if let Some(window) = &measured.window {
                        pairs.cards[place]
                            .push(Distribution::of_card("latency_ns", &window.report));
                        pairs.functions[place].add(&window.report);
                    }
                }
                if sides.iter().any(|side| side.load.cores.is_empty()) {
                    // Too short for the kernel's counts.
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
            _ => {
                let why = format!("pair {number} is void: it has no {}", self.figure.key());
                pairs.void.push(Void { why, is_load: false });
            }
        }
    }

    pub(super) fn comparison(&self, pairs: &Pairs, candidate: &str) -> Comparison {
        let Pairs { baseline, again, candidate: values, .. } = pairs;
        let sides = (("baseline", baseline.clone()), (candidate, values.clone()));
        let compared = Comparison::of(self.figure.key(), sides.0, sides.1);
        compared.beside(again.clone()).judged_by(self.rule())
    }
}

fn nothing_counts(pairs: &[Pairs]) -> LabError {
    let why = pairs.iter().find_map(|pairs| pairs.void.last());
    LabError::Failed(format!("no pair counts: {}", why.map_or("", |void| &void.why)))
}
