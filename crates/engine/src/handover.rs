//! One receiving core for all: it hands packets to other cores under locks.
//!
//! With `host.system = "clas"` or `"napi"` all packets arrive on the first target ring. Its core
//! finds the core of each packet's flow in software, puts the packet in that core's queue under a
//! lock, and wakes that core if it waits. This is the baseline for the gain of classifying on the
//! card.
//!
//! Guarantees: packets of a flow stay in order; a full queue drops and counts; no wake-up is lost;
//! with `host.system = "knet"`, none of this exists. It is the only place of the data path that
//! locks, because the baseline does.
//!
//! Source: KNET, "In-kernel Classifier"; Linux, `Documentation/networking/scaling.rst`, "RPS:
//! Receive Packet Steering".

use picnic_core::config::System;
use picnic_core::doorbell::Doorbell;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::PacketType;
use picnic_core::ring::gate::Gate;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Most packets waiting for a core: the default of Linux (`netdev_max_backlog`).
const MOST: usize = 1000;

/// The queues of all cores.
struct Handover {
    queues: Vec<PerCore>,
    /// The receiving core will hand over nothing more.
    is_over: AtomicBool,
}

/// The queue of one core, and its doorbell; on separate cache lines.
#[repr(align(128))]
struct PerCore {
    packets: Mutex<VecDeque<Descriptor>>,
    /// Packets in it, readable without the lock.
    waiting: AtomicUsize,
    gate: Arc<Gate>,
    doorbell: Arc<dyn Doorbell>,
}

impl PerCore {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Descriptor>> {
        // The queue stays consistent even if its last user panicked.
        self.packets.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// One target queue's share: the packets that its core hands over, and those that it receives.
pub(crate) struct Share {
    handover: Arc<Handover>,
    queue: usize,
    system: System,
}

impl Share {
    /// The shares of all target queues, with their doorbells; none if the card itself classifies.
    pub(crate) fn all(
        system: System,
        gates: &[Arc<Gate>],
        doorbells: &[Arc<dyn Doorbell>],
    ) -> Vec<Option<Share>> {
        if system == System::Knet {
            return gates.iter().map(|_| None).collect();
        }
        let queues = gates.iter().zip(doorbells).map(|(gate, doorbell)| PerCore {
            packets: Mutex::new(VecDeque::with_capacity(MOST)),
            waiting: AtomicUsize::new(0),
            gate: gate.clone(),
            doorbell: doorbell.clone(),
        });
        let handover =
            Arc::new(Handover { queues: queues.collect(), is_over: AtomicBool::new(false) });
        let share = |queue| Some(Share { handover: handover.clone(), queue, system });
        (0..gates.len()).map(share).collect()
    }

    /// Whether its core receives for all.
    pub(crate) fn receives(&self) -> bool {
        self.queue == 0
    }

    /// Whether an interrupt hands packets over and preempts the core's other work; a poll instead
    /// finishes the core's own share first.
    pub(crate) fn is_interrupt(&self) -> bool {
        self.system == System::Clas
    }

    /// Whether the core that hands over also does the stack's work.
    pub(crate) fn is_behind_stack(&self) -> bool {
        self.system == System::Napi
    }

    /// Hands a packet to the core of its flow and wakes it. Returns the packet if the queue is
    /// full.
    pub(crate) fn pass(&self, mut packet: Descriptor) -> Result<(), Descriptor> {
        let queues = &self.handover.queues;
        let index = scale(flow_of(&mut packet), queues.len());
        let Some(queue) = queues.get(index) else { return Err(packet) };
        {
            let mut packets = queue.lock();
            if packets.len() >= MOST {
                return Err(packet);
            }
            packets.push_back(packet);
            queue.waiting.store(packets.len(), Ordering::Release);
        }
        // A core need not wake itself: it checks its share before it rests.
        if index != self.queue {
            Gate::order_publish();
            if queue.gate.interrupt() {
                queue.doorbell.ring();
            }
        }
        Ok(())
    }

    /// Takes its oldest packets, at most `most`.
    pub(crate) fn take(&self, burst: &mut Burst, most: usize) {
        let Some(queue) = self.own() else { return };
        let mut packets = queue.lock();
        for _ in 0..most.min(burst.room()) {
            let Some(packet) = packets.pop_front() else { break };
            let _ = burst.push(packet);
        }
        queue.waiting.store(packets.len(), Ordering::Release);
    }

    /// Whether its own packets wait.
    pub(crate) fn is_waiting(&self) -> bool {
        self.own().is_some_and(|queue| queue.waiting.load(Ordering::Acquire) != 0)
    }

    /// Whether each core's queue has room for `count` packets.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        let mut queues = self.handover.queues.iter();
        queues.all(|queue| queue.waiting.load(Ordering::Acquire) + count <= MOST)
    }

    /// Ends the receiving core's handover. All cores check their queues once more.
    pub(crate) fn end(&self) {
        if self.receives() && !self.handover.is_over.swap(true, Ordering::AcqRel) {
            self.handover.queues.iter().for_each(|queue| queue.doorbell.ring());
        }
    }

    /// Whether nothing waits and nothing more will arrive.
    pub(crate) fn is_over(&self) -> bool {
        self.handover.is_over.load(Ordering::Acquire) && !self.is_waiting()
    }

    fn own(&self) -> Option<&PerCore> {
        self.handover.queues.get(self.queue)
    }
}

impl Drop for Share {
    /// However the receiving core's thread ends, no core waits for it.
    fn drop(&mut self) {
        self.end();
    }
}

/// SipHash of a packet's addresses and ports, if present: equal for all packets of a flow in
/// one direction. Like Linux, it ignores the NIC's results.
fn flow_of(packet: &mut Descriptor) -> u64 {
    let layers =
        if packet.packet_type() == PacketType::NONE { packet.parse() } else { packet.layers() };
    let data = packet.data();
    let mut hash = DefaultHasher::new();
    if let Some((source, destination)) = layers.ipv4_addresses(data) {
        hash.write_u32(source);
        hash.write_u32(destination);
    } else if let Some(addresses) = layers.ipv6_addresses(data) {
        hash.write(addresses);
    }
    if let Some(ports) = layers.ports(data) {
        hash.write_u32(ports);
    }
    hash.finish()
}

/// Scales `hash` to `0..count`.
fn scale(hash: u64, count: usize) -> usize {
    ((u128::from(hash) * count as u128) >> u64::BITS) as usize
}
