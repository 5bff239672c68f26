//! Parts of the traffic and their wires: by weight, avoiding wires that are down.
//!
//! Every part has a home wire. While that is down, the part is on one of those that are up, in
//! proportion to their weights; when it is used again, its parts return.
//!
//! Guarantees: no allocation after construction. Only parts whose home went down or returned move.

use super::loops::Loops;
use picnic_core::out::Out;
use picnic_core::time::Time;
use picnic_hash::{Error, IndirectionTable};

/// Parts per wire.
const PARTS: usize = 16;

/// The wires of the parts.
#[derive(Debug)]
pub(super) struct Slots {
    homes: Box<[u8]>,
    current: Box<[u8]>,
    wires: Box<[Wire]>,
    /// The card's count of link changes at the last check.
    changes: Option<u64>,
    /// Wires that are up and not used yet.
    pending: bool,
    /// All wires are used: the usual case, known without checking each.
    all_used: bool,
    up_delay_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Wire {
    is_up: bool,
    /// When an up wire is used.
    used_from: Time,
    is_used: bool,
}

impl Slots {
    /// Parts by the weights of the wires.
    pub(super) fn weighted(weights: &[u32], up_delay_ns: u64) -> Result<Slots, Error> {
        let wires = weights.len() as u16;
        let table = IndirectionTable::weighted(PARTS * weights.len(), weights, wires)?;
        Ok(Slots::new(table.entries().iter().map(|&wire| wire as u8), weights.len(), up_delay_ns))
    }

    /// All parts on one wire; while it is down, on the next that is up.
    pub(super) fn at_one(wire: u8, wires: usize, up_delay_ns: u64) -> Slots {
        // The others follow and have no parts.
        Slots::new((0..wires).map(|n| ((usize::from(wire) + n) % wires) as u8), wires, up_delay_ns)
    }

    fn new(homes: impl Iterator<Item = u8>, wires: usize, up_delay_ns: u64) -> Slots {
        let homes: Box<[u8]> = homes.collect();
        Slots {
            current: homes.clone(),
            homes,
            wires: vec![Wire { is_up: true, used_from: Time::ZERO, is_used: true }; wires].into(),
            changes: None,
            pending: false,
            all_used: false,
            up_delay_ns,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.current.len()
    }

    /// The wire of a part.
    #[inline(always)]
    pub(super) fn wire(&self, part: usize) -> u8 {
        self.current[part % self.current.len()]
    }

    /// The wire of the part that a hash falls into.
    #[inline(always)]
    pub(super) fn wire_of_hash(&self, hash: u32) -> u8 {
        // By the hash's upper bits: no division.
        let part = (u64::from(hash) * self.current.len() as u64) >> 32;
        self.current.get(part as usize).copied().unwrap_or(0)
    }

    /// Whether all wires are used.
    #[inline(always)]
    pub(super) fn all_used(&self) -> bool {
        self.all_used
    }

    /// Whether a wire is used.
    #[inline(always)]
    pub(super) fn is_used(&self, wire: u8) -> bool {
        self.wires.get(usize::from(wire)).is_some_and(|wire| wire.is_used)
    }

    /// The wires that are used.
    pub(super) fn used(&self) -> impl Iterator<Item = u8> {
        self.wires.iter().zip(0..=u8::MAX).filter(|(wire, _)| wire.is_used).map(|(_, n)| n)
    }

    /// Checks which wires are up; returns the number of moved parts.
    #[inline]
    pub(super) fn follow(&mut self, now: Time, out: &Out<'_>, loops: Option<&Loops>) -> usize {
        let changes = out.wire_changes() + loops.map_or(0, |loops| loops.follow(now));
        if self.changes == Some(changes) && !self.pending {
            return 0;
        }
        let is_free = |wire| loops.is_none_or(|loops| !loops.is_blocked(wire));
        self.look(now, changes, |wire| out.wire_is_up(wire) && is_free(wire))
    }

    #[cold]
    fn look(&mut self, now: Time, changes: u64, is_up: impl Fn(u8) -> bool) -> usize {
        let is_first = self.changes.replace(changes).is_none();
        self.pending = false;
        let mut is_changed = false;
        for (wire, number) in self.wires.iter_mut().zip(0..=u8::MAX) {
            let is_up = is_up(number);
            if is_up && !wire.is_up {
                // A wire that was never down is used at once.
                wire.used_from = now + if is_first { 0 } else { self.up_delay_ns };
            }
            wire.is_up = is_up;
            let is_used = is_up && now >= wire.used_from;
            self.pending |= is_up && !is_used;
            is_changed |= std::mem::replace(&mut wire.is_used, is_used) != is_used;
        }
        self.all_used = self.wires.iter().all(|wire| wire.is_used);
        if is_changed { self.assign() } else { 0 }
    }

    fn assign(&mut self) -> usize {
        let is_used = |wires: &[Wire], wire: u8| wires[usize::from(wire)].is_used;
        let mut turn = self.homes.iter().cycle().filter(|&&home| is_used(&self.wires, home));
        let has_any = self.homes.iter().any(|&home| is_used(&self.wires, home));
        let mut moved = 0;
        for (current, &home) in self.current.iter_mut().zip(&self.homes) {
            let wire = match has_any && !is_used(&self.wires, home) {
                true => turn.next().copied().unwrap_or(home),
                false => home,
            };
            moved += usize::from(std::mem::replace(current, wire) != wire);
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(slots: &Slots, wires: u8) -> Vec<usize> {
        (0..wires)
            .map(|wire| (0..slots.len()).filter(|&part| slots.wire(part) == wire).count())
            .collect()
    }

    #[test]
    fn downed_wires_hand_over_parts_by_weight_and_regain_them() {
        let mut slots = Slots::weighted(&[1, 2, 1, 0], 500).unwrap();
        assert_eq!(shares(&slots, 4), [16, 32, 16, 0]);
        assert_eq!(slots.look(Time::ZERO, 0, |_| true), 0);
        let before = slots.current.clone();
        assert_eq!(slots.look(Time::ZERO, 1, |wire| wire != 1), 32);
        assert_eq!(shares(&slots, 4), [32, 0, 32, 0]);
        let stayed = before.iter().zip(&slots.current).filter(|(a, b)| a == b).count();
        assert_eq!(stayed, 32, "only what was at the wire moves");
        // Back, but not for long enough.
        assert_eq!(slots.look(Time::from_nanos(100), 2, |_| true), 0);
        assert!(slots.pending && !slots.is_used(1));
        assert_eq!(slots.look(Time::from_nanos(599), 2, |_| true), 0);
        assert_eq!(slots.look(Time::from_nanos(600), 2, |_| true), 32);
        assert_eq!(slots.current, before);
        assert!(!slots.pending);
        // With none up, nothing moves.
        slots.look(Time::from_nanos(700), 3, |_| false);
        assert_eq!(slots.current, before);
        assert_eq!(slots.used().count(), 0);
    }

    #[test]
    fn single_wire_fails_over_to_the_next() {
        let mut slots = Slots::at_one(2, 4, 0);
        assert_eq!(slots.wire(0), 2);
        slots.look(Time::ZERO, 0, |wire| wire != 2);
        assert_eq!(slots.wire(0), 3);
        slots.look(Time::ZERO, 1, |wire| wire < 2);
        assert_eq!(slots.wire(0), 0);
        slots.look(Time::ZERO, 2, |_| true);
        assert_eq!(slots.wire(0), 2);
    }

    #[test]
    fn queues_use_the_wire_of_their_number() {
        for wires in 1..=256_usize {
            let slots = Slots::weighted(&vec![1; wires], 0).unwrap();
            (0..256).for_each(|queue| assert_eq!(usize::from(slots.wire(queue)), queue % wires));
        }
    }
}
