//! The rings against a driver in this process, honest or not.

mod driver;
mod hostile;
mod migration;
mod protocol;

use super::memory::GuestMemoryMmap;
use super::pair::{Pair, Ring, Terms, bits};
use super::ring::{BrokenRing, Layout, SplitRing};
use crate::virtio::{HEADER_BYTES, Header};
use driver::{Driver, PACKETS, memory};
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
    let split = SplitRing::new(driver.layout, &driver.memory).unwrap();
    let (ring, memory) = (Some(Ring::new(split, true)), driver.memory.clone());
    let (rx, tx) = if is_tx { (None, ring) } else { (ring, None) };
    Pair::new(terms(features), memory, rx, tx)
}

fn layout(size: u16, base: u16, event_idx: bool) -> Layout {
    let (descriptors, available, used) = (0, 0x8_0000, 0x9_0000);
    Layout { size, descriptors, available, used, base, event_idx, indirect: true }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn guests_packets_arrive_whatever_their_chains(
        size_bits in 3_u32..9, base: u16, event_idx: bool, is_old: bool,
        lengths in prop::collection::vec((1_usize..6000, 1_usize..7, any::<bool>()), 1..60),
    ) {
        let features = if is_old { 0 } else { ALL };
        let mut driver = Driver::new(layout(1 << size_bits, base, event_idx));
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
        size_bits in 3_u32..9, base: u16, event_idx: bool, mergeable: bool,
        packets in prop::collection::vec(1_usize..4000, 1..40),
        chains in prop::collection::vec((13_u32..3000, 1_usize..4, any::<bool>()), 1..80),
    ) {
        let features = if mergeable { ALL } else { bits::VERSION_1 };
        let mut driver = Driver::new(layout(1 << size_bits, base, event_idx));
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
        is_tx: bool, features: u64, event_idx: bool, size_bits in 0_u32..7,
        writes in prop::collection::vec((any::<u16>(), any::<u64>(), 0_u8..6), 1..200),
    ) {
        let size = 1 << size_bits;
        let driver = Driver::new(layout(size, 0, event_idx));
        let mut pair = pair(&driver, features, is_tx);
        let (mut card, mut given) = (Card::new(256), 0);
        for (place, value, kind) in writes {
            let descriptor = u64::from(place % size) * 16;
            // Values near those of honest drivers reach further than random ones.
            let (address, value) = match kind {
                0 => (descriptor, value % 0x20_0100),
                1 => (descriptor + 8, value & 0x3_0007_0000_2fff),
                2 => (0x8_0004 + u64::from(place % size) * 2, value),
                3 => (0x8_0000, (u64::from(place % 8) << 16) | value & 1),
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
    fn no_kick_is_lost(event_idx: bool, base: u16, steps in prop::collection::vec(0_u8..3, 1..400)) {
        let mut driver = Driver::new(layout(16, base, event_idx));
        let mut pair = pair(&driver, ALL, true);
        pair.tx.as_mut().unwrap().kick = Some(Arc::new(protocol::event()));
        let (mut card, mut due, mut is_kicked) = (Card::new(256), 0_usize, false);
        for step in steps {
            if step == 0 {
                if driver.send(&[0; 60], 1, false).is_some() {
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

/// A chain that a hostile driver makes: descriptors of (address, length, flags, next).
type Hostile = &'static [(u64, u32, u16, u16)];

#[test]
fn a_bad_chain_costs_one_packet() {
    const TABLE: u64 = PACKETS + 0x1000;
    let tx: &[(&str, Hostile)] = &[
        ("a loop of one", &[(PACKETS, 60, 1, 0)]),
        ("a loop of two", &[(PACKETS, 60, 1, 1), (PACKETS, 60, 1, 0)]),
        ("a descriptor that the ring lacks", &[(PACKETS, 60, 1, 8)]),
        ("memory that the guest lacks", &[(1 << 40, 60, 0, 0)]),
        ("memory that ends too early", &[(driver::MEMORY - 10, 60, 0, 0)]),
        ("memory beyond all addresses", &[(u64::MAX - 5, 60, 0, 0)]),
        ("memory to be written", &[(PACKETS, 60, 2, 0)]),
        ("memory for nothing, again and again", &[(PACKETS, 0, 1, 0)]),
        ("less than a header", &[(PACKETS, 11, 0, 0)]),
        ("a table of no descriptors", &[(PACKETS, 0, 4, 0)]),
        ("a table of half a descriptor", &[(PACKETS, 24, 4, 0)]),
        ("a table with a successor", &[(TABLE, 32, 5, 1), (PACKETS, 60, 0, 0)]),
        ("a table that the guest lacks", &[(1 << 40, 32, 4, 0)]),
        ("a table in a table", &[(TABLE, 32, 4, 0)]),
    ];
    for &(what, chain) in tx {
        let mut driver = Driver::new(layout(8, 65_535, false));
        let (mut pair, mut card) = (pair(&driver, ALL, true), Card::new(256));
        driver.put(TABLE, &[(TABLE, 16, 4, 0), (PACKETS, 60, 0, 0)]);
        driver.make(chain);
        let good = [vec![0; 12], packet(1, 80)].concat();
        assert!(card.transmit(&mut pair).is_empty(), "{what}");
        assert_eq!(card.dropped(DropReason::BadDescriptor), 1, "{what}");
        assert_eq!(driver.reclaim(), [(0, 0)], "{what}");
        driver.send(&good, 2, false);
        assert_eq!(card.transmit(&mut pair), [packet(1, 80)], "{what}");
        card.assert_conserved(0);
    }
    let rx: &[(&str, Hostile)] = &[
        ("a runt", &[(PACKETS, 11, 2, 0)]),
        ("nothing", &[(PACKETS, 0, 2, 0)]),
        ("memory to be read", &[(PACKETS, 2000, 0, 0)]),
        ("memory that the guest lacks", &[(1 << 40, 2000, 2, 0)]),
        ("a loop", &[(PACKETS, 2000, 3, 0)]),
    ];
    for &(what, chain) in rx {
        let mut driver = Driver::new(layout(8, 3, true));
        let (mut pair, mut card) = (pair(&driver, ALL, false), Card::new(256));
        driver.make(chain);
        card.deliver(&mut pair, &[packet(1, 80)], |_| {});
        assert_eq!(card.dropped(DropReason::BadDescriptor), 1, "{what}");
        assert_eq!(driver.reclaim(), [(0, 0)], "{what}");
        driver.post(2000, 1, false);
        card.deliver(&mut pair, &[packet(2, 80)], |_| {});
        assert_eq!(driver.received(true), [packet(2, 80)], "{what}");
        card.assert_conserved(2);
    }
}

#[test]
fn a_bad_ring_is_not_used_again() {
    for (what, address, value) in
        [("more chains than it has", 0x8_0002, 9_u16), ("a chain that it lacks", 0x8_0004, 8)]
    {
        for is_tx in [true, false] {
            let mut driver = Driver::new(layout(8, 0, false));
            let (mut pair, mut card) = (pair(&driver, ALL, is_tx), Card::new(256));
            let error = Arc::new(protocol::event());
            let ring = if is_tx { &mut pair.tx } else { &mut pair.rx };
            ring.as_mut().unwrap().error = Some(error.clone());
            driver.send(&[0; 60], 1, false);
            driver.memory.write_obj(value, GuestAddress(address)).unwrap();
            for _ in 0..3 {
                match is_tx {
                    true => assert!(card.transmit(&mut pair).is_empty(), "{what}"),
                    false => card.deliver(&mut pair, &[packet(0, 60)], |_| {}),
                }
            }
            assert!(!pair.must_poll(), "{what}");
            let mut count = [0; 8];
            assert_eq!(rustix::io::read(&*error, &mut count), Ok(8), "{what}");
            assert_eq!(u64::from_ne_bytes(count), 1, "{what}");
            let lost = if is_tx { (0, 0) } else { (1, 2) };
            let reasons = [DropReason::BadDescriptor, DropReason::RingDisabled];
            assert_eq!(reasons.map(|reason| card.dropped(reason)), [lost.0, lost.1], "{what}");
            card.assert_conserved(if is_tx { 0 } else { 3 });
        }
    }
}

#[test]
fn rings_are_where_the_guest_has_memory() {
    let memory = memory();
    let good = layout(256, 0, true);
    assert!(SplitRing::new(good, &memory).is_ok());
    for (wrong, why) in [
        (Layout { size: 100, ..good }, "power of two"),
        (Layout { size: 0, ..good }, "power of two"),
        (Layout { descriptors: 8, ..good }, "aligned"),
        (Layout { available: 1, ..good }, "aligned"),
        (Layout { used: 2, ..good }, "aligned"),
        (Layout { used: driver::MEMORY, ..good }, "not in the guest's memory"),
        (Layout { available: driver::MEMORY - 16, ..good }, "not in the guest's memory"),
        // Contiguous for the guest, but not here.
        (Layout { descriptors: driver::SECOND - 16, ..good }, "not in the guest's memory"),
    ] {
        let BrokenRing(found) = SplitRing::new(wrong, &memory).unwrap_err();
        assert!(found.contains(why), "{wrong:?}: {found}");
    }
}

#[test]
fn disabled_rings_lose_packets_both_ways() {
    let mut driver = Driver::new(layout(8, 0, false));
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
    let mut driver = Driver::new(layout(256, 0, false));
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
        let mut driver = Driver::new(layout(8, 0, false));
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
        let mut driver = Driver::new(layout(64, 0, false));
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

#[test]
fn interrupts_follow_the_drivers_wish() {
    for event_idx in [false, true] {
        let mut driver = Driver::new(layout(16, 65_530, event_idx));
        let (mut pair, mut card) = (pair(&driver, ALL, true), Card::new(256));
        let call = Arc::new(protocol::event());
        pair.tx.as_mut().unwrap().call = Some(call.clone());
        let mut interrupted = |driver: &mut Driver| {
            driver.send(&[0; 60], 1, false).unwrap();
            assert_eq!(card.transmit(&mut pair).len(), 1);
            driver.reclaim();
            rustix::io::read(&*call, &mut [0; 8]).is_ok()
        };
        // The first always: what the driver wished before is not known.
        assert!(interrupted(&mut driver));
        for wish in [true, false, false, true, true] {
            driver.wish_interrupt(wish);
            assert_eq!(interrupted(&mut driver), wish, "event_idx {event_idx}");
        }
    }
}

/// Memory that drivers share with the device.
pub(super) type Shared = Arc<GuestMemoryMmap>;
