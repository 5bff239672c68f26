//! TCP header with options.
//!
//! The buffer is the segment only, as in `payload` of the IP view: TCP has no length of its own,
//! and Ethernet padding would count as data.
//!
//! Source: RFC 9293 3.1.

use core::ops::{BitOr, Range};

use super::{IpProtocol, PseudoHeader, Truncated, buffer_access, clamped, get_u16, get_u32, set};

/// Control bits of a TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TcpFlags(
    /// The bits as in the header's byte 13.
    pub u8,
);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment number is valid.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x20);
    /// Congestion was experienced (echo).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced.
    pub const CWR: Self = Self(0x80);

    /// All bits of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for TcpFlags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// View of a TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<T> {
    buffer: T,
}

impl Tcp<()> {
    /// Bytes of a header without options.
    pub const MINIMUM_HEADER_LENGTH: usize = 20;
}

impl<T: AsRef<[u8]>> Tcp<T> {
    /// View of a segment.
    ///
    /// # Errors
    /// The header with its options is truncated, or its length is below 20.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Truncated> {
        let length = buffer.as_ref().len();
        if length < Tcp::MINIMUM_HEADER_LENGTH {
            return Err(Truncated);
        }
        let segment = Self { buffer };
        let header = segment.header_length();
        if header < Tcp::MINIMUM_HEADER_LENGTH || header > length {
            return Err(Truncated);
        }
        Ok(segment)
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

    /// Sequence number of the first byte of data, or of SYN.
    #[inline]
    pub fn sequence_number(&self) -> u32 {
        get_u32(self.buffer.as_ref(), 4)
    }

    /// Next sequence number expected.
    #[inline]
    pub fn acknowledgment_number(&self) -> u32 {
        get_u32(self.buffer.as_ref(), 8)
    }

    /// Bytes of header and options: the data offset.
    #[inline]
    pub fn header_length(&self) -> usize {
        usize::from(self.buffer.as_ref()[12] >> 4) * 4
    }

    /// Control bits.
    #[inline]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.buffer.as_ref()[13])
    }

    /// Receive window, not scaled.
    #[inline]
    pub fn window(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 14)
    }

    /// Checksum as it stands.
    #[inline]
    pub fn checksum(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 16)
    }

    /// Bytes of the options, padding included.
    #[inline]
    pub fn options(&self) -> &[u8] {
        let data = self.buffer.as_ref();
        &data[clamped(Tcp::MINIMUM_HEADER_LENGTH, self.header_length(), data.len())]
    }

    /// Whether the checksum over the whole buffer is right.
    #[inline]
    pub fn verify_checksum(&self, pseudo_header: PseudoHeader) -> bool {
        pseudo_header.verify(IpProtocol::TCP, self.buffer.as_ref())
    }

    fn payload_range(&self) -> Range<usize> {
        let length = self.buffer.as_ref().len();
        clamped(self.header_length(), length, length)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Tcp<T> {
    /// Writes a header without options, all other fields zero; the rest of the buffer is data.
    ///
    /// # Errors
    /// Fewer than 20 bytes.
    pub fn new_blank(mut buffer: T) -> Result<Self, Truncated> {
        let header = buffer.as_mut().first_chunk_mut::<20>().ok_or(Truncated)?;
        *header = [0; 20];
        header[12] = 0x50;
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

    /// Sets the sequence number.
    #[inline]
    pub fn set_sequence_number(&mut self, number: u32) {
        set(self.buffer.as_mut(), 4, &number.to_be_bytes());
    }

    /// Sets the acknowledgment number.
    #[inline]
    pub fn set_acknowledgment_number(&mut self, number: u32) {
        set(self.buffer.as_mut(), 8, &number.to_be_bytes());
    }

    /// Sets the control bits.
    #[inline]
    pub fn set_flags(&mut self, flags: TcpFlags) {
        self.buffer.as_mut()[13] = flags.0;
    }

    /// Sets the receive window.
    #[inline]
    pub fn set_window(&mut self, window: u16) {
        set(self.buffer.as_mut(), 14, &window.to_be_bytes());
    }

    /// Sets the checksum.
    #[inline]
    pub fn set_checksum(&mut self, value: u16) {
        set(self.buffer.as_mut(), 16, &value.to_be_bytes());
    }

    /// Computes and sets the checksum over the whole buffer.
    #[inline]
    pub fn fill_checksum(&mut self, pseudo_header: PseudoHeader) {
        self.set_checksum(0);
        let value = pseudo_header.checksum(IpProtocol::TCP, self.buffer.as_ref());
        self.set_checksum(value);
    }
}

buffer_access!(Tcp);
