//! The pools of `vmdq` in the programs' maps.
//!
//! The state is kept twice: one copy is in use, the other is written, then a single word selects
//! it.
//!
//! Guarantees: a change takes effect for all packets at once.

use crate::cuckoo::house;
use aya::maps::{Array, MapData, MapError};
use picnic_forms::Pools;

/// Most addresses of all pools together; below, places for them.
const MOST_STATIONS: usize = 4096;
const PLACES: usize = 4 * MOST_STATIONS;
const MOST_POOLS: usize = 64;
const MOST_QUEUES: usize = 256;

/// Words of `struct pools`: VLANs; groups, others and start; first and count of each pool; queues.
const VLANS: usize = 4096;
const POOLS: usize = VLANS + 3;
const WORDS: usize = POOLS + 2 * MOST_POOLS + MOST_QUEUES;

/// `struct pools` and `struct station`.
pub(crate) type PoolWords = [u64; WORDS];
pub(crate) type StationWords = [u64; 2];

/// Places for addresses, with pools and without.
pub(crate) fn places(has_pools: bool) -> usize {
    if has_pools { PLACES } else { 1 }
}

/// The maps with the pools.
pub(crate) struct PoolMaps {
    pub(crate) now: Array<MapData, u32>,
    pub(crate) both: Array<MapData, PoolWords>,
    pub(crate) stations: Array<MapData, StationWords>,
}

/// The pools of a card, with their maps.
pub(crate) struct PoolTables {
    maps: PoolMaps,
    /// The addresses in each list.
    written: [Vec<StationWords>; 2],
    half: usize,
}

impl PoolTables {
    /// Without pools.
    pub(crate) fn new(maps: PoolMaps) -> Self {
        PoolTables { maps, written: [Vec::new(), Vec::new()], half: 1 }
    }

    /// Replaces the pools.
    pub(crate) fn set(&mut self, pools: &Pools) -> Result<(), MapError> {
        let half = self.half ^ 1;
        let too_many = || MapError::OutOfBounds {
            index: pools.stations.len() as u32,
            max_entries: MOST_STATIONS as u32,
        };
        let (start, stations) = stations_of(pools).ok_or_else(too_many)?;
        let written = &mut self.written[half];
        written.resize(PLACES, [0; 2]);
        for ((place, before), station) in (0..).zip(written).zip(stations) {
            if *before != station {
                self.maps.stations.set((half * PLACES) as u32 + place, station, 0)?;
                *before = station;
            }
        }
        self.maps.both.set(half as u32, words_of(pools, start).as_ref(), 0)?;
        self.maps.now.set(0, half as u32, 0)?;
        self.half = half;
        Ok(())
    }
}

/// The entry at each place, and the start value of the places.
fn stations_of(pools: &Pools) -> Option<(u64, Vec<StationWords>)> {
    let entries: Vec<_> =
        pools.stations.iter().map(|(address, pools)| [word_of(*address), *pools]).collect();
    let (start, at) =
        house(entries.len(), PLACES, |number, start| places_of(entries[number][0], start.into()))?;
    let stations = at.iter().map(|entry| entry.map_or([0; 2], |number| entries[number]));
    Some((start.into(), stations.collect()))
}

/// An address as the programs read it: four bytes, then two.
fn word_of([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    let (first, last) = (u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]));
    u64::from(first) << 16 | u64::from(last)
}

/// As `places_of_station` in the programs.
fn places_of(address: u64, start: u64) -> [usize; 2] {
    let hash = (address ^ start << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = (hash ^ hash >> 32).wrapping_mul(0xe703_7ed1_a0b4_28db);
    [hash as u32 as usize, (hash >> 32) as usize]
}

fn words_of(pools: &Pools, start: u64) -> Box<PoolWords> {
    let mut words = Box::new([0; WORDS]);
    words[..VLANS].copy_from_slice(&*pools.vlans);
    words[VLANS..POOLS].copy_from_slice(&[pools.groups, pools.others, start]);
    let (firsts, rest) = words[POOLS..].split_at_mut(MOST_POOLS);
    let (counts, queues) = rest.split_at_mut(MOST_POOLS);
    let mut next = 0;
    for ((first, count), own) in firsts.iter_mut().zip(counts).zip(&pools.queues) {
        (*first, *count) = (next as u64, own.len() as u64);
        // A queue is in one pool, so there is room for all.
        queues[next..].iter_mut().zip(own).for_each(|(place, &queue)| *place = queue.into());
        next += own.len();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_forms::{FlowHash, HashedOver};

    #[test]
    fn full_address_tables_have_a_place_for_each_address() {
        let station = |number: usize| {
            let [a, b, ..] = (number as u32).to_le_bytes();
            ([2, 0, 0, 0, b, a], 1)
        };
        let pools = Pools {
            stations: (0..MOST_STATIONS).map(station).collect(),
            vlans: Box::new([1; VLANS]),
            groups: 0,
            others: 0,
            queues: vec![vec![0]],
            hash: FlowHash::Lookup3(0),
            ipv4: HashedOver::default(),
            ipv6: HashedOver::default(),
        };
        let (start, stations) = stations_of(&pools).unwrap();
        for (address, of) in &pools.stations {
            let places = places_of(word_of(*address), start).map(|place| place % PLACES);
            let there = places.map(|place| stations[place] == [word_of(*address), *of]);
            assert!(there.contains(&true), "{address:?}");
        }
    }
}
