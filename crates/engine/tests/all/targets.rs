//! The target routine alone: preempting interrupts, resting, counters.

use crate::common;
use crate::common::functions::{Door, Every};
use crate::common::{
    Bench, SUPER_FRAMES, TOGETHER, Wire, WireState, by_first_byte, frame, lock, patient,
};
use picnic_core::config::CardFile;
use picnic_core::direction::Direction;
use picnic_core::function::{Disorder, Function};
use picnic_core::hook::Hooks;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::port::Clocks;
use picnic_core::ring::moderation::ModerationMode;
use picnic_core::time::Time;
use picnic_engine::build::context;
use picnic_engine::swap::Command;
use picnic_engine::target::{Polled, TargetQueue, latency_histogram};
use std::path::Path;
use std::sync::Arc;

const UNMASKED: &str = "[pool]\nbuffers = 4096\n[host]\nqueues = 1\nring_size = 2048\n\
                        [interrupt]\nrx_usecs = 0\ngate = \"none\"\n";

fn load(bench: &mut Bench, count: u32) {
    bench.wire(0).incoming.extend((0..count).map(|number| frame(0, 0, number, 60)));
}

/// Its targets asleep, and its hosts applications if requested.
fn asleep(text: &str, application: bool) -> Bench {
    let mut bench = Bench::new(text, 1, vec![], vec![]);
    bench.host().application = application;
    bench.look();
    assert!(bench.targets[0].is_resting());
    bench
}

/// One poll at a time.
fn poll_at(bench: &mut Bench, nanos: u64) -> Polled {
    bench.now = Time::from_nanos(nanos);
    poll(bench)
}

fn poll(bench: &mut Bench) -> Polled {
    let polled = bench.targets[0].poll(bench.now);
    bench.balanced();
    polled
}

fn turn_at(bench: &mut Bench, nanos: u64) {
    bench.now = Time::from_nanos(nanos - 100);
    bench.turn();
}

#[test]
fn interrupts_in_transit_are_not_taken() {
    for text in [UNMASKED, &UNMASKED.replace("gate = \"none\"\n", "")] {
        let mut bench = asleep(text, true);
        load(&mut bench, 5);
        turn_at(&mut bench, 100);
        assert_eq!(bench.targets[0].go_on(bench.now), Polled::default());
        let polled = poll_at(&mut bench, 200);
        assert_eq!((polled.interrupts, polled.moved), (1, 5));
        bench.settle();
        assert_eq!(bench.end().delivered, 5);
    }
}

#[test]
fn targets_respect_their_burst_limit() {
    let mut bench = asleep(&UNMASKED.replace("gate = \"none\"\n", ""), false);
    bench.targets[0].limit_bursts(4);
    load(&mut bench, 10);
    turn_at(&mut bench, 100);
    let taken: Vec<_> = (2..5).map(|turn| poll_at(&mut bench, turn * 100).packets).collect();
    assert_eq!(taken, [4, 4, 2]);
    bench.settle();
    assert_eq!(bench.end().delivered, 10);
}

#[test]
fn interrupts_move_bursts_and_applications_take_packets() {
    let mut bench = asleep(UNMASKED, true);
    bench.host().work_ns = 50;
    load(&mut bench, 70);
    bench.turn();
    bench.turn();
    assert_eq!(poll(&mut bench), Polled { interrupts: 1, moved: 64, ..Polled::default() });
    assert!(!bench.targets[0].is_resting());
    assert_eq!(poll(&mut bench), Polled { moved: 6, ..Polled::default() });
    assert!(!bench.targets[0].is_empty(), "the ring is, and packets wait for the application");
    for _ in 0..70 {
        let polled = Polled { packets: 1, work_ns: 50, ..Polled::default() };
        assert_eq!(poll(&mut bench), polled);
    }
    assert!(bench.targets[0].is_empty() && !bench.targets[0].is_resting());
    assert_eq!(poll(&mut bench), Polled::default());
    assert!(bench.targets[0].is_resting());
    let counters = bench.view.queues[0].target.clone();
    // Including the poll that put it to sleep.
    assert_eq!((counters.polls.get(), counters.empty_polls.get()), (1 + 2 + 70 + 1, 2));
    bench.end();
}

#[test]
fn ring_checks_count_as_polls_and_empty_polls() {
    let mut bench = asleep("[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\n", false);
    let target = bench.view.queues[0].target.clone();
    let counts = || (target.polls.get(), target.empty_polls.get());
    let before = counts();
    load(&mut bench, 3);
    bench.turn();
    // Then it rests.
    let counted = [(1, 0), (2, 1), (2, 1)].map(|(polls, empty)| {
        poll(&mut bench);
        (before.0 + polls, before.1 + empty) == counts()
    });
    assert_eq!(counted, [true; 3]);
    bench.end();
}

#[test]
fn application_backlog_is_limited() {
    let mut bench = asleep(UNMASKED, true);
    load(&mut bench, 1100);
    while !bench.turn().is_idle() {}
    let moved: usize = (0..18).map(|_| poll(&mut bench).moved).sum();
    assert_eq!(moved, 1100);
    assert_eq!(bench.ledger().drops_by_stage["host_refused@target"], 100);
    bench.settle();
    assert_eq!(bench.end().delivered, 1000);
}

#[test]
fn offline_cards_lose_nothing_before_applications() {
    for (echo, tx_ring) in [(false, 64), (true, 64), (true, 2048)] {
        let text = UNMASKED.replace("queues", &format!("tx_ring_size = {tx_ring}\nqueues"));
        let mut bench = Bench::with_wires(&text, vec![patient()], vec![], vec![]);
        (bench.host().application, bench.host().echo) = (true, false);
        bench.host().echo = echo;
        load(&mut bench, 1100);
        bench.settle();
        let ledger = bench.end();
        let sent = if echo { 1100 } else { 0 };
        assert_eq!((ledger.delivered, ledger.dropped), (1100, 0));
        assert_eq!((ledger.transmitted, bench.host().seen.len()), (sent, 1100));
    }
}

#[test]
fn offline_applications_continue_while_there_is_room() {
    let text = UNMASKED.replace("queues", "tx_ring_size = 64\nqueues");
    let mut bench = Bench::with_wires(&text, vec![patient()], vec![], vec![]);
    bench.host().application = true;
    bench.host().echo = true;
    bench.look();
    load(&mut bench, 100);
    bench.turn();
    bench.turn();
    // Nothing is taken off the tx ring meanwhile.
    let polled: Vec<_> = (0..200).map(|_| poll(&mut bench)).collect();
    assert_eq!(polled.iter().map(|polled| polled.moved).sum::<usize>(), 100);
    assert_eq!(polled.iter().map(|polled| polled.packets).sum::<usize>(), 64);
    bench.settle();
    assert_eq!(bench.end().transmitted, 100);
}

#[test]
fn nonempty_ring_before_sleep_counts_as_an_interrupt() {
    let text = UNMASKED.replace("rx_usecs = 0", "rx_usecs = 20\nrx_frames = 0");
    let mut bench = asleep(&text, true);
    load(&mut bench, 1);
    turn_at(&mut bench, 100);
    turn_at(&mut bench, 20_100);
    assert_eq!(poll(&mut bench), Polled { interrupts: 1, moved: 1, ..Polled::default() });
    assert_eq!(poll(&mut bench), Polled { packets: 1, ..Polled::default() });
    // The interrupt for this one is not due yet.
    load(&mut bench, 1);
    turn_at(&mut bench, 20_200);
    assert_eq!(poll(&mut bench), Polled::default());
    assert!(!bench.targets[0].is_resting());
    assert_eq!(poll(&mut bench), Polled { moved: 1, ..Polled::default() });
    assert_eq!(poll(&mut bench), Polled { packets: 1, ..Polled::default() });
    poll(&mut bench);
    assert!(bench.targets[0].is_resting());
    bench.end();
}

#[test]
fn targets_keep_polling_for_poll_usecs() {
    let mut bench = Bench::new(
        "[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\npoll_usecs = 10\n",
        1,
        vec![],
        vec![],
    );
    let rests = |bench: &mut Bench, nanos| {
        poll_at(bench, nanos);
        bench.targets[0].is_resting()
    };
    assert!(!rests(&mut bench, 9_999) && rests(&mut bench, 10_000));
    load(&mut bench, 1);
    turn_at(&mut bench, 20_000);
    assert_eq!(poll_at(&mut bench, 20_000).packets, 1);
    load(&mut bench, 1);
    turn_at(&mut bench, 25_000);
    let taken = Polled { moved: 1, packets: 1, ..Polled::default() };
    assert_eq!(poll_at(&mut bench, 25_000), taken);
    assert!(!rests(&mut bench, 34_999) && rests(&mut bench, 35_000));
    bench.end();
}

#[test]
fn commands_change_pacing_and_return_the_old_value() {
    let mut bench = asleep(UNMASKED, true);
    let commands = [
        Command::Poll(10_000),
        Command::TxPause(7_000),
        Command::Moderate(ModerationMode::None),
        Command::Unmask(true),
    ];
    for command in commands {
        assert!(bench.controller.send(command).is_ok());
    }
    load(&mut bench, 2);
    turn_at(&mut bench, 10_100);
    let answers: Vec<_> = std::iter::from_fn(|| bench.controller.answer()).collect();
    assert!(answers.len() == 4 && answers.iter().all(|answer| answer.done));
    assert!(matches!(answers[0].replaced, Command::Poll(0)));
    assert!(matches!(answers[1].replaced, Command::TxPause(50_000)));
    assert!(matches!(answers[2].replaced, Command::Moderate(ModerationMode::None)));
    assert!(matches!(answers[3].replaced, Command::Unmask(true)));
    assert_eq!(poll(&mut bench).moved, 2);
    // An interrupt is pending when they become masked.
    load(&mut bench, 1);
    turn_at(&mut bench, 10_200);
    assert!(bench.controller.send(Command::Unmask(false)).is_ok());
    turn_at(&mut bench, 10_300);
    assert_eq!(poll(&mut bench), Polled { interrupts: 1, moved: 1, ..Polled::default() });
    // Packets waiting for the application still go first, and count as traffic.
    for nanos in [15_000, 16_000, 17_000] {
        assert_eq!(poll_at(&mut bench, nanos), Polled { packets: 1, ..Polled::default() });
    }
    poll_at(&mut bench, 26_999);
    assert!(!bench.targets[0].is_resting());
    poll_at(&mut bench, 27_000);
    assert!(bench.targets[0].is_resting());
    bench.end();
}

#[test]
fn one_packet_in_sixteen_has_its_latency_recorded_across_bursts() {
    let mut bench = asleep("[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\n", false);
    for _ in 0..4 {
        load(&mut bench, 10);
        bench.turn();
        let arrived = bench.now.as_nanos();
        assert_eq!(poll_at(&mut bench, arrived + 40).packets, 10);
    }
    let target = &bench.view.queues[0].target;
    // The first, the seventeenth and the thirty-third.
    assert_eq!((target.latency_packets.get(), target.latency_ns.get()), (3, 120));
    assert_eq!(bench.targets[0].queues()[0].latency().len(), 3);
    let histogram = latency_histogram();
    assert_eq!((histogram.low(), histogram.high(), histogram.sigfig()), (1, 100_000_000_000, 2));
    bench.end();
}

#[test]
fn first_packet_latency_is_always_recorded() {
    const MASKED: &str = "[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\n";
    for (text, is_unmasked, age) in
        [(MASKED, false, 40), (UNMASKED, true, 40), (MASKED, false, 1), (MASKED, false, 0)]
    {
        let mut bench = asleep(text, is_unmasked);
        assert_eq!(bench.targets[0].is_unmasked(), is_unmasked);
        load(&mut bench, 1);
        bench.turn();
        let arrived = bench.now.as_nanos();
        poll_at(&mut bench, arrived + age);
        let target = bench.view.queues[0].target.clone();
        assert_eq!((target.latency_packets.get(), target.latency_ns.get()), (1, age), "{text}");
        // The histogram has no bucket for none.
        assert_eq!(bench.targets[0].queues()[0].latency().max(), age.max(1));
        bench.settle();
        bench.end();
    }
}

#[test]
fn packets_left_in_the_burst_are_delivered() {
    let mut bench = asleep("[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\n", false);
    bench.host().leaves = true;
    load(&mut bench, 5);
    bench.settle();
    assert_eq!(bench.end().delivered, 5);
    assert_eq!(bench.targets[0].queues()[0].report(), ["the host of queue 0"]);
}

#[test]
fn host_packets_wake_a_sleeping_card() {
    let mut bench = Bench::new("[host]\nqueues = 2\n", 1, vec![by_first_byte()], vec![]);
    bench.host().echo = true;
    for (round, bells) in [(0, 0), (1, 1)] {
        bench.wire(0).incoming.push_back(frame(1, 0, 0, 60));
        bench.turn();
        if round == 1 {
            assert!(bench.card.arm());
        }
        bench.look();
        assert_eq!(bench.card_bell.count(), bells);
        // Packets of the second queue keep it awake.
        bench.card.disarm();
        assert!(!bench.card.arm());
        // Nor does it request a wake-up then.
        bench.wire(0).incoming.push_back(frame(1, 0, 0, 60));
        bench.turn();
        bench.look();
        assert_eq!(bench.card_bell.count(), bells);
        while !bench.turn().is_idle() {}
    }
    bench.end();
}

/// A card with `queues` queues at one target, whose first host has sent all it can.
fn starved(queues: usize, interrupt: &str) -> Bench {
    let text = format!(
        "[host]\nattachment = \"sends\"\nqueues = {queues}\ntx_ring_size = 64\n\
         [interrupt]\n{interrupt}\n"
    );
    TOGETHER.set(true);
    let mut bench = Bench::new(&text, 1, vec![], vec![]);
    bench.turn();
    bench.look();
    bench.host().sends = 1000;
    bench.look();
    assert!(bench.targets[0].is_starved() && bench.targets[0].is_resting());
    bench
}

#[test]
fn single_starved_hosts_cause_polling() {
    let mut bench = starved(2, "tx_complete = \"off\"");
    assert!(bench.targets[0].looks_again_soon());
    bench.targets[0].stop_transmitting();
    assert!(!bench.targets[0].is_starved() && !bench.targets[0].looks_again_soon());
    assert!(bench.targets[0].is_resting());
    bench.end();
}

#[test]
fn room_interrupts_follow_moderation() {
    for (keys, after_a_turn) in [
        ("tx_complete = \"interrupt\"\nrx_usecs = 1000\nrx_frames = 0", 1),
        ("tx_complete = \"moderated\"\nrx_usecs = 1000\nrx_frames = 0", 0),
        // As many completions as packets would have to be.
        ("tx_complete = \"moderated\"\nrx_usecs = 1000\nrx_frames = 64", 1),
    ] {
        let mut bench = starved(1, keys);
        let doorbells = bench.view.queues[0].steer.doorbells.get();
        bench.turn();
        assert_eq!(bench.view.queues[0].steer.doorbells.get() - doorbells, after_a_turn, "{keys}");
        bench.settle();
        bench.end();
    }
}

#[test]
fn cores_report_all_their_queues() {
    TOGETHER.set(true);
    let text = "[host]\nqueues = 2\n[interrupt]\nrx_usecs = 0\n";
    let mut bench = Bench::new(text, 1, vec![by_first_byte()], vec![]);
    bench.look();
    bench.host().work_ns = 10;
    let queues = [0, 1, 0, 0, 1];
    bench.wire(0).incoming.extend(queues.map(|queue| frame(queue, 0, 0, 60)));
    bench.turn();
    let all = Polled { interrupts: 2, moved: 5, packets: 5, work_ns: 50, ..Polled::default() };
    assert_eq!(poll(&mut bench), all);
    assert!(bench.targets[0].queues().iter().map(TargetQueue::index).eq([0, 1]));
    bench.end();
}

/// At the end all buffers wait for the wire, or too few are used: none is left to hand out.
#[test]
fn ring_room_without_buffers_is_reported() {
    let whole = [(64, 1), (64, 1), (64, 1), (64, 1), (0, 0)];
    for (burst, expected) in [(64, whole), (1, [(1, 1); 5])] {
        let text = format!(
            "[card]\nwire_backlog = 1024\nburst = {burst}\n[pool]\nbuffers = 256\n\
             [host]\nattachment = \"sends\"\nqueues = 1\ntx_ring_size = 64\n\
             tx_bytes_in_flight = 1000000\n[interrupt]\ntx_complete = \"interrupt\"\n"
        );
        let mut bench = Bench::new(&text, 1, vec![], vec![]);
        bench.wire(0).tx_room = Some(0);
        bench.turn();
        bench.look();
        let doorbells = |bench: &Bench| bench.view.queues[0].steer.doorbells.get();
        let turns = expected.map(|_| {
            bench.host().sends = 1000;
            bench.look();
            assert!(bench.targets[0].is_starved() && bench.targets[0].is_resting());
            let before = doorbells(&bench);
            (bench.turn().submitted, doorbells(&bench) - before)
        });
        assert_eq!(turns, expected);
        bench.wire(0).tx_room = None;
        bench.settle();
        bench.end();
    }
}

#[test]
fn unprompted_host_packets_wake_a_sleeping_card() {
    let text = "[host]\nattachment = \"sends\"\nqueues = 1\n";
    let mut bench = Bench::new(text, 1, vec![], vec![]);
    while !bench.turn().is_idle() {}
    bench.look();
    assert!(bench.card.arm());
    bench.look();
    assert_eq!(bench.card_bell.count(), 0, "nothing was sent");
    bench.host().sends = 1;
    bench.look();
    assert_eq!(bench.card_bell.count(), 1);
    bench.card.disarm();
    bench.settle();
    bench.end();
}

/// Room that appeared before the host waited does not count.
#[test]
fn hosts_learn_of_room_gained_while_waiting() {
    let keys = "tx_complete = \"moderated\"\nrx_usecs = 1000\nrx_frames = 256\n";
    let text = format!(
        "[host]\nattachment = \"sends\"\nqueues = 1\ntx_ring_size = 64\n[interrupt]\n{keys}"
    );
    let mut bench = Bench::new(&text, 1, vec![], vec![]);
    bench.turn();
    let look_and_turn = |bench: &mut Bench, sends| {
        bench.host().sends = sends;
        bench.look();
        let is_starved = bench.targets[0].is_starved();
        bench.turn();
        is_starved
    };
    for _ in 0..20 {
        assert!(!look_and_turn(&mut bench, 40));
    }
    let doorbells = |bench: &Bench| bench.view.queues[0].steer.doorbells.get();
    let before = doorbells(&bench);
    assert!(look_and_turn(&mut bench, 1000));
    assert_eq!(doorbells(&bench), before);
    bench.settle();
    assert_eq!(doorbells(&bench), before + 1);
    bench.end();
}

/// Frames longer than a quantum are taken over several rounds of a turn: each counts once.
#[test]
fn hosts_learn_of_exact_room() {
    // A whole ring is taken, and the same number of buffers handed out instead.
    for (completions, rings) in [(128, 1), (129, 0)] {
        let keys =
            format!("tx_complete = \"moderated\"\nrx_usecs = 1000\nrx_frames = {completions}");
        let mut bench = starved(1, &keys);
        let doorbells = |bench: &Bench| bench.view.queues[0].steer.doorbells.get();
        let before = doorbells(&bench);
        assert_eq!(bench.turn().submitted, 64);
        assert_eq!(doorbells(&bench) - before, rings, "{completions}");
        bench.settle();
        bench.end();
    }
}

#[test]
fn only_hosts_with_room_are_interrupted() {
    let mut bench = starved(2, "tx_complete = \"interrupt\"");
    let doorbells = |bench: &Bench| {
        let of = |queue: usize| bench.view.queues[queue].steer.doorbells.get();
        (of(0), of(1))
    };
    let before = doorbells(&bench);
    bench.turn();
    assert_eq!(doorbells(&bench), (before.0 + 1, before.1));
    bench.settle();
    bench.end();
}

#[test]
fn cards_report_host_needs_and_wire_ends() {
    for (attachment, asks) in [("app", false), ("sends", true)] {
        let text = format!("[host]\nattachment = \"{attachment}\"\nqueues = 1\n");
        let mut bench = Bench::new(&text, 2, vec![], vec![]);
        assert_eq!(bench.asks, (asks, asks));
        assert!(!bench.card.is_finished());
        bench.wire(0).finished = true;
        assert!(!bench.card.is_finished());
        bench.wire(1).finished = true;
        assert!(bench.card.is_finished());
        bench.end();
    }
}

#[test]
fn opened_wires_are_closed_if_one_fails() {
    let wires: Vec<_> = (0..3).map(|_| Wire::default()).collect();
    lock(&wires[2]).fails = true;
    let built = Bench::build("", wires.clone(), (vec![], vec![]), &Hooks::none(), None);
    let error = built.err().map(|error| error.to_string()).unwrap();
    assert!(error.contains("port: cannot be taken up"), "{error}");
    assert!(!wires.iter().any(|wire| lock(wire).is_taken_up));
    lock(&wires[2]).fails = false;
    let mut bench =
        Bench::build("", wires.clone(), (vec![], vec![]), &Hooks::none(), None).unwrap();
    assert!(wires.iter().all(|wire| lock(wire).is_taken_up));
    bench.end();
    assert!(!wires.iter().any(|wire| lock(wire).is_taken_up));
}

#[test]
fn wires_report_arrivals_and_learn_other_clocks() {
    let stamping = WireState { arrival: Some(Time::ZERO), ..WireState::default() };
    let wires = vec![Wire::default(), Wire::new(stamping.into())];
    let mut bench = Bench::with_wires("", wires, vec![], vec![]);
    let (arrivals, know_arrival) = &bench.brings;
    assert_eq!((arrivals.len(), &know_arrival[..]), (2, &[false, true][..]));
    assert!(arrivals.iter().all(|arrivals| arrivals.origin.contains("does not report a rate")));
    bench.turn();
    assert!([0, 1].iter().all(|&wire| bench.wire(wire).clocks.is_none()));
    let clocks = Clocks { realtime_ns: 5, monotonic_ns: 7 };
    bench.card.set_clocks(clocks);
    bench.turn();
    assert!([0, 1].iter().all(|&wire| bench.wire(wire).clocks == Some(clocks)));
    bench.end();
}

#[test]
fn builders_get_the_values_of_the_file() {
    let text = "[card]\nname = \"a\"\nseed = 7\n[host]\nqueues = 3\n\
                [pool]\nbuffers = 512\nbuffer_size = 4096\n";
    let text = text.to_owned() + &"[[wire]]\nport = \"generator\"\n".repeat(2);
    let file = CardFile::parse(&text, Some(Path::new("/cards/a.toml"))).unwrap();
    let told = context(&file);
    assert_eq!((&*told.card, told.queues, told.wires, told.seed), ("a", 3, 2, 7));
    assert_eq!((told.buffers, told.buffer_size), (512, 4096));
    assert_eq!(told.directory, Path::new("/cards"));
    assert_eq!(told.position, 0, "what is built for the whole card is the first of its kind");
    assert!(!told.super_frames && told.cost_profile.is_none(), "known to whoever builds these");
    // The shared parts of a card are its own, not another card's.
    let own = file.shared.get_or_make(|| 5_u8);
    assert!(Arc::ptr_eq(&own, &told.shared.get_or_make(|| 6_u8)));
}

#[test]
fn builders_get_the_engine() {
    for (engine, in_kernel, is_hybrid) in
        [("poll", false, false), ("kernel", true, false), ("hybrid", false, true)]
    {
        let text = format!("[card]\nengine = \"{engine}\"\n[[wire]]\nport = \"xdp\"\n");
        let told = context(&CardFile::parse(&text, None).unwrap());
        assert_eq!((told.in_kernel, told.is_hybrid), (in_kernel, is_hybrid), "{engine}");
    }
}

#[test]
fn wire_problems_are_reported_by_name() {
    let wires: Vec<Wire> = (0..3).map(|_| Wire::default()).collect();
    wires[1].lock().unwrap().warnings = vec!["it is down".into(), "it is slow".into()];
    wires[2].lock().unwrap().warnings = vec!["it is gone".into()];
    let mut bench = Bench::with_wires("[host]\nqueues = 1\n", wires, vec![], vec![]);
    let expected = ["wire1: it is down", "wire1: it is slow", "wire2: it is gone"];
    assert_eq!(bench.view.warnings, expected);
    bench.end();
}

#[test]
fn host_that_uses_one_of_several_wires_gets_a_warning() {
    let warnings = |attachment: &str, wires: usize, tx: Vec<Box<dyn Function>>| {
        let text = format!("[host]\nqueues = 1\nattachment = \"{attachment}\"\n");
        let mut bench = Bench::new(&text, wires, vec![], tx);
        let warnings = bench.view.warnings.clone();
        bench.end();
        warnings
    };
    let told = "packets from the host leave only on wire0: no function of the tx chain chooses \
                among the 3 wires";
    assert_eq!(warnings("sends", 3, vec![]), [told]);
    assert!(warnings("sends", 3, vec![by_first_byte()]).is_empty());
    assert!(warnings("sends", 1, vec![]).is_empty());
    assert!(warnings("app", 3, vec![]).is_empty(), "echoes have the wire that they came by");
}

#[test]
fn hosts_with_late_room_are_polled_once_more() {
    let mut bench = starved(1, "tx_complete = \"interrupt\"");
    bench.settle();
    (bench.host().sends, bench.host().gives_back) = (1000, false);
    bench.host().gives_back = true;
    bench.look();
    assert!(bench.targets[0].is_starved() && !bench.targets[0].is_resting());
    assert_eq!(bench.view.queues[0].target.starved.get(), 1);
    bench.host().gives_back = false;
    bench.look();
    assert!(!bench.targets[0].is_starved() && bench.targets[0].is_resting());
    bench.end();
    assert_eq!(bench.view.queues[0].target.starved.get(), 0);
}

#[test]
fn stopped_hosts_are_not_polled() {
    let mut bench = starved(1, "tx_complete = \"interrupt\"");
    bench.settle();
    (bench.host().sends, bench.host().gives_back) = (1000, false);
    bench.host().gives_back = true;
    bench.look();
    // It was refused room that exists by now.
    assert!(!bench.targets[0].is_resting());
    bench.targets[0].stop_transmitting();
    assert!(bench.targets[0].is_resting() && !bench.targets[0].is_starved());
    assert_eq!(bench.view.queues[0].target.starved.get(), 0);
    bench.end();
}

#[test]
fn cores_rest_when_all_queues_rest() {
    for busy in [0, 1] {
        let text = "[host]\nqueues = 2\n[interrupt]\nrx_usecs = 0\n";
        TOGETHER.set(true);
        let mut bench = Bench::new(text, 1, vec![by_first_byte()], vec![]);
        bench.look();
        assert!(bench.targets[0].is_resting() && bench.targets[0].is_empty());
        bench.wire(0).incoming.push_back(frame(busy, 0, 0, 60));
        bench.turn();
        assert!(!bench.targets[0].is_empty(), "queue {busy}");
        // It has taken its interrupt, and polls once more before it rests.
        assert_eq!(poll(&mut bench).packets, 1);
        assert!(bench.targets[0].is_empty() && !bench.targets[0].is_resting(), "queue {busy}");
        poll(&mut bench);
        assert!(bench.targets[0].is_resting());
        bench.end();
    }
}

#[test]
fn hosts_that_sent_are_ignored_for_tx_usecs() {
    let text = "[host]\nattachment = \"sends\"\nqueues = 1\n[interrupt]\ntx_usecs = 7\n";
    let mut bench = Bench::new(text, 1, vec![], vec![]);
    bench.turn();
    bench.host().sends = 1;
    bench.look();
    assert_eq!(bench.targets[0].tx_pause_ns(), Some(7000));
    assert_eq!(bench.targets[0].tx_pause_ns(), None);
    bench.end();
}

#[test]
fn fill_rings_share_a_quarter_of_the_pool() {
    for (buffers, queues, depth) in [
        (4096, 1, 64),
        (256, 1, 64),
        (255, 1, 32),
        (252, 4, 8),
        (256, 4, 16),
        (64, 16, 1),
        (64, 32, 1),
    ] {
        let text = format!(
            "[pool]\nbuffers = {buffers}\n\
             [host]\nattachment = \"sends\"\nqueues = {queues}\ntx_ring_size = 256\n"
        );
        let mut bench = Bench::new(&text, 1, vec![], vec![]);
        bench.turn();
        bench.host().sends = 1000;
        bench.look();
        let sent = bench.view.queues[0].target.transmitted.get();
        assert_eq!(sent, depth, "{buffers} buffers, {queues} queues");
        bench.end();
    }
}

#[test]
fn quantum_sized_frames_leave_in_their_first_turn() {
    let text = "[card]\nburst = 8\n[host]\nqueues = 2\n";
    let mut bench = Bench::new(text, 1, vec![by_first_byte()], vec![]);
    bench.host().echo = true;
    bench.wire(0).incoming.extend([frame(0, 0, 0, 1514), frame(1, 0, 0, 60)]);
    bench.turn();
    bench.look();
    let activity = bench.turn();
    assert_eq!((activity.submitted, activity.transmitted), (2, 2));
    let lengths: Vec<_> = bench.wire(0).sent.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1514, 60]);
    // At most a burst at a time, as the card file sets it.
    load(&mut bench, 20);
    (0..3).for_each(|_| assert_ne!(bench.turn().received, 0));
    bench.look();
    let taken: Vec<_> = (0..4).map(|_| bench.turn().submitted).collect();
    assert_eq!(taken, [8, 8, 4, 0]);
    bench.end();
}

#[test]
fn each_wires_burst_is_published_separately() {
    let text = "[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\ngate = \"none\"\n";
    let mut bench = Bench::new(text, 2, vec![], vec![]);
    bench.look();
    for wire in 0..2 {
        bench.wire(wire).incoming.push_back(frame(0, 0, 0, 60));
    }
    assert_eq!(bench.turn().received, 2);
    let steer = bench.view.queues[0].steer.clone();
    assert_eq!((steer.doorbells.get(), steer.coalesced.get()), (2, 1));
    bench.end();
}

#[test]
fn stopping_cards_receive_nothing() {
    let mut bench = Bench::new("[host]\nqueues = 1\n", 1, vec![], vec![]);
    bench.card.stop_receiving(bench.now);
    load(&mut bench, 5);
    assert_eq!(bench.turn().received, 0);
    assert_eq!(bench.end().r#in, 0);
}

#[test]
fn ended_cards_receive_nothing() {
    let mut bench = Bench::new("[host]\nqueues = 1\n", 1, vec![], vec![]);
    load(&mut bench, 10);
    assert_eq!(bench.card.finish(bench.now), 0, "no buffer is missing");
    assert_eq!((bench.wire(0).incoming.len(), bench.balanced().r#in), (10, 0));
}

#[test]
fn drops_are_attributed_to_their_function() {
    let rx: Vec<Box<dyn Function>> = vec![Box::new(Every::new(5, Door::Drop)), by_first_byte()];
    let mut bench = Bench::new("[host]\nqueues = 1\n", 1, rx, vec![]);
    for dropped in 1..4 {
        load(&mut bench, 5);
        bench.turn();
        let functions = bench.view.functions.of(Direction::Rx);
        let counts: Vec<_> = functions
            .iter()
            .map(|function| (function.counters.packets.get(), function.counters.dropped.get()))
            .collect();
        assert_eq!(counts, [(5 * dropped, dropped), (4 * dropped, 0)]);
    }
    bench.end();
}

/// Declares that it cuts super-frames.
struct Cuts;

impl Function for Cuts {
    fn process(&mut self, _: Time, _: &mut Burst, _: &mut Out<'_>) {}
    fn cuts_super_frames(&self) -> bool {
        true
    }
}

/// Breaks the order of flows, or needs it.
struct Order {
    breaks: bool,
}

impl Function for Order {
    fn process(&mut self, _: Time, _: &mut Burst, _: &mut Out<'_>) {}
    fn needs_order(&self) -> bool {
        !self.breaks
    }
    fn breaks_order(&self, direction: Direction) -> Option<Disorder> {
        let how = Disorder { key: "mode", found: "in turn", allowed: "by flow" };
        (self.breaks && direction == Direction::Tx).then_some(how)
    }
}

#[test]
fn order_needing_functions_are_refused_after_reordering_ones() {
    let build = |breaks: [bool; 2]| {
        let functions = breaks.map(|breaks| Box::new(Order { breaks }) as Box<dyn Function>);
        let text = "[[tx]]\nfunction = \"slot\"\n".repeat(2);
        common::try_links(&text, functions.into(), &Hooks::none())
            .map(|links| links.len())
            .map_err(|error| error.to_string())
    };
    assert_eq!([[false, true], [false; 2], [true; 2]].map(build), [Ok(2), Ok(2), Ok(2)]);
    let error = build([true, false]).unwrap_err();
    let told = "mode: found \"in turn\" before \"slot\", which needs packets of a flow in \
                order, allowed: by flow, or \"slot\" before it";
    assert!(error.contains(told), "{error}");
}

#[test]
fn ended_cards_return_their_functions() {
    let (rx, tx) = (vec![by_first_byte(), by_first_byte()], vec![by_first_byte()]);
    let mut bench = Bench::new("[host]\nqueues = 1\n", 1, rx, tx);
    bench.end();
    assert_eq!(bench.card.take_functions().map(|chain| chain.len()), [2, 1]);
    assert_eq!(bench.card.take_functions().map(|chain| chain.len()), [0, 0]);
}

#[test]
fn silent_hosts_wait_for_nothing() {
    let bench = Bench::new("[host]\nattachment = \"sends\"\n", 1, vec![], vec![]);
    assert!(bench.targets.iter().all(|target| !target.is_starved() && !target.looks_again_soon()));
}

#[test]
fn super_frames_need_capable_wires_or_a_cutting_function() {
    let wire = |super_frames| {
        Wire::new(std::sync::Mutex::new(WireState { super_frames, ..WireState::default() }))
    };
    for (wires, cuts, expected) in [
        ([true, true], false, true),
        ([true, false], false, false),
        ([false, false], false, false),
        ([true, false], true, true),
    ] {
        let tx: Vec<Box<dyn Function>> =
            if cuts { vec![by_first_byte(), Box::new(Cuts)] } else { vec![by_first_byte()] };
        let wires = wires.map(wire).into();
        let mut bench = Bench::with_wires("[host]\nqueues = 1\n", wires, vec![], tx);
        assert_eq!(SUPER_FRAMES.get(), expected);
        bench.end();
    }
}
