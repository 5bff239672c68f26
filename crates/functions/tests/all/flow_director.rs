//! `flow-director` against a search through all rules, one by one; and changes while it runs.

use crate::common::frames::{Network, Spec, Upper, any_spec};
use crate::common::{Card, Door, Packet, build, from_wire_0, refusal};
use picnic_core::function::Function;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::packet::layers;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_functions::flow_director::{Config, FlowDirector, MAX_MASKS, Rule};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::net::IpAddr;

fn context() -> BuildContext {
    BuildContext { wires: 3, ..BuildContext::default() }
}

fn director(rules: Vec<Rule>) -> FlowDirector {
    FlowDirector::new(&Config { rules, ..Config::default() }, &context()).unwrap()
}

fn call(function: &mut dyn Function, name: &str, arguments: &Value) -> Result<Value, String> {
    let command = FlowDirector::COMMANDS.iter().find(|command| command.name == name).unwrap();
    let mut order = command.prepare(arguments, &context()).map_err(|error| error.to_string())?;
    function.obey(&mut order, Time::ZERO);
    command.reply(order).map_err(|error| error.to_string())
}

/// Whether an address lies in a prefix, bit by bit.
fn lies_in(prefix: &str, address: &[u8]) -> bool {
    let (network, length) = prefix.split_once('/').unwrap_or((prefix, "999"));
    let network = match network.parse().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let length: usize = length.parse().unwrap();
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    network.len() == address.len()
        && (0..length.min(8 * address.len())).all(|at| bit(&network, at) == bit(address, at))
}

/// Whether a rule matches, field by field.
fn matches(rule: &Rule, data: &[u8], wire: u8) -> bool {
    let found = layers::parse(data);
    let (mut source, mut destination) = (Vec::new(), Vec::new());
    let l3 = usize::from(found.l3_offset);
    if found.packet_type.is_ipv4() {
        (source, destination) = (data[l3 + 12..l3 + 16].into(), data[l3 + 16..l3 + 20].into());
    } else if found.packet_type.is_ipv6() {
        (source, destination) = (data[l3 + 8..l3 + 24].into(), data[l3 + 24..l3 + 40].into());
    }
    let l4 = usize::from(found.l4_offset);
    let port = |at: usize| {
        let bytes = [data[l4 + at], data[l4 + at + 1]];
        found.packet_type.has_ports().then(|| u16::from_be_bytes(bytes))
    };
    let port_is = |asked: Option<u16>, mask: Option<u16>, at: usize| {
        let mask = mask.unwrap_or(u16::MAX);
        asked.is_none_or(|asked| {
            found.packet_type.has_ports()
                && port(at).is_some_and(|port| port & mask == asked & mask)
        })
    };
    let protocol = |name: &String| match &**name {
        "tcp" => 6,
        "udp" => 17,
        "icmp" => 1,
        "icmpv6" => 58,
        number => number.parse().unwrap(),
    };
    rule.source.as_ref().is_none_or(|prefix| lies_in(prefix, &source))
        && rule.destination.as_ref().is_none_or(|prefix| lies_in(prefix, &destination))
        && rule.protocol.as_ref().is_none_or(|name| protocol(name) == found.protocol)
        && port_is(rule.source_port, rule.source_port_mask, 0)
        && port_is(rule.destination_port, rule.destination_port_mask, 2)
        && rule.vlan.is_none_or(|vlan| found.vlan_count > 0 && found.vlan_tci & 0xfff == vlan)
        && rule.wire.is_none_or(|asked| asked == wire)
}

/// The rule that decides, by looking at all of them.
fn linear<'r>(rules: &'r [(u32, Rule)], data: &[u8], wire: u8) -> Option<&'r (u32, Rule)> {
    let matching = rules.iter().filter(|(_, rule)| matches(rule, data, wire));
    matching.min_by_key(|(number, rule)| (u16::MAX - rule.priority, *number))
}

fn any_rule() -> impl Strategy<Value = Rule> {
    // Addresses, ports and VLANs of the frames, so that rules match and overlap.
    let address = |network: &'static str, v6: &'static str| {
        prop_oneof![
            4 => Just(None),
            3 => (0..6u8, 20..=32u8).prop_map(move |(last, length)| {
                Some(format!("{network}.{last}/{length}"))
            }),
            1 => (0..6u8).prop_map(move |last| Some(format!("{network}.{last}"))),
            2 => (0..6u8, 60..=128u8).prop_map(move |(last, length)| {
                let middle = u16::from(last.wrapping_mul(37)) | 0x2000;
                Some(format!("2020:2020:2020:{middle:x}:{v6}:{last:x}/{length}", v6 = v6,
                    last = u16::from(last) | 0x2000))
            }),
        ]
    };
    let port = || prop::option::weighted(0.3, 0..4u16);
    let mask = || prop::option::weighted(0.3, prop_oneof![Just(0xfffe), Just(2), Just(0xff)]);
    let protocols = ["tcp", "udp", "icmp", "icmpv6", "47"].map(str::to_owned);
    let protocol = prop::option::weighted(0.4, prop::sample::select(protocols.to_vec()));
    let action = prop_oneof![
        (0..4u16).prop_map(|queue| (Some(queue), None, false)),
        (0..4u16, any::<u32>()).prop_map(|(queue, mark)| (Some(queue), Some(mark), false)),
        any::<u32>().prop_map(|mark| (None, Some(mark), false)),
        Just((None, None, true)),
    ];
    let addresses = (address("10.0.1", "2020:2020:2020"), address("192.168.2", "2020:2020:2020"));
    let ports = ((port(), mask()), (port(), mask()));
    let rest =
        (prop::option::weighted(0.2, 100..103u16), prop::option::weighted(0.2, 0..3u8), 0..3u16);
    (addresses, protocol, ports, rest, action).prop_map(
        |((source, destination), protocol, (from, to), (vlan, wire, priority), action)| {
            let family = |text: &Option<String>| text.as_ref().map(|text| text.contains(':'));
            // Both addresses of one family, or a rule is refused.
            let destination =
                if family(&source) == family(&destination) { destination } else { None };
            let (queue, mark, drop) = action;
            Rule {
                source,
                destination,
                protocol,
                source_port: from.0,
                source_port_mask: from.0.and(from.1),
                destination_port: to.0,
                destination_port_mask: to.0.and(to.1),
                vlan,
                wire,
                priority,
                queue,
                mark,
                drop,
            }
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Add(Rule),
    Remove(prop::sample::Index),
    Packets(Vec<(Spec, u8)>),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn deciding_rule_equals_a_linear_search(
        steps in prop::collection::vec(
            prop_oneof![
                6 => any_rule().prop_map(Step::Add),
                2 => any::<prop::sample::Index>().prop_map(Step::Remove),
                3 => prop::collection::vec((any_spec(), 0..3u8), 0..=64).prop_map(Step::Packets),
            ],
            1..60,
        ),
    ) {
        let mut director = director(Vec::new());
        let mut card = Card::new(&context());
        let mut rules = Vec::<(u32, Rule)>::new();
        let (mut given, mut dropped, mut decided) = (0, 0, std::collections::HashMap::new());
        for step in &steps {
            match step {
                Step::Add(rule) => {
                    match call(&mut director, "add", &serde_json::to_value(rule).unwrap()) {
                        Ok(reply) => {
                            let number = reply["number"].as_u64().unwrap() as u32;
                            prop_assert!(rules.iter().all(|(other, _)| *other != number));
                            rules.push((number, rule.clone()));
                        }
                        // Only rules that exist already are refused here.
                        Err(error) => prop_assert!(error.contains("the same fields"), "{}", error),
                    }
                }
                Step::Remove(which) if !rules.is_empty() => {
                    let (number, _) = rules.swap_remove(which.index(rules.len()));
                    call(&mut director, "remove", &json!({ "number": number })).unwrap();
                    let again = call(&mut director, "remove", &json!({ "number": number }));
                    prop_assert!(again.is_err());
                    decided.remove(&number);
                }
                Step::Remove(_) => {}
                Step::Packets(packets) => {
                    let packets: Vec<_> = packets
                        .iter()
                        .map(|(spec, wire)| Packet((*wire, spec.build())))
                        .collect();
                    let seen = card.run(&mut director, &packets);
                    let mut seen = seen.iter().map(|seen| (seen.number - given, seen))
                        .collect::<std::collections::HashMap<_, _>>();
                    for (place, Packet((wire, data))) in packets.iter().enumerate() {
                        let rule = linear(&rules, data, *wire);
                        if let Some((number, _)) = rule {
                            *decided.entry(*number).or_insert(0) += 1;
                        }
                        let rule = rule.map(|(_, rule)| rule.clone()).unwrap_or_default();
                        if rule.drop {
                            dropped += 1;
                            prop_assert!(!seen.contains_key(&place));
                            continue;
                        }
                        let seen = seen.remove(&place).unwrap();
                        prop_assert_eq!(seen.door, rule.queue.map_or(Door::Next, Door::Queue));
                        prop_assert_eq!(seen.mark, rule.mark.unwrap_or(0));
                        prop_assert_eq!(&seen.data, data);
                    }
                    given += packets.len();
                }
            }
        }
        prop_assert_eq!(card.dropped(DropReason::Filtered), dropped);
        // The list has exactly the existing rules, in the given words or equivalent ones.
        let listed = call(&mut director, "list", &json!({})).unwrap();
        let listed = listed["rules"].as_array().unwrap();
        prop_assert_eq!(listed.len(), rules.len());
        rules.sort_by_key(|(number, _)| *number);
        for ((number, rule), listed) in rules.iter().zip(listed) {
            prop_assert_eq!(listed["number"].as_u64(), Some(u64::from(*number)));
            prop_assert_eq!(listed["packets"].as_u64(), Some(*decided.get(number).unwrap_or(&0)));
            let again: Rule = serde_json::from_value(listed["rule"].clone()).unwrap();
            prop_assert_eq!((again.queue, again.mark, again.drop), (rule.queue, rule.mark, rule.drop));
            prop_assert!(again.protocol == rule.protocol
                || again.protocol == Some("gre".into()) && rule.protocol == Some("47".into()));
            // It matches the same packets: as a separate rule, it equals the existing one.
            let error = call(&mut director, "add", &listed["rule"]).unwrap_err();
            let expected = format!("rule {number} has the same fields");
            prop_assert!(error.starts_with(&expected), "{}", error);
        }
    }
}

fn exact(flow: u32) -> Rule {
    let [_, a, b, c] = flow.to_be_bytes();
    Rule {
        source: Some(format!("10.{a}.{b}.{c}")),
        destination: Some("192.168.2.2".into()),
        protocol: Some("tcp".into()),
        source_port: Some(1000),
        destination_port: Some(80),
        queue: Some((flow % 4) as u16),
        ..Rule::default()
    }
}

fn frame(flow: u32) -> Vec<u8> {
    let mut frame = Spec::plain(Network::V4, Upper::Tcp).build();
    frame[26..30].copy_from_slice(&(flow | 10 << 24).to_be_bytes());
    frame
}

#[test]
fn thousands_of_rules_are_found_removed_and_missing() {
    const RULES: u32 = 8192;
    let mut director = director((0..RULES).map(exact).collect());
    let mut card = Card::new(&context());
    let mut check = |director: &mut FlowDirector, is_there: &dyn Fn(u32) -> bool| {
        for first in (0..RULES).step_by(64) {
            let frames = (first..first + 64).map(frame);
            let seen = card.run(director, &from_wire_0(frames));
            for packet in seen {
                let flow = first + packet.number as u32 % 64;
                let door = if is_there(flow) { Door::Queue((flow % 4) as u16) } else { Door::Next };
                assert_eq!(packet.door, door, "flow {flow}");
            }
        }
    };
    check(&mut director, &|_| true);
    let full = call(&mut director, "add", &serde_json::to_value(exact(RULES)).unwrap());
    assert_eq!(full.unwrap_err(), "found more rules than `capacity` allows: 8192");
    // Two of three, in an order of their own; rule n is flow n - 1.
    let gone = |flow: u32| !flow.is_multiple_of(3);
    for index in 0..RULES {
        let flow = index.wrapping_mul(2741) % RULES;
        if gone(flow) {
            call(&mut director, "remove", &json!({ "number": flow + 1 })).unwrap();
        }
    }
    check(&mut director, &|flow| !gone(flow));
    // A page at a time gives all of them, each once.
    let (mut first, mut numbers) = (1, Vec::new());
    loop {
        let page = call(&mut director, "list", &json!({ "first": first, "most": 1000 })).unwrap();
        let rules = page["rules"].as_array().unwrap();
        numbers.extend(rules.iter().map(|rule| rule["number"].as_u64().unwrap() as u32));
        let Some(next) = page["next"].as_u64() else { break };
        first = next;
    }
    assert_eq!(
        numbers,
        (0..RULES).filter(|&flow| !gone(flow)).map(|flow| flow + 1).collect::<Vec<_>>()
    );
    // All at once.
    let replaced = call(&mut director, "replace", &json!({ "rules": [], "capacity": 16 })).unwrap();
    assert_eq!(replaced, json!({ "rules": 0, "replaced": numbers.len() }));
    check(&mut director, &|_| false);
    let counters = director.counters();
    assert_eq!(counters.matched.get() + counters.unmatched.get(), 3 * u64::from(RULES));
}

#[test]
fn excess_masks_are_refused_and_freed_masks_reused() {
    let mut director = director(Vec::new());
    let rule = |length: usize| json!({ "source": format!("2001:db8::/{length}"), "queue": 0 });
    for length in 1..=MAX_MASKS {
        call(&mut director, "add", &rule(length)).unwrap();
    }
    let error = call(&mut director, "add", &rule(100)).unwrap_err();
    assert_eq!(error, "found one combination of fields and prefix lengths more, allowed: 64");
    call(&mut director, "remove", &json!({ "number": 7 })).unwrap();
    call(&mut director, "add", &rule(100)).unwrap();
    assert_eq!(call(&mut director, "get", &json!({})).unwrap()["masks"], 64);
}

#[test]
fn wrong_rules_name_the_field() {
    let rule = |rule: &str| refusal(&format!("function = \"flow-director\"\nrules = [{{{rule}}}]"));
    for (text, expected) in [
        ("queue = 4", "rules[0].queue: found queue 4, allowed: 0 to 3"),
        (
            "mark = 1, drop = true",
            "rules[0].drop: found together with a queue or a mark, allowed: one",
        ),
        ("vlan = 1", "rules[0].queue: missing, expected a queue, a mark or drop = true"),
        ("vlan = 4096, queue = 1", "rules[0].vlan: found 4096, allowed: 0 to 4095"),
        ("wire = 2, queue = 1", "rules[0].wire: found 2, allowed: 0 to 1"),
        (
            "source = \"10.0.0.0/33\", queue = 1",
            "rules[0].source: found \"10.0.0.0/33\", allowed: ",
        ),
        (
            "source = \"10.0.0.1\", destination = \"::1\", queue = 1",
            "rules[0].destination: found \"::1\", allowed: an address of the same family as `source`",
        ),
        ("protocol = \"0\", queue = 1", "rules[0].protocol: found \"0\", allowed: tcp, udp"),
        (
            "source_port_mask = 1, queue = 1",
            "rules[0].source_port_mask: found 1, allowed: a mask together with its port",
        ),
    ] {
        let error = rule(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    let twice = "function = \"flow-director\"\nrules = [{ vlan = 1, queue = 1 }, { vlan = 1, drop = true }]";
    assert!(refusal(twice).contains("rule 1 has the same fields"), "{}", refusal(twice));
    assert!(build("function = \"flow-director\"\ncapacity = 0", &context()).is_err());
}

// ---------------------------------------------------------------- learnt flows

/// The same flow the other way.
fn answer(spec: &Spec) -> Vec<u8> {
    let mut data = Spec { ports: (spec.ports.1, spec.ports.0), ..spec.clone() }.build();
    let l3 = 14 + 4 * usize::from(spec.tags);
    let (first, length) = if spec.network == Network::V4 { (12, 4) } else { (8, 16) };
    let (source, destination) = data[l3 + first..l3 + first + 2 * length].split_at_mut(length);
    source.swap_with_slice(destination);
    data
}

/// A card with a learning function in each chain.
struct Learning {
    card: Card,
    rx: Box<dyn Function>,
    tx: Box<dyn Function>,
}

impl Learning {
    fn new(rx: &str) -> Learning {
        let context = context();
        let keys = "function = \"flow-director\"\nlearn = true\nlearn_secs = 5\n";
        let rx = build(&format!("{keys}{rx}"), &context).unwrap();
        let tx = build(keys, &context).unwrap();
        Learning { card: Card::new(&context), rx, tx }
    }

    /// A host answers packets, from these queues.
    fn send(&mut self, packets: &[(Spec, u8)]) {
        self.card.stage = Stage::Tx;
        let frames = from_wire_0(packets.iter().map(|(spec, _)| answer(spec)));
        let seen = self.card.run_with(self.tx.as_mut(), &frames, |place, packet| {
            packet.set_tx_queue(packets[place].1);
        });
        assert!(seen.iter().all(|seen| seen.door == Door::Next), "it goes out as it is");
    }

    fn receive(&mut self, specs: &[Spec]) -> Vec<Door> {
        self.card.stage = Stage::Rx;
        let frames = from_wire_0(specs.iter().map(Spec::build));
        let mut seen = self.card.run(self.rx.as_mut(), &frames);
        seen.sort_by_key(|seen| seen.number);
        seen.iter().map(|seen| seen.door).collect()
    }

    fn counts(&mut self, name: &str, rx: bool) -> Value {
        let function = if rx { &mut self.rx } else { &mut self.tx };
        call(function.as_mut(), "get", &json!({})).unwrap()[name].clone()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// TCP flows go to the queue that last sent a packet; others continue.
    #[test]
    fn flows_follow_the_queue_that_sends_them(
        sent in prop::collection::vec((any_spec(), 0..4_u8), 0..64),
        received in prop::collection::vec(any_spec(), 0..64),
    ) {
        let mut bed = Learning::new("");
        let is_tcp = |spec: &Spec| {
            spec.upper == Upper::Tcp && matches!(spec.network, Network::V4 | Network::V6)
        };
        let sent: Vec<_> = sent.into_iter().filter(|(spec, _)| is_tcp(spec)).collect();
        bed.send(&sent);
        let received: Vec<_> =
            received.into_iter().chain(sent.iter().map(|(spec, _)| spec.clone())).take(64).collect();
        for (spec, door) in received.iter().zip(bed.receive(&received)) {
            // Tags are no part of a flow.
            let last = sent.iter().rev().find(|(other, _)| other.flow() == spec.flow());
            let expected = match last {
                Some((_, queue)) if is_tcp(spec) => Door::Queue((*queue).into()),
                _ => Door::Next,
            };
            prop_assert_eq!(door, expected);
        }
    }
}

#[test]
fn rules_precede_learnt_flows_which_age_and_move() {
    let mut bed =
        Learning::new("rules = [{ protocol = \"tcp\", destination_port = 22, queue = 3 }]");
    let flow = |port| Spec { ports: (port, 80), ..Spec::plain(Network::V6, Upper::Tcp) };
    let ruled = Spec { ports: (9, 22), ..flow(0) };
    bed.send(&[(flow(1), 1), (flow(2), 2), (ruled.clone(), 0)]);
    let three = [flow(1), flow(2), ruled];
    assert_eq!(bed.receive(&three), [Door::Queue(1), Door::Queue(2), Door::Queue(3)]);
    bed.card.now = Time::from_nanos(3_000_000_000);
    bed.send(&[(flow(1), 2)]);
    assert_eq!(bed.receive(&three[..1]), [Door::Queue(2)]);
    assert_eq!(
        (bed.counts("learnt_flows", false), bed.counts("moved_flows", false)),
        (3.into(), 1.into())
    );
    // Nothing of the second was sent for more than five seconds.
    bed.card.now = Time::from_nanos(5_000_000_001);
    assert_eq!(bed.receive(&three[..2]), [Door::Queue(2), Door::Next]);
    assert_eq!(bed.counts("followed_packets", true), 4);
    // Another card does not know it.
    assert_eq!(Learning::new("").receive(&three[..1]), [Door::Next]);
    // More flows than there is room for: the newest are known.
    for first in (0..60_000_u16).step_by(64) {
        let burst: Vec<_> = (first..first + 64).map(|port| (flow(port), 1)).collect();
        bed.send(&burst);
    }
    assert!(bed.counts("replaced_flows", false).as_u64().unwrap() > 40_000);
    let newest: Vec<_> = (60_000..60_032).map(flow).collect();
    assert_eq!(bed.receive(&newest), [Door::Queue(1); 32]);
}

#[test]
fn wrong_learn_secs_is_refused() {
    let found = refusal("function = \"flow-director\"\nlearn_secs = 0");
    assert_eq!(found, "card:2: learn_secs: found 0, allowed: 1 to 1000000");
}
