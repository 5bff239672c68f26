//! Sets of cores, as the kernel writes them: lists and masks.
//!
//! ```
//! use picnic_core::cores::CoreSet;
//! let cores = CoreSet::parse_list("0-2,5\n").unwrap();
//! assert_eq!(cores.to_string(), "0-2,5");
//! assert_eq!(cores.to_mask(), "27");
//! ```
//!
//! Source: Documentation/admin-guide/cputopology.rst; lib/bitmap.c for the forms.

use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;

/// The highest number a core may have: the most that the kernel can be built for.
const HIGHEST: usize = 8191;

/// A set of cores.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreSet(BTreeSet<usize>);

/// A text that is not a set of cores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found \"{found}\", allowed: {allowed}")]
pub struct CoreSetError {
    /// The text.
    pub found: String,
    /// The expected form.
    pub allowed: &'static str,
}

impl CoreSet {
    /// No cores.
    pub fn new() -> Self {
        CoreSet::default()
    }

    /// Reads a list such as `0-3,8`; surrounding blanks and an empty text are allowed.
    ///
    /// # Errors
    /// Anything else, a descending range, a number above 8191.
    pub fn parse_list(text: &str) -> Result<Self, CoreSetError> {
        let text = text.trim();
        let wrong = || CoreSetError {
            found: shortened(text),
            allowed: "numbers and ranges such as 0-3,8, each up to 8191",
        };
        let mut cores = BTreeSet::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) =
                number(first).zip(number(last)).filter(|(a, b)| a <= b).ok_or_else(wrong)?;
            cores.extend(first..=last);
        }
        Ok(CoreSet(cores))
    }

    /// Reads a mask such as `ff` or `00000001,ffffffff`: groups of 32 bits, the highest first.
    ///
    /// # Errors
    /// Anything else, a core above 8191.
    pub fn parse_mask(text: &str) -> Result<Self, CoreSetError> {
        let text = text.trim();
        let wrong = || CoreSetError {
            found: shortened(text),
            allowed: "groups of up to 8 hexadecimal digits such as 00000001,ffffffff",
        };
        let mut cores = BTreeSet::new();
        for (group, digits) in text.rsplit(',').enumerate() {
            let is_group = (1..=8).contains(&digits.len())
                && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            let bits = u32::from_str_radix(digits, 16).ok().filter(|_| is_group);
            let bits = bits.ok_or_else(wrong)?;
            let set = (0..32).filter(|bit| bits >> bit & 1 != 0).map(|bit| group * 32 + bit);
            cores.extend(set);
        }
        match cores.last() {
            Some(&last) if last > HIGHEST => Err(wrong()),
            _ => Ok(CoreSet(cores)),
        }
    }

    /// The mask, in groups of 32 bits.
    pub fn to_mask(&self) -> String {
        let groups = self.0.last().map_or(1, |last| last / 32 + 1);
        let mut bits = vec![0_u32; groups];
        for core in &self.0 {
            bits[core / 32] |= 1 << (core % 32);
        }
        let mut groups = bits.iter().rev();
        let first = groups.next().map(|bits| format!("{bits:x}")).unwrap_or_default();
        groups.fold(first, |mask, bits| format!("{mask},{bits:08x}"))
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of cores.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether `core` is one of them.
    pub fn contains(&self, core: usize) -> bool {
        self.0.contains(&core)
    }

    /// Adds a core.
    pub fn insert(&mut self, core: usize) {
        self.0.insert(core);
    }

    /// The highest-numbered.
    pub fn last(&self) -> Option<usize> {
        self.0.last().copied()
    }

    /// All of them, in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// The intersection.
    #[must_use]
    pub fn and(&self, other: &CoreSet) -> CoreSet {
        CoreSet(self.0.intersection(&other.0).copied().collect())
    }

    /// The union.
    #[must_use]
    pub fn or(&self, other: &CoreSet) -> CoreSet {
        CoreSet(self.0.union(&other.0).copied().collect())
    }

    /// Those that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &CoreSet) -> CoreSet {
        CoreSet(self.0.difference(&other.0).copied().collect())
    }

    /// Whether they intersect.
    pub fn meets(&self, other: &CoreSet) -> bool {
        !self.0.is_disjoint(&other.0)
    }
}

/// A core's number, digits only.
fn number(text: &str) -> Option<usize> {
    let is_number = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|&core| is_number && core <= HIGHEST)
}

/// A text, shortened for messages.
fn shortened(text: &str) -> String {
    let text = text.replace(char::is_control, " ");
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

impl FromIterator<usize> for CoreSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cores: I) -> Self {
        CoreSet(cores.into_iter().collect())
    }
}

/// The list, such as `0-3,8`.
impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cores = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cores.next() {
            let mut last = first;
            while cores.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            write!(f, "{separator}{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Its numbers, in ascending order.
impl Serialize for CoreSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_and_masks_of_the_kernel_are_read() {
        let list = |text| CoreSet::parse_list(text).unwrap().iter().collect::<Vec<_>>();
        assert_eq!(list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(list("\n").is_empty());
        assert_eq!(list("7,0-1"), [0, 1, 7]);
        let mask = |text| CoreSet::parse_mask(text).unwrap().to_string();
        assert_eq!(mask("00000001,80000000\n"), "31-32");
        assert_eq!(mask("ff"), "0-7");
        assert_eq!(mask("0"), "");
    }

    #[test]
    fn invalid_texts_are_errors() {
        for text in ["a", "1-", "-1", "3-1", "1,,2", ",", "8192", "0-99999999999", "+1", "1 2"] {
            let error = CoreSet::parse_list(text).unwrap_err();
            assert!(error.to_string().starts_with(&format!("found \"{text}\"")), "{error}");
        }
        for text in ["", "g", "123456789", "1,", "+1", &"ffffffff,".repeat(300)] {
            assert!(CoreSet::parse_mask(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_sets_parse_back(cores in prop::collection::btree_set(0..8192_usize, 0..200)) {
            let cores = CoreSet(cores);
            prop_assert_eq!(CoreSet::parse_list(&cores.to_string()).unwrap(), cores.clone());
            prop_assert_eq!(CoreSet::parse_mask(&cores.to_mask()).unwrap(), cores);
        }

        #[test]
        fn lists_use_ranges(cores in prop::collection::btree_set(0..64_usize, 0..40)) {
            let text = CoreSet(cores.clone()).to_string();
            let runs = cores.iter().filter(|&&core| core == 0 || !cores.contains(&(core - 1)));
            let parts = text.split(',').filter(|part| !part.is_empty()).count();
            prop_assert_eq!(parts, runs.count());
        }

        #[test]
        fn any_text_is_a_set_or_an_error(text in "[0-9a-f,\\- \\n]{0,40}|\\PC{0,40}") {
            for set in [CoreSet::parse_list(&text), CoreSet::parse_mask(&text)] {
                match set {
                    Ok(cores) => prop_assert!(cores.last().is_none_or(|last| last <= HIGHEST)),
                    Err(error) => prop_assert!(!error.to_string().contains('\n')),
                }
            }
        }

        #[test]
        fn sets_are_sets(
            a in prop::collection::btree_set(0..80_usize, 0..40),
            b in prop::collection::btree_set(0..80_usize, 0..40),
        ) {
            let (a, b) = (CoreSet(a), CoreSet(b));
            for core in 0..80 {
                let (in_a, in_b) = (a.contains(core), b.contains(core));
                prop_assert_eq!(a.and(&b).contains(core), in_a && in_b);
                prop_assert_eq!(a.or(&b).contains(core), in_a || in_b);
                prop_assert_eq!(a.without(&b).contains(core), in_a && !in_b);
            }
            prop_assert_eq!(a.meets(&b), !a.and(&b).is_empty());
        }
    }
}
