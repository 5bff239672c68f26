//! Errors of a key or an indirection table.
//!
//! Only setting up can fail; hashing and looking up cannot.

/// A refused key or indirection table, with the found and allowed values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key has too few or too many bytes.
    #[error("hash key has {found} bytes, allowed: 40 to 64")]
    KeyLength {
        /// Bytes in the key that was refused.
        found: usize,
    },
    /// The key's text holds something that is neither a hex digit nor a colon between bytes.
    #[error(
        "hash key has {found:?} at character {position}, allowed: hex digits, two to a byte, with or without ':' between bytes"
    )]
    KeyDigit {
        /// Place in the text, counted in characters from 0.
        position: usize,
        /// The character found there.
        found: char,
    },
    /// The key's text ends in the middle of a byte.
    #[error("hash key has {digits} hex digits; two are needed for each byte")]
    KeyOddDigits {
        /// Hex digits in the text.
        digits: usize,
    },
    /// The indirection table has no entries or too many.
    #[error("indirection table has {found} entries, allowed: 1 to 4096")]
    TableSize {
        /// Entries in the table that was refused.
        found: usize,
    },
    /// There are no queues for the entries.
    #[error("indirection table has no queues; at least 1 is needed")]
    NoQueues,
    /// An entry names a queue that does not exist.
    #[error("indirection table entry {entry} names queue {queue}, allowed: 0 to {}", .queues.saturating_sub(1))]
    Queue {
        /// Entry index, from 0.
        entry: usize,
        /// The queue that it names.
        queue: u16,
        /// Number of queues.
        queues: u16,
    },
    /// The number of weights differs from the number of queues.
    #[error("found {found} weights, allowed: one for each of {queues} queues")]
    Weights {
        /// Number of weights given.
        found: usize,
        /// Number of queues.
        queues: u16,
    },
    /// No queue has a weight.
    #[error("found only weights of zero, allowed: at least one above zero")]
    NoWeight,
    /// The entry to change is past the end of the table.
    #[error("indirection table has no entry {entry}, allowed: 0 to {}", .entries.saturating_sub(1))]
    Entry {
        /// Index of the entry.
        entry: usize,
        /// Number of entries.
        entries: usize,
    },
}
