//! Parses a tunnel's headers: kind, payload and its place.
//!
//! Guarantees: no panic, for any bytes; a [`Tunnel`] lies within the packet, and the first bytes of
//! its payload in its first buffer.
//!
//! Source: RFC 7348 (VXLAN), RFC 8926 (GENEVE), RFC 2784 and 2890 (GRE), RFC 2003 and 4213 (IP in
//! IP), RFC 6040 (congestion notification), RFC 8986 4.4 (no decapsulation with segments left).

use super::Kind;
use crate::bytes::{get, get_u16, put_u16};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::{LONGEST_HEADERS, Layers, Route};
use picnic_core::packet::wire::{EtherType, IpProtocol, checksum};
use std::net::IpAddr;

/// The payload of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    Ethernet,
    Ipv4,
    Ipv6,
}

impl Inside {
    /// Its EtherType, as in GENEVE and GRE.
    pub(super) const fn ether_type(self) -> EtherType {
        match self {
            Inside::Ethernet => EtherType::ETHERNET,
            Inside::Ipv4 => EtherType::IPV4,
            Inside::Ipv6 => EtherType::IPV6,
        }
    }

    fn of(ether_type: u16) -> Option<Inside> {
        match EtherType(ether_type) {
            EtherType::ETHERNET => Some(Inside::Ethernet),
            EtherType::IPV4 => Some(Inside::Ipv4),
            EtherType::IPV6 => Some(Inside::Ipv6),
            _ => None,
        }
    }

    /// Whether `data`, which may continue in a further buffer, can be its start.
    fn begins(self, data: &[u8], length: usize) -> bool {
        let version = data.first().map(|byte| byte >> 4);
        match self {
            Inside::Ethernet => length >= 14 && data.len() >= 14,
            Inside::Ipv4 => length >= 20 && version == Some(4),
            Inside::Ipv6 => length >= 40 && version == Some(6),
        }
    }
}

/// A tunnel's headers and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tunnel {
    pub(super) kind: Kind,
    pub(super) inside: Inside,
    /// The outer layers; L4 is UDP, GRE, or the payload.
    pub(super) outer: Layers,
    /// Offset of the payload from the start of the packet, and of its end.
    pub(super) start: usize,
    pub(super) end: usize,
    /// VNI, or key of GRE.
    pub(super) network: Option<u32>,
    /// GRE with a checksum, over all from L4 to the end.
    pub(super) has_gre_checksum: bool,
}

/// Most bytes of headers before the payload: GENEVE's are the longest after IP's.
pub(super) const LONGEST_OUTER: usize = LONGEST_HEADERS + 8 + 8 + 63 * 4;

/// The reading of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Not a wanted tunnel, a tunnel that carries neither Ethernet nor IP, or one that has not
    /// arrived: a routing header or source route sends it on.
    Other,
    /// A fragment of a possible tunnel.
    Fragment,
    /// A tunnel whose headers are truncated, contradictory or invalid.
    Malformed,
    /// GENEVE with an unknown critical option.
    Critical,
    Tunnel(Tunnel),
}

/// Wanted tunnels.
#[derive(Clone, Debug)]
pub(super) struct SoughtTunnels {
    pub(super) kinds: [bool; Kind::COUNT],
    pub(super) vxlan_port: u16,
    pub(super) geneve_port: u16,
}

impl SoughtTunnels {
    fn has(&self, kind: Kind) -> bool {
        self.kinds[kind as usize]
    }

    /// The reading of a packet parsed to `outer`. Its end may be missing if only its headers are
    /// read.
    #[inline]
    pub(super) fn read(&self, packet: &Descriptor, outer: &Layers, only_reads: bool) -> Reading {
        let (data, kind) = (packet.data(), outer.packet_type);
        if !kind.is_ipv4() && !kind.is_ipv6() {
            return Reading::Other;
        }
        let l4 = usize::from(outer.l4_offset);
        let (tunnel, inside) = match IpProtocol(outer.protocol) {
            // Ports of a fragment are ignored: it passes as not a tunnel.
            IpProtocol::UDP if l4 != 0 => match get_u16(data, l4 + 2) {
                Some(port) if port == self.vxlan_port && self.has(Kind::Vxlan) => {
                    (Kind::Vxlan, None)
                }
                Some(port) if port == self.geneve_port && self.has(Kind::Geneve) => {
                    (Kind::Geneve, None)
                }
                _ => return Reading::Other,
            },
            IpProtocol::GRE if self.has(Kind::Gre) => (Kind::Gre, None),
            IpProtocol::IPV4 if self.has(Kind::Ipip) => (Kind::Ipip, Some(Inside::Ipv4)),
            IpProtocol::IPV6 if self.has(Kind::Ipip) => (Kind::Ipip, Some(Inside::Ipv6)),
            _ => return Reading::Other,
        };
        if kind.is_fragment() {
            return Reading::Fragment;
        }
        let is_whole = match only_reads {
            true => packet.is_readable(outer),
            false => !kind.is_malformed(),
        };
        if !is_whole || l4 == 0 {
            return Reading::Malformed;
        }
        if outer.route(data) != Route::Done {
            return Reading::Other;
        }
        let found = match tunnel {
            Kind::Vxlan => vxlan(data, l4),
            Kind::Geneve => geneve(data, l4),
            Kind::Gre => gre(data, l4),
            Kind::Ipip => Ok(Shim { inside, length: 0, network: None, has_checksum: false }),
        };
        let shim = match found {
            Ok(shim) => shim,
            Err(reading) => return reading,
        };
        let Some(inside) = shim.inside else { return Reading::Other };
        let (start, end) = (l4 + shim.length, end_of(packet, outer));
        let behind = data.get(start..).unwrap_or_default();
        if start > end || !inside.begins(behind, end - start) {
            return Reading::Malformed;
        }
        Reading::Tunnel(Tunnel {
            kind: tunnel,
            inside,
            outer: *outer,
            start,
            end,
            network: shim.network,
            has_gre_checksum: shim.has_checksum,
        })
    }
}

/// The end of a tunnel's payload: padding may follow.
fn end_of(packet: &Descriptor, outer: &Layers) -> usize {
    let l4 = usize::from(outer.l4_offset);
    let datagram = match outer.packet_type.is_udp() {
        true => get_u16(packet.data(), l4 + 4).unwrap_or_default(),
        false => 0,
    };
    let end = match datagram {
        // Not a datagram, or one of a jumbogram.
        0 => usize::from(outer.l3_offset) + packet.ip_length(outer).unwrap_or_default(),
        length => l4 + usize::from(length),
    };
    end.min(packet.length() as usize)
}

/// The headers between the outer IP header and the payload.
struct Shim {
    /// `None`: neither Ethernet nor IP.
    inside: Option<Inside>,
    /// Bytes from L4 on, including UDP's header.
    length: usize,
    network: Option<u32>,
    has_checksum: bool,
}

/// The upper 24 bits of the word at `place`.
fn vni(data: &[u8], place: usize) -> Option<u32> {
    get(data, place).map(|bytes| u32::from_be_bytes(bytes) >> 8)
}

fn vxlan(data: &[u8], l4: usize) -> Result<Shim, Reading> {
    const VALID: u8 = 0x08;
    let (Some([flags]), Some(vni)) = (get(data, l4 + 8), vni(data, l4 + 12)) else {
        return Err(Reading::Malformed);
    };
    // All other bits are ignored.
    if flags & VALID == 0 {
        return Err(Reading::Malformed);
    }
    let inside = Some(Inside::Ethernet);
    Ok(Shim { inside, length: 16, network: Some(vni), has_checksum: false })
}

fn geneve(data: &[u8], l4: usize) -> Result<Shim, Reading> {
    const CONTROL: u8 = 0x80;
    const CRITICAL: u8 = 0x80;
    let (Some([first, second, a, b]), Some(vni)) = (get(data, l4 + 8), vni(data, l4 + 12)) else {
        return Err(Reading::Malformed);
    };
    let options = usize::from(first & 0x3f) * 4;
    let Some(mut rest) = data.get(l4 + 16..).and_then(|rest| rest.get(..options)) else {
        return Err(Reading::Malformed);
    };
    // Version 0 is the only one.
    if first >> 6 != 0 {
        return Err(Reading::Malformed);
    }
    // None is known here, so a critical one ends it. At most 63.
    while let Some([_, _, kind, length]) = get(rest, 0) {
        let Some(behind) = rest.get(4 + usize::from(length & 0x1f) * 4..) else {
            return Err(Reading::Malformed);
        };
        if kind & CRITICAL != 0 {
            return Err(Reading::Critical);
        }
        rest = behind;
    }
    // A control message is for the endpoint's own software.
    let inside = Inside::of(u16::from_be_bytes([a, b])).filter(|_| second & CONTROL == 0);
    Ok(Shim { inside, length: 16 + options, network: Some(vni), has_checksum: false })
}

/// Flags of GRE: checksum, key, sequence number; those that must be zero; the version.
pub(super) const GRE_CHECKSUM: u16 = 0x8000;
pub(super) const GRE_KEY: u16 = 0x2000;
pub(super) const GRE_SEQUENCE: u16 = 0x1000;
const GRE_RESERVED: u16 = 0x4c00;
const GRE_VERSION: u16 = 0x0007;

fn gre(data: &[u8], l4: usize) -> Result<Shim, Reading> {
    let (Some(flags), Some(ether_type)) = (get_u16(data, l4), get_u16(data, l4 + 2)) else {
        return Err(Reading::Malformed);
    };
    // Version 1 belongs to PPTP, another protocol.
    if flags & GRE_VERSION != 0 {
        return Err(Reading::Other);
    }
    if flags & GRE_RESERVED != 0 {
        return Err(Reading::Malformed);
    }
    let mut length = 4 + if flags & GRE_CHECKSUM != 0 { 4 } else { 0 };
    let mut network = None;
    if flags & GRE_KEY != 0 {
        network = Some(get(data, l4 + length).map(u32::from_be_bytes).ok_or(Reading::Malformed)?);
        length += 4;
    }
    if flags & GRE_SEQUENCE != 0 {
        length += 4;
    }
    let inside = Inside::of(ether_type);
    Ok(Shim { inside, length, network, has_checksum: flags & GRE_CHECKSUM != 0 })
}

/// Source and destination of the IP header at L3.
pub(super) fn addresses(data: &[u8], layers: &Layers) -> Option<(IpAddr, IpAddr)> {
    if let Some((source, destination)) = layers.ipv4_addresses(data) {
        return Some((source.to_ne_bytes().into(), destination.to_ne_bytes().into()));
    }
    let both = layers.ipv6_addresses(data)?;
    Some(((*both.first_chunk::<16>()?).into(), (*both.last_chunk::<16>()?).into()))
}

/// DSCP and ECN of the IP header at `l3`; `None` if it is truncated, or of neither version.
#[inline]
pub(super) fn traffic_class(data: &[u8], l3: usize) -> Option<u8> {
    let word = get_u16(data, l3)?;
    match word >> 12 {
        4 => Some(word as u8),
        6 => Some((word >> 4) as u8),
        _ => None,
    }
}

/// Writes ECN into the IP header at `l3`, whose version is known, and updates its checksum.
pub(super) fn set_ecn(data: &mut [u8], l3: usize, ecn: u8) {
    let Some(old) = get_u16(data, l3) else { return };
    let (shift, is_ipv4) = if old >> 12 == 4 { (0, true) } else { (4, false) };
    let new = old & !(3 << shift) | u16::from(ecn) << shift;
    put_u16(data, l3, new);
    if is_ipv4 && let Some(sum) = get_u16(data, l3 + 10) {
        put_u16(data, l3 + 10, checksum::update_u16(sum, old, new));
    }
}

/// ECN of the inner header after decapsulation (RFC 6040, figure 4); `None`: the packet must be
/// dropped, since it met congestion and its sender does not support marks.
pub(super) fn decapsulated_ecn(inner: u8, outer: u8) -> Option<u8> {
    const NOT_ECT: u8 = 0;
    const ECT_1: u8 = 1;
    const ECT_0: u8 = 2;
    const CE: u8 = 3;
    match (inner & 3, outer & 3) {
        (NOT_ECT, CE) => None,
        (ECT_0, ECT_1) => Some(ECT_1),
        (ECT_0 | ECT_1, CE) => Some(CE),
        (inner, _) => Some(inner),
    }
}
