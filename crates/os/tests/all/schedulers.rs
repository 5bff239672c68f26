//! Schedulers: traces on a virtual processor, and properties over random task sets.

use crate::common::{Model, other, periodic, run};
use picnic_core::time::Time;
use picnic_os::schedulers::Scheduler;
use picnic_os::schedulers::cyclic::{Cyclic, timetable};
use picnic_os::schedulers::edf::Edf;
use picnic_os::schedulers::event::Event;
use picnic_os::schedulers::plus::Plus;
use picnic_os::schedulers::slack::{BestFit, Choice, FirstFit, Lookahead, SlackPolicy};
use picnic_os::ticket::{Candidate, Ticket};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn edf_plus(choice: Choice) -> Plus<Edf> {
    Plus::new(Edf, choice.policy())
}

#[test]
fn edf_runs_the_earliest_deadline_to_its_end() {
    let tasks = [periodic(100, &[10, 10]), periodic(50, &[5]), periodic(200, &[30])];
    let run = run(&mut Edf, &tasks, 120);
    let expected = [(0, 1, 0), (5, 0, 0), (15, 0, 1), (25, 2, 0), (55, 1, 0), (100, 1, 0)];
    // At 100 both are released again: task 1 has its deadline at 150, task 0 at 200.
    assert_eq!(run.trace[..6], expected);
    assert_eq!(run.misses, [0, 0, 0]);
}

#[test]
fn edf_runs_aperiodic_tasks_only_if_they_fit() {
    // 90 free in each 100; the task of 4 times 30 never fits whole.
    let tasks = [periodic(100, &[10]), other(&[30, 30, 30, 30])];
    assert!(run(&mut Edf, &tasks, 1000).trace.iter().all(|&(_, task, _)| task == 0));
    // An exact fit runs.
    let exact = [periodic(100, &[10]), other(&[60, 30])];
    assert_eq!(run(&mut Edf, &exact, 100).trace, [(0, 0, 0), (10, 1, 0), (70, 1, 1)]);
    // Under `Plus` three segments fit each gap, and the fourth the next.
    let run = run(&mut edf_plus(Choice::FirstFit), &tasks, 1000);
    assert_eq!(
        run.trace[..6],
        [(0, 0, 0), (10, 1, 0), (40, 1, 1), (70, 1, 2), (100, 0, 0), (110, 1, 3)]
    );
    assert_eq!(run.idle_ns, 0);
}

#[test]
fn events_are_handled_in_order_despite_deadlines() {
    let late = |first_release, model: Model| Model { first_release, ..model };
    let tasks = [periodic(100, &[10, 10]), late(5, periodic(30, &[4])), late(2, other(&[20, 20]))];
    let run = run(&mut Event, &tasks, 68);
    // 0 begins and ends; the earlier of the tasks released meanwhile is next, and ends, too.
    let expected = [(0, 0, 0), (10, 0, 1), (20, 1, 0), (24, 2, 0), (44, 2, 1), (64, 1, 0)];
    assert_eq!(run.trace, expected);
    assert_eq!(run.misses, [0, 1, 0]);
}

#[test]
fn the_three_parts_of_figure_one() {
    // Part I: a release. Part II: the slack is 20, so the task of 25 does not fit, but the task of
    // 15 does. Part III: 5 are left, nothing fits.
    let tasks = [periodic(30, &[10]), other(&[25]), other(&[15])];
    let run = run(&mut edf_plus(Choice::FirstFit), &tasks, 60);
    assert_eq!(run.trace, [(0, 0, 0), (10, 2, 0), (30, 0, 0), (40, 2, 0)]);
    assert_eq!(run.idle_ns, 10);
}

fn filler(wcet_ns: u64, priority: u8, since: u64) -> Candidate {
    let ticket = Ticket {
        wcet_ns,
        remaining_ns: wcet_ns,
        period_ns: None,
        priority,
        next_release: Time::ZERO,
        next_deadline: Time::ZERO,
    };
    Candidate { ticket, ready: true, begun: false, since }
}

#[test]
fn slack_policies_differ_where_they_should() {
    let tasks =
        [filler(40, 0, 1), filler(70, 0, 2), filler(60, 0, 3), filler(20, 1, 4), filler(99, 0, 5)];
    // By priority first.
    assert_eq!(FirstFit.choose(98, &tasks), Some(3));
    assert_eq!(FirstFit.choose(98, &tasks[..3]), Some(0));
    assert_eq!(FirstFit.choose(19, &tasks), None);
    // The longest.
    assert_eq!(BestFit.choose(98, &tasks), Some(1));
    assert_eq!(BestFit.choose(69, &tasks), Some(2));
    // 40 + 60 fill 100, 70 + 20 leave 10: the first of the set that fills more.
    let mut lookahead = Lookahead::default();
    assert_eq!(lookahead.choose(100, &tasks[..4]), Some(0));
    // 20 + 70 fill 90: the first by priority of that set.
    assert_eq!(lookahead.choose(90, &tasks[..4]), Some(3));
    assert_eq!(lookahead.choose(10, &tasks), None);
}

#[test]
fn the_cyclic_executive_follows_its_timetable() {
    let tasks = [periodic(20, &[5]), periodic(40, &[8]), periodic(80, &[6])];
    let mut cyclic = Cyclic::default();
    let run = run(&mut cyclic, &tasks, 160);
    assert_eq!(cyclic.frames(), [vec![0, 1], vec![0, 2], vec![0, 1], vec![0]]);
    let expected =
        [(0, 0), (5, 1), (20, 0), (25, 2), (40, 0), (45, 1), (60, 0), (80, 0), (85, 1), (100, 0)];
    let starts: Vec<_> = run.trace.iter().map(|&(at, task, _)| (at, task)).collect();
    assert_eq!(starts[..10], expected);
    assert_eq!(run.misses, [0, 0, 0]);
}

#[test]
fn the_extended_cyclic_executive_follows_the_same_timetable() {
    let tasks = [periodic(20, &[5]), periodic(40, &[8]), periodic(80, &[6])];
    let alone = run(&mut Cyclic::default(), &tasks, 160);
    let extended = run(&mut Plus::new(Cyclic::default(), Choice::FirstFit.policy()), &tasks, 160);
    assert_eq!(extended, alone);
}

#[test]
fn too_long_timetables_are_replaced_by_turns() {
    let periods = [1_000_003, 1_000_033, 999_983];
    assert!(timetable(periods.into_iter()).unwrap().1 > 1_000_000_000);
    let tasks: Vec<_> = periods.iter().map(|&period| periodic(period, &[1000])).collect();
    let run = run(&mut Cyclic::default(), &tasks, 10_000_000);
    assert!(run.invocations.iter().all(|&count| count >= 9), "{:?}", run.invocations);
}

#[test]
fn late_releases_in_a_frame_are_not_skipped() {
    // The second task's releases lie in the middle of the frames.
    let mut tasks = [periodic(20, &[2]), periodic(20, &[2])];
    tasks[1].first_release = 10;
    let run = run(&mut Cyclic::default(), &tasks, 60);
    let starts: Vec<_> = run.trace.iter().map(|&(at, task, _)| (at, task)).collect();
    assert_eq!(starts, [(0, 0), (10, 1), (20, 0), (30, 1), (40, 0), (50, 1)]);
}

#[test]
fn late_releases_in_a_frame_end_the_slack() {
    let task = |release: u64, ready| {
        let mut task = Candidate { ready, ..filler(2, 0, 0) };
        task.ticket.period_ns = Some(20);
        task.ticket.next_release = Time::from_nanos(release);
        task.ticket.next_deadline = Time::from_nanos(release + 20);
        task
    };
    let mut cyclic = Cyclic::default();
    let tasks = [task(0, true), task(10, false)];
    cyclic.tasks_changed(Time::ZERO, &tasks);
    assert_eq!(cyclic.periodic(Time::ZERO, &tasks), Some(0));
    // The first has run; the second has not, and is released in this frame.
    let tasks = [task(20, false), task(10, false)];
    assert_eq!(cyclic.next_periodic(Time::from_nanos(2), &tasks), Some(Time::from_nanos(10)));
    // Of several, the first.
    let tasks = [task(0, true), task(14, false), task(9, false), task(12, false)];
    let mut cyclic = Cyclic::default();
    cyclic.tasks_changed(Time::ZERO, &tasks);
    assert_eq!(cyclic.next_periodic(Time::from_nanos(2), &tasks), Some(Time::from_nanos(9)));
}

/// Random sets; their periodic part uses at most 60 % of the processor.
fn task_sets() -> impl Strategy<Value = Vec<Model>> {
    let segments = || prop::collection::vec(1u64..400, 1..5);
    let periodic = (prop::sample::select(vec![2000u64, 4000, 8000, 16_000]), segments(), 0u8..3);
    let periodic = prop::collection::vec(periodic, 0..6);
    let others = prop::collection::vec((segments(), 0u8..3), 0..8);
    (periodic, others).prop_map(|(periodic, others)| {
        let mut used = 0.0;
        let mut models = Vec::new();
        for (period, segments, priority) in periodic {
            let share = segments.iter().sum::<u64>() as f64 / period as f64;
            if used + share <= 0.6 {
                used += share;
                let period_ns = Some(period);
                models.push(Model { period_ns, priority, first_release: 0, segments });
            }
        }
        for (segments, priority) in others {
            models.push(Model { period_ns: None, priority, first_release: 0, segments });
        }
        models
    })
}

fn every_scheduler() -> Vec<(&'static str, Box<dyn Scheduler>)> {
    let mut all: Vec<(_, Box<dyn Scheduler>)> =
        vec![("edf", Box::new(Edf)), ("cyclic", Box::new(Cyclic::default()))];
    for choice in Choice::ALL {
        all.push(("edf-plus", Box::new(edf_plus(choice))));
        all.push(("cyclic-plus", Box::new(Plus::new(Cyclic::default(), choice.policy()))));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Aperiodic tasks never affect periodic ones: the periodic trace is the same without them.
    #[test]
    fn aperiodic_tasks_do_not_affect_periodic_ones(models in task_sets()) {
        let alone: Vec<_> = models.iter().filter(|m| m.period_ns.is_some()).cloned().collect();
        for ((name, mut with), (_, mut without)) in
            every_scheduler().into_iter().zip(every_scheduler())
        {
            let with = run(&mut *with, &models, 50_000);
            let without = run(&mut *without, &alone, 50_000);
            let periodic: Vec<_> =
                with.trace.iter().filter(|entry| entry.1 < alone.len()).copied().collect();
            prop_assert_eq!(&periodic, &without.trace, "{}", name);
            prop_assert_eq!(&with.misses[..alone.len()], &without.misses[..]);
        }
    }

    /// A policy's choice is ready, aperiodic and fits; it makes one whenever possible.
    #[test]
    fn policies_choose_fitting_tasks(
        tasks in prop::collection::vec((0u64..1000, 0u8..3, 0u64..100, any::<bool>()), 0..50),
        slack_ns in 0u64..2000,
    ) {
        let tasks: Vec<_> = tasks
            .into_iter()
            .map(|(wcet, priority, since, ready)| Candidate { ready, ..filler(wcet, priority, since) })
            .collect();
        let any = tasks.iter().any(|task| task.ready && task.ticket.wcet_ns <= slack_ns);
        for choice in Choice::ALL {
            let chosen = choice.policy().choose(slack_ns, &tasks);
            prop_assert_eq!(chosen.is_some(), any);
            if let Some(index) = chosen {
                prop_assert!(tasks[index].ready && tasks[index].ticket.wcet_ns <= slack_ns);
            }
        }
    }

    /// Lookahead fills as much as trying every set, if parts are exact.
    #[test]
    fn lookahead_finds_the_fullest_set(
        lengths in prop::collection::vec(1u64..200, 1..10),
        slack_ns in 1u64..=255,
    ) {
        let mut left: Vec<_> =
            lengths.iter().enumerate().map(|(n, &ns)| filler(ns, 0, n as u64)).collect();
        let best = (0u32..1 << lengths.len())
            .map(|set| {
                let chosen = lengths.iter().enumerate().filter(|(n, _)| set >> n & 1 == 1);
                chosen.map(|(_, &ns)| ns).sum::<u64>()
            })
            .filter(|&sum| sum <= slack_ns)
            .max()
            .unwrap();
        let (mut slack, mut filled) = (slack_ns, 0);
        let mut policy = Lookahead::default();
        while let Some(index) = policy.choose(slack, &left) {
            let ns = left.remove(index).ticket.wcet_ns;
            (slack, filled) = (slack - ns, filled + ns);
        }
        prop_assert_eq!(filled, best);
    }
}

/// A single set may pack worse by segments than by whole invocations, since filling is greedy. Over
/// many sets it must not.
#[test]
fn plus_uses_idle_time_of_its_base() {
    let mut runner = TestRunner::deterministic();
    let sets: Vec<_> =
        (0..300).map(|_| task_sets().new_tree(&mut runner).unwrap().current()).collect();
    let idle_ns = |scheduler: &dyn Fn() -> Box<dyn Scheduler>| {
        sets.iter().map(|set| run(&mut *scheduler(), set, 100_000).idle_ns).sum::<u64>()
    };
    let plain = idle_ns(&|| Box::new(Edf));
    for choice in Choice::ALL {
        let plus = idle_ns(&|| Box::new(edf_plus(choice)));
        assert!(plus < plain, "{}: {plus} ns against {plain} ns", choice.name());
    }
}
