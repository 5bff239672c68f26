//! A pending route: the header has the next hop's address, the last one is elsewhere.
//!
//! Guarantees: no panic, for any bytes; at most eight extension headers or 40 bytes of options are
//! read, and nothing of a packet without either.
//!
//! Source: RFC 791 3.1 (loose and strict source routes), RFC 8200 4.4, RFC 5095 (type 0), RFC 6275
//! 6.4 (type 2), RFC 6554 3 (type 3), RFC 8754 2 (type 4).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{L3Kind, Layers, chunk};
use crate::packet::wire::{IpProtocol, MAXIMUM_EXTENSION_HEADERS};

/// The route of an IP packet beyond the destination in its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// None: that is the last destination.
    Done,
    /// Finally to this address.
    Pending(IpAddr),
    /// A route of an unknown or inconsistent kind.
    Unknown,
}

impl Layers {
    /// The route of a packet that starts with `data`.
    #[inline]
    pub fn route(&self, data: &[u8]) -> Route {
        let packet = data.get(usize::from(self.l3_offset)..).unwrap_or_default();
        match self.packet_type.l3() {
            L3Kind::Ipv4 if packet.first().is_some_and(|byte| byte & 15 > 5) => {
                source_route(packet)
            }
            L3Kind::Ipv6 if packet.get(6).is_some_and(|&next| is_walked(IpProtocol(next))) => {
                routing_header(packet)
            }
            _ => Route::Done,
        }
    }
}

/// Extension headers that may precede a routing header, and itself.
fn is_walked(protocol: IpProtocol) -> bool {
    matches!(
        protocol,
        IpProtocol::HOP_BY_HOP
            | IpProtocol::ROUTING
            | IpProtocol::FRAGMENT
            | IpProtocol::AUTHENTICATION
            | IpProtocol::DESTINATION_OPTIONS
    )
}

/// Of an IPv4 packet with options.
#[cold]
fn source_route(packet: &[u8]) -> Route {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const LOOSE_ROUTE: u8 = 131;
    const STRICT_ROUTE: u8 = 137;
    let length = usize::from(packet[0] & 15) * 4;
    let mut options = packet.get(20..length.min(packet.len())).unwrap_or_default();
    loop {
        options = match *options {
            [] | [END, ..] => return Route::Done,
            [NOTHING, ref rest @ ..] => rest,
            [LOOSE_ROUTE | STRICT_ROUTE, length, pointer, ..] => {
                // The pointer is past the route's end once the packet has arrived.
                if pointer > length {
                    return Route::Done;
                }
                let route = options.get(3..length.into()).unwrap_or_default();
                return match route.last_chunk::<4>() {
                    Some(&last) if pointer >= 4 && route.len() % 4 == 0 => {
                        Route::Pending(Ipv4Addr::from(last).into())
                    }
                    _ => Route::Unknown,
                };
            }
            [_, length, ..] if length >= 2 => options.get(length.into()..).unwrap_or_default(),
            _ => return Route::Done,
        };
    }
}

/// Of an IPv6 packet with extension headers.
#[cold]
fn routing_header(packet: &[u8]) -> Route {
    let mut protocol = IpProtocol(packet[6]);
    let mut at = 40;
    for _ in 0..MAXIMUM_EXTENSION_HEADERS {
        let Some(&[next, units, third, fourth]) = chunk(packet, at) else { break };
        let length = match protocol {
            IpProtocol::ROUTING if fourth != 0 => {
                let header = packet.get(at..at + usize::from(units) * 8 + 8).unwrap_or_default();
                let last = last_destination(packet, header, fourth);
                return last.map_or(Route::Unknown, |last| Route::Pending(last.into()));
            }
            IpProtocol::ROUTING | IpProtocol::HOP_BY_HOP | IpProtocol::DESTINATION_OPTIONS => {
                usize::from(units) * 8 + 8
            }
            IpProtocol::AUTHENTICATION => usize::from(units) * 4 + 8,
            // The rest is cut at any place.
            IpProtocol::FRAGMENT if third != 0 || fourth & 0xf9 != 0 => break,
            IpProtocol::FRAGMENT => 8,
            _ => break,
        };
        protocol = IpProtocol(next);
        at += length;
    }
    Route::Done
}

/// The last address of a routing header with segments left.
fn last_destination(packet: &[u8], header: &[u8], left: u8) -> Option<Ipv6Addr> {
    let (kind, addresses) = (*header.get(2)?, header.get(8..)?);
    let last = match kind {
        // In the order of the route; type 2 has one.
        0 | 2 if usize::from(left) <= addresses.len() / 16 => *addresses.last_chunk::<16>()?,
        3 => {
            // The last shares a prefix with the destination.
            let (shared, padding) = (usize::from(header[4] & 15), usize::from(header[5] >> 4));
            let mut last: [u8; 16] = *chunk(packet, 24)?;
            let listed = addresses.get(..addresses.len().checked_sub(padding)?)?;
            let rest = listed.get(listed.len().checked_sub(16 - shared)?..)?;
            last[shared..].copy_from_slice(rest);
            last
        }
        // In reverse.
        4 => *addresses.first_chunk::<16>()?,
        _ => return None,
    };
    Some(last.into())
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn v4(options: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        let words = 5 + options.len().div_ceil(4) as u8;
        frame.extend([8, 0, 0x40 | words, 0, 0, 4 * words, 0, 0, 0, 0, 64, 47, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(options);
        frame.resize(14 + 4 * usize::from(words), 0);
        frame
    }

    /// IPv6 with destination options and a routing header, which a fixed header of 8 bytes begins.
    fn v6(kind: u8, left: u8, rest: [u8; 4], addresses: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        let length = 16 + addresses.len() as u16;
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([60, 64]);
        frame.extend([0x11; 16]);
        frame.extend([0x22; 16]);
        frame.extend([43, 0, 1, 4, 0, 0, 0, 0]);
        frame.extend([41, (addresses.len() / 8) as u8, kind, left]);
        frame.extend(rest);
        frame.extend(addresses);
        frame
    }

    fn route(frame: &[u8]) -> Route {
        parse(frame).route(frame)
    }

    fn to(address: &str) -> Route {
        Route::Pending(address.parse().unwrap())
    }

    #[test]
    fn source_routes_end_at_their_last_address() {
        let hops = [10, 1, 0, 1, 10, 2, 0, 2];
        for kind in [131, 137] {
            for (pointer, expected) in
                [(4, to("10.2.0.2")), (8, to("10.2.0.2")), (12, Route::Done), (3, Route::Unknown)]
            {
                let options = [&[1, kind, 11, pointer][..], &hops].concat();
                assert_eq!(route(&v4(&options)), expected, "{kind} {pointer}");
            }
            assert_eq!(route(&v4(&[kind, 60, 4, 10, 0, 0, 1])), Route::Unknown);
        }
        // Record route is not a route; nor is anything after the end of options.
        assert_eq!(route(&v4(&[7, 7, 4, 0, 0, 0, 0])), Route::Done);
        assert_eq!(route(&v4(&[0, 131, 7, 4, 10, 0, 0, 1])), Route::Done);
        assert_eq!(route(&v4(&[])), Route::Done);
    }

    #[test]
    fn routing_headers_end_at_their_last_segment() {
        let (a, b) = ([0xaa; 16], [0xbb; 16]);
        let both = [a, b].concat();
        let (first, last) = (std::net::Ipv6Addr::from(a), std::net::Ipv6Addr::from(b));
        let pending = |address: std::net::Ipv6Addr| Route::Pending(address.into());
        assert_eq!(route(&v6(0, 1, [0; 4], &both)), pending(last));
        assert_eq!(route(&v6(0, 3, [0; 4], &both)), Route::Unknown);
        assert_eq!(route(&v6(2, 1, [0; 4], &a)), pending(first));
        assert_eq!(route(&v6(4, 1, [1, 0, 0, 0], &both)), pending(first));
        for kind in [1, 5, 253] {
            assert_eq!(route(&v6(kind, 1, [0; 4], &both)), Route::Unknown);
        }
        for kind in 0..=255 {
            assert_eq!(route(&v6(kind, 0, [0; 4], &both)), Route::Done);
        }
        // Type 3: all except the last four bytes belong to the destination, and four are padding.
        let listed = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut expected = [0x22; 16];
        expected[12..].copy_from_slice(&[5, 6, 7, 8]);
        let shortened = v6(3, 2, [0xcc, 0x80, 0, 0], &listed);
        assert_eq!(route(&shortened), pending(expected.into()));
        assert_eq!(route(&v6(3, 2, [0, 0xf0, 0, 0], &listed)), Route::Unknown);
    }

    #[test]
    fn any_bytes_are_handled() {
        for frame in [v4(&[131, 11, 4, 10, 1, 0, 1]), v6(4, 1, [1, 0, 0, 0], &[7; 32])] {
            for end in 0..frame.len() {
                let layers = parse(&frame);
                let _ = (route(&frame[..end]), layers.route(&frame[..end]));
            }
            for place in 14..frame.len() {
                for value in [0, 1, 4, 43, 0xff] {
                    let mut changed = frame.clone();
                    changed[place] = value;
                    route(&changed);
                }
            }
        }
    }
}
