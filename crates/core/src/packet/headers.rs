//! Header fields of a packet: addresses, ports and flags, in host order.
//!
//! ```
//! use picnic_core::function::{PacketMut, Verdict};
//! // Name service to queue 1, one network to queue 2.
//! fn steer(packet: &mut PacketMut<'_>) -> Verdict {
//!     match (packet.udp(), packet.ipv4()) {
//!         (Some(udp), _) if udp.destination_port() == 53 => Verdict::Steer(1),
//!         (_, Some(ip)) if ip.source().octets()[0] == 10 => Verdict::Steer(2),
//!         _ => Verdict::Next,
//!     }
//! }
//! # let _ = steer;
//! ```
//!
//! | packet                            | `ipv4`, `ipv6`     | `tcp`, `udp`          | `ports` |
//! |-----------------------------------|--------------------|-----------------------|---------|
//! | after one or two VLAN tags        | seen through       | seen through          | too     |
//! | after three or more               | `None`             | `None`                | `None`  |
//! | with options, extension headers   | seen through       | up to eight, as by [`layers`] | too |
//! | a fragment, the first included    | its header         | `None`                | `None`  |
//! | cut after the requested header    | the part there     | the part there        | there   |
//! | cut within the header asked for   | `None`             | `None`                | there, if all four bytes are |
//! | in several buffers                | if it is in one     | if it is in one      | there   |
//!
//! [`per_packet`](crate::function::per_packet) and shared objects get the headers in one buffer; a
//! function that works on bursts calls [`Descriptor::gather_headers`] first.
//!
//! Guarantees: the current bytes are read, regardless of an earlier parse; each call parses, which
//! takes some nanoseconds. A function that needs several fields keeps the result of
//! [`Descriptor::parse`]; the raw words of [`Layers`] are for hashing.

use super::desc::Descriptor;
use super::layers::{self, L4Kind, LONGEST_HEADERS, Layers};
use super::wire::{Ipv4, Ipv6, Tcp, Udp};

/// The first bytes of a packet and its header fields, as [`Descriptor`] has them, for users with
/// only the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Front<'a> {
    data: &'a [u8],
    length: usize,
    layers: Layers,
}

impl<'a> Front<'a> {
    /// The front of a packet of `length` bytes.
    pub fn of(data: &'a [u8], length: usize) -> Self {
        Front { data, length, layers: layers::parse_of(data, length) }
    }

    /// The IPv4 header and the captured part of its payload.
    pub fn ipv4(self) -> Option<Ipv4<&'a [u8]>> {
        ipv4(self.layers, |place| self.data.get(place..))
    }

    /// The IPv6 header and the captured part of its payload, extension headers included.
    pub fn ipv6(self) -> Option<Ipv6<&'a [u8]>> {
        ipv6(self.layers, |place| self.data.get(place..))
    }

    /// The TCP header and the captured part of its data.
    pub fn tcp(self) -> Option<Tcp<&'a [u8]>> {
        Tcp::new_checked(l4(L4Kind::Tcp, self.layers, self.length, |place| self.data.get(place..))?)
            .ok()
    }

    /// The UDP header and the captured part of its data.
    pub fn udp(self) -> Option<Udp<&'a [u8]>> {
        Udp::new_header(l4(L4Kind::Udp, self.layers, self.length, |place| self.data.get(place..))?)
            .ok()
    }

    /// Source and destination port of TCP or UDP.
    pub fn ports(self) -> Option<(u16, u16)> {
        ports(self.layers, self.data)
    }
}

fn ipv4<'a>(layers: Layers, from: impl Fn(usize) -> Option<&'a [u8]>) -> Option<Ipv4<&'a [u8]>> {
    let packet = from(layers.l3_offset.into())?;
    if layers.packet_type.is_ipv4() { Ipv4::new_header(packet).ok() } else { None }
}

fn ipv6<'a>(layers: Layers, from: impl Fn(usize) -> Option<&'a [u8]>) -> Option<Ipv6<&'a [u8]>> {
    let packet = from(layers.l3_offset.into())?;
    if layers.packet_type.is_ipv6() { Ipv6::new_header(packet).ok() } else { None }
}

/// From the transport header to the end of the IP packet, as far as `from` has bytes, without
/// padding. `length` is the length of the whole packet.
fn l4<'a>(
    kind: L4Kind,
    layers: Layers,
    length: usize,
    from: impl Fn(usize) -> Option<&'a [u8]>,
) -> Option<&'a [u8]> {
    if layers.packet_type.l4() != kind {
        return None;
    }
    let l3 = usize::from(layers.l3_offset);
    let packet = from(l3)?;
    let said = if layers.packet_type.is_ipv4() {
        usize::from(Ipv4::new_header(packet).ok()?.total_length())
    } else {
        match Ipv6::new_header(packet).ok()?.payload_length() {
            0 => 0,
            length => Ipv6::HEADER_LENGTH + usize::from(length),
        }
    };
    let length = if said == 0 { length.checked_sub(l3)? } else { said };
    let l4 = usize::from(layers.l4_offset);
    let segment = from(l4)?;
    segment.get(..(l3 + length).checked_sub(l4)?.min(segment.len()))
}

fn ports(layers: Layers, data: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = layers.ports(data)?.to_ne_bytes();
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

impl Descriptor {
    /// The IPv4 header and the captured part of its payload.
    pub fn ipv4(&self) -> Option<Ipv4<&[u8]>> {
        ipv4(self.seek(), |place| self.bytes_from(place))
    }

    /// The IPv6 header and the captured part of its payload, extension headers included.
    pub fn ipv6(&self) -> Option<Ipv6<&[u8]>> {
        ipv6(self.seek(), |place| self.bytes_from(place))
    }

    /// The TCP header and the captured part of its data.
    pub fn tcp(&self) -> Option<Tcp<&[u8]>> {
        Tcp::new_checked(l4(L4Kind::Tcp, self.seek(), self.length() as usize, |place| {
            self.bytes_from(place)
        })?)
        .ok()
    }

    /// The UDP header and the captured part of its data.
    pub fn udp(&self) -> Option<Udp<&[u8]>> {
        Udp::new_header(l4(L4Kind::Udp, self.seek(), self.length() as usize, |place| {
            self.bytes_from(place)
        })?)
        .ok()
    }

    /// Source and destination port of TCP or UDP.
    pub fn ports(&self) -> Option<(u16, u16)> {
        let layers = self.seek();
        match self.is_chained() {
            false => ports(layers, self.data()),
            true => ports(layers, self.copy_front(&mut [0; LONGEST_HEADERS])),
        }
    }

    /// Bytes of the IP packet that begins at L3; see [`Layers::ip_length`].
    #[inline]
    pub fn ip_length(&self, layers: &Layers) -> Option<usize> {
        layers.ip_length(self.data(), self.length() as usize)
    }

    /// Whether the headers of a packet parsed to `layers` are complete and consistent. Its end may
    /// be missing, as in a capture of each packet's first bytes: it is then malformed, and still
    /// readable.
    #[inline]
    pub fn is_readable(&self, layers: &Layers) -> bool {
        !layers.packet_type.is_malformed() || self.is_cut(layers)
    }

    /// Whether a malformed packet only lacks its end.
    #[cold]
    fn is_cut(&self, layers: &Layers) -> bool {
        let length = self.length() as usize;
        let Some(said) = self.ip_length(layers) else { return false };
        let end = usize::from(layers.l3_offset) + said;
        end > length && !layers::parse_of(self.data(), end).packet_type.is_malformed()
    }

    /// The place of the headers, without keeping it.
    fn seek(&self) -> Layers {
        if self.is_chained() {
            let first = &mut [0; LONGEST_HEADERS];
            layers::parse_of(self.copy_front(first), self.length() as usize)
        } else {
            layers::parse(self.data())
        }
    }

    /// The packet's bytes from `place` that are in one buffer.
    fn bytes_from(&self, mut place: usize) -> Option<&[u8]> {
        if !self.is_chained() {
            return self.data().get(place..);
        }
        self.segments().find_map(|segment| match segment.get(place..) {
            Some(bytes) if !bytes.is_empty() => Some(bytes),
            _ => {
                place -= segment.len();
                None
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::pool::{Pool, PoolConfig};
    use crate::packet::wire::tests::{Network, Transport, packets};
    use proptest::prelude::*;
    use std::cell::RefCell;

    fn with<T>(bytes: &[u8], look: impl FnOnce(&Descriptor) -> T) -> T {
        thread_local! {
            static POOL: RefCell<Pool> = {
                let config = PoolConfig { buffers: 64, ..PoolConfig::default() };
                RefCell::new(Pool::new(&config, 0).unwrap().0)
            };
        }
        POOL.with_borrow_mut(|pool| {
            let packet = pool.packet(bytes).unwrap();
            let seen = look(&packet);
            pool.free(packet);
            seen
        })
    }

    proptest! {
        #[test]
        fn fields_read_equal_fields_built(packet in packets()) {
            with(&packet.build(), |seen| {
                let fragment = packet.is_fragment();
                match &packet.network {
                    Network::V4 { source, destination, .. } => {
                        let ip = seen.ipv4().unwrap();
                        prop_assert_eq!(ip.source().octets(), *source);
                        prop_assert_eq!(ip.destination().octets(), *destination);
                        prop_assert!(seen.ipv6().is_none());
                    }
                    Network::V6 { source, destination, .. } => {
                        let ip = seen.ipv6().unwrap();
                        prop_assert_eq!(ip.source().octets(), *source);
                        prop_assert_eq!(ip.destination().octets(), *destination);
                        prop_assert!(seen.ipv4().is_none());
                    }
                }
                let (tcp, udp) = match &packet.transport {
                    Transport::Tcp { ports, .. } if !fragment => (Some(*ports), None),
                    Transport::Udp { ports } if !fragment => (None, Some(*ports)),
                    _ => (None, None),
                };
                let read = seen.tcp().map(|tcp| (tcp.source_port(), tcp.destination_port()));
                prop_assert_eq!(read, tcp);
                let read = seen.udp().map(|udp| (udp.source_port(), udp.destination_port()));
                prop_assert_eq!(read, udp);
                prop_assert_eq!(seen.ports(), tcp.or(udp));
                Ok(())
            })?;
        }

        /// In a truncated packet, the bytes that are there are as in the whole one; padding is no data.
        #[test]
        fn truncated_headers_are_none(packet in packets()) {
            let frame = packet.build();
            let l4 = packet.l3_offset() + packet.ip_length();
            let (data, ports) = with(&frame, |whole| {
                let tcp = whole.tcp().map(|tcp| tcp.payload().to_vec());
                (tcp.or_else(|| whole.udp().map(|udp| udp.payload().to_vec())), whole.ports())
            });
            for end in 1..frame.len() {
                with(&frame[..end], |cut| {
                    prop_assert_eq!(cut.ports(), ports.filter(|_| end >= l4 + 4));
                    let left = cut.tcp().map(|tcp| tcp.payload().to_vec());
                    let left = left.or_else(|| cut.udp().map(|udp| udp.payload().to_vec()));
                    if let Some(left) = left {
                        prop_assert!(data.as_ref().unwrap().starts_with(&left));
                    } else if ports.is_some() {
                        let least = if packet.protocol() == 17 { 8 } else { 60 };
                        prop_assert!(end < l4 + least);
                    }
                    Ok(())
                })?;
            }
        }
    }

    #[test]
    fn reads_follow_changes_of_the_bytes() {
        let mut frame = vec![0; 60];
        frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
        frame[17] = 28;
        frame[23] = 17;
        frame[34..40].copy_from_slice(&[0, 7, 0, 53, 0, 8]);
        let config = PoolConfig { buffers: 64, ..PoolConfig::default() };
        let mut pool = Pool::new(&config, 0).unwrap().0;
        let mut packet = pool.packet(&frame).unwrap();
        packet.parse();
        assert_eq!(packet.ports(), Some((7, 53)));
        // A fragment from here on.
        packet.data_mut()[20] = 0x20;
        assert_eq!((packet.ports(), packet.udp().is_none()), (None, true));
        assert!(packet.ipv4().unwrap().is_fragment());
        pool.free(packet);
    }
}
