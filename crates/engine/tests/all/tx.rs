//! The tx path: fairness between queues, back-pressure, the end.

use crate::common;
use crate::common::functions::{Clocked, Door, Every, Hold};
use crate::common::{Bench, Wire, by_first_byte, frame, lock, number};
use picnic_core::backlog::STALL_NS;
use picnic_core::function::{Function, PacketMut, Verdict, per_packet};
use picnic_core::ledger::DropReason;
use picnic_core::packet::desc::ChecksumState;
use picnic_core::time::Time;
use picnic_core::turns::QUANTUM_BYTES;
use picnic_engine::swap::Command;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

/// A card whose hosts echo, with the tx rings of all queues filled: `sizes[q]` bytes each. The wire
/// takes nothing until told to.
fn backlogged(burst: usize, sizes: &[usize], per_queue: u32) -> Bench {
    let text = format!(
        "[card]\nburst = {burst}\nwire_backlog = 64\n[host]\nqueues = {}\nring_size = 4096\n\
         tx_ring_size = 4096\n[pool]\nbuffers = 32768\n",
        sizes.len()
    );
    let mut bench = Bench::new(&text, 1, vec![by_first_byte()], vec![]);
    bench.host().echo = true;
    bench.wire(0).tx_room = Some(0);
    // One packet of each queue in turn, so that all tx rings fill equally.
    for round in 0..per_queue {
        for (queue, &size) in sizes.iter().enumerate() {
            bench.wire(0).incoming.push_back(frame(queue as u8, 0, round, size));
        }
    }
    while !bench.wire(0).incoming.is_empty() {
        bench.turn();
        bench.look();
    }
    while bench.look() != 0 {}
    bench
}

/// Lets the wire take `count` packets and returns the bytes it took of each queue.
fn send(bench: &mut Bench, count: usize, queues: usize) -> Vec<u64> {
    bench.wire(0).sent.clear();
    for _ in 0..count {
        bench.wire(0).tx_room = Some(1);
        for _ in 0..200 {
            bench.turn();
            if bench.wire(0).tx_room == Some(0) {
                break;
            }
        }
    }
    let mut bytes = vec![0; queues];
    for packet in &bench.wire(0).sent {
        bytes[usize::from(packet[0])] += packet.len() as u64;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    /// Deficit round robin's bound: two backlogged queues never differ by more than a quantum and
    /// two packets, for any packet sizes and any burst.
    #[test]
    fn backlogged_queues_share_the_wire_by_bytes(
        burst in prop_oneof![Just(1usize), Just(2), Just(7), Just(16), Just(64)],
        sizes in prop::collection::vec(prop_oneof![Just(60usize), Just(1514), 60usize..1514], 2..6),
    ) {
        let mut bench = backlogged(burst, &sizes, 1500);
        // Packets past the tx scheduler do not matter.
        send(&mut bench, 64, sizes.len());
        let bytes = send(&mut bench, 400, sizes.len());
        let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
        let bound = u64::from(QUANTUM_BYTES) + 2 * 1514;
        prop_assert!(most - least <= bound, "burst {burst}, sizes {sizes:?}: bytes {bytes:?}");
        bench.end();
    }
}

#[test]
fn queues_share_by_bytes_not_packets() {
    let mut bench = backlogged(64, &[60, 60, 60, 1514], 2000);
    send(&mut bench, 64, 4);
    let bytes = send(&mut bench, 2000, 4);
    let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
    assert!(most - least <= 2 * u64::from(QUANTUM_BYTES), "{bytes:?}");
}

/// The borrowed core is shared like the wire, even if the wire takes everything.
#[test]
fn a_burst_is_taken_from_queues_by_bytes() {
    let text = "[card]\nburst = 30\nwire_backlog = 4096\n[host]\nqueues = 2\n";
    let mut bench = Bench::new(text, 1, vec![by_first_byte()], vec![]);
    bench.host().echo = true;
    for (queue, size) in [(0, 1514), (1, 757)] {
        bench.wire(0).incoming.extend((0..30).map(|number| frame(queue, 0, number, size)));
    }
    while !bench.wire(0).incoming.is_empty() {
        bench.turn();
    }
    bench.look();
    assert_eq!(bench.turn().submitted, 30);
    assert_eq!([0, 1].map(|queue| bench.view.queues[queue].steer.tx_taken.get()), [10, 20]);
    bench.settle();
    bench.end();
}

/// Queues save up no credit while the wire is stopped.
#[test]
fn delayed_queues_resume_with_their_share() {
    let mut bench = backlogged(64, &[1000, 1000], 500);
    for _ in 0..50 {
        assert_eq!(bench.turn().submitted, 0);
    }
    bench.wire(0).tx_room = None;
    bench.turn();
    let taken = |bench: &Bench| [0, 1].map(|queue| bench.view.queues[queue].steer.tx_taken.get());
    let before = taken(&bench);
    assert_eq!(bench.turn().submitted, 64);
    let after = taken(&bench);
    assert!([0, 1].iter().all(|&queue| (30..=34).contains(&(after[queue] - before[queue]))));
    bench.settle();
    bench.end();
}

#[test]
fn a_burst_of_one_starves_no_queue() {
    let mut bench = backlogged(1, &[60, 60], 500);
    send(&mut bench, 64, 2);
    let bytes = send(&mut bench, 400, 2);
    assert!(bytes.iter().all(|&bytes| bytes > 10_000), "{bytes:?}");
}

#[test]
fn tx_keeps_order_within_a_queue() {
    let mut bench = backlogged(16, &[60, 700, 1514], 300);
    bench.wire(0).tx_room = None;
    bench.settle();
    for queue in 0..3u8 {
        let wire = bench.wire(0);
        let numbers = wire.sent.iter().filter(|packet| packet[0] == queue).map(|p| number(p));
        assert!(numbers.eq(0..300), "queue {queue}");
    }
    let ledger = bench.end();
    assert_eq!(ledger.transmitted, 900);
}

#[test]
fn slow_wires_fill_the_tx_ring_and_are_counted() {
    let text = "[card]\nwire_backlog = 64\n[host]\nqueues = 1\ntx_ring_size = 64\n";
    let mut bench = Bench::new(text, 1, vec![by_first_byte()], vec![]);
    bench.host().echo = true;
    bench.wire(0).tx_room = Some(0);
    bench.wire(0).incoming.extend((0..1000).map(|number| frame(0, 0, number, 60)));
    while !bench.wire(0).incoming.is_empty() {
        bench.turn();
        bench.look();
    }
    let ledger = bench.balanced();
    assert_eq!(ledger.delivered, 1000);
    // A ring full of packets, at most a burst at the wire, the rest counted at the target.
    let waiting = ledger.in_flight;
    assert!((65..=128).contains(&waiting), "{ledger:?}");
    assert_eq!(ledger.drops_by_stage.get("tx_ring_full@target"), Some(&(1000 - waiting)));
    // The wire is up again: waiting packets leave in order.
    bench.wire(0).tx_room = None;
    bench.settle();
    assert!(bench.wire(0).sent.iter().map(|packet| number(packet)).eq(0..waiting as u32));
    assert_eq!(bench.end().transmitted, waiting);
}

#[test]
fn cards_stay_awake_for_waiting_packets() {
    let mut bench = Bench::new("[host]\nqueues = 1\n", 1, vec![by_first_byte()], vec![]);
    bench.host().echo = true;
    bench.wire(0).tx_room = Some(0);
    bench.wire(0).incoming.push_back(frame(0, 0, 1, 60));
    for _ in 0..10 {
        bench.turn();
        bench.look();
    }
    assert_eq!(bench.ledger().in_flight, 1, "waiting for the wire");
    let sleeps = bench.card.arm();
    let wakes = bench.card.next_deadline(bench.now).is_some();
    assert!(!sleeps || wakes, "asleep with a packet to send and nothing to wake it");
    bench.end();
}

/// Whether they have room on the card or wait at the hosts.
#[test]
fn cards_sleep_until_the_wire_takes_packets() {
    let text = "[card]\nwire_backlog = 64\n[host]\nqueues = 1\n";
    for packets in [1, 100] {
        let mut bench = Bench::new(text, 1, vec![by_first_byte()], vec![]);
        bench.host().echo = true;
        bench.wire(0).tx_room = Some(0);
        bench.wire(0).incoming.extend((0..packets).map(|number| frame(0, 0, number, 60)));
        run(&mut bench, 100);
        assert_eq!(
            bench.ledger().in_flight,
            u64::from(packets),
            "waiting for the wire or the card"
        );
        let room = bench.now + 50_000;
        bench.wire(0).next_room = Some(room);
        assert!(bench.card.arm());
        assert_eq!(bench.card.next_deadline(bench.now), Some(room));
        bench.card.disarm();
        // It checks whether the wire has stalled.
        bench.wire(0).next_room = Some(bench.now + 2 * STALL_NS);
        assert_eq!(bench.card.next_deadline(bench.now), Some(bench.now + STALL_NS));
        bench.wire(0).next_room = None;
        assert!(!bench.card.arm());
        bench.wire(0).tx_room = None;
        bench.end();
        assert_eq!(bench.wire(0).sent.len(), packets as usize);
    }
}

#[test]
fn packets_larger_than_a_quantum_leave_before_the_card_ends() {
    let text = "[host]\nqueues = 2\n";
    let mut bench = Bench::new(text, 1, vec![by_first_byte()], vec![]);
    bench.host().echo = true;
    for (queue, number) in [(0, 0), (1, 0), (0, 1)] {
        bench.wire(0).incoming.push_back(frame(queue, 0, number, 65_000));
    }
    bench.turn();
    let ledger = bench.end();
    assert_eq!((ledger.delivered, ledger.transmitted), (3, 3));
    assert_eq!(bench.wire(0).sent.len(), 3);
}

#[test]
fn dead_wires_return_their_buffers() {
    let mut bench = backlogged(64, &[60, 60], 500);
    let ledger = bench.end();
    assert_eq!((ledger.delivered, ledger.transmitted), (1000, 0));
    assert_eq!(ledger.drops.get(DropReason::Stopped.name()), Some(&1000));
}

#[test]
fn tx_functions_are_flushed_at_the_end() {
    let tx: common::Functions = vec![Box::new(Hold::new(1_000_000_000, 1000))];
    let mut bench = Bench::new("[host]\nqueues = 1\n", 1, vec![by_first_byte()], tx);
    bench.host().echo = true;
    bench.wire(0).incoming.extend((0..60).map(|number| frame(0, 0, number, 60)));
    bench.turn();
    let ledger = bench.end();
    assert_eq!(ledger.transmitted, 60);
    assert!(bench.wire(0).sent.iter().map(|packet| number(packet)).eq(0..60));
}

#[test]
fn looping_packets_end_when_the_card_stops() {
    // The host echoes its packets, and the tx chain steers them back to the host.
    let mut bench =
        Bench::new("[host]\nqueues = 2\n", 1, vec![by_first_byte()], vec![by_first_byte()]);
    bench.host().echo = true;
    bench.wire(0).incoming.extend((0..100).map(|number| frame(number as u8 % 2, 0, number, 60)));
    for _ in 0..10 {
        bench.turn();
        bench.look();
    }
    assert_eq!(bench.ledger().in_flight, 100, "all on their way");
    let ledger = bench.end();
    assert_eq!(ledger.drops.get(DropReason::Stopped.name()), Some(&100));
}

#[test]
fn stop_passes_the_current_time_to_tx_functions() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let tx: common::Functions =
        vec![Box::new(Hold::new(1_000_000, 1000)), Box::new(Clocked(times.clone()))];
    let mut bench = Bench::new("[host]\nqueues = 1\n", 1, vec![by_first_byte()], tx);
    bench.host().echo = true;
    bench.wire(0).incoming.extend((0..10).map(|number| frame(0, 0, number, 60)));
    bench.turn();
    bench.look();
    bench.turn();
    assert_eq!(bench.ledger().in_flight, 10, "all held");
    bench.end();
    assert!(!lock(&times).is_empty());
    assert!(lock(&times).iter().all(|&time| time < Time::MAX), "{:?}", lock(&times));
}

#[test]
fn hairpins_use_only_their_wire() {
    let rx: common::Functions =
        vec![Box::new(Every::new(3, Door::Hairpin(1))), Box::new(Every::new(5, Door::Hairpin(9)))];
    let mut bench = Bench::new("[host]\nqueues = 1\n", 2, rx, vec![]);
    bench.wire(0).incoming.extend((0..300).map(|number| frame(0, 0, number, 60)));
    bench.settle();
    assert_eq!((bench.wire(0).sent.len(), bench.wire(1).sent.len()), (0, 100));
    let ledger = bench.end();
    assert_eq!(ledger.drops.get(DropReason::NoSuchWire.name()), Some(&40));
    assert_eq!(ledger.delivered, 160);
}

#[test]
fn hairpins_drop_and_count_excess_packets() {
    let rx: common::Functions = vec![Box::new(Every::new(1, Door::Hairpin(0)))];
    let mut bench = Bench::new("[card]\nwire_backlog = 64\n", 1, rx, vec![]);
    bench.wire(0).tx_room = Some(0);
    bench.wire(0).incoming.extend((0..200).map(|number| frame(0, 0, number, 60)));
    for _ in 0..10 {
        bench.turn();
    }
    let ledger = bench.balanced();
    assert_eq!((ledger.drops.get(DropReason::WireFull.name()), ledger.in_flight), (Some(&136), 64));
    assert_eq!(bench.end().drops.get(DropReason::Stopped.name()), Some(&64));
}

// ---------------------------------------------------------------- several wires

/// Sends frames on the wire that their second byte names.
fn by_second_byte() -> Box<dyn Function> {
    Box::new(per_packet(|packet: &mut PacketMut<'_>| Verdict::Transmit(packet.data()[1])))
}

/// A card of two wires whose hosts echo, and whose frames leave on the wire they name.
fn two_wires(host: &str) -> Bench {
    let text = format!("[card]\nwire_backlog = 64\n[host]\nqueues = 2\n{host}\n");
    let wires: Vec<Wire> = (0..2).map(|_| Wire::default()).collect();
    lock(&wires[1]).super_frames = true;
    let bench = Bench::with_wires(&text, wires, vec![by_first_byte()], vec![by_second_byte()]);
    bench.host().echo = true;
    bench
}

/// Turns and polls, `times` of each.
fn run(bench: &mut Bench, times: usize) {
    for _ in 0..times {
        bench.turn();
        bench.look();
    }
}

#[test]
fn stopped_wires_do_not_delay_others() {
    let mut bench = two_wires("ring_size = 4096\ntx_ring_size = 4096");
    bench.wire(0).tx_room = Some(0);
    // Queue 0 sends to the stopped wire, far more than may wait; queue 1 to the other.
    for number in 0..1000 {
        for (queue, wire) in [(0, 0), (1, 1)] {
            bench.wire(0).incoming.push_back(frame(queue, wire, number, 100));
        }
    }
    run(&mut bench, 200);
    assert_eq!(bench.wire(1).sent.len(), 1000, "held up by the other wire");
    assert!(bench.wire(0).sent.is_empty());
    let ledger = bench.balanced();
    assert_eq!((ledger.dropped, ledger.transmitted, ledger.in_flight), (0, 1000, 1000));
    // It takes packets again: all are there, in order.
    bench.wire(0).tx_room = None;
    bench.settle();
    assert!(bench.wire(0).sent.iter().map(|packet| number(packet)).eq(0..1000));
    assert_eq!(bench.end().dropped, 0);
}

#[test]
fn stopped_wires_delay_their_queue_for_a_bounded_time() {
    let mut bench = two_wires("ring_size = 4096\ntx_ring_size = 4096");
    bench.wire(0).tx_room = Some(0);
    // One queue, turn about to both wires.
    for number in 0..1000 {
        for wire in [0, 1] {
            bench.wire(0).incoming.push_back(frame(0, wire, number, 100));
        }
    }
    run(&mut bench, 100);
    let sent = bench.wire(1).sent.len();
    assert!((60..=64).contains(&sent), "as many as the other wire has waiting, not {sent}");
    assert_eq!(bench.balanced().dropped, 0, "and nothing is lost by that");
    // Until the wire counts as stalled.
    bench.now = bench.now + picnic_core::backlog::STALL_NS;
    run(&mut bench, 100);
    assert_eq!(bench.wire(1).sent.len(), 1000);
    let ledger = bench.balanced();
    assert_eq!(ledger.drops_by_stage.get("wire_full@wire_tx"), Some(&(1000 - 64)));
    // It takes packets again: those that waited, in order, and then all.
    bench.wire(0).tx_room = None;
    run(&mut bench, 10);
    for number in 5000..5500 {
        bench.wire(0).incoming.push_back(frame(0, 0, number, 100));
    }
    bench.settle();
    let wire = bench.wire(0);
    assert!(wire.sent.iter().map(|packet| number(packet)).eq((0..64).chain(5000..5500)));
    drop(wire);
    assert_eq!(bench.end().dropped, 1000 - 64);
}

#[test]
fn single_stopped_wire_drops_nothing() {
    let mut bench = backlogged(64, &[60, 1514], 500);
    for _ in 0..50 {
        bench.now = bench.now + picnic_core::backlog::STALL_NS;
        bench.turn();
    }
    assert_eq!(bench.ledger().dropped, 0);
    bench.wire(0).tx_room = None;
    bench.settle();
    assert_eq!(bench.end().transmitted, 1000);
}

#[test]
fn bytes_in_flight_are_bounded_by_queue() {
    for (limit, size, expected) in [(10_000, 1000, 10), (10_000, 3000, 3), (2000, 5000, 1)] {
        let text = format!(
            "[card]\nwire_backlog = 1024\n[host]\nqueues = 2\ntx_bytes_in_flight = {limit}\n\
             [pool]\nbuffer_size = 8192\n"
        );
        let mut bench = Bench::new(&text, 1, vec![by_first_byte()], vec![]);
        bench.host().echo = true;
        bench.wire(0).tx_room = Some(0);
        for number in 0..100 {
            for queue in [0, 1] {
                bench.wire(0).incoming.push_back(frame(queue, 0, number, size));
            }
        }
        run(&mut bench, 100);
        for queue in &bench.view.queues {
            assert_eq!(queue.steer.tx_taken.get(), expected, "{limit} {size}");
            assert_eq!(queue.steer.tx_in_flight_bytes.get(), expected * size as u64);
            assert_eq!(queue.steer.tx_limited.get(), 1);
        }
        bench.wire(0).tx_room = None;
        bench.settle();
        for queue in &bench.view.queues {
            assert_eq!(queue.steer.tx_completed.get(), 100);
            assert_eq!(queue.steer.tx_completed_bytes.get(), 100 * size as u64);
            assert_eq!(queue.steer.tx_in_flight_bytes.get(), 0);
        }
        assert_eq!(bench.end().transmitted, 200);
    }
}

#[test]
fn super_frames_need_a_capable_wire_or_are_counted() {
    let mut bench = two_wires("");
    // A frame longer than any arrives as a super-frame; wire 1 takes them.
    bench.wire(0).large = 2000;
    for (number, size) in [(0, 100), (1, 4000), (2, 100), (3, 60_000)] {
        for wire in [0, 1] {
            bench.wire(0).incoming.push_back(frame(wire, wire, number, size));
        }
    }
    bench.settle();
    let numbers = |wire: usize| -> Vec<u32> {
        bench.wire(wire).sent.iter().map(|packet| number(packet)).collect()
    };
    assert_eq!((numbers(0), numbers(1)), (vec![0, 2], vec![0, 1, 2, 3]));
    let ledger = bench.end();
    assert_eq!(ledger.drops_by_stage.get("super_frame@wire_tx"), Some(&2));
}

#[test]
fn kept_packets_are_in_flight_until_sent() {
    let text = "[host]\nqueues = 1\n";
    let mut bench = Bench::new(text, 1, vec![by_first_byte()], vec![]);
    bench.host().echo = true;
    bench.wire(0).keeps = Some(0);
    bench.wire(0).incoming.extend((0..100).map(|number| frame(0, 0, number, 60)));
    for _ in 0..20 {
        bench.turn();
        bench.look();
    }
    let ledger = bench.balanced();
    assert_eq!((ledger.in_flight, ledger.transmitted, ledger.delivered), (100, 0, 100));
    // Nothing waits for the wire; it is still polled, until all kept packets have left.
    bench.wire(0).keeps = Some(7);
    for turn in 1..10_u64 {
        bench.turn();
        let ledger = bench.balanced();
        assert_eq!((ledger.in_flight, ledger.transmitted), (100 - 7 * turn, 7 * turn));
    }
    let ledger = bench.end();
    // The turns of the end continue; packets that never leave are dropped.
    assert_eq!(ledger.transmitted + ledger.dropped, 100, "{ledger:?}");
    assert_eq!(ledger.drops.get("stopped").copied().unwrap_or(0), ledger.dropped);
    assert!(ledger.dropped > 0, "{ledger:?}");
}

#[test]
fn sending_hosts_are_polled_by_time() {
    let text = "[host]\nattachment = \"sends\"\nqueues = 1\n[interrupt]\ntx_usecs = 30";
    let mut bench = Bench::new(text, 1, vec![], vec![]);
    bench.turn();
    bench.look();
    assert_eq!(bench.targets[0].tx_pause_ns(), None, "the first one wakes it");
    bench.host().sends = 3;
    bench.look();
    bench.look();
    assert_eq!(bench.targets[0].tx_pause_ns(), Some(30_000), "it may send more");
    bench.look();
    assert_eq!(bench.targets[0].tx_pause_ns(), None, "it did not");

    // Out of buffers: the card hands out more soon, which nothing announces.
    bench.host().sends = 1000;
    bench.look();
    assert!(bench.targets[0].is_starved());
    assert_eq!(bench.targets[0].tx_pause_ns(), None);
    bench.settle();

    assert!(bench.controller.send(Command::TxPause(0)).is_ok());
    bench.turn();
    assert!(matches!(bench.controller.answer().unwrap().replaced, Command::TxPause(30_000)));
    bench.host().sends = 1;
    bench.look();
    bench.look();
    assert_eq!(bench.targets[0].tx_pause_ns(), None, "each wakes it");
    bench.settle();
    bench.end();
}

#[test]
fn targets_wait_only_for_hosts_they_can_serve() {
    let text = "[host]\nattachment = \"sends\"\nqueues = 2";
    let mut bench = Bench::new(text, 1, vec![], vec![]);
    bench.turn();
    bench.look();
    assert_eq!(bench.slept_on(), [vec![0], vec![1]]);
    // Without buffers there is nothing to wake for; the first one polled takes its own.
    bench.host().sends = 1000;
    bench.look();
    assert_eq!(bench.slept_on(), [vec![], vec![1]]);
    assert!(bench.targets[0].is_starved() && !bench.targets[1].is_starved());
    bench.settle();
    bench.look();
    assert_eq!(bench.slept_on(), [vec![0], vec![1]], "there are buffers again");
    for target in &mut bench.targets {
        target.stop_transmitting();
    }
    assert_eq!(bench.slept_on(), [[], []] as [[u16; 0]; 2], "they send nothing more");
    bench.end();
    // A host that only echoes has nothing to wake for.
    let mut bench = Bench::new("[host]\nqueues = 2", 1, vec![], vec![]);
    bench.turn();
    bench.look();
    assert_eq!(bench.slept_on(), [[], []] as [[u16; 0]; 2]);
    bench.end();
}

/// UDP over IPv4 whose checksum field holds the sum of the pseudo-header.
fn partial_udp() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 36, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    // 17 + 16 + 0x0a00 + 0x0001 + 0x0a00 + 0x0002.
    frame.extend([0x12, 0x34, 0x56, 0x78, 0, 16, 0x14, 0x24]);
    frame.extend(*b"\x01\x02\x03\x04\x05\x06\x07\x08");
    frame
}

#[test]
fn partial_checksums_are_completed_for_the_wire() {
    let finished = {
        let mut frame = partial_udp();
        let words = frame[34..].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        frame[40..42].copy_from_slice(&(!folded as u16).to_be_bytes());
        frame
    };
    for takes_partial in [false, true] {
        let rx: Vec<Box<dyn Function>> = vec![Box::new(Every::new(1, Door::Hairpin(0)))];
        let wire = Wire::default();
        lock(&wire).partial = true;
        lock(&wire).takes_partial = takes_partial;
        lock(&wire).incoming.push_back(partial_udp());
        let mut bench = Bench::with_wires("[host]\nqueues = 1", vec![wire], rx, vec![]);
        bench.settle();
        let state = if takes_partial { ChecksumState::Partial } else { ChecksumState::Good };
        let bytes = if takes_partial { partial_udp() } else { finished.clone() };
        assert_eq!(bench.wire(0).sent_checksums, [state]);
        assert_eq!(bench.wire(0).sent, [bytes]);
        bench.end();
    }
}
