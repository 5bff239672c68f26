//! ICMP for IPv6.
//!
//! The common header is 4 bytes, not 8 as in ICMPv4; what follows depends on the type.
//!
//! Source: RFC 4443 2, RFC 4861 (neighbour discovery).

use core::ops::Range;

use super::{IpProtocol, PseudoHeader, Truncated, buffer_access, clamped, get_u16, set};

/// View of an ICMPv6 message.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv6<T> {
    buffer: T,
}

impl Icmpv6<()> {
    /// Bytes of the common header.
    pub const HEADER_LENGTH: usize = 4;
    /// Message type: destination unreachable.
    pub const DESTINATION_UNREACHABLE: u8 = 1;
    /// Message type: packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Message type: time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Message type: echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Message type: answer to an echo request.
    pub const ECHO_REPLY: u8 = 129;
    /// Message type: neighbour solicitation.
    pub const NEIGHBOR_SOLICITATION: u8 = 135;
    /// Message type: neighbour advertisement.
    pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;
}

impl<T: AsRef<[u8]>> Icmpv6<T> {
    /// View of a message.
    ///
    /// # Errors
    /// Fewer than 4 bytes.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Truncated> {
        if buffer.as_ref().len() < Icmpv6::HEADER_LENGTH {
            return Err(Truncated);
        }
        Ok(Self { buffer })
    }

    /// Message type; 128 and above are no errors.
    #[inline]
    pub fn message_type(&self) -> u8 {
        self.buffer.as_ref()[0]
    }

    /// Code within the message type.
    #[inline]
    pub fn code(&self) -> u8 {
        self.buffer.as_ref()[1]
    }

    /// Checksum as it stands.
    #[inline]
    pub fn checksum(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 2)
    }

    /// Identifier and sequence number of an echo request or reply.
    #[inline]
    pub fn echo(&self) -> Option<(u16, u16)> {
        let data = self.buffer.as_ref();
        let is_echo = matches!(self.message_type(), Icmpv6::ECHO_REQUEST | Icmpv6::ECHO_REPLY);
        (is_echo && data.len() >= 8).then(|| (get_u16(data, 4), get_u16(data, 6)))
    }

    /// Whether the checksum over the whole buffer is right.
    #[inline]
    pub fn verify_checksum(&self, pseudo_header: PseudoHeader) -> bool {
        pseudo_header.verify(IpProtocol::ICMPV6, self.buffer.as_ref())
    }

    fn payload_range(&self) -> Range<usize> {
        let length = self.buffer.as_ref().len();
        clamped(Icmpv6::HEADER_LENGTH, length, length)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Icmpv6<T> {
    /// Sets message type and code.
    #[inline]
    pub fn set_message_type(&mut self, message_type: u8, code: u8) {
        set(self.buffer.as_mut(), 0, &[message_type, code]);
    }

    /// Sets the checksum.
    #[inline]
    pub fn set_checksum(&mut self, value: u16) {
        set(self.buffer.as_mut(), 2, &value.to_be_bytes());
    }

    /// Computes and sets the checksum over the whole buffer.
    #[inline]
    pub fn fill_checksum(&mut self, pseudo_header: PseudoHeader) {
        self.set_checksum(0);
        let value = pseudo_header.checksum(IpProtocol::ICMPV6, self.buffer.as_ref());
        self.set_checksum(value);
    }
}

buffer_access!(Icmpv6);
