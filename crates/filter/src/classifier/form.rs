//! The structure chosen for a set of rules, in words.

use super::rule::FIELDS;
use super::{Address, Classifier};
use std::fmt::Write;

/// The parts of a five-tuple, as [`Lengths`](super::Lengths) has them; the first are the fields.
const PARTS: [&str; FIELDS + 1] =
    ["source", "destination", "source port", "destination port", "protocol"];
/// Lengths that are shown only if they differ from these.
const WHOLE: [u8; FIELDS + 1] = [0, 0, 16, 16, 8];

impl<A: Address> Classifier<A> {
    /// The structure in words: each hash table with its number of rules and its key bits, and the
    /// fields that the bit vectors are cut by; `none` without rules.
    pub fn form(&self) -> String {
        let mut form = String::new();
        let mut add = |rules: usize, place: &str, by: &[String]| {
            let between = if form.is_empty() { "" } else { "; " };
            let by = if by.is_empty() { "nothing".to_owned() } else { by.join(", ") };
            // Writing into a text does not fail.
            let _ = write!(form, "{between}{rules} {place} by {by}");
        };
        for table in &self.tables {
            let lengths = table.lengths.0.into_iter().zip(PARTS).zip(WHOLE);
            let fixed = lengths.filter(|((length, _), _)| *length != 0);
            let told = fixed.map(|((length, part), whole)| match length == whole {
                true => part.to_owned(),
                false => format!("{part}/{length}"),
            });
            add(table.rules.into(), "hashed", &told.collect::<Vec<_>>());
        }
        if self.vectors.len() != 0 {
            let cut = (0..FIELDS).filter(|&field| self.vectors.begins(field)[0] != u64::MAX);
            let mut told: Vec<_> = cut.map(|field| PARTS[field].to_owned()).collect();
            if self.vectors.has_classes() {
                told.push(PARTS[FIELDS].to_owned());
            }
            add(self.vectors.len(), "in vectors", &told);
        }
        if form.is_empty() { "none".into() } else { form }
    }
}
