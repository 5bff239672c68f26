//! Tasks in virtual time: their order, and their recorded figures.

use crate::bench::{Bench, Log, edf_plus, micros};
use picnic_core::resident::{Resident, Turn};
use picnic_core::time::Time;
use picnic_os::control::TaskControl;
use picnic_os::executor::OsSettings;
use picnic_os::keys::Overrun;
use picnic_os::roster::State;
use picnic_os::task::{Bounds, CreateError, TaskId, TaskSpec, program};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn spec(name: &str) -> TaskSpec {
    TaskSpec::new(name).wcet_ns(1_000)
}

/// A task that logs its name in each of `segments` segments per invocation.
fn talker(log: &Log, name: &'static str, segments: usize) -> picnic_os::task::Program {
    let log = log.clone();
    program(move |nic| async move {
        loop {
            for segment in 0..segments {
                log.say(nic.now(), format!("{name}{segment}"));
                if segment + 1 < segments {
                    nic.yield_now().await;
                }
            }
            nic.next_release().await;
        }
    })
}

fn state(bench: &Bench, id: TaskId) -> State {
    bench.os.lines().find(|line| line.id == id).unwrap().state
}

#[test]
fn periodic_tasks_run_at_their_releases() {
    let (mut bench, log) = (Bench::new(), Log::default());
    bench.os.create(spec("a").periodic(10_000), talker(&log, "a", 1)).unwrap();
    bench.os.create(spec("b").periodic(20_000).offset_ns(5_000), talker(&log, "b", 2)).unwrap();
    bench.run_until(micros(40));
    assert_eq!(log.text(), "0:a0 5:b0 6:b1 10:a0 20:a0 25:b0 26:b1 30:a0");
    let lines: Vec<_> = bench.os.lines().collect();
    assert_eq!(lines[0].counters.invocations.get(), 4);
    assert_eq!(lines[0].counters.completed.get(), 4);
    assert_eq!(lines[1].counters.segments.get(), 4);
    assert_eq!(lines[1].counters.deadline_misses.get(), 0);
    let times = bench.os.times(lines[1].id).unwrap();
    assert_eq!(times.response.figures().mean_ns, Some(2_000.0));
    assert_eq!(times.jitter.figures().mean_ns, Some(0.0));
    bench.end();
}

/// For the analysis of bounds `next_release` is a wait, where an invocation's bound ends; so it is
/// for the executor, for any task.
#[test]
fn next_release_ends_invocations_of_aperiodic_tasks() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let bounds = Bounds { segments: [1_000; 2].into(), remaining: [2_000, 1_000].into() };
    let said = log.clone();
    let body = program(move |nic| async move {
        loop {
            said.say(nic.now(), "n0");
            nic.next_segment(1);
            nic.yield_now().await;
            said.say(nic.now(), "n1");
            nic.next_segment(0);
            nic.next_release().await;
        }
    });
    let id = bench.os.create(TaskSpec::new("n").bounds(bounds), body).unwrap();
    bench.run_until(micros(1));
    bench.os.create(spec("o"), talker(&log, "o", 1)).unwrap();
    bench.run_until(micros(10));
    // The next invocation is ready at once, after all ready tasks.
    assert_eq!(log.text(), "0:n0 1:n1 2:o0 3:n0 4:o0 5:n1 6:o0 7:n0 8:o0 9:n1");
    let line = bench.os.lines().find(|line| line.id == id).unwrap();
    assert_eq!(line.counters.completed.get(), 3);
    assert_eq!(line.counters.invocations.get(), 4);
    let times = bench.os.times(id).unwrap();
    // 0 to 2, 2 to 6, 6 to 10; the first segments wait for the other task's.
    assert_eq!(times.response.figures().mean_ns, Some(10_000.0 / 3.0));
    assert_eq!(times.jitter.figures().max_ns, Some(1_000));
    bench.end();
}

/// Other events may come ahead of its release, which it still waits for.
#[test]
fn early_wakes_do_not_end_the_wait_for_a_release() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        loop {
            said.say(nic.now(), "r");
            let (mut release, mut woken) = (std::pin::pin!(nic.next_release()), false);
            std::future::poll_fn(|context| {
                if !std::mem::replace(&mut woken, true) {
                    context.waker().wake_by_ref();
                }
                release.as_mut().poll(context)
            })
            .await;
        }
    });
    let id = bench.os.create(spec("r").periodic(10_000), body).unwrap();
    bench.run_until(micros(25));
    assert_eq!(log.text(), "0:r 10:r 20:r");
    let line = bench.os.lines().find(|line| line.id == id).unwrap();
    let counts = (line.counters.invocations.get(), line.counters.completed.get());
    assert_eq!((counts, line.counters.segments.get()), ((3, 3), 6));
    bench.end();
}

#[test]
fn earlier_deadlines_go_first_and_jitter_shows_it() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let late = bench.os.create(spec("late").periodic(30_000), talker(&log, "late", 1)).unwrap();
    bench.os.create(spec("soon").periodic(10_000), talker(&log, "soon", 1)).unwrap();
    bench.run_until(micros(9));
    assert_eq!(log.text(), "0:soon0 1:late0");
    let times = bench.os.times(late).unwrap();
    assert_eq!(times.jitter.figures().max_ns, Some(1_000));
    assert_eq!(times.response.figures().mean_ns, Some(2_000.0));
    bench.end();
}

#[test]
fn aperiodic_tasks_fill_the_slack_by_segments() {
    let (mut bench, log) = (Bench::new(), Log::default());
    bench.os.create(spec("p").periodic(10_000), talker(&log, "p", 1)).unwrap();
    let bounds =
        Bounds { segments: [3_000, 5_000, 2_000].into(), remaining: [10_000, 7_000, 2_000].into() };
    let said = log.clone();
    let id = bench
        .os
        .create(
            TaskSpec::new("q").bounds(bounds),
            program(move |nic| async move {
                said.say(nic.now(), "q0");
                nic.next_segment(1);
                nic.yield_now().await;
                said.say(nic.now(), "q1");
                nic.next_segment(2);
                nic.yield_now().await;
                said.say(nic.now(), "q2");
            }),
        )
        .unwrap();
    bench.run_until(micros(20));
    // After q0 and q1 one microsecond is left before p: q2 takes two, and waits.
    assert_eq!(log.text(), "0:p0 1:q0 4:q1 10:p0 11:q2");
    assert_eq!(state(&bench, id), State::Returned);
    let times = bench.os.times(id).unwrap();
    assert_eq!(times.response.figures().mean_ns, Some(13_000.0), "from ready to the end");
    bench.end();
}

#[test]
fn sleeping_is_punctual_and_yielding_alternates() {
    let (mut bench, log) = (Bench::new(), Log::default());
    for name in ["a", "b"] {
        let log = log.clone();
        let body = program(move |nic| async move {
            for _ in 0..2 {
                log.say(nic.now(), name);
                nic.yield_now().await;
            }
            nic.sleep_until(micros(10)).await;
            log.say(nic.now(), format!("{name}!"));
            nic.sleep_ns(0).await;
            log.say(nic.now(), format!("{name}?"));
        });
        bench.os.create(spec(name), body).unwrap();
    }
    bench.run_until(micros(30));
    // The sixth segments only go to sleep; a sleep of zero is then a yield.
    assert_eq!(log.text(), "0:a 1:b 2:a 3:b 10:a! 11:b! 12:a? 13:b?");
    bench.end();
}

#[test]
fn tickets_describe_the_next_segment() {
    let mut bench = Bench::new();
    let bounds = Bounds { segments: [10, 20].into(), remaining: [30, 20].into() };
    let id = bench.os.create(
        TaskSpec::new("t").bounds(bounds),
        program(|nic| async move {
            nic.next_segment(1);
            nic.sleep_ns(1_000).await;
            nic.next_segment(0);
            nic.sleep_ns(1_000).await;
        }),
    );
    let wcet = |bench: &Bench| bench.os.lines().find(|line| Ok(line.id) == id).unwrap().wcet_ns;
    assert_eq!(wcet(&bench), Some(10));
    bench.turn();
    assert_eq!(wcet(&bench), Some(20));
    bench.run_until(Time::from_nanos(1_500));
    assert_eq!(wcet(&bench), Some(10));
    bench.end();
}

#[test]
fn suspended_tasks_do_not_run_and_resume_on_the_grid() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let id = bench.os.create(spec("p").periodic(10_000), talker(&log, "p", 1)).unwrap();
    bench.run_until(micros(5));
    assert!(bench.os.control(bench.now, &mut TaskControl::Suspend(id)));
    assert_eq!(state(&bench, id), State::Suspended);
    bench.run_until(micros(34));
    assert!(bench.os.control(bench.now, &mut TaskControl::Resume(id)));
    bench.run_until(micros(55));
    assert_eq!(log.text(), "0:p0 40:p0 50:p0");
    let line = bench.os.lines().next().unwrap();
    assert_eq!(line.counters.deadline_misses.get(), 0, "what was not released is not late");
    assert!(!bench.os.control(bench.now, &mut TaskControl::Resume(TaskId(77))));
    bench.end();
}

#[test]
fn a_wake_while_suspended_is_not_lost() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        nic.sleep_until(micros(10)).await;
        said.say(nic.now(), "awake");
    });
    let id = bench.os.create(spec("s"), body).unwrap();
    bench.run_until(micros(5));
    bench.os.control(bench.now, &mut TaskControl::Suspend(id));
    bench.run_until(micros(20));
    assert_eq!(log.text(), "");
    bench.os.control(bench.now, &mut TaskControl::Resume(id));
    bench.run_until(micros(30));
    assert_eq!(log.text(), "20:awake");
    bench.end();
}

#[test]
fn tasks_create_kill_suspend_and_resume_each_other() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let parent = program(move |nic| async move {
        let inner = said.clone();
        let child = program(move |nic| async move {
            loop {
                inner.say(nic.now(), "child");
                nic.sleep_ns(10_000).await;
            }
        });
        let id = nic.create(spec("child"), child).await.unwrap();
        nic.set_priority(id, 7);
        nic.sleep_until(micros(15)).await;
        nic.suspend(id);
        nic.sleep_until(micros(35)).await;
        nic.resume(id);
        nic.sleep_until(micros(50)).await;
        nic.kill(id);
        nic.kill(nic.id());
        nic.yield_now().await;
        said.say(nic.now(), "never");
    });
    bench.os.create(spec("parent"), parent).unwrap();
    bench.run_until(micros(100));
    let lines: Vec<_> =
        bench.os.lines().map(|line| (line.name.to_string(), line.state, line.priority)).collect();
    let expected = [("child".into(), State::Killed, 7), ("parent".into(), State::Killed, 0)];
    assert_eq!(lines, expected);
    assert_eq!(log.text(), "2:child 12:child 36:child 46:child");
    bench.end();
}

/// Records when it is dropped.
struct Guard(Arc<AtomicU64>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn panicking_tasks_are_ended_and_others_continue() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let dropped = Arc::new(AtomicU64::new(0));
    let guard = Guard(dropped.clone());
    let body = program(move |nic| async move {
        let _guard = guard;
        nic.sleep_ns(5_000).await;
        panic!("as it is meant to");
    });
    let id = bench.os.create(spec("bad"), body).unwrap();
    bench.os.create(spec("good").periodic(10_000), talker(&log, "g", 1)).unwrap();
    bench.run_until(micros(25));
    assert_eq!(state(&bench, id), State::Panicked);
    assert_eq!(bench.os.counters().panics.get(), 1);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    assert_eq!(log.text(), "0:g0 10:g0 20:g0");
    bench.end();
}

#[test]
fn panics_while_dropping_a_body_are_harmless() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("as it is meant to");
        }
    }
    let mut bench = Bench::new();
    let bomb = Bomb;
    let body = program(move |nic| async move {
        let _bomb = bomb;
        nic.sleep_until(Time::MAX).await;
    });
    let id = bench.os.create(spec("bomb"), body).unwrap();
    bench.run_until(micros(5));
    assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
    assert_eq!(bench.os.counters().panics.get(), 1);
    bench.end();
}

#[test]
fn overruns_are_counted_or_kill() {
    for (policy, expected) in [(Overrun::Warn, State::Returned), (Overrun::Kill, State::Overran)] {
        let settings =
            OsSettings { switch_ns: 100, cold_ns: 0, overrun: policy, ..OsSettings::default() };
        let mut bench = Bench::with(&settings, edf_plus());
        let body = program(|nic| async move {
            nic.work(1_100); // as much as the bound and the switch
            nic.yield_now().await;
            nic.work(1_101);
            nic.yield_now().await;
        });
        let id = bench.os.create(spec("o"), body).unwrap();
        bench.run_until(micros(20));
        let line = bench.os.lines().find(|line| line.id == id).unwrap();
        assert_eq!(line.state, expected);
        assert_eq!(line.counters.overruns.get(), 1);
        assert_eq!(line.counters.longest_segment_ns.get(), 1_101);
        bench.end();
    }
}

#[test]
fn the_work_of_a_segment_adds_up() {
    let mut bench = Bench::new();
    let body = program(|nic| async move {
        nic.work(u64::MAX - 1);
        nic.work(5);
    });
    bench.os.create(spec("t"), body).unwrap();
    let Turn::Ran(segment) = bench.os.turn(bench.now, &mut bench.doors) else { panic!("idle") };
    assert_eq!(segment.work_ns, u64::MAX);
    assert_eq!(bench.os.ended(bench.now), None);
    bench.end();
}

#[test]
fn first_segments_may_take_longer() {
    let settings =
        OsSettings { switch_ns: 0, cold_ns: 500, overrun: Overrun::Kill, ..OsSettings::default() };
    for (first, second, overruns) in [(1_500, 1_000, 0), (1_501, 1_000, 1), (1_500, 1_001, 1)] {
        let mut bench = Bench::with(&settings, edf_plus());
        // One segment, again and again.
        let body = program(move |nic| async move {
            nic.work(first);
            nic.yield_now().await;
            nic.work(second);
            nic.yield_now().await;
        });
        let id = bench.os.create(spec("cold"), body).unwrap();
        bench.run_until(micros(20));
        let line = bench.os.lines().find(|line| line.id == id).unwrap();
        assert_eq!(line.counters.overruns.get(), overruns, "{first} and {second}");
        let state = if overruns == 0 { State::Returned } else { State::Overran };
        assert_eq!(line.state, state);
        bench.end();
    }
}

#[test]
fn missed_deadlines_and_skipped_releases_are_counted() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let mut work = 35_000;
        loop {
            said.say(nic.now(), "p");
            nic.work(std::mem::replace(&mut work, 1_000));
            nic.next_release().await;
        }
    });
    let id = bench.os.create(spec("p").periodic(10_000), body).unwrap();
    bench.run_until(micros(60));
    // Ends at 35: its own deadline and the deadlines of the releases at 10 and 20 have passed.
    assert_eq!(log.text(), "0:p 35:p 40:p 50:p");
    let line = bench.os.lines().find(|line| line.id == id).unwrap();
    assert_eq!(line.counters.deadline_misses.get(), 3);
    assert_eq!(line.counters.releases_skipped.get(), 2);
    bench.end();
}

#[test]
fn releases_are_skipped_after_their_deadline() {
    for (work_ns, misses, skipped) in [(5_000, 0, 0), (15_000, 1, 0), (25_000, 2, 1)] {
        let mut bench = Bench::new();
        let body = program(move |nic| async move {
            let mut work = work_ns;
            loop {
                nic.work(std::mem::take(&mut work));
                nic.next_release().await;
            }
        });
        let id = bench.os.create(spec("p").periodic(10_000), body).unwrap();
        bench.run_until(micros(60));
        let line = bench.os.lines().find(|line| line.id == id).unwrap();
        let counters = &line.counters;
        let found = (counters.deadline_misses.get(), counters.releases_skipped.get());
        assert_eq!(found, (misses, skipped), "{work_ns}");
        bench.end();
    }
}

/// The first to end are forgotten first.
#[test]
fn figures_of_the_last_ended_tasks_are_kept() {
    const CREATED: usize = 1500;
    let mut bench = Bench::new();
    let mut created = Vec::new();
    for _ in 0..CREATED {
        created.push(bench.os.create(spec("brief"), program(|_| async {})).unwrap());
        bench.run_until(bench.now + 5_000);
    }
    let kept: Vec<_> = bench.os.lines().map(|line| line.id).collect();
    assert_eq!(kept, created[CREATED - 1024..]);
    bench.end();
}

#[test]
fn tasks_are_limited_and_places_reused() {
    let settings = OsSettings { tasks: 2, ..OsSettings::default() };
    let mut bench = Bench::with(&settings, edf_plus());
    let idle = || program(|nic| async move { nic.sleep_until(Time::MAX).await });
    let first = bench.os.create(spec("1"), idle()).unwrap();
    bench.os.create(spec("2"), idle()).unwrap();
    assert_eq!(bench.os.create(spec("3"), idle()), Err(CreateError::TooMany(2)));
    bench.run_until(micros(5));
    bench.os.control(bench.now, &mut TaskControl::Kill(first));
    let mut order = TaskControl::create(spec("3"), idle());
    assert!(bench.os.control(bench.now, &mut order));
    let TaskControl::Create { result: Some(Ok(third)), .. } = order else { panic!("{order:?}") };
    assert_ne!(third, first);
    bench.run_until(micros(9));
    assert_eq!(state(&bench, third), State::Waiting);
    bench.end();
}

#[test]
fn cards_have_room_for_at_least_one_task() {
    let mut bench = Bench::with(&OsSettings { tasks: 0, ..OsSettings::default() }, edf_plus());
    let mut order = TaskControl::create(spec("1"), program(|_| async {}));
    assert!(bench.os.control(bench.now, &mut order));
    let TaskControl::Create { result: Some(Ok(TaskId(1))), .. } = order else {
        panic!("{order:?}")
    };
    // It is made once.
    assert!(!bench.os.control(bench.now, &mut order));
    assert_eq!(bench.os.create(spec("2"), program(|_| async {})), Err(CreateError::TooMany(1)));
    bench.end();
}

#[test]
fn times_of_running_and_ended_tasks_are_available() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let id = bench.os.create(spec("p").periodic(10_000), talker(&log, "p", 1)).unwrap();
    bench.run_until(micros(25));
    for _ in 0..2 {
        let mut order = TaskControl::Times(id, None);
        assert!(bench.os.control(bench.now, &mut order));
        let TaskControl::Times(_, Some(times)) = order else { panic!("{order:?}") };
        assert_eq!(times.response.count(), 3);
        bench.os.control(bench.now, &mut TaskControl::Kill(id));
    }
    assert!(!bench.os.control(bench.now, &mut TaskControl::Times(TaskId(77), None)));
    bench.end();
}

#[test]
fn waits_of_killed_tasks_are_dropped() {
    for spec in [spec("t"), spec("p").periodic(10_000)] {
        let mut bench = Bench::new();
        let body = program(|nic| async move {
            match nic.is_periodic() {
                true => nic.next_release().await,
                false => nic.sleep_until(micros(10)).await,
            }
        });
        let id = bench.os.create(spec, body).unwrap();
        assert!(bench.turn().0);
        assert_eq!(bench.turn(), (false, Some(micros(10))));
        assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
        assert_eq!(bench.turn(), (false, None));
        bench.end();
    }
}

#[test]
fn timeouts_are_dropped_when_the_event_comes() {
    use std::task::{Poll, Waker};
    let mut bench = Bench::new();
    let slot: Arc<std::sync::Mutex<Option<Waker>>> = Arc::default();
    let theirs = slot.clone();
    let body = program(move |nic| async move {
        let (mut sleep, mut is_woken) = (Box::pin(nic.sleep_until(micros(10))), false);
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut is_woken, true) {
                return Poll::Ready(());
            }
            *theirs.lock().unwrap() = Some(context.waker().clone());
            sleep.as_mut().poll(context)
        })
        .await;
        std::future::pending().await
    });
    bench.os.create(spec("w"), body).unwrap();
    bench.run_until(micros(5));
    slot.lock().unwrap().take().unwrap().wake();
    bench.run_until(micros(20));
    assert_eq!(bench.os.lines().next().unwrap().counters.segments.get(), 2);
    bench.end();
}

#[test]
fn requests_at_the_stop_are_answered() {
    use std::task::{Context, Poll, Waker};
    let (mut bench, slot) = (Bench::new(), Arc::<std::sync::Mutex<Option<_>>>::default());
    let theirs = slot.clone();
    let body = program(move |nic| async move {
        *theirs.lock().unwrap() = Some(nic);
        std::future::pending().await
    });
    bench.os.create(spec("t"), body).unwrap();
    bench.turn();
    let nic: picnic_os::context::Nic = slot.lock().unwrap().take().unwrap();
    let mut reply = std::pin::pin!(nic.create(spec("late"), program(|_| async {})));
    bench.end();
    let polled = reply.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(Err(CreateError::Stopped)));
}

#[test]
fn wakers_work_from_other_threads_and_outlive_their_tasks() {
    use std::task::{Poll, Waker};
    let (mut bench, log) = (Bench::new(), Log::default());
    let slot: Arc<std::sync::Mutex<Option<Waker>>> = Arc::default();
    let (said, theirs) = (log.clone(), slot.clone());
    let body = program(move |nic| async move {
        let mut polls = 0;
        std::future::poll_fn(|context| {
            *theirs.lock().unwrap() = Some(context.waker().clone());
            polls += 1;
            if polls == 2 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        said.say(nic.now(), "woken");
    });
    bench.os.create(spec("w"), body).unwrap();
    bench.run_until(micros(10));
    assert_eq!(log.text(), "");
    let waker = slot.lock().unwrap().take().unwrap();
    std::thread::scope(|scope| _ = scope.spawn(|| waker.wake_by_ref()));
    assert!(bench.os.attention().is_raised());
    bench.run_until(micros(20));
    assert_eq!(log.text(), "10:woken");
    waker.wake();
    assert!(!bench.os.attention().is_raised(), "the task is no more");
    bench.end();
}

/// The scheduler only knows the release: the sleeper's timer comes before it.
#[test]
fn sleepers_are_woken_before_the_next_release() {
    let (mut bench, log) = (Bench::new(), Log::default());
    bench.os.create(spec("p").periodic(100_000), talker(&log, "p", 1)).unwrap();
    let said = log.clone();
    let sleeper = program(move |nic| async move {
        nic.sleep_until(micros(10)).await;
        said.say(nic.now(), "s");
    });
    bench.os.create(spec("s"), sleeper).unwrap();
    while bench.turn().0 {}
    assert_eq!(bench.turn(), (false, Some(micros(10))));
    bench.run_until(micros(150));
    assert_eq!(log.text(), "0:p0 10:s 100:p0");
    bench.end();
}

#[test]
fn the_core_rests_without_ready_tasks() {
    let (mut bench, log) = (Bench::new(), Log::default());
    bench.os.create(spec("p").periodic(10_000), talker(&log, "p", 1)).unwrap();
    let id = bench.os.create(spec("q"), talker(&log, "q", 2)).unwrap();
    // Both become ready in this turn, in which one runs.
    assert_eq!(bench.turn(), (true, Some(Time::ZERO)));
    assert_eq!((log.text(), state(&bench, id)), ("0:p0".into(), State::Ready));
    assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
    bench.now = micros(10);
    assert_eq!(bench.turn(), (true, Some(micros(20))), "nothing is ready before that");
    assert_eq!(log.text(), "10:p0");
    bench.end();
}

#[test]
fn suspended_ready_tasks_do_not_run() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let [a, b] = ["a", "b"].map(|name| bench.os.create(spec(name), talker(&log, name, 2)).unwrap());
    assert!(bench.turn().0);
    assert_eq!((log.text(), state(&bench, b)), ("0:a0".into(), State::Ready));
    assert!(bench.os.control(bench.now, &mut TaskControl::Suspend(b)));
    for _ in 0..3 {
        assert!(bench.turn().0);
    }
    assert_eq!(log.text(), "1:a1 2:a0 3:a1");
    assert!(bench.os.control(bench.now, &mut TaskControl::Suspend(a)));
    assert_eq!(bench.turn(), (false, None), "nothing is ready, nothing will be");
    assert!(bench.os.control(bench.now, &mut TaskControl::Resume(b)));
    assert!(bench.turn().0);
    assert_eq!(log.text(), "4:b0");
    bench.end();
}
