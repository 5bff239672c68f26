//! The ring against a queue model, and between two threads.

use picnic_core::ring::spsc::{Consumer, Producer, channel};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
enum Op {
    Stage,
    Publish,
    Push,
    HasRoom(usize),
    Occupancy,
    Prefetch(usize),
    Available,
    Refresh,
    Pop,
    Peek(usize),
    Release,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::Stage),
        3 => Just(Op::Publish),
        3 => Just(Op::Push),
        2 => (0..80_usize).prop_map(Op::HasRoom),
        1 => Just(Op::Occupancy),
        1 => (0..200_usize).prop_map(Op::Prefetch),
        2 => Just(Op::Available),
        1 => Just(Op::Refresh),
        8 => Just(Op::Pop),
        2 => (0..80_usize).prop_map(Op::Peek),
        3 => Just(Op::Release),
    ]
}

/// A value whose loss or duplication is noticed: dropped too rarely or twice.
type Value = (u64, Arc<()>);

/// The ring's expected state from outside.
#[derive(Default)]
struct Model {
    staged: VecDeque<u64>,
    visible: VecDeque<u64>,
    /// Popped, but slots not released.
    unreleased: usize,
    /// Visible values known to the consumer.
    known: usize,
}

impl Model {
    fn occupied(&self) -> usize {
        self.staged.len() + self.visible.len() + self.unreleased
    }

    fn publish(&mut self) -> usize {
        let count = self.staged.len();
        self.visible.append(&mut self.staged);
        count
    }

    fn available(&mut self) -> usize {
        if self.known == 0 {
            self.known = self.visible.len();
        }
        self.known
    }
}

fn step(
    op: Op,
    next: &mut u64,
    token: &Arc<()>,
    (producer, consumer): (&mut Producer<Value>, &mut Consumer<Value>),
    model: &mut Model,
) {
    let room = producer.capacity() - model.occupied();
    match op {
        Op::Stage | Op::Push => {
            let number = *next;
            *next += 1;
            let value = (number, token.clone());
            let result =
                if matches!(op, Op::Push) { producer.push(value) } else { producer.stage(value) };
            match result {
                Ok(()) => {
                    assert_ne!(room, 0, "a full ring took a value");
                    model.staged.push_back(number);
                    if matches!(op, Op::Push) {
                        model.publish();
                    }
                }
                Err((back, _)) => {
                    assert_eq!(room, 0, "a ring with room refused a value");
                    assert_eq!(back, number);
                }
            }
        }
        Op::Publish => assert_eq!(producer.publish(), model.publish()),
        Op::HasRoom(count) => assert_eq!(producer.has_room(count), count <= room),
        Op::Occupancy => assert_eq!(producer.occupancy(), model.occupied()),
        Op::Prefetch(count) => producer.prefetch_slots(count),
        Op::Available => assert_eq!(consumer.available(), model.available()),
        Op::Refresh => {
            model.known = model.visible.len();
            assert_eq!(consumer.refresh(), model.known);
        }
        Op::Pop => {
            let expected = if model.available() == 0 { None } else { model.visible.pop_front() };
            if expected.is_some() {
                model.known -= 1;
                model.unreleased += 1;
            }
            assert_eq!(consumer.pop().map(|(number, _)| number), expected);
        }
        Op::Peek(ahead) => {
            let expected = model.visible.get(ahead).filter(|_| ahead < model.known);
            assert_eq!(consumer.peek(ahead).map(|(number, _)| number), expected);
        }
        Op::Release => {
            consumer.release();
            model.unreleased = 0;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn behaves_as_a_queue(
        capacity in 1..=70_usize,
        ops in prop::collection::vec(op(), 0..400),
        producer_goes_first in any::<bool>(),
    ) {
        let token = Arc::new(());
        let (mut producer, mut consumer) = channel::<Value>(capacity);
        prop_assert_eq!(producer.capacity(), capacity.next_power_of_two());
        let (mut model, mut next) = (Model::default(), 0);
        for op in ops {
            step(op, &mut next, &token, (&mut producer, &mut consumer), &mut model);
        }
        let left = model.staged.len() + model.visible.len();
        prop_assert_eq!(Arc::strong_count(&token), 1 + left);
        if producer_goes_first {
            drop(producer);
            // Staged values are published by the producer's drop.
            model.publish();
            let rest: Vec<_> = std::iter::from_fn(|| consumer.pop()).map(|(n, _)| n).collect();
            prop_assert_eq!(rest, Vec::from(model.visible));
        } else {
            drop(consumer);
            drop(producer);
        }
        prop_assert_eq!(Arc::strong_count(&token), 1);
    }
}

#[test]
#[should_panic(expected = "at least one slot")]
fn capacity_zero_is_refused() {
    let _ = channel::<u8>(0);
}

#[test]
fn values_without_size_are_counted() {
    let (mut producer, mut consumer) = channel::<()>(4);
    for _ in 0..4 {
        producer.push(()).unwrap();
    }
    assert_eq!(producer.push(()), Err(()));
    assert_eq!(std::iter::from_fn(|| consumer.pop()).count(), 4);
}

#[test]
fn large_values_arrive_whole() {
    let (mut producer, mut consumer) = channel::<[u64; 37]>(3);
    for round in 0..100 {
        producer.push([round; 37]).unwrap();
        assert_eq!(consumer.pop(), Some([round; 37]));
        consumer.release();
    }
}

/// Fills rings and drops them full: each value has its own slot, wherever the ring is placed.
fn fill<T: Clone>(value: T) {
    for capacity in [1, 4, 64, 300] {
        // An allocation between them moves the next to another place in its line.
        let ring = |space: usize| (channel::<T>(capacity), vec![0_u8; 16 * space]);
        let rings: Vec<_> = (0..20).map(ring).collect();
        for ((mut producer, mut consumer), _) in rings {
            while producer.push(value.clone()).is_ok() {}
            assert_eq!(producer.occupancy(), producer.capacity());
            assert_eq!(consumer.refresh(), producer.capacity());
            let first = std::ptr::from_ref(consumer.peek(0).unwrap()).addr();
            assert_eq!(first % 64, 0, "the first slot begins a line of the cache");
        }
    }
}

#[test]
fn rings_start_at_a_cache_line() {
    fill(1_u8);
    fill(1_u16);
    fill(1_u32);
    fill(1_u64);
    fill(1_u128);
    let token = Arc::new(());
    fill(token.clone());
    fill((1_u64, token.clone()));
    assert_eq!(Arc::strong_count(&token), 1);
}

/// Compiles only if `Consumer<Cell<_>>` is not `Sync`: `peek` through a shared reference
/// would hand the same cell to two threads.
#[test]
fn consumer_is_sync_only_if_values_are() {
    trait AmbiguousIfSync<Marker> {
        fn check() {}
    }
    impl<T: ?Sized> AmbiguousIfSync<()> for T {}
    impl<T: ?Sized + Sync> AmbiguousIfSync<u8> for T {}
    <Consumer<Cell<u32>> as AmbiguousIfSync<_>>::check();

    fn sent<T: Send>() {}
    sent::<Consumer<Cell<u32>>>();
    sent::<Producer<Cell<u32>>>();
}

/// A short random sequence, the same in every run.
fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Sends `0..count` in bursts of random lengths; the other side checks the sequence. If the two do
/// not have a core each, a few values cost a time slice: then as many values as pass in 20 s.
fn stress(capacity: usize, count: u64) {
    let until = Instant::now() + Duration::from_secs(20);
    let (mut producer, mut consumer) = channel::<u64>(capacity);
    let producing = thread::spawn(move || {
        let (mut next, mut random) = (0, 0x9e37_79b9_7f4a_7c15);
        let mut has_waited = false;
        while next < count {
            let burst = 1 + xorshift(&mut random) % (2 * capacity as u64).min(64);
            for _ in 0..burst.min(count - next) {
                if producer.stage(next).is_err() {
                    break;
                }
                next += 1;
            }
            if producer.publish() == 0 {
                has_waited = true;
                thread::yield_now();
            } else if std::mem::take(&mut has_waited) && Instant::now() > until {
                // There was room: a ring without any would be waited for, however long.
                break;
            }
        }
        next
    });
    let (mut expected, mut random) = (0, 0x2545_f491_4f6c_dd1d);
    let mut all_is_sent = false;
    loop {
        let burst = 1 + xorshift(&mut random) % (2 * capacity as u64).min(64);
        let before = expected;
        for _ in 0..burst {
            let ahead = (xorshift(&mut random) % 4) as usize;
            if let Some(&value) = consumer.peek(ahead) {
                assert_eq!(value, expected + ahead as u64);
            }
            let Some(value) = consumer.pop() else { break };
            assert_eq!(value, expected);
            expected += 1;
        }
        consumer.release();
        if expected == before {
            if all_is_sent {
                break;
            }
            // Some may have been sent since the check: once more, then.
            all_is_sent = producing.is_finished();
            thread::yield_now();
        }
    }
    assert_eq!(expected, producing.join().unwrap());
    assert_eq!(consumer.refresh(), 0);
}

#[test]
fn two_threads_ten_million_values_in_order() {
    stress(1, 100_000);
    stress(2, 400_000);
    stress(64, 3_500_000);
    stress(1024, 6_000_000);
}

#[test]
fn values_left_by_two_threads_are_dropped_once() {
    let token = Arc::new(());
    for round in 0..200_u64 {
        let (mut producer, mut consumer) = channel::<(Box<u64>, Arc<()>)>(8);
        let sent = token.clone();
        let producing = thread::spawn(move || {
            for number in 0..100 {
                // A full ring returns the value, and it is dropped here.
                let _ = producer.stage((Box::new(number), sent.clone()));
                if number % 3 == 0 {
                    producer.publish();
                }
            }
        });
        let mut last = None;
        for _ in 0..round {
            if let Some((number, _)) = consumer.pop() {
                assert!(last < Some(*number));
                last = Some(*number);
                consumer.release();
            }
        }
        drop(consumer);
        producing.join().unwrap();
        assert_eq!(Arc::strong_count(&token), 1);
    }
}
