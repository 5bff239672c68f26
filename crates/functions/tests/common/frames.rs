//! Frames built header by header with etherparse, and their RSS results.

use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv6FlowLabel,
    Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader, NetSlice, PacketBuilder, SingleVlanHeader,
    SlicedPacket, TcpHeader, TransportSlice, UdpHeader, VlanId,
};
use picnic_core::packet::desc::RssType;
use proptest::prelude::*;
use std::net::IpAddr;

/// The content after the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Upper {
    Tcp,
    Udp,
    Icmp,
    Gre,
    /// A first fragment of TCP: ports are there and must not be used.
    FirstFragment,
    LastFragment,
}

/// The content after the Ethernet header and tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Network {
    V4,
    V6,
    Arp,
    /// 802.3 with a length instead of a type.
    Length,
}

/// A frame to be built; addresses and ports are drawn from few, so that flows recur.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) tags: u8,
    pub(crate) network: Network,
    pub(crate) upper: Upper,
    pub(crate) source: u8,
    pub(crate) destination: u8,
    pub(crate) ports: (u16, u16),
    /// IPv4 options in words; IPv6 extension headers, with an atomic fragment as the last.
    pub(crate) options: u8,
    pub(crate) payload: usize,
}

impl Spec {
    pub(crate) fn plain(network: Network, upper: Upper) -> Spec {
        Spec {
            tags: 0,
            network,
            upper,
            source: 1,
            destination: 2,
            ports: (1000, 80),
            options: 0,
            payload: 6,
        }
    }

    /// The key of order: packets with equal keys keep their order.
    pub(crate) fn flow(&self) -> impl Eq + std::hash::Hash + std::fmt::Debug + use<> {
        (self.network, self.upper, self.source, self.destination, self.ports)
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let ether_type = match self.network {
            Network::V4 => EtherType::IPV4,
            Network::V6 => EtherType::IPV6,
            Network::Arp => EtherType::ARP,
            Network::Length => EtherType(46),
        };
        // From the inside out: each layer is put before its content.
        let mut types = vec![ether_type];
        if self.tags > 0 {
            types.push(EtherType::VLAN_TAGGED_FRAME);
        }
        if self.tags > 1 {
            types.push(EtherType::PROVIDER_BRIDGING);
        }
        let mut frame = Vec::new();
        Ethernet2Header { source: [2; 6], destination: [4; 6], ether_type: types.pop().unwrap() }
            .write(&mut frame)
            .unwrap();
        while let Some(ether_type) = types.pop() {
            let vlan_id = VlanId::try_new(100 + types.len() as u16).unwrap();
            SingleVlanHeader { vlan_id, ether_type, ..Default::default() }
                .write(&mut frame)
                .unwrap();
        }
        match self.network {
            Network::V4 => self.v4(&mut frame),
            Network::V6 => self.v6(&mut frame),
            Network::Arp => {
                frame.extend([0, 1]);
                frame.extend([8, 0, 6, 4, 0, 1]);
                frame.extend([self.source; 20]);
            }
            Network::Length => frame.extend([0x42; 46]),
        }
        frame
    }

    fn v4(&self, frame: &mut Vec<u8>) {
        let (protocol, body) = self.body(IpNumber::ICMP);
        let mut header = Ipv4Header::new(
            body.len() as u16,
            64,
            protocol,
            [10, 0, 1, self.source],
            [192, 168, 2, self.destination],
        )
        .unwrap();
        let options = vec![1u8; usize::from(self.options % 11) * 4];
        header.options.try_into_set(&options);
        header.set_payload_len(body.len()).unwrap();
        header.dont_fragment = false;
        header.more_fragments = self.upper == Upper::FirstFragment;
        if self.upper == Upper::LastFragment {
            header.fragment_offset = IpFragOffset::try_new(3).unwrap();
        }
        header.header_checksum = header.calc_header_checksum();
        header.write(frame).unwrap();
        frame.extend(body);
    }

    fn v6(&self, frame: &mut Vec<u8>) {
        let (protocol, body) = self.body(IpNumber::IPV6_ICMP);
        let is_fragment = matches!(self.upper, Upper::FirstFragment | Upper::LastFragment);
        // The order RFC 8200 recommends, and that etherparse takes.
        let mut chain = Vec::new();
        let order = [IpNumber::IPV6_HEADER_HOP_BY_HOP, IpNumber::IPV6_DESTINATION_OPTIONS];
        chain.extend(order.iter().take(usize::from(self.options % 4)));
        if is_fragment || self.options % 4 == 3 {
            chain.push(&IpNumber::IPV6_FRAGMENTATION_HEADER);
        }
        let mut extensions = Vec::new();
        for (place, &&kind) in chain.iter().enumerate() {
            let next = chain.get(place + 1).map_or(protocol, |&&next| next);
            if kind == IpNumber::IPV6_FRAGMENTATION_HEADER {
                let offset = u16::from(self.upper == Upper::LastFragment) * 3;
                Ipv6FragmentHeader {
                    next_header: next,
                    fragment_offset: IpFragOffset::try_new(offset).unwrap(),
                    more_fragments: self.upper == Upper::FirstFragment,
                    identification: 77,
                }
                .write(&mut extensions)
                .unwrap();
            } else {
                // Pad options only.
                Ipv6RawExtHeader::new_raw(next, &[1, 4, 0, 0, 0, 0])
                    .unwrap()
                    .write(&mut extensions)
                    .unwrap();
            }
        }
        let address = |last: u8| {
            let mut address = [0x20; 16];
            address[15] = last;
            address[7] = last.wrapping_mul(37);
            address
        };
        Ipv6Header {
            traffic_class: 0,
            flow_label: Ipv6FlowLabel::ZERO,
            payload_length: (extensions.len() + body.len()) as u16,
            next_header: chain.first().map_or(protocol, |&&first| first),
            hop_limit: 64,
            source: address(self.source),
            destination: address(self.destination),
        }
        .write(frame)
        .unwrap();
        frame.extend(extensions);
        frame.extend(body);
    }

    fn body(&self, icmp: IpNumber) -> (IpNumber, Vec<u8>) {
        let mut body = Vec::new();
        let (source, destination) = self.ports;
        let protocol = match self.upper {
            Upper::Tcp | Upper::FirstFragment => {
                TcpHeader::new(source, destination, 1, 512).write(&mut body).unwrap();
                IpNumber::TCP
            }
            Upper::Udp => {
                let length = 8 + self.payload as u16;
                UdpHeader {
                    source_port: source,
                    destination_port: destination,
                    length,
                    checksum: 0,
                }
                .write(&mut body)
                .unwrap();
                IpNumber::UDP
            }
            Upper::Icmp => {
                body.extend([if icmp == IpNumber::ICMP { 8 } else { 128 }, 0, 0, 0, 0, 1, 0, 2]);
                icmp
            }
            Upper::Gre => IpNumber::GRE,
            Upper::LastFragment => IpNumber::TCP,
        };
        body.extend((0..self.payload).map(|byte| byte as u8));
        (protocol, body)
    }
}

trait SetOptions {
    fn try_into_set(&mut self, bytes: &[u8]);
}

impl SetOptions for etherparse::Ipv4Options {
    fn try_into_set(&mut self, bytes: &[u8]) {
        *self = bytes.try_into().unwrap();
    }
}

/// Frames of every kind.
pub(crate) fn any_spec() -> impl Strategy<Value = Spec> {
    let network = prop_oneof![
        5 => Just(Network::V4),
        4 => Just(Network::V6),
        1 => Just(Network::Arp),
        1 => Just(Network::Length),
    ];
    let upper = prop_oneof![
        4 => Just(Upper::Tcp),
        3 => Just(Upper::Udp),
        1 => Just(Upper::Icmp),
        1 => Just(Upper::Gre),
        1 => Just(Upper::FirstFragment),
        1 => Just(Upper::LastFragment),
    ];
    let tags = prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(2)];
    let options = prop_oneof![2 => Just(0), 1 => 0..11u8];
    let port = prop_oneof![0..4u16, any::<u16>()];
    (tags, network, upper, (0..6u8, 0..6u8), (port.clone(), port), options, 0..40usize).prop_map(
        |(tags, network, upper, (source, destination), ports, options, payload)| Spec {
            tags,
            network,
            upper,
            source,
            destination,
            ports,
            options,
            payload,
        },
    )
}

/// One frame of every combination of headers.
pub(crate) fn every_kind() -> Vec<Spec> {
    let mut specs = Vec::new();
    for network in [Network::V4, Network::V6, Network::Arp, Network::Length] {
        for upper in [
            Upper::Tcp,
            Upper::Udp,
            Upper::Icmp,
            Upper::Gre,
            Upper::FirstFragment,
            Upper::LastFragment,
        ] {
            for tags in 0..3 {
                for options in [0, 3, 10] {
                    specs.push(Spec { tags, options, ..Spec::plain(network, upper) });
                }
            }
        }
    }
    specs
}

/// The RSS input of a well-formed frame with the given types enabled, computed slowly: the bytes in
/// network order (addresses, then ports if over ports), and the type.
pub(crate) fn rss_input(data: &[u8], is_on: impl Fn(RssType) -> bool) -> (Vec<u8>, RssType) {
    let packet = SlicedPacket::from_ethernet(data).unwrap();
    let ports = match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            Some((6, [tcp.source_port().to_be_bytes(), tcp.destination_port().to_be_bytes()]))
        }
        Some(TransportSlice::Udp(udp)) => {
            Some((17, [udp.source_port().to_be_bytes(), udp.destination_port().to_be_bytes()]))
        }
        _ => None,
    };
    let (mut input, two, tcp, udp) = match &packet.net {
        Some(NetSlice::Ipv4(ip)) => (
            [ip.header().source(), ip.header().destination()].concat(),
            RssType::Ipv4,
            RssType::Ipv4Tcp,
            RssType::Ipv4Udp,
        ),
        Some(NetSlice::Ipv6(ip)) => (
            [ip.header().source(), ip.header().destination()].concat(),
            RssType::Ipv6,
            RssType::Ipv6Tcp,
            RssType::Ipv6Udp,
        ),
        _ => return (Vec::new(), RssType::None),
    };
    if let Some((protocol, ports)) = ports {
        let four = if protocol == 6 { tcp } else { udp };
        if is_on(four) {
            input.extend(ports.concat());
            return (input, four);
        }
    }
    if is_on(two) { (input, two) } else { (Vec::new(), RssType::None) }
}

/// The verification suite of RSS: a key, flows and their hashes.
fn vectors() -> serde_json::Value {
    let text = include_str!("../../../hash/tests/vectors/toeplitz.json");
    serde_json::from_str(text).unwrap()
}

/// The key of the published vectors.
pub(crate) fn published_key() -> String {
    vectors()["key"].as_str().unwrap().into()
}

/// The flows of the published vectors as TCP packets, each with its hash over addresses and ports,
/// and over addresses alone.
pub(crate) fn published() -> impl Iterator<Item = (Vec<u8>, [u32; 2])> {
    let json = vectors();
    let vectors = json["vectors"].as_array().unwrap().clone();
    assert!(vectors.len() >= 8);
    vectors.into_iter().map(|vector| {
        let address = |key: &str| vector[key].as_str().unwrap().parse::<IpAddr>().unwrap();
        let port = |key: &str| vector[key].as_u64().unwrap() as u16;
        let hash = |key: &str| u32::from_str_radix(vector[key].as_str().unwrap(), 16).unwrap();
        let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let ip = match (address("src"), address("dst")) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ethernet.ipv4(source.octets(), destination.octets(), 64)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ethernet.ipv6(source.octets(), destination.octets(), 64)
            }
            mixed => panic!("{mixed:?}"),
        };
        let mut frame = Vec::new();
        ip.tcp(port("sport"), port("dport"), 1, 64).write(&mut frame, b"data").unwrap();
        (frame, ["hash_4tuple", "hash_2tuple"].map(hash))
    })
}
