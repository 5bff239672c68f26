//! Filters compared with a list read from the top, in the plainest way.

use crate::frames;
use crate::frames::{Frame, frame};
use picnic_core::function::Function;
use picnic_core::guard::Guard;
use picnic_core::ledger::{DropReason, Ledger, Stage};
use picnic_core::out::{Doors, Onward, Out};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::time::Time;
use picnic_filter::code::FilterCode;
use picnic_filter::config::Keys;
use picnic_filter::filters::FilterChange;
use picnic_filter::matching::{LONGEST_PATTERN, MOST_VALUES, Tuple};
use picnic_filter::reload::Reloaded;
use picnic_filter::{
    Action, Base, Callback, CallbackVerdict, Direction, Filter, FilterError, FilterId, Filters,
    FiveTuple, Handover, Hidden, Listing, Match, Pattern, Place, PortRange, Predicate, Prefix,
    Protocol, Unreadable,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An rx chain with only filters, and the packets that passed.
struct Card {
    filters: Filters,
    head: Box<dyn Function>,
    doors: Doors,
}

#[derive(Default)]
struct Through(Vec<(Vec<u8>, u32)>);

impl Onward for Through {
    fn carry_on(&mut self, _: Time, _: &mut Burst, _: &mut Doors) {}
}

impl Card {
    fn new() -> Self {
        let filters = Filters::new(4);
        let head = filters.function(Stage::Rx).unwrap();
        let (pool, _) =
            Pool::new(&PoolConfig { buffers: 256, ..PoolConfig::default() }, 0).unwrap();
        Card { filters, head, doors: Doors::new(pool, Vec::new(), 1, 64, Arc::new(Ledger::new(0))) }
    }

    /// The frames that passed, with their marks.
    fn run(&mut self, frames: &[Vec<u8>]) -> Vec<(Vec<u8>, u32)> {
        let mut through = Through::default();
        for frames in frames.chunks(64) {
            let mut burst = Burst::new();
            for frame in frames {
                burst.push(self.doors.pool.packet(frame).unwrap()).unwrap();
            }
            let mut rest = Through::default();
            let mut out = Out::new(Time::ZERO, Stage::Rx, &mut self.doors, &mut rest);
            self.head.process(Time::ZERO, &mut burst, &mut out);
            out.finish();
            for packet in burst.drain() {
                through.0.push((packet.data().to_vec(), packet.mark));
                self.doors.pool.free(packet);
            }
        }
        assert_eq!(self.doors.pool.outstanding(), 0);
        through.0
    }

    fn dropped(&self, reason: DropReason, stage: Stage) -> u64 {
        self.doors.ledger.card.drops.get(reason, stage)
    }
}

/// Program 1 of the paper: a pattern of one byte, on rx and on tx.
#[test]
fn ping_drop_drops_pings_and_nothing_else() {
    const ICMP_PROTOCOL_BYTE: u16 = 23;
    let mut card = Card::new();
    let pattern = Pattern::by_byte(ICMP_PROTOCOL_BYTE, 1, 0x1, &[&[1]]).unwrap();
    let ping_drop = Filter::new("ping-drop", pattern, Action::Drop);
    let rx = card.filters.add(ping_drop.clone()).unwrap();
    let tx = card.filters.add(ping_drop.on(Direction::Tx)).unwrap();
    let ping = Frame { protocol: 1, ..Frame::default() }.bytes();
    let udp = Frame::default().bytes();
    let through = card.run(&[ping.clone(), udp.clone(), ping.clone()]);
    assert_eq!(through, [(udp.clone(), 0)]);
    let listing = card.filters.get(rx).unwrap();
    assert_eq!((listing.packets, listing.bytes), (2, 2 * ping.len() as u64));
    assert_eq!(card.filters.get(tx).unwrap().packets, 0);
    assert_eq!(card.dropped(DropReason::Filtered, Stage::Rx), 2);
    card.filters.remove(rx).unwrap();
    assert_eq!(card.run(std::slice::from_ref(&ping)).len(), 1);
}

#[test]
fn a_pattern_past_the_packets_end_does_not_match_and_is_counted() {
    let mut card = Card::new();
    let udp = Frame::default().bytes();
    let end = udp.len() as u16;
    let add = |card: &Card, base, start, value: &[u8]| {
        let mask = vec![0; value.len()];
        let pattern = Pattern::new(base, start, &mask, &[value]).unwrap();
        card.filters.add(Filter::new("end", pattern, Action::Count)).unwrap()
    };
    let inside = add(&card, Base::Frame, end - 1, &[0]);
    let across = add(&card, Base::Frame, end - 1, &[0, 0]);
    let behind = add(&card, Base::L4, u16::MAX, &[0]);
    let arp = Frame { ether_type: 0x0806, ..Frame::default() }.bytes();
    assert_eq!(card.run(&[udp, arp]).len(), 2);
    let counts = |id| {
        let listing = card.filters.get(id).unwrap();
        (listing.packets, listing.short_packets)
    };
    assert_eq!(counts(inside), (1, 1));
    assert_eq!(counts(across), (0, 2));
    assert_eq!(counts(behind), (0, 2));
}

#[test]
fn packets_are_parsed_for_patterns_past_the_first_header() {
    let mut card = Card::new();
    let ids = [(Base::Frame, 23), (Base::L3, 9)].map(|(base, start)| {
        let pattern = Pattern::new(base, start, &[0xff], &[&[Protocol::UDP.0]]).unwrap();
        card.filters.add(Filter::new("udp", pattern, Action::Count)).unwrap()
    });
    card.run(&[Frame::default().bytes()]);
    assert_eq!(ids.map(|id| card.filters.get(id).unwrap().packets), [1, 1]);
}

#[test]
fn a_pattern_reaches_over_the_segments_of_a_packet() {
    let mut card = Card::new();
    let bytes: Vec<u8> = (0..5000_u16).map(|n| (n % 251) as u8).collect();
    let value = [bytes[2046], bytes[2047], bytes[2048], bytes[2049]];
    let pattern = Pattern::new(Base::Frame, 2046, &[0xff; 4], &[&[9; 4], &value]).unwrap();
    let id = card.filters.add(Filter::new("across", pattern, Action::Drop)).unwrap();
    assert_eq!(card.run(std::slice::from_ref(&bytes)).len(), 0);
    assert_eq!(card.filters.get(id).unwrap().bytes, 5000);
    card.filters.remove(id).unwrap();
    // Up to its end, and no further.
    for (start, counts) in [(4998, (1, 0)), (4999, (0, 1))] {
        let pattern = Pattern::new(Base::Frame, start, &[0xff, 0], &[&[bytes[4998], 0]]).unwrap();
        let id = card.filters.add(Filter::new("end", pattern, Action::Count)).unwrap();
        assert_eq!(card.run(std::slice::from_ref(&bytes)).len(), 1);
        let Listing { packets, short_packets, .. } = card.filters.remove(id).unwrap();
        assert_eq!((packets, short_packets), counts, "{start}");
    }
}

#[test]
fn steer_mark_count_and_accept_act_as_documented() {
    let mut card = Card::new();
    let to_port =
        |port| FiveTuple { destination_ports: PortRange::one(port), ..FiveTuple::default() };
    let filters = &card.filters;
    filters.define_groups(&["first", "second"]).unwrap();
    let add = |group: &str, matching: FiveTuple, action| {
        filters.add(Filter::new("f", matching, action).in_group(group)).unwrap()
    };
    // Added in another order than their places.
    let second = add("second", to_port(1), Action::Drop);
    let steer = add("first", to_port(2), Action::Steer(3));
    let mark = add("first", to_port(1), Action::Mark(7));
    let accept = add("first", to_port(1), Action::Accept);
    let never = add("first", to_port(1), Action::Drop);
    let frame = |port| Frame { ports: (9, port), ..Frame::default() }.bytes();
    let through = card.run(&[frame(1), frame(2), frame(3)]);
    assert_eq!(through, [(frame(3), 0)]);
    let counts = |id| card.filters.get(id).unwrap().packets;
    assert_eq!([mark, accept, never, second, steer].map(counts), [1, 1, 0, 1, 1]);
    // There are no target rings here: steered packets show in the ledger.
    assert_eq!(card.dropped(DropReason::NoSuchQueue, Stage::Steer), 1);
    card.filters.remove(second).unwrap();
    assert_eq!(card.run(&[frame(1)]), [(frame(1), 7)]);
}

#[test]
fn panicking_code_ends_only_its_filter() {
    let mut card = Card::new();
    let calls = Arc::new(AtomicU64::new(0));
    let seen = calls.clone();
    let predicate = Predicate::new(move |packet| {
        seen.fetch_add(1, Ordering::Relaxed);
        assert!(packet.data()[0] != 0xbd, "a frame that the predicate cannot bear");
        packet.data()[0] == 2
    });
    let id = card
        .filters
        .add_with(Filter::new("two", Match::Predicate, Action::Drop), predicate)
        .unwrap();
    let mut number = 0;
    let callback = Callback::new(move |packet| {
        number += 1;
        packet.mark = number;
        // Later filters see the changed packet.
        packet.data_mut()[23] = 1;
        CallbackVerdict::Next
    });
    let filter = Filter::new("number", FiveTuple::default(), Action::Callback);
    let numbering = card.filters.add_with(filter.clone(), callback).unwrap();
    let icmp = FiveTuple { protocol: Some(Protocol::ICMP), ..FiveTuple::default() };
    let pings = card.filters.add(Filter::new("pings", icmp, Action::Count)).unwrap();
    let frame = |first| {
        let mut bytes = Frame::default().bytes();
        bytes[0] = first;
        bytes
    };
    let through = card.run(&[frame(0), frame(2), frame(0)]);
    assert_eq!(through.iter().map(|(_, mark)| *mark).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(card.filters.get(pings).unwrap().packets, 2);
    // A change elsewhere keeps the callback and its state.
    card.filters.remove(pings).unwrap();
    card.filters.set(numbering, filter.with_priority(200)).unwrap();
    assert_eq!(card.run(&[frame(0)])[0].1, 3);

    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let through = card.run(&[frame(0xbd), frame(2)]);
    std::panic::set_hook(quiet);
    assert_eq!(through.len(), 2);
    assert!(card.filters.get(id).unwrap().broken);
    let before = calls.load(Ordering::Relaxed);
    card.run(&[frame(2)]);
    assert_eq!(calls.load(Ordering::Relaxed), before);
}

/// Panics when dropped, as code that panicked may.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn code_that_panicked_is_neither_called_again_nor_dropped() {
    let mut card = Card::new();
    let calls = [0; 2].map(|_| Arc::new(AtomicU64::new(0)));
    let [in_predicate, in_callback] = calls.clone();
    let (first, second) = (Grenade, Grenade);
    let predicate = Predicate::new(move |_| {
        let _kept = &first;
        in_predicate.fetch_add(1, Ordering::Relaxed);
        std::panic::panic_any(Grenade)
    });
    let callback = Callback::new(move |_| {
        let _kept = &second;
        in_callback.fetch_add(1, Ordering::Relaxed);
        std::panic::panic_any(Grenade)
    });
    let judged = Filter::new("judged", Match::Predicate, Action::Drop);
    let called = Filter::new("called", Match::Any, Action::Callback);
    let ids = [
        card.filters.add_with(judged, predicate).unwrap(),
        card.filters.add_with(called, callback).unwrap(),
    ];
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let through = card.run(&[Frame::default().bytes(), Frame::default().bytes()]);
    std::panic::set_hook(quiet);
    assert_eq!(through.len(), 2, "its packets go on");
    assert_eq!(calls.map(|calls| calls.load(Ordering::Relaxed)), [1, 1]);
    assert!(ids.iter().all(|&id| card.filters.get(id).unwrap().broken));
}

#[test]
fn filters_after_a_callback_see_its_changes() {
    let mut card = Card::new();
    let callback = Callback::new(|packet| {
        packet.data_mut()[23] = Protocol::ICMP.0;
        CallbackVerdict::Next
    });
    card.filters.add_with(Filter::new("ping", Match::Any, Action::Callback), callback).unwrap();
    let of = |protocol, action| {
        let tuple = FiveTuple { protocol: Some(protocol), ..FiveTuple::default() };
        card.filters.add(Filter::new("f", tuple, action)).unwrap()
    };
    let (udp, icmp) = (of(Protocol::UDP, Action::Drop), of(Protocol::ICMP, Action::Count));
    assert_eq!(card.run(&[Frame::default().bytes()]).len(), 1);
    assert_eq!([udp, icmp].map(|id| card.filters.get(id).unwrap().packets), [0, 1]);
}

#[test]
fn filters_after_a_callback_see_hidden_parts() {
    let mut card = Card::new();
    let callback = Callback::new(|packet| {
        // A later fragment: the bytes after its header are not ports.
        packet.data_mut()[21] = 1;
        CallbackVerdict::Next
    });
    let cut = Filter::new("cut", FiveTuple::default(), Action::Callback);
    card.filters.add_with(cut, callback).unwrap();
    let port = FiveTuple { destination_ports: PortRange::one(7), ..FiveTuple::default() };
    let rule = card.filters.add(Filter::new("port", port, Action::Drop)).unwrap();
    assert_eq!(card.run(&[Frame::default().bytes()]).len(), 0);
    assert_eq!(card.filters.get(rule).unwrap().unreadable_packets, 1);
}

#[test]
fn impossible_filters_are_refused_with_a_reason() {
    let filters = Filters::new(2);
    let error = |filter: Filter| filters.add(filter).unwrap_err().to_string();
    let any = |action| Filter::new("f", Match::Any, action);
    assert_eq!(error(any(Action::Steer(2))), "queue: found 2, allowed: 0 to 1");
    let steer = any(Action::Steer(1));
    assert_eq!(
        error(steer.clone().on(Direction::Tx)),
        "action: found steer on tx, allowed: steer on rx"
    );
    assert!(error(steer.at(Place::Driver)).starts_with("action: found steer at the driver"));
    let poll = any(Action::Poll);
    assert_eq!(
        error(poll.clone().on(Direction::Tx)),
        "action: found poll on tx, allowed: poll on rx"
    );
    assert!(error(poll.at(Place::Driver)).starts_with("action: found poll at the driver"));
    assert!(error(any(Action::Deliver).at(Place::Driver)).starts_with("handover: found none"));
    assert!(error(any(Action::Callback)).starts_with("callback: found none"));
    let name = Filter { name: "a b".into(), ..any(Action::Drop) };
    assert!(error(name).starts_with("name: found \"a b\", allowed: 1 to 64"));
    let prefix = |text: &str| Some(text.parse::<Prefix>().unwrap());
    let mixed = FiveTuple {
        source: prefix("10.0.0.0/8"),
        destination: prefix("2001:db8::/32"),
        ..FiveTuple::default()
    };
    assert!(error(Filter::new("f", mixed, Action::Drop)).starts_with("destination: found an IPv4"));
    let ports = FiveTuple {
        protocol: Some(Protocol::ICMP),
        source_ports: PortRange::one(1),
        ..FiveTuple::default()
    };
    assert!(error(Filter::new("f", ports, Action::Drop)).starts_with("source_ports: found ports"));
    let once = Callback::new(|_| CallbackVerdict::Next);
    let driver = any(Action::Callback).at(Place::Driver);
    let refused = filters.add_with(driver.clone(), once).unwrap_err().to_string();
    assert!(refused.starts_with("callback: found code for a single core"), "{refused}");
    filters.add_with(driver, Callback::copied(|_| CallbackVerdict::Next)).unwrap();
    assert_eq!(filters.list().len(), 1);
    assert_eq!(filters.remove(FilterId(77)).unwrap_err(), FilterError::NoSuchFilter("77".into()));
    // All or nothing.
    let changes = vec![
        FilterChange::Add(any(Action::Drop), FilterCode::default()),
        FilterChange::Remove(FilterId(77)),
    ];
    filters.apply(changes).unwrap_err();
    assert_eq!(filters.list().len(), 1);
}

/// Takes nothing, and counts its calls.
struct Full {
    offered: Arc<AtomicU64>,
    bursts: Arc<AtomicU64>,
}

impl Handover for Full {
    fn hand_over(&mut self, _: Time, packet: Descriptor) -> Result<(), Descriptor> {
        self.offered.fetch_add(1, Ordering::Relaxed);
        Err(packet)
    }

    fn end_burst(&mut self) {
        self.bursts.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn handovers_learn_of_the_end_of_their_bursts() {
    let mut card = Card::new();
    let (offered, bursts) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let handover = || -> Box<dyn Handover> {
        Box::new(Full { offered: offered.clone(), bursts: bursts.clone() })
    };
    let tcp = FiveTuple { protocol: Some(Protocol::TCP), ..FiveTuple::default() };
    let filter = Filter::new("tcp", tcp, Action::Deliver);
    let refused = card.filters.add_with(filter.clone().at(Place::Driver), handover()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "action: found deliver at the driver, allowed: deliver at place nic"
    );
    card.filters.add_with(filter, handover()).unwrap();
    let udp = Frame::default().bytes();
    let tcp = Frame { protocol: 6, ..Frame::default() }.bytes();
    let told = || (offered.load(Ordering::Relaxed), bursts.load(Ordering::Relaxed));
    card.run(&[udp.clone(), udp.clone()]);
    assert_eq!(told(), (0, 0));
    card.run(&[tcp.clone(), udp.clone(), tcp.clone(), tcp.clone()]);
    assert_eq!(told(), (3, 1));
    card.run(&[tcp]);
    card.run(&[udp]);
    assert_eq!(told(), (4, 2));
    assert_eq!(card.dropped(DropReason::MailboxFull, Stage::Rx), 4);
}

#[test]
fn pattern_values_and_bytes_are_limited() {
    let refused = |mask: &[u8], values: &[&[u8]]| {
        let (key, reason) = Pattern::new(Base::Frame, 0, mask, values).unwrap_err();
        format!("{key}: {reason}")
    };
    let value: &[u8] = &[1];
    assert!(Pattern::new(Base::Frame, 0, &[0xff], &[value; MOST_VALUES]).is_ok());
    assert_eq!(
        refused(&[0xff], &[value; MOST_VALUES + 1]),
        "values: found 257 values, allowed: 1 to 256 values"
    );
    assert_eq!(refused(&[0xff], &[]), "values: found 0 values, allowed: 1 to 256 values");
    let by_byte = |length: usize| {
        let bytes = vec![1; length];
        let pattern = Pattern::by_byte(0, length, u64::MAX, &[&bytes]);
        pattern.map(drop).map_err(|(key, reason)| format!("{key}: {reason}"))
    };
    assert_eq!(by_byte(LONGEST_PATTERN), Ok(()));
    for length in [0, LONGEST_PATTERN + 1, 1000] {
        let message = format!("mask: found {length} bytes, allowed: 1 to 64 bytes");
        assert_eq!(by_byte(length), Err(message));
    }
    let longest = [0xff; LONGEST_PATTERN];
    assert!(Pattern::new(Base::Frame, 0, &longest, &[&longest]).is_ok());
    let longer = [0xff; LONGEST_PATTERN + 1];
    assert_eq!(refused(&longer, &[&longer]), "mask: found 65 bytes, allowed: 1 to 64 bytes");
    assert_eq!(refused(&[], &[]), "mask: found 0 bytes, allowed: 1 to 64 bytes");
    assert_eq!(
        refused(&[0xff, 0xff], &[value]),
        "values: found 1 bytes, allowed: 2, like the mask"
    );
}

#[test]
fn a_reload_keeps_the_counters_of_filters_that_stay() {
    let mut card = Card::new();
    let drop_port = |port| {
        let tuple = FiveTuple { destination_ports: PortRange::one(port), ..FiveTuple::default() };
        Filter::new("rule", tuple, Action::Drop).in_group("rules")
    };
    let other = card.filters.add(Filter::new("other", Match::Any, Action::Count)).unwrap();
    let old: Vec<_> = (1..=100).map(drop_port).collect();
    let done = card.filters.replace(&["rules"], old).unwrap();
    assert_eq!(done, Reloaded { kept: 0, added: 100, removed: 0 });
    let frame = |port| Frame { ports: (9, port), ..Frame::default() }.bytes();
    assert_eq!(card.run(&[frame(7), frame(99), frame(101)]).len(), 1);
    // In another order, one removed, one added.
    let order = |(place, port)| drop_port(port).with_priority(place);
    let new: Vec<_> = (0..).zip((2..=101).rev()).map(order).collect();
    let done = card.filters.replace(&["rules"], new.clone()).unwrap();
    assert_eq!(done, Reloaded { kept: 99, added: 1, removed: 1 });
    let listed = card.filters.list().into_iter().map(|listing| listing.filter);
    assert!(listed.filter(|filter| filter.group == "rules").eq(new));
    assert_eq!(card.run(&[frame(7), frame(1), frame(101)]), [(frame(1), 0)]);
    let counts: BTreeMap<_, _> = card
        .filters
        .list()
        .into_iter()
        .filter_map(|listing| match listing.filter.matching {
            Match::FiveTuple(tuple) => Some((tuple.destination_ports.low(), listing.packets)),
            _ => None,
        })
        .collect();
    assert_eq!(counts.len(), 100);
    assert_eq!([counts[&7], counts[&99], counts[&101]], [2, 1, 1]);
    assert_eq!(card.filters.get(other).unwrap().packets, 6);
    card.filters.replace(&["rules"], Vec::new()).unwrap();
    assert_eq!(card.filters.list().len(), 1);
}

#[test]
fn filters_come_back_as_they_were_written() {
    let filters = Filters::new(4);
    let text = r#"{"name":"web","group":"g","priority":-3,"direction":"rx","place":"driver",
        "action":"mark","mark":7,"protocol":"tcp","source":"10.0.0.0/8",
        "destination_ports":"80-443"}"#;
    let keys: Keys = serde_json::from_str(text).unwrap();
    let id = filters.add(keys.filter().unwrap()).unwrap();
    let shown = serde_json::to_value(filters.get(id).unwrap()).unwrap();
    let mut wanted: serde_json::Value = serde_json::from_str(text).unwrap();
    wanted["id"] = 1.into();
    for key in ["packets", "bytes", "short_packets", "unreadable_packets"] {
        wanted[key] = 0.into();
    }
    wanted["broken"] = false.into();
    assert_eq!(shown, wanted);
}

fn prefix4() -> impl Strategy<Value = Option<Prefix>> {
    let prefix =
        (frames::address(), 0..=32_u8).prop_map(|(address, length)| Prefix::new(address, length));
    prop_oneof![1 => Just(None), 2 => prefix]
}

fn prefix6() -> impl Strategy<Value = Option<Prefix>> {
    let prefix = (frames::address(), 0..=128_u8)
        .prop_map(|(address, length)| Prefix::new(frames::wide(address), length));
    prop_oneof![1 => Just(None), 2 => prefix]
}

fn tuple() -> impl Strategy<Value = FiveTuple> {
    let prefixes = prop_oneof![(prefix4(), prefix4()), (prefix6(), prefix6())];
    let ports = prop_oneof![
        Just(PortRange::ANY),
        (0..6_u16, 0..6_u16).prop_map(|(a, b)| PortRange::new(a.min(b), a.max(b)).unwrap()),
    ];
    let protocol = prop_oneof![Just(None), Just(Some(6)), Just(Some(17)), Just(Some(1))];
    (protocol, prefixes, ports.clone(), ports).prop_map(
        |(protocol, (source, destination), source_ports, destination_ports)| {
            let with_ports = !source_ports.is_any() || !destination_ports.is_any();
            let protocol = protocol.filter(|protocol| !with_ports || *protocol != 1);
            FiveTuple {
                protocol: protocol.map(Protocol),
                source,
                destination,
                source_ports,
                destination_ports,
            }
        },
    )
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let base = prop_oneof![Just(Base::Frame), Just(Base::L3), Just(Base::L4)];
    let values = proptest::collection::vec(proptest::collection::vec(0..4_u8, 2), 1..4);
    (base, 0..70_u16, proptest::collection::vec(0..=255_u8, 2), values).prop_map(
        |(base, start, mask, values)| {
            let values: Vec<_> = values.iter().map(Vec::as_slice).collect();
            Pattern::new(base, start, &mask, &values).unwrap()
        },
    )
}

fn filter() -> impl Strategy<Value = Filter> {
    let matching = prop_oneof![
        8 => tuple().prop_map(Match::FiveTuple),
        2 => pattern().prop_map(Match::Pattern),
        1 => Just(Match::Any),
    ];
    let action = prop_oneof![
        3 => Just(Action::Drop),
        3 => Just(Action::Accept),
        2 => (0..4_u16).prop_map(Action::Steer),
        2 => any::<u32>().prop_map(Action::Mark),
        2 => Just(Action::Count),
        2 => Just(Action::Poll),
    ];
    let unreadable = prop_oneof![2 => Just(Unreadable::Drop), 1 => Just(Unreadable::Accept)];
    (matching, action, 0..3_u8, -1..2_i32, unreadable).prop_map(
        |(matching, action, group, priority, unreadable)| {
            let filter = Filter::new("f", matching, action).with_unreadable(unreadable);
            filter.in_group(format!("g{group}")).with_priority(priority)
        },
    )
}

proptest! {
    #[test]
    fn listings_read_back_as_given(
        filter in filter(), is_tx in any::<bool>(), is_at_the_driver in any::<bool>(),
    ) {
        let direction = if is_tx { Direction::Tx } else { Direction::Rx };
        let place = if is_at_the_driver { Place::Driver } else { Place::Nic };
        let filter = filter.on(direction).at(place);
        let read = Keys::of(&filter).filter().unwrap();
        // A filter that keeps nothing from the host does not need `unreadable`.
        let drops = filter.action == Action::Drop;
        let unreadable = if drops { filter.unreadable } else { Unreadable::default() };
        prop_assert_eq!(read, filter.with_unreadable(unreadable));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(Filter),
    AddMany(Vec<Filter>),
    Set(prop::sample::Index, Filter),
    Remove(prop::sample::Index),
    Run(Vec<Vec<u8>>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => filter().prop_map(Step::Add),
        1 => proptest::collection::vec(filter(), 1..60).prop_map(Step::AddMany),
        2 => (any::<prop::sample::Index>(), filter()).prop_map(|(at, f)| Step::Set(at, f)),
        2 => any::<prop::sample::Index>().prop_map(Step::Remove),
        4 => proptest::collection::vec(frame(), 1..90).prop_map(Step::Run),
    ]
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    On(u32),
    Drop,
    Unreadable,
    Steer,
}

/// The list, read from the top.
#[derive(Default)]
struct Model {
    groups: Vec<String>,
    filters: BTreeMap<FilterId, (Filter, Counts)>,
}

#[derive(Default)]
struct Counts {
    packets: u64,
    short: u64,
    unreadable: u64,
}

impl Model {
    fn group(&mut self, name: &str) -> usize {
        self.groups.iter().position(|group| group == name).unwrap_or_else(|| {
            self.groups.push(name.into());
            self.groups.len() - 1
        })
    }

    fn run(&mut self, frame: &[u8]) -> Fate {
        let layers = layers::parse_slow(frame);
        let tuple = Tuple::of(&layers, frame);
        let groups = &self.groups;
        let rank = |filter: &Filter| groups.iter().position(|group| *group == filter.group);
        let mut order: Vec<_> = self.filters.iter_mut().collect();
        order.sort_by_key(|(id, (filter, ..))| (rank(filter), filter.priority, **id));
        let (mut mark, mut accepted) = (0, None);
        for (_, (filter, counts)) in order {
            if accepted.as_ref() == Some(&filter.group) {
                continue;
            }
            let could_match = match &filter.matching {
                Match::FiveTuple(rule) => {
                    tuple.is_some_and(|tuple| rule.could_match(&tuple) && !rule.matches(&tuple))
                }
                Match::Pattern(pattern) => {
                    let hidden = tuple.map_or(Hidden::Nothing, |tuple| tuple.hidden);
                    pattern.base() == Base::L4 && layers.l4_offset == 0 && hidden != Hidden::Nothing
                        || pattern.base() == Base::L3 && hidden == Hidden::Everything
                }
                _ => false,
            };
            let stops = filter.action == Action::Drop && filter.unreadable == Unreadable::Drop;
            if could_match && stops {
                counts.unreadable += 1;
                return Fate::Unreadable;
            }
            let matches = match &filter.matching {
                Match::Any => true,
                Match::FiveTuple(rule) => tuple.is_some_and(|tuple| rule.matches(&tuple)),
                Match::Pattern(pattern) => {
                    let base = match pattern.base() {
                        Base::Frame => Some(0),
                        Base::L3 => Some(usize::from(layers.l3_offset)).filter(|&at| at != 0),
                        Base::L4 => Some(usize::from(layers.l4_offset)).filter(|&at| at != 0),
                    };
                    let length = pattern.mask().len();
                    let start = base.map(|base| base + usize::from(pattern.start()));
                    match start.and_then(|start| frame.get(start..start + length)) {
                        None => {
                            counts.short += 1;
                            false
                        }
                        Some(bytes) => pattern.values().any(|value| {
                            (0..length).all(|n| bytes[n] & pattern.mask()[n] == value[n])
                        }),
                    }
                }
                Match::Predicate => unreachable!(),
            };
            if !matches {
                continue;
            }
            counts.packets += 1;
            match filter.action {
                Action::Drop => return Fate::Drop,
                Action::Steer(_) => return Fate::Steer,
                Action::Accept => accepted = Some(filter.group.clone()),
                Action::Mark(value) => mark = value,
                Action::Count => {}
                // Past all others.
                Action::Poll => return Fate::On(mark),
                Action::Callback | Action::Deliver | Action::Allocate => unreachable!(),
            }
        }
        Fate::On(mark)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn verdict_equals_the_list_read_from_the_top(
        steps in proptest::collection::vec(step(), 1..16),
    ) {
        let mut card = Card::new();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Add(filter) => {
                    let id = card.filters.add(filter.clone()).unwrap();
                    model.group(&filter.group);
                    model.filters.insert(id, (filter, Counts::default()));
                }
                Step::AddMany(filters) => {
                    let add = |filter: &Filter| FilterChange::Add(filter.clone(), FilterCode::default());
                    let ids = card.filters.apply(filters.iter().map(add).collect()).unwrap();
                    for (id, filter) in ids.into_iter().zip(filters) {
                        model.group(&filter.group);
                        model.filters.insert(id, (filter, Counts::default()));
                    }
                }
                Step::Set(at, filter) if !model.filters.is_empty() => {
                    let id = *model.filters.keys().nth(at.index(model.filters.len())).unwrap();
                    card.filters.set(id, filter.clone()).unwrap();
                    model.group(&filter.group);
                    model.filters.get_mut(&id).unwrap().0 = filter;
                }
                Step::Remove(at) if !model.filters.is_empty() => {
                    let id = *model.filters.keys().nth(at.index(model.filters.len())).unwrap();
                    card.filters.remove(id).unwrap();
                    model.filters.remove(&id);
                }
                Step::Set(..) | Step::Remove(_) => {}
                Step::Run(frames) => {
                    let dropped = |card: &Card| {
                        let reasons = [DropReason::Filtered, DropReason::Unreadable];
                        reasons.map(|reason| card.dropped(reason, Stage::Rx))
                    };
                    let before = dropped(&card);
                    let through = card.run(&frames);
                    let fates: Vec<_> = frames.iter().map(|frame| model.run(frame)).collect();
                    let wanted: Vec<_> = frames
                        .iter()
                        .zip(&fates)
                        .filter_map(|(frame, fate)| match fate {
                            Fate::On(mark) => Some((frame.clone(), *mark)),
                            _ => None,
                        })
                        .collect();
                    prop_assert_eq!(through, wanted);
                    let of = |wanted| fates.iter().filter(|fate| **fate == wanted).count() as u64;
                    let after = dropped(&card);
                    prop_assert_eq!(after[0] - before[0], of(Fate::Drop));
                    prop_assert_eq!(after[1] - before[1], of(Fate::Unreadable));
                    for listing in card.filters.list() {
                        let (filter, counts) = &model.filters[&listing.id];
                        prop_assert_eq!(&listing.filter, filter);
                        let counted =
                            (listing.packets, listing.short_packets, listing.unreadable_packets);
                        prop_assert_eq!(counted, (counts.packets, counts.short, counts.unreadable));
                    }
                }
            }
        }
    }
}
