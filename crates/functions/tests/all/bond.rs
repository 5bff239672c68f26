//! `bond`: the wire of departure of a packet, and learnt addresses.

use crate::common::frames::{Network, Spec, Upper};
use crate::common::{Card, Door, Packet, Seen, build, refusal};
use picnic_core::function::Function;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::packet::desc::Descriptor;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_functions::registry::FUNCTIONS;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::HashMap;

const BROADCAST: u8 = 0xff;

/// The card's two functions, with these keys each.
struct Bed {
    card: Card,
    rx: Box<dyn Function>,
    tx: Box<dyn Function>,
    wires: u8,
}

impl Bed {
    fn new(wires: u8, rx: &str, tx: &str) -> Bed {
        let context = BuildContext { wires, ..BuildContext::default() };
        let function =
            |keys: &str| build(&format!("function = \"bond\"\n{keys}"), &context).unwrap();
        Bed { card: Card::new(&context), rx: function(rx), tx: function(tx), wires }
    }

    /// A frame from a station comes in; whether it is handed up.
    fn receive(&mut self, wire: u8, frame: Vec<u8>) -> bool {
        self.card.stage = Stage::Rx;
        let seen = self.card.run(self.rx.as_mut(), &[Packet((wire, frame.clone()))]);
        assert!(seen.iter().all(|seen| (seen.door, &seen.data) == (Door::Next, &frame)));
        !seen.is_empty()
    }

    /// The wires on which frames leave, in order of the frames; copies first.
    fn send(&mut self, frames: &[Vec<u8>]) -> Vec<u8> {
        let packets: Vec<_> = frames.iter().map(|frame| Packet((0, frame.clone()))).collect();
        self.send_with(&packets, |_, _| ()).iter().map(|seen| seen.wire).collect()
    }

    fn send_with(
        &mut self,
        packets: &[Packet],
        prepare: impl FnMut(usize, &mut Descriptor),
    ) -> Vec<Seen> {
        self.card.stage = Stage::Tx;
        let seen = self.card.run_with(self.tx.as_mut(), packets, prepare);
        assert!(seen.iter().all(|seen| seen.door == Door::Next && seen.wire < self.wires));
        seen
    }

    fn call(&mut self, command: &str, rx: bool) -> Value {
        let entry = FUNCTIONS.iter().find(|entry| entry.name == "bond").unwrap();
        let command = entry.commands.iter().find(|entry| entry.name == command).unwrap();
        let mut order = command.prepare(&json!({}), &BuildContext::default()).unwrap();
        let function = if rx { &mut self.rx } else { &mut self.tx };
        assert!(function.obey(&mut order, self.card.now));
        command.reply(order).unwrap()
    }

    fn count(&mut self, name: &str, rx: bool) -> u64 {
        self.call("get", rx)[name].as_u64().unwrap()
    }
}

fn station(number: u8) -> [u8; 6] {
    if number == BROADCAST { [0xff; 6] } else { [2, 0, 0, 0, 7, number] }
}

/// A frame between two stations; the host is station 200.
fn frame(source: u8, destination: u8, port: u16) -> Vec<u8> {
    let spec = Spec { ports: (port, 80), ..Spec::plain(Network::V4, Upper::Tcp) };
    let mut frame = spec.build();
    frame[..6].copy_from_slice(&station(destination));
    frame[6..12].copy_from_slice(&station(source));
    frame
}

fn to(destination: u8) -> [Vec<u8>; 1] {
    [frame(200, destination, 1)]
}

#[derive(Clone, Debug)]
enum Event {
    Receive(u8, u8),
    Send(u8),
    Wait(u64),
    SetUp(u8, bool),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..20_u8, 0..4_u8).prop_map(|(station, wire)| Event::Receive(station, wire)),
        4 => (0..22_u8).prop_map(Event::Send),
        1 => (1..12_u64).prop_map(Event::Wait),
        1 => (0..4_u8, any::<bool>()).prop_map(|(wire, up)| Event::SetUp(wire, up)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Against a plain model: addresses, their age, wires that go down and come back.
    #[test]
    fn answers_leave_on_the_wire_of_the_question(
        events in prop::collection::vec(any_event(), 0..80), floods: bool,
    ) {
        let keys = "age_secs = 10";
        let tx = format!("{keys}\nflood = {floods}\nwire = 2");
        let mut bed = Bed::new(4, keys, &tx);
        let (mut known, mut up, mut now) = (HashMap::new(), [true; 4], 0);
        for event in events {
            match event {
                Event::Receive(source, wire) => {
                    prop_assert!(bed.receive(wire, frame(source, 200, 1)));
                    known.insert(source, (wire, now));
                }
                Event::Wait(seconds) => {
                    now += seconds;
                    bed.card.now = Time::from_nanos(now * 1_000_000_000);
                }
                Event::SetUp(wire, is_up) => {
                    up[usize::from(wire)] = is_up;
                    bed.card.set_wire_up(wire, is_up);
                }
                Event::Send(destination) => {
                    let fresh = known.get(&destination).filter(|(_, seen)| now - seen <= 10);
                    let there = fresh.map(|(wire, _)| *wire).filter(|wire| up[usize::from(*wire)]);
                    let mut wires = bed.send(&to(destination));
                    wires.sort_unstable();
                    let in_turn = [2, 3, 0, 1];
                    let other = in_turn.into_iter().find(|&wire| up[usize::from(wire)]);
                    let expected = match (there, floods, other) {
                        (Some(wire), ..) => vec![wire],
                        // With none up it goes where it would, to be dropped there.
                        (None, _, None) => vec![2],
                        (None, false, Some(other)) => vec![other],
                        (None, true, Some(_)) => {
                            (0..4).filter(|&wire| up[usize::from(wire)]).collect()
                        }
                    };
                    prop_assert_eq!(wires, expected);
                }
            }
        }
    }

    /// A flow has one wire, regardless of packets in between; parts follow the weights.
    #[test]
    fn a_flow_keeps_its_wire(ports in prop::collection::vec(0..40_u16, 1..60), down in 0..3_u8) {
        let mut bed = Bed::new(3, "", "mode = \"flow\"");
        let mut wire_of = HashMap::new();
        let frames: Vec<_> = ports.iter().map(|&port| frame(200, 1, port)).collect();
        for (port, wire) in ports.iter().zip(bed.send(&frames)) {
            prop_assert_eq!(*wire_of.entry(*port).or_insert(wire), wire);
        }
        // Flows of a wire that goes down move, no others; and they come back.
        bed.card.set_wire_up(down, false);
        for (port, wire) in ports.iter().zip(bed.send(&frames)) {
            let before = wire_of[port];
            prop_assert!(wire != down && (before == down || before == wire));
        }
        prop_assert_eq!(bed.count("moved_parts", false), 16);
        prop_assert_eq!(bed.count("wires_used", false), 2);
        bed.card.set_wire_up(down, true);
        for (port, wire) in ports.iter().zip(bed.send(&frames)) {
            prop_assert_eq!(wire_of[port], wire);
        }
        prop_assert_eq!(bed.count("moved_parts", false), 32);
    }
}

#[test]
fn groups_and_unknown_addresses_are_flooded() {
    let mut bed = Bed::new(3, "", "");
    assert_eq!(bed.send(&to(BROADCAST)), [1, 2, 0]);
    assert_eq!(bed.send(&to(9)), [1, 2, 0]);
    assert_eq!(bed.card.made_and_consumed(), (4, 0));
    bed.card.set_wire_up(1, false);
    assert_eq!(bed.send(&to(BROADCAST)), [2, 0]);
    assert_eq!((bed.count("flooded", false), bed.count("copies", false)), (3, 5));
    // A copy is the card's own: its tx queue has sent one.
    let seen = bed.send_with(&[Packet((0, to(9)[0].clone()))], |_, packet| packet.set_tx_queue(3));
    assert_eq!(seen.iter().map(|seen| seen.tx_queue).collect::<Vec<_>>(), [None, Some(3)]);
}

#[test]
fn addresses_are_shown_and_forgotten() {
    let mut bed = Bed::new(2, "", "");
    assert!(bed.receive(1, frame(5, 200, 1)) && bed.receive(0, frame(6, 200, 1)));
    bed.card.now = Time::from_nanos(202_000_000);
    assert!(bed.receive(0, frame(5, 200, 1)));
    let shown = bed.call("addresses", false);
    let expected = json!({ "addresses": [
        { "wire": 0, "mac": "02:00:00:00:07:05", "age_ms": 0 },
        { "wire": 0, "mac": "02:00:00:00:07:06", "age_ms": 201 },
    ]});
    assert_eq!(shown, expected);
    assert_eq!((bed.count("learnt", true), bed.count("moved_addresses", true)), (2, 1));
    assert_eq!(bed.send(&to(5)), [0]);
    assert_eq!(bed.call("clear", false)["addresses"], 2);
    assert_eq!(bed.send(&to(5)), [1, 0]);
    // Impossible source addresses are not learnt.
    let mut odd = frame(5, 200, 1);
    for source in [[0xff; 6], [1, 0, 0, 0, 0, 1], [0; 6]] {
        odd[6..12].copy_from_slice(&source);
        assert!(bed.receive(1, odd.clone()));
    }
    assert_eq!(bed.call("addresses", true)["addresses"], json!([]));
}

#[test]
fn queues_turns_and_backups() {
    let mut bed = Bed::new(3, "", "mode = \"queue\"");
    let packets = vec![Packet((0, to(1)[0].clone())); 7];
    let seen = bed.send_with(&packets, |place, packet| packet.set_tx_queue(place as u8));
    assert_eq!(seen.iter().map(|seen| seen.wire).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);

    let mut bed = Bed::new(3, "", "mode = \"round-robin\"\nweights = [1, 2, 1]");
    let wires = bed.send(&vec![frame(200, 1, 1); 48]);
    let count = |wire| wires.iter().filter(|&&found| found == wire).count();
    assert_eq!([count(0), count(1), count(2)], [12, 24, 12]);
    let changes = wires.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64;
    assert_eq!(bed.count("spread", false), changes, "what may overtake is counted");

    let mut bed = Bed::new(3, "", "mode = \"active-backup\"\nwire = 1\nup_delay_ms = 2");
    assert_eq!(bed.send(&to(1)), [1]);
    bed.card.set_wire_up(1, false);
    assert_eq!(bed.send(&to(1)), [2]);
    bed.card.set_wire_up(1, true);
    assert_eq!(bed.send(&to(1)), [2]);
    bed.card.now = Time::from_nanos(2_000_000);
    assert_eq!(bed.send(&to(1)), [1]);
}

#[test]
fn repeated_group_frames_pass_once() {
    let mut bed = Bed::new(3, "once = true\ndrop_returned = true", "");
    let arp = frame(5, BROADCAST, 1);
    assert!(bed.receive(0, arp.clone()));
    assert!(!bed.receive(1, arp.clone()) && !bed.receive(2, arp.clone()));
    // By the same wire it is another one, and so it is a second later, or to one station.
    assert!(bed.receive(0, arp.clone()));
    assert!(bed.receive(0, frame(5, 200, 1)) && bed.receive(1, frame(5, 200, 1)));
    bed.card.now = Time::from_nanos(1_000_000_000);
    assert!(bed.receive(1, arp));
    // A host's packet returns by another wire of the segment.
    let own = frame(200, BROADCAST, 1);
    assert!(bed.receive(1, own.clone()), "it has not sent yet");
    bed.send(std::slice::from_ref(&own));
    assert!(!bed.receive(2, own));
    assert_eq!((bed.count("duplicates", true), bed.count("returned", true)), (2, 1));
    bed.card.stage = Stage::Rx;
    assert_eq!(bed.card.dropped(DropReason::Filtered), 3);
}

/// A segment of 100 bytes of a flow, number `place` of it.
fn segment(port: u16, place: u32) -> Vec<u8> {
    let mut frame = frame(5, 200, port);
    let header = usize::from(frame[14] & 15) * 4 + 14;
    frame.truncate(header + 20);
    frame[header + 12] = 0x50;
    frame[header + 13] = 0x10;
    frame[header + 4..header + 8]
        .copy_from_slice(&(place.wrapping_mul(100).wrapping_sub(300)).to_be_bytes());
    frame.extend([place as u8; 100]);
    let length = frame.len() as u16 - 14;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame
}

impl Bed {
    /// Segments of one flow arrive, each on a different wire; returns the places of delivered ones.
    fn take_segments(&mut self, places: &[u32]) -> Vec<u32> {
        self.card.stage = Stage::Rx;
        let packets = places.iter().map(|&place| Packet(((place % 3) as u8, segment(7, place))));
        let packets: Vec<_> = packets.collect();
        places_of(&self.card.run(self.rx.as_mut(), &packets))
    }

    fn wait(&mut self, nanos: u64) -> Vec<u32> {
        self.card.now = self.card.now + nanos;
        let due = self.rx.next_deadline().is_some_and(|due| due <= self.card.now);
        if due { places_of(&self.card.flush_due(self.rx.as_mut())) } else { Vec::new() }
    }
}

fn places_of(seen: &[Seen]) -> Vec<u32> {
    seen.iter().map(|seen| u32::from(*seen.data.last().unwrap())).collect()
}

#[test]
fn segment_order_is_restored_within_limits() {
    let mut bed = Bed::new(3, "order_usecs = 20\norder_packets = 3", "");
    assert_eq!(bed.take_segments(&[0, 3, 2]), [0]);
    assert_eq!(bed.take_segments(&[1, 4]), [1, 2, 3, 4], "the gap is filled");
    // Its numbers continue beyond 2^32; earlier packets continue at once.
    assert_eq!(bed.take_segments(&[3, 6]), [3]);
    assert_eq!((bed.wait(19_999), bed.rx.held()), (vec![], 1));
    assert_eq!(bed.wait(1), [6], "no longer than that");
    assert_eq!(bed.take_segments(&[5, 7]), [5, 7]);
    // And no more than the limit.
    assert!(bed.take_segments(&[10, 12, 11]).is_empty());
    assert_eq!(bed.take_segments(&[9]), [9, 10, 11, 12]);
    assert_eq!(bed.take_segments(&[8, 13]), [8, 13]);
    // Other flows and packets that are no TCP do not wait.
    assert!(bed.take_segments(&[15]).is_empty());
    let other = Packet((1, segment(8, 50)));
    assert_eq!(places_of(&bed.card.run(bed.rx.as_mut(), &[other])), [50]);
    assert_eq!(places_of(&bed.card.flush(bed.rx.as_mut())), [15]);
    let counts = ["late", "restored", "given_up"].map(|name| bed.count(name, true));
    assert_eq!(counts, [3, 2, 6]);

    let mut bed = Bed::new(3, "order_usecs = 0", "");
    assert_eq!(bed.take_segments(&[0, 2, 1, 3]), [0, 2, 1, 3], "counted and no more");
    assert_eq!((bed.count("late", true), bed.rx.next_deadline()), (1, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Hosts see no reordering that wires cause within the window.
    #[test]
    fn order_is_restored_within_the_window(
        keys in prop::collection::vec(0..12_u32, 1..120), sizes in prop::collection::vec(1..9_usize, 1..40),
    ) {
        let mut places: Vec<_> = (0..keys.len() as u32).collect();
        places.sort_by_key(|&place| place + keys[place as usize]);
        // The first begins the flow.
        let first = places.iter().position(|&place| place == 0).unwrap();
        places[..=first].rotate_right(1);
        let mut bed = Bed::new(3, "order_usecs = 100", "");
        let (mut seen, mut rest) = (Vec::new(), &places[..]);
        for size in sizes.into_iter().cycle() {
            if rest.is_empty() { break }
            let (now, later) = rest.split_at(size.min(rest.len()));
            seen.extend(bed.take_segments(now));
            rest = later;
        }
        prop_assert!(seen.iter().copied().eq(0..places.len() as u32));
        prop_assert_eq!((bed.rx.held(), bed.count("given_up", true)), (0, 0));
    }

    /// Segments in any order, lost and doubled: none stays, and none is lost here.
    #[test]
    fn segments_never_stay_held(
        places in prop::collection::vec((0..200_u32, 0..40_000_u64), 1..150), most in 1..20_u32,
    ) {
        let mut bed = Bed::new(3, &format!("order_usecs = 20\norder_packets = {most}"), "");
        let mut seen = Vec::new();
        for &(place, wait) in &places {
            seen.extend(bed.wait(wait));
            prop_assert!(bed.rx.held() <= most as usize);
            seen.extend(bed.take_segments(&[place]));
        }
        seen.extend(bed.wait(20_000));
        prop_assert_eq!(bed.rx.held(), 0);
        let mut expected: Vec<_> = places.iter().map(|&(place, _)| place).collect();
        seen.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(seen, expected);
    }
}

#[test]
fn looping_wires_are_blocked_until_quiet() {
    let keys = "break_loops = true\nmode = \"flow\"";
    let mut bed = Bed::new(2, keys, keys);
    let own = frame(200, BROADCAST, 1);
    bed.send(std::slice::from_ref(&own));
    // Two wires of one segment bring it back once each, and no more than twice for each copy.
    for _ in 0..2 {
        assert!(bed.receive(0, own.clone()) && bed.receive(1, own.clone()));
    }
    assert!(!bed.receive(1, own.clone()), "it goes round");
    assert_eq!((bed.count("loops", true), bed.count("wires_blocked", false)), (1, 1));
    assert!(!bed.receive(1, frame(5, 200, 1)), "nothing is taken from there");
    assert!(bed.receive(0, frame(5, 200, 1)));
    let frames: Vec<_> = (0..40).map(|port| frame(200, 1, port)).collect();
    assert!(bed.send(&frames).iter().all(|&wire| wire == 0));
    bed.card.now = Time::from_nanos(9_000_000_000);
    assert!(!bed.receive(1, own.clone()), "it still does");
    bed.card.now = Time::from_nanos(18_999_999_999);
    assert!(bed.send(&frames).iter().all(|&wire| wire == 0));
    bed.card.now = Time::from_nanos(19_000_000_000);
    assert!(bed.send(&frames).contains(&1));
    assert!(bed.receive(1, frame(5, 200, 1)));
    assert_eq!((bed.count("loops", true), bed.count("blocked", true)), (1, 3));
    // Others' broadcasts, and frames sent as often as they come back, are no loop.
    for _ in 0..50 {
        bed.send(std::slice::from_ref(&own));
        assert!(bed.receive(1, own.clone()) && bed.receive(0, frame(5, BROADCAST, 1)));
    }
    assert_eq!(bed.count("loops", true), 1);
}

#[test]
fn blocked_wires_are_freed_without_host_traffic() {
    const FREE_AT: Time = Time::from_nanos(10_000_000_000);
    let keys = "break_loops = true\nmode = \"flow\"";
    let looped = || {
        let mut bed = Bed::new(2, keys, keys);
        let own = frame(200, BROADCAST, 1);
        bed.send(std::slice::from_ref(&own));
        let handed_up = (0..5).filter(|_| bed.receive(1, own.clone())).count();
        assert_eq!(handed_up, 4, "the fifth goes round");
        assert_eq!(bed.count("wires_blocked", true), 1);
        bed
    };
    // A packet comes in from there,
    let mut bed = looped();
    bed.card.now = FREE_AT;
    assert!(bed.receive(1, frame(5, 200, 1)));
    // or no frame: only time can tell.
    let mut bed = looped();
    assert_eq!(bed.rx.next_deadline(), Some(FREE_AT));
    bed.card.now = FREE_AT;
    assert!(bed.card.flush_due(bed.rx.as_mut()).is_empty());
    assert_eq!((bed.count("wires_blocked", true), bed.rx.next_deadline()), (0, None));
    // Removing one from the chain frees none: the other chain's continues.
    let mut bed = looped();
    bed.card.flush(bed.tx.as_mut());
    assert_eq!(bed.count("wires_blocked", true), 1);
}

#[test]
fn single_wire_cards_are_left_alone() {
    let mut bed = Bed::new(1, "", "");
    assert_eq!(bed.send(&to(BROADCAST)), [0]);
    assert_eq!(bed.count("sent", false), 0);
}

#[test]
fn wrong_keys_of_a_bond_are_refused() {
    let refused = |keys: &str, what: &str| {
        let message = refusal(&format!("function = \"bond\"\n{keys}"));
        assert!(message.contains(what), "{keys}: {message}");
    };
    refused("wire = 2", "wire: found 2, allowed: 0 to 1");
    refused("age_secs = 0", "age_secs: found 0, allowed: 1 to 1000000");
    refused("weights = [1, 1]", "weights: found weights, allowed only with mode");
    refused(
        "mode = \"flow\"\nweights = [1]",
        "weights: found 1, allowed: one weight for each of 2",
    );
    refused("mode = \"flow\"\nweights = [0, 0]", "weights: found only weights of zero");
    refused("order_usecs = 10001", "order_usecs: found 10001, allowed: 0 to 10000");
    refused("order_packets = 0", "order_packets: found 0, allowed: 1 to 4096");
    refused("mode = \"lacp\"", "allowed: learn, flow, queue, round-robin, active-backup");
}
