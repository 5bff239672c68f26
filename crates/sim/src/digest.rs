//! A digest of all packets given to hosts: their bytes, queues, order and times.
//!
//! It is part of the trace, so that two runs with equal traces also delivered equal packets.
//! Packets are read before the host, which may change them.

use picnic_core::hook::{Hook, HookPoint, Observer};
use picnic_core::ledger::Stage;
use picnic_core::packet::desc::Descriptor;
use picnic_core::random::mix;
use picnic_core::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The digest, shared by all queues; one thread runs the whole world.
pub(crate) type Digest = Arc<AtomicU64>;

/// Adds every host's packets to the digest.
pub(crate) struct Digesting(pub(crate) Digest);

impl Hook for Digesting {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        let HookPoint::Queue { index, .. } = *point else { return None };
        Some(Box::new(DigestedQueue { index, digest: self.0.clone() }))
    }
}

struct DigestedQueue {
    index: u16,
    digest: Digest,
}

impl Observer for DigestedQueue {
    fn observe(&mut self, now: Time, _: Stage, packets: &[Descriptor]) {
        let mut digest = self.digest.load(Ordering::Relaxed);
        digest = add(add(digest, now.as_nanos()), u64::from(self.index));
        for packet in packets {
            digest = add_packet(digest, packet);
        }
        self.digest.store(digest, Ordering::Relaxed);
    }
}

fn add(digest: u64, word: u64) -> u64 {
    mix(digest.rotate_left(23) ^ word.wrapping_add(1))
}

fn add_packet(digest: u64, packet: &Descriptor) -> u64 {
    let known = u64::from(packet.rss_hash) << 32 | u64::from(packet.mark);
    let mut digest = add(add(digest, u64::from(packet.length())), known);
    for segment in packet.segments() {
        for chunk in segment.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            digest = add(digest, u64::from_le_bytes(word));
        }
    }
    digest
}
