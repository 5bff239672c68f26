//! Internet checksum: over bytes, pseudo-headers, and by difference.
//!
//! ```
//! use picnic_core::packet::wire::checksum;
//!
//! let mut header = [0x45, 0, 0, 20, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
//! let value = checksum::checksum(&header);
//! header[10..12].copy_from_slice(&value.to_be_bytes());
//! assert_eq!(checksum::sum(&header), 0xffff);
//!
//! header[8] = 63; // a router counts the time to live down
//! let value = checksum::update_u16(value, 0x4011, 0x3f11);
//! header[10..12].copy_from_slice(&value.to_be_bytes());
//! assert_eq!(checksum::sum(&header), 0xffff);
//! ```
//!
//! A *sum* is the ones' complement sum of big-endian 16-bit words, folded to 16 bits and not
//! complemented; a *checksum* is its complement, as written in the header. Sums of pieces join by
//! [`add`]; the sum of a piece that starts at an odd offset is byte-swapped first
//! (`u16::swap_bytes`).
//!
//! Guarantees: no panic, any length and alignment; an odd last byte is padded with zero.
//!
//! Source: RFC 1071 (sum, in any byte order and word size), RFC 1624 (update, equation 3),
//! RFC 9293 3.1 and RFC 768 (pseudo-header), RFC 8200 8.1 (the same for IPv6).

use core::net::{Ipv4Addr, Ipv6Addr};

use super::{IpProtocol, Truncated};

mod wide;

/// Ones' complement sum of `data`, folded to 16 bits.
#[inline]
pub fn sum(data: &[u8]) -> u16 {
    // The sum does not depend on byte order (RFC 1071, 2B), so words are added as they lie in
    // memory and the bytes swapped once.
    let (words, mut rest) = data.as_chunks::<8>();
    let mut total = wide::sum_words(words);
    if let Some((word, behind)) = rest.split_first_chunk::<4>() {
        total += u64::from(u32::from_ne_bytes(*word));
        rest = behind;
    }
    if let Some((word, behind)) = rest.split_first_chunk::<2>() {
        total += u64::from(u16::from_ne_bytes(*word));
        rest = behind;
    }
    if let [last] = *rest {
        total += u64::from(u16::from_ne_bytes([last, 0]));
    }
    fold(total).to_be()
}

/// Checksum of `data`: the value of the field, if it was zero while summing.
#[inline]
pub fn checksum(data: &[u8]) -> u16 {
    !sum(data)
}

/// Joins two sums.
#[inline]
pub const fn add(a: u16, b: u16) -> u16 {
    let (total, carry) = a.overflowing_add(b);
    total + carry as u16
}

/// The sum of bytes in several pieces, added one by one.
///
/// ```
/// use picnic_core::packet::wire::checksum::{self, Pieces};
///
/// let mut pieces = Pieces::default();
/// [&b"in th"[..], b"ree pie", b"ces"].into_iter().for_each(|piece| pieces.add(piece));
/// assert_eq!(pieces.sum(), checksum::sum(b"in three pieces"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Pieces {
    sum: u16,
    is_odd: bool,
}

impl Pieces {
    /// Adds the next piece.
    #[inline]
    pub fn add(&mut self, piece: &[u8]) {
        let sum = sum(piece);
        self.sum = add(self.sum, if self.is_odd { sum.swap_bytes() } else { sum });
        self.is_odd ^= !piece.len().is_multiple_of(2);
    }

    /// The sum so far.
    #[inline]
    pub fn sum(self) -> u16 {
        self.sum
    }
}

/// Checksum after one aligned 16-bit word under it changed from `old` to `new`; or any number of
/// words, whose [`sum`]s were `old` and are `new`.
///
/// For UDP a result of zero must be stored as `0xffff`, and a zero field left unchanged.
#[inline]
pub const fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    !add(add(!checksum, !old), new)
}

/// Completes a checksum left to the card: the field holds the pseudo-header's sum, and the final
/// value covers `packet[start..]`. The field's offset counts from `start`, as virtio's
/// `csum_offset`; at UDP's offset, zero is stored as `0xffff`.
///
/// # Errors
/// The field is not in the packet; nothing is written.
pub fn finish(packet: &mut [u8], start: usize, field: usize) -> Result<(), Truncated> {
    let covered = packet.get_mut(start..).ok_or(Truncated)?;
    let value = finished(checksum(covered), field);
    let field = covered.get_mut(field..).and_then(|rest| rest.first_chunk_mut::<2>());
    *field.ok_or(Truncated)? = value.to_be_bytes();
    Ok(())
}

/// A checksum as stored at this offset of a header. Zero means "no checksum" only in UDP; elsewhere
/// `0xffff` is the same in ones' complement, but not the result of a sum.
#[inline]
pub(in crate::packet) const fn finished(checksum: u16, field: usize) -> u16 {
    const OF_UDP: usize = 6;
    if field == OF_UDP { never_zero(checksum) } else { checksum }
}

/// `0xffff` for zero, which in UDP means "no checksum"; in ones' complement they are equal.
#[inline]
pub(super) const fn never_zero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

#[inline]
const fn fold(total: u64) -> u16 {
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 16) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    // 32 bits are at most 0xffff_ffff; the first fold leaves 17 bits, the second 16.
    total as u16
}

/// The addresses that TCP, UDP and ICMPv6 cover with their checksum.
///
/// With an IPv6 routing header the destination is the last one, not the one in the IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PseudoHeader {
    addresses: u16,
    ipv6: bool,
}

impl PseudoHeader {
    /// Pseudo-header over IPv4.
    #[inline]
    pub fn v4(source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        let word = |address: Ipv4Addr| u64::from(u32::from_ne_bytes(address.octets()));
        Self { addresses: fold(word(source) + word(destination)).to_be(), ipv6: false }
    }

    /// Pseudo-header over IPv6.
    #[inline]
    pub fn v6(source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        Self { addresses: add(sum(&source.octets()), sum(&destination.octets())), ipv6: true }
    }

    /// Over IPv6, where UDP must have a checksum.
    #[inline]
    pub fn is_ipv6(self) -> bool {
        self.ipv6
    }

    /// Sum with protocol and length in bytes: the content of the checksum field while the checksum
    /// is left to the card (see [`finish`]).
    #[inline]
    pub fn sum(self, protocol: IpProtocol, length: usize) -> u16 {
        let total = u64::from(self.addresses) + u64::from(protocol.0) + length as u64;
        fold(total)
    }

    /// Whether the checksum in `data` (header and payload) is right.
    #[inline]
    pub fn verify(self, protocol: IpProtocol, data: &[u8]) -> bool {
        add(self.sum(protocol, data.len()), sum(data)) == 0xffff
    }

    /// Checksum of `data` (header and payload), whose checksum field must be zero.
    #[inline]
    pub fn checksum(self, protocol: IpProtocol, data: &[u8]) -> u16 {
        !add(self.sum(protocol, data.len()), sum(data))
    }
}
