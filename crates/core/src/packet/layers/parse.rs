//! Finding a packet's layers: two short paths, and a general one.
//!
//! Guarantees: the short paths give the result of [`parse_slow`], or nothing; checked by tests and
//! fuzzing.

use core::hint::select_unpredictable;

use super::{L3Kind, L4Kind, Layers, PacketType, chunk};
use crate::packet::wire::{
    EtherType, Ethernet, IpProtocol, Ipv4, Ipv6, Tcp, Udp, Vlan, get, upper_layer,
};

/// Offsets in a frame of the shortest path: no VLAN tag, IPv4 without options.
const FAST_L3: usize = 14;
const FAST_L4: usize = 34;
/// Up to the end of a TCP header. Longer than UDP needs, so that one comparison covers both; a UDP
/// frame below 54 bytes was not padded by Ethernet and may take the slow path.
const FAST_LENGTH: usize = FAST_L4 + 20;
/// Bytes of ARP for IPv4 over Ethernet (RFC 826), and of the headers of ICMP (RFC 792) and ICMPv6
/// (RFC 4443 2.1).
pub(super) const ARP_LENGTH: usize = 28;
const ICMPV4_LENGTH: usize = 8;
const ICMPV6_LENGTH: usize = 4;
/// The longest network header with its extensions that a descriptor can keep.
pub(super) const LONGEST_L3: usize = 255 * 4;
const TCP_OR_UDP: u64 = 1 << IpProtocol::TCP.0 | 1 << IpProtocol::UDP.0;

/// Finds the layers of an Ethernet frame.
///
/// Untagged TCP and UDP over IPv4 without options take the shortest path, whose four branches are
/// predictable for any mix of both. The same after one VLAN tag, and TCP and UDP over IPv6 without
/// extension headers, with or without a tag, take a short one.
#[inline]
pub fn parse(data: &[u8]) -> Layers {
    // One word on both paths: field by field, the compiler would take apart the other path's result
    // and rebuild it.
    Layers::from_word(match plain_v4(data) {
        Some(plain) => plain.word(),
        None => parse_other(data),
    })
}

/// [`parse`] for frames not handled by [`plain_v4`].
#[inline(never)]
fn parse_other(data: &[u8]) -> u64 {
    match parse_plain(data, 0) {
        Some(word) => word,
        None => parse_slow(data).to_word(),
    }
}

/// Finds the layers of an Ethernet frame of `total_length` bytes that starts with `data`: of a
/// packet that continues in further segments.
///
/// Headers must be in `data`, otherwise they count as truncated; lengths may reach to the end of
/// the frame. As [`parse`] if `total_length` is no more than `data` has.
#[inline(never)]
pub fn parse_of(data: &[u8], total_length: usize) -> Layers {
    let beyond = total_length.saturating_sub(data.len());
    match parse_plain(data, beyond) {
        Some(word) => Layers::from_word(word),
        None => parse_every(data, beyond),
    }
}

/// Finds the layers of an IP packet of `total_length` bytes that starts with `data`: one inside a
/// tunnel. Offsets count from its first byte, so `l3_offset` is 0; no kind is given if the version
/// is neither 4 nor 6.
#[inline]
pub fn parse_ip(data: &[u8], total_length: usize) -> Layers {
    let beyond = total_length.saturating_sub(data.len());
    match data.first().map(|byte| byte >> 4) {
        Some(4) => Layers::default().ipv4(data, beyond),
        Some(6) => Layers::default().ipv6(data, beyond),
        _ => Layers::default().malformed(),
    }
}

/// A frame of the shortest path of [`parse`]: TCP or UDP over IPv4, untagged, without options,
/// complete. The compiler knows its header offsets.
#[derive(Clone, Copy, Debug)]
pub struct PlainV4<'a> {
    frame: &'a [u8; FAST_LENGTH],
    is_tcp: bool,
}

impl PlainV4<'_> {
    const WORDS: [u64; 2] = plain_words(L3Kind::Ipv4, 0, FAST_L4 - FAST_L3);

    /// TCP; if not, UDP.
    #[inline(always)]
    pub fn is_tcp(&self) -> bool {
        self.is_tcp
    }

    /// Source and destination address, as they lie in memory.
    #[inline(always)]
    pub fn addresses(&self) -> (u32, u32) {
        let word = |at| u32::from_ne_bytes(get(self.frame, at));
        (word(FAST_L3 + 12), word(FAST_L3 + 16))
    }

    /// Both ports, as they lie in memory.
    #[inline(always)]
    pub fn ports(&self) -> u32 {
        u32::from_ne_bytes(get(self.frame, FAST_L4))
    }

    /// The layers of the frame: what [`parse`] finds.
    #[inline(always)]
    pub fn layers(&self) -> Layers {
        // Built from constants where they are the same for both protocols.
        let tcp = const { Layers::from_word(Self::WORDS[0]) };
        let udp = const { Layers::from_word(Self::WORDS[1]) };
        let bits =
            select_unpredictable(self.is_tcp, tcp.packet_type.bits(), udp.packet_type.bits());
        let protocol = select_unpredictable(self.is_tcp, tcp.protocol, udp.protocol);
        Layers { packet_type: PacketType::from_bits(bits), protocol, ..tcp }
    }

    #[inline(always)]
    fn word(&self) -> u64 {
        select_unpredictable(self.is_tcp, Self::WORDS[0], Self::WORDS[1])
    }
}

/// A frame of the shortest path of [`parse`]; `None` if it is not one.
#[inline(always)]
pub fn plain_v4(data: &[u8]) -> Option<PlainV4<'_>> {
    let frame = data.first_chunk::<FAST_LENGTH>()?;
    // Type, version with header length, type of service.
    let head = u32::from_le_bytes(get(frame, 12));
    // Total length, identification, flags with fragment offset, time to live, protocol.
    let rest = u64::from_le_bytes(get(frame, 16));
    let protocol = rest >> 56;
    // Zero for IPv4 without tag and options, no fragment, and a protocol below 64.
    let wrong = u64::from(head & 0x00ff_ffff ^ 0x0045_0008) | rest & 0xc000_ff3f_0000_0000;
    if wrong != 0 || TCP_OR_UDP >> (protocol & 63) & 1 == 0 {
        return None;
    }

    // Differences between TCP and UDP are selected, not branched on: their mix is random.
    let is_tcp = protocol == u64::from(IpProtocol::TCP.0);
    let tcp_length = i64::from(frame[FAST_L4 + 12] >> 4) * 4;
    let udp_length = i64::from(u16::from_be_bytes(get(frame, FAST_L4 + 4)));
    let length = select_unpredictable(is_tcp, tcp_length, udp_length);
    let least = select_unpredictable(is_tcp, 20, 8);
    let total = i64::from((rest as u16).swap_bytes());
    // Least ≤ L4 length ≤ IP payload, and IP packet ≤ data: no difference may be negative.
    let slack = (length - least)
        | (total - (FAST_L4 - FAST_L3) as i64 - length)
        | (data.len() as i64 - FAST_L3 as i64 - total);
    if slack < 0 {
        return None;
    }
    Some(PlainV4 { frame, is_tcp })
}

/// Path of [`parse`] for TCP and UDP directly after the IP header, with up to one VLAN tag; `None`
/// for other frames. The frame continues for `beyond` bytes past `data`.
#[inline(always)]
pub(super) fn parse_plain(data: &[u8], beyond: usize) -> Option<u64> {
    let ether_type = EtherType(u16::from_be_bytes(*chunk(data, 12)?));
    if !ether_type.is_vlan() {
        return parse_plain_ip::<0>(data, beyond, ether_type);
    }
    let [a, b, c, d] = *chunk(data, 14)?;
    let word = parse_plain_ip::<1>(data, beyond, EtherType(u16::from_be_bytes([c, d])))?;
    Some(word | u64::from(u16::from_be_bytes([a, b])) << 48)
}

/// The same from the network layer on, after `TAGS` tags.
#[inline(always)]
fn parse_plain_ip<const TAGS: usize>(
    data: &[u8],
    beyond: usize,
    ether_type: EtherType,
) -> Option<u64> {
    let packet = data.get(Ethernet::HEADER_LENGTH + TAGS * Vlan::HEADER_LENGTH..)?;
    match ether_type {
        EtherType::IPV4 => {
            let header: &[u8; 20] = packet.first_chunk()?;
            // No options, no fragment.
            let plain = header[0] == 0x45 && header[6] & 0x3f | header[7] == 0;
            let total = i64::from(u16::from_be_bytes(get(header, 2)));
            let words = const { plain_words(L3Kind::Ipv4, TAGS, 20) };
            if plain { parse_plain_l4::<20>(packet, beyond, header[9], total, words) } else { None }
        }
        EtherType::IPV6 => {
            let header: &[u8; 40] = packet.first_chunk()?;
            let payload = u16::from_be_bytes(get(header, 4));
            let words = const { plain_words(L3Kind::Ipv6, TAGS, 40) };
            let plain = header[0] >> 4 == 6;
            let total = 40 + i64::from(payload);
            if plain { parse_plain_l4::<40>(packet, beyond, header[6], total, words) } else { None }
        }
        _ => None,
    }
}

/// The same from the transport layer on, `HEADER` bytes into the IP packet; `words` are the results
/// for TCP and UDP.
///
/// The arithmetic is that of the shortest path, except that a frame may be too short for TCP.
#[inline(always)]
fn parse_plain_l4<const HEADER: usize>(
    packet: &[u8],
    beyond: usize,
    protocol: u8,
    total: i64,
    words: [u64; 2],
) -> Option<u64> {
    if protocol > 63 || TCP_OR_UDP >> protocol & 1 == 0 {
        return None;
    }
    let length_field: &[u8; 4] = chunk(packet, HEADER + 4)?;
    let is_tcp = protocol == IpProtocol::TCP.0;
    // Past the end of a UDP frame, whose length decides.
    let tcp_length = i64::from(packet.get(HEADER + 12).map_or(0, |byte| byte >> 4)) * 4;
    let udp_length = i64::from(u16::from_be_bytes([length_field[0], length_field[1]]));
    let length = select_unpredictable(is_tcp, tcp_length, udp_length);
    let least = select_unpredictable(is_tcp, 20, 8);
    let in_view = packet.len() as i64;
    let mut slack =
        (length - least) | (total - HEADER as i64 - length) | (in_view + beyond as i64 - total);
    if beyond != 0 {
        // Data may lie beyond, the header may not; UDP's is there, its length having been read.
        slack |= in_view - HEADER as i64 - select_unpredictable(is_tcp, tcp_length, 8);
    }
    if slack < 0 {
        return None;
    }
    Some(select_unpredictable(is_tcp, words[0], words[1]))
}

/// The result for TCP and UDP directly after an IP header, without the tag's content.
const fn plain_words(l3: L3Kind, tags: usize, header: usize) -> [u64; 2] {
    let l3_offset = Ethernet::HEADER_LENGTH + tags * Vlan::HEADER_LENGTH;
    let layers = Layers {
        l3_offset: l3_offset as u8,
        vlan_count: tags as u8,
        l4_offset: (l3_offset + header) as u16,
        packet_type: PacketType::new(l3, L4Kind::Tcp),
        protocol: IpProtocol::TCP.0,
        vlan_tci: 0,
    };
    let udp = PacketType::new(l3, L4Kind::Udp);
    let udp = Layers { packet_type: udp, protocol: IpProtocol::UDP.0, ..layers };
    [layers.to_word(), udp.to_word()]
}

/// [`parse`] without its short paths; the same result for every frame.
///
/// Public for tests and fuzzing.
#[inline(never)]
pub fn parse_slow(data: &[u8]) -> Layers {
    parse_every(data, 0)
}

/// The layers of any frame, which continues for `beyond` bytes past `data`.
#[inline(always)]
fn parse_every(data: &[u8], beyond: usize) -> Layers {
    let mut layers = Layers::default();
    let Ok(ethernet) = Ethernet::new_checked(data) else {
        return layers.malformed();
    };
    let mut ether_type = ethernet.ether_type();
    let mut payload = ethernet.into_payload();
    layers.l3_offset = Ethernet::HEADER_LENGTH as u8;

    while ether_type.is_vlan() && layers.vlan_count < 2 {
        let Ok(tag) = Vlan::new_checked(payload) else {
            return layers.malformed();
        };
        if layers.vlan_count == 0 {
            layers.vlan_tci = tag.tci();
        }
        layers.vlan_count += 1;
        layers.l3_offset += Vlan::HEADER_LENGTH as u8;
        ether_type = tag.ether_type();
        payload = tag.into_payload();
    }

    match ether_type {
        EtherType::IPV4 => layers.ipv4(payload, beyond),
        EtherType::IPV6 => layers.ipv6(payload, beyond),
        EtherType::ARP if payload.len() < ARP_LENGTH => layers.malformed(),
        EtherType::ARP => layers.l3(L3Kind::Arp),
        _ if ether_type.is_length() => layers,
        _ => layers.l3(L3Kind::Other),
    }
}

/// The steps of [`parse_slow`]: each adds the result of its layer.
impl Layers {
    #[inline]
    pub(super) fn malformed(mut self) -> Self {
        self.packet_type = self.packet_type.with_malformed();
        self
    }

    #[inline]
    fn l3(mut self, kind: L3Kind) -> Self {
        self.packet_type = PacketType::new(kind, L4Kind::None);
        self
    }

    #[inline]
    fn l4(mut self, kind: L4Kind, offset: usize) -> Self {
        self.packet_type.0 |= (kind as u8) << PacketType::L4_SHIFT;
        self.l4_offset = offset as u16;
        self
    }

    fn ipv4(self, packet: &[u8], beyond: usize) -> Self {
        let Some(header) = packet.first_chunk::<{ Ipv4::MINIMUM_HEADER_LENGTH }>() else {
            return self.malformed();
        };
        if header[0] >> 4 != 4 {
            return self.malformed();
        }
        let mut layers = self.l3(L3Kind::Ipv4);
        layers.protocol = header[9];
        // More fragments, or an offset.
        if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
            layers.packet_type = layers.packet_type.with_fragment();
        }
        let Ok(ip) = Ipv4::new_header(packet) else {
            return layers.malformed();
        };
        let is_open = ip.total_length() == 0;
        let there = packet.len() + beyond;
        let total = if is_open { there } else { usize::from(ip.total_length()) };
        // A total length beyond the packet is marked; the rest is still worth reading.
        if total < ip.header_length() || total > there {
            layers = layers.malformed();
        }
        if layers.packet_type.is_fragment() || total < ip.header_length() {
            return layers;
        }
        let beyond = out_of_view(total, packet, beyond);
        let offset = usize::from(layers.l3_offset) + ip.header_length();
        layers.transport(ip.protocol(), offset, ip.into_payload(), beyond, is_open)
    }

    fn ipv6(self, packet: &[u8], beyond: usize) -> Self {
        let Ok(ip) = Ipv6::new_header(packet) else {
            return self.malformed();
        };
        if ip.version() != 6 {
            return self.malformed();
        }
        let mut layers = self.l3(L3Kind::Ipv6);
        let is_open = ip.payload_length() == 0;
        let there = packet.len() + beyond;
        let said = Ipv6::HEADER_LENGTH + usize::from(ip.payload_length());
        let total = if is_open { there } else { said };
        let is_cut = |jumbo: u32| Ipv6::HEADER_LENGTH + jumbo as usize > there;
        if total > there || is_open && ip.jumbo_length().is_some_and(is_cut) {
            layers = layers.malformed();
        }
        let beyond = out_of_view(total, packet, beyond);
        let next_header = ip.next_header();
        let payload = ip.into_payload();
        let Ok(upper) = upper_layer(next_header, payload) else {
            return layers.malformed();
        };
        if upper.fragment.is_none() && Ipv6::HEADER_LENGTH + upper.offset > LONGEST_L3 {
            return layers.malformed();
        }
        layers.protocol = upper.protocol.0;
        if upper.fragment.is_some() {
            layers.packet_type = layers.packet_type.with_fragment();
            return layers;
        }
        if upper.protocol == IpProtocol::NO_NEXT_HEADER {
            return layers;
        }
        let offset = usize::from(layers.l3_offset) + Ipv6::HEADER_LENGTH + upper.offset;
        let payload = payload.get(upper.offset..).unwrap_or_default();
        layers.transport(upper.protocol, offset, payload, beyond, is_open)
    }

    /// `is_open`: the IP header has no length, so UDP's may have none.
    fn transport(
        self,
        protocol: IpProtocol,
        offset: usize,
        payload: &[u8],
        beyond: usize,
        is_open: bool,
    ) -> Self {
        let (kind, whole) = match (protocol, self.packet_type.l3()) {
            (IpProtocol::TCP, _) => (L4Kind::Tcp, Tcp::new_checked(payload).is_ok()),
            (IpProtocol::UDP, _) => {
                let whole = Udp::HEADER_LENGTH..=payload.len() + beyond;
                let header = Udp::new_header(payload);
                let fits = |length: u16| whole.contains(&length.into()) || is_open && length == 0;
                (L4Kind::Udp, header.is_ok_and(|udp| fits(udp.length())))
            }
            (IpProtocol::ICMPV4, L3Kind::Ipv4) => (L4Kind::Icmp, payload.len() >= ICMPV4_LENGTH),
            (IpProtocol::ICMPV6, L3Kind::Ipv6) => (L4Kind::Icmp, payload.len() >= ICMPV6_LENGTH),
            _ => return self.l4(L4Kind::Other, offset),
        };
        let layers = if whole { self } else { self.malformed() };
        // Ports, or type, code and checksum.
        if payload.len() < 4 { layers } else { layers.l4(kind, offset) }
    }
}

/// How much of an IP packet of `total` bytes lies in the `beyond` bytes after those in view.
#[inline]
fn out_of_view(total: usize, in_view: &[u8], beyond: usize) -> usize {
    total.saturating_sub(in_view.len()).min(beyond)
}
