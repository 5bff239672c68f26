//! The burst against a vector model.

use picnic_core::packet::burst::{BURST, Burst, move_oldest};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::ring::spsc::channel;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
enum Op {
    Push,
    Pop,
    /// Takes this many out of a drain and drops it.
    Drain(usize),
    /// Takes this many out of a drain and leaks it.
    Leak(usize),
    /// Removes those whose mark has this remainder by three.
    RetainNot(u32),
    Reverse,
    /// Moves all after the first queue.
    MoveTo,
    /// Moves this many of the first queue to the end of the second.
    MoveOldest(usize),
    /// Moves this many of the second queue to the end of the burst.
    MoveFrom(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        30 => Just(Op::Push),
        4 => Just(Op::Pop),
        3 => (0..=BURST + 2).prop_map(Op::Drain),
        1 => (0..=BURST + 2).prop_map(Op::Leak),
        1 => (0..3_u32).prop_map(Op::RetainNot),
        1 => Just(Op::Reverse),
        2 => Just(Op::MoveTo),
        3 => (0..=BURST + 2).prop_map(Op::MoveOldest),
        3 => (0..=BURST + 2).prop_map(Op::MoveFrom),
    ]
}

fn marks(burst: &Burst) -> Vec<u32> {
    burst.as_slice().iter().map(|packet| packet.mark).collect()
}

fn small_pool() -> Pool {
    Pool::new(&PoolConfig { buffers: 1024, buffer_size: 64, headroom: 0 }, 0).unwrap().0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn behaves_as_a_vector(ops in prop::collection::vec(op(), 0..300)) {
        let mut pool = small_pool();
        let (mut burst, mut model) = (Burst::new(), Vec::<u32>::new());
        let (mut queues, mut models) = ([const { VecDeque::new() }; 2], [const { VecDeque::new() }; 2]);
        let mut leaked = 0;
        let home = |packet: Descriptor, pool: &mut Pool| {
            let mark = packet.mark;
            assert_eq!(packet.data(), mark.to_le_bytes());
            pool.free(packet);
            mark
        };
        for (number, op) in (0_u32..).zip(ops) {
            match op {
                Op::Push => {
                    let mut packet = pool.packet(&number.to_le_bytes()).unwrap();
                    packet.mark = number;
                    match burst.push(packet) {
                        Ok(()) => model.push(number),
                        Err(packet) => {
                            prop_assert_eq!(model.len(), BURST);
                            prop_assert_eq!(home(packet, &mut pool), number);
                        }
                    }
                    prop_assert!(model.len() <= BURST);
                }
                Op::Pop => {
                    let popped = burst.pop().map(|packet| home(packet, &mut pool));
                    prop_assert_eq!(popped, model.pop());
                }
                Op::Drain(count) => {
                    let mut drain = burst.drain();
                    prop_assert_eq!(drain.len(), model.len());
                    for packet in drain.by_ref().take(count) {
                        prop_assert_eq!(home(packet, &mut pool), model.remove(0));
                    }
                    prop_assert_eq!(drain.len(), model.len());
                }
                Op::Leak(count) => {
                    let mut drain = burst.drain();
                    for packet in drain.by_ref().take(count) {
                        prop_assert_eq!(home(packet, &mut pool), model.remove(0));
                    }
                    std::mem::forget(drain);
                    // Lost, and must not appear again.
                    leaked += model.len();
                    model.clear();
                }
                Op::RetainNot(remainder) => {
                    burst.retain(|packet| {
                        if packet.mark % 3 != remainder {
                            return Some(packet);
                        }
                        home(packet, &mut pool);
                        None
                    });
                    model.retain(|mark| mark % 3 != remainder);
                }
                Op::Reverse => {
                    burst.as_mut_slice().reverse();
                    model.reverse();
                }
                Op::MoveTo => {
                    burst.move_to(&mut queues[0]);
                    models[0].extend(model.drain(..));
                }
                Op::MoveOldest(count) => {
                    let [from, to] = &mut queues;
                    move_oldest(from, count, to);
                    let [from, to] = &mut models;
                    to.extend(from.drain(..count.min(from.len())));
                }
                Op::MoveFrom(count) => {
                    let count = count.min(models[1].len()).min(BURST - model.len());
                    burst.move_from(&mut queues[1], count + usize::from(model.len() + count == BURST));
                    model.extend(models[1].drain(..count));
                }
            }
            let queued: Vec<u32> = queues.iter().flatten().map(|packet| packet.mark).collect();
            prop_assert!(queued.iter().eq(models.iter().flatten()));
            prop_assert_eq!(marks(&burst), model.clone());
            prop_assert_eq!(burst.len(), model.len());
            prop_assert_eq!(burst.is_empty(), model.is_empty());
            prop_assert_eq!(burst.room(), BURST - model.len());
            prop_assert_eq!(pool.outstanding(), model.len() + leaked + queued.len());
        }
        burst.drain().for_each(|packet| pool.free(packet));
        for packet in queues.into_iter().flatten() {
            let mark = packet.mark;
            prop_assert_eq!(home(packet, &mut pool), mark);
        }
        prop_assert_eq!(pool.outstanding(), leaked);
    }
}

#[test]
fn a_panic_in_retain_duplicates_nothing() {
    let mut pool = small_pool();
    let mut burst = Burst::new();
    for mark in 0..10 {
        let mut packet = pool.packet(b"x").unwrap();
        packet.mark = mark;
        burst.push(packet).unwrap();
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        burst.retain(|packet| {
            assert!(packet.mark != 5, "on purpose");
            (packet.mark % 2 == 0).then_some(packet)
        });
    }));
    assert!(result.is_err());
    assert_eq!(marks(&burst), [0, 2, 4]);
}

/// Anywhere in the ring, with any room in the burst.
#[test]
fn bursts_take_all_packets_of_a_ring() {
    let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    let (mut producer, mut consumer) = channel(8);
    let mut burst = Burst::new();
    for turn in 0..20 {
        for place in 0..3 {
            let mut packet = pool.packet(&[7; 60]).unwrap();
            packet.mark = 3 * turn + place;
            assert!(producer.push(packet).is_ok());
        }
        producer.publish();
        assert_eq!(consumer.refresh(), 3);
        assert_eq!(burst.fill_from(&mut consumer), 3);
        assert_eq!(marks(&burst), [3 * turn, 3 * turn + 1, 3 * turn + 2]);
        burst.drain().for_each(|packet| pool.free(packet));
        assert_eq!(burst.fill_from(&mut consumer), 0);
        consumer.release();
    }
}
