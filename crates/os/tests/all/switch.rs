//! Another scheduler while tasks run.

use crate::bench::{Bench, edf_plus, micros};
use picnic_core::registry::BuildContext;
use picnic_core::resident::Resident;
use picnic_core::time::Time;
use picnic_os::admission::{Demand, admit};
use picnic_os::control::TaskControl;
use picnic_os::executor::{OsSettings, Schedules, Switch};
use picnic_os::keys::Admission;
use picnic_os::path::PacketPath;
use picnic_os::schedulers::registry::SCHEDULERS;
use picnic_os::schedulers::{Decision, Discipline, Scheduler};
use picnic_os::task::{Bounds, Program, TaskSpec, program};
use picnic_os::ticket::Candidate;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::sync::{Arc, Mutex};

fn scheduler(name: &str) -> Box<dyn Scheduler> {
    let entry = SCHEDULERS.iter().find(|entry| entry.name == name).unwrap();
    let card = picnic_core::config::Sections::core().with(picnic_os::keys::SECTIONS);
    let card = card.parse(&format!("[os]\nscheduler = \"{name}\"\n"), None).unwrap();
    let section = card.section::<picnic_os::keys::OsSection>();
    entry.build(&section.section, &BuildContext::default()).unwrap()
}

/// Orders another scheduler; the schedulers then, or the refusal.
fn switch(bench: &mut Bench, name: &str, to: Box<dyn Scheduler>) -> Result<Schedules, String> {
    let mut order = TaskControl::Switch(Switch::to(name, to));
    let done = bench.os.control(bench.now, &mut order);
    let TaskControl::Switch(Switch { result, schedulers }) = order else { panic!("{order:?}") };
    let result = result.unwrap();
    assert_eq!(done, result.is_ok());
    assert!(schedulers.len() <= 3, "no memory is allocated for them: {schedulers:?}");
    result
}

/// A task: its period and its segments, in nanoseconds.
#[derive(Clone, Debug)]
struct Model {
    period_ns: Option<u64>,
    segments: Vec<u64>,
}

impl Model {
    fn spec(&self, number: usize) -> TaskSpec {
        let left = |first: usize| self.segments[first..].iter().sum();
        let remaining = (0..self.segments.len()).map(left).collect();
        let bounds = Bounds { segments: self.segments.clone().into(), remaining };
        let spec = TaskSpec::new(format!("t{number}")).bounds(bounds);
        match self.period_ns {
            Some(period_ns) => spec.periodic(period_ns),
            None => spec,
        }
    }

    /// Its code, which logs when each invocation begins.
    fn body(self, starts: Arc<Mutex<Vec<u64>>>) -> Program {
        program(move |nic| async move {
            loop {
                starts.lock().unwrap().push(nic.now().as_nanos());
                let last = self.segments.len() - 1;
                for segment in 0..last {
                    nic.work(self.segments[segment]);
                    nic.next_segment(segment as u16 + 1);
                    nic.yield_now().await;
                }
                nic.work(self.segments[last]);
                nic.next_segment(0);
                match self.period_ns {
                    Some(_) => nic.next_release().await,
                    None => nic.sleep_ns(self.segments[last] + 30_000).await,
                }
            }
        })
    }

    fn demand(&self) -> Demand {
        Demand {
            name: "t".into(),
            period_ns: self.period_ns,
            invocation_ns: self.segments.iter().sum(),
            segment_ns: *self.segments.iter().max().unwrap(),
            segments: self.segments.len() as u64,
        }
    }
}

const PROMISE: [&str; 4] = ["edf-plus", "edf", "cyclic-plus", "cyclic"];

/// Sets that all schedulers with deadlines admit.
fn sets() -> impl Strategy<Value = Vec<Model>> {
    let periods = prop::sample::select(vec![500_000u64, 1_000_000, 2_000_000, 4_000_000]);
    let segments = |most_ns: u64| prop::collection::vec(5_000..most_ns, 1..5);
    let periodic = (periods, segments(60_000))
        .prop_map(|(period_ns, segments)| Model { period_ns: Some(period_ns), segments });
    let other = segments(150_000).prop_map(|segments| Model { period_ns: None, segments });
    (prop::collection::vec(periodic, 1..7), prop::collection::vec(other, 1..4))
        .prop_map(|(periodic, other)| periodic.into_iter().chain(other).collect())
}

fn is_admitted(set: &[Model]) -> bool {
    let demands: Vec<_> = set.iter().map(Model::demand).collect();
    let admits = |name: &&str| {
        let scheduler = scheduler(name);
        let (order, how) = (scheduler.order(), scheduler.discipline());
        admit(&demands, &PacketPath::default(), order, how).is_ok()
    };
    PROMISE.iter().all(admits)
}

/// Tasks on a core, with the starts of their invocations.
fn running(set: &[Model], first: &str) -> (Bench, Vec<Arc<Mutex<Vec<u64>>>>) {
    let settings = OsSettings { switch_ns: 0, cold_ns: 0, ..OsSettings::default() };
    let mut bench = Bench::with(&settings, scheduler(first));
    let mut logs = Vec::new();
    for (number, model) in set.iter().enumerate() {
        let starts = Arc::<Mutex<Vec<u64>>>::default();
        bench.os.create(model.spec(number), model.clone().body(starts.clone())).unwrap();
        logs.push(starts);
    }
    (bench, logs)
}

/// A thousand switches at random moments under load: every release runs once, within its period, and
/// none ends after its deadline.
#[test]
fn switches_lose_no_release_and_miss_no_deadline() {
    let mut runner = TestRunner::deterministic();
    let (mut switches, mut waited, mut fillers) = (0, 0, 0);
    while switches < 1_000 {
        let set = sets().new_tree(&mut runner).unwrap().current();
        if !is_admitted(&set) {
            continue;
        }
        let (mut bench, logs) = running(&set, PROMISE[0]);
        let moments = prop::collection::vec((1u64..900_000, 0..PROMISE.len()), 40);
        for (pause_ns, next) in moments.new_tree(&mut runner).unwrap().current() {
            let until = bench.now + pause_ns;
            bench.run_until(until);
            let found = switch(&mut bench, PROMISE[next], scheduler(PROMISE[next])).unwrap();
            waited += u32::from(found.next.is_some());
            switches += 1;
        }
        let end = Time::from_nanos((bench.now.as_nanos() / 4_000_000 + 2) * 4_000_000);
        bench.run_until(end);
        let end_ns = bench.now.as_nanos();
        let report = bench.os.report();
        assert_eq!(report.overridden, 0);
        for ((model, starts), task) in set.iter().zip(&logs).zip(&report.tasks) {
            let starts = starts.lock().unwrap();
            let Some(period_ns) = model.period_ns else {
                fillers += starts.len();
                continue;
            };
            assert_eq!((task.deadline_misses, task.releases_skipped), (0, 0), "{set:?}\n{task:?}");
            for (release, &start_ns) in starts.iter().enumerate() {
                assert_eq!(start_ns / period_ns, release as u64, "{set:?}\n{starts:?}");
            }
            let whole = end_ns / period_ns;
            assert!((whole..=whole + 1).contains(&(starts.len() as u64)), "{set:?}\n{starts:?}");
        }
        bench.end();
    }
    assert!(waited > 100 && waited < switches, "{waited} of {switches} waited");
    assert!(fillers > 300, "{fillers}");
}

/// If one scheduler makes no promise, a switch is immediate, and loses no release.
#[test]
fn switches_to_and_from_events_are_immediate() {
    let mut runner = TestRunner::deterministic();
    let mut ran = 0;
    while ran < 20 {
        let set = sets().new_tree(&mut runner).unwrap().current();
        if !is_admitted(&set) {
            continue;
        }
        ran += 1;
        let (mut bench, logs) = running(&set, "event");
        for name in ["edf", "event", "cyclic", "event", "edf-plus"] {
            let until = bench.now + 777_000;
            bench.run_until(until);
            let found = switch(&mut bench, name, scheduler(name)).unwrap();
            assert_eq!((&*found.name, found.next), (name, None));
        }
        let until = bench.now + 8_000_000;
        bench.run_until(until);
        let report = bench.os.report();
        for ((model, starts), task) in set.iter().zip(&logs).zip(&report.tasks) {
            let Some(period_ns) = model.period_ns else { continue };
            // Late ones may be skipped, and then are counted.
            let starts = starts.lock().unwrap().len() as u64 + task.releases_skipped;
            let whole = bench.now.as_nanos() / period_ns;
            assert!((whole.saturating_sub(1)..=whole + 1).contains(&starts), "{set:?}\n{task:?}");
        }
        bench.end();
    }
}

/// A task that waits for ever in the middle of an invocation has missed its deadline: from then on
/// nothing is promised to it, and the next scheduler begins without any other event.
#[test]
fn a_task_that_waits_holds_a_switch_up_until_its_deadline() {
    let (mut bench, _) = running(&[], "edf");
    let spec = TaskSpec::new("stuck").bounds(Bounds::stated(5_000)).periodic(1_000_000);
    bench.os.create(spec, program(|_| std::future::pending())).unwrap();
    bench.run_until(micros(100));
    let found = switch(&mut bench, "cyclic", scheduler("cyclic")).unwrap();
    assert_eq!((&*found.name, found.next.as_deref()), ("custom", Some("cyclic")));
    bench.run_until(micros(1_000));
    assert_eq!(bench.os.report().scheduler, "custom");
    bench.run_until(micros(1_001));
    assert_eq!(bench.os.report().scheduler, "cyclic");
    bench.end();
}

#[test]
fn sets_that_the_new_scheduler_cannot_schedule_are_refused() {
    let set = [
        Model { period_ns: Some(700_000), segments: vec![5_000] },
        Model { period_ns: Some(1_100_000), segments: vec![5_000] },
        Model { period_ns: Some(1_300_001), segments: vec![5_000] },
    ];
    let (mut bench, _) = running(&set, "edf-plus");
    bench.run_until(micros(3_000));
    let refused = switch(&mut bench, "cyclic", scheduler("cyclic")).unwrap_err();
    assert!(refused.starts_with("no timetable exists for these periods"), "{refused}");
    assert_eq!(bench.os.report().scheduler, "custom");
    // A task that waits at each segment has no bound to completion.
    let wide = TaskSpec::new("wide")
        .bounds(Bounds { segments: vec![1_000].into(), remaining: vec![u64::MAX].into() });
    bench.os.create(wide, program(|_| std::future::pending())).unwrap();
    let refused = switch(&mut bench, "edf", scheduler("edf")).unwrap_err();
    assert!(refused.contains("task \"wide\": its invocation has no finite bound"), "{refused}");
    // While one waits to follow, new tasks are judged under both.
    let (mut bench, _) = running(&set[..1], "edf");
    bench.run_until(micros(702));
    let found = switch(&mut bench, "cyclic", scheduler("cyclic")).unwrap();
    assert_eq!(found.next.as_deref(), None, "{found:?}");
    bench.end();
}

#[test]
fn override_counts_admitted_sets() {
    let settings = OsSettings { admission: Admission::Override, ..OsSettings::default() };
    let mut bench = Bench::with(&settings, edf_plus());
    for period_ns in [700_000, 1_100_000, 1_300_001] {
        let spec = TaskSpec::new("t").periodic(period_ns).wcet_ns(5_000);
        bench.os.create(spec, program(|_| std::future::pending())).unwrap();
    }
    let found = switch(&mut bench, "cyclic", scheduler("cyclic")).unwrap();
    assert_eq!((&*found.name, found.next), ("cyclic", None));
    let report = bench.os.report();
    assert_eq!((&*report.scheduler, report.overridden), ("cyclic", 1));
    assert!(report.notes[0].contains("no timetable exists"), "{:?}", report.notes);
    bench.end();
}

#[test]
fn replaced_schedulers_are_returned_to_be_freed() {
    let set = [Model { period_ns: Some(1_000_000), segments: vec![100_000, 100_000] }];
    let (mut bench, _) = running(&set, "edf-plus");
    bench.turn();
    // In mid-invocation: each waits, and a later one takes its place.
    for name in ["edf", "cyclic"] {
        let found = switch(&mut bench, name, scheduler(name)).unwrap();
        assert_eq!((&*found.name, found.next.as_deref()), ("custom", Some(name)));
    }
    bench.run_until(micros(500));
    let mut question = Switch::question();
    let mut ask = |bench: &mut Bench| {
        let mut order = TaskControl::Switch(std::mem::take(&mut question));
        assert!(bench.os.control(bench.now, &mut order));
        let TaskControl::Switch(found) = order else { panic!("{order:?}") };
        let freed: Vec<_> = found.schedulers.iter().map(|old| old.name.to_string()).collect();
        (found.result.unwrap().unwrap(), freed)
    };
    let (found, freed) = ask(&mut bench);
    assert_eq!((&*found.name, found.next), ("cyclic", None));
    assert_eq!(freed, ["custom"]);
    assert!(ask(&mut bench).1.is_empty());
    bench.end();
}

#[test]
fn a_switch_in_the_middle_of_a_stop_is_refused_or_without_effect() {
    let set = [Model { period_ns: Some(1_000_000), segments: vec![100_000, 100_000] }];
    let (mut bench, _) = running(&set, "edf-plus");
    bench.turn();
    // One waits to follow when the card is stopped.
    assert!(switch(&mut bench, "edf", scheduler("edf")).unwrap().next.is_some());
    bench.os.stop(bench.now, &mut bench.doors);
    let refused = switch(&mut bench, "cyclic", scheduler("cyclic")).unwrap_err();
    assert_eq!(refused, "NIC OS has stopped");
    assert_eq!(bench.turn(), (false, None));
    let report = bench.os.report();
    assert_eq!((&*report.scheduler, report.tasks[0].segments), ("custom", 1));
    bench.end();
}

/// Always decides the same.
struct Fixed(Decision);

impl Scheduler for Fixed {
    fn periodic(&mut self, _: Time, _: &[Candidate]) -> Option<usize> {
        None
    }
    fn next_periodic(&self, _: Time, _: &[Candidate]) -> Option<Time> {
        None
    }
    fn filler(&mut self, _: Time, _: u64, _: &[Candidate]) -> Option<usize> {
        None
    }
    fn decide(&mut self, _: Time, _: &[Candidate]) -> Decision {
        self.0
    }
    fn discipline(&self) -> Discipline {
        Discipline::Segment
    }
}

/// A scheduler that always picks a task that is not ready, does not exist, or is none: nothing
/// runs, the note says so, and another scheduler can take over.
#[test]
fn schedulers_that_err_run_nothing_and_can_be_replaced() {
    let set = [Model { period_ns: Some(1_000_000), segments: vec![100_000] }];
    for (decision, is_wrong) in [
        (Decision::Run(7), true),
        (Decision::Run(usize::MAX), true),
        (Decision::Idle(None), false),
        (Decision::Idle(Some(Time::ZERO)), false),
    ] {
        let (mut bench, logs) = running(&set, "edf-plus");
        bench.run_until(micros(1_500));
        switch(&mut bench, "fixed", Box::new(Fixed(decision))).unwrap();
        for _ in 0..1_000 {
            bench.now = bench.now + 3_000;
            assert!(!bench.turn().0, "{decision:?}");
        }
        let report = bench.os.report();
        assert_eq!(report.tasks[0].segments, 2, "{decision:?}");
        assert!(report.idle_decisions >= 1_000, "{report:?}");
        assert_eq!(report.notes.len(), usize::from(is_wrong), "{:?}", report.notes);
        assert!(report.notes.iter().all(|note| note.contains("which was not ready")));
        let found = switch(&mut bench, "edf", scheduler("edf")).unwrap();
        assert_eq!(&*found.name, "edf");
        let until = bench.now + 3_000_000;
        bench.run_until(until);
        assert!(logs[0].lock().unwrap().len() >= 4, "{decision:?}");
        bench.end();
    }
}
