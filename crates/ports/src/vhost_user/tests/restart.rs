//! A card that ends in the middle of a burst, and the next one, which goes on with the rings.

use super::super::inflight::Inflight;
use super::super::memory::GuestMemoryMmap;
use super::super::pair::{Pair, Ring};
use super::super::place;
use super::super::ring::{Layout, Queue};
use super::driver::{self, Driver};
use super::protocol::{self, Guest, Machine, assert_passes, connect, start};
use super::{ALL, Card, layout, packet, terms};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::{FileOffset, GuestAddress};

/// The memory that outlives a card: the guest's, and the in-flight area.
pub(super) struct Shared {
    pub(super) layout: Layout,
    pub(super) memory: File,
    area: File,
    described: VhostUserInflight,
}

/// The ring that is tested has the second part of the area.
const RING: usize = 1;
pub(super) const SIZE: u16 = 64;
const SPLIT_PART: u64 = (16_u64 + 16 * SIZE as u64).next_multiple_of(64);
const PACKED_PART: u64 = (32_u64 + 32 * SIZE as u64).next_multiple_of(64);

impl Shared {
    /// Its ring starts short of its end.
    pub(super) fn new(is_packed: bool, in_order: bool) -> (Self, Driver) {
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&memory, driver::MEMORY).unwrap();
        let asked = VhostUserInflight::new(0, 0, 2, SIZE);
        let (described, area) = Inflight::make(&asked, 2, is_packed).unwrap();
        let layout = Layout { in_order, ..layout(is_packed, SIZE, 65_530, false) };
        let shared = Shared { layout, memory, area, described };
        let driver = Driver::over(shared.map(), layout);
        (shared, driver)
    }

    pub(super) fn map(&self) -> Arc<GuestMemoryMmap> {
        let file = FileOffset::new(self.memory.try_clone().unwrap(), 0);
        let ranges = [(GuestAddress(0), driver::MEMORY as usize, Some(file))];
        Arc::new(GuestMemoryMmap::from_ranges_with_files(ranges).unwrap())
    }

    /// A card that goes on. The front end gives it the base of an unused ring.
    fn card(&self, is_tx: bool) -> (Pair, Card) {
        let (memory, bell) = (self.map(), Arc::new(protocol::event().into()));
        let file = self.area.try_clone().unwrap();
        let packed = self.layout.is_packed;
        let inflight = Inflight::new(&self.described, file, 2, packed, &bell).unwrap();
        let inflight = Arc::new(inflight);
        let base = inflight.resume(RING, &self.layout, &memory).unwrap();
        let layout = Layout { base: base.unwrap_or(self.layout.base), ..self.layout };
        let queue = Queue::new(layout, &memory).unwrap().recorded(inflight.part(RING));
        let ring = Some(Ring::new(queue, true));
        let (rx, tx) = if is_tx { (None, ring) } else { (ring, None) };
        (Pair::new(terms(ALL), memory, rx, tx), Card::new(2048))
    }

    /// The guest's memory, and the area after it.
    fn content(&self) -> Vec<u8> {
        let memory = driver::MEMORY as usize;
        let mut content = vec![0; memory + self.described.mmap_size as usize];
        let (first, second) = content.split_at_mut(memory);
        self.memory.read_exact_at(first, 0).unwrap();
        self.area.read_exact_at(second, 0).unwrap();
        content
    }

    fn restore(&self, content: &[u8]) {
        let (first, second) = content.split_at(driver::MEMORY as usize);
        self.memory.write_all_at(first, 0).unwrap();
        self.area.write_all_at(second, 0).unwrap();
    }

    /// The pieces of [`Shared::content`] that a burst changes, in the order in which the card
    /// changes them, after the buffers; and the number of the step that decides for the burst.
    fn order(&self) -> (Vec<Vec<Range<usize>>>, usize) {
        let one = |piece: Range<usize>| vec![piece];
        let (base, size) = (usize::from(self.layout.base & 0x7fff), usize::from(SIZE));
        let slots = (0..size).map(|slot| (base + slot) % size);
        if !self.layout.is_packed {
            let used = self.layout.used as usize;
            let entries = slots.map(|slot| one(used + 4 + 8 * slot..used + 12 + 8 * slot));
            return (entries.chain([one(used + 2..used + 4)]).collect(), size);
        }
        let part = driver::MEMORY as usize + PACKED_PART as usize;
        let half = |slot: usize| one(16 * slot + 8..16 * slot + 16);
        let notes = slots.clone().map(|slot| one(part + 32 + 32 * slot..part + 64 + 32 * slot));
        let begin = vec![part + 16..part + 18, part + 20..part + 21];
        let end = vec![part + 18..part + 20, part + 21..part + 22];
        let ring = slots.skip(1).map(half).chain([half(base % size)]);
        (notes.chain([begin]).chain(ring).chain([end]).collect(), size)
    }

    /// A state of memory during a burst, and whether the burst counts as returned; none if the burst
    /// has no more steps.
    fn state(&self, before: &[u8], after: &[u8], cut: usize) -> Option<(Vec<u8>, bool)> {
        let (order, decides) = self.order();
        let copy = |state: &mut [u8], from: &[u8], pieces: &[Range<usize>]| {
            for piece in pieces {
                state[piece.clone()].copy_from_slice(&from[piece.clone()]);
            }
        };
        // The buffers first.
        let mut state = after.to_vec();
        order.iter().for_each(|pieces| copy(&mut state, before, pieces));
        if cut == 0 {
            return Some((before.to_vec(), false));
        }
        let changes = |pieces: &&Vec<_>| {
            pieces.iter().any(|piece: &Range<usize>| before[piece.clone()] != after[piece.clone()])
        };
        let changed = order.iter().filter(changes).count();
        let mut is_returned = false;
        for pieces in order.iter().filter(changes).take(cut - 1) {
            copy(&mut state, after, pieces);
            is_returned |= *pieces == order[decides];
        }
        assert!(cut <= changed || state == after, "a burst changes something else");
        (cut <= changed + 1).then_some((state, is_returned))
    }
}

#[test]
fn a_burst_that_is_cut_off_is_neither_doubled_nor_lost() {
    const BURST: usize = 7;
    let frames = |from: usize| -> Vec<Vec<u8>> {
        (0..BURST).map(|seed| packet((from + seed) as u64, 300)).collect()
    };
    for kind in 0..8 {
        let [is_packed, is_tx, in_order] = [1, 2, 4].map(|bit| kind & bit != 0);
        for cut in 0.. {
            let (shared, mut driver) = Shared::new(is_packed, in_order);
            let (mut pair, mut card) = shared.card(is_tx);
            let (first, second) = (frames(0), frames(50));
            for frame in &first {
                let is_there = match is_tx {
                    true => driver.send(&[vec![0; 12], frame.clone()].concat(), 2, true),
                    false => driver.post(600, 2, false),
                };
                assert!(is_there.is_some());
            }
            let before = shared.content();
            let sent = match is_tx {
                true => card.transmit(&mut pair),
                false => {
                    card.deliver(&mut pair, &first, |_| {});
                    Vec::new()
                }
            };
            let Some((state, is_shown)) = shared.state(&before, &shared.content(), cut) else {
                // A note, both places and a descriptor, if one stands for all.
                let least = if is_packed && is_tx && in_order { 4 } else { BURST + 1 };
                assert!(cut > least, "{cut}");
                break;
            };
            // The card ends here. Packets reach its wires only after the burst.
            shared.restore(&state);
            drop((pair, card));
            let (mut pair, mut card) = shared.card(is_tx);
            let at = format!("packed: {is_packed}, tx: {is_tx}, in order: {in_order}, at {cut}");
            if is_tx {
                let again = card.transmit(&mut pair);
                let before = if is_shown { sent } else { Vec::new() };
                assert_eq!([before, again].concat(), first, "{at}");
                assert_eq!(driver.reclaim().len(), BURST, "{at}");
            } else {
                // Packets that were not shown are lost with the card; their buffers are used again.
                let expected = if is_shown { first } else { Vec::new() };
                assert_eq!(driver.received(true), expected, "{at}");
                if is_shown {
                    assert!((0..BURST).all(|_| driver.post(600, 1, false).is_some()));
                }
                card.deliver(&mut pair, &second, |_| {});
                assert_eq!(driver.received(true), second, "{at}");
            }
        }
    }
}

#[test]
fn chains_that_another_back_end_left_are_all_returned() {
    for is_in_order in [true, false] {
        let (shared, mut driver) = Shared::new(false, false);
        drop(shared.card(true));
        let frames: Vec<_> = (0..4).map(|seed| packet(seed, 200)).collect();
        let heads: Vec<u16> = frames
            .iter()
            .map(|frame| driver.send(&[vec![0; 12], frame.clone()].concat(), 1, false).unwrap())
            .collect();
        // It took three; if out of order, it has returned the second of them.
        let part = SPLIT_PART;
        let left = if is_in_order { vec![0, 1, 2] } else { vec![0, 2] };
        for (counter, &chain) in left.iter().enumerate() {
            let at = part + 16 + 16 * u64::from(heads[chain]);
            shared.area.write_all_at(&[1], at).unwrap();
            shared.area.write_all_at(&(counter as u64).to_ne_bytes(), at + 8).unwrap();
        }
        if !is_in_order {
            let used = shared.layout.used;
            let slot = u64::from(shared.layout.base % 64);
            let entry = u64::from(heads[1]).to_le_bytes();
            shared.memory.write_all_at(&entry, used + 4 + 8 * slot).unwrap();
            let index = shared.layout.base.wrapping_add(1).to_le_bytes();
            shared.memory.write_all_at(&index, used + 2).unwrap();
            // The entry of the batch that it returned last may still say "in flight".
            let at = part + 16 + 16 * u64::from(heads[1]);
            shared.area.write_all_at(&[1], at).unwrap();
            shared.area.write_all_at(&heads[1].to_ne_bytes(), part + 12).unwrap();
        }
        let (mut pair, mut card) = shared.card(true);
        let sent = card.transmit(&mut pair);
        let expected = if is_in_order { &frames[..] } else { &frames[3..] };
        assert_eq!(sent, expected, "in order: {is_in_order}");
        let mut returned: Vec<u16> = driver.reclaim().into_iter().map(|(head, _)| head).collect();
        returned.sort_unstable();
        let mut heads = heads;
        heads.sort_unstable();
        assert_eq!(returned, heads, "in order: {is_in_order}");
        // And again, with nothing in flight.
        drop((pair, card));
        let (mut pair, mut card) = shared.card(true);
        assert!(card.transmit(&mut pair).is_empty());
        driver.send(&[vec![0; 12], packet(9, 99)].concat(), 1, false).unwrap();
        assert_eq!(card.transmit(&mut pair), [packet(9, 99)]);
    }
}

/// Another back end of a packed ring, which keeps the record that the specification describes, and is
/// killed after some writes.
struct Other<'s> {
    shared: &'s Shared,
    writes: usize,
    /// The first free entry, and the place of the next used descriptor.
    free: u16,
    used: u16,
}

/// Descriptors of each chain.
const PLACES: u16 = 2;

impl Other<'_> {
    fn write(&mut self, is_area: bool, at: u64, bytes: &[u8]) {
        let (file, at) = match is_area {
            true => (&self.shared.area, PACKED_PART + at),
            false => (&self.shared.memory, at),
        };
        if self.writes != 0 {
            file.write_all_at(bytes, at).unwrap();
            self.writes -= 1;
        }
    }

    fn note(&mut self, at: u64, value: u16) {
        self.write(true, at, &value.to_le_bytes());
    }

    fn entry(index: u16) -> u64 {
        32 + 32 * u64::from(index)
    }

    /// Takes the chain at a place; its first entry.
    fn take(&mut self, place: u16, counter: u8) -> u16 {
        let head = self.free;
        for (entry, step) in (head..).zip(0..PLACES) {
            let mut descriptor = [0; 16];
            let index = place::after(place, step, SIZE) & 0x7fff;
            self.shared.memory.read_exact_at(&mut descriptor, 16 * u64::from(index)).unwrap();
            let (address, half) = descriptor.split_at(8);
            let copy = [&half[4..], &half[..4], address].concat();
            self.write(true, Self::entry(entry) + 16, &copy);
        }
        self.note(Self::entry(head) + 4, head + PLACES - 1);
        self.note(Self::entry(head) + 6, PLACES);
        self.write(true, Self::entry(head) + 8, &[counter]);
        self.write(true, Self::entry(head), &[1]);
        self.free += PLACES;
        [12, 14].into_iter().for_each(|at| self.note(at, self.free));
        head
    }

    /// Returns a chain. Whether it was shown.
    fn complete(&mut self, head: u16, number: u16) -> bool {
        self.note(Self::entry(head + PLACES - 1) + 2, self.free);
        self.free = head;
        self.note(12, self.free);
        let used = self.used;
        self.used = place::after(used, PLACES, SIZE);
        self.note(16, self.used & 0x7fff);
        self.write(true, 20, &[(self.used >> 15) as u8]);
        let half = place::unused(number, used).to_le_bytes();
        let is_shown = self.writes != 0;
        self.write(false, 16 * u64::from(used & 0x7fff) + 8, &half);
        self.write(true, Self::entry(head), &[0]);
        self.note(14, self.free);
        self.note(18, self.used & 0x7fff);
        self.write(true, 21, &[(self.used >> 15) as u8]);
        is_shown
    }
}

#[test]
fn a_packed_ring_goes_on_wherever_another_back_end_was_killed() {
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
        for writes in 0.. {
            let (shared, mut driver) = Shared::new(true, false);
            drop(shared.card(true));
            let frames: Vec<_> = (0..5).map(|seed| packet(seed, 200)).collect();
            let whole = frames.iter().map(|frame| [vec![0; 12], frame.clone()].concat());
            let send = |whole: Vec<u8>| driver.send(&whole, PLACES.into(), false).unwrap();
            let numbers: Vec<u16> = whole.map(send).collect();
            let mut other = Other { shared: &shared, writes: usize::MAX, free: 0, used: 0 };
            (0..SIZE).for_each(|entry| other.note(Other::entry(entry) + 2, entry + 1));
            let base = shared.layout.base;
            (other.writes, other.used) = (writes, base);
            // Its last chain but one is in flight at the end, the last one was not taken.
            let mut heads = Vec::new();
            for chain in 0..4 {
                heads.push(other.take(place::after(base, PLACES * chain, SIZE), chain as u8));
            }
            let mut shown = Vec::new();
            for chain in order {
                if other.complete(heads[chain], numbers[chain]) {
                    shown.push(chain);
                }
            }
            let is_over = other.writes != 0;
            let (mut pair, mut card) = shared.card(true);
            let sent = card.transmit(&mut pair);
            let at = format!("{order:?}, killed after {writes} writes");
            // Taken again, or returned unused: never doubled, and lost only if it was overwritten.
            let again = (0..5).filter(|chain| !shown.contains(chain));
            let again: Vec<_> = again.map(|chain| frames[chain].clone()).collect();
            // Those that were returned have overwritten their own descriptors, or others'.
            match (0..shown.len()).all(|chain| shown.contains(&chain)) {
                true => assert_eq!(sent, again, "{at}"),
                false => assert_eq!(sent, frames[4..], "{at}"),
            }
            let mut returned: Vec<u16> = driver.reclaim().iter().map(|&(head, _)| head).collect();
            let mut numbers = numbers;
            returned.sort_unstable();
            numbers.sort_unstable();
            assert_eq!(returned, numbers, "{at}");
            drop((pair, card));
            let (mut pair, mut card) = shared.card(true);
            driver.send(&[vec![0; 12], packet(9, 99)].concat(), 1, false).unwrap();
            assert_eq!(card.transmit(&mut pair), [packet(9, 99)], "{at}");
            if is_over {
                break;
            }
        }
    }
}

#[test]
fn areas_are_made_kept_and_checked() {
    let machine = Machine::new("");
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    let asked = |queues, size| VhostUserInflight::new(0, 0, queues, size);
    // No descriptor stays here, however many are asked for.
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().filter(is_area).count();
    fn is_area(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
        let link = entry.as_ref().ok().and_then(|entry| std::fs::read_link(entry.path()).ok());
        link.is_some_and(|link| link.to_string_lossy().contains("memfd:picnic-inflight (deleted)"))
    }
    let mut last = front.get_inflight_fd(&asked(4, 64)).unwrap();
    for size in 1..200 {
        last = front.get_inflight_fd(&asked(4, size)).unwrap();
        assert!(last.0.mmap_size >= 4 * (16 + 16 * u64::from(size)));
        assert_eq!(last.1.metadata().unwrap().len(), last.0.mmap_size);
        assert!(ftruncate(&last.1, 0).is_err());
    }
    // Those of other tests come and go.
    assert!(descriptors() < 20);
    front.set_inflight_fd(&last.0, last.1.as_raw_fd()).unwrap();
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    assert_passes(&machine, &mut guest, 1);
    drop(front);
    // Another connection with the same rings and area, and bases from nowhere.
    let mut front = connect(&machine.socket);
    front.set_inflight_fd(&last.0, last.1.as_raw_fd()).unwrap();
    for ring in [0, 1] {
        front.set_vring_base(ring, 17).unwrap();
    }
    start(&mut front, &guest, &[0, 1, 2, 4, 5]);
    assert_passes(&machine, &mut guest, 3);
    drop(front);
    type Wrong<'w> = &'w dyn Fn(&mut vhost::vhost_user::Frontend) -> bool;
    let (described, file) = &last;
    let wrong: [Wrong<'_>; 6] = [
        &|front| front.get_inflight_fd(&asked(5, 64)).is_err(),
        &|front| front.get_inflight_fd(&asked(1, 32_769)).is_err(),
        &|front| {
            let short = VhostUserInflight { mmap_size: described.mmap_size - 64, ..*described };
            front.set_inflight_fd(&short, file.as_raw_fd()).is_err()
        },
        &|front| {
            let beyond = VhostUserInflight { mmap_offset: 4096, ..*described };
            front.set_inflight_fd(&beyond, file.as_raw_fd()).is_err()
        },
        &|front| {
            let many = VhostUserInflight { num_queues: 5, ..*described };
            front.set_inflight_fd(&many, file.as_raw_fd()).is_err()
        },
        &|front| {
            let zero = File::open("/dev/zero").unwrap();
            front.set_inflight_fd(described, zero.as_raw_fd()).is_err()
        },
    ];
    for (index, message) in wrong.iter().enumerate() {
        assert!(message(&mut connect(&machine.socket)), "{index}");
    }
    // An area for smaller rings than there are, and one that is not of this version.
    for change in [0, 1] {
        let mut front = connect(&machine.socket);
        let (described, file) = front.get_inflight_fd(&asked(4, [32, 64][change])).unwrap();
        file.write_all_at(&[[0, 0], [9, 0]][change], 8).unwrap();
        front.set_inflight_fd(&described, file.as_raw_fd()).unwrap();
        let guest = Guest::new();
        start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
        let disabled = machine.look().disabled;
        assert_eq!(machine.deliver(&[packet(0, 60)]).disabled, disabled + 1);
        drop(front);
        picnic_testing::wait_until("the reason", || {
            machine.look().state.faults.join("\n").contains("in-flight area is not for such a ring")
        });
    }
    machine.end();
}
