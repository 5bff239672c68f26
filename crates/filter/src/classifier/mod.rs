//! The compiled form of many five-tuples: the first that matches, in a few nanoseconds.
//!
//! Rules are put into few hash tables. A table's key is a part of the five-tuple that all its
//! rules fix: so many bits of each address, so many of each port range's common bits, the
//! protocol or not. A packet is looked up once in each table, and compared with the rules of one
//! slot. Tables are in the order of their first rule, and the search ends where no later table
//! can better what was found. Rules that would take many tables, or long slots, stand in bit
//! vectors instead.
//!
//! Packets are looked up a burst at a time: first all slots, then all rules. No step has a branch
//! that depends on the packet, so that one packet's wait for memory is filled with the others'
//! work.
//!
//! Guarantees: the answer is that of the rules read from the top, for every packet. A rule is
//! inserted or removed in place, in microseconds; what one change touches is bounded, also when
//! it compiles all anew ([`Classifier::touched`]).
//!
//! Source: Srinivasan, Suri, Varghese, "Packet Classification using Tuple Space Search" (1999);
//! Daly et al., "TupleMerge" (2019). What is new is the choice of tables, made for the whole set
//! by cost; see `docs/decisions/015-filter-classifier.md`.

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

/// Rules with so much of the five-tuple fixed.
#[derive(Clone, Debug)]
struct Table<A> {
    key: TableKey<A>,
    lengths: Lengths,
    /// No rule of the table stands before this place in the list.
    first: u16,
    rules: u16,
    /// The first entry of each slot; 0 if there is none. A power of two of them.
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
    /// Rules in it.
    pub fn len(&self) -> usize {
        self.rules
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules == 0
    }

    /// Tables that a packet is looked up in.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Rules in bit vectors.
    pub fn in_vectors(&self) -> usize {
        self.vectors.len()
    }

    /// What building and changing has cost so far: rules, slots and words of vectors looked at
    /// or moved.
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
