//! A classifier as words, for a search without pointers.

use super::rule::FIELDS;
use super::{Address, Classifier, NONE, Rule};
use crate::image::{Image, pair, quarters};

/// Tables per classifier that fit in an image.
pub(crate) const TABLES: usize = 8;
/// Words of a table, and of a classifier.
const TABLE: usize = 8;
pub(crate) const CLASSIFIER: usize = 4 + TABLES * TABLE;
/// Words for the interval starts of all fields, in one page.
const BEGINS: usize = 256;

impl<A: Address> Classifier<A> {
    /// Appends tables, rules and vectors; returns their places: a classifier of the first page.
    pub(crate) fn write(&self, image: &mut Image) -> [u64; CLASSIFIER] {
        let mut head = [0; CLASSIFIER];
        let entries = image.align(A::RULE);
        self.entries.iter().for_each(|rule| write(image, rule));
        let (own, tables) = head.split_at_mut(CLASSIFIER - TABLES * TABLE);
        for (place, table) in tables.chunks_exact_mut(TABLE).zip(&self.tables) {
            let slots = image.place();
            for four in table.slots.chunks(4) {
                let slot = |n: usize| four.get(n).copied().unwrap_or_default();
                image.push(quarters([slot(0), slot(1), slot(2), slot(3)]));
            }
            place[..A::WORDS].copy_from_slice(table.key.address.words().as_ref());
            place[4] = table.key.rest;
            place[5] = pair(slots, table.slots.len() as u32 - 1);
            place[6] = pair(table.first.into(), 0);
        }
        let vectors = &self.vectors;
        let rules = image.align(A::RULE);
        vectors.rules().iter().for_each(|rule| write(image, rule));
        let (mut begins, mut bits, mut cut) = (0, 0, 0);
        if vectors.len() != 0 {
            begins = image.align(BEGINS);
            for field in 0..FIELDS {
                vectors.begins(field).iter().for_each(|&begin| image.push(begin));
                cut |= u32::from(vectors.is_cut(field)) << field;
            }
            bits = image.place();
            for field in 0..FIELDS {
                vectors.bits(field).for_each(|word| image.push(word));
            }
        }
        own[0] = pair(self.tables.len() as u32, entries);
        own[1] = pair(vectors.len() as u32, rules);
        own[2] = pair(vectors.words() as u32, cut);
        own[3] = pair(begins, bits);
        head
    }

    /// The same rules, without the leftovers of earlier changes.
    pub(crate) fn compacted(&self) -> Self {
        let mut rules = self.vectors.rules().to_vec();
        rules.extend(self.entries.iter().filter(|entry| entry.position != NONE));
        rules.sort_unstable_by_key(|rule| rule.position);
        Classifier::of_rules(rules, self.touched)
    }

    /// Most words for this number of rules, once compacted.
    pub(crate) const fn most_words(rules: usize) -> usize {
        let slots = 2 * rules + 4 * TABLES + TABLES;
        let bits = FIELDS * 64 * 4 * rules.div_ceil(256);
        (rules + 2) * A::RULE + slots + bits + 2 * BEGINS + A::RULE
    }
}

fn write<A: Address>(image: &mut Image, rule: &Rule<A>) {
    let mut words = [0; 16];
    words[..A::WORDS].copy_from_slice(rule.value.words().as_ref());
    words[A::WORDS..2 * A::WORDS].copy_from_slice(rule.mask.words().as_ref());
    words[2 * A::WORDS] = pair(rule.low, rule.span);
    words[2 * A::WORDS + 1] =
        quarters([rule.protocol, rule.protocol_mask, rule.position, rule.next]);
    words[..A::RULE].iter().for_each(|&word| image.push(word));
}
