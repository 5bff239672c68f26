//! Memory: allocators against a model, and memory as tasks use it.

use crate::bench;
use crate::bench::{Bench, Log, micros};
use picnic_core::guard::Guard;
use picnic_core::ledger::Stage;
use picnic_core::out::{Doors, Onward, Out};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::resident::Resident;
use picnic_core::time::Time;
use picnic_filter::{Action, Direction, Filter, FilterCode, FilterError, Filters, Match};
use picnic_os::alloc::boundary_tag::BoundaryTag;
use picnic_os::alloc::slots::Slots;
use picnic_os::alloc::{Allocator, Figures};
use picnic_os::context::Nic;
use picnic_os::control::TaskControl;
use picnic_os::executor::OsSettings;
use picnic_os::memory::{Block, HostBytes, Kind, MemoryError, Target, TransferCost};
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
    let mut bench = Bench::with(&settings(), bench::edf_plus());
    bench.os.attach_filters(Filters::new(1));
    bench
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
        nic.write(&mut b, 0, &[2; 100]).await.unwrap();
        let mut seen = [0; 100];
        nic.read(&mut a, 0, &mut seen).await.unwrap();
        said.say(nic.now(), format!("{}", seen.iter().all(|&byte| byte == 1)));
        // It is nowhere in the block.
        nic.read(&mut a, 50, &mut []).await.unwrap();
        nic.write(&mut b, 100, &[]).await.unwrap();
        said.say(nic.now(), nic.write(&mut a, 90, &[0; 11]).await.unwrap_err().to_string());
        let error = nic.read(&mut a, usize::MAX, &mut seen).await.unwrap_err();
        said.say(nic.now(), error.to_string());
        nic.copy(&mut b, 10..20, &mut a, 90).await.unwrap();
        nic.read(&mut a, 80, &mut seen[..20]).await.unwrap();
        assert_eq!(seen[..20], [[1; 10], [2; 10]].concat());
        said.say(nic.now(), nic.allocate_aligned(1, 3).unwrap_err().to_string());
        assert_eq!(nic.allocate_aligned(1, 8192).unwrap_err(), MemoryError::Alignment(8192));
        said.say(nic.now(), nic.allocate(9000).unwrap_err().to_string());
        assert!(nic.allocate(usize::MAX).is_err() && nic.mailbox(usize::MAX).is_err());
        said.say(nic.now(), format!("{}", nic.memory().blocks));
    });
    bench.os.create(spec("m"), body).unwrap();
    bench.run_until(micros(20));
    let texts: Vec<_> = log.take().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts[0], "true");
    assert_eq!(texts[1], "found bytes 90 to 101, but the block has 100");
    assert!(texts[2].starts_with("found bytes 18446744073709551615 to"), "{}", texts[2]);
    assert_eq!(texts[3], "found an alignment of 3, allowed: a power of two up to 4096");
    assert!(texts[4].starts_with("block: found no room for 9000 bytes: "), "{}", texts[4]);
    assert_eq!(texts[5], "2");
    let memory = bench.os.memory_report();
    assert_eq!((memory.blocks, memory.arena.blocks), (0, 0), "dropped with the task");
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
        theirs.lock().unwrap().push(nic.allocate_host(64).unwrap());
        let slots = Box::new(Slots::of(64));
        nic.install_allocator("slots", 2048, slots).await.unwrap();
        theirs.lock().unwrap().push(nic.allocate(64).unwrap());
        nic.sleep_until(Time::MAX).await;
    });
    let id = bench.os.create(spec("m"), body).unwrap();
    bench.run_until(micros(5));
    let memory = bench.os.memory_report();
    assert_eq!((memory.blocks, memory.installed_allocators), (4, 1));
    assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
    let memory = bench.os.memory_report();
    assert_eq!((memory.blocks, memory.installed_allocators, memory.arena.blocks), (0, 0, 0));
    let reader = program(move |nic| async move {
        let mut kept = std::mem::take(&mut *kept.lock().unwrap());
        for block in &mut kept {
            assert_eq!(nic.read(block, 0, &mut [0]).await, Err(MemoryError::Released));
            assert_eq!(nic.write(block, 0, &[0]).await, Err(MemoryError::Released));
            assert_eq!(nic.flush(block).await, Err(MemoryError::Released));
        }
        assert_eq!(kept[0].with(|_| ()), Err(MemoryError::Released));
        // A stale handle does not access a new block in the same place.
        let mut new = nic.allocate(64).unwrap();
        assert_eq!(nic.copy(&mut kept[0], 0..1, &mut new, 0).await, Err(MemoryError::Released));
        drop(kept);
        assert_eq!(new.with(|bytes| bytes.len()), Ok(64));
    });
    bench.os.create(spec("reader"), reader).unwrap();
    bench.run_until(micros(40));
    assert_eq!((bench.os.counters().panics.get(), bench.os.memory_report().arena.blocks), (0, 0));
    bench.end();
}

struct Nothing;

impl Onward for Nothing {
    fn carry_on(&mut self, _: Time, _: &mut Burst, _: &mut Doors) {}
}

#[test]
fn task_objects_take_their_real_size() {
    let mut bench = Bench::with(&settings(), bench::edf_plus());
    let sizes: Arc<Mutex<Vec<(Kind, usize)>>> = Arc::default();
    let theirs = sizes.clone();
    let (filters, list) = (Filters::new(2), Filters::new(2));
    bench.os.attach_filters(filters.clone());
    let future_bytes: Arc<Mutex<usize>> = Arc::default();
    let body = move |nic: Nic| async move {
        let frame = [7; 600];
        let sender = nic.sender(0, |_| {});
        let (mailbox, _mailbox) = nic.mailbox(10).unwrap();
        let filter = Filter::new("mine", Match::Any, Action::Deliver);
        let code = FilterCode::from(mailbox);
        let bytes = list.bytes_of(&filter, &code);
        nic.add_filter(filter, code).await.unwrap();
        sender.post(&frame[..60]).unwrap();
        let _channel = nic.charge(Kind::Channel, 100).unwrap();
        theirs.lock().unwrap().extend(
            nic.memory().kinds.iter().map(|it| (it.kind, it.bytes)).chain([(Kind::Block, bytes)]),
        );
        nic.sleep_until(Time::MAX).await;
    };
    let measured = future_bytes.clone();
    let measuring = program(move |nic| {
        let future = body(nic);
        *measured.lock().unwrap() = size_of_val(&future);
        future
    });
    let id = bench.os.create(spec("m"), measuring).unwrap();
    bench.run_until(micros(20));
    let sizes = std::mem::take(&mut *sizes.lock().unwrap());
    let of = |kind| sizes.iter().find(|(other, _)| *other == kind).unwrap().1;
    let frame = *future_bytes.lock().unwrap();
    assert!(frame > 600 && (frame..frame + 512).contains(&of(Kind::Task)), "{frame} {sizes:?}");
    let ring = picnic_core::ring::spsc::bytes::<Descriptor>(10).unwrap();
    assert!(ring > 16 * 32 && (ring..ring + 128).contains(&of(Kind::Mailbox)), "{ring} {sizes:?}");
    assert_eq!(of(Kind::Filter), of(Kind::Block).next_multiple_of(16));
    assert_eq!(of(Kind::Channel), 112);
    assert!((64..256).contains(&of(Kind::Send)), "{sizes:?}");
    // The record returns with the frame's end, the rest with the task.
    bench.wire_takes_all(0);
    bench.run_until(micros(40));
    let kinds = |bench: &Bench| -> Vec<_> {
        bench.os.memory_report().kinds.iter().map(|it| it.kind).collect()
    };
    let all = [Kind::Task, Kind::Mailbox, Kind::Filter, Kind::Channel];
    assert_eq!(kinds(&bench), all);
    assert_eq!(bench.os.memory_report().owners.len(), 1);
    // A filter removed by others returns its bytes at once.
    filters.remove(filters.list()[0].id).unwrap();
    assert_eq!(kinds(&bench), [Kind::Task, Kind::Mailbox, Kind::Channel]);
    assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
    drop(filters.list());
    // The core has the code of the removed filter until it takes the next list.
    let mut head = filters.function(Stage::Rx).unwrap();
    let _ = filters.add(Filter::new("next", Match::Any, Action::Count));
    let mut burst = Burst::new();
    let mut nothing = Nothing;
    let mut out = Out::new(bench.now, Stage::Rx, &mut bench.doors, &mut nothing);
    head.process(Time::ZERO, &mut burst, &mut out);
    out.finish();
    let _ = filters.list();
    assert_eq!(bench.os.memory_report().arena.blocks, 0);
    bench.end();
}

#[test]
fn creation_fails_by_name_when_memory_is_exhausted() {
    let settings = OsSettings { arena_bytes: 8 << 10, ..settings() };
    let (mut bench, log) = (Bench::with(&settings, bench::edf_plus()), Log::default());
    bench.os.attach_filters(Filters::new(1));
    let said = log.clone();
    let body = program(move |nic| async move {
        let mut blocks = Vec::new();
        let free = nic.memory().arena.largest_free_bytes;
        blocks.push(nic.allocate(free - 64).unwrap());
        let say = |text: String| said.say(nic.now(), text.split(" bytes").next().unwrap());
        say(nic.mailbox(8).unwrap_err().to_string());
        let filter = Filter::new("f", Match::Any, Action::Count);
        let error = nic.add_filter(filter, FilterCode::NONE).await.unwrap_err();
        assert!(matches!(error, FilterError::NoMemory(_)));
        say(error.to_string().replace(char::is_numeric, ""));
        let other = program(|nic| async move { nic.sleep_until(Time::MAX).await });
        let error = nic.create(TaskSpec::new("other"), other).await.unwrap_err();
        say(error.to_string().replace(char::is_numeric, ""));
        while let Ok(block) = nic.allocate(1) {
            blocks.push(block);
        }
        let error = nic.send(0, &[0; 60]).await.unwrap_err();
        say(error.to_string().replace(char::is_numeric, ""));
        say(nic.allocate_host(100).unwrap_err().to_string());
        say(nic.allocator(64, Box::new(Slots::of(64))).unwrap_err().to_string());
        say(nic.charge(Kind::Channel, 4000).unwrap_err().to_string());
        blocks.clear();
        assert!(nic.mailbox(8).is_ok() && nic.send(0, &[0; 60]).await.is_ok());
    });
    bench.os.create(spec("m"), body).unwrap();
    bench.run_until(micros(20));
    bench.wire_takes_all(0);
    bench.run_until(micros(30));
    let texts: Vec<_> = log.take().into_iter().map(|(_, text)| text).collect();
    let names = ["mailbox", "filter", "task", "send record", "block", "allocator", "channel"];
    assert_eq!(texts.len(), names.len(), "{texts:?}");
    for (text, name) in texts.iter().zip(names) {
        assert!(text.starts_with(&format!("{name}: found no room for ")), "{texts:?}");
    }
    assert_eq!((bench.os.counters().panics.get(), bench.os.memory_report().arena.blocks), (0, 0));
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
fn allocators_are_filters() {
    let settings = OsSettings { arena_bytes: 64 << 10, ..settings() };
    let (mut bench, log) = (Bench::with(&settings, bench::edf_plus()), Log::default());
    let filters = Filters::new(1);
    bench.os.attach_filters(filters.clone());
    let said = log.clone();
    let body = program(move |nic| async move {
        let old = nic.allocate(32).unwrap();
        let code = nic.allocator(1024, Box::new(Slots::of(256))).unwrap();
        let fallback = nic.allocate(300).unwrap();
        let id = nic.add_filter(Filter::allocator("slots"), code).await.unwrap();
        let mut slots: Vec<_> = (0..4).map(|_| nic.allocate(200).unwrap()).collect();
        said.say(nic.now(), nic.allocate(1).unwrap_err().to_string());
        // One for the filter of the next allocator, one to be allocated again.
        slots.truncate(2);
        // A lying allocator serves no request: the previous one does.
        let liar = nic.install_allocator("liar", 1024, Box::new(Liar(1020))).await.unwrap();
        slots.push(nic.allocate(200).unwrap());
        assert_eq!(nic.memory().broken_allocators, 1);
        nic.sleep_until(micros(50)).await;
        assert!(nic.filters().unwrap().get(liar).is_none(), "removed by others");
        nic.remove_filter(id).await.unwrap();
        // The arena's own is used again; slots stay until they are freed.
        let again = nic.allocate(4096).map(drop).is_ok();
        let there = nic.memory().installed_allocators;
        slots.iter_mut().for_each(|slot| slot.with(|bytes| bytes.fill(1)).unwrap());
        drop(slots);
        said.say(nic.now(), format!("{again} {there} {}", nic.memory().installed_allocators));
        drop((old, fallback));
        // Dropped without a filter, an allocator is gone.
        drop(nic.allocator(1024, Box::new(Slots::of(64))).unwrap());
        assert_eq!(nic.memory().installed_allocators, 0);
        // Not as a filter of packets, and not without its code.
        let code = || nic.allocator(1024, Box::new(Slots::of(64))).unwrap();
        let error = nic.add_filter(Filter::new("f", Match::Any, Action::Drop), code()).await;
        said.say(nic.now(), error.unwrap_err().to_string());
        let error = nic.add_filter(Filter::allocator("f").on(Direction::Tx), code()).await;
        said.say(nic.now(), error.unwrap_err().to_string());
        let error = nic.add_filter(Filter::allocator("f"), FilterCode::NONE).await;
        said.say(nic.now(), error.unwrap_err().to_string());
    });
    bench.os.create(spec("m"), body).unwrap();
    bench.run_until(micros(40));
    let listed = filters.list();
    let shown: Vec<_> = listed.iter().map(|it| (&*it.filter.name, it.packets, it.broken)).collect();
    assert_eq!(shown, [("slots", 6, false), ("liar", 0, true)]);
    assert!((5 * 208..6 * 256).contains(&listed[0].bytes), "in whole units");
    let keys = serde_json::to_value(&listed[0]).unwrap();
    assert_eq!((&keys["action"], &keys["group"]), (&"allocate".into(), &"memory".into()));
    let renamed = Filter::allocator("pool");
    filters.set(listed[0].id, renamed).unwrap();
    assert_eq!(filters.get(listed[0].id).unwrap().filter.name, "pool");
    let error = filters.set(listed[0].id, Filter::new("f", Match::Any, Action::Drop)).unwrap_err();
    let told = "action: found another action, allowed: allocate, as the filter is an allocator";
    assert_eq!(error.to_string(), told);
    assert_eq!(filters.remove(listed[1].id).unwrap().filter.name, "liar");
    bench.run_until(micros(90));
    let texts: Vec<_> = log.take().into_iter().map(|(_, text)| text).collect();
    assert!(texts[0].starts_with("block: found no room for 1 bytes: 0 are free"), "{}", texts[0]);
    assert_eq!(texts[1], "true 1 0");
    assert_eq!(texts[2], "allocator: found code, allowed: none, as the filter calls no code");
    assert!(texts[3].starts_with("action: found allocate with a condition"), "{}", texts[3]);
    assert_eq!(texts[4], "allocator: found none, allowed: code, given with the filter");
    assert_eq!((bench.os.counters().panics.get(), filters.list().len()), (0, 0));
    assert_eq!(bench.os.memory_report().arena.blocks, 0);
    bench.end();
}

/// An allocator that takes a while.
#[derive(Default)]
struct Sleeper(BoundaryTag);

impl Allocator for Sleeper {
    fn reset(&mut self, arena: &mut [u8]) {
        self.0.reset(arena);
    }
    fn allocate(&mut self, arena: &mut [u8], bytes: usize, align: usize) -> Option<usize> {
        std::thread::sleep(std::time::Duration::from_millis(2));
        self.0.allocate(arena, bytes, align)
    }
    fn free(&mut self, arena: &mut [u8], place: usize) -> bool {
        self.0.free(arena, place)
    }
    fn figures(&self, arena: &[u8]) -> Figures {
        self.0.figures(arena)
    }
}

#[test]
fn allocators_that_sleep_only_lengthen_segments() {
    let mut bench = bench();
    bench.os.attach_filters(Filters::new(1));
    let body = program(move |nic| async move {
        nic.install_allocator("sleeper", 2048, Box::<Sleeper>::default()).await.unwrap();
        let mut block = nic.allocate(64).unwrap();
        nic.write(&mut block, 0, &[1; 64]).await.unwrap();
    });
    let id = bench.os.create(spec("m"), body).unwrap();
    // The time of each segment, as a real clock would show it.
    for _ in 0..6 {
        let before = std::time::Instant::now();
        let _ = bench.os.turn(bench.now, &mut bench.doors);
        bench.now = bench.now + before.elapsed().as_nanos() as u64;
        let _ = bench.os.ended(bench.now);
    }
    let line = bench.os.lines().find(|line| line.id == id).unwrap();
    assert!(
        line.counters.overruns.get() >= 1 && line.counters.longest_segment_ns.get() >= 2_000_000
    );
    let memory = bench.os.memory_report();
    assert_eq!((memory.broken_allocators, memory.arena.blocks), (0, 0));
    bench.end();
}

/// The same task on the card and at the host: one word differs.
async fn counts(nic: Nic, target: Target, log: Log) {
    let mut block = nic.allocate_on(target, 1000).unwrap();
    for count in 0..8_u8 {
        nic.write(&mut block, usize::from(count), &[count]).await.unwrap();
    }
    nic.write(&mut block, 500, &[9; 300]).await.unwrap();
    let mut seen = [0; 10];
    nic.read(&mut block, 0, &mut seen).await.unwrap();
    log.say(nic.now(), format!("{seen:?}"));
    nic.read(&mut block, 495, &mut seen).await.unwrap();
    log.say(nic.now(), format!("{seen:?}"));
}

#[test]
fn tasks_move_to_host_memory_by_one_word() {
    let transfer = TransferCost { latency_ns: 2_000, bytes_per_us: 100 };
    let mut texts = Vec::new();
    for target in [Target::Card, Target::Host] {
        let mut bench = Bench::with(&OsSettings { transfer, ..settings() }, bench::edf_plus());
        let log = Log::default();
        let theirs = log.clone();
        bench.os.create(spec("m"), program(move |nic| counts(nic, target, theirs))).unwrap();
        bench.run_until(micros(100));
        let report = bench.os.memory_report();
        let host = (report.transfers, report.transferred_bytes, report.gathered_writes);
        let read = 10 + 10;
        // Eight writes travel with the long one.
        let expected = if target == Target::Host { (3, 308 + read, 8) } else { (0, 0, 0) };
        assert_eq!(host, expected);
        let (times, said): (Vec<_>, Vec<_>) = log.take().into_iter().unzip();
        // 8 pauses; then 2 µs + 3.08 µs and 2.1 µs, as modelled.
        let took = if target == Target::Host { [15, 17] } else { [10, 11] };
        assert_eq!(times, took);
        texts.push(said);
        bench.end();
    }
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0], ["[0, 1, 2, 3, 4, 5, 6, 7, 0, 0]", "[0, 0, 0, 0, 0, 9, 9, 9, 9, 9]"]);
}

#[test]
fn host_memory_transfers_take_time() {
    let transfer = TransferCost { latency_ns: 2_000, bytes_per_us: 100 };
    let mut bench = Bench::with(&OsSettings { transfer, ..settings() }, bench::edf_plus());
    let log = Log::default();
    let host: Arc<Mutex<Option<Arc<dyn HostBytes>>>> = Arc::default();
    let (said, theirs) = (log.clone(), host.clone());
    let body = program(move |nic| async move {
        let mut card = nic.allocate(256).unwrap();
        card.with(|bytes| bytes[..13].copy_from_slice(b"from the card")).unwrap();
        assert!(card.host_side().is_none() && card.target() == Target::Card);
        let mut there = nic.allocate_host(3744).unwrap();
        let side = there.host_side().unwrap();
        *theirs.lock().unwrap() = Some(side.clone());
        assert_eq!((there.len(), there.target()), (3744, Target::Host));
        assert_eq!(there.with(|_| ()), Err(MemoryError::AtHost));
        said.say(nic.now(), nic.allocate_host(353).unwrap_err().to_string());
        drop(nic.allocate_host(352).unwrap());
        nic.copy(&mut card, 0..200, &mut there, 100).await.unwrap();
        said.say(nic.now(), "written");
        side.write(0, b"hello");
        nic.copy(&mut there, 0..5, &mut card, 16).await.unwrap();
        let seen = card.with(|bytes| String::from_utf8_lossy(&bytes[16..21]).into_owned());
        said.say(nic.now(), seen.unwrap());
        let error = nic.copy(&mut card, 0..200, &mut there, 3545).await.unwrap_err();
        said.say(nic.now(), error.to_string());
        let error = nic.copy(&mut card, 200..300, &mut there, 0).await.unwrap_err();
        said.say(nic.now(), error.to_string());
        // Gathered writes are there after a flush, or when the block is dropped.
        nic.write(&mut there, 50, b"ga").await.unwrap();
        nic.write(&mut there, 52, b"ther").await.unwrap();
        let mut seen = [0; 6];
        side.read(50, &mut seen);
        assert_eq!(seen, [0; 6]);
        nic.flush(&mut there).await.unwrap();
        side.read(50, &mut seen);
        assert_eq!(&seen, b"gather");
        nic.write(&mut there, 50, b"lo").await.unwrap();
        nic.write(&mut there, 3000, b"end").await.unwrap();
        side.read(50, &mut seen);
        assert_eq!(&seen, b"lother", "a write elsewhere ends the first");
        let mut second = nic.map_host(side.clone()).unwrap();
        nic.copy(&mut second, 100..500, &mut there, 600).await.unwrap();
    });
    bench.os.create(spec("dma"), body).unwrap();
    bench.run_until(micros(60));
    assert_eq!(
        log.text(),
        // 2 µs and 200 bytes at 100 a microsecond; then 2.05 µs; errors only pause.
        "0:found no room for 353 bytes at the host: 352 are left (os.host_bytes) 4:written \
         6:hello 7:found bytes 3545 to 3745, but the block has 3744 \
         8:found bytes 200 to 300, but the block has 256"
    );
    let memory = host.lock().unwrap().take().unwrap();
    let mut seen = [0; 13];
    memory.read(600, &mut seen);
    assert_eq!(&seen, b"from the card");
    memory.read(3000, &mut seen[..3]);
    assert_eq!(&seen[..3], b"end");
    let report = bench.os.memory_report();
    assert_eq!((report.transfers, report.gathered_writes), (5, 4));
    assert_eq!(report.transferred_bytes, 200 + 5 + 6 + 2 + 403);
    assert_eq!(report.transfer_modelled_ns, 5 * 2_000 + 10 * report.transferred_bytes);
    assert_eq!((report.host_used_bytes, report.host_high_water_bytes), (3744, 4096));
    drop(memory);
    assert_eq!(bench.os.memory_report().host_used_bytes, 0);
    assert_eq!(bench.os.counters().panics.get(), 0);
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
