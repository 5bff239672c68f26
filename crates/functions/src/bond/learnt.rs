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

/// A place: address and wire, when the address was seen, and when it was sent to.
#[derive(Debug, Default)]
struct Place {
    /// Address, wire, one: zero if it is free.
    who: AtomicU64,
    seen: AtomicU64,
    /// Plus one; zero if never.
    used: AtomicU64,
}

/// The addresses that have been seen as senders.
#[derive(Debug)]
pub(super) struct Learnt {
    sets: Box<[[Place; WAYS]]>,
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

impl Learnt {
    pub(super) fn new(seed: u64) -> Learnt {
        Learnt {
            sets: (0..SETS).map(|_| Default::default()).collect(),
            own: std::array::from_fn(|_| AtomicU64::new(0)),
            seed,
        }
    }

    #[inline(always)]
    fn set(&self, mac: u64) -> &[Place; WAYS] {
        // Fibonacci hashing; the seed keeps others from choosing addresses for one set.
        let hash = (mac ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.sets[(hash >> 32) as usize % SETS]
    }

    /// An address was seen as a sender on `wire`.
    #[inline]
    pub(super) fn see(&self, mac: u64, wire: u8, now: Time, age_ns: u64) -> Seen {
        let (set, now) = (self.set(mac), now.as_nanos());
        let who = mac << 16 | u64::from(wire) << 8 | 1;
        for place in set {
            let found = place.who.load(Relaxed);
            if found >> 16 == mac && found != 0 {
                place.seen.store(now, Relaxed);
                if found == who {
                    return Seen::Known;
                }
                place.who.store(who, Relaxed);
                return Seen::Moved;
            }
        }
        let is_old = |when: u64| now.saturating_sub(when) > age_ns;
        let is_free =
            |place: &&Place| place.who.load(Relaxed) == 0 || is_old(place.seen.load(Relaxed));
        let is_unused = |place: &&Place| match place.used.load(Relaxed) {
            0 => true,
            used => is_old(used - 1),
        };
        let (place, seen) = match set.iter().find(is_free) {
            Some(place) => (place, Seen::New),
            None => {
                let unused = set.iter().filter(is_unused);
                match unused.min_by_key(|place| place.seen.load(Relaxed)) {
                    Some(place) => (place, Seen::Replaced),
                    None => return Seen::Refused,
                }
            }
        };
        place.used.store(0, Relaxed);
        place.seen.store(now, Relaxed);
        place.who.store(who, Relaxed);
        seen
    }

    /// The wire on which an address was seen no longer than `age_ns` ago; it is in use from now on.
    #[inline]
    pub(super) fn wire_of(&self, mac: u64, now: Time, age_ns: u64) -> Option<u8> {
        let now = now.as_nanos();
        let is_its = |place: &&Place| {
            let found = place.who.load(Relaxed);
            found >> 16 == mac && found != 0
        };
        let place = self.set(mac).iter().find(is_its)?;
        if now.saturating_sub(place.seen.load(Relaxed)) > age_ns {
            return None;
        }
        place.used.store(now + 1, Relaxed);
        Some((place.who.load(Relaxed) >> 8) as u8)
    }

    /// Every address that was seen no longer than `age_ns` ago, its wire, and how long ago, in
    /// nanoseconds.
    pub(super) fn all(
        &self,
        now: Time,
        age_ns: u64,
    ) -> impl Iterator<Item = (MacAddress, u8, u64)> {
        self.sets.iter().flatten().filter_map(move |place| {
            let who = place.who.load(Relaxed);
            let age = now.as_nanos().saturating_sub(place.seen.load(Relaxed));
            let [_, _, mac @ ..] = (who >> 16).to_be_bytes();
            (who != 0 && age <= age_ns).then_some((MacAddress(mac), (who >> 8) as u8, age))
        })
    }

    /// Forgets all addresses, those of the card's own hosts too; returns how many of others.
    pub(super) fn clear(&self) -> u32 {
        self.own.iter().for_each(|own| own.store(0, Relaxed));
        let was_there = |place: &&Place| place.who.swap(0, Relaxed) != 0;
        self.sets.iter().flatten().filter(was_there).count() as u32
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
            (1..).filter(|&mac| std::ptr::eq(learnt.set(mac), learnt.set(1))).take(5).collect();
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
        let all: Vec<_> = learnt.all(at(120), AGE).collect();
        assert_eq!(all, [(MacAddress([0, 0, 0, 0, 0, 7]), 255, 100)]);
        learnt.note_own(7);
        learnt.note_own(9);
        assert!(learnt.is_own(7) && learnt.is_own(9) && !learnt.is_own(8) && !learnt.is_own(0));
    }
}
