//! One receiving core for all: packets handed to other cores behind locks.
//!
//! With `host.system = "clas"` or `"napi"` all packets come by the first target ring. Its core
//! finds the core of each packet's flow in software, puts the packet in that core's queue behind a
//! lock, and wakes that core if it waits. What the card's own classes save shows beside it.
//!
//! Guarantees: packets of a flow stay in order; a queue that is full drops and counts; no wake-up
//! is lost; with `host.system = "knet"`, none of it is there. It is the one place of the data path
//! that locks: that is what it is to show.
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

/// Packets that may wait for a core: what Linux lets wait by default (`netdev_max_backlog`).
const MOST: usize = 1000;

/// The queues of all cores.
struct Handover {
    queues: Vec<PerCore>,
    /// The receiving core has handed over all that there will ever be.
    is_over: AtomicBool,
}

/// The queue of one core, and how that core is woken. On lines of its own.
#[repr(align(128))]
struct PerCore {
    packets: Mutex<VecDeque<Descriptor>>,
    /// Packets in it, for those who do not want the lock.
    waiting: AtomicUsize,
    gate: Arc<Gate>,
    doorbell: Arc<dyn Doorbell>,
}

impl PerCore {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Descriptor>> {
        // A queue is whole whatever its last user did.
        self.packets.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// One target queue's part: the packets that its core hands over, and those that it is handed.
pub(crate) struct Share {
    handover: Arc<Handover>,
    queue: usize,
    system: System,
}

impl Share {
    /// The parts of all target queues, whose cores are woken by these; none if the card itself
    /// puts flows on cores.
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

    /// Whether packets are handed over by interrupts, which preempt what the core does else; as
    /// opposed to by a poll, which takes no more before the core's own share is done.
    pub(crate) fn is_interrupt(&self) -> bool {
        self.system == System::Clas
    }

    /// Whether the stack's work is done by the core that hands over.
    pub(crate) fn is_behind_stack(&self) -> bool {
        self.system == System::Napi
    }

    /// Hands a packet to the core of its flow, and wakes that. The packet comes back if its queue
    /// is full.
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
        // A core needs no waking by itself: it looks at its share before it rests.
        if index != self.queue {
            Gate::order_publish();
            if queue.gate.interrupt() {
                queue.doorbell.ring();
            }
        }
        Ok(())
    }

    /// Takes the oldest packets of its own, `most` of them at most.
    pub(crate) fn take(&self, burst: &mut Burst, most: usize) {
        let Some(queue) = self.own() else { return };
        let mut packets = queue.lock();
        for _ in 0..most.min(burst.room()) {
            let Some(packet) = packets.pop_front() else { break };
            let _ = burst.push(packet);
        }
        queue.waiting.store(packets.len(), Ordering::Release);
    }

    /// Whether packets of its own wait.
    pub(crate) fn is_waiting(&self) -> bool {
        self.own().is_some_and(|queue| queue.waiting.load(Ordering::Acquire) != 0)
    }

    /// Whether each core's queue has room for `count` packets.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        let mut queues = self.handover.queues.iter();
        queues.all(|queue| queue.waiting.load(Ordering::Acquire) + count <= MOST)
    }

    /// No more is handed over by the receiving core. All cores look once more.
    pub(crate) fn end(&self) {
        if self.receives() && !self.handover.is_over.swap(true, Ordering::AcqRel) {
            self.handover.queues.iter().for_each(|queue| queue.doorbell.ring());
        }
    }

    /// Whether nothing waits, and nothing more will come.
    pub(crate) fn is_over(&self) -> bool {
        self.handover.is_over.load(Ordering::Acquire) && !self.is_waiting()
    }

    fn own(&self) -> Option<&PerCore> {
        self.handover.queues.get(self.queue)
    }
}

impl Drop for Share {
    /// However the receiving core's thread ends, nobody waits for it.
    fn drop(&mut self) {
        self.end();
    }
}

/// What is the same for all packets of a flow in one direction: SipHash of its addresses and
/// ports, as far as it has them. As Linux, which does not ask the NIC what it has found.
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

/// `hash` brought into `0..count`.
fn scale(hash: u64, count: usize) -> usize {
    ((u128::from(hash) * count as u128) >> u64::BITS) as usize
}
