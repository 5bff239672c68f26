//! `timestamp`: recognises event messages and adds the time to them; nothing else changes.

use crate::common::frames::{Network, Spec, Upper, any_spec};
use crate::common::{Card, Packet, build, from_wire_0};
use etherparse::{PacketHeaders, TransportHeader};
use picnic_core::command::CommandEntry;
use picnic_core::function::Function;
use picnic_core::packet::desc::ChecksumState;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_functions::timestamp::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

fn timestamp(correct: bool) -> Box<dyn Function> {
    let text = format!("function = \"timestamp\"\ncorrect = {correct}");
    build(&text, &BuildContext::default()).unwrap()
}

fn counts(function: &mut dyn Function) -> Value {
    let get: &CommandEntry = &Timestamp::COMMANDS[0];
    let mut order = get.prepare(&json!({}), &BuildContext::default()).unwrap();
    assert!(function.obey(&mut order, Time::ZERO));
    get.reply(order).unwrap()
}

/// How a message is carried.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Over {
    Ethernet,
    Udp(Network),
}

#[derive(Clone, Debug)]
struct Message {
    over: Over,
    tags: u8,
    options: u8,
    kind: u8,
    version: u8,
    port: u16,
    correction: i64,
    sequence: u16,
    with_checksum: bool,
    /// Bytes after the header: event messages have 10 or 20.
    body: usize,
}

impl Message {
    fn plain(over: Over) -> Message {
        Message {
            over,
            tags: 0,
            options: 0,
            kind: 0,
            version: 2,
            port: 319,
            correction: 5 << 16,
            sequence: 7,
            with_checksum: true,
            body: 10,
        }
    }

    fn ptp(&self) -> Vec<u8> {
        let mut ptp = vec![0x10 | self.kind, 0x10 | self.version];
        ptp.extend((34 + self.body as u16).to_be_bytes());
        ptp.extend([0; 4]);
        ptp.extend(self.correction.to_be_bytes());
        ptp.extend([0, 0, 0, 0, 1, 2, 3, 0xff, 0xfe, 4, 5, 6, 0, 1]);
        ptp.extend(self.sequence.to_be_bytes());
        ptp.extend([0, 0]);
        ptp.extend((0..self.body).map(|byte| byte as u8 ^ 0x5a));
        assert_eq!(ptp.len(), 34 + self.body);
        ptp
    }

    /// The frame, and where the message begins in it.
    fn frame(&self) -> (Vec<u8>, usize) {
        let ptp = self.ptp();
        let Over::Udp(network) = self.over else {
            let spec = Spec { tags: self.tags, ..Spec::plain(Network::Length, Upper::Udp) };
            let mut frame = spec.build();
            let start = frame.len() - 46;
            frame[start - 2..start].copy_from_slice(&[0x88, 0xf7]);
            frame.truncate(start);
            frame.extend(ptp);
            return (frame, start);
        };
        let spec = Spec {
            tags: self.tags,
            options: self.options,
            ports: (319, self.port),
            payload: ptp.len(),
            ..Spec::plain(network, Upper::Udp)
        };
        let mut frame = spec.build();
        let start = frame.len() - ptp.len();
        frame[start..].copy_from_slice(&ptp);
        if self.with_checksum {
            let checksum = right_checksum(&frame).to_be_bytes();
            frame[start - 2..start].copy_from_slice(&checksum);
        }
        (frame, start)
    }

    fn is_event(&self) -> bool {
        let is_there = self.over == Over::Ethernet || self.port == 319;
        is_there && self.version == 2 && self.kind <= 3
    }
}

/// Etherparse's result for the frame's UDP checksum.
fn right_checksum(frame: &[u8]) -> u16 {
    let headers = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let Some(TransportHeader::Udp(udp)) = headers.transport else { panic!("no UDP") };
    match headers.net.unwrap() {
        etherparse::NetHeaders::Ipv4(ip, _) => {
            udp.calc_checksum_ipv4(&ip, headers.payload.slice()).unwrap()
        }
        etherparse::NetHeaders::Ipv6(ip, _) => {
            udp.calc_checksum_ipv6(&ip, headers.payload.slice()).unwrap()
        }
    }
}

fn any_message() -> impl Strategy<Value = Message> {
    let over = prop_oneof![
        Just(Over::Ethernet),
        Just(Over::Udp(Network::V4)),
        Just(Over::Udp(Network::V6))
    ];
    let kind = prop_oneof![6 => 0..4u8, 1 => 4..16u8];
    let version = prop_oneof![8 => Just(2u8), 1 => Just(1u8)];
    let port = prop_oneof![8 => Just(319u16), 1 => Just(320u16)];
    (
        (over, 0..3u8, 0..4u8, kind, version, port),
        (any::<i64>(), any::<u16>(), any::<bool>(), prop_oneof![Just(10usize), Just(20)]),
    )
        .prop_map(|((over, tags, options, kind, version, port), rest)| {
            let (correction, sequence, with_checksum, body) = rest;
            Message {
                over,
                tags,
                options,
                kind,
                version,
                port,
                correction,
                sequence,
                with_checksum,
                body,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn residence_time_is_added_and_nothing_else_changes(
        messages in prop::collection::vec(any_message(), 1..=48),
        others in prop::collection::vec(any_spec(), 0..=16),
        now in 1_000..2_000_000_000u64,
    ) {
        let mut frames: Vec<_> = messages.iter().map(|message| message.frame().0).collect();
        frames.extend(others.iter().map(Spec::build));
        let mut function = timestamp(true);
        let mut card = Card::new(&BuildContext::default());
        card.now = Time::from_nanos(now);
        let seen = card.run(function.as_mut(), &from_wire_0(frames.clone()));
        prop_assert_eq!(seen.len(), frames.len());
        let mut corrected = 0;
        for (place, (packet, frame)) in seen.iter().zip(&frames).enumerate() {
            prop_assert_eq!(packet.number, place);
            let message = messages.get(place).filter(|message| message.is_event());
            let Some(message) = message else {
                prop_assert_eq!(&packet.data, frame);
                continue;
            };
            corrected += 1;
            // A packet of this harness arrived at as many nanoseconds as its number is.
            let added = ((now - place as u64) << 16) as i64;
            let mut expected =
                Message { correction: message.correction.saturating_add(added), ..message.clone() };
            expected.with_checksum = false;
            let (mut expected, start) = expected.frame();
            if message.over != Over::Ethernet && message.with_checksum {
                let checksum = right_checksum(&expected).to_be_bytes();
                expected[start - 2..start].copy_from_slice(&checksum);
            }
            prop_assert_eq!(&packet.data, &expected);
        }
        let counted = counts(function.as_mut());
        prop_assert_eq!(&counted["corrected"], corrected);
        let kinds = ["sync", "delay_req", "pdelay_req", "pdelay_resp"];
        for (kind, name) in kinds.iter().enumerate() {
            let of_kind = |message: &&Message| message.is_event() && message.kind == kind as u8;
            let expected = messages.iter().filter(of_kind).count();
            prop_assert_eq!(&counted[name], expected, "{}", name);
        }
    }
}

#[test]
fn without_correct_times_are_only_shown() {
    let message = Message { kind: 1, ..Message::plain(Over::Udp(Network::V6)) };
    let (frame, _) = message.frame();
    let mut function = timestamp(false);
    let mut card = Card::new(&BuildContext::default());
    card.now = Time::from_nanos(900);
    let seen = card.run(function.as_mut(), &from_wire_0(vec![frame.clone(); 3]));
    assert!(seen.iter().all(|packet| packet.data == frame));
    let expected = json!({
        "sync": 0, "delay_req": 3, "pdelay_req": 0, "pdelay_resp": 0, "corrected": 0,
        "on_card_ns": 900 + 899 + 898, "longest_ns": 900,
        "last_sequence": 7, "last_arrived_ns": 2, "last_seen_ns": 900,
    });
    assert_eq!(counts(function.as_mut()), expected);
}

#[test]
fn future_arrivals_have_no_residence_time() {
    let (frame, _) = Message::plain(Over::Ethernet).frame();
    let mut function = timestamp(true);
    let mut card = Card::new(&BuildContext::default());
    // The card's clock was read before the wire's.
    let seen = card.run_with(function.as_mut(), &from_wire_0(vec![frame.clone()]), |_, packet| {
        packet.set_received_at(Time::from_nanos(50));
    });
    assert_eq!(seen[0].data, frame);
    assert_eq!(counts(function.as_mut())["longest_ns"], 0);
}

#[test]
fn partial_checksums_stay_partial() {
    let message = Message::plain(Over::Udp(Network::V4));
    let (frame, start) = message.frame();
    let mut function = timestamp(true);
    let mut card = Card::new(&BuildContext::default());
    card.now = Time::from_nanos(1000);
    let seen = card.run_with(function.as_mut(), &from_wire_0(vec![frame.clone()]), |_, packet| {
        packet.set_checksum(ChecksumState::Partial);
    });
    assert_eq!(seen[0].data[start - 2..start], frame[start - 2..start]);
    assert_ne!(seen[0].data[start + 8..start + 16], frame[start + 8..start + 16]);
}

#[test]
fn truncated_messages_are_left_alone() {
    for over in [Over::Ethernet, Over::Udp(Network::V4), Over::Udp(Network::V6)] {
        let (frame, start) = Message { body: 0, ..Message::plain(over) }.frame();
        let cut: Vec<_> =
            (0..frame.len()).map(|length| Packet((0, frame[..length].to_vec()))).collect();
        let mut function = timestamp(true);
        for packets in cut.chunks(64) {
            let mut card = Card::new(&BuildContext::default());
            card.now = Time::from_nanos(1 << 30);
            let seen = card.run(function.as_mut(), packets);
            for (packet, given) in seen.iter().zip(packets) {
                assert_eq!(packet.data, given.0.1, "{over:?}, {} of {start}", given.0.1.len());
            }
        }
        assert_eq!(counts(function.as_mut())["corrected"], 0);
    }
}
