//! Loom models of the gate inside [`Doors`]: moderation, room for waiting hosts, and both at once.

use super::{Bell, Target, explore, explore_within, run_target, run_unmasked};
use crate::doorbell::Doorbell;
use crate::ledger::Ledger;
use crate::out::{Doors, TargetRing};
use crate::packet::desc::Descriptor;
use crate::packet::pool::{Pool, PoolConfig};
use crate::ring::gate::Gate;
use crate::ring::moderation::{Moderation, ModerationMode};
use crate::ring::spsc::channel;
use crate::stats::SteerCounters;
use crate::time::Time;
use loom::thread;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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
