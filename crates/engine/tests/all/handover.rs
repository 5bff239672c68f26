//! Flows distributed in software: which packets the receiving core hands over, and to which core.

use crate::common::{Bench, Wire, frame, patient};
use picnic_core::time::Time;
use picnic_engine::target::Polled;

/// A UDP datagram of one of many flows, and its number in its last bytes.
fn datagram(flow: u16, number: u32) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([flow.to_be_bytes(), [0, 9], [0, 12], [0, 0]].concat());
    frame.extend(number.to_be_bytes());
    frame
}

fn flow_and_number(frame: &[u8]) -> (u16, u32) {
    let flow = u16::from_be_bytes(frame[34..36].try_into().unwrap());
    (flow, u32::from_be_bytes(frame[42..46].try_into().unwrap()))
}

fn load(bench: &mut Bench, count: u32) {
    bench.wire(0).incoming.extend((0..count).map(|number| datagram(number as u16 % 64, number)));
}

/// A card whose host has this many cores, all asleep.
fn asleep(system: &str, queues: u16, wire: Wire, keys: &str) -> Bench {
    let text = format!(
        "[card]\nwire_backlog = 64\n[pool]\nbuffers = 4096\n[host]\nsystem = \"{system}\"\nqueues = {queues}\n\
         ring_size = 2048\n{keys}[interrupt]\nrx_usecs = 0\n"
    );
    let mut bench = Bench::with_wires(&text, vec![wire], vec![], vec![]);
    bench.look();
    assert!(bench.targets.iter().all(|target| target.is_resting()));
    bench
}

fn poll(bench: &mut Bench, target: usize) -> Polled {
    let polled = bench.targets[target].poll(bench.now);
    bench.balanced();
    polled
}

#[test]
fn polling_core_does_stack_work_and_others_the_rest() {
    for (work_ns, stack_ns) in [(50, 20), (50, 0), (20, 50)] {
        let mut bench = asleep("napi", 2, Wire::default(), "");
        (bench.host().work_ns, bench.host().stack_ns) = (work_ns, 0);
        bench.host().stack_ns = stack_ns;
        load(&mut bench, 40);
        bench.turn();
        let polled = poll(&mut bench, 0);
        let expected = Polled {
            interrupts: 1,
            moved: 40,
            handed: 40,
            work_ns: 40 * stack_ns,
            ..Polled::default()
        };
        assert_eq!(polled, expected);
        // The other core was woken, once.
        assert_eq!(bench.bells[1].count(), 1);
        let rest_ns =
            |packets: usize| (packets as u64 * work_ns).saturating_sub(packets as u64 * stack_ns);
        let mut packets = 0;
        for (target, interrupts) in [(0, 0), (1, 1)] {
            let polled = poll(&mut bench, target);
            let work_ns = rest_ns(polled.packets);
            let of_share =
                Polled { interrupts, packets: polled.packets, work_ns, ..Polled::default() };
            assert_eq!(polled, of_share, "{work_ns} {stack_ns}");
            assert!(polled.packets > 5);
            packets += polled.packets;
        }
        assert_eq!(packets, 40);
        assert_eq!(poll(&mut bench, 0), Polled::default());
        assert_eq!(poll(&mut bench, 1), Polled::default());
        assert!(bench.targets.iter().all(|target| target.is_resting()));
        bench.end();
    }
}

#[test]
fn ring_checks_count_as_polls_and_empty_polls() {
    let mut bench = asleep("napi", 1, Wire::default(), "");
    let target = bench.view.queues[0].target.clone();
    let counts = || (target.polls.get(), target.empty_polls.get());
    let before = counts();
    load(&mut bench, 3);
    bench.turn();
    // The ring, its own share, the ring again; then it rests.
    let counted = [(1, 0), (1, 0), (2, 1), (2, 1)].map(|(polls, empty)| {
        poll(&mut bench, 0);
        (before.0 + polls, before.1 + empty) == counts()
    });
    assert_eq!(counted, [true; 4]);
    bench.end();
}

#[test]
fn latencies_belong_to_the_core_of_the_flow() {
    for system in ["napi", "clas"] {
        let mut bench = asleep(system, 2, Wire::default(), "");
        bench.wire(0).incoming.extend((0..40).map(|number| datagram(number as u16, number)));
        bench.turn();
        while bench.look() != 0 {}
        let target = |queue: usize| bench.view.queues[queue].target.clone();
        let recorded = [0, 1].map(|queue| {
            let packets = target(queue).packets.get();
            assert!(packets != 0);
            assert_eq!(target(queue).latency_packets.get(), packets.div_ceil(16), "{system}");
            assert_eq!(bench.targets[queue].queues()[0].latency().len(), packets.div_ceil(16));
            packets
        });
        assert_eq!(recorded.iter().sum::<u64>(), 40);
        bench.end();
    }
}

#[test]
fn polls_finish_their_share_before_taking_more() {
    let mut bench = asleep("napi", 1, Wire::default(), "");
    load(&mut bench, 100);
    while !bench.turn().is_idle() {}
    let moved_and_packets: Vec<_> = (0..4)
        .map(|_| {
            let polled = poll(&mut bench, 0);
            (polled.moved, polled.packets)
        })
        .collect();
    assert_eq!(moved_and_packets, [(64, 0), (0, 64), (36, 0), (0, 36)]);
    bench.end();
}

#[test]
fn cores_keep_polling_for_poll_usecs_after_their_share() {
    let text =
        "[host]\nsystem = \"napi\"\nqueues = 2\n[interrupt]\nrx_usecs = 0\npoll_usecs = 10\n";
    let mut bench = Bench::with_wires(text, vec![Wire::default()], vec![], vec![]);
    let rests = |bench: &mut Bench, nanos| {
        bench.now = Time::from_nanos(nanos);
        [0, 1].map(|target| {
            assert_eq!(poll(bench, target).packets, 0);
            bench.targets[target].is_resting()
        })
    };
    assert_eq!((rests(&mut bench, 9_999), rests(&mut bench, 10_000)), ([false; 2], [true; 2]));
    // Each has packets by an interrupt, and then by looking.
    for nanos in [20_000, 25_000] {
        load(&mut bench, 40);
        bench.now = Time::from_nanos(nanos - 100);
        bench.turn();
        assert_eq!(poll(&mut bench, 0).handed, 40);
        bench.now = Time::from_nanos(nanos + 50);
        assert_eq!([0, 1].map(|target| poll(&mut bench, target).packets).iter().sum::<usize>(), 40);
    }
    assert_eq!((rests(&mut bench, 35_049), rests(&mut bench, 35_050)), ([false; 2], [true; 2]));
    bench.end();
}

#[test]
fn interrupts_hand_over_first_then_do_one_packet() {
    let mut bench = asleep("clas", 2, Wire::default(), "");
    (bench.host().work_ns, bench.host().stack_ns) = (50, 20);
    load(&mut bench, 100);
    while !bench.turn().is_idle() {}
    let polled = poll(&mut bench, 0);
    let expected = Polled { interrupts: 1, moved: 64, handed: 64, ..Polled::default() };
    assert_eq!(polled, expected);
    let polled = poll(&mut bench, 0);
    assert_eq!(polled, Polled { moved: 36, handed: 36, ..Polled::default() });
    let other = poll(&mut bench, 1);
    let of_share = Polled {
        interrupts: 1,
        packets: other.packets,
        work_ns: 50 * other.packets as u64,
        ..Polled::default()
    };
    assert_eq!(other, of_share);
    for left in (1..=100 - other.packets).rev() {
        assert!(!bench.targets[0].is_resting());
        let polled = poll(&mut bench, 0);
        assert_eq!(polled, Polled { packets: 1, work_ns: 50, ..Polled::default() }, "{left} left");
    }
    assert_eq!(poll(&mut bench, 0), Polled::default());
    assert!(bench.targets[0].is_resting());
    bench.end();
}

#[test]
fn flows_stay_on_one_core_in_order() {
    for system in ["napi", "clas"] {
        let mut bench = asleep(system, 4, Wire::default(), "");
        load(&mut bench, 640);
        bench.settle();
        let mut last = vec![None; 64];
        let mut cores = [0; 4];
        for (core, frame) in &bench.host().seen {
            let (flow, number) = flow_and_number(frame);
            let before = last[usize::from(flow)].replace((*core, number));
            assert!(before.is_none_or(|(was, earlier)| was == *core && earlier < number));
            cores[usize::from(*core)] += 1;
        }
        assert_eq!(cores.iter().sum::<i32>(), 640);
        assert!(cores.iter().all(|&packets| packets > 50), "{system}: {cores:?}");
        assert_eq!(bench.end().delivered, 640);
    }
}

/// An IPv6 packet without ports, from one of many hosts.
fn datagram_v6(host: u8, number: u32) -> Vec<u8> {
    let mut frame = vec![2; 12];
    // No next header.
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 4, 59, 64]);
    frame.extend([[0xfd; 15].as_slice(), &[host], &[0xfe; 16]].concat());
    frame.extend(number.to_be_bytes());
    frame
}

/// An ICMP message over IPv4, from one of many hosts.
fn datagram_v4(host: u8, number: u32) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 24, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, host, 10, 0, 1, 1]);
    frame.extend(number.to_be_bytes());
    frame
}

#[test]
fn packets_without_ports_hash_by_address() {
    let to = |host: u8, number| {
        let mut frame = datagram_v4(1, number);
        frame[33] = host;
        frame
    };
    for packet in [datagram_v4, datagram_v6, to] {
        let mut bench = asleep("clas", 4, Wire::default(), "");
        bench.wire(0).incoming.extend((0..640).map(|number| packet(number as u8 % 64, number)));
        bench.settle();
        let mut cores = vec![Vec::new(); 64];
        let mut packets = [0; 4];
        for (core, frame) in &bench.host().seen {
            let number = u32::from_be_bytes(frame[frame.len() - 4..].try_into().unwrap());
            cores[number as usize % 64].push(*core);
            packets[usize::from(*core)] += 1;
        }
        assert!(
            cores.iter().all(|cores| cores.len() == 10 && cores.iter().all(|c| *c == cores[0]))
        );
        assert!(packets.iter().all(|&packets| packets > 50), "{packets:?}");
        bench.end();
    }
}

#[test]
fn waiting_cores_learn_of_the_end() {
    for is_dropped in [false, true] {
        let mut bench = asleep("napi", 2, Wire::default(), "");
        load(&mut bench, 40);
        bench.turn();
        poll(&mut bench, 0);
        while poll(&mut bench, 0).packets + poll(&mut bench, 1).packets != 0 {}
        assert!(!bench.targets[1].is_empty(), "the first core may hand over more");
        let bells = bench.bells[1].count();
        if is_dropped {
            // However its thread ended.
            drop(bench.targets.remove(0));
        } else {
            assert!(!bench.targets[1].is_empty() && bench.targets[0].is_empty());
        }
        assert_eq!(bench.bells[1].count(), bells + 1, "it is woken to look");
        assert!(bench.targets.iter_mut().all(|target| target.is_empty()));
        assert_eq!(bench.bells[1].count(), bells + 1, "once");
        bench.end();
    }
}

#[test]
fn core_backlog_is_limited() {
    let mut bench = asleep("clas", 2, Wire::default(), "");
    // Packets other than IP are one flow, the first core's.
    bench.wire(0).incoming.extend((0..1100).map(|number| frame(0, 0, number, 60)));
    while !bench.turn().is_idle() {}
    let polled: Vec<_> = (0..18).map(|_| poll(&mut bench, 0)).collect();
    assert_eq!(polled.iter().map(|polled| polled.moved).sum::<usize>(), 1100);
    assert_eq!(polled.iter().map(|polled| polled.handed).sum::<usize>(), 1000);
    assert_eq!(bench.ledger().drops_by_stage["host_refused@target"], 100);
    bench.settle();
    assert_eq!(bench.end().delivered, 1000);
}

#[test]
fn online_cards_do_not_wait_for_tx_room() {
    for (wire, lost) in [(Wire::default(), true), (patient(), false)] {
        let mut bench = asleep("napi", 1, wire, "tx_ring_size = 64\n");
        bench.host().echo = true;
        bench.wire(0).tx_room = Some(0);
        load(&mut bench, 600);
        for _ in 0..200 {
            bench.turn();
            poll(&mut bench, 0);
        }
        let drops = bench.ledger().drops_by_stage;
        assert_eq!(drops.contains_key("tx_ring_full@target"), lost, "{drops:?}");
        bench.wire(0).tx_room = None;
        bench.settle();
        let ledger = bench.end();
        assert_eq!((ledger.delivered, ledger.dropped == 0), (600, !lost));
    }
}
