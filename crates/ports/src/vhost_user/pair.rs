//! Two rings of a guest, one each way, and the packets that cross them.
//!
//! Guarantees: a packet is copied once, between the guest's memory and the pool. A chain that is
//! wrong costs one packet, which is counted; a ring that is wrong is not used until the front end
//! starts it again. Packets for which the card has no buffer stay in the guest.
//!
//! A burst is handled in two passes: all its chains are taken, which fetches their memory ahead, and
//! then all its packets are copied. The driver sees the burst by one store.
//!
//! Source: Virtual I/O Device 1.2, 5.1.6 (device operation of network devices).

mod emptying;
mod filling;

use super::memory::GuestMemoryMmap;
use super::ring::{BrokenRing, Chain, Piece, Queue};
use crate::virtio::HEADER_BYTES;
use emptying::Emptying;
use filling::{Filling, Plan};
use picnic_core::attachment::QueueOut;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::time::Time;
use std::fs::File;
use std::sync::Arc;

/// The bits of features, by number.
pub(super) mod bits {
    macro_rules! bits {
        ($($name:ident = $bit:literal;)*) => { $(pub(crate) const $name: u64 = 1 << $bit;)* };
    }
    bits! {
        CSUM = 0; GUEST_CSUM = 1; MTU = 3; GUEST_TSO4 = 7; GUEST_TSO6 = 8; GUEST_ECN = 9;
        HOST_TSO4 = 11; HOST_TSO6 = 12; HOST_ECN = 13; MRG_RXBUF = 15; STATUS = 16; CTRL_VQ = 17;
        GUEST_ANNOUNCE = 21; MQ = 22; LOG_ALL = 26; RING_INDIRECT = 28; RING_EVENT_IDX = 29;
        PROTOCOL_FEATURES = 30; VERSION_1 = 32; RING_PACKED = 34; IN_ORDER = 35;
    }
}
use bits::*;

/// Polls without a packet of the guest after which it is asked to kick.
const EMPTY_POLLS: u32 = 32;
/// While kicks are expected, one spurious kick is read per this many polls.
const SPURIOUS_POLLS: u32 = 64;
/// Most pieces of a packet, so that a guest cannot have the card read forever: a super-frame in
/// buffers of 16 bytes.
const PIECES: usize = 4096;
/// An Ethernet header and two VLAN tags, which an MTU does not count.
const ETHERNET_BYTES: usize = 22;
/// The longest IP packet.
const IP_BYTES: usize = 65_535;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_ECN: u8 = 0x80;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;

/// What a queue needs to know of its guest.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The features that both sides have.
    pub features: u64,
    /// The wire of the guest's packets.
    pub wire: u8,
    /// Bytes of a buffer of the pool.
    pub buffer_size: usize,
    /// Bytes of the longest packet without its Ethernet header.
    pub mtu: usize,
}

impl Terms {
    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// The header has the number of buffers, except for the oldest drivers.
    fn header_bytes(&self) -> usize {
        let is_long = self.has(VERSION_1 | MRG_RXBUF);
        if is_long { HEADER_BYTES + 2 } else { HEADER_BYTES }
    }
}

/// A ring with its notifications.
#[derive(Debug)]
pub struct Ring {
    pub(super) queue: Queue,
    /// Whether packets pass; if not, those of the guest are dropped and it gets none.
    pub(super) is_enabled: bool,
    pub(super) call: Option<Arc<File>>,
    pub(super) kick: Option<Arc<File>>,
    pub(super) error: Option<Arc<File>>,
    /// Why it is not used any longer.
    pub(super) broken: Option<BrokenRing>,
}

impl Ring {
    /// A ring that starts.
    pub fn new(queue: Queue, is_enabled: bool) -> Self {
        Ring { queue, is_enabled, call: None, kick: None, error: None, broken: None }
    }

    fn is_usable(&self) -> bool {
        self.broken.is_none()
    }

    /// Ends a burst: interrupts the guest if it asked for that.
    fn end(&mut self, result: Result<bool, BrokenRing>) {
        let told = match result {
            Ok(false) => return,
            Ok(true) => &self.call,
            Err(why) => {
                self.broken = Some(why);
                &self.error
            }
        };
        if let Some(event) = told {
            // A full counter has been signalled often enough.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    /// Takes what kicks there were.
    fn take_kicks(&self) {
        if let Some(kick) = &self.kick {
            let _ = rustix::io::read(kick, &mut [0; 8]);
        }
    }
}

/// A pair of rings, used by one target core.
#[derive(Debug)]
pub struct Pair {
    pub(super) terms: Terms,
    memory: Arc<GuestMemoryMmap>,
    /// Packets for the guest.
    pub(super) rx: Option<Ring>,
    /// Packets of the guest.
    pub(super) tx: Option<Ring>,
    pieces: Vec<Piece>,
    chains: Vec<Chain>,
    plans: Vec<Plan>,
    empty_polls: u32,
    is_listening: bool,
    /// Buffers were refused: there is no point in polling at once.
    is_starved: bool,
    /// The address of a guest that has moved here, of which the network is to be told.
    pub(super) moved: Option<[u8; 6]>,
}

impl Pair {
    /// The rings in this memory.
    pub fn new(
        terms: Terms,
        memory: Arc<GuestMemoryMmap>,
        mut rx: Option<Ring>,
        tx: Option<Ring>,
    ) -> Self {
        // Buffers are looked for when there is a packet.
        if let Some(ring) = &mut rx {
            ring.broken = ring.queue.ignore(&memory).err();
        }
        // A packet's beside those of the packets before it; each chain that is good has a piece.
        let pieces = Vec::with_capacity(2 * PIECES);
        let chains = Vec::with_capacity(pieces.capacity() + BURST);
        let plans = Vec::with_capacity(BURST);
        let (empty_polls, is_listening, is_starved) = (0, false, false);
        let moved = None;
        Pair {
            terms,
            memory,
            rx,
            tx,
            pieces,
            chains,
            plans,
            empty_polls,
            is_listening,
            is_starved,
            moved,
        }
    }

    /// Whether the guest's ring must be polled, since it was told not to kick.
    pub fn must_poll(&self) -> bool {
        let is_used = self.tx.as_ref().is_some_and(Ring::is_usable);
        is_used && !self.is_listening && !self.is_starved
    }

    /// Copies packets to the guest.
    pub fn deliver(&mut self, burst: &mut Burst, out: &mut QueueOut<'_>) {
        for packet in burst.as_slice() {
            packet.prefetch();
        }
        let usable = self.rx.as_mut().filter(|ring| ring.is_usable() && ring.is_enabled);
        let Some(ring) = usable else {
            return burst.drain().for_each(|packet| out.drop(packet, DropReason::RingDisabled));
        };
        let Pair { terms, memory, pieces, chains, plans, .. } = self;
        let mut filling = Filling { terms, memory: (&**memory).into(), pieces, chains, plans };
        let result = match &mut ring.queue {
            Queue::Split(queue) => {
                queue.turn(memory).and_then(|mut turn| filling.run(&mut turn, burst, out))
            }
            Queue::Packed(queue) => {
                queue.turn(memory).and_then(|mut turn| filling.run(&mut turn, burst, out))
            }
        };
        burst.drain().for_each(|packet| out.drop(packet, DropReason::BadDescriptor));
        ring.end(result);
    }

    /// Takes packets from the guest; returns how many were submitted.
    pub fn transmit(&mut self, now: Time, out: &mut QueueOut<'_>) -> usize {
        let Some(ring) = self.tx.as_mut().filter(|ring| ring.is_usable()) else { return 0 };
        let Pair { terms, memory, pieces, chains, empty_polls, is_listening, .. } = self;
        let mut emptying = Emptying {
            terms,
            memory: (&**memory).into(),
            pieces,
            chains,
            now,
            is_enabled: ring.is_enabled,
            has_kick: ring.kick.is_some(),
            empty_polls,
            is_listening,
            sent: 0,
            is_starved: false,
        };
        let result = match &mut ring.queue {
            Queue::Split(queue) => {
                queue.turn(memory).and_then(|mut turn| emptying.run(&mut turn, out))
            }
            Queue::Packed(queue) => {
                queue.turn(memory).and_then(|mut turn| emptying.run(&mut turn, out))
            }
        };
        let sent = emptying.sent;
        self.is_starved = emptying.is_starved;
        ring.end(result);
        // Kicks of chains that were seen are taken before the core sleeps on them.
        if self.is_listening && self.empty_polls % SPURIOUS_POLLS == EMPTY_POLLS {
            ring.take_kicks();
            // One that came with a chain meanwhile is not to be lost with it.
            self.is_listening = ring.queue.is_waiting(memory) == Ok(false);
        }
        sent
    }
}
