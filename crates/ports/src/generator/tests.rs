//! The generator, judged by an independent parser, by oracles and by counting.

use super::pace::{DueTimes, Pace};
use super::*;
use etherparse::{NetSlice, SlicedPacket, TransportSlice, VlanSlice};
use picnic_core::config::Section;
use picnic_core::ledger::{Ledger, Stage};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::headers::Front;
use picnic_core::packet::pool::PoolConfig;
use picnic_core::packet::wire::{IpProtocol, Ipv4, Ipv6, TcpFlags, checksum};
use picnic_core::stats::WireCounters;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

/// The card's side of one wire.
struct Side {
    pool: Pool,
    burst: Burst,
    counters: WireCounters,
    ledger: Ledger,
}

impl Side {
    fn new(buffers: u32) -> Self {
        let (pool, _) = Pool::new(&PoolConfig { buffers, ..PoolConfig::default() }, 0).unwrap();
        let (counters, ledger) = (WireCounters::default(), Ledger::new(0));
        Side { pool, burst: Burst::new(), counters, ledger }
    }

    /// One call; the packets are left in the burst.
    fn receive(&mut self, wire: &mut dyn WirePort, now: u64, limit: usize) {
        let now = Time::from_nanos(now);
        let card = &self.ledger.card;
        let (pool, burst) = (&mut self.pool, &mut self.burst);
        let mut rx = Receiver::new(pool, burst, &self.counters, card, now, 3, limit);
        wire.receive(now, &mut rx);
    }

    fn free_all(&mut self) -> usize {
        let packets = self.burst.len();
        for packet in self.burst.drain() {
            self.pool.free(packet);
        }
        packets
    }

    /// `count` frames of a patient wire.
    fn frames(&mut self, wire: &mut dyn WirePort, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < count {
            self.receive(wire, 0, (count - frames.len()).min(BURST));
            assert!(!self.burst.is_empty());
            frames.extend(self.burst.as_slice().iter().map(|packet| packet.data().to_vec()));
            self.free_all();
        }
        frames
    }

    fn shed(&self) -> u64 {
        self.counters.rx_shed.get()
    }
}

fn generator(config: &GeneratorConfig) -> Generator {
    Generator::new(config, &BuildContext::default()).unwrap()
}

/// Addresses, protocol and ports.
type FiveTuple = (Vec<u8>, Vec<u8>, u8, u16, u16);

/// A frame taken apart: its flow, VLAN and payload.
type Frame = (FiveTuple, Option<u16>, Vec<u8>);

/// Parses a frame with a parser that is not ours and checks lengths and checksums.
fn check(frame: &[u8]) -> Frame {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let vlan = match packet.vlan.as_ref() {
        None => None,
        Some(VlanSlice::SingleVlan(tag)) => Some(tag.vlan_identifier().value()),
        Some(other) => panic!("{other:?}"),
    };
    let (source, destination, ip_length) = match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            (header.source.to_vec(), header.destination.to_vec(), usize::from(header.total_len))
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header().to_header();
            let length = usize::from(header.payload_length) + 40;
            (header.source.to_vec(), header.destination.to_vec(), length)
        }
    };
    assert_eq!(ip_length + 14 + if vlan.is_some() { 4 } else { 0 }, frame.len());
    let v4 = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).unwrap();
    let v6 = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).unwrap();
    let is_v4 = source.len() == 4;
    let (protocol, ports, payload) = match packet.transport.as_ref().unwrap() {
        TransportSlice::Tcp(tcp) => {
            let (header, payload) = (tcp.to_header(), tcp.payload());
            let checksum = if is_v4 {
                header.calc_checksum_ipv4_raw(v4(&source), v4(&destination), payload)
            } else {
                header.calc_checksum_ipv6_raw(v6(&source), v6(&destination), payload)
            };
            assert_eq!(header.checksum, checksum.unwrap());
            (6, (header.source_port, header.destination_port), payload)
        }
        TransportSlice::Udp(udp) => {
            let (header, payload) = (udp.to_header(), udp.payload());
            let checksum = if is_v4 {
                header.calc_checksum_ipv4_raw(v4(&source), v4(&destination), payload)
            } else {
                header.calc_checksum_ipv6_raw(v6(&source), v6(&destination), payload)
            };
            assert_eq!(header.checksum, checksum.unwrap());
            assert_ne!(header.checksum, 0);
            assert_eq!(usize::from(header.length), payload.len() + 8);
            (17, (header.source_port, header.destination_port), payload)
        }
        other => panic!("{other:?}"),
    };
    ((source, destination, protocol, ports.0, ports.1), vlan, payload.to_vec())
}

fn share() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1.0), 0.0..=1.0]
}

fn size() -> impl Strategy<Value = Size> {
    prop_oneof![
        (60..=140_u16).prop_map(Size::Fixed),
        (60..=2048_u16).prop_map(Size::Fixed),
        (60..=200_u16, 0..=200_u16).prop_map(|(low, more)| Size::Range(low, low + more)),
        Just(Size::Imix),
    ]
}

prop_compose! {
    fn config()(
        flows in 1..300_u32,
        zipf in any::<bool>(),
        sequence in any::<bool>(),
        tcp_share in share(),
        ipv6_share in share(),
        vlan_share in share(),
        size in size(),
        sequence_numbers in any::<bool>(),
    ) -> GeneratorConfig {
        GeneratorConfig {
            flows,
            popularity: if zipf { PopularityKind::Zipf } else { PopularityKind::Uniform },
            order: if sequence && !zipf { Order::Sequence } else { Order::Random },
            tcp_share,
            ipv6_share,
            vlan_share,
            size,
            // The longest headers are 78 bytes.
            sequence_numbers: sequence_numbers && size.bounds().1 >= 78 + 16,
            ..GeneratorConfig::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_frame_is_right(config in config(), seed in any::<u64>()) {
        let context = BuildContext { seed, ..BuildContext::default() };
        let mut wire = Generator::new(&config, &context).unwrap();
        let mut side = Side::new(256);
        let mut flows = BTreeMap::<FiveTuple, (Option<u16>, u64, Option<u32>)>::new();
        let (low, high) = config.size.bounds();
        for frame in side.frames(&mut wire, 500) {
            let (tuple, vlan, payload) = check(&frame);
            prop_assert!(config.tcp_share != 1.0 || tuple.2 == 6);
            prop_assert!(config.tcp_share != 0.0 || tuple.2 == 17);
            prop_assert!(config.ipv6_share != 1.0 || tuple.0.len() == 16);
            prop_assert!(config.ipv6_share != 0.0 || tuple.0.len() == 4);
            prop_assert!(config.vlan_share != 1.0 || vlan.is_some());
            prop_assert!(config.vlan_share != 0.0 || vlan.is_none());
            prop_assert!(vlan.is_none_or(|vlan| (1..=4094).contains(&vlan)));
            let headers = frame.len() - payload.len();
            prop_assert!(frame.len() >= usize::from(low));
            prop_assert!(frame.len() <= usize::from(high).max(headers));
            let flow = flows.entry(tuple).or_insert((vlan, 0, None));
            prop_assert_eq!(flow.0, vlan);
            let rest = if config.sequence_numbers && payload.len() >= Stamp::BYTES {
                let stamp = Stamp::read(&payload).unwrap();
                prop_assert!(stamp.flow < config.flows);
                prop_assert_eq!(*flow.2.get_or_insert(stamp.flow), stamp.flow);
                prop_assert_eq!(stamp.sequence, flow.1);
                flow.1 += 1;
                Stamp::BYTES
            } else {
                0
            };
            prop_assert!(payload[rest..].iter().all(|&byte| byte == 0));
        }
        prop_assert!(flows.len() <= config.flows as usize);
        if config.order == Order::Sequence {
            prop_assert_eq!(flows.len(), config.flows as usize);
        }
        prop_assert_eq!(side.ledger.card.received.get(), 500);
        prop_assert_eq!(side.pool.outstanding(), 0);
    }

    #[test]
    fn the_pace_is_exact(
        rate in prop_oneof![1..=100_u64, 1..=MAX_RATE, Just(MAX_RATE)],
        burst in prop_oneof![Just(1_u64), 1..=300_u64],
        steps in prop::collection::vec(
            prop_oneof![0..200_u64, 0..2_000_000_000_u64, 0..=100_000_000_000_u64], 1..60),
        start in 0..u64::from(u32::MAX),
    ) {
        let mut pace = Pace::new(rate, burst);
        prop_assert_eq!(pace.next_deadline(), Time::ZERO);
        prop_assert_eq!(pace.advance(Time::from_nanos(start)), burst);
        let (mut now, mut offered) = (start, 0);
        for step in steps {
            let deadline = pace.next_deadline();
            now += step;
            let due = pace.advance(Time::from_nanos(now));
            prop_assert_eq!(due != 0, Time::from_nanos(now) >= deadline);
            offered += due;
            let whole = u128::from(now - start) * u128::from(rate) / 1_000_000_000;
            prop_assert_eq!(u128::from(offered), whole / u128::from(burst) * u128::from(burst));
        }
    }

    #[test]
    fn packets_are_stamped_with_their_due_time(
        rate_pps in 1_000..=50_000_000_u64,
        burst in 1..100_u32,
        backlog in 0..200_u32,
        buffers in 1..=64_usize,
        polls in prop::collection::vec((0..100_000_u64, 1..=64_usize), 1..60),
    ) {
        let config = GeneratorConfig { rate_pps, burst, backlog, flows: 4, ..Default::default() };
        let mut wire = generator(&config);
        prop_assert!(wire.describe().capabilities.arrival);
        let mut side = Side::new(64);
        let away: Vec<_> = (buffers..64).map(|_| side.pool.allocate(1).unwrap()).collect();
        // The queue of a NIC: due packets have a place, or the last arrivals are lost.
        let (start, burst, rate) = (1_000, u64::from(burst), u128::from(rate_pps));
        let (mut now, mut number, mut queue) = (start, 0, VecDeque::new());
        for (step, limit) in polls {
            let whole = (u128::from(now - start) * rate / 1_000_000_000) as u64;
            while number < burst + whole / burst * burst {
                let parts = u128::from(number / burst * burst) * 1_000_000_000;
                queue.push_back(start + parts.div_ceil(rate) as u64);
                number += 1;
            }
            queue.truncate(limit.max(backlog as usize));
            side.receive(&mut wire, now, limit);
            let stamps: Vec<_> =
                side.burst.as_slice().iter().map(|p| p.received_at().as_nanos()).collect();
            let wanted = queue.len().min(limit);
            prop_assert!(stamps.len() == wanted.min(buffers), "{} taken", stamps.len());
            for (index, due) in queue.drain(..wanted).enumerate() {
                // Without a buffer, the rest of the burst is lost.
                prop_assert!(stamps.get(index).is_none_or(|&stamp| stamp == due));
            }
            prop_assert_eq!(side.counters.stamps_ahead.get(), 0);
            side.free_all();
            now += step;
        }
        away.into_iter().for_each(|packet| side.pool.free(packet));
    }

    #[test]
    fn due_packets_are_given_or_shed(
        rate_pps in 1_000..=50_000_000_u64,
        burst in 1..100_u32,
        backlog in 0..2_000_u32,
        buffers in 64..200_u32,
        polls in prop::collection::vec((0..100_000_u64, 1..=64_usize, any::<bool>()), 1..100),
    ) {
        let config = GeneratorConfig { rate_pps, burst, backlog, flows: 4, ..Default::default() };
        let mut wire = generator(&config);
        prop_assert!(!wire.describe().capabilities.patient);
        let mut side = Side::new(buffers);
        let (mut now, mut handed, mut held) = (0, 0, Vec::<Descriptor>::new());
        for (step, limit, hold) in polls {
            now += step;
            side.receive(&mut wire, now, limit);
            prop_assert!(side.burst.len() <= limit);
            handed += side.burst.len() as u64;
            if hold {
                held.extend(side.burst.drain());
            } else {
                side.free_all();
                held.drain(..).for_each(|packet| side.pool.free(packet));
            }
            prop_assert!(wire.waiting <= u64::from(backlog.max(64)));
        }
        let started = side.ledger.card.received.get() + wire.waiting;
        prop_assert_eq!(side.ledger.card.received.get(), handed + side.shed());
        prop_assert_eq!(side.counters.rx_packets.get(), handed);
        let reasons = [DropReason::BacklogFull, DropReason::PoolExhausted];
        let drops = reasons.map(|reason| side.ledger.card.drops.get(reason, Stage::Wire));
        prop_assert_eq!(side.shed(), drops.iter().sum::<u64>());
        prop_assert!(started.is_multiple_of(u64::from(burst)));
        held.drain(..).for_each(|packet| side.pool.free(packet));
        prop_assert_eq!(side.pool.outstanding(), 0);
    }
}

const MAX_RATE: u64 = pace::MAX_RATE_PPS;

#[test]
fn rates_offer_rate_times_time_for_any_polling() {
    for (rate_pps, step) in [(1_000_000, 137), (3_333_333, 9_001), (14_880_952, 2_000)] {
        let mut wire = generator(&GeneratorConfig { rate_pps, ..Default::default() });
        let mut side = Side::new(256);
        let mut now = 0;
        while now < 20_000_000 {
            side.receive(&mut wire, now, 64);
            side.free_all();
            now += step;
        }
        let expected = (now - step) as f64 * rate_pps as f64 / 1e9;
        let offered = side.ledger.card.received.get() + wire.waiting;
        assert!((offered as f64 - expected).abs() <= 1.0, "{offered} of {expected}");
    }
}

#[test]
fn without_buffers_a_rate_sheds_and_a_patient_wire_waits() {
    for (rate_pps, shed) in [(1_000_000, 1_000 + 1 - 64), (0, 0)] {
        let mut wire = generator(&GeneratorConfig { rate_pps, ..Default::default() });
        let mut side = Side::new(64);
        let mut held = Vec::new();
        for now in (0..=1_000_000).step_by(1_000) {
            side.receive(&mut wire, now, 64);
            held.extend(side.burst.drain());
        }
        assert_eq!(held.len(), 64);
        assert_eq!(side.shed(), shed);
        assert_eq!(wire.describe().capabilities.patient, rate_pps == 0);
        held.drain(..).for_each(|packet| side.pool.free(packet));
    }
}

#[test]
fn unpolled_wires_keep_only_the_backlog() {
    let config = GeneratorConfig { rate_pps: 1_000_000, backlog: 100, ..Default::default() };
    let mut wire = generator(&config);
    let mut side = Side::new(256);
    side.receive(&mut wire, 0, 64);
    assert_eq!(side.free_all(), 1);
    side.receive(&mut wire, 1_000_000_000, 64);
    assert_eq!(side.shed(), 1_000_000 - 100);
    let card = &side.ledger.card;
    assert_eq!(card.drops.get(DropReason::BacklogFull, Stage::Wire), side.shed());
    assert_eq!(side.free_all(), 64);
    assert_eq!(wire.status().next_deadline, Some(Time::from_nanos(1_000_000_000)));
    side.receive(&mut wire, 1_000_000_000, 64);
    assert_eq!(side.free_all(), 36);
    assert_eq!(wire.status().next_deadline, Some(Time::from_nanos(1_000_001_000)));
}

#[test]
fn a_limit_ends_the_wire() {
    for rate_pps in [0, 1_000_000] {
        let mut wire = generator(&GeneratorConfig { packets: 100, rate_pps, ..Default::default() });
        let mut side = Side::new(256);
        let mut handed = 0;
        for now in 0..1_000 {
            assert_eq!(wire.status().is_finished, handed == 100);
            side.receive(&mut wire, now * 1_000, 7);
            handed += side.free_all();
        }
        assert_eq!(handed, 100);
        assert_eq!(wire.status().next_deadline, None);
        assert_eq!(side.shed(), 0);
    }
}

#[test]
fn flows_have_the_configured_number() {
    let config = GeneratorConfig {
        flows: 20_000,
        order: Order::Sequence,
        tcp_share: 0.5,
        ipv6_share: 0.25,
        vlan_share: 0.1,
        ..Default::default()
    };
    let frames = Side::new(256).frames(&mut generator(&config), 20_000);
    let flows: Vec<_> = frames.iter().map(|frame| check(frame)).collect();
    let tuples: BTreeSet<_> = flows.iter().map(|flow| &flow.0).collect();
    assert_eq!(tuples.len(), 20_000);
    // Within six standard deviations of the shares.
    let count =
        |test: fn(&Frame) -> bool| flows.iter().filter(|flow| test(flow)).count() as f64 / 20_000.0;
    assert!((count(|flow| flow.0.2 == 6) - 0.5).abs() < 0.022);
    assert!((count(|flow| flow.0.0.len() == 16) - 0.25).abs() < 0.019);
    assert!((count(|flow| flow.1.is_some()) - 0.1).abs() < 0.013);
}

/// How often each of `flows` is chosen in `packets` draws.
fn histogram(config: &GeneratorConfig, packets: usize) -> Vec<f64> {
    let mut popularity = generator(config).popularity;
    let mut counts = vec![0.0; config.flows as usize];
    let mut chosen = [0; 63];
    for _ in 0..packets / chosen.len() {
        popularity.choose(&mut chosen);
        chosen.iter().for_each(|&flow| counts[flow as usize] += 1.0);
    }
    counts
}

#[test]
fn popularity_follows_its_law() {
    const PACKETS: usize = 63 * 10_000;
    for flows in [1, 2, 3, 64, 1000] {
        for exponent in [None, Some(0.0), Some(0.8), Some(1.0), Some(2.0)] {
            let mut config = GeneratorConfig { flows, ..Default::default() };
            if let Some(zipf_exponent) = exponent {
                config.popularity = PopularityKind::Zipf;
                config.zipf_exponent = zipf_exponent;
            }
            let counts = histogram(&config, PACKETS);
            let weights: Vec<f64> =
                (1..=flows).map(|rank| f64::from(rank).powf(-exponent.unwrap_or(0.0))).collect();
            let total: f64 = weights.iter().sum();
            for (rank, (count, weight)) in counts.iter().zip(&weights).enumerate() {
                let share = weight / total;
                let expected = share * PACKETS as f64;
                let deviation = (expected * (1.0 - share)).sqrt();
                // Six standard deviations, and one packet for the rare.
                assert!(
                    (count - expected).abs() <= 6.0 * deviation + 1.0,
                    "flow {rank} of {flows}, exponent {exponent:?}: {count} for {expected}"
                );
            }
        }
    }
}

#[test]
fn incremental_checksums_equal_full_sums() {
    for (tcp_share, ipv6_share) in [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)] {
        let config = GeneratorConfig { flows: 1, tcp_share, ipv6_share, ..Default::default() };
        let flows = Flows::draw(&config, &[], &mut Random::new(1, 2)).unwrap();
        let shape = flows.shapes[0];
        let mut frame = [0; 64 + 64];
        match &flows.templates {
            Templates::One(templates) => frame[..64].copy_from_slice(&templates[0].0),
            Templates::Two(templates) => frame.copy_from_slice(&templates[0].0),
        }
        let (udp, l3, l4) = (tcp_share == 0.0, 14, if ipv6_share == 0.0 { 34 } else { 54 });
        let (protocol, place) = if udp { (IpProtocol::UDP, 6) } else { (IpProtocol::TCP, 16) };
        for payload in 0..=65_000_u16 {
            let mut frame = frame;
            shape.lengthen(&mut frame, payload);
            let pseudo_header = if ipv6_share == 0.0 {
                let mut ip = Ipv4::new_header(&mut frame[l3..l4]).unwrap();
                assert_eq!(
                    usize::from(ip.total_length()),
                    shape.headers() - l3 + usize::from(payload)
                );
                let checksum = ip.checksum();
                ip.fill_checksum();
                assert_eq!(checksum, ip.checksum());
                ip.pseudo_header()
            } else {
                let ip = Ipv6::new_header(&frame[l3..l4]).unwrap();
                assert_eq!(
                    usize::from(ip.payload_length()),
                    shape.headers() - l4 + usize::from(payload)
                );
                ip.pseudo_header()
            };
            let length = shape.headers() - l4 + usize::from(payload);
            // The payload is zeros: they add nothing.
            let l4 = &frame[l4..shape.headers()];
            let sum = checksum::add(pseudo_header.sum(protocol, length), checksum::sum(l4));
            assert_eq!(sum, 0xffff);
            let unused = if udp { [0, 0] } else { [0xff, 0xff] };
            assert_ne!(l4[place..place + 2], unused);
        }
    }
}

#[test]
fn imix_is_seven_to_four_to_one() {
    let config = GeneratorConfig { size: Size::Imix, ..Default::default() };
    let frames = Side::new(256).frames(&mut generator(&config), 12_000);
    for (size, expected) in [(60, 7_000_i32), (590, 4_000), (1514, 1_000)] {
        let count = frames.iter().filter(|frame| frame.len() == size).count() as i32;
        assert!((count - expected).abs() < 330, "{count} frames of {size} bytes");
    }
}

#[test]
fn the_seed_decides_and_each_wire_has_its_own_stream() {
    let config = GeneratorConfig {
        ipv6_share: 0.5,
        popularity: PopularityKind::Zipf,
        size: Size::Imix,
        ..Default::default()
    };
    let frames = |seed, position| {
        let context = BuildContext { seed, position, ..BuildContext::default() };
        Side::new(256).frames(&mut Generator::new(&config, &context).unwrap(), 1_000)
    };
    assert_eq!(frames(1, 0), frames(1, 0));
    assert_ne!(frames(1, 0), frames(2, 0));
    assert_ne!(frames(1, 0), frames(1, 1));
}

#[test]
fn fresh_frames_are_rewritten_and_reused_frames_are_not() {
    for frames in [Frames::Fresh, Frames::Reuse] {
        for size in [60, 64, 65, 100, 1514] {
            let config = GeneratorConfig { frames, size: Size::Fixed(size), ..Default::default() };
            let mut wire = generator(&config);
            let mut side = Side::new(64);
            side.receive(&mut wire, 0, 64);
            assert_eq!(side.burst.len(), 64);
            for packet in side.burst.as_mut_slice() {
                check(packet.data());
                packet.data_mut().fill(0xff);
            }
            side.free_all();
            side.receive(&mut wire, 0, 64);
            for packet in side.burst.as_slice() {
                assert_eq!(packet.data().len(), usize::from(size));
                match frames {
                    Frames::Fresh => drop(check(packet.data())),
                    Frames::Reuse => assert!(packet.data().iter().all(|&byte| byte == 0xff)),
                }
            }
            side.free_all();
        }
    }
}

#[test]
fn reuse_writes_fresh_until_all_buffers_are_home() {
    let mut wire = generator(&GeneratorConfig { frames: Frames::Reuse, ..Default::default() });
    let mut side = Side::new(64);
    let away = side.pool.packet(&[0xee; 60]).unwrap();
    side.receive(&mut wire, 0, 64);
    assert_eq!(side.burst.len(), 63);
    side.burst.as_slice().iter().for_each(|packet| drop(check(packet.data())));
    side.free_all();
    side.pool.free(away);
    for _ in 0..2 {
        side.receive(&mut wire, 0, 64);
        assert_eq!(side.burst.len(), 64);
        side.burst.as_slice().iter().for_each(|packet| drop(check(packet.data())));
        side.free_all();
    }
}

#[test]
fn packets_sent_to_the_generator_are_counted() {
    let mut wire = generator(&GeneratorConfig::default());
    let mut side = Side::new(64);
    let mut queue = std::collections::VecDeque::new();
    queue.push_back(side.pool.packet(&[0; 60]).unwrap());
    queue.push_back(side.pool.packet(&[0; 100]).unwrap());
    let mut tx = Transmitter::new(&mut side.pool, &mut queue, &side.counters, &side.ledger.card);
    wire.transmit(Time::ZERO, &mut tx);
    assert_eq!(side.counters.tx_packets.get(), 2);
    assert_eq!(side.counters.tx_bytes.get(), 160);
    assert_eq!(side.ledger.card.transmitted.get(), 2);
    assert_eq!(side.pool.outstanding(), 0);
}

/// Builds from a card file's text, as a user does.
fn wire(keys: &str, context: &BuildContext) -> Result<Box<dyn WirePort>, ConfigError> {
    let section = Section::from_text("port", &format!("port = \"generator\"\n{keys}"))?;
    let entry = picnic_core::registry::find(crate::registry::WIRES, &section)?;
    entry.build(&section, context)
}

fn build(keys: &str, context: &BuildContext) -> Result<(), ConfigError> {
    wire(keys, context).map(drop)
}

#[test]
fn wrong_generator_values_are_refused_exactly() {
    let cases = [
        ("flows = 0", "flows", "found 0, allowed: 1 to 1048576"),
        ("flows = 1048577", "flows", "found 1048577, allowed: 1 to 1048576"),
        ("flows = -1", "flows", "-1"),
        ("flows = \"many\"", "flows", "many"),
        ("popularity = \"pareto\"", "popularity", "allowed: uniform, zipf"),
        ("zipf_exponent = -0.5", "zipf_exponent", "found -0.5, allowed: 0 to 10"),
        ("zipf_exponent = nan", "zipf_exponent", "found NaN, allowed: 0 to 10"),
        ("zipf_exponent = inf", "zipf_exponent", "found inf, allowed: 0 to 10"),
        ("order = \"reverse\"", "order", "allowed: random, sequence"),
        ("order = \"sequence\"\npopularity = \"zipf\"", "order", "allowed: \"random\""),
        ("tcp_share = 1.1", "tcp_share", "found 1.1, allowed: 0 to 1"),
        ("ipv6_share = -1.0", "ipv6_share", "found -1, allowed: 0 to 1"),
        ("vlan_share = nan", "vlan_share", "found NaN, allowed: 0 to 1"),
        ("size = 59", "size", "found 59, allowed: 60 to 2048 bytes"),
        ("size = 2049", "size", "found 2049, allowed: 60 to 2048 bytes"),
        ("size = 70000", "size", "a range such as [64, 1514], or \"imix\""),
        ("size = -60", "size", "a number of bytes"),
        ("size = [100, 60]", "size", "found [100, 60], allowed: the lower bound first"),
        ("size = [60, 4000]", "size", "found [60, 4000], allowed: 60 to 2048"),
        ("size = [60]", "size", "a range such as"),
        ("size = [60, 70, 80]", "size", "a range such as"),
        ("size = \"big\"", "size", "\"imix\""),
        ("size = 60.5", "size", "a number of bytes"),
        ("rate_pps = 1000000001", "rate_pps", "found 1000000001, allowed: 0 to 1000000000"),
        ("arrivals = \"poisson\"\nrate_pps = 1", "arrivals", "allowed: even, random"),
        ("arrivals = \"random\"", "arrivals", "found \"random\" without rate_pps"),
        ("burst = 0", "burst", "found 0, allowed: 1 to 65536"),
        ("backlog = 65537", "backlog", "found 65537, allowed: 0 to 65536"),
        ("packets = -1", "packets", "-1"),
        ("frames = \"stale\"", "frames", "allowed: fresh, reuse"),
        ("frames = \"reuse\"\nsize = \"imix\"", "frames", "sizes that vary"),
        ("frames = \"reuse\"\nsize = [60, 70]", "frames", "sizes that vary"),
        ("frames = \"reuse\"\nsize = 100\nsequence_numbers = true", "frames", "sequence_numbers"),
        ("frames = \"reuse\"\nipv6_share = 1.0", "frames", "headers of 74 bytes"),
        ("sequence_numbers = true", "sequence_numbers", "with frames of 70 bytes or more"),
        ("sequence_numbers = 1", "sequence_numbers", "true or false"),
        ("speed = 1", "speed", "found key \"speed\""),
    ];
    for (keys, key, text) in cases {
        let error = build(keys, &BuildContext::default()).unwrap_err();
        assert_eq!(error.key, key, "{keys}: {error}");
        assert!(error.message.contains(text), "{keys}: {error}");
        assert!(error.line >= 2, "{keys}: {error}");
    }
    let two_wires = BuildContext { wires: 2, ..BuildContext::default() };
    let error = build("frames = \"reuse\"", &two_wires).unwrap_err();
    assert!(error.message.contains("2 wires"), "{error}");
    let small = BuildContext { buffer_size: 64, ..BuildContext::default() };
    assert!(build("", &small).is_ok());
    assert_eq!(build("ipv6_share = 1.0", &small).unwrap_err().key, "ipv6_share");
}

#[test]
fn valid_values_take_effect() {
    // The effects of each key: lengths, flows, packets.
    let seen = |keys: &str| {
        let (mut wire, mut side) = (wire(keys, &BuildContext::default()).unwrap(), Side::new(512));
        side.receive(wire.as_mut(), 1_000_000_000, BURST);
        let frames: Vec<_> = side.burst.as_slice().iter().map(|one| one.data().to_vec()).collect();
        side.free_all();
        let flows: BTreeSet<_> = frames.iter().map(|frame| check(frame).0).collect();
        let lengths: BTreeSet<_> = frames.iter().map(Vec::len).collect();
        (lengths.into_iter().collect::<Vec<_>>(), flows.len(), frames.len())
    };
    assert_eq!(seen("size = 2048").0, [2048]);
    assert_eq!(seen("size = [60, 60]").0, [60]);
    let imix = seen("size = \"imix\"").0;
    assert!(imix.len() > 1 && imix.len() <= 3, "{imix:?}");
    assert_eq!(seen("flows = 1").1, 1);
    assert!(seen("flows = 1000").1 > 1);
    assert_eq!(seen("packets = 5").2, 5);
}

#[test]
fn keys_show_their_defaults() {
    let keys = picnic_core::config::keys_of::<GeneratorConfig>();
    let default = |name: &str| keys.iter().find(|key| key.name == name).unwrap().default.clone();
    assert_eq!(default("size"), "60");
    assert_eq!(default("popularity"), "\"uniform\"");
    assert_eq!(default("frames"), "\"fresh\"");
    assert!(keys.iter().all(|key| !key.help.is_empty()));
}

#[test]
fn packets_keep_due_times_after_a_rate_change() {
    let at = Time::from_nanos;
    let (mut pace, mut due) = (Pace::new(1000, 1), DueTimes::new(1000, 1));
    for now in [0, 2_000_000] {
        due.note(at(now), pace.advance(at(now)), 0);
    }
    assert_eq!(due.next(), at(0));
    // The two that wait are late from then on.
    pace.restart(4000, at(2_500_000));
    due.restart(4000, at(2_500_000), 2);
    assert_eq!([due.next(), due.next()], [at(2_500_000); 2]);
    assert_eq!((pace.advance(at(2_749_999)), pace.advance(at(2_750_000))), (0, 1));
    due.note(at(2_750_000), 1, 0);
    assert_eq!((due.next(), pace.next_deadline()), (at(2_750_000), at(3_000_000)));
}

/// A generator of random arrivals.
fn at_random(rate_pps: u64, keys: GeneratorConfig) -> Generator {
    generator(&GeneratorConfig { rate_pps, arrivals: ArrivalsKind::Random, flows: 4, ..keys })
}

/// Arrival times of the packets that a wire hands over until `end`, polled every `step`.
fn arrival_times(wire: &mut Generator, side: &mut Side, step: u64, end: u64) -> Vec<u64> {
    let mut times = Vec::new();
    for now in (0..=end).step_by(step as usize) {
        loop {
            side.receive(wire, now, BURST);
            let taken = side.burst.as_slice();
            times.extend(taken.iter().map(|packet| packet.received_at().as_nanos()));
            if side.free_all() < BURST {
                break;
            }
        }
        assert!(times.last().is_none_or(|&last| last <= now));
    }
    times
}

#[test]
fn random_arrivals_are_independent_with_the_mean_rate() {
    // 200 000 a second for a second.
    let (mean, end) = (5_000.0, 1_000_000_000);
    let mut wire = at_random(200_000, GeneratorConfig::default());
    let times = arrival_times(&mut wire, &mut Side::new(256), 10_000, end);
    let count = times.len() as f64;
    // Five standard deviations of a Poisson process.
    assert!((count - 200_000.0).abs() < 5.0 * 200_000_f64.sqrt(), "{count} packets");
    let gaps: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    // The number of gaps longer than a multiple of the mean follows the exponential law.
    for means in [0.01_f64, 0.1, 0.5, 1.0, 2.0, 5.0] {
        let longer = gaps.iter().filter(|&&gap| gap > means * mean).count() as f64 / count;
        let (wanted, tolerance) = ((-means).exp(), 5.0 / count.sqrt());
        assert!((longer - wanted).abs() < tolerance, "{means}: {longer}, not {wanted}");
    }
    // A gap does not determine the next one.
    let product: f64 = gaps.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    let correlation = product / count / (mean * mean);
    assert!(correlation.abs() < 5.0 / count.sqrt(), "{correlation}");
    // No multiple of a sixteenth packet is favoured by a period of the card's.
    let phases: f64 = times.iter().step_by(16).map(|time| (time % 80_000) as f64).sum();
    let phase = phases / (count / 16.0) / 80_000.0;
    assert!((phase - 0.5).abs() < 5.0 * 0.29 / (count / 16.0).sqrt(), "{phase}");
}

#[test]
fn random_arrivals_do_not_depend_on_polling() {
    let look = |step| {
        let config = GeneratorConfig { burst: 3, backlog: 65_536, ..Default::default() };
        let mut wire = at_random(1_000_000, config);
        arrival_times(&mut wire, &mut Side::new(256), step, 10_000_000)
    };
    let times = look(100);
    assert!(times.len() > 9_000 && times.is_sorted());
    assert!(times.chunks(3).all(|burst| burst.iter().all(|time| time == &burst[0])));
    assert!(look(100_000) == times && look(777) == times[..look(777).len()]);
    let mut other = Generator::new(
        &GeneratorConfig {
            rate_pps: 1_000_000,
            arrivals: ArrivalsKind::Random,
            ..Default::default()
        },
        &BuildContext { seed: 2, ..BuildContext::default() },
    )
    .unwrap();
    assert_ne!(arrival_times(&mut other, &mut Side::new(256), 100, 10_000_000), times);
}

#[test]
fn random_arrivals_without_a_place_are_counted() {
    // At most one packet a millisecond is taken of 100 000 a second, then nothing for a second.
    let config = GeneratorConfig { backlog: 10, packets: 150_000, ..Default::default() };
    let mut wire = at_random(100_000, config);
    let mut side = Side::new(256);
    for now in (0..500_000_000).step_by(1_000_000).chain([1_499_000_000]) {
        side.receive(&mut wire, now, 1);
        side.free_all();
        assert!(wire.waiting <= 10);
    }
    let came = (side.ledger.card.received.get() + wire.waiting) as f64;
    assert!((came - 149_900.0).abs() < 5.0 * 149_900_f64.sqrt(), "{came} packets");
    assert_eq!(side.shed(), side.ledger.card.drops.get(DropReason::BacklogFull, Stage::Wire));
    assert!(!wire.status().is_finished);
    for now in 0..100 {
        side.receive(&mut wire, 3_000_000_000 + now, 64);
        side.free_all();
    }
    assert!(wire.status().is_finished && side.ledger.card.received.get() == 150_000);
}

#[test]
fn random_arrivals_poll_in_bounded_time() {
    let mut wire = at_random(MAX_RATE, GeneratorConfig::default());
    let mut side = Side::new(256);
    // Each look is an hour later: 3.6e12 packets.
    for hour in 0..1000 {
        side.receive(&mut wire, hour * 3_600_000_000_000, 64);
        side.free_all();
    }
    let came = (side.ledger.card.received.get() + wire.waiting) as f64;
    assert!((came / (999.0 * 3.6e12) - 1.0).abs() < 1e-6, "{came}");
}

#[test]
fn random_arrivals_follow_a_change_of_rate() {
    let mut wire = at_random(1_000_000, GeneratorConfig::default());
    let mut side = Side::new(256);
    let before = arrival_times(&mut wire, &mut side, 1_000, 10_000_000).len();
    let at = Time::from_nanos(10_000_000);
    wire.pace.as_mut().unwrap().restart(100_000, at, 0);
    let after = arrival_times(&mut wire, &mut side, 1_000, 110_000_000).len();
    assert!((9_500..10_500).contains(&before) && (9_500..10_500).contains(&after));
}

/// Frames of a wire with these sections.
fn of_flows(keys: &str, count: usize) -> Vec<Vec<u8>> {
    let mut wire = wire(keys, &BuildContext::default()).unwrap();
    let frames = Side::new(1024).frames(&mut *wire, count);
    assert!(frames.iter().all(|frame| frame.len() >= 60));
    frames
}

/// A frame without what Ethernet pads it with.
fn check_padded(frame: &[u8]) -> Frame {
    let front = Front::of(frame, frame.len());
    let length = match (front.ipv4(), front.ipv6()) {
        (Some(ip), _) => usize::from(ip.total_length()),
        (None, Some(ip)) => 40 + usize::from(ip.payload_length()),
        (None, None) => panic!("it is not IP: {frame:x?}"),
    };
    assert!(frame[14 + length..].iter().all(|byte| *byte == 0));
    check(&frame[..14 + length])
}

#[test]
fn configured_flows_have_their_addresses_and_share() {
    let keys = "[[flow]]\nsource = \"10.1.0.0/16\"\ndestination = \"10.2.0.1\"\n\
                destination_port = 53\nflows = 16\nshare = 3\nsize = [100, 200]\n\
                [[flow]]\nprotocol = \"tcp\"\nsource = \"fd00::1\"\nsource_port = [7, 9]\n\
                destination_port = 443\nflows = 3\npayload = \"hello\"\n";
    let frames = of_flows(keys, 4000);
    let (mut tuples, mut of_second) = (HashSet::new(), 0);
    for frame in &frames {
        tuples.insert(check_padded(frame).0);
        let front = Front::of(frame, frame.len());
        if let Some(ip) = front.ipv4() {
            assert_eq!(ip.source().octets()[..2], [10, 1]);
            assert_eq!(ip.destination().octets(), [10, 2, 0, 1]);
            assert_eq!(front.udp().unwrap().destination_port(), 53);
            assert!((100..=200).contains(&frame.len()));
        } else {
            let ip = front.ipv6().unwrap();
            assert_eq!(ip.source().to_string(), "fd00::1");
            let tcp = front.tcp().unwrap();
            assert!((7..=9).contains(&tcp.source_port()) && tcp.destination_port() == 443);
            assert_eq!(tcp.payload(), b"hello");
            of_second += 1;
        }
    }
    assert_eq!(tuples.len(), 19);
    let share = f64::from(of_second) / frames.len() as f64;
    assert!((0.22..0.28).contains(&share), "{share}");
}

#[test]
fn predefined_kinds_match_their_names() {
    for frame in of_flows("[[flow]]\nkind = \"dns\"\n", 10) {
        check_padded(&frame);
        let front = Front::of(&frame, frame.len());
        let udp = front.udp().unwrap();
        assert_eq!(udp.destination_port(), 53);
        // One question, and nothing after it.
        assert_eq!(udp.payload()[4..6], [0, 1]);
        assert!(udp.payload().ends_with(b"\x07example\x03com\0\0\x01\0\x01"));
    }
    for frame in of_flows("[[flow]]\nkind = \"http-get\"\nsource = \"fd00::/64\"\n", 10) {
        check_padded(&frame);
        let front = Front::of(&frame, frame.len());
        let tcp = front.tcp().unwrap();
        assert!(
            tcp.payload().starts_with(b"GET / HTTP/1.1\r\n")
                && tcp.payload().ends_with(b"\r\n\r\n")
        );
    }
    let mut sources = HashSet::new();
    for frame in of_flows("[[flow]]\nkind = \"syn-flood\"\ndestination = \"10.0.0.1\"\n", 2000) {
        let ((source, ..), _, payload) = check_padded(&frame);
        assert!(payload.is_empty());
        sources.insert(source);
        let front = Front::of(&frame, frame.len());
        let tcp = front.tcp().unwrap();
        assert_eq!((tcp.flags(), tcp.acknowledgment_number()), (TcpFlags::SYN, 0));
        assert_eq!(
            (tcp.destination_port(), front.ipv4().unwrap().destination().octets()[0]),
            (80, 10)
        );
    }
    assert!(sources.len() > 1000, "{}", sources.len());
}

#[test]
fn wrong_flows_are_refused_exactly() {
    let refused = |keys: &str| build(keys, &BuildContext::default()).unwrap_err().to_string();
    for (keys, message) in [
        ("source = \"10.0.0\"", "flow[0].source: found \"10.0.0\", allowed: an address or prefix"),
        ("source = \"10.0.0.0/33\"", "flow[0].source: found \"10.0.0.0/33\""),
        ("source = \"::1\"\ndestination = \"10.0.0.1\"", "flow[0].destination: found \"10.0.0.1\""),
        ("source_port = 70000", "flow[0].source_port: found 70000, allowed: a port, 0 to 65535"),
        (
            "source_port = [9, 7]",
            "flow[0].source_port: found [9, 7], allowed: the lower bound first",
        ),
        (
            "source = \"10.0.0.1\"\ndestination = \"10.0.0.2\"\nsource_port = 1\n\
             destination_port = 2\nflows = 2",
            "flow[0].flows: found 2, allowed: 1 to 1",
        ),
        (
            "kind = \"dns\"\nprotocol = \"tcp\"",
            "flow[0].protocol: found a protocol that contradicts its kind",
        ),
        ("share = 0", "flow[0].share: found 0, allowed: above 0"),
        ("size = 10", "flow[0].size: found 10, allowed: 60 to"),
        ("kind = \"quic\"", "flow[0].kind: found \"quic\", allowed: dns, http-get, syn-flood"),
    ] {
        let found = refused(&format!("[[flow]]\n{keys}\n"));
        assert!(found.contains(message), "{keys}: {found}");
    }
    let payload = format!("[[flow]]\npayload = \"{}\"\n", "x".repeat(87));
    assert!(refused(&payload).contains("payload: found 87 bytes, allowed: up to 86"));
    assert!(refused("popularity = \"zipf\"\n[[flow]]\n").contains("popularity: found \"zipf\""));
    let both = refused("[[flow]]\nshare = -1\n[[flow]]\nflows = 0\n");
    assert_eq!(both.lines().count(), 2, "{both}");
}
