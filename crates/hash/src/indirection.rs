//! The table that turns a flow's hash into the queue it goes to.
//!
//! ```
//! use picnic_hash::IndirectionTable;
//!
//! let mut table = IndirectionTable::uniform(IndirectionTable::DEFAULT_ENTRIES, 4)?;
//! assert_eq!(table.lookup(130), 2);
//! table.set(2, 0)?;
//! assert_eq!(table.lookup(130), 0);
//! # Ok::<(), picnic_hash::Error>(())
//! ```
//!
//! A hash selects entry `hash % entries`; the count need not be a power of two.
//!
//! # Guarantees
//!
//! - Every entry names a queue that exists, however the table was made or changed.
//! - Looking up never panics, divides or allocates.
//!
//! Source: PICNIC, section 5.1 and figure 7; Microsoft, "Introduction to
//! Receive Side Scaling".

use std::fmt;

use crate::Error;

/// 1 to 4096 entries, each the number of a queue.
#[derive(Clone, PartialEq, Eq)]
pub struct IndirectionTable {
    /// All zero past `len`; of full size so that a masked index needs no check.
    queue_of: Box<[u16; IndirectionTable::MAX_ENTRIES]>,
    len: u16,
    queues: u16,
    /// 2^64 / `len`, rounded up: makes the remainder two multiplications.
    reciprocal: u64,
}

impl IndirectionTable {
    /// Most entries.
    pub const MAX_ENTRIES: usize = 4096;
    /// Entries of the paper's table, the most that its NICs supported.
    pub const DEFAULT_ENTRIES: usize = 128;

    /// A table where entry i names queue i modulo `queues`.
    ///
    /// # Errors
    ///
    /// [`Error::TableSize`] unless there are 1 to 4096 entries,
    /// [`Error::NoQueues`] if there are no queues.
    pub fn uniform(entries: usize, queues: u16) -> Result<IndirectionTable, Error> {
        let mut table = IndirectionTable::zero(entries, queues)?;
        let queue_in_turn = (0..queues).cycle();
        table.queue_of.iter_mut().take(entries).zip(queue_in_turn).for_each(|(to, queue)| {
            *to = queue;
        });
        Ok(table)
    }

    /// A table of the given entries, for a card with `queues` queues.
    ///
    /// # Errors
    ///
    /// As [`uniform`](Self::uniform), and [`Error::Queue`] for the first entry
    /// that names a queue past the last.
    pub fn from_entries(entries: &[u16], queues: u16) -> Result<IndirectionTable, Error> {
        let mut table = IndirectionTable::zero(entries.len(), queues)?;
        for (entry, &queue) in entries.iter().enumerate() {
            table.set(entry, queue)?;
        }
        Ok(table)
    }

    /// A table in which each queue has its share of the entries by weight, to within one entry,
    /// spread evenly (smooth weighted round robin). With equal weights, [`uniform`](Self::uniform).
    ///
    /// # Errors
    ///
    /// As [`uniform`](Self::uniform), [`Error::Weights`] if the number of weights is not the number
    /// of queues, [`Error::NoWeight`] if all are zero.
    pub fn weighted(entries: usize, weights: &[u32], queues: u16) -> Result<Self, Error> {
        let mut table = IndirectionTable::zero(entries, queues)?;
        if weights.len() != usize::from(queues) {
            return Err(Error::Weights { found: weights.len(), queues });
        }
        let sum: i64 = weights.iter().map(|&weight| i64::from(weight)).sum();
        if sum == 0 {
            return Err(Error::NoWeight);
        }
        // In each turn a queue gains its weight; the queue with the most gets the entry and pays
        // the sum.
        let mut credit = vec![0_i64; weights.len()];
        for to in table.queue_of.iter_mut().take(entries) {
            credit
                .iter_mut()
                .zip(weights)
                .for_each(|(credit, &weight)| *credit += i64::from(weight));
            // The first of equals.
            let Some(richest) = (0..credit.len()).rev().max_by_key(|&queue| credit[queue]) else {
                break;
            };
            credit[richest] -= sum;
            *to = richest as u16;
        }
        Ok(table)
    }

    fn zero(entries: usize, queues: u16) -> Result<IndirectionTable, Error> {
        if !(1..=IndirectionTable::MAX_ENTRIES).contains(&entries) {
            return Err(Error::TableSize { found: entries });
        }
        if queues == 0 {
            return Err(Error::NoQueues);
        }
        Ok(IndirectionTable {
            queue_of: Box::new([0; IndirectionTable::MAX_ENTRIES]),
            len: entries as u16,
            queues,
            // For one entry this wraps to 0, so every remainder is 0, as it should be.
            reciprocal: (u64::MAX / entries as u64).wrapping_add(1),
        })
    }

    /// Points one entry at another queue.
    ///
    /// # Errors
    ///
    /// [`Error::Entry`] or [`Error::Queue`]; the table is then unchanged.
    pub fn set(&mut self, entry: usize, queue: u16) -> Result<(), Error> {
        let queues = self.queues;
        if queue >= queues {
            return Err(Error::Queue { entry, queue, queues });
        }
        let entries = self.len();
        let to = self.queue_of.get_mut(entry).filter(|_| entry < entries);
        *to.ok_or(Error::Entry { entry, entries })? = queue;
        Ok(())
    }

    /// Number of entries, 1 to 4096.
    #[allow(clippy::len_without_is_empty)] // never empty
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Number of queues the entries may name.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// The queue of each entry.
    pub fn entries(&self) -> &[u16] {
        &self.queue_of[..self.len()]
    }

    /// Number of entries of each queue.
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; usize::from(self.queues)];
        for &queue in self.entries() {
            counts[usize::from(queue)] += 1;
        }
        counts
    }

    /// The entry a hash selects: `hash % len`.
    #[inline]
    pub fn index(&self, hash: u32) -> usize {
        if self.len.is_power_of_two() {
            return hash as usize & (self.len() - 1);
        }
        // The fraction of hash / len, to 64 binary places, times len. Exact, because 64 places are
        // enough for a hash of 32 bits and so short a length.
        let fraction = self.reciprocal.wrapping_mul(u64::from(hash));
        ((u128::from(fraction) * u128::from(self.len)) >> 64) as usize
    }

    /// The queue a hash leads to.
    #[inline]
    pub fn lookup(&self, hash: u32) -> u16 {
        self.queue_of[self.index(hash) & (IndirectionTable::MAX_ENTRIES - 1)]
    }

    /// The queue of each hash; writes the first `min(hashes.len(), queues.len())`.
    #[inline]
    pub fn lookup_burst(&self, hashes: &[u32], queues: &mut [u16]) {
        for (&hash, queue) in hashes.iter().zip(queues) {
            *queue = self.lookup(hash);
        }
    }
}

impl fmt::Debug for IndirectionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndirectionTable")
            .field("queues", &self.queues)
            .field("entries", &self.entries())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_the_remainder_for_every_length() {
        let hashes =
            [0, 1, 2, 127, 128, 4095, 4096, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX];
        for len in 1..=IndirectionTable::MAX_ENTRIES {
            let table = IndirectionTable::uniform(len, 1).unwrap();
            // Hashes around a multiple are where a remainder goes wrong.
            let multiple = u32::MAX / len as u32 * len as u32;
            for hash in hashes.into_iter().chain([multiple, multiple - 1]) {
                assert_eq!(table.index(hash), hash as usize % len, "{hash} modulo {len}");
            }
        }
    }

    #[test]
    fn uniform_is_even_to_one_entry() {
        for (entries, queues) in [(128, 1), (128, 3), (100, 7), (1, 4), (4096, 6), (4, 4)] {
            let counts = IndirectionTable::uniform(entries, queues).unwrap().counts();
            assert_eq!(counts.len(), usize::from(queues));
            assert_eq!(counts.iter().sum::<usize>(), entries);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn weighted_queues_are_spread_evenly() {
        let entries = |weights: &[u32], entries| {
            let queues = weights.len() as u16;
            IndirectionTable::weighted(entries, weights, queues).unwrap().entries().to_vec()
        };
        assert_eq!(entries(&[2, 1], 6), [0, 1, 0, 0, 1, 0]);
        assert_eq!(entries(&[0, 3, 1], 4), [1, 1, 2, 1]);
        assert_eq!(entries(&[5, 5, 5], 8), [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(entries(&[u32::MAX, u32::MAX], 3), [0, 1, 0]);
        let refused =
            |weights: &[u32]| IndirectionTable::weighted(8, weights, 2).map(|_| ()).unwrap_err();
        assert_eq!(refused(&[1]), Error::Weights { found: 1, queues: 2 });
        assert_eq!(refused(&[0, 0]), Error::NoWeight);
        refused(&[1, 1, 1]);
        IndirectionTable::weighted(8, &[0, 1], 2).unwrap();
    }

    #[test]
    fn errors_name_found_and_allowed_values() {
        let size = |entries| IndirectionTable::uniform(entries, 4).unwrap_err();
        assert_eq!(size(0), Error::TableSize { found: 0 });
        assert_eq!(size(4097), Error::TableSize { found: 4097 });
        assert_eq!(IndirectionTable::uniform(128, 0), Err(Error::NoQueues));
        assert_eq!(
            IndirectionTable::from_entries(&[0, 3, 4, 9], 4).unwrap_err().to_string(),
            "indirection table entry 2 names queue 4, allowed: 0 to 3"
        );
    }

    #[test]
    fn a_refused_change_leaves_the_table_as_it_was() {
        let mut table = IndirectionTable::from_entries(&[2, 0, 1], 3).unwrap();
        let before = table.clone();
        assert_eq!(table.set(0, 3), Err(Error::Queue { entry: 0, queue: 3, queues: 3 }));
        assert_eq!(table.set(3, 0), Err(Error::Entry { entry: 3, entries: 3 }));
        assert_eq!(table.set(5000, 0), Err(Error::Entry { entry: 5000, entries: 3 }));
        assert_eq!(table, before);
        table.set(1, 2).unwrap();
        assert_eq!(table.entries(), [2, 2, 1]);
        assert_eq!(table.counts(), [0, 1, 2]);
    }

    #[test]
    fn burst_equals_single_lookups_up_to_the_shorter() {
        let table = IndirectionTable::uniform(100, 7).unwrap();
        let hashes: Vec<u32> = (0..50).map(|i: u32| i.wrapping_mul(0x9e37_79b9)).collect();
        let mut queues = [99; 60];
        table.lookup_burst(&hashes, &mut queues);
        for (i, &queue) in queues.iter().enumerate() {
            assert_eq!(queue, hashes.get(i).map_or(99, |&hash| table.lookup(hash)));
        }
        let mut few = [99; 3];
        table.lookup_burst(&hashes, &mut few);
        assert_eq!(few, queues[..3]);
    }
}
