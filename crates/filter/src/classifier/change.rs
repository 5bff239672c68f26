//! Inserts and removes single rules in place.
//!
//! A rule goes into a table that it fits if its slot there is short, otherwise into the vectors.
//! When the vectors have grown, all rules are compiled again; this is rare.

use super::build::slots_for;
use super::{Address, Classifier, NONE, Rule};
use crate::matching::FiveTuple;

/// A rule is added only to a slot with fewer rules.
const LONG_SLOT: usize = 8;
/// Rules that may be added to the vectors before all are compiled again; more if the last build had
/// many.
const STRAYS: usize = 32;

impl<A: Address> Classifier<A> {
    /// Makes room in the list: rules at `position` or after it move down by one.
    pub fn make_room(&mut self, position: u16) {
        self.renumber(|place| *place += u16::from(*place >= position && *place != NONE));
    }

    /// Closes a gap in the list: rules after `position` move up by one.
    pub fn close_gap(&mut self, position: u16) {
        self.renumber(|place| *place -= u16::from(*place > position && *place != NONE));
    }

    fn renumber(&mut self, moves: impl Fn(&mut u16)) {
        self.entries.iter_mut().for_each(|entry| moves(&mut entry.position));
        self.tables.iter_mut().for_each(|table| moves(&mut table.first));
        self.vectors.rules_mut().iter_mut().for_each(|rule| moves(&mut rule.position));
        self.touched += (self.entries.len() + self.vectors.len()) as u64;
    }

    /// Adds one rule; its place in the list is free.
    pub fn insert(&mut self, position: u16, tuple: &FiveTuple) {
        let Some(rule) = Rule::new(tuple) else { return };
        let rule = Rule { position, ..rule };
        self.rules += 1;
        match self.table_for(&rule) {
            Some(table) => self.insert_into(table, rule),
            None => {
                self.touched += self.vectors.insert(rule);
                if self.vectors.len() > 2 * self.built_vectors + STRAYS {
                    self.rebuild();
                }
            }
        }
    }

    /// The table with the shortest slot for a rule, if that is short.
    fn table_for(&mut self, rule: &Rule<A>) -> Option<usize> {
        let lengths = rule.lengths();
        let mut best = None;
        let mut shortest = LONG_SLOT;
        for (index, table) in self.tables.iter().enumerate() {
            if lengths.fits(&table.lengths) {
                let slot = self.chain(table.slots[table.slot_of(rule.hash(&table.key))]);
                let length = slot.take(shortest).count();
                self.touched += length as u64;
                if length < shortest {
                    (best, shortest) = (Some(index), length);
                }
            }
        }
        best
    }

    fn insert_into(&mut self, index: usize, rule: Rule<A>) {
        if usize::from(self.tables[index].rules) >= self.tables[index].slots.len() {
            self.grow(index);
        }
        let table = &mut self.tables[index];
        let new = match self.free {
            0 => {
                self.entries.push(rule);
                (self.entries.len() - 1) as u16
            }
            free => {
                self.free = self.entries[usize::from(free)].next;
                self.entries[usize::from(free)] = rule;
                free
            }
        };
        let slot = table.slot_of(rule.hash(&table.key));
        self.touched += link(&mut self.entries, &mut table.slots[slot], new);
        table.rules += 1;
        table.first = table.first.min(rule.position);
        self.tables.sort_by_key(|table| table.first);
    }

    /// Enlarges a table that has outgrown its slots, to at least twice as many.
    fn grow(&mut self, index: usize) {
        let table = &mut self.tables[index];
        let slots = vec![0; slots_for(usize::from(table.rules))];
        for head in std::mem::replace(&mut table.slots, slots) {
            self.touched += 1;
            let mut at = head;
            while at != 0 {
                let entry = &mut self.entries[usize::from(at)];
                let next = std::mem::take(&mut entry.next);
                let slot = table.slot_of(entry.hash(&table.key));
                self.touched += link(&mut self.entries, &mut table.slots[slot], at);
                at = next;
            }
        }
    }

    /// Removes the rule at a place of the list; the list keeps its gap.
    pub fn remove(&mut self, position: u16, tuple: &FiveTuple) {
        let Some(rule) = Rule::<A>::new(tuple) else { return };
        let in_tables = self.remove_from_tables(position, &rule);
        if in_tables || self.vectors.remove(position, &mut self.touched) {
            self.rules -= 1;
        }
    }

    fn remove_from_tables(&mut self, position: u16, rule: &Rule<A>) -> bool {
        for index in 0..self.tables.len() {
            let table = &mut self.tables[index];
            let slot = table.slot_of(rule.hash(&table.key));
            let mut before = 0;
            let mut at = table.slots[slot];
            while at != 0 && self.entries[usize::from(at)].position != position {
                before = at;
                at = self.entries[usize::from(at)].next;
                self.touched += 1;
            }
            if at == 0 {
                continue;
            }
            let next = self.entries[usize::from(at)].next;
            match before {
                0 => table.slots[slot] = next,
                before => self.entries[usize::from(before)].next = next,
            }
            self.entries[usize::from(at)] = Rule { next: self.free, ..Rule::NEVER };
            self.free = at;
            table.rules -= 1;
            if table.rules == 0 {
                self.tables.remove(index);
            }
            return true;
        }
        false
    }

    /// Compiles all rules again.
    fn rebuild(&mut self) {
        *self = self.compacted();
    }
}

/// Puts an entry into a slot, in the order of the list; returns how many entries it passed.
fn link<A>(entries: &mut [Rule<A>], head: &mut u16, new: u16) -> u64 {
    let position = entries[usize::from(new)].position;
    let mut before = 0;
    let mut at = *head;
    let mut looked_at = 1;
    while at != 0 && entries[usize::from(at)].position < position {
        before = at;
        at = entries[usize::from(at)].next;
        looked_at += 1;
    }
    entries[usize::from(new)].next = at;
    match before {
        0 => *head = new,
        before => entries[usize::from(before)].next = new,
    }
    looked_at
}
