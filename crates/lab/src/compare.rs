//! Figures over repeats: middle, spread, mean; and what two sides that took turns come to.

mod interval;
mod judge;
mod line;
mod paper;
mod ranks;

pub(crate) use interval::counted;
pub use interval::{Interval, LEAST_PAIRS};
pub(crate) use judge::pairs_for;
pub use judge::{Judgement, Rule, SMALLEST_EFFECT, Verdict};
pub use line::{Crossing, Line};
pub use paper::{Finding, Paper, PaperVerdict};

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// The order in which sides are measured in a round: drawn at random, and backwards in the next
/// round. So no side is always first, a machine that gets slower or faster hits all sides alike,
/// and a load that comes and goes regularly favours none. The same round has the same order in
/// every run.
pub fn order(round: usize, sides: usize) -> impl Iterator<Item = usize> {
    let mut drawn = shuffled(&mut ChaCha8Rng::seed_from_u64(round as u64 / 2), sides);
    if round % 2 == 1 {
        drawn.reverse();
    }
    drawn.into_iter()
}

/// Each order of sides is as likely as any other.
pub fn shuffled(random: &mut impl Rng, sides: usize) -> Vec<usize> {
    let mut drawn: Vec<usize> = (0..sides).collect();
    drawn.shuffle(random);
    drawn
}

/// How the values of a figure lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The lowest.
    pub lowest: f64,
    /// A quarter of them are lower.
    pub lower_quartile: f64,
    /// The middle one; the upper of two.
    pub median: f64,
    /// A quarter of them are higher.
    pub upper_quartile: f64,
    /// The highest.
    pub highest: f64,
    /// How many there are.
    pub count: usize,
}

/// Sorts the values and says how they lie; `None` if there are none.
pub fn spread(values: &mut [f64]) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    let at = |quarters: usize| values.get(values.len() * quarters / 4).copied();
    Some(Spread {
        lowest: *values.first()?,
        highest: *values.last()?,
        lower_quartile: at(1)?,
        median: at(2)?,
        upper_quartile: at(3)?,
        count: values.len(),
    })
}

/// The middle value; the upper one of two. No number if there are none.
pub fn median(values: &[f64]) -> f64 {
    spread(&mut values.to_vec()).map_or(f64::NAN, |spread| spread.median)
}

/// Mean and standard deviation, value by value (Welford, 1962).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// Those of `count` values of this mean and standard deviation.
    pub fn of(count: u64, mean: f64, deviation: f64) -> Self {
        Moments { count, mean, squares: deviation * deviation * count as f64 }
    }

    /// Adds all values of another (Chan, Golub and LeVeque, 1979).
    pub fn merge(&mut self, other: Moments) {
        let count = self.count + other.count;
        if count == 0 {
            return;
        }
        let delta = other.mean - self.mean;
        let weight = other.count as f64 / count as f64;
        self.mean += delta * weight;
        self.squares += other.squares + delta * delta * self.count as f64 * weight;
        self.count = count;
    }

    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        let delta = value - self.mean;
        self.mean += delta / self.count as f64;
        self.squares += delta * (value - self.mean);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean; `None` without values.
    pub fn mean(&self) -> Option<f64> {
        (self.count != 0).then_some(self.mean)
    }

    /// The standard deviation of these values; `None` without values.
    pub fn standard_deviation(&self) -> Option<f64> {
        (self.count != 0).then(|| (self.squares / self.count as f64).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_definition() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        let mut moments = Moments::default();
        values.iter().for_each(|&value| moments.add(value));
        assert_eq!(moments.mean(), Some(5.0));
        assert!((moments.standard_deviation().unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(Moments::default().mean(), None);
        let (mut left, mut right) = (Moments::default(), Moments::default());
        values[..3].iter().for_each(|&value| left.add(value));
        values[3..].iter().for_each(|&value| right.add(value));
        left.merge(Moments::default());
        let (mean, deviation) = (right.mean().unwrap(), right.standard_deviation().unwrap());
        left.merge(Moments::of(right.count(), mean, deviation));
        assert!((left.mean().unwrap() - 5.0).abs() < 1e-12);
        assert!((left.standard_deviation().unwrap() - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_spread_has_its_values_in_order() {
        let mut values = [5.0, 1.0, 4.0, 2.0, 3.0];
        let spread = spread(&mut values).unwrap();
        assert_eq!((spread.lower_quartile, spread.median, spread.upper_quartile), (2.0, 3.0, 4.0));
        assert_eq!((spread.lowest, spread.highest, spread.count), (1.0, 5.0, 5));
        assert_eq!(super::spread(&mut []), None);
    }

    #[test]
    fn sides_are_in_random_order_and_backwards_in_the_next_round() {
        let order = |round| super::order(round, 3).collect::<Vec<_>>();
        let mut firsts = [0; 3];
        for block in 0..300 {
            let mut backwards = order(2 * block + 1);
            backwards.reverse();
            assert_eq!(order(2 * block), backwards);
            firsts[backwards[0]] += 1;
        }
        assert!(firsts.iter().all(|count| (70..130).contains(count)), "{firsts:?}");
        assert_eq!(order(7), order(7));
    }

    #[test]
    fn the_median_of_two_is_the_upper_one() {
        assert_eq!(median(&[3.0, 1.0]), 3.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }
}
