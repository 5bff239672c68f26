//! Limits, roundings and ends of ranges: admission and the packet path; more in the folder `limits`.

mod files;
mod memory;
mod packets;
mod schedulers;

use picnic_os::admission::{Demand, Order, Refusal, admit};
use picnic_os::path::{Costs, Intake, PacketPath};
use picnic_os::schedulers::Discipline;
use proptest::prelude::*;

fn demand(name: &str, period_ns: u64, segments: &[u64]) -> Demand {
    Demand {
        name: name.into(),
        period_ns: Some(period_ns),
        invocation_ns: segments.iter().sum(),
        segment_ns: segments.iter().copied().max().unwrap_or(0),
        segments: segments.len() as u64,
    }
}

/// No packets; a turn of the path takes so long.
fn turns(turn_ns: u64) -> PacketPath {
    PacketPath::new(vec![], Costs { turn_ns, catch_up_ns: u64::MAX, ..Costs::default() })
}

// ---------------------------------------------------------------- admission

/// Period, whole and blocking of a task: a turn after each segment.
type Work = (u64, u64, u64);

/// At every single interval: the path's turn and the demand fit, and with a blocker instead of the
/// turn too.
fn every_interval(tasks: &[Work], turn_ns: u64, longest: u64) -> bool {
    let due = |tasks: &[Work], within: u64| -> u64 {
        tasks.iter().map(|&(period, whole, _)| (within - 1) / period * whole).sum()
    };
    (tasks[0].0 + 1..longest).all(|within| turn_ns + due(tasks, within) <= within)
        && (1..tasks.len()).all(|index| {
            let (period, _, blocking) = tasks[index];
            (tasks[0].0 + 1..period).all(|within| blocking + due(&tasks[..index], within) <= within)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn turns_fit_at_every_interval_or_the_set_is_refused(
        tasks in prop::collection::vec((20u64..400, prop::collection::vec(1u64..30, 1..3)), 1..5),
        turn_ns in 1u64..40,
    ) {
        let demands: Vec<_> =
            tasks.iter().map(|(period, segments)| demand("t", *period, segments)).collect();
        let mut works: Vec<Work> = tasks
            .iter()
            .map(|(period, segments)| {
                let whole = segments.iter().map(|bound| bound + turn_ns).sum();
                (*period, whole, segments.iter().max().unwrap() + turn_ns)
            })
            .collect();
        works.sort_by_key(|work| work.0);
        let load: f64 = works.iter().map(|&(period, whole, _)| whole as f64 / period as f64).sum();
        prop_assume!(load < 0.995);
        // The demand within an interval is at most its share.
        let longest = (turn_ns as f64 / (1.0 - load)) as u64 + 500;
        let expected = every_interval(&works, turn_ns, longest);
        let found =
            admit(&demands, &turns(turn_ns), Order::EarliestDeadline, Discipline::Segment);
        prop_assert_eq!(found.is_ok(), expected, "{:?}", found);
    }
}

#[test]
fn no_overflow_makes_a_set_fit() {
    let edf = |tasks: &[Demand], path: &PacketPath| {
        admit(tasks, path, Order::EarliestDeadline, Discipline::Segment)
    };
    let many = || Demand { segments: 1 << 63, ..demand("many", 1_000, &[1]) };
    let long = demand("long", 1_000, &[u64::MAX - 1]);
    let switching = PacketPath::default().switching(2, 0);
    for (task, path) in [(many(), switching), (many(), turns(2)), (long.clone(), turns(2))] {
        let found = edf(&[task], &path);
        assert!(matches!(found, Err(Refusal::Overloaded { .. })), "{found:?}");
    }
    let wire = |burst, room| Intake { name: "w".into(), pps: 1, burst, room };
    let costs = Costs { turn_ns: 10, packet_ns: 1, catch_up_ns: u64::MAX, ..Costs::default() };
    let found = edf(&[long], &PacketPath::new(vec![wire(1, 10)], costs));
    assert!(matches!(found, Err(Refusal::SegmentTooLong { .. })), "{found:?}");
    // So many packets arrive together that the path never catches up.
    let endless = PacketPath::new(vec![wire(u64::MAX, u64::MAX)], costs);
    let tasks = [demand("a", 1_000, &[1])];
    let found = edf(&tasks, &endless);
    assert!(matches!(found, Err(Refusal::Late { .. })), "{found:?}");
    let found = admit(&tasks, &endless, Order::Timetable, Discipline::Segment);
    assert!(matches!(found, Err(Refusal::FrameTooFull { .. })), "{found:?}");
    // The first period shows nothing; the second task's does.
    let tasks =
        [demand("a", 1_000, &[350]), demand("b", 1_100, &[351]), demand("long", 1 << 61, &[1])];
    let told = edf(&tasks, &turns(150)).unwrap_err().to_string();
    assert_eq!(
        told,
        "task \"a\" may miss a deadline: within 1150 ns, 150 ns of \"the packet path\", which has \
         begun, and 1001 ns of due tasks add up to 1151 ns"
    );
}

#[test]
fn frames_have_room_for_a_turn() {
    let told = |turn_ns, segments: &[u64]| {
        let tasks = [demand("a", 20, segments), demand("b", 40, &[10])];
        admit(&tasks, &turns(turn_ns), Order::Timetable, Discipline::Completion)
            .map_err(|refusal| refusal.to_string())
    };
    let full = told(0, &[11]).unwrap_err();
    assert!(full.ends_with("may take 21 ns: 11 ns (a) + 10 ns (b)"), "{full}");
    assert_eq!(told(1, &[7]), Ok(()));
    let full = told(1, &[8]).unwrap_err();
    let expected = "may take 21 ns: 9 ns (a) + 11 ns (b) + 1 ns (the packet path)";
    assert!(full.ends_with(expected), "{full}");
}

/// Under EDF, of segments, with a path whose turn takes this time and which has no packets.
fn beside_a_turn(turn_ns: u64, tasks: &[(u64, u64)]) -> Result<(), Refusal> {
    let costs = Costs { packet_ns: turn_ns, burst: 1, ..Costs::default() };
    let tasks: Vec<_> =
        tasks.iter().map(|&(period, bound)| demand("t", period, &[bound])).collect();
    let path = PacketPath::new(vec![], costs);
    admit(&tasks, &path, Order::EarliestDeadline, Discipline::Segment)
}

#[test]
fn demand_may_fill_an_interval() {
    // Due are 500 ns within 1001, 501 within 1002.
    let tasks = [(1_000, 500), (1_001, 1)];
    assert_eq!(beside_a_turn(501, &tasks), Ok(()));
    let found = beside_a_turn(502, &tasks);
    assert!(matches!(found, Err(Refusal::Late { within_ns: 1_002, .. })), "{found:?}");
    // Beside a segment of the second, 10 ns within 101 are.
    assert_eq!(beside_a_turn(0, &[(100, 10), (102, 91)]), Ok(()));
    let found = beside_a_turn(0, &[(100, 10), (110, 92)]);
    assert!(matches!(found, Err(Refusal::Late { within_ns: 101, .. })), "{found:?}");
    // The second invocation is due within 201, not within 199.
    assert_eq!(beside_a_turn(0, &[(100, 99), (1_000, 2)]), Ok(()));
}

#[test]
fn one_short_interval_refuses_a_set() {
    for (turn_ns, tasks) in [
        (9, &[(14, 3), (23, 7), (29, 9)][..]),
        (5, &[(4, 1), (17, 2), (27, 10)]),
        (0, &[(21, 6), (26, 17)]),
        (0, &[(4, 1), (14, 3), (16, 5)]),
    ] {
        let found = beside_a_turn(turn_ns, tasks);
        assert!(matches!(found, Err(Refusal::Late { .. })), "{found:?} of {tasks:?}");
    }
    // One of ten thousand of the first task's periods: the second has many segments.
    let long = Demand { segment_ns: 5, ..demand("b", 100_000, &[49_998]) };
    let costs = Costs { packet_ns: 6, burst: 1, ..Costs::default() };
    let path = PacketPath::new(vec![], costs);
    let tasks = [demand("a", 10, &[5]), long];
    let found = admit(&tasks, &path, Order::EarliestDeadline, Discipline::Segment);
    assert!(matches!(found, Err(Refusal::Late { .. })), "{found:?}");
}

#[test]
fn cold_caches_count_for_packet_room() {
    let told = |room| {
        let wire = Intake { name: "w".into(), pps: 1_000_000_000, burst: 1, room };
        let path = PacketPath::new(vec![wire], Costs::default()).switching(0, 50);
        admit(&[demand("t", 1_000, &[50])], &path, Order::Other, Discipline::Segment)
    };
    assert_eq!(told(101), Ok(()));
    assert!(matches!(told(100), Err(Refusal::SegmentTooLong { .. })));
}

#[test]
fn turns_with_a_full_load_are_refused() {
    let edf = |tasks: &[Demand], path: &PacketPath| {
        admit(tasks, path, Order::EarliestDeadline, Discipline::Segment)
    };
    // Within the first period, however long that is.
    let costs = Costs { packet_ns: 3, burst: 1, ..Costs::default() };
    let found = edf(&[demand("a", 1 << 30, &[1 << 30])], &PacketPath::new(vec![], costs));
    let within = (1 << 30) + 1;
    assert!(
        matches!(found, Err(Refusal::Late { within_ns, .. }) if within_ns == within),
        "{found:?}"
    );
    // Further up: 600 ns of packets after each segment.
    let wire = Intake { name: "w".into(), pps: 1, burst: 6, room: u64::MAX };
    let path = PacketPath::new(vec![wire], Costs { packet_ns: 100, burst: 1, ..Costs::default() });
    assert_eq!(edf(&[demand("a", 1_000, &[1])], &path), Ok(()));
    let found = edf(&[demand("a", 1_000, &[1]), demand("b", 1_100, &[1])], &path);
    assert!(matches!(found, Err(Refusal::Late { .. })), "{found:?}");
}

#[test]
fn the_whole_core_may_be_used() {
    let fits = |tasks: &[(u64, u64)], path: &PacketPath| {
        let tasks: Vec<_> =
            tasks.iter().map(|&(bound, period)| demand("t", period, &[bound])).collect();
        admit(&tasks, path, Order::Other, Discipline::Completion).is_ok()
    };
    let alone = PacketPath::default();
    // Billionths of thirds are rounded up; the others are more than 1 as floating-point numbers.
    assert!(fits(&[(10, 30), (10, 30), (10, 30)], &alone));
    assert!(fits(&[(2, 10), (171, 250), (29, 250)], &alone));
    assert!(!fits(&[(10, 30), (10, 30), (11, 30)], &alone));
    // Less than a billionth too much is too much.
    assert!(!fits(&[(3_999_999_999, 4_000_000_000), (2, 4_000_000_000)], &alone));
    // If packets are lost in any case, tasks need not leave time for them.
    assert!(fits(&[(1_000, 1_000)], &path(10_000_000, 0, 100)));
    // A third is theirs.
    let third = path(333_333_333, 0, 1);
    assert!(fits(&[(10, 30), (10, 30)], &third) && !fits(&[(10, 30), (11, 30)], &third));
}

#[test]
fn catch_up_is_checked_only_for_sustainable_rates() {
    let told = |pps, packet_ns| {
        let wire = Intake { name: "w".into(), pps, burst: 1, room: u64::MAX };
        let costs = Costs { turn_ns: 10, packet_ns, burst: 1, catch_up_ns: 5, ..Costs::default() };
        let path = PacketPath::new(vec![wire], costs);
        admit(&[demand("t", 1_000, &[100])], &path, Order::Other, Discipline::Segment)
    };
    assert_eq!(told(0, 1), Ok(()));
    for pps in [1, 1_000_000] {
        assert!(matches!(told(pps, 1), Err(Refusal::CatchUpTooLong { .. })));
    }
    assert_eq!(told(10_000_000, 100), Ok(()));
}

// ---------------------------------------------------------------- the packet path

fn path(pps: u64, turn_ns: u64, packet_ns: u64) -> PacketPath {
    let wire = Intake { name: "wire0".into(), pps, burst: 1, room: u64::MAX };
    let costs = Costs { turn_ns, packet_ns, burst: 1, wires: 1, ..Costs::default() };
    PacketPath::new(vec![wire], costs)
}

#[test]
fn catch_up_times_are_rounded_up() {
    let third = path(1_000_000, 0, 333);
    assert_eq!(third.share_ppb(), 333_000_000);
    // x = (R e (s + T) + e) / (1 - R e), each part rounded up.
    assert_eq!(third.catch_up_ns(1_000_000_000 - 333), 499_250_375 + 500);
    assert_eq!(third.catch_up_ns(0), 167 + 500);
    assert_eq!(third.until_next_ns(1_000), 1_000 + 666 + 500);
    assert_eq!(third.until_next_of_ns(1_000, 2), 1_000 + 500 + 2 * 667);
    // A path that never catches up continues with one turn.
    let behind = path(10_000_000, 7, 333);
    assert!(!behind.catches_up());
    assert_eq!(behind.until_next_ns(1_000), 1_007);
    assert_eq!(behind.until_next_of_ns(1_000, 2), 1_014);
}

#[test]
fn times_and_rates_do_not_wrap() {
    let most = path(1_000_000, 0, 600);
    assert_eq!(most.catch_up_ns(u64::MAX), u64::MAX);
    assert_eq!(most.until_next_ns(u64::MAX), u64::MAX);
    let wire = |pps| Intake { name: "w".into(), pps, burst: 1, room: 1 };
    let path = PacketPath::new(vec![wire(u64::MAX), wire(2)], Costs::default());
    assert_eq!(path.pps(), u64::MAX);
}
