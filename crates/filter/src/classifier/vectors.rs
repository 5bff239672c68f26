//! Rules that hash tables cannot separate: a bit vector for each interval of each field.
//!
//! Addresses and ports are cut into a few intervals each, where rules begin and end. An interval
//! has one bit per rule, set if the rule overlaps it. The AND of the vectors of a packet's
//! intervals leaves the few rules that can match, in the order of the list; those are compared. The
//! search for a value's interval starts at the one in which its leading 16 bits begin; a port is
//! found at once. Where only ports separate rules, there are also vectors for each class of
//! protocols.
//!
//! Guarantees: the answer is that of the rules read from the top, for any cuts; cuts only
//! determine how many rules are compared. Inserting or removing a rule moves the later bits of
//! [`INTERVALS`] vectors for each field, and again for each class of protocols but one
//! ([`CLASSES`]). Cuts and classes change only when all rules are compiled again.
//!
//! Source: Lakshman, Stiliadis, "High-Speed Policy-based Packet Forwarding" (1998). New here: the
//! intervals are few, so the vectors are small enough to copy and change.

use super::rule::FIELDS;
use super::{Address, BURST, Key, Rule};
use std::ops::Range;
use std::sync::Arc;

/// Intervals of a field.
const INTERVALS: usize = 64;
/// Bits of the values of each field.
const BITS: [u32; FIELDS] = [64, 64, 16, 16];
/// Rules whose ends are examined to place the cuts; a larger set is sampled.
const SAMPLE: usize = 1024;
/// Words per group: vectors are ANDed a group at a time.
const GROUP: usize = 4;

/// Most classes of protocols: one for each of the most frequent protocols, and one for the rest.
const CLASSES: usize = 4;
/// The first field of ports.
const BY_PORTS: usize = 2;
/// The field that may have vectors for each class.
const BY_CLASS: usize = FIELDS - 1;

/// Parts of a field, by the leading bits of its values.
const PARTS: usize = 1 << 16;
/// Halvings that find an interval among all.
const ALL: u32 = INTERVALS.ilog2();

/// One vector for each interval of one field.
#[derive(Clone, Debug)]
struct Field {
    /// Start of each interval except the first; the last ones may be empty. There is no start at
    /// the end.
    begins: [u64; INTERVALS],
    /// Whether it has more than one interval, or class.
    is_cut: bool,
    /// Halving steps from the interval in which the value's part begins: none for ports.
    halvings: u32,
    /// The interval in which each part begins, if packets are looked up.
    parts: Option<Arc<[u8; PARTS]>>,
    /// Classes of protocols that it has vectors for.
    classes: usize,
    /// The vectors of all intervals, class by class.
    bits: Vec<[u64; GROUP]>,
}

/// Rules in the order of the list, and their vectors.
#[derive(Clone, Debug)]
pub(super) struct Vectors<A> {
    rules: Vec<Rule<A>>,
    fields: [Field; FIELDS],
    /// Groups of each vector.
    groups: usize,
    /// The class of each protocol.
    protocols: [u8; 256],
    /// The cut fields and their number; the others separate no rules. One field if none is cut.
    cut: ([u8; FIELDS], usize),
}

impl Field {
    /// One interval, of no rules.
    const NONE: Self = Field {
        begins: [u64::MAX; INTERVALS],
        is_cut: false,
        parts: None,
        halvings: 0,
        classes: 1,
        bits: Vec::new(),
    };

    /// A field of `bits` wide values with intervals that begin at `begins`, for `classes` classes.
    fn new(begins: [u64; INTERVALS], bits: u32, groups: usize, classes: usize) -> Self {
        let is_cut = begins[0] != u64::MAX || classes > 1;
        let mut field = Field { begins, is_cut, classes, ..Field::NONE };
        field.bits = vec![[0; GROUP]; classes * INTERVALS * groups];
        let (mut part, mut here, mut most) = (u64::MAX, 0_usize, 0);
        for (begins_in, begins_with_it) in field.places(bits) {
            if !begins_with_it {
                here = if begins_in == part { here + 1 } else { 1 };
                (part, most) = (begins_in, most.max(here));
            }
        }
        field.halvings = (most + 1).next_power_of_two().ilog2();
        field
    }

    /// The part in which each interval except the first begins, and whether the part begins there.
    fn places(&self, bits: u32) -> impl Iterator<Item = (u64, bool)> {
        let shift = bits - PARTS.ilog2();
        let begins = self.begins.iter().take_while(|&&begin| begin != u64::MAX);
        begins.map(move |begin| (begin >> shift, begin & ((1 << shift) - 1) == 0))
    }

    /// The interval in which each part begins, for values of `bits` bits.
    fn index(&self, bits: u32) -> Arc<[u8; PARTS]> {
        // Keeps halving among the intervals.
        let last = (INTERVALS - (1 << self.halvings)) as u8;
        let mut parts = Box::new([0; PARTS]);
        let mut filled = 0;
        let mut count = 0;
        for (part, begins_with_it) in self.places(bits) {
            let next = part + u64::from(!begins_with_it);
            let next = usize::try_from(next).map_or(PARTS, |next| next.min(PARTS));
            parts[filled..next].fill(last.min(count));
            (filled, count) = (next, count + 1);
        }
        parts[filled..].fill(last.min(count));
        parts.into()
    }

    /// The interval of a value, by a number of halvings from one on: counts the starts at or below
    /// it. No branch.
    #[inline(always)]
    fn halve<const HALVINGS: u32>(&self, from: u8, value: u64) -> usize {
        let mut below = usize::from(from);
        for halving in (0..HALVINGS).rev() {
            let begins = self.begins[(below + (1 << halving) - 1) % INTERVALS] <= value;
            below += usize::from(begins) << halving;
        }
        below
    }

    /// The interval of a value; for the highest value the first possible one, since no empty
    /// interval begins after it.
    fn interval(&self, value: u64) -> usize {
        if value == u64::MAX {
            return self.begins.partition_point(|&begin| begin != u64::MAX);
        }
        if self.is_cut { self.halve::<ALL>(0, value) } else { 0 }
    }

    /// The intervals that overlap a rule's range.
    fn intervals(&self, (low, high): (u64, u64)) -> Range<usize> {
        let end = if high == u64::MAX { INTERVALS } else { self.interval(high) + 1 };
        self.interval(low)..end
    }

    /// The classes of a rule, given the class of each protocol.
    fn classes_of<A: Address>(&self, rule: &Rule<A>, protocols: &[u8; 256]) -> Range<usize> {
        match rule.asked_protocol() {
            Some(protocol) if self.classes > 1 => {
                let class = usize::from(protocols[usize::from(protocol)]);
                class..class + 1
            }
            _ => 0..self.classes,
        }
    }

    /// Changes a rule's bit in an interval, if the interval exists.
    fn flip(&mut self, class: usize, interval: usize, index: usize, groups: usize) {
        if interval < INTERVALS {
            let vector = class * INTERVALS + interval;
            let group = &mut self.bits[vector * groups + index / (64 * GROUP)];
            group[index / 64 % GROUP] ^= 1 << (index % 64);
        }
    }
}

impl<A: Address> Vectors<A> {
    pub(super) const EMPTY: Self = Vectors {
        rules: Vec::new(),
        fields: [const { Field::NONE }; FIELDS],
        groups: 0,
        protocols: [0; 256],
        cut: ([0; FIELDS], 1),
    };

    /// From rules in the order of the list, for looking up packets. Adds the ends read and the
    /// words written to `touched`.
    pub(super) fn build(rules: Vec<Rule<A>>, touched: &mut u64) -> Self {
        let mut vectors = Self::trial(rules, touched);
        let in_parts = |(field, _): &(&mut Field, u32)| field.begins[0] != u64::MAX;
        for (field, bits) in vectors.fields.iter_mut().zip(BITS).filter(in_parts) {
            field.parts = Some(field.index(bits));
            *touched += (PARTS / size_of::<u64>()) as u64;
        }
        vectors
    }

    /// The same, to estimate the cost.
    pub(super) fn trial(rules: Vec<Rule<A>>, touched: &mut u64) -> Self {
        let groups = groups_for(rules.len());
        let step = rules.len().div_ceil(SAMPLE).max(1);
        let begins: [_; FIELDS] = std::array::from_fn(|number| {
            let ranges = rules.iter().step_by(step).map(|rule| rule.range(number));
            // No interval begins after the highest value: a rule without ports cuts nothing.
            let highest = u64::MAX >> (u64::BITS - BITS[number]);
            let behind = |high| (high < highest).then(|| high + 1);
            cuts(ranges.flat_map(|(low, high)| [Some(low), behind(high)]).flatten().collect())
        });
        // If addresses also separate rules, few are compared anyway.
        let by_class = begins[..BY_PORTS].iter().all(|begins| begins[0] == u64::MAX);
        let (protocols, classes) = if by_class { classes(&rules) } else { ([0; 256], 1) };
        let fields: [Field; FIELDS] = std::array::from_fn(|number| {
            let classes = if number == BY_CLASS { classes } else { 1 };
            let mut field = Field::new(begins[number], BITS[number], groups, classes);
            // A rule's bit changes at its start and after its end.
            for (index, rule) in rules.iter().enumerate() {
                let met = field.intervals(rule.range(number));
                for class in field.classes_of(rule, &protocols) {
                    field.flip(class, met.start, index, groups);
                    field.flip(class, met.end, index, groups);
                }
            }
            for class in field.bits.chunks_exact_mut((INTERVALS * groups).max(1)) {
                for at in groups..class.len() {
                    let before = class[at - groups];
                    class[at].iter_mut().zip(before).for_each(|(word, before)| *word ^= before);
                }
            }
            field
        });
        let vectors = (FIELDS + classes - 1) * INTERVALS;
        *touched += (FIELDS * 4 * rules.len() + vectors * groups * GROUP) as u64;
        let mut cut = ([0; FIELDS], 0);
        for number in (0..FIELDS).filter(|&number| fields[number].is_cut) {
            cut.0[cut.1] = number as u8;
            cut.1 += 1;
        }
        cut.1 = cut.1.max(1);
        Vectors { rules, fields, groups, protocols, cut }
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

    /// Start of each interval of a field except the first.
    pub(super) fn begins(&self, field: usize) -> &[u64; INTERVALS] {
        &self.fields[field].begins
    }

    /// Halving steps of a look-up in a field.
    pub(super) fn halvings(&self, field: usize) -> u32 {
        self.fields[field].halvings
    }

    pub(super) fn is_cut(&self, field: usize) -> bool {
        self.fields[field].is_cut
    }

    /// Whether there are vectors for each class of protocols.
    pub(super) fn has_classes(&self) -> bool {
        self.fields[BY_CLASS].classes > 1
    }

    /// The words of a field's vectors for all protocols, interval by interval.
    pub(super) fn bits(&self, field: usize) -> impl Iterator<Item = u64> {
        let words = self.fields[field].bits.as_flattened();
        let class = words.len() / self.fields[field].classes;
        (0..class).map(move |at| words[at..].iter().step_by(class).fold(0, |all, word| all | word))
    }

    /// Sets a rule's bits.
    fn mark(&mut self, index: usize) {
        let rule = &self.rules[index];
        for (number, field) in self.fields.iter_mut().enumerate() {
            let met = field.intervals(rule.range(number));
            for class in field.classes_of(rule, &self.protocols) {
                met.clone().for_each(|interval| field.flip(class, interval, index, self.groups));
            }
        }
    }

    /// Inserts a rule. Returns the work: rules and words moved.
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

    /// Removes a rule; false if it is not here. Adds the work.
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

    /// Calls with the words of every vector from a rule's on, and its bit in the first; returns the
    /// number of words.
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

    /// Makes all vectors longer; returns the resulting number of words.
    fn widen(&mut self, groups: usize) -> u64 {
        let mut count = 0;
        for field in &mut self.fields {
            let vectors = field.classes * INTERVALS;
            count += vectors;
            let old = std::mem::replace(&mut field.bits, vec![[0; GROUP]; vectors * groups]);
            for vector in 0..vectors {
                field.bits[vector * groups..][..self.groups]
                    .copy_from_slice(&old[vector * self.groups..][..self.groups]);
            }
        }
        self.groups = groups;
        (count * groups * GROUP) as u64
    }

    /// Number of rules that a key is compared with before the match, and the place of the match.
    pub(super) fn compared(&self, key: &Key<A>) -> (u64, Option<u16>) {
        let (mut in_vain, mut found) = (0, None);
        let (fields, starts) = self.all(key);
        self.each_candidate(&fields, &starts, 0, |rule| {
            found = rule.matches(key).then_some(rule.position);
            in_vain += u64::from(found.is_none());
            found.is_some()
        });
        (in_vain, found)
    }

    /// The better place for each key: the existing one, or the place of the first matching rule.
    #[inline]
    pub(super) fn search(&self, keys: &[Key<A>], places: &mut [u16; BURST]) {
        match self.cut.0[..self.cut.1] {
            [a] => self.search_by([a], keys, places),
            [a, b] => self.search_by([a, b], keys, places),
            [a, b, c] => self.search_by([a, b, c], keys, places),
            _ => self.search_by([0, 1, 2, 3], keys, places),
        }
    }

    /// Searches by these fields.
    fn search_by<const CUT: usize>(
        &self,
        cut: [u8; CUT],
        keys: &[Key<A>],
        places: &mut [u16; BURST],
    ) {
        // First all vectors, without a branch that depends on a packet.
        let mut starts = [[0; BURST]; CUT];
        let fields = cut.map(|number| &self.fields[usize::from(number)]);
        for ((field, number), starts) in fields.iter().zip(cut).zip(&mut starts) {
            match number {
                0 => self.starts::<0, false>(field, keys, starts),
                1 => self.starts::<1, false>(field, keys, starts),
                2 => self.starts::<2, false>(field, keys, starts),
                _ if field.classes == 1 => self.starts::<3, false>(field, keys, starts),
                _ => self.starts::<3, true>(field, keys, starts),
            }
        }
        for (index, (key, place)) in keys.iter().zip(places).enumerate() {
            let starts = starts.each_ref().map(|starts| starts[index % BURST]);
            *place = self.better(key, &fields, &starts, 0, *place);
        }
    }

    /// Start of each key's vectors in a field.
    #[inline(never)]
    fn starts<const FIELD: usize, const CLASS: bool>(
        &self,
        field: &Field,
        keys: &[Key<A>],
        starts: &mut [u32; BURST],
    ) {
        match (field.parts.as_deref(), field.halvings) {
            (parts, 0) => self.starts_by::<FIELD, CLASS, 0>(field, parts, keys, starts),
            (parts @ Some(_), 1) => self.starts_by::<FIELD, CLASS, 1>(field, parts, keys, starts),
            (parts @ Some(_), 2) => self.starts_by::<FIELD, CLASS, 2>(field, parts, keys, starts),
            (parts @ Some(_), 3) => self.starts_by::<FIELD, CLASS, 3>(field, parts, keys, starts),
            (parts @ Some(_), 4) => self.starts_by::<FIELD, CLASS, 4>(field, parts, keys, starts),
            (parts @ Some(_), 5) => self.starts_by::<FIELD, CLASS, 5>(field, parts, keys, starts),
            _ => self.starts_by::<FIELD, CLASS, ALL>(field, None, keys, starts),
        }
    }

    #[inline(always)]
    fn starts_by<const FIELD: usize, const CLASS: bool, const HALVINGS: u32>(
        &self,
        field: &Field,
        parts: Option<&[u8; PARTS]>,
        keys: &[Key<A>],
        starts: &mut [u32; BURST],
    ) {
        let shift = BITS[FIELD] - PARTS.ilog2();
        for (key, start) in keys.iter().zip(starts) {
            let value = key.values()[FIELD];
            let from = parts.map_or(0, |parts| parts[(value >> shift) as usize % PARTS]);
            let of_class = if CLASS { self.class_start(key) } else { 0 };
            *start = (field.halve::<HALVINGS>(from, value) * self.groups) as u32 + of_class;
        }
    }

    /// Start of the vectors of a packet's class.
    #[inline(always)]
    fn class_start(&self, key: &Key<A>) -> u32 {
        let class = usize::from(self.protocols[usize::from(key.protocol as u8)]);
        (class * INTERVALS * self.groups) as u32
    }

    /// The place of the first matching rule from `from` on, if it is before `best`; otherwise
    /// `best`.
    pub(super) fn first(&self, key: &Key<A>, from: u16, best: u16) -> u16 {
        if self.rules.is_empty() {
            return best;
        }
        let (fields, starts) = self.all(key);
        self.better(key, &fields, &starts, from, best)
    }

    #[inline(always)]
    fn better<const CUT: usize>(
        &self,
        key: &Key<A>,
        fields: &[&Field; CUT],
        starts: &[u32; CUT],
        from: u16,
        best: u16,
    ) -> u16 {
        let mut better = best;
        // Earlier rules may still be in the same group.
        let group = match from {
            0 => 0,
            from => self.rules.partition_point(|rule| rule.position < from) / (64 * GROUP),
        };
        self.each_candidate(fields, starts, group, |rule| {
            // In the order of the list: later rules cannot be better.
            let ends = rule.position >= best;
            let matches = !ends && rule.position >= from && rule.matches(key);
            if matches {
                better = rule.position;
            }
            ends | matches
        });
        better
    }

    /// All fields, and where a key's vectors start in them.
    fn all(&self, key: &Key<A>) -> ([&Field; FIELDS], [u32; FIELDS]) {
        let fields = self.fields.each_ref();
        let values = key.values();
        let start = |number: usize| (fields[number].interval(values[number]) * self.groups) as u32;
        let mut starts = std::array::from_fn(start);
        starts[BY_CLASS] += self.class_start(key);
        (fields, starts)
    }

    /// Calls with the rules common to the vectors at `starts`, in the order of the list, from a
    /// group of words on until `body` stops it.
    #[inline(always)]
    fn each_candidate<const CUT: usize>(
        &self,
        fields: &[&Field; CUT],
        starts: &[u32; CUT],
        from: usize,
        mut stops: impl FnMut(&Rule<A>) -> bool,
    ) {
        for group in from..self.groups {
            let mut words = [u64::MAX; GROUP];
            for (field, &start) in fields.iter().zip(starts) {
                let vector = &field.bits[start as usize + group];
                words.iter_mut().zip(vector).for_each(|(word, bits)| *word &= bits);
            }
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

/// The class of each protocol, and how many classes there are.
fn classes<A: Address>(rules: &[Rule<A>]) -> ([u8; 256], usize) {
    let mut asked = [0_u32; 256];
    for protocol in rules.iter().filter_map(Rule::asked_protocol) {
        asked[usize::from(protocol)] += 1;
    }
    let (mut classes, mut count) = ([0; 256], 1);
    while count < CLASSES {
        let most = (0..256).max_by_key(|&protocol| asked[protocol]);
        let Some(most) = most.filter(|&most| asked[most] != 0) else { break };
        (classes[most], asked[most]) = (count as u8, 0);
        count += 1;
    }
    (classes, count)
}

fn groups_for(rules: usize) -> usize {
    rules.div_ceil(64 * GROUP)
}

/// The places of cuts: at every end, or so that equally many rules begin or end in each interval.
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
