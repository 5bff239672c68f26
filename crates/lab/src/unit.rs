//! Units of figures: derived from keys, and formatted for people.
//!
//! Three significant digits, in the fitting multiple: `49.1 µs`, `198 ns`, `47.9 M/s`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// One value as a multiple of another.
    Ratio,
    /// Time.
    Nanoseconds,
    /// Time.
    Microseconds,
    /// Time.
    Milliseconds,
    /// Time.
    Seconds,
    /// Packets, requests, ... per second.
    PerSecond,
    /// Bits per second.
    BitsPerSecond,
    /// A part of one.
    Fraction,
    /// A relative change.
    Change,
    /// Length.
    Bytes,
    /// A count.
    Count,
}

/// Words of keys and their units. The first that is in the key counts.
const WORDS: &[(&str, Unit)] = &[
    ("ratio", Unit::Ratio),
    ("ns", Unit::Nanoseconds),
    ("us", Unit::Microseconds),
    ("ms", Unit::Milliseconds),
    ("s", Unit::Seconds),
    ("seconds", Unit::Seconds),
    ("pps", Unit::PerSecond),
    ("second", Unit::PerSecond),
    ("bps", Unit::BitsPerSecond),
    ("fraction", Unit::Fraction),
    ("share", Unit::Fraction),
    ("gain", Unit::Change),
    ("change", Unit::Change),
    ("bytes", Unit::Bytes),
];

const TIMES: &[(f64, &str)] = &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")];
const RATES: &[(f64, &str)] = &[(1.0, "/s"), (1e3, "k/s"), (1e6, "M/s"), (1e9, "G/s")];
const BITS: &[(f64, &str)] = &[(1.0, "b/s"), (1e3, "kb/s"), (1e6, "Mb/s"), (1e9, "Gb/s")];
const BYTES: &[(f64, &str)] = &[(1.0, "B"), (1e6, "MB"), (1e9, "GB")];
const COUNTS: &[(f64, &str)] = &[(1.0, ""), (1e6, "M"), (1e9, "G")];

impl Unit {
    /// The unit that a key names among its words, such as `request_p50_ns`.
    pub fn of_key(key: &str) -> Unit {
        let has = |word: &str| key.split('_').any(|part| part == word);
        WORDS.iter().find(|(word, _)| has(word)).map_or(Unit::Count, |(_, unit)| *unit)
    }

    /// The measured quantity, for people.
    pub(crate) fn subject(self) -> &'static str {
        match self {
            Unit::Ratio => "ratio",
            Unit::Nanoseconds | Unit::Microseconds | Unit::Milliseconds | Unit::Seconds => "time",
            Unit::PerSecond => "rate",
            Unit::BitsPerSecond => "bit rate",
            Unit::Fraction => "share",
            Unit::Change => "change",
            Unit::Bytes => "size",
            Unit::Count => "count",
        }
    }

    /// Its name for programs.
    pub fn name(self) -> String {
        let name = serde_json::to_value(self).unwrap_or_default();
        name.as_str().unwrap_or_default().to_owned()
    }

    /// Whether this word of a key is only the name of the unit.
    pub(crate) fn is_word(self, word: &str) -> bool {
        // "gain" and "share" are also part of the name.
        let says_more = matches!(self, Unit::Change | Unit::Ratio) || word == "share";
        !says_more && WORDS.contains(&(word, self))
    }

    /// Whether more is better, if the unit implies it: rates should be high, times low.
    pub fn more_is_better(self) -> Option<bool> {
        match self {
            Unit::PerSecond | Unit::BitsPerSecond => Some(true),
            Unit::Nanoseconds | Unit::Microseconds | Unit::Milliseconds | Unit::Seconds => {
                Some(false)
            }
            _ => None,
        }
    }

    /// For people.
    pub fn text(self, value: f64) -> String {
        let (digits, suffix) = self.parts(value);
        match suffix {
            "" => digits,
            suffix => format!("{digits} {suffix}"),
        }
    }

    /// The same without trailing zeros: for chosen values, not measured ones.
    pub(crate) fn short_text(self, value: f64) -> String {
        let (digits, suffix) = self.parts(value);
        let digits = match digits.contains('.') {
            true => digits.trim_end_matches('0').trim_end_matches('.'),
            false => &digits,
        };
        format!("{digits} {suffix}").trim_end().to_owned()
    }

    /// A range; the multiple is written once if both ends have the same.
    pub fn range(self, low: f64, high: f64) -> String {
        match (self.parts(low), self.parts(high)) {
            ((digits, suffix), (_, other)) if suffix == other => {
                format!("{digits} to {}", self.text(high))
            }
            _ => format!("{} to {}", self.text(low), self.text(high)),
        }
    }

    /// For programs, in the unit itself.
    pub(crate) fn json(self, value: f64) -> Value {
        match self {
            Unit::Count | Unit::Bytes if value.fract() == 0.0 && (0.0..1e15).contains(&value) => {
                json!(value as u64)
            }
            _ => json!(value),
        }
    }

    fn parts(self, value: f64) -> (String, &'static str) {
        match self {
            Unit::Ratio => (three_digits(value), "×"),
            // Less than a thousandth of a percent is zero.
            Unit::Fraction if value != 0.0 && value.abs() < 0.000_995 => {
                (format!("{:.3}", value * 100.0), "%")
            }
            Unit::Fraction => (three_digits(value * 100.0), "%"),
            Unit::Change => {
                let digits = three_digits(value * 100.0);
                (if value > 0.0 { format!("+{digits}") } else { digits }, "%")
            }
            Unit::Nanoseconds => fitting(value, TIMES),
            Unit::Microseconds => fitting(value * 1e3, TIMES),
            Unit::Milliseconds => fitting(value * 1e6, TIMES),
            Unit::Seconds => fitting(value * 1e9, TIMES),
            Unit::PerSecond => fitting(value, RATES),
            Unit::BitsPerSecond => fitting(value, BITS),
            Unit::Bytes => fitting_whole(value, BYTES),
            Unit::Count => fitting_whole(value, COUNTS),
        }
    }
}

/// Three digits in the largest multiple that is not above the value.
fn fitting(value: f64, multiples: &[(f64, &'static str)]) -> (String, &'static str) {
    // A value that rounds to a thousand of a multiple uses the next.
    let fits = |&&(factor, _): &&(f64, &str)| value.abs() >= factor * 0.9995;
    let (factor, suffix) = multiples.iter().rev().find(fits).unwrap_or(&multiples[0]);
    (three_digits(value / factor), suffix)
}

/// Integers without fraction, with separated thousands, up to a million.
fn fitting_whole(value: f64, multiples: &[(f64, &'static str)]) -> (String, &'static str) {
    let is_whole = value.fract() == 0.0;
    if value.abs() >= 999_950.0 || !is_whole {
        return fitting(value, multiples);
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    (text, multiples[0].1)
}

fn three_digits(value: f64) -> String {
    let size = value.abs();
    let places = match size {
        size if size < 1e-6 => return "0".into(),
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        // 0.1 to 1 has three decimals, and so on; more than six are pointless.
        size => (2 - size.log10().floor() as i32).clamp(3, 6) as usize,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_derived_from_keys() {
        for (key, unit) in [
            ("request_p50_ns", Unit::Nanoseconds),
            ("ns_per_packet", Unit::Nanoseconds),
            ("change_us", Unit::Microseconds),
            ("pps_of_core", Unit::PerSecond),
            ("requests_per_second", Unit::PerSecond),
            ("ratio_to_first", Unit::Ratio),
            ("share_of_peak", Unit::Fraction),
            ("throughput_gain", Unit::Change),
            ("packets_per_interrupt", Unit::Count),
        ] {
            assert_eq!(Unit::of_key(key), unit, "{key}");
        }
    }

    #[test]
    fn figures_have_three_digits_and_a_fitting_unit() {
        for (unit, value, text) in [
            (Unit::Nanoseconds, 49_123.0, "49.1 µs"),
            (Unit::Nanoseconds, 198.4, "198 ns"),
            (Unit::Nanoseconds, 0.4823, "0.482 ns"),
            (Unit::Nanoseconds, 999.6, "1.00 µs"),
            (Unit::Nanoseconds, 9.996, "10.0 ns"),
            (Unit::Nanoseconds, 0.0, "0 ns"),
            (Unit::Nanoseconds, -12.34, "-12.3 ns"),
            (Unit::Milliseconds, 2_500.0, "2.50 s"),
            (Unit::PerSecond, 47_912_345.0, "47.9 M/s"),
            (Unit::BitsPerSecond, 7.43e9, "7.43 Gb/s"),
            (Unit::Fraction, 0.858, "85.8 %"),
            (Unit::Fraction, 1.0, "100 %"),
            (Unit::Fraction, 0.000_123, "0.012 %"),
            (Unit::Fraction, 0.000_000_6, "0.000 %"),
            (Unit::Change, 0.2134, "+21.3 %"),
            (Unit::Change, -0.561, "-56.1 %"),
            (Unit::Ratio, 1.0496, "1.05 ×"),
            (Unit::Count, 51_313.0, "51,313"),
            (Unit::Count, 12.04, "12.0"),
            (Unit::Count, 134_456_384.0, "134 M"),
            (Unit::Bytes, 1514.0, "1,514 B"),
        ] {
            assert_eq!(unit.text(value), text);
        }
        assert_eq!(Unit::Nanoseconds.range(900.0, 1500.0), "900 ns to 1.50 µs");
        assert_eq!(Unit::PerSecond.short_text(80_000.0), "80 k/s");
        assert_eq!(Unit::Count.short_text(100.0), "100");
    }

    proptest! {
        /// The text is within half of its last digit of the value.
        #[test]
        fn texts_are_accurate_to_their_last_digit(exponent in -2.0..13.0_f64) {
            let value = 10_f64.powf(exponent);
            let text = Unit::Nanoseconds.text(value);
            let (digits, suffix) = text.split_once(' ').unwrap();
            let factor = TIMES.iter().find(|(_, name)| *name == suffix).unwrap().0;
            let read: f64 = digits.parse::<f64>().unwrap() * factor;
            prop_assert!((read / value - 1.0).abs() < 0.00501 || value < 0.1, "{value}: {text}");
        }
    }
}
