//! The compiled form of many five-tuples: finds the first match in a few nanoseconds.
//!
//! Rules are put into a few hash tables. A table's key is a part of the five-tuple that all its
//! rules fix: a number of bits of each address and of each port range's common bits, with or
//! without the protocol. A packet is looked up once in each table and compared with the rules of
//! one slot. Tables are in the order of their first rule, and the search ends when no later table
//! can improve the result. Rules that would need many tables or long slots are in bit vectors
//! instead.
//!
//! Packets are looked up a burst at a time: first all slots, then all rules. No step has a branch
//! that depends on the packet, so one packet's wait for memory overlaps with work on the others.
//!
//! Guarantees: for every packet, the answer is that of the rules read from the top. A rule is
//! inserted or removed in place, in microseconds; the work of one change is bounded, even when it
//! compiles all rules again ([`Classifier::touched`]).
//!
//! Source: Srinivasan, Suri, Varghese, "Packet Classification using Tuple Space Search" (1999);
//! Daly et al., "TupleMerge" (2019). New here: tables are chosen for the whole set, by cost; see
//! `docs/decisions/015-filter-classifier.md`.

mod address;
mod build;
mod change;
mod form;
pub(crate) mod image;
mod rule;
mod search;
#[cfg(test)]
mod tests;
mod vectors;

pub use address::Address;
pub use rule::{Key, Rule};

use rule::{Lengths, TableKey};
use vectors::Vectors;

/// No rule.
pub const NONE: u16 = u16::MAX;
/// Keys that are looked up together.
pub const BURST: usize = 64;

// Half a cache line for IPv4.
const _: () = assert!(size_of::<Rule<u64>>() == 32);

/// Rules that fix the same parts of the five-tuple.
#[derive(Clone, Debug)]
struct Table<A> {
    key: TableKey<A>,
    lengths: Lengths,
    /// No rule of the table has an earlier place in the list.
    first: u16,
    rules: u16,
    /// The first entry of each slot; 0 if empty. A power of two of slots.
    slots: Vec<u16>,
}

/// Five-tuple rules of one address family, compiled.
#[derive(Clone, Debug)]
pub struct Classifier<A> {
    tables: Vec<Table<A>>,
    /// Rules of all tables; the first matches nothing.
    entries: Vec<Rule<A>>,
    /// The first free entry; they are chained by `next`.
    free: u16,
    vectors: Vectors<A>,
    rules: usize,
    /// Rules in vectors after the last build.
    built_vectors: usize,
    touched: u64,
}

impl<A: Address> Classifier<A> {
    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules == 0
    }

    /// Number of tables that a packet is looked up in.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Number of rules in bit vectors.
    pub fn in_vectors(&self) -> usize {
        self.vectors.len()
    }

    /// Work of building and changing so far: rules, slots and words of vectors read or moved.
    pub fn touched(&self) -> u64 {
        self.touched
    }

    /// The longest slot: rules that a packet may be compared with in one table.
    pub fn longest_slot(&self) -> usize {
        let slots = self.tables.iter().flat_map(|table| &table.slots);
        slots.map(|&head| self.chain(head).count()).max().unwrap_or(0)
    }

    fn chain(&self, head: u16) -> impl Iterator<Item = &Rule<A>> {
        let entry = move |index: u16| self.entries.get(usize::from(index)).filter(|_| index != 0);
        std::iter::successors(entry(head), move |last| entry(last.next))
    }
}
