//! `checksum`, `vlan`, `tso`, `lro` and `header-split`: their guarantees, checked by etherparse.

mod big_tcp;
mod order;
mod routes;
mod tunnel;
mod tunnel_captures;

use crate::common;
use crate::common::build::{Frame, Read, read, tcp};
use crate::common::frames::{any_spec, every_kind};
use crate::common::{Card, Packet, Seen, build, from_wire_0, refusal};
use picnic_core::function::Function;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType, VlanTag};
use picnic_core::packet::layers;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_functions::registry::FUNCTIONS;
use proptest::prelude::*;
use serde_json::{Value, json};

fn context(buffer_size: usize) -> BuildContext {
    BuildContext { buffer_size, ..BuildContext::default() }
}

fn function(name: &str, keys: &str) -> Box<dyn Function> {
    build(&format!("function = \"{name}\"\n{keys}"), &BuildContext::default()).unwrap()
}

/// The result of a function's command.
fn call(name: &str, command: &str, function: &mut dyn Function, arguments: Value) -> Value {
    let entry = FUNCTIONS.iter().find(|entry| entry.name == name).unwrap();
    let command = entry.commands.iter().find(|entry| entry.name == command).unwrap();
    let mut order = command.prepare(&arguments, &BuildContext::default()).unwrap();
    assert!(function.obey(&mut order, Time::ZERO));
    command.reply(order).unwrap()
}

fn get(name: &str, function: &mut dyn Function) -> Value {
    call(name, "get", function, json!({}))
}

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..count).map(|place| (place as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn frame(v6: bool, tags: usize, is_tcp: bool, payload: Vec<u8>) -> Frame {
    let tcp = is_tcp.then(|| tcp(1, 7, 9));
    Frame { v6, tags, flow: 1, identification: 5, hops: 64, tcp, payload }
}

/// The sum of RFC 1071, word by word.
fn reference_sum(data: &[u8]) -> u16 {
    let words =
        data.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&b| b.into()));
    let total: u32 = words.sum();
    let total = (total >> 16) + (total & 0xffff);
    ((total >> 16) + total) as u16
}

/// An ICMP or ICMPv6 message with its checksum.
fn icmp(v6: bool, payload: &[u8]) -> Vec<u8> {
    let udp = frame(v6, 0, false, payload.to_vec());
    let mut whole = udp.build();
    let l4 = udp.headers() - 8;
    if v6 {
        whole[20] = 58;
    } else {
        whole[23] = 1;
        whole[24..26].fill(0);
        let sum = !reference_sum(&whole[14..34]);
        whole[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    whole[l4..l4 + 8].copy_from_slice(&[if v6 { 128 } else { 8 }, 0, 0, 0, 0, 1, 0, 2]);
    let mut covered = whole[l4..].to_vec();
    if v6 {
        let length = covered.len() as u16;
        covered =
            [&whole[22..54], &[0, 0], &length.to_be_bytes(), &[0, 0, 0, 58], &covered].concat();
    }
    let sum = !reference_sum(&covered);
    whole[l4 + 2..l4 + 4].copy_from_slice(&sum.to_be_bytes());
    whole
}

// ---------------------------------------------------------------- checksum

fn state_of(frame: &[u8], buffer_size: usize) -> ChecksumState {
    let mut function = function("checksum", "");
    let mut card = Card::new(&context(buffer_size));
    let seen = card.run(function.as_mut(), &from_wire_0([frame.to_vec()]));
    assert_eq!(seen[0].data, frame);
    seen[0].checksum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Correct checksums are good; with any one covered bit changed, they are bad.
    #[test]
    fn flipped_bits_make_checksums_bad(
        kind in 0..3_u8, v6: bool, tags in 0..3_usize, payload in 0..700_usize,
        buffer_size in prop::sample::select(vec![140_usize, 141, 256, 2048]),
        place in any::<prop::sample::Index>(), bit in 0..8_u8,
    ) {
        let payload = bytes(payload, 3);
        let (mut data, l4) = if kind == 2 {
            (icmp(v6, &payload), if v6 { 54 } else { 34 })
        } else {
            let frame = frame(v6, tags, kind == 0, payload);
            let l4 = 14 + 4 * tags + if v6 { 40 } else { 20 };
            (frame.build(), l4)
        };
        prop_assert_eq!(state_of(&data, buffer_size), ChecksumState::Good);
        // Not the bytes that state the packet's kind and length.
        let length_fields = match kind {
            0 => l4 + 12..l4 + 13,
            1 => l4 + 4..l4 + 8,
            _ => l4..l4,
        };
        let place = l4 + place.index(data.len() - l4);
        prop_assume!(!length_fields.contains(&place));
        data[place] ^= 1 << bit;
        prop_assert_eq!(state_of(&data, buffer_size), ChecksumState::Bad);
    }

    /// Padding after the IP packet is not covered, and the IPv4 header is checked first.
    #[test]
    fn padding_is_not_covered_and_the_ipv4_header_is(
        is_tcp: bool, padding in prop::collection::vec(any::<u8>(), 1..20),
        place in 0..20_usize, bit in 0..8_u8,
    ) {
        let frame = frame(false, 0, is_tcp, bytes(40, 1));
        let mut data = frame.build();
        data.extend(padding);
        prop_assert_eq!(state_of(&data, 2048), ChecksumState::Good);
        // Version and header length, without which there is no header to read, and length.
        prop_assume!(!(0..4).contains(&place));
        data[14 + place] ^= 1 << bit;
        prop_assert_eq!(state_of(&data, 2048), ChecksumState::Bad);
    }

    /// A checksum left unfinished becomes the right one, in any number of buffers.
    #[test]
    fn partial_checksums_are_completed(
        v6: bool, tags in 0..3_usize, is_tcp: bool, payload in 0..900_usize,
        buffer_size in prop::sample::select(vec![150_usize, 151, 2048]),
    ) {
        let frame = frame(v6, tags, is_tcp, bytes(payload, 7));
        let right = frame.build();
        let unfinished = unfinished(&frame);
        let mut function = function("checksum", "");
        let mut card = Card::new(&context(buffer_size));
        let prepare = |_: usize, packet: &mut Descriptor| packet.set_checksum(ChecksumState::Partial);
        let seen = card.run_with(function.as_mut(), &from_wire_0([unfinished.clone()]), prepare);
        prop_assert_eq!((&seen[0].data, seen[0].checksum), (&unfinished, ChecksumState::Partial));
        card.stage = Stage::Tx;
        let seen = card.run_with(function.as_mut(), &from_wire_0([unfinished]), prepare);
        prop_assert_eq!((&seen[0].data, seen[0].checksum), (&right, ChecksumState::Good));
        let counts = get("checksum", function.as_mut());
        prop_assert_eq!((&counts["partial"], &counts["completed"]), (&json!(1), &json!(1)));
    }
}

/// The frame with the pseudo-header's sum as its checksum.
fn unfinished(frame: &Frame) -> Vec<u8> {
    let mut data = frame.build();
    let l3 = 14 + 4 * frame.tags;
    let l4 = l3 + if frame.v6 { 40 } else { 20 };
    let addresses = if frame.v6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
    let protocol = if frame.tcp.is_some() { 6 } else { 17 };
    let length = (data.len() - l4) as u16;
    let pseudo = [&data[addresses], &[0, protocol], &length.to_be_bytes()].concat();
    let field = l4 + if frame.tcp.is_some() { 16 } else { 6 };
    data[field..field + 2].copy_from_slice(&reference_sum(&pseudo).to_be_bytes());
    data
}

#[test]
fn a_udp_checksum_of_zero_is_none_over_ipv4_and_bad_over_ipv6() {
    for (v6, expected) in [(false, ChecksumState::Unknown), (true, ChecksumState::Bad)] {
        let frame = frame(v6, 0, false, bytes(30, 1));
        let mut data = frame.build();
        let field = frame.headers() - 2;
        data[field..field + 2].fill(0);
        assert_eq!(state_of(&data, 2048), expected);
    }
}

#[test]
fn unverifiable_checksums_are_none() {
    for spec in every_kind() {
        let data = spec.build();
        let kind = layers::parse(&data).packet_type;
        let state = state_of(&data, 2048);
        if kind.is_fragment()
            || !(kind.is_ipv4() || kind.is_ipv6())
            || layers::parse(&data).l4_offset == 0
        {
            assert_eq!(state, ChecksumState::Unknown, "{spec:?}");
        }
        // Truncated anywhere, no unknown result is reported.
        for end in 0..data.len() {
            assert_ne!(state_of(&data[..end], 2048), ChecksumState::Good, "{spec:?} cut to {end}");
        }
    }
    // A routing header with a segment left: the destination is another one.
    let mut data = frame(true, 0, false, bytes(40, 1)).build();
    data.splice(54..54, [17, 0, 0, 1, 0, 0, 0, 0]);
    data[20] = 43;
    data[19] += 8;
    assert_eq!(state_of(&data, 2048), ChecksumState::Unknown);
    data[57] = 0;
    assert_eq!(state_of(&data, 2048), ChecksumState::Good);
}

#[test]
fn drop_bad_drops_and_trust_skips_verifying() {
    let good = frame(false, 0, true, bytes(100, 1)).build();
    let mut bad = good.clone();
    bad[80] ^= 1;
    let frames = from_wire_0([good.clone(), bad.clone(), good.clone()]);
    let mut dropping = function("checksum", "drop_bad = true");
    let mut card = Card::new(&context(2048));
    let seen = card.run(dropping.as_mut(), &frames);
    assert_eq!(seen.iter().map(|packet| packet.number).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(card.dropped(DropReason::BadChecksum), 1);
    let say_good = |_: usize, packet: &mut Descriptor| packet.set_checksum(ChecksumState::Good);
    assert_eq!(card.run_with(dropping.as_mut(), &frames, say_good).len(), 3);
    let mut doubting = function("checksum", "drop_bad = true\ntrust = false");
    assert_eq!(card.run_with(doubting.as_mut(), &frames, say_good).len(), 2);
    let counts = get("checksum", dropping.as_mut());
    assert_eq!(
        (&counts["good"], &counts["bad"], &counts["trusted"]),
        (&json!(2), &json!(1), &json!(3))
    );
}

// ---------------------------------------------------------------- vlan

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A removed and restored tag is unchanged: kind, priority, identifier, all bytes.
    #[test]
    fn stripped_tags_are_inserted_again(
        spec in any_spec(), tci: u16, service: bool, tagged: bool,
        buffer_size in prop::sample::select(vec![64_usize, 2048]),
    ) {
        let mut data = spec.build();
        let plain = data.clone();
        if tagged {
            let [a, b] = tci.to_be_bytes();
            let [c, d] = if service { [0x88, 0xa8] } else { [0x81, 0] };
            data.splice(12..12, [c, d, a, b]);
        }
        let expected = |data: &[u8]| match data[12..14] {
            [0x81, 0] => Some((data[16..].to_vec(), VlanTag { tci: u16::from_be_bytes([data[14], data[15]]), service: false })),
            [0x88, 0xa8] => Some((data[16..].to_vec(), VlanTag { tci: u16::from_be_bytes([data[14], data[15]]), service: true })),
            _ => None,
        };
        let (mut strip, mut insert) = (function("vlan", "strip = true"), function("vlan", "insert = \"aside\""));
        let mut card = Card::new(&context(buffer_size));
        let (between, end) = card.pipe(strip.as_mut(), insert.as_mut(), &[from_wire_0([data.clone()])]);
        match expected(&data) {
            Some((behind, tag)) => {
                prop_assert_eq!(between[0].aside, Some(tag));
                prop_assert_eq!(&between[0].data[..12], &data[..12]);
                prop_assert_eq!(&between[0].data[12..], &behind);
            }
            None => prop_assert_eq!((&between[0].data, between[0].aside), (&data, None)),
        }
        if tagged {
            prop_assert_eq!(&between[0].data, &plain);
        }
        prop_assert_eq!((&end[0].data, end[0].aside), (&data, None));
    }

    #[test]
    fn filter_passes_allowed_vlans(
        allow in prop::collection::vec(1..4096_u16, 0..6), untagged: bool,
        packets in prop::collection::vec((0..3_u8, any::<prop::sample::Index>(), any::<u16>()), 1..60),
    ) {
        let plain = frame(false, 0, true, bytes(20, 1)).build();
        // Half of the tags are of an identifier that is allowed, if any is.
        let packets: Vec<_> = packets.into_iter().map(|(kind, place, tci)| match kind {
            0 => None,
            1 if !allow.is_empty() => Some(tci & 0xf000 | allow[place.index(allow.len())]),
            _ => Some(tci),
        }).collect();
        let frames = packets.iter().map(|tci| {
            let mut data = plain.clone();
            if let Some(tci) = tci {
                data.splice(12..12, [0x81, 0, (tci >> 8) as u8, *tci as u8]);
            }
            data
        });
        let passes = |tci: &Option<u16>| match tci.map(|tci| tci & 0xfff) {
            None | Some(0) => untagged,
            Some(identifier) => allow.is_empty() || allow.contains(&identifier),
        };
        let mut filter = function("vlan", &format!("allow = {allow:?}\nuntagged = {untagged}"));
        let mut card = Card::new(&context(2048));
        let seen = card.run(filter.as_mut(), &from_wire_0(frames.clone()));
        let numbers: Vec<_> = seen.iter().map(|packet| packet.number).collect();
        let expected: Vec<_> = (0..packets.len()).filter(|&place| passes(&packets[place])).collect();
        prop_assert_eq!(&numbers, &expected);
        prop_assert_eq!(card.dropped(DropReason::Filtered) as usize, packets.len() - numbers.len());
        // The same filter, set while running.
        let mut filter = function("vlan", "allow = [4095]\nuntagged = false");
        let before = call("vlan", "set", filter.as_mut(), json!({ "allow": allow, "untagged": untagged }));
        prop_assert_eq!(before, json!({ "allowed_before": 1 }));
        let again = card.run(filter.as_mut(), &from_wire_0(frames)).len();
        prop_assert_eq!(again, expected.len());
    }
}

#[test]
fn identifiers_are_rewritten_and_priorities_stay() {
    let plain = frame(true, 0, true, bytes(20, 1)).build();
    let tagged = |tci: u16| {
        let mut data = plain.clone();
        data.splice(12..12, [0x88, 0xa8, (tci >> 8) as u8, tci as u8]);
        data
    };
    let mut rewrite = function("vlan", "rewrite = [[10, 20], [20, 10], [30, 0]]");
    let mut card = Card::new(&context(2048));
    let frames = [tagged(0xe00a), tagged(0x1014), tagged(0x201e), tagged(0x0028), plain.clone()];
    let seen = card.run(rewrite.as_mut(), &from_wire_0(frames));
    let expected = [tagged(0xe014), tagged(0x100a), tagged(0x2000), tagged(0x0028), plain.clone()];
    assert!(seen.iter().map(|packet| &packet.data).eq(&expected));
    // A tag kept beside the packet is its outer one.
    let tag = VlanTag { tci: 0x400a, service: true };
    let aside = |_: usize, packet: &mut Descriptor| packet.set_vlan_aside(Some(tag));
    let seen = card.run_with(rewrite.as_mut(), &from_wire_0([tagged(0x0014)]), aside);
    assert_eq!(seen[0].aside, Some(VlanTag { tci: 0x4014, service: true }));
    assert_eq!(seen[0].data, tagged(0x0014));
    assert_eq!(get("vlan", rewrite.as_mut())["rewritten"], 4);
}

#[test]
fn configured_tags_are_inserted() {
    let plain = frame(false, 0, false, bytes(20, 1)).build();
    let with = |data: &[u8], tag: [u8; 4]| [&data[..12], &tag, &data[12..]].concat();
    let tagged = with(&plain, [0x81, 0, 0x20, 5]);
    let tag = VlanTag { tci: 0x6007, service: false };
    let run = |keys: &str| {
        let mut insert = function("vlan", keys);
        let mut card = Card::new(&context(2048));
        let frames = from_wire_0([plain.clone(), tagged.clone(), plain.clone(), vec![1; 11]]);
        let aside = |place: usize, packet: &mut Descriptor| {
            if place == 2 {
                packet.set_vlan_aside(Some(tag));
            }
        };
        let seen = card.run_with(insert.as_mut(), &frames, aside);
        assert_eq!(seen[3].data, vec![1; 11]);
        assert!(seen.iter().all(|packet| packet.aside.is_none()));
        seen.into_iter().take(3).map(|packet| packet.data).collect::<Vec<_>>()
    };
    let keys = "identifier = 9\npriority = 7\nkind = \"802.1ad\"\n";
    let service = [0x88, 0xa8, 0xe0, 9];
    let kept = with(&plain, [0x81, 0, 0x60, 7]);
    assert_eq!(
        run(&format!("{keys}insert = \"untagged\"")),
        [with(&plain, service), tagged.clone(), kept.clone()]
    );
    assert_eq!(
        run(&format!("{keys}insert = \"all\"")),
        [with(&plain, service), with(&tagged, service), with(&kept, service)]
    );
    // Headers have filled the headroom.
    let mut insert = function("vlan", "insert = \"untagged\"");
    let mut card = Card::new(&context(2048));
    let fill = |_: usize, packet: &mut Descriptor| {
        let room = packet.headroom();
        assert!(packet.push_front(room));
        packet.data_mut()[..14].fill(3);
    };
    assert!(card.run_with(insert.as_mut(), &from_wire_0([plain.clone()]), fill).is_empty());
    assert_eq!(card.dropped(DropReason::NoRoom), 1);
}

/// IEEE 802.1Q-2018 6.9, and Linux's bridge: the port's VLAN, and the priority that the tag had.
#[test]
fn priority_tags_get_the_identifier_and_keep_priority() {
    let plain = frame(true, 0, true, bytes(20, 1)).build();
    let with = |kind: u16, tci: u16, data: &[u8]| {
        [&data[..12], &kind.to_be_bytes(), &tci.to_be_bytes(), &data[12..]].concat()
    };
    let run = |keys: &str, data: &[u8], aside: Option<VlanTag>| {
        let mut insert =
            function("vlan", &format!("insert = \"untagged\"\nidentifier = 5\n{keys}"));
        let mut card = Card::new(&context(2048));
        let tell = |_: usize, packet: &mut Descriptor| packet.set_vlan_aside(aside);
        let seen = card.run_with(insert.as_mut(), &from_wire_0([data.to_vec()]), tell);
        assert_eq!(seen[0].aside, None);
        assert_eq!(get("vlan", insert.as_mut())["inserted"], 1);
        seen[0].data.clone()
    };
    for (kind, service, keys) in
        [(0x8100, false, "priority = 2"), (0x88a8, true, "priority = 2\nkind = \"802.1ad\"")]
    {
        // Priority and drop-eligible bits of every value.
        for bits in (0..16).map(|bits| bits << 12) {
            let expected = with(kind, bits | 5, &plain);
            assert_eq!(run(keys, &with(kind, bits, &plain), None), expected);
            // Taken off before, or echoed by a host that does so.
            assert_eq!(run(keys, &plain, Some(VlanTag { tci: bits, service })), expected);
        }
        // A tag of the other kind stays inside the VLAN's tag.
        let other = if service { 0x8100 } else { 0x88a8 };
        let priority = with(other, 0x6000, &plain);
        let expected = with(kind, 0x4005, &priority);
        assert_eq!(run(keys, &priority, None), expected);
        let aside = Some(VlanTag { tci: 0x6000, service: !service });
        assert_eq!(run(keys, &plain, aside), expected);
    }
    // Behind `strip`, with a tag within.
    let tagged = with(0x8100, 0xe000, &with(0x8100, 7, &plain));
    let (mut strip, mut insert) = (
        function("vlan", "strip = true"),
        function("vlan", "insert = \"untagged\"\nidentifier = 5"),
    );
    let mut card = Card::new(&context(2048));
    let (_, end) = card.pipe(strip.as_mut(), insert.as_mut(), &[from_wire_0([tagged])]);
    assert_eq!(end[0].data, with(0x8100, 0xe005, &with(0x8100, 7, &plain)));
    // Others stay unchanged.
    let mut insert = function("vlan", "insert = \"untagged\"\nidentifier = 5");
    let member = with(0x8100, 0x2009, &plain);
    let seen = card.run(insert.as_mut(), &from_wire_0([member.clone()]));
    assert_eq!((&seen[0].data, &get("vlan", insert.as_mut())["inserted"]), (&member, &json!(0)));
}

// ---------------------------------------------------------------- tso

fn ask(gso: GsoType, size: u16) -> impl Fn(usize, &mut Descriptor) {
    move |_, packet| {
        packet.set_gso(gso, size);
        packet.set_checksum(ChecksumState::Partial);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Every segment is a right packet, and together they are the super-frame.
    #[test]
    fn segments_are_valid_and_add_up_to_the_super_frame(
        v6: bool, tags in 0..3_usize, is_tcp: bool, payload in 0..9000_usize,
        size in 90..3000_u16, identification: u16, sequence: u32, flags in 0..8_u8,
        buffer_size in prop::sample::select(vec![256_usize, 1000, 2048]),
        mtu in prop::option::of(576..2000_u16),
    ) {
        let mut header = tcp(1, sequence, 3);
        (header.fin, header.psh, header.cwr) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        let frame = Frame {
            identification, tcp: is_tcp.then_some(header), ..frame(v6, tags, is_tcp, bytes(payload, 5))
        };
        let gso = match (is_tcp, v6) {
            (true, false) => GsoType::Tcp4,
            (true, true) => GsoType::Tcp6,
            _ => GsoType::Udp,
        };
        let small = common::build::Frame { payload: bytes(10, 9), ..frame.clone() }.build();
        let mut tso = function("tso", &mtu.map_or(String::new(), |mtu| format!("mtu = {mtu}")));
        let mut card = Card::new(&context(buffer_size));
        let prepare = |place: usize, packet: &mut Descriptor| {
            packet.mark = 8;
            if place == 1 {
                ask(gso, size)(place, packet);
            }
        };
        let packets = from_wire_0([small.clone(), unfinished(&frame), small.clone()]);
        let seen = card.run_with(tso.as_mut(), &packets, prepare);
        // The packets around it keep their places.
        prop_assert_eq!((&seen[0].data, &seen[seen.len() - 1].data), (&small, &small));
        let segments = &seen[1..seen.len() - 1];
        let l3_headers = frame.headers() - 14 - 4 * tags;
        let size = usize::from(size).min(mtu.map_or(usize::MAX, |mtu| usize::from(mtu) - l3_headers));
        prop_assert_eq!(segments.len(), payload.div_ceil(size).max(1));
        let mut joined = Vec::new();
        for (number, segment) in segments.iter().enumerate() {
            let read = read(&segment.data);
            let (first, last) = (number == 0, number + 1 == segments.len());
            if !last {
                prop_assert_eq!(read.payload.len(), size);
            }
            if !v6 {
                prop_assert_eq!(read.identification, identification.wrapping_add(number as u16));
            }
            if is_tcp {
                prop_assert_eq!(read.sequence, sequence.wrapping_add(joined.len() as u32));
                let expected = (flags & 1 != 0 && last, flags & 2 != 0 && last, flags & 4 != 0 && first);
                prop_assert_eq!(read.flags, expected);
            }
            prop_assert_eq!((segment.checksum, segment.gso), (ChecksumState::Good, (GsoType::None, 0)));
            prop_assert_eq!((segment.mark, segment.number), (8, 1));
            prop_assert!(segment.segments[0] >= frame.headers().min(segment.data.len()));
            joined.extend(read.payload);
        }
        prop_assert_eq!(joined, frame.payload);
        prop_assert_eq!(card.made_and_consumed(), (segments.len() as u64, 1));
    }
}

#[test]
fn super_frames_that_cannot_be_cut_are_dropped_whole() {
    let mut tso = function("tso", "");
    let mut card = Card::new(&context(2048));
    let plain = frame(false, 0, true, bytes(20_000, 1));
    let packets = from_wire_0([unfinished(&plain)]);
    // More segments than the pool has buffers.
    assert!(card.run_with(tso.as_mut(), &packets, ask(GsoType::Tcp4, 20)).is_empty());
    assert_eq!(card.dropped(DropReason::PoolExhausted), 1);
    // Headers other than the descriptor says, no size, no packet at all.
    assert!(card.run_with(tso.as_mut(), &packets, ask(GsoType::Tcp6, 1000)).is_empty());
    assert!(card.run_with(tso.as_mut(), &packets, ask(GsoType::Udp, 1000)).is_empty());
    assert!(card.run_with(tso.as_mut(), &packets, ask(GsoType::Tcp4, 0)).is_empty());
    for spec in every_kind() {
        for gso in [GsoType::Tcp4, GsoType::Tcp6, GsoType::Udp] {
            let data = spec.build();
            for end in [0, 13, 20, 40, 50, data.len() - 1] {
                card.run_with(
                    tso.as_mut(),
                    &from_wire_0([data[..end.min(data.len() - 1)].to_vec()]),
                    ask(gso, 10),
                );
            }
        }
    }
    let counts = get("tso", tso.as_mut());
    assert_eq!((&counts["super_frames"], &counts["pool_exhausted"]), (&json!(0), &json!(1)));
    assert_eq!(card.made_and_consumed(), (0, 0));
}

#[test]
fn missing_udp_checksums_stay_missing() {
    let plain = frame(false, 0, false, bytes(3000, 1));
    let mut data = plain.build();
    data[40..42].fill(0);
    let mut tso = function("tso", "");
    let mut card = Card::new(&context(2048));
    let prepare = |_: usize, packet: &mut Descriptor| packet.set_gso(GsoType::Udp, 1000);
    let seen = card.run_with(tso.as_mut(), &from_wire_0([data]), prepare);
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|segment| segment.data[40..42] == [0, 0]));
}

// ---------------------------------------------------------------- lro

/// One packet of a stream, as drawn.
#[derive(Clone, Copy, Debug)]
enum Step {
    Full,
    Short,
    Pushed,
    Gap,
    OtherWindow,
    LaterTimestamp,
    OtherHops,
    OtherIdentification,
    Acknowledgment,
    Finish,
    Congestion,
    BadChecksum,
    Padded,
    Fragment,
    Datagram,
    TaggedOtherwise,
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    prop_oneof![
        12 => Just(Full),
        1 => prop::sample::select(vec![
            Short, Pushed, Gap, OtherWindow, LaterTimestamp, OtherHops, OtherIdentification,
            Acknowledgment, Finish, Congestion, BadChecksum, Padded, Fragment, Datagram, TaggedOtherwise,
        ]),
    ]
}

/// Streams of TCP, interleaved.
fn streams(steps: &[(u8, Step)], size: usize) -> Vec<Vec<u8>> {
    let mut state = [(1_000_u32, 10_u16, 512_u16, 3_u32); 4];
    state[2].0 = u32::MAX - 2000;
    state[3].1 = u16::MAX - 1;
    let mut frames = Vec::new();
    for (place, &(flow, step)) in steps.iter().enumerate() {
        let (sequence, identification, window, timestamp) = &mut state[usize::from(flow)];
        match step {
            Step::Gap => *sequence = sequence.wrapping_add(11),
            Step::OtherWindow => *window += 1,
            Step::LaterTimestamp => *timestamp += 1,
            Step::OtherIdentification => *identification = identification.wrapping_add(3),
            _ => {}
        }
        let length = match step {
            Step::Short => size / 2,
            Step::Acknowledgment => 0,
            _ => size,
        };
        let mut header = tcp(flow, *sequence, *timestamp);
        header.window_size = *window;
        header.psh = matches!(step, Step::Pushed);
        header.fin = matches!(step, Step::Finish);
        let v6 = flow == 1;
        let frame = Frame {
            v6,
            tags: usize::from(matches!(step, Step::TaggedOtherwise)),
            flow,
            identification: *identification,
            hops: if matches!(step, Step::OtherHops) { 63 } else { 64 },
            tcp: (!matches!(step, Step::Datagram)).then_some(header),
            payload: bytes(length, place as u8),
        };
        let mut data = frame.build();
        match step {
            Step::BadChecksum => *data.last_mut().unwrap() ^= 1,
            Step::Padded => data.extend([0; 3]),
            Step::Congestion if !v6 => {
                data[15] |= 3;
                data[24..26].fill(0);
                let sum = !reference_sum(&data[14..34]);
                data[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            Step::Fragment if !v6 => {
                data[20..22].copy_from_slice(&[0x20, 0]);
                data[24..26].fill(0);
                let sum = !reference_sum(&data[14..34]);
                data[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            _ => {}
        }
        *sequence = sequence.wrapping_add(length as u32);
        *identification = identification.wrapping_add(1);
        frames.push(data);
    }
    frames
}

/// The packets of each flow that [`streams`] has built, in order: by source port, fragments too,
/// datagrams apart.
fn by_flow<'a>(frames: impl Iterator<Item = &'a Vec<u8>>) -> [Vec<&'a [u8]>; 8] {
    let mut flows: [Vec<&[u8]>; 8] = Default::default();
    for data in frames {
        let l3 = if data[12..14] == [0x81, 0] { 18 } else { 14 };
        let (l4, protocol) = match data[l3] >> 4 {
            6 => (l3 + 40, data[l3 + 6]),
            _ => (l3 + 20, data[l3 + 9]),
        };
        let flow = u16::from_be_bytes([data[l4], data[l4 + 1]]) - 1000;
        flows[usize::from(flow) + if protocol == 6 { 0 } else { 4 }].push(data);
    }
    flows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// `tso` cuts packets merged by `lro` into the original ones, in the order of their flows.
    #[test]
    fn tso_restores_the_segments_lro_merged(
        steps in prop::collection::vec((0..4_u8, step()), 1..150),
        burst in 1..=64_usize, size in 1..1400_usize,
        flows in prop::sample::select(vec![1, 2, 256]),
        max_segments in 2..40_u32, max_bytes in 1500..20_000_u16,
        timeout in prop::sample::select(vec![0, 20]),
    ) {
        let frames = streams(&steps, size);
        let keys = format!(
            "flows = {flows}\nmax_segments = {max_segments}\nmax_bytes = {max_bytes}\n\
             timeout_usecs = {timeout}"
        );
        let (mut lro, mut tso) = (function("lro", &keys), function("tso", ""));
        let mut card = Card::new(&context(2048));
        let bursts: Vec<Vec<Packet>> = frames
            .chunks(burst)
            .map(|burst| from_wire_0(burst.iter().cloned()))
            .collect();
        let (between, end) = card.pipe(lro.as_mut(), tso.as_mut(), &bursts);
        prop_assert_eq!(by_flow(end.iter().map(|packet| &packet.data)), by_flow(frames.iter()));
        let counts = get("lro", lro.as_mut());
        let (mut super_frames, mut merged) = (0, 0);
        for packet in between.iter().filter(|packet| packet.gso.0 != GsoType::None) {
            super_frames += 1;
            merged += packet.segments.len();
            prop_assert!((2..=max_segments as usize).contains(&packet.segments.len()));
            let l3 = usize::from(layers::parse(&packet.data).l3_offset);
            prop_assert!(packet.data.len() - l3 <= max_bytes.into());
            prop_assert_eq!(packet.checksum, ChecksumState::Partial);
        }
        prop_assert_eq!(&counts["super_frames"], &json!(super_frames));
        prop_assert_eq!(&counts["merged"], &json!(merged));
        prop_assert_eq!(&counts["single"], &json!(frames.len() - merged));
        prop_assert_eq!(merged + between.len() - super_frames, frames.len());
    }
}

/// `count` segments of one flow that follow each other.
fn run_of(count: usize, size: usize) -> Vec<Packet> {
    from_wire_0(streams(&vec![(0, Step::Full); count], size))
}

fn shapes(seen: &[Seen]) -> Vec<usize> {
    seen.iter().map(|packet| packet.segments.len()).collect()
}

#[test]
fn segments_are_merged_in_place_up_to_the_limits() {
    let mut card = Card::new(&context(2048));
    let mut lro = function("lro", "timeout_usecs = 0\nmax_segments = 8");
    let seen = card.run(lro.as_mut(), &run_of(20, 1000));
    assert_eq!(shapes(&seen), [8, 8, 4]);
    assert_eq!(seen[0].segments, [1066, 1000, 1000, 1000, 1000, 1000, 1000, 1000]);
    assert_eq!(seen[0].gso, (GsoType::Tcp4, 1000));
    let mut lro = function("lro", "timeout_usecs = 0\nmax_bytes = 3052");
    assert_eq!(shapes(&card.run(lro.as_mut(), &run_of(7, 1000))), [3, 3, 1]);
    // A limit that would be exceeded is not started: two of these are more than an IP packet.
    let mut lro = function("lro", "timeout_usecs = 0");
    let mut card = Card::new(&context(60_000));
    assert_eq!(shapes(&card.run(lro.as_mut(), &run_of(3, 40_000))), [1, 1, 1]);
}

#[test]
fn every_rule_ends_a_super_frame() {
    use Step::*;
    let rules = [
        Gap,
        OtherWindow,
        LaterTimestamp,
        OtherHops,
        OtherIdentification,
        Congestion,
        BadChecksum,
        Padded,
        Acknowledgment,
        Finish,
        TaggedOtherwise,
        Fragment,
    ];
    for rule in rules {
        let mut steps = vec![(0, Full); 3];
        steps.push((0, rule));
        let mut lro = function("lro", "");
        let mut card = Card::new(&context(2048));
        let mut seen = card.run(lro.as_mut(), &from_wire_0(streams(&steps, 500)));
        seen.extend(card.flush(lro.as_mut()));
        assert_eq!(shapes(&seen), [3, 1], "{rule:?}");
    }
    // A datagram is of another flow; a short or pushed segment is the last.
    for (rule, expected) in [(Datagram, vec![1, 3]), (Short, vec![4]), (Pushed, vec![4])] {
        let mut steps = vec![(0, Full); 3];
        steps.push((0, rule));
        let mut lro = function("lro", "");
        let mut card = Card::new(&context(2048));
        let mut seen = card.run(lro.as_mut(), &from_wire_0(streams(&steps, 500)));
        seen.extend(card.flush(lro.as_mut()));
        assert_eq!(shapes(&seen), expected, "{rule:?}");
    }
    // Left unfinished by its sender, or forwarded from another wire.
    let mut lro = function("lro", "timeout_usecs = 0");
    let mut card = Card::new(&context(2048));
    let partial = |_: usize, packet: &mut Descriptor| packet.set_checksum(ChecksumState::Partial);
    assert_eq!(shapes(&card.run_with(lro.as_mut(), &run_of(3, 500), partial)), [1, 1, 1]);
    let wires = |place: usize, packet: &mut Descriptor| packet.wire = (place % 2) as u8;
    assert_eq!(shapes(&card.run_with(lro.as_mut(), &run_of(3, 500), wires)), [1, 1, 1]);
}

#[test]
fn segments_wait_at_most_the_timeout() {
    let mut card = Card::new(&context(2048));
    let mut lro = function("lro", "timeout_usecs = 20");
    let at = |nanoseconds: u64| Time::from_nanos(nanoseconds);
    card.now = at(1000);
    assert!(card.run(lro.as_mut(), &run_of(3, 1000)).is_empty());
    assert_eq!((lro.held(), lro.next_deadline()), (1, Some(at(21_000))));
    card.now = at(20_999);
    assert!(card.flush_due(lro.as_mut()).is_empty());
    card.now = at(21_000);
    assert_eq!(shapes(&card.flush_due(lro.as_mut())), [3]);
    assert_eq!((lro.held(), lro.next_deadline()), (0, None));
    assert_eq!(get("lro", lro.as_mut())["timed_out"], 1);
    // Super-frames that were full before do not count, nor extend the list of due ones.
    let packets = run_of(60, 1400);
    for turn in 0..600 {
        card.now = at(30_000 + turn);
        card.run(lro.as_mut(), &packets);
    }
    card.flush(lro.as_mut());
    assert_eq!((lro.held(), lro.next_deadline()), (0, None));
}

// ---------------------------------------------------------------- header-split

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Headers are in the first buffer, alone; no byte is changed, and a parser finds the same.
    #[test]
    fn headers_and_payload_are_separate(
        specs in prop::collection::vec((any_spec(), 0..3000_usize), 1..60),
        layer in prop::sample::select(vec!["l2", "l3", "l4"]), least in 1..400_u16,
    ) {
        let frames: Vec<Vec<u8>> = specs.iter().map(|(spec, payload)| {
            common::frames::Spec { payload: *payload, ..spec.clone() }.build()
        }).collect();
        let mut split = function("header-split", &format!("at = \"{layer}\"\nleast_payload = {least}"));
        let mut card = Card::new(&context(2048));
        let seen = card.run(split.as_mut(), &from_wire_0(frames.clone()));
        let whole = card.run(function("pass", "").as_mut(), &from_wire_0(frames.clone()));
        prop_assert_eq!(seen.len(), frames.len());
        let mut count = 0;
        for ((packet, before), data) in seen.iter().zip(&whole).zip(&frames) {
            prop_assert_eq!(&packet.data, data);
            let found = layers::parse(data);
            let (l3, l4) = (usize::from(found.l3_offset), usize::from(found.l4_offset));
            let kind = found.packet_type;
            let headers = match (layer, kind.l4()) {
                _ if kind.is_malformed() => None,
                ("l2", _) => Some(l3),
                _ if l4 == 0 && kind.is_ipv4() => Some(l3 + usize::from(data[l3] & 15) * 4),
                _ if l4 == 0 => None,
                ("l3", _) => Some(l4),
                (_, layers::L4Kind::Tcp) => Some(l4 + usize::from(data[l4 + 12] >> 4) * 4),
                (_, layers::L4Kind::Udp | layers::L4Kind::Icmp) => Some(l4 + 8),
                _ => Some(l4),
            };
            match headers.filter(|headers| headers + usize::from(least) <= data.len()) {
                Some(headers) => {
                    count += 1;
                    prop_assert_eq!(packet.segments[0], headers);
                    prop_assert_eq!(packet.segments[1], before.segments[0] - headers);
                    prop_assert_eq!(&packet.segments[2..], &before.segments[1..]);
                    if layer == "l4" {
                        prop_assert_eq!(layers::parse_of(&data[..headers], data.len()), found);
                    }
                }
                None => prop_assert_eq!(&packet.segments, &before.segments),
            }
        }
        let counts = get("header-split", split.as_mut());
        prop_assert_eq!(counts, json!({ "split": count, "whole": frames.len() - count, "no_buffer": 0 }));
    }
}

#[test]
fn headers_of_truncated_packets_are_split_too() {
    let whole = frame(true, 1, true, bytes(900, 1)).build();
    let mut split = function("header-split", "least_payload = 1");
    let mut card = Card::new(&context(2048));
    let cuts = [whole.len(), 300, 160].map(|length| whole[..length].to_vec());
    let seen = card.run(split.as_mut(), &from_wire_0(cuts));
    let headers = frame(true, 1, true, Vec::new()).headers();
    assert!(seen.iter().all(|packet| packet.segments[0] == headers));
}

// ---------------------------------------------------------------- keys

#[test]
fn offload_key_errors_are_exact() {
    let cases = [
        ("checksum", "mode = \"check\"", "mode: found \"check\", allowed: auto, verify, complete"),
        ("vlan", "allow = [10, 0]", "allow[1]: found 0, allowed: 1 to 4095"),
        ("vlan", "allow = [4096]", "allow[0]: found 4096, allowed: 1 to 4095"),
        ("vlan", "identifier = 4096", "identifier: found 4096, allowed: 0 to 4095"),
        ("vlan", "priority = 8", "priority: found 8, allowed: 0 to 7"),
        ("vlan", "rewrite = [[1, 2], [3, 4096]]", "rewrite[1][1]: found 4096, allowed: 0 to 4095"),
        ("vlan", "insert = \"on\"", "insert: found \"on\", allowed: off, aside, untagged, all"),
        ("tso", "mtu = 575", "mtu: found 575, allowed: 576 to 65535"),
        ("lro", "flows = 3", "flows: found 3, allowed: a power of two, 1 to 65536"),
        ("lro", "max_segments = 1", "max_segments: found 1, allowed: 2 to 1024"),
        ("lro", "max_bytes = 1499", "max_bytes: found 1499, allowed: 1500 to 65535"),
        ("lro", "timeout_usecs = 10001", "timeout_usecs: found 10001, allowed: 0 to 10000"),
        ("header-split", "least_payload = 0", "least_payload: found 0, allowed: 1 to 65535"),
        ("header-split", "at = \"l7\"", "at: found \"l7\", allowed: l2, l3, l4"),
    ];
    for (name, line, message) in cases {
        let found = refusal(&format!("function = \"{name}\"\n{line}"));
        assert!(found.starts_with(&format!("card:2: {message}")), "{found}");
    }
    assert_eq!(
        refusal("function = \"vlan\"\nstrip = true\ninsert = \"all\""),
        "card:3: insert: found together with strip, allowed: one"
    );
    assert_eq!(
        refusal("function = \"checksum\"\nmode = \"complete\"\ndrop_bad = true"),
        "card:3: drop_bad: allowed only with mode = \"auto\" or \"verify\""
    );
}

#[test]
fn reference_checker_detects_errors() {
    let good = frame(false, 1, true, bytes(10, 1)).build();
    assert_eq!(
        read(&good),
        Read { identification: 5, sequence: 7, payload: bytes(10, 1), ..Read::default() }
    );
    for place in [26, 40, good.len() - 1] {
        let mut bad = good.clone();
        bad[place] ^= 1;
        assert!(std::panic::catch_unwind(|| read(&bad)).is_err(), "{place}");
    }
}
