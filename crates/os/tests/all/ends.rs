//! However a task ends, everything it had is released, and the card and its other tasks continue.

use crate::bench::{Bench, edf_plus, micros};
use crate::frames::Frame;
use picnic_core::function::Function;
use picnic_core::guard::Guard;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::{Doors, Onward, Out};
use picnic_core::packet::burst::Burst;
use picnic_core::resident::Resident;
use picnic_core::time::Time;
use picnic_filter::{Action, Filter, Filters, Match};
use picnic_os::control::TaskControl;
use picnic_os::executor::OsSettings;
use picnic_os::keys::Overrun;
use picnic_os::memory::MemoryError;
use picnic_os::roster::State;
use picnic_os::task::{TaskSpec, program};
use std::sync::{Arc, Mutex};

struct Nothing;

impl Onward for Nothing {
    fn carry_on(&mut self, _: Time, _: &mut Burst, _: &mut Doors) {}
}

/// Passes this many packets through the head of the rx chain; returns how many continue.
fn packets(bench: &mut Bench, head: &mut dyn Function, count: usize) -> usize {
    let mut burst = Burst::new();
    for _ in 0..count {
        let frame = Frame::default().bytes();
        burst.push(bench.doors.pool.packet(&frame).unwrap()).unwrap();
    }
    let mut nothing = Nothing;
    let mut out = Out::new(bench.now, Stage::Rx, &mut bench.doors, &mut nothing);
    head.process(bench.now, &mut burst, &mut out);
    out.finish();
    let passed = burst.len();
    for packet in burst.drain() {
        bench.doors.pool.free(packet);
    }
    passed
}

#[test]
fn ended_tasks_release_memory_mailbox_and_filters() {
    for state in [State::Returned, State::Panicked, State::Killed, State::Overran] {
        let settings = OsSettings {
            switch_ns: 0,
            cold_ns: 0,
            overrun: Overrun::Kill,
            tasks: 2,
            ..OsSettings::default()
        };
        let mut bench = Bench::with(&settings, edf_plus());
        let filters = Filters::new(1);
        bench.os.attach_filters(filters.clone());
        let mut head = filters.function(Stage::Rx).unwrap();
        let body = program(move |nic| async move {
            let _block = nic.allocate(512).unwrap();
            let _host = nic.allocate_host(512).unwrap();
            // Its handle is lost; the memory is not.
            std::mem::forget(nic.allocate(64).unwrap());
            let (sender, mut mailbox) = nic.mailbox(4).unwrap();
            let all = Filter::new("mine", Match::Any, Action::Deliver);
            nic.add_filter(all, sender).await.unwrap();
            let _first = mailbox.receive().await;
            nic.sleep_until(micros(60)).await;
            match state {
                State::Panicked => panic!("as it is meant to"),
                State::Overran => nic.work(5_000),
                State::Killed => nic.sleep_until(Time::MAX).await,
                _ => return,
            }
            nic.sleep_until(Time::MAX).await;
        });
        let id = bench.os.create(TaskSpec::new("ends").wcet_ns(1_000), body).unwrap();
        let beats = Arc::new(Mutex::new(0));
        let theirs = beats.clone();
        let other = program(move |nic| async move {
            loop {
                *theirs.lock().unwrap() += 1;
                nic.next_release().await;
            }
        });
        bench.os.create(TaskSpec::new("other").periodic(10_000).wcet_ns(100), other).unwrap();
        bench.run_until(micros(20));
        // More than the mailbox holds: the rest is dropped and counted.
        assert_eq!(packets(&mut bench, &mut *head, 6), 0);
        assert_eq!(bench.doors.ledger.card.drops.get(DropReason::MailboxFull, Stage::Rx), 2);
        bench.run_until(micros(50));
        assert_eq!(bench.os.attention().held().get(), 4, "one in its hands, three in the mailbox");
        assert_eq!(bench.os.memory_report().blocks, 3, "one of them gathers writes to the host");
        bench.run_until(micros(80));
        if state == State::Killed {
            assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
        }
        let ended = bench.os.lines().find(|line| line.id == id).unwrap();
        assert_eq!(ended.state, state);
        assert_eq!(bench.os.counters().panics.get(), u64::from(state == State::Panicked));
        assert_eq!(ended.counters.overruns.get(), u64::from(state == State::Overran));
        let memory = bench.os.memory_report();
        assert_eq!((memory.blocks, memory.host_used_bytes), (0, 0), "{state:?}");
        assert_eq!(filters.list(), [], "{state:?}");
        bench.run_until(micros(200));
        assert_eq!(bench.os.attention().held().get(), 0, "its packets are consumed: {state:?}");
        assert_eq!(bench.doors.ledger.card.consumed.get(), 4);
        // The card continues: packets pass, the other task beats, the place is free again.
        assert_eq!(packets(&mut bench, &mut *head, 3), 3, "{state:?}");
        assert_eq!(*beats.lock().unwrap(), 20, "{state:?}");
        // The core has left the filter's end of the mailbox; the list frees it.
        assert_eq!(filters.list(), []);
        let memory = bench.os.memory_report();
        let owners: Vec<_> = memory.owners.iter().map(|it| (it.task, it.allocations)).collect();
        assert_eq!((&*owners, memory.arena.blocks), (&[(2, 1)][..], 1), "the other task is left");
        let again = program(|_| async {});
        assert!(bench.os.create(TaskSpec::new("again"), again).is_ok());
        bench.end();
    }
}

#[test]
fn an_exhausted_arena_is_an_error_and_counted() {
    let settings = OsSettings { arena_bytes: 8 << 10, switch_ns: 0, ..OsSettings::default() };
    let mut bench = Bench::with(&settings, edf_plus());
    let got = Arc::new(Mutex::new((0, None)));
    let theirs = got.clone();
    let body = program(move |nic| async move {
        let mut blocks = Vec::new();
        let error = loop {
            match nic.allocate(1000) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
            nic.yield_now().await;
        };
        *theirs.lock().unwrap() = (blocks.len(), Some(error));
        // A freed one can be allocated again.
        drop(blocks.pop());
        blocks.push(nic.allocate(1000).unwrap());
        nic.sleep_until(Time::MAX).await;
    });
    let id = bench.os.create(TaskSpec::new("hungry").wcet_ns(100), body).unwrap();
    bench.run_until(micros(20));
    let (blocks, error) = *got.lock().unwrap();
    assert!((6..=8).contains(&blocks), "{blocks}");
    match error.unwrap() {
        MemoryError::Exhausted { wanted, free, largest, .. } => {
            assert_eq!(wanted, 1000);
            assert!(largest < 1000 && largest <= free, "{largest} of {free}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(bench.os.memory_report().arena.failures, 1);
    assert_eq!(bench.os.memory_report().blocks, blocks);
    assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
    assert_eq!(bench.os.memory_report().arena.blocks, 0);
    bench.end();
}
