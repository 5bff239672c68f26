//! The rings against a driver in this process, honest or not.

mod driver;
mod extra;
mod hostile;
mod migration;
mod place;
mod protocol;
mod restart;
mod rings;
mod sockets;

use super::memory::GuestMemoryMmap;
use super::pair::{Pair, Ring, Terms, bits};
use super::ring::{Layout, Queue};
use crate::virtio::{HEADER_BYTES, Header};
use driver::{Driver, PACKETS};
use picnic_core::attachment::QueueOut;
use picnic_core::fill::{self, FillReceiver, FillSender};
use picnic_core::ledger::{DropReason, Ledger, Stage};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::pool::{Pool, PoolConfig, ReturnSender};
use picnic_core::ring::spsc::{self, Consumer, Producer};
use picnic_core::stats::TargetCounters;
use picnic_core::time::Time;
use proptest::prelude::*;
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress};

/// The rest of a card, around one queue.
pub(super) struct Card {
    pool: Pool,
    returns: ReturnSender,
    sender: FillSender,
    receiver: FillReceiver,
    tx: Producer<Descriptor>,
    sent: Consumer<Descriptor>,
    counters: TargetCounters,
    ledger: Ledger,
}

impl Card {
    pub(super) fn new(buffer_size: u32) -> Self {
        let config = PoolConfig { buffers: 1024, buffer_size, ..PoolConfig::default() };
        let (pool, mut returns) = Pool::new(&config, 1).unwrap();
        let (sender, receiver) = fill::channel(128);
        let (tx, sent) = spsc::channel(64);
        let (counters, ledger) = (TargetCounters::default(), Ledger::new(1));
        let returns = returns.remove(0);
        Card { pool, returns, sender, receiver, tx, sent, counters, ledger }
    }

    /// The doors of one burst.
    pub(super) fn with<T>(&mut self, work: impl FnOnce(&mut QueueOut<'_>) -> T) -> T {
        self.sender.top_up(&mut self.pool);
        let part = &self.ledger.queues[0];
        let out = QueueOut::new(&mut self.returns, &mut self.tx, &self.counters, part);
        work(&mut out.with_fill(&mut self.receiver))
    }

    /// Packets that the host has sent: what `look` makes of them.
    pub(super) fn sent<T>(&mut self, mut look: impl FnMut(&Descriptor) -> T) -> Vec<T> {
        self.sent.refresh();
        let mut seen = Vec::new();
        while let Some(packet) = self.sent.pop() {
            seen.push(look(&packet));
            self.pool.free(packet);
        }
        self.sent.release();
        seen
    }

    fn transmit(&mut self, pair: &mut Pair) -> Vec<Vec<u8>> {
        self.with(|out| pair.transmit(Time::from_nanos(5), out));
        self.sent(bytes)
    }

    fn deliver(&mut self, pair: &mut Pair, packets: &[Vec<u8>], change: fn(&mut Descriptor)) {
        let mut burst = self.burst(packets, change);
        self.with(|out| pair.deliver(&mut burst, out));
        assert!(burst.is_empty());
    }

    pub(super) fn burst(&mut self, packets: &[Vec<u8>], change: fn(&mut Descriptor)) -> Burst {
        let mut burst = Burst::new();
        for bytes in packets {
            let mut packet = self.pool.packet(bytes).unwrap();
            change(&mut packet);
            burst.push(packet).unwrap();
        }
        burst
    }

    pub(super) fn dropped(&self, reason: DropReason) -> u64 {
        self.ledger.queues[0].drops.get(reason, Stage::Target)
    }

    pub(super) fn delivered(&self) -> u64 {
        self.ledger.queues[0].delivered.get()
    }

    /// Every packet has one fate, and all buffers have returned; `given` were delivered.
    fn assert_conserved(&mut self, given: u64) {
        let part = &self.ledger.queues[0];
        let out = part.delivered.get() + part.submitted.get() + part.drops.total();
        assert_eq!(given + part.made.get(), out);
        self.sent(|_| ());
        self.receiver.empty(&mut self.returns);
        assert_eq!(self.pool.outstanding(), 0);
    }
}

fn bytes(packet: &Descriptor) -> Vec<u8> {
    packet.segments().flatten().copied().collect()
}

/// `length` bytes that differ from those of another `seed`.
fn packet(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|index| (seed * 31 + index * 7 + (index >> 8)) as u8).collect()
}

const ALL: u64 = bits::VERSION_1 | bits::MRG_RXBUF;

fn terms(features: u64) -> Terms {
    Terms { features, wire: 3, buffer_size: 256, mtu: 9000 }
}

/// A pair whose rings a driver has: one for the guest's packets, or for those to it.
fn pair(driver: &Driver, features: u64, is_tx: bool) -> Pair {
    let queue = Queue::new(driver.layout, &driver.memory).unwrap();
    let (ring, memory) = (Some(Ring::new(queue, true)), driver.memory.clone());
    let (rx, tx) = if is_tx { (None, ring) } else { (ring, None) };
    Pair::new(terms(features), memory, rx, tx)
}

fn layout(is_packed: bool, size: u16, base: u16, event_idx: bool) -> Layout {
    let (descriptors, available, used, indirect) = (0, 0x8_0000, 0x9_0000, true);
    let place = ((base & 0x7fff) % size.max(1)) | (base & 0x8000);
    let base = if is_packed { place } else { base };
    let in_order = false;
    Layout { is_packed, size, descriptors, available, used, base, event_idx, indirect, in_order }
}

/// A ring of some size; that of a packed one need not be a power of two.
fn some_layout(max_bits: u32) -> impl Strategy<Value = Layout> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (flags, 3..max_bits, 0_u16..8, any::<u16>()).prop_map(
        |((is_packed, event_idx, in_order), bits, more, base)| {
            let size = (1 << bits) + if is_packed { more } else { 0 };
            Layout { in_order, ..layout(is_packed, size, base, event_idx) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn guests_packets_arrive_whatever_their_chains(
        layout in some_layout(9), is_old: bool,
        lengths in prop::collection::vec((1_usize..6000, 1_usize..7, any::<bool>()), 1..60),
    ) {
        let features = if is_old { 0 } else { ALL };
        let mut driver = Driver::new(layout);
        let mut pair = pair(&driver, features, true);
        let mut card = Card::new(256);
        let header = if is_old { HEADER_BYTES } else { HEADER_BYTES + 2 };
        let (mut waiting, mut heads, mut received) = (Vec::new(), Vec::new(), Vec::new());
        for (seed, &(length, pieces, indirect)) in lengths.iter().enumerate() {
            let frame = packet(seed as u64, length);
            let whole = [vec![0; header], frame.clone()].concat();
            let head = loop {
                if let Some(head) = driver.send(&whole, pieces, indirect) {
                    break head;
                }
                received.extend(card.transmit(&mut pair));
                heads.extend(driver.reclaim());
            };
            waiting.push((head, frame));
            if seed % 3 == 0 {
                received.extend(card.transmit(&mut pair));
            }
        }
        while received.len() < waiting.len() {
            let some = card.transmit(&mut pair);
            prop_assert!(!some.is_empty());
            received.extend(some);
        }
        heads.extend(driver.reclaim());
        // In order, nothing twice, all returned.
        prop_assert_eq!(heads, waiting.iter().map(|&(head, _)| (head, 0)).collect::<Vec<_>>());
        prop_assert_eq!(received, waiting.into_iter().map(|(_, frame)| frame).collect::<Vec<_>>());
        card.assert_conserved(0);
    }

    #[test]
    fn guests_get_packets_whatever_their_chains(
        layout in some_layout(9), mergeable: bool,
        packets in prop::collection::vec(1_usize..4000, 1..40),
        chains in prop::collection::vec((13_u32..3000, 1_usize..4, any::<bool>()), 1..80),
    ) {
        let features = if mergeable { ALL } else { bits::VERSION_1 };
        let mut driver = Driver::new(layout);
        let mut pair = pair(&driver, features, false);
        let mut card = Card::new(256);
        let mut chains = chains.iter();
        let (mut got, mut given) = (Vec::new(), Vec::new());
        for (seed, &length) in packets.iter().enumerate() {
            for &(room, pieces, indirect) in chains.by_ref().take(2) {
                driver.post(room, pieces, indirect);
            }
            let frame = packet(seed as u64, length);
            let before = card.delivered();
            card.deliver(&mut pair, std::slice::from_ref(&frame), |_| {});
            if card.delivered() != before {
                given.push(frame);
            }
            got.extend(driver.received(mergeable));
        }
        prop_assert_eq!(got, given);
        let lost = card.dropped(DropReason::NoDescriptor) + card.dropped(DropReason::Oversize);
        prop_assert_eq!(card.delivered() + lost, packets.len() as u64);
        prop_assert!(mergeable || card.dropped(DropReason::NoDescriptor) <= lost);
        card.assert_conserved(packets.len() as u64);
    }

    #[test]
    fn no_memory_harms_the_card(
        is_tx: bool, features: u64, event_idx: bool, size_bits in 0_u32..7, is_packed: bool,
        writes in prop::collection::vec((any::<u16>(), any::<u64>(), 0_u8..6), 1..200),
    ) {
        let size = 1 << size_bits;
        let driver = Driver::new(layout(is_packed, size, 0x8000, event_idx));
        let mut pair = pair(&driver, features, is_tx);
        let (mut card, mut given) = (Card::new(256), 0);
        for (place, value, kind) in writes {
            let descriptor = u64::from(place % size) * 16;
            // Values near those of honest drivers reach further than random ones.
            let (address, value) = match kind {
                0 => (descriptor, value % 0x20_0100),
                1 => (descriptor + 8, value & 0x3_0007_0000_2fff),
                2 => (0x8_0004 + u64::from(place % size) * 2, value),
                3 => (0x8_0000, (0x8000_u64.wrapping_add((place % 8).into()) << 16) | value & 1),
                4 if is_packed => (descriptor + 8, value & 0x8087_ffff_0000_2fff),
                4 => (PACKETS + descriptor, value & 0x3_0007_0000_2fff),
                _ => (u64::from(place) * 8 + (value & 0xf_0000), value),
            };
            driver.memory.write_obj(value, GuestAddress(address)).unwrap();
            match is_tx {
                true => {
                    card.transmit(&mut pair);
                }
                false => {
                    card.deliver(&mut pair, &[vec![1; 700], vec![2; 60]], |_| {});
                    given += 2;
                }
            }
        }
        card.assert_conserved(given);
    }

    #[test]
    fn no_kick_is_lost(
        layout in some_layout(5), steps in prop::collection::vec(0_u8..3, 1..400),
        pieces in 1_usize..4,
    ) {
        let mut driver = Driver::new(layout);
        let mut pair = pair(&driver, ALL, true);
        pair.tx.as_mut().unwrap().kick = Some(Arc::new(protocol::event()));
        let (mut card, mut due, mut is_kicked) = (Card::new(256), 0_usize, false);
        for step in steps {
            if step == 0 {
                if driver.send(&[0; 60], pieces, false).is_some() {
                    due += 1;
                    is_kicked |= driver.kicks();
                }
                // A device that is not polling has been told.
                prop_assert!(pair.must_poll() || is_kicked || due == 0);
                continue;
            }
            // Many empty polls, after which it may listen; or one.
            for _ in 0..if step == 1 { 70 } else { 1 } {
                due -= card.transmit(&mut pair).len();
                is_kicked = false;
                driver.reclaim();
            }
        }
        due -= card.transmit(&mut pair).len();
        prop_assert_eq!(due, 0);
    }
}

#[test]
fn disabled_rings_lose_packets_both_ways() {
    let mut driver = Driver::new(layout(false, 8, 0, false));
    let (mut pair, mut card) = (pair(&driver, ALL, true), Card::new(256));
    pair.tx.as_mut().unwrap().is_enabled = false;
    driver.send(&[0; 60], 1, false);
    assert!(card.transmit(&mut pair).is_empty());
    assert_eq!(driver.reclaim(), [(0, 0)]);
    card.deliver(&mut pair, &[packet(1, 60)], |_| {});
    assert_eq!(card.dropped(DropReason::RingDisabled), 2);
    card.assert_conserved(1);
}

#[test]
fn packets_wait_in_the_guest_for_buffers_and_room() {
    let mut driver = Driver::new(layout(false, 256, 0, false));
    driver.buffer = 0x1000;
    let (mut pair, mut card) = (pair(&driver, ALL, true), Card::new(256));
    for _ in 0..100 {
        driver.send(&[0; 60], 1, false).unwrap();
    }
    // The tx ring has room for 64.
    for expected in [64, 0] {
        let sent = card.with(|out| {
            let sent = pair.transmit(Time::ZERO, out);
            assert_eq!(out.is_starved(), expected == 0);
            sent
        });
        assert_eq!(sent, expected);
        // No use in polling at once.
        assert_eq!(pair.must_poll(), expected != 0);
    }
    assert_eq!(card.sent(|_| ()).len(), 64);
    assert_eq!(card.transmit(&mut pair).len(), 36);
    assert_eq!(driver.reclaim().len(), 100);
    card.assert_conserved(0);
}

/// An Ethernet header, IPv4 of 20 bytes and TCP of 20, and `payload` bytes.
fn tcp(payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend(((40 + payload) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 80, 1, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|index| index as u8));
    frame
}

#[test]
fn offloads_hold_as_negotiated() {
    let partial = Header { flags: 1, checksum_start: 34, checksum_offset: 16, ..Header::default() };
    let large = Header { gso_type: 1, gso_size: 1448, header_length: 54, ..partial };
    let v6 = Header { gso_type: 4, ..large };
    let known = bits::CSUM | bits::HOST_TSO4 | bits::HOST_TSO6;
    for (features, header, length, fate) in [
        (known, partial, 100, Ok((ChecksumState::Partial, GsoType::None))),
        (known, large, 40_000, Ok((ChecksumState::Partial, GsoType::Tcp4))),
        (0, partial, 100, Ok((ChecksumState::Unknown, GsoType::None))),
        // A guest does not know that its checksum is right.
        (known, Header { flags: 2, ..partial }, 100, Ok((ChecksumState::Unknown, GsoType::None))),
        (bits::CSUM, large, 4000, Err(DropReason::Malformed)),
        (known, Header { flags: 0, ..large }, 4000, Err(DropReason::Malformed)),
        (known, v6, 4000, Err(DropReason::Malformed)),
        (known, Header { gso_size: 0, ..large }, 4000, Err(DropReason::Malformed)),
        (known, Header { gso_type: 3, ..large }, 4000, Err(DropReason::Malformed)),
        (known, partial, 9000, Err(DropReason::Oversize)),
        (known, large, 65_536, Err(DropReason::Oversize)),
    ] {
        let mut driver = Driver::new(layout(false, 8, 0, false));
        let (mut pair, mut card) = (pair(&driver, ALL | features, true), Card::new(2048));
        pair.terms.buffer_size = 2048;
        let whole = [&header.to_bytes()[..], &[0, 0], &tcp(length)].concat();
        driver.send(&whole, 3, true).unwrap();
        card.with(|out| pair.transmit(Time::ZERO, out));
        let seen = card.sent(|packet| (packet.checksum(), packet.gso_type(), packet.wire));
        match fate {
            Ok((checksum, gso)) => assert_eq!(seen, [(checksum, gso, 3)], "{header:?}"),
            Err(reason) => assert_eq!(card.dropped(reason), 1, "{header:?}"),
        }
        card.assert_conserved(0);
    }
}

#[test]
fn guests_get_the_offloads_that_they_know() {
    let large = |packet: &mut Descriptor| {
        packet.set_checksum(ChecksumState::Partial);
        packet.set_gso(GsoType::Tcp4, 1448);
    };
    let deliver = |features: u64, length, change: fn(&mut Descriptor)| {
        let mut driver = Driver::new(layout(false, 64, 0, false));
        let (mut pair, mut card) = (pair(&driver, ALL | features, false), Card::new(2048));
        for _ in 0..32 {
            driver.post(2048, 1, false);
        }
        card.deliver(&mut pair, &[tcp(length)], change);
        let lost = card.dropped(DropReason::SuperFrame);
        let header = driver.last_header();
        (lost, header.filter(|_| lost == 0), driver.received(true))
    };
    let (_, header, frames) = deliver(bits::GUEST_CSUM | bits::GUEST_TSO4, 9000, large);
    let header = header.unwrap();
    assert_eq!((header.flags, header.gso_type, header.gso_size), (1, 1, 1448));
    assert_eq!((header.checksum_start, header.checksum_offset, header.header_length), (34, 16, 54));
    assert_eq!(frames, [tcp(9000)]);
    assert_eq!(deliver(bits::GUEST_CSUM, 9000, large).0, 1);
    // A guest that does not complete checksums gets them completed.
    let (_, header, frames) = deliver(0, 10, |packet| packet.set_checksum(ChecksumState::Partial));
    assert_eq!(header, Some(Header::default()));
    assert_ne!(frames, [tcp(10)]);
    assert_eq!(frames[0][..50], tcp(10)[..50]);
    let good = |packet: &mut Descriptor| packet.set_checksum(ChecksumState::Good);
    assert_eq!(deliver(bits::GUEST_CSUM, 10, good).1.unwrap().flags, 2);
    assert_eq!(deliver(0, 10, good).1.unwrap().flags, 0);
}

/// Memory that drivers share with the device.
pub(super) type Shared = Arc<GuestMemoryMmap>;
