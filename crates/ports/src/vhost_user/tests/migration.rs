//! The dirty log: exactly the pages that a burst has written to.

use super::super::dirty::{Log, PAGE};
use super::super::memory::{GuestMemoryMmap, Memory, Range};
use super::super::pair::{Pair, Ring, bits};
use super::super::ring::Queue;
use super::driver::{self, Driver};
use super::protocol::{self, Guest, MEMORY, Machine, USER, WANTED, connect, start};
use super::{ALL, Card, layout, packet, terms};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use vhost::vhost_user::VhostUserFrontend;
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{FileOffset, GuestAddress};

fn file(bytes: u64) -> File {
    let file = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, bytes).unwrap();
    file
}

fn content(file: &File, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    file.read_exact_at(&mut content, 0).unwrap();
    content
}

/// The pages of the log, which is cleared.
fn take(log: &File, bytes: u64) -> BTreeSet<u64> {
    let found = content(log, bytes);
    log.write_all_at(&vec![0; bytes as usize], 0).unwrap();
    let is_set = |page: &u64| found[(page / 8) as usize] & 1 << (page % 8) != 0;
    (0..8 * bytes).filter(is_set).collect()
}

fn changed(before: &[u8], after: &[u8]) -> BTreeSet<u64> {
    let pages = before.chunks(PAGE as usize).zip(after.chunks(PAGE as usize));
    (0..).zip(pages).filter(|(_, (before, after))| before != after).map(|(page, _)| page).collect()
}

fn pages(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    address / PAGE..(address + bytes).div_ceil(PAGE)
}

/// Guest address of the second region, after a hole.
const SECOND: u64 = 0x80_0000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_log_is_the_difference(
        is_tx: bool, event_idx: bool, is_logged: bool, is_packed: bool,
        bursts in prop::collection::vec(prop::collection::vec((14_usize..6000, 1_usize..4), 1..8), 1..8),
    ) {
        let (shared, log_file) = (Arc::new(file(2 * driver::MEMORY)), file(PAGE));
        let bell = Arc::new(protocol::event().into());
        let region = |guest, offset| {
            (Range { guest, size: driver::MEMORY, user: guest, offset }, shared.clone())
        };
        let mut memory = Memory::new(bell);
        for (range, file) in [region(SECOND, driver::MEMORY), region(0, 0)] {
            memory = memory.with(range, file).unwrap();
        }
        let bell = Arc::new(protocol::event().into());
        let log = Log::new(log_file.try_clone().unwrap(), 0, PAGE, &bell).unwrap();
        let memory = memory.logged(is_logged.then_some(Arc::new(log))).unwrap();
        let size = driver::MEMORY as usize;
        // The driver has a mapping of its own, whose writes are not the card's.
        let ranges = [(GuestAddress(0), size, Some(FileOffset::from_arc(shared.clone(), 0)))];
        let its = Arc::new(GuestMemoryMmap::from_ranges_with_files(ranges).unwrap());
        let layout = layout(is_packed, 64, 3, event_idx);
        let mut driver = Driver::over(its, layout);
        let map = memory.map().unwrap().clone();
        let ring = Some(Ring::new(Queue::new(layout, &map).unwrap(), true));
        let (rx, tx) = if is_tx { (None, ring) } else { (ring, None) };
        let mut pair = Pair::new(terms(ALL), map, rx, tx);
        let mut card = Card::new(2048);
        take(&log_file, PAGE);
        for (seed, burst) in bursts.into_iter().enumerate() {
            for &(length, pieces) in &burst {
                let filled = vec![0x5a; length + 12];
                match is_tx {
                    true => driver.send(&filled, pieces, false),
                    false => driver.post(length as u32 + 12, pieces, false),
                };
            }
            let packets: Vec<_> =
                burst.iter().map(|&(length, _)| packet(seed as u64, length)).collect();
            let before = content(&shared, 2 * driver::MEMORY);
            match is_tx {
                true => {
                    card.transmit(&mut pair);
                }
                false => card.deliver(&mut pair, &packets, |_| {}),
            }
            let after = content(&shared, 2 * driver::MEMORY);
            let (logged, changed) = (take(&log_file, PAGE), changed(&before, &after));
            let mut written: BTreeSet<u64> = pages(layout.used, 6 + 8 * 64).collect();
            if is_packed {
                written.extend(pages(layout.descriptors, 16 * 64));
            }
            for (_, mut length, pieces) in driver.returned() {
                for (address, room) in pieces {
                    written.extend(pages(address, length.min(room).into()));
                    length -= length.min(room);
                }
            }
            if is_logged {
                prop_assert!(changed.is_subset(&logged), "{changed:?} {logged:?}");
                // Nothing else, save pages that were written with what they held.
                prop_assert!(logged.is_subset(&written), "{logged:?} {written:?}");
                prop_assert!(!logged.is_empty());
            } else {
                prop_assert!(logged.is_empty());
            }
        }
    }
}

fn area(log: &File, mmap_size: u64, mmap_offset: u64) -> Option<VhostUserDirtyLogRegion> {
    Some(VhostUserDirtyLogRegion { mmap_size, mmap_offset, mmap_handle: log.as_raw_fd() })
}

#[test]
fn a_log_starts_and_ends_by_messages() {
    let machine = Machine::new("");
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    let features = WANTED | bits::PROTOCOL_FEATURES;
    let log = file(PAGE);
    let exchange = |guest: &mut Guest, seed| {
        guest.rx.post(2000, 1, false).unwrap();
        let before = content(&guest.file, MEMORY as u64);
        assert_eq!(machine.deliver(&[packet(seed, 300)]).no_descriptor, 0);
        let after = content(&guest.file, MEMORY as u64);
        assert_eq!(guest.rx.received(true), [packet(seed, 300)]);
        // A write of its next poll may not be logged yet, which another answer shows.
        machine.look();
        (changed(&before, &after), take(&log, PAGE))
    };
    assert!(exchange(&mut guest, 1).1.is_empty());
    // Logs, and features, in either order.
    front.set_log_base(0, area(&log, PAGE, 0)).unwrap();
    assert!(exchange(&mut guest, 2).1.is_empty());
    front.set_features(features | bits::LOG_ALL).unwrap();
    for index in [0, 1] {
        let ring = guest.ring(index);
        let log_addr = Some(ring.used_ring_addr - USER);
        front.set_vring_addr(index, &VringConfigData { flags: 1, log_addr, ..ring }).unwrap();
    }
    let (changed, logged) = exchange(&mut guest, 3);
    assert!(!changed.is_empty() && changed.is_subset(&logged), "{changed:?} {logged:?}");
    // A second log, as after memory was added; the first is left alone.
    let second = file(2 * PAGE);
    front.set_log_base(0, area(&second, PAGE, PAGE)).unwrap();
    // The target core works at any time.
    take(&log, PAGE);
    assert!(exchange(&mut guest, 4).1.is_empty());
    assert!(take(&second, 2 * PAGE).iter().all(|page| *page >= 8 * PAGE));
    front.set_features(features).unwrap();
    take(&second, 2 * PAGE);
    exchange(&mut guest, 5);
    assert!(take(&second, 2 * PAGE).is_empty());
    machine.end();
}

#[test]
fn logs_that_are_too_short_or_no_logs_are_refused() {
    let machine = Machine::new("");
    type Wrong<'w> = (&'w str, &'w dyn Fn(&mut vhost::vhost_user::Frontend, &Guest, &File) -> bool);
    let logging = WANTED | bits::PROTOCOL_FEATURES | bits::LOG_ALL;
    let wrong: [Wrong<'_>; 6] = [
        ("the dirty log is too short", &|front, guest, log| {
            front.set_mem_table(&[guest.region()]).unwrap();
            front.set_features(logging).unwrap();
            // A bit for each of 1024 pages, and a byte less than that.
            front.set_log_base(0, area(log, 128, 0)).unwrap();
            front.set_log_base(0, area(log, 127, 0)).is_err()
        }),
        ("no file, or a shorter one", &|front, _, log| {
            front.set_log_base(0, area(log, PAGE + 1, 0)).is_err()
        }),
        ("no file, or a shorter one", &|front, _, log| {
            front.set_log_base(0, area(log, PAGE, PAGE)).is_err()
        }),
        ("", &|front, _, log| front.set_log_base(0, area(log, PAGE, u64::MAX - 10)).is_err()),
        ("no file, or a shorter one", &|front, _, _| {
            let event = File::open("/dev/zero").unwrap();
            front.set_log_base(0, area(&event, PAGE, 0)).is_err()
        }),
        ("the dirty log is too short", &|front, guest, log| {
            front.set_features(logging).unwrap();
            front.set_log_base(0, area(log, PAGE, 0)).unwrap();
            let region = VhostUserMemoryRegionInfo {
                guest_phys_addr: 8 * PAGE * PAGE - 0x1000,
                ..guest.region()
            };
            front.add_mem_region(&region).is_err()
        }),
    ];
    for (why, message) in wrong {
        let (mut front, guest, log) = (connect(&machine.socket), Guest::new(), file(PAGE));
        assert!(message(&mut front, &guest, &log), "{why}");
        drop(front);
        picnic_testing::wait_until("the error", || {
            machine.look().state.faults.join("\n").contains(why)
        });
    }
    // A log address that is not the used ring's.
    let (mut front, guest) = (connect(&machine.socket), Guest::new());
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    let ring = VringConfigData { flags: 1, log_addr: Some(16), ..guest.ring(0) };
    front.set_vring_addr(0, &ring).unwrap();
    assert_eq!(machine.deliver(&[packet(0, 60)]).disabled, 1);
    drop(front);
    picnic_testing::wait_until("the reason", || {
        machine.look().state.faults.join("\n").contains("log address is not that of its used ring")
    });
    machine.end();
}
