//! Making the tables: for a whole set by cost, for one rule more or less in place.

use super::rule::{Lengths, TableKey};
use super::{Address, Classifier, NONE, Rule, Table};
use crate::filter::matching::FiveTuple;

/// Slots for each rule of a table: three of four rules are alone in their slot then.
const SLOTS_PER_RULE: usize = 4;
/// Rules looked at to choose a table; of more, a part stands for all.
const SAMPLE: usize = 2048;
/// Tables chosen by cost; what no table has taken then goes into one more.
const MOST_TABLES: usize = 24;
/// What a look into a table costs, in comparisons with a rule.
const TABLE_COST: f64 = 3.0;
/// A rule is added to a slot of no more than so many, if there is a choice.
const LONG_SLOT: usize = 8;

/// A rule of the list on its way into a table.
struct Pending<A> {
    rule: Rule<A>,
    lengths: Lengths,
    position: u16,
}

impl<A: Address> Default for Classifier<A> {
    fn default() -> Self {
        Classifier::build(std::iter::empty())
    }
}

impl<A: Address> Classifier<A> {
    /// Compiles five-tuples with their places in the list; those for the other address family
    /// alone are left out. Places grow and are below [`NONE`].
    pub fn build<'t>(rules: impl IntoIterator<Item = (u16, &'t FiveTuple)>) -> Self {
        let pending = |(position, tuple): (u16, &FiveTuple)| {
            let rule = Rule::new(tuple)?;
            Some(Pending { rule, lengths: rule.lengths(tuple), position })
        };
        let mut pending: Vec<_> = rules.into_iter().filter_map(pending).collect();
        let mut classifier = Classifier {
            tables: Vec::new(),
            entries: vec![Rule::NEVER],
            free: 0,
            rules: 0,
            built_tables: 0,
        };
        while !pending.is_empty() {
            let lengths = if classifier.tables.len() < MOST_TABLES {
                best_table(&pending)
            } else {
                least(&pending)
            };
            let (fitting, rest): (Vec<_>, _) =
                pending.into_iter().partition(|rule| rule.lengths.fits(&lengths));
            classifier.add_table(lengths, &fitting);
            pending = rest;
        }
        classifier.tables.sort_by_key(|table| table.first);
        classifier.built_tables = classifier.tables.len();
        classifier
    }

    fn add_table(&mut self, lengths: Lengths, rules: &[Pending<A>]) {
        let slots = if lengths.0 == [0; 5] { 1 } else { slots_for(rules.len()) };
        let mut table = Table {
            key: TableKey::new(&lengths),
            lengths,
            first: rules.first().map_or(NONE, |rule| rule.position),
            rules: 0,
            slots: vec![0; slots],
        };
        // From the last to the first, so that each is put at the head of its slot.
        for pending in rules.iter().rev() {
            let slot = table.slot_of(pending.rule.hash(&table.key));
            let next = table.slots[slot];
            table.slots[slot] = self.entries.len() as u16;
            table.rules += 1;
            self.entries.push(Rule { position: pending.position, next, ..pending.rule });
        }
        self.rules += rules.len();
        self.tables.push(table);
    }

    /// Makes room in the list: what stands at `position` or behind it moves one place down.
    pub fn make_room(&mut self, position: u16) {
        let moves = |place: &mut u16| *place += u16::from(*place >= position && *place != NONE);
        self.entries.iter_mut().for_each(|entry| moves(&mut entry.position));
        self.tables.iter_mut().for_each(|table| moves(&mut table.first));
    }

    /// Closes a gap in the list: what stands behind `position` moves one place up.
    pub fn close_gap(&mut self, position: u16) {
        let moves = |place: &mut u16| *place -= u16::from(*place > position && *place != NONE);
        self.entries.iter_mut().for_each(|entry| moves(&mut entry.position));
        self.tables.iter_mut().for_each(|table| moves(&mut table.first));
    }

    /// Adds one rule. True if the tables have become so many that a build is worth its time.
    pub fn insert(&mut self, position: u16, tuple: &FiveTuple) -> bool {
        let Some(rule) = Rule::new(tuple) else { return false };
        let lengths = rule.lengths(tuple);
        let pending = Pending { rule, lengths, position };
        let length = |table: &Table<A>| {
            self.chain(table.slots[table.slot_of(rule.hash(&table.key))]).count()
        };
        let tables =
            self.tables.iter().enumerate().filter(|(_, table)| lengths.fits(&table.lengths));
        let shortest = tables.map(|(index, table)| (length(table), index)).min();
        match shortest.filter(|(length, _)| *length < LONG_SLOT || self.tables.len() >= MOST_TABLES)
        {
            Some((_, index)) => self.insert_into(index, pending),
            None => {
                let lengths = if self.tables.len() < MOST_TABLES {
                    coarse(&lengths)
                } else {
                    Lengths([0; 5])
                };
                self.add_table(lengths, &[pending]);
                self.tables.sort_by_key(|table| table.first);
            }
        }
        self.tables.len() > 2 * self.built_tables + 2
    }

    fn insert_into(&mut self, index: usize, Pending { rule, position, .. }: Pending<A>) {
        if usize::from(self.tables[index].rules) >= self.tables[index].slots.len() {
            self.grow(index);
        }
        let table = &mut self.tables[index];
        let entry = Rule { position, next: 0, ..rule };
        let new = match self.free {
            0 => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u16
            }
            free => {
                self.free = self.entries[usize::from(free)].next;
                self.entries[usize::from(free)] = entry;
                free
            }
        };
        let slot = table.slot_of(rule.hash(&table.key));
        link(&mut self.entries, &mut table.slots[slot], new);
        table.rules += 1;
        table.first = table.first.min(position);
        self.rules += 1;
        self.tables.sort_by_key(|table| table.first);
    }

    /// Twice as many slots and more for a table that has outgrown its own.
    fn grow(&mut self, index: usize) {
        let table = &mut self.tables[index];
        if table.lengths.0 == [0; 5] {
            return;
        }
        let slots = vec![0; slots_for(usize::from(table.rules))];
        for head in std::mem::replace(&mut table.slots, slots) {
            let mut at = head;
            while at != 0 {
                let entry = &mut self.entries[usize::from(at)];
                let next = std::mem::take(&mut entry.next);
                let slot = table.slot_of(entry.hash(&table.key));
                link(&mut self.entries, &mut table.slots[slot], at);
                at = next;
            }
        }
    }

    /// Takes the rule at a place of the list out; the list keeps its gap.
    pub fn remove(&mut self, position: u16, tuple: &FiveTuple) {
        let Some(rule) = Rule::<A>::new(tuple) else { return };
        for table in &mut self.tables {
            let slot = table.slot_of(rule.hash(&table.key));
            let mut before = 0;
            let mut at = table.slots[slot];
            while at != 0 && self.entries[usize::from(at)].position != position {
                before = at;
                at = self.entries[usize::from(at)].next;
            }
            if at == 0 {
                continue;
            }
            let next = self.entries[usize::from(at)].next;
            match before {
                0 => table.slots[slot] = next,
                before => self.entries[usize::from(before)].next = next,
            }
            table.rules -= 1;
            self.entries[usize::from(at)] = Rule { next: self.free, ..Rule::NEVER };
            self.free = at;
            self.rules -= 1;
            break;
        }
        self.tables.retain(|table| table.rules != 0);
    }
}

/// Puts an entry into a slot, in the order of the list.
fn link<A>(entries: &mut [Rule<A>], head: &mut u16, new: u16) {
    let position = entries[usize::from(new)].position;
    let mut before = 0;
    let mut at = *head;
    while at != 0 && entries[usize::from(at)].position < position {
        before = at;
        at = entries[usize::from(at)].next;
    }
    entries[usize::from(new)].next = at;
    match before {
        0 => *head = new,
        before => entries[usize::from(before)].next = new,
    }
}

fn slots_for(rules: usize) -> usize {
    (rules * SLOTS_PER_RULE).next_power_of_two().max(16)
}

/// What a table for one rule asks for: less than the rule fixes, so that more fit.
fn coarse(lengths: &Lengths) -> Lengths {
    let [source, destination, source_port, destination_port, protocol] = lengths.0;
    let down = |length: u8, step: u8| length - length % step;
    Lengths([
        down(source, 8),
        down(destination, 8),
        down(source_port, 8),
        down(destination_port, 8),
        protocol,
    ])
}

/// What all rules fix.
fn least<A>(rules: &[Pending<A>]) -> Lengths {
    let least = |dimension: usize| rules.iter().map(|rule| rule.lengths.0[dimension]).min();
    Lengths(std::array::from_fn(|dimension| least(dimension).unwrap_or(0)))
}

/// The table that takes most rules for what it costs.
///
/// A look into a table costs [`TABLE_COST`], and the rules of the slot one each: of a slot with
/// `n` rules that is `n` for each of them. Tried are the lengths that a part of the rules have,
/// in every dimension.
fn best_table<A: Address>(rules: &[Pending<A>]) -> Lengths {
    let step = rules.len().div_ceil(SAMPLE);
    let sample: Vec<_> = rules.iter().step_by(step).collect();
    let choices: [Vec<u8>; 5] = std::array::from_fn(|dimension| {
        let mut lengths: Vec<_> = sample.iter().map(|rule| rule.lengths.0[dimension]).collect();
        lengths.sort_unstable();
        let at = |part: usize| lengths[(lengths.len() - 1) * part / 8];
        let parts: &[usize] = if dimension < 2 { &[0, 1, 2, 4, 6, 8] } else { &[0, 2, 4] };
        let mut choices: Vec<_> = parts.iter().map(|&part| at(part)).chain([0]).collect();
        choices.sort_unstable();
        choices.dedup();
        choices
    });
    let mut slots = vec![0_u16; slots_for(rules.len())];
    let mut best = (0.0, least(rules));
    let mut lengths = [0; 5];
    each(&choices, &mut lengths, 0, &mut |lengths| {
        let lengths = Lengths(*lengths);
        let score = score(&sample, &lengths, &mut slots, step);
        if score > best.0 {
            best = (score, lengths);
        }
    });
    best.1
}

/// Every choice of lengths; longer ones later, so that among equals the shortest stays.
fn each(choices: &[Vec<u8>; 5], lengths: &mut [u8; 5], at: usize, body: &mut impl FnMut(&[u8; 5])) {
    let Some(here) = choices.get(at) else { return body(lengths) };
    for &length in here {
        lengths[at] = length;
        each(choices, lengths, at + 1, body);
    }
}

/// Rules that a table takes, divided by what a look into it costs.
fn score<A: Address>(
    sample: &[&Pending<A>],
    lengths: &Lengths,
    slots: &mut [u16],
    step: usize,
) -> f64 {
    slots.fill(0);
    let key = TableKey::new(lengths);
    let (mut taken, mut compared) = (0_u64, 0_u64);
    for pending in sample.iter().filter(|pending| pending.lengths.fits(lengths)) {
        let slot = &mut slots[pending.rule.hash(&key) as usize & (slots.len() - 1)];
        // Squares, one at a time.
        compared += 2 * u64::from(*slot) + 1;
        *slot += 1;
        taken += 1;
    }
    if taken == 0 {
        return 0.0;
    }
    // A part of the rules meets a part of the others.
    let others = (compared as f64 / taken as f64 - 1.0) * step as f64;
    taken as f64 / (TABLE_COST + 1.0 + others)
}
