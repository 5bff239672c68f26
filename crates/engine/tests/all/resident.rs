//! A resident of the borrowed core: alternating turns, and its packets in the ledger.

use crate::common::{Bench, RESIDENT, Wire, by_first_byte, frame, patient};
use picnic_core::command::{Order, Prepared};
use picnic_core::function::Function;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::{Doors, Fate, Out};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::resident::{Attention, Resident, Segment, Turn};
use picnic_core::time::Time;
use picnic_engine::swap::Command;
use std::sync::{Arc, Mutex};

/// The script of a lodger, and its record.
#[derive(Default)]
struct Script {
    /// Times of its turns, and the end of each segment.
    turns: Vec<u64>,
    ends: Vec<u64>,
    /// Segments still to run.
    segments: usize,
    due: Option<Time>,
    packets: Vec<Descriptor>,
    /// A frame to make in the next turn.
    make: Option<Vec<u8>>,
    watched: Option<u64>,
    told: Vec<u32>,
    stops: usize,
    patience_ns: u64,
}

/// An order that the lodger records.
struct Tell(u32);

impl Order for Tell {
    type Target = Lodger;
    fn apply(&mut self, lodger: &mut Lodger, _: Time) -> bool {
        lodger.script.lock().unwrap().told.push(self.0);
        true
    }
}

/// An order for something else.
struct Stray;

impl Order for Stray {
    type Target = Stray;
    fn apply(&mut self, _: &mut Stray, _: Time) -> bool {
        true
    }
}

struct Lodger {
    attention: Arc<Attention>,
    script: Arc<Mutex<Script>>,
}

impl Resident for Lodger {
    fn attention(&self) -> &Arc<Attention> {
        &self.attention
    }

    fn turn(&mut self, now: Time, doors: &mut Doors) -> Turn {
        let mut script = self.script.lock().unwrap();
        script.turns.push(now.as_nanos());
        for packet in script.packets.drain(..) {
            let held = self.attention.held();
            held.set(held.get() - 1);
            doors.consume(packet);
        }
        if let Some(bytes) = script.make.take() {
            let packet = doors.pool.packet(&bytes).unwrap();
            doors.count_made();
            script.watched = doors.transmit_watched(packet, 0).ok();
        }
        if script.segments == 0 {
            return Turn::Idle(script.due);
        }
        script.segments -= 1;
        Turn::Ran(Segment { task: 7, work_ns: 0, model_ns: 10 })
    }

    fn ended(&mut self, now: Time) -> Option<Time> {
        let mut script = self.script.lock().unwrap();
        script.ends.push(now.as_nanos());
        if script.segments != 0 { Some(now) } else { script.due }
    }

    fn patience_ns(&self) -> u64 {
        self.script.lock().unwrap().patience_ns.max(1)
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }

    fn stop(&mut self, _: Time, doors: &mut Doors) {
        let mut script = self.script.lock().unwrap();
        script.stops += 1;
        for packet in script.packets.drain(..) {
            let held = self.attention.held();
            held.set(held.get() - 1);
            doors.drop(packet, DropReason::Stopped, Stage::Task);
        }
        if let Some(number) = script.watched.take() {
            doors.progress[0].forget(number);
        }
    }
}

/// Hands packets whose second byte is 1 to the lodger.
struct HandOver(Arc<Attention>, Arc<Mutex<Script>>);

impl Function for HandOver {
    fn process(&mut self, _: Time, burst: &mut Burst, _: &mut Out<'_>) {
        burst.retain(|packet| {
            if packet.data()[1] != 1 {
                return Some(packet);
            }
            self.1.lock().unwrap().packets.push(packet);
            self.0.held().add(1);
            self.0.raise_here();
            None
        });
    }
}

fn bench() -> (Bench, Arc<Mutex<Script>>, Arc<Attention>) {
    bench_with(Wire::default())
}

fn bench_with(wire: Wire) -> (Bench, Arc<Mutex<Script>>, Arc<Attention>) {
    let (attention, script) = (Arc::<Attention>::default(), Arc::<Mutex<Script>>::default());
    let hand_over = HandOver(attention.clone(), script.clone());
    RESIDENT.set(Some(Box::new(Lodger { attention: attention.clone(), script: script.clone() })));
    let functions: Vec<Box<dyn Function>> = vec![Box::new(hand_over), by_first_byte()];
    let mut bench = Bench::with_wires("[host]\nqueues = 1\n", vec![wire], functions, vec![]);
    // In its first turn it names the time of the next.
    while !bench.turn().is_idle() {}
    script.lock().unwrap().turns.clear();
    (bench, script, attention)
}

#[test]
fn turns_alternate_and_ends_are_the_next_time_read() {
    let (mut bench, script, attention) = bench();
    script.lock().unwrap().segments = 3;
    attention.raise();
    let start = bench.now.as_nanos();
    let mut segments = 0;
    loop {
        let activity = bench.turn();
        assert!(!activity.resident_due || activity.segment.is_none());
        segments += usize::from(activity.segment.is_some());
        if activity.is_idle() {
            break;
        }
    }
    assert_eq!(segments, 3);
    let script = script.lock().unwrap();
    // Packets at 100, the segment at 200, packets and the end of it at 300, and so on.
    let turns: Vec<_> = script.turns.iter().map(|turn| turn - start).collect();
    let ends: Vec<_> = script.ends.iter().map(|end| end - start).collect();
    assert_eq!((turns, ends), (vec![200, 400, 600], vec![300, 500, 700]));
    drop(script);
    bench.end();
}

#[test]
fn packets_wait_for_at_most_one_segment() {
    let (mut bench, script, attention) = bench();
    script.lock().unwrap().segments = 100;
    attention.raise();
    for number in 0..8 {
        bench.wire(0).incoming.push_back(frame(0, 0, number, 60));
        bench.turn();
        bench.turn();
        assert_eq!(bench.look(), 1, "packet {number}");
    }
    bench.end();
}

#[test]
fn no_segment_begins_while_a_wire_gives_whole_bursts_and_patience_lasts() {
    let (mut bench, script, attention) = bench();
    let fill = |bench: &mut Bench, count: usize| {
        for number in 0..count {
            bench.wire(0).incoming.push_back(frame(0, 0, number as u32, 60));
        }
    };
    // Two bursts of 64 and some: the third turn, at 300, takes less than a burst.
    let start = bench.now.as_nanos();
    fill(&mut bench, 150);
    script.lock().unwrap().patience_ns = u64::from(u32::MAX);
    script.lock().unwrap().segments = 1;
    attention.raise();
    let received: Vec<_> = (0..5).map(|_| bench.turn().received).collect();
    assert_eq!(received, [64, 64, 22, 0, 0]);
    assert_eq!(std::mem::take(&mut script.lock().unwrap().turns)[0] - start, 400);
    while !bench.turn().is_idle() {
        bench.look();
    }
    // A flood: patience ends after a while, counted from when the turn was due.
    let due = bench.now.as_nanos() + 100;
    script.lock().unwrap().turns.clear();
    script.lock().unwrap().patience_ns = 1_000;
    script.lock().unwrap().segments = 2;
    attention.raise();
    for _ in 0..40 {
        fill(&mut bench, 64);
        bench.turn();
        bench.look();
        bench.look();
    }
    // A turn, the segment; the packets' turn with its end, and ten more.
    let turns: Vec<_> = script.lock().unwrap().turns.iter().map(|turn| turn - due).collect();
    assert_eq!(turns[..2], [1_100, 2_300]);
    bench.wire(0).incoming.clear();
    while !bench.turn().is_idle() {
        bench.look();
    }
    bench.end();
}

#[test]
fn patient_wires_do_not_delay_segments() {
    for (wire, due) in [(patient(), 1), (Wire::default(), 3)] {
        let (mut bench, script, attention) = bench_with(wire);
        let frames = (0..150).map(|number| frame(0, 0, number, 60));
        bench.wire(0).incoming.extend(frames);
        script.lock().unwrap().patience_ns = u64::from(u32::MAX);
        script.lock().unwrap().segments = 1;
        attention.raise();
        let mut turns = 0;
        while bench.turn().segment.is_none() {
            bench.look();
            turns += 1;
        }
        assert_eq!(turns, due);
        bench.settle();
        bench.end();
    }
}

#[test]
fn idle_residents_get_no_early_turn() {
    let (mut bench, script, attention) = bench();
    let due = bench.now + 1_000;
    script.lock().unwrap().due = Some(due);
    attention.raise();
    while !bench.turn().is_idle() {}
    script.lock().unwrap().turns.clear();
    assert_eq!(bench.card.next_deadline(bench.now), Some(due));
    while bench.now < due {
        let last = bench.now + 100 >= due;
        assert_eq!(bench.turn().resident_due, last);
    }
    assert!(bench.card.next_deadline(bench.now) == Some(bench.now), "its turn is next");
    script.lock().unwrap().due = None;
    bench.turn();
    assert_eq!(script.lock().unwrap().turns, [due.as_nanos() + 100]);
    assert_eq!(bench.card.next_deadline(bench.now), None);
    bench.end();
}

#[test]
fn stopped_residents_get_no_turn() {
    let (mut bench, script, attention) = bench();
    let due = bench.now + 1_000;
    script.lock().unwrap().due = Some(due);
    script.lock().unwrap().segments = 1;
    attention.raise();
    while bench.turn().segment.is_none() {}
    // Its segment has ended, but it does not know yet; and it has raised its hand.
    attention.raise_here();
    script.lock().unwrap().turns.clear();
    bench.card.stop_receiving(bench.now);
    let now = bench.now.as_nanos();
    {
        let script = script.lock().unwrap();
        assert_eq!((script.stops, script.ends.last()), (1, Some(&now)));
    }
    assert_eq!(bench.card.next_deadline(bench.now), None);
    bench.now = due;
    for _ in 0..4 {
        assert!(bench.turn().is_idle());
    }
    assert!(script.lock().unwrap().turns.is_empty());
    bench.end();
    assert_eq!(script.lock().unwrap().ends.len(), 1);
}

#[test]
fn raised_hands_keep_the_card_awake_and_wake_it() {
    let (mut bench, _, attention) = bench();
    assert!(bench.card.arm());
    attention.raise();
    assert_eq!(bench.card_bell.count(), 1, "from wherever it was raised");
    bench.card.disarm();
    attention.raise();
    assert!(!bench.card.arm(), "it was raised while the card was awake");
    bench.end();
}

#[test]
fn packets_held_by_the_resident_are_in_the_ledger() {
    let (mut bench, script, _) = bench();
    for number in 0..6 {
        bench.wire(0).incoming.push_back(frame(0, (number % 2) as u8, number, 60));
    }
    bench.turn();
    assert_eq!(bench.balanced().in_flight, 6);
    script.lock().unwrap().make = Some(frame(0, 0, 9, 60));
    bench.settle();
    let ledger = bench.balanced();
    assert_eq!((ledger.consumed, ledger.delivered, ledger.transmitted), (3, 3, 1));
    assert_eq!(ledger.r#in, 7);
    // And those it has when the card stops.
    bench.wire(0).incoming.push_back(frame(0, 1, 0, 60));
    bench.turn();
    let ledger = bench.end();
    assert_eq!(ledger.drops_by_stage.get("stopped@task"), Some(&1));
    assert_eq!(ledger.unbalanced_bursts, 0);
    assert_eq!(script.lock().unwrap().stops, 2, "at the stop and at the end");
}

#[test]
fn residents_learn_that_their_frame_was_taken() {
    let (mut bench, script, _) = bench();
    bench.wire(0).tx_room = Some(0);
    script.lock().unwrap().make = Some(frame(0, 0, 9, 60));
    bench.controller.send(Command::Resident(Prepared::new(Tell(1)))).ok().unwrap();
    for _ in 0..20 {
        bench.turn();
    }
    let number = script.lock().unwrap().watched.unwrap();
    assert_eq!(bench.card.doors().progress[0].fate(number), Fate::Waiting);
    script.lock().unwrap().turns.clear();
    bench.wire(0).tx_room = Some(1);
    for _ in 0..4 {
        bench.turn();
    }
    assert_eq!(bench.card.doors().progress[0].fate(number), Fate::Sent);
    assert_eq!(script.lock().unwrap().turns.len(), 1, "it was made to look");
    bench.end();
}

#[test]
fn messages_reach_the_resident_and_strays_are_refused() {
    let (mut bench, script, _) = bench();
    bench.controller.send(Command::Resident(Prepared::new(Tell(41)))).ok().unwrap();
    bench.controller.send(Command::Resident(Prepared::new(Stray))).ok().unwrap();
    bench.turn();
    let done: Vec<_> = std::iter::from_fn(|| bench.controller.answer()).map(|it| it.done).collect();
    assert_eq!(done, [true, false]);
    assert_eq!(script.lock().unwrap().told, [41]);
    bench.end();
}

#[test]
fn cards_without_a_resident_refuse_messages() {
    let mut bench = Bench::new("[host]\nqueues = 1\n", 1, vec![by_first_byte()], vec![]);
    bench.controller.send(Command::Resident(Prepared::new(Tell(41)))).ok().unwrap();
    bench.turn();
    assert!(!bench.controller.answer().unwrap().done);
    bench.end();
}

#[test]
fn raised_hands_are_due_at_once() {
    let (mut bench, script, attention) = bench();
    assert_eq!(bench.card.next_deadline(bench.now), None);
    attention.raise_here();
    assert_eq!(bench.card.next_deadline(bench.now), Some(bench.now));
    script.lock().unwrap().segments = 1;
    while bench.turn().segment.is_none() {
        assert_eq!(bench.card.next_deadline(bench.now), Some(bench.now));
    }
    assert_eq!(bench.card.next_deadline(bench.now), Some(bench.now), "its end is to be told");
    while !bench.turn().is_idle() {}
    assert_eq!(bench.card.next_deadline(bench.now), None);
    bench.end();
}
