//! Packets that a host reads after the filters passed them.
//!
//! This host follows RFC 8200 and RFC 791 and shares no code with the card: any number of headers
//! and VLAN tags, reassembled fragments, routes followed to their end.

use crate::frames::hidden::{Outcome, outcome, reasons, rules};
use crate::host::written::{ELSEWHERE, Extension, Pieces, Written, address, written};
use crate::host::{Host, Reached};
use picnic_core::function::Function;
use picnic_core::guard::Guard;
use picnic_core::ledger::{DropReason, Ledger, Stage};
use picnic_core::out::{Doors, Onward, Out};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_engine::trial::conformance;
use picnic_filter::code::FilterCode;
use picnic_filter::filters::FilterChange;
use picnic_filter::matching::Tuple;
use picnic_filter::{
    Action, Base, Callback, CallbackVerdict, Direction, Filter, Filters, FiveTuple, Hidden, Match,
    Pattern, Place, PortRange, Prefix, Protocol, Unreadable,
};
use proptest::prelude::*;
use std::sync::Arc;

struct Card {
    filters: Filters,
    head: Box<dyn Function>,
    doors: Doors,
}

struct Through;

impl Onward for Through {
    fn carry_on(&mut self, _: Time, _: &mut Burst, _: &mut Doors) {}
}

impl Card {
    fn new(filters: impl IntoIterator<Item = Filter>) -> Self {
        Self::with_buffers(PoolConfig::default().buffer_size, filters)
    }

    fn with_buffers(buffer_size: u32, filters: impl IntoIterator<Item = Filter>) -> Self {
        let card_filters = Filters::new(2);
        let add = |filter| FilterChange::Add(filter, FilterCode::default());
        card_filters.apply(filters.into_iter().map(add).collect()).unwrap();
        let head = card_filters.function(Stage::Rx).unwrap();
        let config = PoolConfig { buffers: 128, buffer_size, ..PoolConfig::default() };
        let (pool, _) = Pool::new(&config, 0).unwrap();
        let doors = Doors::new(pool, Vec::new(), 1, 64, Arc::new(Ledger::new(0)));
        Card { filters: card_filters, head, doors }
    }

    /// The frames that passed.
    fn run(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut through = Vec::new();
        for frames in frames.chunks(64) {
            let mut burst = Burst::new();
            for frame in frames {
                burst.push(self.doors.pool.packet(frame).unwrap()).unwrap();
            }
            let mut rest = Through;
            let mut out = Out::new(Time::ZERO, Stage::Rx, &mut self.doors, &mut rest);
            self.head.process(Time::ZERO, &mut burst, &mut out);
            out.finish();
            for packet in burst.drain() {
                through.push(packet.data().to_vec());
                self.doors.pool.free(packet);
            }
        }
        through
    }

    fn unreadable(&self) -> u64 {
        self.doors.ledger.card.drops.get(DropReason::Unreadable, Stage::Rx)
    }
}

fn rule() -> impl Strategy<Value = (FiveTuple, bool)> {
    let family = prop_oneof![Just(None), Just(Some(false)), Just(Some(true))];
    let number = || proptest::option::of(prop_oneof![1..4_u8, Just(ELSEWHERE)]);
    let ports = || {
        prop_oneof![
            2 => Just(PortRange::ANY),
            1 => (5..9_u16).prop_map(PortRange::one),
            1 => (5..9_u16).prop_map(|high| PortRange::new(5, high).unwrap()),
        ]
    };
    let protocol = prop_oneof![Just(None), Just(Some(6)), Just(Some(17))];
    (family, number(), number(), ports(), ports(), protocol, prop::bool::weighted(0.6)).prop_map(
        |(family, source, destination, source_ports, destination_ports, protocol, drops)| {
            let prefix = |number: Option<u8>| {
                let v6 = family?;
                Prefix::new(address(v6, number?), if v6 { 128 } else { 32 })
            };
            let tuple = FiveTuple {
                protocol: protocol.map(Protocol),
                source: prefix(source),
                destination: prefix(destination),
                source_ports,
                destination_ports,
            };
            (tuple, drops)
        },
    )
}

fn filter((tuple, drops): &(FiveTuple, bool)) -> Filter {
    Filter::new("rule", *tuple, if *drops { Action::Drop } else { Action::Accept })
}

/// Whether the rules, read from the top, drop a packet that a host has read completely.
fn is_dropped(rules: &[(FiveTuple, bool)], reached: &Reached) -> bool {
    let tuple = Tuple {
        source: reached.source,
        destination: reached.destination,
        protocol: Protocol(reached.protocol),
        ports: Some(reached.ports),
        hidden: Hidden::Nothing,
        authenticated: false,
    };
    rules.iter().find(|(rule, _)| rule.matches(&tuple)).is_some_and(|(_, drops)| *drops)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// No host reassembles packets that passed the filters into one for a port that a rule drops.
    #[test]
    fn nothing_reaches_a_port_that_a_rule_drops(
        rules in proptest::collection::vec(rule(), 1..8),
        packets in proptest::collection::vec(written(), 1..8),
    ) {
        let mut card = Card::new(rules.iter().map(filter));
        let mut host = Host::default();
        for (number, packet) in packets.iter().enumerate() {
            for frame in card.run(&packet.frames(number as u16)) {
                if let Some(reached) = host.take(&frame) {
                    prop_assert!(!is_dropped(&rules, &reached), "{reached:?} of {packet:?}");
                }
            }
        }
    }

    /// Filters that accept unreadable packets stop only packets that they can read.
    #[test]
    fn packets_no_rule_surely_drops_are_accepted(
        rules in proptest::collection::vec(rule(), 1..8),
        packet in written(),
    ) {
        let accepting = |rule| filter(rule).with_unreadable(Unreadable::Accept);
        // In one buffer each, so that the card reads as much of it as this test.
        let mut card = Card::with_buffers(8192, rules.iter().map(accepting));
        for frame in packet.frames(1) {
            let passed = !card.run(std::slice::from_ref(&frame)).is_empty();
            let tuple = Tuple::of(&picnic_core::packet::layers::parse(&frame), &frame);
            let first = rules.iter().find(|(rule, _)| tuple.is_some_and(|tuple| rule.matches(&tuple)));
            prop_assert_eq!(passed, !first.is_some_and(|(_, drops)| *drops));
        }
        prop_assert_eq!(card.unreadable(), 0);
    }
}

/// Buffer boundaries hide nothing.
#[test]
fn a_packet_in_several_buffers_is_judged_as_in_one() {
    let to = |port, action| {
        let destination_ports = PortRange::new(port, port).unwrap();
        let any = FiveTuple {
            protocol: None,
            source: None,
            destination: None,
            source_ports: PortRange::ANY,
            destination_ports,
        };
        Filter::new(format!("to-{port}"), any, action)
    };
    let build = || {
        let rules = [to(80, Action::Drop), to(53, Action::Mark(7)), to(4789, Action::Steer(1))];
        let filters = Filters::new(2);
        let add = |filter| FilterChange::Add(filter, FilterCode::default());
        filters.apply(rules.into_iter().map(add).collect()).unwrap();
        filters.function(Stage::Rx).unwrap()
    };
    conformance::of_pieces(build, &BuildContext::default()).unwrap();
}

fn udp(v6: bool) -> Written {
    Written {
        tags: Vec::new(),
        v6,
        source: 1,
        destination: 2,
        protocol: 17,
        ports: (5, 7),
        before: Vec::new(),
        behind: Vec::new(),
        pieces: None,
        options: 0,
        payload: [0; 16],
    }
}

fn options(count: usize) -> Vec<Extension> {
    vec![Extension { kind: 60, units: 0, left: false }; count]
}

fn kind(kind: u8) -> Vec<Extension> {
    vec![Extension { kind, units: 0, left: false }]
}

/// Every known way to hide a port: a host delivers each, the filters none.
#[test]
fn every_known_way_to_hide_a_port_is_closed() {
    let v6 = || udp(true);
    let pieces = |cuts: &[usize]| {
        Some(Pieces { cuts: cuts.into(), claims: None, overlaps: false, order: 0 })
    };
    let routed = vec![Extension { kind: 43, units: 0, left: true }];
    let ways = [
        ("nine options headers", Written { before: options(9), ..v6() }),
        ("twelve options headers", Written { before: options(12), ..v6() }),
        (
            "a fragment header as ninth",
            Written { before: options(8), pieces: pieces(&[1]), ..v6() },
        ),
        (
            "options of 1000 bytes",
            Written { before: vec![Extension { kind: 60, units: 130, left: false }], ..v6() },
        ),
        ("fragments", Written { pieces: pieces(&[2]), ..v6() }),
        (
            "a first fragment of nothing but options",
            Written { behind: options(2), pieces: pieces(&[1]), ..v6() },
        ),
        (
            "options after the fragment header",
            Written { behind: options(1), pieces: pieces(&[3]), ..v6() },
        ),
        (
            "later fragments that claim to be ICMPv6",
            Written {
                behind: options(1),
                pieces: Some(Pieces { cuts: vec![1], claims: Some(58), overlaps: false, order: 0 }),
                ..v6()
            },
        ),
        ("a route to go on by", Written { before: routed.clone(), ..v6() }),
        (
            "a route after a fragment header",
            Written { behind: routed, pieces: pieces(&[2]), ..v6() },
        ),
        ("a mobility header", Written { before: kind(135), ..v6() }),
        ("a Shim6 header", Written { before: kind(140), ..v6() }),
        ("three tags", Written { tags: vec![0x8100; 3], ..v6() }),
        ("four tags, IPv4", Written { tags: vec![0x88a8, 0x8100, 0x8100, 0x8100], ..udp(false) }),
        ("fragments, IPv4", Written { pieces: pieces(&[1]), ..udp(false) }),
        ("a source route", Written { options: 2, ..udp(false) }),
    ];
    let seven = FiveTuple {
        protocol: Some(Protocol::UDP),
        destination_ports: PortRange::one(7),
        ..FiveTuple::default()
    };
    for (way, packet) in ways {
        // A route alone hides only the final destination.
        let is_route = packet.reached() != address(packet.v6, packet.destination);
        let destination = Prefix::new(packet.reached(), if packet.v6 { 128 } else { 32 });
        let seven = FiveTuple { destination: destination.filter(|_| is_route), ..seven };
        let frames = packet.frames(1);
        let mut host = Host::default();
        let reached: Vec<_> = frames.iter().flat_map(|frame| host.take(frame)).collect();
        assert_eq!(reached.len(), 1, "{way}: a host takes it");
        assert_eq!((reached[0].protocol, reached[0].ports.1), (17, 7), "{way}");
        let accepting = Filter::new("seven", seven, Action::Drop);
        let mut card = Card::new([accepting.clone().with_unreadable(Unreadable::Accept)]);
        assert_eq!(card.run(&frames), frames, "{way}: accepted if told to");
        let mut card = Card::new([accepting]);
        let mut host = Host::default();
        let through = card.run(&frames);
        assert_eq!(through.iter().flat_map(|frame| host.take(frame)).count(), 0, "{way}");
        let dropped = (frames.len() - through.len()) as u64;
        assert!(dropped != 0, "{way}");
        assert_eq!(
            (card.unreadable(), card.filters.list()[0].unreadable_packets),
            (dropped, dropped)
        );
        assert_eq!(card.filters.list()[0].packets, 0, "{way}: it did not match for certain");
    }
}

/// Readable packets are decided; others are stopped by a rule that could match, or accepted.
#[test]
fn every_protocol_is_judged_for_every_reason_to_hide_a_part() {
    let reasons = reasons();
    let frames: Vec<_> = reasons.iter().map(|reason| reason.frame.clone()).collect();
    let config = PoolConfig { buffers: 64, ..PoolConfig::default() };
    let (mut pool, _) = Pool::new(&config, 0).unwrap();
    let mut seen = [0; 3];
    for rule in rules() {
        for unreadable in [Unreadable::Drop, Unreadable::Accept] {
            let rule = rule.clone().with_unreadable(unreadable);
            // At the driver one by one, at the card in bursts of all kinds.
            let filters = Filters::new(1);
            filters.add(rule.clone().on(Direction::Tx).at(Place::Driver)).unwrap();
            let mut screen = filters.screen(0).unwrap();
            assert!(screen.begin());
            let (mut through, mut stopped) = (Vec::new(), 0);
            for reason in &reasons {
                let expected = outcome(reason, &rule);
                let mut packet = pool.packet(&reason.frame).unwrap();
                let found = match screen.refuses(&mut packet) {
                    None => Outcome::Passes,
                    Some(DropReason::Unreadable) => Outcome::Unreadable,
                    Some(_) => Outcome::Filtered,
                };
                pool.free(packet);
                assert_eq!(found, expected, "{} by {rule:?}", reason.name);
                seen[expected as usize] += 1;
                stopped += u64::from(expected == Outcome::Unreadable);
                if expected == Outcome::Passes {
                    through.push(reason.frame.clone());
                }
            }
            let mut card = Card::new([rule.clone()]);
            assert!(card.run(&frames) == through, "{rule:?}");
            assert_eq!(card.unreadable(), stopped, "{rule:?}");
        }
    }
    assert!(seen.iter().all(|&count| count > 5_000), "{seen:?}");
}

/// After a header that is not parsed, a route may continue to another host; after a parsed one, it
/// cannot.
#[test]
fn routes_after_any_header_hide_the_destination() {
    let routed = Extension { kind: 43, units: 0, left: true };
    let kinds = [0, 43, 51, 60, 135, 139, 140].into_iter();
    let counts = kinds.flat_map(|kind| (1..=8).map(move |count| (kind, count)));
    for ((kind, count), units) in counts.flat_map(|both| [0, 1, 3].map(|units| (both, units))) {
        let around = vec![Extension { kind, units, left: false }; count];
        let before = [&*around, std::slice::from_ref(&routed)].concat();
        let frames = Written { before, ..udp(true) }.frames(1);
        let reached = Host::default().take(&frames[0]).unwrap();
        let Some(destination) = Prefix::new(reached.destination, 128) else { unreachable!() };
        let rule = FiveTuple { destination: Some(destination), ..FiveTuple::default() };
        let mut card = Card::new([Filter::new("rule", rule, Action::Drop)]);
        assert_eq!(card.run(&frames).len(), 0, "{count} of {kind}");
        // Without it, the destination is the packet's.
        let frames = Written { before: around, ..udp(true) }.frames(1);
        let mut card = Card::new([Filter::new("rule", rule, Action::Drop)]);
        assert_eq!(card.run(&frames).len(), 1, "{count} of {kind}");
    }
}

/// Readable packets are judged by their fields, for any headers.
#[test]
fn extra_headers_do_not_hide_readable_parts() {
    let seven = FiveTuple { destination_ports: PortRange::one(7), ..FiveTuple::default() };
    let mut eight = options(7);
    eight.extend(kind(43));
    for (headers, port, is_dropped) in [
        (options(8), 7, true),
        (options(8), 8, false),
        (eight.clone(), 7, true),
        (eight, 8, false),
        (kind(51), 7, true),
        (kind(51), 8, false),
        (kind(44), 8, false),
    ] {
        let packet = Written { before: headers, ports: (5, port), ..udp(true) };
        let mut card = Card::new([Filter::new("seven", seven, Action::Drop)]);
        let through = card.run(&packet.frames(1));
        assert_eq!((through.is_empty(), card.unreadable()), (is_dropped, 0), "{packet:?}");
    }
    // A filter for the authentication header sees it, in IPv6 as in IPv4.
    let ah = FiveTuple { protocol: Some(Protocol::AUTHENTICATION), ..FiveTuple::default() };
    let mut card = Card::new([Filter::new("ah", ah, Action::Drop)]);
    assert!(card.run(&Written { before: kind(51), ..udp(true) }.frames(1)).is_empty());
    assert!(card.run(&Written { protocol: 51, ..udp(false) }.frames(1)).is_empty());
    assert_eq!(card.filters.list()[0].packets, 2);
    for other in [0, 43, 44, 60] {
        assert_eq!(card.run(&Written { before: kind(other), ..udp(true) }.frames(1)).len(), 1);
    }
    // In IPv4 the bytes after it are not read: a filter for UDP could match, a filter for `ah`
    // comes first.
    let udp_filter = FiveTuple { protocol: Some(Protocol::UDP), ..FiveTuple::default() };
    let accepts = Filter::new("ah", ah, Action::Accept);
    let authenticated = Written { protocol: 51, ..udp(false) }.frames(1);
    let mut card = Card::new([accepts, Filter::new("udp", udp_filter, Action::Drop)]);
    assert_eq!(card.run(&authenticated).len(), 1);
    let mut card = Card::new([Filter::new("udp", udp_filter, Action::Drop)]);
    assert_eq!((card.run(&authenticated).len(), card.unreadable()), (0, 1));
}

/// Filters that stop nothing pass everything; so does a filter for the other family or protocol.
#[test]
fn only_possible_matches_stop_unreadable_packets() {
    let fragments = Written {
        pieces: Some(Pieces { cuts: vec![2], claims: None, overlaps: false, order: 0 }),
        ..udp(true)
    };
    let ports = FiveTuple { destination_ports: PortRange::one(7), ..FiveTuple::default() };
    let tcp = FiveTuple { protocol: Some(Protocol::TCP), ..ports };
    let elsewhere = FiveTuple { destination: Prefix::new(address(true, ELSEWHERE), 128), ..ports };
    let v4 = FiveTuple { destination: Prefix::new(address(false, 2), 0), ..ports };
    let mut filters = vec![
        Filter::new("tcp", tcp, Action::Drop),
        Filter::new("elsewhere", elsewhere, Action::Drop),
        Filter::new("v4", v4, Action::Drop),
    ];
    filters.extend(
        [Action::Accept, Action::Steer(1), Action::Mark(1), Action::Count]
            .map(|action| Filter::new("goes-on", ports, action)),
    );
    let frames = fragments.frames(1);
    assert_eq!(Card::new(filters.clone()).run(&frames), frames);
    // One header more than is parsed: only the family is known.
    let frames = Written { before: options(9), ..udp(true) }.frames(1);
    let mut card = Card::new(filters.clone());
    assert!(card.run(&frames).is_empty());
    assert_eq!(card.filters.list()[0].unreadable_packets, 1);
    assert_eq!(Card::new([filters[2].clone()]).run(&frames), frames);
    // An earlier filter that decides wins.
    let any = Filter::new("all", Match::Any, Action::Accept);
    assert_eq!(Card::new([any, filters[0].clone()]).run(&frames), frames);
}

#[test]
fn a_pattern_of_a_hidden_layer_could_match() {
    let pattern = Pattern::new(Base::L4, 2, &[0xff; 2], &[&[0, 7]]).unwrap();
    let filter = Filter::new("seven", pattern, Action::Drop);
    let hidden = Written { before: options(9), ..udp(true) }.frames(1);
    let mut card = Card::new([filter.clone()]);
    assert!(card.run(&hidden).is_empty());
    assert_eq!(card.unreadable(), 1);
    let mut card = Card::new([filter.clone().with_unreadable(Unreadable::Accept)]);
    assert_eq!(card.run(&hidden), hidden);
    assert_eq!(card.filters.list()[0].short_packets, 1);
    // A packet without that layer, and one with it.
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let other = Written { before: options(8), ports: (5, 8), ..udp(true) }.frames(1);
    let mut card = Card::new([filter]);
    assert_eq!(card.run(&[arp.clone(), other[0].clone()]), [arp, other[0].clone()]);
}

/// Callbacks may drop, so packets that they cannot judge do not pass.
#[test]
fn callbacks_stop_unreadable_packets() {
    let seven = FiveTuple { destination_ports: PortRange::one(7), ..FiveTuple::default() };
    let card_filters = |unreadable| {
        let card = Card::new([]);
        let filter = Filter::new("ask", seven, Action::Callback).with_unreadable(unreadable);
        card.filters.add_with(filter, Callback::new(|_| CallbackVerdict::Next)).unwrap();
        card
    };
    let hidden = Written { before: options(9), ..udp(true) }.frames(1);
    assert!(card_filters(Unreadable::Drop).run(&hidden).is_empty());
    assert_eq!(card_filters(Unreadable::Accept).run(&hidden), hidden);
}

/// The same on all four lists: rx and tx, at the card and at the driver.
#[test]
fn packets_from_the_host_are_judged_equally() {
    let config = PoolConfig { buffers: 64, ..PoolConfig::default() };
    let (mut pool, _) = Pool::new(&config, 0).unwrap();
    let filters = Filters::new(1);
    let seven = FiveTuple { destination_ports: PortRange::one(7), ..FiveTuple::default() };
    let filter = Filter::new("seven", seven, Action::Drop).on(Direction::Tx).at(Place::Driver);
    filters.add(filter).unwrap();
    let mut screen = filters.screen(0).unwrap();
    assert!(screen.begin());
    for (packet, reason) in [
        (Written { before: options(9), ..udp(true) }, Some(DropReason::Unreadable)),
        (udp(true), Some(DropReason::Filtered)),
        (Written { ports: (7, 5), ..udp(true) }, None),
    ] {
        let mut packet = pool.packet(&packet.frames(1)[0]).unwrap();
        assert_eq!(screen.refuses(&mut packet), reason);
        pool.free(packet);
    }
}
