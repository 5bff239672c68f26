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

use super::memory::GuestMemoryMmap;
use super::ring::{BrokenRing, Chain, Cursor, Lookup, Piece, Queue, Turn, prefetch};
use crate::virtio::{HEADER_BYTES, Header};
use picnic_core::attachment::QueueOut;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::offload;
use picnic_core::time::Time;
use std::fs::File;
use std::ops::Range;
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
            ends: [0; BURST],
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

/// How a packet gets to the guest.
#[derive(Clone, Copy, Debug)]
struct Plan {
    header: [u8; HEADER_BYTES],
    /// Numbers of its chains and of their pieces, after those of the packet before.
    chains: usize,
    pieces: usize,
    fate: Result<(), DropReason>,
}

impl Plan {
    fn dropped(reason: DropReason) -> Self {
        Plan { header: [0; HEADER_BYTES], chains: 0, pieces: 0, fate: Err(reason) }
    }
}

/// Packets on their way into chains.
struct Filling<'f> {
    terms: &'f Terms,
    memory: Lookup<'f>,
    /// Of the packets that are not copied yet.
    pieces: &'f mut Vec<Piece>,
    chains: &'f mut Vec<Chain>,
    /// Of the whole burst.
    plans: &'f mut Vec<Plan>,
}

impl Filling<'_> {
    /// Puts a burst into chains; packets that are left have found a ring that is wrong.
    #[inline]
    fn run(
        &mut self,
        turn: &mut impl Turn,
        burst: &mut Burst,
        out: &mut QueueOut<'_>,
    ) -> Result<bool, BrokenRing> {
        self.plans.clear();
        self.pieces.clear();
        self.chains.clear();
        let packets = burst.as_mut_slice();
        let mut copied = 0;
        for place in 0..packets.len() {
            // Another packet may have this many.
            if self.pieces.len() > PIECES {
                self.copy(turn, &packets[copied..], copied)?;
                copied = place;
            }
            let plan = self.plan(turn, &mut packets[place])?;
            self.plans.push(plan);
        }
        self.copy(turn, &packets[copied..], copied)?;
        let interrupt = turn.publish()?;
        for (packet, plan) in burst.drain().zip(&*self.plans) {
            match plan.fate {
                Ok(()) => out.deliver(packet),
                Err(reason) => out.drop(packet, reason),
            }
        }
        Ok(interrupt)
    }

    /// Takes chains for a packet.
    #[inline]
    fn plan(&mut self, turn: &mut impl Turn, packet: &mut Descriptor) -> Result<Plan, BrokenRing> {
        let header = match self.header(packet) {
            Ok(header) => header.to_bytes(),
            Err(reason) => return Ok(Plan::dropped(reason)),
        };
        let header_bytes = self.terms.header_bytes() as u64;
        let total = header_bytes + u64::from(packet.length());
        let (chains, pieces) = (self.chains.len(), self.pieces.len());
        let (mut room, mut fate) = (0, Ok(()));
        while room < total && fate.is_ok() {
            let (is_first, before) = (self.chains.len() == chains, self.pieces.len());
            // What a driver without mergeable buffers has is too short.
            let is_short = !is_first && !self.terms.has(MRG_RXBUF);
            let chain = if is_short { None } else { turn.take(true, self.pieces)? };
            let Some(chain) = chain else {
                turn.put_back(&self.chains[chains..]);
                self.chains.truncate(chains);
                self.pieces.truncate(pieces);
                let reason = if is_short { DropReason::Oversize } else { DropReason::NoDescriptor };
                return Ok(Plan::dropped(reason));
            };
            prefetch(&mut self.memory, self.pieces.get(before));
            self.chains.push(chain);
            room += chain.length;
            let least = if is_first { header_bytes } else { 1 };
            let is_long = self.pieces.len() - pieces > PIECES;
            if !chain.is_good || chain.length < least || is_long {
                fate = Err(DropReason::BadDescriptor);
            }
        }
        let (chains, pieces) = (self.chains.len() - chains, self.pieces.len() - pieces);
        Ok(Plan { header, chains, pieces, fate })
    }

    /// Copies packets, whose plans start at `from`, and returns their chains.
    #[inline]
    fn copy(
        &mut self,
        turn: &mut impl Turn,
        packets: &[Descriptor],
        from: usize,
    ) -> Result<(), BrokenRing> {
        let (mut chains, mut pieces) = (&self.chains[..], &self.pieces[..]);
        for (packet, plan) in packets.iter().zip(&mut self.plans[from..]) {
            let (its_chains, its_pieces);
            (its_chains, chains) = chains.split_at(plan.chains);
            (its_pieces, pieces) = pieces.split_at(plan.pieces);
            let header_bytes = self.terms.header_bytes();
            if plan.fate.is_ok() {
                let mut bytes = [0; HEADER_BYTES + 2];
                bytes[..HEADER_BYTES].copy_from_slice(&plan.header);
                bytes[HEADER_BYTES..].copy_from_slice(&(plan.chains as u16).to_le_bytes());
                let mut cursor = Cursor::new(self.memory, its_pieces);
                let mut written = cursor.write(&bytes[..header_bytes]);
                for segment in packet.segments() {
                    written = written.and_then(|()| cursor.write(segment));
                }
                plan.fate = written.ok_or(DropReason::BadDescriptor);
            }
            // Chains that are wrong return empty.
            let total = header_bytes as u64 + u64::from(packet.length());
            let mut left = if plan.fate.is_ok() { total } else { 0 };
            for chain in its_chains {
                let filled = left.min(chain.length);
                left -= filled;
                turn.complete(chain, filled as u32)?;
            }
        }
        self.pieces.clear();
        self.chains.clear();
        Ok(())
    }

    /// The header, as far as the guest knows its offloads.
    #[inline]
    fn header(&self, packet: &mut Descriptor) -> Result<Header, DropReason> {
        let knows = match packet.gso_type() {
            GsoType::None => true,
            GsoType::Tcp4 => self.terms.has(GUEST_TSO4),
            GsoType::Tcp6 => self.terms.has(GUEST_TSO6),
            _ => false,
        };
        if !knows {
            return Err(DropReason::SuperFrame);
        }
        if packet.checksum() == ChecksumState::Partial && !self.terms.has(GUEST_CSUM) {
            offload::finish_checksum(packet);
        }
        let mut header = Header::of(packet).ok_or(DropReason::Malformed)?;
        if packet.checksum() == ChecksumState::Good && self.terms.has(GUEST_CSUM) {
            header.flags |= DATA_VALID;
        }
        if !self.terms.has(GUEST_ECN) {
            header.gso_type &= !GSO_ECN;
        }
        Ok(header)
    }
}

/// Packets on their way out of chains.
struct Emptying<'e> {
    terms: &'e Terms,
    memory: Lookup<'e>,
    pieces: &'e mut Vec<Piece>,
    chains: &'e mut Vec<Chain>,
    now: Time,
    is_enabled: bool,
    has_kick: bool,
    empty_polls: &'e mut u32,
    is_listening: &'e mut bool,
    sent: usize,
    is_starved: bool,
    /// Where the pieces of each chain end.
    ends: [usize; BURST],
}

impl Emptying<'_> {
    /// Takes a burst; whether the guest wants an interrupt for it.
    #[inline]
    fn run(&mut self, turn: &mut impl Turn, out: &mut QueueOut<'_>) -> Result<bool, BrokenRing> {
        self.take(turn)?;
        let (mut seen, mut start) = (0, 0);
        for place in 0..self.chains.len() {
            let (chain, end) = (self.chains[place], self.ends[place]);
            let Some((packet, refused)) = self.read(chain, start..end, out) else {
                turn.put_back(&self.chains[place..]);
                self.is_starved = true;
                break;
            };
            match refused {
                _ if !self.is_enabled => out.refuse(packet, DropReason::RingDisabled),
                Some(reason) => out.refuse(packet, reason),
                None => {
                    out.submit(packet);
                    self.sent += 1;
                }
            }
            turn.complete(&chain, 0)?;
            (seen, start) = (seen + 1, end);
        }
        let interrupt = turn.publish()?;
        *self.empty_polls = if seen == 0 { self.empty_polls.wrapping_add(1) } else { 0 };
        if seen != 0 && *self.is_listening {
            turn.ignore()?;
            *self.is_listening = false;
        }
        let may_listen = self.has_kick && *self.empty_polls >= EMPTY_POLLS;
        if seen == 0 && !self.is_starved && !*self.is_listening && may_listen {
            *self.is_listening = !turn.listen()?;
        }
        Ok(interrupt)
    }

    /// Takes the chains of a burst.
    #[inline]
    fn take(&mut self, turn: &mut impl Turn) -> Result<(), BrokenRing> {
        self.pieces.clear();
        self.chains.clear();
        // Another packet may have `PIECES`.
        while self.chains.len() < BURST && self.pieces.len() <= PIECES {
            let before = self.pieces.len();
            let Some(mut chain) = turn.take(false, self.pieces)? else { break };
            prefetch(&mut self.memory, self.pieces.get(before));
            chain.is_good &= self.pieces.len() - before <= PIECES;
            self.ends[self.chains.len()] = self.pieces.len();
            self.chains.push(chain);
        }
        Ok(())
    }

    /// The packet, and why it is refused if it is; `None` if there is no buffer for it.
    #[inline]
    fn read(
        &self,
        chain: Chain,
        pieces: Range<usize>,
        out: &mut QueueOut<'_>,
    ) -> Option<(Descriptor, Option<DropReason>)> {
        let terms = self.terms;
        let length = chain.length.checked_sub(terms.header_bytes() as u64);
        let fate = match length {
            _ if !chain.is_good => Err(DropReason::BadDescriptor),
            None => Err(DropReason::BadDescriptor),
            Some(0) => Err(DropReason::Malformed),
            Some(length) if length > (IP_BYTES + ETHERNET_BYTES) as u64 => {
                Err(DropReason::Oversize)
            }
            Some(length) => Ok(length as usize),
        };
        let count = fate.map_or(1, |length| length.div_ceil(terms.buffer_size)).max(1);
        let landing = out.landing(count)?;
        let mut cursor = Cursor::new(self.memory, &self.pieces[pieces]);
        let mut bytes = [0; HEADER_BYTES + 2];
        let fate = fate.and_then(|length| {
            let mut read = cursor.read(&mut bytes[..terms.header_bytes()]);
            let mut left = length;
            for buffer in landing.buffers().take(count) {
                let part = left.min(buffer.len());
                left -= part;
                read = read.and_then(|()| cursor.read(&mut buffer[..part]));
            }
            read.map(|()| length).ok_or(DropReason::BadDescriptor)
        });
        let mut packet = landing.land(fate.unwrap_or(0))?;
        packet.wire = terms.wire;
        packet.set_received_at(self.now);
        let reason = match fate {
            Ok(length) => self.apply(&bytes, length, &mut packet).err(),
            Err(reason) => Some(reason),
        };
        Some((packet, reason))
    }

    /// Enters what the guest's header says into the descriptor.
    #[inline]
    fn apply(
        &self,
        bytes: &[u8; HEADER_BYTES + 2],
        length: usize,
        packet: &mut Descriptor,
    ) -> Result<(), DropReason> {
        let terms = self.terms;
        let Some(bytes) = bytes.first_chunk() else { return Err(DropReason::Malformed) };
        let mut header = Header::from_bytes(bytes);
        header.flags &= if terms.has(CSUM) { NEEDS_CSUM } else { 0 };
        let is_known = match header.gso_type & !GSO_ECN {
            0 => length <= terms.mtu + ETHERNET_BYTES,
            GSO_TCP4 => terms.has(HOST_TSO4),
            GSO_TCP6 => terms.has(HOST_TSO6),
            _ => false,
        };
        if !is_known {
            let is_long = header.gso_type == 0;
            return Err(if is_long { DropReason::Oversize } else { DropReason::Malformed });
        }
        if header.gso_type != 0 && header.flags & NEEDS_CSUM == 0 {
            return Err(DropReason::Malformed);
        }
        header.apply(packet, 0).map_err(|_| DropReason::Malformed)?;
        // A header may say what is true of the addresses alone.
        let kind = packet.packet_type();
        let is_so = match packet.gso_type() {
            GsoType::None => true,
            GsoType::Tcp4 => kind.is_ipv4() && kind.is_tcp(),
            GsoType::Tcp6 => kind.is_ipv6() && kind.is_tcp(),
            _ => false,
        };
        is_so.then_some(()).ok_or(DropReason::Malformed)
    }
}
