//! Seeded simulation of the rate of wrong judgements, by kind of noise.

use super::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const RUNS: usize = 1000;
/// Runs that are judged three times.
const LOOKED: usize = 400;

/// A machine whose speed varies from run to run.
struct Noise {
    random: ChaCha8Rng,
    kind: Kind,
    /// Runs so far.
    run: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// 3 % either way.
    Normal,
    /// Skewed: most runs are fast, some are much slower.
    Lognormal,
    /// It gets faster with every run.
    Drift,
    /// One run in ten is disturbed and gives half.
    Outliers,
    /// Two speeds, one or the other by chance.
    TwoSpeeds,
    /// Small integer counts.
    Coarse,
}

const KINDS: [Kind; 6] =
    [Kind::Normal, Kind::Lognormal, Kind::Drift, Kind::Outliers, Kind::TwoSpeeds, Kind::Coarse];

impl Noise {
    fn new(kind: Kind) -> Self {
        Noise { random: ChaCha8Rng::seed_from_u64(kind as u64), kind, run: 0 }
    }

    /// Box and Muller, 1958.
    fn normal(&mut self) -> f64 {
        let (radius, angle): (f64, f64) = (self.random.random(), self.random.random());
        (-2.0 * (1.0 - radius).ln()).sqrt() * (angle * std::f64::consts::TAU).cos()
    }

    fn run(&mut self, speed: f64) -> f64 {
        self.run += 1;
        let noise = self.normal();
        speed
            * match self.kind {
                Kind::Normal => 1.0 + 0.03 * noise,
                Kind::Lognormal => (0.2 * noise).exp(),
                Kind::Drift => 1.0 + 0.01 * self.run as f64 + 0.03 * noise,
                Kind::Outliers if self.random.random_bool(0.1) => 0.5 + 0.1 * noise,
                Kind::Outliers => 1.0 + 0.02 * noise,
                Kind::TwoSpeeds if self.random.random_bool(0.5) => 1.1 + 0.005 * noise,
                Kind::TwoSpeeds => 0.9 + 0.005 * noise,
                Kind::Coarse => (20.0 + noise).round() / 20.0,
            }
    }

    /// Ratios of `pairs` pairs; pairs of even number measured the baseline first.
    fn ratios(&mut self, pairs: usize, candidate: f64) -> Vec<f64> {
        let pair = |number: usize| {
            let (baseline, candidate) = if number.is_multiple_of(2) {
                let baseline = self.run(1.0);
                (baseline, self.run(candidate))
            } else {
                let candidate = self.run(candidate);
                (self.run(1.0), candidate)
            };
            candidate / baseline
        };
        (0..pairs).map(pair).collect()
    }
}

/// How many runs have a verdict that satisfies `is`.
fn count(verdicts: &[Verdict], is: impl Fn(&Verdict) -> bool) -> usize {
    verdicts.iter().filter(|verdict| is(verdict)).count()
}

fn is_difference(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Better | Verdict::Worse)
}

#[test]
fn equal_sides_are_rarely_called_different() {
    // A difference by a larger effect is also one by a small effect.
    let rule = Rule { effect: 1e-6, ..Rule::default() };
    for kind in KINDS {
        let mut noise = Noise::new(kind);
        let verdicts: Vec<_> = (0..RUNS)
            .map(|_| {
                noise.run = 0;
                rule.judge(&noise.ratios(10, 1.0)).verdict
            })
            .collect();
        let wrong = count(&verdicts, is_difference);
        assert!(wrong * 20 <= RUNS, "{kind:?}: {wrong} of {RUNS}");
    }
}

#[test]
fn repeated_judgements_do_not_raise_the_error() {
    for kind in KINDS {
        let mut noise = Noise::new(kind);
        let rule = Rule { effect: 1e-6, looks: 3, ..Rule::default() };
        let verdicts: Vec<_> = (0..LOOKED)
            .map(|_| {
                noise.run = 0;
                let ratios = noise.ratios(40, 1.0);
                let looks = [10, 20, 40].map(|pairs| rule.judge(&ratios[..pairs]).verdict);
                looks.into_iter().find(is_difference).unwrap_or(looks[2])
            })
            .collect();
        let wrong = count(&verdicts, is_difference);
        assert!(wrong * 20 <= LOOKED, "{kind:?}: {wrong} of {LOOKED}");
    }
}

#[test]
fn ten_percent_are_found_in_three_percent_of_noise() {
    for (candidate, expected) in [(1.1, Verdict::Better), (0.9, Verdict::Worse)] {
        let mut noise = Noise::new(Kind::Normal);
        let rule = Rule::default();
        let verdicts: Vec<_> =
            (0..RUNS).map(|_| rule.judge(&noise.ratios(10, candidate)).verdict).collect();
        let found = count(&verdicts, |verdict| *verdict == expected);
        assert!(found * 100 >= RUNS * 99, "{candidate}: {found} of {RUNS}");
    }
}

#[test]
fn ten_percent_are_found_despite_disturbed_runs() {
    let mut noise = Noise::new(Kind::Outliers);
    let verdicts: Vec<_> =
        (0..RUNS).map(|_| Rule::default().judge(&noise.ratios(40, 0.9)).verdict).collect();
    let found = count(&verdicts, |verdict| *verdict == Verdict::Worse);
    assert!(found * 100 >= RUNS * 80, "{found} of {RUNS}");
}

#[test]
fn little_noise_is_no_difference_and_much_is_too_noisy() {
    let mut noise = Noise::new(Kind::Normal);
    let judged = Rule::default().judge(&noise.ratios(200, 1.0));
    assert_eq!((judged.verdict, judged.pairs_needed), (Verdict::NoDifference, None));
    let mut noise = Noise::new(Kind::Lognormal);
    let judged = Rule::default().judge(&noise.ratios(10, 1.0));
    assert_eq!(judged.verdict, Verdict::TooNoisy);
    assert!(judged.pairs_needed.unwrap() > 100, "{judged:?}");
    let few = Rule::default().judge(&[2.0; LEAST_PAIRS - 1]);
    assert_eq!((few.verdict, few.pairs_needed), (Verdict::TooNoisy, Some(LEAST_PAIRS)));
}

#[test]
fn small_certain_effects_are_no_difference() {
    let ratios: Vec<f64> = (0..10).map(|n| 1.01 + f64::from(n % 3) / 10_000.0).collect();
    assert_eq!(Rule::default().judge(&ratios).verdict, Verdict::NoDifference);
    let rule = Rule { effect: 0.005, ..Rule::default() };
    assert_eq!(rule.judge(&ratios).verdict, Verdict::Better);
    let rule = Rule { more_is_better: false, ..rule };
    assert_eq!(rule.judge(&ratios).verdict, Verdict::Worse);
}

#[test]
fn zero_is_worse() {
    let judgement = Rule::default().judge(&[0.0; 10]);
    assert_eq!(judgement.verdict, Verdict::Worse, "{judgement:?}");
    let of_times = Rule { more_is_better: false, ..Rule::default() };
    assert_eq!(of_times.judge(&[0.0; 10]).verdict, Verdict::Better);
    // Now and then is not always.
    let mut seldom = [1.0; 20];
    seldom[3] = 0.0;
    assert_ne!(Rule::default().judge(&seldom).verdict, Verdict::Worse);
    // Without a baseline there is no ratio.
    assert_eq!(Rule::default().judge(&[f64::NAN; 10]).interval, None);
}
