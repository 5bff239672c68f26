//! Every protocol that a rule can name, against every way for a packet to hide a part of its
//! five-tuple: the frames and their fates. Shares no code with the card.

use picnic_filter::{Action, Filter, FiveTuple, PortRange, Prefix, Protocol, Unreadable};
use std::net::IpAddr;

/// The protocols of the packets. Protocols with ports use port 7.
const PROTOCOLS: [u8; 9] = [1, 2, 6, 17, 47, 50, 58, 89, 132];
/// The protocols of the rules.
const NAMED: [u8; 16] = [0, 1, 2, 6, 17, 43, 44, 47, 50, 51, 58, 60, 89, 132, 135, 140];
const AH: u8 = 51;

/// The fate of a packet under one rule that drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The rule does not match.
    Passes,
    /// It matches.
    Filtered,
    /// It could match.
    Unreadable,
}

/// A packet, and its readable part.
#[derive(Clone, Debug)]
pub(crate) struct Reason {
    pub(crate) name: String,
    pub(crate) frame: Vec<u8>,
    v6: bool,
    protocol: u8,
    /// Protocols of other headers that were read.
    also: Vec<u8>,
    reads: Reads,
}

#[derive(Clone, Copy, Debug)]
struct Reads {
    family: bool,
    source: bool,
    destination: bool,
    /// Whether the packet's protocol is final.
    protocol: bool,
    ports: bool,
}

const ALL: Reads =
    Reads { family: true, source: true, destination: true, protocol: true, ports: true };
const NO_PORTS: Reads = Reads { ports: false, ..ALL };
const NO_PROTOCOL: Reads = Reads { protocol: false, ports: false, ..ALL };
const NO_DESTINATION: Reads = Reads { destination: false, ..ALL };
/// With a source route.
const ON_A_ROUTE: Reads = Reads { destination: false, ..NO_PORTS };
const SOURCE_ONLY: Reads = Reads { destination: false, protocol: false, ports: false, ..ALL };
const FAMILY_ONLY: Reads = Reads { source: false, ..SOURCE_ONLY };
const NOTHING: Reads = Reads { family: false, ..FAMILY_ONLY };

fn address(v6: bool, last: u8) -> IpAddr {
    if v6 { IpAddr::from([last; 16]) } else { IpAddr::from([last; 4]) }
}

/// 28 bytes, ports first: enough for any protocol.
fn l4(protocol: u8) -> Vec<u8> {
    let mut bytes = vec![0; 28];
    bytes[..4].copy_from_slice(&[0, 5, 0, 7]);
    match protocol {
        6 => bytes[12] = 0x50,
        17 => bytes[5] = 28,
        _ => {}
    }
    bytes
}

fn ethernet(tags: usize, v6: bool) -> Vec<u8> {
    let mut frame = vec![0x12; 12];
    (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 0]));
    frame.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0] });
    frame
}

fn ipv4(tags: usize, protocol: u8, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(tags, false);
    let header = 20 + options.len();
    frame.extend([0x40 | (header / 4) as u8, 0]);
    frame.extend(((header + payload.len()) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol, 0, 0]);
    frame.extend([1, 1, 1, 1, 2, 2, 2, 2]);
    frame.extend(options);
    frame.extend(payload);
    frame
}

/// Headers by number: 43 has a segment left, 44 is the first of several fragments, 144 a later one.
fn ipv6(tags: usize, headers: &[u8], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let number = |header: u8| if header == 144 { 44 } else { header };
    let mut chain = Vec::new();
    for (index, &header) in headers.iter().enumerate() {
        let next = headers.get(index + 1).map_or(protocol, |&next| number(next));
        chain.extend(match header {
            43 => [next, 0, 4, 1, 0, 0, 0, 0],
            44 => [next, 0, 0, 1, 0, 0, 0, 9],
            144 => [next, 0, 0, 8, 0, 0, 0, 9],
            AH => [next, 2, 0, 0, 0, 0, 0, 0],
            _ => [next, 0, 1, 4, 0, 0, 0, 0],
        });
        chain.resize(chain.len() + if header == AH { 8 } else { 0 }, 0);
    }
    let mut frame = ethernet(tags, true);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(((chain.len() + payload.len()) as u16).to_be_bytes());
    frame.extend([headers.first().map_or(protocol, |&first| number(first)), 64]);
    frame.extend([1; 16]);
    frame.extend([2; 16]);
    frame.extend(chain);
    frame.extend(payload);
    frame
}

/// Every way to hide, with every protocol.
pub(crate) fn reasons() -> Vec<Reason> {
    let mut reasons = Vec::new();
    for protocol in PROTOCOLS {
        let payload = l4(protocol);
        let mut add = |name: &str, v6, also: &[u8], reads, frame| {
            let name = format!("{name}, protocol {protocol}, IPv{}", if v6 { 6 } else { 4 });
            reasons.push(Reason { name, frame, v6, protocol, also: also.to_vec(), reads });
        };
        for tags in 0..3 {
            let plain = ipv4(tags, protocol, 0, &[], &payload);
            add("plain", false, &[], ALL, plain);
            add("plain", true, &[], ALL, ipv6(tags, &[], protocol, &payload));
        }
        // Each of these, alone and after an authentication header.
        for front in [&[][..], &[AH], &[60, AH], &[AH, 60]] {
            let also: &[u8] = if front.contains(&AH) { &[AH] } else { &[] };
            let mut add = |name: &str, headers: &[u8], payload: &[u8], reads| {
                let also = [also, headers].concat();
                let also: Vec<_> =
                    also.into_iter().filter(|named| [AH, 135, 139, 140].contains(named)).collect();
                let frame = ipv6(0, &[front, headers].concat(), protocol, payload);
                add(&format!("{name} behind {front:?}"), true, &also, reads, frame);
            };
            add("nothing", &[], &payload, ALL);
            add("a header that is cut off", &[], &payload[..2], NO_PORTS);
            add("a first fragment", &[44], &payload, NO_PORTS);
            add("a later fragment", &[144], &payload, NO_PORTS);
            add("a fragment that names an authentication header", &[44, AH], &payload, SOURCE_ONLY);
            add("a fragment with options", &[44, 60], &payload, SOURCE_ONLY);
            add("a mobility header", &[135], &payload, NO_PROTOCOL);
            add("a HIP header", &[139], &payload, NO_PROTOCOL);
            add("a Shim6 header", &[140], &payload, NO_PROTOCOL);
            add("a mobility header of a fragment", &[44, 135], &payload, NO_PROTOCOL);
            add("nine headers", &[60; 9], &payload, SOURCE_ONLY);
            add("a route", &[43], &payload, NO_DESTINATION);
            add("a route of a first fragment", &[43, 44], &payload, ON_A_ROUTE);
            add("a route of a later fragment", &[43, 144], &payload, ON_A_ROUTE);
        }
        let route = [131, 7, 4, 9, 9, 9, 9, 0];
        let strict = [1, 137, 7, 4, 9, 9, 9, 9];
        add("a first fragment", false, &[], NO_PORTS, ipv4(0, protocol, 0x2000, &[], &payload));
        add("a later fragment", false, &[], NO_PORTS, ipv4(0, protocol, 5, &[], &payload));
        add("a cut header", false, &[], NO_PORTS, ipv4(0, protocol, 0, &[], &payload[..2]));
        add("other options", false, &[], ALL, ipv4(0, protocol, 0, &[1; 8], &payload));
        for (name, route) in [("a loose route", route), ("a strict route", strict)] {
            let frame = ipv4(0, protocol, 0, &route, &payload);
            add(name, false, &[], NO_DESTINATION, frame);
            let frame = ipv4(0, protocol, 0x2000, &route, &payload);
            add(&format!("{name} of a fragment"), false, &[], ON_A_ROUTE, frame);
        }
        let header = [&[protocol, 2][..], &[0; 14], &payload].concat();
        for fragment in [0, 0x2000, 7] {
            let frame = ipv4(0, AH, fragment, &[], &header);
            add("an authentication header", false, &[AH], NO_PROTOCOL, frame);
        }
        let frame = ipv4(0, AH, 0, &route, &header);
        let reads = Reads { protocol: false, ports: false, ..NO_DESTINATION };
        add("an authentication header on a route", false, &[AH], reads, frame);
        for (v6, length) in [(false, 19), (true, 39), (false, 1), (true, 1)] {
            let mut frame = match v6 {
                true => ipv6(0, &[], protocol, &payload),
                false => ipv4(0, protocol, 0, &[], &payload),
            };
            frame.truncate(14 + length);
            add("a short header", v6, &[], FAMILY_ONLY, frame);
        }
        for (v6, frame) in
            [(false, ipv4(3, protocol, 0, &[], &payload)), (true, ipv6(3, &[], protocol, &payload))]
        {
            add("three tags", v6, &[], NOTHING, frame);
        }
    }
    reasons
}

/// Rules that name each protocol, none, ports, addresses of both families; all drop.
pub(crate) fn rules() -> Vec<Filter> {
    let any = FiveTuple::default();
    let prefix = |v6, last, length| Prefix::new(address(v6, last), length);
    let mut tuples = vec![any];
    tuples.extend(NAMED.map(|named| FiveTuple { protocol: Some(Protocol(named)), ..any }));
    for protocol in [None, Some(Protocol(6)), Some(Protocol(17))] {
        for port in [7, 8] {
            let ports = PortRange::one(port);
            tuples.push(FiveTuple { protocol, destination_ports: ports, ..any });
        }
    }
    for v6 in [false, true] {
        let whole = if v6 { 128 } else { 32 };
        for protocol in [None, Some(Protocol(AH)), Some(Protocol(17))] {
            for (last, length) in [(0, 0), (1, whole), (2, whole), (1, 8)] {
                let prefix = prefix(v6, last, length);
                tuples.push(FiveTuple { protocol, source: prefix, ..any });
                tuples.push(FiveTuple { protocol, destination: prefix, ..any });
            }
        }
    }
    let rule = |tuple: FiveTuple| Filter::new("rule", tuple, Action::Drop);
    tuples.into_iter().map(rule).collect()
}

/// The fate of a packet under a rule that drops, and under one that accepts unreadable packets.
pub(crate) fn outcome(reason: &Reason, rule: &Filter) -> Outcome {
    let picnic_filter::Match::FiveTuple(tuple) = &rule.matching else { unreachable!() };
    let Reason { v6, protocol, also, reads, .. } = reason;
    let has_ports = [6, 17].contains(protocol);
    let family = tuple.source.or(tuple.destination).map(|prefix| prefix.is_ipv4() != *v6);
    let within = |prefix: Option<Prefix>, last| {
        prefix.is_none_or(|prefix| prefix.contains(address(*v6, last)))
    };
    let asks = |prefix: Option<Prefix>| prefix.is_some_and(|prefix| prefix.length() != 0);
    let named = tuple.protocol.map(|protocol| protocol.0);
    let asks_ports = !tuple.destination_ports.is_any();
    let is_protocol = named.is_none_or(|named| reads.protocol && named == *protocol);
    let is_also = named.is_some_and(|named| also.contains(&named)) && !asks_ports;
    let is_port = !asks_ports
        || reads.ports && reads.protocol && has_ports && tuple.destination_ports.contains(7);
    let is_certain = reads.family
        && family.is_none_or(|is_family| is_family)
        && within(tuple.source, 1)
        && within(tuple.destination, 2)
        && (reads.source || !asks(tuple.source))
        && (reads.destination || !asks(tuple.destination))
        && (is_protocol && is_port || is_also);
    let is_possible = if !reads.family {
        true
    } else if !reads.destination {
        family.is_none_or(|is_family| is_family)
    } else {
        let addresses = within(tuple.source, 1) && within(tuple.destination, 2);
        addresses
            && (!reads.protocol
                || !reads.ports && has_ports && named.is_none_or(|named| named == *protocol))
    };
    match () {
        () if is_certain => Outcome::Filtered,
        () if is_possible && rule.unreadable == Unreadable::Drop => Outcome::Unreadable,
        () => Outcome::Passes,
    }
}
