//! Allocators and transfers: figures, alignment, and accesses at the end of a block.

use crate::bench::{Bench, Log, edf_plus, micros};
use picnic_os::alloc::boundary_tag::BoundaryTag;
use picnic_os::alloc::slots::Slots;
use picnic_os::alloc::{Allocator, Figures};
use picnic_os::executor::OsSettings;
use picnic_os::memory::{MemoryError, TransferCost};
use picnic_os::task::{TaskSpec, program};

#[test]
fn boundary_tag_figures_are_exact() {
    let mut tags = BoundaryTag::default();
    assert_eq!(tags.figures(&[]), Figures::default());
    let mut arena = [0; 160];
    tags.reset(&mut arena);
    let free = Figures {
        arena_bytes: 160,
        free_bytes: 144,
        largest_free_bytes: 144,
        free_blocks: 1,
        ..Figures::default()
    };
    assert_eq!(tags.figures(&arena), free);
    let place = tags.allocate(&mut arena, 144, 1).unwrap();
    assert_eq!(tags.allocate(&mut arena, 1, 1), None);
    let full = Figures {
        arena_bytes: 160,
        used_bytes: 160,
        high_water_bytes: 160,
        blocks: 1,
        failures: 1,
        ..Figures::default()
    };
    assert_eq!(tags.figures(&arena), full);
    assert!(tags.free(&mut arena, place));
    assert_eq!(tags.figures(&arena), Figures { high_water_bytes: 160, failures: 1, ..free });
    tags.reset(&mut arena);
    assert_eq!(tags.figures(&arena), free);
}

#[test]
fn the_smallest_block_may_stay_in_front_of_an_aligned_one() {
    let mut arena = [0; 1024];
    let mut tags = BoundaryTag::default();
    tags.reset(&mut arena);
    assert_eq!(tags.allocate(&mut arena, 64, 16), Some(16));
    // From 80 on: a tag and 16 bytes that stay free, then the tag before 128.
    assert_eq!(tags.allocate(&mut arena, 16, 64), Some(128));
    assert_eq!(tags.check(&arena), Ok(()));
    assert_eq!(tags.figures(&arena).free_blocks, 2);
}

#[test]
fn remainders_become_blocks_if_long_enough() {
    let mut arena = [0; 160];
    // Of ten units: with its tag one takes eight, and two are a block; one takes nine.
    for (bytes, used_bytes, free_bytes) in [(112, 128, 16), (128, 160, 0)] {
        let mut tags = BoundaryTag::default();
        tags.reset(&mut arena);
        assert_eq!(tags.allocate(&mut arena, bytes, 1), Some(16));
        let figures = tags.figures(&arena);
        let found = (figures.used_bytes, figures.free_bytes, figures.largest_free_bytes);
        assert_eq!(found, (used_bytes, free_bytes, free_bytes));
    }
}

#[test]
fn a_short_block_is_taken_before_a_long_one_is_split() {
    let (mut arena, mut tags) = ([0; 1024], BoundaryTag::default());
    tags.reset(&mut arena);
    let places = [16, 16, 256, 16].map(|bytes| tags.allocate(&mut arena, bytes, 1).unwrap());
    // The long one is the last to be freed.
    for place in [places[0], places[2]] {
        assert!(tags.free(&mut arena, place));
    }
    assert_eq!(tags.allocate(&mut arena, 16, 1), Some(places[0]));
}

#[test]
fn inconsistent_tags_are_reported() {
    let (mut whole, mut tags) = ([0; 160], BoundaryTag::default());
    tags.reset(&mut whole);
    assert_eq!(tags.allocate(&mut whole, 16, 1), Some(16));
    // The first byte of a tag, and the last of its size, whose top bit means used; the second block
    // begins after 32 bytes.
    for (at, byte, told) in [
        (0, 1, "block 0 has 1 units"),
        (0, 11, "block 0 has 11 units"),
        (32 + 4, 3, "block 2 has lost the size of the one before"),
        (3, 0, "block 2 was not merged"),
        (32 + 3, 0x80, "counted (2, 1, 1, 1), found (10, 2, 0)"),
    ] {
        let mut arena = whole;
        arena[at] = byte;
        assert_eq!(tags.check(&arena), Err(told.into()));
    }
}

#[test]
fn slots_are_aligned_powers_of_two() {
    let mut arena = vec![0; 32 << 10];
    for (slots, bytes) in
        [(Slots::default(), 16), (Slots::of(1), 16), (Slots::of(17), 32), (Slots::of(8_000), 8_192)]
    {
        let mut slots = slots;
        slots.reset(&mut arena);
        assert_eq!(slots.figures(&arena).largest_free_bytes, bytes);
        assert_eq!(slots.figures(&arena).free_blocks, arena.len() / bytes);
        assert_eq!(slots.allocate(&mut arena, 16, bytes.min(4096)), Some(0));
        assert_eq!(slots.allocate(&mut arena, 16, 8_192), None);
    }
}

#[test]
fn slots_are_allocated_and_freed_once() {
    let (mut arena, mut slots) = (vec![0; 130 * 16], Slots::of(16));
    slots.reset(&mut arena);
    let places: Vec<_> = (0..130).map(|_| slots.allocate(&mut arena, 16, 16).unwrap()).collect();
    assert_eq!(places, (0..130).map(|slot| slot * 16).collect::<Vec<_>>());
    assert_eq!(slots.allocate(&mut arena, 16, 16), None);
    for &place in &places {
        let taken = [(); 2].map(|()| slots.free(&mut arena, place));
        assert_eq!(taken, [true, false], "{place}");
    }
}

#[test]
fn slot_figures_are_exact() {
    let (mut arena, mut slots) = ([0; 256], Slots::of(64));
    slots.reset(&mut arena);
    let free = Figures {
        arena_bytes: 256,
        free_bytes: 256,
        largest_free_bytes: 64,
        free_blocks: 4,
        ..Figures::default()
    };
    assert_eq!(slots.figures(&arena), free);
    assert_eq!(slots.allocate(&mut arena, 64, 128), None, "aligned to its size and no more");
    let places: Vec<_> = (0..4).map(|_| slots.allocate(&mut arena, 64, 64)).collect();
    assert_eq!(places, [0, 64, 128, 192].map(Some));
    let full = Figures {
        arena_bytes: 256,
        used_bytes: 256,
        high_water_bytes: 256,
        blocks: 4,
        failures: 1,
        ..Figures::default()
    };
    assert_eq!(slots.figures(&arena), full);
    assert!(slots.free(&mut arena, 64));
    assert_eq!(slots.figures(&arena).largest_free_bytes, 64);
    slots.reset(&mut arena);
    assert_eq!(slots.figures(&arena), free);
}

#[test]
fn transfer_times_are_rounded_up() {
    let cost = TransferCost::default();
    assert_eq!((cost.latency_ns, cost.bytes_per_us), (1_000, 8_000));
    let times: Vec<_> = [0, 1, 8, 9].map(|bytes| cost.of(bytes)).into();
    assert_eq!(times, [1_000, 1_001, 1_001, 1_002]);
    for bytes_per_us in [0, 1] {
        assert_eq!(TransferCost { latency_ns: 0, bytes_per_us }.of(3), 3_000);
    }
}

#[test]
fn accesses_stay_within_blocks() {
    let transfer = TransferCost { latency_ns: u64::MAX, bytes_per_us: 1 };
    let settings = OsSettings { transfer, switch_ns: 0, cold_ns: 0, ..OsSettings::default() };
    let (mut bench, log) = (Bench::with(&settings, edf_plus()), Log::default());
    let report = bench.os.memory_report();
    let counts = (report.transfers, report.transferred_bytes, report.transfer_modelled_ns);
    assert_eq!((counts, report.host_used_bytes, report.host_high_water_bytes), ((0, 0, 0), 0, 0));
    for _ in 0..2 {
        let said = log.clone();
        let body = program(move |nic| async move {
            let mut block = nic.allocate(8).unwrap();
            let refused = MemoryError::Range { start: usize::MAX, end: usize::MAX, length: 8 };
            assert_eq!(nic.read(&mut block, usize::MAX, &mut [0; 2]).await, Err(refused));
            assert_eq!(nic.write(&mut block, usize::MAX, &[0; 2]).await, Err(refused));
            let mut host = nic.allocate_host(8).unwrap();
            assert_eq!(nic.copy(&mut block, 0..2, &mut host, usize::MAX).await, Err(refused));
            said.say(nic.now(), "refused");
            let _ = nic.copy(&mut block, 0..8, &mut host, 0).await;
        });
        bench.os.create(TaskSpec::new("t").wcet_ns(1_000), body).unwrap();
    }
    bench.run_until(micros(10));
    assert_eq!(log.text(), "6:refused 7:refused");
    let report = bench.os.memory_report();
    assert_eq!((report.transfers, report.transferred_bytes), (2, 16));
    assert_eq!(report.transfer_modelled_ns, u64::MAX);
    bench.end();
}
