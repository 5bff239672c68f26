//! Traffic classes: a packet's mark chooses its lanes at the wires.
//!
//! ```
//! use picnic_core::classes::Classes;
//! use picnic_core::config::CardFile;
//! let text = "[[class]]\nname = \"voice\"\nmarks = [1]\npriority = 1\n\
//!             [[class]]\nname = \"bulk\"\nmarks = [2, 3]\nweight = 3\n";
//! let classes = Classes::of(&CardFile::parse(text, None)?)?.unwrap();
//! let names: Vec<_> = classes.names().collect();
//! // The highest priority first; packets with other marks are in a class of their own.
//! assert_eq!(names, ["voice", "bulk", "other"]);
//! assert_eq!([1, 3, 9].map(|mark| names[classes.class_of(mark)]), ["voice", "bulk", "other"]);
//! # Ok::<(), picnic_core::error::ConfigError>(())
//! ```
//!
//! Filters and functions set marks. [`crate::backlog`] serves a class only while no class of a
//! higher priority waits; classes of the same priority share a wire by weight.
//!
//! Source: NICOS 4.4 ("applying QoS for certain traffic classes").

use crate::config::{CardFile, Placed, SectionConfig, Shape};
use crate::error::ConfigError;
use crate::stats::Counter;
use crate::turns::QUANTUM_BYTES;
use schemars::JsonSchema;
use serde::Deserialize;
use std::ops::Range;

/// Most classes of a card, in addition to the class of all other packets.
const MOST_CLASSES: usize = 8;
/// Most marks of a class.
const MOST_MARKS: usize = 256;
/// The class of packets whose marks no class names, unless a class without marks is given.
const OTHER: &str = "other";

/// `[[class]]`: a traffic class.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct ClassSection {
    /// Name for output: up to 32 letters, digits, "-", "_" or "."; mandatory.
    pub name: Option<String>,
    /// Marks of its packets, as set by filters with action = "mark" or by functions; none: all
    /// packets of no other class.
    pub marks: Vec<u32>,
    /// A class is sent only while no class with a higher number has packets waiting for the wire.
    pub priority: u8,
    /// Share of the wire among classes of the same priority.
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
}

impl Default for ClassSection {
    fn default() -> Self {
        ClassSection { name: None, marks: Vec::new(), priority: 0, weight: 1 }
    }
}

impl SectionConfig for ClassSection {
    const NAME: &'static str = "class";
    const HELP: &'static str = "A traffic class for packets sent to wires, one [[class]] for each.";
    const SHAPE: Shape = Shape::List { least: 0, most: MOST_CLASSES, built_in: false };

    fn check(&self) -> Result<(), ConfigError> {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let Some(name) = &self.name else {
            return Err(ConfigError::new("name", "missing, expected a name for output"));
        };
        if name.is_empty() || name.len() > 32 || !name.chars().all(fits) {
            let message = format!("found \"{name}\", allowed: 1 to 32 letters, digits, - _ .");
            return Err(ConfigError::new("name", message));
        }
        if name == OTHER && !self.marks.is_empty() {
            let message = format!("found \"{OTHER}\" with marks, allowed: without marks");
            return Err(ConfigError::new("name", message));
        }
        if self.marks.len() > MOST_MARKS {
            let message = format!("found {}, allowed: up to {MOST_MARKS}", self.marks.len());
            return Err(ConfigError::new("marks", message));
        }
        Ok(())
    }
}

impl ClassSection {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(OTHER)
    }
}

/// Counts of one class at one wire; written by the borrowed core.
#[derive(Debug, Default)]
pub struct ClassCounters {
    /// Packets that left its lanes: sent, or refused by the wire.
    pub packets: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Packets dropped because a lane was full.
    pub dropped: Counter,
}

/// Classes of the same priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// Their numbers.
    pub(crate) classes: Range<usize>,
    /// Bytes that each may send per turn.
    pub(crate) quanta: Vec<u32>,
}

/// The classes of a card, the highest priority first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    list: Vec<ClassSection>,
    /// Marks with their classes, sorted.
    marks: Vec<(u32, usize)>,
    /// The class of all other marks.
    other: usize,
}

impl Classes {
    /// The classes of a card file; none if it has no such section.
    ///
    /// # Errors
    /// Two classes with a name or a mark in common, or two without marks.
    pub fn of(file: &CardFile) -> Result<Option<Self>, ConfigError> {
        let given = file.given::<ClassSection>();
        let wrong = |class: &Placed<ClassSection>, key: &str, message: String| {
            class.section.locate(ConfigError::new(key, message))
        };
        for (place, class) in given.iter().enumerate() {
            for before in &given[..place] {
                let other = before.name();
                if other == class.name() {
                    let message = format!("found \"{other}\" twice, allowed: once");
                    return Err(wrong(class, "name", message));
                }
                if before.marks.is_empty() && class.marks.is_empty() {
                    let message = format!("found none, as in \"{other}\", allowed: in one class");
                    return Err(wrong(class, "marks", message));
                }
                if let Some(mark) = class.marks.iter().find(|mark| before.marks.contains(mark)) {
                    let message = format!("found {mark}, as in \"{other}\", allowed: in one class");
                    return Err(wrong(class, "marks", message));
                }
            }
        }
        let list: Vec<_> = given.into_iter().map(|class| class.keys).collect();
        Ok((!list.is_empty()).then(|| Classes::new(list)))
    }

    fn new(mut list: Vec<ClassSection>) -> Self {
        if list.iter().all(|class| !class.marks.is_empty()) {
            list.push(ClassSection { name: Some(OTHER.into()), ..ClassSection::default() });
        }
        list.sort_by_key(|class| std::cmp::Reverse(class.priority));
        let other = list.iter().position(|class| class.marks.is_empty()).unwrap_or(0);
        let marks = list.iter().enumerate();
        let marks = marks.flat_map(|(place, class)| class.marks.iter().map(move |&it| (it, place)));
        let mut marks: Vec<_> = marks.collect();
        marks.sort_unstable();
        Classes { list, marks, other }
    }

    /// The classes' names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(ClassSection::name)
    }

    /// The class of a mark.
    #[inline]
    pub fn class_of(&self, mark: u32) -> usize {
        let found = self.marks.binary_search_by_key(&mark, |&(mark, _)| mark);
        found.map_or(self.other, |place| self.marks[place].1)
    }

    /// Number of classes.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// Classes by priority, the highest first. The smallest weight of a level sends a quantum per
    /// turn, so that turns are short.
    pub(crate) fn levels(&self) -> Vec<Level> {
        let mut levels = Vec::new();
        let mut first = 0;
        for level in self.list.chunk_by(|a, b| a.priority == b.priority) {
            let smallest = level.iter().map(|class| class.weight).min().unwrap_or(1).max(1);
            let quantum = |class: &ClassSection| QUANTUM_BYTES * class.weight.max(1) / smallest;
            levels.push(Level {
                classes: first..first + level.len(),
                quanta: level.iter().map(quantum).collect(),
            });
            first += level.len();
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(text: &str) -> Result<Option<Classes>, String> {
        let file = CardFile::parse(text, None).map_err(|error| error.to_string())?;
        Classes::of(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn wrong_classes_are_reported() {
        let class = |name: &str, rest: &str| format!("[[class]]\nname = \"{name}\"\n{rest}\n");
        assert_eq!(classes(""), Ok(None));
        let told = |text: String| classes(&text).unwrap_err();
        let error = told(class("a", "marks = [1, 2]") + &class("b", "marks = [3, 2]"));
        assert_eq!(error, "card:6: class[1].marks: found 2, as in \"a\", allowed: in one class");
        let error = told(class("a", "") + &class("b", ""));
        assert!(error.contains("class[1].marks: found none, as in \"a\""), "{error}");
        let error = told(class("a", "") + &class("a", "marks = [3]"));
        assert!(error.contains("class[1].name: found \"a\" twice, allowed: once"), "{error}");
        let error = told(class("a", "weight = 0"));
        assert!(error.contains("class[0].weight: found 0, allowed: 1 to 1000"), "{error}");
        let error = told(class("a b", ""));
        assert!(error.contains("name: found \"a b\", allowed: "), "{error}");
        let all: String =
            (0..9).map(|n| class(&format!("c{n}"), &format!("marks = [{n}]"))).collect();
        let error = told(all);
        assert!(error.contains("allowed: ") && error.contains('8'), "{error}");
    }

    #[test]
    fn levels_follow_priority_and_weight() {
        let text = "[[class]]\nname = \"a\"\nweight = 4\nmarks = [1]\n\
                    [[class]]\nname = \"top\"\npriority = 9\nmarks = [2]\nweight = 500\n\
                    [[class]]\nname = \"rest\"\nweight = 6\n";
        let classes = classes(text).unwrap().unwrap();
        assert_eq!(classes.names().collect::<Vec<_>>(), ["top", "a", "rest"]);
        assert_eq!([0, 1, 2].map(|mark| classes.class_of(mark)), [2, 1, 0]);
        let quantum = QUANTUM_BYTES;
        let levels = [
            Level { classes: 0..1, quanta: vec![quantum] },
            Level { classes: 1..3, quanta: vec![quantum, quantum * 3 / 2] },
        ];
        assert_eq!(classes.levels(), levels);
    }
}
