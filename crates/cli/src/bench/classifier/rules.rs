//! The rules and packets of `bench/peers/dpdk_acl.c`, drawn by the same numbers.
//!
//! A rule is as an operator writes them: a source network of 8 to 32 bits, a destination of 16 to
//! 32, any source port (or, one in four, a range), one destination port, a range or any, TCP, UDP
//! or (one in eight) any protocol. Half of the packets are drawn from inside a random rule.

use picnic_os::filter::{FiveTuple, PortRange, Prefix, Protocol};
use std::net::Ipv4Addr;

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
pub(super) struct Packet {
    pub(super) source: u32,
    pub(super) destination: u32,
    pub(super) ports: [u16; 2],
    pub(super) protocol: u8,
}

#[derive(Clone, Copy)]
struct Drawn {
    protocol: Option<u8>,
    addresses: [u32; 2],
    lengths: [u8; 2],
    ports: [(u16, u16); 2],
}

/// One set of rules with its packets.
pub(super) struct Set {
    pub(super) rules: Vec<FiveTuple>,
    pub(super) packets: Vec<Packet>,
    /// Equal for equal sets; the peer prints it too.
    pub(super) fingerprint: u64,
}

fn mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

fn rule(random: &mut Random) -> Drawn {
    let choice = random.next();
    let address = random.next();
    let lengths = [8 + (choice % 25) as u8, 16 + ((choice >> 8) % 17) as u8];
    let protocol = (!(choice >> 16).is_multiple_of(8))
        .then(|| if !(choice >> 20).is_multiple_of(4) { 6 } else { 17 });
    let addresses = [address as u32 & mask(lengths[0]), (address >> 32) as u32 & mask(lengths[1])];
    let drawn = random.next();
    let ports = std::array::from_fn(|end| {
        let shift = 32 * end as u32;
        let low = (drawn >> shift) as u16;
        let width = ((drawn >> shift >> 16) % 1024) as u16;
        let kind = (choice >> (24 + shift / 8)) % 4;
        match (end, kind) {
            (0, 0) | (1, 1) => (low, low.saturating_add(width)),
            (1, 2 | 3) => (low, low),
            _ => (0, u16::MAX),
        }
    });
    Drawn { protocol, addresses, lengths, ports }
}

fn packet(rules: &[Drawn], random: &mut Random) -> Packet {
    let addresses = random.next();
    let rest = random.next();
    let mut packet = Packet {
        source: addresses as u32,
        destination: (addresses >> 32) as u32,
        ports: [rest as u16, (rest >> 16) as u16],
        protocol: if !(rest >> 32).is_multiple_of(4) { 6 } else { 17 },
    };
    if (rest >> 40).is_multiple_of(2) {
        let rule = &rules[(random.next() % rules.len() as u64) as usize];
        packet.source = rule.addresses[0] | packet.source & !mask(rule.lengths[0]);
        packet.destination = rule.addresses[1] | packet.destination & !mask(rule.lengths[1]);
        for (port, (first, last)) in packet.ports.iter_mut().zip(rule.ports) {
            let count = u32::from(last) - u32::from(first) + 1;
            *port = (u32::from(first) + u32::from(*port) % count) as u16;
        }
        packet.protocol = rule.protocol.unwrap_or(packet.protocol);
    }
    packet
}

/// FNV-1a over 32-bit numbers.
fn hash(hash: u64, number: u32) -> u64 {
    number
        .to_le_bytes()
        .iter()
        .fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl Set {
    /// So many rules and packets, by a seed.
    pub(super) fn new(seed: u64, rules: usize, packets: usize) -> Self {
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(rules as u64);
        let mut random = Random(state.max(1));
        let drawn: Vec<_> = (0..rules).map(|_| rule(&mut random)).collect();
        let packets: Vec<_> = (0..packets).map(|_| packet(&drawn, &mut random)).collect();
        let mut fingerprint = 0xcbf2_9ce4_8422_2325;
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
        Set { rules: drawn.iter().map(tuple).collect(), packets, fingerprint }
    }
}
