//! Faults: shares, independence, determinism, bounds and conservation.

use super::*;
use crate::harness::Bench;
use picnic_core::config::from_json;
use picnic_core::ledger::Stage;
use picnic_core::port::Capabilities;
use proptest::prelude::*;
use serde_json::json;

/// A wire that hands over numbered packets.
struct Numbered {
    next: u32,
    count: u32,
    /// Length of each packet by its number.
    length: fn(u32) -> usize,
    patient: bool,
    /// One packet in this many is shed instead.
    shed_every: u32,
}

impl Numbered {
    fn new(count: u32) -> Self {
        Numbered { next: 0, count, length: |_| 64, patient: true, shed_every: u32::MAX }
    }
}

fn bytes_of(number: u32, length: usize) -> Vec<u8> {
    number.to_be_bytes().into_iter().cycle().take(length).collect()
}

fn has_buffers(pool: &mut Pool, length: usize) -> bool {
    pool.ensure(length.div_ceil(pool.buffer_size()))
}

impl WirePort for Numbered {
    fn receive(&mut self, _now: Time, rx: &mut Receiver<'_>) {
        while rx.room() != 0 && self.next != self.count {
            let bytes = bytes_of(self.next, (self.length)(self.next));
            if self.next % self.shed_every == self.shed_every - 1 {
                rx.shed(DropReason::Oversize, 1);
            } else if self.patient && !has_buffers(rx.pool(), bytes.len()) {
                return;
            } else {
                rx.push_bytes(&bytes);
            }
            self.next += 1;
        }
    }
    fn transmit(&mut self, _now: Time, tx: &mut Transmitter<'_>) {
        while let Some(packet) = tx.next() {
            tx.sent(packet);
        }
    }
    fn describe(&self) -> Description {
        let capabilities = Capabilities { patient: self.patient, ..Capabilities::default() };
        Description { capabilities, ..Description::default() }
    }
    fn status(&self) -> Status<'_> {
        Status { is_finished: self.next == self.count, ..Status::default() }
    }
    fn stop(&mut self, _: &mut Transmitter<'_>) -> Vec<String> {
        vec!["inner".into()]
    }
}

fn number_of(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[..4].try_into().unwrap())
}

fn wrap(port: Numbered, config: FaultConfig, seed: u64) -> Box<dyn WirePort> {
    let context = BuildContext { seed, ..BuildContext::default() };
    fault_wire(Box::new(port), &config, &context).unwrap()
}

/// All packets through the faults, `limit` at a time.
fn run(config: &FaultConfig, count: u32, seed: u64, limit: usize) -> (Vec<Vec<u8>>, Bench) {
    let mut wire = wrap(Numbered::new(count), config.clone(), seed);
    let mut bench = Bench::new();
    let packets = bench.receive_all(&mut *wire, limit);
    bench.assert_conserved();
    (packets, bench)
}

fn off() -> FaultConfig {
    FaultConfig::default()
}

/// Within six standard deviations of the expected share.
fn assert_share(found: usize, count: u32, share: f64) {
    let (count, found) = (f64::from(count), found as f64);
    let deviation = (count * share * (1.0 - share)).sqrt();
    assert!((found - count * share).abs() <= 6.0 * deviation, "{found} of {count} for {share}");
}

const COUNT: u32 = 20_000;

#[test]
fn zero_faults_change_nothing() {
    let (packets, _) = run(&off(), 500, 1, 64);
    assert!(packets.iter().enumerate().all(|(at, packet)| *packet == bytes_of(at as u32, 64)));
    assert_eq!(packets.len(), 500);
}

#[test]
fn lost_packets_are_in_and_dropped_for_fault() {
    let (packets, bench) = run(&FaultConfig { drop: 0.2, ..off() }, COUNT, 1, 64);
    let dropped = bench.ledger.drops.get(DropReason::Fault, Stage::Wire);
    assert_eq!(packets.len() as u64 + dropped, u64::from(COUNT));
    assert_eq!(bench.ledger.received.get(), u64::from(COUNT));
    assert_share(dropped as usize, COUNT, 0.2);
    assert!(packets.is_sorted_by_key(|packet| number_of(packet)));
    let (packets, bench) = run(&FaultConfig { drop: 1.0, ..off() }, 100, 1, 64);
    assert_eq!((packets.len(), bench.dropped(DropReason::Fault)), (0, 100));
}

#[test]
fn copies_follow_their_originals_and_are_received_too() {
    let (packets, bench) = run(&FaultConfig { duplicate: 0.3, ..off() }, COUNT, 2, 64);
    assert_share(packets.len() - COUNT as usize, COUNT, 0.3);
    assert_eq!(bench.ledger.received.get(), packets.len() as u64);
    assert!(packets.is_sorted_by_key(|packet| number_of(packet)));
    let (packets, _) = run(&FaultConfig { duplicate: 1.0, ..off() }, 100, 2, 1);
    assert!(
        packets
            .chunks(2)
            .enumerate()
            .all(|(at, two)| two[0] == two[1] && number_of(&two[0]) == at as u32)
    );
    assert_eq!(packets.len(), 200);
}

#[test]
fn held_packets_are_overtaken_at_most_by_the_distance() {
    for distance in [1, 4, 64] {
        let config = FaultConfig { reorder: 0.1, reorder_distance: distance, ..off() };
        let (packets, _) = run(&config, COUNT, 3, 64);
        let numbers: Vec<_> = packets.iter().map(|packet| number_of(packet)).collect();
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..COUNT).collect::<Vec<_>>(), "none lost, none doubled");
        let late = |(at, number): &(usize, &u32)| *at > **number as usize;
        assert!(numbers.iter().enumerate().filter(late).count() > 1000);
        for (at, &number) in numbers.iter().enumerate() {
            assert!(at.abs_diff(number as usize) <= distance as usize);
        }
    }
}

#[test]
fn corrupt_flips_one_bit_and_truncate_shortens() {
    let (packets, _) = run(&FaultConfig { corrupt: 0.25, ..off() }, COUNT, 4, 64);
    let flipped = |(at, packet): (usize, &Vec<u8>)| {
        let good = bytes_of(at as u32, 64);
        packet.iter().zip(good).map(|(found, good)| (found ^ good).count_ones()).sum::<u32>()
    };
    let bits: Vec<_> = packets.iter().enumerate().map(flipped).collect();
    assert!(bits.iter().all(|&bits| bits <= 1));
    assert_share(bits.iter().filter(|&&bits| bits == 1).count(), COUNT, 0.25);

    let (packets, _) = run(&FaultConfig { truncate: 0.25, ..off() }, COUNT, 4, 64);
    let cut: Vec<_> = packets.iter().filter(|packet| packet.len() < 64).collect();
    assert_share(cut.len(), COUNT, 0.25);
    let lengths: std::collections::BTreeSet<_> = cut.iter().map(|packet| packet.len()).collect();
    assert_eq!(lengths, (1..64).collect());
    assert!(
        packets.iter().enumerate().all(|(at, packet)| *packet == bytes_of(at as u32, packet.len()))
    );
}

#[test]
fn chained_packets_are_damaged_in_all_their_segments() {
    let port = Numbered { length: |_| 5000, ..Numbered::new(300) };
    let config = FaultConfig { corrupt: 1.0, truncate: 0.5, duplicate: 0.2, reorder: 0.2, ..off() };
    let mut wire = wrap(port, FaultConfig { duplicate: 0.0, reorder: 0.0, ..config.clone() }, 5);
    let mut bench = Bench::with_pool(64, 256);
    let packets = bench.receive_all(&mut *wire, 2);
    assert_eq!(packets.len(), 300);
    let mut places = Vec::new();
    for (at, packet) in packets.iter().enumerate() {
        let good = bytes_of(at as u32, packet.len());
        let wrong: Vec<_> = (0..packet.len()).filter(|&at| packet[at] != good[at]).collect();
        assert_eq!(wrong.len(), 1);
        places.push(wrong[0]);
    }
    assert!(places.iter().any(|&place| place < 256) && places.iter().any(|&place| place > 2500));
    assert_share(packets.iter().filter(|packet| packet.len() < 5000).count(), 300, 0.5);
    bench.assert_conserved();
    let mut wire = wrap(Numbered { length: |_| 5000, ..Numbered::new(300) }, config, 5);
    let mut bench = Bench::with_pool(256, 256);
    assert!(bench.receive_all(&mut *wire, 3).len() > 300);
    bench.assert_conserved();
}

#[test]
fn fault_kinds_are_independent() {
    let lost = |truncate, seed| {
        let config = FaultConfig { drop: 0.1, truncate, reorder: truncate, ..off() };
        let (packets, _) = run(&config, 1000, seed, 64);
        let mut there: Vec<_> = packets
            .iter()
            .filter(|packet| packet.len() >= 4)
            .map(|packet| number_of(packet))
            .collect();
        there.sort_unstable();
        there
    };
    let few = lost(0.0, 9);
    let many = lost(0.05, 9);
    assert!(many.iter().all(|number| few.contains(number)));
    assert_ne!(few, lost(0.0, 10));
}

#[test]
fn held_packets_are_released_in_time_and_at_the_end() {
    let config = FaultConfig { reorder: 1.0, reorder_distance: 64, reorder_usecs: 50, ..off() };
    let mut bench = Bench::new();
    let mut wire = || {
        let mut wire = wrap(Numbered::new(10), config.clone(), 1);
        assert_eq!(bench.receive(&mut *wire, 0, 3).len(), 0);
        wire
    };
    let (mut ended, mut wire) = (wire(), wire());
    assert_eq!((bench.ledger.received.get(), bench.pool.outstanding()), (0, 0), "not yet received");
    assert_eq!(wire.status().next_deadline, Some(Time::from_nanos(50_000)));
    assert!(!wire.status().is_finished);
    assert_eq!(
        bench.stop(&mut *ended),
        [
            "inner",
            "fault: of 3 packets 0 dropped, 0 duplicated, 3 reordered, 0 corrupted, 0 truncated, \
             3 still delayed at the end"
        ]
    );
    let at_50 = bench.receive(&mut *wire, 50_000, 2);
    assert_eq!(at_50.iter().map(|packet| number_of(packet)).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(wire.status().next_deadline, Some(Time::ZERO), "more can be had at once");
    // The last packet of the wire comes by, and the wire is finished: nothing stays behind.
    assert_eq!(number_of(&bench.receive(&mut *wire, 50_001, 1)[0]), 2);
    assert_eq!(bench.receive(&mut *wire, 50_002, 64).len(), 7);
    assert!(wire.status().is_finished && wire.status().next_deadline.is_none());
    bench.assert_conserved();
}

#[test]
fn shed_packets_are_passed_on() {
    let mut wire = wrap(
        Numbered { shed_every: 10, ..Numbered::new(1000) },
        FaultConfig { drop: 0.1, ..off() },
        1,
    );
    let mut bench = Bench::new();
    bench.receive_all(&mut *wire, 64);
    assert_eq!(bench.dropped(DropReason::Oversize), 100);
    assert_eq!(bench.ledger.received.get(), 1000);
    bench.assert_conserved();
    bench.transmit(&mut *wire, 0, &[b"sent"]);
    assert_eq!(bench.ledger.transmitted.get(), 1);
}

#[test]
fn keys_out_of_range_are_refused() {
    for (json, message) in [
        (json!({ "drop": 1.5 }), "drop: found 1.5, allowed: 0 to 1"),
        (json!({ "corrupt": -0.1 }), "corrupt: found -0.1, allowed: 0 to 1"),
        (json!({ "reorder_distance": 65 }), "reorder_distance: found 65, allowed: 1 to 64"),
        (json!({ "reorder_usecs": 0 }), "reorder_usecs: found 0, allowed: 1 to 1000000"),
    ] {
        assert_eq!(from_json::<FaultConfig>(&json).unwrap_err().to_string(), message);
    }
}

fn share() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), 0.0..0.5, Just(1.0)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn equal_seeds_give_equal_faults_for_any_bursts(
        (drop, duplicate, reorder) in (0.0..0.9, share(), share()),
        (corrupt, truncate) in (share(), share()),
        reorder_distance in 1u32..=64,
        seed in any::<u64>(),
        limits in (1usize..=64, 1usize..=64),
    ) {
        let config = FaultConfig {
            drop, duplicate, reorder, corrupt, truncate, reorder_distance, ..off()
        };
        let (first, bench) = run(&config, 300, seed, limits.0);
        let (second, _) = run(&config, 300, seed, limits.1);
        prop_assert_eq!(&first, &second);
        prop_assert_eq!(
            bench.ledger.received.get(),
            first.len() as u64 + bench.dropped(DropReason::Fault)
        );
    }

    #[test]
    fn small_pools_conserve_packets(
        (drop, duplicate, reorder, corrupt, truncate) in (0.0..0.9, share(), share(), share(), share()),
        patient in any::<bool>(),
        taken in 0usize..64,
        seed in any::<u64>(),
        limit in 1usize..=64,
    ) {
        let length = |number: u32| [60, 1, 300, 64, 700][number as usize % 5];
        let port = Numbered { length, patient, ..Numbered::new(200) };
        let config = FaultConfig { drop, duplicate, reorder, corrupt, truncate, ..off() };
        let mut wire = wrap(port, config, seed);
        let mut bench = Bench::with_pool(64, 64);
        for round in 0..4000_u64 {
            let away = if round % 2 == 0 { taken } else { 0 };
            let away: Vec<_> = (0..away).map_while(|_| bench.pool.allocate(1)).collect();
            bench.receive(&mut *wire, round * 1000, limit);
            away.into_iter().for_each(|packet| bench.pool.free(packet));
            bench.assert_conserved();
            if wire.status().is_finished {
                break;
            }
        }
        prop_assert!(wire.status().is_finished);
        if patient {
            prop_assert_eq!(bench.dropped(DropReason::PoolExhausted), 0);
        }
    }
}
