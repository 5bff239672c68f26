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

mod doors;

use super::gate::{Gate, GateState};
use super::spsc::{Consumer, Producer, channel};
use crate::doorbell::Doorbell;
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
