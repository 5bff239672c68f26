//! The rules of `flow-director` in the programs' maps.
//!
//! The rules are kept twice: one list is in use, the other is written, then a single word selects
//! it. A rule is at one of two places, computed from its words and its mask.
//!
//! Guarantees: a change takes effect for all packets at once. Hits of a rule are reported for that
//! rule alone.

use crate::cuckoo::house;
use crate::object::settle;
use aya::maps::{Array, MapData, MapError};
use picnic_forms::FlowRule;

/// As in the programs (`bpf/rules.h`).
const MOST_MASKS: usize = 64;
/// Instead of a queue: such packets are dropped.
const DROPS: u32 = 0xfffe;

/// `struct flow_mask`: words, and the highest rank of its rules.
pub(crate) type MaskWords = [u64; 6];
/// `struct flow_rule`: words, rank, mask and queue, packets.
pub(crate) type RuleWords = [u64; 8];
const RANK: usize = 5;
const PACKETS: usize = 7;

/// The maps with the rules.
pub(crate) struct FlowMaps {
    /// The list in use, the start value of places, and the masks.
    pub(crate) now: Array<MapData, u32>,
    pub(crate) masks: Array<MapData, MaskWords>,
    pub(crate) rules: Array<MapData, RuleWords>,
}

/// The rules of a card's `flow-director`, with their maps.
pub(crate) struct Flows {
    maps: FlowMaps,
    /// Slots of one list.
    slots: usize,
    /// Contents of each list.
    written: [Vec<RuleWords>; 2],
    half: usize,
    /// The current rules: each with its slot, and its hits when last reported.
    rules: Vec<(FlowRule, usize, u64)>,
}

/// Slots of a list with `room` rules.
pub(crate) fn slots(room: usize) -> usize {
    (5 * room.max(1) / 2).next_power_of_two()
}

/// A list, ready to write.
struct Image {
    start: u32,
    masks: Vec<MaskWords>,
    rules: Vec<RuleWords>,
    /// The slot of each rule.
    places: Vec<usize>,
}

impl Flows {
    /// Without rules.
    pub(crate) fn new(maps: FlowMaps, room: usize) -> Self {
        let slots = slots(room);
        let empty = || vec![[0; 8]; slots];
        Flows { maps, slots, written: [empty(), empty()], half: 0, rules: Vec::new() }
    }

    /// Replaces the rules. Returns the hits of the old rules since then, as [`Flows::take`] does,
    /// for those that stay.
    pub(crate) fn set(&mut self, rules: &[FlowRule]) -> Result<Vec<(u32, u64)>, MapError> {
        let image = Image::of(rules, self.slots).ok_or(MapError::OutOfBounds {
            index: rules.len() as u32,
            max_entries: self.slots as u32,
        })?;
        let mut told = self.take()?;
        let half = self.half ^ 1;
        for (number, mask) in (0..).zip(&image.masks) {
            self.maps.masks.set((half * MOST_MASKS) as u32 + number, *mask, 0)?;
        }
        let written = self.written[half].iter_mut().zip(&image.rules).enumerate();
        for (place, (before, rule)) in written {
            // Hits already reported are included.
            if before != rule || rule[RANK] != 0 {
                self.maps.rules.set((half * self.slots + place) as u32, *rule, 0)?;
                *before = *rule;
            }
        }
        let now = (half as u32) << 31 | image.start << 8 | image.masks.len() as u32;
        self.maps.now.set(0, now, 0)?;
        // Packets still using the old list.
        settle();
        let late = self.take()?;
        told.extend(late);
        told.retain(|(number, _)| {
            let of = |rule: &FlowRule| rule.number == *number;
            let before = self.rules.iter().map(|(rule, ..)| rule).find(|rule| of(rule));
            before.is_some() && before == rules.iter().find(|rule| of(rule))
        });
        let places = rules.iter().zip(image.places);
        self.rules = places.map(|(rule, place)| (*rule, place, 0)).collect();
        self.half = half;
        Ok(told)
    }

    /// Hits of each rule by number since the last call; only rules with new hits.
    pub(crate) fn take(&mut self) -> Result<Vec<(u32, u64)>, MapError> {
        let mut told = Vec::new();
        for (rule, place, before) in &mut self.rules {
            let found = self.maps.rules.get(&((self.half * self.slots + *place) as u32), 0)?;
            let packets = found[PACKETS];
            if packets != *before {
                told.push((rule.number, packets.wrapping_sub(*before)));
                *before = packets;
            }
        }
        Ok(told)
    }
}

/// Higher priorities rank above lower, then lower numbers above higher; never zero.
fn rank(rule: &FlowRule) -> u64 {
    u64::from(rule.priority) << 32 | u64::from(u32::MAX - rule.number)
}

/// Packs two numbers into a word.
fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// As `places_of` in the programs.
fn places_of([a, b, c, d, e]: [u64; 5], start: u64) -> [usize; 2] {
    let times = |word: u64, factor: u64| word.wrapping_mul(factor);
    let hash = times(a ^ start, 0x9e37_79b9_7f4a_7c15)
        ^ times(b, 0xc2b2_ae3d_27d4_eb4f)
        ^ times(c.wrapping_add(start), 0x1656_67b1_9e37_79f9)
        ^ times(d, 0xd6e8_feb8_6659_fd93)
        ^ times(e ^ start << 32, 0xa076_1d64_78bd_642f);
    let hash = times(hash ^ hash >> 32, 0xe703_7ed1_a0b4_28db);
    let hash = hash ^ hash >> 29;
    [hash as u32 as usize, (hash >> 32) as usize]
}

impl Image {
    /// A list of rules in `slots` slots, a power of two; none if there are too many rules.
    fn of(rules: &[FlowRule], slots: usize) -> Option<Image> {
        // Highest ranks first.
        let mut masks: Vec<([u64; 5], u64)> = Vec::new();
        for rule in rules {
            match masks.iter_mut().find(|(mask, _)| *mask == rule.mask) {
                Some((_, highest)) => *highest = rank(rule).max(*highest),
                None => masks.push((rule.mask, rank(rule))),
            }
        }
        masks.sort_by_key(|(_, rank)| u64::MAX - rank);
        if masks.len() > MOST_MASKS {
            return None;
        }
        let mask_of = |rule: &FlowRule| masks.iter().position(|(mask, _)| *mask == rule.mask);
        let numbers: Vec<usize> = rules.iter().map(mask_of).collect::<Option<_>>()?;
        let (start, at) = house(rules.len(), slots, |number, start| {
            places_of(rules[number].key, u64::from(start) << 8 | numbers[number] as u64)
        })?;
        let mut image = Image {
            start: start.into(),
            masks: masks.iter().map(|&([a, b, c, d, e], rank)| [a, b, c, d, e, rank]).collect(),
            rules: vec![[0; 8]; slots],
            places: vec![0; rules.len()],
        };
        for (place, number) in at.iter().enumerate() {
            let Some(number) = *number else { continue };
            let rule = &rules[number];
            let [a, b, c, d, e] = rule.key;
            let what = pair(numbers[number] as u32, rule.queue.map_or(DROPS, u32::from));
            image.rules[place] = [a, b, c, d, e, rank(rule), what, 0];
            image.places[number] = place;
        }
        Some(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(number: u32, port: u64) -> FlowRule {
        let (key, mask) = ([0, 0, 0, 0, port], [0, 0, 0, 0, 0xffff]);
        FlowRule { number, key, mask, priority: 0, queue: Some(0) }
    }

    #[test]
    fn full_rule_tables_have_a_place_for_each_rule() {
        for room in [1, 5, 8192, 65_536] {
            let rules: Vec<_> = (0..room).map(|place| rule(place + 1, place.into())).collect();
            let image = Image::of(&rules, slots(room as usize)).unwrap();
            let mut places = image.places.clone();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), rules.len());
        }
        let rules: Vec<_> = (0..5).map(|place| rule(place + 1, place.into())).collect();
        assert!(Image::of(&rules, 4).is_none());
    }

    #[test]
    fn masks_of_the_highest_rules_come_first() {
        let low = rule(1, 7);
        let high = FlowRule { priority: 9, mask: [0, 0, 0, 0, 0xff], ..rule(2, 7) };
        let first = FlowRule { mask: [0, 0, 0, 0, 0xfff], ..rule(1, 7) };
        let masks = |rules: &[FlowRule]| {
            let image = Image::of(rules, 8).unwrap();
            image.masks.iter().map(|mask| mask[4]).collect::<Vec<_>>()
        };
        assert_eq!(masks(&[low, high]), [0xff, 0xffff]);
        assert_eq!(masks(&[rule(2, 7), first]), [0xfff, 0xffff]);
    }
}
