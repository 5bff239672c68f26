//! Loom models of the ring and the gate: every interleaving, bounded preemption.
//!
//! ```text
//! scripts/test loom
//! ```
//!
//! Checked: the ring loses, duplicates and reorders nothing and drops remaining values once; the
//! target never sleeps for ever with packets in its ring; the doorbell rings at most once per sleep
//! and never while the target polls; if it is not masked, or sent for each packet, each one sent is
//! taken, alone or with a pending one; a host that waits for room is notified, also while packets
//! use the same gate. The models marked `should_panic` run a protocol with one step missing, and
//! show that the step is needed and that the model would notice.
//!
//! Bounds: at most six forced preemptions per run (few bugs need more; Musuvathi
//! and Qadeer, 2007), rings of two slots so that every index wraps, and no loop that
//! waits by spinning.

use super::gate::{Gate, GateState};
use super::moderation::{Moderation, ModerationMode};
use super::spsc::{Consumer, Producer, channel};
use crate::doorbell::Doorbell;
use crate::ledger::Ledger;
use crate::out::{Doors, TargetRing};
use crate::packet::desc::Descriptor;
use crate::packet::pool::{Pool, PoolConfig};
use crate::stats::SteerCounters;
use crate::time::Time;
use loom::sync::Notify;
use loom::thread;
use std::mem::ManuallyDrop;
// Not scheduled by loom: bookkeeping of the models themselves.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Runs a model under every schedule with up to six forced preemptions, or `LOOM_MAX_PREEMPTIONS`.
fn explore(body: impl Fn() + Sync + Send + 'static) {
    explore_within(6, body);
}

/// As [`explore`], with another bound.
fn explore_within(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        body();
    });
    // Checks the model itself: two threads that share anything have many schedules.
    let runs = runs.load(Relaxed);
    println!("{runs} schedules");
    assert!(runs > 10, "only {runs} schedules explored");
}

// ---------------------------------------------------------------- the ring

/// A value that counts how often it is dropped.
struct Token {
    number: usize,
    drops: Arc<[AtomicUsize]>,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.drops[self.number].fetch_add(1, Relaxed);
    }
}

fn counters(count: usize) -> Arc<[AtomicUsize]> {
    (0..count).map(|_| AtomicUsize::new(0)).collect()
}

/// Stages `numbers` and publishes once; returns the numbers that the ring took.
fn push_burst(
    producer: &mut Producer<Token>,
    numbers: std::ops::Range<usize>,
    drops: &Arc<[AtomicUsize]>,
) -> Vec<usize> {
    let mut taken = Vec::new();
    for number in numbers {
        match producer.stage(Token { number, drops: drops.clone() }) {
            Ok(()) => taken.push(number),
            // Full: the value is returned.
            Err(token) => assert_eq!(token.number, number),
        }
    }
    assert_eq!(producer.publish(), taken.len());
    taken
}

#[test]
fn ring_keeps_order_and_loses_nothing_over_the_wrap() {
    explore(|| {
        const VALUES: usize = 6;
        let drops = counters(VALUES);
        let (mut producer, mut consumer) = channel::<Token>(2);
        let producing = {
            let drops = drops.clone();
            thread::spawn(move || {
                let mut taken = push_burst(&mut producer, 0..2, &drops);
                taken.extend(push_burst(&mut producer, 2..3, &drops));
                taken.extend(push_burst(&mut producer, 3..6, &drops));
                taken
            })
        };
        let mut received = Vec::new();
        for _ in 0..3 {
            let available = consumer.available();
            if available != 0 {
                assert!(consumer.peek(available - 1).is_some());
            }
            for _ in 0..available {
                received.push(consumer.pop().expect("it was available").number);
            }
            consumer.release();
        }
        let taken = producing.join().unwrap();
        while let Some(token) = consumer.pop() {
            received.push(token.number);
        }
        assert_eq!(received, taken);
        assert!(drops.iter().all(|count| count.load(Relaxed) == 1));
    });
}

#[test]
fn ring_slots_are_reused_only_after_release() {
    // Pops without releasing in between: the producer must not overwrite slots that were popped and
    // not released. Loom's cells fail the model if it does.
    explore(|| {
        let (mut producer, mut consumer) = channel::<usize>(2);
        let producing = thread::spawn(move || {
            let mut taken = 0;
            for number in 0..4 {
                taken += usize::from(producer.push(number).is_ok());
            }
            taken
        });
        let mut popped = 0;
        while popped < 2 && consumer.pop().is_some() {
            popped += 1;
        }
        consumer.release();
        while consumer.pop().is_some() {
            popped += 1;
        }
        let taken = producing.join().unwrap();
        consumer.release();
        while consumer.pop().is_some() {
            popped += 1;
        }
        assert_eq!(popped, taken);
    });
}

#[test]
fn ring_drops_remaining_values_exactly_once() {
    explore(|| {
        let drops = counters(3);
        let (mut producer, mut consumer) = channel::<Token>(2);
        let producing = {
            let drops = drops.clone();
            thread::spawn(move || {
                push_burst(&mut producer, 0..1, &drops);
                // Staged and never published: the producer's drop makes it visible.
                let _ = producer.stage(Token { number: 1, drops: drops.clone() });
                let _ = producer.stage(Token { number: 2, drops: drops.clone() });
            })
        };
        drop(consumer.pop());
        // Not released explicitly, and dropped before or after the producer.
        drop(consumer);
        producing.join().unwrap();
        assert!(drops.iter().all(|count| count.load(Relaxed) == 1));
    });
}

// ---------------------------------------------------------------- the gate

/// State shared by a queue's two sides, and the model's counts.
struct Queue {
    gate: Arc<Gate>,
    bell: Arc<Bell>,
}

/// A doorbell on loom's own park and unpark; it may wake spuriously, as a futex may.
#[derive(Default)]
struct Bell {
    notify: Notify,
    rings: AtomicUsize,
}

impl Doorbell for Bell {
    fn ring(&self) {
        self.rings.fetch_add(1, Relaxed);
        self.notify.notify();
    }
}

impl Queue {
    fn new() -> (Arc<Queue>, Producer<usize>, Consumer<usize>) {
        let (producer, consumer) = channel(2);
        let queue = Queue { gate: Arc::new(Gate::new()), bell: Arc::default() };
        (Arc::new(queue), producer, consumer)
    }
}

/// The target's protocol, or one with a step missing.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    Correct,
    /// Sleeps without checking the ring after arming.
    WithoutRecheck,
    /// Checks the ring, then arms.
    RecheckBeforeArming,
}

/// The target core: polls until `wanted` values have arrived, sleeping in between. Returns the
/// values, how often it armed the gate, and how often it was interrupted.
fn run_target<T>(
    gate: &Gate,
    bell: &Bell,
    consumer: &mut Consumer<T>,
    wanted: usize,
    protocol: Target,
) -> (Vec<T>, usize, usize) {
    let (mut taken, mut arms, mut interrupts) = (Vec::new(), 0, 0);
    loop {
        assert_eq!(gate.state(), GateState::Polling);
        while let Some(value) = consumer.pop() {
            taken.push(value);
        }
        consumer.release();
        if taken.len() >= wanted {
            return (taken, arms, interrupts);
        }
        if protocol == Target::RecheckBeforeArming && consumer.refresh() != 0 {
            continue;
        }
        gate.rearm();
        arms += 1;
        if protocol == Target::Correct && consumer.refresh() != 0 && gate.resume() {
            continue;
        }
        // The ring was empty, or the interrupt is already on its way.
        while !gate.begin() {
            bell.notify.wait();
        }
        interrupts += 1;
    }
}

/// As [`run_target`], with unmasked interrupts: returns the values and the number of interrupts.
fn run_unmasked<T>(
    gate: &Gate,
    bell: &Bell,
    consumer: &mut Consumer<T>,
    wanted: usize,
) -> (Vec<T>, usize) {
    let (mut taken, mut interrupts) = (Vec::new(), 0);
    loop {
        interrupts += usize::from(gate.begin());
        consumer.refresh();
        while let Some(value) = consumer.pop() {
            taken.push(value);
        }
        consumer.release();
        if taken.len() >= wanted {
            return (taken, interrupts);
        }
        if !gate.rest() || (consumer.refresh() != 0 && gate.resume()) {
            continue;
        }
        while !gate.begin() {
            bell.notify.wait();
        }
        interrupts += 1;
    }
}

/// The borrowed core's protocol, or one with a step missing.
#[derive(Clone, Copy, PartialEq)]
enum Card {
    Correct,
    /// Reads the gate without ordering the publish before it.
    WithoutFence,
    /// Reads the gate, then publishes.
    GateBeforePublish,
}

fn gate_model(packets: usize, card: Card, target: Target) {
    explore(move || {
        let (queue, producer, consumer) = Queue::new();
        // A failing model unwinds, and loom's types must not be used meanwhile: the ends of the
        // ring are dropped explicitly, if the model succeeded.
        let (mut producer, mut consumer) =
            (ManuallyDrop::new(producer), ManuallyDrop::new(consumer));
        let other_side = queue.clone();
        let card_core = thread::spawn(move || {
            let Queue { gate, bell } = &*other_side;
            for number in 0..packets {
                producer.stage(number).expect("the ring has room for all");
                let early = card == Card::GateBeforePublish && gate.interrupt();
                producer.publish();
                if card == Card::Correct {
                    Gate::order_publish();
                }
                if early || (card != Card::GateBeforePublish && gate.interrupt()) {
                    bell.ring();
                }
            }
            drop(ManuallyDrop::into_inner(producer));
        });
        let (taken, arms, interrupts) =
            run_target(&queue.gate, &queue.bell, &mut consumer, packets, target);
        card_core.join().unwrap();
        drop(ManuallyDrop::into_inner(consumer));
        assert_eq!(taken, (0..packets).collect::<Vec<_>>());
        // The target ended while polling: no interrupt may have arrived since, so each one rung was
        // taken, and none came without an arm.
        assert_eq!(queue.gate.state(), GateState::Polling);
        assert_eq!(queue.bell.rings.load(Relaxed), interrupts);
        assert!(interrupts <= arms);
    });
}

#[test]
fn gate_loses_no_wakeup() {
    gate_model(2, Card::Correct, Target::Correct);
}

#[test]
#[should_panic(expected = "deadlock")]
fn gate_without_recheck_sleeps_for_ever() {
    gate_model(1, Card::Correct, Target::WithoutRecheck);
}

#[test]
#[should_panic(expected = "deadlock")]
fn gate_with_recheck_before_arming_sleeps_for_ever() {
    gate_model(1, Card::Correct, Target::RecheckBeforeArming);
}

#[test]
#[should_panic(expected = "deadlock")]
fn gate_without_fence_sleeps_for_ever() {
    gate_model(1, Card::WithoutFence, Target::Correct);
}

#[test]
#[should_panic(expected = "deadlock")]
fn gate_looked_at_before_publishing_sleeps_for_ever() {
    gate_model(1, Card::GateBeforePublish, Target::Correct);
}

// ---------------------------------------------------------------- the doors

/// The protocol as in the card: `Doors` with its pool, ring and moderation.
fn doors_model(mode: ModerationMode, unmasked: bool) {
    explore(move || {
        const PACKETS: usize = 2;
        let config = PoolConfig { buffers: 64, buffer_size: 64, headroom: 0 };
        let (pool, _) = Pool::new(&config, 0).unwrap();
        let (producer, mut consumer) = channel::<Descriptor>(2);
        let (gate, bell) = (Arc::new(Gate::new()), Arc::new(Bell::default()));
        let target = TargetRing::new(
            producer,
            gate.clone(),
            bell.clone(),
            Moderation::new(mode),
            Arc::new(SteerCounters::default()),
        );
        let counters = target.counters().clone();
        let mut doors = Doors::new(pool, vec![target], 0, 0, Arc::new(Ledger::new(1)));
        doors.set_unmasked(unmasked);
        let card_core = thread::spawn(move || {
            let mut now = Time::ZERO;
            for number in 0..PACKETS {
                let packet = doors.pool.packet(&[number as u8]).expect("the pool has room");
                doors.steer(packet, 0);
                doors.publish(now);
                now = now + 1000;
            }
            // The engine polls again when a moderated interrupt falls due.
            while let Some(due) = doors.next_deadline() {
                now = now.max(due);
                doors.publish(now);
            }
            doors
        });
        let (taken, arms, mut interrupts) = if unmasked {
            let (taken, interrupts) = run_unmasked(&gate, &bell, &mut consumer, PACKETS);
            (taken, usize::MAX, interrupts)
        } else {
            run_target(&gate, &bell, &mut consumer, PACKETS, Target::Correct)
        };
        let mut doors = card_core.join().unwrap();
        if unmasked {
            // One may have arrived after the last packet; and each one sent was taken.
            interrupts += usize::from(gate.begin());
            interrupts += counters.coalesced.get() as usize;
            if mode == ModerationMode::PerPacket {
                assert_eq!(counters.doorbells.get(), PACKETS as u64);
            }
        }
        let numbers: Vec<_> = taken.iter().map(|packet| packet.data()[0]).collect();
        assert_eq!(numbers, [0, 1]);
        assert_eq!(bell.rings.load(Relaxed), interrupts);
        assert!(interrupts <= arms);
        // All buffers return, so that the pool frees its memory before the next run.
        taken.into_iter().for_each(|packet| doors.pool.free(packet));
        assert_eq!(doors.pool.outstanding(), 0);
    });
}

#[test]
fn doors_lose_no_wakeup_without_moderation() {
    doors_model(ModerationMode::None, false);
}

#[test]
fn doors_lose_no_wakeup_moderated_by_time() {
    doors_model(ModerationMode::Static { usecs: 20, frames: 0 }, false);
}

#[test]
fn doors_lose_no_wakeup_moderated_by_count() {
    doors_model(ModerationMode::Static { usecs: 1000, frames: 2 }, false);
}

#[test]
fn doors_lose_no_wakeup_per_packet() {
    doors_model(ModerationMode::PerPacket, false);
}

#[test]
fn doors_lose_no_wakeup_unmasked() {
    doors_model(ModerationMode::None, true);
}

#[test]
fn doors_lose_no_wakeup_unmasked_per_packet() {
    doors_model(ModerationMode::PerPacket, true);
}

// ---------------------------------------------------------------- transmit completion

/// A host that sends more than its tx ring holds, and a card that notifies it of room; each is
/// woken by the other. `looks_again`: the host checks the ring once more before it sleeps.
fn completion_model(looks_again: bool) {
    explore_within(4, move || {
        const PACKETS: usize = 3;
        let (producer, consumer) = channel::<usize>(2);
        let (mut producer, consumer) = (ManuallyDrop::new(producer), ManuallyDrop::new(consumer));
        let (gate, bell) = (Arc::new(Gate::new()), Arc::new(Bell::default()));
        let (card_gate, card_bell) = (Arc::new(Gate::new()), Arc::new(Bell::default()));
        let starved = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let card_core = {
            let (gate, bell, starved) = (gate.clone(), bell.clone(), starved.clone());
            let (card_gate, card_bell) = (card_gate.clone(), card_bell.clone());
            thread::spawn(move || {
                let (mut consumer, mut taken) = (consumer, 0);
                while taken < PACKETS {
                    let before = taken;
                    consumer.refresh();
                    while consumer.pop().is_some() {
                        taken += 1;
                    }
                    consumer.release();
                    if taken != before {
                        Gate::order_publish();
                        if starved.load(loom::sync::atomic::Ordering::Relaxed) && gate.interrupt() {
                            bell.ring();
                        }
                        continue;
                    }
                    card_gate.rearm();
                    if consumer.refresh() != 0 && card_gate.resume() {
                        continue;
                    }
                    while !card_gate.begin() {
                        card_bell.notify.wait();
                    }
                }
                drop(ManuallyDrop::into_inner(consumer));
            })
        };
        let mut sent = 0;
        while sent < PACKETS {
            // Nothing is received: the target rests, as before each poll of its host.
            gate.rearm();
            let before = sent;
            while sent < PACKETS && producer.has_room(1) {
                producer.stage(sent).expect("there is room");
                sent += 1;
            }
            producer.publish();
            if sent != before {
                Gate::order_publish();
                if card_gate.interrupt() {
                    card_bell.ring();
                }
            }
            let waits = sent < PACKETS;
            starved.store(waits, loom::sync::atomic::Ordering::Relaxed);
            if waits {
                Gate::order_publish();
                if looks_again && producer.has_room(1) {
                    // Its interrupt, if there is one, is taken with this look.
                    if !gate.resume() {
                        gate.begin();
                    }
                    continue;
                }
                while !gate.begin() {
                    bell.notify.wait();
                }
            } else if !gate.resume() {
                gate.begin();
            }
        }
        card_core.join().unwrap();
        drop(ManuallyDrop::into_inner(producer));
    });
}

#[test]
fn host_that_waits_for_room_is_notified() {
    completion_model(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_host_that_does_not_look_again_waits_for_ever() {
    completion_model(false);
}

/// A host that asks for a notification of room while there is none, and a card that stops
/// notifying: the host must then not sleep until it is notified. `looks_again`: it checks the
/// setting once more.
fn told_no_more_model(looks_again: bool) {
    explore_within(4, move || {
        use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
        let (gate, bell) = (Arc::new(Gate::new()), Arc::new(Bell::default()));
        let (tells, starved) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let card_core = {
            let (gate, bell) = (gate.clone(), bell.clone());
            let (tells, starved) = (tells.clone(), starved.clone());
            thread::spawn(move || {
                tells.store(false, Relaxed);
                Gate::order_publish();
                if starved.load(Relaxed) && gate.interrupt() {
                    bell.ring();
                }
            })
        };
        gate.rearm();
        if tells.load(Relaxed) {
            starved.store(true, Relaxed);
            Gate::order_publish();
            if !looks_again || tells.load(Relaxed) {
                while !gate.begin() {
                    bell.notify.wait();
                }
            }
        }
        card_core.join().unwrap();
    });
}

#[test]
fn host_without_notifications_does_not_wait_for_one() {
    told_no_more_model(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn host_that_ignores_notifications_waits_for_ever() {
    told_no_more_model(false);
}

// ---------------------------------------------------------------- both directions

/// The reaction of a host to an interrupt.
#[derive(Clone, Copy, PartialEq)]
enum Host {
    /// Checks for packets and for room to send.
    Correct,
    /// Treats an interrupt with packets as one for packets only.
    SendsAfterEmptyInterrupts,
}

/// A queue that receives while its host waits for room to send: packets and completions use one
/// gate and one doorbell, and one interrupt may be for both. The card's side is [`Doors`].
fn both_directions_model(mode: ModerationMode, at_once: bool, unmasked: bool, host: Host) {
    explore_within(2, move || {
        const RECEIVED: usize = 2;
        const SENT: usize = 3;
        let config = PoolConfig { buffers: 64, buffer_size: 64, headroom: 0 };
        let (pool, _) = Pool::new(&config, 0).unwrap();
        let (target_ring, packets) = channel::<Descriptor>(2);
        let (to_send, sent) = channel::<usize>(2);
        // As in `gate_model`: dropped explicitly, if the model succeeded.
        let (mut packets, mut to_send) = (ManuallyDrop::new(packets), ManuallyDrop::new(to_send));
        let mut sent = ManuallyDrop::new(sent);
        let (gate, bell) = (Arc::new(Gate::new()), Arc::new(Bell::default()));
        let (card_gate, card_bell) = (Arc::new(Gate::new()), Arc::new(Bell::default()));
        let starved = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let target = TargetRing::new(
            target_ring,
            gate.clone(),
            bell.clone(),
            Moderation::new(mode),
            Arc::new(SteerCounters::default()),
        );
        let mut doors =
            ManuallyDrop::new(Doors::new(pool, vec![target], 0, 0, Arc::new(Ledger::new(1))));
        doors.set_unmasked(unmasked);
        let card_core = {
            let (starved, card_gate) = (starved.clone(), card_gate.clone());
            let card_bell = card_bell.clone();
            thread::spawn(move || {
                let (mut now, mut steered, mut taken) = (Time::ZERO, 0, 0);
                loop {
                    now = now + 1000;
                    if steered < RECEIVED {
                        let packet = doors.pool.packet(&[steered as u8]).expect("there is room");
                        doors.steer(packet, 0);
                        steered += 1;
                    }
                    doors.publish(now);
                    let before = taken;
                    sent.refresh();
                    while sent.pop().is_some() {
                        taken += 1;
                    }
                    sent.release();
                    if taken != before {
                        Gate::order_publish();
                        if starved.load(loom::sync::atomic::Ordering::Relaxed) {
                            doors.complete(now, 0, (taken - before) as u32, at_once);
                        }
                        doors.publish(now);
                    } else if let Some(due) = doors.next_deadline() {
                        // The engine polls again when a moderated interrupt falls due.
                        now = now.max(due);
                    } else if taken == SENT && steered == RECEIVED {
                        break;
                    } else if steered == RECEIVED {
                        card_gate.rearm();
                        if sent.refresh() != 0 && card_gate.resume() {
                            continue;
                        }
                        while !card_gate.begin() {
                            card_bell.notify.wait();
                        }
                    }
                }
                drop(ManuallyDrop::into_inner(sent));
                doors
            })
        };
        let (mut received, mut next, mut polling) = (Vec::new(), 0, true);
        while received.len() < RECEIVED || next < SENT {
            polling |= gate.begin();
            let before = received.len();
            if polling {
                packets.refresh();
                while let Some(packet) = packets.pop() {
                    received.push(packet);
                }
                packets.release();
                if received.len() == before {
                    let rests = if unmasked {
                        gate.rest()
                    } else {
                        gate.rearm();
                        true
                    };
                    polling = rests && packets.refresh() != 0 && gate.resume();
                }
            }
            let mut looks_again = false;
            if host == Host::Correct || received.len() == before {
                let first = next;
                while next < SENT && to_send.has_room(1) {
                    to_send.stage(next).expect("there is room");
                    next += 1;
                }
                to_send.publish();
                if next != first {
                    Gate::order_publish();
                    if card_gate.interrupt() {
                        card_bell.ring();
                    }
                }
                let waits = next < SENT;
                starved.store(waits, loom::sync::atomic::Ordering::Relaxed);
                if waits {
                    Gate::order_publish();
                    looks_again = to_send.has_room(1);
                }
            }
            if host != Host::Correct && polling {
                // It rests at once, without checking again whether it can send.
                gate.rearm();
                polling = packets.refresh() != 0 && gate.resume();
            }
            if !polling && !looks_again && (received.len() < RECEIVED || next < SENT) {
                while !gate.begin() {
                    bell.notify.wait();
                }
                polling = true;
            }
        }
        let mut doors = ManuallyDrop::into_inner(card_core.join().unwrap());
        let numbers: Vec<_> = received.iter().map(|packet| packet.data()[0]).collect();
        assert_eq!(numbers, [0, 1]);
        received.into_iter().for_each(|packet| doors.pool.free(packet));
        assert_eq!(doors.pool.outstanding(), 0);
        drop(ManuallyDrop::into_inner(packets));
        drop(ManuallyDrop::into_inner(to_send));
    });
}

#[test]
fn one_gate_announces_packets_and_room() {
    both_directions_model(ModerationMode::None, true, false, Host::Correct);
}

#[test]
fn one_gate_announces_packets_and_room_moderated() {
    let mode = ModerationMode::Static { usecs: 20, frames: 0 };
    both_directions_model(mode, false, false, Host::Correct);
}

#[test]
fn packets_and_room_are_announced_unmasked_per_packet() {
    both_directions_model(ModerationMode::PerPacket, true, true, Host::Correct);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_host_that_takes_an_interrupt_for_packets_alone_waits_for_ever() {
    both_directions_model(ModerationMode::None, true, false, Host::SendsAfterEmptyInterrupts);
}
