//! Offloads in software: checksums that a wire or a host leaves to the card.
//!
//! A host whose NIC completes checksums sends packets whose L4 checksum field holds only the
//! pseudo-header's sum ([`ChecksumState::Partial`]). They pass through the card unchanged, and most
//! end where the same holds: at another interface of the kernel. For a wire without the offload
//! they are completed here ([`Capabilities::partial_checksums`]).
//!
//! Guarantees: any bytes, chained or not; a checksum that cannot be completed is left unchanged.
//!
//! Source: virtio 1.2, 5.1.6.2 (csum_start, csum_offset).
//!
//! [`Capabilities::partial_checksums`]: crate::port::Capabilities::partial_checksums

use super::desc::{ChecksumState, Descriptor};
use super::layers::{Layers, PacketType, Route};
use super::wire::{IpProtocol, Ipv4, Ipv6, PseudoHeader, checksum};
use std::net::IpAddr;
use std::ops::Range;

/// Start of the L4 checksum's range and the offset of its field from there, in bytes; `None` if it
/// is neither TCP nor UDP. The packet is parsed if necessary.
#[inline]
pub fn checksum_place(packet: &mut Descriptor) -> Option<(u16, u16)> {
    let mut layers = packet.layers();
    if packet.packet_type() == PacketType::NONE {
        layers = packet.parse();
    }
    let field = match layers.packet_type {
        kind if kind.is_tcp() => 16,
        kind if kind.is_udp() => 6,
        _ => return None,
    };
    (layers.l4_offset != 0).then_some((layers.l4_offset, field))
}

/// Completes a partial checksum; no effect on packets without one.
#[inline]
pub fn finish_checksum(packet: &mut Descriptor) {
    if packet.checksum() == ChecksumState::Partial
        && let Some((start, field)) = checksum_place(packet)
    {
        finish_checksum_at(packet, start.into(), field.into());
    }
}

/// Ones' complement sum of a packet's bytes in `range`, over all its segments, without bytes beyond
/// the packet's end.
#[inline]
pub fn sum(packet: &Descriptor, range: Range<usize>) -> u16 {
    if !packet.is_chained() {
        let data = packet.data();
        let end = range.end.min(data.len());
        return checksum::sum(&data[range.start.min(end)..end]);
    }
    sum_of_chain(packet, range)
}

#[cold]
fn sum_of_chain(packet: &Descriptor, range: Range<usize>) -> u16 {
    let mut pieces = checksum::Pieces::default();
    let (mut skip, mut left) = (range.start, range.end.saturating_sub(range.start));
    for segment in packet.segments() {
        let covered = &segment[skip.min(segment.len())..];
        let covered = &covered[..left.min(covered.len())];
        skip = skip.saturating_sub(segment.len());
        left -= covered.len();
        pieces.add(covered);
    }
    pieces.sum()
}

/// Completes a partial checksum over the packet from `start` on, its field `field` bytes after
/// that; false if the field is not in the packet.
pub fn finish_checksum_at(packet: &mut Descriptor, start: usize, field: usize) -> bool {
    let value = checksum::finished(!sum(packet, start..usize::MAX), field);
    packet.gather_front(u16::try_from(start + field + 2).unwrap_or(u16::MAX));
    let place = packet.data_mut().get_mut(start + field..);
    let Some(place) = place.and_then(|rest| rest.first_chunk_mut::<2>()) else { return false };
    *place = value.to_be_bytes();
    packet.set_checksum(ChecksumState::Good);
    true
}

/// Whether the L4 checksum field of a TCP or UDP packet holds only the pseudo-header's sum, as left
/// by a sender whose NIC completes checksums. The packet is parsed.
///
/// Used where the mark of such packets is lost (XDP). One complete packet in 65536 looks the same;
/// completing it again gives the same checksum, so no harm is done, but its correctness is then no
/// longer known.
#[inline]
pub fn is_unfinished(packet: &mut Descriptor) -> bool {
    let layers = packet.parse();
    let field = match layers.packet_type {
        kind if kind.is_tcp() => 16,
        kind if kind.is_udp() => 6,
        _ => return false,
    };
    let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
    let length = packet.length() as usize;
    let data = packet.data();
    // Bytes after the IP length would be summed as well: such a packet is excluded.
    if layers.ip_length(data, length) != Some(length - l3) {
        return false;
    }
    let found = data.get(l4 + field..).and_then(|rest| rest.first_chunk());
    let (Some(pseudo), Some(&found)) = (pseudo_header(data, &layers), found) else { return false };
    let protocol = if field == 16 { IpProtocol::TCP } else { IpProtocol::UDP };
    u16::from_be_bytes(found) == pseudo.sum(protocol, length - l4)
}

/// The pseudo-header of a packet that starts with `data`, with the last destination of its route;
/// `None` if it is not IP, or that destination is unknown.
#[inline]
pub fn pseudo_header(data: &[u8], layers: &Layers) -> Option<PseudoHeader> {
    let behind = data.get(layers.l3_offset.into()..)?;
    let route = layers.route(data);
    if layers.packet_type.is_ipv4() {
        let ip = Ipv4::new_header(behind).ok()?;
        return match route {
            Route::Done => Some(ip.pseudo_header()),
            Route::Pending(IpAddr::V4(last)) => Some(PseudoHeader::v4(ip.source(), last)),
            _ => None,
        };
    }
    if !layers.packet_type.is_ipv6() {
        return None;
    }
    let ip = Ipv6::new_header(behind).ok()?;
    match route {
        Route::Done => Some(ip.pseudo_header()),
        Route::Pending(IpAddr::V6(last)) => Some(PseudoHeader::v6(ip.source(), last)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::pool::{Pool, PoolConfig};
    use crate::packet::wire::{IpProtocol, PseudoHeader};
    use std::net::Ipv4Addr;

    /// UDP over IPv4 whose checksum field holds the pseudo-header's sum.
    fn partial(payload: usize) -> Vec<u8> {
        let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let length = (8 + payload) as u16;
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([0x45, 0]);
        frame.extend((20 + length).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x12, 0x34, 0x56, 0x78]);
        frame.extend(length.to_be_bytes());
        let sum = PseudoHeader::v4(source, destination).sum(IpProtocol::UDP, length.into());
        frame.extend(sum.to_be_bytes());
        frame.extend((0..payload).map(|index| (index * 7) as u8));
        frame
    }

    #[test]
    fn partial_checksums_are_completed() {
        let pseudo = PseudoHeader::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        // Odd segments, so that words straddle two of them.
        for buffer_size in [65, 77, 128, 2048] {
            let config = PoolConfig { buffer_size, ..PoolConfig::default() };
            let (mut pool, _) = Pool::new(&config, 0).unwrap();
            for payload in [0, 1, 2, 22, 23, 100, 333, 1400] {
                let mut packet = pool.packet(&partial(payload)).unwrap();
                packet.set_checksum(ChecksumState::Partial);
                finish_checksum(&mut packet);
                assert_eq!(packet.checksum(), ChecksumState::Good);
                let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
                assert!(pseudo.verify(IpProtocol::UDP, &bytes[34..]), "{buffer_size} {payload}");
                pool.free(packet);
            }
        }
    }

    #[test]
    fn complete_checksums_are_unchanged() {
        let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
        let mut packet = pool.packet(&partial(10)).unwrap();
        finish_checksum(&mut packet);
        assert_eq!(packet.data(), partial(10));
        assert!(!finish_checksum_at(&mut packet, 50, 6));
        assert!(!finish_checksum_at(&mut packet, 5000, 6));
        assert_eq!(packet.data(), partial(10));
        pool.free(packet);
        let mut packet = pool.packet(&[0; 20]).unwrap();
        packet.set_checksum(ChecksumState::Partial);
        finish_checksum(&mut packet);
        assert_eq!(packet.data(), [0; 20]);
        pool.free(packet);
    }

    #[test]
    fn partial_checksums_are_recognised_by_value() {
        let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
        let mut look = |frame: &[u8]| {
            let mut packet = pool.packet(frame).unwrap();
            let found = is_unfinished(&mut packet);
            packet.set_checksum(ChecksumState::Partial);
            finish_checksum(&mut packet);
            let finished = is_unfinished(&mut packet);
            pool.free(packet);
            (found, finished)
        };
        for payload in [0, 1, 10, 100, 1400] {
            let frame = partial(payload);
            assert_eq!(look(&frame), (true, false), "{payload}");
            let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
            assert_eq!(look(&tagged), (true, false), "{payload}");
            let padded = [&frame[..], &[0; 6]].concat();
            assert!(!look(&padded).0, "{payload}: padding would be summed");
            for cut in 0..frame.len() {
                assert!(!look(&frame[..cut]).0, "{payload} cut to {cut}");
            }
        }
        // The same over IPv6, and TCP.
        let (source, destination) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        frame.extend([0x60, 0, 0, 0, 0, 23, 6, 64]);
        frame.extend(std::net::Ipv6Addr::octets(&source));
        frame.extend(std::net::Ipv6Addr::octets(&destination));
        let sum = PseudoHeader::v6(source, destination).sum(IpProtocol::TCP, 23);
        frame.extend([0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0x50, 0x10, 1, 0]);
        frame.extend(sum.to_be_bytes());
        frame.extend([0, 0, 7, 8, 9]);
        assert_eq!(look(&frame), (true, false));
        frame[70] ^= 1;
        assert!(!look(&frame).0);
        assert!(!look(&[0; 60]).0);
    }
}
