//! The order of functions that share a packet's metadata does not change the result.

use super::*;

/// A chain of functions, each with its keys.
fn chain(of: &[(&str, &str)]) -> Vec<Box<dyn Function>> {
    of.iter().map(|(name, keys)| function(name, keys)).collect()
}

/// The parts of a packet that must not depend on the order: bytes, tag aside, mark, inner header,
/// checksums.
type Outcome = (Vec<u8>, Option<VlanTag>, u32, Option<u16>, ChecksumState);

fn outcome(seen: &[Seen]) -> Vec<Outcome> {
    let mut all: Vec<_> = seen
        .iter()
        .map(|packet| {
            (packet.data.clone(), packet.aside, packet.mark, packet.inner, packet.checksum)
        })
        .collect();
    all.sort_by(|a, b| (&a.0, a.2).cmp(&(&b.0, b.2)));
    all
}

#[test]
fn one_marked_packet_in_four_is_copied_once() {
    let mut functions = chain(&[
        ("sample", "every = 4\nmark = 9"),
        ("lro", "timeout_usecs = 0"),
        ("tso", ""),
        ("mirror", "queue = 0\nmark = 9"),
    ]);
    let mut card = Card::new(&context(2048));
    let seen = card.through(&mut functions, &[run_of(4, 500)], |_, _| ());
    assert_eq!(seen.iter().filter(|packet| packet.mark == 9).count(), 1);
    assert_eq!(get("mirror", functions[3].as_mut())["copies"], 1);
}

#[test]
fn packets_with_different_metadata_are_not_merged() {
    type Tell = fn(&mut Descriptor);
    let differences: [(&str, Tell); 7] = [
        ("mark", |packet| packet.mark = 7),
        ("wire", |packet| packet.wire = 1),
        ("queue", |packet| packet.set_tx_queue(3)),
        ("tag", |packet| packet.set_vlan_aside(Some(VlanTag { tci: 5, service: false }))),
        ("priority", |packet| packet.set_vlan_aside(Some(VlanTag { tci: 0, service: false }))),
        ("hash", |packet| packet.set_rss_hash(1)),
        ("hashed", |packet| packet.set_rss_type(picnic_core::packet::desc::RssType::Ipv4)),
    ];
    for (name, tell) in differences {
        // All are merged if all have it, and keep it; if only the third has it, it is not merged.
        for (chosen, expected) in [(0..6, vec![6]), (2..3, vec![2, 1, 3]), (3..6, vec![3, 3])] {
            let mut functions = chain(&[("lro", "timeout_usecs = 0")]);
            let mut card = Card::new(&context(2048));
            let prepare = |place: usize, packet: &mut Descriptor| {
                if chosen.contains(&place) {
                    tell(packet);
                }
            };
            let seen = card.through(&mut functions, &[run_of(6, 500)], prepare);
            assert_eq!(shapes(&seen), expected, "{name}");
            functions.push(function("tso", ""));
            let about = |seen: &[Seen]| -> Vec<_> {
                let of = |packet: &Seen| {
                    (
                        packet.mark,
                        packet.wire,
                        packet.tx_queue,
                        packet.aside,
                        packet.hash,
                        packet.over,
                    )
                };
                seen.iter().map(of).collect()
            };
            let again = card.through(&mut functions, &[run_of(6, 500)], prepare);
            let before = card.through(&mut [], &[run_of(6, 500)], prepare);
            assert_eq!(about(&again), about(&before), "{name}");
        }
    }
}

/// RFC 6935: an earlier verdict does not change what a tunnel may omit.
#[test]
fn ipv6_tunnels_without_checksum_are_decapsulated_after_checksum() {
    let inner = frame(false, 0, true, bytes(60, 7)).build();
    for kind in ["vxlan", "geneve"] {
        let carried = tunnel::put_in(kind, true, "checksum = false\n", &inner);
        let mut functions = chain(&[("checksum", ""), ("lro", ""), ("tunnel", tunnel::OFF)]);
        let mut card = Card::new(&context(2048));
        let seen = card.through(&mut functions, &[from_wire_0([carried])], |_, _| ());
        assert_eq!(seen[0].data[14..], inner[14..]);
        // A checksum that is there and wrong is another matter, in either order.
        let mut wrong = tunnel::put_in(kind, true, "checksum = true\n", &inner);
        *wrong.last_mut().unwrap() ^= 1;
        for order in [&[("tunnel", tunnel::OFF)][..], &[("checksum", ""), ("tunnel", tunnel::OFF)]]
        {
            let seen = card.through(&mut chain(order), &[from_wire_0([wrong.clone()])], |_, _| ());
            assert!(seen.is_empty());
        }
    }
}

/// Short and long packets of one flow in a tunnel, the long one cut as captures are.
#[test]
fn truncated_tunnels_expose_inner_headers() {
    let [short, long] = [20, 1200].map(|length| frame(false, 0, true, bytes(length, 1)).build());
    for kind in ["vxlan", "geneve", "gre", "ipip"] {
        for v6 in [false, true] {
            let frames = [&short, &long].map(|inner| tunnel::put_in(kind, v6, "", inner));
            let cut = frames[1][..160].to_vec();
            for buffer_size in [100, 2048] {
                let mut functions = chain(&[("tunnel", "mode = \"expose\"")]);
                let mut card = Card::new(&context(buffer_size));
                let packets = from_wire_0([frames[0].clone(), frames[1].clone(), cut.clone()]);
                let seen = card.through(&mut functions, &[packets], |_, _| ());
                assert!(seen[0].inner.is_some());
                assert!(seen.iter().all(|packet| packet.inner == seen[0].inner), "{kind} {v6}");
                let counts = get("tunnel", functions[0].as_mut());
                assert_eq!((&counts["exposed"], &counts["malformed"]), (&json!(3), &json!(0)));
                // Taken off, it would be another packet than was sent.
                let mut functions = chain(&[("tunnel", tunnel::OFF)]);
                assert!(
                    card.through(&mut functions, &[from_wire_0([cut.clone()])], |_, _| ())
                        .is_empty()
                );
            }
            let mut rss = function("rss", "inner = true\ntypes = [\"tcp-ipv4\"]");
            let mut expose = function("tunnel", "");
            let mut chain = tunnel::Chained(expose.as_mut(), rss.as_mut());
            let mut card = Card::new(&context(2048));
            let seen = card.run(&mut chain, &from_wire_0([frames[0].clone(), cut.clone()]));
            assert_eq!((seen[0].hash, seen[0].door), (seen[1].hash, seen[1].door), "{kind} {v6}");
        }
    }
}

/// A packet as drawn: a segment of a stream, perhaps in a tunnel, perhaps tagged.
#[derive(Clone, Debug)]
struct Drawn {
    flow: u8,
    step: Step,
    tunnel: Option<(&'static str, bool, bool)>,
    tags: usize,
    is_bad: bool,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let kind = prop::sample::select(vec!["vxlan", "geneve", "gre", "ipip"]);
    let tunnel = prop::option::of((kind, any::<bool>(), any::<bool>()));
    // Including the tag of a step, at most two tags: nothing is parsed after a third.
    (0..4_u8, step(), tunnel, 0..2_usize, prop::bool::weighted(0.1))
        .prop_map(|(flow, step, tunnel, tags, is_bad)| Drawn { flow, step, tunnel, tags, is_bad })
}

fn frames_of(drawn: &[Drawn], size: usize) -> Vec<Vec<u8>> {
    let steps: Vec<_> = drawn.iter().map(|drawn| (drawn.flow, drawn.step)).collect();
    let inside = streams(&steps, size);
    let frames = inside.into_iter().zip(drawn).map(|(mut data, drawn)| {
        if let Some((kind, v6, checksum)) = drawn.tunnel {
            let is_udp = matches!(kind, "vxlan" | "geneve");
            let keys = if is_udp { format!("checksum = {checksum}\n") } else { String::new() };
            // Of IP alone a tag and padding are not carried.
            data = tunnel::put_in(kind, v6, &keys, &data);
        }
        for tag in 0..drawn.tags {
            data.splice(12..12, [0x81, 0, 0x60, 100 + tag as u8]);
        }
        if drawn.is_bad {
            *data.last_mut().unwrap() ^= 0x10;
        }
        data
    });
    frames.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// In any order the same packets come out, with the same bytes, tag, mark and inner headers,
    /// and their checksums stay as good or bad.
    #[test]
    fn the_order_of_functions_does_not_matter(
        drawn in prop::collection::vec(drawn(), 1..60), size in 20..600_usize,
        order in Just((0..5_usize).collect::<Vec<_>>()).prop_shuffle(),
        mode in prop::sample::select(vec!["expose", "decapsulate"]),
        strip: bool, burst in 1..=64_usize,
    ) {
        // A tag within a tunnel is the packet's own once the tunnel is off: whether it is taken off
        // then, and which is rewritten, depends on the order.
        prop_assume!(mode == "expose" || !drawn.iter().any(|drawn| {
            drawn.tunnel.is_some() && matches!(drawn.step, Step::TaggedOtherwise)
        }));
        let tunnel = format!("mode = \"{mode}\"\nmark_network = true");
        let strip = if strip { "strip = true" } else { "" };
        let functions = [
            ("checksum", ""),
            ("lro", "timeout_usecs = 0"),
            ("tunnel", &*tunnel),
            ("vlan", "rewrite = [[100, 200], [101, 201]]"),
            ("vlan", strip),
        ];
        let frames = frames_of(&drawn, size);
        let run = |order: &[usize], last: &str| {
            let mut functions = chain(&order.iter().map(|&place| functions[place]).collect::<Vec<_>>());
            functions.extend(chain(&[("tso", ""), ("checksum", last)]));
            let mut card = Card::new(&context(2048));
            let bursts: Vec<_> =
                frames.chunks(burst).map(|frames| from_wire_0(frames.iter().cloned())).collect();
            outcome(&card.through(&mut functions, &bursts, |_, _| ()))
        };
        // Parsed again, regardless of earlier results.
        let expected = run(&[0, 1, 2, 3, 4], "trust = false");
        prop_assert_eq!(&run(&order, "trust = false"), &expected);
        prop_assert_eq!(&run(&order, ""), &expected);
    }

    /// Captures of any frames through eight functions at once: the output has the bytes of the
    /// input, each flow in order.
    #[test]
    fn eight_functions_together_change_no_byte(
        drawn in prop::collection::vec(drawn(), 1..40), size in 20..400_usize,
        others in prop::collection::vec((
            any_spec(), 0..300_usize, prop::option::weighted(0.3, 14..120_usize),
            prop::collection::vec((12..90_usize, any::<u8>()), 0..3),
        ), 0..20),
        burst in 1..=64_usize, buffer_size in prop::sample::select(vec![160_usize, 301, 2048]),
    ) {
        let mut frames = frames_of(&drawn, size);
        for (spec, payload, cut, changes) in others {
            let mut data = common::frames::Spec { payload, ..spec }.build();
            data.truncate(cut.unwrap_or(data.len()));
            for (place, byte) in changes {
                if let Some(there) = data.get_mut(place) {
                    *there = byte;
                }
            }
            frames.push(data);
        }
        let mut functions = chain(&[
            ("sample", "every = 5\nmark = 3"),
            ("checksum", ""),
            ("vlan", "strip = true"),
            ("tunnel", "mode = \"expose\""),
            ("lro", "timeout_usecs = 0"),
            ("header-split", "least_payload = 1"),
            ("tso", ""),
            ("vlan", "insert = \"aside\""),
        ]);
        let mut card = Card::new(&context(buffer_size));
        let bursts: Vec<_> =
            frames.chunks(burst).map(|frames| from_wire_0(frames.iter().cloned())).collect();
        let seen = card.through(&mut functions, &bursts, |_, _| ());
        let sorted = |mut all: Vec<Vec<u8>>| {
            all.sort();
            all
        };
        let came_out = sorted(seen.iter().map(|packet| packet.data.clone()).collect());
        prop_assert_eq!(came_out, sorted(frames.clone()));
        prop_assert_eq!(seen.iter().filter(|packet| packet.mark == 3).count(), frames.len().div_ceil(5));
        prop_assert!(seen.iter().all(|packet| packet.gso.0 == GsoType::None));
    }
}
