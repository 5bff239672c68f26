//! The ratio of two sides, measured alternately, with a confidence interval.
//!
//! The mean of the logarithms of the pairs' ratios without the highest and the lowest sixth, so
//! that a disturbed run does not decide; with a studentised bootstrap interval, since a plain
//! percentile bootstrap is too narrow for a few tens of pairs. Without noise to learn from, the
//! interval is between two of the ratios themselves, as for a median. The same pairs give the same
//! interval.
//!
//! Source: Yuen, The two-sample trimmed t for unequal population variances, 1974; Wilcox,
//! Introduction to Robust Estimation and Hypothesis Testing, chapter 4 (symmetric bootstrap-t).

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The least number of pairs for an interval: fewer say too little about their own noise.
pub const LEAST_PAIRS: usize = 10;

/// Bootstrap samples.
const RESAMPLES: usize = 999;
/// One pair in this many is trimmed at either end.
const TRIMMED: usize = 6;
/// The largest extent of a widened interval, as a multiple of its ratio.
const WIDEST: f64 = 1000.0;

/// The range of sorted ratios that the estimate averages.
pub(crate) fn counted(pairs: usize) -> Range<usize> {
    let cut = if pairs < LEAST_PAIRS { 0 } else { pairs / TRIMMED };
    cut..pairs - cut
}

/// A ratio with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimated ratio.
    pub ratio: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// Number of pairs.
    pub pairs: usize,
}

impl Interval {
    /// The interval of these ratios, one per pair. `miss` is the share of cases in which it may not
    /// contain the true ratio, such as 0.05. `None` for fewer than [`LEAST_PAIRS`], or if one is
    /// negative or infinite.
    pub fn of(ratios: &[f64], miss: f64) -> Option<Self> {
        let is_ratio = |ratio: &f64| *ratio >= 0.0 && ratio.is_finite();
        if ratios.len() < LEAST_PAIRS || !ratios.iter().all(is_ratio) {
            return None;
        }
        if ratios.contains(&0.0) {
            // A candidate delivered nothing: zero has no logarithm, but a rank.
            let mut sorted = ratios.to_vec();
            sorted.sort_by(f64::total_cmp);
            let (low, high) = of_median(&sorted, miss);
            return Some(Interval {
                ratio: sorted[sorted.len() / 2],
                low,
                high,
                pairs: sorted.len(),
            });
        }
        let mut logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        logs.sort_by(f64::total_cmp);
        let (centre, error) = trimmed(&logs, &vec![1; logs.len()]);
        let reach = error * critical(&logs, centre, miss);
        let ends = [centre - reach, centre + reach];
        let are_numbers = ends.iter().all(|end| end.exp().is_normal());
        let (low, high) = match are_numbers && error > 0.0 {
            true => ends.into(),
            false => of_median(&logs, miss),
        };
        Some(Interval {
            ratio: centre.exp(),
            low: low.min(centre).exp(),
            high: high.max(centre).exp(),
            pairs: logs.len(),
        })
    }

    /// The same, widened to at least the relative width of `other`.
    #[must_use]
    pub fn as_wide_as(self, other: &Interval) -> Self {
        // Ends stay numbers that JSON can hold.
        let reach = (other.high / other.ratio).max(other.ratio / other.low).min(WIDEST);
        let (low, high) = (self.low.min(self.ratio / reach), self.high.max(self.ratio * reach));
        Interval { low, high, ..self }
    }

    /// Whether it contains this ratio.
    pub fn holds(&self, ratio: f64) -> bool {
        (self.low..=self.high).contains(&ratio)
    }

    /// Half of its width, as a share: 0.02 for 2 % either way.
    pub fn half_width(&self) -> f64 {
        (self.high / self.low).sqrt() - 1.0
    }

    /// Whether both ends are within this share of `ratio`, up or down.
    pub fn is_within(&self, share: f64, ratio: f64) -> bool {
        self.low >= ratio / (1.0 + share) && self.high <= ratio * (1.0 + share)
    }
}

/// Two of the sorted values that contain the median, for any noise.
fn of_median(sorted: &[f64], miss: f64) -> (f64, f64) {
    // The chance that this many values are on the same side of the median: as heads of coins.
    let count = sorted.len();
    let (mut below, mut chance, mut sum) = (0, 0.5_f64.powi(count as i32), 0.0);
    while 2.0 * (sum + chance) <= miss {
        sum += chance;
        below += 1;
        chance *= (count - below + 1) as f64 / below as f64;
    }
    let first = below.max(1) - 1;
    (sorted[first], sorted[count - 1 - first])
}

/// Mean of sorted values without the outer sixths, each with a multiplicity; and its standard
/// error.
fn trimmed(sorted: &[f64], times: &[u32]) -> (f64, f64) {
    let count = times.iter().sum::<u32>();
    let cut = count / TRIMMED as u32;
    let kept = f64::from(count - 2 * cut);
    // Winsorised: a trimmed value counts as the nearest kept one. Sums are of differences from the
    // first kept value, so that samples of equal values have an error of zero, not a rounding
    // error, by which distances are divided.
    let (mut sum, mut first, mut highest, mut squares) = (0.0, None, 0.0, 0.0);
    let mut end = 0;
    for (&value, &times) in sorted.iter().zip(times) {
        let begin = end;
        end += times;
        let inside = end.min(count - cut).saturating_sub(begin.max(cut));
        if inside > 0 {
            let (value, inside) = (value - *first.get_or_insert(value), f64::from(inside));
            sum += inside * value;
            squares += inside * value * value;
            highest = value;
        }
    }
    let (origin, cut, count) = (first.unwrap_or_default(), f64::from(cut), f64::from(count));
    let centre = (sum + cut * highest) / count;
    squares += cut * highest * highest;
    let deviation = ((squares - count * centre * centre).max(0.0) / (count - 1.0)).sqrt();
    (origin + sum / kept, deviation * count.sqrt() / kept)
}

/// The critical number of standard errors, by drawing from the values themselves.
fn critical(sorted: &[f64], centre: f64, miss: f64) -> f64 {
    let mut samples = Samples::new(sorted.len());
    let mut distances: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let (mean, error) = trimmed(sorted, samples.draw());
            let distance = (mean - centre).abs();
            if distance == 0.0 { 0.0 } else { distance / error }
        })
        .collect();
    distances.sort_by(f64::total_cmp);
    let place = ((1.0 - miss) * (RESAMPLES + 1) as f64).ceil() as usize;
    distances[place.clamp(1, RESAMPLES) - 1]
}

/// Samples of as many values as there are, the same for the same number.
struct Samples {
    random: ChaCha8Rng,
    words: Vec<u32>,
    times: Vec<u32>,
}

impl Samples {
    fn new(count: usize) -> Self {
        let random = ChaCha8Rng::seed_from_u64(count as u64);
        Samples { random, words: vec![0; count], times: vec![0; count] }
    }

    /// How often each value is drawn: this determines a sorted sample, so none is sorted.
    fn draw(&mut self) -> &[u32] {
        self.random.fill(&mut self.words[..]);
        self.times.fill(0);
        let count = self.words.len() as u64;
        for &word in &self.words {
            self.times[((u64::from(word) * count) >> 32) as usize] += 1;
        }
        &self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimmed_mean_and_error_agree_with_the_definition() {
        // Yuen's t without the outer tenth at each end: computed by hand.
        let values = [-30.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 90.0];
        let (mean, error) = trimmed(&values, &[1; 10]);
        assert_eq!(mean, 4.5);
        let squares = 2.0 * (3.5_f64.powi(2) * 2.0 + 2.5_f64.powi(2) + 1.5_f64.powi(2) + 0.25);
        assert!((error - (squares / 9.0).sqrt() / (0.8 * 10_f64.sqrt())).abs() < 1e-12);
    }

    #[test]
    fn multiplicities_count_as_repeated_values() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        for count in LEAST_PAIRS..60 {
            let mut values: Vec<f64> = (0..count).map(|_| random.random()).collect();
            values.sort_by(f64::total_cmp);
            let mut samples = Samples::new(count);
            for _ in 0..20 {
                let times = samples.draw();
                let each = values.iter().zip(times);
                let sample: Vec<f64> = each
                    .flat_map(|(&value, &times)| std::iter::repeat_n(value, times as usize))
                    .collect();
                assert_eq!(sample.len(), count);
                let (mean, error) = trimmed(&values, times);
                let (plain, plain_error) = by_definition(&sample);
                assert!((mean - plain).abs() < 1e-12, "{count}: {mean} {plain}");
                assert!((error - plain_error).abs() < 1e-9, "{count}: {error} {plain_error}");
            }
        }
    }

    fn by_definition(sorted: &[f64]) -> (f64, f64) {
        let (count, cut) = (sorted.len(), sorted.len() / TRIMMED);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let kept = &sorted[cut..count - cut];
        let winsorised: Vec<f64> =
            (0..count).map(|index| sorted[index.clamp(cut, count - cut - 1)]).collect();
        let centre = mean(&winsorised);
        let squares: f64 = winsorised.iter().map(|value| (value - centre).powi(2)).sum();
        let deviation = (squares / (count - 1) as f64).sqrt();
        (mean(kept), deviation * (count as f64).sqrt() / kept.len() as f64)
    }

    #[test]
    fn few_pairs_have_no_interval_and_equal_pairs_a_narrow_one() {
        assert_eq!(Interval::of(&[1.0; LEAST_PAIRS - 1], 0.05), None);
        assert_eq!(Interval::of(&[-1.0; LEAST_PAIRS], 0.05), None);
        assert_eq!(Interval::of(&[f64::NAN; LEAST_PAIRS], 0.05), None);
        let interval = Interval::of(&[0.5; LEAST_PAIRS], 0.05).unwrap();
        assert!(interval.is_within(1e-12, 0.5) && interval.half_width() < 1e-12, "{interval:?}");
    }

    #[test]
    fn median_of_ten_lies_between_second_and_ninth() {
        let values: Vec<f64> = (0..10).map(f64::from).collect();
        assert_eq!(of_median(&values, 0.05), (1.0, 8.0));
        assert_eq!(of_median(&values, 0.01), (0.0, 9.0));
        assert_eq!(of_median(&values, 1e-9), (0.0, 9.0));
    }

    #[test]
    fn nearly_equal_counts_have_a_finite_interval() {
        let mut ratios = [1.0; 12];
        ratios[..6].fill(1.0001);
        let interval = Interval::of(&ratios, 0.05).unwrap();
        assert!(interval.is_within(0.0002, 1.0), "{interval:?}");
    }

    #[test]
    fn ends_are_finite_with_equal_ratios() {
        let mut random = ChaCha8Rng::seed_from_u64(11);
        for case in 0..2000 {
            // A few values with this many equal; some are far apart, as of counts near zero.
            let kinds = random.random_range(1..5);
            let spread = [1e-9, 1e-3, 1.0, 50.0][case % 4];
            let values: Vec<f64> =
                (0..kinds).map(|_| (spread * random.random::<f64>()).exp()).collect();
            let count = random.random_range(LEAST_PAIRS..30);
            let ratios: Vec<f64> =
                (0..count).map(|_| values[random.random_range(0..kinds)]).collect();
            let interval = Interval::of(&ratios, 0.01).unwrap();
            let ends = [interval.low, interval.ratio, interval.high];
            assert!(ends.iter().all(|end| end.is_normal()), "{interval:?} of {ratios:?}");
            assert!(ends.is_sorted(), "{interval:?} of {ratios:?}");
            let json = serde_json::to_string(&interval).unwrap();
            assert!(serde_json::from_str::<Interval>(&json).is_ok(), "{json}");
        }
    }

    #[test]
    fn widened_intervals_are_never_narrower() {
        let interval = |ratio, low, high| Interval { ratio, low, high, pairs: 10 };
        let wide = interval(2.0, 1.9, 2.1).as_wide_as(&interval(1.0, 0.8, 1.1));
        assert_eq!((wide.ratio, wide.low, wide.high), (2.0, 1.6, 2.5));
        assert_eq!(wide.as_wide_as(&interval(1.0, 0.99, 1.01)), wide);
        let widest = wide.as_wide_as(&interval(1.0, 0.0, 1.0));
        assert!(widest.low > 0.0 && widest.high.is_finite(), "{widest:?}");
        assert!(wide.holds(1.6) && !wide.holds(1.5));
    }

    #[test]
    fn higher_confidence_gives_a_wider_interval() {
        let ratios: Vec<f64> = (0..15).map(|n| 1.0 + f64::from(n * 7 % 15) / 100.0).collect();
        let (narrow, wide) =
            (Interval::of(&ratios, 0.1).unwrap(), Interval::of(&ratios, 0.01).unwrap());
        assert!(wide.low < narrow.low && narrow.high < wide.high, "{narrow:?} {wide:?}");
        assert_eq!(Interval::of(&ratios, 0.1), Some(narrow));
    }
}
