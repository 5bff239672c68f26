//! TCP, UDP and ICMP frames with correct checksums computed by etherparse, and checks of them.

use etherparse::{
    IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, NetSlice, SlicedPacket, TcpHeader,
    TcpOptionElement, TransportSlice, UdpHeader,
};

/// A frame with right checksums.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) v6: bool,
    pub(crate) tags: usize,
    pub(crate) flow: u8,
    pub(crate) identification: u16,
    pub(crate) hops: u8,
    /// `None`: UDP.
    pub(crate) tcp: Option<TcpHeader>,
    pub(crate) payload: Vec<u8>,
}

/// A TCP header with timestamps.
pub(crate) fn tcp(flow: u8, sequence: u32, timestamp: u32) -> TcpHeader {
    let mut tcp = TcpHeader::new(1000 + u16::from(flow), 80, sequence, 512);
    tcp.ack = true;
    tcp.acknowledgment_number = 77;
    let options =
        [TcpOptionElement::Noop, TcpOptionElement::Noop, TcpOptionElement::Timestamp(timestamp, 5)];
    tcp.set_options(&options).unwrap();
    tcp
}

impl Frame {
    /// Bytes of headers.
    pub(crate) fn headers(&self) -> usize {
        let l4 = self.tcp.as_ref().map_or(8, TcpHeader::header_len);
        14 + 4 * self.tags + if self.v6 { 40 } else { 20 } + l4
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for tag in 0..self.tags {
            frame.extend([0x81, 0x00, 0x60, 100 + tag as u8]);
        }
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        let length = self.headers() - 14 - 4 * self.tags + self.payload.len();
        let protocol = if self.tcp.is_some() { IpNumber::TCP } else { IpNumber::UDP };
        let mut l4 = Vec::new();
        let udp = |length: usize| UdpHeader {
            source_port: 1000 + u16::from(self.flow),
            destination_port: 53,
            length: length as u16,
            checksum: 0,
        };
        if self.v6 {
            let ip = Ipv6Header {
                traffic_class: 0,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: (length - 40) as u16,
                next_header: protocol,
                hop_limit: self.hops,
                source: [0x20; 16],
                destination: [0xfd; 16],
            };
            ip.write(&mut frame).unwrap();
            if let Some(mut tcp) = self.tcp.clone() {
                tcp.checksum = tcp.calc_checksum_ipv6(&ip, &self.payload).unwrap();
                tcp.write(&mut l4).unwrap();
            } else {
                let mut udp = udp(length - 40);
                udp.checksum = udp.calc_checksum_ipv6(&ip, &self.payload).unwrap();
                udp.write(&mut l4).unwrap();
            }
        } else {
            let (source, destination) = ([10, 0, 0, 1], [10, 0, 0, 2]);
            let mut ip =
                Ipv4Header::new((length - 20) as u16, self.hops, protocol, source, destination)
                    .unwrap();
            ip.identification = self.identification;
            ip.dont_fragment = true;
            ip.header_checksum = ip.calc_header_checksum();
            ip.write(&mut frame).unwrap();
            if let Some(mut tcp) = self.tcp.clone() {
                tcp.checksum = tcp.calc_checksum_ipv4(&ip, &self.payload).unwrap();
                tcp.write(&mut l4).unwrap();
            } else {
                let mut udp = udp(length - 20);
                udp.checksum = udp.calc_checksum_ipv4(&ip, &self.payload).unwrap();
                udp.write(&mut l4).unwrap();
            }
        }
        frame.extend(l4);
        frame.extend(&self.payload);
        frame
    }
}

/// Etherparse's reading of a frame with correct lengths and checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) identification: u16,
    pub(crate) sequence: u32,
    /// FIN, PSH, CWR.
    pub(crate) flags: (bool, bool, bool),
    pub(crate) payload: Vec<u8>,
}

/// Reads a frame; its lengths and checksums must be correct, and no bytes may follow it.
pub(crate) fn read(frame: &[u8]) -> Read {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let mut read = Read::default();
    let (source, destination, length) = match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            read.identification = header.identification;
            (header.source.to_vec(), header.destination.to_vec(), usize::from(header.total_len))
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header().to_header();
            let length = 40 + usize::from(header.payload_length);
            (header.source.to_vec(), header.destination.to_vec(), length)
        }
        other => panic!("{other:?}"),
    };
    let tags = frame[12..].chunks(4).take_while(|chunk| chunk[..2] == [0x81, 0]).count();
    assert_eq!(14 + 4 * tags + length, frame.len());
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let header = tcp.to_header();
            let payload = tcp.payload();
            let right = match (<[u8; 4]>::try_from(&*source), <[u8; 4]>::try_from(&*destination)) {
                (Ok(source), Ok(destination)) => {
                    header.calc_checksum_ipv4_raw(source, destination, payload)
                }
                _ => header.calc_checksum_ipv6_raw(
                    source[..].try_into().unwrap(),
                    destination[..].try_into().unwrap(),
                    payload,
                ),
            };
            assert_eq!(header.checksum, right.unwrap());
            read.sequence = header.sequence_number;
            read.flags = (header.fin, header.psh, header.cwr);
            read.payload = payload.to_vec();
        }
        Some(TransportSlice::Udp(udp)) => {
            let header = udp.to_header();
            assert_eq!(usize::from(header.length), 8 + udp.payload().len());
            let right = match (<[u8; 4]>::try_from(&*source), <[u8; 4]>::try_from(&*destination)) {
                (Ok(source), Ok(destination)) => {
                    header.calc_checksum_ipv4_raw(source, destination, udp.payload())
                }
                _ => header.calc_checksum_ipv6_raw(
                    source[..].try_into().unwrap(),
                    destination[..].try_into().unwrap(),
                    udp.payload(),
                ),
            };
            assert_eq!(header.checksum, right.unwrap());
            read.payload = udp.payload().to_vec();
        }
        other => panic!("{other:?}"),
    }
    read
}
