//! The classifier against its rules read from the top.

mod image;
mod wide;

use super::{Address, BURST, Classifier, Key, NONE};
use crate::hidden::Hidden;
use crate::matching::{FiveTuple, PortRange, Prefix, Protocol, Tuple};
use image::{OfWords, Written};
use proptest::prelude::*;
use std::net::IpAddr;

/// Addresses close together, so that prefixes overlap and packets match.
fn address(v6: bool) -> impl Strategy<Value = IpAddr> {
    (any::<u32>(), 0..4_u8).prop_map(move |(bits, how)| {
        let bits = match how {
            0 => bits,
            1 => bits & 0x0101_0303,
            2 => bits & 0x8000_0001,
            _ => bits % 8,
        };
        if !v6 {
            return IpAddr::from(bits.to_be_bytes());
        }
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&bits.to_be_bytes());
        bytes[12..].copy_from_slice(&bits.to_le_bytes());
        IpAddr::from(bytes)
    })
}

fn prefix(v6: bool) -> impl Strategy<Value = Option<Prefix>> {
    let most = if v6 { 128 } else { 32_u8 };
    let lengths = prop_oneof![0..=most, Just(most), Just(8), Just(0)];
    let prefix = (address(v6), lengths).prop_map(|(address, length)| Prefix::new(address, length));
    prop_oneof![1 => Just(None), 3 => prefix]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![any::<u16>(), 0..8_u16, Just(65_535)]
}

fn ports() -> impl Strategy<Value = PortRange> {
    prop_oneof![
        Just(PortRange::ANY),
        port().prop_map(PortRange::one),
        (port(), port()).prop_map(|(a, b)| PortRange::new(a.min(b), a.max(b)).unwrap()),
    ]
}

fn protocol() -> impl Strategy<Value = u8> {
    prop_oneof![Just(6), Just(17), Just(1), any::<u8>()]
}

fn tuple() -> impl Strategy<Value = FiveTuple> {
    any::<bool>().prop_flat_map(|v6| {
        let protocol = proptest::option::of(protocol().prop_map(Protocol));
        (protocol, prefix(v6), prefix(v6), ports(), ports()).prop_map(
            |(protocol, source, destination, source_ports, destination_ports)| FiveTuple {
                protocol,
                source,
                destination,
                source_ports,
                destination_ports,
            },
        )
    })
}

fn packet() -> impl Strategy<Value = Tuple> {
    any::<bool>().prop_flat_map(|v6| {
        let ports = proptest::option::of((port(), port()));
        (address(v6), address(v6), protocol(), ports).prop_map(
            |(source, destination, protocol, ports)| Tuple {
                source,
                destination,
                protocol: Protocol(protocol),
                ports,
                hidden: Hidden::Nothing,
                authenticated: false,
            },
        )
    })
}

/// A packet at a corner of a rule: its first or last addresses and ports.
fn inside(rule: &FiveTuple, mut packet: Tuple, last: bool) -> Tuple {
    let corner = |prefix: Option<Prefix>, address: IpAddr| match prefix {
        None => address,
        Some(prefix) => match prefix.address() {
            IpAddr::V4(first) => {
                let host = u32::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
                IpAddr::V4((u32::from(first) | if last { host } else { 0 }).into())
            }
            IpAddr::V6(first) => {
                let host = u128::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
                IpAddr::V6((u128::from(first) | if last { host } else { 0 }).into())
            }
        },
    };
    packet.source = corner(rule.source, packet.source);
    packet.destination = corner(rule.destination, packet.destination);
    packet.protocol = rule.protocol.unwrap_or(packet.protocol);
    let pick = |range: PortRange| if last { range.high() } else { range.low() };
    packet.ports = Some((pick(rule.source_ports), pick(rule.destination_ports)));
    packet
}

fn linear(rules: &[FiveTuple], packet: &Tuple, from: usize) -> u16 {
    let found = rules.iter().skip(from).position(|rule| rule.matches(packet));
    found.map_or(NONE, |place| (place + from) as u16)
}

fn build<A: Address>(rules: &[FiveTuple]) -> Classifier<A> {
    Classifier::build(rules.iter().enumerate().map(|(place, rule)| (place as u16, rule)))
}

fn agree<A: OfWords>(classifier: &Classifier<A>, rules: &[FiveTuple], packets: &[Tuple]) {
    let (mut keys, mut of_family) = (Vec::new(), Vec::new());
    for packet in packets {
        let Tuple { source, destination, protocol, ports, .. } = *packet;
        if let Some(key) = Key::<A>::new(source, destination, protocol.0, ports) {
            keys.push(key);
            of_family.push(packet);
        }
    }
    let written = Written::of(classifier);
    for (keys, packets) in keys.chunks(BURST).zip(of_family.chunks(BURST)) {
        let mut places = [7; BURST];
        classifier.classify(keys, &mut places);
        for ((key, packet), &place) in keys.iter().zip(packets).zip(&places) {
            assert_eq!(place, linear(rules, packet, 0), "{packet:?} in {rules:#?}");
            for from in [0, 1, rules.len() / 2, rules.len()] {
                let found = classifier.find_from(key, from as u16);
                assert_eq!(found, linear(rules, packet, from), "from {from}: {packet:?}");
                assert_eq!(written.find(key, from as u16), found, "from {from}: {packet:?}");
            }
        }
    }
}

/// Packets from anywhere, and two from each rule.
fn packets(rules: &[FiveTuple], anywhere: &[Tuple]) -> Vec<Tuple> {
    let corners = rules
        .iter()
        .zip(anywhere.iter().cycle())
        .flat_map(|(rule, &packet)| [inside(rule, packet, false), inside(rule, packet, true)]);
    anywhere.iter().copied().chain(corners).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn the_compiled_form_agrees_with_the_list(
        rules in proptest::collection::vec(tuple(), 0..160),
        anywhere in proptest::collection::vec(packet(), 1..100),
    ) {
        let packets = packets(&rules, &anywhere);
        agree(&build::<u64>(&rules), &rules, &packets);
        agree(&build::<[u64; 4]>(&rules), &rules, &packets);
    }

    #[test]
    fn changes_in_place_agree_with_the_list(
        mut rules in proptest::collection::vec(tuple(), 0..40),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), tuple(), 0..3_u8), 1..80),
        anywhere in proptest::collection::vec(packet(), 1..40),
    ) {
        let mut v4 = build::<u64>(&rules);
        let mut v6 = build::<[u64; 4]>(&rules);
        for (step, (place, rule, what)) in changes.into_iter().enumerate() {
            if what == 0 && !rules.is_empty() {
                let place = place.index(rules.len());
                let gone = rules.remove(place);
                v4.remove(place as u16, &gone);
                v6.remove(place as u16, &gone);
                v4.close_gap(place as u16);
                v6.close_gap(place as u16);
            } else {
                let place = place.index(rules.len() + 1);
                rules.insert(place, rule);
                v4.make_room(place as u16);
                v6.make_room(place as u16);
                v4.insert(place as u16, &rule);
                v6.insert(place as u16, &rule);
            }
            let families = |v4: bool| {
                rules.iter().filter(|rule| rule.is_ipv4().is_none_or(|is| is == v4)).count()
            };
            prop_assert_eq!(v4.len(), families(true));
            prop_assert_eq!(v6.len(), families(false));
            if step % 8 == 0 {
                let packets = packets(&rules, &anywhere);
                agree(&v4, &rules, &packets);
                agree(&v6, &rules, &packets);
            }
        }
        let packets = packets(&rules, &anywhere);
        agree(&v4, &rules, &packets);
        agree(&v6, &rules, &packets);
    }
}

/// A generator of numbers for the larger sets.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }
}

fn random_rule(random: &mut Random) -> FiveTuple {
    let mut prefix = |shortest: u64| {
        let length = shortest + random.below(33 - shortest);
        Prefix::new((random.next() as u32).to_be_bytes(), length as u8)
    };
    let (source, destination) = (prefix(8), prefix(16));
    let low = random.next() as u16;
    let destination_ports = match random.below(3) {
        0 => PortRange::ANY,
        1 => PortRange::one(low),
        _ => PortRange::new(low, low.saturating_add(1000)).unwrap(),
    };
    let protocol = Some([Protocol::TCP, Protocol::UDP][random.below(2) as usize]);
    FiveTuple { protocol, source, destination, destination_ports, ..FiveTuple::default() }
}

#[test]
fn large_sets_agree_and_stay_few_tables() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for count in [1, 16, 256, 4096] {
        let mut rules: Vec<_> = (0..count).map(|_| random_rule(&mut random)).collect();
        // The last rule of firewalls.
        rules.push(FiveTuple::default());
        let classifier = build::<u64>(&rules);
        let anywhere: Vec<_> = (0..100)
            .map(|_| Tuple {
                source: IpAddr::from((random.next() as u32).to_be_bytes()),
                destination: IpAddr::from((random.next() as u32).to_be_bytes()),
                protocol: Protocol::TCP,
                ports: Some((random.next() as u16, random.next() as u16)),
                hidden: Hidden::Nothing,
                authenticated: false,
            })
            .collect();
        let of_rules = rules.iter().step_by(rules.len() / 100 + 1);
        let packets = packets(&of_rules.copied().collect::<Vec<_>>(), &anywhere);
        agree(&classifier, &rules, &packets);
        assert!(classifier.tables() <= 3, "{count}: {} tables", classifier.tables());
        assert!(classifier.longest_slot() <= 8, "{count}: {}", classifier.longest_slot());
    }
}

#[test]
fn rules_that_fix_nothing_agree() {
    // All in one slot, all different: the worst case, and still right.
    let rules: Vec<_> = (0..300_u16)
        .map(|n| FiveTuple {
            source_ports: PortRange::new(n, 65_535 - n).unwrap(),
            ..FiveTuple::default()
        })
        .rev()
        .collect();
    let packets: Vec<_> = (0..400_u16)
        .map(|n| Tuple {
            source: IpAddr::from([1, 2, 3, 4]),
            destination: IpAddr::from([5, 6, 7, 8]),
            protocol: Protocol::UDP,
            ports: Some((n, 80)),
            hidden: Hidden::Nothing,
            authenticated: false,
        })
        .collect();
    agree(&build::<u64>(&rules), &rules, &packets);
}

#[test]
fn a_packet_without_ports_matches_no_rule_with_ports() {
    let rule =
        FiveTuple { destination_ports: PortRange::new(0, 65_534).unwrap(), ..<_>::default() };
    let key = |ports| Key::<u64>::new([1; 4].into(), [2; 4].into(), 6, ports).unwrap();
    let classifier = build::<u64>(&[rule]);
    assert_eq!(classifier.find_from(&key(None), 0), NONE);
    assert_eq!(classifier.find_from(&key(Some((0, 0))), 0), 0);
    assert_eq!(classifier.find_from(&key(Some((0, 65_535))), 0), NONE);
}

#[test]
fn compiled_rules_are_freed_with_the_last_rule() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut rules: Vec<_> = (0..256).map(|_| random_rule(&mut random)).collect();
    let mut classifier = build::<u64>(&rules);
    assert!(classifier.tables() != 0 && classifier.longest_slot() != 0);
    while let Some(rule) = rules.pop() {
        assert!(!classifier.is_empty());
        classifier.remove(rules.len() as u16, &rule);
        // The rest of the list is found as before.
        if rules.len() % 64 == 0 {
            agree(&classifier, &rules, &packets(&rules, &[inside(&rule, NOWHERE, false)]));
        }
    }
    assert_eq!((classifier.len(), classifier.tables(), classifier.in_vectors()), (0, 0, 0));
    assert!(classifier.is_empty() && classifier.longest_slot() == 0);
}

const NOWHERE: Tuple = Tuple {
    source: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
    destination: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
    protocol: Protocol::TCP,
    ports: None,
    hidden: Hidden::Nothing,
    authenticated: false,
};
