//! Ent's five tests: the distance of a run of bytes from uniform and independent ones.
//!
//! ```
//! let bytes: Vec<u8> = (0..=255).collect();
//! let found = picnic_hash::randomness(&bytes);
//! assert_eq!(found.entropy_bits_per_byte, 8.0);
//! assert!(found.is_suspect()); // a tie between all values is too good
//! ```
//!
//! The paper runs them over the low byte of each flow's hash, one byte for
//! each TCP SYN, to show that JHash may stand in for Toeplitz.
//!
//! # Guarantees
//!
//! Sums are kept as integers, so a result does not depend on rounding along
//! the way; the chi-square probability is good to 12 digits.
//!
//! Source: PICNIC, section 5.1 and table 1; John Walker, "ENT, a pseudorandom
//! number sequence test program"; Abramowitz and Stegun, 6.5.29, 6.5.31, 6.1.40.

use std::f64::consts::{PI, TAU};

/// Results of the five tests. NaN if there were too few bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Randomness {
    /// Information in a byte, 0 to 8 bits; random: 8.
    pub entropy_bits_per_byte: f64,
    /// Sum over the 256 values of (count - expected)² / expected; random: about 255.
    pub chi_square: f64,
    /// Probability that random bytes give a greater chi-square, 0 to 1; for random bytes, near
    /// neither end.
    pub chi_square_exceed_probability: f64,
    /// Mean of the bytes; random: 127.5.
    pub arithmetic_mean: f64,
    /// Four times the share of points that lie within a quarter circle; random: π.
    ///
    /// Six bytes make a point, three for each coordinate. Needs six bytes.
    pub monte_carlo_pi: f64,
    /// How far a byte tells the next one (the first follows the last), -1 to 1; random: 0.
    ///
    /// Not a number if all bytes are equal.
    pub serial_correlation: f64,
}

/// Runs the five tests over `bytes`.
pub fn randomness(bytes: &[u8]) -> Randomness {
    let total = bytes.len() as f64;
    let mut counts = [0_u64; 256];
    for &byte in bytes {
        counts[usize::from(byte)] += 1;
    }

    let entropy = counts.iter().filter(|&&count| count > 0).map(|&count| {
        let share = count as f64 / total;
        share * share.recip().log2()
    });
    let expected = total / 256.0;
    let chi_square = counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();

    let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
    Randomness {
        entropy_bits_per_byte: if bytes.is_empty() { f64::NAN } else { entropy.sum() },
        chi_square,
        chi_square_exceed_probability: chi_square_upper_tail(chi_square, 255.0),
        arithmetic_mean: sum as f64 / total,
        monte_carlo_pi: monte_carlo_pi(bytes),
        serial_correlation: serial_correlation(bytes, sum),
    }
}

impl Randomness {
    /// Percent by which the entropy falls short of 8 bits.
    pub fn entropy_error_percent(&self) -> f64 {
        (8.0 - self.entropy_bits_per_byte) / 8.0 * 100.0
    }

    /// Percent by which the mean is off 127.5, either way.
    pub fn mean_error_percent(&self) -> f64 {
        (self.arithmetic_mean - 127.5).abs() / 127.5 * 100.0
    }

    /// Percent by which the Monte Carlo value is off π, either way.
    pub fn pi_error_percent(&self) -> f64 {
        (self.monte_carlo_pi - PI).abs() / PI * 100.0
    }

    /// The serial correlation as a percentage, without its sign.
    pub fn serial_correlation_error_percent(&self) -> f64 {
        self.serial_correlation.abs() * 100.0
    }

    /// Whether the chi-square test casts doubt: its probability is below 10 % or above 90 %.
    ///
    /// Also true if there was nothing to test.
    pub fn is_suspect(&self) -> bool {
        !(0.1..=0.9).contains(&self.chi_square_exceed_probability)
    }
}

fn monte_carlo_pi(bytes: &[u8]) -> f64 {
    const RADIUS: u64 = (1 << 24) - 1;
    let (points, _) = bytes.as_chunks::<6>();
    let inside = points.iter().filter(|&&[x0, x1, x2, y0, y1, y2]| {
        let x = u64::from(u32::from_be_bytes([0, x0, x1, x2]));
        let y = u64::from(u32::from_be_bytes([0, y0, y1, y2]));
        x * x + y * y <= RADIUS * RADIUS
    });
    4.0 * inside.count() as f64 / points.len() as f64
}

fn serial_correlation(bytes: &[u8], sum: u64) -> f64 {
    let next = bytes.iter().cycle().skip(1);
    let products: u64 = bytes.iter().zip(next).map(|(&a, &b)| u64::from(a) * u64::from(b)).sum();
    let squares: u64 = bytes.iter().map(|&byte| u64::from(byte).pow(2)).sum();
    // Differences of large products are computed exactly as integers, then rounded.
    let times_total = |value: u64| i128::from(value) * bytes.len() as i128;
    let square_of_sum = i128::from(sum).pow(2);
    (times_total(products) - square_of_sum) as f64 / (times_total(squares) - square_of_sum) as f64
}

/// Probability that a chi-square variable with `degrees` degrees of freedom exceeds `x`.
fn chi_square_upper_tail(x: f64, degrees: f64) -> f64 {
    let (a, x) = (degrees / 2.0, x / 2.0);
    if x <= 0.0 {
        return 1.0;
    }
    // x^a e^-x / Γ(a), by way of logarithms lest its parts overflow.
    let scale = (a * x.ln() - x - ln_gamma(a)).exp();
    // Each expansion converges fast on its own side of a + 1.
    if x < a + 1.0 { 1.0 - scale * lower_series(a, x) } else { scale * upper_fraction(a, x) }
}

/// The lower incomplete gamma function over x^a e^-x, as a power series.
fn lower_series(a: f64, x: f64) -> f64 {
    let mut term = 1.0 / a;
    let mut sum = term;
    let mut n = a;
    while term > sum * f64::EPSILON {
        n += 1.0;
        term *= x / n;
        sum += term;
    }
    sum
}

/// The upper incomplete gamma function over x^a e^-x, as a continued fraction.
fn upper_fraction(a: f64, x: f64) -> f64 {
    // Worked from the front: c and d are ratios of successive convergents.
    let mut b = x + 1.0 - a;
    let mut c = f64::INFINITY;
    let mut d = 1.0 / b;
    let mut value = d;
    for n in 1..=10_000 {
        let n = f64::from(n);
        let numerator = n * (a - n);
        b += 2.0;
        d = 1.0 / (b + numerator * d);
        c = b + numerator / c;
        value *= c * d;
        if (c * d - 1.0).abs() <= f64::EPSILON {
            break;
        }
    }
    value
}

/// ln Γ(a) by Stirling's series, good to the last digits from a = 10 on.
fn ln_gamma(a: f64) -> f64 {
    let square = a * a;
    let series =
        1.0 / 12.0 - (1.0 / 360.0 - (1.0 / 1260.0 - 1.0 / 1680.0 / square) / square) / square;
    (a - 0.5) * a.ln() - a + 0.5 * TAU.ln() + series / a
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The high bytes of a linear congruential generator.
    fn generated(len: usize) -> Vec<u8> {
        let next = |&x: &u64| {
            Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        };
        std::iter::successors(Some(1), next).skip(1).take(len).map(|x| (x >> 56) as u8).collect()
    }

    fn ramp() -> Vec<u8> {
        (0..=255).cycle().take(10_240).collect()
    }

    /// `expected` in the order of `ent -t`: entropy, chi-square, mean, pi, serial correlation.
    fn check(bytes: &[u8], expected: [f64; 5]) {
        let found = randomness(bytes);
        let found = [
            found.entropy_bits_per_byte,
            found.chi_square,
            found.arithmetic_mean,
            found.monte_carlo_pi,
            found.serial_correlation,
        ];
        for (found, expected) in found.into_iter().zip(expected) {
            // Ent prints six places.
            assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
        }
    }

    // Figures of Debian's ent 1.2, `ent -t FILE`, over files of the same bytes.
    #[test]
    fn five_tests_agree_with_ent() {
        check(&generated(65_536), [7.997366, 238.593750, 127.698349, 3.148141, 0.004460]);
        check(&generated(1000), [7.784971, 274.368000, 129.532000, 3.012048, -0.031236]);
        check(&ramp(), [8.0, 0.0, 127.5, 2.844080, 0.976654]);
        let text = b"receive-side scaling\n".repeat(50);
        check(&text, [3.594466, 25_159.523810, 94.476190, 4.0, -0.235892]);
        check(b"picnic", [1.918296, 420.666667, 105.0, 4.0, -0.493151]);
        let skewed: Vec<u8> = generated(65_536).iter().map(|&byte| byte.min(250)).collect();
        check(&skewed, [7.938010, 7617.484375, 127.642029, 3.160227, 0.004466]);
    }

    // `ent FILE`, "would exceed this value ... percent of the times".
    #[test]
    fn probability_agrees_with_ent() {
        let percent = |bytes: &[u8]| randomness(bytes).chi_square_exceed_probability * 100.0;
        assert!((percent(&generated(65_536)) - 76.21).abs() < 0.005);
        assert!((percent(&generated(1000)) - 19.32).abs() < 0.005);
        assert!(percent(&ramp()) > 99.99);
        assert!(percent(b"picnic") < 0.01);
        assert!(!randomness(&generated(65_536)).is_suspect());
        assert!(randomness(&ramp()).is_suspect());
        assert!(randomness(b"picnic").is_suspect());
    }

    // python3 -c 'from mpmath import *; mp.dps = 30;
    //   print(*[gammainc(127.5, x / 2, inf, regularized=True) for x in (...)], sep="\n")'
    #[test]
    fn the_probability_is_good_to_twelve_digits() {
        for (x, expected) in [
            (100.0, 1.0),
            (200.0, 0.9954254445419519),
            (238.59375, 0.7620727658871828),
            (254.0, 0.5059053509639367),
            (256.9, 0.4548435849610103),
            (257.1, 0.4513539293148601),
            (300.0, 0.02772752205390483),
            (400.0, 1.660002524412452e-8),
            (1000.0, 9.378477343658398e-89),
        ] {
            let found = chi_square_upper_tail(x, 255.0);
            assert!((found / expected - 1.0_f64).abs() < 1e-12, "{found} for {expected} at {x}");
        }
        assert_eq!(chi_square_upper_tail(0.0, 255.0), 1.0);
        assert_eq!(chi_square_upper_tail(1e9, 255.0), 0.0);
    }

    #[test]
    fn percent_errors_are_those_of_the_papers_table() {
        let found = Randomness {
            entropy_bits_per_byte: 7.9592,
            chi_square: 255.0,
            chi_square_exceed_probability: 0.5,
            arithmetic_mean: 127.2195,
            monte_carlo_pi: PI * 1.0109,
            serial_correlation: -0.0008,
        };
        assert!((found.entropy_error_percent() - 0.51).abs() < 1e-9);
        assert!((found.mean_error_percent() - 0.22).abs() < 1e-9);
        assert!((found.pi_error_percent() - 1.09).abs() < 1e-9);
        assert!((found.serial_correlation_error_percent() - 0.08).abs() < 1e-9);
    }

    #[test]
    fn too_few_bytes_give_no_number_and_no_panic() {
        let none = randomness(&[]);
        assert!(none.entropy_bits_per_byte.is_nan() && none.arithmetic_mean.is_nan());
        assert!(none.chi_square_exceed_probability.is_nan() && none.is_suspect());
        assert!(randomness(b"short").monte_carlo_pi.is_nan());
        // On the circle is inside, one further up is not.
        assert_eq!(monte_carlo_pi(&[255, 255, 255, 0, 0, 0]), 4.0);
        assert_eq!(monte_carlo_pi(&[255, 255, 255, 0, 0, 1]), 0.0);
        let constant = randomness(&[97; 100]);
        assert_eq!(constant.entropy_bits_per_byte, 0.0);
        assert!(constant.serial_correlation.is_nan());
    }

    #[test]
    fn logarithm_of_gamma_matches_factorials() {
        let mut factorial: f64 = (1..10).map(|n| f64::from(n).ln()).sum();
        for a in 10..40 {
            let a = f64::from(a);
            assert!((ln_gamma(a) - factorial).abs() < 2e-12 * factorial, "{a}");
            factorial += a.ln();
        }
    }
}
