//! Reliability of verdicts: seeded machines with intermittent load, and the rate of wrong answers.
//!
//! `cargo test -p picnic-lab verdicts -- --nocapture` prints the table.

use super::pairs::Pairs;
use super::tests::{measured, question, side};
use super::*;
use crate::compare::Verdict;
use crate::meter::Load;
use rand::Rng;
use std::f64::consts::TAU;

/// Questions of each kind.
const RUNS: u64 = 200;
/// Seconds of a measurement, between two, and of the model's steps.
const MEASURED: f64 = 2.0;
const BETWEEN: f64 = 0.4;
const STEP: f64 = 0.1;
/// The remaining speed under load.
const LOADED: f64 = 0.5;
/// Independent noise of each measurement.
const WHITE: f64 = 0.03;

/// Other activity on the machine.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// Nothing.
    None,
    /// A load that starts and stops at random, after this many seconds on average.
    Telegraph(f64),
    /// The same, visible in the kernel's counts.
    Seen(f64),
    /// A periodic load, with a period of four measurements.
    Regular,
    /// Loads of random length, most short, some long.
    Bursts,
    /// A speed that varies around its mean, with a memory of this many seconds.
    Drift(f64),
    /// A random walk of the speed.
    Walk,
    /// Independent measurements, some far off.
    HeavyTails,
    /// A load under which the candidate has a third of its effect.
    Masking(f64),
}

const KINDS: [Noise; 12] = [
    Noise::None,
    Noise::Telegraph(1.0),
    Noise::Telegraph(10.0),
    Noise::Telegraph(60.0),
    Noise::Seen(10.0),
    Noise::Seen(60.0),
    Noise::Regular,
    Noise::Bursts,
    Noise::Drift(30.0),
    Noise::Walk,
    Noise::HeavyTails,
    Noise::Masking(20.0),
];

struct Machine {
    random: ChaCha8Rng,
    noise: Noise,
    /// Whether the load is on, or the start of the period.
    is_loaded: bool,
    phase: f64,
    /// Seconds left of a burst.
    burst: f64,
    /// The logarithm of the speed.
    speed: f64,
}

impl Machine {
    fn new(noise: Noise, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (is_loaded, phase) = (random.random_bool(0.5), random.random::<f64>() * 4.0);
        Machine { random, noise, is_loaded, phase, burst: 0.0, speed: 0.0 }
    }

    /// Box and Muller, 1958.
    fn normal(&mut self) -> f64 {
        let (radius, angle): (f64, f64) = (self.random.random(), self.random.random());
        (-2.0 * (1.0 - radius).ln()).sqrt() * (angle * TAU).cos()
    }

    /// Advances a step; returns whether there was load in it.
    fn step(&mut self) -> bool {
        match self.noise {
            Noise::Telegraph(mean) | Noise::Seen(mean) | Noise::Masking(mean) => {
                self.is_loaded ^= self.random.random_bool(STEP / mean);
            }
            Noise::Regular => {
                self.phase = (self.phase + STEP / (MEASURED + BETWEEN)) % 4.0;
                self.is_loaded = self.phase < 2.0;
            }
            Noise::Bursts => {
                self.burst -= STEP;
                if self.random.random_bool(0.04) {
                    // Pareto's, from a step on.
                    let length = STEP * (1.0 - self.random.random::<f64>()).powf(-1.0 / 1.2);
                    self.burst = self.burst.max(length.min(60.0));
                }
                self.is_loaded = self.burst > 0.0;
            }
            Noise::Drift(memory) => {
                let pull = STEP / memory;
                self.speed += -self.speed * pull + 0.2 * (2.0 * pull).sqrt() * self.normal();
                self.is_loaded = false;
            }
            Noise::Walk => {
                self.speed += 0.02 * STEP.sqrt() * self.normal();
                self.is_loaded = false;
            }
            Noise::None | Noise::HeavyTails => self.is_loaded = false,
        }
        self.is_loaded
    }

    fn measure(&mut self, effect: f64) -> Measured {
        let steps = (MEASURED / STEP) as usize;
        let (mut loaded, mut speed) = (0, 0.0);
        for _ in 0..steps {
            let is_loaded = self.step();
            loaded += usize::from(is_loaded);
            let effect = match self.noise {
                Noise::Masking(_) if is_loaded => 1.0 + (effect - 1.0) / 3.0,
                _ => effect,
            };
            speed += effect * self.speed.exp() * if is_loaded { LOADED } else { 1.0 };
        }
        (0..(BETWEEN / STEP) as usize).for_each(|_| _ = self.step());
        let own = match self.noise {
            // Student's t of two degrees of freedom.
            Noise::HeavyTails => {
                let chi = -2.0 * (1.0 - self.random.random::<f64>()).ln();
                0.15 * self.normal() / (chi / 2.0).sqrt()
            }
            _ => WHITE * self.normal(),
        };
        let value = speed / steps as f64 * own.clamp(-3.0, 3.0).exp();
        let share = loaded as f64 / steps as f64 / 2.0;
        let others = if matches!(self.noise, Noise::Seen(_)) { Some(share) } else { None };
        let load = Load { others_fraction: others, ..Load::default() };
        Measured { load, ..measured(value, 0.0, None) }
    }

    /// The answer to a question about a candidate of this effect.
    fn ask(noise: Noise, effect: f64, seed: u64) -> Option<Verdict> {
        let candidate = side("candidate", &[]);
        let allowed = Allowed { loss: 1.0, full_client: false, others: 0.1 };
        let question =
            Question { allowed, most_pairs: 40, ..question(Candidates::One(candidate.clone())) };
        let mut machine = Machine::new(noise, seed);
        let mut measure =
            |side: &Side| Ok(machine.measure(if side.name == "candidate" { effect } else { 1.0 }));
        let mut random = ChaCha8Rng::seed_from_u64(!seed);
        let sides = [&question.baseline, &candidate];
        let found = question.measure(&sides, &mut random, &mut measure, &mut |_, _| {}).ok()?;
        let [pairs]: &[Pairs] = &found.pairs[..] else { return None };
        Some(question.comparison(pairs, "candidate").judgement()?.verdict)
    }
}

#[test]
fn verdicts_hold_beside_loads_that_start_and_stop() {
    println!(
        "noise: of {RUNS} without an effect, false verdicts; of {RUNS} with 10 %, found, wrong"
    );
    for (number, noise) in (0..).zip(KINDS) {
        let seeds = || (0..RUNS).map(|seed| 1_000 * number + seed);
        let is_difference = |verdict: &Verdict| matches!(verdict, Verdict::Better | Verdict::Worse);
        let false_ones = seeds().filter_map(|seed| Machine::ask(noise, 1.0, seed));
        let false_ones = false_ones.filter(is_difference).count();
        let (mut found, mut wrong, mut same) = (0, 0, 0);
        for seed in seeds() {
            let (effect, sign) = match seed % 2 {
                0 => (1.1, Verdict::Better),
                _ => (1.0 / 1.1, Verdict::Worse),
            };
            match Machine::ask(noise, effect, seed) {
                Some(verdict) if verdict == sign => found += 1,
                Some(Verdict::Better | Verdict::Worse) => wrong += 1,
                Some(Verdict::NoDifference) => same += 1,
                Some(Verdict::TooNoisy) | None => {}
            }
        }
        println!(
            "{noise:?}: {false_ones}; {found}, {wrong} of the wrong sign, {same} called equal"
        );
        assert!(false_ones as u64 * 20 <= RUNS, "{noise:?}: {false_ones} false verdicts of {RUNS}");
        assert_eq!((wrong, same), (0, 0), "{noise:?}");
        // The effect is found if the noise is not much larger.
        let least = match noise {
            Noise::None | Noise::Walk => 95,
            Noise::Telegraph(60.0) | Noise::Seen(60.0) | Noise::Drift(_) => 80,
            Noise::Bursts => 50,
            _ => 0,
        };
        assert!(found * 100 >= least * RUNS, "{noise:?}: {found} of {RUNS} found");
    }
}
