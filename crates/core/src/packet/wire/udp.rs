//! UDP header.
//!
//! A length of 0 means the buffer's, as in a jumbogram.
//!
//! Source: RFC 768, RFC 8200 8.1 (over IPv6 the checksum is mandatory), RFC 2675 4 (length 0).

use core::ops::Range;

use super::checksum::never_zero;
use super::{
    IpProtocol, PseudoHeader, Truncated, buffer_access, clamped, get_u16, saturating_u16, set,
};

/// View of a UDP datagram, without bytes after its length.
#[derive(Clone, Copy, Debug)]
pub struct Udp<T> {
    buffer: T,
}

impl Udp<()> {
    /// Bytes of the header.
    pub const HEADER_LENGTH: usize = 8;
}

impl<T: AsRef<[u8]>> Udp<T> {
    /// View of a whole datagram.
    ///
    /// # Errors
    /// Fewer than 8 bytes, or a length of 1 to 7 or beyond the buffer.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Truncated> {
        let datagram = Self::new_header(buffer)?;
        let length = datagram.end();
        if length < Udp::HEADER_LENGTH || length > datagram.buffer.as_ref().len() {
            return Err(Truncated);
        }
        Ok(datagram)
    }

    /// View that may end early: the length field is not checked.
    ///
    /// # Errors
    /// Fewer than 8 bytes.
    #[inline]
    pub fn new_header(buffer: T) -> Result<Self, Truncated> {
        if buffer.as_ref().len() < Udp::HEADER_LENGTH {
            return Err(Truncated);
        }
        Ok(Self { buffer })
    }

    /// Sender's port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 0)
    }

    /// Receiver's port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 2)
    }

    /// Bytes of header and payload, from the field; 0: to the end of the buffer.
    #[inline]
    pub fn length(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 4)
    }

    /// Bytes of header and payload.
    #[inline]
    fn end(&self) -> usize {
        match self.length() {
            0 => self.buffer.as_ref().len(),
            length => length.into(),
        }
    }

    /// Checksum as it stands; zero means none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 6)
    }

    /// Whether the checksum is right, or absent over IPv4.
    #[inline]
    pub fn verify_checksum(&self, pseudo_header: PseudoHeader) -> bool {
        if self.checksum() == 0 {
            return !pseudo_header.is_ipv6();
        }
        pseudo_header.verify(IpProtocol::UDP, self.datagram())
    }

    fn datagram(&self) -> &[u8] {
        let data = self.buffer.as_ref();
        &data[clamped(0, self.end(), data.len())]
    }

    fn payload_range(&self) -> Range<usize> {
        clamped(Udp::HEADER_LENGTH, self.end(), self.buffer.as_ref().len())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Udp<T> {
    /// Writes a header whose length is the buffer's, up to 65,535 bytes; all other fields are zero.
    ///
    /// # Errors
    /// Fewer than 8 bytes.
    pub fn new_blank(mut buffer: T) -> Result<Self, Truncated> {
        let length = saturating_u16(buffer.as_ref().len());
        let header = buffer.as_mut().first_chunk_mut::<8>().ok_or(Truncated)?;
        *header = [0; 8];
        set(header, 4, &length.to_be_bytes());
        Self::new_checked(buffer)
    }

    /// Sets the sender's port.
    #[inline]
    pub fn set_source_port(&mut self, port: u16) {
        set(self.buffer.as_mut(), 0, &port.to_be_bytes());
    }

    /// Sets the receiver's port.
    #[inline]
    pub fn set_destination_port(&mut self, port: u16) {
        set(self.buffer.as_mut(), 2, &port.to_be_bytes());
    }

    /// Sets the checksum; zero means none.
    #[inline]
    pub fn set_checksum(&mut self, value: u16) {
        set(self.buffer.as_mut(), 6, &value.to_be_bytes());
    }

    /// Computes and sets the checksum; never zero.
    #[inline]
    pub fn fill_checksum(&mut self, pseudo_header: PseudoHeader) {
        self.set_checksum(0);
        let value = pseudo_header.checksum(IpProtocol::UDP, self.datagram());
        self.set_checksum(never_zero(value));
    }
}

buffer_access!(Udp);
