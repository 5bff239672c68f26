//! Packed rings without an in-flight area: the next card finds its place in their descriptors.

use super::super::pair::{Pair, Ring, bits};
use super::super::place;
use super::super::ring::{Layout, Queue};
use super::driver::Driver;
use super::protocol::{Guest, Machine, WANTED, connect_with, start};
use super::restart::{SIZE, Shared};
use super::{ALL, Card, packet, terms};
use picnic_testing::wait_until;
use std::os::unix::fs::FileExt;
use vm_memory::{Bytes, GuestAddress};

impl Shared {
    /// A card that finds its place; the front end's base is of long ago.
    fn finding(&self, is_tx: bool) -> (Pair, Card) {
        let memory = self.map();
        let base = place::find(&self.layout, &memory).expect("a place");
        let queue = Queue::new(Layout { base, ..self.layout }, &memory).unwrap();
        let ring = Some(Ring::new(queue, true));
        let (rx, tx) = if is_tx { (None, ring) } else { (ring, None) };
        (Pair::new(terms(ALL), memory, rx, tx), Card::new(2048))
    }

    fn ring(&self) -> Vec<u8> {
        let mut ring = vec![0; 16 * usize::from(SIZE)];
        self.memory.read_exact_at(&mut ring, self.layout.descriptors).unwrap();
        ring
    }

    /// Where its driver and its card go on, if all that was available is used.
    fn at(&self, passed: u16) -> u16 {
        let whole = place::after(self.layout.base, passed % SIZE, SIZE);
        whole ^ if passed / SIZE % 2 == 1 { 0x8000 } else { 0 }
    }
}

fn frames(from: u64, count: u64) -> Vec<Vec<u8>> {
    (from..from + count).map(|seed| packet(seed, 300)).collect()
}

fn offer(driver: &mut Driver, frames: &[Vec<u8>], is_tx: bool) {
    for frame in frames {
        let is_there = match is_tx {
            true => driver.send(&[vec![0; 12], frame.clone()].concat(), 3, true),
            false => driver.post(600, 2, true),
        };
        assert!(is_there.is_some());
    }
}

#[test]
fn a_card_that_was_killed_anywhere_in_a_burst_is_followed_at_the_right_place() {
    const BURST: u16 = 6;
    // Around both ends of the ring, in odd passes and even ones.
    let passed = [0, 1, 2, 3, 4, 5, 6, 7, 30, 63, 65, 68, 70, 71, 134];
    for (is_tx, passed) in [false, true].into_iter().flat_map(|is_tx| passed.map(|p| (is_tx, p))) {
        // Of the burst's used descriptors, the first is written last.
        for cut in 0..=BURST {
            let (shared, mut driver) = Shared::new(true, false);
            driver.buffer = 0x1000;
            let (mut pair, mut card) = shared.finding(is_tx);
            for seed in 0..passed {
                offer(&mut driver, &frames(seed, 1), is_tx);
                match is_tx {
                    true => drop(card.transmit(&mut pair)),
                    false => card.deliver(&mut pair, &frames(seed, 1), |_| {}),
                }
                assert_eq!(driver.reclaim().len(), 1);
            }
            let (first, second) = (frames(900, BURST.into()), frames(500, 4));
            offer(&mut driver, &first, is_tx);
            if !is_tx {
                // A driver keeps its ring for packets full.
                while driver.post(600, 1, false).is_some() {}
            }
            let before = shared.ring();
            match is_tx {
                true => drop(card.transmit(&mut pair)),
                false => card.deliver(&mut pair, &first, |_| {}),
            }
            let mut state = shared.ring();
            let start = shared.at(passed as u16);
            for step in if cut == BURST { BURST..BURST } else { cut..BURST } {
                let at = place::after(start, (step + 1) % BURST, SIZE) & 0x7fff;
                let half = usize::from(at) * 16 + 8..usize::from(at) * 16 + 16;
                state[half.clone()].copy_from_slice(&before[half]);
            }
            shared.memory.write_all_at(&state, 0).unwrap();
            drop((pair, card));
            let (mut pair, mut card) = shared.finding(is_tx);
            let at = format!("tx: {is_tx}, {passed} packets before, cut at {cut}");
            // The first one's chain is returned with those that were written.
            let lost = if cut == 0 || cut == BURST { 0 } else { 1 + cut };
            if is_tx {
                let again = if cut == BURST { &[][..] } else { &first[lost.into()..] };
                assert_eq!(card.transmit(&mut pair), again, "{at}");
                assert_eq!(driver.reclaim().len(), usize::from(BURST), "{at}");
                offer(&mut driver, &second, true);
                assert_eq!(card.transmit(&mut pair), second, "{at}");
            } else {
                let shown = if cut == BURST { &first[..] } else { &[] };
                assert_eq!(driver.received(true), shown, "{at}");
                card.deliver(&mut pair, &second, |_| {});
                assert_eq!(driver.received(true), second, "{at}");
            }
        }
    }
}

#[test]
fn rings_whose_descriptors_tell_no_place_are_left_alone() {
    // Chains of two descriptors, the second of which stays as it was.
    let (shared, mut driver) = Shared::new(true, false);
    let (mut pair, mut card) = shared.finding(true);
    for _ in 0..3 {
        driver.send(&[vec![0; 12], packet(1, 60)].concat(), 2, false).unwrap();
    }
    assert_eq!(card.transmit(&mut pair).len(), 3);
    assert_eq!(place::find(&shared.layout, &shared.map()), None);
    // Any flags, and descriptors outside the memory.
    for index in 0..u64::from(SIZE) {
        let flags: u16 = if index % 3 == 0 { 0x8080 } else { 0x80 };
        shared.map().write_obj(flags, GuestAddress(16 * index + 14)).unwrap();
    }
    let before = shared.ring();
    assert_eq!(place::find(&shared.layout, &shared.map()), None);
    let outside = Layout { descriptors: u64::MAX - 15, ..shared.layout };
    assert_eq!(place::find(&outside, &shared.map()), None);
    assert!(shared.ring() == before);
}

#[test]
fn packed_rings_go_on_after_a_restart_with_an_old_base() {
    let machine = Machine::new("packed = true");
    let mut guest = Guest::with(true);
    for round in 0..8 {
        let mut front = connect_with(&machine.socket, WANTED | bits::RING_PACKED);
        start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
        for frame in frames(100 * round, 17) {
            offer(&mut guest.tx, std::slice::from_ref(&frame), true);
            guest.kicks[1].write(1).unwrap();
            wait_until("a packet of the guest", || machine.look().sent == [frame.clone()]);
            offer(&mut guest.rx, &[vec![]], false);
            machine.deliver(std::slice::from_ref(&frame));
            assert_eq!(guest.rx.received(true), [frame], "{round}");
            assert_eq!(guest.tx.reclaim().len(), 1);
        }
    }
    assert_eq!(machine.end().no_descriptor, 0);
}
