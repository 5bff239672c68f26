//! Small frames of every kind that the parser knows.

/// An Ethernet frame: VLAN tags, type, payload.
pub fn ethernet(tags: &[u16], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in tags {
        frame.extend([0x81, 0x00]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An IPv4 packet; `fragment` is the field of flags and offset.
pub fn ipv4(protocol: u8, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let length = (20 + options.len() + payload.len()) as u16;
    let mut packet = vec![0x45 + (options.len() / 4) as u8, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 7]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(options);
    packet.extend(payload);
    packet
}

/// An IPv6 packet.
pub fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next_header, 64]);
    packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    packet.extend(payload);
    packet
}

/// A TCP segment without payload.
pub fn tcp() -> Vec<u8> {
    vec![0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]
}

/// A UDP datagram to a name server.
pub fn udp(payload: &[u8]) -> Vec<u8> {
    udp_to(53, payload)
}

/// A UDP datagram.
pub fn udp_to(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0x30, 0x39];
    datagram.extend(port.to_be_bytes());
    datagram.extend((8 + payload.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

/// One frame of each kind.
pub fn all() -> Vec<Vec<u8>> {
    let echo = [8, 0, 0, 0, 0, 1, 0, 1, b'p', b'i', b'n', b'g'];
    let solicitation = [135, 0, 0, 0, 0, 0, 0, 0];
    let arp =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
    let hop_by_hop = [6, 0, 5, 2, 0, 0, 1, 0];
    let fragment = [17, 0, 0, 1, 0, 0, 0, 9];
    let atomic = [17, 0, 0, 0, 0, 0, 0, 9];
    let inner_ipv4 = ipv4(17, 0, &[], &udp(b"inner"));
    let inner_frame = ethernet(&[7], 0x0800, &inner_ipv4);
    let vxlan = [0x08, 0, 0, 0, 0, 0, 42, 0];
    let geneve = [0x02, 0, 0x65, 0x58, 0, 0, 42, 0, 0, 1, 1, 1, 0, 0, 0, 0];
    let gre = [0x20, 0, 8, 0, 0, 0, 0, 42];
    let sync = [0x10, 0x02, 0, 44];
    let behind = |header: &[u8], rest: &[u8]| [header, rest].concat();
    vec![
        ethernet(&[], 0x0800, &ipv4(6, 0x4000, &[], &behind(&tcp(), &[0; 6]))),
        ethernet(&[], 0x0800, &ipv4(17, 0, &[], &udp(&[0; 26]))),
        ethernet(&[], 0x0800, &ipv4(6, 0, &[1, 1, 1, 0], &tcp())),
        ethernet(&[], 0x0800, &ipv4(17, 0x2000, &[], &udp(b"first fragment.."))),
        ethernet(&[], 0x0800, &ipv4(17, 0x0002, &[], b"second fragment.")),
        ethernet(&[], 0x0800, &ipv4(1, 0, &[], &echo)),
        ethernet(&[], 0x0800, &ipv4(132, 0, &[], &[0; 12])),
        ethernet(&[0x2064], 0x0800, &ipv4(17, 0, &[], &udp(b"one tag"))),
        ethernet(&[0x0064, 0x00c8], 0x86dd, &ipv6(6, &tcp())),
        ethernet(&[1, 2, 3], 0x0800, &ipv4(6, 0, &[], &tcp())),
        ethernet(&[], 0x86dd, &ipv6(6, &tcp())),
        ethernet(&[], 0x86dd, &ipv6(17, &udp(b"six"))),
        ethernet(&[], 0x86dd, &ipv6(0, &behind(&hop_by_hop, &tcp()))),
        ethernet(&[], 0x86dd, &ipv6(44, &behind(&fragment, &udp(b"part")))),
        ethernet(&[], 0x86dd, &ipv6(44, &behind(&atomic, &udp(b"whole")))),
        ethernet(&[], 0x86dd, &ipv6(58, &solicitation)),
        ethernet(&[], 0x86dd, &ipv6(59, &[])),
        ethernet(&[], 0x0806, &arp),
        // Tunnels with other packets than those above; and a PTP event message.
        ethernet(&[], 0x0800, &ipv4(17, 0, &[], &udp_to(4789, &behind(&vxlan, &inner_frame)))),
        ethernet(&[], 0x86dd, &ipv6(17, &udp_to(6081, &behind(&geneve, &inner_frame)))),
        ethernet(&[], 0x0800, &ipv4(47, 0, &[], &behind(&gre, &inner_ipv4))),
        ethernet(&[], 0x0800, &ipv4(4, 0, &[], &inner_ipv4)),
        ethernet(&[], 0x0800, &ipv4(17, 0, &[], &udp_to(319, &behind(&sync, &[0; 42])))),
        ethernet(&[], 38, &[0x42, 0x42, 3]),
        ethernet(&[], 0x88cc, &[0; 20]),
        vec![0; 13],
        vec![],
    ]
}
