//! Cost classes: kinds of source operations, each with one cost.

use serde::{Deserialize, Serialize};

/// A kind of operation, with one cost in a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A test and the jump after it.
    Branch,
    /// Adding, comparing, converting: integers or floats, which the syntax cannot distinguish.
    Arithmetic,
    /// And, or, xor, not, shift, setting a variable: operations that floats lack or that cost the
    /// same for all types.
    Bitwise,
    /// Multiplying.
    Multiply,
    /// Dividing, and taking the remainder.
    Divide,
    /// Reading through a reference, an index or a field.
    Load,
    /// Writing through a reference, an index or a field; one per field for a value with several.
    Store,
    /// Calling a function and returning, and short methods of `core`.
    Call,
    /// A method of the task context.
    Service,
    /// Entering and leaving a segment: the executor's overhead.
    Segment,
}

impl Class {
    /// All classes, in the order of [`Counts`].
    pub const ALL: [Class; 10] = [
        Class::Branch,
        Class::Arithmetic,
        Class::Bitwise,
        Class::Multiply,
        Class::Divide,
        Class::Load,
        Class::Store,
        Class::Call,
        Class::Service,
        Class::Segment,
    ];

    /// Its name in profiles and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Branch => "branch",
            Class::Arithmetic => "arithmetic",
            Class::Bitwise => "bitwise",
            Class::Multiply => "multiply",
            Class::Divide => "divide",
            Class::Load => "load",
            Class::Store => "store",
            Class::Call => "call",
            Class::Service => "service",
            Class::Segment => "segment",
        }
    }

    /// A description in a few words.
    pub const fn help(self) -> &'static str {
        match self {
            Class::Branch => "a test and the jump after it",
            Class::Arithmetic => "add, compare, convert",
            Class::Bitwise => "and, or, xor, not, shift, set a variable",
            Class::Multiply => "multiply",
            Class::Divide => "divide, remainder",
            Class::Load => "read through a reference, index or field",
            Class::Store => "write through a reference, index or field",
            Class::Call => "call a function and return",
            Class::Service => "a method of the task context",
            Class::Segment => "enter and leave a segment",
        }
    }
}

/// Number of operations of each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u32; Class::ALL.len()]);

impl Counts {
    /// No operations.
    pub const NONE: Counts = Counts([0; Class::ALL.len()]);

    /// Counts of these classes; a class named twice adds up.
    pub const fn of(counts: &[(Class, u32)]) -> Self {
        let mut found = Counts::NONE;
        let mut place = 0;
        while place < counts.len() {
            let (class, count) = counts[place];
            found.0[class as usize] = found.0[class as usize].saturating_add(count);
            place += 1;
        }
        found
    }

    /// The count of one class.
    pub const fn get(&self, class: Class) -> u32 {
        self.0[class as usize]
    }

    /// The classes with a count above zero, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Class, u32)> + '_ {
        Class::ALL
            .into_iter()
            .map(|class| (class, self.get(class)))
            .filter(|(_, count)| *count != 0)
    }
}

impl Serialize for Counts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(class, count)| (class.name(), count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_keep_their_order() {
        for (place, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, place);
        }
    }

    #[test]
    fn counts_add_up_and_never_overflow() {
        let counts = Counts::of(&[(Class::Load, 2), (Class::Load, u32::MAX), (Class::Call, 1)]);
        assert_eq!(counts.get(Class::Load), u32::MAX);
        assert_eq!(counts.iter().collect::<Vec<_>>(), [(Class::Load, u32::MAX), (Class::Call, 1)]);
    }
}
