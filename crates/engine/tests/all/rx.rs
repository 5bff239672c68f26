//! The rx path, the chain and its commands: conservation, order, patience, back-pressure.

use crate::common::functions::{Clocked, Door, Every, Flushed, Hold, Multiply};
use crate::common::{
    Bench, Functions, Wire, WireState, by_first_byte, frame, links, lock, number, patient,
};
use picnic_core::command::{Order, Prepared};
use picnic_core::direction::Direction;
use picnic_core::ring::moderation::ModerationMode;
use picnic_core::time::Time;
use picnic_engine::swap::Command;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const TWO_QUEUES: &str = "[host]\nqueues = 2\nring_size = 256\n";

fn load(bench: &mut Bench, wire: usize, numbers: std::ops::Range<u32>) {
    let frames = numbers.map(|number| frame((number % 2) as u8, 0, number, 60));
    bench.wire(wire).incoming.extend(frames);
}

/// Whether the packets of each queue arrived in order, and their number.
#[track_caller]
fn seen_in_order(bench: &Bench, queues: u16) -> usize {
    let host = bench.host();
    for queue in 0..queues {
        let numbers = host.seen.iter().filter(|(seen, _)| *seen == queue).map(|(_, b)| number(b));
        assert!(numbers.is_sorted(), "queue {queue} out of order");
    }
    host.seen.len()
}

#[test]
fn full_target_ring_counts_drops() {
    let mut bench = Bench::new(TWO_QUEUES, 1, vec![by_first_byte()], vec![]);
    bench.wire(0).incoming.extend((0..1000).map(|number| frame(1, 0, number, 60)));
    while !bench.turn().is_idle() {}
    let ledger = bench.balanced();
    assert_eq!(ledger.drops_by_stage.get("ring_full@steer"), Some(&(1000 - 256)));
    assert_eq!(bench.view.queues[1].steer.ring_full.get(), 744);
    assert_eq!(ledger.in_flight, 256);
    // The earlier packets are kept.
    bench.settle();
    assert!(bench.host().seen.iter().map(|(_, bytes)| number(bytes)).eq(0..256));
    assert_eq!(bench.end().delivered, 256);
}

#[test]
fn ring_depth_is_reported_at_the_end() {
    let mut bench = Bench::new(TWO_QUEUES, 1, vec![by_first_byte()], vec![]);
    load(&mut bench, 0, 0..10);
    bench.turn();
    bench.card.doors().note_depths();
    let depths = |bench: &Bench| [0, 1].map(|queue| bench.view.queues[queue].steer.depth.get());
    assert_eq!(depths(&bench), [5, 5]);
    bench.end();
    assert_eq!(depths(&bench), [0, 0]);
}

#[test]
fn a_patient_wire_waits_for_rings() {
    let mut bench = Bench::with_wires(TWO_QUEUES, vec![patient()], vec![by_first_byte()], vec![]);
    bench.wire(0).incoming.extend((0..1000).map(|number| frame(1, 0, number, 60)));
    while !bench.turn().is_idle() {}
    assert_eq!(bench.ledger().dropped, 0);
    bench.settle();
    let ledger = bench.end();
    assert_eq!((ledger.delivered, ledger.dropped), (1000, 0));
    assert_eq!(seen_in_order(&bench, 2), 1000);
}

#[test]
fn a_patient_wire_waits_for_buffers() {
    let text = "[pool]\nbuffers = 100\n[host]\nqueues = 1\nring_size = 1024\n";
    let mut bench = Bench::with_wires(text, vec![patient()], vec![], vec![]);
    load(&mut bench, 0, 0..1000);
    bench.settle();
    let ledger = bench.end();
    assert_eq!((ledger.delivered, ledger.dropped), (1000, 0));
}

#[test]
fn without_buffers_the_wire_sheds_before_work_is_spent() {
    let text = "[pool]\nbuffers = 64\n[host]\nqueues = 1\nring_size = 1024\n";
    let times = Arc::new(Mutex::new(Vec::new()));
    let mut bench = Bench::new(text, 1, vec![Box::new(Clocked(times.clone()))], vec![]);
    load(&mut bench, 0, 0..640);
    for _ in 0..10 {
        bench.turn();
    }
    let ledger = bench.balanced();
    assert_eq!(ledger.drops_by_stage.get("pool_exhausted@wire"), Some(&(640 - 64)));
    assert_eq!(bench.view.wires[0].counters.rx_shed.get(), 640 - 64);
    assert_eq!(lock(&times).len(), 1, "the chain ran on shed packets");
    assert_eq!(bench.end().delivered, 64);
}

#[test]
fn buffer_shortage_favours_no_wire() {
    let text = "[pool]\nbuffers = 64\n[host]\nqueues = 1\nring_size = 1024\n";
    let mut bench = Bench::new(text, 3, vec![], vec![]);
    for _ in 0..300 {
        for wire in 0..3 {
            bench.wire(wire).incoming.extend((0..64).map(|n| frame(0, wire as u8, n, 60)));
        }
        bench.turn();
        while bench.look() != 0 {}
    }
    let host = bench.host();
    let of = |wire| host.seen.iter().filter(|(_, bytes)| bytes[1] == wire).count();
    let counts = [of(0), of(1), of(2)];
    drop(host);
    assert!(counts.iter().all(|&count| count == 6400), "{counts:?}");
    bench.end();
}

#[test]
fn unsteered_packets_end_at_the_default_queue_and_wrong_queues_are_counted() {
    let text = "[card]\ndefault_queue = 1\n[host]\nqueues = 2\n";
    let mut bench = Bench::new(text, 1, vec![Box::new(Every::new(4, Door::Steer(7)))], vec![]);
    load(&mut bench, 0, 0..100);
    bench.settle();
    let ledger = bench.end();
    assert_eq!(ledger.drops_by_stage.get("no_such_queue@steer"), Some(&25));
    assert_eq!(bench.view.queues[1].target.packets.get(), 75);
}

#[test]
fn multiplied_packets_keep_their_order() {
    let rx: Functions = vec![Box::new(Multiply::new(100)), by_first_byte()];
    let text = "[host]\nqueues = 2\nring_size = 8192\n[pool]\nbuffers = 16384\n";
    let mut bench = Bench::new(text, 1, rx, vec![]);
    load(&mut bench, 0, 0..130);
    bench.settle();
    assert_eq!(seen_in_order(&bench, 2), 13_000);
    let ledger = bench.end();
    assert_eq!((ledger.r#in, ledger.delivered, ledger.dropped), (13_000, 13_000, 0));
}

#[test]
fn nested_multiplication_exceeds_a_burst_depth_first() {
    let rx: Functions = vec![
        Box::new(Multiply::new(10)),
        Box::new(Hold::new(500, 50)),
        Box::new(Multiply::new(7)),
        Box::new(Every::new(7, Door::Consume)),
        by_first_byte(),
    ];
    let text = "[host]\nqueues = 2\nring_size = 8192\n[pool]\nbuffers = 16384\n";
    let mut bench = Bench::new(text, 1, rx, vec![]);
    load(&mut bench, 0, 0..70);
    for _ in 0..20 {
        bench.turn();
    }
    bench.settle();
    assert_eq!(seen_in_order(&bench, 2), 70 * 60);
    let ledger = bench.end();
    assert_eq!((ledger.delivered, ledger.consumed), (70 * 60, 70 * 10));
}

/// A wire that knows arrival times.
fn stamping() -> Wire {
    Wire::new(Mutex::new(WireState { arrival: Some(Time::ZERO), ..WireState::default() }))
}

#[test]
fn wait_at_the_wire_is_part_of_latency() {
    // The borrowed core did other work for a millisecond.
    let mut bench = Bench::with_wires("[host]\nqueues = 1\n", vec![stamping()], vec![], vec![]);
    bench.now = Time::from_nanos(5_000_000);
    bench.wires[0].lock().unwrap().arrival = Some(Time::from_nanos(4_000_000));
    load(&mut bench, 0, 0..32);
    bench.settle();
    let latency = bench.targets[0].queues()[0].latency();
    assert!(
        latency.len() == 2 && latency.min() >= 990_000,
        "{} to {}",
        latency.min(),
        latency.max()
    );
    let (wire, queue) = (&bench.view.wires[0], &bench.view.queues[0].target);
    assert!(wire.capabilities.arrival && wire.counters.stamps_ahead.get() == 0);
    let (waited, packets) = (wire.counters.waited_ns.get(), wire.counters.waited_packets.get());
    assert!(packets == 2 && (2_000_000..2_100_000).contains(&waited), "{waited} in {packets}");
    assert!(queue.latency_packets.get() == 2 && queue.latency_ns.get() >= waited);
    bench.end();
}

#[test]
fn one_packet_in_sixteen_records_its_wait() {
    let mut bench = Bench::with_wires("[host]\nqueues = 1\n", vec![stamping()], vec![], vec![]);
    bench.wires[0].lock().unwrap().arrival = Some(Time::ZERO);
    for (packets, told) in [(1, 1), (15, 1), (1, 2), (14, 2), (2, 3)] {
        load(&mut bench, 0, 0..packets);
        bench.settle();
        assert_eq!(bench.view.wires[0].counters.waited_packets.get(), told);
    }
    bench.end();
}

#[test]
fn wait_for_the_interrupt_and_queueing_are_separate() {
    let text = "[host]\nqueues = 1\n[interrupt]\nwire_usecs = 100\n";
    let mut bench = Bench::with_wires(text, vec![stamping()], vec![], vec![]);
    let mut burst = |arrived_us: u64, taken_us: u64| {
        bench.now = Time::from_nanos(taken_us * 1000 - 100);
        bench.wires[0].lock().unwrap().arrival = Some(Time::from_nanos(arrived_us * 1000));
        load(&mut bench, 0, 0..16);
        bench.turn();
        let counters = &bench.view.wires[0].counters;
        (counters.interrupts.get(), counters.waited_ns.get(), counters.held_ns.get())
    };
    // The first interrupts at once, and the borrowed core is 30 µs late.
    assert_eq!(burst(1000, 1030), (1, 30_000, 0));
    // The next may interrupt at 1100: of 90 µs, these have waited 60 for that, then 30.
    assert_eq!(burst(1040, 1130), (2, 120_000, 60_000));
    // The next at 1200, though the last were taken late: a NIC does not wait.
    assert_eq!(burst(1150, 1201), (3, 171_000, 110_000));
    bench.settle();
    bench.end();
}

#[test]
fn wire_usecs_of_one_throttles_and_zero_does_not() {
    for (usecs, interrupts) in [(0, 0), (1, 1)] {
        let text = format!("[host]\nqueues = 1\n[interrupt]\nwire_usecs = {usecs}\n");
        let mut bench = Bench::with_wires(&text, vec![stamping()], vec![], vec![]);
        load(&mut bench, 0, 0..16);
        bench.settle();
        assert_eq!(bench.view.wires[0].counters.interrupts.get(), interrupts);
        bench.end();
    }
}

#[test]
fn nic_interrupts_for_the_first_packet_of_a_burst() {
    let text = "[host]\nqueues = 1\n[interrupt]\nwire_usecs = 100\n";
    let mut bench = Bench::with_wires(text, vec![stamping()], vec![], vec![]);
    bench.wires[0].lock().unwrap().apart_ns = 1000;
    // Sixteen from 1000 on: the next interrupt may occur 100 µs after the first of them.
    for (arrived_us, taken_us, interrupts) in [(1000, 1030, 1), (1040, 1099, 1), (1040, 1100, 2)] {
        bench.now = Time::from_nanos(taken_us * 1000 - 100);
        bench.wires[0].lock().unwrap().arrival = Some(Time::from_nanos(arrived_us * 1000));
        load(&mut bench, 0, 0..16);
        bench.turn();
        let taken = bench.view.wires[0].counters.interrupts.get();
        assert_eq!(taken, interrupts, "at {taken_us}");
    }
    bench.settle();
    bench.end();
}

#[test]
fn future_stamps_are_counted_and_clamped() {
    let mut bench = Bench::with_wires("[host]\nqueues = 1\n", vec![stamping()], vec![], vec![]);
    bench.wires[0].lock().unwrap().arrival = Some(Time::from_nanos(1 << 40));
    load(&mut bench, 0, 0..16);
    bench.settle();
    let counters = bench.view.wires[0].counters.clone();
    assert!(counters.stamps_ahead.get() >= 1);
    assert_eq!((counters.waited_ns.get(), counters.waited_packets.get()), (0, 1));
    assert!(bench.targets[0].queues()[0].latency().max() < 1_000_000);
    bench.end();
}

#[test]
fn held_packets_leave_when_due() {
    let rx: Functions = vec![Box::new(Hold::new(10_000, 1000))];
    let text = "[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\n";
    let mut bench = Bench::new(text, 1, rx, vec![]);
    load(&mut bench, 0, 0..10);
    bench.turn();
    let due = bench.now + 10_000;
    assert_eq!(bench.card.next_deadline(bench.now), Some(due));
    assert_eq!(bench.balanced().in_flight, 10);
    bench.now = due - 200;
    bench.turn();
    assert_eq!(bench.look(), 0, "a nanosecond early is early");
    bench.turn();
    assert_eq!(bench.look(), 10);
    bench.end();
}

#[test]
fn earliest_function_deadline_counts() {
    for (first_ns, second_ns) in [(10_000, 30_000), (30_000, 10_000)] {
        let rx: Functions =
            vec![Box::new(Hold::new(first_ns, 2)), Box::new(Hold::new(second_ns, 1000))];
        let mut bench = Bench::new("[host]\nqueues = 1\n", 1, rx, vec![]);
        load(&mut bench, 0, 0..5);
        bench.turn();
        assert_eq!(bench.card.next_deadline(bench.now), Some(bench.now + 10_000));
        bench.end();
    }
}

#[test]
fn functions_are_flushed_when_due_and_at_the_end() {
    let flushed = Arc::new(Mutex::new(Vec::new()));
    let (never, later) =
        (Flushed { due: None, calls: flushed.clone() }, Arc::new(Mutex::new(Vec::new())));
    let due = Some(Time::from_nanos(250));
    let later_calls = later.clone();
    let rx: Functions = vec![Box::new(never), Box::new(Flushed { due, calls: later_calls })];
    let mut bench = Bench::new("[host]\nqueues = 1\n", 1, rx, vec![]);
    for _ in 0..5 {
        load(&mut bench, 0, 0..1);
        bench.turn();
        bench.look();
    }
    assert_eq!(*lock(&flushed), [], "it asked for none");
    let at = |nanos: &[u64]| nanos.iter().map(|&at| Time::from_nanos(at)).collect::<Vec<_>>();
    assert_eq!(*lock(&later), at(&[300, 400, 500]), "from when it is due, as long as it is");
    bench.end();
    assert_eq!(lock(&flushed).last(), Some(&Time::MAX), "at the end it lets go of all");
    assert_eq!(lock(&later).last(), Some(&Time::MAX));
}

#[test]
fn packets_held_at_stop_are_delivered() {
    let rx: Functions = vec![Box::new(Hold::new(1_000_000_000, 1000)), by_first_byte()];
    let mut bench = Bench::new(TWO_QUEUES, 1, rx, vec![]);
    load(&mut bench, 0, 0..60);
    bench.turn();
    assert_eq!(bench.balanced().in_flight, 60);
    let ledger = bench.end();
    assert_eq!((ledger.delivered, ledger.dropped), (60, 0));
    assert_eq!(seen_in_order(&bench, 2), 60);
}

#[test]
fn turns_are_invisible_before_publish() {
    let text = format!("{TWO_QUEUES}[interrupt]\nrx_usecs = 0\n");
    let mut bench = Bench::new(&text, 2, vec![by_first_byte()], vec![]);
    load(&mut bench, 0, 0..20);
    load(&mut bench, 1, 0..10);
    assert_eq!(bench.card.work(Time::from_nanos(1)).received, 30);
    assert_eq!(bench.balanced().in_flight, 30);
    assert_eq!(bench.look(), 0);
    let activity = bench.card.publish(Time::from_nanos(500));
    assert_eq!((activity.received, activity.is_idle()), (30, false));
    assert_eq!(bench.balanced().in_flight, 30);
    assert_eq!(bench.look(), 30);
    // There is no turn to publish any more.
    assert!(bench.card.publish(Time::from_nanos(600)).is_idle());
    assert_eq!(bench.end().delivered, 30);
}

#[test]
fn ending_cards_publish_their_turn() {
    let mut bench = Bench::new(TWO_QUEUES, 1, vec![by_first_byte()], vec![]);
    load(&mut bench, 0, 0..20);
    bench.card.work(Time::from_nanos(1));
    assert_eq!(bench.end().delivered, 20);
}

#[test]
fn ledger_detects_a_lost_packet() {
    let mut bench = Bench::new(TWO_QUEUES, 1, vec![Box::new(Every::new(9, Door::Leak))], vec![]);
    load(&mut bench, 0, 0..9);
    bench.card.poll(Time::from_nanos(1));
    let ledger = bench.ledger();
    assert_eq!(ledger.unbalanced_bursts, 1);
    assert!(!ledger.balanced());
}

#[test]
fn refusing_hosts_are_counted_and_buffers_return() {
    let mut bench = Bench::new(TWO_QUEUES, 1, vec![by_first_byte()], vec![]);
    bench.host().refuse = true;
    load(&mut bench, 0, 0..100);
    bench.settle();
    let ledger = bench.end();
    assert_eq!(ledger.drops_by_stage.get("host_refused@target"), Some(&100));
}

#[test]
fn a_chained_packet_arrives_whole() {
    let text = "[pool]\nbuffers = 256\nbuffer_size = 512\n[host]\nqueues = 2\n";
    let mut bench = Bench::new(text, 1, vec![by_first_byte()], vec![]);
    bench.host().echo = true;
    let frames: Vec<_> = [0, 1, 511, 512, 513, 9000, 65_536]
        .into_iter()
        .enumerate()
        .map(|(index, length)| {
            let mut bytes = frame(1, 0, index as u32, length);
            bytes.iter_mut().skip(6).enumerate().for_each(|(at, byte)| *byte = at as u8);
            bytes
        })
        .collect();
    bench.wire(0).incoming.extend(frames.clone());
    // Longer than a packet may be.
    bench.wire(0).incoming.push_back(vec![0; (1 << 17) + 1]);
    bench.settle();
    assert!(bench.wire(0).sent.iter().eq(&frames));
    let ledger = bench.end();
    assert_eq!(ledger.drops_by_stage.get("oversize@wire"), Some(&1));
    assert_eq!(ledger.transmitted, 7);
}

// ---------------------------------------------------------------- commands

#[test]
fn swaps_flush_the_old_chain_first() {
    let rx: Functions = vec![Box::new(Hold::new(1_000_000_000, 1000)), by_first_byte()];
    let mut bench = Bench::new(TWO_QUEUES, 1, rx, vec![]);
    load(&mut bench, 0, 0..60);
    bench.turn();
    assert_eq!(bench.balanced().in_flight, 60);
    let swap = Command::Swap(Direction::Rx, links(vec![by_first_byte()]));
    assert!(bench.controller.send(swap).is_ok());
    load(&mut bench, 0, 60..120);
    bench.settle();
    assert_eq!(seen_in_order(&bench, 2), 120);
    let answer = bench.controller.answer().unwrap();
    assert!(answer.done);
    // The replaced functions return whole, and empty.
    let Command::Swap(Direction::Rx, old) = answer.replaced else { panic!("another command") };
    assert_eq!(old.len(), 2);
    assert_eq!(bench.end().dropped, 0);
}

#[test]
fn the_view_follows_swaps_once_they_are_answered() {
    let rx: Functions = vec![by_first_byte()];
    let mut bench = Bench::new(TWO_QUEUES, 1, rx, vec![]);
    let names = |bench: &Bench, direction| {
        let functions = bench.view.functions.of(direction).into_iter();
        functions.map(|function| function.name).collect::<Vec<_>>()
    };
    let before = names(&bench, Direction::Rx);
    assert_eq!((before.len(), names(&bench, Direction::Tx).len()), (1, 0));
    let two = || vec![by_first_byte(), by_first_byte()];
    assert!(bench.controller.send(Command::Swap(Direction::Tx, links(two()))).is_ok());
    assert!(bench.controller.send(Command::Moderate(ModerationMode::None)).is_ok());
    assert!(bench.controller.send(Command::Swap(Direction::Rx, links(two()))).is_ok());
    load(&mut bench, 0, 0..60);
    bench.turn();
    assert_eq!(names(&bench, Direction::Rx), before, "told before it was answered");
    assert!(bench.controller.answer().is_some());
    assert_eq!(names(&bench, Direction::Tx).len(), 2);
    assert_eq!(names(&bench, Direction::Rx), before);
    while bench.controller.answer().is_some() {}
    let functions = bench.view.functions.of(Direction::Rx);
    assert_eq!(functions.len(), 2);
    // The new functions' counters, not the old ones'.
    assert_eq!(functions[0].counters.packets.get(), 60);
    bench.settle();
    assert_eq!(bench.end().delivered, 60);
}

/// An order that no function is for.
struct Stray;

impl Order for Stray {
    type Target = Stray;
    fn apply(&mut self, _: &mut Stray, _: Time) -> bool {
        true
    }
}

#[test]
fn commands_of_one_turn_balance_together() {
    let rx: Functions = vec![Box::new(Hold::new(1_000_000_000, 1000)), by_first_byte()];
    let mut bench = Bench::new(TWO_QUEUES, 1, rx, vec![]);
    load(&mut bench, 0, 0..60);
    bench.turn();
    for command in [
        Command::Swap(Direction::Rx, links(vec![by_first_byte()])),
        Command::Moderate(ModerationMode::None),
        Command::Swap(Direction::Tx, Vec::new()),
        Command::Function(Direction::Rx, 0, Prepared::new(Stray)),
        Command::Function(Direction::Rx, 9, Prepared::new(Stray)),
    ] {
        assert!(bench.controller.send(command).is_ok());
    }
    bench.turn();
    let done: Vec<_> = std::iter::from_fn(|| bench.controller.answer()).map(|a| a.done).collect();
    assert_eq!(done, [true, true, true, false, false]);
    bench.settle();
    assert_eq!(bench.end().delivered, 60);
}

#[test]
fn packets_flushed_by_a_swap_use_the_current_time() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let rx: Functions =
        vec![Box::new(Hold::new(1_000_000, 1000)), Box::new(Clocked(times.clone()))];
    let mut bench = Bench::new(TWO_QUEUES, 1, rx, vec![]);
    load(&mut bench, 0, 0..10);
    bench.turn();
    assert!(bench.controller.send(Command::Swap(Direction::Rx, Vec::new())).is_ok());
    bench.turn();
    assert_eq!(*lock(&times), [bench.now]);
    bench.end();
}

#[test]
fn excess_commands_are_returned() {
    let mut bench = Bench::new(TWO_QUEUES, 1, vec![], vec![]);
    let accepted = (0..100)
        .take_while(|_| bench.controller.send(Command::Moderate(ModerationMode::None)).is_ok())
        .count();
    assert_eq!(accepted, 64);
    bench.turn();
    assert!(bench.controller.send(Command::Moderate(ModerationMode::None)).is_err());
    assert_eq!(std::iter::from_fn(|| bench.controller.answer()).count(), 64);
    assert!(bench.controller.send(Command::Moderate(ModerationMode::None)).is_ok());
}

#[test]
fn sequential_commands_are_unlimited() {
    let mut bench = Bench::new(TWO_QUEUES, 1, vec![], vec![]);
    for number in 0..200 {
        assert!(bench.controller.send(Command::Poll(number)).is_ok(), "{number}");
        bench.turn();
        let answer = bench.controller.answer().unwrap();
        let before = number.saturating_sub(1);
        assert!(answer.done && matches!(answer.replaced, Command::Poll(ns) if ns == before));
        assert!(bench.controller.answer().is_none());
    }
    let refused = Command::Poll(7).refused();
    assert!(!refused.done && matches!(refused.replaced, Command::Poll(7)));
    bench.end();
}

#[test]
fn commands_wake_a_sleeping_card() {
    let mut bench = Bench::new(TWO_QUEUES, 1, vec![], vec![]);
    bench.turn();
    assert!(bench.card.arm());
    assert!(bench.controller.send(Command::Moderate(ModerationMode::None)).is_ok());
    assert_eq!(bench.card_bell.count(), 1);
    bench.card.disarm();
    bench.turn();
    assert!(bench.controller.answer().is_some());
    // Awake, it needs no doorbell; and with a command waiting it does not go to sleep.
    assert!(bench.controller.send(Command::Moderate(ModerationMode::None)).is_ok());
    assert_eq!(bench.card_bell.count(), 1);
    assert!(!bench.card.arm());
}

// ---------------------------------------------------------------- any input

#[derive(Clone, Debug)]
enum Act {
    Load { wire: usize, packets: u32 },
    Turn,
    Look { queue: usize },
    Swap(u8),
    Moderate(u8),
    TxRoom(Option<usize>),
    Wait(u64),
}

fn chain(kind: u8) -> Functions {
    match kind % 5 {
        0 => vec![],
        1 => vec![Box::new(Hold::new(700, 20))],
        2 => vec![Box::new(Multiply::new(3)), Box::new(Every::new(4, Door::Consume))],
        3 => vec![Box::new(Every::new(3, Door::Hairpin(0))), Box::new(Hold::new(300, 100))],
        _ => vec![Box::new(Hold::new(5_000, 200)), Box::new(Every::new(10, Door::Drop))],
    }
}

fn steered(kind: u8) -> Functions {
    let mut functions = chain(kind);
    functions.push(by_first_byte());
    functions
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (0..2usize, 1..200u32).prop_map(|(wire, packets)| Act::Load { wire, packets }),
        12 => Just(Act::Turn),
        8 => (0..2usize).prop_map(|queue| Act::Look { queue }),
        1 => any::<u8>().prop_map(Act::Swap),
        1 => any::<u8>().prop_map(Act::Moderate),
        1 => prop::option::of(0..100usize).prop_map(Act::TxRoom),
        1 => (0..20_000u64).prop_map(Act::Wait),
    ];
    prop::collection::vec(act, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Turns, polls, swaps and stalls in any order, stopped anywhere: the ledger balances after
    /// every step, order is kept within a queue and every buffer returns.
    #[test]
    fn the_ledger_balances_whatever_happens(
        acts in acts(),
        echo: bool,
        waits: bool,
        first in 0u8..5,
        tx in 0u8..5,
        buffers in prop_oneof![Just(64u32), Just(400), Just(8192)],
        settles: bool,
    ) {
        let text = format!(
            "[pool]\nbuffers = {buffers}\n[card]\nburst = 16\nwire_backlog = 64\n\
             [host]\nqueues = 2\nring_size = 64\ntx_ring_size = 64\n"
        );
        // A tx chain that hairpins or multiplies is allowed, too.
        let wires = vec![if waits { patient() } else { Wire::default() }, Wire::default()];
        let mut bench = Bench::with_wires(&text, wires, steered(first), chain(tx));
        bench.host().echo = echo;
        let mut next = [0u32; 2];
        for act in acts {
            match act {
                Act::Load { wire, packets } => {
                    let numbers = next[wire]..next[wire] + packets;
                    next[wire] = numbers.end;
                    // Each wire has its own flow, to its own queue.
                    bench.wire(wire).incoming.extend(
                        numbers.map(|n| frame(wire as u8, 0, n, 60 + (n as usize * 37) % 900)),
                    );
                }
                Act::Turn => {
                    bench.turn();
                }
                Act::Look { queue } => {
                    let now = bench.now;
                    bench.targets[queue].poll(now);
                    bench.balanced();
                }
                Act::Swap(kind) => {
                    let command = Command::Swap(Direction::Rx, links(steered(kind)));
                    while bench.controller.answer().is_some() {}
                    let _ = bench.controller.send(command);
                }
                Act::Moderate(kind) => {
                    let mode = match kind % 3 {
                        0 => ModerationMode::None,
                        1 => ModerationMode::Static { usecs: 3, frames: 10 },
                        _ => ModerationMode::Adaptive { max_usecs: 50 },
                    };
                    let _ = bench.controller.send(Command::Moderate(mode));
                }
                Act::TxRoom(room) => bench.wire(0).tx_room = room,
                Act::Wait(nanoseconds) => bench.now = bench.now + nanoseconds,
            }
        }
        if settles {
            bench.wire(0).tx_room = None;
            bench.settle();
            prop_assert_eq!(bench.balanced().in_flight, 0);
        }
        let ledger = bench.end();
        prop_assert_eq!(ledger.unbalanced_bursts, 0);
        seen_in_order(&bench, 2);
    }
}

#[test]
fn functions_are_timed_on_one_burst_in_256() {
    let rx: Functions = vec![by_first_byte()];
    let mut bench = Bench::new("[host]\nqueues = 1\n", 1, rx, vec![]);
    // Each reading of the clock is 100 ns after the previous one.
    let looks = Arc::new(Mutex::new(0));
    let clock = || {
        let looks = looks.clone();
        Box::new(move || {
            let mut looks = lock(&looks);
            *looks += 1;
            Time::from_nanos(100 * *looks)
        })
    };
    bench.card.time_functions_by([clock(), clock()]);
    for round in 0..600 {
        load_first(&mut bench, 10 * round..10 * round + 10);
        bench.turn();
        while bench.look() != 0 {}
    }
    let counters = bench.view.functions.of(Direction::Rx)[0].counters.clone();
    // The first burst, and each 256th after it.
    assert_eq!((counters.timed_packets.get(), counters.timed_ns.get()), (30, 300));
    assert_eq!((counters.packets.get(), *lock(&looks)), (6000, 6));
    bench.end();
}

#[test]
fn timing_does_not_change_fates() {
    // The first burst is timed, the second is not: unsteered, to the default queue; to its wire.
    let text = "[card]\ndefault_queue = 1\n[host]\nqueues = 2\n";
    let rx: Functions = vec![Box::new(Every::new(5, Door::Drop))];
    let tx: Functions = vec![Box::new(Every::new(4, Door::Drop))];
    let mut bench = Bench::new(text, 1, rx, tx);
    bench.host().echo = true;
    bench.card.time_functions_by([Box::new(|| Time::ZERO), Box::new(|| Time::ZERO)]);
    for round in 1..3 {
        load_first(&mut bench, 0..10);
        bench.turn();
        assert_eq!(bench.look(), 8);
        bench.turn();
        let ledger = bench.balanced();
        assert_eq!((ledger.transmitted, ledger.dropped), (6 * round, 4 * round));
    }
    assert!(bench.host().seen.iter().all(|(queue, _)| *queue == 1));
    bench.end();
}

/// Numbered frames, all for queue 0.
fn load_first(bench: &mut Bench, numbers: std::ops::Range<u32>) {
    bench.wire(0).incoming.extend(numbers.map(|number| frame(0, 0, number, 60)));
}
