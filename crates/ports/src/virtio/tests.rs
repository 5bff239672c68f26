//! The virtio header: both directions, and completed checksums.

use super::*;
use etherparse::PacketBuilder;
use picnic_core::packet::pool::{Pool, PoolConfig};
use proptest::prelude::*;

fn pool(buffer_size: u32) -> Pool {
    let config = PoolConfig { buffers: 4096, buffer_size, ..PoolConfig::default() };
    Pool::new(&config, 0).unwrap().0
}

/// A packet with right checksums: IPv4 or IPv6, TCP or UDP, up to two tags.
fn frame(v6: bool, tcp: bool, tags: usize, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let builder = match v6 {
        true => builder.ipv6([1; 16], [2; 16], 64),
        false => builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
    };
    let mut frame = Vec::new();
    if tcp {
        builder.tcp(1000, 80, 1, 1000).write(&mut frame, payload).unwrap();
    } else {
        builder.udp(1000, 53).write(&mut frame, payload).unwrap();
    }
    for _ in 0..tags {
        let at = 12;
        frame.splice(at..at, [0x81, 0x00, 0x00, 0x07]);
    }
    frame
}

/// The start of the L4 checksum's range, and its field.
fn place(v6: bool, tcp: bool, tags: usize) -> (u16, u16) {
    let l4 = 14 + 4 * tags + if v6 { 40 } else { 20 };
    (l4 as u16, if tcp { 16 } else { 6 })
}

/// Puts the pseudo-header's sum where the checksum is, as a sender with offload does.
fn unfinish(frame: &mut [u8], (start, offset): (u16, u16)) {
    let (start, at) = (usize::from(start), usize::from(start + offset));
    let right = u16::from_be_bytes([frame[at], frame[at + 1]]);
    frame[at..at + 2].fill(0);
    let mut sum = u64::from(!right);
    for pair in frame[start..].chunks(2) {
        sum += u64::from(!u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
}

fn bytes(packet: &Descriptor) -> Vec<u8> {
    packet.segments().flatten().copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn bytes_make_the_header_they_came_from(bytes: [u8; HEADER_BYTES]) {
        prop_assert_eq!(Header::from_bytes(&bytes).to_bytes(), bytes);
    }

    #[test]
    fn descriptors_round_trip(
        v6: bool, tcp: bool, tags in 0_usize..3, inserted: bool, super_frame: bool, partial: bool,
        payload in 0_usize..5000, gso_size in 1_u16..9000, small: bool,
    ) {
        let inserted = if inserted && tags != 0 { 4 } else { 0 };
        let mut pool = pool(if small { 192 } else { 2048 });
        let (start, offset) = place(v6, tcp, tags);
        let mut packet = pool.packet(&frame(v6, tcp, tags, &vec![7; payload])).unwrap();
        let gso_type = match (super_frame, tcp, v6) {
            (false, ..) => 0,
            (true, true, false) => GSO_TCP4,
            (true, true, true) => GSO_TCP6,
            (true, false, _) => GSO_UDP,
        };
        let header = Header {
            flags: if partial { NEEDS_CSUM } else { 0 },
            gso_type,
            header_length: if super_frame { start + if tcp { 20 } else { 8 } } else { 0 },
            gso_size: if super_frame { gso_size } else { 0 },
            checksum_start: if partial { start - inserted } else { 0 },
            checksum_offset: if partial { offset } else { 0 },
        };
        let before = bytes(&packet);
        prop_assert_eq!(header.apply(&mut packet, inserted), Ok(()));
        prop_assert_eq!(bytes(&packet), before);
        let expected = Header {
            checksum_start: if partial { start } else { 0 },
            ..header
        };
        prop_assert_eq!(Header::of(&packet), Some(expected));
        pool.free(packet);
    }

    #[test]
    fn no_header_and_no_packet_panics(
        header: [u8; HEADER_BYTES], inserted in 0_u16..5,
        data in proptest::collection::vec(any::<u8>(), 0..300), v6: bool, tcp: bool, real: bool,
        flags in 0_u8..3, gso in 0_u8..6, partial: bool,
    ) {
        let mut pool = pool(64);
        let data = if real { frame(v6, tcp, 0, &data) } else { data };
        let mut header = Header::from_bytes(&header);
        header.flags = flags;
        header.gso_type = gso;
        let mut packet = pool.packet(&data).unwrap();
        if header.apply(&mut packet, inserted).is_err() {
            prop_assert_eq!(bytes(&packet), data);
            prop_assert_eq!(packet.gso_type(), GsoType::None);
        }
        if partial {
            packet.set_checksum(ChecksumState::Partial);
        }
        let _ = Header::of(&packet);
        pool.free(packet);
        prop_assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn a_checksum_that_layers_do_not_tell_of_is_finished(
        v6: bool, tcp: bool, payload in 0_usize..700, small: bool,
    ) {
        // TCP or UDP within four bytes of something else: the layers see no L4 header.
        let mut pool = pool(if small { 128 } else { 2048 });
        let (start, offset) = place(v6, tcp, 0);
        let right = frame(v6, tcp, 0, &vec![9; payload]);
        let mut inner = right.clone();
        unfinish(&mut inner, (start, offset));
        let wrap = |inner: &[u8]| [&inner[..12], &[0x88, 0xb5, 0, 0], &inner[12..]].concat();
        let mut packet = pool.packet(&wrap(&inner)).unwrap();
        let header = Header {
            flags: NEEDS_CSUM, checksum_start: start + 4, checksum_offset: offset,
            ..Header::default()
        };
        prop_assert_eq!(header.apply(&mut packet, 0), Ok(()));
        prop_assert_eq!(bytes(&packet), wrap(&right));
        prop_assert_ne!(packet.checksum(), ChecksumState::Partial);
        prop_assert_eq!(Header::of(&packet), Some(Header::default()));
        let cut = Header { gso_type: GSO_TCP4, gso_size: 100, ..header };
        prop_assert_eq!(cut.apply(&mut packet, 0), Err(InvalidHeader));
        pool.free(packet);
    }
}

#[test]
fn sctp_gets_its_crc() {
    // RFC 9260, appendix A, has no vector; this is the check value of CRC-32C.
    assert_eq!(crc32c(b"123456789".iter().copied()), 0xe306_9283);
    let mut data = vec![2; 12];
    data.extend([0x08, 0x00, 0x45, 0, 0, 36, 0, 0, 0x40, 0, 64, SCTP, 0, 0]);
    data.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    data.extend([0, 1, 0, 2, 0, 0, 0, 3, 0xde, 0xad, 0xbe, 0xef, 14, 0, 0, 4]);
    let mut pool = pool(2048);
    let mut packet = pool.packet(&data).unwrap();
    let header =
        Header { flags: NEEDS_CSUM, checksum_start: 34, checksum_offset: 8, ..Header::default() };
    assert_eq!(header.apply(&mut packet, 0), Ok(()));
    data[42..46].fill(0);
    let crc = crc32c(data[34..].iter().copied());
    assert_eq!(packet.data()[42..46], crc.to_le_bytes());
    assert_eq!(packet.checksum(), ChecksumState::Good);
    pool.free(packet);
}

#[test]
fn a_reduced_window_shows_in_the_type() {
    let mut data = frame(false, true, 0, &[0; 3000]);
    data[14 + 20 + 13] |= CWR;
    let mut pool = pool(2048);
    let mut packet = pool.packet(&data).unwrap();
    let header = Header {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCP4 | GSO_ECN,
        header_length: 54,
        gso_size: 1448,
        checksum_start: 34,
        checksum_offset: 16,
    };
    assert_eq!(header.apply(&mut packet, 0), Ok(()));
    assert_eq!(packet.gso_type(), GsoType::Tcp4);
    assert_eq!(Header::of(&packet), Some(header));
    pool.free(packet);
}

/// Super-frames of more than 65,535 bytes have an IP length of 0, and over IPv6 perhaps a jumbo
/// payload option before TCP.
#[test]
fn super_frames_beyond_64_kib_are_expressed() {
    let mut pool = pool(2048);
    for (v6, jumbo) in [(false, false), (true, false), (true, true)] {
        for tags in 0..2 {
            let mut frame = frame(v6, true, tags, &[]);
            let l3 = 14 + 4 * tags;
            let field = if v6 { l3 + 4 } else { l3 + 2 };
            frame[field..field + 2].fill(0);
            let mut start = place(v6, true, tags).0;
            if jumbo {
                frame[l3 + 6] = 0;
                let option = [&[6, 0, 0xc2, 4][..], &(100_028_u32).to_be_bytes()].concat();
                frame.splice(l3 + 40..l3 + 40, option);
                start += 8;
            }
            frame.resize(frame.len() + 100_000, 7);
            let header = Header {
                flags: NEEDS_CSUM,
                gso_type: if v6 { GSO_TCP6 } else { GSO_TCP4 },
                header_length: start + 20,
                gso_size: 1448,
                checksum_start: start,
                checksum_offset: 16,
            };
            let mut packet = pool.packet(&frame).unwrap();
            assert_eq!(header.apply(&mut packet, 0), Ok(()));
            assert_eq!(packet.checksum(), ChecksumState::Partial);
            let gso = if v6 { GsoType::Tcp6 } else { GsoType::Tcp4 };
            assert_eq!((packet.gso_type(), packet.gso_size()), (gso, 1448));
            assert_eq!(Header::of(&packet), Some(header));
            assert_eq!(bytes(&packet), frame);
            pool.free(packet);
        }
    }
}
