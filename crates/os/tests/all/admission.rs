//! Admission: admitted sets keep their deadlines, and refusals are explained.

use crate::common;
use crate::common::{Model, run};
use picnic_os::admission::{Demand, Order, Refusal, admit};
use picnic_os::path::{Costs, Intake, PacketPath};
use picnic_os::schedulers::cyclic::Cyclic;
use picnic_os::schedulers::edf::Edf;
use picnic_os::schedulers::plus::Plus;
use picnic_os::schedulers::slack::Choice;
use picnic_os::schedulers::{Discipline, Scheduler};
use proptest::prelude::*;

/// A wire with packets, and their costs; the path may catch up without a limit.
fn path(pps: u64, room: u64, costs: Costs) -> PacketPath {
    let wire = Intake { name: "wire0".into(), pps, burst: 1, room };
    PacketPath::new(vec![wire], Costs { catch_up_ns: u64::MAX, ..costs }).stated()
}

fn no_packets() -> PacketPath {
    PacketPath::default()
}

fn demand(name: &str, period_ns: Option<u64>, segments: &[u64]) -> Demand {
    Demand {
        name: name.into(),
        period_ns,
        invocation_ns: segments.iter().sum(),
        segment_ns: segments.iter().copied().max().unwrap_or(0),
        segments: segments.len() as u64,
    }
}

fn edf(tasks: &[Demand], path: &PacketPath) -> Result<(), Refusal> {
    admit(tasks, path, Order::EarliestDeadline, Discipline::Completion)
}

#[test]
fn refusals_show_their_arithmetic() {
    let wire = path(14_880_952, 512, Costs::default());
    let message = edf(&[demand("scan", None, &[50_000])], &wire).unwrap_err().to_string();
    assert!(message.contains("50000 ns x 14880952 packets/s = 745 packets"), "{message}");
    assert!(message.contains("arrive on wire0, but 512 fit"), "{message}");
    let tasks = [demand("a", Some(100), &[60]), demand("b", Some(200), &[81])];
    let message = edf(&tasks, &no_packets()).unwrap_err().to_string();
    assert!(message.contains("100.5 %"), "{message}");
    assert!(
        message.ends_with(": 60 ns of every 100 ns (a) + 81 ns of every 200 ns (b)"),
        "{message}"
    );
    // Large excesses are reported exactly, too.
    let message = edf(&[demand("a", Some(1_000), &[1_000_000_000])], &no_packets());
    let message = message.unwrap_err().to_string();
    assert!(message.contains(" 100000000.0 %"), "{message}");
    let tasks = [demand("short", Some(100), &[10]), demand("long", Some(1000), &[95])];
    let message = edf(&tasks, &no_packets()).unwrap_err().to_string();
    assert_eq!(
        message,
        "task \"short\" may miss a deadline: within 104 ns, 95 ns of \"long\", which has begun, \
         and 10 ns of due tasks add up to 105 ns"
    );
    let endless = Demand { invocation_ns: u64::MAX, ..demand("x", None, &[5]) };
    let message = edf(std::slice::from_ref(&endless), &no_packets()).unwrap_err().to_string();
    assert!(message.contains("invocation has no finite bound"), "{message}");
    // One segment at a time it may run for ever.
    let plus = admit(&[endless], &no_packets(), Order::EarliestDeadline, Discipline::Segment);
    assert_eq!(plus, Ok(()));
    let zero = edf(&[demand("z", Some(0), &[1])], &no_packets());
    assert_eq!(zero, Err(Refusal::NoPeriod { task: "z".into() }));
}

#[test]
fn admission_includes_the_packet_path() {
    let tasks = [demand("a", Some(1000), &[100, 100])];
    let turns = |turn_ns| edf(&tasks, &path(0, 0, Costs { turn_ns, ..Costs::default() }));
    // The invocation, a turn after each segment, and a turn that has begun at its release.
    assert_eq!(turns(267), Ok(()));
    let message = turns(268).unwrap_err().to_string();
    assert!(
        message.contains("268 ns of \"the packet path\", which has begun, and 736 ns"),
        "{message}"
    );
    assert!(matches!(turns(401), Err(Refusal::Overloaded { .. })), "{:?}", turns(401));
    // Two segments, two switches, and two turns without their packets are 472 of 1000.
    let packets = |pps, switch_ns| {
        let costs = Costs { turn_ns: 36, packet_ns: 1, ..Costs::default() };
        edf(&tasks, &path(pps, 1_000, costs).switching(switch_ns, 0))
    };
    // A packet costs 1.5625 ns in full turns: a quarter of the core is 160 million a second.
    assert_eq!(packets(150_000_000, 100), Ok(()));
    let message = packets(340_000_000, 100).unwrap_err().to_string();
    let sum = "472 ns of every 1000 ns (a) + 340000000 packets/s x 2 ns";
    assert!(message.contains(sum) && message.contains("100.3 %"), "{message}");
}

#[test]
fn the_path_must_catch_up() {
    let costs = Costs { turn_ns: 0, packet_ns: 100, burst: 1, ..Costs::default() };
    let wire = |pps, catch_up_ns| {
        let intake = Intake { name: "wire0".into(), pps, burst: 1, room: 1_000_000 };
        PacketPath::new(vec![intake], Costs { catch_up_ns, ..costs })
    };
    // Packets need half of the core: those of a segment and of the turn before it take as long
    // again, and a packet that arrives with the first takes twice its cost.
    let task = [demand("scan", None, &[50_000])];
    let needs_ns = 50_100 + 200;
    assert_eq!(edf(&task, &wire(5_000_000, needs_ns)), Ok(()));
    let message = edf(&task, &wire(5_000_000, needs_ns - 1)).unwrap_err().to_string();
    let expected = "after its longest segment of 50000 ns the packet path needs 50300 ns to catch \
                    up (5000000 packets/s x 100 ns per packet), but may take 50299 ns";
    assert!(message.contains(expected), "{message}");
    // The first time through, caches are cold, and the segment is longer by that.
    let cold = |catch_up_ns| edf(&task, &wire(5_000_000, catch_up_ns).switching(0, 1_000));
    assert_eq!(cold(needs_ns + 1_000), Ok(()));
    assert!(matches!(cold(needs_ns + 999), Err(Refusal::CatchUpTooLong { .. })));
    // No task is to blame for a rate above the path's capacity: it is an error only if it is
    // stated.
    assert_eq!(edf(&task, &wire(10_000_000, 1)), Ok(()));
    let message = edf(&task, &wire(10_000_000, 1).stated()).unwrap_err().to_string();
    assert!(message.contains("10000000 packets/s x 100 ns per packet = 100.0 %"), "{message}");
}

#[test]
fn frames_hold_at_most_their_length() {
    let timetable =
        |tasks: &[Demand]| admit(tasks, &no_packets(), Order::Timetable, Discipline::Completion);
    let fits = [demand("a", Some(20), &[10]), demand("b", Some(40), &[10])];
    assert_eq!(timetable(&fits), Ok(()));
    let full = [demand("a", Some(20), &[10]), demand("b", Some(40), &[11])];
    let message = timetable(&full).unwrap_err().to_string();
    assert!(message.contains("lasts 20 ns, but its tasks may take 21 ns: 10 ns (a) + 11 ns (b)"));
    let odd = [demand("a", Some(10_007), &[1]), demand("b", Some(10_009), &[1])];
    assert!(matches!(timetable(&odd), Err(Refusal::NoTimetable { frame_ns: 1, .. })));
}

/// Sets of up to six tasks, up to the whole processor, with any periods.
fn sets() -> impl Strategy<Value = Vec<Model>> {
    let task = (20u64..400, prop::collection::vec(1u64..40, 1..4));
    prop::collection::vec(task, 1..6).prop_map(|tasks| {
        let model = |(period, segments)| Model {
            period_ns: Some(period),
            priority: 0,
            first_release: 0,
            segments,
        };
        tasks.into_iter().map(model).collect()
    })
}

fn demands(models: &[Model]) -> Vec<Demand> {
    models.iter().map(|model| demand("t", model.period_ns, &model.segments)).collect()
}

/// The condition of theorem 4.1 at every single interval.
fn every_interval(models: &[Model], discipline: Discipline) -> bool {
    let mut tasks: Vec<(u64, u64, u64)> = models
        .iter()
        .map(|model| {
            let whole: u64 = model.segments.iter().sum();
            let longest = model.segments.iter().copied().max().unwrap();
            let blocking = if discipline == Discipline::Completion { whole } else { longest };
            (model.period_ns.unwrap(), whole, blocking)
        })
        .collect();
    tasks.sort_by_key(|task| task.0);
    let load: f64 = tasks.iter().map(|&(period, whole, _)| whole as f64 / period as f64).sum();
    load <= 1.0 + 1e-12
        && (1..tasks.len()).all(|index| {
            (tasks[0].0 + 1..tasks[index].0).all(|within| {
                let due = tasks[..index].iter();
                let due: u64 = due.map(|&(period, whole, _)| (within - 1) / period * whole).sum();
                within >= tasks[index].2 + due
            })
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn test_points_agree_with_every_interval(models in sets()) {
        for discipline in [Discipline::Completion, Discipline::Segment] {
            let answer = admit(&demands(&models), &no_packets(), Order::EarliestDeadline, discipline);
            prop_assert_eq!(answer.is_ok(), every_interval(&models, discipline), "{:?}", answer);
        }
    }

    /// Admitted sets keep every deadline, for any phases of the releases.
    #[test]
    fn admitted_sets_keep_their_deadlines(
        models in sets(),
        phases in prop::collection::vec(0u64..400, 6),
        filler in prop::collection::vec(1u64..60, 1..4),
    ) {
        let tasks = demands(&models);
        let mut models = models;
        let count = models.len();
        models.push(Model { period_ns: None, priority: 0, first_release: 0, segments: filler });
        for (model, phase) in models.iter_mut().zip(phases) {
            model.first_release = phase;
        }
        let mut schedulers: Vec<Box<dyn Scheduler>> = vec![Box::new(Edf)];
        for choice in Choice::ALL {
            schedulers.push(Box::new(Plus::new(Edf, choice.policy())));
        }
        for mut scheduler in schedulers {
            let discipline = scheduler.discipline();
            if admit(&tasks, &no_packets(), Order::EarliestDeadline, discipline).is_ok() {
                let run = run(&mut *scheduler, &models, 20_000);
                prop_assert_eq!(&run.misses[..count], vec![0; count]);
            }
        }
    }

    #[test]
    fn admitted_timetables_keep_their_deadlines(
        tasks in prop::collection::vec((0u32..4, 1u64..40), 1..7),
    ) {
        let models: Vec<_> = tasks
            .into_iter()
            .map(|(power, bound)| common::periodic(50 << power, &[bound]))
            .collect();
        let admitted =
            admit(&demands(&models), &no_packets(), Order::Timetable, Discipline::Completion);
        if admitted.is_ok() {
            let run = run(&mut Cyclic::default(), &models, 20_000);
            prop_assert_eq!(run.misses, vec![0; models.len()]);
        }
    }
}
