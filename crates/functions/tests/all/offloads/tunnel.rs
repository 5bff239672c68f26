//! `tunnel`: encapsulated packets are restored, with headers according to the standards.

use super::*;
use common::frames::{Network, Spec, Upper};
use picnic_core::packet::desc::RssType;

const MACS: &str = "source_mac = \"02:00:00:00:00:01\"\ndestination_mac = \"02:00:00:00:00:02\"\n";

fn ends(v6: bool) -> &'static str {
    match v6 {
        false => "local = \"10.0.0.1\"\nremote = \"10.0.0.2\"\n",
        true => "local = \"fd00::1\"\nremote = \"fd00::2\"\n",
    }
}

fn encapsulate(kind: &str, v6: bool, keys: &str) -> String {
    let network = if kind == "vxlan" || kind == "geneve" { "network = 0x123456\n" } else { "" };
    let ends = ends(v6);
    format!("mode = \"encapsulate\"\nkinds = [\"{kind}\"]\n{ends}{network}{MACS}{keys}")
}

/// The fate of frames in a tunnel function with these keys.
pub(super) fn through(keys: &str, frames: &[Vec<u8>]) -> (Vec<Seen>, Value) {
    let mut function = function("tunnel", keys);
    let mut card = Card::new(&context(2048));
    let seen = card.run(function.as_mut(), &from_wire_0(frames.to_vec()));
    (seen, get("tunnel", function.as_mut()))
}

pub(super) fn put_in(kind: &str, v6: bool, keys: &str, frame: &[u8]) -> Vec<u8> {
    let (seen, _) = through(&encapsulate(kind, v6, keys), &[frame.to_vec()]);
    seen.into_iter().next().expect("it is carried").data
}

pub(super) const OFF: &str = "mode = \"decapsulate\"";

/// The only result of decapsulation: the bytes, or the counter.
pub(super) fn take_off(keys: &str, frame: &[u8]) -> Result<Vec<u8>, Value> {
    let (seen, counts) = through(&format!("{OFF}\n{keys}"), &[frame.to_vec()]);
    match counts["decapsulated"] == json!(1) {
        true => Ok(seen[0].data.clone()),
        false => Err(counts),
    }
}

/// A UDP packet over IPv4 or IPv6, with the DSCP and ECN given.
fn inner(v6: bool, class: u8) -> Vec<u8> {
    let mut data = frame(v6, 0, false, bytes(20, 7)).build();
    if v6 {
        data[14] |= class >> 4;
        data[15] |= class << 4;
    } else {
        data[15] = class;
        data[24..26].fill(0);
        let sum = !reference_sum(&data[14..34]);
        data[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    data
}

fn set_outer_class(data: &mut [u8], v6: bool, class: u8) {
    if v6 {
        data[14] = data[14] & 0xf0 | class >> 4;
        data[15] = data[15] & 0x0f | class << 4;
    } else {
        data[15] = class;
        data[24..26].fill(0);
        let sum = !reference_sum(&data[14..34]);
        data[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}

fn is_ip(spec: &Spec) -> bool {
    matches!(spec.network, Network::V4 | Network::V6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Byte for byte, by every kind of tunnel, in one buffer or several.
    #[test]
    fn encapsulated_packets_decapsulate_unchanged(
        specs in prop::collection::vec((any_spec(), 0..900_usize), 1..40),
        kind in prop::sample::select(vec!["vxlan", "geneve", "gre", "ipip"]),
        ethernet: bool, v6: bool, checksum: bool, sequence: bool, key: bool,
        buffer_size in prop::sample::select(vec![256_usize, 301, 2048]),
    ) {
        let ethernet = match kind { "vxlan" => true, "ipip" => false, _ => ethernet };
        let mut keys = encapsulate(kind, v6, "");
        keys += if ethernet { "inner = \"ethernet\"\n" } else { "inner = \"ip\"\n" };
        if kind != "ipip" {
            keys += &format!("checksum = {checksum}\n");
        }
        if kind == "gre" {
            keys += &format!("sequence = {sequence}\n");
            keys += if key { "network = 77\n" } else { "" };
        }
        let mut on = function("tunnel", &keys);
        let mut off = function("tunnel", OFF);
        let frames: Vec<_> = specs.iter().filter(|(spec, _)| ethernet || is_ip(spec))
            .map(|(spec, payload)| Spec { payload: *payload, ..spec.clone() }.build()).collect();
        let mut card = Card::new(&context(buffer_size));
        let bursts = [from_wire_0(frames.clone())];
        let (between, after) = card.pipe(on.as_mut(), off.as_mut(), &bursts);
        prop_assert_eq!(between.len(), frames.len());
        let mut came_out: Vec<_> = after.into_iter().map(|seen| seen.data).collect();
        for (frame, out) in frames.iter().zip(&mut came_out) {
            // Of an IP packet only that is carried: the frame's addresses are those given.
            if !ethernet {
                prop_assert_eq!(&out[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
                out[..12].copy_from_slice(&frame[..12]);
            }
        }
        prop_assert_eq!(came_out, frames);
        // A reader of another's making finds lengths and checksums right. (It knows one kind of
        // tag.)
        let is_udp = matches!(kind, "vxlan" | "geneve") && checksum;
        for packet in between.iter().filter(|packet| is_udp && packet.data[12] != 0x88) {
            read(&packet.data);
        }
    }

    /// Tunnels damaged anywhere: no panic, one fate each, by every mode.
    #[test]
    fn damaged_tunnels_have_one_fate_each(
        damaged in prop::collection::vec((
            any_spec(), prop::sample::select(vec!["vxlan", "geneve", "gre", "ipip"]), any::<bool>(),
            prop::collection::vec((0..110_usize, any::<u8>()), 0..4), 0..200_usize,
        ), 1..20),
        buffer_size in prop::sample::select(vec![64_usize, 77, 2048]),
    ) {
        let frames: Vec<_> = damaged.iter().map(|(spec, kind, v6, damage, cut)| {
            let mut frame = if *kind == "ipip" && !is_ip(spec) {
                spec.build()
            } else {
                let inner = if *kind == "gre" { "inner = \"ethernet\"" } else { "" };
                put_in(kind, *v6, inner, &spec.build())
            };
            for (place, byte) in damage {
                if let Some(there) = frame.get_mut(*place) {
                    *there = *byte;
                }
            }
            frame.truncate(frame.len().saturating_sub(cut.saturating_sub(100)));
            frame
        }).collect();
        let context = context(buffer_size);
        let mut card = Card::new(&context);
        for keys in [OFF, "mode = \"expose\"", &encapsulate("ipip", true, "")] {
            let text = format!("function = \"tunnel\"\n{keys}");
            let mut function = build(&text, &context).unwrap();
            for seen in card.run(function.as_mut(), &from_wire_0(frames.clone())) {
                if keys.contains("expose") {
                    prop_assert_eq!(&seen.data, &frames[seen.number % frames.len()]);
                }
            }
        }
    }

    /// By its inner headers, a packet in a tunnel has the hash that it has outside.
    #[test]
    fn exposed_packets_hash_like_plain_ones(
        spec in any_spec(), kind in prop::sample::select(vec!["vxlan", "geneve", "gre", "ipip"]),
        v6: bool,
    ) {
        prop_assume!(is_ip(&spec));
        let (bare, tunneled) = (spec.build(), put_in(kind, v6, "", &spec.build()));
        let keys = "types = [\"ipv4\", \"tcp-ipv4\", \"udp-ipv4\", \"ipv6\", \"tcp-ipv6\"]";
        let mut outer = function("rss", keys);
        let mut inside = function("rss", &format!("{keys}\ninner = true"));
        let mut card = Card::new(&context(2048));
        let hash = |seen: &Seen| (seen.hash, seen.over);
        let expected = hash(&card.run(outer.as_mut(), &from_wire_0([bare.clone()]))[0]);
        prop_assert_ne!(expected.1, RssType::None);
        // Packets outside tunnels are hashed as usual.
        for data in [tunneled, bare] {
            let mut expose = function("tunnel", "");
            let mut chain = Chained(expose.as_mut(), inside.as_mut());
            let seen = card.run(&mut chain, &from_wire_0([data.clone()]));
            prop_assert_eq!(hash(&seen[0]), expected);
            prop_assert_eq!(&seen[0].data, &data);
        }
    }
}

/// Two functions in a row.
pub(super) struct Chained<'a>(pub(super) &'a mut dyn Function, pub(super) &'a mut dyn Function);

impl Function for Chained<'_> {
    fn process(
        &mut self,
        now: Time,
        burst: &mut picnic_core::packet::burst::Burst,
        out: &mut picnic_core::out::Out<'_>,
    ) {
        self.0.process(now, burst, out);
        self.1.process(now, burst, out);
    }
}

/// The bytes, field by field, as the documents have them.
#[test]
fn headers_match_the_standards() {
    let packet = inner(false, 0);
    let (length, macs) = (packet.len(), [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    let v4 = |rest: usize, protocol: u8| {
        let total = ((20 + rest) as u16).to_be_bytes();
        let mut header = vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, protocol, 0, 0];
        header.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = (!reference_sum(&header)).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        [&macs[..], &[8, 0], &header].concat()
    };

    // RFC 7348, 5; without a checksum over IPv4, from a dynamic port.
    let data = put_in("vxlan", false, "", &packet);
    assert_eq!(data[..34], v4(16 + length, 17));
    assert!(data[34] >= 0xc0, "{:x?}", &data[34..36]);
    let udp = ((16 + length) as u16).to_be_bytes();
    assert_eq!(data[36..42], [0x12, 0xb5, udp[0], udp[1], 0, 0]);
    assert_eq!(data[42..50], [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
    assert_eq!(data[50..], packet);

    // RFC 8926, 3.4; IP inside.
    let data = put_in("geneve", false, "inner = \"ip\"", &packet);
    assert_eq!(data[36..38], [0x17, 0xc1]);
    assert_eq!(data[42..50], [0, 0, 8, 0, 0x12, 0x34, 0x56, 0]);
    assert_eq!(data[50..], packet[14..]);

    // RFC 2784 and 2890: checksum, key, sequence number.
    let keys = "checksum = true\nnetwork = 9\nsequence = true\ndscp = 46\nttl = 7";
    let data = put_in("gre", false, keys, &packet);
    assert_eq!((data[15], data[22], data[23]), (46 << 2, 7, 47));
    assert_eq!(data[34..38], [0xb0, 0, 8, 0]);
    assert_eq!(data[40..50], [0, 0, 0, 0, 0, 9, 0, 0, 0, 0]);
    assert_eq!(reference_sum(&data[34..]), 0xffff);
    assert_eq!(data[50..], packet[14..]);
    assert_eq!(put_in("gre", false, "", &packet)[34..38], [0, 0, 8, 0]);

    // RFC 2003 and RFC 4213; all four of IPv4 and IPv6 in each other.
    assert_eq!(put_in("ipip", false, "", &packet), [&v4(length - 14, 4), &packet[14..]].concat());
    assert_eq!(put_in("ipip", false, "", &inner(true, 0))[23], 41);
    for (v6, protocol) in [(false, 4), (true, 41)] {
        let packet = inner(v6, 0b1011_1010);
        let data = put_in("ipip", true, "", &packet);
        let length = ((packet.len() - 14) as u16).to_be_bytes();
        assert_eq!(data[12..15], [0x86, 0xdd, 0x6b]);
        assert_eq!(data[15] >> 4, 0b1010);
        assert_eq!(data[18..22], [length[0], length[1], protocol, 64]);
        assert_eq!((data[37], data[53]), (1, 2));
        assert_eq!(data[54..], packet[14..]);
    }

    // Over IPv6 UDP has a checksum; it may be left out (RFC 6935).
    let data = put_in("vxlan", true, "", &packet);
    read(&data);
    assert_eq!(put_in("vxlan", true, "checksum = false", &packet)[60..62], [0, 0]);
}

/// All sixteen cells of RFC 6040, figure 4, over and under both versions.
#[test]
fn congestion_marks_follow_rfc_6040() {
    const ECT_1: u8 = 1;
    const ECT_0: u8 = 2;
    const CE: u8 = 3;
    // By the inner field, then by the outer: Not-ECT, ECT(1), ECT(0), CE.
    let figure = [
        [Some(0), Some(0), Some(0), None],
        [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)],
        [Some(ECT_0), Some(ECT_1), Some(ECT_0), Some(CE)],
        [Some(CE), Some(CE), Some(CE), Some(CE)],
    ];
    for kind in ["vxlan", "gre", "ipip"] {
        for (v6_inner, v6_outer) in [(false, false), (false, true), (true, false), (true, true)] {
            for (within, row) in figure.iter().enumerate() {
                let packet = inner(v6_inner, 0x50 | within as u8);
                let keys = if v6_outer && kind == "vxlan" { "checksum = false" } else { "" };
                let data = put_in(kind, v6_outer, keys, &packet);
                let class = if v6_outer { data[14] << 4 | data[15] >> 4 } else { data[15] };
                assert_eq!(class, 0x50 | within as u8, "copied to the outer header");
                for (outer, &expected) in row.iter().enumerate() {
                    let mut data = data.clone();
                    set_outer_class(&mut data, v6_outer, outer as u8);
                    let Some(ecn) = expected else {
                        let counts = take_off("", &data).unwrap_err();
                        assert_eq!(counts["congestion_dropped"], 1, "{counts}");
                        continue;
                    };
                    let out = take_off("", &data).unwrap();
                    assert_eq!(out[14..], inner(v6_inner, 0x50 | ecn)[14..], "{within} {outer}");
                }
            }
        }
    }
    let legacy = put_in("ipip", false, "legacy_ecn = true", &inner(false, 0x50 | CE));
    assert_eq!(legacy[15], 0x50);
}

#[test]
fn only_matching_tunnels_are_decapsulated() {
    let packet = inner(false, 0);
    let vxlan = put_in("vxlan", false, "", &packet);
    // Addresses belong to the receiving end.
    for keys in ["local = \"10.0.0.2\"", "remote = \"10.0.0.1\"", "network = 0x123456"] {
        assert_eq!(take_off(keys, &vxlan).unwrap(), packet, "{keys}");
    }
    for keys in [
        "local = \"10.0.0.1\"",
        "remote = \"fd00::1\"",
        "network = 1",
        "vxlan_port = 8472",
        "kinds = [\"geneve\", \"gre\", \"ipip\"]",
    ] {
        assert_eq!(take_off(keys, &vxlan).unwrap_err()["others"], 1, "{keys}");
    }
    let on = encapsulate("vxlan", false, "vxlan_port = 8472");
    let (seen, _) = through(&on, std::slice::from_ref(&packet));
    assert_eq!(take_off("vxlan_port = 8472", &seen[0].data).unwrap(), packet);
    let (seen, _) = through(&format!("{OFF}\nmark_network = true"), &[vxlan]);
    assert_eq!(seen[0].mark, 0x123456);
    // Into a tunnel go packets with the mark.
    let mut function = function("tunnel", &encapsulate("ipip", false, "mark = 5"));
    let mut card = Card::new(&context(2048));
    let packets = from_wire_0([packet.clone(), packet.clone()]);
    let mark = |place: usize, packet: &mut Descriptor| packet.mark = place as u32 + 4;
    let seen = card.run_with(function.as_mut(), &packets, mark);
    let lengths: Vec<_> = seen.iter().map(|seen| seen.data.len()).collect();
    assert_eq!(lengths, [packet.len(), packet.len() + 20]);
}

#[test]
fn outer_tags_and_padding_are_not_carried() {
    let mut packet = frame(false, 1, true, vec![]).build();
    let expected = packet.clone();
    packet.extend([0; 9]);
    let mut data = put_in("ipip", true, "", &packet);
    assert_eq!(data[12..18], [0x81, 0, 0x60, 100, 0x86, 0xdd], "the tag stays outside");
    assert_eq!(data.len(), expected.len() + 40);
    data.extend([0; 30]);
    assert_eq!(take_off("", &data).unwrap()[12..], expected[12..]);
    // A frame is carried with its padding and tag; bytes appended to it are dropped.
    let mut data = put_in("vxlan", false, "", &packet);
    data.extend([0; 30]);
    assert_eq!(take_off("", &data).unwrap(), packet);
}

#[test]
fn invalid_tunnels_are_counted_and_dropped() {
    let packet = inner(false, 0);
    let break_at = |kind: &str, keys: &str, place: usize, byte: u8| {
        let mut data = put_in(kind, false, keys, &packet);
        data[place] = byte;
        take_off("", &data).unwrap_err()
    };
    for (kind, keys, place, byte, what) in [
        ("vxlan", "", 42, 0, "VXLAN without a network"),
        ("geneve", "", 42, 0x40, "GENEVE of another version"),
        ("geneve", "", 42, 0x3f, "options that are cut off"),
        ("gre", "", 34, 0x40, "GRE with a bit that must be zero"),
        ("gre", "", 50 - 12, 0x65, "IPv6 where IPv4 is announced"),
        ("ipip", "", 34, 0x65, "the same in IP"),
        ("ipip", "", 17, 30, "a packet shorter than its header inside"),
    ] {
        let mut data = put_in(kind, false, keys, &packet);
        data[place] = byte;
        if place == 17 {
            set_outer_class(&mut data, false, 0);
        }
        let (seen, counts) = through(OFF, &[data.clone()]);
        assert_eq!((seen.len(), &counts["malformed"]), (0, &json!(1)), "{what}: {counts}");
        // If tunnels are exposed, it continues.
        let (seen, counts) = through("", &[data]);
        assert_eq!((seen.len(), &counts["malformed"]), (1, &json!(1)), "{what}: {counts}");
    }
    // GENEVE with an option: known to be skipped, or critical.
    let with_option = |kind: u8| {
        let mut data = put_in("geneve", false, "", &packet);
        data[42] = 2;
        data.splice(50..50, [1, 2, kind, 1, 0, 0, 0, 0]);
        data[17] += 8;
        data[39] += 8;
        set_outer_class(&mut data, false, 0);
        data
    };
    assert_eq!(take_off("", &with_option(3)).unwrap(), packet);
    assert_eq!(take_off("", &with_option(0x83)).unwrap_err()["critical"], 1);
    // Left to the host: GENEVE's control messages, GRE of PPTP or of another protocol, fragments.
    for (kind, place, byte, count) in [
        ("geneve", 43, 0x80, "others"),
        ("gre", 35, 1, "others"),
        ("gre", 36, 0x88, "others"),
        ("ipip", 20, 0x20, "fragments"),
    ] {
        assert_eq!(break_at(kind, "", place, byte)[count], 1, "{kind}");
    }
}

#[test]
fn outer_checksums_are_verified_unless_the_wire_did() {
    let packet = inner(true, 0);
    for (kind, v6, keys) in [
        ("vxlan", false, "checksum = true"),
        ("geneve", true, ""),
        ("gre", false, "checksum = true"),
        ("gre", true, "checksum = true"),
    ] {
        let mut data = put_in(kind, v6, keys, &packet);
        assert!(take_off("", &data).is_ok(), "{kind}");
        *data.last_mut().unwrap() ^= 1;
        assert_eq!(take_off("", &data).unwrap_err()["bad_checksum"], 1, "{kind}");
    }
    let mut data = put_in("ipip", false, "", &packet);
    data[22] -= 1;
    assert_eq!(take_off("", &data).unwrap_err()["bad_checksum"], 1);
    let mut function = function("tunnel", OFF);
    let mut card = Card::new(&context(2048));
    let good = |_, packet: &mut Descriptor| packet.set_checksum(ChecksumState::Good);
    let seen = card.run_with(function.as_mut(), &from_wire_0([data]), good);
    assert_eq!(seen[0].data[14..], packet[14..]);
    assert_eq!(seen[0].checksum, ChecksumState::Unknown, "of what was inside nothing is known");
}

#[test]
fn uncarried_packets_are_dropped_and_counted() {
    let arp = Spec::plain(Network::Arp, Upper::Udp).build();
    let (seen, counts) = through(&encapsulate("ipip", false, ""), &[arp]);
    assert_eq!((seen.len(), &counts["not_carried"]), (0, &json!(1)));
    let mut card = Card::new(&context(2048));
    let long = frame(false, 0, false, bytes(65_470, 1)).build();
    let mut tunnel = function("tunnel", &encapsulate("vxlan", false, ""));
    assert!(card.run(tunnel.as_mut(), &from_wire_0([long])).is_empty());
    assert_eq!(card.dropped(DropReason::Oversize), 1);
    let packets = from_wire_0([frame(false, 0, true, bytes(4000, 1)).build()]);
    let super_frame = |_, packet: &mut Descriptor| packet.set_gso(GsoType::Tcp4, 1000);
    assert!(card.run_with(tunnel.as_mut(), &packets, super_frame).is_empty());
    assert_eq!(card.dropped(DropReason::SuperFrame), 1);
    // The checksum inside is finished before it is out of the wire's reach.
    let inside = frame(false, 0, true, bytes(100, 1));
    let unfinished = from_wire_0([unfinished(&inside)]);
    let partial = |_, packet: &mut Descriptor| packet.set_checksum(ChecksumState::Partial);
    let seen = card.run_with(tunnel.as_mut(), &unfinished, partial);
    assert_eq!(seen[0].data[50..], inside.build());
    // One tunnel in another, until there is no headroom left.
    let mut data = vec![inner(false, 0)];
    let mut rounds = 0;
    let mut nested = Chained(tunnel.as_mut(), &mut *Box::new(picnic_functions::pass::Pass));
    while let Some(seen) = card.run(&mut nested, &from_wire_0(data.clone())).pop() {
        (data, rounds) = (vec![seen.data], rounds + 1);
        if rounds == 3 {
            break;
        }
    }
    for _ in 0..rounds {
        data = vec![take_off("", &data[0]).unwrap()];
    }
    assert_eq!(data[0], inner(false, 0));
}

#[test]
fn tunnel_key_errors_are_exact() {
    let refused = |keys: &str, what: &str| {
        let message = refusal(&format!("function = \"tunnel\"\n{keys}"));
        assert!(message.contains(what), "{keys}: {message}");
    };
    let on = |keys: &str| format!("mode = \"encapsulate\"\n{keys}");
    refused("kinds = []", "kinds");
    refused("kinds = [\"l2tp\"]", "l2tp");
    refused("local = \"10.0.0\"", "local");
    refused("ttl = 3", "ttl: allowed only with mode");
    refused("geneve_port = 4789", "geneve_port");
    refused(&on("local = \"10.0.0.1\""), "kinds");
    refused(&on("kinds = [\"ipip\"]"), "local");
    refused(&on("kinds = [\"ipip\"]\nlocal = \"::1\"\nremote = \"1.2.3.4\""), "same family as ::1");
    let ends = ends(false);
    refused(&on(&format!("kinds = [\"vxlan\"]\n{ends}")), "source_mac");
    refused(&on(&format!("kinds = [\"vxlan\"]\n{ends}{MACS}")), "network");
    let vxlan = |keys: &str| on(&format!("kinds = [\"vxlan\"]\n{ends}{MACS}{keys}"));
    refused(&vxlan("network = 16777216"), "0 to 16777215");
    refused(&vxlan("network = 1\ninner = \"ip\""), "inner");
    refused(&vxlan("network = 1\nsequence = true"), "sequence");
    refused(&vxlan("network = 1\nttl = 0"), "ttl");
    refused(&vxlan("network = 1\ndscp = 64"), "dscp");
    refused(&vxlan("network = 1\nmark_network = true"), "mark_network");
    let ipip = |keys: &str| on(&format!("kinds = [\"ipip\"]\n{ends}{keys}"));
    refused(&ipip("network = 1"), "network");
    refused(&ipip("checksum = true"), "checksum");
    refused(&ipip("inner = \"ethernet\""), "inner");
    refused(&ipip("source_mac = \"02:00:00:00:00:0x\""), "source_mac");
    refused(&ipip("source_mac = \"02:00:00:00:00:01\""), "destination_mac");
}
