//! `mirror`: which packets are copied, how much of them, and where to; nothing else changes.

use crate::common::frames::{Network, Spec, Upper, any_spec};
use crate::common::{Card, Door, Packet, Seen, build, from_wire_0, refusal};
use picnic_core::command::CommandEntry;
use picnic_core::function::Function;
use picnic_core::packet::desc::{ChecksumState, GsoType};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_functions::mirror::Mirror;
use proptest::prelude::*;
use serde_json::{Value, json};

fn context() -> BuildContext {
    BuildContext { wires: 3, ..BuildContext::default() }
}

fn mirror(keys: &str) -> Box<dyn Function> {
    build(&format!("function = \"mirror\"\n{keys}"), &context()).unwrap()
}

fn counts(function: &mut dyn Function) -> Value {
    let get: &CommandEntry = &Mirror::COMMANDS[0];
    let mut order = get.prepare(&json!({}), &context()).unwrap();
    assert!(function.obey(&mut order, Time::ZERO));
    get.reply(order).unwrap()
}

/// Packets by number, apart by the door they left by.
fn by_door(seen: &[Seen], door: Door) -> Vec<&Seen> {
    seen.iter().filter(|packet| packet.door == door).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn copies_are_truncated_and_packets_unchanged(
        specs in prop::collection::vec((any_spec(), 0..3u8, 0..3u32, 0..3000usize), 0..=48),
        mark in prop::option::of(0..3u32),
        from in prop::option::of(0..3u8),
        every in 1..5u32,
        truncate in prop::option::of(14..2500u16),
        to_wire in any::<bool>(),
    ) {
        let mut keys = format!("every = {every}\n");
        keys += if to_wire { "wire = 2\n" } else { "queue = 3\n" };
        mark.inspect(|mark| keys += &format!("mark = {mark}\n"));
        from.inspect(|wire| keys += &format!("from_wire = {wire}\n"));
        truncate.inspect(|bytes| keys += &format!("truncate = {bytes}\n"));
        let mut function = mirror(&keys);
        let packets: Vec<_> = specs
            .iter()
            .map(|(spec, wire, _, more)| {
                let mut frame = spec.build();
                frame.resize(frame.len() + more, 0xa5);
                Packet((*wire, frame))
            })
            .collect();
        let mut card = Card::new(&context());
        let seen = card.run_with(function.as_mut(), &packets, |place, packet| {
            packet.mark = specs[place].2;
            packet.set_checksum(ChecksumState::Partial);
            packet.set_gso(GsoType::Tcp4, 1000);
            packet.set_tx_queue(1);
        });
        // The packets themselves, all of them, in order.
        let on = by_door(&seen, Door::Next);
        prop_assert_eq!(on.len(), packets.len());
        for (place, (packet, given)) in on.iter().zip(&packets).enumerate() {
            prop_assert_eq!(packet.number, place);
            prop_assert_eq!(&packet.data, &given.0.1);
            prop_assert_eq!((packet.mark, packet.gso), (specs[place].2, (GsoType::Tcp4, 1000)));
        }
        // The copies.
        let chosen = (0..specs.len()).filter(|&place| {
            let (_, wire, of, _) = &specs[place];
            mark.is_none_or(|mark| mark == *of) && from.is_none_or(|from| from == *wire)
        });
        let expected: Vec<_> = chosen.step_by(every as usize).collect();
        let copies = by_door(&seen, if to_wire { Door::Wire(2) } else { Door::Queue(3) });
        prop_assert_eq!(copies.iter().map(|copy| copy.number).collect::<Vec<_>>(), expected);
        let mut bytes = 0;
        for copy in &copies {
            let whole = &packets[copy.number].0.1;
            let length = truncate.map_or(whole.len(), |cut| whole.len().min(cut.into()));
            prop_assert_eq!(&copy.data, &whole[..length]);
            prop_assert_eq!(copy.mark, specs[copy.number].2);
            // A truncated copy requests nothing that only the whole packet could request.
            let is_whole = length == whole.len();
            prop_assert_eq!(copy.checksum == ChecksumState::Partial, is_whole);
            prop_assert_eq!(copy.gso.0 == GsoType::Tcp4, is_whole);
            bytes += length;
        }
        let counted = counts(function.as_mut());
        let expected =
            json!({ "copies": copies.len(), "copied_bytes": bytes, "lost_copies": 0 });
        prop_assert_eq!(counted, expected);
    }
}

#[test]
fn copies_without_a_buffer_are_counted() {
    let mut function = mirror("queue = 3\n");
    let mut frame = Spec::plain(Network::V4, Upper::Udp).build();
    frame.resize(9000, 1);
    // Five buffers of 512 each: the packets fit, their copies do not.
    let seen = Card::new(&context()).run(function.as_mut(), &from_wire_0(vec![frame; 60]));
    assert_eq!(by_door(&seen, Door::Next).len(), 60);
    let copies = by_door(&seen, Door::Queue(3)).len() as u64;
    let counted = counts(function.as_mut());
    assert_eq!(counted["copies"], copies);
    assert_eq!(counted["lost_copies"], 60 - copies);
    assert!(copies > 0 && copies < 60, "{counted}");
}

#[test]
fn wrong_keys_are_refused() {
    for (keys, expected) in [
        ("", "queue: missing, expected a queue or a wire"),
        ("queue = 1\nwire = 1", "wire: found together with a queue, allowed: one of the two"),
        ("queue = 4", "queue: found queue 4, allowed: 0 to 3"),
        ("wire = 2", "wire: found wire 2, allowed: 0 to 1"),
        ("wire = 1\nfrom_wire = 2", "from_wire: found wire 2, allowed: 0 to 1"),
        ("queue = 1\nevery = 0", "every: found 0, allowed: 1 or more"),
        ("queue = 1\ntruncate = 13", "truncate: found 13, allowed: 14 to 65535"),
    ] {
        let error = refusal(&format!("function = \"mirror\"\n{keys}"));
        assert!(error.contains(expected), "{keys}: {error}");
    }
}
