//! ICMP for IPv4.
//!
//! Source: RFC 792.

use core::ops::Range;

use super::{Truncated, buffer_access, checksum, clamped, get, get_u16, set};

/// View of an ICMP message.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv4<T> {
    buffer: T,
}

impl Icmpv4<()> {
    /// Bytes of the header.
    pub const HEADER_LENGTH: usize = 8;
    /// Message type: answer to an echo request.
    pub const ECHO_REPLY: u8 = 0;
    /// Message type: destination unreachable.
    pub const DESTINATION_UNREACHABLE: u8 = 3;
    /// Message type: echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Message type: time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
}

impl<T: AsRef<[u8]>> Icmpv4<T> {
    /// View of a message.
    ///
    /// # Errors
    /// Fewer than 8 bytes.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Truncated> {
        if buffer.as_ref().len() < Icmpv4::HEADER_LENGTH {
            return Err(Truncated);
        }
        Ok(Self { buffer })
    }

    /// Message type.
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

    /// Four bytes whose meaning depends on the type.
    #[inline]
    pub fn rest_of_header(&self) -> [u8; 4] {
        get(self.buffer.as_ref(), 4)
    }

    /// Identifier and sequence number of an echo request or reply.
    #[inline]
    pub fn echo(&self) -> Option<(u16, u16)> {
        let data = self.buffer.as_ref();
        matches!(self.message_type(), Icmpv4::ECHO_REQUEST | Icmpv4::ECHO_REPLY)
            .then(|| (get_u16(data, 4), get_u16(data, 6)))
    }

    /// Whether the checksum over the whole buffer is right.
    #[inline]
    pub fn verify_checksum(&self) -> bool {
        checksum::sum(self.buffer.as_ref()) == 0xffff
    }

    fn payload_range(&self) -> Range<usize> {
        let length = self.buffer.as_ref().len();
        clamped(Icmpv4::HEADER_LENGTH, length, length)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Icmpv4<T> {
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

    /// Sets the four bytes that depend on the type.
    #[inline]
    pub fn set_rest_of_header(&mut self, bytes: [u8; 4]) {
        set(self.buffer.as_mut(), 4, &bytes);
    }

    /// Computes and sets the checksum over the whole buffer.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let value = checksum::checksum(self.buffer.as_ref());
        self.set_checksum(value);
    }
}

buffer_access!(Icmpv4);
