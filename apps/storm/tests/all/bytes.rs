//! Bytes from outside: cut, changed, and made up.

use crate::network::settings;
use picnic_core::time::Time;
use picnic_storm::wire::{LAST_TIMESTAMP, PADDED, parse};
use picnic_storm::{Member, Refusal, Settings, SubmitError};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn pair() -> [Member; 2] {
    [0, 1].map(|me| Member::new(Settings { me, ..settings(2) }).unwrap())
}

/// Packets of each kind, from member 0.
fn packets() -> Vec<Vec<u8>> {
    let [mut sender, mut other] = pair();
    let mut packets = Vec::new();
    let mut lost = Vec::new();
    for text in ["first", "second", ""] {
        other.submit(text.as_bytes()).unwrap();
        sender.submit(text.as_bytes()).unwrap();
        packets.push(transmit(&mut sender).unwrap());
        let packet = transmit(&mut other).unwrap();
        match text {
            "first" => lost = packet,
            _ => sender.receive(Time::ZERO, &packet).unwrap(),
        }
    }
    packets.extend(std::iter::from_fn(|| transmit(&mut sender))); // a request for the first
    sender.receive(Time::ZERO, &lost).unwrap();
    packets.extend(std::iter::from_fn(|| transmit(&mut sender))); // the clock
    let kinds: BTreeSet<u8> = packets.iter().map(|packet| packet[3] & 15).collect();
    assert_eq!(kinds.len(), 3, "data, request and clock");
    packets
}

fn transmit(member: &mut Member) -> Option<Vec<u8>> {
    let mut buffer = [0; 600];
    let (_, length) = member.transmit(Time::ZERO, &mut buffer)?;
    Some(buffer[..length].to_vec())
}

#[test]
fn packets_cut_at_any_byte_are_refused_and_counted() {
    for packet in packets() {
        for length in 0..packet.len() {
            let [_, mut member] = pair();
            let before = member.clone();
            assert!(member.receive(Time::ZERO, &packet[..length]).is_err(), "{length} bytes");
            assert_eq!(member.counts().malformed, 1);
            assert_eq!(hash(&member), hash(&before), "a refused packet changes nothing");
        }
        let mut padded = packet.clone();
        padded.push(0);
        let is_short = padded.len() <= PADDED;
        assert_eq!(pair()[1].receive(Time::ZERO, &padded).is_ok(), is_short);
    }
}

fn hash(member: &Member) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    member.hash(&mut hasher);
    hasher.finish()
}

/// Overwrites eight bytes.
fn with(packet: &[u8], at: usize, number: u64) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at..at + 8].copy_from_slice(&number.to_le_bytes());
    packet
}

#[test]
fn numbers_out_of_range_are_refused() {
    let data = &packets()[0];
    let (clock, last, edge, position) = (20, 28, 44, 60);
    let far = [
        with(data, clock, LAST_TIMESTAMP),
        with(data, clock, u64::MAX),
        with(data, last, LAST_TIMESTAMP),
        with(data, clock, (1 << 40) + 1),
        with(data, last, 257),
        with(data, edge, 257),
        with(data, edge + 8, u64::MAX),
    ];
    for (case, packet) in far.iter().enumerate() {
        let [_, mut member] = pair();
        let _ = member.receive(Time::ZERO, packet);
        let counts = member.counts();
        assert_eq!((counts.out_of_range, counts.malformed), (1, 0), "case {case}");
        assert_eq!(member.deliver(), None);
    }
    let mut member = pair()[1].clone();
    let refusal = member.receive(Time::ZERO, &with(data, clock, (1 << 40) + 1));
    assert_eq!(refusal, Err(Refusal::Ahead));
    let impossible = [
        with(data, last, 0),               // messages past the end of the stream
        with(data, clock, 0),              // messages later than the clock
        with(data, 36, 9),                 // more delivered than the clock allows
        with(data, position + 8, 1 << 61), // a timestamp later than the clock
    ];
    for (case, packet) in impossible.iter().enumerate() {
        let [_, mut member] = pair();
        assert!(member.receive(Time::ZERO, packet).is_err(), "case {case}");
        assert_eq!(member.counts().malformed, 1, "case {case}");
    }
}

#[test]
fn packets_of_other_views_are_refused_and_counted() {
    let data = &packets()[0];
    for (view, refusal) in [(0_u32, Refusal::OldView), (2, Refusal::FutureView)] {
        let [_, mut member] = pair();
        let mut packet = data.clone();
        packet[8..12].copy_from_slice(&view.to_le_bytes());
        assert_eq!(member.receive(Time::ZERO, &packet), Err(refusal));
        let counts = member.counts();
        let expected = (u64::from(view == 0), u64::from(view == 2));
        assert_eq!((counts.old_view, counts.future_view), expected);
        assert_eq!(member.deliver(), None);
        assert_eq!(member.receive(Time::ZERO, data), Ok(()), "the group goes on");
    }
}

#[test]
fn payloads_that_are_too_long_are_refused_and_change_nothing() {
    let [mut member, _] = pair();
    let before = hash(&member);
    let too_long = SubmitError::TooLong { found: 201, allowed: 200 };
    assert_eq!(member.submit(&[0; 201]), Err(too_long));
    assert_eq!(hash(&member), before);
    assert!(member.submit(&[0; 200]).is_ok());
}

proptest! {
    #[test]
    fn any_bytes_are_taken_or_refused_without_panic(
        which in 0usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        times in 1usize..4,
    ) {
        let packets = packets();
        let mut packet = packets[which % packets.len()].clone();
        for (at, byte) in changes {
            let at = at.index(packet.len());
            packet[at] = byte;
        }
        let [_, mut member] = pair();
        let mut buffer = [0; 600];
        for _ in 0..times {
            let _ = member.receive(Time::ZERO, &packet);
            while member.deliver().is_some() {}
            for now in [Time::ZERO, Time::from_nanos(1 << 40)] {
                for _ in 0..20 {
                    let Some((_, length)) = member.transmit(now, &mut buffer) else { break };
                    let settings = member.settings();
                    prop_assert!(parse(&buffer[..length], settings.group, settings.digest(), 2).is_ok());
                }
            }
        }
    }

    /// A group forms while every packet arrives once more with changed bytes.
    #[test]
    fn changed_membership_packets_are_taken_or_refused_without_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..200),
    ) {
        let fast = Settings { suspect_after_ns: 1_000_000, incarnation: 1, ..settings(3) };
        let mut group = [0, 1, 2].map(|me| Member::new(Settings { me, ..fast.clone() }).unwrap());
        let (mut buffer, mut changes) = ([0; 600], changes.into_iter());
        for round in 0..60 {
            let now = Time::from_nanos(round * 200_000);
            for from in 0..3 {
                let mut sent = 0;
                while let Some((_, length)) = group[from].transmit(now, &mut buffer) {
                    sent += 1;
                    prop_assert!(sent < 100, "a member does not stop sending");
                    let mut changed = buffer[..length].to_vec();
                    if let Some((at, byte)) = changes.next() {
                        let at = at.index(length);
                        changed[at] = byte;
                    }
                    for receiver in (0..3).filter(|receiver| *receiver != from) {
                        let _ = group[receiver].receive(now, &buffer[..length]);
                        let _ = group[receiver].receive(now, &changed);
                    }
                }
                let _ = group[from].submit(b"text");
                while group[from].deliver().is_some() {}
            }
        }
    }

    #[test]
    fn random_bytes_are_no_packet(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(parse(&bytes, 0, settings(2).digest(), 2).is_err());
    }
}
