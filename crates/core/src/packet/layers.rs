//! Offsets and kinds of a packet's headers, found in one pass and kept in 8 bytes.
//!
//! ```
//! use picnic_core::packet::layers::{self, PacketType};
//!
//! let mut frame = [0; 60];
//! frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]); // IPv4, header of 20 bytes
//! frame[17] = 28; // total length
//! frame[23] = 17; // UDP
//! frame[34..40].copy_from_slice(&[0x04, 0xd2, 0, 53, 0, 8]);
//!
//! let layers = layers::parse(&frame);
//! assert_eq!(layers.packet_type, PacketType::IPV4_UDP);
//! assert_eq!((layers.l3_offset, layers.l4_offset), (14, 34));
//! assert_eq!(layers.ports(&frame), Some(u32::from_ne_bytes([0x04, 0xd2, 0, 53])));
//! ```
//!
//! The rules are those of receive-side scaling in a NIC, so that equal flows get equal answers:
//!
//! - A kind is given if the fields that a hash needs are present: for IPv4 and IPv6 the fixed
//!   header with its addresses, for TCP and UDP the ports, for ICMP type, code and checksum (4
//!   bytes).
//! - `malformed` marks a truncated header or an inconsistent length. A TCP header truncated after
//!   its ports, or a packet shortened by a capture, thus keeps its kind and queue and is marked.
//! - L4 of a fragment, including the first, is ignored: all fragments of a packet must go to one
//!   queue. An atomic IPv6 fragment (RFC 6946) is not treated as a fragment.
//! - For a packet in several buffers, [`parse_of`] compares lengths with the whole; headers that
//!   continue are handled by [`Descriptor::parse`](super::desc::Descriptor::parse).
//! - Bytes after the IP length are padding and never part of L4. An IP length of 0 stands for that
//!   of the frame: a super-frame too long for the field (BIG TCP), or one whose length a NIC fills
//!   in. Linux, Wireshark and tcpdump read it the same way.
//! - A third VLAN tag is [`L3Kind::Other`]; more than eight IPv6 extension headers, or more than
//!   980 bytes of them, are malformed. A host may read further: code that must know what the host
//!   reads checks [`Layers::is_plain`] first.
//!
//! Guarantees: no panic and no offset beyond `data`, for any bytes; no accessor panics, even on
//! data that the layers were not parsed from. Without `malformed`, the views of
//! [`wire`](super::wire) accept L3 and L4 at the offsets given, if the whole packet is in `data`.
//!
//! Source: RFC 791, RFC 8200, IEEE 802.1Q; RSS as in the "Microsoft RSS hashing types" of NDIS.

use super::wire::Ipv6;
use core::fmt;

mod parse;
mod route;
#[cfg(test)]
mod tests;

pub use parse::{PlainV4, parse, parse_ip, parse_of, parse_slow, plain_v4};
pub use route::Route;

/// The most header bytes that a parse reads: Ethernet with two tags, IP with its extensions, the
/// longest TCP header.
pub const LONGEST_HEADERS: usize = 22 + parse::LONGEST_L3 + 60;

/// Network layer of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum L3Kind {
    /// Truncated, or an IEEE 802.3 frame with a length in place of a type.
    None = 0,
    /// IPv4.
    Ipv4 = 1,
    /// IPv6.
    Ipv6 = 2,
    /// ARP.
    Arp = 3,
    /// Another EtherType.
    Other = 4,
}

/// Transport layer of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum L4Kind {
    /// Not IP, a fragment, truncated, or IPv6 with no next header.
    None = 0,
    /// TCP.
    Tcp = 1,
    /// UDP.
    Udp = 2,
    /// ICMP over IPv4, ICMPv6 over IPv6.
    Icmp = 3,
    /// Another protocol.
    Other = 4,
}

/// Kinds of a packet's layers, with a fragment and a malformed bit: `mf44 4333`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct PacketType(u8);

impl PacketType {
    /// Nothing recognised.
    pub const NONE: Self = Self(0);
    /// ARP.
    pub const ARP: Self = Self::new(L3Kind::Arp, L4Kind::None);
    /// IPv4 and TCP.
    pub const IPV4_TCP: Self = Self::new(L3Kind::Ipv4, L4Kind::Tcp);
    /// IPv4 and UDP.
    pub const IPV4_UDP: Self = Self::new(L3Kind::Ipv4, L4Kind::Udp);
    /// IPv4 and ICMP.
    pub const IPV4_ICMP: Self = Self::new(L3Kind::Ipv4, L4Kind::Icmp);
    /// IPv4 fragment.
    pub const IPV4_FRAGMENT: Self = Self::new(L3Kind::Ipv4, L4Kind::None).with_fragment();
    /// IPv6 and TCP.
    pub const IPV6_TCP: Self = Self::new(L3Kind::Ipv6, L4Kind::Tcp);
    /// IPv6 and UDP.
    pub const IPV6_UDP: Self = Self::new(L3Kind::Ipv6, L4Kind::Udp);
    /// IPv6 and ICMPv6.
    pub const IPV6_ICMP: Self = Self::new(L3Kind::Ipv6, L4Kind::Icmp);
    /// IPv6 fragment.
    pub const IPV6_FRAGMENT: Self = Self::new(L3Kind::Ipv6, L4Kind::None).with_fragment();

    const L3_MASK: u8 = 0x07;
    const L4_SHIFT: u32 = 3;
    const FRAGMENT: u8 = 0x40;
    const MALFORMED: u8 = 0x80;

    /// Type of a packet that is whole and well formed.
    #[inline]
    pub const fn new(l3: L3Kind, l4: L4Kind) -> Self {
        Self(l3 as u8 | (l4 as u8) << Self::L4_SHIFT)
    }

    /// The same, of a fragment.
    #[inline]
    #[must_use]
    pub const fn with_fragment(self) -> Self {
        Self(self.0 | Self::FRAGMENT)
    }

    /// The same, malformed.
    #[inline]
    #[must_use]
    pub const fn with_malformed(self) -> Self {
        Self(self.0 | Self::MALFORMED)
    }

    /// The byte, as in a descriptor.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From a byte of [`Self::bits`]; other bytes have kinds `Other` where they have no meaning.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Network layer.
    #[inline]
    pub const fn l3(self) -> L3Kind {
        match self.0 & Self::L3_MASK {
            0 => L3Kind::None,
            1 => L3Kind::Ipv4,
            2 => L3Kind::Ipv6,
            3 => L3Kind::Arp,
            _ => L3Kind::Other,
        }
    }

    /// Transport layer.
    #[inline]
    pub const fn l4(self) -> L4Kind {
        match self.0 >> Self::L4_SHIFT & 7 {
            0 => L4Kind::None,
            1 => L4Kind::Tcp,
            2 => L4Kind::Udp,
            3 => L4Kind::Icmp,
            _ => L4Kind::Other,
        }
    }

    /// IPv4.
    #[inline]
    pub const fn is_ipv4(self) -> bool {
        self.0 & Self::L3_MASK == L3Kind::Ipv4 as u8
    }

    /// IPv6.
    #[inline]
    pub const fn is_ipv6(self) -> bool {
        self.0 & Self::L3_MASK == L3Kind::Ipv6 as u8
    }

    /// TCP, over IPv4 or IPv6.
    #[inline]
    pub const fn is_tcp(self) -> bool {
        matches!(self.l4(), L4Kind::Tcp)
    }

    /// UDP, over IPv4 or IPv6.
    #[inline]
    pub const fn is_udp(self) -> bool {
        matches!(self.l4(), L4Kind::Udp)
    }

    /// TCP or UDP.
    #[inline]
    pub const fn has_ports(self) -> bool {
        matches!(self.l4(), L4Kind::Tcp | L4Kind::Udp)
    }

    /// One of several IP fragments.
    #[inline]
    pub const fn is_fragment(self) -> bool {
        self.0 & Self::FRAGMENT != 0
    }

    /// A header is truncated, or a length inconsistent.
    #[inline]
    pub const fn is_malformed(self) -> bool {
        self.0 & Self::MALFORMED != 0
    }
}

impl fmt::Display for PacketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.l3() {
            L3Kind::None => "none",
            L3Kind::Ipv4 => "ipv4",
            L3Kind::Ipv6 => "ipv6",
            L3Kind::Arp => "arp",
            L3Kind::Other => "other",
        })?;
        f.write_str(match self.l4() {
            L4Kind::None => "",
            L4Kind::Tcp => " tcp",
            L4Kind::Udp => " udp",
            L4Kind::Icmp => " icmp",
            L4Kind::Other => " other",
        })?;
        f.write_str(if self.is_fragment() { " fragment" } else { "" })?;
        f.write_str(if self.is_malformed() { " malformed" } else { "" })
    }
}

impl fmt::Debug for PacketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PacketType({self})")
    }
}

/// The result of [`parse()`]. No byte of it is padding.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Layers {
    /// Bytes before the network layer, VLAN tags included: 14, 18 or 22; 0 if the frame is shorter.
    pub l3_offset: u8,
    /// VLAN tags, 0 to 2.
    pub vlan_count: u8,
    /// Bytes before the transport layer; 0 if [`L4Kind::None`].
    pub l4_offset: u16,
    /// Kinds of both.
    pub packet_type: PacketType,
    /// IP protocol after the extension headers, also of a fragment; 0 if not IP or not reached.
    pub protocol: u8,
    /// Control information of the outer VLAN tag, in host order; 0 if there is none.
    pub vlan_tci: u16,
}

const _: () = assert!(size_of::<Layers>() == 8);

impl Layers {
    /// Whether it is TCP, UDP or ICMP directly after an IP header without options or extensions: a
    /// host that accepts the packet reads the same addresses, protocol and ports.
    #[inline(always)]
    pub const fn is_plain(&self) -> bool {
        let header = self.l4_offset.wrapping_sub(self.l3_offset as u16);
        let plain = if self.packet_type.is_ipv4() { 20 } else { 40 };
        matches!(self.packet_type.l4(), L4Kind::Tcp | L4Kind::Udp | L4Kind::Icmp) && header == plain
    }

    /// Bytes of headers, up to the end of the last known one: TCP, UDP or ICMP, else IP or what
    /// precedes it. All of `data`, which starts with the headers, if that is unknown.
    #[inline]
    pub fn headers_length(&self, data: &[u8]) -> usize {
        let (l3, l4) = (usize::from(self.l3_offset), usize::from(self.l4_offset));
        let at = |place: usize| usize::from(data.get(place).copied().unwrap_or(0));
        let length = match self.packet_type.l4() {
            L4Kind::Tcp => l4 + (at(l4 + 12) >> 4) * 4,
            L4Kind::Udp | L4Kind::Icmp => l4 + 8,
            _ if l4 != 0 => l4,
            // A fragment, or an unknown protocol.
            _ if self.packet_type.is_ipv4() => l3 + (at(l3) & 0xf) * 4,
            _ if self.packet_type.is_ipv6() => data.len(),
            _ if self.packet_type.l3() == L3Kind::Arp => l3 + parse::ARP_LENGTH,
            _ => l3,
        };
        length.min(data.len())
    }

    /// Bytes of the IP packet that begins at L3, header included, in a packet of `packet_length`
    /// bytes: from its header, even if that is more than there is, or a jumbo payload option; all
    /// there is if the header has 0. `None` if it is not IP.
    #[inline]
    pub fn ip_length(&self, data: &[u8], packet_length: usize) -> Option<usize> {
        let l3 = usize::from(self.l3_offset);
        let (place, header) = match self.packet_type.l3() {
            L3Kind::Ipv4 => (2, 0),
            L3Kind::Ipv6 => (4, 40),
            _ => return None,
        };
        match u16::from_be_bytes(*chunk(data, l3 + place)?) {
            0 => match Ipv6::new_header(data.get(l3..)?).map(|ip| ip.jumbo_length()) {
                Ok(Some(jumbo)) if self.packet_type.is_ipv6() => Some(header + jumbo as usize),
                _ => Some(packet_length.saturating_sub(l3)),
            },
            said => Some(header + usize::from(said)),
        }
    }

    /// IPv4 source and destination, each as its four bytes lie in memory.
    #[inline]
    pub fn ipv4_addresses(&self, data: &[u8]) -> Option<(u32, u32)> {
        if !self.packet_type.is_ipv4() {
            return None;
        }
        let [a, b, c, d, e, f, g, h] = *chunk(data, usize::from(self.l3_offset) + 12)?;
        Some((u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])))
    }

    /// IPv6 source and destination, one after the other.
    #[inline]
    pub fn ipv6_addresses<'a>(&self, data: &'a [u8]) -> Option<&'a [u8; 32]> {
        if !self.packet_type.is_ipv6() {
            return None;
        }
        chunk(data, usize::from(self.l3_offset) + 8)
    }

    /// TCP or UDP source and destination port, as their four bytes lie in memory.
    #[inline]
    pub fn ports(&self, data: &[u8]) -> Option<u32> {
        if !self.packet_type.has_ports() {
            return None;
        }
        Some(u32::from_ne_bytes(*chunk(data, self.l4_offset.into())?))
    }

    /// Addresses and ports of TCP or UDP over IPv4, in wire order: the input of the RSS hash.
    #[inline]
    pub fn flow_v4(&self, data: &[u8]) -> Option<[u8; 12]> {
        if !self.packet_type.is_ipv4() || !self.packet_type.has_ports() {
            return None;
        }
        let [a, b, c, d, e, f, g, h] = *chunk(data, usize::from(self.l3_offset) + 12)?;
        let [i, j, k, l] = *chunk(data, self.l4_offset.into())?;
        Some([a, b, c, d, e, f, g, h, i, j, k, l])
    }

    /// Addresses and ports of TCP or UDP over IPv6, in wire order: the input of the RSS hash.
    #[inline]
    pub fn flow_v6(&self, data: &[u8]) -> Option<[u8; 36]> {
        if !self.packet_type.has_ports() {
            return None;
        }
        let addresses = self.ipv6_addresses(data)?;
        let mut flow = [0; 36];
        *flow.first_chunk_mut()? = *addresses;
        *flow.last_chunk_mut()? = *chunk::<4>(data, self.l4_offset.into())?;
        Some(flow)
    }
}

/// In one register, for [`parse`].
impl Layers {
    /// The fields in one word, in the order of memory on a little-endian machine.
    #[inline]
    const fn to_word(self) -> u64 {
        self.l3_offset as u64
            | (self.vlan_count as u64) << 8
            | (self.l4_offset as u64) << 16
            | (self.packet_type.0 as u64) << 32
            | (self.protocol as u64) << 40
            | (self.vlan_tci as u64) << 48
    }

    #[inline]
    const fn from_word(word: u64) -> Self {
        Self {
            l3_offset: word as u8,
            vlan_count: (word >> 8) as u8,
            l4_offset: (word >> 16) as u16,
            packet_type: PacketType((word >> 32) as u8),
            protocol: (word >> 40) as u8,
            vlan_tci: (word >> 48) as u16,
        }
    }
}

#[inline]
fn chunk<const N: usize>(data: &[u8], at: usize) -> Option<&[u8; N]> {
    data.get(at..)?.first_chunk()
}
