//! Flow rules by tuple-space search: one hash table for all, a lookup for each mask in use.
//!
//! Rules with the same fields and prefix lengths share a mask. A packet's key is masked with
//! each of them, highest priority first, and sought among the rules of that mask; the search
//! ends when no mask is left that could have a rule of higher priority. A rule fills one cache
//! line, so that a lookup that finds nothing costs one.
//!
//! Guarantees: rules come and go without allocation, in a number of steps that the number of
//! rules does not bound but the length of a run of taken slots does, at half load or less.
//! Source: Srinivasan, Suri, Varghese, "Packet Classification using Tuple Space Search"
//! (SIGCOMM 1999); Knuth, TAOCP 3, 6.4, algorithm R (removal under linear probing).

use super::rule::{Action, Compiled, Key};

/// Masks that can be in use at once: each is a lookup for every packet.
pub const MAX_MASKS: usize = 64;
/// Rules that a table can be made for.
pub const MAX_RULES: usize = 65_536;

/// Why a rule was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is one of the same fields already, of this number.
    Same(u32),
    /// The table is full.
    Full {
        /// Rules that it has room for.
        capacity: usize,
    },
    /// No further combination of fields and prefix lengths.
    Masks,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Same(number) => {
                write!(f, "rule {number} has the same fields, allowed: one rule for them")
            }
            Refusal::Full { capacity } => {
                write!(f, "found one rule more, allowed by `capacity` is {capacity}")
            }
            Refusal::Masks => write!(
                f,
                "found one combination of fields and prefix lengths more, allowed: {MAX_MASKS}"
            ),
        }
    }
}

/// A rule in its place; one line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Slot {
    key: Key,
    /// Packets that it decided on.
    pub packets: u64,
    mark: u32,
    /// From 1; zero in a slot that is free.
    number: u32,
    priority: u16,
    queue: u16,
    mask: u8,
    /// Of `QUEUE`, `MARK`, `DROP`.
    action: u8,
}

const _: () = assert!(size_of::<Slot>() == 64);

const QUEUE: u8 = 1;
const MARK: u8 = 2;
const DROP: u8 = 4;

impl Slot {
    const FREE: Slot = Slot {
        key: [0; 5],
        packets: 0,
        mark: 0,
        number: 0,
        priority: 0,
        queue: 0,
        mask: 0,
        action: 0,
    };

    #[inline(always)]
    pub(super) fn action(&self) -> Action {
        Action {
            queue: (self.action & QUEUE != 0).then_some(self.queue),
            mark: (self.action & MARK != 0).then_some(self.mark),
            drop: self.action & DROP != 0,
        }
    }

    #[inline(always)]
    fn is(&self, mask: u8, key: &Key) -> bool {
        self.mask == mask && self.key == *key
    }
}

/// A mask with rules.
#[derive(Clone, Copy, Debug)]
struct Mask {
    bits: Key,
    rules: u32,
    /// No rule of it has a higher one.
    priority: u16,
}

/// The rules.
pub(super) struct Table {
    slots: Box<[Slot]>,
    masks: [Mask; MAX_MASKS],
    /// Masks with rules, the highest priority first; as many as are in use.
    order: [u8; MAX_MASKS],
    used: usize,
    /// The slot of each rule, by its number less one; where there is none, `NOWHERE`.
    places: Box<[u32]>,
    /// Numbers that are free, the next one last.
    free: Vec<u32>,
}

const NOWHERE: u32 = u32::MAX;

#[inline(always)]
fn masked(key: &Key, mask: &Key) -> Key {
    let [a, b, c, d, e] = key;
    let [p, q, r, s, t] = mask;
    [a & p, b & q, c & r, d & s, e & t]
}

/// Multiplies and folds: every bit of the key and the mask's number reaches the low bits.
#[inline(always)]
pub(super) fn hash(key: &Key, seed: u64) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let [a, b, c, d, e] = *key;
    // The constants are fractional digits of pi.
    let addresses = fold(a ^ 0x243f_6a88_85a3_08d3, c ^ 0x1319_8a2e_0370_7344);
    let behind = fold(b ^ 0xa409_3822_299f_31d0, d ^ 0x082e_fa98_ec4e_6c89);
    fold(
        e ^ seed ^ 0x4528_21e6_38d0_1377,
        addresses ^ behind.rotate_left(32) ^ 0xbe54_66cf_34e9_0c6c,
    )
}

impl Table {
    /// Room for this many rules, 1 to [`MAX_RULES`].
    pub(super) fn new(capacity: usize) -> Table {
        let capacity = capacity.clamp(1, MAX_RULES);
        let unused = Mask { bits: [0; 5], rules: 0, priority: 0 };
        Table {
            slots: vec![Slot::FREE; (2 * capacity).next_power_of_two()].into(),
            masks: [unused; MAX_MASKS],
            order: [0; MAX_MASKS],
            used: 0,
            places: vec![NOWHERE; capacity].into(),
            free: (1..=capacity as u32).rev().collect(),
        }
    }

    /// Rules in it.
    pub(super) fn len(&self) -> usize {
        self.capacity() - self.free.len()
    }

    /// Rules that it has room for.
    pub(super) fn capacity(&self) -> usize {
        self.places.len()
    }

    /// Masks in use.
    pub(super) fn masks(&self) -> usize {
        self.used
    }

    #[inline(always)]
    fn home(&self, mask: u8, key: &Key) -> usize {
        hash(key, mask.into()) as usize & (self.slots.len() - 1)
    }

    /// The slot of a rule, or the free one where it would stand.
    #[inline(always)]
    fn seek(&self, mask: u8, key: &Key) -> usize {
        let last = self.slots.len() - 1;
        let mut at = self.home(mask, key);
        // Ends, as half of the slots are free.
        while let Some(slot) = self.slots.get(at)
            && slot.number != 0
            && !slot.is(mask, key)
        {
            at = (at + 1) & last;
        }
        at
    }

    /// Has the processor fetch what is looked at first for this key.
    #[inline(always)]
    pub(super) fn prefetch(&self, key: &Key) {
        let first = self.order.first().filter(|_| self.used != 0);
        if let Some(&mask) = first
            && let Some(Mask { bits, .. }) = self.masks.get(usize::from(mask))
            && let Some(slot) = self.slots.get(self.home(mask, &masked(key, bits)))
        {
            picnic_core::prefetch::for_read(std::ptr::from_ref(slot).cast());
        }
    }

    /// The rule that decides on a packet of this key.
    #[inline(always)]
    pub(super) fn find(&mut self, key: &Key) -> Option<&mut Slot> {
        let mut best: Option<(u16, u32, usize)> = None;
        for &mask in self.order.iter().take(self.used) {
            let Some(Mask { bits, priority, .. }) = self.masks.get(usize::from(mask)) else {
                break;
            };
            if best.is_some_and(|(found, ..)| found > *priority) {
                break;
            }
            let at = self.seek(mask, &masked(key, bits));
            let Some(slot) = self.slots.get(at).filter(|slot| slot.number != 0) else { continue };
            // Among equals the lower number.
            let rank = (slot.priority, u32::MAX - slot.number);
            if best.is_none_or(|(priority, number, _)| rank > (priority, number)) {
                best = Some((rank.0, rank.1, at));
            }
        }
        best.and_then(|(.., at)| self.slots.get_mut(at))
    }

    /// Adds a rule; its number.
    pub(super) fn add(&mut self, rule: &Compiled) -> Result<u32, Refusal> {
        let known = self.order[..self.used]
            .iter()
            .copied()
            .find(|&mask| self.masks[usize::from(mask)].bits == rule.mask);
        if let Some(mask) = known {
            let slot = &self.slots[self.seek(mask, &rule.key)];
            if slot.number != 0 {
                return Err(Refusal::Same(slot.number));
            }
        }
        if self.free.is_empty() {
            return Err(Refusal::Full { capacity: self.capacity() });
        }
        let unused = || self.masks.iter().position(|mask| mask.rules == 0).map(|at| at as u8);
        let mask = known.or_else(unused).ok_or(Refusal::Masks)?;
        let number = self.free.pop().unwrap_or_default();
        if known.is_none() {
            self.masks[usize::from(mask)] = Mask { bits: rule.mask, rules: 0, priority: 0 };
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
        let at = self.seek(mask, &rule.key);
        let Action { queue, mark, drop } = rule.action;
        self.slots[at] = Slot {
            key: rule.key,
            packets: 0,
            mark: mark.unwrap_or_default(),
            number,
            priority: rule.priority,
            queue: queue.unwrap_or_default(),
            mask,
            action: queue.map_or(0, |_| QUEUE)
                | mark.map_or(0, |_| MARK)
                | if drop { DROP } else { 0 },
        };
        self.places[number as usize - 1] = at as u32;
        Ok(number)
    }

    /// Takes a rule out by its number; false if there is none of it.
    pub(super) fn remove(&mut self, number: u32) -> bool {
        let place = (number as usize).checked_sub(1).and_then(|index| self.places.get_mut(index));
        let Some(place) = place.filter(|place| **place != NOWHERE) else { return false };
        let mut hole = std::mem::replace(place, NOWHERE) as usize;
        let mask = self.slots[hole].mask;
        // Whatever stands behind and could not be found over the hole moves into it.
        let last = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & last;
            let slot = self.slots[at];
            if slot.number == 0 {
                break;
            }
            let from_home = at.wrapping_sub(self.home(slot.mask, &slot.key)) & last;
            if from_home >= at.wrapping_sub(hole) & last {
                self.slots[hole] = slot;
                self.places[slot.number as usize - 1] = hole as u32;
                hole = at;
            }
        }
        self.slots[hole] = Slot::FREE;
        // Never grows: there are no more numbers than it was made with.
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

    /// Counts packets that a rule has decided on elsewhere.
    pub(super) fn count(&mut self, number: u32, packets: u64) {
        let place = (number as usize).checked_sub(1).and_then(|index| self.places.get(index));
        if let Some(slot) = place.and_then(|&place| self.slots.get_mut(place as usize)) {
            slot.packets += packets;
        }
    }

    /// The rules from number `first` on, with the packets each decided on.
    pub(super) fn rules(&self, first: u32) -> impl Iterator<Item = (u32, Compiled, u64)> + '_ {
        let skipped = (first.max(1) as usize - 1).min(self.places.len());
        self.places[skipped..].iter().filter(|&&place| place != NOWHERE).map(|&place| {
            let slot = &self.slots[place as usize];
            let mask = self.masks[usize::from(slot.mask)].bits;
            let rule =
                Compiled { key: slot.key, mask, priority: slot.priority, action: slot.action() };
            (slot.number, rule, slot.packets)
        })
    }
}
