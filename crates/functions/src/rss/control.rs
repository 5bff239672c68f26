//! A running `rss`: another indirection table, another key, or what it works with.
//!
//! ```
//! use picnic_functions::rss::{Change, Control};
//! use picnic_hash::{IndirectionTable, Key};
//!
//! let mut message = Control::key(&Key::symmetric());
//! // ... `Function::control` is given the message between two bursts ...
//! if let Change::Key(replaced) = message.change {
//!     drop(replaced); // the old key's tables, freed by the sender
//! }
//! ```
//!
//! Guarantees: a change is made between bursts, whole or not at all; nothing is
//! allocated or freed on the borrowed core, as old and new change places.

use super::{Hash, HashName, Rss};
use picnic_core::stats::Counter;
use picnic_hash::{IndirectionTable, Key, Toeplitz};

/// A change asked of a running `rss`, and what came of it.
#[derive(Debug)]
pub struct Control {
    /// The new part; the one that it replaced, once the change is made.
    pub change: Change,
    /// Table entries whose flows may have moved to another queue, or why nothing was done.
    /// `None` until an `rss` has seen the message.
    pub outcome: Option<Result<usize, Refusal>>,
}

/// What is to be replaced.
#[derive(Debug)]
pub enum Change {
    /// The indirection table; it must be for as many queues as the card has.
    Table(Box<IndirectionTable>),
    /// The Toeplitz key, made ready for hashing.
    Key(Box<Toeplitz>),
    /// Nothing: what it works with is to be written down.
    Show(Box<Settings>),
}

/// What an `rss` works with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The hash.
    pub hash: HashName,
    /// The Toeplitz key; none with another hash.
    pub key: Option<Key>,
    /// What jhash and lookup2 start from.
    pub init: u32,
    entries: Box<[u16; IndirectionTable::MAX_ENTRIES]>,
    length: usize,
}

impl Settings {
    /// The queue of each entry of the indirection table.
    pub fn table(&self) -> &[u16] {
        &self.entries[..self.length]
    }
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The table is for another number of queues.
    Queues {
        /// Queues the table is for.
        found: u16,
        /// Queues the card has.
        allowed: u16,
    },
    /// The hash in use has no key.
    NoKey,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Queues { found, allowed } => {
                write!(f, "found a table for {found} queues, allowed is one for {allowed}")
            }
            Refusal::NoKey => f.write_str("found a key, allowed with hash = \"toeplitz\" only"),
        }
    }
}

impl std::error::Error for Refusal {}

impl Control {
    /// Asks for another indirection table.
    pub fn table(table: IndirectionTable) -> Self {
        Control { change: Change::Table(Box::new(table)), outcome: None }
    }

    /// Asks what an `rss` works with.
    pub fn show() -> Self {
        let settings = Settings {
            hash: HashName::Toeplitz,
            key: None,
            init: 0,
            entries: Box::new([0; IndirectionTable::MAX_ENTRIES]),
            length: 0,
        };
        Control { change: Change::Show(Box::new(settings)), outcome: None }
    }

    /// Asks for another Toeplitz key.
    pub fn key(key: &Key) -> Self {
        Control { change: Change::Key(Box::new(Toeplitz::new(key))), outcome: None }
    }
}

/// What an `rss` counts beside the ledger. On lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Packets without a hash: not IP, or of a type that is off.
    pub unhashed: Counter,
    /// Indirection tables replaced.
    pub tables_replaced: Counter,
    /// Keys replaced.
    pub keys_replaced: Counter,
    /// Table entries whose queue (or, with a key, whose flows) changed: for these flows,
    /// and only these, packets from before and after the change may overtake each other.
    pub moved_entries: Counter,
}

impl Rss {
    /// Makes a change; what it replaces is left in the message.
    pub(super) fn apply(&mut self, change: &mut Change) -> Result<usize, Refusal> {
        let moved = match change {
            Change::Table(table) => {
                let (found, allowed) = (table.queues(), self.table.queues());
                if found != allowed {
                    return Err(Refusal::Queues { found, allowed });
                }
                std::mem::swap(&mut self.table, table);
                self.counters.tables_replaced.add(1);
                moved_entries(&self.table, table)
            }
            Change::Key(toeplitz) => {
                let Hash::Toeplitz(in_use) = &mut self.hash else { return Err(Refusal::NoKey) };
                std::mem::swap(in_use, toeplitz);
                self.counters.keys_replaced.add(1);
                let one_queue = self.table.entries().windows(2).all(|pair| pair[0] == pair[1]);
                let same = one_queue || in_use.key() == toeplitz.key();
                if same { 0 } else { self.table.len() }
            }
            Change::Show(settings) => {
                self.show(settings);
                0
            }
        };
        self.counters.moved_entries.add(moved as u64);
        Ok(moved)
    }
}

impl Rss {
    /// Writes down what is in force, into memory that is there.
    fn show(&self, settings: &mut Settings) {
        (settings.hash, settings.key, settings.init) = match &self.hash {
            Hash::Toeplitz(toeplitz) => (HashName::Toeplitz, Some(*toeplitz.key()), 0),
            Hash::Lookup3(init) => (HashName::Jhash, None, *init),
            Hash::Lookup2(init) => (HashName::Lookup2, None, *init),
        };
        let entries = self.table.entries();
        settings.length = entries.len();
        settings.entries[..entries.len()].copy_from_slice(entries);
    }
}

/// Entries, of the longer of two tables, some of whose hashes the other sends elsewhere.
fn moved_entries(a: &IndirectionTable, b: &IndirectionTable) -> usize {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    // A hash of remainder r by one length can have any remainder by the other that is the
    // same modulo the lengths' greatest common divisor, and no other.
    let step = greatest_common_divisor(short.len(), long.len());
    (0..step)
        .map(|r| {
            let mut targets = short.entries().iter().skip(r).step_by(step);
            let first = targets.next();
            let agree = targets.all(|queue| Some(queue) == first);
            let entries = long.entries().iter().skip(r).step_by(step);
            entries.filter(|&queue| !agree || Some(queue) != first).count()
        })
        .sum()
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
