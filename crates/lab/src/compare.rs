//! Statistics of figures over repeats: median, spread, mean; and comparisons of two sides that
//! alternate.

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

/// The order of the sides in a round: random, and reversed in the next round. So no side is always
/// first, a drift of the machine's speed affects all sides equally, and a periodic load favours
/// none. The same round has the same order in every run.
pub fn order(round: usize, sides: usize) -> impl Iterator<Item = usize> {
    let mut drawn = shuffled(&mut ChaCha8Rng::seed_from_u64(round as u64 / 2), sides);
    if round % 2 == 1 {
        drawn.reverse();
    }
    drawn.into_iter()
}

/// A uniformly random order of sides.
pub fn shuffled(random: &mut impl Rng, sides: usize) -> Vec<usize> {
    let mut drawn: Vec<usize> = (0..sides).collect();
    drawn.shuffle(random);
    drawn
}

/// Quartiles of a figure's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The lowest.
    pub lowest: f64,
    /// The lower quartile.
    pub lower_quartile: f64,
    /// The middle one; the upper of two.
    pub median: f64,
    /// The upper quartile.
    pub upper_quartile: f64,
    /// The highest.
    pub highest: f64,
    /// How many there are.
    pub count: usize,
}

/// Sorts the values and returns their spread; `None` without values.
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

/// The median; the upper one of two. NaN without values.
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
    /// The moments of `count` values with this mean and standard deviation.
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

    /// Number of values.
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
    fn moments_agree_with_the_definition() {
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
    fn spread_is_ordered() {
        let mut values = [5.0, 1.0, 4.0, 2.0, 3.0];
        let spread = spread(&mut values).unwrap();
        assert_eq!((spread.lower_quartile, spread.median, spread.upper_quartile), (2.0, 3.0, 4.0));
        assert_eq!((spread.lowest, spread.highest, spread.count), (1.0, 5.0, 5));
        assert_eq!(super::spread(&mut []), None);
    }

    #[test]
    fn order_is_random_and_reversed_in_the_next_round() {
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
