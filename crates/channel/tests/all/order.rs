//! First in, first out, against a queue.

use crate::{Pair, pair};
use picnic_channel::{End, Region, SendError, Shape};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
enum Step {
    Send(Vec<u8>),
    Flush,
    Take(usize),
}

fn step() -> impl Strategy<Value = (bool, Step)> {
    let sends = vec(any::<u8>(), 0..30).prop_map(Step::Send);
    let each =
        prop_oneof![4 => sends, 2 => Just(Step::Flush), 4 => (0_usize..30).prop_map(Step::Take)];
    (any::<bool>(), each)
}

/// A direction as a queue, with the messages that are staged but not visible.
#[derive(Default)]
struct Queue {
    visible: VecDeque<Vec<u8>>,
    staged: VecDeque<Vec<u8>>,
}

impl Queue {
    fn publish(&mut self) {
        self.visible.append(&mut self.staged);
    }
}

proptest! {
    #[test]
    fn both_directions_are_queues(
        most in 1_usize..24,
        messages in 1_usize..9,
        steps in vec(step(), 1..300),
    ) {
        let Pair { card, host, .. } = pair(most, messages);
        let mut queues = [Queue::default(), Queue::default()];
        for (is_card, step) in steps {
            let ends: [&End; 2] = if is_card { [&card, &host] } else { [&host, &card] };
            let (own, other) = (usize::from(is_card), usize::from(!is_card));
            match step {
                Step::Send(message) => {
                    // The receiver makes room visible when it flushes, if not before: it flushes
                    // here, so that the model need not know when else.
                    ends[1].flush();
                    queues[own].publish();
                    let queue = &mut queues[other];
                    let held = queue.visible.len() + queue.staged.len();
                    let queue_is_full = held == messages.next_power_of_two();
                    match ends[0].stage(&message) {
                        Ok(()) => {
                            prop_assert!(message.len() <= most && !queue_is_full);
                            queue.staged.push_back(message);
                        }
                        Err(SendError::Full) => {
                            prop_assert!(queue_is_full && message.len() <= most);
                            queue.publish();
                        }
                        Err(SendError::TooLong { found, most: allowed }) => {
                            prop_assert_eq!((found, allowed), (message.len(), most));
                            prop_assert!(found > most);
                        }
                        Err(SendError::Broken(error)) => panic!("{error}"),
                    }
                }
                Step::Flush => {
                    ends[0].flush();
                    queues[other].publish();
                }
                Step::Take(room) => {
                    let mut into = vec![0; room];
                    let found = ends[0].take(&mut into).unwrap();
                    let expected = queues[own].visible.pop_front();
                    let expected = expected.map(|message| message[..room.min(message.len())].to_vec());
                    prop_assert_eq!(found.map(|bytes| into[..bytes].to_vec()), expected);
                }
            }
        }
    }
}

#[test]
fn shapes_have_limits() {
    assert_eq!(Shape::new(64, 5).map(|shape| shape.messages()), Some(8));
    for (bytes, messages) in [(0, 1), (1, 0), (65_537, 1), (1, 65_537)] {
        assert_eq!(Shape::new(bytes, messages), None);
    }
    let largest = Shape::new(65_536, 65_536).unwrap();
    assert_eq!(largest.bytes(), 8 * (160 + 2 * 65_536 * 8_193));
}

#[test]
fn memory_of_others_must_be_long_and_sealed() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;
    let (_, memory) = Region::create(5_000).unwrap();
    assert!(Region::open(memory.as_fd(), 8_192).is_ok());
    let message =
        |memory: &dyn AsFd, bytes| Region::open(memory.as_fd(), bytes).unwrap_err().to_string();
    assert_eq!(message(&memory, 8_193), "the memory is too short");
    // It cannot be made shorter under the feet of the other side.
    assert!(ftruncate(&memory, 4_096).is_err());
    let open = memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&open, 8_192).unwrap();
    assert_eq!(message(&open, 100), "the memory is not sealed against shrinking");
}

#[test]
fn steady_traffic_allocates_nothing() {
    let Pair { card, host, .. } = pair(64, 16);
    let mut into = [0; 64];
    let used = allocation_counter::measure(|| {
        for number in 0..1_000_u64 {
            host.stage(&number.to_le_bytes()).unwrap();
            host.flush();
            assert_eq!(card.take(&mut into), Ok(Some(8)));
            card.stage(&into).unwrap();
            card.flush();
            assert_eq!(host.take(&mut into), Ok(Some(64)));
        }
    });
    assert_eq!(used.count_total, 0);
}
