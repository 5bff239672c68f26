//! Both formats of rings: chains and indices that are wrong, places, interrupts.

use super::super::ring::{BrokenRing, Layout, Queue};
use super::driver::{self, Driver, PACKETS, memory};
use super::protocol::event;
use super::{ALL, Card, layout, packet, pair};
use picnic_core::ledger::DropReason;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vm_memory::{Bytes, GuestAddress};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn an_interrupt_comes_when_its_place_is_passed(
        is_packed: bool, more in 0_u16..8, base: u16,
        bursts in prop::collection::vec((1_u16..4, 1_u16..3, 0_u16..14), 1..60),
    ) {
        let size = 16 + if is_packed { more } else { 0 };
        let mut driver = Driver::new(layout(is_packed, size, base, true));
        let (mut pair, mut card) = (pair(&driver, ALL, true), Card::new(256));
        let call = Arc::new(event());
        pair.tx.as_mut().unwrap().call = Some(call.clone());
        for (burst, (chains, pieces, wish)) in bursts.into_iter().enumerate() {
            driver.wish_interrupt(Some(wish));
            for _ in 0..chains {
                driver.send(&[0; 60], pieces.into(), false).unwrap();
            }
            prop_assert_eq!(card.transmit(&mut pair).len(), usize::from(chains));
            let passed = if is_packed { chains * pieces } else { chains };
            let is_interrupted = rustix::io::read(&*call, &mut [0; 8]).is_ok();
            prop_assert_eq!(is_interrupted, burst == 0 || wish < passed);
            driver.reclaim();
        }
    }
}

#[test]
fn packets_in_order_return_by_one_descriptor() {
    for in_order in [false, true] {
        let layout = Layout { in_order, ..layout(true, 16, 0x8000, false) };
        let mut driver = Driver::new(layout);
        let (mut pair, mut card) = (pair(&driver, ALL, true), Card::new(256));
        let heads: Vec<_> = (0..5).map(|_| driver.send(&[0; 60], 1, false).unwrap()).collect();
        assert_eq!(card.transmit(&mut pair).len(), heads.len());
        // Flags of the descriptors, and the number of the first.
        let word = |at: u64| driver.memory.read_obj::<u16>(GuestAddress(at)).unwrap();
        let used = (0..5).filter(|place| word(16 * place + 14) == 0x8080).count();
        let expected = if in_order { (1, heads[4]) } else { (5, heads[0]) };
        assert_eq!((used, word(12)), expected);
        assert_eq!(driver.reclaim(), heads.iter().map(|&head| (head, 0)).collect::<Vec<_>>());
        assert_eq!(pair.tx.unwrap().queue.base(), 0x8005);
    }
}

#[test]
fn the_driver_is_asked_for_chains_once_a_burst() {
    for is_packed in [false, true] {
        let base = if is_packed { 0x8000 } else { 0 };
        let mut driver = Driver::new(layout(is_packed, 16, base, false));
        let (mut pair, mut card) = (pair(&driver, ALL, false), Card::new(256));
        for (posted, expected) in [(2, 2), (0, 0), (3, 3)] {
            assert!((0..posted).all(|_| driver.post(100, 1, false).is_some()));
            let before = card.delivered();
            card.deliver(&mut pair, &[packet(1, 60), packet(2, 60), packet(3, 60)], |_| {});
            assert_eq!(card.delivered() - before, expected, "packed: {is_packed}");
            assert_eq!(driver.received(true).len() as u64, expected, "packed: {is_packed}");
        }
        assert_eq!(card.dropped(DropReason::NoDescriptor), 4);
        card.assert_conserved(9);
    }
}

#[test]
fn rings_go_on_at_every_place() {
    for (is_packed, size) in [(false, 1), (false, 8), (true, 1), (true, 3), (true, 8), (true, 13)] {
        for is_tx in [true, false] {
            let start = if is_packed { 0x8000 } else { u16::MAX - 3 };
            let mut driver = Driver::new(layout(is_packed, size, start, false));
            let mut card = Card::new(256);
            for round in 0..5 * u64::from(size) {
                let mut pair = pair(&driver, ALL, is_tx);
                let pieces = 1 + (round % u64::from(size.min(3))) as usize;
                if is_tx {
                    let whole = [vec![0; 12], packet(round, 80)].concat();
                    driver.send(&whole, pieces, false).unwrap();
                    assert_eq!(card.transmit(&mut pair), [packet(round, 80)]);
                    assert_eq!(driver.reclaim().len(), 1);
                } else {
                    driver.post(100, pieces, false).unwrap();
                    card.deliver(&mut pair, &[packet(round, 80)], |_| {});
                    assert_eq!(driver.received(true), [packet(round, 80)]);
                }
                let ring = if is_tx { pair.tx } else { pair.rx };
                driver.layout.base = ring.unwrap().queue.base();
            }
            card.assert_conserved(if is_tx { 0 } else { 5 * u64::from(size) });
        }
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
    let rx: &[(&str, Hostile)] = &[
        ("a runt", &[(PACKETS, 11, 2, 0)]),
        ("nothing", &[(PACKETS, 0, 2, 0)]),
        ("memory to be read", &[(PACKETS, 2000, 0, 0)]),
        ("memory that the guest lacks", &[(1 << 40, 2000, 2, 0)]),
        ("a loop", &[(PACKETS, 2000, 3, 0)]),
    ];
    // The others need links, which only split rings have.
    let has_chain = |is_packed: bool, chain: Hostile| {
        !is_packed
            || chain.iter().rev().enumerate().all(|(place, it)| (it.2 & 1 == 1) == (place > 0))
    };
    for is_packed in [false, true] {
        for &(what, chain) in tx.iter().filter(|(_, chain)| has_chain(is_packed, chain)) {
            let mut driver = Driver::new(layout(is_packed, 8, 65_535, false));
            let (mut pair, mut card) = (pair(&driver, ALL, true), Card::new(256));
            driver.put(TABLE, &[(TABLE, 16, 4, 4), (PACKETS, 60, 0, 0)]);
            driver.make(chain);
            let good = [vec![0; 12], packet(1, 80)].concat();
            assert!(card.transmit(&mut pair).is_empty(), "{what}");
            assert_eq!(card.dropped(DropReason::BadDescriptor), 1, "{what}");
            assert_eq!(driver.reclaim(), [(0, 0)], "{what}");
            driver.send(&good, 2, false);
            assert_eq!(card.transmit(&mut pair), [packet(1, 80)], "{what}");
            card.assert_conserved(0);
        }
        for &(what, chain) in rx.iter().filter(|(_, chain)| has_chain(is_packed, chain)) {
            let mut driver = Driver::new(layout(is_packed, 8, 3, true));
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
}

#[test]
fn a_bad_ring_is_not_used_again() {
    // Writes of 16 bits after the driver has sent a packet.
    type Writes = &'static [(u64, u16)];
    let rings: [(&str, bool, Writes); 4] = [
        ("more chains than it has", false, &[(0x8_0002, 9)]),
        ("a chain that it lacks", false, &[(0x8_0004, 8)]),
        ("a part of a chain", true, &[(14, 0x81)]),
        (
            "a chain longer than the ring",
            true,
            &[
                (14, 0x81),
                (30, 0x81),
                (46, 0x81),
                (62, 0x81),
                (78, 0x81),
                (94, 0x81),
                (110, 0x81),
                (126, 0x81),
            ],
        ),
    ];
    for (what, is_packed, writes) in rings {
        for is_tx in [true, false] {
            let mut driver =
                Driver::new(layout(is_packed, 8, if is_packed { 0x8000 } else { 0 }, false));
            let (mut pair, mut card) = (pair(&driver, ALL, is_tx), Card::new(256));
            let error = Arc::new(event());
            let ring = if is_tx { &mut pair.tx } else { &mut pair.rx };
            ring.as_mut().unwrap().error = Some(error.clone());
            driver.send(&[0; 60], 1, false);
            for &(address, value) in writes {
                driver.memory.write_obj(value, GuestAddress(address)).unwrap();
            }
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
    let (good, packed) = (layout(false, 256, 0, true), layout(true, 100, 0, true));
    assert!(Queue::new(good, &memory).is_ok());
    assert!(Queue::new(packed, &memory).is_ok());
    for (wrong, why) in [
        (Layout { size: 0, ..packed }, "not 1 to 32768"),
        (Layout { size: 32_769, ..packed }, "not 1 to 32768"),
        (Layout { base: 100, ..packed }, "a descriptor that it lacks"),
        (Layout { available: 2, ..packed }, "aligned"),
        (Layout { used: driver::MEMORY, ..packed }, "not in the guest's memory"),
        (Layout { descriptors: driver::SECOND - 16, ..packed }, "not in the guest's memory"),
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
        let BrokenRing(found) = Queue::new(wrong, &memory).unwrap_err();
        assert!(found.contains(why), "{wrong:?}: {found}");
    }
}

#[test]
fn interrupts_follow_the_drivers_wish() {
    for (is_packed, event_idx) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut driver = Driver::new(layout(is_packed, 16, 65_530, event_idx));
        let (mut pair, mut card) = (pair(&driver, ALL, true), Card::new(256));
        let call = Arc::new(event());
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
            driver.wish_interrupt(wish.then_some(0));
            assert_eq!(interrupted(&mut driver), wish, "packed {is_packed}, index {event_idx}");
        }
    }
}

#[test]
fn a_table_is_read_once_even_if_it_changes() {
    const TABLE: u64 = PACKETS + 0x1000;
    const ROUNDS: usize = 4000;
    for is_packed in [false, true] {
        let base = if is_packed { 0x8000 } else { 0 };
        let mut driver = Driver::new(layout(is_packed, 8, base, false));
        let (mut pair, mut card) = (pair(&driver, ALL, true), Card::new(256));
        driver.put(TABLE, &[(PACKETS, 60, 1, 1), (PACKETS, 100, 0, 0)]);
        let memory = driver.memory.clone();
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = is_over.clone();
        // Its length, within a descriptor that the device may be reading.
        let changer = std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                for length in [16_u32, 32, 24, 0, u32::MAX - 15, 32] {
                    memory.write_obj(length, GuestAddress(8)).unwrap();
                }
            }
        });
        let (mut whole, mut seen) = (0, 0);
        for _ in 0..ROUNDS {
            if is_packed {
                // One descriptor, at the first place of a ring that starts again.
                driver = Driver::over(driver.memory.clone(), driver.layout);
                pair = super::pair(&driver, ALL, true);
            }
            driver.make(&[(TABLE, 32, 4, 0)]);
            let packets = card.transmit(&mut pair);
            // A used packed descriptor has its length where that of the table was.
            assert!(is_packed || driver.reclaim().len() == 1);
            for packet in &packets {
                // One entry alone, or both: no mixture of two lengths.
                assert!([48, 148].contains(&packet.len()), "{} bytes", packet.len());
                whole += usize::from(packet.len() == 148);
            }
            seen += packets.len();
        }
        is_over.store(true, Ordering::Relaxed);
        changer.join().unwrap();
        assert!(whole > 0);
        assert_eq!(seen as u64 + card.dropped(DropReason::BadDescriptor), ROUNDS as u64);
        card.assert_conserved(0);
    }
}
