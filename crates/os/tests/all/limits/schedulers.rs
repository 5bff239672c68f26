//! Timetables, frames and windows of schedulers at the ends of their ranges.

use super::demand;
use picnic_core::time::Time;
use picnic_os::admission::{Order, admit};
use picnic_os::path::PacketPath;
use picnic_os::schedulers::cyclic::{Cyclic, MOST_FRAMES, timetable};
use picnic_os::schedulers::edf::Edf;
use picnic_os::schedulers::slack::{Lookahead, SlackPolicy};
use picnic_os::schedulers::{Discipline, Scheduler};
use picnic_os::ticket::{Candidate, Ticket};

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
