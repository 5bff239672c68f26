//! Loom models of the index protocol: every interleaving of both sides, up to a bound.
//!
//! ```text
//! scripts/test loom
//! ```
//!
//! Gates have models of their own, in `crates/core/src/ring/models.rs`.

use super::{Receiver, Sender, Shape};
use crate::region::Region;
use loom::thread;
use std::sync::Arc;

/// Two slots, so that every index wraps.
fn both() -> (Arc<Region>, Sender, Receiver) {
    let shape = Shape::new(4, 2).unwrap();
    let region = Arc::new(Region::private(shape.bytes()).unwrap());
    (region, Sender::new(shape, 0), Receiver::new(shape, 0))
}

fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(4));
    builder.check(body);
}

/// Takes available messages, up to three times; loom's threads must not wait by spinning.
fn take(region: &Region, receiver: &Receiver, got: &mut Vec<u8>) {
    for _ in 0..3 {
        let mut message = [0; 4];
        if let Some(bytes) = receiver.take(region, &mut message).unwrap() {
            assert_eq!(message[..bytes], vec![message[0]; bytes]);
            assert_eq!(bytes, usize::from(message[0] % 4) + 1, "a message in part");
            got.push(message[0]);
        }
    }
}

#[test]
fn messages_arrive_whole_once_and_in_order() {
    explore(|| {
        let (region, sender, receiver) = both();
        let writing = region.clone();
        let writer = thread::spawn(move || {
            let mut sent = Vec::new();
            for number in 0..3_u8 {
                let message = vec![number; usize::from(number % 4) + 1];
                if sender.stage(&writing, &message).is_ok() {
                    sent.push(number);
                }
                if number != 1 {
                    sender.publish(&writing);
                }
            }
            sender.publish(&writing);
            sent
        });
        let mut got = Vec::new();
        take(&region, &receiver, &mut got);
        let sent = writer.join().unwrap();
        take(&region, &receiver, &mut got);
        assert_eq!(got, sent);
        assert!(sent.len() >= 2);
    });
}

#[test]
fn released_slots_are_written_again() {
    explore(|| {
        let (region, sender, receiver) = both();
        sender.stage(&region, &[0]).unwrap();
        sender.stage(&region, &[1, 1]).unwrap();
        sender.publish(&region);
        let writing = region.clone();
        let writer = thread::spawn(move || {
            let mut sent = vec![0, 1];
            for number in [2_u8, 3] {
                if sender.stage(&writing, &vec![number; usize::from(number) + 1]).is_ok() {
                    sent.push(number);
                    sender.publish(&writing);
                }
            }
            sent
        });
        let mut got = Vec::new();
        take(&region, &receiver, &mut got);
        let sent = writer.join().unwrap();
        take(&region, &receiver, &mut got);
        assert_eq!(got, sent);
    });
}
