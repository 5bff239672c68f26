//! Requirements for every function in the registry, with its default config.
//!
//! The harness checks conservation and that all buffers return at each step; the tests here add
//! order, bad bytes, burst lengths and long packets.

use crate::common::frames::{Spec, any_spec, every_kind};
use crate::common::{Card, Door, Packet, Seen, build, from_wire_0};
use crate::shared;
use picnic_core::command::{CommandEntry, CommandError};
use picnic_core::config::KeyHelp;
use picnic_core::function::Function;
use picnic_core::kernel::KernelCounts;
use picnic_core::ledger::Stage;
use picnic_core::registry::{BuildContext, Entry};
use picnic_core::time::Time;
use picnic_engine::trial::conformance;
use picnic_functions::registry::FUNCTIONS;
use proptest::prelude::*;
use serde_json::Value;
use std::collections::HashMap;

fn context() -> BuildContext {
    BuildContext { wires: 3, ..BuildContext::default() }
}

/// Every function with a card.
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
fn entries_are_explained_and_unknown_keys_refused() {
    shared::entries_are_explained("function", FUNCTIONS);
}

#[test]
fn commands_are_obeyed_as_they_are_declared() {
    let folder = tempfile::tempdir().unwrap();
    let make = |entry: &Entry<_>| {
        let keys = entry.example(folder.path()).unwrap();
        let context = BuildContext { directory: folder.path().into(), ..context() };
        build(&format!("function = \"{}\"\n{keys}", entry.name), &context).unwrap()
    };
    shared::commands_are_obeyed(FUNCTIONS, &context(), make, |function, order, now| {
        function.obey(order, now)
    });
    assert!(FUNCTIONS.iter().any(|entry| !entry.commands.is_empty()));
}

/// A command of a function, obeyed by it.
fn tell(
    function: &mut dyn Function,
    command: &CommandEntry,
    arguments: &str,
) -> Result<Value, CommandError> {
    let arguments = serde_json::from_str(arguments).unwrap();
    let mut order = command.prepare(&arguments, &context()).unwrap();
    function.obey(&mut order, Time::ZERO);
    command.reply(order)
}

/// The counters in a function's state.
fn counters(name: &str, function: &mut dyn Function, get: &CommandEntry) -> Vec<(String, u64)> {
    let state = tell(function, get, "{}").unwrap();
    let counters = get.results().into_iter().filter(|key| !key.gauge);
    let counters = counters.filter(|key| state[&key.name].is_number());
    let count = |key: KeyHelp| {
        let count = state[&key.name].as_u64();
        let count = count.unwrap_or_else(|| panic!("{name}: {} is below zero", key.name));
        (key.name, count)
    };
    counters.map(count).collect()
}

fn never_fall(name: &str, before: &[(String, u64)], now: &[(String, u64)]) {
    for ((counter, was), (_, is)) in before.iter().zip(now) {
        assert!(was <= is, "{name}: {counter} fell from {was} to {is}");
    }
}

/// The command that shows a function's state.
fn get(name: &str) -> Option<(&'static [CommandEntry], &'static CommandEntry)> {
    let commands = FUNCTIONS.iter().find(|entry| entry.name == name)?.commands;
    Some((commands, commands.iter().find(|command| command.name == "get")?))
}

/// A counter is at zero when its function is inserted, and never falls, for any packets that the
/// function sees and obeys; a number that is not, or does, is declared a gauge.
#[test]
fn numbers_in_states_are_counters_or_declared_gauges() {
    let frames: Vec<_> = every_kind().iter().map(Spec::build).collect();
    let (mut counted, mut gauges) = (0, 0);
    for_each(|name, function, card| {
        let Some((commands, get)) = get(name) else { return };
        gauges += get.results().iter().filter(|key| key.gauge).count();
        let mut before = counters(name, function, get);
        for (counter, count) in &before {
            assert_eq!(*count, 0, "{name}: {counter} of a function that has seen nothing");
        }
        for command in commands {
            for stage in [Stage::Rx, Stage::Tx] {
                card.stage = stage;
                card.run(function, &from_wire_0(frames.iter().cycle().take(64).cloned()));
            }
            // It may be refused, as a rule is removed that is not there.
            let _ = tell(function, command, command.example);
            let now = counters(name, function, get);
            never_fall(name, &before, &now);
            before = now;
        }
        counted += before.iter().filter(|(_, count)| *count != 0).count();
    });
    assert!(counted >= 10 && gauges >= 10, "{counted} counters have counted, {gauges} gauges");
}

/// The kernel's counts are not simultaneous: departures may be ahead of arrivals.
#[test]
fn counters_of_kernel_forms_never_fall() {
    let mut counted = 0;
    for_each(|name, function, _| {
        let Some((_, get)) = get(name) else { return };
        let mut noted = |counts: KernelCounts| {
            function.note_kernel(&counts);
            counters(name, function, get)
        };
        let first = KernelCounts {
            packets: 100,
            steered: 20,
            dropped: 30,
            unhashed: 5,
            tagged: 40,
            rules: Vec::new(),
        };
        let before = noted(first.clone());
        let now =
            noted(KernelCounts { steered: 21, dropped: 31, unhashed: 6, tagged: 41, ..first });
        never_fall(name, &before, &now);
        counted += now.iter().filter(|(_, count)| *count != 0).count();
    });
    assert!(counted >= 8, "{counted} counters have counted");
}

/// Requirements for a function from `picnic new`, too.
#[test]
fn frames_cut_damaged_and_of_odd_lengths_keep_fate_and_layers() {
    each_own(|name, build, context| {
        conformance::of_frames(build, context).unwrap_or_else(|error| panic!("{name}: {error}"));
        for kinds in [0, 3, 7, 32, 255] {
            let bytes = conformance::bytes_of_frames(kinds);
            conformance::of_bytes(build, context, &bytes)
                .unwrap_or_else(|error| panic!("{name}, {kinds}: {error}"));
        }
    });
}

#[test]
fn buffer_boundaries_change_nothing() {
    let mut wrong = Vec::new();
    each_own(|name, build, context| {
        if let Err(error) = conformance::of_pieces(build, context) {
            wrong.push(format!("{name}: {error}"));
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Settings by which functions read more of a packet than by those that they have by default.
const READERS: &[&str] = &[
    "function = \"rss\"\ntypes = [\"tcp-ipv4\", \"udp-ipv4\", \"tcp-ipv6\", \"udp-ipv6\"]",
    "function = \"flow-director\"\nlearn = true\nrules = [\
     { protocol = \"udp\", destination_port = 53, queue = 1 }, \
     { source = \"fd00::1\", protocol = \"tcp\", destination_port = 80, mark = 7 }]",
    "function = \"vmdq\"\npools = [{ macs = [\"02:00:00:00:00:01\"], queues = [0, 1, 2, 3] }]",
    "function = \"bond\"\nmode = \"flow\"",
    "function = \"bond\"\nmode = \"round-robin\"\norder_usecs = 100",
    "function = \"bond\"\nonce = true",
    "function = \"checksum\"\nmode = \"verify\"\ndrop_bad = true",
    "function = \"checksum\"\nmode = \"complete\"",
    "function = \"tunnel\"\nmode = \"decapsulate\"\nmark_network = true",
    "function = \"tunnel\"\nmode = \"expose\"\nmark_network = true",
    "function = \"tunnel\"\nmode = \"encapsulate\"\nkinds = [\"vxlan\"]\nnetwork = 42\n\
     local = \"10.0.0.1\"\nremote = \"10.0.0.2\"\nsource_mac = \"02:00:00:00:00:01\"\n\
     destination_mac = \"02:00:00:00:00:02\"",
    "function = \"timestamp\"\ncorrect = true",
    "function = \"vlan\"\nallow = [100, 200]\nstrip = true",
    "function = \"vlan\"\ninsert = \"all\"\nidentifier = 5",
    "function = \"header-split\"\nat = \"l2\"\nleast_payload = 1",
    "function = \"header-split\"\nat = \"l3\"\nleast_payload = 1",
];

#[test]
fn buffer_boundaries_change_nothing_for_deep_readers() {
    for text in READERS {
        let context = context();
        conformance::of_pieces(|| build(text, &context).unwrap(), &context)
            .unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

/// Every function, by its builder.
fn each_own(mut body: impl FnMut(&str, &dyn Fn() -> Box<dyn Function>, &BuildContext)) {
    let folder = tempfile::tempdir().unwrap();
    for entry in FUNCTIONS {
        let keys = entry.example(folder.path()).expect("a function needs nothing of the machine");
        let text = format!("function = \"{}\"\n{keys}", entry.name);
        let context = BuildContext { directory: folder.path().into(), ..context() };
        body(entry.name, &|| build(&text, &context).unwrap(), &context);
    }
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
