//! Rebalancing of `rss` against a slow model of its guarantees.

use crate::common::frames::{Network, Spec, Upper};
use crate::common::{Card, Door, from_wire_0};
use picnic_core::command::Order;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_functions::rss::{Config, Context, Rss, TableChange};
use picnic_hash::IndirectionTable;
use proptest::prelude::*;

const INTERVAL_NS: u64 = 1_000_000;

/// Rebalancing in exact arithmetic.
struct Model {
    queues: usize,
    most: usize,
    percent: i128,
    table: Vec<u16>,
    shares: Vec<i128>,
    loads: Vec<i128>,
    due: Option<Time>,
}

impl Model {
    fn new(queues: u16, most: u16, percent: u16, table: &[u16]) -> Model {
        let mut model = Model {
            queues: queues.into(),
            most: most.into(),
            percent: percent.into(),
            table: Vec::new(),
            shares: Vec::new(),
            loads: Vec::new(),
            due: None,
        };
        model.restart(table);
        model
    }

    fn restart(&mut self, table: &[u16]) {
        self.table = table.to_vec();
        self.loads = vec![0; table.len()];
        let share = |queue| table.iter().filter(|&&other| usize::from(other) == queue).count();
        self.shares = (0..self.queues).map(|queue| share(queue) as i128).collect();
    }

    /// A burst comes in at this time: how many entries are moved ahead of it.
    fn look(&mut self, now: Time) -> u64 {
        let is_due = self.due.is_some_and(|due| now >= due);
        if is_due || self.due.is_none() {
            self.due = Some(now + INTERVAL_NS);
        }
        if !is_due {
            return 0;
        }
        let moved = self.balance();
        self.loads.fill(0);
        moved
    }

    fn balance(&mut self) -> u64 {
        let (total, entries) = (self.loads.iter().sum::<i128>(), self.table.len() as i128);
        let mut left_out = vec![false; self.queues];
        let mut moved = 0;
        while total >= 256 && moved < self.most as u64 {
            let load = |queue: usize| {
                let of_queue = self.table.iter().zip(&self.loads);
                of_queue.filter(|entry| usize::from(*entry.0) == queue).map(|e| e.1).sum::<i128>()
            };
            let excess: Vec<_> = (0..self.queues)
                .map(|queue| match left_out[queue] {
                    true => 0,
                    false => load(queue) * entries - total * self.shares[queue],
                })
                .collect();
            let (mut from, mut to) = (0, 0);
            for queue in 1..self.queues {
                // Of equals the last gives, and the first takes.
                from = if excess[queue] >= excess[from] { queue } else { from };
                to = if excess[queue] < excess[to] { queue } else { to };
            }
            let most = total * self.shares[from] * self.percent;
            if excess[to] >= 0 || excess[from] * 100 <= most {
                break;
            }
            let gap = excess[from] - excess[to];
            let mut best: Option<usize> = None;
            let apart = |entry: usize| (gap - 2 * self.loads[entry] * entries).abs();
            for entry in 0..self.table.len() {
                let load = self.loads[entry] * entries;
                let fits = load != 0 && 4 * load <= 3 * gap;
                let is_better = best.is_none_or(|other| apart(entry) < apart(other));
                if usize::from(self.table[entry]) == from && fits && is_better {
                    best = Some(entry);
                }
            }
            match best {
                Some(entry) => (self.table[entry], moved) = (to as u16, moved + 1),
                None => left_out[from] = true,
            }
        }
        moved
    }
}

/// An `rss` whose entries can be given load, and its model.
struct Pair {
    rss: Rss,
    card: Card,
    model: Model,
    moved: u64,
}

impl Pair {
    fn new(queues: u16, table: &[u16], moves: u16, percent: u16) -> Pair {
        let context = BuildContext { queues, ..BuildContext::default() };
        let of_mark = Context { mark: 1, table: Some(vec![queues - 1]), ..Context::default() };
        let config = Config {
            table: Some(table.to_vec()),
            contexts: vec![of_mark],
            rebalance_usecs: 1000,
            rebalance_moves: moves,
            rebalance_percent: percent,
            ..Config::default()
        };
        let rss = Rss::new(&config, &context).unwrap();
        let model = Model::new(queues, moves, percent, table);
        Pair { rss, card: Card::new(&context), model, moved: 0 }
    }

    /// A packet that is looked up in this entry.
    fn frame(&self, entry: usize) -> Vec<u8> {
        let frame =
            |port| Spec { ports: (port, 80), ..Spec::plain(Network::V4, Upper::Tcp) }.build();
        let is_its = |frame: &Vec<u8>| {
            self.rss.classify(frame).hash as usize % self.model.table.len() == entry
        };
        (0..u16::MAX).map(frame).find(is_its).unwrap()
    }

    /// This many packets of each entry, and this many with a mark, which do not count.
    fn send(&mut self, counts: &[u32], marked: usize) {
        let entries = counts.iter().take(self.model.table.len()).enumerate();
        let mut packets: Vec<_> = entries
            .flat_map(|(entry, &count)| {
                std::iter::repeat_n((entry, self.frame(entry)), count as usize)
            })
            .collect();
        let unmarked = packets.len();
        packets.extend(std::iter::repeat_n((0, self.frame(0)), marked));
        for (number, burst) in packets.chunks(64).enumerate() {
            let frames = from_wire_0(burst.iter().map(|(_, frame)| frame.clone()));
            let is_marked = |place: usize| number * 64 + place >= unmarked;
            let mut first = None;
            let mark = |place: usize, packet: &mut picnic_core::packet::desc::Descriptor| {
                packet.mark = is_marked(place).into();
                first.get_or_insert(packet.received_at().as_nanos());
            };
            let seen = self.card.run_with(&mut self.rss, &frames, mark);
            self.moved += self.model.look(self.card.now);
            assert_eq!(self.rss.table().entries(), self.model.table);
            for packet in seen {
                let place = packet.number - first.unwrap() as usize;
                let entry = burst[place].0;
                if is_marked(place) {
                    assert_eq!(packet.door, Door::Queue(self.model.queues as u16 - 1));
                } else {
                    self.model.loads[entry] += 1;
                    assert_eq!(packet.door, Door::Queue(self.model.table[entry]));
                }
            }
        }
        let counters = self.rss.counters();
        assert_eq!(counters.rebalanced_entries.get(), self.moved);
    }

    /// The table after one interval with this load.
    fn balanced(&mut self, counts: &[u32]) -> Vec<u16> {
        self.send(&[1], 0);
        self.card.now = self.card.now + INTERVAL_NS;
        self.send(&[0], 1);
        self.send(counts, 0);
        self.card.now = self.card.now + INTERVAL_NS;
        self.send(&[0], 1);
        self.rss.table().entries().to_vec()
    }
}

fn load() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 1..8_u32, 1..150_u32]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn entries_move_as_in_the_model(
        (queues, tables) in (1..5_u16).prop_flat_map(|queues| {
            (Just(queues), prop::collection::vec(prop::collection::vec(0..queues, 1..10), 2))
        }),
        moves in prop::sample::select(vec![1_u16, 2, 3, 64]),
        percent in prop::sample::select(vec![1_u16, 20, 100, 300, 1000]),
        rounds in prop::collection::vec(
            (
                prop::collection::vec(load(), 10),
                0..70_usize,
                prop::sample::select(vec![1, INTERVAL_NS - 1, INTERVAL_NS, 5 * INTERVAL_NS / 2]),
            ),
            2..6,
        ),
        replaced in 0..6_usize,
    ) {
        let mut pair = Pair::new(queues, &tables[0], moves, percent);
        for (round, (counts, marked, step_ns)) in rounds.iter().enumerate() {
            if round == replaced {
                let table = IndirectionTable::from_entries(&tables[1], queues).unwrap();
                prop_assert!(TableChange::table(table).apply(&mut pair.rss, pair.card.now));
                pair.model.restart(&tables[1]);
            }
            pair.send(counts, *marked);
            pair.card.now = pair.card.now + *step_ns;
        }
        pair.send(&[1], 0);
    }
}

#[test]
fn fewer_than_256_packets_move_nothing() {
    let table = [0, 0, 1, 1];
    assert_eq!(Pair::new(2, &table, 1, 20).balanced(&[200, 55, 0, 0]), table);
    assert_eq!(Pair::new(2, &table, 1, 20).balanced(&[200, 56, 0, 0]), [0, 1, 1, 1]);
}

#[test]
fn moves_start_above_the_threshold() {
    let table = [0, 0, 1, 1];
    assert_eq!(Pair::new(2, &table, 1, 20).balanced(&[100, 500, 200, 200]), table);
    assert_eq!(Pair::new(2, &table, 1, 20).balanced(&[101, 500, 200, 199]), [1, 0, 1, 1]);
}

#[test]
fn entries_that_would_overshoot_stay() {
    let table = [0, 0, 1, 1];
    assert_eq!(Pair::new(2, &table, 1, 20).balanced(&[300, 400, 150, 150]), [1, 0, 1, 1]);
    assert_eq!(Pair::new(2, &table, 1, 20).balanced(&[301, 399, 150, 150]), table);
}

#[test]
fn setting_a_table_restarts_balancing() {
    let mut pair = Pair::new(2, &[0, 0, 1, 1], 4, 20);
    pair.send(&[300, 300, 0, 0], 0);
    let table = IndirectionTable::from_entries(&[0, 0, 0, 1], 2).unwrap();
    assert!(TableChange::table(table).apply(&mut pair.rss, pair.card.now));
    pair.model.restart(&[0, 0, 0, 1]);
    pair.card.now = pair.card.now + INTERVAL_NS;
    // Counts of the old table are dropped; and three quarters are queue 0's share.
    pair.send(&[100, 100, 100, 100], 0);
    pair.card.now = pair.card.now + INTERVAL_NS;
    pair.send(&[0], 1);
    assert_eq!(pair.rss.table().entries(), [0, 0, 0, 1]);
    assert_eq!(pair.moved, 0);
}
