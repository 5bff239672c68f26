//! Layers against built frames, etherparse, the views, and the slow path.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::{collection::vec, prelude::*};

use super::parse::parse_plain;
use super::*;
use crate::packet::wire::tests::{Network, Packet, Transport, packets};
use crate::packet::wire::{EtherType, IpProtocol, Ipv4, Ipv6, Tcp, Udp};

/// Checks every property that holds for any bytes; returns the layers.
fn check(data: &[u8]) -> Layers {
    let layers = parse(data);
    assert_eq!(layers, parse_slow(data), "{data:02x?}");
    if let Some(plain) = plain_v4(data) {
        assert_eq!(plain.layers(), layers, "{data:02x?}");
        assert_eq!(plain.is_tcp(), layers.packet_type.is_tcp());
        assert_eq!(Some(plain.addresses()), layers.ipv4_addresses(data));
        assert_eq!(Some(plain.ports()), layers.ports(data));
    }
    assert_eq!(layers, parse_of(data, data.len()), "{data:02x?}");
    assert_eq!(layers, parse_of(data, 0), "{data:02x?}");
    if let Some(plain) = parse_plain(data, 0) {
        assert_eq!(layers, Layers::from_word(plain), "{data:02x?}");
    }
    let kind = layers.packet_type;
    let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
    assert!(l3 <= data.len() && l4 <= data.len());
    assert_eq!(kind.l4() == L4Kind::None, l4 == 0);
    assert!(l4 == 0 || l4 > l3);
    assert_eq!(layers.ipv4_addresses(data).is_some(), kind.is_ipv4());
    assert_eq!(layers.ipv6_addresses(data).is_some(), kind.is_ipv6());
    assert_eq!(layers.ports(data).is_some(), kind.has_ports());
    assert_eq!(layers.flow_v4(data).is_some(), kind.is_ipv4() && kind.has_ports());
    assert_eq!(layers.flow_v6(data).is_some(), kind.is_ipv6() && kind.has_ports());
    if kind.is_fragment() {
        assert_eq!(kind.l4(), L4Kind::None);
    }
    // A descriptor can keep it.
    assert!(l4 == 0 || (l4 - l3) % 4 == 0 && (l4 - l3) / 4 <= 255);
    let header = if kind.is_ipv4() { 20 } else { 40 };
    let is_icmp = kind.l4() == L4Kind::Icmp;
    assert_eq!(layers.is_plain(), (kind.has_ports() || is_icmp) && l4 - l3 == header);
    let (l3, l4) = (&data[l3..], &data[l4..]);
    let well_formed = match kind.l3() {
        L3Kind::Ipv4 => Ipv4::new_checked(l3).is_ok(),
        L3Kind::Ipv6 => Ipv6::new_checked(l3).is_ok(),
        L3Kind::Arp => l3.len() >= 28,
        _ => true,
    } && match kind.l4() {
        L4Kind::Tcp => Tcp::new_checked(l4).is_ok(),
        L4Kind::Udp => Udp::new_checked(l4).is_ok(),
        L4Kind::Icmp => l4.len() >= if kind.is_ipv4() { 8 } else { 4 },
        _ => true,
    };
    assert!(well_formed || kind.is_malformed());
    // No accessor trusts the layers of other data.
    for other in [&data[..data.len() / 2], &data[..0]] {
        let _ = (layers.ports(other), layers.ipv4_addresses(other), layers.ipv6_addresses(other));
        let _ = (layers.flow_v4(other), layers.flow_v6(other));
    }
    layers
}

fn expected(packet: &Packet) -> Layers {
    let l3 = match packet.network {
        Network::V4 { .. } => L3Kind::Ipv4,
        Network::V6 { .. } => L3Kind::Ipv6,
    };
    let l4 = match packet.transport {
        _ if packet.is_fragment() => L4Kind::None,
        Transport::Tcp { .. } => L4Kind::Tcp,
        Transport::Udp { .. } => L4Kind::Udp,
        Transport::Icmp { .. } => L4Kind::Icmp,
        Transport::Other { .. } => L4Kind::Other,
    };
    let mut layers = Layers {
        l3_offset: packet.l3_offset() as u8,
        vlan_count: packet.tags.len() as u8,
        l4_offset: (packet.l3_offset() + packet.ip_length()) as u16,
        packet_type: PacketType::new(l3, l4),
        protocol: packet.protocol(),
        vlan_tci: packet.tags.first().map_or(0, |tag| tag.tci()),
    };
    if packet.is_fragment() {
        layers.packet_type = layers.packet_type.with_fragment();
        layers.l4_offset = 0;
        if let Network::V6 { authentication: Some(_), .. } = packet.network {
            layers.protocol = IpProtocol::AUTHENTICATION.0;
        }
    }
    layers
}

/// Where the headers of a built frame end that must be present for the packet to be complete.
fn headers_end(packet: &Packet, frame: &[u8]) -> usize {
    let l4 = packet.l3_offset() + packet.ip_length();
    match (&packet.transport, &packet.network) {
        // Nothing after the fragment header is read.
        (_, Network::V6 { authentication: Some(icv), .. }) if packet.is_fragment() => {
            l4 - 12 - icv.len()
        }
        _ if packet.is_fragment() => l4,
        (Transport::Tcp { .. }, _) => l4 + usize::from(frame[l4 + 12] >> 4) * 4,
        (Transport::Udp { .. }, _) => l4 + Udp::HEADER_LENGTH,
        (Transport::Icmp { .. }, Network::V4 { .. }) => l4 + 8,
        (Transport::Icmp { .. }, Network::V6 { .. }) => l4 + 4,
        (Transport::Other { .. }, _) => l4,
    }
}

/// Kinds according to etherparse and whether it is a fragment, if etherparse accepts the frame.
fn etherparse_kinds(frame: &[u8]) -> Option<(L3Kind, L4Kind, bool)> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let (l3, is_fragment) = match sliced.net? {
        NetSlice::Ipv4(ip) => (L3Kind::Ipv4, ip.is_payload_fragmented()),
        NetSlice::Ipv6(ip) => (L3Kind::Ipv6, ip.is_payload_fragmented()),
    };
    let l4 = match sliced.transport {
        Some(TransportSlice::Tcp(_)) => L4Kind::Tcp,
        Some(TransportSlice::Udp(_)) => L4Kind::Udp,
        Some(TransportSlice::Icmpv4(_)) if l3 == L3Kind::Ipv4 => L4Kind::Icmp,
        Some(TransportSlice::Icmpv6(_)) if l3 == L3Kind::Ipv6 => L4Kind::Icmp,
        _ => L4Kind::None,
    };
    Some((l3, l4, is_fragment))
}

/// IPv4 frame of the short path: `length` bytes, with the given fields.
fn short_path_frame(length: usize, total: u16, protocol: IpProtocol, l4: [u8; 20]) -> Vec<u8> {
    let mut frame = vec![0; length.max(54)];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[23] = protocol.0;
    frame[34..54].copy_from_slice(&l4);
    frame.truncate(length);
    frame
}

#[test]
fn eight_bytes() {
    assert_eq!(size_of::<Layers>(), 8);
    assert_eq!(align_of::<Layers>(), 2);
}

#[test]
fn names() {
    let name = |packet_type: PacketType| packet_type.to_string();
    assert_eq!(name(PacketType::NONE), "none");
    assert_eq!(name(PacketType::IPV4_TCP), "ipv4 tcp");
    assert_eq!(name(PacketType::IPV6_FRAGMENT), "ipv6 fragment");
    assert_eq!(name(PacketType::IPV6_UDP.with_malformed()), "ipv6 udp malformed");
    assert_eq!(format!("{:?}", PacketType::ARP), "PacketType(arp)");
}

#[test]
fn any_byte_is_a_packet_type() {
    for bits in 0..=u8::MAX {
        let kind = PacketType::from_bits(bits);
        assert_eq!(kind.bits(), bits);
        let mut again = PacketType::new(kind.l3(), kind.l4());
        again = if kind.is_fragment() { again.with_fragment() } else { again };
        again = if kind.is_malformed() { again.with_malformed() } else { again };
        assert_eq!(kind.to_string(), again.to_string());
    }
}

/// Every combination of frame length, total length and the L4 length around the short path's edges.
#[test]
fn short_path_is_the_slow_path_at_every_edge() {
    for length in 30..80 {
        for total in 0..80 {
            for words in 0..16 {
                let mut l4 = [0; 20];
                l4[12] = words << 4;
                check(&short_path_frame(length, total, IpProtocol::TCP, l4));
            }
            for udp_length in 0..64 {
                let mut l4 = [0; 20];
                l4[5] = udp_length;
                check(&short_path_frame(length, total, IpProtocol::UDP, l4));
            }
        }
    }
}

#[test]
fn short_path_refuses_other_frames() {
    let mut l4 = [0; 20];
    (l4[5], l4[12]) = (8, 0x50);
    let frame = short_path_frame(60, 40, IpProtocol::TCP, l4);
    assert_eq!(check(&frame).packet_type, PacketType::IPV4_TCP);
    for at in 12..54 {
        for bit in 0..8 {
            let mut frame = frame.clone();
            frame[at] ^= 1 << bit;
            check(&frame);
        }
    }
    for protocol in 0..=u8::MAX {
        check(&short_path_frame(60, 40, IpProtocol(protocol), l4));
    }
}

/// Frame of the second path: plain IP, tagged or not, `length` bytes, with the given fields.
fn plain_frame(
    tagged: bool,
    version: u8,
    length: usize,
    total: u16,
    protocol: IpProtocol,
    l4: [u8; 20],
) -> Vec<u8> {
    let mut frame = vec![0; 12];
    if tagged {
        frame.extend([0x81, 0x00, 0x20, 0x07]);
    }
    if version == 4 {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, protocol.0]);
        frame.extend([0; 10]);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(total.wrapping_sub(40).to_be_bytes());
        frame.extend([protocol.0, 64]);
        frame.extend([0; 32]);
    }
    frame.extend(l4);
    frame.resize(length, 0);
    frame
}

const PLAIN: [(bool, u8); 4] = [(false, 4), (false, 6), (true, 4), (true, 6)];

#[test]
fn plain_packets_are_recognised() {
    let mut tcp = [0; 20];
    tcp[12] = 0x50;
    assert!(plain_v4(&short_path_frame(54, 40, IpProtocol::TCP, tcp)).is_some());
    let mut udp = [0; 20];
    udp[5] = 20;
    let frame = short_path_frame(54, 40, IpProtocol::UDP, udp);
    assert!(plain_v4(&frame).is_some_and(|plain| !plain.is_tcp()));
    let tagged = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
    assert!(plain_v4(&tagged).is_none());
}

/// The second path accepts its packets, down to the shortest frames.
#[test]
fn plain_tcp_and_udp_take_the_second_path() {
    for (tagged, version) in PLAIN {
        let (l3, header) = (14 + 4 * u16::from(tagged), if version == 4 { 20 } else { 40 });
        let mut l4 = [0; 20];
        (l4[5], l4[12]) = (8, 0x50);
        for (protocol, least) in [(IpProtocol::TCP, 20), (IpProtocol::UDP, 8)] {
            let total = header + least;
            let length = usize::from(l3 + total);
            for length in [length, length + 1, 1514] {
                let frame = plain_frame(tagged, version, length, total, protocol, l4);
                let layers = Layers::from_word(parse_plain(&frame, 0).unwrap());
                assert_eq!(layers, check(&frame));
                assert!(layers.packet_type.has_ports() && !layers.packet_type.is_malformed());
                assert_eq!(layers.vlan_tci, if tagged { 0x2007 } else { 0 });
                assert_eq!(layers.l4_offset, l3 + header);
            }
            let cut = plain_frame(tagged, version, length - 1, total, protocol, l4);
            assert_eq!(parse_plain(&cut, 0), None);
        }
    }
}

#[test]
fn segmented_packets_take_the_second_path() {
    for (tagged, version) in PLAIN {
        let (l3, header) = (14 + 4 * usize::from(tagged), if version == 4 { 20 } else { 40 });
        let mut l4 = [0; 20];
        (l4[4], l4[12]) = (0x20, 0x50);
        for (protocol, least) in [(IpProtocol::TCP, 20), (IpProtocol::UDP, 8)] {
            let total = header as u16 + 0x2000;
            let frame = plain_frame(tagged, version, l3 + usize::from(total), total, protocol, l4);
            let whole = check(&frame);
            assert!(!whole.packet_type.is_malformed());
            for end in 0..200 {
                let (first, beyond) = (&frame[..end], frame.len() - end);
                let plain = parse_plain(first, beyond).map(Layers::from_word);
                assert_eq!(plain, (end >= l3 + header + least).then_some(whole), "{end}");
                assert_eq!(parse_of(first, frame.len()) == whole, plain.is_some());
            }
        }
    }
}

/// Every combination of frame length, total length and the L4 length around its edges.
#[test]
fn second_path_is_the_slow_path_at_every_edge() {
    for (tagged, version) in PLAIN {
        let l3 = 14 + 4 * usize::from(tagged);
        let header = if version == 4 { 20 } else { 40 };
        for length in 0..l3 + header + 30 {
            for total in (0..header as u16 + 30).step_by(3) {
                for l4_length in 0..32 {
                    let mut l4 = [0; 20];
                    (l4[5], l4[12]) = (l4_length, l4_length << 4);
                    for protocol in [IpProtocol::TCP, IpProtocol::UDP] {
                        check(&plain_frame(tagged, version, length, total, protocol, l4));
                    }
                }
            }
        }
    }
}

#[test]
fn second_path_refuses_other_frames() {
    for (tagged, version) in PLAIN {
        let mut l4 = [0; 20];
        (l4[5], l4[12]) = (20, 0x50);
        let header = if version == 4 { 20 } else { 40 };
        let frame = plain_frame(tagged, version, 90, header + 20, IpProtocol::TCP, l4);
        assert!(!check(&frame).packet_type.is_malformed());
        for at in 12..frame.len() {
            for value in [0, 1, 0x40, 0x45, 0x60, 0x81, 0x86, 0xff, frame[at] ^ 0x80] {
                let mut frame = frame.clone();
                frame[at] = value;
                check(&frame);
            }
        }
        for protocol in 0..=u8::MAX {
            check(&plain_frame(tagged, version, 90, header + 20, IpProtocol(protocol), l4));
        }
    }
}

#[test]
fn truncated_tcp_keeps_its_kind_with_ports() {
    let mut l4 = [0; 20];
    l4[12] = 0x50;
    for total in 20..40 {
        let layers = check(&short_path_frame(60, total, IpProtocol::TCP, l4));
        let kind = if total < 24 {
            PacketType::new(L3Kind::Ipv4, L4Kind::None)
        } else {
            PacketType::IPV4_TCP
        };
        assert_eq!(layers.packet_type, kind.with_malformed());
        assert_eq!(layers.protocol, 6);
    }
}

#[test]
fn cut_capture_keeps_its_kind() {
    let mut l4 = [0; 20];
    l4[12] = 0x50;
    let layers = check(&short_path_frame(60, 1500, IpProtocol::TCP, l4));
    assert_eq!(layers.packet_type, PacketType::IPV4_TCP.with_malformed());
    assert_eq!(layers.l4_offset, 34);
}

#[test]
fn inconsistent_ipv4_header_is_malformed() {
    let mut frame = short_path_frame(60, 40, IpProtocol::TCP, [0; 20]);
    let malformed_ipv4 = PacketType::new(L3Kind::Ipv4, L4Kind::None).with_malformed();
    // Header lengths of 16 and 60 bytes; total length below the header's.
    for (version, total) in [(0x44, 40), (0x4f, 40), (0x45, 19)] {
        (frame[14], frame[17]) = (version, total);
        assert_eq!(check(&frame).packet_type, malformed_ipv4);
    }
    frame[14] = 0x65;
    assert_eq!(check(&frame).packet_type, PacketType::NONE.with_malformed());
}

#[test]
fn other_ether_types() {
    let mut frame = [0; 60];
    for (ether_type, expected) in [
        (EtherType::ARP, PacketType::ARP),
        (EtherType::LLDP, PacketType::new(L3Kind::Other, L4Kind::None)),
        (EtherType(0x0026), PacketType::NONE),
    ] {
        frame[12..14].copy_from_slice(&ether_type.0.to_be_bytes());
        let layers = check(&frame);
        assert_eq!(layers.packet_type, expected);
        assert_eq!((layers.l3_offset, layers.l4_offset), (14, 0));
    }
    frame[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
    assert_eq!(check(&frame[..41]).packet_type, PacketType::NONE.with_malformed());
    assert_eq!(check(&frame[..13]), Layers::default().malformed());
}

#[test]
fn third_vlan_tag_is_other() {
    let mut frame = [0; 60];
    frame[12..18].copy_from_slice(&[0x88, 0xa8, 0x60, 0x01, 0x81, 0x00]);
    frame[18..22].copy_from_slice(&[0x00, 0x02, 0x81, 0x00]);
    let layers = check(&frame);
    assert_eq!(layers.packet_type, PacketType::new(L3Kind::Other, L4Kind::None));
    assert_eq!((layers.l3_offset, layers.vlan_count, layers.vlan_tci), (22, 2, 0x6001));
    // A tag cut off is not counted.
    let layers = check(&frame[..20]);
    assert_eq!(layers.packet_type, PacketType::NONE.with_malformed());
    assert_eq!((layers.l3_offset, layers.vlan_count), (18, 1));
}

#[test]
fn ipv6_without_next_header() {
    let mut frame = [0; 60];
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    frame[20] = IpProtocol::NO_NEXT_HEADER.0;
    let layers = check(&frame);
    assert_eq!(layers.packet_type, PacketType::new(L3Kind::Ipv6, L4Kind::None));
    assert_eq!((layers.l4_offset, layers.protocol), (0, 59));
    // An extension header that is cut off.
    frame[20] = IpProtocol::HOP_BY_HOP.0;
    assert!(check(&frame).packet_type.is_malformed());
}

/// A jumbo payload option for `length` bytes after the IPv6 header, before TCP.
fn jumbo_header(length: u32) -> [u8; 8] {
    let [a, b, c, d] = length.to_be_bytes();
    [IpProtocol::TCP.0, 0, crate::packet::wire::JUMBO_OPTION, 4, a, b, c, d]
}

/// Linux hands over super-frames of more than 65,535 bytes this way, and captures show those that a
/// NIC segments.
#[test]
fn ip_length_zero_means_frame_length() {
    for (tagged, version) in PLAIN {
        let (l3, header) = (14 + 4 * usize::from(tagged), if version == 4 { 20 } else { 40 });
        let mut l4 = [0; 20];
        l4[..4].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
        l4[12] = 0x50;
        for length in [l3 + header + 20, 1514, 65_536, 70_000, 131_072] {
            for protocol in [IpProtocol::TCP, IpProtocol::UDP] {
                // UDP's length is 0 as well (RFC 2675, 4).
                let mut frame = plain_frame(tagged, version, length, 0, protocol, l4);
                if version == 6 {
                    frame[l3 + 4..l3 + 6].fill(0);
                }
                let layers = check(&frame);
                let kind = PacketType::new(
                    if version == 4 { L3Kind::Ipv4 } else { L3Kind::Ipv6 },
                    if protocol == IpProtocol::TCP { L4Kind::Tcp } else { L4Kind::Udp },
                );
                assert_eq!(layers.packet_type, kind, "{length}");
                assert_eq!(
                    layers.ports(&frame),
                    Some(u32::from_ne_bytes([0x12, 0x34, 0x56, 0x78]))
                );
                assert_eq!(layers.ip_length(&frame, length), Some(length - l3));
                // The same of a packet in several buffers.
                for end in [l3 + header + 20, length] {
                    assert_eq!(parse_of(&frame[..end], length), layers);
                }
            }
        }
    }
}

#[test]
fn jumbogram_length_comes_from_its_option() {
    let frame = |jumbo: u32, length: usize| {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, IpProtocol::HOP_BY_HOP.0, 64]);
        frame.extend([0; 32]);
        frame.extend(jumbo_header(jumbo));
        frame.extend([0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 0x50]);
        frame.resize(length, 0);
        frame
    };
    let whole = frame(80_000, 54 + 80_000);
    let layers = check(&whole);
    assert_eq!((layers.packet_type, layers.l4_offset), (PacketType::IPV6_TCP, 62));
    assert_eq!(layers.ip_length(&whole, whole.len()), Some(40 + 80_000));
    let cut = frame(80_000, 160);
    let layers = check(&cut);
    assert_eq!(layers.packet_type, PacketType::IPV6_TCP.with_malformed());
    assert_eq!(layers.ip_length(&cut, cut.len()), Some(40 + 80_000));
    // Other options are ignored.
    let mut other = whole.clone();
    other[56] = 5;
    assert_eq!(check(&other).packet_type, PacketType::IPV6_TCP);
}

#[test]
fn udp_length_zero_is_malformed_with_an_ip_length() {
    for version in [4, 6] {
        let frame = plain_frame(false, version, 90, 70, IpProtocol::UDP, [0; 20]);
        assert!(check(&frame).packet_type.is_malformed());
    }
}

/// A descriptor keeps an L4 header at most 1020 bytes after L3; farther ones are not found.
#[test]
fn extension_headers_of_more_than_980_bytes_are_malformed() {
    for (bytes, is_found) in [(976, true), (984, false)] {
        let mut frame = vec![0; 14 + 40 + bytes + 8];
        frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        frame[18..20].copy_from_slice(&(bytes as u16 + 8).to_be_bytes());
        frame[20] = IpProtocol::DESTINATION_OPTIONS.0;
        frame[54..56].copy_from_slice(&[IpProtocol::UDP.0, (bytes / 8 - 1) as u8]);
        frame[14 + 40 + bytes + 5] = 8;
        let layers = check(&frame);
        assert_eq!(layers.packet_type.is_udp(), is_found, "{bytes}");
        assert_eq!(layers.packet_type.is_malformed(), !is_found, "{bytes}");
        assert_eq!(layers.protocol, if is_found { 17 } else { 0 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn layers_equal_the_layers_built(packet in packets()) {
        let frame = packet.build();
        let layers = check(&frame);
        prop_assert_eq!(layers, expected(&packet));
        match packet.network {
            Network::V4 { source, destination, .. } => {
                let (a, b) = layers.ipv4_addresses(&frame).unwrap();
                prop_assert_eq!((a.to_ne_bytes(), b.to_ne_bytes()), (source, destination));
            }
            Network::V6 { source, destination, .. } => {
                let both = layers.ipv6_addresses(&frame).unwrap();
                prop_assert_eq!((&both[..16], &both[16..]), (&source[..], &destination[..]));
            }
        }
        if let Some(ports) = layers.ports(&frame) {
            let (Transport::Tcp { ports: built, .. } | Transport::Udp { ports: built }) =
                packet.transport
            else {
                panic!("ports without TCP or UDP");
            };
            let [a, b, c, d] = ports.to_ne_bytes();
            prop_assert_eq!((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])), built);
            if let Some(flow) = layers.flow_v4(&frame) {
                let l3 = usize::from(layers.l3_offset);
                prop_assert_eq!(&flow[..8], &frame[l3 + 12..l3 + 20]);
                prop_assert_eq!(&flow[8..], &[a, b, c, d]);
            }
            if let Some(flow) = layers.flow_v6(&frame) {
                prop_assert_eq!(&flow[..32], layers.ipv6_addresses(&frame).unwrap());
                prop_assert_eq!(&flow[32..], &[a, b, c, d]);
            }
        }
    }

    #[test]
    fn kinds_agree_with_etherparse(packet in packets()) {
        let kind = parse(&packet.build()).packet_type;
        // Protocols unknown to etherparse have no kind there.
        let l4 = if kind.l4() == L4Kind::Other { L4Kind::None } else { kind.l4() };
        let found = etherparse_kinds(&packet.build_for_etherparse());
        prop_assert_eq!(found, Some((kind.l3(), l4, kind.is_fragment())));
    }

    #[test]
    fn every_truncation_is_consistent(packet in packets()) {
        let frame = packet.build();
        let whole = expected(&packet);
        for end in 0..frame.len() {
            let layers = check(&frame[..end]);
            // Cutting a frame takes kinds away and never gives others.
            let kind = layers.packet_type;
            prop_assert!(kind.l3() == L3Kind::None || kind.l3() == whole.packet_type.l3());
            prop_assert!(kind.l4() == L4Kind::None || kind.l4() == whole.packet_type.l4());
            prop_assert!(layers.l4_offset == 0 || layers.l4_offset == whole.l4_offset);
        }
    }

    /// A packet whose first segment ends anywhere: the same result if the headers are in it,
    /// otherwise truncated, with no kinds but its own.
    #[test]
    fn every_first_segment_is_consistent(packet in packets(), more in 0_usize..3000) {
        let mut frame = packet.build();
        let headers_end = headers_end(&packet, &frame);
        frame.resize(frame.len() + more, 0);
        let whole = expected(&packet);
        for end in 0..=frame.len() {
            let layers = parse_of(&frame[..end], frame.len());
            if end >= headers_end {
                prop_assert_eq!(layers, whole, "{} of {}", end, frame.len());
                continue;
            }
            prop_assert!(layers.packet_type.is_malformed(), "{} of {}", end, frame.len());
            // A parse of a truncated frame finds the same.
            prop_assert_eq!(layers, parse(&frame[..end]));
        }
    }

    /// A wrong length of the whole packet is found for any first segment.
    #[test]
    fn wrong_lengths_of_segmented_packets_are_malformed(packet in packets(), cut in 1_usize..40) {
        let frame = packet.build();
        let headers_end = headers_end(&packet, &frame);
        prop_assume!(frame.len() - cut.min(frame.len()) >= headers_end);
        // The packet has `cut` bytes fewer than its headers say: as if they were cut off a frame.
        let total = frame.len() - cut;
        for end in headers_end..=total {
            prop_assert_eq!(parse_of(&frame[..end], total), parse(&frame[..total]));
        }
    }

    #[test]
    fn changed_bytes_are_handled(
        packet in packets(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut frame = packet.build();
        for (at, value) in changes {
            let at = 12 + at.index(frame.len() - 12);
            frame[at] = value;
        }
        let kind = check(&frame).packet_type;
        // If both accept a frame, they agree. Etherparse looks through the authentication header in
        // IPv4 and at tags of type 0x9100, which are other protocols here, and 0.16 counts the
        // reserved bits of the IPv6 fragment header as part of the offset.
        if !kind.is_malformed() && kind.l3() != L3Kind::Other && kind.l4() != L4Kind::Other
            && let Some((l3, l4, is_fragment)) = etherparse_kinds(&frame)
            && is_fragment == kind.is_fragment()
        {
            prop_assert_eq!((kind.l3(), kind.l4()), (l3, l4));
        }
    }

    #[test]
    fn any_bytes(data in vec(any::<u8>(), 0..120)) {
        check(&data);
    }

    #[test]
    fn any_bytes_after_a_known_type(
        mut data in vec(any::<u8>(), 24..200),
        ether_type in prop::sample::select(vec![0x0800_u16, 0x86dd, 0x0806, 0x8100, 0x88a8]),
        first in prop::sample::select(vec![0x45_u8, 0x46, 0x4f, 0x60]),
        protocol in prop::sample::select(vec![0_u8, 1, 6, 17, 43, 44, 51, 58, 59, 60]),
        length in 0_u16..200,
    ) {
        data[12..14].copy_from_slice(&ether_type.to_be_bytes());
        data[14] = first;
        if ether_type == 0x86dd {
            data[18..20].copy_from_slice(&length.to_be_bytes());
            data[20] = protocol;
        } else {
            data[16..18].copy_from_slice(&length.to_be_bytes());
            data[23] = protocol;
        }
        check(&data);
    }
}
