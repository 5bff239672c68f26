//! Views and checksums against etherparse, a naive sum, and every truncation.

use core::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{
    DoubleVlanHeader, IpAuthHeader, IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header,
    Ipv6Extensions, Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader, Ipv6RoutingExtensions,
    PacketBuilder, PacketBuilderStep, SingleVlanHeader, TcpHeader, UdpHeader, VlanHeader, VlanId,
};
use proptest::{collection::vec, option, prelude::*};

use super::*;

/// A `vlan` tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    priority: u8,
    drop_eligible: bool,
    identifier: u16,
}

impl Tag {
    pub(crate) fn tci(self) -> u16 {
        u16::from(self.priority) << 13 | u16::from(self.drop_eligible) << 12 | self.identifier
    }

    fn header(self) -> SingleVlanHeader {
        SingleVlanHeader {
            pcp: self.priority.try_into().unwrap(),
            drop_eligible_indicator: self.drop_eligible,
            vlan_id: VlanId::try_new(self.identifier).unwrap(),
            ether_type: etherparse::EtherType(0),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Network {
    V4 {
        source: [u8; 4],
        destination: [u8; 4],
        options: Vec<u8>,
        /// More fragments, offset in 8 bytes.
        fragment: Option<(bool, u16)>,
    },
    V6 {
        source: [u8; 16],
        destination: [u8; 16],
        hop_by_hop: Option<Vec<u8>>,
        destination_options: Option<Vec<u8>>,
        routing: Option<Vec<u8>>,
        fragment: Option<(bool, u16)>,
        authentication: Option<Vec<u8>>,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Transport {
    Tcp { ports: (u16, u16), options: Vec<u8> },
    Udp { ports: (u16, u16) },
    Icmp { message_type: u8, code: u8 },
    Other { protocol: u8 },
}

/// A packet to build, and so the expected result of a parser.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) tags: Vec<Tag>,
    pub(crate) network: Network,
    pub(crate) transport: Transport,
    payload: Vec<u8>,
    /// Zeros after the IP packet.
    padding: usize,
}

impl Packet {
    pub(crate) fn is_fragment(&self) -> bool {
        match self.network {
            Network::V4 { fragment, .. } | Network::V6 { fragment, .. } => {
                fragment.is_some_and(|(more, offset)| more || offset != 0)
            }
        }
    }

    pub(crate) fn l3_offset(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    /// Bytes of the IP header and its extensions.
    pub(crate) fn ip_length(&self) -> usize {
        match &self.network {
            Network::V4 { options, .. } => 20 + options.len(),
            Network::V6 {
                hop_by_hop,
                destination_options,
                routing,
                fragment,
                authentication,
                ..
            } => {
                let raw = [hop_by_hop, destination_options, routing];
                let raw = raw.into_iter().flatten().map(|body| 2 + body.len()).sum::<usize>();
                let authentication = authentication.as_ref().map_or(0, |icv| 12 + icv.len());
                40 + raw + authentication + if fragment.is_some() { 8 } else { 0 }
            }
        }
    }

    pub(crate) fn protocol(&self) -> u8 {
        match (&self.transport, &self.network) {
            (Transport::Tcp { .. }, _) => 6,
            (Transport::Udp { .. }, _) => 17,
            (Transport::Icmp { .. }, Network::V4 { .. }) => 1,
            (Transport::Icmp { .. }, Network::V6 { .. }) => 58,
            (Transport::Other { protocol }, _) => *protocol,
        }
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut bytes = self.build_for_etherparse();
        self.mend_fragment(&mut bytes);
        bytes
    }

    /// As etherparse writes and reads it; see [`Self::mend_fragment`].
    pub(crate) fn build_for_etherparse(&self) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let headers = self.ip_headers();
        let ip: PacketBuilderStep<IpHeaders> = match self.tags[..] {
            [] => ethernet.ip(headers),
            [tag] => ethernet.vlan(VlanHeader::Single(tag.header())).ip(headers),
            [outer, inner, ..] => {
                let double = DoubleVlanHeader { outer: outer.header(), inner: inner.header() };
                ethernet.vlan(VlanHeader::Double(double)).ip(headers)
            }
        };
        let mut bytes = Vec::new();
        let payload = &self.payload;
        match &self.transport {
            Transport::Tcp { ports, options } => {
                let mut header = TcpHeader::new(ports.0, ports.1, 0x0102_0304, 0x0506);
                header.acknowledgment_number = 0x0708_090a;
                (header.syn, header.psh, header.cwr) = (true, true, true);
                header.set_options_raw(options).unwrap();
                ip.tcp_header(header).write(&mut bytes, payload).unwrap();
            }
            Transport::Udp { ports } => {
                ip.udp(ports.0, ports.1).write(&mut bytes, payload).unwrap()
            }
            Transport::Icmp { message_type, code } => match self.network {
                Network::V4 { .. } => {
                    let step = ip.icmpv4_raw(*message_type, *code, [1, 2, 3, 4]);
                    step.write(&mut bytes, payload).unwrap();
                }
                Network::V6 { .. } => {
                    let step = ip.icmpv6_raw(*message_type, *code, [1, 2, 3, 4]);
                    step.write(&mut bytes, payload).unwrap();
                }
            },
            Transport::Other { protocol } => {
                ip.write(&mut bytes, IpNumber(*protocol), payload).unwrap();
            }
        }
        bytes.resize(bytes.len() + self.padding, 0);
        bytes
    }

    /// Etherparse 0.16 puts "more fragments" of IPv6 in bit 7 and the offset below it; RFC 8200 4.5
    /// has the offset above bit 3 and the flag in bit 0.
    fn mend_fragment(&self, bytes: &mut [u8]) {
        let Network::V6 { hop_by_hop, destination_options, routing, fragment, .. } = &self.network
        else {
            return;
        };
        let Some((more, offset)) = *fragment else {
            return;
        };
        let before = [hop_by_hop, destination_options, routing].into_iter().flatten();
        let at = self.l3_offset() + 40 + before.map(|body| 2 + body.len()).sum::<usize>() + 2;
        set(bytes, at, &(offset << 3 | u16::from(more)).to_be_bytes());
    }

    fn ip_headers(&self) -> IpHeaders {
        match &self.network {
            Network::V4 { source, destination, options, fragment } => {
                let mut header =
                    Ipv4Header::new(0, 64, IpNumber(0), *source, *destination).unwrap();
                header.options = options[..].try_into().unwrap();
                header.identification = 0x1234;
                if let Some((more, offset)) = *fragment {
                    header.dont_fragment = false;
                    header.more_fragments = more;
                    header.fragment_offset = IpFragOffset::try_new(offset).unwrap();
                }
                IpHeaders::Ipv4(header, Ipv4Extensions::default())
            }
            Network::V6 {
                source,
                destination,
                hop_by_hop,
                destination_options,
                routing,
                fragment,
                authentication,
            } => {
                let header = Ipv6Header {
                    traffic_class: 0x5a,
                    flow_label: 0xabcde.try_into().unwrap(),
                    hop_limit: 63,
                    source: *source,
                    destination: *destination,
                    ..Ipv6Header::default()
                };
                let raw = |body: &Option<Vec<u8>>| {
                    body.as_ref().map(|body| Ipv6RawExtHeader::new_raw(IpNumber(0), body).unwrap())
                };
                let extensions = Ipv6Extensions {
                    hop_by_hop_options: raw(hop_by_hop),
                    destination_options: raw(destination_options),
                    routing: raw(routing).map(|routing| Ipv6RoutingExtensions {
                        routing,
                        final_destination_options: None,
                    }),
                    fragment: fragment.map(|(more, offset)| {
                        let offset = IpFragOffset::try_new(offset).unwrap();
                        Ipv6FragmentHeader::new(IpNumber(0), offset, more, 0x1122_3344)
                    }),
                    auth: authentication
                        .as_ref()
                        .map(|icv| IpAuthHeader::new(IpNumber(0), 1, 2, icv).unwrap()),
                };
                IpHeaders::Ipv6(header, extensions)
            }
        }
    }
}

/// Bytes in a multiple of `unit`, after a fixed part.
fn units(fixed: usize, unit: usize, most: usize) -> impl Strategy<Value = Vec<u8>> {
    (0..=most).prop_flat_map(move |n| vec(any::<u8>(), fixed + unit * n))
}

fn network() -> impl Strategy<Value = Network> {
    let fragment = || option::weighted(0.2, (any::<bool>(), prop_oneof![Just(0), 0_u16..0x2000]));
    let extension = || option::weighted(0.3, units(6, 8, 3));
    let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>(), prop_oneof![Just(vec![]), units(0, 4, 10)]);
    let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>(), extension(), extension(), extension());
    let authentication = option::weighted(0.3, units(0, 4, 4));
    prop_oneof![
        (v4, fragment()).prop_map(|((source, destination, options), fragment)| Network::V4 {
            source,
            destination,
            options,
            fragment
        }),
        (v6, fragment(), authentication).prop_map(|(v6, fragment, authentication)| {
            let (source, destination, hop_by_hop, destination_options, routing) = v6;
            Network::V6 {
                source,
                destination,
                hop_by_hop,
                destination_options,
                routing,
                fragment,
                authentication,
            }
        }),
    ]
}

pub(crate) fn packets() -> impl Strategy<Value = Packet> {
    let tag =
        (0_u8..8, any::<bool>(), 0_u16..4096).prop_map(|(priority, drop_eligible, identifier)| {
            Tag { priority, drop_eligible, identifier }
        });
    let transport = prop_oneof![
        3 => (any::<(u16, u16)>(), prop_oneof![Just(vec![]), units(0, 4, 10)])
            .prop_map(|(ports, options)| Transport::Tcp { ports, options }),
        3 => any::<(u16, u16)>().prop_map(|ports| Transport::Udp { ports }),
        // Etherparse requires the right size of timestamps (13 and 14).
        1 => any::<(u8, u8)>()
            .prop_filter("timestamp", |(message_type, _)| !matches!(message_type, 13 | 14))
            .prop_map(|(message_type, code)| Transport::Icmp { message_type, code }),
        // GRE, ESP, SCTP.
        1 => prop_oneof![Just(47), Just(50), Just(132)]
            .prop_map(|protocol| Transport::Other { protocol }),
    ];
    let tags = prop_oneof![2 => Just(vec![]), 2 => vec(tag, 1..=2)];
    (tags, network(), transport, vec(any::<u8>(), 0..80), 0_usize..48).prop_map(
        |(tags, network, transport, payload, padding)| Packet {
            tags,
            network,
            transport,
            payload,
            padding,
        },
    )
}

/// RFC 1071 literally: add the words, fold the carries.
fn naive_sum(data: &[u8]) -> u16 {
    let mut total = 0_u64;
    for pair in data.chunks(2) {
        total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    total as u16
}

/// Reads everything that every view has of `data`; returns a number so that nothing is optimised
/// away.
fn read_all(data: &[u8]) -> usize {
    let pseudo = PseudoHeader::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
    let mut seen = 0;
    if let Ok(view) = Ethernet::new_checked(data) {
        seen += format!("{} {} {:?}", view.source(), view.destination(), view.ether_type()).len();
        seen += view.payload().len();
    }
    if let Ok(view) = Vlan::new_checked(data) {
        seen += usize::from(view.tci()) + usize::from(view.priority());
        seen += usize::from(view.ether_type().0) + view.payload().len();
    }
    for view in [Ipv4::new_checked(data), Ipv4::new_header(data)].into_iter().flatten() {
        seen += usize::from(view.version()) + view.header_length() + usize::from(view.dscp());
        seen += usize::from(view.total_length());
        seen += usize::from(view.identification());
        seen += usize::from(view.is_fragment()) + usize::from(view.time_to_live());
        seen += usize::from(view.protocol().0) + usize::from(view.checksum());
        seen += usize::from(view.verify_checksum()) + view.options().len() + view.payload().len();
        seen += usize::from(view.pseudo_header().sum(view.protocol(), 0));
    }
    for view in [Ipv6::new_checked(data), Ipv6::new_header(data)].into_iter().flatten() {
        seen += usize::from(view.version()) + usize::from(view.traffic_class());
        seen += usize::from(view.payload_length());
        seen += usize::from(view.next_header().0) + usize::from(view.hop_limit());
        seen += usize::from(view.pseudo_header().sum(view.next_header(), 0));
        seen += view.payload().len();
        if let Ok(upper) = view.upper_layer() {
            assert!(upper.offset <= view.payload().len());
            seen += upper.offset;
        }
    }
    if let Ok(view) = Tcp::new_checked(data) {
        seen += usize::from(view.source_port()) + usize::from(view.destination_port());
        seen += view.sequence_number() as usize + view.acknowledgment_number() as usize;
        seen += view.header_length() + usize::from(view.flags().0) + usize::from(view.window());
        seen += usize::from(view.checksum());
        seen += usize::from(view.verify_checksum(pseudo));
        seen += view.options().len() + view.payload().len();
    }
    for view in [Udp::new_checked(data), Udp::new_header(data)].into_iter().flatten() {
        seen += usize::from(view.source_port()) + usize::from(view.destination_port());
        seen += usize::from(view.length()) + usize::from(view.checksum());
        seen += usize::from(view.verify_checksum(pseudo)) + view.payload().len();
    }
    for first in [0, 43, 44, 51, 60] {
        if let Ok(upper) = upper_layer(IpProtocol(first), data) {
            assert!(upper.offset <= data.len());
        }
    }
    seen
}

/// Writes with every setter that can make a length wrong, then reads and fills.
fn write_all(data: &mut [u8], lie: u16) {
    let pseudo = PseudoHeader::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST);
    if let Ok(mut view) = Ipv4::new_header(&mut *data) {
        view.set_total_length(lie);
        view.fill_checksum();
        assert!(view.verify_checksum());
        view.payload_mut().reverse();
    }
    if let Ok(mut view) = Ipv6::new_header(&mut *data) {
        view.set_payload_length(lie);
        view.payload_mut().reverse();
    }
    if let Some(field) = data.get_mut(4..6) {
        field.copy_from_slice(&lie.to_be_bytes());
    }
    if let Ok(mut view) = Udp::new_header(&mut *data) {
        view.fill_checksum(pseudo);
        view.payload_mut().reverse();
    }
    if let Ok(mut view) = Tcp::new_checked(&mut *data) {
        view.fill_checksum(pseudo);
        assert!(view.verify_checksum(pseudo));
        view.payload_mut().reverse();
    }
}

#[test]
fn checksum_of_rfc_1071_example() {
    assert_eq!(checksum::sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    assert_eq!(checksum::sum(&[]), 0);
}

#[test]
fn update_of_rfc_1624_example() {
    // The case in which the older equation of RFC 1141 gives 0xffff.
    assert_eq!(checksum::update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn extension_chain_is_bounded() {
    let chain = |headers: usize| {
        let mut bytes = vec![0; 8 * headers];
        for header in bytes.chunks_mut(8) {
            header[0] = IpProtocol::DESTINATION_OPTIONS.0;
        }
        bytes[8 * (headers - 1)] = IpProtocol::UDP.0;
        upper_layer(IpProtocol::DESTINATION_OPTIONS, &bytes)
    };
    let upper = |offset| UpperLayer { protocol: IpProtocol::UDP, offset, fragment: None };
    assert_eq!(chain(1), Ok(upper(8)));
    assert_eq!(chain(MAXIMUM_EXTENSION_HEADERS), Ok(upper(8 * MAXIMUM_EXTENSION_HEADERS)));
    assert_eq!(chain(MAXIMUM_EXTENSION_HEADERS + 1), Err(Truncated));
}

#[test]
fn fragment_headers_count_as_extension_headers() {
    let chain = |before: usize| {
        let mut bytes = vec![0; 8 * before + 8];
        for header in bytes.chunks_mut(8) {
            header[0] = IpProtocol::DESTINATION_OPTIONS.0;
        }
        bytes[8 * (before - 1)] = IpProtocol::FRAGMENT.0;
        bytes[8 * before] = IpProtocol::UDP.0;
        bytes[8 * before + 3] = 1;
        upper_layer(IpProtocol::DESTINATION_OPTIONS, &bytes)
    };
    assert!(chain(MAXIMUM_EXTENSION_HEADERS - 1).unwrap().fragment.is_some());
    assert_eq!(chain(MAXIMUM_EXTENSION_HEADERS), Err(Truncated));
}

#[test]
fn udp_checksum_is_never_zero() {
    // Ports and length cancel the pseudo-header: the sum is 0xffff and its complement zero.
    let pseudo = PseudoHeader::v4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED);
    let mut data = [0; 8];
    let mut udp = Udp::new_blank(&mut data[..]).unwrap();
    udp.set_source_port(0xffff - 17 - 8 - 8);
    udp.fill_checksum(pseudo);
    assert_eq!(udp.checksum(), 0xffff);
    assert!(udp.verify_checksum(pseudo));
}

#[test]
fn udp_without_checksum_is_valid_only_over_ipv4() {
    let data = [0, 1, 0, 2, 0, 8, 0, 0];
    let udp = Udp::new_checked(&data[..]).unwrap();
    assert!(udp.verify_checksum(PseudoHeader::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST)));
    assert!(!udp.verify_checksum(PseudoHeader::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST)));
}

#[test]
fn blank_headers_are_accepted() {
    let mut data = [0xff; 60];
    let ip = Ipv4::new_blank(&mut data[..]).unwrap();
    assert_eq!((ip.version(), ip.header_length(), ip.total_length()), (4, 20, 60));
    assert_eq!(ip.payload().len(), 40);
    let ip = Ipv6::new_blank(&mut data[..]).unwrap();
    assert_eq!((ip.version(), ip.payload_length()), (6, 20));
    let tcp = Tcp::new_blank(&mut data[..]).unwrap();
    assert_eq!((tcp.header_length(), tcp.payload().len()), (20, 40));
    let udp = Udp::new_blank(&mut data[..]).unwrap();
    assert_eq!((udp.length(), udp.payload().len()), (60, 52));
    assert!(Ipv4::new_blank(&mut data[..19]).is_err());
    assert!(Ipv6::new_blank(&mut data[..39]).is_err());
    assert!(Tcp::new_blank(&mut data[..19]).is_err());
    assert!(Udp::new_blank(&mut data[..7]).is_err());

    let mut long = vec![0; 70_000];
    assert_eq!(Ipv4::new_blank(&mut long[..]).unwrap().payload().len(), 65_515);
    assert_eq!(Ipv6::new_blank(&mut long[..]).unwrap().payload().len(), 65_535);
    assert_eq!(Udp::new_blank(&mut long[..]).unwrap().payload().len(), 65_527);
}

/// From a kernel's acknowledgement that the card completed, one in 65,536: tshark considers
/// `0xffff` wrong in TCP.
#[test]
fn checksum_zero_becomes_ffff_only_in_udp() {
    for (field, stored) in [(6, 0xffff), (16, 0), (2, 0)] {
        let mut data = [0_u8; 20];
        data[18..].fill(0xff);
        checksum::finish(&mut data, 0, field).unwrap();
        assert_eq!(u16::from_be_bytes([data[field], data[field + 1]]), stored, "at {field}");
    }
}

#[test]
fn finish_stays_inside_the_packet() {
    let mut data = [0; 16];
    assert_eq!(checksum::finish(&mut data, 8, 6), Ok(()));
    assert_eq!(data[14..], [0xff, 0xff]);
    assert_eq!(checksum::finish(&mut data, 8, 7), Err(Truncated));
    assert_eq!(checksum::finish(&mut data, 17, 0), Err(Truncated));
    assert_eq!(checksum::finish(&mut data, usize::MAX, usize::MAX), Err(Truncated));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn sum_equals_the_naive_sum(data in vec(any::<u8>(), 0..300), cut in 0_usize..300) {
        prop_assert_eq!(checksum::sum(&data), naive_sum(&data));
        // At another alignment.
        let data = &data[cut.min(data.len())..];
        prop_assert_eq!(checksum::sum(data), naive_sum(data));
    }

    #[test]
    fn sums_of_pieces_join(data in vec(any::<u8>(), 1..300), cut in 0_usize..300) {
        let (head, tail) = data.split_at(cut.min(data.len()));
        let tail = checksum::sum(tail);
        let tail = if head.len() % 2 == 0 { tail } else { tail.swap_bytes() };
        prop_assert_eq!(checksum::add(checksum::sum(head), tail), naive_sum(&data));
    }

    #[test]
    fn update_is_a_new_sum(
        mut data in vec(any::<u8>(), 40..80),
        at in 0_usize..12,
        new in any::<[u8; 16]>(),
    ) {
        // As in every protocol, something in the data is not zero.
        data[39] |= 1;
        let at = at * 2;
        let value = checksum::checksum(&data);
        let old: [u8; 16] = data[at..at + 16].try_into().unwrap();
        data[at..at + 2].copy_from_slice(&new[..2]);
        let words = (get_u16(&old, 0), get_u16(&new, 0));
        prop_assert_eq!(checksum::update_u16(value, words.0, words.1), checksum::checksum(&data));
    }

    #[test]
    fn no_view_panics_on_any_bytes(mut data in vec(any::<u8>(), 0..120), lie in any::<u16>()) {
        read_all(&data);
        write_all(&mut data, lie);
        read_all(&data);
        write_all(&mut data, lie % 100);
    }

    #[test]
    fn no_view_panics_on_any_truncation(packet in packets(), lie in 0_u16..200) {
        let frame = packet.build();
        let mut l4 = packet.l3_offset() + packet.ip_length();
        for start in [0, 14, packet.l3_offset(), l4] {
            for end in start..=frame.len() {
                read_all(&frame[start..end]);
            }
        }
        l4 = l4.min(frame.len());
        write_all(&mut frame.clone()[packet.l3_offset()..], lie);
        write_all(&mut frame.clone()[l4..], lie);
    }

    #[test]
    fn fields_equal_fields_built(packet in packets()) {
        let mut frame = packet.build();
        let ethernet = Ethernet::new_checked(&frame[..]).unwrap();
        prop_assert_eq!(ethernet.source(), MacAddress([2, 0, 0, 0, 0, 1]));
        prop_assert_eq!(ethernet.destination(), MacAddress([2, 0, 0, 0, 0, 2]));
        let mut ether_type = ethernet.ether_type();
        let mut rest = ethernet.into_payload();
        for tag in &packet.tags {
            prop_assert!(ether_type.is_vlan());
            let view = Vlan::new_checked(rest).unwrap();
            prop_assert_eq!(view.tci(), tag.tci());
            prop_assert_eq!(view.priority(), tag.priority);
            ether_type = view.ether_type();
            rest = view.into_payload();
        }

        let (pseudo, segment) = match &packet.network {
            Network::V4 { source, destination, options, .. } => {
                prop_assert_eq!(ether_type, EtherType::IPV4);
                let ip = Ipv4::new_checked(rest).unwrap();
                prop_assert_eq!(ip.version(), 4);
                prop_assert_eq!(ip.source().octets(), *source);
                prop_assert_eq!(ip.destination().octets(), *destination);
                prop_assert_eq!(ip.options(), &options[..]);
                prop_assert_eq!(ip.identification(), 0x1234);
                prop_assert_eq!(ip.time_to_live(), 64);
                prop_assert_eq!(ip.protocol().0, packet.protocol());
                prop_assert_eq!(ip.is_fragment(), packet.is_fragment());
                prop_assert!(ip.verify_checksum());
                (ip.pseudo_header(), ip.into_payload())
            }
            Network::V6 { source, destination, fragment, .. } => {
                prop_assert_eq!(ether_type, EtherType::IPV6);
                let ip = Ipv6::new_checked(rest).unwrap();
                prop_assert_eq!(ip.version(), 6);
                prop_assert_eq!(ip.traffic_class(), 0x5a);
                prop_assert_eq!(ip.hop_limit(), 63);
                prop_assert_eq!(ip.source().octets(), *source);
                prop_assert_eq!(ip.destination().octets(), *destination);
                let upper = ip.upper_layer().unwrap();
                if packet.is_fragment() {
                    let (more, offset) = fragment.unwrap();
                    let offset = offset << 3;
                    let expected = Fragment { offset, more, identification: 0x1122_3344 };
                    prop_assert_eq!(upper.fragment, Some(expected));
                    return Ok(());
                }
                prop_assert_eq!(upper.fragment, None);
                prop_assert_eq!(upper.protocol.0, packet.protocol());
                prop_assert_eq!(upper.offset + 40, packet.ip_length());
                (ip.pseudo_header(), &ip.into_payload()[upper.offset..])
            }
        };

        let segment = match packet.transport {
            Transport::Tcp { ref ports, ref options } => {
                let tcp = Tcp::new_checked(segment).unwrap();
                prop_assert_eq!((tcp.source_port(), tcp.destination_port()), *ports);
                prop_assert_eq!(tcp.sequence_number(), 0x0102_0304);
                prop_assert_eq!(tcp.acknowledgment_number(), 0x0708_090a);
                prop_assert_eq!(tcp.window(), 0x0506);
                prop_assert_eq!(tcp.flags(), TcpFlags::SYN | TcpFlags::PSH | TcpFlags::CWR);
                prop_assert_eq!(tcp.options(), &options[..]);
                prop_assert_eq!(tcp.payload(), &packet.payload[..]);
                prop_assert!(tcp.verify_checksum(pseudo));
                segment
            }
            Transport::Udp { ports } => {
                let udp = Udp::new_checked(segment).unwrap();
                prop_assert_eq!((udp.source_port(), udp.destination_port()), ports);
                prop_assert_eq!(usize::from(udp.length()), 8 + packet.payload.len());
                prop_assert_eq!(udp.payload(), &packet.payload[..]);
                prop_assert!(udp.verify_checksum(pseudo));
                segment
            }
            Transport::Icmp { .. } | Transport::Other { .. } => return Ok(()),
        };

        // Ours fills in the same value as etherparse, and detects one flipped bit.
        let built = segment.to_vec();
        let start = packet.l3_offset() + packet.ip_length();
        let segment = &mut frame[start..start + built.len()];
        match packet.transport {
            Transport::Tcp { .. } => Tcp::new_checked(&mut *segment).unwrap().fill_checksum(pseudo),
            Transport::Udp { .. } => Udp::new_checked(&mut *segment).unwrap().fill_checksum(pseudo),
            _ => {}
        }
        prop_assert_eq!(&*segment, &built[..]);
        segment[0] ^= 0x10;
        let right = match packet.transport {
            Transport::Tcp { .. } => Tcp::new_checked(&*segment).unwrap().verify_checksum(pseudo),
            Transport::Udp { .. } => Udp::new_checked(&*segment).unwrap().verify_checksum(pseudo),
            _ => false,
        };
        prop_assert!(!right);
    }

    #[test]
    fn ethernet_and_vlan_round_trip(
        mut data in vec(any::<u8>(), 18..40),
        addresses in any::<([u8; 6], [u8; 6])>(),
        words in any::<(u16, u16, u16)>(),
    ) {
        let before = data.clone();
        let mut view = Ethernet::new_checked(&mut data[..]).unwrap();
        view.set_source(MacAddress(addresses.0));
        view.set_destination(MacAddress(addresses.1));
        view.set_ether_type(EtherType(words.0));
        prop_assert_eq!(view.source().0, addresses.0);
        prop_assert_eq!(view.destination().0, addresses.1);
        prop_assert_eq!(view.ether_type().0, words.0);
        let mut tag = Vlan::new_checked(view.payload_mut()).unwrap();
        tag.set_tci(words.1);
        tag.set_ether_type(EtherType(words.2));
        prop_assert_eq!(tag.tci(), words.1);
        prop_assert_eq!(tag.ether_type().0, words.2);
        prop_assert_eq!(&data[18..], &before[18..]);
    }

    #[test]
    fn ipv4_round_trip(
        mut data in vec(any::<u8>(), 24..40),
        addresses in any::<([u8; 4], [u8; 4])>(),
        length in any::<u16>(),
        bytes in any::<(u8, u8)>(),
        dont_fragment in any::<bool>(),
    ) {
        data[0] = 0x46;
        let before = data.clone();
        let mut view = Ipv4::new_header(&mut data[..]).unwrap();
        view.set_total_length(length);
        view.set_dont_fragment(dont_fragment);
        view.set_time_to_live(bytes.0);
        view.set_protocol(IpProtocol(bytes.1));
        view.set_source(addresses.0.into());
        view.set_destination(addresses.1.into());
        view.fill_checksum();
        prop_assert!(view.verify_checksum());
        prop_assert_eq!(view.total_length(), length);
        prop_assert_eq!(view.time_to_live(), bytes.0);
        prop_assert_eq!(view.protocol().0, bytes.1);
        prop_assert_eq!(view.source().octets(), addresses.0);
        prop_assert_eq!(view.destination().octets(), addresses.1);
        prop_assert_eq!(data[0], 0x46);
        prop_assert_eq!(data[6] & 0xbf, before[6] & 0xbf);
        prop_assert_eq!(data[6] & 0x40 != 0, dont_fragment);
        prop_assert_eq!(data[7], before[7]);
        prop_assert_eq!(&data[20..], &before[20..]);
    }

    #[test]
    fn ipv6_round_trip(
        mut data in vec(any::<u8>(), 40..60),
        addresses in any::<([u8; 16], [u8; 16])>(),
        length in any::<u16>(),
        bytes in any::<(u8, u8)>(),
    ) {
        let before = data.clone();
        let mut view = Ipv6::new_header(&mut data[..]).unwrap();
        view.set_payload_length(length);
        view.set_next_header(IpProtocol(bytes.0));
        view.set_hop_limit(bytes.1);
        view.set_source(addresses.0.into());
        view.set_destination(addresses.1.into());
        prop_assert_eq!(view.version(), before[0] >> 4);
        prop_assert_eq!(view.payload_length(), length);
        prop_assert_eq!(view.next_header().0, bytes.0);
        prop_assert_eq!(view.hop_limit(), bytes.1);
        prop_assert_eq!(view.source().octets(), addresses.0);
        prop_assert_eq!(view.destination().octets(), addresses.1);
        prop_assert_eq!(&data[40..], &before[40..]);
    }

    #[test]
    fn transports_round_trip(
        words in any::<(u16, u16, u16, u16)>(),
        numbers in any::<(u32, u32)>(),
        flags in any::<u8>(),
        addresses in any::<([u8; 16], [u8; 16])>(),
    ) {
        let pseudo = PseudoHeader::v6(addresses.0.into(), addresses.1.into());
        let mut data = [0xa5; 64];
        let mut view = Tcp::new_blank(&mut data[..]).unwrap();
        view.set_source_port(words.0);
        view.set_destination_port(words.1);
        view.set_sequence_number(numbers.0);
        view.set_acknowledgment_number(numbers.1);
        view.set_flags(TcpFlags(flags));
        view.set_window(words.2);
        view.set_checksum(words.3);
        prop_assert_eq!((view.source_port(), view.destination_port()), (words.0, words.1));
        prop_assert_eq!((view.sequence_number(), view.acknowledgment_number()), numbers);
        prop_assert_eq!(view.flags(), TcpFlags(flags));
        prop_assert_eq!((view.window(), view.checksum()), (words.2, words.3));
        prop_assert_eq!(view.header_length(), 20);
        // The driver leaves this to the card, and the card completes it.
        let partial = pseudo.sum(IpProtocol::TCP, 64);
        view.set_checksum(partial);
        let mut finished = data;
        checksum::finish(&mut finished, 0, 16).unwrap();
        prop_assert!(Tcp::new_checked(&finished[..]).unwrap().verify_checksum(pseudo));

        let mut view = Udp::new_blank(&mut data[..]).unwrap();
        view.set_source_port(words.0);
        view.set_destination_port(words.1);
        view.set_checksum(words.3);
        prop_assert_eq!((view.source_port(), view.destination_port()), (words.0, words.1));
        prop_assert_eq!((view.length(), view.checksum()), (64, words.3));
    }

    #[test]
    fn udp_over_ipv4_agrees_with_etherparse(
        addresses in any::<([u8; 4], [u8; 4])>(),
        ports in any::<(u16, u16)>(),
        payload in vec(any::<u8>(), 0..200),
    ) {
        let header = UdpHeader::with_ipv4_checksum(
            ports.0,
            ports.1,
            &Ipv4Header::new(0, 0, IpNumber::UDP, addresses.0, addresses.1).unwrap(),
            &payload,
        ).unwrap();
        let mut data = header.to_bytes().to_vec();
        data.extend(&payload);
        let mut view = Udp::new_checked(&mut data[..]).unwrap();
        view.fill_checksum(PseudoHeader::v4(addresses.0.into(), addresses.1.into()));
        prop_assert_eq!(view.checksum(), header.checksum);
    }
}
