//! The backlog against a model: order, limits, fairness, stalled wires, every packet accounted for.

use picnic_core::backlog::{Backlog, Limits, STALL_NS};
use picnic_core::classes::Classes;
use picnic_core::config::CardFile;
use picnic_core::ledger::{DropReason, Ledger};
use picnic_core::out::{Doors, Fate, WireProgress};
use picnic_core::packet::desc::{Descriptor, GsoType};
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::stats::{SteerCounters, WireCounters};
use picnic_core::time::Time;
use picnic_core::turns::QUANTUM_BYTES;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

const QUEUES: usize = 3;
const LIMITS: Limits = Limits { packets: 12, bytes: 5000 };

struct Bench {
    pool: Pool,
    backlog: Backlog,
    counters: Vec<Arc<SteerCounters>>,
    progress: Vec<WireProgress>,
}

impl Bench {
    fn new(wires: usize, limits: Limits) -> Self {
        let config = PoolConfig { buffers: 2048, ..PoolConfig::default() };
        let (pool, _) = Pool::new(&config, 0).unwrap();
        let counters: Vec<_> = (0..QUEUES).map(|_| Arc::new(SteerCounters::default())).collect();
        let progress = (0..wires).map(|_| WireProgress::default()).collect();
        Bench { pool, backlog: Backlog::new(wires, counters.clone(), limits), counters, progress }
    }

    /// A packet with a number, of a tx queue, or of a function if that is `QUEUES`.
    fn packet(&mut self, queue: usize, length: usize, number: u32) -> Descriptor {
        let mut packet = self.pool.allocate(length).unwrap();
        packet.mark = number;
        if queue < QUEUES {
            packet.set_tx_queue(queue as u8);
        }
        packet
    }

    /// Lets a wire take up to `count` packets; returns their queue, number and length.
    fn serve(&mut self, wire: usize, now: Time, count: usize) -> Vec<(usize, u32, u32)> {
        let (mut seen, pool) = (Vec::new(), &mut self.pool);
        let progress = &mut self.progress[wire];
        let taken = self.backlog.serve(wire, now, false, progress, |ready| {
            let mut dropped = 0;
            let mut place = 0;
            while seen.len() < count
                && let Some(packet) = ready.pop_front()
            {
                let queue = packet.tx_queue().map_or(QUEUES, usize::from);
                seen.push((queue, packet.mark, packet.length()));
                dropped |= u64::from(packet.mark % 3 == 0) << place;
                place += 1;
                pool.free(packet);
            }
            dropped
        });
        assert_eq!(taken.unwrap_or(0), seen.len());
        seen
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// A packet of this queue to this wire, if it is admitted.
    Send {
        queue: usize,
        wire: usize,
        length: usize,
    },
    /// The same, admitted or not: a function held it, or made it.
    Force {
        queue: usize,
        wire: usize,
        length: usize,
    },
    Serve {
        wire: usize,
        count: usize,
    },
    Pass {
        nanos: u64,
    },
    Take,
}

fn op() -> impl Strategy<Value = Op> {
    let length = prop_oneof![1_usize..100, 1000_usize..2048];
    let place = (0..QUEUES + 1, 0_usize..3, length);
    prop_oneof![
        8 => place.clone().prop_map(|(queue, wire, length)| Op::Send { queue, wire, length }),
        2 => place.prop_map(|(queue, wire, length)| Op::Force { queue, wire, length }),
        3 => (0_usize..2, 0_usize..20).prop_map(|(wire, count)| Op::Serve { wire, count }),
        2 => (0..STALL_NS).prop_map(|nanos| Op::Pass { nanos }),
        1 => Just(Op::Take),
    ]
}

/// The model's state of a wire.
#[derive(Default)]
struct Wire {
    lanes: [VecDeque<(u32, u32)>; QUEUES + 1],
    stalled: bool,
    progress: Time,
}

impl Wire {
    fn waiting(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }

    fn bytes(&self, queue: usize) -> u64 {
        self.lanes[queue].iter().map(|&(_, length)| u64::from(length)).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// Wires 0 and 1 exist, wire 2 does not.
    #[test]
    fn backlog_agrees_with_the_model(ops in prop::collection::vec(op(), 1..300)) {
        let mut bench = Bench::new(2, LIMITS);
        let mut wires = [Wire::default(), Wire::default()];
        let (mut number, mut now) = (0, Time::ZERO);
        for op in ops {
            let charged = |wires: &[Wire; 2], queue: usize| {
                let counted = wires.iter().filter(|wire| !wire.stalled);
                counted.fold((0, 0), |(packets, bytes), wire| {
                    (packets + wire.lanes[queue].len(), bytes + wire.bytes(queue))
                })
            };
            match op {
                Op::Send { queue, wire, length } | Op::Force { queue, wire, length } => {
                    let (packets, bytes) = charged(&wires, queue.min(QUEUES));
                    let admits = queue == QUEUES || packets == 0
                        || (packets < LIMITS.packets && bytes + length as u64 <= LIMITS.bytes);
                    let found = bench.backlog.admits(queue, 0, 0, length as u32);
                    prop_assert_eq!(found, admits, "{} packets, {} bytes", packets, bytes);
                    if !admits && matches!(op, Op::Send { .. }) {
                        continue;
                    }
                    number += 1;
                    let packet = bench.packet(queue, length, number);
                    let expected = match wires.get(wire) {
                        None => Some(DropReason::NoSuchWire),
                        Some(wire) => {
                            let (packets, bytes) = (wire.lanes[queue].len(), wire.bytes(queue));
                            let more = bytes + length as u64 > LIMITS.bytes && packets != 0;
                            let full = packets >= LIMITS.packets || (wire.stalled && more);
                            full.then_some(DropReason::WireFull)
                        }
                    };
                    match bench.backlog.push(packet, wire as u8) {
                        Ok(()) => {
                            prop_assert_eq!(expected, None);
                            wires[wire].lanes[queue].push_back((number, length as u32));
                        }
                        Err((packet, reason)) => {
                            prop_assert_eq!((packet.mark, Some(reason)), (number, expected));
                            bench.pool.free(packet);
                        }
                    }
                }
                Op::Serve { wire, count } => {
                    let model = &mut wires[wire];
                    let was = model.waiting();
                    let taken = bench.serve(wire, now, count);
                    prop_assert_eq!(taken.len(), was.min(count));
                    for (queue, number, length) in taken.iter().copied() {
                        let expected = model.lanes[queue].pop_front();
                        prop_assert_eq!(expected, Some((number, length)), "order of a lane");
                    }
                    if was == 0 || !taken.is_empty() {
                        model.progress = now;
                    }
                    if was != 0 {
                        let late = now.since(model.progress) >= STALL_NS;
                        model.stalled = taken.is_empty() && (model.stalled || late);
                    }
                }
                Op::Pass { nanos } => now = now + nanos,
                Op::Take => {
                    if let Some(packet) = bench.backlog.take() {
                        let queue = packet.tx_queue().map_or(QUEUES, usize::from);
                        let found = (packet.mark, packet.length());
                        let heads = wires.iter_mut().map(|wire| &mut wire.lanes[queue]);
                        let mut heads = heads.filter(|lane| lane.front() == Some(&found));
                        prop_assert!(heads.next().and_then(VecDeque::pop_front).is_some());
                        bench.pool.free(packet);
                    }
                }
            }
            let waiting: usize = wires.iter().map(Wire::waiting).sum();
            prop_assert_eq!(bench.backlog.waiting(), waiting);
            prop_assert_eq!(bench.pool.outstanding(), waiting);
            for (queue, counters) in bench.counters.iter().enumerate() {
                prop_assert_eq!(counters.tx_in_flight_bytes.get(), charged(&wires, queue).1);
            }
        }
        while let Some(packet) = bench.backlog.take() {
            bench.pool.free(packet);
        }
        prop_assert_eq!(bench.pool.outstanding(), 0);
        for counters in &bench.counters {
            prop_assert_eq!(counters.tx_in_flight_bytes.get(), 0);
        }
    }

    /// Lanes that always have packets are never further apart than a quantum and two packets,
    /// of any size, including those of functions; and none starves.
    #[test]
    fn lanes_share_a_wire_by_bytes(
        lengths in prop::collection::vec(prop_oneof![Just(60_usize), Just(1514), 60_usize..2048], 4),
        takes in prop::collection::vec(1_usize..100, 50),
    ) {
        let limits = Limits { packets: 100, bytes: 1 << 30 };
        let mut bench = Bench::new(1, limits);
        let (mut number, mut waiting, mut bytes) = (0, [0; QUEUES + 1], [0_u64; QUEUES + 1]);
        let longest = *lengths.iter().max().unwrap() as u64;
        // Packets offered to the wire before any lane has to wait are sent in order of arrival.
        let mut offered = 64;
        for count in takes {
            for queue in 0..=QUEUES {
                while waiting[queue] < 100 {
                    number += 1;
                    let packet = bench.packet(queue, lengths[queue], number);
                    bench.backlog.push(packet, 0).unwrap();
                    waiting[queue] += 1;
                }
            }
            // No more than a lane has in addition to ready packets.
            for (queue, _, length) in bench.serve(0, Time::ZERO, count.min(30)) {
                waiting[queue] -= 1;
                if offered != 0 {
                    offered -= 1;
                    continue;
                }
                bytes[queue] += u64::from(length);
                let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
                let bound = u64::from(QUANTUM_BYTES) + 2 * longest;
                prop_assert!(most - least <= bound, "{:?} of {:?}", bytes, lengths);
            }
        }
        while let Some(packet) = bench.backlog.take() {
            bench.pool.free(packet);
        }
    }
}

#[test]
fn super_frames_are_dropped_at_wires_without_support() {
    let mut bench = Bench::new(2, LIMITS);
    bench.backlog.set_super_frames(1, false);
    for (wire, reason) in [(0, None), (1, Some(DropReason::SuperFrame))] {
        let mut packet = bench.packet(0, 100, 1);
        packet.set_gso(GsoType::Tcp4, 50);
        let refused = bench.backlog.push(packet, wire).err().map(|(packet, reason)| {
            bench.pool.free(packet);
            reason
        });
        assert_eq!(refused, reason);
    }
    assert_eq!(bench.serve(0, Time::ZERO, 9).len(), 1);
}

#[test]
fn a_packet_longer_than_the_limit_waits_alone() {
    let mut bench = Bench::new(1, Limits { packets: 12, bytes: 1514 });
    assert!(bench.backlog.admits(0, 0, 0, 65_000));
    assert!(!bench.backlog.admits(0, 1, 60, 1500), "what was taken before counts");
    let packet = bench.packet(0, 2000, 1);
    bench.backlog.push(packet, 0).unwrap();
    assert!(!bench.backlog.admits(0, 0, 0, 1) && bench.backlog.admits(1, 0, 0, 1));
    bench.serve(0, Time::ZERO, 1);
    assert!(bench.backlog.admits(0, 0, 0, 65_000));
}

#[test]
fn watched_packets_report_their_own_fate() {
    let config = PoolConfig { buffers: 512, ..PoolConfig::default() };
    let (pool, _) = Pool::new(&config, 0).unwrap();
    let ledger = Arc::new(Ledger::new(0));
    let mut doors = Doors::new(pool, Vec::new(), 1, 64, ledger);
    let counters = (0..QUEUES).map(|_| Arc::default()).collect();
    doors.backlog = Backlog::new(1, counters, Limits { packets: 64, bytes: 1 << 30 });
    let (mut watched, wire) = (Vec::new(), WireCounters::default());
    for number in 0..80_u32 {
        let mut packet = doors.pool.allocate(60 + number as usize * 7).unwrap();
        packet.mark = number;
        packet.set_tx_queue((number % 3) as u8);
        match number % 4 {
            // Taken from a tx ring or not: a watched packet is in the card's own lane.
            0 => watched.push((number, doors.transmit_watched(packet, 0).unwrap())),
            1 => doors.transmit(packet, 0),
            _ => {
                packet.clear_tx_queue();
                doors.transmit(packet, 0);
            }
        }
    }
    let refused = doors.pool.allocate(60).unwrap();
    assert_eq!(doors.transmit_watched(refused, 1), Err(DropReason::NoSuchWire));
    let mut gone = Vec::new();
    while doors.waiting_for_wires() != 0 {
        let mut room = 7;
        doors.serve_wire(0, Time::ZERO, &wire, |mut tx| {
            while room != 0
                && let Some(packet) = tx.next()
            {
                room -= 1;
                gone.push(packet.mark);
                // Every third is dropped.
                if packet.mark % 3 == 0 {
                    tx.drop(packet, DropReason::Oversize);
                } else {
                    tx.sent(packet);
                }
            }
        });
        for &(number, watch) in &watched {
            let expected = match gone.contains(&number) {
                false => Fate::Waiting,
                true if number % 3 == 0 => Fate::Dropped,
                true => Fate::Sent,
            };
            assert_eq!(doors.progress[0].fate(watch), expected, "{number}");
        }
    }
    watched.iter().for_each(|&(_, watch)| doors.progress[0].forget(watch));
    assert!(!doors.is_watched());
    assert_eq!(doors.pool.outstanding(), 0);
}

#[test]
fn idle_lanes_accumulate_no_credit() {
    let mut bench = Bench::new(1, Limits { packets: 100, bytes: 1 << 30 });
    // Lane 0 sends a small packet in each of its fifty turns, and is idle in between.
    for _ in 0..50 {
        // As many as are offered at once: later ones wait for their turn.
        for _ in 0..64 {
            let packet = bench.packet(1, 60, 0);
            bench.backlog.push(packet, 0).unwrap();
        }
        let packet = bench.packet(0, 60, 0);
        bench.backlog.push(packet, 0).unwrap();
        assert_eq!(bench.serve(0, Time::ZERO, 100).len(), 65);
    }
    for _ in 0..64 {
        let packet = bench.packet(2, 60, 0);
        bench.backlog.push(packet, 0).unwrap();
    }
    for _ in 0..20 {
        for queue in [0, 1] {
            let packet = bench.packet(queue, 1514, 0);
            bench.backlog.push(packet, 0).unwrap();
        }
    }
    let lanes: Vec<_> = bench.serve(0, Time::ZERO, 200).iter().map(|&(lane, ..)| lane).collect();
    assert_eq!(lanes[64..], [0, 1].repeat(20), "turn about from the start");
}

#[test]
fn queue_limits_are_exact() {
    let mut bench = Bench::new(2, LIMITS);
    assert_eq!(bench.backlog.wires(), 2);
    for number in 0..LIMITS.packets {
        assert!(bench.backlog.admits(0, 0, 0, 10), "{number}");
        let packet = bench.packet(0, 10, number as u32);
        bench.backlog.push(packet, 1).unwrap();
    }
    assert!(!bench.backlog.admits(0, 0, 0, 10));
    // Packets taken and not queued yet count as well.
    assert!(bench.backlog.admits(1, 11, 4900, 100));
    assert!(!bench.backlog.admits(1, 11, 4900, 101) && !bench.backlog.admits(1, 12, 0, 1));
    let taken = bench.serve(1, Time::ZERO, 5);
    assert_eq!(taken.len(), 5);
    let counters = &bench.counters[0];
    assert_eq!((counters.tx_completed.get(), counters.tx_completed_bytes.get()), (5, 50));
}

#[test]
fn functions_have_a_limit_per_wire() {
    let mut bench = Bench::new(2, LIMITS);
    assert!(bench.backlog.own_has_room(usize::MAX), "what is empty takes one of any size");
    for number in 0..10 {
        let packet = bench.packet(QUEUES, 10, number);
        bench.backlog.push(packet, 1).unwrap();
    }
    assert!(bench.backlog.own_has_room(2) && !bench.backlog.own_has_room(3));
}

#[test]
fn empty_wires_are_served_only_while_keeping_packets() {
    let mut bench = Bench::new(1, LIMITS);
    for (keeps, expected) in [(false, None), (true, Some(0))] {
        let progress = &mut bench.progress[0];
        assert_eq!(bench.backlog.serve(0, Time::ZERO, keeps, progress, |_| 0), expected);
    }
}

#[test]
fn wires_stall_exactly_at_the_limit() {
    let mut bench = Bench::new(2, LIMITS);
    let packet = bench.packet(0, 2000, 1);
    bench.backlog.push(packet, 0).unwrap();
    let in_flight = |bench: &Bench| bench.counters[0].tx_in_flight_bytes.get();
    for (nanos, expected) in [(0, 2000), (STALL_NS - 1, 2000), (STALL_NS, 0)] {
        assert!(bench.serve(0, Time::from_nanos(nanos), 0).is_empty());
        assert_eq!(in_flight(&bench), expected, "after {nanos} ns");
    }
}

#[test]
fn a_packet_of_a_whole_quantum_leaves_in_its_first_turn() {
    let mut bench = Bench::new(1, Limits { packets: 100, bytes: 1 << 30 });
    // Those offered at once; the others wait for their turns.
    for _ in 0..64 {
        let packet = bench.packet(2, 60, 0);
        bench.backlog.push(packet, 0).unwrap();
    }
    for (queue, length) in [(0, QUANTUM_BYTES), (1, 60)] {
        let packet = bench.packet(queue, length as usize, 0);
        bench.backlog.push(packet, 0).unwrap();
    }
    let lanes: Vec<_> = bench.serve(0, Time::ZERO, 66).iter().map(|&(lane, ..)| lane).collect();
    assert_eq!(lanes[64..], [0, 1]);
}

#[test]
fn turns_do_not_move_while_a_wire_has_no_room() {
    let mut bench = Bench::new(1, Limits { packets: 100, bytes: 1 << 30 });
    let push = |bench: &mut Bench, queue, number| {
        let packet = bench.packet(queue, 60, number);
        bench.backlog.push(packet, 0).unwrap();
    };
    // As many as are offered at once: none waits for its turn.
    (0..64).for_each(|_| push(&mut bench, 2, 1));
    assert_eq!(bench.serve(0, Time::ZERO, 0), []);
    push(&mut bench, 1, 1);
    assert_eq!(bench.serve(0, Time::ZERO, 0), []);
    push(&mut bench, 0, 1);
    let lanes: Vec<_> = bench.serve(0, Time::ZERO, 66).iter().map(|&(lane, ..)| lane).collect();
    assert_eq!(lanes[64..], [0, 1], "the turn was that of the first");
}

// ---------------------------------------------------------------- traffic classes

/// A class of the priority and weight, for packets with its number as mark.
fn classes(list: &[(u8, u32)]) -> Classes {
    let text: String = list
        .iter()
        .enumerate()
        .map(|(mark, (priority, weight))| {
            format!(
                "[[class]]\nname = \"c{mark}\"\nmarks = [{mark}]\npriority = {priority}\n\
                 weight = {weight}\n"
            )
        })
        .collect();
    Classes::of(&CardFile::parse(&text, None).unwrap()).unwrap().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

    /// Classes that always have packets share a wire by weight, to within a turn, regardless of
    /// their packets and queues; one of a higher priority has all of it. Nothing is lost or
    /// reordered.
    #[test]
    fn classes_share_a_wire_by_priority_and_weight(
        weights in prop::collection::vec(1_u32..9, 3),
        lengths in prop::collection::vec(60_usize..2048, 3),
        takes in prop::collection::vec(1_usize..64, 100),
        urgent in any::<bool>(),
    ) {
        let mut bench = Bench::new(1, Limits { packets: 100, bytes: 1 << 30 });
        let list: Vec<_> = weights.iter().map(|&weight| (0, weight)).collect();
        let all = classes(&[list, vec![(7, 1)]].concat());
        let names: Vec<_> = all.names().map(str::to_owned).collect();
        bench.backlog = Backlog::new(1, bench.counters.clone(), Limits {
            packets: 100, bytes: 1 << 30
        }).classified(all);
        let mut sent = [const { VecDeque::new() }; 4];
        let (mut number, mut bytes, mut offered) = (0_u32, [0_u64; 4], 64);
        for count in takes {
            let classes = if urgent { 4 } else { 3 };
            for (class, sent) in sent.iter_mut().enumerate().take(classes) {
                while sent.len() < 90 {
                    number += 1;
                    let length = lengths.get(class).copied().unwrap_or(100);
                    // One queue each, since packets of several queues need not keep their order of
                    // arrival.
                    let mut packet = bench.packet(class % (QUEUES + 1), length, 0);
                    packet.mark = class as u32;
                    packet.rss_hash = number;
                    bench.backlog.push(packet, 0).unwrap();
                    sent.push_back(number);
                }
            }
            let mut left = count;
            let (pool, progress) = (&mut bench.pool, &mut bench.progress[0]);
            let mut wrong = None;
            bench.backlog.serve(0, Time::ZERO, false, progress, |ready| {
                while left != 0 && let Some(packet) = ready.pop_front() {
                    left -= 1;
                    let class = packet.mark as usize;
                    if sent[class].pop_front() != Some(packet.rss_hash) {
                        wrong = Some(class);
                    }
                    match offered {
                        0 => bytes[class] += u64::from(packet.length()),
                        _ => offered -= 1,
                    }
                    pool.free(packet);
                }
                0
            });
            prop_assert_eq!(wrong, None, "order of a class");
            if urgent {
                // Packets that were offered to the wire are not overtaken.
                prop_assert!(bytes[..3].iter().sum::<u64>() == 0, "{:?}", bytes);
                continue;
            }
            let shares: Vec<_> =
                (0..3).map(|class| bytes[class] as f64 / f64::from(weights[class])).collect();
            let (least, most) = (
                shares.iter().copied().fold(f64::MAX, f64::min),
                shares.iter().copied().fold(0.0, f64::max),
            );
            // A turn, and a packet that is longer than the rest of it; quanta are whole bytes.
            let turn = f64::from(QUANTUM_BYTES) / f64::from(*weights.iter().min().unwrap());
            prop_assert!(most - least <= 2.0 * turn + 2.0 * 2048.0 + most * 1e-3, "{shares:?}");
        }
        let counters = bench.backlog.class_counters(0);
        prop_assert_eq!(counters.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            names.iter().collect::<Vec<_>>());
        let counted: u64 = counters.iter().map(|(_, counters)| counters.packets.get()).sum();
        let waiting: usize = sent.iter().map(VecDeque::len).sum();
        prop_assert_eq!(counted + waiting as u64, u64::from(number));
        prop_assert_eq!(bench.backlog.waiting(), waiting);
        while let Some(packet) = bench.backlog.take() {
            bench.pool.free(packet);
        }
        for counters in &bench.counters {
            prop_assert_eq!(counters.tx_in_flight_bytes.get(), 0);
        }
    }
}

#[test]
fn a_full_class_drops_its_own_packets_only() {
    let mut bench = Bench::new(1, LIMITS);
    bench.backlog =
        Backlog::new(1, bench.counters.clone(), LIMITS).classified(classes(&[(0, 1); 2]));
    let mut dropped = 0;
    for number in 0..20 {
        assert!(bench.backlog.admits(0, 0, 0, 100), "the other class has room");
        let mut packet = bench.packet(0, 100, number);
        packet.mark = 1;
        if let Err((packet, reason)) = bench.backlog.push(packet, 0) {
            assert_eq!(reason, DropReason::WireFull);
            dropped += 1;
            bench.pool.free(packet);
        }
    }
    assert_eq!(dropped, 20 - LIMITS.packets as u64);
    let mut packet = bench.packet(0, 100, 0);
    packet.mark = 0;
    bench.backlog.push(packet, 0).unwrap();
    let counters = bench.backlog.class_counters(0);
    let lost: Vec<_> = counters.iter().map(|(name, it)| (&**name, it.dropped.get())).collect();
    assert_eq!(lost, [("c0", 0), ("c1", dropped), ("other", 0)]);
    assert_eq!(bench.serve(0, Time::ZERO, 99).len(), LIMITS.packets + 1);
}

#[test]
fn watched_packets_report_their_fate_among_classes() {
    let config = PoolConfig { buffers: 512, ..PoolConfig::default() };
    let (pool, _) = Pool::new(&config, 0).unwrap();
    let mut doors = Doors::new(pool, Vec::new(), 1, 64, Arc::new(Ledger::new(0)));
    let counters = (0..QUEUES).map(|_| Arc::default()).collect();
    let limits = Limits { packets: 64, bytes: 1 << 30 };
    doors.backlog = Backlog::new(1, counters, limits).classified(classes(&[(0, 1), (5, 1)]));
    // Marked packets of functions go ahead and are not counted among the watched.
    let mut numbers = Vec::new();
    for mark in [1, 0, 1, 0, 1] {
        let mut packet = doors.pool.allocate(60).unwrap();
        packet.mark = mark;
        match mark {
            0 => numbers.push(doors.transmit_watched(packet, 0).unwrap()),
            _ => doors.transmit(packet, 0),
        }
    }
    assert_eq!(numbers, [1, 2]);
    let mut left = 4;
    doors.serve_wire(0, Time::ZERO, &WireCounters::default(), |mut transmitter| {
        while left != 0
            && let Some(packet) = transmitter.next()
        {
            left -= 1;
            transmitter.sent(packet);
        }
    });
    let fates = numbers.iter().map(|&number| doors.progress[0].fate(number));
    assert_eq!(fates.collect::<Vec<_>>(), [Fate::Sent, Fate::Sent]);
    while let Some(packet) = doors.backlog.take() {
        doors.pool.free(packet);
    }
}
