//! Requirements for every scheduler in the registry.

use crate::bench::{Bench, Log, micros};
use crate::shared;
use picnic_core::command::{Order, Prepared};
use picnic_core::config::Section;
use picnic_core::registry::{BuildContext, Entry};
use picnic_core::time::Time;
use picnic_os::control::TaskControl;
use picnic_os::executor::OsSettings;
use picnic_os::schedulers::registry::SCHEDULERS;
use picnic_os::schedulers::{Decision, Scheduler};
use picnic_os::task::{TaskId, TaskSpec, program};
use picnic_os::ticket::{Candidate, Ticket};
use proptest::prelude::*;

fn section(name: &str, keys: &str) -> Section {
    Section::from_text("scheduler", &format!("scheduler = \"{name}\"\n{keys}")).unwrap()
}

/// With its required keys.
fn build(entry: &Entry<Box<dyn Scheduler>>) -> Box<dyn Scheduler> {
    let folder = tempfile::tempdir().unwrap();
    let keys = entry.example(folder.path()).expect("a scheduler needs nothing of the machine");
    entry.build(&section(entry.name, &keys), &BuildContext::default()).unwrap()
}

#[test]
fn entries_are_explained_and_unknown_keys_refused() {
    shared::entries_are_explained("scheduler", SCHEDULERS);
}

#[test]
fn commands_are_obeyed_as_they_are_declared() {
    let context = BuildContext::default();
    let obey = |policy: &mut Box<dyn Scheduler>, order: &mut Prepared, now| policy.obey(order, now);
    shared::commands_are_obeyed(SCHEDULERS, &context, build, obey);
}

struct Foreign;

impl Order for Foreign {
    type Target = u8;

    fn apply(&mut self, _: &mut u8, _: Time) -> bool {
        true
    }
}

#[test]
fn an_order_for_another_component_is_not_obeyed() {
    let foreign = || Prepared::new(Foreign);
    for entry in SCHEDULERS {
        assert!(!build(entry).obey(&mut foreign(), Time::ZERO), "{}", entry.name);
    }
    // Nor by a task without commands, or by none.
    let mut bench = Bench::new();
    let id = bench.os.create(TaskSpec::new("t"), program(|_| std::future::pending())).unwrap();
    for id in [id, TaskId(77)] {
        assert!(!bench.os.control(bench.now, &mut TaskControl::Task(id, foreign())));
    }
    bench.end();
}

/// Alone on its core, under any policy: every release is met, and an aperiodic task progresses
/// segment by segment.
#[test]
fn a_task_alone_runs() {
    for entry in SCHEDULERS {
        let settings = OsSettings { switch_ns: 0, ..OsSettings::default() };
        for period_ns in [None, Some(10_000)] {
            let (mut bench, log) = (Bench::with(&settings, build(entry)), Log::default());
            let said = log.clone();
            let body = program(move |nic| async move {
                for _ in 0..3 {
                    said.say(nic.now(), "a");
                    nic.yield_now().await;
                    said.say(nic.now(), "b");
                    nic.next_release().await;
                }
            });
            let spec = TaskSpec::new("t").wcet_ns(1_000);
            let spec = match period_ns {
                Some(period_ns) => spec.periodic(period_ns),
                None => spec,
            };
            bench.os.create(spec, body).unwrap();
            bench.run_until(micros(60));
            let said = log.take();
            let words: String = said.iter().map(|(_, what)| &**what).collect();
            assert_eq!(words, "ababab", "{}", entry.name);
            if period_ns.is_some() {
                let at: Vec<_> = said.iter().step_by(2).map(|&(at, _)| at / 10).collect();
                assert_eq!(at, [0, 1, 2], "{}: {said:?}", entry.name);
            }
            bench.end();
        }
    }
}

fn candidate() -> impl Strategy<Value = Candidate> {
    let period = prop_oneof![Just(None), (1_000..50_000_u64).prop_map(Some)];
    let times = (0..100_000_u64, 0..100_000_u64);
    (period, times, 0..20_000_u64, 0..4_u8, any::<(bool, bool)>(), 0..100_u64).prop_map(
        |(period_ns, (release, deadline), wcet_ns, priority, (ready, begun), since)| Candidate {
            ticket: Ticket {
                wcet_ns,
                remaining_ns: 2 * wcet_ns,
                period_ns,
                priority,
                next_release: Time::from_nanos(release),
                next_deadline: Time::from_nanos(release + deadline),
            },
            ready,
            begun: ready && begun,
            since,
        },
    )
}

proptest! {
    /// Only ready tasks run, idling happens only if allowed, and the same history gives the
    /// same decisions.
    #[test]
    fn decisions_choose_ready_tasks_and_are_repeatable(
        history in prop::collection::vec(
            (0..5_000_u64, any::<bool>(), prop::collection::vec(candidate(), 6)), 1..30,
        ),
    ) {
        for entry in SCHEDULERS {
            let (mut one, mut other) = (build(entry), build(entry));
            let mut now = Time::ZERO;
            for (pause, changed, tasks) in &history {
                now = now + *pause;
                for scheduler in [&mut one, &mut other] {
                    if *changed {
                        scheduler.tasks_changed(now, tasks);
                    }
                }
                let decision = one.decide(now, tasks);
                prop_assert_eq!(decision, other.decide(now, tasks), "{}", entry.name);
                if let Decision::Run(task) = decision {
                    prop_assert!(tasks[task].ready, "{}: {} of {:?}", entry.name, task, tasks);
                }
                if tasks.iter().all(|task| !task.ready) {
                    prop_assert!(matches!(decision, Decision::Idle(_)), "{}", entry.name);
                }
            }
        }
    }
}
