//! IPv6 header and its chain of extension headers.
//!
//! ```
//! use picnic_core::packet::wire::{IpProtocol, Ipv6, Tcp, Truncated};
//!
//! fn tcp_port(packet: &[u8]) -> Result<Option<u16>, Truncated> {
//!     let ip = Ipv6::new_checked(packet)?;
//!     let upper = ip.upper_layer()?;
//!     if upper.protocol != IpProtocol::TCP || upper.fragment.is_some() {
//!         return Ok(None);
//!     }
//!     Ok(Some(Tcp::new_checked(&ip.payload()[upper.offset..])?.destination_port()))
//! }
//! # assert_eq!(tcp_port(&[0; 39]), Err(Truncated));
//! ```
//!
//! Guarantees: the chain's walk takes at most [`MAXIMUM_EXTENSION_HEADERS`] steps. The version is
//! not checked. A payload length of 0 means the rest of the buffer: Linux writes it into
//! super-frames of more than 65,535 bytes (BIG TCP), with or without a jumbo payload option.
//!
//! Source: RFC 8200 3 and 4, RFC 4302 2.2 (authentication header), RFC 6946 (atomic fragments),
//! RFC 2675 (jumbo payload option).

use core::{net::Ipv6Addr, ops::Range};

use super::{
    IpProtocol, PseudoHeader, Truncated, buffer_access, clamped, get, get_u16, saturating_u16, set,
};

/// Extension headers in one packet; RFC 8200 foresees six, and a longer chain is an attack.
pub const MAXIMUM_EXTENSION_HEADERS: usize = 8;

/// Kind of the jumbo payload option (RFC 2675).
pub const JUMBO_OPTION: u8 = 0xc2;

/// The content of an IPv6 packet after its extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpperLayer {
    /// The first protocol that is not an extension header; for a fragment, the fragment header's
    /// next header, which may be one.
    pub protocol: IpProtocol,
    /// Its place from the end of the IPv6 header, in bytes.
    pub offset: usize,
    /// Set for one of several fragments: the bytes at `offset` then need not be a header.
    pub fragment: Option<Fragment>,
}

/// Contents of a fragment header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Place in the whole payload, in bytes.
    pub offset: u16,
    /// Not the last fragment.
    pub more: bool,
    /// Number that the fragments of a packet share.
    pub identification: u32,
}

/// Walks the extension headers in `payload`; the first has the kind `protocol`.
///
/// The walk also ends at the first fragment, since the rest is cut at any place. An atomic fragment
/// (offset zero, none to follow) is a whole packet and is walked through.
///
/// # Errors
/// A header is truncated or has a length below its minimum, or there are too many.
#[inline]
pub fn upper_layer(mut protocol: IpProtocol, payload: &[u8]) -> Result<UpperLayer, Truncated> {
    let mut offset = 0;
    for walked in 0..=MAXIMUM_EXTENSION_HEADERS {
        let rest = payload.get(offset..).ok_or(Truncated)?;
        let length = match protocol {
            IpProtocol::HOP_BY_HOP | IpProtocol::ROUTING | IpProtocol::DESTINATION_OPTIONS => {
                let [_, units] = rest.first_chunk().ok_or(Truncated)?;
                usize::from(*units) * 8 + 8
            }
            IpProtocol::AUTHENTICATION => {
                let [_, units] = rest.first_chunk().ok_or(Truncated)?;
                // Fixed part of 12 bytes, counted in words less two.
                if *units == 0 {
                    return Err(Truncated);
                }
                usize::from(*units) * 4 + 8
            }
            IpProtocol::FRAGMENT if walked == MAXIMUM_EXTENSION_HEADERS => return Err(Truncated),
            IpProtocol::FRAGMENT => {
                let header: &[u8; 8] = rest.first_chunk().ok_or(Truncated)?;
                let word = get_u16(header, 2);
                if word & 0xfff9 != 0 {
                    let fragment = Fragment {
                        offset: word & 0xfff8,
                        more: word & 1 != 0,
                        identification: u32::from_be_bytes(get(header, 4)),
                    };
                    return Ok(UpperLayer {
                        protocol: IpProtocol(header[0]),
                        offset: offset + 8,
                        fragment: Some(fragment),
                    });
                }
                8
            }
            _ => return Ok(UpperLayer { protocol, offset, fragment: None }),
        };
        let header = rest.get(..length).ok_or(Truncated)?;
        protocol = IpProtocol(header[0]);
        offset += length;
    }
    Err(Truncated)
}

/// View of an IPv6 packet, without bytes after its payload length.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<T> {
    buffer: T,
}

impl Ipv6<()> {
    /// Bytes of the header without extension headers.
    pub const HEADER_LENGTH: usize = 40;
}

impl<T: AsRef<[u8]>> Ipv6<T> {
    /// View of a whole packet.
    ///
    /// # Errors
    /// Fewer than 40 bytes, or the payload length is beyond the buffer.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Truncated> {
        let packet = Self::new_header(buffer)?;
        let total = Ipv6::HEADER_LENGTH + usize::from(packet.payload_length());
        if total > packet.buffer.as_ref().len() {
            return Err(Truncated);
        }
        Ok(packet)
    }

    /// View that may end early: the payload length is not compared with the buffer.
    ///
    /// # Errors
    /// Fewer than 40 bytes.
    #[inline]
    pub fn new_header(buffer: T) -> Result<Self, Truncated> {
        if buffer.as_ref().len() < Ipv6::HEADER_LENGTH {
            return Err(Truncated);
        }
        Ok(Self { buffer })
    }

    /// Version; 6.
    #[inline]
    pub fn version(&self) -> u8 {
        self.buffer.as_ref()[0] >> 4
    }

    /// Traffic class: code point in the upper six bits, congestion notification in the lower two.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (get_u16(self.buffer.as_ref(), 0) >> 4) as u8
    }

    /// Bytes after this header, including extension headers, from the field; 0: to the end of the
    /// buffer.
    #[inline]
    pub fn payload_length(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 4)
    }

    /// Protocol of the first byte after this header, extension or not.
    #[inline]
    pub fn next_header(&self) -> IpProtocol {
        IpProtocol(self.buffer.as_ref()[6])
    }

    /// Hops left.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.buffer.as_ref()[7]
    }

    /// Sender.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(get::<16>(self.buffer.as_ref(), 8))
    }

    /// Receiver.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(get::<16>(self.buffer.as_ref(), 24))
    }

    /// The content after the extension headers; see [`upper_layer`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn upper_layer(&self) -> Result<UpperLayer, Truncated> {
        upper_layer(self.next_header(), self.payload())
    }

    /// Bytes after this header according to a jumbo payload option, which is in the hop-by-hop
    /// options of a packet whose payload length is 0.
    pub fn jumbo_length(&self) -> Option<u32> {
        const PAD_1: u8 = 0;
        if self.payload_length() != 0 || self.next_header() != IpProtocol::HOP_BY_HOP {
            return None;
        }
        let payload = self.payload();
        let [_, units] = *payload.first_chunk()?;
        let mut options = payload.get(2..usize::from(units) * 8 + 8)?;
        loop {
            options = match *options {
                [JUMBO_OPTION, 4, a, b, c, d, ..] => {
                    return Some(u32::from_be_bytes([a, b, c, d]));
                }
                [PAD_1, ref rest @ ..] => rest,
                [_, length, ref rest @ ..] => rest.get(usize::from(length)..)?,
                _ => return None,
            };
        }
    }

    /// The pseudo-header for TCP, UDP and ICMPv6, if there is no routing header.
    #[inline]
    pub fn pseudo_header(&self) -> PseudoHeader {
        PseudoHeader::v6(self.source(), self.destination())
    }

    fn payload_range(&self) -> Range<usize> {
        let end = match self.payload_length() {
            0 => usize::MAX,
            length => Ipv6::HEADER_LENGTH + usize::from(length),
        };
        clamped(Ipv6::HEADER_LENGTH, end, self.buffer.as_ref().len())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv6<T> {
    /// Writes a header whose payload is the rest of the buffer, up to 65,535 bytes; all other
    /// fields are zero.
    ///
    /// # Errors
    /// Fewer than 40 bytes.
    pub fn new_blank(mut buffer: T) -> Result<Self, Truncated> {
        let length = buffer.as_ref().len().saturating_sub(Ipv6::HEADER_LENGTH);
        let header = buffer.as_mut().first_chunk_mut::<40>().ok_or(Truncated)?;
        *header = [0; 40];
        header[0] = 0x60;
        set(header, 4, &saturating_u16(length).to_be_bytes());
        Self::new_checked(buffer)
    }

    /// Sets the bytes after this header.
    #[inline]
    pub fn set_payload_length(&mut self, length: u16) {
        set(self.buffer.as_mut(), 4, &length.to_be_bytes());
    }

    /// Sets the protocol after this header.
    #[inline]
    pub fn set_next_header(&mut self, protocol: IpProtocol) {
        self.buffer.as_mut()[6] = protocol.0;
    }

    /// Sets the hops left.
    #[inline]
    pub fn set_hop_limit(&mut self, hops: u8) {
        self.buffer.as_mut()[7] = hops;
    }

    /// Sets the sender.
    #[inline]
    pub fn set_source(&mut self, address: Ipv6Addr) {
        set(self.buffer.as_mut(), 8, &address.octets());
    }

    /// Sets the receiver.
    #[inline]
    pub fn set_destination(&mut self, address: Ipv6Addr) {
        set(self.buffer.as_mut(), 24, &address.octets());
    }
}

buffer_access!(Ipv6);
