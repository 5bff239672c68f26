//! Rebalancing of `rss`: moves table entries from queues with high load to those with low load.
//!
//! In each interval the packets of every entry are counted. At its end a queue's load is the sum
//! over its entries; its share of all packets is its part of the table as it was set, so weights
//! are kept. While the queue with the greatest excess over its share is above it by more than the
//! threshold, one of its entries moves to the queue with the greatest deficit: the entry that
//! brings the two nearest together. An entry that would part them the other way round by more than
//! half of their difference is not moved, so one large flow does not circulate, and a balanced
//! table stays. The number of moves in an interval is bounded. Intervals with few packets say
//! nothing and move nothing.
//!
//! Moving an entry moves its flows: packets that wait at the old queue may be overtaken. Each move
//! is counted, as it is when a table is replaced.
//!
//! Guarantees: no allocation; a look takes moves times (entries and queues) steps at most.
//!
//! Source: the paper balances no load. The scheme is that of RSS++ (Barbette, Katsikas, Maguire,
//! Kostic, CoNEXT 2019): few entries of the indirection table, chosen by their own load. Theirs
//! solves for the processors' load; here it is greedy, and by packets.

use picnic_core::time::Time;
use picnic_hash::IndirectionTable;

/// Packets per interval below which chance alone makes queues differ.
const LEAST_PACKETS: u64 = 256;

/// The state of rebalancing.
#[derive(Debug)]
pub(super) struct Balance {
    interval_ns: u64,
    most_moves: u16,
    percent: u16,
    /// The next check; none before the first packet.
    due: Option<Time>,
    /// Packets of each entry in this interval.
    loads: Box<[u64; IndirectionTable::MAX_ENTRIES]>,
    /// Entries that each queue had when the table was set.
    shares: Box<[u32]>,
    /// By queue: load times all shares, less share times all load.
    excess: Box<[i64]>,
}

impl Balance {
    pub(super) fn new(usecs: u32, moves: u16, percent: u16, table: &IndirectionTable) -> Balance {
        let queues = usize::from(table.queues());
        let mut balance = Balance {
            interval_ns: u64::from(usecs) * 1000,
            most_moves: moves,
            percent,
            due: None,
            loads: Box::new([0; IndirectionTable::MAX_ENTRIES]),
            shares: vec![0; queues].into(),
            excess: vec![0; queues].into(),
        };
        balance.restart(table);
        balance
    }

    /// Starts again with another table: its parts are the queues' shares from now on.
    pub(super) fn restart(&mut self, table: &IndirectionTable) {
        self.loads.fill(0);
        self.shares.fill(0);
        for &queue in table.entries() {
            self.shares[usize::from(queue)] += 1;
        }
    }

    /// Counts a packet looked up in this entry.
    #[inline]
    pub(super) fn count(&mut self, entry: usize) {
        self.loads[entry % IndirectionTable::MAX_ENTRIES] += 1;
    }

    /// Moves entries if an interval has ended; returns their number.
    #[inline]
    pub(super) fn look(&mut self, now: Time, table: &mut IndirectionTable) -> usize {
        match self.due {
            Some(due) if now < due => 0,
            Some(_) => {
                self.due = Some(now + self.interval_ns);
                self.move_entries(table)
            }
            None => {
                self.due = Some(now + self.interval_ns);
                0
            }
        }
    }

    #[cold]
    fn move_entries(&mut self, table: &mut IndirectionTable) -> usize {
        let entries = table.len();
        let total: u64 = self.loads[..entries].iter().sum();
        let mut moved = 0;
        if total >= LEAST_PACKETS {
            // Below 2^58: the longest interval of 72 minutes has less than 2^44 packets, even at a
            // thousand million a second, and four times 4096 shares is 2^14.
            let all = entries as i64;
            for (excess, &share) in self.excess.iter_mut().zip(&self.shares) {
                *excess = -(total as i64 * i64::from(share));
            }
            for (&load, &queue) in self.loads.iter().zip(table.entries()) {
                self.excess[usize::from(queue)] += load as i64 * all;
            }
            // A queue without a movable entry is checked only once.
            for _ in 0..usize::from(self.most_moves) + self.excess.len() {
                if moved == usize::from(self.most_moves) || !self.move_one(table, total, &mut moved)
                {
                    break;
                }
            }
        }
        self.loads[..entries].fill(0);
        moved
    }

    /// Moves an entry from the queue with most excess, or excludes that queue from now on; false if
    /// there is nothing more to do.
    fn move_one(&mut self, table: &mut IndirectionTable, total: u64, moved: &mut usize) -> bool {
        let all = table.len() as i64;
        let by_excess = |&queue: &usize| self.excess[queue];
        let Some(from) = (0..self.excess.len()).max_by_key(by_excess) else { return false };
        let Some(to) = (0..self.excess.len()).min_by_key(by_excess) else { return false };
        let share = i128::from(total) * i128::from(self.shares[from]);
        let above = i128::from(self.excess[from]) * 100;
        if self.excess[to] >= 0 || above <= share * i128::from(self.percent) {
            return false;
        }
        let gap = self.excess[from] - self.excess[to];
        let entries = table.entries().iter().zip(self.loads.iter()).enumerate();
        let fitting = entries.filter(|(_, (queue, load))| {
            let load = **load as i64 * all;
            usize::from(**queue) == from && load != 0 && 4 * load <= 3 * gap
        });
        let nearest = fitting.min_by_key(|(_, (_, load))| (gap - 2 * **load as i64 * all).abs());
        match nearest.map(|(entry, (_, load))| (entry, *load)) {
            Some((entry, load)) if table.set(entry, to as u16).is_ok() => {
                self.excess[from] -= load as i64 * all;
                self.excess[to] += load as i64 * all;
                *moved += 1;
            }
            _ => self.excess[from] = 0,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// After each move the rest is judged as if from the start.
        #[test]
        fn one_check_moves_as_many_single_moves_would(
            entries in prop::collection::vec((0..5_u16, 0..2000_u64), 8..64),
            moves in 2..8_u16,
        ) {
            let (queues, loads): (Vec<u16>, Vec<u64>) = entries.into_iter().unzip();
            let table = IndirectionTable::from_entries(&queues, 5).unwrap();
            let moved = |moves: u16, looks: u16| {
                let (mut table, mut balance) = (table.clone(), Balance::new(1, moves, 20, &table));
                let moved = (0..looks).map(|_| {
                    balance.loads[..loads.len()].copy_from_slice(&loads);
                    balance.move_entries(&mut table)
                });
                (moved.sum::<usize>(), table.entries().to_vec())
            };
            prop_assert_eq!(moved(moves, 1), moved(1, moves));
        }
    }

    /// An interval may last 71 minutes, in which one entry sees more than 2^32 packets.
    #[test]
    fn counts_of_a_long_interval_do_not_wrap() {
        let mut table = IndirectionTable::from_entries(&[0, 0, 1, 1], 2).unwrap();
        let mut balance = Balance::new(u32::MAX, 1, 20, &table);
        assert_eq!(balance.look(Time::ZERO, &mut table), 0);
        // All at queue 0, in two entries: one of them moves.
        for entry in 0..2 {
            balance.loads[entry] = u32::MAX.into();
            balance.count(entry);
        }
        let end = Time::from_nanos(u64::from(u32::MAX) * 1000);
        assert_eq!(balance.look(end, &mut table), 1);
        assert_eq!(table.entries().iter().filter(|&&queue| queue == 1).count(), 3);
    }
}
