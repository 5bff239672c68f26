//! ARP for IPv4 over Ethernet.
//!
//! Other hardware and protocol addresses place their fields elsewhere: ask
//! [`Arp::is_ethernet_ipv4`] before believing the addresses.
//!
//! Source: RFC 826.

use core::{net::Ipv4Addr, ops::Range};

use super::{EtherType, MacAddress, Truncated, buffer_access, clamped, get, get_u16, set};

/// View of an ARP packet.
#[derive(Clone, Copy, Debug)]
pub struct Arp<T> {
    buffer: T,
}

impl Arp<()> {
    /// Bytes of a packet.
    pub const LENGTH: usize = 28;
    /// Operation: who has this address?
    pub const REQUEST: u16 = 1;
    /// Operation: I have it.
    pub const REPLY: u16 = 2;
}

/// Ethernet (1), IPv4, address lengths 6 and 4.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl<T: AsRef<[u8]>> Arp<T> {
    /// View of a packet.
    ///
    /// # Errors
    /// Fewer than 28 bytes.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Truncated> {
        if buffer.as_ref().len() < Arp::LENGTH {
            return Err(Truncated);
        }
        Ok(Self { buffer })
    }

    /// The addresses are Ethernet's and IPv4's.
    #[inline]
    pub fn is_ethernet_ipv4(&self) -> bool {
        get(self.buffer.as_ref(), 0) == ETHERNET_IPV4
    }

    /// Hardware type; 1 is Ethernet.
    #[inline]
    pub fn hardware_type(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 0)
    }

    /// Protocol whose addresses are resolved.
    #[inline]
    pub fn protocol_type(&self) -> EtherType {
        EtherType(get_u16(self.buffer.as_ref(), 2))
    }

    /// [`Arp::REQUEST`], [`Arp::REPLY`] or other.
    #[inline]
    pub fn operation(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 6)
    }

    /// Sender's Ethernet address.
    #[inline]
    pub fn sender_hardware(&self) -> MacAddress {
        MacAddress(get(self.buffer.as_ref(), 8))
    }

    /// Sender's IPv4 address.
    #[inline]
    pub fn sender_protocol(&self) -> Ipv4Addr {
        Ipv4Addr::from(get::<4>(self.buffer.as_ref(), 14))
    }

    /// Target's Ethernet address; zero in a request.
    #[inline]
    pub fn target_hardware(&self) -> MacAddress {
        MacAddress(get(self.buffer.as_ref(), 18))
    }

    /// Target's IPv4 address.
    #[inline]
    pub fn target_protocol(&self) -> Ipv4Addr {
        Ipv4Addr::from(get::<4>(self.buffer.as_ref(), 24))
    }

    // Padding of a short frame.
    fn payload_range(&self) -> Range<usize> {
        let length = self.buffer.as_ref().len();
        clamped(Arp::LENGTH, length, length)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Arp<T> {
    /// Writes a packet for IPv4 over Ethernet with zero operation and addresses.
    ///
    /// # Errors
    /// Fewer than 28 bytes.
    pub fn new_blank(mut buffer: T) -> Result<Self, Truncated> {
        let header = buffer.as_mut().first_chunk_mut::<28>().ok_or(Truncated)?;
        *header = [0; 28];
        set(header, 0, &ETHERNET_IPV4);
        Self::new_checked(buffer)
    }

    /// Sets the operation.
    #[inline]
    pub fn set_operation(&mut self, operation: u16) {
        set(self.buffer.as_mut(), 6, &operation.to_be_bytes());
    }

    /// Sets the sender's Ethernet address.
    #[inline]
    pub fn set_sender_hardware(&mut self, address: MacAddress) {
        set(self.buffer.as_mut(), 8, &address.0);
    }

    /// Sets the sender's IPv4 address.
    #[inline]
    pub fn set_sender_protocol(&mut self, address: Ipv4Addr) {
        set(self.buffer.as_mut(), 14, &address.octets());
    }

    /// Sets the target's Ethernet address.
    #[inline]
    pub fn set_target_hardware(&mut self, address: MacAddress) {
        set(self.buffer.as_mut(), 18, &address.0);
    }

    /// Sets the target's IPv4 address.
    #[inline]
    pub fn set_target_protocol(&mut self, address: Ipv4Addr) {
        set(self.buffer.as_mut(), 24, &address.octets());
    }
}

buffer_access!(Arp);
