//! Every interrupt mode: per packet, not masked, a moderated wire, transmit completion.

use crate::common::{Bench, Wire, WireState, frame, patient};
use picnic_core::config::TxComplete;
use picnic_core::ring::moderation::ModerationMode;
use picnic_core::time::Time;
use picnic_engine::swap::Command;

fn load(bench: &mut Bench, numbers: std::ops::Range<u32>) {
    let frames = numbers.map(|number| frame(0, 0, number, 60));
    bench.wire(0).incoming.extend(frames);
}

/// A card of one queue under these `[interrupt]` keys, its target asleep.
fn asleep(interrupt: &str) -> Bench {
    let text = format!("[host]\nqueues = 1\n[interrupt]\n{interrupt}\n");
    let mut bench = Bench::new(&text, 1, vec![], vec![]);
    bench.look();
    assert!(bench.targets[0].is_resting());
    bench
}

fn counts(bench: &Bench) -> (u64, u64, u64) {
    let queue = &bench.view.queues[0];
    let taken = queue.target.interrupts.get();
    (queue.steer.doorbells.get(), queue.steer.coalesced.get(), taken)
}

#[test]
fn per_packet_mode_interrupts_for_each_descriptor() {
    let mut bench = asleep("per_packet = true\ngate = \"none\"");
    load(&mut bench, 0..10);
    for sent in 1..=10 {
        assert_eq!(bench.turn().received, 1);
        assert_eq!(counts(&bench), (sent, sent - 1, 0));
    }
    assert_eq!(bench.bells[0].count(), 10);
    while bench.balanced().in_flight != 0 {
        bench.look();
    }
    assert_eq!(counts(&bench), (10, 9, 1), "the target takes together what is pending");
    bench.end();
}

#[test]
fn gate_interrupts_only_waiting_queues() {
    let mut bench = asleep("per_packet = true");
    load(&mut bench, 0..10);
    bench.settle();
    assert_eq!(counts(&bench).1, 0);
    let (sent, _, taken) = counts(&bench);
    assert!(sent == taken && (1..=10).contains(&sent), "{sent} sent, {taken} taken");
    bench.end();
}

#[test]
fn busy_queues_are_interrupted_without_masking() {
    for (gate, at_work) in [("queue", 0), ("none", 1)] {
        let mut bench = asleep(&format!("rx_usecs = 0\ngate = \"{gate}\""));
        load(&mut bench, 0..4);
        bench.turn();
        // The interrupt is taken; the queue is busy when the next packets arrive.
        bench.look();
        let before = counts(&bench);
        assert_eq!(before, (1, 0, 1), "{gate}");
        load(&mut bench, 4..8);
        bench.turn();
        assert_eq!(counts(&bench).0 - before.0, at_work, "{gate}");
        bench.settle();
        assert_eq!(counts(&bench).2, 1 + at_work, "{gate}");
        assert_eq!(bench.end().delivered, 8);
    }
}

#[test]
fn initially_busy_queues_are_interrupted_without_masking() {
    for (gate, interrupts) in [("queue", 0), ("none", 1)] {
        let text = format!("[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\ngate = \"{gate}\"\n");
        let mut bench = Bench::new(&text, 1, vec![], vec![]);
        load(&mut bench, 0..4);
        bench.turn();
        bench.look();
        assert_eq!(counts(&bench).2, interrupts, "{gate}");
        bench.settle();
        assert_eq!(bench.end().delivered, 4);
    }
}

#[test]
fn gates_change_while_running_without_loss() {
    let mut bench = asleep("rx_usecs = 0");
    for round in 0..40_u32 {
        load(&mut bench, round * 5..round * 5 + 5);
        let command = match round % 4 {
            0 => Command::Unmask(true),
            1 => Command::Moderate(ModerationMode::PerPacket),
            2 => Command::Unmask(false),
            _ => Command::Moderate(ModerationMode::None),
        };
        assert!(bench.controller.send(command).is_ok());
        for _ in 0..round % 7 {
            bench.turn();
        }
        bench.look();
        if round % 3 == 0 {
            bench.settle();
        }
        while bench.controller.answer().is_some_and(|answer| answer.done) {}
    }
    bench.settle();
    assert_eq!(bench.end().delivered, 200);
}

#[test]
fn moderated_wires_are_polled_only_at_interrupts() {
    let mut bench = asleep("rx_usecs = 0\nwire_usecs = 50");
    load(&mut bench, 0..3);
    let first = bench.now + 100;
    assert_eq!(bench.turn().received, 3, "the first packet after a pause interrupts at once");
    load(&mut bench, 3..200);
    while bench.now + 100 < first + 50_000 {
        assert_eq!(bench.turn().received, 0);
    }
    let taken: usize = (0..5).map(|_| bench.turn().received).sum();
    assert_eq!(taken, 197, "the driver takes all that has come");
    assert_eq!(bench.view.wires[0].counters.interrupts.get(), 2);
    bench.now = Time::from_nanos(1_000_000);
    bench.settle();
    bench.end();
}

#[test]
fn packets_during_an_interrupt_wait_for_the_next() {
    for keys in ["", "\nwire_frames = 512"] {
        let mut bench = asleep(&format!("rx_usecs = 0\nwire_usecs = 50{keys}"));
        load(&mut bench, 0..100);
        let began = bench.now + 100;
        assert_eq!(bench.turn().received, 64);
        load(&mut bench, 100..150);
        assert_eq!(bench.turn().received, 36, "those that were there when it came");
        while bench.now + 100 < began + 50_000 {
            assert_eq!(bench.turn().received, 0);
        }
        assert_eq!(bench.turn().received, 50);
        assert_eq!(bench.view.wires[0].counters.interrupts.get(), 2);
        bench.settle();
        bench.end();
    }
}

#[test]
fn interrupts_cover_the_arrived_packets() {
    for count in [1, 2, 3, 5, 6, 7, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 191, 200] {
        let mut bench = asleep("rx_usecs = 0\nwire_usecs = 50");
        load(&mut bench, 0..count);
        let mut taken = bench.turn().received;
        load(&mut bench, count..count + 10);
        while taken < count as usize {
            taken += bench.turn().received;
        }
        assert_eq!((taken, bench.turn().received), (count as usize, 0));
    }
}

/// A port that claims to hold any number does not keep the core in a search.
#[test]
fn interrupts_cover_fewer_than_65536_packets() {
    let mut bench = asleep("rx_usecs = 0\nwire_usecs = 1000000");
    load(&mut bench, 0..70_000);
    let mut taken = 0;
    while let received @ 1.. = bench.turn().received {
        taken += received;
        while bench.balanced().in_flight != 0 {
            bench.look();
        }
    }
    assert_eq!(taken, 65_535);
}

/// From a wire that cannot count its packets, all available ones are taken.
#[test]
fn interrupts_of_uncounted_wires_cover_all_arrivals() {
    let text = "[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\nwire_usecs = 50\n";
    let mute = WireState { is_mute: true, ..WireState::default() };
    let mut bench = Bench::with_wires(text, vec![Wire::new(mute.into())], vec![], vec![]);
    bench.look();
    load(&mut bench, 0..64);
    assert_eq!(bench.turn().received, 64);
    load(&mut bench, 64..192);
    // It ends with a partial burst.
    assert_eq!([0; 3].map(|_| bench.turn().received), [64, 64, 0]);
    load(&mut bench, 192..200);
    assert_eq!(bench.turn().received, 0);
    assert_eq!(bench.view.wires[0].counters.interrupts.get(), 1);
    bench.settle();
    bench.end();
}

#[test]
fn wire_frames_interrupt_before_wire_usecs() {
    let mut bench = asleep("rx_usecs = 0\nwire_usecs = 50\nwire_frames = 8");
    load(&mut bench, 0..1);
    assert_eq!(bench.turn().received, 1, "the first packet after a pause interrupts at once");
    load(&mut bench, 1..8);
    assert_eq!((bench.turn().received, bench.turn().received), (0, 0), "seven wait");
    load(&mut bench, 8..9);
    assert_eq!(bench.turn().received, 8, "the eighth interrupts");
    let began = bench.now;
    load(&mut bench, 9..10);
    while bench.now + 100 < began + 50_000 {
        assert_eq!(bench.turn().received, 0);
    }
    assert_eq!(bench.turn().received, 1, "or the time has come, counted from the interrupt");
    assert_eq!(bench.view.wires[0].counters.interrupts.get(), 3);
    bench.settle();
    bench.end();
}

#[test]
fn wire_moderation_changes_while_running() {
    let mut bench = asleep("rx_usecs = 0\nwire_usecs = 1000000");
    load(&mut bench, 0..100);
    assert_eq!(bench.turn().received, 64);
    // In the middle of an interrupt: waiting packets get one more, at once.
    assert!(bench.controller.send(Command::Throttle(50, 8)).is_ok());
    let began = bench.now + 100;
    assert_eq!(bench.turn().received, 36);
    let answer = bench.controller.answer().unwrap();
    assert!(answer.done && matches!(answer.replaced, Command::Throttle(1_000_000, 0)));
    load(&mut bench, 100..107);
    assert_eq!(bench.turn().received, 0);
    load(&mut bench, 107..108);
    assert_eq!(bench.turn().received, 8);
    load(&mut bench, 108..109);
    while bench.now + 100 < began + 50_000 {
        assert_eq!(bench.turn().received, 0);
    }
    // From then on it is polled in each turn.
    assert!(bench.controller.send(Command::Throttle(0, 0)).is_ok());
    assert_eq!(bench.turn().received, 1);
    load(&mut bench, 109..110);
    assert_eq!(bench.turn().received, 1);
    let answer = bench.controller.answer().unwrap();
    assert!(answer.done && matches!(answer.replaced, Command::Throttle(50, 8)));
    assert_eq!(bench.view.wires[0].counters.interrupts.get(), 3);
    bench.settle();
    assert_eq!(bench.end().delivered, 110);
}

/// A card whose host waits for buffers; doorbells so far.
fn starved(tx_complete: &str) -> (Bench, u64) {
    let text = format!(
        "[host]\nattachment = \"sends\"\nqueues = 1\ntx_ring_size = 64\n\
         [interrupt]\ntx_complete = \"{tx_complete}\"\n"
    );
    let mut bench = Bench::new(&text, 1, vec![], vec![]);
    bench.turn();
    bench.look();
    bench.host().sends = 1000;
    bench.look();
    assert!(bench.targets[0].is_starved() && bench.targets[0].is_resting());
    let doorbells = bench.view.queues[0].steer.doorbells.get();
    (bench, doorbells)
}

#[test]
fn hosts_waiting_for_room_are_interrupted() {
    for (tx_complete, wanted, turns) in [("off", 0, 600), ("interrupt", 1, 1), ("moderated", 1, 0)]
    {
        let (mut bench, before) = starved(tx_complete);
        assert_eq!(bench.targets[0].looks_again_soon(), tx_complete == "off");
        let doorbells = |bench: &Bench| bench.view.queues[0].steer.doorbells.get() - before;
        // Moderated by time: 64 completions, or 20 µs.
        for _ in 0..if turns == 0 { 210 } else { turns } {
            bench.turn();
        }
        assert_eq!(doorbells(&bench), wanted, "{tx_complete}");
        bench.host().sends = 5;
        bench.look();
        let interrupts = bench.view.queues[0].target.interrupts.get();
        assert_eq!(interrupts, wanted, "{tx_complete}");
        let sent = bench.view.queues[0].target.transmitted.get();
        assert!(sent > 64, "{tx_complete}: {sent} sent");
        bench.settle();
        bench.end();
    }
}

#[test]
fn tx_complete_changes_while_a_host_waits() {
    let (mut bench, before) = starved("interrupt");
    let change = |bench: &mut Bench, mode: TxComplete| {
        assert!(bench.controller.send(Command::Complete(mode)).is_ok());
        bench.turn();
        let answer = bench.controller.answer().unwrap();
        let Command::Complete(old) = answer.replaced else { panic!("another command's answer") };
        assert!(answer.done);
        old
    };
    let counts = |bench: &Bench| {
        let queue = &bench.view.queues[0];
        (queue.steer.doorbells.get() - before, queue.target.starved.get())
    };
    // Has it send more than there is room for.
    let fill = |bench: &mut Bench| {
        bench.host().sends = 1000;
        bench.look();
        assert!(bench.targets[0].is_starved() && bench.targets[0].is_resting());
    };
    assert_eq!(counts(&bench), (0, 1));
    // It waits for an interrupt that will not come: it must poll from now on.
    assert_eq!(change(&mut bench, TxComplete::Off), TxComplete::Interrupt);
    assert_eq!(counts(&bench), (1, 1));
    fill(&mut bench);
    assert!(bench.targets[0].looks_again_soon());
    assert_eq!(counts(&bench), (1, 0));
    bench.turn();
    assert_eq!(counts(&bench), (1, 0));
    // A host that polls asks when it has found no room again.
    assert_eq!(change(&mut bench, TxComplete::Moderated), TxComplete::Off);
    assert_eq!(counts(&bench), (1, 0));
    fill(&mut bench);
    assert!(!bench.targets[0].looks_again_soon());
    assert_eq!(counts(&bench), (1, 1));
    // 64 completions, or 20 µs; room from before its request does not count.
    bench.turn();
    assert_eq!(counts(&bench), (2, 1));
    bench.look();
    bench.settle();
    bench.end();
}

#[test]
fn hosts_waiting_for_first_buffers_are_interrupted() {
    let text = "[host]\nattachment = \"sends\"\nqueues = 1\n\
                [interrupt]\ntx_complete = \"interrupt\"\n";
    let mut bench = Bench::new(text, 1, vec![], vec![]);
    // The card has had no turn yet, so no buffer is there.
    bench.host().sends = 5;
    bench.look();
    assert!(bench.targets[0].is_starved() && bench.targets[0].is_resting());
    bench.turn();
    assert_eq!(bench.bells[0].count(), 1);
    bench.host().sends = 5;
    bench.look();
    assert_eq!(bench.view.queues[0].target.transmitted.get(), 5);
    bench.settle();
    bench.end();
}

#[test]
fn cards_wake_when_their_wires_interrupt() {
    let at = |nanos: u64| Some(Time::from_nanos(nanos));
    // The first packet interrupts at 1000, and the next at 101 000 or with two frames.
    for (keys, arrival, due, wakes) in [
        ("", None, 2_000, 2_000),
        ("wire_usecs = 100", None, 2_000, 101_000),
        ("wire_usecs = 100", at(50_000), 2_000, 101_000),
        ("wire_usecs = 100", None, 101_000, 101_000),
        ("wire_usecs = 100", None, 101_001, 101_001),
        ("wire_usecs = 100\nwire_frames = 2", None, 2_000, 2_000),
        ("wire_usecs = 100\nwire_frames = 2", at(50_000), 2_000, 50_000),
        ("wire_usecs = 100\nwire_frames = 2", at(200_000), 2_000, 101_000),
    ] {
        let mut bench = asleep(&format!("rx_usecs = 0\n{keys}"));
        load(&mut bench, 0..1);
        bench.now = Time::from_nanos(900);
        assert_eq!(bench.turn().received, 1);
        bench.look();
        assert_eq!(bench.card.next_deadline(bench.now), None, "a wire that does not know");
        (bench.wire(0).due, bench.wire(0).next_arrival) = (at(due), None);
        bench.wire(0).next_arrival = arrival;
        assert_eq!(bench.card.next_deadline(bench.now), at(wakes), "{keys} {arrival:?}");
        // An interrupt of more than a burst is not finished after one.
        load(&mut bench, 1..66);
        bench.now = Time::from_nanos(200_900);
        assert_eq!(bench.turn().received, 64);
        (bench.wire(0).due, bench.wire(0).next_arrival) = (at(201_050), at(201_060));
        assert_eq!(bench.card.next_deadline(bench.now), at(201_050), "{keys}");
        assert_eq!(bench.turn().received, 1);
        bench.wire(0).finished = true;
        assert_eq!(bench.card.next_deadline(bench.now), None, "nothing more comes");
        bench.wire(0).finished = false;
        bench.card.stop_receiving(bench.now);
        assert_eq!(bench.card.next_deadline(bench.now), None, "nothing more is taken");
        bench.end();
    }
}

#[test]
fn cards_poll_patient_wires_at_once() {
    let text = "[host]\nqueues = 1\n";
    let mut bench = Bench::with_wires(text, vec![Wire::default(), patient()], vec![], vec![]);
    assert_eq!(bench.card.next_deadline(bench.now), Some(bench.now));
    bench.wire(0).due = Some(bench.now + 100);
    assert_eq!(bench.card.next_deadline(bench.now), Some(bench.now));
    bench.wire(1).finished = true;
    assert_eq!(bench.card.next_deadline(bench.now), Some(bench.now + 100));
    bench.end();
}
