//! Memory: allocators against a model, and memory as tasks use it.

use crate::bench;
use crate::bench::{Bench, Log, micros};
use picnic_core::time::Time;
use picnic_os::alloc::boundary_tag::BoundaryTag;
use picnic_os::alloc::slots::Slots;
use picnic_os::alloc::{Allocator, Figures};
use picnic_os::control::TaskControl;
use picnic_os::executor::OsSettings;
use picnic_os::memory::{Block, HostMemory, MemoryError, TransferCost};
use picnic_os::task::{TaskSpec, program};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        bytes: usize,
        align: usize,
    },
    /// The nth allocated one.
    Free(usize),
    /// Any place.
    FreeAnywhere(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![4 => 0usize..200, 2 => 200usize..3000, 1 => 3000usize..20_000];
    prop_oneof![
        5 => (bytes, 0u32..13).prop_map(|(bytes, power)| Step::Allocate { bytes, align: 1 << power }),
        4 => any::<usize>().prop_map(Step::Free),
        1 => (0usize..20_000).prop_map(Step::FreeAnywhere),
    ]
}

/// Allocated places and sizes, each filled with its own letter.
struct Model {
    arena: Vec<u8>,
    given: BTreeMap<usize, (usize, u8)>,
    letter: u8,
}

impl Model {
    fn new(bytes: usize) -> Self {
        Model { arena: vec![0xee; bytes], given: BTreeMap::new(), letter: 0 }
    }

    /// Takes one step with an allocator; no allocation overlaps another or changes.
    fn take(&mut self, allocator: &mut dyn Allocator, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Allocate { bytes, align } => {
                let failures = allocator.figures(&self.arena).failures;
                let Some(place) = allocator.allocate(&mut self.arena, bytes, align) else {
                    let figures = allocator.figures(&self.arena);
                    prop_assert_eq!(figures.failures, failures + 1);
                    return Ok(());
                };
                prop_assert_eq!(place % align, 0);
                prop_assert!(place + bytes <= self.arena.len());
                let before = self.given.range(..place).next_back();
                prop_assert!(before.is_none_or(|(&at, &(bytes, _))| at + bytes <= place));
                let behind = self.given.range(place..).next();
                prop_assert!(behind.is_none_or(|(&at, _)| place + bytes <= at && at != place));
                self.letter = self.letter.wrapping_add(1);
                self.arena[place..place + bytes].fill(self.letter);
                self.given.insert(place, (bytes, self.letter));
            }
            Step::Free(index) => {
                let Some(count) = Some(self.given.len()).filter(|&count| count != 0) else {
                    return Ok(());
                };
                let Some((&place, &(bytes, letter))) = self.given.iter().nth(index % count) else {
                    return Ok(());
                };
                let whole = self.arena[place..place + bytes].iter().all(|&byte| byte == letter);
                prop_assert!(whole, "its bytes were written by somebody else");
                prop_assert!(allocator.free(&mut self.arena, place));
                self.given.remove(&place);
                prop_assert!(!allocator.free(&mut self.arena, place), "freed twice");
            }
            Step::FreeAnywhere(place) => {
                if !self.given.contains_key(&place) {
                    prop_assert!(
                        !allocator.free(&mut self.arena, place),
                        "{place} was given to nobody"
                    );
                }
            }
        }
        let figures = allocator.figures(&self.arena);
        prop_assert_eq!(figures.blocks, self.given.len());
        prop_assert!(figures.used_bytes >= self.given.values().map(|&(bytes, _)| bytes).sum());
        prop_assert!(figures.high_water_bytes >= figures.used_bytes);
        prop_assert!(figures.largest_free_bytes <= figures.free_bytes);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn boundary_tags_agree_with_the_model(steps in prop::collection::vec(step(), 1..150)) {
        let mut model = Model::new(16 << 10);
        let mut allocator = BoundaryTag::default();
        allocator.reset(&mut model.arena);
        let empty = allocator.figures(&model.arena);
        for step in &steps {
            model.take(&mut allocator, step)?;
            prop_assert_eq!(allocator.check(&model.arena), Ok(()));
        }
        while !model.given.is_empty() {
            model.take(&mut allocator, &Step::Free(0))?;
        }
        // All is one piece again.
        let figures = allocator.figures(&model.arena);
        prop_assert_eq!(
            (figures.free_blocks, figures.used_bytes, figures.largest_free_bytes),
            (1, 0, empty.largest_free_bytes)
        );
        prop_assert_eq!(figures.fragmentation(), 0.0);
    }

    #[test]
    fn slots_agree_with_the_model(size in 1usize..600, steps in prop::collection::vec(step(), 1..150)) {
        let mut model = Model::new(16 << 10);
        let mut allocator = Slots::of(size);
        allocator.reset(&mut model.arena);
        for step in &steps {
            model.take(&mut allocator, step)?;
        }
    }
}

#[test]
fn tiny_arenas_are_only_exhausted() {
    for bytes in [0, 1, 15, 16, 31] {
        let mut arena = vec![0; bytes];
        let mut allocator = BoundaryTag::default();
        allocator.reset(&mut arena);
        assert_eq!(allocator.allocate(&mut arena, 1, 1), None);
        assert!(!allocator.free(&mut arena, 16));
    }
    let mut arena = vec![0; 32];
    let mut allocator = BoundaryTag::default();
    allocator.reset(&mut arena);
    assert_eq!(allocator.allocate(&mut arena, 16, 1), Some(16), "the smallest of use");
    let mut arena = vec![0; 4096];
    let mut allocator = BoundaryTag::default();
    allocator.reset(&mut arena);
    assert_eq!(allocator.allocate(&mut arena, usize::MAX, 16), None);
    assert_eq!(allocator.allocate(&mut arena, 4096, 16), None);
    assert_eq!(allocator.allocate(&mut arena, 4080, 16), Some(16));
    assert_eq!(allocator.figures(&arena).failures, 2);
}

fn spec(name: &str) -> TaskSpec {
    TaskSpec::new(name).wcet_ns(1_000)
}

fn settings() -> OsSettings {
    OsSettings { arena_bytes: 8 << 10, host_bytes: 4096, switch_ns: 0, ..OsSettings::default() }
}

fn bench() -> Bench {
    Bench::with(&settings(), bench::edf_plus())
}

#[test]
fn tasks_access_only_their_blocks() {
    let (mut bench, log) = (bench(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let mut a = nic.allocate(100).unwrap();
        let mut b = nic.allocate_aligned(100, 256).unwrap();
        assert_eq!((a.len(), b.len()), (100, 100));
        let mut page = nic.allocate_aligned(1, 4096).unwrap();
        page.with(|bytes| assert!(bytes.as_ptr().addr().is_multiple_of(4096))).unwrap();
        drop(page);
        a.with(|bytes| bytes.fill(1)).unwrap();
        b.write(0, &[2; 100]).unwrap();
        nic.yield_now().await;
        let mut seen = [0; 100];
        a.read(0, &mut seen).unwrap();
        said.say(nic.now(), format!("{}", seen.iter().all(|&byte| byte == 1)));
        // It is nowhere in the block.
        a.read(50, &mut []).unwrap();
        b.write(100, &[]).unwrap();
        said.say(nic.now(), a.write(90, &[0; 11]).unwrap_err().to_string());
        said.say(nic.now(), a.read(usize::MAX, &mut seen).unwrap_err().to_string());
        said.say(nic.now(), nic.allocate_aligned(1, 3).unwrap_err().to_string());
        assert_eq!(nic.allocate_aligned(1, 8192).unwrap_err(), MemoryError::Alignment(8192));
        said.say(nic.now(), nic.allocate(9000).unwrap_err().to_string());
        said.say(nic.now(), format!("{}", nic.memory().blocks));
    });
    bench.os.create(spec("m"), body).unwrap();
    bench.run_until(micros(10));
    let texts: Vec<_> = log.take().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts[0], "true");
    assert_eq!(texts[1], "found bytes 90 to 101, but the block has 100");
    assert!(texts[2].starts_with("found bytes 18446744073709551615 to"), "{}", texts[2]);
    assert_eq!(texts[3], "found an alignment of 3, allowed: a power of two up to 4096");
    assert!(texts[4].starts_with("found no room for 9000 bytes: "), "{}", texts[4]);
    assert_eq!(texts[5], "2");
    let memory = bench.os.memory_report();
    assert_eq!((memory.blocks, memory.arena.blocks), (0, 0), "dropped with the task");
    assert_eq!(memory.arena.failures, 1);
    bench.end();
}

#[test]
fn memory_of_killed_tasks_is_released() {
    let mut bench = bench();
    let kept: Arc<Mutex<Vec<Block>>> = Arc::default();
    let theirs = kept.clone();
    let body = program(move |nic| async move {
        theirs.lock().unwrap().push(nic.allocate(64).unwrap());
        std::mem::forget(nic.allocate(64).unwrap());
        nic.install_allocator(4096, Box::new(Slots::of(64))).unwrap();
        theirs.lock().unwrap().push(nic.allocate(64).unwrap());
        nic.sleep_until(Time::MAX).await;
    });
    let id = bench.os.create(spec("m"), body).unwrap();
    bench.run_until(micros(5));
    let memory = bench.os.memory_report();
    assert_eq!((memory.blocks, memory.installed_allocators), (3, 1));
    assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
    let memory = bench.os.memory_report();
    assert_eq!((memory.blocks, memory.installed_allocators, memory.arena.blocks), (0, 0, 0));
    for block in kept.lock().unwrap().iter_mut() {
        assert_eq!(block.read(0, &mut [0]), Err(MemoryError::Released));
        assert_eq!(block.with(|_| ()), Err(MemoryError::Released));
    }
    kept.lock().unwrap().clear();
    assert_eq!(bench.os.memory_report().arena.blocks, 0);
    bench.end();
}

#[test]
fn stale_handles_do_not_access_new_blocks() {
    let mut bench = bench();
    let kept: Arc<Mutex<Option<Block>>> = Arc::default();
    let theirs = kept.clone();
    let body = program(move |nic| async move {
        *theirs.lock().unwrap() = Some(nic.allocate(64).unwrap());
    });
    bench.os.create(spec("first"), body).unwrap();
    bench.run_until(micros(5));
    let body = program(move |nic| async move {
        let block = nic.allocate(64).unwrap();
        let stale = kept.lock().unwrap().take().unwrap();
        assert_eq!(stale.read(0, &mut [0]), Err(MemoryError::Released));
        drop(stale);
        assert_eq!(block.read(0, &mut [0]), Ok(()));
    });
    bench.os.create(spec("second"), body).unwrap();
    bench.run_until(micros(10));
    assert_eq!(bench.os.counters().panics.get(), 0);
    bench.end();
}

/// An allocator that returns this place, whether it exists or not.
struct Liar(usize);

impl Allocator for Liar {
    fn reset(&mut self, _: &mut [u8]) {}
    fn allocate(&mut self, _: &mut [u8], _: usize, _: usize) -> Option<usize> {
        Some(self.0)
    }
    fn free(&mut self, _: &mut [u8], _: usize) -> bool {
        true
    }
    fn figures(&self, _: &[u8]) -> Figures {
        Figures::default()
    }
}

#[test]
fn installed_allocators_are_used_and_checked() {
    let settings = OsSettings { arena_bytes: 64 << 10, ..settings() };
    let (mut bench, log) = (Bench::with(&settings, bench::edf_plus()), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let old = nic.allocate(32).unwrap();
        nic.install_allocator(1024, Box::new(Slots::of(256))).unwrap();
        let slots: Vec<_> = (0..4).map(|_| nic.allocate(200).unwrap()).collect();
        said.say(nic.now(), nic.allocate(1).unwrap_err().to_string());
        nic.install_allocator(1024, Box::new(Liar(usize::MAX))).unwrap();
        assert!(nic.allocate(4).is_err() && nic.uninstall_allocator());
        nic.install_allocator(1024, Box::new(Liar(1020))).unwrap();
        said.say(nic.now(), format!("{:?}", nic.allocate(16).is_err()));
        said.say(nic.now(), format!("{:?}", nic.allocate(4).is_ok()));
        assert!(nic.uninstall_allocator() && nic.uninstall_allocator());
        assert!(!nic.uninstall_allocator());
        // The arena's own is used again; slots stay until they are freed.
        let again = nic.allocate(4096).map(drop).is_ok();
        let there = nic.memory().installed_allocators;
        drop(slots);
        said.say(nic.now(), format!("{again} {there} {}", nic.memory().installed_allocators));
        drop(old);
    });
    bench.os.create(spec("m"), body).unwrap();
    bench.run_until(micros(10));
    let texts: Vec<_> = log.take().into_iter().map(|(_, text)| text).collect();
    assert!(texts[0].starts_with("found no room for 1 bytes: 0 are free"), "{}", texts[0]);
    assert_eq!(texts[1..], ["true", "true", "true 1 0"]);
    assert_eq!(bench.os.memory_report().arena.blocks, 0);
    bench.end();
}

#[test]
fn allocators_stay_until_uninstalled_and_unused() {
    let mut bench = bench();
    let body = program(move |nic| async move {
        let installed = || nic.memory().installed_allocators;
        nic.install_allocator(1024, Box::new(Slots::of(64))).unwrap();
        drop(nic.allocate(64).unwrap());
        assert_eq!(installed(), 1, "it may be asked again");
        assert!(nic.uninstall_allocator());
        assert_eq!(installed(), 0);
    });
    bench.os.create(spec("m"), body).unwrap();
    bench.run_until(micros(5));
    assert_eq!(bench.os.counters().panics.get(), 0);
    bench.end();
}

#[test]
fn host_memory_transfers_take_time() {
    let transfer = TransferCost { latency_ns: 2_000, bytes_per_us: 100 };
    let mut bench = Bench::with(&OsSettings { transfer, ..settings() }, bench::edf_plus());
    let log = Log::default();
    let host: Arc<Mutex<Option<HostMemory>>> = Arc::default();
    let (said, theirs) = (log.clone(), host.clone());
    let body = program(move |nic| async move {
        let mut card = nic.allocate(256).unwrap();
        card.write(0, b"from the card").unwrap();
        let there = nic.allocate_host(4000).unwrap();
        *theirs.lock().unwrap() = Some(there.host_side());
        assert_eq!(there.len(), 4000);
        said.say(nic.now(), nic.allocate_host(97).unwrap_err().to_string());
        assert!(nic.allocate_host(96).is_ok());
        nic.copy_to_host(&card, 0..200, &there, 100).await.unwrap();
        said.say(nic.now(), "written");
        there.host_side().with(|bytes| bytes[0..5].copy_from_slice(b"hello"));
        nic.copy_from_host(&there, 0, &mut card, 16..21).await.unwrap();
        let mut seen = [0; 5];
        card.read(16, &mut seen).unwrap();
        said.say(nic.now(), String::from_utf8_lossy(&seen));
        let error = nic.copy_to_host(&card, 0..200, &there, 3801).await.unwrap_err();
        said.say(nic.now(), error.to_string());
        let error = nic.copy_to_host(&card, 200..300, &there, 0).await.unwrap_err();
        said.say(nic.now(), error.to_string());
    });
    bench.os.create(spec("dma"), body).unwrap();
    bench.run_until(micros(30));
    assert_eq!(
        log.text(),
        // 2 µs and 200 bytes at 100 a microsecond; then 2.05 µs; errors only pause.
        "0:found no room for 97 bytes at the host: 96 are left (os.host_bytes) 4:written \
         6:hello 7:found bytes 3801 to 4001, but the block has 4000 \
         8:found bytes 200 to 300, but the block has 256"
    );
    let memory = host.lock().unwrap().take().unwrap();
    memory.with(|bytes| assert_eq!(&bytes[100..113], b"from the card"));
    let report = bench.os.memory_report();
    assert_eq!((report.transfers, report.transferred_bytes), (2, 205));
    assert_eq!(report.transfer_modelled_ns, 4_000 + 2_050);
    assert_eq!((report.host_used_bytes, report.host_high_water_bytes), (4000, 4096));
    drop(memory);
    assert_eq!(bench.os.memory_report().host_used_bytes, 0);
    bench.end();
}

#[test]
fn places_outside_slots_are_refused() {
    use picnic_os::alloc::Allocator;
    let mut arena = vec![0; 640];
    let mut slots = Slots::of(64);
    slots.reset(&mut arena);
    for place in [576, 640, 64 * 64, 64 * 128, usize::MAX / 64 * 64] {
        assert!(!slots.free(&mut arena, place), "{place}");
    }
    assert_eq!((slots.figures(&arena).blocks, slots.figures(&arena).free_blocks), (0, 10));
}
