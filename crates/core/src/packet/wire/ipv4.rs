//! IPv4 header with options.
//!
//! Guarantees: the version is not checked, since the EtherType implies it; options are bytes, not
//! parsed. A total length of 0 means the buffer's: Linux writes it into super-frames of more than
//! 65,535 bytes (BIG TCP), and NICs that segment leave it.
//!
//! Source: RFC 791 3.1, RFC 2474 and RFC 3168 for the traffic class; Linux's `iph_totlen`.

use core::{net::Ipv4Addr, ops::Range};

use super::{
    IpProtocol, PseudoHeader, Truncated, buffer_access, checksum, clamped, get, get_u16,
    saturating_u16, set,
};

/// View of an IPv4 packet, without bytes after its total length (Ethernet padding).
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<T> {
    buffer: T,
}

impl Ipv4<()> {
    /// Bytes of a header without options.
    pub const MINIMUM_HEADER_LENGTH: usize = 20;
}

impl<T: AsRef<[u8]>> Ipv4<T> {
    /// View of a whole packet.
    ///
    /// # Errors
    /// The header with its options is truncated, its length is below 20, or the total length is
    /// below the header's (and not 0) or beyond the buffer.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Truncated> {
        let packet = Self::new_header(buffer)?;
        let total = packet.length();
        if total < packet.header_length() || total > packet.buffer.as_ref().len() {
            return Err(Truncated);
        }
        Ok(packet)
    }

    /// View that may end early: the total length is not compared with the buffer.
    ///
    /// # Errors
    /// The header with its options is truncated, or its length is below 20.
    #[inline]
    pub fn new_header(buffer: T) -> Result<Self, Truncated> {
        let length = buffer.as_ref().len();
        if length < Ipv4::MINIMUM_HEADER_LENGTH {
            return Err(Truncated);
        }
        let packet = Self { buffer };
        let header = packet.header_length();
        if header < Ipv4::MINIMUM_HEADER_LENGTH || header > length {
            return Err(Truncated);
        }
        Ok(packet)
    }

    /// Version; 4.
    #[inline]
    pub fn version(&self) -> u8 {
        self.buffer.as_ref()[0] >> 4
    }

    /// Bytes of header and options.
    #[inline]
    pub fn header_length(&self) -> usize {
        usize::from(self.buffer.as_ref()[0] & 0x0f) * 4
    }

    /// Differentiated services code point, 0 to 63.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.buffer.as_ref()[1] >> 2
    }

    /// Bytes of header and payload, from the field; 0: to the end of the buffer.
    #[inline]
    pub fn total_length(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 2)
    }

    /// Bytes of header and payload.
    #[inline]
    fn length(&self) -> usize {
        match self.total_length() {
            0 => self.buffer.as_ref().len(),
            length => length.into(),
        }
    }

    /// Number that the fragments of a packet share.
    #[inline]
    pub fn identification(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 4)
    }

    /// One of several fragments; then [`Self::payload`] need not begin with a header.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        get_u16(self.buffer.as_ref(), 6) & 0x3fff != 0
    }

    /// Hops left.
    #[inline]
    pub fn time_to_live(&self) -> u8 {
        self.buffer.as_ref()[8]
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> IpProtocol {
        IpProtocol(self.buffer.as_ref()[9])
    }

    /// Header checksum as it stands.
    #[inline]
    pub fn checksum(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 10)
    }

    /// Sender.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(get::<4>(self.buffer.as_ref(), 12))
    }

    /// Receiver.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(get::<4>(self.buffer.as_ref(), 16))
    }

    /// Bytes of the options, padding included.
    #[inline]
    pub fn options(&self) -> &[u8] {
        let data = self.buffer.as_ref();
        &data[clamped(Ipv4::MINIMUM_HEADER_LENGTH, self.header_length(), data.len())]
    }

    /// Whether the header checksum is right.
    #[inline]
    pub fn verify_checksum(&self) -> bool {
        let data = self.buffer.as_ref();
        // Most have no options: with a known length, no loop is left.
        let sum = match data.first_chunk::<{ Ipv4::MINIMUM_HEADER_LENGTH }>() {
            Some(plain) if self.header_length() == plain.len() => checksum::sum(plain),
            _ => checksum::sum(&data[clamped(0, self.header_length(), data.len())]),
        };
        sum == 0xffff
    }

    /// The pseudo-header for TCP and UDP.
    #[inline]
    pub fn pseudo_header(&self) -> PseudoHeader {
        PseudoHeader::v4(self.source(), self.destination())
    }

    fn payload_range(&self) -> Range<usize> {
        clamped(self.header_length(), self.length(), self.buffer.as_ref().len())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv4<T> {
    /// Writes a header without options whose total length is the buffer's, or 65,535 if that is
    /// longer; the rest of the header is zero.
    ///
    /// # Errors
    /// Fewer than 20 bytes.
    pub fn new_blank(mut buffer: T) -> Result<Self, Truncated> {
        let length = saturating_u16(buffer.as_ref().len());
        let header = buffer.as_mut().first_chunk_mut::<20>().ok_or(Truncated)?;
        *header = [0; 20];
        header[0] = 0x45;
        set(header, 2, &length.to_be_bytes());
        Self::new_checked(buffer)
    }

    /// Sets the bytes of header and payload.
    #[inline]
    pub fn set_total_length(&mut self, length: u16) {
        set(self.buffer.as_mut(), 2, &length.to_be_bytes());
    }

    /// Sets whether routers may fragment.
    #[inline]
    pub fn set_dont_fragment(&mut self, value: bool) {
        let byte = &mut self.buffer.as_mut()[6];
        *byte = *byte & !0x40 | u8::from(value) << 6;
    }

    /// Sets the hops left.
    #[inline]
    pub fn set_time_to_live(&mut self, hops: u8) {
        self.buffer.as_mut()[8] = hops;
    }

    /// Sets the payload's protocol.
    #[inline]
    pub fn set_protocol(&mut self, protocol: IpProtocol) {
        self.buffer.as_mut()[9] = protocol.0;
    }

    /// Sets the header checksum.
    #[inline]
    pub fn set_checksum(&mut self, value: u16) {
        set(self.buffer.as_mut(), 10, &value.to_be_bytes());
    }

    /// Sets the sender.
    #[inline]
    pub fn set_source(&mut self, address: Ipv4Addr) {
        set(self.buffer.as_mut(), 12, &address.octets());
    }

    /// Sets the receiver.
    #[inline]
    pub fn set_destination(&mut self, address: Ipv4Addr) {
        set(self.buffer.as_mut(), 16, &address.octets());
    }

    /// Computes and sets the header checksum.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let data = self.buffer.as_ref();
        let value = checksum::checksum(&data[clamped(0, self.header_length(), data.len())]);
        self.set_checksum(value);
    }
}

buffer_access!(Ipv4);
