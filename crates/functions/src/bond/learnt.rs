//! Which wire an address was last seen on: a bounded table that a flood of addresses cannot take.
//!
//! Sets of four. A new address takes a free place of its set, one whose address has aged, or else
//! that of the address longest unheard of among those that nothing was sent to lately. Addresses
//! that are heard from and sent to are never given up for a new one: it then stays unknown.
//!
//! Guarantees: a bounded number of steps, no allocation. One core writes; any may read.
//!
//! Source: IEEE 802.1Q-2018, 8.7 (learning), 8.8 (ageing; one table for all VLANs, as in shared
//! VLAN learning).

use picnic_core::packet::wire::MacAddress;
use picnic_core::time::Time;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WAYS: usize = 4;
const SETS: usize = 2048;
/// Addresses that may be known.
pub const MAX_ADDRESSES: usize = SETS * WAYS;
/// Addresses of the card's own hosts that may be known.
const OWN: usize = 64;

/// The places of a set: what a packet that is sent asks for, in one line of the caches.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set {
    /// Address, wire, one: zero if it is free.
    who: [AtomicU64; WAYS],
    /// When the address was seen.
    seen: [AtomicU64; WAYS],
}

const _: () = assert!(size_of::<Set>() == 64);

/// The addresses that have been seen as senders.
#[derive(Debug)]
pub(super) struct Learnt {
    sets: Box<[Set]>,
    /// When the address of each place was sent to, plus one; zero if never.
    used: Box<[[AtomicU64; WAYS]]>,
    /// Addresses that the card's hosts send from; zero where there is none.
    own: [AtomicU64; OWN],
    seed: u64,
}

/// What came of an address that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was known there.
    Known,
    /// It is known now.
    New,
    /// It is known now, in place of another that was not in use.
    Replaced,
    /// It was known at another wire.
    Moved,
    /// There is no place for it.
    Refused,
}

/// An address as a number: nonzero for all that send.
#[inline(always)]
pub(super) fn number_of(mac: &[u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = *mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Destination and source of a frame as numbers, by one load each.
#[inline(always)]
pub(super) fn both_numbers(addresses: &[u8; 12]) -> (u64, u64) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *addresses;
    let destination = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 16;
    let source = u64::from_be_bytes([e, f, g, h, i, j, k, l]) & 0xffff_ffff_ffff;
    (destination, source)
}

impl Learnt {
    pub(super) fn new(seed: u64) -> Learnt {
        Learnt {
            sets: (0..SETS).map(|_| Set::default()).collect(),
            used: (0..SETS).map(|_| Default::default()).collect(),
            own: std::array::from_fn(|_| AtomicU64::new(0)),
            seed,
        }
    }

    #[inline(always)]
    fn set(&self, mac: u64) -> (&Set, &[AtomicU64; WAYS]) {
        // Fibonacci hashing; the seed keeps others from choosing addresses for one set.
        let hash = (mac ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let number = (hash >> 32) as usize % SETS;
        (&self.sets[number], &self.used[number])
    }

    /// An address was seen as a sender on `wire`.
    #[inline]
    pub(super) fn see(&self, mac: u64, wire: u8, now: Time, age_ns: u64) -> Seen {
        let ((set, used), now) = (self.set(mac), now.as_nanos());
        let who = mac << 16 | u64::from(wire) << 8 | 1;
        for (place, seen) in set.who.iter().zip(&set.seen) {
            let found = place.load(Relaxed);
            if found >> 16 == mac && found != 0 {
                seen.store(now, Relaxed);
                if found == who {
                    return Seen::Known;
                }
                place.store(who, Relaxed);
                return Seen::Moved;
            }
        }
        let is_old = |when: u64| now.saturating_sub(when) > age_ns;
        let when_seen = |way: usize| set.seen[way].load(Relaxed);
        let is_free = |&way: &usize| set.who[way].load(Relaxed) == 0 || is_old(when_seen(way));
        let is_unused = |&way: &usize| match used[way].load(Relaxed) {
            0 => true,
            used => is_old(used - 1),
        };
        let (way, seen) = match (0..WAYS).find(is_free) {
            Some(way) => (way, Seen::New),
            None => match (0..WAYS).filter(is_unused).min_by_key(|&way| when_seen(way)) {
                Some(way) => (way, Seen::Replaced),
                None => return Seen::Refused,
            },
        };
        used[way].store(0, Relaxed);
        set.seen[way].store(now, Relaxed);
        set.who[way].store(who, Relaxed);
        seen
    }

    /// The wire on which an address was seen no longer than `age_ns` ago; it is in use from now on.
    #[inline]
    pub(super) fn wire_of(&self, mac: u64, now: Time, age_ns: u64) -> Option<u8> {
        let (now, (set, used)) = (now.as_nanos(), self.set(mac));
        for (way, place) in set.who.iter().enumerate() {
            let found = place.load(Relaxed);
            if found >> 16 == mac && found != 0 {
                if now.saturating_sub(set.seen[way].load(Relaxed)) > age_ns {
                    return None;
                }
                used[way].store(now + 1, Relaxed);
                return Some((found >> 8) as u8);
            }
        }
        None
    }

    /// Every address that was seen no longer than `age_ns` ago, its wire, and how long ago, in
    /// nanoseconds.
    pub(super) fn all(
        &self,
        now: Time,
        age_ns: u64,
    ) -> impl Iterator<Item = (MacAddress, u8, u64)> {
        let places = self.sets.iter().flat_map(|set| set.who.iter().zip(&set.seen));
        places.filter_map(move |(who, seen)| {
            let who = who.load(Relaxed);
            let age = now.as_nanos().saturating_sub(seen.load(Relaxed));
            let [_, _, mac @ ..] = (who >> 16).to_be_bytes();
            (who != 0 && age <= age_ns).then_some((MacAddress(mac), (who >> 8) as u8, age))
        })
    }

    /// Forgets all addresses, those of the card's own hosts too; returns how many of others.
    pub(super) fn clear(&self) -> u32 {
        self.own.iter().for_each(|own| own.store(0, Relaxed));
        let was_there = |who: &&AtomicU64| who.swap(0, Relaxed) != 0;
        self.sets.iter().flat_map(|set| &set.who).filter(was_there).count() as u32
    }

    /// One of the card's hosts sends from this address.
    #[inline]
    pub(super) fn note_own(&self, mac: u64) {
        for own in &self.own {
            match own.load(Relaxed) {
                0 => return own.store(mac, Relaxed),
                found if found == mac => return,
                _ => {}
            }
        }
    }

    /// Whether one of the card's hosts sends from this address.
    #[inline]
    pub(super) fn is_own(&self, mac: u64) -> bool {
        let own = self.own.iter().map(|own| own.load(Relaxed));
        own.take_while(|&found| found != 0).any(|found| found == mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: u64 = 1000;

    fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    #[test]
    fn a_flood_takes_no_place_of_an_address_in_use() {
        let learnt = Learnt::new(5);
        for mac in 1..=300 {
            assert_eq!(learnt.see(mac, 2, at(0), AGE), Seen::New);
            assert_eq!(learnt.wire_of(mac, at(1), AGE), Some(2));
        }
        for mac in 1000..200_000 {
            assert_ne!(learnt.see(mac, 1, at(10), AGE), Seen::Moved);
        }
        assert_eq!(learnt.all(at(10), AGE).count(), MAX_ADDRESSES);
        for mac in 1..=300 {
            assert_eq!(learnt.wire_of(mac, at(20), AGE), Some(2), "{mac}");
        }
        // Where all four are in use, a new one stays unknown.
        let crowd: Vec<u64> =
            (1..).filter(|&mac| std::ptr::eq(learnt.set(mac).0, learnt.set(1).0)).take(5).collect();
        assert_eq!(learnt.clear(), MAX_ADDRESSES as u32);
        for (place, &mac) in crowd.iter().enumerate() {
            let expected = if place == 4 { Seen::Refused } else { Seen::New };
            assert_eq!(learnt.see(mac, 0, at(0), AGE), expected);
            learnt.wire_of(mac, at(0), AGE);
        }
        // Until one of them has not been sent to, or not heard of, for its time.
        crowd[..4]
            .iter()
            .for_each(|&mac| assert_eq!(learnt.see(mac, 0, at(1500), AGE), Seen::Known));
        assert_eq!(learnt.see(crowd[4], 0, at(1501), AGE), Seen::Replaced);
    }

    #[test]
    fn addresses_age_and_move() {
        let learnt = Learnt::new(0);
        assert_eq!(learnt.see(7, 0, at(0), AGE), Seen::New);
        assert_eq!(learnt.see(7, 0, at(10), AGE), Seen::Known);
        assert_eq!(learnt.see(7, 255, at(20), AGE), Seen::Moved);
        assert_eq!(learnt.wire_of(7, at(20 + AGE), AGE), Some(255));
        assert_eq!(learnt.wire_of(7, at(21 + AGE), AGE), None);
        assert_eq!(learnt.wire_of(8, at(0), AGE), None);
        let numbers = (number_of(&[1, 2, 3, 4, 5, 6]), number_of(&[7, 8, 9, 10, 11, 12]));
        assert_eq!(both_numbers(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]), numbers);
        let all: Vec<_> = learnt.all(at(120), AGE).collect();
        assert_eq!(all, [(MacAddress([0, 0, 0, 0, 0, 7]), 255, 100)]);
        learnt.note_own(7);
        learnt.note_own(9);
        assert!(learnt.is_own(7) && learnt.is_own(9) && !learnt.is_own(8) && !learnt.is_own(0));
    }
}
