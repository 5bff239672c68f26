//! Header parsing: any bytes, one answer, no panic, no offset outside the packet.

use crate::frames;
use picnic_core::packet::layers::{L3Kind, L4Kind, Layers, parse, parse_slow};
use picnic_core::packet::wire::{
    EtherType, Ethernet, IpProtocol, Ipv4, Ipv6, Tcp, Udp, Vlan, checksum, upper_layer,
};
use std::hint::black_box;

/// Parses the bytes as a frame, and reads and writes them through every view.
pub fn run(data: &[u8]) {
    let layers = parse(data);
    assert_eq!(layers, parse_slow(data), "the short path and the long one differ");
    assert!(usize::from(layers.l3_offset) <= data.len(), "L3 beyond the packet");
    assert!(usize::from(layers.l4_offset) <= data.len(), "L4 beyond the packet");
    assert!(layers.vlan_count <= 2);
    whole_means_whole(data, &layers);
    // The accessors must tolerate bytes that the layers were not parsed from.
    for bytes in [data, data.get(..data.len() / 2).unwrap_or_default(), &[]] {
        black_box(layers.ipv4_addresses(bytes));
        black_box(layers.ipv6_addresses(bytes));
        black_box(layers.ports(bytes));
        black_box(layers.flow_v4(bytes));
        black_box(layers.flow_v6(bytes));
    }
    for start in [0, usize::from(layers.l3_offset), usize::from(layers.l4_offset)] {
        let bytes = data.get(start..).unwrap_or_default();
        read(bytes);
        write(&mut bytes.to_vec());
    }
}

/// If nothing is malformed, the views accept L3 and L4 at the given offsets.
fn whole_means_whole(data: &[u8], layers: &Layers) {
    let packet_type = layers.packet_type;
    if packet_type.is_malformed() {
        return;
    }
    let l3 = &data[usize::from(layers.l3_offset)..];
    let payload = match packet_type.l3() {
        L3Kind::Ipv4 => Ipv4::new_checked(l3).expect("IPv4 is whole").into_payload(),
        L3Kind::Ipv6 => {
            let ip = Ipv6::new_checked(l3).expect("IPv6 is whole");
            let upper = ip.upper_layer().expect("the extension headers are whole");
            assert_eq!(upper.protocol.0, layers.protocol);
            ip.into_payload().get(upper.offset..).expect("the upper layer is in the packet")
        }
        L3Kind::Arp => return assert!(l3.len() >= 28),
        _ => return,
    };
    match (packet_type.l4(), packet_type.l3()) {
        (L4Kind::Tcp, _) => assert!(Tcp::new_checked(payload).is_ok()),
        (L4Kind::Udp, _) => assert!(Udp::new_checked(payload).is_ok()),
        (L4Kind::Icmp, L3Kind::Ipv4) => assert!(payload.len() >= 8),
        (L4Kind::Icmp, _) => assert!(payload.len() >= 4),
        _ => {}
    }
}

macro_rules! touch {
    ($view:expr, $($accessor:ident),+ $(,)?) => {
        if let Ok(view) = $view {
            $(let _ = black_box(view.$accessor());)+
        }
    };
}

/// Every accessor of every view that takes the bytes.
fn read(bytes: &[u8]) {
    touch!(Ethernet::new_checked(bytes), destination, source, ether_type, payload);
    touch!(Vlan::new_checked(bytes), tci, priority, payload);
    for view in [Ipv4::new_checked(bytes), Ipv4::new_header(bytes)] {
        touch!(
            view,
            version,
            header_length,
            dscp,
            total_length,
            identification,
            is_fragment,
            time_to_live,
            protocol,
            source,
            destination,
            options,
            verify_checksum,
            pseudo_header,
            payload,
        );
    }
    for view in [Ipv6::new_checked(bytes), Ipv6::new_header(bytes)] {
        touch!(
            view,
            version,
            traffic_class,
            payload_length,
            next_header,
            hop_limit,
            source,
            destination,
            upper_layer,
            pseudo_header,
            payload,
        );
    }
    let pseudo_header = Ipv4::new_header(bytes).map(|ip| ip.pseudo_header());
    if let Ok(tcp) = Tcp::new_checked(bytes) {
        black_box((tcp.header_length(), tcp.flags(), tcp.options(), tcp.payload()));
        black_box(pseudo_header.map(|sum| tcp.verify_checksum(sum))).ok();
    }
    for udp in [Udp::new_checked(bytes), Udp::new_header(bytes)].into_iter().flatten() {
        black_box((udp.source_port(), udp.length(), udp.payload()));
        black_box(pseudo_header.map(|sum| udp.verify_checksum(sum))).ok();
    }
    for protocol in 0..=255 {
        if let Ok(upper) = upper_layer(IpProtocol(protocol), bytes) {
            assert!(upper.offset <= bytes.len());
        }
    }
}

/// Setters may make lengths wrong; later reads must still not panic.
fn write(bytes: &mut [u8]) {
    let Some(&chosen) = bytes.last() else { return };
    let number = u16::from(chosen) << 8 | u16::from(chosen);
    if let Ok(mut ethernet) = Ethernet::new_checked(&mut *bytes) {
        ethernet.set_ether_type(EtherType(number));
        black_box(ethernet.payload_mut().len());
    }
    if let Ok(mut ip) = Ipv4::new_checked(&mut *bytes) {
        ip.set_total_length(number);
        black_box(ip.payload().len());
        ip.fill_checksum();
        assert!(ip.verify_checksum());
    }
    if let Ok(mut ip) = Ipv6::new_checked(&mut *bytes) {
        ip.set_payload_length(number);
        ip.set_next_header(IpProtocol(chosen));
        black_box((ip.payload().len(), ip.upper_layer().is_ok()));
    }
    let pseudo_header = Ipv6::new_header(&*bytes).map(|ip| ip.pseudo_header());
    if let (Ok(mut tcp), Ok(pseudo_header)) = (Tcp::new_checked(&mut *bytes), pseudo_header) {
        tcp.fill_checksum(pseudo_header);
        assert!(tcp.verify_checksum(pseudo_header));
    }
    if let (Ok(mut udp), Ok(pseudo_header)) = (Udp::new_checked(&mut *bytes), pseudo_header) {
        udp.fill_checksum(pseudo_header);
        assert!(udp.verify_checksum(pseudo_header));
        black_box(udp.payload().len());
    }
    black_box(checksum::finish(bytes, usize::from(chosen) / 2, usize::from(chosen) / 3)).ok();
}

/// One frame of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    frames::all()
}
