//! What is asked of every function in the registry, with the config it has by default.
//!
//! The harness checks conservation and that buffers come home at each step; here come
//! order, bad bytes, burst lengths and long packets.

mod common;

use common::frames::{Spec, any_spec, every_kind};
use common::{Card, Door, Packet, Seen, build, from_wire_0};
use picnic_core::command::{CommandEntry, CommandError, Order, Prepared};
use picnic_core::function::Function;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_functions::registry::FUNCTIONS;
use proptest::prelude::*;
use serde_json::json;
use std::collections::{HashMap, HashSet};

fn context() -> BuildContext {
    BuildContext { wires: 3, ..BuildContext::default() }
}

/// Every function with a card of its own.
fn for_each(mut body: impl FnMut(&str, &mut dyn Function, &mut Card)) {
    let folder = tempfile::tempdir().unwrap();
    for entry in FUNCTIONS {
        let keys = entry.example(folder.path()).expect("a function needs nothing of the machine");
        let text = format!("function = \"{}\"\n{keys}", entry.name);
        let context = BuildContext { directory: folder.path().into(), ..context() };
        let mut function = build(&text, &context).unwrap();
        let mut card = Card::new(&context);
        body(entry.name, function.as_mut(), &mut card);
        card.flush(function.as_mut());
    }
}

#[test]
fn names_are_unique_and_keys_are_explained() {
    let mut names: Vec<_> = FUNCTIONS.iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FUNCTIONS.len());
    for entry in FUNCTIONS {
        // One style in all registries: "drop every packet".
        let help = entry.help;
        assert!(help.len() <= 64 && help.starts_with(|first: char| first.is_ascii_lowercase()));
        assert!(!help.contains(['.', '\n']), "{}: {help}", entry.name);
        for key in entry.keys() {
            assert!(!key.help.is_empty(), "{}.{} has no help", entry.name, key.name);
            assert!(!key.r#type.is_empty(), "{}.{} has no type", entry.name, key.name);
        }
    }
}

#[test]
fn unknown_keys_are_refused() {
    for entry in FUNCTIONS {
        let text = format!("function = \"{}\"\nno_such_key = 1", entry.name);
        let error = build(&text, &context()).err().map(|error| error.to_string());
        let error = error.unwrap_or_default();
        assert!(
            error.starts_with("card:2: no_such_key: found key \"no_such_key\", allowed: "),
            "{}: {error}",
            entry.name
        );
    }
}

/// Every command with the function it is of.
fn for_each_command(mut body: impl FnMut(&str, &CommandEntry, &mut dyn Function)) {
    for entry in FUNCTIONS {
        for command in entry.commands {
            let mut function =
                build(&format!("function = \"{}\"", entry.name), &context()).unwrap();
            body(&format!("{}.{}", entry.name, command.name), command, function.as_mut());
        }
    }
}

#[test]
fn commands_are_explained_and_so_are_their_arguments_and_results() {
    let mut seen = HashSet::new();
    for_each_command(|name, command, _| {
        assert!(seen.insert(name.to_owned()), "{name} stands twice");
        assert!(command.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        let help = command.help;
        assert!(help.len() <= 64 && help.starts_with(|first: char| first.is_ascii_lowercase()));
        assert!(!help.contains(['.', '\n']), "{name}: {help}");
        let arguments = command.arguments().into_iter().map(|argument| argument.key);
        for key in arguments.clone().chain(command.results()) {
            assert!(!key.help.is_empty(), "{name}: {} has no help", key.name);
            assert!(!key.r#type.is_empty(), "{name}: {} has no type", key.name);
        }
        // These say which function is meant.
        assert!(!arguments.map(|key| key.name).any(|key| key == "chain" || key == "position"));
    });
    assert!(!seen.is_empty());
}

#[test]
fn arguments_have_defaults_or_are_said_to_be_missing_and_others_are_refused() {
    for_each_command(|name, command, _| {
        let required = command.arguments().into_iter().find(|argument| argument.required);
        match (command.prepare(&json!({}), &context()), required) {
            (Ok(_), required) => assert!(required.is_none(), "{name}: {required:?} has a default"),
            (Err(CommandError::Argument(wrong)), Some(required)) => {
                assert_eq!(
                    wrong.to_string(),
                    format!("{}: found none, must be given", required.key.name)
                );
            }
            (Err(CommandError::Argument(wrong)), None) => {
                assert!(wrong.message.contains("allowed"), "{name}: {wrong}");
            }
            (Err(other), _) => panic!("{name}: {other}"),
        }
        let wrong = command.prepare(&json!({ "no_such_argument": 1 }), &context()).unwrap_err();
        let wrong = wrong.to_string();
        assert!(
            wrong.starts_with("no_such_argument: found key \"no_such_argument\", allowed: "),
            "{name}: {wrong}"
        );
        for value in [json!([]), json!(1), json!("x"), json!(null)] {
            assert!(command.prepare(&value, &context()).is_err(), "{name}: {value}");
        }
    });
}

#[test]
fn the_example_of_a_command_is_done_and_its_result_is_as_declared() {
    for_each_command(|name, command, function| {
        let example = serde_json::from_str(command.example).unwrap();
        let mut order = command.prepare(&example, &context()).unwrap();
        assert!(function.obey(&mut order, Time::ZERO), "{name} was not done");
        let reply = command.reply(order).unwrap();
        let fields: HashSet<_> = reply.as_object().unwrap().keys().cloned().collect();
        let declared: HashSet<_> = command.results().into_iter().map(|key| key.name).collect();
        assert_eq!(fields, declared, "{name}");
        let text = command.text(&reply, "there");
        assert!(text.ends_with('\n') && text.len() > 1, "{name}: {text:?}");
        // An order of another function is none of its business, and its result is no result.
        struct Stray;
        impl Order for Stray {
            type Target = ();
            fn apply(&mut self, _: &mut (), _: Time) -> bool {
                true
            }
        }
        assert!(!function.obey(&mut Prepared::new(Stray), Time::ZERO), "{name}");
        assert!(command.reply(Prepared::new(Stray)).is_err(), "{name}");
    });
}

#[test]
fn every_burst_length_from_none_to_full() {
    let frames: Vec<_> = every_kind().iter().map(Spec::build).collect();
    for_each(|_, function, card| {
        for length in 0..=64 {
            card.run(function, &from_wire_0(frames.iter().cycle().take(length).cloned()));
        }
    });
}

#[test]
fn every_header_cut_at_every_byte() {
    let mut cuts = Vec::new();
    for frame in every_kind().iter().map(Spec::build) {
        cuts.extend((0..=frame.len()).map(|length| frame[..length].to_vec()));
    }
    for_each(|_, function, card| {
        for burst in cuts.chunks(64) {
            card.run(function, &from_wire_0(burst.iter().cloned()));
        }
    });
}

#[test]
fn packets_of_many_segments() {
    let lengths = [0, 1, 2047, 2048, 2049, 9000, 65_535, 65_536];
    for_each(|_, function, card| {
        for length in lengths {
            let mut frame = every_kind()[0].build();
            frame.resize(length, 0x55);
            card.run(function, &from_wire_0([frame.clone(), vec![], frame]));
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_bytes_have_one_fate_each(
        bytes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..=64),
    ) {
        for_each(|_, function, card| { card.run(function, &from_wire_0(bytes.clone())); });
    }

    #[test]
    fn damaged_frames_have_one_fate_each(
        specs in prop::collection::vec(
            (any_spec(), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)),
            0..=64,
        ),
    ) {
        let frames: Vec<_> = specs.iter().map(|(spec, damage)| {
            let mut frame = spec.build();
            for (place, byte) in damage {
                let place = place.index(frame.len());
                frame[place] = *byte;
            }
            frame
        }).collect();
        for_each(|_, function, card| { card.run(function, &from_wire_0(frames.clone())); });
    }

    #[test]
    fn order_within_a_flow_is_kept_and_bytes_are_the_flows_own(
        bursts in prop::collection::vec(
            prop::collection::vec((any_spec(), 0..3u8), 0..=64), 1..4,
        ),
    ) {
        let all: Vec<_> = bursts.iter().flatten().cloned().collect();
        for_each(|name, function, card| {
            let mut seen = Vec::new();
            for burst in &bursts {
                let packets: Vec<_> =
                    burst.iter().map(|(spec, wire)| Packet((*wire, spec.build()))).collect();
                seen.extend(card.run(function, &packets));
            }
            check_order(name, &all, &seen);
        });
    }
}

fn check_order(name: &str, all: &[(Spec, u8)], seen: &[Seen]) {
    let mut last = HashMap::new();
    let mut doors = HashMap::<_, Door>::new();
    for packet in seen {
        let (spec, wire) = &all[packet.number];
        assert_eq!(packet.data, spec.build(), "{name} changed bytes");
        let flow = (*wire, spec.flow());
        if let Some(before) = last.insert((packet.door, flow), packet.number) {
            assert!(before < packet.number, "{name}: {before} came before {}", packet.number);
        }
        let flow = (*wire, spec.flow());
        let door = *doors.entry(flow).or_insert(packet.door);
        assert_eq!(door, packet.door, "{name} splits a flow");
    }
}
