//! Checked views of packet headers, read and written in place.
//!
//! ```
//! use picnic_core::packet::wire::{EtherType, Ethernet, IpProtocol, Ipv4, Truncated, Udp};
//!
//! fn is_dns(frame: &[u8]) -> Result<bool, Truncated> {
//!     let ethernet = Ethernet::new_checked(frame)?;
//!     if ethernet.ether_type() != EtherType::IPV4 {
//!         return Ok(false);
//!     }
//!     let ip = Ipv4::new_checked(ethernet.payload())?;
//!     if ip.protocol() != IpProtocol::UDP || ip.is_fragment() {
//!         return Ok(false);
//!     }
//!     Ok(Udp::new_checked(ip.payload())?.destination_port() == 53)
//! }
//! # assert_eq!(is_dns(&[0; 9]), Err(Truncated));
//! ```
//!
//! A view borrows or owns its bytes: `&[u8]` to read, `&mut [u8]` to write too. Numbers are in host
//! order, lengths in bytes.
//!
//! Guarantees: `new_checked` refuses a buffer shorter than the header, and a length field that
//! points outside the buffer or into the fixed header. After it no accessor panics, for any
//! bytes, even if a setter makes a length wrong: `payload` is then cut to the bytes present.
//! Setters change only their field; checksums are set by `fill_checksum`. If the end of a packet
//! may be elsewhere (a quote in an ICMP error, a truncated capture, a chain of segments),
//! `new_header` checks only the header.
//!
//! Source: the RFC named at the head of each protocol's file.

pub mod checksum;
mod ethernet;
mod ipv4;
mod ipv6;
mod tcp;
mod udp;
mod vlan;

#[cfg(test)]
pub(crate) mod tests;

use core::{error, fmt, ops::Range};

pub use checksum::PseudoHeader;
pub use ethernet::{EtherType, Ethernet, MacAddress};
pub use ipv4::Ipv4;
pub use ipv6::{Fragment, Ipv6, JUMBO_OPTION, MAXIMUM_EXTENSION_HEADERS, UpperLayer, upper_layer};
pub use tcp::{Tcp, TcpFlags};
pub use udp::Udp;
pub use vlan::Vlan;

/// The bytes end before the header does, or a length field contradicts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncated;

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("header cut off, or a wrong length field")
    }
}

impl error::Error for Truncated {}

/// Number of the protocol an IP packet carries (IPv4 "protocol", IPv6 "next header").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IpProtocol(
    /// The number as assigned by IANA.
    pub u8,
);

impl IpProtocol {
    /// IPv6 hop-by-hop options (RFC 8200, 4.3).
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4.
    pub const ICMPV4: Self = Self(1);
    /// IPv4 inside IP (RFC 2003).
    pub const IPV4: Self = Self(4);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// IPv6 inside IP (RFC 4213).
    pub const IPV6: Self = Self(41);
    /// IPv6 routing header (RFC 8200, 4.4).
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header (RFC 8200, 4.5).
    pub const FRAGMENT: Self = Self(44);
    /// Generic routing encapsulation (RFC 2784).
    pub const GRE: Self = Self(47);
    /// Encapsulating security payload.
    pub const ESP: Self = Self(50);
    /// Authentication header (RFC 4302).
    pub const AUTHENTICATION: Self = Self(51);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);
    /// Nothing follows (RFC 8200, 4.7).
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6 destination options (RFC 8200, 4.6).
    pub const DESTINATION_OPTIONS: Self = Self(60);
    /// SCTP.
    pub const SCTP: Self = Self(132);
}

/// The common part of all views: the bytes after the header, and the buffer. The view supplies
/// `payload_range`, made by [`clamped`].
macro_rules! buffer_access {
    ($view:ident) => {
        impl<T: AsRef<[u8]>> $view<T> {
            /// Bytes after the header, to the end that its length field gives or the buffer has.
            #[inline]
            pub fn payload(&self) -> &[u8] {
                &self.buffer.as_ref()[self.payload_range()]
            }

            /// Returns the buffer.
            #[inline]
            pub fn into_inner(self) -> T {
                self.buffer
            }
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> $view<T> {
            /// [`Self::payload`], to write.
            #[inline]
            pub fn payload_mut(&mut self) -> &mut [u8] {
                let range = self.payload_range();
                &mut self.buffer.as_mut()[range]
            }
        }

        impl<'a> $view<&'a [u8]> {
            /// [`Self::payload`] with the lifetime of the borrowed bytes.
            #[inline]
            pub fn into_payload(self) -> &'a [u8] {
                &self.buffer[self.payload_range()]
            }
        }
    };
}
use buffer_access;

/// `start..end`, moved inside `0..length`; slicing by it cannot panic.
#[inline]
fn clamped(start: usize, end: usize, length: usize) -> Range<usize> {
    let end = end.min(length);
    start.min(end)..end
}

/// Length for a 16-bit field; a buffer too long for the field gives its largest value.
#[inline]
fn saturating_u16(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

/// `N` bytes at `at`, for offsets inside the header that was checked.
// As arrays: copying a slice may become a call of memcpy, for two bytes.
#[inline(always)]
pub(super) fn get<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    data[at..at + N].first_chunk().copied().unwrap_or([0; N])
}

#[inline]
fn get_u16(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(get(data, at))
}

#[inline]
fn get_u32(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(get(data, at))
}

#[inline(always)]
fn set<const N: usize>(data: &mut [u8], at: usize, bytes: &[u8; N]) {
    if let Some(there) = data[at..at + N].first_chunk_mut() {
        *there = *bytes;
    }
}
