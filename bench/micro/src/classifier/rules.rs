//! The rules and packets of `bench/peers/five_tuple.h`, from the same random numbers.
//!
//! Each family is a kind of list that operators write, or that is hard. Half of the packets match a
//! random rule; the others are arbitrary, or have the addresses of two rules, so that they nearly
//! match.

use picnic_filter::{FiveTuple, PortRange, Prefix, Protocol};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// A kind of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Family {
    /// Networks of 8 to 32 and 16 to 32 bits, one port, a short range or any, mostly TCP
    Random,
    /// Servers by address and service, for networks or anybody, and a default
    AccessList,
    /// Blocked sources and destinations, services with short and wide ranges, and a default
    Firewall,
    /// Networks of any length with two ranges of any width
    WidePorts,
    /// Two ranges of up to a quarter of all ports, any address
    PortsOnly,
}

impl Family {
    pub(crate) fn name(self) -> String {
        serde_json::to_value(self)
            .ok()
            .and_then(|name| name.as_str().map(str::to_owned))
            .unwrap_or_default()
    }
}

/// xorshift64*, as `peer_random`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(2_685_821_657_736_338_717)
    }
}

/// A packet's five-tuple.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) ports: [u16; 2],
    pub(crate) protocol: u8,
}

#[derive(Clone, Copy)]
struct Drawn {
    protocol: Option<u8>,
    addresses: [u32; 2],
    lengths: [u8; 2],
    ports: [(u16, u16); 2],
}

/// One set of rules with its packets.
pub(crate) struct Set {
    pub(crate) family: Family,
    pub(crate) rules: Vec<FiveTuple>,
    pub(crate) packets: Vec<Packet>,
    /// Equal for equal sets; the peer prints it too.
    pub(crate) fingerprint: u64,
}

fn mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

/// Ports of the services in lists; some appear twice, as in real lists.
const SERVICES: [u16; 16] =
    [80, 443, 443, 22, 25, 53, 53, 110, 123, 143, 389, 993, 3306, 5432, 8080, 8443];
/// Ports that clients use, and other ranges that are often written.
const RANGES: [(u16, u16); 4] = [(1024, 65_535), (0, 1023), (6000, 6063), (49_152, 65_535)];

const ANY: (u16, u16) = (0, u16::MAX);

/// The rule at a place of a list of `count`; three numbers are drawn for each.
fn rule(family: Family, place: usize, count: usize, random: &mut Random) -> Drawn {
    let choice = random.next();
    let address = random.next();
    let drawn = random.next();
    let pick = |shift: u32, count: u64| (choice >> shift) % count;
    let port = |end: u32| (drawn >> (32 * end)) as u16;
    let second = |end: u32| (drawn >> (32 * end) >> 16) as u16;
    let range = |end: u32, width: u16| (port(end), port(end).saturating_add(second(end) % width));
    let tcp_or_udp = Some(if pick(20, 4) != 0 { 6 } else { 17 });
    let addresses = [address as u32, (address >> 32) as u32];
    let new = |protocol, addresses: [u32; 2], lengths: [u8; 2], ports| {
        let addresses = std::array::from_fn(|end| addresses[end] & mask(lengths[end]));
        Drawn { protocol, addresses, lengths, ports }
    };
    // One of the operator's own 16 networks.
    let own = |shift: u32| 10 << 24 | (pick(shift, 16) as u32 * 13) << 16;
    let service = SERVICES[pick(24, 16) as usize];
    match family {
        Family::Random => {
            let lengths = [8 + pick(0, 25) as u8, 16 + pick(8, 17) as u8];
            let protocol = if pick(16, 8) == 0 { None } else { tcp_or_udp };
            let source = if pick(24, 4) == 0 { range(0, 1024) } else { ANY };
            let destination = match pick(28, 4) {
                1 => range(1, 1024),
                2 | 3 => (port(1), port(1)),
                _ => ANY,
            };
            new(protocol, addresses, lengths, [source, destination])
        }
        Family::AccessList | Family::Firewall if place + 1 == count => {
            new(None, [0; 2], [0; 2], [ANY, ANY])
        }
        Family::AccessList => {
            let source = if pick(0, 2) == 0 { 0 } else { 8 + pick(4, 17) as u8 };
            let destination = own(32) | addresses[1] & 0xffff;
            new(
                tcp_or_udp,
                [addresses[0], destination],
                [source, if pick(40, 8) == 0 { 24 } else { 32 }],
                [ANY, (service, service)],
            )
        }
        Family::Firewall => {
            let own = own(32) | addresses[1] & 0xffff;
            let written = RANGES[pick(36, 4) as usize];
            match pick(0, 8) {
                0 | 1 => new(None, addresses, [16 + pick(4, 17) as u8, 0], [ANY, ANY]),
                2 => new(None, addresses, [0, 16 + pick(4, 17) as u8], [ANY, ANY]),
                3 => {
                    let lengths = [8 + pick(4, 17) as u8, 16 + pick(12, 9) as u8];
                    new(tcp_or_udp, [addresses[0], own], lengths, [ANY, written])
                }
                4 => {
                    let lengths = [0, 24 + pick(12, 9) as u8];
                    new(tcp_or_udp, [0, own], lengths, [RANGES[0], range(1, 1024)])
                }
                5 => {
                    let lengths = [16 + pick(4, 9) as u8, 16 + pick(12, 9) as u8];
                    new(tcp_or_udp, [own, addresses[0]], lengths, [ANY, ANY])
                }
                _ => new(tcp_or_udp, [0, own], [0, 32], [ANY, (service, service)]),
            }
        }
        Family::WidePorts => {
            let lengths = [pick(0, 33) as u8, pick(8, 33) as u8];
            let range = |end| (port(end).min(second(end)), port(end).max(second(end)));
            new(tcp_or_udp, addresses, lengths, [range(0), range(1)])
        }
        Family::PortsOnly => new(tcp_or_udp, [0; 2], [0; 2], [range(0, 16_384), range(1, 16_384)]),
    }
}

/// An address inside a rule's network.
fn inside(rule: &Drawn, end: usize, address: u32) -> u32 {
    rule.addresses[end] | address & !mask(rule.lengths[end])
}

fn packet(family: Family, rules: &[Drawn], random: &mut Random) -> Packet {
    let addresses = random.next();
    let rest = random.next();
    let mut packet = Packet {
        source: addresses as u32,
        destination: (addresses >> 32) as u32,
        ports: [rest as u16, (rest >> 16) as u16],
        protocol: if !(rest >> 32).is_multiple_of(4) { 6 } else { 17 },
    };
    let mut any = || &rules[(random.next() % rules.len() as u64) as usize];
    if (rest >> 40).is_multiple_of(2) {
        let rule = any();
        packet.source = inside(rule, 0, packet.source);
        packet.destination = inside(rule, 1, packet.destination);
        for (port, (first, last)) in packet.ports.iter_mut().zip(rule.ports) {
            let count = u32::from(last) - u32::from(first) + 1;
            *port = (u32::from(first) + u32::from(*port) % count) as u16;
        }
        packet.protocol = rule.protocol.unwrap_or(packet.protocol);
    } else if family != Family::Random {
        packet.source = inside(any(), 0, packet.source);
        packet.destination = inside(any(), 1, packet.destination);
    }
    packet
}

/// The initial value of FNV-1a.
pub(crate) const HASH: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a over 32-bit numbers.
pub(crate) fn hash(hash: u64, number: u32) -> u64 {
    number
        .to_le_bytes()
        .iter()
        .fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl Set {
    /// A set of `rules` rules of a family with packets, from a seed.
    pub(crate) fn new(family: Family, seed: u64, rules: usize, packets: usize) -> Self {
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(rules as u64);
        let mut random = Random(state.max(1));
        let drawn: Vec<_> =
            (0..rules).map(|place| rule(family, place, rules, &mut random)).collect();
        let packets: Vec<_> = (0..packets).map(|_| packet(family, &drawn, &mut random)).collect();
        let mut fingerprint = HASH;
        for rule in &drawn {
            let [source, destination] = rule.addresses;
            let lengths = u32::from(rule.lengths[0]) | u32::from(rule.lengths[1]) << 8;
            let protocol = rule.protocol.map_or(0, |protocol| u32::from(protocol) | 0x100);
            let ports = rule.ports.map(|(low, high)| u32::from(low) << 16 | u32::from(high));
            for number in [source, destination, lengths | protocol << 16, ports[0], ports[1]] {
                fingerprint = hash(fingerprint, number);
            }
        }
        for packet in &packets {
            let ports = u32::from(packet.ports[0]) << 16 | u32::from(packet.ports[1]);
            for number in [packet.source, packet.destination, ports, packet.protocol.into()] {
                fingerprint = hash(fingerprint, number);
            }
        }
        let tuple = |rule: &Drawn| {
            let prefix =
                |end: usize| Prefix::new(Ipv4Addr::from(rule.addresses[end]), rule.lengths[end]);
            let range = |(low, high)| PortRange::new(low, high).unwrap_or_default();
            FiveTuple {
                protocol: rule.protocol.map(Protocol),
                source: prefix(0),
                destination: prefix(1),
                source_ports: range(rule.ports[0]),
                destination_ports: range(rule.ports[1]),
            }
        };
        Set { family, rules: drawn.iter().map(tuple).collect(), packets, fingerprint }
    }
}
