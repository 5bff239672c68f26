//! Ethernet II header.
//!
//! Source: IEEE 802.3 3.2, EtherTypes from IANA's and IEEE's registries.

use core::{fmt, ops::Range, str::FromStr};

use super::{Truncated, buffer_access, clamped, get, get_u16, set};

/// Protocol of an Ethernet frame's payload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EtherType(
    /// The number, in host order.
    pub u16,
);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// VLAN tag (IEEE 802.1Q).
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// Outer VLAN tag, "QinQ" (IEEE 802.1ad).
    pub const QINQ: Self = Self(0x88a8);
    /// An Ethernet frame inside a tunnel (RFC 1701, "transparent Ethernet bridging").
    pub const ETHERNET: Self = Self(0x6558);
    /// Precision time protocol (IEEE 1588).
    pub const PTP: Self = Self(0x88f7);
    /// Link layer discovery (IEEE 802.1AB).
    pub const LLDP: Self = Self(0x88cc);

    /// A VLAN tag follows.
    #[inline]
    pub const fn is_vlan(self) -> bool {
        matches!(self, Self::VLAN | Self::QINQ)
    }

    /// The length of an IEEE 802.3 frame instead of a protocol, as in spanning tree's.
    #[inline]
    pub const fn is_length(self) -> bool {
        self.0 < 0x0600
    }
}

/// Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct MacAddress(
    /// Bytes as on the wire.
    pub [u8; 6],
);

impl MacAddress {
    /// Every station.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// A group address, broadcast included.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether an interface can have it: neither a group address nor zero.
    #[inline]
    pub const fn is_assignable(self) -> bool {
        !self.is_multicast() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

/// A text that is not an Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found no MAC address, allowed: six bytes such as 02:00:00:00:00:01")]
pub struct NoMacAddress;

impl FromStr for MacAddress {
    type Err = NoMacAddress;

    /// Six bytes of one or two hexadecimal digits, colons between them.
    fn from_str(text: &str) -> Result<Self, NoMacAddress> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| (1..=2).contains(&part.len()));
            let part = part.ok_or(NoMacAddress)?;
            // A sign would be parsed as a digit.
            let is_hex = part.bytes().all(|digit| digit.is_ascii_hexdigit());
            let value = u8::from_str_radix(part, 16).ok().filter(|_| is_hex);
            *byte = value.ok_or(NoMacAddress)?;
        }
        parts.next().is_none().then_some(MacAddress(bytes)).ok_or(NoMacAddress)
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// View of an Ethernet frame, without preamble and frame check sequence.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<T> {
    buffer: T,
}

impl Ethernet<()> {
    /// Bytes of the header.
    pub const HEADER_LENGTH: usize = 14;
}

impl<T: AsRef<[u8]>> Ethernet<T> {
    /// View of a frame.
    ///
    /// # Errors
    /// Fewer than 14 bytes.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Truncated> {
        if buffer.as_ref().len() < Ethernet::HEADER_LENGTH {
            return Err(Truncated);
        }
        Ok(Self { buffer })
    }

    /// Receiver's address.
    #[inline]
    pub fn destination(&self) -> MacAddress {
        MacAddress(get(self.buffer.as_ref(), 0))
    }

    /// Sender's address.
    #[inline]
    pub fn source(&self) -> MacAddress {
        MacAddress(get(self.buffer.as_ref(), 6))
    }

    /// Protocol of the payload, or of the VLAN tag it begins with.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        EtherType(get_u16(self.buffer.as_ref(), 12))
    }

    fn payload_range(&self) -> Range<usize> {
        let length = self.buffer.as_ref().len();
        clamped(Ethernet::HEADER_LENGTH, length, length)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ethernet<T> {
    /// Sets the receiver's address.
    #[inline]
    pub fn set_destination(&mut self, address: MacAddress) {
        set(self.buffer.as_mut(), 0, &address.0);
    }

    /// Sets the sender's address.
    #[inline]
    pub fn set_source(&mut self, address: MacAddress) {
        set(self.buffer.as_mut(), 6, &address.0);
    }

    /// Sets the payload's protocol.
    #[inline]
    pub fn set_ether_type(&mut self, ether_type: EtherType) {
        set(self.buffer.as_mut(), 12, &ether_type.0.to_be_bytes());
    }
}

buffer_access!(Ethernet);
