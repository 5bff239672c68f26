//! The wire that an address was last seen on: a bounded table that survives a flood of addresses.
//!
//! Sets of four. A new address takes a free place of its set, one whose address has aged, or else
//! the place of the address that was silent for longest among addresses without recent traffic.
//! Addresses in use are never evicted: the new one then stays unknown.
//!
//! Guarantees: a bounded number of steps, no allocation. One core writes; any may read.
//!
//! Source: IEEE 802.1Q-2018, 8.7 (learning), 8.8 (ageing; one table for all VLANs, as in shared
//! VLAN learning).

use picnic_core::packet::wire::MacAddress;
use picnic_core::time::Time;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const WAYS: usize = 4;
const SETS: usize = 2048;
/// Most known addresses.
pub const MAX_ADDRESSES: usize = SETS * WAYS;
/// Most known addresses of the card's own hosts.
const OWN: usize = 64;
/// A tick has this many bits of nanoseconds, 67 ms, so that a set fits in a cache line; ticks wrap
/// after nine years.
const TICK_BITS: u32 = 26;

/// A set: everything needed for a received or sent packet, in one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set {
    /// Address, one, wire: zero if free.
    who: [AtomicU64; WAYS],
    /// The tick in which the address was seen.
    seen: [AtomicU32; WAYS],
    /// The tick in which it was sent to, plus one; zero if never.
    used: [AtomicU32; WAYS],
}

const _: () = assert!(size_of::<Set>() == 64);

/// The addresses that have been seen as senders.
#[derive(Debug)]
pub(super) struct Learnt {
    sets: Box<[Set]>,
    /// Addresses that the card's hosts send from; zero if free.
    own: [AtomicU64; OWN],
    seed: u64,
}

/// The result of learning an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// It was known there.
    Known,
    /// It is new.
    New,
    /// It is new, and replaced an unused one.
    Replaced,
    /// It was known on another wire.
    Moved,
    /// There is no place for it.
    Refused,
}

/// The group bit of a MAC address, as a number.
pub(super) const GROUP: u64 = 1;

/// Destination and source of a frame as numbers: nonzero for all senders. Lowest byte first, so
/// that each is one load without a swap.
#[inline(always)]
pub(super) fn numbers_of(addresses: &[u8; 12]) -> (u64, u64) {
    let [first, last] = [addresses.first_chunk(), addresses.last_chunk()];
    let number = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |&bytes| u64::from_le_bytes(bytes));
    (number(first) << 16 >> 16, number(last) >> 16)
}

#[inline(always)]
fn tick(now: Time) -> u32 {
    (now.as_nanos() >> TICK_BITS) as u32
}

/// Ticks from one to another; zero if the second is earlier, since entries may change concurrently.
#[inline(always)]
fn ticks(from: u32, to: u32) -> u32 {
    (to.wrapping_sub(from) as i32).max(0) as u32
}

/// Whether a tick is longer ago than this; a part of a tick is rounded up.
#[inline(always)]
fn is_old(then: u32, now: u32, age_ns: u64) -> bool {
    let oldest = now.wrapping_sub(age_ns.div_ceil(1 << TICK_BITS) as u32);
    (then.wrapping_sub(oldest) as i32) < 0
}

/// An address as stored before its wire: never zero.
#[inline(always)]
fn key(mac: u64) -> u64 {
    mac << 8 | 1
}

impl Learnt {
    pub(super) fn new(seed: u64) -> Learnt {
        Learnt {
            sets: (0..SETS).map(|_| Set::default()).collect(),
            own: std::array::from_fn(|_| AtomicU64::new(0)),
            seed,
        }
    }

    #[inline(always)]
    fn set(&self, mac: u64) -> &Set {
        // Fibonacci hashing, by the upper bits; the seed keeps attackers from choosing addresses in
        // one set.
        let hash = (mac ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let number = (hash >> (u64::BITS - SETS.ilog2())) as usize % SETS;
        &self.sets[number]
    }

    /// Learns an address as a sender on `wire`.
    #[inline]
    pub(super) fn see(&self, mac: u64, wire: u8, now: Time, age_ns: u64) -> Learned {
        let (set, now) = (self.set(mac), tick(now));
        let who = key(mac) << 8 | u64::from(wire);
        for (place, seen) in set.who.iter().zip(&set.seen) {
            let found = place.load(Relaxed);
            if found >> 8 == key(mac) {
                seen.store(now, Relaxed);
                if found == who {
                    return Learned::Known;
                }
                place.store(who, Relaxed);
                return Learned::Moved;
            }
        }
        let when_seen = |way: usize| set.seen[way].load(Relaxed);
        let is_free =
            |&way: &usize| set.who[way].load(Relaxed) == 0 || is_old(when_seen(way), now, age_ns);
        let is_unused = |&way: &usize| match set.used[way].load(Relaxed) {
            0 => true,
            used => is_old(used.wrapping_sub(1), now, age_ns),
        };
        let unheard = |&way: &usize| ticks(when_seen(way), now);
        let (way, seen) = match (0..WAYS).find(is_free) {
            Some(way) => (way, Learned::New),
            None => match (0..WAYS).filter(is_unused).max_by_key(unheard) {
                Some(way) => (way, Learned::Replaced),
                None => return Learned::Refused,
            },
        };
        set.used[way].store(0, Relaxed);
        set.seen[way].store(now, Relaxed);
        set.who[way].store(who, Relaxed);
        seen
    }

    /// The wire on which an address was seen at most `age_ns` ago; marks it as in use.
    #[inline]
    pub(super) fn wire_of(&self, mac: u64, now: Time, age_ns: u64) -> Option<u8> {
        let (now, set) = (tick(now), self.set(mac));
        for (way, place) in set.who.iter().enumerate() {
            let found = place.load(Relaxed);
            if found >> 8 == key(mac) {
                if is_old(set.seen[way].load(Relaxed), now, age_ns) {
                    return None;
                }
                set.used[way].store(now.wrapping_add(1), Relaxed);
                return Some(found as u8);
            }
        }
        None
    }

    /// Every address seen at most `age_ns` ago, its wire, and its age in nanoseconds.
    pub(super) fn all(
        &self,
        now: Time,
        age_ns: u64,
    ) -> impl Iterator<Item = (MacAddress, u8, u64)> {
        let places = self.sets.iter().flat_map(|set| set.who.iter().zip(&set.seen));
        places.filter_map(move |(who, seen)| {
            let who = who.load(Relaxed);
            let (seen, now) = (seen.load(Relaxed), tick(now));
            let [_, _, mac @ ..] = who.to_le_bytes();
            let age = u64::from(ticks(seen, now)) << TICK_BITS;
            let is_known = who != 0 && !is_old(seen, now, age_ns);
            is_known.then_some((MacAddress(mac), who as u8, age))
        })
    }

    /// Forgets all addresses, including those of the card's own hosts; returns the number of the
    /// others.
    pub(super) fn clear(&self) -> u32 {
        self.own.iter().for_each(|own| own.store(0, Relaxed));
        let was_there = |who: &&AtomicU64| who.swap(0, Relaxed) != 0;
        self.sets.iter().flat_map(|set| &set.who).filter(was_there).count() as u32
    }

    /// Notes that one of the card's hosts sends from this address.
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

    const AGE: u64 = 1000 << TICK_BITS;

    fn at(ticks: u64) -> Time {
        Time::from_nanos(ticks << TICK_BITS)
    }

    #[test]
    fn floods_do_not_evict_addresses_in_use() {
        let learnt = Learnt::new(5);
        for mac in 1..=300 {
            assert_eq!(learnt.see(mac, 2, at(0), AGE), Learned::New);
            assert_eq!(learnt.wire_of(mac, at(1), AGE), Some(2));
        }
        for mac in 1000..200_000 {
            assert_ne!(learnt.see(mac, 1, at(10), AGE), Learned::Moved);
        }
        assert_eq!(learnt.all(at(10), AGE).count(), MAX_ADDRESSES);
        for mac in 1..=300 {
            assert_eq!(learnt.wire_of(mac, at(20), AGE), Some(2), "{mac}");
        }
        // If all four are in use, a new one stays unknown.
        let crowd: Vec<u64> =
            (1..).filter(|&mac| std::ptr::eq(learnt.set(mac), learnt.set(1))).take(5).collect();
        assert_eq!(learnt.clear(), MAX_ADDRESSES as u32);
        for (place, &mac) in crowd.iter().enumerate() {
            let expected = if place == 4 { Learned::Refused } else { Learned::New };
            assert_eq!(learnt.see(mac, 0, at(0), AGE), expected);
            learnt.wire_of(mac, at(0), AGE);
        }
        // Until one of them has neither sent nor received for its time.
        crowd[..4]
            .iter()
            .for_each(|&mac| assert_eq!(learnt.see(mac, 0, at(1500), AGE), Learned::Known));
        assert_eq!(learnt.see(crowd[4], 0, at(1501), AGE), Learned::Replaced);
    }

    #[test]
    fn addresses_age_and_move() {
        let learnt = Learnt::new(0);
        assert_eq!(learnt.see(7, 0, at(0), AGE), Learned::New);
        assert_eq!(learnt.see(7, 0, at(10), AGE), Learned::Known);
        assert_eq!(learnt.see(7, 255, at(20), AGE), Learned::Moved);
        assert_eq!(learnt.wire_of(7, at(20 + 1000), AGE), Some(255));
        assert_eq!(learnt.wire_of(7, at(21 + 1000), AGE), None);
        assert_eq!(learnt.wire_of(8, at(0), AGE), None);
        let numbers = (0x0605_0403_0201, 0x0c0b_0a09_0807);
        assert_eq!(numbers_of(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]), numbers);
        let all: Vec<_> = learnt.all(at(120), AGE).collect();
        assert_eq!(all, [(MacAddress([7, 0, 0, 0, 0, 0]), 255, 100 << TICK_BITS)]);
        learnt.note_own(7);
        learnt.note_own(9);
        assert!(learnt.is_own(7) && learnt.is_own(9) && !learnt.is_own(8) && !learnt.is_own(0));
    }
}
