//! Limits, roundings and ends of ranges: admission, paths, schedulers, memory, sending.

use crate::bench::{Bench, Log, edf_plus, micros};
use picnic_core::config::Sections;
use picnic_core::error::ConfigError;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::{Arrivals, Rate};
use picnic_core::registry::{BuildContext, Component, Entry, NoKeys};
use picnic_core::time::Time;
use picnic_filter::Filters;
use picnic_os::admission::{Demand, Order, Refusal, admit};
use picnic_os::alloc::boundary_tag::BoundaryTag;
use picnic_os::alloc::slots::Slots;
use picnic_os::alloc::{Allocator, Figures};
use picnic_os::config::{
    Origin, OsRegistries, ProfileCosts, Setup, Surroundings, Tasks, build, build_os,
};
use picnic_os::executor::OsSettings;
use picnic_os::memory::{MemoryError, TransferCost};
use picnic_os::path::{Costs, Intake, PacketPath};
use picnic_os::schedulers::cyclic::{Cyclic, MOST_FRAMES, timetable};
use picnic_os::schedulers::edf::Edf;
use picnic_os::schedulers::slack::{Lookahead, SlackPolicy};
use picnic_os::schedulers::{Discipline, Scheduler};
use picnic_os::task::{TaskSpec, program};
use picnic_os::ticket::{Candidate, Ticket};
use proptest::prelude::*;
use std::task::Poll;

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

// ---------------------------------------------------------------- schedulers

fn candidate(period_ns: Option<u64>, release: u64, ready: bool) -> Candidate {
    let ticket = Ticket {
        wcet_ns: 2,
        remaining_ns: 2,
        period_ns,
        priority: 0,
        next_release: Time::from_nanos(release),
        next_deadline: Time::from_nanos(release + period_ns.unwrap_or(0)),
    };
    Candidate { ticket, ready, begun: false, since: 0 }
}

#[test]
fn timetables_last_the_common_multiple() {
    let of = |periods: &[u64]| timetable(periods.iter().copied());
    assert_eq!(of(&[]), None);
    assert_eq!(of(&[1, 2]), Some((1, 2)));
    assert_eq!(of(&[0, 2]), Some((2, 1)), "no period is none");
    assert_eq!(of(&[20, 30, 50]), Some((10, 30)));
    assert_eq!(of(&[(1 << 61) - 1, (1 << 31) - 1]), Some((1, u64::MAX)));
}

/// Frames of 20 ns from 15 ns before zero: both tasks in the even ones, the first in the odd.
fn frames() -> (Cyclic, [Candidate; 2]) {
    let tasks = [candidate(Some(20), 5, false), candidate(Some(40), 5, false)];
    let mut cyclic = Cyclic::default();
    cyclic.tasks_changed(Time::ZERO, &tasks);
    assert_eq!(cyclic.frames(), [vec![0, 1], vec![0]]);
    (cyclic, tasks)
}

#[test]
fn frames_are_aligned_with_releases() {
    let at = Time::from_nanos;
    let (mut cyclic, mut tasks) = frames();
    assert_eq!(cyclic.next_periodic(at(0), &tasks), Some(at(5)));
    assert_eq!(cyclic.periodic(at(0), &tasks), None);
    // Frame 1 has begun; its task may be released in it, and not before now.
    tasks[0].ticket.next_release = at(9);
    assert_eq!(cyclic.next_periodic(at(6), &tasks), Some(at(9)));
    assert_eq!(cyclic.next_periodic(at(12), &tasks), Some(at(12)));
    // Once it has run, for the frame before and for this one, the next frame follows.
    tasks[0].ready = true;
    for task in [Some(0), Some(0), None] {
        assert_eq!(cyclic.periodic(at(12), &tasks), task);
    }
    tasks[0].ready = false;
    assert_eq!(cyclic.next_periodic(at(12), &tasks), Some(at(25)));
    assert_eq!(cyclic.periodic(at(24), &tasks), None);
    tasks.iter_mut().for_each(|task| task.ready = true);
    assert_eq!(cyclic.periodic(at(25), &tasks), Some(0));
    tasks[0].ready = false;
    assert_eq!(cyclic.periodic(at(44), &tasks), Some(1));
    tasks[1].ready = false;
    tasks.iter_mut().for_each(|task| task.ticket.next_release = at(30));
    assert_eq!(cyclic.next_periodic(at(44), &tasks), Some(at(45)), "both have run in frame 2");
}

#[test]
fn only_the_last_round_is_made_up_after_a_pause() {
    let at = Time::from_nanos;
    for (now, first) in [(20 * 8, 1), (20 * 9, 0)] {
        let tasks = [candidate(Some(40), 0, true), candidate(Some(40), 0, true)];
        let mut cyclic = Cyclic::default();
        // A third task gives the frames their length, and is never ready.
        let all = [tasks[0], tasks[1], candidate(Some(20), 0, false)];
        cyclic.tasks_changed(Time::ZERO, &all);
        let of = |task| cyclic.frames().iter().position(|frame| frame.contains(&task)).unwrap();
        let (even, odd) = (of(0), of(1));
        assert_eq!((even, odd), (0, 1));
        assert_eq!(cyclic.periodic(at(0), &all), Some(0));
        // The round goes from the frame after the one as old as the timetable to this one.
        let found = cyclic.periodic(at(now), &all);
        assert_eq!(found, Some(1 - first), "at {now}");
    }
}

#[test]
fn new_timetables_make_up_for_nothing() {
    let tasks =
        [candidate(Some(40), 0, true), candidate(Some(40), 0, true), candidate(Some(20), 0, false)];
    let mut cyclic = Cyclic::default();
    // In an odd frame, like the second task.
    let now = Time::from_nanos(20 * 9);
    cyclic.tasks_changed(now, &tasks);
    assert_eq!(cyclic.periodic(now, &tasks), Some(1));
    assert_eq!(cyclic.periodic(now, &tasks), None);
}

#[test]
fn unbounded_tasks_fill_their_frame() {
    let bounded = |period_ns, remaining_ns| {
        let mut task = candidate(Some(period_ns), 0, true);
        task.ticket.remaining_ns = remaining_ns;
        task
    };
    let mut cyclic = Cyclic::default();
    cyclic.tasks_changed(Time::ZERO, &[bounded(20, 1), bounded(40, u64::MAX), bounded(40, 5)]);
    assert_eq!(cyclic.frames(), [[0, 1], [0, 2]]);
    // A task's fullest frame counts: the last task has frames 1 and 7, not 0 and 6.
    cyclic.tasks_changed(Time::ZERO, &[bounded(30, 0), bounded(40, 10), bounded(60, 1)]);
    let of_last = (0..12).filter(|&frame| cyclic.frames()[frame].contains(&2));
    assert_eq!(of_last.collect::<Vec<_>>(), [1, 7]);
}

#[test]
fn timetables_order_tasks_by_period() {
    let mut cyclic = Cyclic::default();
    let mut frames = |periods: &[u64]| {
        let tasks: Vec<_> = periods.iter().map(|&p| candidate(Some(p), 0, true)).collect();
        cyclic.tasks_changed(Time::ZERO, &tasks);
        cyclic.frames().to_vec()
    };
    assert_eq!(frames(&[40, 20]), [vec![1, 0], vec![1]]);
    assert_eq!(frames(&[0, 1]), [[1]], "a period of nothing is none");
    assert!(frames(&[]).is_empty());
}

#[test]
fn frames_begin_with_the_first_release() {
    let tasks = [candidate(Some(20), 12, true), candidate(Some(20), 5, true)];
    let mut cyclic = Cyclic::default();
    cyclic.tasks_changed(Time::ZERO, &tasks);
    assert_eq!(cyclic.next_periodic(Time::from_nanos(6), &tasks), Some(Time::from_nanos(25)));
}

#[test]
fn leftover_work_is_first_in_the_next_frame() {
    let mut tasks = [candidate(Some(20), 0, true), candidate(Some(20), 0, false)];
    let mut cyclic = Cyclic::default();
    cyclic.tasks_changed(Time::ZERO, &tasks);
    assert_eq!(cyclic.periodic(Time::ZERO, &tasks), Some(0));
    tasks[1].ready = true;
    for task in [1, 0] {
        assert_eq!(cyclic.periodic(Time::from_nanos(25), &tasks), Some(task));
    }
}

#[test]
fn timetables_have_a_maximum_length() {
    for (frames, fits) in [(MOST_FRAMES, true), (MOST_FRAMES + 1, false)] {
        let tasks = [demand("a", 10, &[1]), demand("b", 10 * frames, &[1])];
        let path = PacketPath::default();
        let admitted = admit(&tasks, &path, Order::Timetable, Discipline::Completion);
        assert_eq!(admitted.is_ok(), fits, "{admitted:?}");
        let mut cyclic = Cyclic::default();
        let tasks = [candidate(Some(10), 0, true), candidate(Some(10 * frames), 0, true)];
        cyclic.tasks_changed(Time::ZERO, &tasks);
        assert_eq!(cyclic.frames().len() as u64, if fits { frames } else { 0 });
    }
}

#[test]
fn frames_exist_near_the_end_of_time() {
    let (cyclic, mut tasks) = frames();
    tasks.iter_mut().for_each(|task| task.ready = true);
    for left in [30, 10, 0] {
        let now = Time::from_nanos(u64::MAX - left);
        let next = cyclic.next_periodic(now, &tasks).unwrap();
        assert!(next >= Time::from_nanos(u64::MAX - 20), "{next:?} at {now:?}");
    }
}

#[test]
fn only_future_releases_end_a_slack() {
    let tasks = [
        candidate(None, 3, false),
        candidate(Some(20), 4, true),
        candidate(Some(20), 10, false),
        candidate(Some(20), 12, false),
    ];
    assert_eq!(Edf.next_periodic(Time::ZERO, &tasks), Some(Time::from_nanos(10)));
}

fn filler(wcet_ns: u64, priority: u8, since: u64) -> Candidate {
    let mut filler = candidate(None, 0, true);
    filler.ticket.wcet_ns = wcet_ns;
    (filler.ticket.priority, filler.since) = (priority, since);
    filler
}

#[test]
fn lookahead_has_a_window_and_counts_in_parts() {
    let choose = |slack_ns, tasks: &[Candidate]| Lookahead::default().choose(slack_ns, tasks);
    // As many as it considers, and one more that would leave nothing: not seen.
    let mut queue: Vec<_> = (0..32).map(|since| filler(30, 0, since)).collect();
    queue.push(filler(100, 0, 32));
    assert_eq!(choose(100, &queue), Some(0));
    // One ahead of them takes the place of the last.
    queue[32] = filler(100, 1, 32);
    assert_eq!(choose(100, &queue), Some(32));
    // All fit exactly, though not in whole parts.
    assert_eq!(choose(1_000, &[filler(499, 0, 1), filler(501, 0, 2)]), Some(0));
    // 100, 126 and 125 parts of 250: the first two leave less than the first and the last.
    let three = [filler(400, 0, 1), filler(502, 0, 2), filler(499, 0, 3)];
    assert_eq!(choose(1_000, &three), Some(0));
    // The first fits whole and not in parts: the second leaves the least.
    assert_eq!(choose(1_001, &[filler(1_001, 0, 1), filler(600, 0, 2)]), Some(1));
    assert_eq!(choose(257, &[filler(257, 0, 1), filler(2, 0, 2)]), Some(1), "one part");
    assert_eq!(choose(1_001, &[filler(1_001, 0, 1), filler(1_001, 0, 2)]), Some(0), "none");
}

// ---------------------------------------------------------------- memory

#[test]
fn boundary_tag_figures_are_exact() {
    let mut tags = BoundaryTag::default();
    assert_eq!(tags.figures(&[]), Figures::default());
    let mut arena = [0; 160];
    tags.reset(&mut arena);
    let free = Figures {
        arena_bytes: 160,
        free_bytes: 144,
        largest_free_bytes: 144,
        free_blocks: 1,
        ..Figures::default()
    };
    assert_eq!(tags.figures(&arena), free);
    let place = tags.allocate(&mut arena, 144, 1).unwrap();
    assert_eq!(tags.allocate(&mut arena, 1, 1), None);
    let full = Figures {
        arena_bytes: 160,
        used_bytes: 160,
        high_water_bytes: 160,
        blocks: 1,
        failures: 1,
        ..Figures::default()
    };
    assert_eq!(tags.figures(&arena), full);
    assert!(tags.free(&mut arena, place));
    assert_eq!(tags.figures(&arena), Figures { high_water_bytes: 160, failures: 1, ..free });
    tags.reset(&mut arena);
    assert_eq!(tags.figures(&arena), free);
}

#[test]
fn the_smallest_block_may_stay_in_front_of_an_aligned_one() {
    let mut arena = [0; 1024];
    let mut tags = BoundaryTag::default();
    tags.reset(&mut arena);
    assert_eq!(tags.allocate(&mut arena, 64, 16), Some(16));
    // From 80 on: a tag and 16 bytes that stay free, then the tag before 128.
    assert_eq!(tags.allocate(&mut arena, 16, 64), Some(128));
    assert_eq!(tags.check(&arena), Ok(()));
    assert_eq!(tags.figures(&arena).free_blocks, 2);
}

#[test]
fn remainders_become_blocks_if_long_enough() {
    let mut arena = [0; 160];
    // Of ten units: with its tag one takes eight, and two are a block; one takes nine.
    for (bytes, used_bytes, free_bytes) in [(112, 128, 16), (128, 160, 0)] {
        let mut tags = BoundaryTag::default();
        tags.reset(&mut arena);
        assert_eq!(tags.allocate(&mut arena, bytes, 1), Some(16));
        let figures = tags.figures(&arena);
        let found = (figures.used_bytes, figures.free_bytes, figures.largest_free_bytes);
        assert_eq!(found, (used_bytes, free_bytes, free_bytes));
    }
}

#[test]
fn a_short_block_is_taken_before_a_long_one_is_split() {
    let (mut arena, mut tags) = ([0; 1024], BoundaryTag::default());
    tags.reset(&mut arena);
    let places = [16, 16, 256, 16].map(|bytes| tags.allocate(&mut arena, bytes, 1).unwrap());
    // The long one is the last to be freed.
    for place in [places[0], places[2]] {
        assert!(tags.free(&mut arena, place));
    }
    assert_eq!(tags.allocate(&mut arena, 16, 1), Some(places[0]));
}

#[test]
fn inconsistent_tags_are_reported() {
    let (mut whole, mut tags) = ([0; 160], BoundaryTag::default());
    tags.reset(&mut whole);
    assert_eq!(tags.allocate(&mut whole, 16, 1), Some(16));
    // The first byte of a tag, and the last of its size, whose top bit means used; the second block
    // begins after 32 bytes.
    for (at, byte, told) in [
        (0, 1, "block 0 has 1 units"),
        (0, 11, "block 0 has 11 units"),
        (32 + 4, 3, "block 2 has lost the size of the one before"),
        (3, 0, "block 2 was not merged"),
        (32 + 3, 0x80, "counted (2, 1, 1, 1), found (10, 2, 0)"),
    ] {
        let mut arena = whole;
        arena[at] = byte;
        assert_eq!(tags.check(&arena), Err(told.into()));
    }
}

#[test]
fn slots_are_aligned_powers_of_two() {
    let mut arena = vec![0; 32 << 10];
    for (slots, bytes) in
        [(Slots::default(), 16), (Slots::of(1), 16), (Slots::of(17), 32), (Slots::of(8_000), 8_192)]
    {
        let mut slots = slots;
        slots.reset(&mut arena);
        assert_eq!(slots.figures(&arena).largest_free_bytes, bytes);
        assert_eq!(slots.figures(&arena).free_blocks, arena.len() / bytes);
        assert_eq!(slots.allocate(&mut arena, 16, bytes.min(4096)), Some(0));
        assert_eq!(slots.allocate(&mut arena, 16, 8_192), None);
    }
}

#[test]
fn slots_are_allocated_and_freed_once() {
    let (mut arena, mut slots) = (vec![0; 130 * 16], Slots::of(16));
    slots.reset(&mut arena);
    let places: Vec<_> = (0..130).map(|_| slots.allocate(&mut arena, 16, 16).unwrap()).collect();
    assert_eq!(places, (0..130).map(|slot| slot * 16).collect::<Vec<_>>());
    assert_eq!(slots.allocate(&mut arena, 16, 16), None);
    for &place in &places {
        let taken = [(); 2].map(|()| slots.free(&mut arena, place));
        assert_eq!(taken, [true, false], "{place}");
    }
}

#[test]
fn slot_figures_are_exact() {
    let (mut arena, mut slots) = ([0; 256], Slots::of(64));
    slots.reset(&mut arena);
    let free = Figures {
        arena_bytes: 256,
        free_bytes: 256,
        largest_free_bytes: 64,
        free_blocks: 4,
        ..Figures::default()
    };
    assert_eq!(slots.figures(&arena), free);
    assert_eq!(slots.allocate(&mut arena, 64, 128), None, "aligned to its size and no more");
    let places: Vec<_> = (0..4).map(|_| slots.allocate(&mut arena, 64, 64)).collect();
    assert_eq!(places, [0, 64, 128, 192].map(Some));
    let full = Figures {
        arena_bytes: 256,
        used_bytes: 256,
        high_water_bytes: 256,
        blocks: 4,
        failures: 1,
        ..Figures::default()
    };
    assert_eq!(slots.figures(&arena), full);
    assert!(slots.free(&mut arena, 64));
    assert_eq!(slots.figures(&arena).largest_free_bytes, 64);
    slots.reset(&mut arena);
    assert_eq!(slots.figures(&arena), free);
}

#[test]
fn transfer_times_are_rounded_up() {
    let cost = TransferCost::default();
    assert_eq!((cost.latency_ns, cost.bytes_per_us), (1_000, 8_000));
    let times: Vec<_> = [0, 1, 8, 9].map(|bytes| cost.of(bytes)).into();
    assert_eq!(times, [1_000, 1_001, 1_001, 1_002]);
    for bytes_per_us in [0, 1] {
        assert_eq!(TransferCost { latency_ns: 0, bytes_per_us }.of(3), 3_000);
    }
}

#[test]
fn accesses_stay_within_blocks() {
    let transfer = TransferCost { latency_ns: u64::MAX, bytes_per_us: 1 };
    let settings = OsSettings { transfer, switch_ns: 0, cold_ns: 0, ..OsSettings::default() };
    let (mut bench, log) = (Bench::with(&settings, edf_plus()), Log::default());
    let report = bench.os.memory_report();
    let counts = (report.transfers, report.transferred_bytes, report.transfer_modelled_ns);
    assert_eq!((counts, report.host_used_bytes, report.host_high_water_bytes), ((0, 0, 0), 0, 0));
    for _ in 0..2 {
        let said = log.clone();
        let body = program(move |nic| async move {
            let mut block = nic.allocate(8).unwrap();
            let refused = MemoryError::Range { start: usize::MAX, end: usize::MAX, length: 8 };
            assert_eq!(nic.read(&mut block, usize::MAX, &mut [0; 2]).await, Err(refused));
            assert_eq!(nic.write(&mut block, usize::MAX, &[0; 2]).await, Err(refused));
            let mut host = nic.allocate_host(8).unwrap();
            assert_eq!(nic.copy(&mut block, 0..2, &mut host, usize::MAX).await, Err(refused));
            said.say(nic.now(), "refused");
            let _ = nic.copy(&mut block, 0..8, &mut host, 0).await;
        });
        bench.os.create(TaskSpec::new("t").wcet_ns(1_000), body).unwrap();
    }
    bench.run_until(micros(10));
    assert_eq!(log.text(), "6:refused 7:refused");
    let report = bench.os.memory_report();
    assert_eq!((report.transfers, report.transferred_bytes), (2, 16));
    assert_eq!(report.transfer_modelled_ns, u64::MAX);
    bench.end();
}

// ---------------------------------------------------------------- packets

fn spec(name: &str) -> TaskSpec {
    TaskSpec::new(name).wcet_ns(1_000)
}

#[test]
fn callbacks_follow_the_order_of_frames() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let [a, b, c] = ["a", "b", "c"].map(|name| {
            let said = said.clone();
            nic.sender(0, move |_| said.say(Time::ZERO, name))
        });
        a.post(&[1; 60]).unwrap();
        b.post(&[2; 60]).unwrap();
        nic.sleep_until(micros(10)).await;
        // In the place of the first, which has ended.
        c.post(&[3; 60]).unwrap();
        nic.sleep_until(Time::MAX).await;
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(5));
    assert_eq!(bench.wire_takes(0, 1, false).len(), 1);
    bench.run_until(micros(15));
    assert_eq!(bench.wire_takes(0, 9, false).len(), 2);
    bench.run_until(micros(20));
    assert_eq!(log.text(), "0:a 0:b 0:c");
    bench.end();
}

#[test]
fn abandoned_frames_take_no_place() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        for _ in 0..100 {
            let mut sending = Box::pin(nic.send(0, &[0; 60]));
            std::future::poll_fn(|context| {
                assert!(sending.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(sending);
            nic.yield_now().await;
        }
        said.say(Time::ZERO, format!("{:?}", nic.send(0, &[0; 60]).await));
    });
    bench.os.create(spec("sender"), body).unwrap();
    for _ in 0..300 {
        bench.turn();
        bench.wire_takes_all(0);
    }
    assert_eq!(log.text(), "0:Ok(())");
    assert!(!bench.doors.is_watched());
    bench.end();
}

#[test]
fn unqueried_ends_do_not_affect_others() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let mut one = Box::pin(nic.send(0, &[1; 60]));
        let mut other = Box::pin(nic.send(0, &[2; 60]));
        std::future::poll_fn(|context| {
            assert!(one.as_mut().poll(context).is_pending());
            assert!(other.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        nic.sleep_until(micros(10)).await;
        drop(one);
        said.say(nic.now(), format!("{:?}", other.await));
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(5));
    assert_eq!(bench.wire_takes(0, 1, false), [vec![1; 60]]);
    bench.run_until(micros(15));
    assert_eq!(bench.wire_takes(0, 1, true), [vec![2; 60]]);
    bench.run_until(micros(20));
    assert_eq!(log.text(), "10:Err(Dropped)");
    bench.end();
}

#[test]
fn ended_frames_do_not_affect_their_successors() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let mut one = Box::pin(nic.send(0, &[1; 60]));
        assert_eq!(one.as_mut().await, Ok(()));
        let mut other = Box::pin(nic.send(0, &[2; 60]));
        std::future::poll_fn(|context| {
            assert!(other.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(one);
        said.say(Time::ZERO, format!("{:?}", other.await));
    });
    bench.os.create(spec("sender"), body).unwrap();
    for _ in 0..9 {
        bench.turn();
        bench.wire_takes_all(0);
    }
    assert_eq!(log.text(), "0:Ok(())");
    bench.end();
}

#[test]
fn returned_buffers_can_be_awaited() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let taken: Vec<_> = std::iter::from_fn(|| bench.doors.pool.packet(&[0; 60])).collect();
    let body = program(move |nic| async move {
        nic.sleep_until(micros(50)).await;
        said.say(nic.now(), format!("{:?}", nic.send(0, &[0; 60]).await));
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(10));
    taken.into_iter().for_each(|packet| bench.doors.pool.free(packet));
    bench.run_until(micros(60));
    bench.wire_takes_all(0);
    bench.run_until(micros(70));
    assert_eq!(log.text(), "50:Ok(())");
    bench.end();
}

#[test]
fn returned_buffers_can_be_sent_again() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        loop {
            said.say(Time::ZERO, format!("{:?}", nic.post(0, &[0; 60]).is_ok()));
            nic.yield_now().await;
        }
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.turn();
    let taken: Vec<_> = std::iter::from_fn(|| bench.doors.pool.packet(&[0; 60])).collect();
    for _ in 0..30 {
        bench.turn();
    }
    assert!(log.take().iter().any(|(_, sent)| sent == "false"), "the stock is used up");
    taken.into_iter().for_each(|packet| bench.doors.pool.free(packet));
    for _ in 0..3 {
        bench.turn();
    }
    assert_eq!(log.take().last().map(|(_, sent)| sent.as_str()), Some("true"));
    bench.end();
}

#[test]
fn frames_fit_in_a_buffer() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        for (wire, length) in [(0, 1), (0, 2048), (0, 2049), (1, 60)] {
            said.say(nic.now(), format!("{:?}", nic.post(wire, &vec![0; length]).err()));
        }
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.turn();
    let refused = "0:Some(Length { found: 2049, allowed: 2048 }) 0:Some(NoSuchWire(1))";
    assert_eq!(log.text(), format!("0:None 0:None {refused}"));
    bench.end();
}

#[test]
fn the_stock_is_at_most_an_eighth_of_the_pool() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let config = PoolConfig { buffers: 64, ..PoolConfig::default() };
    bench.doors.pool = Pool::new(&config, 0).unwrap().0;
    let said = log.clone();
    let body = program(move |nic| async move {
        let sent = (0..64).filter(|_| nic.post(0, &[0; 60]).is_ok()).count();
        said.say(nic.now(), sent.to_string());
        // A frame refused for lack of a buffer is tried again when there are some.
        for _ in 0..100 {
            said.say(nic.now(), format!("{:?}", nic.send(0, &[0; 60]).await));
        }
    });
    bench.os.create(spec("sender"), body).unwrap();
    for _ in 0..300 {
        bench.turn();
        bench.wire_takes_all(0);
    }
    let said: Vec<_> = log.take().into_iter().map(|(_, what)| what).collect();
    assert_eq!((&*said[0], said.len()), ("8", 101));
    assert!(said[1..].iter().all(|sent| sent == "Ok(())"), "{said:?}");
    bench.end();
}

#[test]
fn mailboxes_hold_at_least_one() {
    let mut bench = Bench::new();
    let body = program(|nic| async move {
        let (sender, _mailbox) = nic.mailbox(0).unwrap();
        assert_eq!(sender.capacity(), 1);
    });
    bench.os.create(spec("t"), body).unwrap();
    bench.turn();
    assert_eq!(bench.os.counters().panics.get(), 0);
    bench.end();
}

// ---------------------------------------------------------------- card files

/// A task with a value for each key to change.
struct Plain;

impl Component for Plain {
    type Product = Setup;
    type Config = NoKeys;
    const NAME: &'static str = "plain";
    const HELP: &'static str = "as the test has it";
    fn build(_: NoKeys, _: &BuildContext) -> Result<Setup, ConfigError> {
        let spec = TaskSpec::new("own").wcet_ns(50_000).periodic(500_000).priority(3);
        let body = program(|nic| async move { nic.sleep_until(Time::MAX).await });
        Ok(Setup { spec: spec.offset_ns(77), program: body })
    }
}

static TASKS: Tasks = &[Entry::of::<Plain>()];

fn card(text: &str) -> picnic_core::config::CardFile {
    Sections::core().with(picnic_os::keys::SECTIONS).parse(text, None).unwrap()
}

#[test]
fn task_keys_override_the_specification() {
    let line_and_start = |keys: &str| {
        let os = build_os(&card(&format!("[os]\n[[task]]\ntask = \"plain\"\n{keys}")), TASKS);
        let mut bench = Bench::new();
        bench.os = os.unwrap().unwrap();
        let line = bench.os.lines().next().unwrap();
        let start = bench.turn().1;
        bench.end();
        (line, start)
    };
    let (own, start) = line_and_start("");
    assert_eq!((&*own.name, own.period_ns, own.priority), ("own", Some(500_000), 3));
    assert_eq!((own.wcet_ns, &*own.bounds_from), (Some(50_000), "stated"));
    assert_eq!(start, Some(Time::from_nanos(77)));
    let keys = "name = \"other\"\nperiod_us = 400\noffset_us = 9\npriority = 8\nwcet_ns = 60";
    let (other, start) = line_and_start(keys);
    assert_eq!((&*other.name, other.period_ns, other.priority), ("other", Some(400_000), 8));
    assert_eq!((other.wcet_ns, &*other.bounds_from), (Some(60), "the card file"));
    assert_eq!(start, Some(micros(9)));
    let most = i64::MAX;
    let (long, start) = line_and_start(&format!("period_us = {most}\noffset_us = {most}"));
    assert_eq!((long.period_ns, start), (Some(u64::MAX), Some(Time::MAX)));
    assert_eq!(line_and_start("period_us = 0").0.period_ns, None);
}

#[test]
fn admission_uses_reported_rates() {
    let arrivals = |rate| Arrivals {
        rate,
        burst: 32,
        room: Some(512),
        origin: "as the test has it".into(),
        room_origin: "the test",
    };
    let report = |keys: &str, rate| {
        let file = card(&format!("[[wire]]\nport = \"generator\"\n[os]\n{keys}"));
        let around = Surroundings { arrivals: vec![arrivals(rate)], costs: None };
        let os = build(
            &file,
            OsRegistries { tasks: TASKS, ..OsRegistries::default() },
            Filters::new(1),
            &around,
        );
        os.map(|os| os.unwrap().handle.path).map_err(|error| error.to_string())
    };
    let told = report("", Rate::Pps(1_000_000)).unwrap();
    assert_eq!(
        (told.turn_ns.value, told.packet_ns.value, told.packets_fraction),
        (None, None, 0.0)
    );
    let wires: Vec<_> =
        told.wires.iter().map(|wire| (wire.rate_pps.value, wire.room.value)).collect();
    assert_eq!(wires, [(Some(1_000_000), Some(512))]);
    assert_eq!(told.catch_up_ns, 1_000_000);
    let most = report("catch_up_us = 1000000000", Rate::Pps(1)).unwrap();
    assert_eq!(most.catch_up_ns, 1_000_000_000_000);
    // At any rate, packets that arrive together fit, or the task is refused.
    let with_room = |room: u64| {
        let keys = format!("line_rate_pps = 1\nreceive_room = {room}\n[[task]]\ntask = \"plain\"");
        report(&keys, Rate::Untold)
    };
    assert!(with_room(32).is_ok());
    let refused = with_room(31).unwrap_err();
    assert!(refused.contains("but 31 fit"), "{refused}");
}

#[test]
fn skipped_checks_are_reported() {
    let costs = ProfileCosts {
        turn_ns: 0,
        packet_ns: 100,
        doorbell_ns: 0,
        longest_doorbell_ns: 0,
        is_assumed: false,
        interruptions: None,
        origin: "a profile".into(),
    };
    let told = |keys: &str, pps| {
        let file = card(&format!("[[wire]]\nport = \"generator\"\n[os]\n{keys}"));
        let wire = Arrivals { rate: Rate::Pps(pps), room: Some(u64::MAX), ..Arrivals::default() };
        let around = Surroundings { arrivals: vec![wire], costs: Some(costs.clone()) };
        let os = build(&file, OsRegistries::default(), Filters::new(1), &around);
        os.unwrap().unwrap().handle.path
    };
    let path = told("", 1_000_000);
    assert_eq!((path.packets_fraction, path.notes.len()), (0.1, 0));
    assert_eq!(path.wires[0].room, Origin { value: None, from: "all wait".into() });
    // A rate above the core's capacity is an error only if stated.
    assert_eq!(told("", 20_000_000).notes.len(), 1);
    assert_eq!(told("line_rate_pps = 20_000_000", 1).notes.len(), 0);
}

#[test]
fn unreported_wires_have_at_least_one_packet() {
    let with_room = |room: u64| {
        let keys = format!("line_rate_pps = 1\nreceive_room = {room}\n");
        let wire = "[[wire]]\nport = \"generator\"\n";
        build_os(&card(&format!("{wire}[os]\n{keys}[[task]]\ntask = \"plain\"")), TASKS)
    };
    assert!(with_room(1).is_ok() && with_room(0).is_err());
}

#[test]
fn sections_and_tasks_request_nic_os() {
    let there = |text| build_os(&card(text), TASKS).unwrap().is_some();
    assert!(there("[os]") && there("[[task]]\ntask = \"plain\"") && !there(""));
    let os = build_os(&card("[os]\nscheduler = \"cyclic\""), TASKS).unwrap().unwrap();
    assert_eq!(os.report().scheduler, "cyclic");
}

#[test]
fn longest_list_includes_ended_tasks() {
    let kinds = OsRegistries { tasks: TASKS, ..OsRegistries::default() };
    let file = card("[os]\ntasks = 3");
    let os = build(&file, kinds, Filters::new(1), &Surroundings::default()).unwrap().unwrap();
    assert_eq!(os.handle.factory.longest_list(), 3 + 1024);
    assert_eq!(os.handle.factory.kinds().collect::<Vec<_>>(), ["plain"]);
}
