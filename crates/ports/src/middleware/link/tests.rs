//! Links: rate, latency, queue and conservation, both ways.

use super::*;
use crate::harness::Bench;
use picnic_core::config::{SectionEntry, Sections};
use picnic_core::ledger::Stage;
use picnic_core::packet::burst::Burst;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

/// A wire whose frames arrive at given times, and a record of its transmissions.
#[derive(Default)]
struct Script {
    /// Arrival and length; all at once if it is patient.
    frames: VecDeque<(u64, usize)>,
    patient: bool,
    sent: Arc<Mutex<Vec<(u64, usize)>>>,
    /// Packets it takes at a time; 0 for none.
    takes: usize,
}

impl WirePort for Script {
    fn describe(&self) -> Description {
        let (patient, arrival) = (self.patient, !self.patient);
        let capabilities = Capabilities { patient, arrival, ..Capabilities::default() };
        Description { capabilities, ..Description::default() }
    }

    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        while rx.room() != 0
            && let Some(&(at, length)) = self.frames.front()
            && at <= now.as_nanos()
        {
            self.frames.pop_front();
            if !self.patient {
                rx.arrived_at(Time::from_nanos(at));
            }
            rx.push_bytes(&vec![7; length]);
        }
    }

    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>) {
        for _ in 0..self.takes {
            let Some(packet) = tx.next() else { return };
            self.sent.lock().unwrap().push((now.as_nanos(), packet.length() as usize));
            tx.sent(packet);
        }
    }

    fn status(&self) -> Status<'_> {
        Status {
            next_deadline: self.frames.front().map(|&(at, _)| Time::from_nanos(at)),
            is_finished: self.frames.is_empty(),
            ..Status::default()
        }
    }
}

fn linked(port: Script, config: &LinkConfig) -> Box<dyn WirePort> {
    link_wire(Box::new(port), config, &BuildContext::default()).unwrap()
}

fn config(rate_mbps: f64, latency_us: u32, queue_packets: u32) -> LinkConfig {
    LinkConfig { rate_mbps, latency_us, queue_packets }
}

/// When frames leave a link at `rate` Mb/s that arrived at it at these times, none if
/// they found the queue full: by exact arithmetic, in parts of `1 / rate` ns.
fn model(rate: u64, latency_us: u32, queue: u32, frames: &[(u64, usize)]) -> Vec<Option<u64>> {
    let (mut free, mut ends) = (0_u128, Vec::new());
    let times = frames.iter().map(|&(at, length)| {
        let came = u128::from(at) * u128::from(rate);
        let waiting = ends.iter().filter(|&&end: &&u128| end.div_ceil(rate.into()) > at.into());
        if waiting.count() >= queue as usize {
            return None;
        }
        free = free.max(came) + (length.max(60) as u128 + 24) * 8000;
        ends.push(free);
        Some(free.div_ceil(rate.into()) as u64 + u64::from(latency_us) * 1000)
    });
    times.collect()
}

/// Receives until nothing is due, and returns the stamps.
fn stamps(wire: &mut dyn WirePort, bench: &mut Bench, limit: usize) -> Vec<u64> {
    let mut stamps = Vec::new();
    let mut now = Time::ZERO;
    while let Some(due) = wire.status().next_deadline {
        now = now.max(due);
        let mut burst = Burst::new();
        bench.fill(wire, now.as_nanos(), limit, &mut burst);
        for packet in burst.drain() {
            assert!(packet.received_at() <= now);
            stamps.push(packet.received_at().as_nanos());
            bench.pool.free(packet);
            bench.taken += 1;
        }
    }
    assert!(wire.status().is_finished);
    stamps
}

#[test]
fn gigabit_carries_81_274_long_frames_per_second() {
    let frames = (0..1000).map(|_| (0, 1514)).collect();
    let mut bench = Bench::with_pool(4096, 2048);
    let mut wire = linked(Script { frames, ..Script::default() }, &config(1000.0, 0, 4096));
    let times = stamps(&mut *wire, &mut bench, 64);
    assert_eq!(times, (1..=1000).map(|number| number * 12_304).collect::<Vec<_>>());
    bench.assert_conserved();
}

#[test]
fn patient_wires_fill_the_line_without_loss() {
    let frames = (0..500).map(|_| (0, 60)).collect();
    let port = Script { frames, patient: true, ..Script::default() };
    let mut bench = Bench::new();
    let mut wire = linked(port, &config(100.0, 3, 2));
    assert!(!wire.describe().capabilities.patient && wire.describe().capabilities.arrival);
    let times = stamps(&mut *wire, &mut bench, 64);
    assert_eq!(times, (1..=500).map(|number| number * 6720 + 3000).collect::<Vec<_>>());
    bench.assert_conserved();
}

#[test]
fn packets_refused_by_the_port_block_the_queue() {
    let mut bench = Bench::new();
    let port = Script { takes: 0, ..Script::default() };
    let mut wire = linked(port, &config(1000.0, 0, 4));
    let mut queue: VecDeque<_> = (0..10).map(|_| bench.pool.packet(&[1; 1514]).unwrap()).collect();
    for now in [0, 12_303, 12_304, 1_000_000, 2_000_000] {
        let Bench { pool, ledger, counters, .. } = &mut bench;
        let mut tx = Transmitter::new(pool, &mut queue, counters, ledger);
        wire.transmit(Time::from_nanos(now), &mut tx);
    }
    // While the port takes none, the line takes none either.
    assert_eq!((queue.len(), bench.counters.tx_kept.get()), (6, 4));
    bench.stop(&mut *wire);
    let Bench { pool, ledger, counters, .. } = &mut bench;
    assert_eq!(ledger.drops.get(DropReason::Stopped, Stage::WireTx), 4);
    assert_eq!(counters.tx_kept.get(), 0);
    queue.drain(..).for_each(|packet| pool.free(packet));
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn stopping_cards_get_their_buffers_back() {
    let mut bench = Bench::new();
    let frames = (0..100).map(|_| (0, 1514)).collect();
    let mut wire = linked(Script { frames, ..Script::default() }, &config(10.0, 100, 50));
    assert!(bench.receive(&mut *wire, 0, 64).is_empty());
    assert_eq!(bench.pool.outstanding(), 50);
    bench.stop(&mut *wire);
    bench.assert_conserved();
}

#[test]
fn super_frames_take_as_long_as_their_frames() {
    let mut bench = Bench::with_pool(64, 16_384);
    // Ethernet, IPv4, TCP with 12 bytes of options: 66 bytes, and ten times 1448.
    let mut frame = vec![0; 66 + 14_480];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    let length = frame.len() as u16 - 14;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    (frame[23], frame[14 + 20 + 12]) = (6, 0x80);
    let mut packet = bench.pool.packet(&frame).unwrap();
    packet.set_gso(GsoType::Tcp4, 1448);
    assert_eq!(wire_bytes(&mut packet), 10 * (1514 + 24));
    bench.pool.free(packet);
    for (length, bytes) in [(1, 84), (60, 84), (61, 85), (1514, 1538)] {
        let mut packet = bench.pool.packet(&vec![0; length]).unwrap();
        assert_eq!(wire_bytes(&mut packet), bytes);
        bench.pool.free(packet);
    }
}

#[test]
fn impossible_links_are_refused() {
    let rates = "allowed: 0.012304 to 1000000";
    for (key, found, allowed) in [
        ("rate_mbps", "0", rates),
        ("rate_mbps", "-1", rates),
        ("rate_mbps", "0.0123", rates),
        ("rate_mbps", "1000001", rates),
        ("rate_mbps", "NaN", rates),
        ("rate_mbps", "inf", rates),
        ("latency_us", "1000001", "allowed: 0 to 1000000"),
        ("queue_packets", "0", "allowed: 1 to 65536"),
    ] {
        let sections = Sections::core().with(&[SectionEntry::of::<LinkConfig>()]);
        let text = format!("[[wire]]\nlink = {{ {key} = {} }}", found.to_lowercase());
        let error = sections.parse(&text, None).unwrap_err().to_string();
        assert_eq!(error, format!("card:2: wire[0].link.{key}: found {found}, {allowed}"));
    }
    let many =
        link_wire(Box::new(Script::default()), &config(1.0, 0, 9000), &BuildContext::default());
    let told = many.err().unwrap().to_string();
    assert!(
        told.contains("queue_packets: found 9000, allowed: 1 to 8192 (pool.buffers)"),
        "{told}"
    );
}

#[test]
fn arrivals_are_limited_by_the_line() {
    let wire = linked(Script { patient: true, ..Script::default() }, &config(1000.0, 0, 1));
    assert_eq!(wire.describe().arrivals.rate, Rate::Pps(1_488_096));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    /// Towards the card, each frame comes when exact arithmetic says, or was lost as it says.
    #[test]
    fn frames_arrive_at_exact_times(
        rate in prop_oneof![Just(1_u64), Just(100), Just(1000), 1..100_000_u64],
        latency_us in prop_oneof![Just(0_u32), 0..50_u32],
        queue in 1..40_u32,
        limit in 1..=BURST,
        gaps in prop::collection::vec((0..30_000_u64, 1..1515_usize), 1..150),
    ) {
        let mut at = 0;
        let frames: Vec<_> = gaps.into_iter().map(|(gap, length)| {
            at += gap;
            (at, length)
        }).collect();
        let mut bench = Bench::with_pool(4096, 2048);
        let port = Script { frames: frames.clone().into(), ..Script::default() };
        let mut wire = linked(port, &config(rate as f64, latency_us, queue));
        let found = stamps(&mut *wire, &mut bench, limit);
        let expected = model(rate, latency_us, queue, &frames);
        prop_assert_eq!(bench.dropped(DropReason::LinkFull) as usize,
            expected.iter().filter(|time| time.is_none()).count());
        let expected: Vec<_> = expected.into_iter().flatten().collect();
        prop_assert_eq!(found.len(), expected.len());
        for (found, expected) in found.into_iter().zip(expected) {
            prop_assert!(found.abs_diff(expected) <= 1, "found {}, expected {}", found, expected);
        }
        bench.assert_conserved();
    }

    /// Towards the port, frames leave in order, when the line has sent them, and all of them.
    #[test]
    fn frames_leave_at_exact_times(
        rate in prop_oneof![Just(100_u64), Just(1000), 1..100_000_u64],
        latency_us in prop_oneof![Just(0_u32), 0..50_u32],
        queue in 1..40_u32,
        takes in 1..5_usize,
        lengths in prop::collection::vec(1..1515_usize, 1..100),
    ) {
        let mut bench = Bench::new();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let port = Script { takes, sent: sent.clone(), ..Script::default() };
        let mut wire = linked(port, &config(rate as f64, latency_us, queue));
        let packets = lengths.iter().map(|&length| bench.pool.packet(&vec![1; length]).unwrap());
        let mut waiting: VecDeque<_> = packets.collect();
        let mut now = Time::ZERO;
        loop {
            let Bench { pool, ledger, counters, .. } = &mut bench;
            wire.transmit(now, &mut Transmitter::new(pool, &mut waiting, counters, ledger));
            let kept = bench.counters.tx_kept.get() as usize;
            prop_assert_eq!(kept + waiting.len() + bench.ledger.transmitted.get() as usize, lengths.len());
            let Some(due) = wire.status().next_deadline else {
                if wire.status().is_finished { break }
                continue;
            };
            now = now.max(due);
        }
        let sent = sent.lock().unwrap();
        prop_assert!(sent.iter().map(|&(_, length)| length).eq(lengths.iter().copied()));
        // No earlier than on a line that is never idle.
        let all: Vec<_> = lengths.iter().map(|&length| (0, length)).collect();
        for (&(time, _), least) in sent.iter().zip(model(rate, latency_us, u32::MAX, &all)) {
            prop_assert!(time + 1 >= least.unwrap());
        }
        prop_assert_eq!(bench.pool.outstanding(), 0);
        prop_assert_eq!(bench.counters.tx_packets.get() as usize, lengths.len());
        prop_assert_eq!(bench.counters.tx_bytes.get() as usize, lengths.iter().sum::<usize>());
    }
}
