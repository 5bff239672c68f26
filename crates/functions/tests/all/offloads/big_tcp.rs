//! An IP length of 0, as in super-frames of more than 65,535 bytes (BIG TCP): the packet's length
//! counts.

use super::*;
use picnic_core::packet::desc::RssType;

/// Sets the IP length to 0 and mends the IPv4 header's checksum.
fn open(mut data: Vec<u8>, l3: usize) -> Vec<u8> {
    if data[l3] >> 4 == 4 {
        data[l3 + 2..l3 + 4].fill(0);
        data[l3 + 10..l3 + 12].fill(0);
        let sum = !reference_sum(&data[l3..l3 + 20]);
        data[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        data[l3 + 4..l3 + 6].fill(0);
    }
    data
}

/// The same with hop-by-hop options before TCP, as Linux adds them, or with other options among
/// them.
fn with_jumbo_option(mut data: Vec<u8>, others: bool) -> Vec<u8> {
    let length = (data.len() - 54 + if others { 16 } else { 8 }) as u32;
    let [a, b, c, d] = length.to_be_bytes();
    data[20] = 0;
    // Router alert (RFC 2711), padding of one byte twice.
    let options: &[u8] = match others {
        true => &[6, 1, 5, 2, 0, 0, 0, 0, 0xc2, 4, a, b, c, d, 0, 0],
        false => &[6, 0, 0xc2, 4, a, b, c, d],
    };
    data.splice(54..54, options.iter().copied());
    data
}

#[test]
fn super_frames_beyond_64_kib_are_cut() {
    for (v6, payload, option) in [
        (false, 100_000, None),
        (true, 100_000, None),
        (true, 100_000, Some(false)),
        (true, 100_000, Some(true)),
        (false, 9000, None),
        (true, 9000, Some(false)),
    ] {
        let payload = bytes(payload, 3);
        let mut data = open(frame(v6, 0, true, Vec::new()).build(), 14);
        data.extend(&payload);
        if let Some(others) = option {
            data = with_jumbo_option(data, others);
        }
        let mut tso = function("tso", "");
        let mut card = Card::new(&context(2048));
        let gso = if v6 { GsoType::Tcp6 } else { GsoType::Tcp4 };
        let seen = card.run_with(tso.as_mut(), &from_wire_0([data]), ask(gso, 1400));
        assert_eq!(seen.len(), payload.len().div_ceil(1400), "{v6} {option:?}");
        let mut joined = Vec::new();
        for segment in &seen {
            // Options that are not the jumbogram's stay.
            if option == Some(true) {
                assert_eq!(segment.data[54..70], [6, 1, 5, 2, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 0, 0]);
            } else if v6 {
                assert_eq!(segment.data[20], 6);
            }
            assert_eq!(state_of(&segment.data, 2048), ChecksumState::Good);
            joined.extend(read(&segment.data).payload);
        }
        assert_eq!(joined, payload);
    }
}

#[test]
fn checksums_cover_the_packet() {
    for v6 in [false, true] {
        for is_tcp in [false, true] {
            let data = open(frame(v6, 1, is_tcp, bytes(1000, 1)).build(), 18);
            for buffer_size in [256, 2048] {
                assert_eq!(state_of(&data, buffer_size), ChecksumState::Good);
                let mut bad = data.clone();
                *bad.last_mut().unwrap() ^= 1;
                assert_eq!(state_of(&bad, buffer_size), ChecksumState::Bad);
            }
        }
    }
    // More than 65,535 bytes: the length in the pseudo-header has more than 16 bits.
    let whole = frame(true, 0, true, bytes(60_000, 1));
    let mut data = open(whole.build(), 14);
    data.extend(bytes(20_000, 2));
    let l4 = 54;
    data[l4 + 16..l4 + 18].fill(0);
    let length = (data.len() - l4) as u32;
    let covered = [&data[22..54], &length.to_be_bytes(), &[0, 0, 0, 6], &data[l4..]].concat();
    let words = covered.chunks(2).map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    data[l4 + 16..l4 + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    assert_eq!(state_of(&data, 2048), ChecksumState::Good);
}

#[test]
fn flows_and_ports_are_read() {
    let mut card = Card::new(&context(2048));
    for v6 in [false, true] {
        let whole = frame(v6, 0, true, bytes(100, 1)).build();
        let mut big = open(whole.clone(), 14);
        big.extend(bytes(80_000, 1));
        let mut jumbo = whole.clone();
        if v6 {
            jumbo = with_jumbo_option(open(whole.clone(), 14), false);
        }
        let mut rss = function("rss", "types = [\"tcp-ipv4\", \"tcp-ipv6\"]");
        let seen = card.run(rss.as_mut(), &from_wire_0([whole, big, jumbo]));
        assert_ne!(seen[0].over, RssType::None);
        for packet in &seen {
            assert_eq!(
                (packet.hash, packet.over, packet.door),
                (seen[0].hash, seen[0].over, seen[0].door)
            );
        }
    }
}

#[test]
fn zero_length_tunnels_are_decapsulated_whole() {
    let inner = frame(false, 0, true, bytes(300, 7)).build();
    for kind in ["vxlan", "geneve", "gre", "ipip"] {
        for v6 in [false, true] {
            let carried = open(tunnel::put_in(kind, v6, "", &inner), 14);
            let taken = tunnel::take_off("", &carried).unwrap();
            assert_eq!(taken[14..], inner[14..], "{kind} {v6}");
        }
    }
    // An IP packet without a length is carried with all its bytes.
    let inner = open(inner, 14);
    let carried = tunnel::put_in("ipip", false, "", &inner);
    assert_eq!(carried[34..], inner[14..]);
}

#[test]
fn packets_without_a_length_are_not_merged() {
    let frames: Vec<_> =
        streams(&[(0, Step::Full); 3], 500).into_iter().map(|data| open(data, 14)).collect();
    let mut lro = function("lro", "timeout_usecs = 0");
    let mut card = Card::new(&context(2048));
    let seen = card.run(lro.as_mut(), &from_wire_0(frames.clone()));
    assert!(seen.iter().map(|packet| &packet.data).eq(&frames));
}
