//! Filters that tasks install: their packets, and their removal.

use crate::bench::{Bench, micros};
use crate::frames::Frame;
use picnic_core::function::Function;
use picnic_core::guard::Guard;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::{Doors, Onward, Out};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::resident::Resident;
use picnic_core::time::Time;
use picnic_filter::code::{Closer, Handover};
use picnic_filter::{Action, Filter, FilterCode, FilterError, Filters, FiveTuple, Match, Protocol};
use picnic_os::control::TaskControl;
use picnic_os::task::{TaskSpec, program};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

struct Nothing;

impl Onward for Nothing {
    fn carry_on(&mut self, _: Time, _: &mut Burst, _: &mut Doors) {}
}

/// Returns how many of the frames continue.
fn run(bench: &mut Bench, head: &mut dyn Function, frames: &[Vec<u8>]) -> usize {
    let mut burst = Burst::new();
    for frame in frames {
        burst.push(bench.doors.pool.packet(frame).unwrap()).unwrap();
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

fn icmp(action: Action) -> Filter {
    let tuple = FiveTuple { protocol: Some(Protocol::ICMP), ..FiveTuple::default() };
    Filter::new("pings", tuple, action)
}

fn spec(name: &str) -> TaskSpec {
    TaskSpec::new(name).wcet_ns(1_000)
}

fn ping() -> Vec<u8> {
    Frame { protocol: 1, ..Frame::default() }.bytes()
}

#[test]
fn tasks_receive_by_filters_removed_at_their_end() {
    let mut bench = Bench::new();
    let filters = Filters::new(1);
    bench.os.attach_filters(filters.clone());
    let mut head = filters.function(Stage::Rx).unwrap();
    let pings = Arc::new(AtomicU64::new(0));
    let theirs = pings.clone();
    let body = program(move |nic| async move {
        let (sender, mut mailbox) = nic.mailbox(4).unwrap();
        nic.add_filter(icmp(Action::Deliver), sender).await.unwrap();
        while mailbox.receive().await.is_some() {
            theirs.fetch_add(1, Ordering::Relaxed);
        }
    });
    let id = bench.os.create(spec("pings"), body).unwrap();
    bench.run_until(micros(20));
    assert_eq!(filters.list().len(), 1);
    let udp = Frame::default().bytes();
    assert_eq!(run(&mut bench, &mut *head, &[ping(), udp.clone(), ping()]), 1);
    assert_eq!(bench.os.attention().held().get(), 2);
    bench.run_until(micros(60));
    assert_eq!(pings.load(Ordering::Relaxed), 2);
    assert_eq!(bench.doors.ledger.card.consumed.get(), 2);
    // More than the mailbox holds.
    assert_eq!(run(&mut bench, &mut *head, &vec![ping(); 6]), 0);
    assert_eq!(bench.doors.ledger.card.drops.get(DropReason::MailboxFull, Stage::Rx), 2);
    bench.run_until(micros(120));
    assert_eq!(pings.load(Ordering::Relaxed), 6);

    assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
    assert_eq!(filters.list().len(), 0);
    assert_eq!(run(&mut bench, &mut *head, &[ping()]), 1);
    bench.end();
}

#[test]
fn filters_of_host_and_other_tasks_stay() {
    let mut bench = Bench::new();
    let filters = Filters::new(1);
    bench.os.attach_filters(filters.clone());
    filters.add(Filter::new("hosts", Match::Any, Action::Count)).unwrap();
    let task = |name: &'static str, stays: bool| {
        program(move |nic| async move {
            let mark = Filter::new(name, Match::Any, Action::Mark(1));
            let id = nic.add_filter(mark.clone(), FilterCode::default()).await;
            let id = id.unwrap();
            nic.change_filter(id, mark.with_priority(7)).await.unwrap();
            let other = nic.add_filter(icmp(Action::Drop), FilterCode::default()).await;
            nic.remove_filter(other.unwrap()).await.unwrap();
            if stays {
                nic.sleep_until(Time::MAX).await;
            }
        })
    };
    bench.os.create(spec("a"), task("stays", true)).unwrap();
    bench.os.create(spec("b"), task("goes", false)).unwrap();
    bench.run_until(micros(100));
    let names: Vec<_> = filters.list().into_iter().map(|listing| listing.filter.name).collect();
    assert_eq!(names, ["stays", "hosts"]);
    bench.end();
    // Stopped, every task has ended.
    assert_eq!(filters.list().len(), 1);
}

#[test]
fn mailboxes_of_removed_filters_end() {
    let mut bench = Bench::new();
    let filters = Filters::new(1);
    bench.os.attach_filters(filters.clone());
    let mut head = filters.function(Stage::Rx).unwrap();
    let ended = Arc::new(AtomicU64::new(0));
    let theirs = ended.clone();
    let body = program(move |nic| async move {
        let (sender, mut mailbox) = nic.mailbox(4).unwrap();
        nic.add_filter(icmp(Action::Deliver), sender).await.unwrap();
        while mailbox.receive().await.is_some() {}
        theirs.store(1, Ordering::Relaxed);
    });
    bench.os.create(spec("reader"), body).unwrap();
    bench.run_until(micros(20));
    run(&mut bench, &mut *head, &[ping()]);
    bench.run_until(micros(40));
    let id = filters.list()[0].id;
    filters.remove(id).unwrap();
    // No packet arrives, and filters no longer change.
    bench.run_until(micros(80));
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    bench.end();
}

/// A changed filter keeps its mailbox, and a filter that no longer delivers ends it; packets that
/// the core hands over by its old list are dropped and counted.
#[test]
fn mailboxes_end_when_delivery_ends() {
    let mut bench = Bench::new();
    let filters = Filters::new(1);
    bench.os.attach_filters(filters.clone());
    let mut head = filters.function(Stage::Rx).unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let theirs = log.clone();
    let body = program(move |nic| async move {
        let (sender, mut mailbox) = nic.mailbox(4).unwrap();
        let id = nic.add_filter(icmp(Action::Deliver), sender).await.unwrap();
        for step in ["deliver", "moved", "count"] {
            let filter = icmp(if step == "count" { Action::Count } else { Action::Deliver });
            nic.change_filter(id, filter.with_priority(7)).await.unwrap();
            let got = mailbox.receive().await.is_some();
            theirs.lock().unwrap().push((step, got));
        }
    });
    bench.os.create(spec("reader"), body).unwrap();
    for end in [20, 40] {
        bench.run_until(micros(end));
        assert_eq!(run(&mut bench, &mut *head, &[ping()]), 0);
    }
    bench.run_until(micros(80));
    assert_eq!(*log.lock().unwrap(), [("deliver", true), ("moved", true), ("count", false)]);
    assert_eq!(run(&mut bench, &mut *head, &[ping()]), 1, "it counts, and lets go on");
    bench.end();
}

#[test]
fn tasks_without_card_filters_get_an_error() {
    let mut bench = Bench::new();
    let told = Arc::new(Mutex::new(None));
    let theirs = told.clone();
    let body = program(move |nic| async move {
        let (sender, _mailbox) = nic.mailbox(4).unwrap();
        *theirs.lock().unwrap() = Some(nic.add_filter(icmp(Action::Deliver), sender).await);
    });
    bench.os.create(spec("hopeful"), body).unwrap();
    bench.run_until(micros(20));
    assert_eq!(told.lock().unwrap().take(), Some(Err(FilterError::Absent)));
    bench.end();
}

/// Takes no packets. Installing it is a change that lasts until its other end is dropped.
struct Slow(Sender<()>, Receiver<()>);

impl Handover for Slow {
    fn hand_over(&mut self, _: Time, packet: Descriptor) -> Result<(), Descriptor> {
        Err(packet)
    }

    fn closer(&self) -> Option<Closer> {
        self.0.send(()).unwrap();
        let _ = self.1.recv();
        None
    }
}

#[test]
fn filters_of_ended_tasks_are_removed_after_other_changes() {
    for is_stopped in [false, true] {
        let mut bench = Bench::new();
        let filters = Filters::new(1);
        bench.os.attach_filters(filters.clone());
        let body = program(|nic| async move {
            nic.add_filter(icmp(Action::Count), FilterCode::default()).await.unwrap();
            std::future::pending().await
        });
        let id = bench.os.create(spec("t"), body).unwrap();
        bench.run_until(micros(20));
        assert_eq!(filters.list().len(), 1);

        let ((begins, begun), (end, ends)) = (channel(), channel());
        let theirs = filters.clone();
        let thread = std::thread::spawn(move || {
            let handover = Some(Box::new(Slow(begins, ends)) as Box<dyn Handover>);
            let code = FilterCode { handover, ..FilterCode::default() };
            theirs.add_with(Filter::new("other", Match::Any, Action::Deliver), code).unwrap()
        });
        begun.recv().unwrap();
        assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
        for _ in 0..2 {
            assert!(bench.os.attention().is_raised(), "it tries again");
            bench.turn();
        }
        drop(end);
        if is_stopped {
            // It waits then.
            bench.os.stop(bench.now, &mut bench.doors);
        }
        let other = thread.join().unwrap();
        bench.turn();
        assert_eq!(filters.list().iter().map(|filter| filter.id).collect::<Vec<_>>(), [other]);
        assert!(!bench.os.attention().is_raised());
        bench.end();
    }
}

/// Threads change filters while tasks start and end: in any order, an ended task has no
/// filter left.
#[test]
fn filters_of_ended_tasks_are_always_removed() {
    let filters = Filters::new(1);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let (filters, stop) = (filters.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let id = filters.add(Filter::new("busy", Match::Any, Action::Count)).unwrap();
                    filters.list();
                    filters.remove(id).unwrap();
                }
            })
        })
        .collect();
    for _ in 0..100 {
        let mut bench = Bench::new();
        bench.os.attach_filters(filters.clone());
        let body = program(|nic| async move {
            for _ in 0..3 {
                let mine = Filter::new("mine", Match::Any, Action::Count);
                nic.add_filter(mine, FilterCode::default()).await.unwrap();
            }
        });
        bench.os.create(spec("short"), body).unwrap();
        bench.run_until(micros(2_000));
        bench.end();
    }
    stop.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(filters.list(), []);
}
