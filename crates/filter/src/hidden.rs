//! The parts of a packet's five-tuple that a filter cannot read, though a host may.
//!
//! ```
//! use picnic_core::packet::layers;
//! use picnic_filter::hidden::{Headers, Hidden};
//!
//! let mut fragment = [0; 60];
//! fragment[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]); // IPv4
//! fragment[17] = 46; // total length
//! fragment[20] = 0x20; // more fragments
//! fragment[23] = 17; // UDP
//! let headers = Headers::of(&layers::parse(&fragment), &fragment);
//! assert_eq!(headers.hidden, Hidden::Ports);
//! ```
//!
//! The card reads as many headers as a NIC does. A host reads further: past eight extension
//! headers, past the authentication header, through any number of VLAN tags with identifier 0, and
//! it reassembles fragments. A filter decides if all fields of its conditions were read, even if
//! other fields are hidden. Otherwise a filter that can keep packets from the host treats hidden
//! fields as matching, unless it accepts such packets ([`Unreadable`](crate::Unreadable)).
//!
//! Guarantees: for packets with TCP, UDP or ICMP directly after the IP header, only the results of
//! the parse are used.
//!
//! Packets inside a tunnel or encrypted (ESP) are payload of that protocol and not searched.
//!
//! Source: RFC 8200 4 (headers in any number and order), 4.4 (routing) and 4.5 (the next header of
//! only the first fragment counts); RFC 7112 (a host may accept a chain that continues in another
//! fragment, a filter may drop it); RFC 7045 2.1; RFC 791 3.1 (source routes).

use picnic_core::packet::layers::{L3Kind, Layers};
use picnic_core::packet::wire::{EtherType, IpProtocol, MAXIMUM_EXTENSION_HEADERS};

/// How much of a five-tuple is hidden. A filter that drops treats each kind as including the
/// earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hidden {
    /// Everything can be read, or there is no five-tuple.
    #[default]
    Nothing,
    /// The ports of TCP or UDP: a fragment, or a truncated header.
    Ports,
    /// The protocols after the last header read, and with them the ports.
    Protocol,
    /// The final destination: the packet has a source route.
    Destination,
    /// The final destination, the protocol and the ports: headers that were not read.
    Chain,
    /// Everything except the family: a truncated header.
    Addresses,
    /// Even whether it is IPv4 or IPv6.
    Everything,
}

/// How far a packet's headers can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// The part of the five-tuple that is hidden.
    pub hidden: Hidden,
    /// An authentication header is among the IPv6 extension headers: `ah` also counts as the
    /// packet's protocol.
    pub authenticated: bool,
}

impl Headers {
    /// Everything was read, and there is no authentication header.
    pub const PLAIN: Self = Headers { hidden: Hidden::Nothing, authenticated: false };

    /// From a frame, given its layers.
    #[inline(always)]
    pub fn of(layers: &Layers, data: &[u8]) -> Self {
        if layers.is_plain() { Headers::PLAIN } else { look(layers, data) }
    }
}

#[cold]
#[inline(never)]
fn look(layers: &Layers, data: &[u8]) -> Headers {
    let packet = data.get(usize::from(layers.l3_offset)..).unwrap_or_default();
    let protocol = IpProtocol(layers.protocol);
    let hides = |hidden| Headers { hidden, authenticated: false };
    let (routed, authenticated, unread, hides_protocol) = match layers.packet_type.l3() {
        L3Kind::Ipv4 => {
            (is_source_routed(packet), false, false, protocol == IpProtocol::AUTHENTICATION)
        }
        L3Kind::Ipv6 => {
            let (routed, authenticated) = walk(packet);
            // After a fragment header the next header is known but not read.
            let authenticated = authenticated || protocol == IpProtocol::AUTHENTICATION;
            (routed, authenticated, is_extension(protocol), is_other_extension(protocol))
        }
        L3Kind::Arp => return Headers::PLAIN,
        L3Kind::None | L3Kind::Other => {
            return hides(match ether_type(layers, data) {
                Some(ether_type) if ether_type.is_vlan() => Hidden::Everything,
                Some(EtherType::IPV4 | EtherType::IPV6) => Hidden::Addresses,
                _ => Hidden::Nothing,
            });
        }
    };
    let has_ports = matches!(protocol, IpProtocol::TCP | IpProtocol::UDP);
    let hidden = if unread {
        // Among these headers there may be a routing header.
        Hidden::Chain
    } else if routed {
        Hidden::Destination
    } else if hides_protocol {
        Hidden::Protocol
    } else if has_ports && layers.ports(data).is_none() {
        Hidden::Ports
    } else {
        Hidden::Nothing
    };
    Headers { hidden, authenticated }
}

/// Whether a packet is of IPv4, by its EtherType; `None` if it is neither or a tag hides it.
pub(crate) fn is_ipv4(layers: &Layers, data: &[u8]) -> Option<bool> {
    match ether_type(layers, data)? {
        EtherType::IPV4 => Some(true),
        EtherType::IPV6 => Some(false),
        _ => None,
    }
}

/// The EtherType after the tags.
fn ether_type(layers: &Layers, data: &[u8]) -> Option<EtherType> {
    let at = usize::from(layers.l3_offset).checked_sub(2)?;
    data.get(at..)?.first_chunk().map(|bytes| EtherType(u16::from_be_bytes(*bytes)))
}

/// Whether an IPv6 protocol number names a header with a successor: the parse did not reach
/// the last one, or it is a fragment's, whose first fragment may name another.
fn is_extension(protocol: IpProtocol) -> bool {
    matches!(
        protocol,
        IpProtocol::HOP_BY_HOP
            | IpProtocol::ROUTING
            | IpProtocol::FRAGMENT
            | IpProtocol::AUTHENTICATION
            | IpProtocol::DESTINATION_OPTIONS
    )
}

/// Mobility, HIP and Shim6 headers: extension headers that the parse does not read through.
fn is_other_extension(protocol: IpProtocol) -> bool {
    matches!(protocol.0, 135 | 139 | 140)
}

/// Whether a routing header of an IPv6 packet has segments left, or may have after headers that the
/// parse does not read, so that its destination is not final; and whether it has an authentication
/// header.
fn walk(packet: &[u8]) -> (bool, bool) {
    let (mut routed, mut authenticated) = (false, false);
    let mut protocol = IpProtocol(packet.get(6).copied().unwrap_or(0));
    let mut at = 40;
    let mut beyond_the_parse = false;
    for _ in 0..MAXIMUM_EXTENSION_HEADERS {
        let header = packet.get(at..).and_then(|rest| rest.first_chunk());
        let Some(&[next, units, third, left]) = header else { break };
        at += match protocol {
            IpProtocol::HOP_BY_HOP | IpProtocol::DESTINATION_OPTIONS => usize::from(units) * 8 + 8,
            IpProtocol::ROUTING => {
                routed |= left != 0;
                usize::from(units) * 8 + 8
            }
            IpProtocol::AUTHENTICATION => {
                authenticated = true;
                usize::from(units) * 4 + 8
            }
            other if is_other_extension(other) => {
                beyond_the_parse = true;
                usize::from(units) * 8 + 8
            }
            // Anything may follow a fragment header.
            IpProtocol::FRAGMENT if third != 0 || left & 0xf9 != 0 => break,
            IpProtocol::FRAGMENT => 8,
            _ => break,
        };
        protocol = IpProtocol(next);
    }
    let is_at_the_end = !is_extension(protocol) && !is_other_extension(protocol);
    (routed || beyond_the_parse && !is_at_the_end, authenticated)
}

/// Whether the options of an IPv4 packet route it on to another destination.
fn is_source_routed(packet: &[u8]) -> bool {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const LOOSE_ROUTE: u8 = 131;
    const STRICT_ROUTE: u8 = 137;
    let length = usize::from(packet.first().copied().unwrap_or(0) & 15) * 4;
    let mut options = packet.get(20..length.min(packet.len())).unwrap_or_default();
    loop {
        options = match *options {
            [] | [END, ..] => return false,
            [NOTHING, ref rest @ ..] => rest,
            // The pointer is past the route's end once the packet has arrived.
            [LOOSE_ROUTE | STRICT_ROUTE, length, pointer, ..] => return pointer <= length,
            [_, length, ..] if length >= 2 => options.get(length.into()..).unwrap_or_default(),
            _ => return false,
        };
    }
}
