//! A number for all packets that hosts were given: their bytes, queues, order and times.
//!
//! It goes into the trace, so that two runs with equal traces also handed over
//! equal packets. Packets are looked at in front of the host, which may change them.

use crate::random::mix;
use picnic_core::attachment::{HostQueue, QueueOut};
use picnic_core::function::Function;
use picnic_core::ledger::Stage;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::port::WirePort;
use picnic_core::time::Time;
use picnic_engine::build::Instrument;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number, shared by all queues; one thread runs the whole world.
pub(crate) type Digest = Arc<AtomicU64>;

/// Wraps host queues in the digest, outside of what another instrument does.
pub(crate) struct Digesting<'a> {
    pub(crate) digest: Digest,
    pub(crate) inner: &'a mut dyn Instrument,
}

impl Instrument for Digesting<'_> {
    fn wire(&mut self, port: Box<dyn WirePort>, index: usize, name: &str) -> Box<dyn WirePort> {
        self.inner.wire(port, index, name)
    }

    fn function(
        &mut self,
        function: Box<dyn Function>,
        stage: Stage,
        position: usize,
        name: &str,
    ) -> Box<dyn Function> {
        self.inner.function(function, stage, position, name)
    }

    fn queue(&mut self, queue: Box<dyn HostQueue>, index: u16) -> Box<dyn HostQueue> {
        let inner = self.inner.queue(queue, index);
        Box::new(DigestedQueue { index, digest: self.digest.clone(), inner })
    }
}

struct DigestedQueue {
    index: u16,
    digest: Digest,
    inner: Box<dyn HostQueue>,
}

impl HostQueue for DigestedQueue {
    fn deliver(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        let mut digest = self.digest.load(Ordering::Relaxed);
        digest = add(add(digest, now.as_nanos()), u64::from(self.index));
        for packet in burst.as_slice() {
            digest = add_packet(digest, packet);
        }
        self.digest.store(digest, Ordering::Relaxed);
        self.inner.deliver(now, burst, out)
    }

    fn transmit(&mut self, now: Time, out: &mut QueueOut<'_>) -> usize {
        self.inner.transmit(now, out)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.inner.readiness()
    }

    fn report(&self) -> Vec<String> {
        self.inner.report()
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
