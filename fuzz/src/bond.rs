//! `bond` in both chains of a card, with wires that go down and return: each packet leaves on a
//! wire in use, and a TCP segment leaves at most once.
//!
//! The bytes choose the keys of both functions, then events: packets received and sent, time
//! passing, wires changing. There are few stations, so addresses move, flows meet and segments
//! arrive in any order.

use crate::components::put;
use crate::frames;
use arbitrary::{Result, Unstructured};
use picnic_core::config::{KeyHelp, Section};
use picnic_core::direction::Direction;
use picnic_core::function::Function;
use picnic_core::registry::{BuildContext, Entry};
use picnic_core::time::Time;
use picnic_engine::trial::{Fate, Released, Trial};
use picnic_functions::registry::FUNCTIONS;

const WIRES: u8 = 3;
/// Events per input.
const EVENTS: usize = 96;
/// Offset of a frame's source address.
const SOURCE: usize = 6;
const MAC_LENGTH: usize = 6;

/// Keys and events from the bytes.
pub fn run(data: &[u8]) {
    let _ = play(&mut Unstructured::new(data));
}

fn entry() -> &'static Entry<Box<dyn Function>> {
    FUNCTIONS.iter().find(|entry| entry.name == "bond").expect("bond is in the list")
}

/// A bond with keys from the bytes; without keys if those do not fit.
fn build(
    u: &mut Unstructured<'_>,
    mode: &str,
    keys: &[KeyHelp],
    context: &BuildContext,
) -> Result<Box<dyn Function>> {
    let begin = format!("function = \"bond\"\nmode = \"{mode}\"\n");
    let build = |keys: &str| {
        let section = Section::from_text("function", &format!("{begin}{keys}")).ok()?;
        entry().build(&section, context).ok()
    };
    let mut chosen = String::new();
    put(&mut chosen, u, keys)?;
    Ok(build(&chosen).or_else(|| build("")).expect("a bond without keys builds"))
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let context =
        BuildContext { wires: WIRES, buffer_size: 256, buffers: 1024, ..BuildContext::default() };
    let mode = *u.choose(&["learn", "flow", "queue", "round-robin", "active-backup"])?;
    let keys: Vec<_> = entry().keys().into_iter().filter(|key| key.name != "mode").collect();
    let mut rx = build(u, mode, &keys, &context)?;
    let mut tx = build(u, mode, &keys, &context)?;
    let mut received = Trial::new(&context, Direction::Rx).expect("a small pool");
    let mut sent = Trial::new(&context, Direction::Tx).expect("a small pool");
    let all = frames::all();
    let (mut now, mut up) = (Time::ZERO, [true; WIRES as usize]);
    for _ in 0..EVENTS {
        if u.is_empty() {
            break;
        }
        let (event, wire) = (u.arbitrary::<u8>()?, u.int_in_range(0..=WIRES - 1)?);
        match event % 8 {
            0 => now = now + u64::from(u.arbitrary::<u16>()?) * 1_000_000,
            1 => {
                let is_up = u.arbitrary()?;
                up[usize::from(wire)] = is_up;
                sent.set_wire_up(wire, is_up);
            }
            2..=4 => {
                let frame = frame(u, &all)?;
                let outcomes = received.give(&mut *rx, now, wire, &frame);
                for outcome in outcomes.expect("each packet has one fate") {
                    assert!(outcome.number.is_some(), "a bond makes no packets on rx");
                }
            }
            _ => {
                let frame = frame(u, &all)?;
                let queue = u.arbitrary()?;
                let outcomes = sent
                    .give_known(&mut *tx, now, wire, &frame, |packet| packet.set_tx_queue(queue))
                    .expect("each packet has one fate");
                check(&outcomes, &frame, mode, &up);
            }
        }
        now = now + 1000;
    }
    received.end(&mut *rx).expect("all received packets continue");
    sent.end(&mut *tx).expect("nothing waits to be sent");
    Ok(())
}

/// A frame of any kind between eight stations and a group.
fn frame(u: &mut Unstructured<'_>, all: &[Vec<u8>]) -> Result<Vec<u8>> {
    let mut frame = u.choose(all)?.clone();
    for begin in [0, SOURCE] {
        if let Some(mac) = frame.get_mut(begin..begin + MAC_LENGTH) {
            let station = u.arbitrary::<u8>()? % 9;
            let group = u8::from(station == 8);
            mac.copy_from_slice(&[2 | group, 0, 0, 0, 7, station]);
        }
    }
    // TCP sequence numbers near each other.
    let patches = u.int_in_range(0..=3)?;
    for _ in 0..patches {
        let place = usize::from(u.arbitrary::<u8>()?) % frame.len().max(1);
        if let Some(byte) = frame.get_mut(place) {
            *byte = u.arbitrary()?;
        }
    }
    Ok(frame)
}

/// Checks the fate of one sent packet.
fn check(outcomes: &[Released], frame: &[u8], mode: &str, up: &[bool; WIRES as usize]) {
    let (given, copies): (Vec<_>, Vec<_>) =
        outcomes.iter().partition(|outcome| outcome.number.is_some());
    assert_eq!(given.len(), 1, "a packet leaves once");
    assert!(copies.is_empty() || mode == "learn", "only frames that nobody knows are copied");
    let mut wires = [0; WIRES as usize];
    for outcome in outcomes {
        assert_eq!(outcome.fate, Fate::Next, "a bond drops nothing that is sent");
        assert_eq!(outcome.data, frame, "a bond changes no byte");
        wires[usize::from(outcome.wire)] += 1;
    }
    assert!(wires.iter().all(|&count| count <= 1), "a wire has one copy: {wires:?}");
    if !up.contains(&true) {
        assert_eq!(outcomes.len(), 1, "with no wire up nothing is copied");
    } else if !copies.is_empty() {
        // A wire that returned may not be in use yet.
        assert!(wires.iter().zip(up).all(|(&count, &is_up)| is_up || count == 0));
    }
}

/// Each mode, with packets in both directions and a wire that goes down.
pub fn seeds() -> Vec<Vec<u8>> {
    (0..5_u8)
        .map(|mode| {
            let mut seed = vec![mode.wrapping_mul(52)];
            seed.extend([0; 24]);
            for round in 0..24_u8 {
                seed.extend([2 + round % 5, round % 3, round, round % 9, (round + 1) % 9, 0, 0]);
                if round % 8 == 7 {
                    seed.extend([1, round % 3, 0]);
                }
            }
            seed
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_and_a_thousand_others_hold() {
        super::seeds().iter().for_each(|seed| super::run(seed));
        let mut state = 1_u64;
        for length in 0..1000 {
            let bytes = (0..length).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            });
            super::run(&bytes.collect::<Vec<_>>());
        }
    }
}
