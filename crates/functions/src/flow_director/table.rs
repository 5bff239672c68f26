//! Flow rules by tuple-space search: one hash table for all, a lookup for each mask in use.
//!
//! Rules with the same fields and prefix lengths share a mask. Keys are masked with each of them,
//! highest priority first, and looked up among the rules of that mask; a packet is done when no
//! remaining mask can have a rule of higher priority.
//!
//! The hash table has four bytes per rule: its number, and a tag, a part of its hash. So the table
//! stays in the cache; a missing rule is detected by the tag, a present one costs half a cache
//! line. A burst is looked up together, in several simple loops: while one loop runs, the lines for
//! the next are being fetched.
//!
//! Most rules use only two words of a key, all IPv4 rules among them: for such masks only these are
//! masked, hashed and compared.
//!
//! Guarantees: rules are added and removed without allocation, in a number of steps limited by the
//! length of a run of full buckets, at half load or less.
//! Source: Srinivasan, Suri, Varghese, "Packet Classification using Tuple Space Search"
//! (SIGCOMM 1999); Knuth, TAOCP 3, 6.4, algorithm R (removal under linear probing).

use super::rule::{Action, Compiled, Key};
use picnic_core::packet::burst::BURST;

/// Most masks in use: each costs a look-up per packet.
pub const MAX_MASKS: usize = 64;
/// Largest capacity: the numbers that fit in the lower half of a slot.
pub const MAX_RULES: usize = 65_536;

/// The reason why a rule was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is a rule with the same fields, with this number.
    Same(u32),
    /// The table is full.
    Full {
        /// Its capacity.
        capacity: usize,
    },
    /// No room for another combination of fields and prefix lengths.
    Masks,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Same(number) => {
                write!(f, "rule {number} has the same fields, allowed: one rule per set of fields")
            }
            Refusal::Full { capacity } => {
                write!(f, "found more rules than `capacity` allows: {capacity}")
            }
            Refusal::Masks => write!(
                f,
                "found one combination of fields and prefix lengths more, allowed: {MAX_MASKS}"
            ),
        }
    }
}

/// Instead of a queue: on to the next function; below: drop. No card has this many queues.
pub(super) const ONWARD: u16 = u16::MAX;
pub(super) const DROP: u16 = u16::MAX - 1;

/// The part of a rule that most matching packets need; half a cache line. Its place is its number
/// less one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(super) struct Entry {
    key: [u64; NARROW],
    /// Packets that it decided.
    pub packets: u64,
    /// A queue, [`ONWARD`] or [`DROP`].
    pub to: u16,
    priority: u16,
    /// [`NO_MASK`] where there is no rule.
    mask: u8,
    pub has_mark: bool,
}

const _: () = assert!(size_of::<Entry>() == 32);

/// Number of a key's words in an [`Entry`]; the others are in [`ColdEntry`].
const NARROW: usize = 2;

/// The rest of a rule.
#[derive(Clone, Copy, Debug)]
struct ColdEntry {
    key: [u64; size_of::<Key>() / 8 - NARROW],
    mark: u32,
}

const NO_MASK: u8 = u8::MAX;
const _: () = assert!(MAX_MASKS <= NO_MASK as usize);

impl Entry {
    const FREE: Entry = Entry {
        key: [0; NARROW],
        packets: 0,
        to: ONWARD,
        priority: 0,
        mask: NO_MASK,
        has_mark: false,
    };
}

/// A mask with rules.
#[derive(Clone, Copy, Debug)]
struct Mask {
    bits: Key,
    rules: u32,
    /// The highest priority of its rules.
    priority: u16,
    is_narrow: bool,
}

impl Mask {
    const FREE: Mask = Mask { bits: [0; 5], rules: 0, priority: 0, is_narrow: false };
}

/// Slots checked together, used ones first. A slot is a tag, never zero, and below it a rule's
/// place; zero if free.
type Bucket = [u32; 4];

const LAST_SLOT: usize = 3;

/// Instead of a rule's place: none.
pub(super) const NONE: u32 = u32::MAX;

/// The rules.
pub(super) struct Table {
    buckets: Box<[Bucket]>,
    /// By number less one, as `rests`.
    rules: Box<[Entry]>,
    rests: Box<[ColdEntry]>,
    masks: [Mask; MAX_MASKS],
    /// Masks in use, the highest priority first.
    order: [u8; MAX_MASKS],
    used: usize,
    /// Free numbers, the next one last.
    free: Vec<u32>,
}

#[inline(always)]
fn masked<const IS_NARROW: bool>(key: &Key, mask: &Key) -> Key {
    let [a, b, c, d, e] = key;
    let [p, q, r, s, t] = mask;
    if IS_NARROW { [a & p, b & q, 0, 0, 0] } else { [a & p, b & q, c & r, d & s, e & t] }
}

/// Multiplies and folds: every bit of the key and the mask's number affects all others.
#[inline(always)]
fn hash<const IS_NARROW: bool>(key: &Key, mask: u8) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let [a, b, c, d, e] = *key;
    // The constants are fractional digits of pi.
    let fields = a ^ u64::from(mask) ^ 0x4528_21e6_38d0_1377;
    let addresses = b ^ 0x243f_6a88_85a3_08d3;
    if IS_NARROW {
        return fold(fields, addresses);
    }
    let source = addresses ^ c.wrapping_mul(0xa409_3822_299f_31d1);
    let destination = d ^ e.wrapping_mul(0x082e_fa98_ec4e_6c89) ^ 0x1319_8a2e_0370_7344;
    fold(fields, fold(source, destination) ^ 0xbe54_66cf_34e9_0c6c)
}

/// The upper half of a slot: bits of a hash that do not choose the bucket.
#[inline(always)]
fn tag_of(hash: u64) -> u32 {
    (hash >> 48) as u32 | 1
}

impl Table {
    /// Room for this many rules, 1 to [`MAX_RULES`].
    pub(super) fn new(capacity: usize) -> Table {
        let capacity = capacity.clamp(1, MAX_RULES);
        let buckets = (2 * capacity).div_ceil(LAST_SLOT + 1).next_power_of_two();
        Table {
            buckets: vec![[0; 4]; buckets].into(),
            rules: vec![Entry::FREE; capacity].into(),
            rests: vec![ColdEntry { key: [0; 3], mark: 0 }; capacity].into(),
            masks: [Mask::FREE; MAX_MASKS],
            order: [0; MAX_MASKS],
            used: 0,
            free: (1..=capacity as u32).rev().collect(),
        }
    }

    /// Number of rules.
    pub(super) fn len(&self) -> usize {
        self.capacity() - self.free.len()
    }

    /// Capacity.
    pub(super) fn capacity(&self) -> usize {
        self.rules.len()
    }

    /// Masks in use.
    pub(super) fn masks(&self) -> usize {
        self.used
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Calls with the place of each rule that has the tag, until it is the sought one; returns its
    /// place.
    #[inline(always)]
    fn seek(&self, hash: u64, mut is_sought: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = tag_of(hash);
        let mut at = self.home(hash);
        // Ends, since half of the slots are free.
        while let Some(bucket) = self.buckets.get(at) {
            // All four, without a branch for each.
            let mut same = 0;
            for (slot, content) in bucket.iter().enumerate() {
                same |= u32::from(content >> 16 == tag) << slot;
            }
            while same != 0 {
                let place = bucket[same.trailing_zeros() as usize & LAST_SLOT] & 0xffff;
                if is_sought(place) {
                    return Some(place);
                }
                same &= same - 1;
            }
            if bucket[LAST_SLOT] == 0 {
                break;
            }
            at = (at + 1) & (self.buckets.len() - 1);
        }
        None
    }

    /// Whether a rule has this mask and this masked key.
    #[inline(always)]
    fn is<const IS_NARROW: bool>(&self, place: u32, mask: u8, key: &Key) -> bool {
        let [p, q, r, s, t] = key;
        let Some(Entry { key: [a, b], mask: own, .. }) = self.rules.get(place as usize) else {
            return false;
        };
        if IS_NARROW {
            return (a ^ p | b ^ q) == 0 && *own == mask;
        }
        let Some(ColdEntry { key: [c, d, e], .. }) = self.rests.get(place as usize) else {
            return false;
        };
        (a ^ p | b ^ q | c ^ r | d ^ s | e ^ t) == 0 && *own == mask
    }

    /// The hash of a rule's key under its mask.
    fn hash_of(&self, key: &Key, mask: u8) -> u64 {
        let is_narrow = self.masks.get(usize::from(mask)).is_some_and(|mask| mask.is_narrow);
        if is_narrow { hash::<true>(key, mask) } else { hash::<false>(key, mask) }
    }

    /// All words of a rule's key.
    fn key_at(&self, place: usize) -> Key {
        let ([a, b], [c, d, e]) = (self.rules[place].key, self.rests[place].key);
        [a, b, c, d, e]
    }

    fn hash_at(&self, place: usize) -> u64 {
        self.hash_of(&self.key_at(place), self.rules[place].mask)
    }

    /// For each key the place of the deciding rule, or [`NONE`].
    pub(super) fn find(&self, keys: &[Key; BURST], count: usize, found: &mut [u32; BURST]) {
        *found = [NONE; BURST];
        let count = count.min(BURST);
        for (round, &number) in self.order.iter().take(self.used).enumerate() {
            let Some(mask) = self.masks.get(usize::from(number)) else { break };
            if round == 0 {
                // In a separate loop: few tables have another mask.
                self.find_of(number, mask, 0..count, keys, found);
                continue;
            }
            // Keys whose rule may have this mask.
            let (mut open, mut left) = ([0_u8; BURST], 0);
            for (place, &found) in found.iter().enumerate().take(count) {
                open[left % BURST] = place as u8;
                left += usize::from(self.priority_of(found) <= i32::from(mask.priority));
            }
            let Some(open) = open.get(..left).filter(|open| !open.is_empty()) else { break };
            let open = open.iter().map(|&place| usize::from(place) % BURST);
            self.find_of(number, mask, open, keys, found);
        }
    }

    /// The priority of the rule at a place; below any for none.
    #[inline(always)]
    fn priority_of(&self, place: u32) -> i32 {
        self.rules.get(place as usize).map_or(-1, |rule| rule.priority.into())
    }

    /// Looks up packets at these places among the rules of a mask, for higher ranks than found so
    /// far.
    #[inline(always)]
    fn find_of(
        &self,
        number: u8,
        mask: &Mask,
        places: impl Iterator<Item = usize> + Clone,
        keys: &[Key; BURST],
        found: &mut [u32; BURST],
    ) {
        if mask.is_narrow {
            self.find_by::<true>(number, mask.bits, places, keys, found);
        } else {
            self.find_by::<false>(number, mask.bits, places, keys, found);
        }
    }

    #[inline(always)]
    fn find_by<const IS_NARROW: bool>(
        &self,
        number: u8,
        bits: Key,
        places: impl Iterator<Item = usize> + Clone,
        keys: &[Key; BURST],
        found: &mut [u32; BURST],
    ) {
        let mut hashes = [0; BURST];
        for place in places.clone() {
            let hash = hash::<IS_NARROW>(&masked::<IS_NARROW>(&keys[place], &bits), number);
            if let Some(bucket) = self.buckets.get(self.home(hash)) {
                picnic_core::prefetch::for_read(bucket.as_ptr().cast());
            }
            hashes[place] = hash;
        }
        let mut candidates = [NONE; BURST];
        for place in places.clone() {
            let candidate = self.seek(hashes[place], |_| true).unwrap_or(NONE);
            if let Some(rule) = self.rules.get(candidate as usize) {
                picnic_core::prefetch::for_read(std::ptr::from_ref(rule).cast());
            }
            if !IS_NARROW && let Some(rest) = self.rests.get(candidate as usize) {
                picnic_core::prefetch::for_read(std::ptr::from_ref(rest).cast());
            }
            candidates[place] = candidate;
        }
        for place in places {
            let mut at = candidates[place];
            if at == NONE {
                continue;
            }
            let key = masked::<IS_NARROW>(&keys[place], &bits);
            if !self.is::<IS_NARROW>(at, number, &key) {
                // Another key with the same tag.
                let other = |at| self.is::<IS_NARROW>(at, number, &key);
                let Some(other) = self.seek(hashes[place], other) else { continue };
                at = other;
            }
            let best = found[place];
            // Among equals the lower number.
            if best == NONE || (self.priority_of(at), best) > (self.priority_of(best), at) {
                found[place] = at;
            }
        }
    }

    /// A found rule.
    #[inline(always)]
    pub(super) fn rule_mut(&mut self, place: u32) -> Option<&mut Entry> {
        self.rules.get_mut(place as usize)
    }

    /// The mark of a rule that sets one.
    #[inline(always)]
    pub(super) fn mark_of(&self, place: u32) -> u32 {
        self.rests.get(place as usize).map_or(0, |rest| rest.mark)
    }

    /// Adds a rule; returns its number.
    pub(super) fn add(&mut self, rule: &Compiled) -> Result<u32, Refusal> {
        let known = self.order[..self.used]
            .iter()
            .copied()
            .find(|&mask| self.masks[usize::from(mask)].bits == rule.mask);
        if let Some(mask) = known
            && let Some(place) = self.seek(self.hash_of(&rule.key, mask), |place| {
                self.is::<false>(place, mask, &rule.key)
            })
        {
            return Err(Refusal::Same(place + 1));
        }
        if self.free.is_empty() {
            return Err(Refusal::Full { capacity: self.capacity() });
        }
        let unused = || self.masks.iter().position(|mask| mask.rules == 0).map(|at| at as u8);
        let mask = known.or_else(unused).ok_or(Refusal::Masks)?;
        let number = self.free.pop().unwrap_or_default();
        if known.is_none() {
            let is_narrow = rule.mask[NARROW..].iter().all(|&word| word == 0);
            self.masks[usize::from(mask)] = Mask { bits: rule.mask, is_narrow, ..Mask::FREE };
            self.order[self.used] = mask;
            self.used += 1;
        }
        let entry = &mut self.masks[usize::from(mask)];
        entry.rules += 1;
        if entry.priority < rule.priority || known.is_none() {
            entry.priority = rule.priority;
            let masks = &self.masks;
            self.order[..self.used]
                .sort_unstable_by_key(|&mask| u16::MAX - masks[usize::from(mask)].priority);
        }
        let Action { queue, mark, drop } = rule.action;
        let place = number - 1;
        let [a, b, rest @ ..] = rule.key;
        self.rests[place as usize] = ColdEntry { key: rest, mark: mark.unwrap_or_default() };
        self.rules[place as usize] = Entry {
            key: [a, b],
            packets: 0,
            to: if drop { DROP } else { queue.unwrap_or(ONWARD) },
            priority: rule.priority,
            mask,
            has_mark: mark.is_some(),
        };
        let hash = self.hash_of(&rule.key, mask);
        let mut at = self.home(hash);
        let slot = loop {
            // Ends, since half of the slots are free.
            match self.buckets[at].iter_mut().find(|slot| **slot == 0) {
                Some(slot) => break slot,
                None => at = (at + 1) & (self.buckets.len() - 1),
            }
        };
        *slot = tag_of(hash) << 16 | place;
        Ok(number)
    }

    /// Removes a rule by its number; false if there is none.
    pub(super) fn remove(&mut self, number: u32) -> bool {
        let place = (number as usize).wrapping_sub(1);
        let Some(&Entry { mask, .. }) = self.rules.get(place) else { return false };
        if mask == NO_MASK {
            return false;
        }
        self.clear(self.hash_at(place), place as u32);
        self.rules[place] = Entry::FREE;
        // Never grows: there are only as many numbers as at the start.
        self.free.push(number);
        let entry = &mut self.masks[usize::from(mask)];
        entry.rules -= 1;
        if entry.rules == 0
            && let Some(place) = self.order[..self.used].iter().position(|&used| used == mask)
        {
            self.order[place..self.used].rotate_left(1);
            self.used -= 1;
        }
        true
    }

    /// Adds packets that a rule decided elsewhere.
    pub(super) fn count(&mut self, number: u32, packets: u64) {
        let rule = self.rules.get_mut((number as usize).wrapping_sub(1));
        if let Some(rule) = rule.filter(|rule| rule.mask != NO_MASK) {
            rule.packets += packets;
        }
    }

    /// Frees the slot of a rule.
    fn clear(&mut self, of_rule: u64, place: u32) {
        let last = self.buckets.len() - 1;
        let sought = tag_of(of_rule) << 16 | place;
        let mut hole = self.home(of_rule);
        let mut slot = loop {
            match self.buckets[hole].iter().position(|&slot| slot == sought) {
                Some(slot) => break slot,
                None => hole = (hole + 1) & last,
            }
        };
        loop {
            let bucket = &mut self.buckets[hole];
            let was_full = bucket[LAST_SLOT] != 0;
            bucket[slot..].rotate_left(1);
            bucket[LAST_SLOT] = 0;
            if !was_full {
                return;
            }
            // Entries that overflowed from here move back into it.
            let mut at = hole;
            let (from, next) = loop {
                at = (at + 1) & last;
                let came_by = |&slot: &u32| {
                    let home = self.home(self.hash_at((slot & 0xffff) as usize));
                    let from_home = at.wrapping_sub(home) & last;
                    slot != 0 && from_home >= at.wrapping_sub(hole) & last
                };
                match self.buckets[at].iter().position(came_by) {
                    Some(slot) => break (at, slot),
                    None if self.buckets[at][LAST_SLOT] == 0 => return,
                    None => {}
                }
            };
            self.buckets[hole][LAST_SLOT] = self.buckets[from][next];
            (hole, slot) = (from, next);
        }
    }

    /// The rules from number `first` on, with their packets.
    pub(super) fn rules(&self, first: u32) -> impl Iterator<Item = (u32, Compiled, u64)> + '_ {
        let used = (first.max(1) - 1..self.rules.len() as u32)
            .zip(self.rules.iter().skip(first.max(1) as usize - 1))
            .filter(|(_, rule)| rule.mask != NO_MASK);
        used.map(|(place, rule)| {
            let action = Action {
                queue: (rule.to < DROP).then_some(rule.to),
                mark: rule.has_mark.then(|| self.mark_of(place)),
                drop: rule.to == DROP,
            };
            let mask = self.masks[usize::from(rule.mask)].bits;
            let (key, priority) = (self.key_at(place as usize), rule.priority);
            (place + 1, Compiled { key, mask, priority, action }, rule.packets)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// All bits of one word; all except the lowest; and the bits of a rarely used word.
    const MASKS: [Key; 3] =
        [[u64::MAX, 0, 0, 0, 0], [u64::MAX - 1, 0, 0, 0, 0], [0, 0, 0, 0, u64::MAX]];
    const KEYS: u64 = BURST as u64;

    fn key_of(number: u64) -> Key {
        [number, 0, 0, 0, number / 3]
    }

    fn rule(mask: usize, key: u64, priority: u16) -> Compiled {
        let (key, mask) = (masked::<false>(&key_of(key), &MASKS[mask]), MASKS[mask]);
        let action = Action { queue: Some(priority), ..Action::default() };
        Compiled { key, mask, priority, action }
    }

    proptest! {
        /// Small tables, so that buckets overflow.
        #[test]
        fn rules_are_found_after_any_changes(
            capacity in 1..80_usize,
            steps in prop::collection::vec((any::<bool>(), 0..MASKS.len(), 0..KEYS, 0..3_u16), 1..300),
        ) {
            let mut table = Table::new(capacity);
            let mut rules = BTreeMap::new();
            for (adds, mask, key, priority) in steps {
                if adds {
                    let rule = rule(mask, key, priority);
                    let same = |(_, other): &(&u32, &Compiled)| {
                        (other.key, other.mask) == (rule.key, rule.mask)
                    };
                    let expected = match rules.iter().find(same) {
                        Some((&number, _)) => Err(Refusal::Same(number)),
                        None if rules.len() == capacity => Err(Refusal::Full { capacity }),
                        None => Ok(()),
                    };
                    let added = table.add(&rule);
                    prop_assert_eq!(added.map(drop), expected);
                    if let Ok(number) = added {
                        prop_assert_eq!(rules.insert(number, rule), None);
                    }
                } else {
                    let number = key as u32 % capacity as u32 + 1;
                    prop_assert_eq!(table.remove(number), rules.remove(&number).is_some());
                }
                let keys: [Key; BURST] = std::array::from_fn(|key| key_of(key as u64));
                let mut found = [0; BURST];
                table.find(&keys, BURST, &mut found);
                for (key, place) in keys.iter().zip(found) {
                    let matching = rules.iter().filter(|(_, rule)| {
                        masked::<false>(key, &rule.mask) == rule.key
                    });
                    let best = matching.min_by_key(|(number, rule)| {
                        (u16::MAX - rule.priority, **number)
                    });
                    prop_assert_eq!(place, best.map_or(NONE, |(number, _)| number - 1));
                }
                let listed: Vec<_> = table.rules(1).map(|(number, rule, _)| (number, rule)).collect();
                prop_assert_eq!(listed, rules.clone().into_iter().collect::<Vec<_>>());
            }
        }
    }
}
