//! The doors: every packet has one fate, recorded in the ledger.

use picnic_core::attachment::QueueOut;
use picnic_core::doorbell::Doorbell;
use picnic_core::function::{Function, PacketMut, Verdict, per_packet};
use picnic_core::ledger::{DropReason, Ledger, Stage};
use picnic_core::out::{Doors, Fate, Onward, Out, TargetRing};
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::offload;
use picnic_core::packet::pool::{MAX_PACKET_BYTES, Pool, PoolConfig, ReturnSender};
use picnic_core::packet::wire::checksum;
use picnic_core::port::Receiver;
use picnic_core::ring::gate::{Gate, GateState};
use picnic_core::ring::moderation::{Moderation, ModerationMode};
use picnic_core::ring::spsc::{Consumer, channel};
use picnic_core::stats::{SteerCounters, TargetCounters, WireCounters};
use picnic_core::time::Time;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[derive(Default)]
struct Bell(AtomicUsize);

impl Doorbell for Bell {
    fn ring(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A card's doors with the far side of each available.
struct Card {
    doors: Doors,
    rings: Vec<Consumer<Descriptor>>,
    returns: Vec<ReturnSender>,
    gates: Vec<Arc<Gate>>,
    bells: Vec<Arc<Bell>>,
    counters: Vec<Arc<SteerCounters>>,
    ledger: Arc<Ledger>,
}

fn card(queues: usize, ring_size: usize, wires: usize, mode: ModerationMode) -> Card {
    let config = PoolConfig { buffers: 512, buffer_size: 128, headroom: 0 };
    let (pool, returns) = Pool::new(&config, queues).unwrap();
    let ledger = Arc::new(Ledger::new(queues));
    let (mut targets, mut rings) = (Vec::new(), Vec::new());
    let gates: Vec<_> = (0..queues).map(|_| Arc::new(Gate::new())).collect();
    let bells: Vec<_> = (0..queues).map(|_| Arc::new(Bell::default())).collect();
    let counters: Vec<_> = (0..queues).map(|_| Arc::new(SteerCounters::default())).collect();
    for queue in 0..queues {
        let (producer, consumer) = channel(ring_size);
        rings.push(consumer);
        targets.push(TargetRing::new(
            producer,
            gates[queue].clone(),
            bells[queue].clone(),
            Moderation::new(mode),
            counters[queue].clone(),
        ));
    }
    let doors = Doors::new(pool, targets, wires, 16, ledger.clone());
    Card { doors, rings, returns, gates, bells, counters, ledger }
}

impl Card {
    fn packet(&mut self, mark: u32) -> Descriptor {
        let mut packet = self.doors.pool.packet(&mark.to_le_bytes()).unwrap();
        packet.mark = mark;
        packet
    }

    /// Takes the contents of a ring, as its target would.
    fn take(&mut self, queue: usize) -> Vec<u32> {
        let mut marks = Vec::new();
        while let Some(packet) = self.rings[queue].pop() {
            marks.push(packet.mark);
            assert_eq!(packet.data(), packet.mark.to_le_bytes());
            self.returns[queue].give_back(packet);
        }
        self.rings[queue].release();
        self.returns[queue].publish();
        self.ledger.queues[queue].taken.add(marks.len() as u64);
        self.ledger.queues[queue].delivered.add(marks.len() as u64);
        marks
    }

    fn drops(&self, reason: DropReason, stage: Stage) -> u64 {
        self.ledger.card.drops.get(reason, stage)
    }
}

/// Steers its input to one queue and notes the sizes of the bursts.
struct Rest {
    queue: u16,
    bursts: Vec<usize>,
}

impl Onward for Rest {
    fn carry_on(&mut self, _now: Time, burst: &mut Burst, doors: &mut Doors) {
        self.bursts.push(burst.len());
        burst.drain().for_each(|packet| doors.steer(packet, self.queue));
    }
}

/// A rest of a chain that violates its contract and takes nothing.
struct Stuck;

impl Onward for Stuck {
    fn carry_on(&mut self, _: Time, _: &mut Burst, _: &mut Doors) {}
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Dispose(Verdict),
    Take(usize),
    Publish,
    Sent(usize),
    Make(usize),
    Copy,
}

fn op() -> impl Strategy<Value = Op> {
    let verdict = prop_oneof![
        2 => Just(Verdict::Next),
        8 => (0..5_u16).prop_map(Verdict::Steer),
        1 => any::<u16>().prop_map(Verdict::Steer),
        4 => (0..3_u8).prop_map(Verdict::Transmit),
        1 => any::<u8>().prop_map(Verdict::Transmit),
        1 => Just(Verdict::Drop(DropReason::Filtered)),
        1 => Just(Verdict::Consume),
    ];
    prop_oneof![
        16 => verdict.prop_map(Op::Dispose),
        1 => (0..3_usize).prop_map(Op::Take),
        3 => Just(Op::Publish),
        1 => (0..2_usize).prop_map(Op::Sent),
        1 => (0..400_usize).prop_map(Op::Make),
        1 => Just(Op::Copy),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_packet_has_one_fate(ops in prop::collection::vec(op(), 1..300)) {
        let mut card = card(3, 8, 2, ModerationMode::None);
        let counters = WireCounters::default();
        let mut rest = Rest { queue: 1, bursts: Vec::new() };
        let mut steered: [Vec<u32>; 3] = Default::default();
        let (mut lost, mut dropped_by_out) = (0, 0);
        let mut room = [8_usize; 3];
        for (mark, op) in (0_u32..).zip(ops) {
            let now = Time::from_nanos(u64::from(mark) * 1000);
            // Functions make some packets; the others come in here.
            let mut packet = None;
            if matches!(op, Op::Dispose(_) | Op::Copy) {
                card.ledger.card.received.add(1);
                packet = Some(card.packet(mark));
            }
            let mut out = Out::new(now, Stage::Rx, &mut card.doors, &mut rest);
            match (op, packet) {
                (Op::Dispose(verdict), Some(packet)) => {
                    out.dispose(packet, verdict);
                    let queue = match verdict {
                        Verdict::Next => 1,
                        Verdict::Steer(queue) => usize::from(queue),
                        _ => 99,
                    };
                    match room.get_mut(queue) {
                        Some(0) => lost += 1,
                        Some(room) => {
                            *room -= 1;
                            steered[queue].push(mark);
                        }
                        None => {}
                    }
                }
                (Op::Make(length), _) => {
                    if let Some(made) = out.make(&vec![5; length]) {
                        out.consume(made);
                    }
                }
                (Op::Copy, Some(packet)) => {
                    let copy = out.copy(&packet).unwrap();
                    assert_eq!((copy.data(), copy.mark), (packet.data(), packet.mark));
                    out.drop(copy, DropReason::Fault);
                    out.consume(packet);
                }
                _ => {}
            }
            dropped_by_out += u64::from(out.finish());
            match op {
                Op::Take(queue) => {
                    card.doors.publish(now);
                    prop_assert_eq!(card.take(queue), std::mem::take(&mut steered[queue]));
                    room[queue] = 8;
                }
                Op::Publish => {
                    card.doors.publish(now);
                }
                Op::Sent(wire) => {
                    card.doors.serve_wire(wire, Time::ZERO, &counters, |mut tx| {
                        while let Some(packet) = tx.next() {
                            assert_eq!(packet.wire, wire as u8);
                            if packet.mark % 5 == 0 {
                                tx.drop(packet, DropReason::Oversize);
                            } else {
                                tx.sent(packet);
                            }
                        }
                    });
                }
                _ => {}
            }
        }
        card.doors.publish(Time::MAX);
        card.ledger.card.held.set(card.doors.waiting_for_wires() as u64);
        let totals = card.ledger.read();
        prop_assert!(totals.balanced(), "{:?}", totals);
        let in_rings: usize = steered.iter().map(Vec::len).sum();
        let outstanding = in_rings + card.doors.waiting_for_wires();
        prop_assert_eq!(totals.in_flight as usize, outstanding);
        prop_assert_eq!(card.doors.pool.outstanding(), outstanding);
        prop_assert_eq!(card.drops(DropReason::RingFull, Stage::Steer), lost);
        let counted: u64 = card.counters.iter().map(|counters| counters.ring_full.get()).sum();
        prop_assert_eq!(counted, lost);
        let by_functions = card.drops(DropReason::Filtered, Stage::Rx)
            + card.drops(DropReason::Fault, Stage::Rx);
        prop_assert_eq!(by_functions, dropped_by_out);
        prop_assert_eq!(counters.tx_packets.get(), totals.transmitted);
        for (queue, left) in steered.into_iter().enumerate() {
            prop_assert_eq!(card.doors.targets[queue].occupancy(), left.len());
            prop_assert_eq!(card.take(queue), left);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn steering_a_burst_equals_steering_its_packets(
        packets in 0..=BURST as u32,
        mut queues in prop::collection::vec(prop_oneof![9 => 0..3_u16, 1 => any::<u16>()], 0..=70),
        published in 0..2_usize,
    ) {
        let (mut one, mut all) =
            (card(3, 16, 0, ModerationMode::None), card(3, 16, 0, ModerationMode::None));
        for card in [&mut one, &mut all] {
            // Not from the start of the ring, so that it wraps.
            for mark in 0..(published * 11) as u32 {
                let packet = card.packet(mark);
                card.doors.steer(packet, 1);
            }
            card.doors.publish(Time::ZERO);
            card.take(1);
        }
        let (mut burst, mut left) = (Burst::new(), Vec::new());
        for mark in 0..packets {
            burst.push(all.packet(mark)).unwrap();
            match queues.get(mark as usize) {
                Some(&queue) => {
                    let packet = one.packet(mark);
                    one.doors.steer(packet, queue);
                }
                None => left.push(mark),
            }
        }
        all.doors.steer_burst(&mut burst, &queues);
        let marks: Vec<_> = burst.as_slice().iter().map(|packet| packet.mark).collect();
        prop_assert_eq!(marks, left);
        prop_assert_eq!(one.doors.publish(Time::ZERO), all.doors.publish(Time::ZERO));
        for reason in [DropReason::RingFull, DropReason::NoSuchQueue] {
            prop_assert_eq!(one.drops(reason, Stage::Steer), all.drops(reason, Stage::Steer));
        }
        for queue in 0..3 {
            prop_assert_eq!(one.take(queue), all.take(queue));
        }
        prop_assert_eq!(all.doors.pool.outstanding(), burst.len());
        // The rest can still be steered.
        queues.clear();
        queues.resize(BURST, 0);
        all.doors.steer_burst(&mut burst, &queues);
        prop_assert!(burst.is_empty());
    }
}

/// The property above also tries the move by one store, if the processor has it.
#[test]
fn missing_vector_moves_are_reported() {
    #[cfg(target_arch = "x86_64")]
    let has_avx2 = std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let has_avx2 = false;
    if !has_avx2 {
        picnic_testing::skip("steering_by_vector", "this processor lacks AVX2");
    }
}

#[test]
fn functions_steer_bursts_like_doors() {
    let mut card = card(2, 8, 0, ModerationMode::None);
    let mut burst = Burst::new();
    for mark in 0..4 {
        assert!(burst.push(card.packet(mark)).is_ok());
    }
    let mut rest = Rest { queue: 0, bursts: Vec::new() };
    let mut out = Out::new(Time::ZERO, Stage::Rx, &mut card.doors, &mut rest);
    out.steer_burst(&mut burst, &[1, 0, 2, 1]);
    out.finish();
    assert!(burst.is_empty() && rest.bursts.is_empty());
    card.doors.publish(Time::ZERO);
    assert_eq!((card.take(0), card.take(1)), (vec![1], vec![0, 3]));
    assert_eq!(card.drops(DropReason::NoSuchQueue, Stage::Steer), 1);
}

#[test]
fn packets_to_missing_doors_are_counted() {
    let mut card = card(2, 8, 1, ModerationMode::None);
    for (queue, wire) in [(2, 1), (u16::MAX, u8::MAX)] {
        let (one, two) = (card.packet(1), card.packet(2));
        card.doors.steer(one, queue);
        card.doors.transmit(two, wire);
    }
    assert_eq!(card.drops(DropReason::NoSuchQueue, Stage::Steer), 2);
    assert_eq!(card.drops(DropReason::NoSuchWire, Stage::WireTx), 2);
    assert_eq!(card.doors.pool.outstanding(), 0);
}

#[test]
fn a_full_ring_and_a_full_wire_drop_the_newest() {
    let mut card = card(1, 8, 1, ModerationMode::None);
    assert!(card.doors.have_room(8));
    assert!(!card.doors.have_room(9));
    for mark in 0..20 {
        let (one, two) = (card.packet(mark), card.packet(mark));
        card.doors.steer(one, 0);
        card.doors.transmit(two, 0);
    }
    assert_eq!(card.doors.publish(Time::ZERO), 8);
    assert_eq!(card.drops(DropReason::RingFull, Stage::Steer), 12);
    assert_eq!(card.counters[0].ring_full.get(), 12);
    assert_eq!(card.drops(DropReason::WireFull, Stage::WireTx), 4);
    card.doors.note_depths();
    assert_eq!(card.counters[0].depth.get(), 8);
    assert_eq!(card.take(0), (0..8).collect::<Vec<_>>());
    let waiting: Vec<_> = card.doors.backlog.waiting_for(0).map(|packet| packet.mark).collect();
    assert_eq!(waiting, (0..16).collect::<Vec<_>>());
}

#[test]
fn next_takes_more_than_a_burst_in_order() {
    let mut card = card(1, 512, 0, ModerationMode::None);
    let packets: Vec<_> = (0..200).map(|mark| card.packet(mark)).collect();
    let mut rest = Rest { queue: 0, bursts: Vec::new() };
    let mut out = Out::new(Time::ZERO, Stage::Rx, &mut card.doors, &mut rest);
    packets.into_iter().for_each(|packet| out.next(packet));
    assert_eq!(out.finish(), 0);
    assert_eq!(rest.bursts, [BURST, BURST, BURST, 200 - 3 * BURST]);
    card.doors.publish(Time::ZERO);
    assert_eq!(card.take(0), (0..200).collect::<Vec<_>>());
}

#[test]
fn a_chain_that_takes_nothing_counts_drops() {
    let mut card = card(1, 8, 0, ModerationMode::None);
    let packets: Vec<_> = (0..100).map(|mark| card.packet(mark)).collect();
    card.ledger.card.received.add(100);
    let mut stuck = Stuck;
    let mut out = Out::new(Time::ZERO, Stage::Rx, &mut card.doors, &mut stuck);
    packets.into_iter().for_each(|packet| out.next(packet));
    assert_eq!(out.finish(), 100);
    assert_eq!(card.drops(DropReason::BurstFull, Stage::Rx), 100);
    assert_eq!(card.doors.pool.outstanding(), 0);
    assert!(card.ledger.read().balanced());
}

#[test]
fn a_closure_is_a_function() {
    let mut card = card(2, 128, 1, ModerationMode::None);
    let mut burst = Burst::new();
    for mark in 0..60 {
        burst.push(card.packet(mark)).unwrap();
    }
    card.ledger.card.received.add(60);
    let mut function = per_packet(|packet: &mut PacketMut<'_>| match packet.mark % 6 {
        0 => Verdict::Steer(1),
        1 => Verdict::Transmit(0),
        2 => Verdict::Drop(DropReason::Filtered),
        3 => Verdict::Consume,
        _ => {
            packet.data_mut()[3] = 1;
            Verdict::Next
        }
    });
    let mut rest = Rest { queue: 0, bursts: Vec::new() };
    let mut out = Out::new(Time::ZERO, Stage::Tx, &mut card.doors, &mut rest);
    function.process(Time::ZERO, &mut burst, &mut out);
    assert_eq!(out.finish(), 10);
    let left: Vec<_> = burst.as_slice().iter().map(|packet| packet.mark).collect();
    assert_eq!(left, (0..60).filter(|mark| mark % 6 > 3).collect::<Vec<_>>());
    assert!(burst.as_slice().iter().all(|packet| packet.data()[3] == 1));
    card.doors.publish(Time::ZERO);
    assert_eq!(card.take(1), (0..60).step_by(6).collect::<Vec<_>>());
    assert_eq!(card.drops(DropReason::Filtered, Stage::Tx), 10);
    card.ledger.card.held.set((burst.len() + card.doors.waiting_for_wires()) as u64);
    assert!(card.ledger.read().balanced());
}

#[test]
fn copies_of_chains_are_whole() {
    let mut card = card(1, 8, 0, ModerationMode::None);
    let bytes: Vec<u8> = (0..1000).map(|place| (place % 251) as u8).collect();
    let mut packet = card.doors.pool.packet(&bytes).unwrap();
    packet.mark = 9;
    assert!(packet.pull_front(40));
    let mut rest = Rest { queue: 0, bursts: Vec::new() };
    let mut out = Out::new(Time::ZERO, Stage::Rx, &mut card.doors, &mut rest);
    let copy = out.copy(&packet).unwrap();
    assert_eq!((copy.length(), copy.mark), (960, 9));
    assert!(copy.segments().flatten().eq(bytes[40..].iter()));
    out.consume(copy);
    out.consume(packet);
    out.finish();
    assert_eq!(card.doors.pool.outstanding(), 0);
    assert_eq!(card.ledger.card.made.get(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Packets built from pieces, merged and split in any order: bytes, buffers and ledger.
    #[test]
    fn packets_in_pieces_keep_their_bytes(
        lengths in prop::collection::vec(1_usize..700, 1..12),
        cuts in prop::collection::vec(0_u16..200, 0..6),
        piece in 1_usize..300,
        skip in 0_u16..80,
    ) {
        let mut card = card(1, 8, 0, ModerationMode::None);
        let mut rest = Rest { queue: 0, bursts: Vec::new() };
        let mut out = Out::new(Time::ZERO, Stage::Rx, &mut card.doors, &mut rest);
        let mut expected = Vec::new();
        let mut whole: Option<Descriptor> = None;
        for (number, &length) in lengths.iter().enumerate() {
            let bytes: Vec<u8> = (0..length).map(|place| (place * 7 + number) as u8).collect();
            let mut part = out.gather(length, bytes.chunks(piece)).unwrap();
            part.mark = number as u32;
            prop_assert!(part.segments().flatten().eq(&bytes));
            match &mut whole {
                Some(whole) => {
                    // A skip beyond the first segment is refused.
                    let skip = skip.min(part.data().len() as u16);
                    let in_first = part.data().len() as u16;
                    let part = out.merge(whole, part, in_first + 1).unwrap_err();
                    out.merge(whole, part, skip).unwrap();
                    expected.extend_from_slice(&bytes[usize::from(skip)..]);
                }
                None => {
                    whole = Some(part);
                    expected.extend(bytes);
                }
            }
        }
        let mut whole = whole.unwrap();
        for cut in cuts {
            let first = whole.data().len();
            let fits = usize::from(cut) < first && usize::from(cut) <= out.buffer_size();
            whole = match out.split(whole, cut) {
                Ok(split) => {
                    prop_assert!(fits);
                    prop_assert_eq!(split.data().len(), usize::from(cut));
                    split
                }
                Err(packet) => {
                    prop_assert!(!fits);
                    prop_assert_eq!(packet.data().len(), first);
                    packet
                }
            };
        }
        prop_assert_eq!((whole.length() as usize, whole.mark), (expected.len(), 0));
        prop_assert!(whole.segments().flatten().eq(&expected));
        // The sum of any part equals that of the contiguous bytes.
        for start in [0, 1, expected.len() / 2] {
            let end = expected.len() - expected.len() / 3;
            let sum = offload::sum(&whole, start..end);
            prop_assert_eq!(sum, checksum::sum(expected.get(start..end).unwrap_or_default()));
        }
        out.consume(whole);
        out.finish();
        let card_ledger = &card.ledger.card;
        prop_assert_eq!(card_ledger.made.get(), lengths.len() as u64);
        prop_assert_eq!(card_ledger.consumed.get(), lengths.len() as u64);
        prop_assert_eq!(card.doors.ended(), lengths.len() as u64);
        prop_assert_eq!(card.doors.pool.outstanding(), 0);
        prop_assert!(card.ledger.read().balanced());
    }
}

#[test]
fn too_long_packets_are_not_merged() {
    let mut card = card(1, 8, 0, ModerationMode::None);
    card.doors.pool =
        Pool::new(&PoolConfig { buffers: 64, buffer_size: 32_768, headroom: 0 }, 0).unwrap().0;
    let mut rest = Rest { queue: 0, bursts: Vec::new() };
    let mut out = Out::new(Time::ZERO, Stage::Rx, &mut card.doors, &mut rest);
    let mut packet = out.gather(MAX_PACKET_BYTES - 9, std::iter::empty()).unwrap();
    let refused = out.make(&[1; 10]).unwrap();
    let refused = out.merge(&mut packet, refused, 0).unwrap_err();
    out.consume(refused);
    let taken = out.make(&[1; 9]).unwrap();
    out.merge(&mut packet, taken, 0).unwrap();
    assert_eq!(packet.length() as usize, MAX_PACKET_BYTES);
    out.consume(packet);
    out.finish();
    assert_eq!(card.doors.pool.outstanding(), 0);
}

#[test]
fn armed_gates_are_interrupted_once() {
    let mut card = card(2, 64, 0, ModerationMode::None);
    let send = |card: &mut Card| {
        let packet = card.packet(0);
        card.doors.steer(packet, 0);
        card.doors.publish(Time::ZERO);
        card.bells[0].0.load(Relaxed)
    };
    assert_eq!(send(&mut card), 0, "the target polls");
    card.gates[0].rearm();
    assert_eq!(send(&mut card), 1);
    assert_eq!(card.gates[0].state(), GateState::Scheduled);
    assert_eq!(send(&mut card), 1, "the interrupt is on its way");
    assert!(card.gates[0].begin());
    assert!(!card.gates[0].begin());
    assert_eq!(send(&mut card), 1);
    assert_eq!(card.counters[0].doorbells.get(), 1);
    assert_eq!(card.bells[1].0.load(Relaxed), 0);
    assert_eq!(card.doors.next_deadline(), None);
}

#[test]
fn the_earliest_moderated_interrupt_is_due() {
    let mut card = card(2, 64, 0, ModerationMode::Static { usecs: 20, frames: 0 });
    for (queue, now) in [(1, 100), (0, 5_000)] {
        card.gates[usize::from(queue)].rearm();
        let packet = card.packet(0);
        card.doors.steer(packet, queue);
        card.doors.publish(Time::from_nanos(now));
        assert_eq!(card.doors.next_deadline(), Some(Time::from_nanos(20_100)));
    }
    card.doors.publish(Time::from_nanos(20_100));
    assert_eq!(card.doors.next_deadline(), Some(Time::from_nanos(25_000)));
}

#[test]
fn a_moderated_interrupt_comes_when_due() {
    let mut card = card(1, 64, 0, ModerationMode::Static { usecs: 20, frames: 3 });
    let rung = |card: &Card| card.bells[0].0.load(Relaxed);
    let at = Time::from_nanos;
    card.gates[0].rearm();
    let packet = card.packet(0);
    card.doors.steer(packet, 0);
    assert_eq!(card.doors.publish(at(100)), 1);
    assert_eq!(card.doors.next_deadline(), Some(at(20_100)));
    assert_eq!(card.doors.publish(at(20_099)), 0);
    assert_eq!(rung(&card), 0);
    card.doors.publish(at(20_100));
    assert_eq!(rung(&card), 1);
    assert_eq!(card.doors.next_deadline(), None);
    card.doors.publish(at(90_000));
    assert_eq!(rung(&card), 1, "nothing new was published");

    // At the end of a run: at once, for all that sleep.
    assert!(card.gates[0].begin());
    card.gates[0].rearm();
    let packet = card.packet(9);
    card.doors.steer(packet, 0);
    card.doors.publish(at(95_000));
    card.doors.interrupt_all();
    assert_eq!((rung(&card), card.doors.next_deadline()), (2, None));
    card.doors.interrupt_all();
    assert_eq!(rung(&card), 2);

    // By count, across bursts.
    assert!(card.gates[0].begin());
    card.gates[0].rearm();
    for (mark, expected) in [(1, 2), (2, 2), (3, 3)] {
        let packet = card.packet(mark);
        card.doors.steer(packet, 0);
        card.doors.publish(at(100_000));
        assert_eq!(rung(&card), expected);
    }

    // Meanwhile the target woke on its own: no interrupt, and no deadline remains.
    assert!(card.gates[0].begin());
    card.gates[0].rearm();
    let packet = card.packet(4);
    card.doors.steer(packet, 0);
    card.doors.publish(at(200_000));
    assert!(card.gates[0].resume());
    card.doors.publish(at(300_000));
    assert_eq!((rung(&card), card.doors.next_deadline()), (3, None));
}

#[test]
fn receivers_count_taken_and_shed_packets() {
    let config = PoolConfig { buffers: 64, buffer_size: 128, headroom: 0 };
    let (mut pool, _) = Pool::new(&config, 0).unwrap();
    let (mut burst, counters, ledger) = (Burst::new(), WireCounters::default(), Ledger::new(1));
    let held: Vec<_> = (0..40).map(|_| pool.packet(b"x").unwrap()).collect();
    let now = Time::from_nanos(77);
    let mut rx = Receiver::new(&mut pool, &mut burst, &counters, &ledger.card, now, 3, 20);
    assert_eq!(rx.room(), 20);
    rx.push_bytes(&[1; 200]);
    assert!(rx.place(129).is_none());
    rx.place(100).unwrap().data_mut().fill(7);
    rx.push_bytes(&vec![1; MAX_PACKET_BYTES + 1]);
    rx.push_bytes(&vec![1; 128 * 64 + 1]);
    rx.push_bytes(&vec![1; 128 * 23]);
    for _ in 0..25 {
        rx.push_bytes(b"");
    }
    assert_eq!(rx.room(), 0);
    assert!(rx.place(1).is_none());
    drop(rx);
    assert_eq!(burst.len(), 20);
    assert_eq!((counters.rx_packets.get(), counters.rx_shed.get()), (20, 10));
    assert_eq!(counters.rx_bytes.get(), 300);
    for (reason, count) in
        [(DropReason::Oversize, 2), (DropReason::PoolExhausted, 1), (DropReason::BurstFull, 7)]
    {
        assert_eq!(ledger.card.drops.get(reason, Stage::Wire), count, "{}", reason.name());
    }
    let stamped = |packet: &Descriptor| packet.wire == 3 && packet.received_at() == now;
    assert!(burst.as_slice().iter().all(stamped));
    ledger.card.held.set(20);
    assert!(ledger.read().balanced());
    burst.drain().chain(held).for_each(|packet| pool.free(packet));
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn queue_out_always_balances() {
    let config = PoolConfig { buffers: 64, buffer_size: 128, headroom: 0 };
    let (mut pool, mut returns) = Pool::new(&config, 1).unwrap();
    let (mut tx, mut tx_ring) = channel::<Descriptor>(4);
    let (counters, ledger) = (TargetCounters::default(), Ledger::new(1));
    ledger.card.received.add(30);
    ledger.card.steered.add(30);
    let queue = &ledger.queues[0];
    queue.taken.add(30);
    let packets: Vec<_> = (0..30).map(|_| pool.packet(b"four").unwrap()).collect();
    let mut out = QueueOut::new(&mut returns[0], &mut tx, &counters, queue);
    for (number, packet) in packets.into_iter().enumerate() {
        match number % 3 {
            0 => out.deliver(packet),
            1 => out.echo(packet),
            _ => out.drop(packet, DropReason::HostRefused),
        }
    }
    drop(out);
    let totals = ledger.read();
    assert!(totals.balanced(), "{totals:?}");
    assert_eq!((totals.r#in, totals.delivered, totals.in_flight), (40, 20, 4));
    assert_eq!((totals.drops["host_refused"], totals.drops["tx_ring_full"]), (10, 6));
    assert_eq!((counters.packets.get(), counters.bytes.get()), (20, 80));
    assert_eq!(counters.transmitted.get(), 4);
    assert_eq!(pool.outstanding(), 4);
    while let Some(packet) = tx_ring.pop() {
        pool.free(packet);
    }
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn ledger_serialises_as_documented() {
    let ledger = Ledger::new(2);
    ledger.card.received.add(3);
    ledger.queues[1].drops.add(DropReason::HostRefused, Stage::Target, 1);
    ledger.card.drops.add(DropReason::RingFull, Stage::Steer, 1);
    let totals = ledger.read();
    assert!(!totals.balanced());
    assert_eq!(
        serde_json::to_string(&totals).unwrap(),
        "{\"in\":3,\"delivered\":0,\"transmitted\":0,\"consumed\":0,\"dropped\":2,\
         \"in_flight\":0,\"balanced\":false}"
    );
    let stages: Vec<_> = totals.drops_by_stage.keys().map(String::as_str).collect();
    assert_eq!(stages, ["host_refused@target", "ring_full@steer"]);
}

/// The target finds them on its own: neither their age nor their number may interrupt it later.
#[test]
fn packets_published_while_the_target_polls_are_forgotten_by_moderation() {
    let mut card = card(1, 64, 0, ModerationMode::Static { usecs: 20, frames: 2 });
    let at = Time::from_nanos;
    let send = |card: &mut Card, now| {
        let packet = card.packet(0);
        card.doors.steer(packet, 0);
        card.doors.publish(now);
        (card.bells[0].0.load(Relaxed), card.doors.next_deadline())
    };
    assert_eq!(send(&mut card, at(100)), (0, None), "the target polls");
    card.take(0);
    card.gates[0].rearm();
    card.doors.publish(at(40_000));
    assert_eq!(card.bells[0].0.load(Relaxed), 0, "nothing came since");
    assert_eq!(send(&mut card, at(50_000)), (0, Some(at(70_000))), "it is the first of two");
    card.doors.publish(at(69_999));
    assert_eq!(card.bells[0].0.load(Relaxed), 0);
    assert_eq!(send(&mut card, at(69_999)), (1, None), "it is the second");
    // Not the interrupt's second packet, while that is on its way.
    assert_eq!(send(&mut card, at(69_999)), (1, None));
    assert!(card.gates[0].begin());
    card.take(0);
    card.gates[0].rearm();
    assert_eq!(send(&mut card, at(80_000)), (1, Some(at(100_000))));
}

/// Steers `count` packets to queue 0 and publishes; returns doorbells ever rung and coalesced.
fn send_at(card: &mut Card, now: u64, count: u32) -> (u64, u64) {
    for mark in 0..count {
        let packet = card.packet(mark);
        card.doors.steer(packet, 0);
    }
    card.doors.publish(Time::from_nanos(now));
    card.take(0);
    let counters = &card.counters[0];
    assert_eq!(counters.doorbells.get(), card.bells[0].0.load(Relaxed) as u64);
    (counters.doorbells.get(), counters.coalesced.get())
}

#[test]
fn per_packet_interrupts_masked_and_unmasked_queues() {
    let mut card = card(2, 64, 0, ModerationMode::PerPacket);
    assert!(card.doors.is_per_packet());
    assert_eq!(send_at(&mut card, 0, 3), (0, 0), "the target polls");
    card.gates[0].rearm();
    assert_eq!(send_at(&mut card, 0, 0), (0, 0), "it has found those itself");
    assert_eq!(send_at(&mut card, 0, 3), (1, 0));
    assert!(card.gates[0].begin());
    assert!(!card.doors.set_unmasked(true));
    assert_eq!(send_at(&mut card, 0, 3), (4, 2), "one is pending, two join it");
    assert_eq!(send_at(&mut card, 0, 0), (4, 2));
    // Moderated, and still unmasked: one interrupt when due, however many wait.
    let moderated = ModerationMode::Static { usecs: 20, frames: 0 };
    assert_eq!(card.doors.moderate(moderated), ModerationMode::PerPacket);
    assert!(!card.doors.is_per_packet() && card.gates[0].begin());
    assert_eq!(send_at(&mut card, 100, 3), (4, 2));
    assert_eq!(card.doors.next_deadline(), Some(Time::from_nanos(20_100)));
    assert_eq!(send_at(&mut card, 20_099, 0), (4, 2));
    assert_eq!(send_at(&mut card, 20_100, 0), (5, 2));
    assert_eq!(card.doors.next_deadline(), None);
    assert!(card.doors.set_unmasked(false));
    assert_eq!((card.counters[0].packets.get(), card.counters[1].packets.get()), (12, 0));
}

#[test]
fn one_per_packet_queue_sets_the_card() {
    let mut one = card(2, 8, 0, ModerationMode::None);
    assert!(!one.doors.is_per_packet());
    let mut targets = std::mem::take(&mut one.doors.targets);
    targets[1].moderation.set_mode(ModerationMode::PerPacket);
    let (pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    assert!(Doors::new(pool, targets, 0, 16, one.ledger.clone()).is_per_packet());
}

#[test]
fn completions_interrupt_at_once_or_moderated() {
    let mut card = card(1, 8, 0, ModerationMode::Static { usecs: 20, frames: 3 });
    let at = Time::from_nanos;
    let rung = |card: &Card| card.bells[0].0.load(Relaxed);
    card.doors.complete(at(50), 1, 3, true);
    card.gates[0].rearm();
    card.doors.complete(at(100), 0, 1, false);
    assert_eq!((rung(&card), card.doors.next_deadline()), (0, Some(at(20_100))));
    card.doors.complete(at(200), 0, 2, false);
    card.doors.publish(at(200));
    assert_eq!((rung(&card), card.doors.next_deadline()), (1, None));
    assert!(card.gates[0].begin());
    card.gates[0].rearm();
    card.doors.complete(at(300), 0, 1, true);
    assert_eq!(rung(&card), 2);
}

#[test]
fn forgetting_a_packet_affects_no_other() {
    let mut card = card(0, 1, 2, ModerationMode::None);
    let (one, two) = (card.packet(1), card.packet(2));
    let first = card.doors.transmit_watched(one, 1).unwrap();
    let second = card.doors.transmit_watched(two, 1).unwrap();
    assert_eq!((first, second, card.doors.ended()), (1, 2, 2));
    assert!(card.doors.backlog.waiting_for(1).all(|packet| packet.wire == 1));
    card.doors.progress[1].forget(first);
    assert!(card.doors.is_watched());
    let counters = WireCounters::default();
    let taken = card.doors.serve_wire(1, Time::ZERO, &counters, |mut tx| {
        while let Some(packet) = tx.next() {
            tx.drop(packet, DropReason::Oversize);
        }
    });
    assert_eq!((taken, card.doors.progress[1].ended()), (Some(2), 2));
    assert_eq!(card.doors.progress[1].fate(second), Fate::Dropped);
    card.doors.progress[1].forget(second);
    assert!(!card.doors.is_watched());
    // The fate of one stays known while the other is forgotten.
    let (three, four) = (card.packet(3), card.packet(4));
    let third = card.doors.transmit_watched(three, 1).unwrap();
    let fourth = card.doors.transmit_watched(four, 1).unwrap();
    card.doors.serve_wire(1, Time::ZERO, &counters, |mut tx| {
        while let Some(packet) = tx.next() {
            tx.drop(packet, DropReason::Oversize);
        }
    });
    card.doors.progress[1].forget(third);
    assert_eq!(card.doors.progress[1].fate(fourth), Fate::Dropped);
    card.doors.progress[1].forget(fourth);
    // Nothing is kept of forgotten packets: they count as any other that left.
    assert_eq!([third, fourth].map(|number| card.doors.progress[1].fate(number)), [Fate::Sent; 2]);
    // A port that keeps packets is called, and no other.
    assert_eq!(card.doors.serve_wire(1, Time::ZERO, &counters, |_| {}), None);
    counters.tx_kept.set(1);
    assert_eq!(card.doors.serve_wire(1, Time::ZERO, &counters, |_| {}), Some(0));
}

#[test]
fn buffers_are_free_or_not() {
    let mut card = card(0, 1, 0, ModerationMode::None);
    let taken: Vec<_> = (0..510).map(|mark| card.packet(mark)).collect();
    let mut rest = Rest { queue: 0, bursts: Vec::new() };
    let mut out = Out::new(Time::ZERO, Stage::Rx, &mut card.doors, &mut rest);
    assert!(out.has_buffers(2) && !out.has_buffers(3));
    taken.into_iter().for_each(|packet| out.consume(packet));
}

#[test]
fn a_gate_rests_unless_an_interrupt_is_pending() {
    let gate = Gate::new();
    assert!(gate.rest());
    assert_eq!(gate.state(), GateState::Armed);
    assert!(gate.pend() && !gate.pend());
    assert!(!gate.rest());
    assert_eq!(gate.state(), GateState::Scheduled);
    assert!(gate.begin());
}

#[test]
fn no_number_of_waiting_packets_wraps() {
    let mut moderation = Moderation::new(ModerationMode::Static { usecs: 9, frames: 2 });
    moderation.published(Time::ZERO, u32::MAX);
    moderation.published(Time::ZERO, 2);
    assert_eq!(moderation.waiting(), u32::MAX);
}

#[test]
fn functions_see_wire_state_and_changes() {
    let mut card = card(1, 16, 2, ModerationMode::None);
    for (changes, last) in [(1, false), (2, true)] {
        for (wire, is_up) in [(0, true), (1, true), (1, last), (1, last), (2, true)] {
            card.doors.set_wire_up(wire, is_up);
        }
        let mut rest = Rest { queue: 0, bursts: Vec::new() };
        let out = Out::new(Time::ZERO, Stage::Rx, &mut card.doors, &mut rest);
        assert_eq!([0, 1, 2].map(|wire| out.wire_is_up(wire)), [true, last, false]);
        assert_eq!(out.wire_changes(), changes);
    }
}
