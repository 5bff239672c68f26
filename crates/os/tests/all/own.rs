//! The task, the scheduler and the allocator of `docs/how-to/nic-os.md`: 20 lines each, which run.

use crate::bench::{Bench, micros};
use picnic_core::time::Time;
use picnic_filter::Filters;
use picnic_os::alloc::{Allocator, Figures};
use picnic_os::context::Nic;
use picnic_os::executor::OsSettings;
use picnic_os::schedulers::{Discipline, Scheduler, next_release};
use picnic_os::task::{Bounds, TaskSpec, program};
use picnic_os::ticket::Candidate;

// task
/// Sends a frame in each period, with a number that it keeps in card memory.
async fn beat(nic: Nic) {
    let Ok(mut number) = nic.allocate(4) else { return };
    let _ = number.with(|bytes| bytes.fill(0));
    loop {
        let mut frame = [0xff; 60];
        let counted = number.with(|bytes| {
            bytes[3] = bytes[3].wrapping_add(1);
            frame[14..18].copy_from_slice(&bytes[..4]);
        });
        if counted.is_err() || nic.post(0, &frame).is_err() {
            nic.note(&"a beat was lost");
        }
        nic.next_release().await;
    }
}
// end

// scheduler
/// The task that has waited longest, one segment at a time.
struct InTurn;

impl Scheduler for InTurn {
    fn periodic(&mut self, _: Time, tasks: &[Candidate]) -> Option<usize> {
        let ready = tasks.iter().enumerate().filter(|(_, task)| task.ready);
        ready.min_by_key(|(_, task)| task.since).map(|(index, _)| index)
    }
    fn next_periodic(&self, _: Time, tasks: &[Candidate]) -> Option<Time> {
        next_release(tasks)
    }
    fn filler(&mut self, _: Time, _: u64, _: &[Candidate]) -> Option<usize> {
        None
    }
    fn discipline(&self) -> Discipline {
        Discipline::Segment
    }
}
// end

// allocator
/// Gives out one place after another, and none again.
#[derive(Default)]
struct Bump(usize);

impl Allocator for Bump {
    fn reset(&mut self, _: &mut [u8]) {
        self.0 = 0;
    }
    fn allocate(&mut self, arena: &mut [u8], bytes: usize, align: usize) -> Option<usize> {
        let place = self.0.next_multiple_of(align);
        self.0 = place.checked_add(bytes).filter(|&end| end <= arena.len())?;
        Some(place)
    }
    fn free(&mut self, _: &mut [u8], place: usize) -> bool {
        place < self.0
    }
    fn figures(&self, arena: &[u8]) -> Figures {
        Figures { arena_bytes: arena.len(), used_bytes: self.0, ..Figures::default() }
    }
}
// end

#[test]
fn the_page_has_these_listings_and_they_run() {
    let (page, own) = (include_str!("../../../../docs/how-to/nic-os.md"), include_str!("own.rs"));
    for name in ["task", "scheduler", "allocator"] {
        let (_, listing) = own.split_once(&format!("\n// {name}\n")).unwrap();
        let (listing, _) = listing.split_once("\n// end\n").unwrap();
        assert!(page.contains(listing), "docs/how-to/nic-os.md: its {name} is not that of own.rs");
        assert!(listing.lines().count() <= 20, "{name}: {}", listing.lines().count());
    }
    let mut bench = Bench::with(&OsSettings::default(), Box::new(InTurn));
    bench.os.attach_filters(Filters::new(1));
    let manager = program(|nic| async move {
        nic.install_allocator("bump", 4096, Box::<Bump>::default()).await.unwrap();
        nic.create(
            TaskSpec::new("beat").bounds(Bounds::stated(2_000)).periodic(1_000_000),
            program(beat),
        )
        .await
        .unwrap();
        nic.sleep_until(Time::MAX).await;
    });
    let spec = TaskSpec::new("manager").bounds(Bounds::stated(2_000));
    bench.os.create(spec, manager).unwrap();
    bench.run_until(micros(10_500));
    let frames = bench.wire_takes(0, 64, false);
    let numbers: Vec<_> = frames.iter().map(|frame| frame[17]).collect();
    assert_eq!(numbers, (1..=frames.len() as u8).collect::<Vec<_>>());
    assert!(frames.len() >= 10, "{}", frames.len());
    let memory = bench.os.memory_report();
    assert_eq!((memory.installed_allocators, memory.broken_allocators), (1, 0));
    bench.end();
}
