//! The virtio-net header: checksums and super-frames across the kernel's border.
//!
//! ```text
//! kernel ─▶ Header::from_bytes ─▶ Header::apply ─▶ descriptor
//! kernel ◀─ Header::to_bytes   ◀─ Header::of    ◀─ descriptor
//! ```
//!
//! A descriptor says *that* a checksum is unfinished, not where: that follows from its layers.
//! A header that says otherwise (SCTP, or TCP within a tunnel) has its checksum finished here;
//! a super-frame within a tunnel is refused, since a descriptor cannot express it.
//!
//! Guarantees: no panic for any header and packet; a packet that `apply` refused is unchanged.
//!
//! Source: Virtual I/O Device 1.2, 5.1.6, legacy layout of 10 bytes in native order;
//! RFC 1071 (Internet checksum), RFC 9260 appendix A (CRC32c).

use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::layers::{self, L4Kind, Layers, PacketType};
use picnic_core::packet::offload;

/// Bytes of the header as the kernel lays it out.
pub const HEADER_BYTES: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// TCP's congestion window reduced flag, in the byte of flags.
const CWR: u8 = 0x80;
const SCTP: u8 = 132;

/// The header, in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// 1: the checksum must be completed; 2: it was verified.
    pub flags: u8,
    /// How a super-frame must be segmented; 0 for an ordinary packet.
    pub gso_type: u8,
    /// Bytes of all headers, a hint.
    pub header_length: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// From the start of the packet to where the sum begins, in bytes.
    pub checksum_start: u16,
    /// From there to where the checksum goes, in bytes.
    pub checksum_offset: u16,
}

/// A header that a descriptor cannot express, or that points out of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHeader;

impl Header {
    /// The header that these bytes are.
    #[inline]
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [flags, gso_type, a, b, c, d, e, f, g, h] = *bytes;
        Header {
            flags,
            gso_type,
            header_length: u16::from_ne_bytes([a, b]),
            gso_size: u16::from_ne_bytes([c, d]),
            checksum_start: u16::from_ne_bytes([e, f]),
            checksum_offset: u16::from_ne_bytes([g, h]),
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let [a, b] = self.header_length.to_ne_bytes();
        let [c, d] = self.gso_size.to_ne_bytes();
        let [e, f] = self.checksum_start.to_ne_bytes();
        let [g, h] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h]
    }

    /// Enters the kernel's metadata into a packet's descriptor. `inserted` bytes (a VLAN
    /// tag) were put into the packet that the header does not know of.
    ///
    /// # Errors
    /// The packet cannot be expressed or the header lies; it is as it was.
    #[inline]
    pub fn apply(&self, packet: &mut Descriptor, inserted: u16) -> Result<(), InvalidHeader> {
        let gso = match self.gso_type & !GSO_ECN {
            0 => GsoType::None,
            GSO_TCP4 => GsoType::Tcp4,
            GSO_TCP6 => GsoType::Tcp6,
            GSO_UDP => GsoType::Udp,
            _ => return Err(InvalidHeader),
        };
        if gso != GsoType::None && self.gso_size == 0 {
            return Err(InvalidHeader);
        }
        if self.flags & NEEDS_CSUM != 0 {
            let start = self.checksum_start.checked_add(inserted).ok_or(InvalidHeader)?;
            let layers = packet.parse();
            let derived = checksum_place(&layers);
            if derived == Some((start, self.checksum_offset)) && fits(packet, derived) {
                packet.set_checksum(ChecksumState::Partial);
            } else if gso == GsoType::None {
                finish(packet, start, self.checksum_offset, layers.protocol == SCTP)?;
            } else {
                return Err(InvalidHeader);
            }
        } else if self.flags & DATA_VALID != 0 {
            packet.set_checksum(ChecksumState::Good);
        }
        if gso != GsoType::None {
            packet.set_gso(gso, self.gso_size);
        }
        Ok(())
    }

    /// The kernel's work on a packet that it takes for transmission; `None` if the descriptor
    /// requests work on headers that the packet does not have.
    #[inline]
    pub fn of(packet: &Descriptor) -> Option<Self> {
        let (partial, gso) = (packet.checksum() == ChecksumState::Partial, packet.gso_type());
        if !partial && gso == GsoType::None {
            return Some(Header::default());
        }
        let data = packet.data();
        let layers = match packet.packet_type() {
            PacketType::NONE => layers::parse(data),
            _ => packet.layers(),
        };
        let mut header = Header::default();
        if partial {
            let place = checksum_place(&layers)?;
            if !fits(packet, Some(place)) {
                return None;
            }
            header.flags = NEEDS_CSUM;
            (header.checksum_start, header.checksum_offset) = place;
        }
        if gso != GsoType::None {
            let kind = layers.packet_type;
            let l4 = usize::from(layers.l4_offset);
            header.gso_type = match gso {
                GsoType::Tcp4 if kind.is_ipv4() && kind.is_tcp() => GSO_TCP4,
                GsoType::Tcp6 if kind.is_ipv6() && kind.is_tcp() => GSO_TCP6,
                GsoType::Udp if kind.is_udp() => GSO_UDP,
                _ => return None,
            };
            let mut length = 8;
            if kind.is_tcp() {
                length = u16::from(data.get(l4 + 12)? >> 4) * 4;
                if data.get(l4 + 13)? & CWR != 0 {
                    header.gso_type |= GSO_ECN;
                }
            }
            header.header_length = layers.l4_offset + length;
            header.gso_size = packet.gso_size();
        }
        Some(header)
    }
}

/// The start of a TCP or UDP checksum's range, and the offset of its field from there.
#[inline]
fn checksum_place(layers: &Layers) -> Option<(u16, u16)> {
    match layers.packet_type.l4() {
        L4Kind::Tcp => Some((layers.l4_offset, 16)),
        L4Kind::Udp => Some((layers.l4_offset, 6)),
        _ => None,
    }
}

/// Whether the checksum itself lies within the packet's first segment.
#[inline]
fn fits(packet: &Descriptor, place: Option<(u16, u16)>) -> bool {
    place.is_some_and(|(start, offset)| {
        usize::from(start) + usize::from(offset) + 2 <= packet.data().len()
    })
}

/// Finishes the checksum that a packet's sender has left to the hardware.
#[cold]
fn finish(
    packet: &mut Descriptor,
    start: u16,
    offset: u16,
    sctp: bool,
) -> Result<(), InvalidHeader> {
    let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
    if sctp {
        packet.data_mut().get_mut(at..at + 4).ok_or(InvalidHeader)?.fill(0);
        let crc = crc32c(tail(packet, start));
        packet.data_mut()[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        packet.set_checksum(ChecksumState::Good);
    } else {
        let finished = offload::finish_checksum_at(packet, start, usize::from(offset));
        return finished.then_some(()).ok_or(InvalidHeader);
    }
    Ok(())
}

/// The packet's bytes from `start` on, over all segments.
fn tail(packet: &Descriptor, start: usize) -> impl Iterator<Item = u8> {
    packet.segments().flatten().skip(start).copied()
}

/// Castagnoli's CRC, reflected, a bit at a time: for the rare packet.
fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests;
