//! The executor's information for schedulers, and its own decisions.

use crate::bench::{Bench, Log, edf_plus, micros};
use picnic_core::resident::Resident;
use picnic_core::time::Time;
use picnic_os::admission::Order;
use picnic_os::context::Nic;
use picnic_os::control::TaskControl;
use picnic_os::executor::OsSettings;
use picnic_os::keys::{Admission, OsSection, Overrun};
use picnic_os::memory::TransferCost;
use picnic_os::path::{Costs, Intake, PacketPath};
use picnic_os::schedulers::{Decision, Discipline, Scheduler};
use picnic_os::task::{Bounds, Program, TaskId, TaskSpec, program};
use picnic_os::ticket::{Candidate, Ticket};
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// The information given to a scheduler.
#[derive(Default)]
struct Told {
    /// Notifications that tasks came, went or changed.
    changes: usize,
    /// Times of decisions, with the candidates.
    decisions: Vec<(u64, Vec<Candidate>)>,
}

/// `edf-plus`, recorded.
struct Spy(Box<dyn Scheduler>, Arc<Mutex<Told>>);

impl Scheduler for Spy {
    fn periodic(&mut self, now: Time, tasks: &[Candidate]) -> Option<usize> {
        self.0.periodic(now, tasks)
    }
    fn next_periodic(&self, now: Time, tasks: &[Candidate]) -> Option<Time> {
        self.0.next_periodic(now, tasks)
    }
    fn filler(&mut self, now: Time, slack_ns: u64, tasks: &[Candidate]) -> Option<usize> {
        self.0.filler(now, slack_ns, tasks)
    }
    fn decide(&mut self, now: Time, tasks: &[Candidate]) -> Decision {
        self.1.lock().unwrap().decisions.push((now.as_nanos(), tasks.to_vec()));
        self.0.decide(now, tasks)
    }
    fn discipline(&self) -> Discipline {
        self.0.discipline()
    }
    fn order(&self) -> Order {
        self.0.order()
    }
    fn tasks_changed(&mut self, now: Time, tasks: &[Candidate]) {
        self.1.lock().unwrap().changes += 1;
        self.0.tasks_changed(now, tasks);
    }
}

/// A NIC OS of one task, with the record of its scheduler.
fn overheard(switch_ns: u64, cold_ns: u64) -> (Bench, Arc<Mutex<Told>>) {
    let told = Arc::<Mutex<Told>>::default();
    let settings = OsSettings { tasks: 1, switch_ns, cold_ns, ..OsSettings::default() };
    (Bench::with(&settings, Box::new(Spy(edf_plus(), told.clone()))), told)
}

/// The last decision: its time, and the one task.
fn last(told: &Mutex<Told>) -> (u64, Candidate) {
    let told = told.lock().unwrap();
    let (at, tasks) = told.decisions.last().unwrap();
    (*at, tasks[0])
}

fn candidate(wcet_ns: u64, remaining_ns: u64, release: u64, deadline: u64) -> Candidate {
    let ticket = Ticket {
        wcet_ns,
        remaining_ns,
        period_ns: None,
        priority: 0,
        next_release: Time::from_nanos(release),
        next_deadline: Time::from_nanos(deadline),
    };
    Candidate { ticket, ready: true, begun: false, since: 0 }
}

fn spec(name: &str) -> TaskSpec {
    TaskSpec::new(name).wcet_ns(1_000)
}

fn two_segments() -> Bounds {
    Bounds { segments: [3_000, 5_000].into(), remaining: [8_000, 5_000].into() }
}

fn for_ever() -> Program {
    program(|nic| async move { nic.sleep_until(Time::MAX).await })
}

const NEVER: u64 = u64::MAX;

#[test]
fn segments_of_aperiodic_tasks_are_cold_once() {
    let (mut bench, told) = overheard(10, 100);
    let body = program(|nic| async move {
        assert_eq!(nic.services().now(), nic.now());
        nic.next_segment(1);
        nic.yield_now().await;
        nic.next_segment(0);
        nic.sleep_ns(1_000).await;
        nic.sleep_until(Time::MAX).await;
    });
    assert_eq!(bench.os.services().now(), Time::ZERO);
    bench.os.create(spec("t").bounds(two_segments()), body).unwrap();
    assert!(bench.turn().0);
    assert_eq!(last(&told), (0, Candidate { since: 1, ..candidate(3_110, 8_220, 0, NEVER) }));
    assert!(bench.turn().0);
    let second = Candidate { begun: true, since: 2, ..candidate(5_110, 5_220, 0, NEVER) };
    assert_eq!(last(&told), (3_000, second));
    assert!(bench.turn().0);
    let again = Candidate { since: 3, ..candidate(3_010, 8_020, 4_000, NEVER) };
    assert_eq!(last(&told), (8_000, again));
    assert_eq!(bench.turn(), (false, None));
    let asleep = Candidate { since: 3, ready: false, ..candidate(3_010, 8_020, NEVER, NEVER) };
    assert_eq!(last(&told), (11_000, asleep));
    assert_eq!(told.lock().unwrap().changes, 1);
    let counters = bench.os.counters().clone();
    assert_eq!((counters.decisions.get(), counters.idle_decisions.get()), (4, 1));
    bench.end();
}

#[test]
fn unbounded_segments_stay_unbounded_with_a_switch() {
    for (switch_ns, bounds) in [
        (10, Bounds { segments: [5].into(), remaining: [u64::MAX].into() }),
        (1 << 63, two_segments()),
    ] {
        let (mut bench, told) = overheard(switch_ns, 0);
        bench.os.create(spec("t").bounds(bounds), for_ever()).unwrap();
        bench.turn();
        assert_eq!(last(&told).1.ticket.remaining_ns, u64::MAX);
        bench.end();
    }
}

#[test]
fn schedulers_are_notified_before_deciding() {
    let (mut bench, told) = overheard(0, 0);
    bench.turn();
    assert_eq!(told.lock().unwrap().changes, 1);
    bench.end();
}

/// Always decides this.
struct Stubborn(Decision);

impl Scheduler for Stubborn {
    fn decide(&mut self, _: Time, _: &[Candidate]) -> Decision {
        self.0
    }
    fn periodic(&mut self, _: Time, _: &[Candidate]) -> Option<usize> {
        None
    }
    fn next_periodic(&self, _: Time, _: &[Candidate]) -> Option<Time> {
        None
    }
    fn filler(&mut self, _: Time, _: u64, _: &[Candidate]) -> Option<usize> {
        None
    }
    fn discipline(&self) -> Discipline {
        Discipline::Segment
    }
}

#[test]
fn decisions_are_followed_if_possible() {
    for (decision, is_run, due) in [
        (Decision::Run(0), true, 5),
        (Decision::Run(1), false, 5),
        (Decision::Run(64), false, 5),
        (Decision::Idle(None), false, 5),
        (Decision::Idle(Some(micros(3))), false, 3),
        (Decision::Idle(Some(Time::MAX)), false, 5),
    ] {
        let mut bench = Bench::with(&OsSettings::default(), Box::new(Stubborn(decision)));
        bench.os.create(spec("ready"), for_ever()).unwrap();
        bench.os.create(spec("later").offset_ns(5_000), for_ever()).unwrap();
        assert_eq!(bench.turn(), (is_run, Some(micros(due))), "{decision:?}");
        bench.end();
    }
}

#[test]
fn with_all_tasks_suspended_nothing_is_due() {
    let mut bench = Bench::new();
    let id = bench.os.create(spec("p").periodic(10_000), for_ever()).unwrap();
    assert!(bench.os.control(bench.now, &mut TaskControl::Suspend(id)));
    assert_eq!(bench.turn(), (false, None));
    bench.end();
}

#[test]
fn admission_uses_the_bound_of_all_segments() {
    for (period_ns, fits) in [(8_000, true), (7_999, false)] {
        let (mut bench, _) = overheard(0, 0);
        let spec = spec("p").periodic(period_ns).bounds(two_segments());
        assert_eq!(bench.os.create(spec, for_ever()).is_ok(), fits);
        bench.end();
    }
}

#[test]
fn a_task_of_one_segment_has_one_switch() {
    let (mut bench, told) = overheard(10, 0);
    bench.os.create(spec("t"), for_ever()).unwrap();
    bench.turn();
    assert_eq!(last(&told).1.ticket.remaining_ns, 1_010);
    bench.end();
}

#[test]
fn periodic_tickets_are_warm_and_per_release() {
    let (mut bench, told) = overheard(10, 100);
    let body = program(|nic| async move {
        loop {
            nic.next_segment(1);
            nic.yield_now().await;
            nic.next_segment(0);
            nic.next_release().await;
        }
    });
    bench.os.create(spec("p").periodic(10_000).bounds(two_segments()), body).unwrap();
    let expected = |mut candidate: Candidate| {
        candidate.ticket.period_ns = Some(10_000);
        candidate
    };
    assert!(bench.turn().0);
    let first = Candidate { since: 1, ..candidate(3_010, 8_020, 0, 10_000) };
    assert_eq!(last(&told), (0, expected(first)));
    assert!(bench.turn().0);
    let second = Candidate { begun: true, since: 2, ..candidate(5_010, 5_020, 0, 10_000) };
    assert_eq!(last(&told), (3_000, expected(second)));
    assert_eq!(bench.turn(), (false, Some(micros(10))));
    let waiting = Candidate { ready: false, since: 2, ..candidate(3_010, 8_020, 10_000, 20_000) };
    assert_eq!(last(&told), (8_000, expected(waiting)));
    bench.end();
}

#[test]
fn periodic_tasks_waiting_in_mid_invocation_have_begun() {
    let (mut bench, told) = overheard(0, 0);
    let body = program(|nic| async move {
        nic.sleep_until(micros(2)).await;
        nic.next_release().await;
    });
    bench.os.create(spec("p").periodic(10_000), body).unwrap();
    bench.turn();
    assert_eq!(bench.turn(), (false, Some(micros(2))));
    assert_eq!(last(&told).1.ticket.next_release, micros(2));
    bench.now = micros(2);
    bench.turn();
    let (_, task) = last(&told);
    assert!(task.ready && task.begun);
    assert_eq!((task.ticket.next_release, task.ticket.next_deadline), (Time::ZERO, micros(10)));
    bench.end();
}

#[test]
fn schedulers_are_notified_of_exactly_the_changes() {
    let (mut bench, told) = overheard(0, 0);
    let id = bench.os.create(spec("p").periodic(10_000), for_ever()).unwrap();
    let changes_after = |bench: &mut Bench, order: &mut TaskControl| {
        let before = told.lock().unwrap().changes;
        let done = bench.os.control(bench.now, order);
        for _ in 0..3 {
            bench.turn();
        }
        (done, told.lock().unwrap().changes - before)
    };
    assert_eq!(changes_after(&mut bench, &mut TaskControl::list(4)), (true, 1), "it has come");
    assert_eq!(changes_after(&mut bench, &mut TaskControl::Suspend(id)), (true, 1));
    assert_eq!(changes_after(&mut bench, &mut TaskControl::Resume(id)), (true, 1));
    assert_eq!(changes_after(&mut bench, &mut TaskControl::Resume(id)), (true, 0), "it runs");
    assert_eq!(changes_after(&mut bench, &mut TaskControl::SetPriority(id, 9)), (true, 1));
    assert_eq!(last(&told).1.ticket.priority, 9);
    for mut order in [
        TaskControl::Suspend(TaskId(77)),
        TaskControl::SetPriority(TaskId(77), 1),
        TaskControl::Kill(TaskId(77)),
    ] {
        assert_eq!(changes_after(&mut bench, &mut order), (false, 0), "{order:?}");
    }
    let mut list = TaskControl::list(4);
    // Its earlier value is replaced.
    for _ in 0..2 {
        assert!(bench.os.control(bench.now, &mut list));
    }
    let TaskControl::List(lines) = list else { panic!("{list:?}") };
    assert_eq!((lines.len(), lines[0].priority), (1, 9));
    assert_eq!(changes_after(&mut bench, &mut TaskControl::Kill(id)), (true, 1));
    bench.end();
}

#[test]
fn suspended_tasks_have_no_release() {
    let (mut bench, told) = overheard(0, 0);
    let body = program(|nic| async move {
        loop {
            nic.yield_now().await;
        }
    });
    let id = bench.os.create(spec("t"), body).unwrap();
    bench.turn();
    assert!(bench.os.control(bench.now, &mut TaskControl::Suspend(id)));
    bench.turn();
    assert_eq!(last(&told).1.ticket.next_release, Time::MAX);
    assert!(bench.os.control(bench.now, &mut TaskControl::Resume(id)));
    bench.turn();
    assert_eq!(last(&told).1.ticket.next_release, Time::ZERO);
    bench.end();
}

#[test]
fn frames_are_at_the_wire_when_a_segment_ends() {
    let mut bench = Bench::new();
    let body = program(|nic| async move {
        for byte in 1..=3 {
            nic.post(0, &[byte; 60]).unwrap();
        }
    });
    bench.os.create(spec("sender"), body).unwrap();
    assert!(bench.turn().0);
    let sent: Vec<_> = bench.wire_takes(0, 9, false).iter().map(|frame| frame[0]).collect();
    assert_eq!(sent, [1, 2, 3]);
    bench.end();
}

#[test]
fn a_stop_has_a_time() {
    let mut bench = Bench::new();
    bench.os.create(spec("t"), for_ever()).unwrap();
    bench.turn();
    let services = bench.os.services();
    bench.now = micros(5);
    bench.end();
    assert_eq!(services.now(), micros(5));
}

#[test]
fn ending_at_the_deadline_keeps_it() {
    for (work_ns, misses) in [(10_000, 0), (10_001, 1)] {
        let mut bench = Bench::new();
        let body = program(move |nic| async move {
            nic.work(work_ns);
            nic.next_release().await;
            nic.sleep_until(Time::MAX).await;
        });
        bench.os.create(spec("p").periodic(10_000), body).unwrap();
        bench.turn();
        let line = bench.os.lines().next().unwrap();
        assert_eq!(line.counters.deadline_misses.get(), misses, "after {work_ns} ns");
        bench.end();
    }
}

#[test]
fn wakes_do_not_affect_the_wait_for_a_release() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let (said, slot) = (log.clone(), Arc::<Mutex<Option<Waker>>>::default());
    let theirs = slot.clone();
    let body = program(move |nic| async move {
        loop {
            said.say(nic.now(), "r");
            let mut release = std::pin::pin!(nic.next_release());
            std::future::poll_fn(|context| {
                *theirs.lock().unwrap() = Some(context.waker().clone());
                release.as_mut().poll(context)
            })
            .await;
        }
    });
    bench.os.create(spec("r").periodic(10_000), body).unwrap();
    bench.run_until(micros(5));
    slot.lock().unwrap().take().unwrap().wake();
    bench.run_until(micros(25));
    assert_eq!(log.text(), "0:r 10:r 20:r");
    let counters = bench.os.lines().next().unwrap().counters;
    let counts = (counters.invocations.get(), counters.completed.get(), counters.segments.get());
    assert_eq!(counts, (3, 3, 4));
    bench.end();
}

#[test]
fn wakes_reach_tasks_in_any_place() {
    let settings = OsSettings { tasks: 130, switch_ns: 0, cold_ns: 0, ..OsSettings::default() };
    let (mut bench, log) = (Bench::with(&settings, edf_plus()), Log::default());
    let wakers = Arc::<Mutex<Vec<Waker>>>::default();
    for number in 0..130 {
        let (said, theirs) = (log.clone(), wakers.clone());
        let body = program(move |_| async move {
            let mut is_woken = false;
            std::future::poll_fn(|context| {
                if is_woken {
                    return std::task::Poll::Ready(());
                }
                is_woken = true;
                theirs.lock().unwrap().push(context.waker().clone());
                std::task::Poll::Pending
            })
            .await;
            said.say(Time::ZERO, number.to_string());
        });
        bench.os.create(spec("w"), body).unwrap();
    }
    bench.run_until(micros(200));
    let wakers = std::mem::take(&mut *wakers.lock().unwrap());
    assert_eq!((wakers.len(), log.text()), (130, String::new()));
    for number in [0, 1, 63, 64, 129] {
        wakers[number].wake_by_ref();
    }
    bench.run_until(micros(300));
    let said: Vec<_> = log.take().into_iter().map(|(_, number)| number).collect();
    assert_eq!(said, ["0", "1", "63", "64", "129"]);
    bench.end();
}

#[test]
fn self_waking_tasks_continue_in_any_place() {
    let settings = OsSettings { tasks: 130, switch_ns: 0, cold_ns: 0, ..OsSettings::default() };
    let mut bench = Bench::with(&settings, edf_plus());
    for _ in 0..130 {
        let body = program(|_| async {
            let mut is_woken = false;
            std::future::poll_fn(|context| {
                if std::mem::replace(&mut is_woken, true) {
                    return std::task::Poll::Ready(());
                }
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            })
            .await;
        });
        bench.os.create(spec("w"), body).unwrap();
    }
    bench.run_until(micros(300));
    for line in bench.os.lines() {
        let counts = (line.counters.segments.get(), line.counters.invocations.get());
        assert_eq!(counts, (2, 1), "{}", line.id);
    }
    bench.end();
}

#[test]
fn requests_from_other_threads_raise_attention() {
    let (mut bench, slot) = (Bench::new(), Arc::<Mutex<Option<Nic>>>::default());
    let theirs = slot.clone();
    let body = program(move |nic| async move {
        *theirs.lock().unwrap() = Some(nic);
        std::future::pending::<()>().await;
    });
    let id = bench.os.create(spec("t"), body).unwrap();
    bench.run_until(micros(5));
    assert!(!bench.os.attention().is_raised());
    slot.lock().unwrap().take().unwrap().kill(id);
    assert!(bench.os.attention().is_raised());
    bench.turn();
    assert_eq!(bench.os.lines().next().unwrap().state, picnic_os::roster::State::Killed);
    bench.end();
}

#[test]
fn admission_counts_refusals_and_overrides() {
    for (admission, refused, overridden) in [(Admission::Refuse, 1, 0), (Admission::Override, 0, 1)]
    {
        let settings = OsSettings { admission, switch_ns: 0, cold_ns: 0, ..OsSettings::default() };
        let mut bench = Bench::with(&settings, edf_plus());
        bench.os.create(spec("fits").periodic(10_000), for_ever()).unwrap();
        let created = bench.os.create(spec("does not").periodic(1_000), for_ever());
        assert_eq!(created.is_err(), refused == 1);
        let counters = bench.os.counters().clone();
        let counts = (counters.created.get(), counters.refused.get(), counters.overridden.get());
        assert_eq!(counts, (1 + overridden, refused, overridden));
        let notes = bench.os.report().notes;
        assert_eq!(notes.len() as u64, overridden);
        assert!(notes.iter().all(|note| note.starts_with("admission overridden: ")), "{notes:?}");
        if admission == Admission::Override {
            // All are counted, and some reported.
            for _ in 0..20 {
                bench.os.create(spec("nor does this").periodic(1_000), for_ever()).unwrap();
            }
            assert_eq!(bench.os.counters().overridden.get(), 21);
            assert_eq!(bench.os.report().notes.len(), 16);
        }
        bench.end();
    }
}

#[test]
fn packets_get_the_catch_up_time() {
    let wire = Intake { name: "wire0".into(), pps: 0, burst: 1, room: 64 };
    let path = PacketPath::new(vec![wire], Costs { catch_up_ns: 777, ..Costs::default() });
    let bench = Bench::with(&OsSettings { path, ..OsSettings::default() }, edf_plus());
    assert_eq!(bench.os.patience_ns(), 777);
    bench.end();
}

#[test]
fn defaults_agree_with_the_card_file() {
    let (settings, keys) = (OsSettings::default(), OsSection::default());
    assert_eq!((settings.tasks, settings.wires, settings.buffer_size), (64, 1, 2048));
    assert_eq!((settings.arena_bytes, settings.host_bytes), (1_048_576, 16_777_216));
    assert_eq!((settings.switch_ns, settings.cold_ns), (1_000, 50_000));
    assert_eq!((settings.overrun, settings.admission), (Overrun::Warn, Admission::Refuse));
    assert_eq!(settings.transfer, TransferCost { latency_ns: 1_000, bytes_per_us: 8_000 });
    assert_eq!((keys.tasks, keys.arena_bytes, keys.host_bytes), (64, 1_048_576, 16_777_216));
    assert_eq!((keys.switch_ns, keys.cold_ns, keys.catch_up_us), (1_000, 50_000, 1_000));
    assert_eq!((keys.transfer_latency_ns, keys.transfer_bytes_per_us), (1_000, 8_000));
    assert_eq!(keys.cost_profile(), None);
    let named = OsSection { cost_profile: "own.toml".into(), ..keys };
    assert_eq!(named.cost_profile(), Some("own.toml".as_ref()));
}

#[test]
fn tasks_follow_their_specification() {
    let plain = TaskSpec::new("t");
    assert_eq!((plain.period_ns, plain.offset_ns, plain.priority), (None, 0, 0));
    for (asked, period) in [(0, 1), (1, 1), (2, 2)] {
        assert_eq!(plain.clone().periodic(asked).period_ns, Some(period));
    }
    let named = plain.bounds_from("a profile");
    assert!(!named.is_stated() && named.wcet_ns(5).is_stated());
}

#[test]
fn aperiodic_tasks_have_an_invocation_per_wait() {
    let (mut bench, told) = overheard(0, 0);
    let body = program(|nic| async move {
        for _ in 0..3 {
            nic.sleep_ns(5_000).await;
        }
        loop {
            nic.next_release().await;
        }
    });
    let id = bench.os.create(spec("t"), body).unwrap();
    let counts = |bench: &Bench| {
        let line = bench.os.lines().find(|line| line.id == id).unwrap();
        (line.counters.invocations.get(), line.counters.completed.get())
    };
    let mut waits = Vec::new();
    for _ in 0..3 {
        assert!(bench.turn().0);
        waits.push(counts(&bench));
        let due = bench.turn().1.unwrap();
        bench.now = due;
    }
    assert_eq!(waits, [(1, 1), (2, 2), (3, 3)]);
    // The release of an aperiodic task comes at once, and is the next invocation.
    assert!(bench.turn().0);
    assert_eq!(counts(&bench), (5, 4));
    let begun = bench.now;
    assert!(bench.turn().0);
    let (at, candidate) = last(&told);
    assert_eq!((at, candidate.ticket.next_release), (begun.as_nanos(), begun));
    assert_eq!(counts(&bench), (6, 5));
    bench.end();
}
