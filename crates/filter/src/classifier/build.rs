//! Builds the tables for a whole set of rules, by cost.

use super::image::TABLES;
use super::rule::{FIELDS, Lengths, TableKey};
use super::vectors::Vectors;
use super::{Address, Classifier, Key, NONE, Rule, Table};
use crate::matching::FiveTuple;

/// Slots per rule of a table: three of four rules are then alone in their slot.
const SLOTS_PER_RULE: usize = 4;
/// Rules examined to choose a table; a larger set is sampled.
const SAMPLE: usize = 512;
/// Times that each length of a table is chosen, given the others.
const ROUNDS: usize = 2;
/// Most tables; beyond, vectors are cheaper.
const MOST_TABLES: usize = 8;
// An image has room for all of them.
const _: () = assert!(MOST_TABLES <= TABLES);
/// Cost of a look-up in a table, in comparisons with a rule.
const TABLE_COST: f64 = 3.0;
/// Cost of a look-up in the vectors; below, for each cut field, each halving step, and each word.
const VECTORS_COST: f64 = 0.5;
const FIELD_COST: f64 = 1.6;
const HALVING_COST: f64 = 0.5;
const WORD_COST: f64 = 0.04;
/// Cost of each rule compared without a match.
const COMPARED_COST: f64 = 2.0;
/// Rules in trial vectors that estimate the number of comparisons, and packets looked up in them.
const TRIAL: usize = 256;
const PROBES: usize = 32;

/// Candidate lengths of a table, for each part of the five-tuple.
type Choices = [Vec<u8>; 5];

impl<A: Address> Default for Classifier<A> {
    fn default() -> Self {
        Classifier::build(std::iter::empty())
    }
}

impl<A: Address> Classifier<A> {
    /// Compiles five-tuples with their places in the list, without those for the other address
    /// family only. Places ascend and are below [`NONE`].
    pub fn build<'t>(rules: impl IntoIterator<Item = (u16, &'t FiveTuple)>) -> Self {
        let of_family = |(position, tuple): (u16, &FiveTuple)| {
            Rule::new(tuple).map(|rule| Rule { position, ..rule })
        };
        Classifier::of_rules(rules.into_iter().filter_map(of_family).collect(), 0)
    }

    /// Compiles rules in the order of the list.
    pub(super) fn of_rules(rules: Vec<Rule<A>>, touched: u64) -> Self {
        let mut classifier = Classifier {
            tables: Vec::new(),
            entries: vec![Rule::NEVER],
            free: 0,
            vectors: Vectors::EMPTY,
            rules: rules.len(),
            built_vectors: 0,
            touched: touched + rules.len() as u64,
        };
        let (tables, rest) = choose(rules, &mut classifier.touched);
        for (lengths, rules) in tables {
            classifier.add_table(lengths, &rules);
        }
        classifier.tables.sort_by_key(|table| table.first);
        classifier.built_vectors = rest.len();
        classifier.vectors = Vectors::build(rest, &mut classifier.touched);
        classifier
    }

    fn add_table(&mut self, lengths: Lengths, rules: &[Rule<A>]) {
        let mut table = Table {
            key: TableKey::new(&lengths),
            lengths,
            first: rules.first().map_or(NONE, |rule| rule.position),
            rules: rules.len() as u16,
            slots: vec![0; slots_for(rules.len())],
        };
        // From last to first, since each is inserted at the head of its slot.
        for rule in rules.iter().rev() {
            let slot = table.slot_of(rule.hash(&table.key));
            let next = table.slots[slot];
            table.slots[slot] = self.entries.len() as u16;
            self.entries.push(Rule { next, ..*rule });
        }
        self.touched += rules.len() as u64;
        self.tables.push(table);
    }
}

pub(super) fn slots_for(rules: usize) -> usize {
    (rules * SLOTS_PER_RULE).next_power_of_two().max(16)
}

/// A table's lengths and its rules.
type Chosen<A> = (Lengths, Vec<Rule<A>>);

/// The tables for a set, and the rules left for the vectors.
///
/// Tables are chosen one after the other, each for the rules that the earlier ones left. Then
/// tables are dropped, from the last on, if they cost more than their rules in vectors.
fn choose<A: Address>(rules: Vec<Rule<A>>, touched: &mut u64) -> (Vec<Chosen<A>>, Vec<Rule<A>>) {
    let mut rest: Vec<_> = rules.into_iter().map(|rule| (rule.lengths(), rule)).collect();
    let mut tables = Vec::new();
    let mut spent = 0.0;
    let mut best = (f64::INFINITY, 0);
    loop {
        // Skipped if it cannot be better anyway.
        if spent + least_vectors_cost(rest.len()) < best.0 {
            let total = spent + vectors_cost(&rest, touched);
            if total < best.0 {
                best = (total, tables.len());
            }
        }
        // Also if no rules are left.
        if tables.len() == MOST_TABLES || spent >= best.0 {
            break;
        }
        let (lengths, cost) = best_table(&rest, touched);
        let (fitting, left): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|(rule, _)| rule.fits(&lengths));
        *touched += (fitting.len() + left.len()) as u64;
        spent += cost;
        tables.push((lengths, fitting.into_iter().map(|(_, rule)| rule).collect()));
        rest = left;
    }
    let given_up = tables.drain(best.1..).flat_map(|(_, rules): Chosen<A>| rules);
    let mut left: Vec<_> = given_up.chain(rest.into_iter().map(|(_, rule)| rule)).collect();
    left.sort_unstable_by_key(|rule| rule.position);
    (tables, left)
}

/// Least cost of vectors with `rules` rules.
fn least_vectors_cost(rules: usize) -> f64 {
    if rules == 0 { 0.0 } else { VECTORS_COST + FIELD_COST }
}

/// Cost of a look-up in the vectors of these rules, estimated with a sample.
///
/// The trial packets are of one rule, of one rule with the source of another, and with the ports of
/// a third, so they nearly match. If a third rule matches, the whole set would match sooner.
fn vectors_cost<A: Address>(rules: &[(Lengths, Rule<A>)], touched: &mut u64) -> f64 {
    if rules.is_empty() {
        return 0.0;
    }
    let step = rules.len().div_ceil(TRIAL);
    let part: Vec<_> = rules.iter().step_by(step).map(|(_, rule)| *rule).collect();
    let trial = Vectors::trial(part, touched);
    let part = trial.rules();
    let mut compared = 0;
    for probe in 0..PROBES {
        let at = |n: usize| &part[n % part.len()];
        let rule = at(probe * part.len() / PROBES);
        let (other, third) = (at(probe * 7919 + 1), at(probe * 6007 + 3));
        let mixed = Key { ports: third.inside(third).ports, ..rule.inside(other) };
        for key in [rule.inside(rule), rule.inside(other), mixed] {
            let (in_vain, first) = trial.compared(&key);
            let own = [rule.position, other.position, third.position];
            let by_another = first.is_some_and(|first| !own.contains(&first));
            compared += in_vain * if by_another { 1 } else { step as u64 };
            *touched += in_vain + 1;
        }
    }
    let words = rules.len() as f64 / 64.0;
    let cut = (0..FIELDS).filter(|&field| trial.is_cut(field));
    let of_field =
        |field| FIELD_COST + HALVING_COST * f64::from(trial.halvings(field)) + WORD_COST * words;
    let fields: f64 = cut.map(of_field).sum();
    VECTORS_COST + fields + COMPARED_COST * compared as f64 / (3 * PROBES) as f64
}

struct Best {
    lengths: Lengths,
    score: f64,
    cost: f64,
}

/// The table that takes the most rules for its cost, and that cost.
///
/// A look-up in a table costs [`TABLE_COST`] plus one per rule of the slot: a slot with `n` rules
/// costs `n` for each of them. The candidates are the lengths of a sample of the rules: both
/// addresses' together, then one part of the five-tuple after another; twice.
fn best_table<A: Address>(rules: &[(Lengths, Rule<A>)], touched: &mut u64) -> (Lengths, f64) {
    let step = rules.len().div_ceil(SAMPLE);
    let sample: Vec<_> = rules.iter().step_by(step).collect();
    let choices = choices(&sample);
    let mut slots = vec![0_u16; slots_for(sample.len())];
    let shortest = Lengths(std::array::from_fn(|part| choices[part][0]));
    let mut best = Best { lengths: shortest, score: 0.0, cost: f64::INFINITY };
    let mut attempt = |lengths: Lengths, best: &mut Best| {
        *touched += sample.len() as u64;
        let (score, cost) = score(&sample, &lengths, &mut slots, step);
        if score > best.score {
            *best = Best { lengths, score, cost };
        }
    };
    for _ in 0..ROUNDS {
        let before = best.lengths;
        // The addresses together: many rules have only one of them.
        for &source in &choices[0] {
            for &destination in &choices[1] {
                let [_, _, a, b, protocol] = best.lengths.0;
                attempt(Lengths([source, destination, a, b, protocol]), &mut best);
            }
        }
        for (part, choices) in choices.iter().enumerate().skip(2) {
            for &length in choices {
                let mut lengths = best.lengths;
                lengths.0[part] = length;
                attempt(lengths, &mut best);
            }
        }
        if best.lengths == before {
            break;
        }
    }
    (best.lengths, best.cost)
}

/// The lengths to try, short ones first: the lengths of the sampled rules, and zero.
fn choices<A>(sample: &[&(Lengths, Rule<A>)]) -> Choices {
    std::array::from_fn(|dimension| {
        let mut lengths: Vec<_> = sample.iter().map(|(lengths, _)| lengths.0[dimension]).collect();
        lengths.sort_unstable();
        let at = |part: usize| lengths[(lengths.len() - 1) * part / 8];
        let parts: &[usize] = if dimension < 2 { &[0, 1, 2, 4, 6, 8] } else { &[0, 2, 4] };
        let mut choices: Vec<_> = parts.iter().map(|&part| at(part)).chain([0]).collect();
        choices.sort_unstable();
        choices.dedup();
        choices
    })
}

/// Number of rules that a table takes, divided by the cost of a look-up; and that cost.
fn score<A: Address>(
    sample: &[&(Lengths, Rule<A>)],
    lengths: &Lengths,
    slots: &mut [u16],
    step: usize,
) -> (f64, f64) {
    slots.fill(0);
    let key = TableKey::new(lengths);
    let (mut taken, mut compared) = (0_u64, 0_u64);
    for (_, rule) in sample.iter().filter(|(rule, _)| rule.fits(lengths)) {
        let slot = &mut slots[rule.hash(&key) as usize & (slots.len() - 1)];
        // Squares, one at a time.
        compared += 2 * u64::from(*slot) + 1;
        *slot += 1;
        taken += 1;
    }
    if taken == 0 {
        return (0.0, f64::INFINITY);
    }
    // The sample represents all rules.
    let others = (compared as f64 / taken as f64 - 1.0) * step as f64;
    let cost = TABLE_COST + 1.0 + others;
    (taken as f64 / cost, cost)
}
