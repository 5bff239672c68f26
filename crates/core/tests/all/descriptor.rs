//! The descriptor: 32 bytes, with independent fields.

use picnic_core::packet::desc::{
    ChecksumState, Descriptor, GsoType, RssFunction, RssType, VlanTag,
};
use picnic_core::packet::layers::{self as headers, Layers, PacketType};
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::time::Time;
use proptest::prelude::*;

const RSS: [RssType; 7] = [
    RssType::None,
    RssType::Ipv4,
    RssType::Ipv4Tcp,
    RssType::Ipv4Udp,
    RssType::Ipv6,
    RssType::Ipv6Tcp,
    RssType::Ipv6Udp,
];
const FUNCTION: [RssFunction; 2] = [RssFunction::Toeplitz, RssFunction::Jenkins];
const CHECKSUM: [ChecksumState; 4] =
    [ChecksumState::Unknown, ChecksumState::Good, ChecksumState::Bad, ChecksumState::Partial];
const GSO: [GsoType; 4] = [GsoType::None, GsoType::Tcp4, GsoType::Tcp6, GsoType::Udp];
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Set {
    Rss(u32, RssType, RssFunction),
    Checksum(ChecksumState),
    Gso(GsoType, u16),
    Mark(u32),
    Wire(u8),
    Received(u64),
    Layers(Layers),
    Aside(Option<VlanTag>),
    PullFront,
    CopyToAnother,
}

fn layers() -> impl Strategy<Value = Layers> {
    // Results of a parser: L3 after Ethernet and its tags, L4 some words further.
    (any::<bool>(), 0..=2_u8, 0..=255_u16, any::<u8>(), any::<u16>()).prop_map(
        |(whole, tags, words, bits, vlan_tci)| {
            let (vlan_count, l3_offset) = if whole { (tags, 14 + 4 * tags) } else { (0, 0) };
            Layers {
                l3_offset,
                vlan_count,
                l4_offset: if words == 0 { 0 } else { u16::from(l3_offset) + words * 4 },
                packet_type: PacketType::from_bits(bits),
                protocol: 0,
                vlan_tci,
            }
        },
    )
}

/// Random bytes that start as a frame may: up to three tags, then an EtherType.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop::collection::vec(prop::sample::select(vec![0x8100_u16, 0x88a8]), 0..=3);
    let last = prop::sample::select(vec![0x0800_u16, 0x86dd, 0x0806, 0x1234, 0x0100]);
    let first_byte = prop::sample::select(vec![0x45_u8, 0x46, 0x4f, 0x60, 0x00]);
    (prop::collection::vec(any::<u8>(), 0..200), tags, last, first_byte).prop_map(
        |(mut bytes, tags, last, first_byte)| {
            let mut put = |place: usize, byte: u8| {
                bytes.get_mut(place).into_iter().for_each(|there| *there = byte);
            };
            let mut place = 12;
            for ethertype in tags.into_iter().map(|tag| (tag, 4)).chain([(last, 2)]) {
                put(place, (ethertype.0 >> 8) as u8);
                put(place + 1, ethertype.0 as u8);
                place += ethertype.1;
            }
            put(place, first_byte);
            bytes
        },
    )
}

fn set() -> impl Strategy<Value = Set> {
    prop_oneof![
        (any::<u32>(), prop::sample::select(RSS.to_vec()), prop::sample::select(FUNCTION.to_vec()))
            .prop_map(|(hash, over, by)| Set::Rss(hash, over, by)),
        prop::sample::select(CHECKSUM.to_vec()).prop_map(Set::Checksum),
        (prop::sample::select(GSO.to_vec()), any::<u16>())
            .prop_map(|(gso, size)| Set::Gso(gso, size)),
        any::<u32>().prop_map(Set::Mark),
        any::<u8>().prop_map(Set::Wire),
        (0..1_u64 << 48).prop_map(Set::Received),
        layers().prop_map(Set::Layers),
        prop::option::of((any::<u16>(), any::<bool>()))
            .prop_map(|tag| Set::Aside(tag.map(|(tci, service)| VlanTag { tci, service }))),
        Just(Set::PullFront),
        Just(Set::CopyToAnother),
    ]
}

/// All readable fields of a descriptor besides its bytes.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    rss: (u32, RssType, RssFunction),
    checksum: ChecksumState,
    gso: (GsoType, u16),
    mark: u32,
    wire: u8,
    received: u64,
    layers: Layers,
    aside: Option<VlanTag>,
    chained: bool,
    length: u32,
}

fn see(packet: &Descriptor) -> Seen {
    assert_eq!(packet.vlan_count(), packet.layers().vlan_count);
    Seen {
        rss: (packet.rss_hash, packet.rss_type(), packet.rss_function()),
        checksum: packet.checksum(),
        gso: (packet.gso_type(), packet.gso_size()),
        mark: packet.mark,
        wire: packet.wire,
        received: packet.received_at().as_nanos(),
        layers: packet.layers(),
        aside: packet.vlan_aside(),
        chained: packet.is_chained(),
        length: packet.length(),
    }
}

fn pool() -> Pool {
    Pool::new(&PoolConfig { buffers: 64, buffer_size: 256, headroom: 0 }, 0).unwrap().0
}

#[test]
fn two_share_a_cache_line() {
    assert_eq!(size_of::<Descriptor>(), 32);
    assert_eq!(align_of::<Descriptor>(), 32);
    assert_eq!(size_of::<Option<[Descriptor; 2]>>().min(64), 64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn setting_one_field_leaves_the_others(
        sets in prop::collection::vec(set(), 1..60),
        chained in any::<bool>(),
    ) {
        let mut pool = pool();
        let mut packet = pool.packet(&[1; 400][..if chained { 400 } else { 200 }]).unwrap();
        let mut other = pool.packet(&[2; 400][..if chained { 100 } else { 300 }]).unwrap();
        let mut expected = see(&packet);
        prop_assert_eq!(&expected, &Seen {
            rss: (0, RssType::None, RssFunction::Toeplitz),
            checksum: ChecksumState::Unknown,
            gso: (GsoType::None, 0),
            mark: 0,
            wire: 0,
            received: 0,
            layers: Layers::default(),
            aside: None,
            chained,
            length: if chained { 400 } else { 200 },
        });
        for set in sets {
            match set {
                Set::Rss(hash, over, by) => {
                    packet.set_rss(hash, over);
                    prop_assert_eq!(packet.rss_function(), RssFunction::Toeplitz);
                    packet.set_rss_function(by);
                    expected.rss = (hash, over, by);
                }
                Set::Checksum(state) => {
                    packet.set_checksum(state);
                    expected.checksum = state;
                }
                Set::Gso(gso, size) => {
                    packet.set_gso(gso, size);
                    expected.gso = (gso, size);
                }
                Set::Mark(mark) => {
                    packet.mark = mark;
                    expected.mark = mark;
                }
                Set::Wire(wire) => {
                    packet.wire = wire;
                    expected.wire = wire;
                }
                Set::Received(time) => {
                    packet.set_received_at(Time::from_nanos(time));
                    expected.received = time;
                }
                Set::Layers(layers) => {
                    packet.set_layers(&layers);
                    // The packet's own field is used for a tag aside.
                    let vlan_tci = if expected.aside.is_none() { layers.vlan_tci } else { 0 };
                    expected.layers = Layers { vlan_tci, ..layers };
                }
                Set::Aside(tag) => {
                    packet.set_vlan_aside(tag);
                    (expected.aside, expected.layers) = (tag, Layers::default());
                }
                Set::PullFront => {
                    if packet.pull_front(1) {
                        expected.length -= 1;
                        expected.layers = Layers::default();
                    }
                }
                Set::CopyToAnother => {
                    let (was, bytes) = (see(&other), other.data().as_ptr());
                    other.copy_metadata(&packet);
                    let copied = Seen { chained: was.chained, length: was.length, ..expected.clone() };
                    prop_assert_eq!(see(&other), copied);
                    prop_assert_eq!(other.data().as_ptr(), bytes);
                }
            }
            prop_assert_eq!(see(&packet), expected.clone());
        }
        pool.free(packet);
        pool.free(other);
        prop_assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn age_survives_the_wrap(received in any::<u64>(), age in 0..1_u64 << 48) {
        let mut pool = pool();
        let mut packet = pool.packet(b"x").unwrap();
        packet.set_received_at(Time::from_nanos(received));
        prop_assert_eq!(packet.received_at().as_nanos(), received & ((1 << 48) - 1));
        // A later clock value, wrapped or not.
        prop_assert_eq!(packet.age(Time::from_nanos(received.wrapping_add(age))), age);
        pool.free(packet);
    }

    #[test]
    fn parse_keeps_its_result(frame in frame()) {
        let mut pool = pool();
        let mut packet = pool.packet(&frame).unwrap();
        packet.set_checksum(ChecksumState::Partial);
        packet.set_gso(GsoType::Udp, 1200);
        packet.set_rss(7, RssType::Ipv6Udp);
        let found = packet.parse();
        prop_assert_eq!(packet.layers(), Layers { protocol: 0, ..found });
        prop_assert_eq!(packet.checksum(), ChecksumState::Partial);
        prop_assert_eq!((packet.gso_type(), packet.gso_size()), (GsoType::Udp, 1200));
        prop_assert_eq!((packet.rss_hash, packet.rss_type()), (7, RssType::Ipv6Udp));
        pool.free(packet);
    }
}

#[test]
fn age_holds_for_three_days() {
    let mut pool = pool();
    let mut packet = pool.packet(b"x").unwrap();
    let start = Time::from_nanos(1000 * DAY_NS);
    packet.set_received_at(start);
    assert_eq!(packet.age(start), 0);
    assert_eq!(packet.age(start + 3 * DAY_NS), 3 * DAY_NS);
    pool.free(packet);
}

#[test]
fn headers_too_far_away_are_not_found() {
    let mut pool = pool();
    let mut packet = pool.packet(b"x").unwrap();
    let far = Layers { l3_offset: 14, l4_offset: 14 + 1024, ..Layers::default() };
    packet.set_layers(&far);
    assert_eq!(packet.layers().l4_offset, 0);
    packet.set_layers(&Layers { l4_offset: 14 + 1020, ..far });
    assert_eq!(packet.layers().l4_offset, 14 + 1020);
    pool.free(packet);
}

/// A packet in buffers of these lengths, with the rest in one more.
fn pieces(pool: &mut Pool, frame: &[u8], lengths: &[usize]) -> Descriptor {
    let (mut at, mut packet) = (0_usize, None::<Descriptor>);
    for &length in lengths.iter().chain([&usize::MAX]) {
        let end = frame.len().min(at.saturating_add(length));
        let piece = pool.packet(&frame[std::mem::replace(&mut at, end)..end]).unwrap();
        match &mut packet {
            None => packet = Some(piece),
            Some(packet) => packet.append(piece).unwrap(),
        }
    }
    packet.unwrap()
}

fn bytes(packet: &Descriptor) -> Vec<u8> {
    packet.segments().flatten().copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn gathering_loses_no_bytes(
        lengths in prop::collection::vec(0_usize..80, 1..12),
        total in 0_usize..700,
        counts in prop::collection::vec(0_u16..400, 1..4),
        headroom in prop::sample::select(vec![0, 64]),
    ) {
        let config = PoolConfig { buffers: 64, buffer_size: 256, headroom };
        let mut pool = Pool::new(&config, 0).unwrap().0;
        let frame: Vec<u8> = (0..total).map(|place| place as u8).collect();
        let mut packet = pieces(&mut pool, &frame, &lengths);
        packet.mark = 7;
        for count in counts {
            let (before, front) = (packet.data().len(), usize::from(packet.headroom()));
            packet.gather_front(count);
            prop_assert_eq!(bytes(&packet), &frame[..]);
            prop_assert_eq!((packet.length() as usize, packet.mark), (total, 7));
            let gathered = packet.data().len();
            prop_assert!(gathered >= before);
            // It moves forward only as far as needed.
            prop_assert!(front - usize::from(packet.headroom()) <= gathered - before);
            // If the first buffer has room for everything: everything.
            if count <= 256 {
                prop_assert!(gathered >= total.min(count.into()));
            }
        }
        pool.free(packet);
        prop_assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn headers_across_buffers_are_read(
        frame in frame(),
        lengths in prop::collection::vec(1_usize..40, 0..8),
    ) {
        let mut pool = pool();
        let first = usize::from(headers::parse(&frame).l3_offset).max(1);
        let lengths: Vec<_> = [first].into_iter().chain(lengths).collect();
        let mut whole = pool.packet(&frame).unwrap();
        let mut cut = pieces(&mut pool, &frame, &lengths);
        prop_assert_eq!(cut.ports(), whole.ports());
        let (found, expected) = (cut.parse(), whole.parse());
        prop_assert_eq!(bytes(&cut), frame);
        prop_assert_eq!((cut.layers(), found), (whole.layers(), expected));
        let v4 = |packet: &Descriptor| packet.ipv4().map(|ip| (ip.source(), ip.destination()));
        prop_assert_eq!(v4(&cut), v4(&whole));
        let v6 = |packet: &Descriptor| packet.ipv6().map(|ip| (ip.source(), ip.destination()));
        prop_assert_eq!(v6(&cut), v6(&whole));
        let tcp = |packet: &Descriptor| packet.tcp().map(|tcp| tcp.destination_port());
        prop_assert_eq!(tcp(&cut), tcp(&whole));
        let udp = |packet: &Descriptor| packet.udp().map(|udp| udp.destination_port());
        prop_assert_eq!(udp(&cut), udp(&whole));
        pool.free(cut);
        pool.free(whole);
        prop_assert_eq!(pool.outstanding(), 0);
    }
}

/// A well-formed packet moves only its headers to the first buffer: a split after TCP stays in
/// place.
#[test]
fn no_payload_is_moved() {
    let mut pool = pool();
    let mut frame = vec![0; 34 + 8 + 100];
    frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    frame[16..18].copy_from_slice(&128_u16.to_be_bytes());
    frame[23] = 17;
    frame[38..40].copy_from_slice(&108_u16.to_be_bytes());
    for first in [14, 20, 34, 36, 38, 41, 42] {
        let mut packet = pieces(&mut pool, &frame, &[first, 1, 3]);
        packet.parse();
        assert_eq!((packet.packet_type(), packet.data().len()), (PacketType::IPV4_UDP, 42));
        pool.free(packet);
    }
}

/// Lengths of a chained packet are judged against all of it.
#[test]
fn chained_packets_are_not_malformed() {
    let mut pool = pool();
    let mut frame = vec![0; 34 + 1000];
    frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    frame[16..18].copy_from_slice(&1020_u16.to_be_bytes());
    frame[23] = 17;
    frame[38..40].copy_from_slice(&1000_u16.to_be_bytes());
    let mut packet = pool.packet(&frame).unwrap();
    assert!(packet.is_chained());
    assert_eq!(packet.parse(), headers::parse(&frame));
    assert_eq!(packet.packet_type(), PacketType::IPV4_UDP);
    pool.free(packet);
    // One byte shorter than the IP header says.
    let mut packet = pool.packet(&frame[..frame.len() - 1]).unwrap();
    assert_eq!(packet.parse().packet_type, PacketType::IPV4_UDP.with_malformed());
    pool.free(packet);
}

/// VXLAN is 50 bytes before an Ethernet frame; here only the offset matters.
#[test]
fn inner_header_offset_follows_changes_in_front() {
    let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    let mut packet = pool.packet(&[0; 200]).unwrap();
    packet.set_inner_l3(64);
    assert!(packet.push_front(4));
    assert_eq!(packet.inner_l3(), Some(68));
    packet.set_vlan_aside(Some(VlanTag { tci: 5, service: false }));
    assert!(packet.pull_front(8));
    packet.set_vlan_aside(None);
    assert_eq!(packet.inner_l3(), Some(60));
    // Removed with the bytes before it.
    assert!(packet.pull_front(61));
    assert_eq!(packet.inner_l3(), None);
    packet.set_inner_l3(20);
    packet.forget_inner_l3();
    assert_eq!(packet.inner_l3(), None);
    pool.free(packet);
}

#[test]
fn metadata_of_two_packets_is_compared() {
    let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    let frame = [0; 60];
    type Change = fn(&mut Descriptor);
    let changes: [(Change, bool); 11] = [
        (|packet| packet.mark = 7, false),
        (|packet| packet.wire = 3, false),
        (|packet| packet.set_tx_queue(2), false),
        (|packet| packet.set_rss(9, RssType::Ipv4), false),
        (|packet| packet.set_rss_function(RssFunction::Jenkins), false),
        (|packet| packet.set_checksum(ChecksumState::Good), false),
        (|packet| packet.set_gso(GsoType::Tcp4, 0), false),
        (|packet| packet.set_vlan_aside(Some(VlanTag { tci: 0, service: false })), false),
        (|packet| packet.set_inner_l3(0), false),
        // Without a meaning: a hash over nothing, and a time.
        (|packet| packet.set_rss_hash(9), true),
        (|packet| packet.set_received_at(Time::from_nanos(99)), true),
    ];
    for (place, (change, expected)) in changes.into_iter().enumerate() {
        let [mut a, mut b] = [(); 2].map(|()| pool.packet(&frame).unwrap());
        assert!(a.knows_the_same(&b));
        change(&mut b);
        assert_eq!((a.knows_the_same(&b), b.knows_the_same(&a)), (expected, expected), "{place}");
        change(&mut a);
        assert!(a.knows_the_same(&b), "{place}");
        pool.free(a);
        pool.free(b);
    }
}

/// UDP over IPv4 with this total length and UDP length, in 60 bytes.
fn udp(total: u16, length: u16) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[23] = 17;
    frame[38..40].copy_from_slice(&length.to_be_bytes());
    frame
}

#[test]
fn truncated_packets_are_readable_and_inconsistent_ones_are_not() {
    for buffer_size in [65, 2048] {
        let config = PoolConfig { buffer_size, ..PoolConfig::default() };
        let (mut pool, _) = Pool::new(&config, 0).unwrap();
        let mut look = |frame: &[u8]| {
            let mut packet = pool.packet(frame).unwrap();
            let layers = packet.parse();
            let found = (layers.packet_type.is_malformed(), packet.is_readable(&layers));
            pool.free(packet);
            found
        };
        assert_eq!(look(&udp(46, 26)), (false, true));
        // The end is missing, for a short packet and for a long one.
        assert_eq!(look(&udp(47, 27)), (true, true));
        assert_eq!(look(&udp(60_000, 59_980)), (true, true));
        // More than the IP packet has, less than a header, a truncated header.
        assert_eq!(look(&udp(1000, 981)), (true, false));
        assert_eq!(look(&udp(1000, 7)), (true, false));
        assert_eq!(look(&udp(1000, 980)[..41]), (true, false));
        assert_eq!(look(&udp(19, 8)), (true, false));
    }
}
