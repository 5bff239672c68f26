//! Rules that no hash can tell apart: a bit vector for each interval of each field.
//!
//! Addresses and ports are cut into few intervals each, where rules begin and end. An interval
//! has one bit for each rule, set if the rule meets it. The vectors of a packet's intervals,
//! anded, leave the few rules that can match, in the order of the list; those are compared.
//!
//! Guarantees: the answer is that of the rules read from the top, wherever the cuts are; they
//! only decide how many rules are compared. A rule is inserted or removed by moving the bits
//! behind it, at most [`FIELDS`] times [`INTERVALS`] vectors of a bit per rule.
//!
//! Source: Lakshman, Stiliadis, "High-Speed Policy-based Packet Forwarding" (1998). What is new
//! is that the intervals are few, and so the vectors small enough to copy and to change.

use super::rule::FIELDS;
use super::{Address, BURST, Key, Rule};

/// Intervals of a field.
const INTERVALS: usize = 64;
/// Rules whose ends are looked at to place the cuts; of more, a part stands for all.
const SAMPLE: usize = 1024;
/// Words of all vectors are in groups, so that they are anded a group at a time.
const GROUP: usize = 4;

/// One vector for each interval of one field.
#[derive(Clone, Debug)]
struct Field {
    /// Where each interval but the first begins; the last ones may be empty. Ends with no begin.
    begins: [u64; INTERVALS],
    /// Whether it has more than one interval.
    is_cut: bool,
    /// An interval's vector after the other.
    bits: Vec<[u64; GROUP]>,
}

/// Rules in the order of the list, and their vectors.
#[derive(Clone, Debug)]
pub(super) struct Vectors<A> {
    rules: Vec<Rule<A>>,
    fields: [Field; FIELDS],
    /// Groups of each vector.
    groups: usize,
}

impl Field {
    /// The interval of a value: how many begin at it or below. No branch.
    #[inline(always)]
    fn interval(&self, value: u64) -> u8 {
        let mut below = 0;
        if !self.is_cut {
            return 0;
        }
        for step in [32, 16, 8, 4, 2, 1] {
            let begins = self.begins[(below + step - 1) % INTERVALS] <= value;
            below += step * usize::from(begins);
        }
        below as u8
    }

    /// Changes a rule's bit in an interval, if there is such an interval.
    fn flip(&mut self, interval: usize, index: usize, groups: usize) {
        if interval < INTERVALS {
            let group = &mut self.bits[interval * groups + index / (64 * GROUP)];
            group[index / 64 % GROUP] ^= 1 << (index % 64);
        }
    }
}

impl<A: Address> Vectors<A> {
    pub(super) const EMPTY: Self = Vectors {
        rules: Vec::new(),
        fields: [const { Field { begins: [u64::MAX; INTERVALS], is_cut: false, bits: Vec::new() } };
            FIELDS],
        groups: 0,
    };

    /// Of rules in the order of the list. Adds the ends looked at and the words written to
    /// `touched`.
    pub(super) fn build(rules: Vec<Rule<A>>, touched: &mut u64) -> Self {
        let groups = groups_for(rules.len());
        let step = rules.len().div_ceil(SAMPLE).max(1);
        let fields = std::array::from_fn(|number| {
            let ends = rules.iter().step_by(step).map(|rule| rule.range(number));
            let begins = cuts(ends.flat_map(|(low, high)| [low, high.saturating_add(1)]).collect());
            let mut field = Field {
                begins,
                is_cut: begins[0] != u64::MAX,
                bits: vec![[0; GROUP]; INTERVALS * groups],
            };
            // Where a rule begins, and behind its end, its bit changes.
            for (index, rule) in rules.iter().enumerate() {
                let (low, high) = rule.range(number);
                field.flip(field.interval(low).into(), index, groups);
                field.flip(usize::from(field.interval(high)) + 1, index, groups);
            }
            for at in groups..field.bits.len() {
                let before = field.bits[at - groups];
                field.bits[at].iter_mut().zip(before).for_each(|(word, before)| *word ^= before);
            }
            field
        });
        *touched += (FIELDS * (4 * rules.len() + INTERVALS * groups * GROUP)) as u64;
        Vectors { rules, fields, groups }
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    pub(super) fn rules(&self) -> &[Rule<A>] {
        &self.rules
    }

    pub(super) fn rules_mut(&mut self) -> &mut [Rule<A>] {
        &mut self.rules
    }

    /// Words of one vector.
    pub(super) fn words(&self) -> usize {
        self.groups * GROUP
    }

    /// Where the intervals of a field begin, the first left out.
    pub(super) fn begins(&self, field: usize) -> &[u64; INTERVALS] {
        &self.fields[field].begins
    }

    pub(super) fn is_cut(&self, field: usize) -> bool {
        self.fields[field].is_cut
    }

    /// The vectors of a field, an interval's after the other.
    pub(super) fn bits(&self, field: usize) -> &[u64] {
        self.fields[field].bits.as_flattened()
    }

    /// Sets a rule's bits.
    fn mark(&mut self, index: usize) {
        let rule = &self.rules[index];
        for (number, field) in self.fields.iter_mut().enumerate() {
            let (low, high) = rule.range(number);
            for interval in field.interval(low)..=field.interval(high) {
                field.flip(interval.into(), index, self.groups);
            }
        }
    }

    /// Adds a rule where it belongs. Returns the entries touched: rules and words moved.
    pub(super) fn insert(&mut self, rule: Rule<A>) -> u64 {
        let index = self.rules.partition_point(|other| other.position < rule.position);
        self.rules.insert(index, rule);
        let mut touched = (self.rules.len() - index) as u64;
        if groups_for(self.rules.len()) > self.groups {
            touched += self.widen(groups_for(self.rules.len() + self.rules.len() / 8));
        }
        touched += self.each_vector(index, |words, bit| {
            let below = (1 << bit) - 1;
            let mut carry = words[0] >> 63;
            words[0] = words[0] & below | (words[0] & !below) << 1;
            for word in &mut words[1..] {
                (carry, *word) = (*word >> 63, *word << 1 | carry);
            }
        });
        self.mark(index);
        touched + (FIELDS * INTERVALS) as u64
    }

    /// Takes a rule out; false if it is not here. Adds the entries touched.
    pub(super) fn remove(&mut self, position: u16, touched: &mut u64) -> bool {
        let Ok(index) = self.rules.binary_search_by_key(&position, |rule| rule.position) else {
            return false;
        };
        self.rules.remove(index);
        *touched += (self.rules.len() - index) as u64;
        *touched += self.each_vector(index, |words, bit| {
            let below = (1 << bit) - 1;
            let mut carry = 0;
            for word in words[1..].iter_mut().rev() {
                (carry, *word) = (*word << 63, *word >> 1 | carry);
            }
            words[0] = words[0] & below | (words[0] >> 1 | carry) & !below;
        });
        true
    }

    /// Calls with the words of every vector from a rule's on, and its bit in the first; returns
    /// how many words that were.
    fn each_vector(&mut self, index: usize, body: impl Fn(&mut [u64], usize)) -> u64 {
        let mut count = 0;
        for field in &mut self.fields {
            for vector in field.bits.chunks_exact_mut(self.groups.max(1)) {
                let words = &mut vector.as_flattened_mut()[index / 64..];
                body(words, index % 64);
                count += words.len() as u64;
            }
        }
        count
    }

    /// Makes all vectors longer; returns the words there are then.
    fn widen(&mut self, groups: usize) -> u64 {
        for field in &mut self.fields {
            let old = std::mem::replace(&mut field.bits, vec![[0; GROUP]; INTERVALS * groups]);
            for interval in 0..INTERVALS {
                field.bits[interval * groups..][..self.groups]
                    .copy_from_slice(&old[interval * self.groups..][..self.groups]);
            }
        }
        self.groups = groups;
        (FIELDS * INTERVALS * groups * GROUP) as u64
    }

    /// Rules that a key is compared with in vain, and the place of the one that matches then.
    pub(super) fn compared(&self, key: &Key<A>) -> (u64, Option<u16>) {
        let (mut in_vain, mut found) = (0, None);
        self.each_candidate(self.intervals(key), 0, |rule| {
            found = rule.matches(key).then_some(rule.position);
            in_vain += u64::from(found.is_none());
            found.is_some()
        });
        (in_vain, found)
    }

    /// Of each key's place the better one: what is there, or that of the first rule that matches.
    #[inline]
    pub(super) fn search(&self, keys: &[Key<A>], places: &mut [u16; BURST]) {
        // First all intervals, without a branch that depends on a packet.
        let mut intervals = [[0; FIELDS]; BURST];
        for (number, field) in self.fields.iter().enumerate() {
            for (intervals, key) in intervals.iter_mut().zip(keys) {
                intervals[number] = field.interval(key.values()[number]);
            }
        }
        for ((key, intervals), place) in keys.iter().zip(intervals).zip(places) {
            *place = self.better(key, intervals, 0, *place);
        }
    }

    /// The place of the first rule from `from` on that matches, if it stands before `best`; else
    /// `best`.
    pub(super) fn first(&self, key: &Key<A>, from: u16, best: u16) -> u16 {
        if self.rules.is_empty() { best } else { self.better(key, self.intervals(key), from, best) }
    }

    #[inline(always)]
    fn better(&self, key: &Key<A>, intervals: [u8; FIELDS], from: u16, best: u16) -> u16 {
        let mut better = best;
        // Rules before it may be in the same group still.
        let start = match from {
            0 => 0,
            from => self.rules.partition_point(|rule| rule.position < from) / (64 * GROUP),
        };
        self.each_candidate(intervals, start, |rule| {
            // In the order of the list: what comes later cannot be better.
            let ends = rule.position >= best;
            let matches = !ends && rule.position >= from && rule.matches(key);
            if matches {
                better = rule.position;
            }
            ends | matches
        });
        better
    }

    #[inline(always)]
    fn intervals(&self, key: &Key<A>) -> [u8; FIELDS] {
        let values = key.values();
        std::array::from_fn(|field| self.fields[field].interval(values[field]))
    }

    /// Calls with the rules that meet all intervals, in the order of the list, from a group of
    /// words on until told to stop.
    #[inline(always)]
    fn each_candidate(
        &self,
        intervals: [u8; FIELDS],
        start: usize,
        mut stops: impl FnMut(&Rule<A>) -> bool,
    ) {
        let [a, b, c, d]: [&[[u64; GROUP]]; FIELDS] = std::array::from_fn(|field| {
            &self.fields[field].bits[usize::from(intervals[field]) * self.groups..][..self.groups]
        });
        let groups = a.iter().zip(b).zip(c).zip(d).enumerate();
        for (group, (((a, b), c), d)) in groups.skip(start) {
            let words: [u64; GROUP] = std::array::from_fn(|n| a[n] & b[n] & c[n] & d[n]);
            if words == [0; GROUP] {
                continue;
            }
            for (word, mut bits) in words.into_iter().enumerate() {
                while bits != 0 {
                    let index = (group * GROUP + word) * 64 + bits.trailing_zeros() as usize;
                    if self.rules.get(index).is_none_or(&mut stops) {
                        return;
                    }
                    bits &= bits - 1;
                }
            }
        }
    }
}

fn groups_for(rules: usize) -> usize {
    rules.div_ceil(64 * GROUP)
}

/// Where to cut: everywhere, or so that as many rules begin or end in each interval.
fn cuts(mut ends: Vec<u64>) -> [u64; INTERVALS] {
    let mut begins = [u64::MAX; INTERVALS];
    let most = INTERVALS - 1;
    ends.retain(|&end| end != 0);
    ends.sort_unstable();
    let mut different = ends.clone();
    different.dedup();
    if different.len() > most {
        let part = |n: usize| ends[(n + 1) * ends.len() / INTERVALS];
        different = (0..most).map(part).collect();
        different.dedup();
    }
    begins[..different.len()].copy_from_slice(&different);
    begins
}
