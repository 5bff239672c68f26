//! The written format: spans nest, arrows connect, and the bound holds.

use super::*;
use crate::bench;
use serde_json::Value;

fn at(ns: u64) -> Time {
    Time::from_nanos(ns)
}

fn written(timeline: &Timeline) -> Value {
    let mut text = Vec::new();
    timeline.write(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn events<'v>(of: &'v Value, phase: &str) -> Vec<&'v Value> {
    let all = of["traceEvents"].as_array().unwrap();
    all.iter().filter(|event| event["ph"] == phase).collect()
}

#[test]
fn events_become_spans_instants_counters_and_arrows() {
    let timeline = Timeline::keeping(100);
    let card = timeline.card("card\"0");
    timeline.lock().cards[0] = Names {
        card: "card\"0".into(),
        borrowed: Some(1),
        queues: vec![0, 2, 0],
        functions: [vec!["rss".into()], Vec::new()],
        tasks: vec!["beat".into()],
    };
    let mut recorder = card.recorder();
    // The order of recording is not that of time: a function ends before its turn does.
    let function = Event::Function { direction: Direction::Rx, position: 0, packets: 64 };
    recorder.span(1, at(1_100), at(1_200), function);
    let turn = Event::Turn { received: 64, submitted: 0, transmitted: 0 };
    recorder.span(1, at(1_100), at(1_500), turn);
    recorder.span(1, at(1_500), at(2_500), Event::Segment { task: 0, ticket_ns: 900 });
    recorder.span(1, at(1_400), at(4_000), Event::Doorbell { to: 2 });
    recorder.span(2, at(4_000), at(4_200), Event::Target { packets: 64, transmitted: 1 });
    recorder.span(0, at(0), at(9_000), Event::Slept);
    let dropped = Event::Dropped { reason: DropReason::RingFull, stage: Stage::Steer, packets: 3 };
    recorder.instant(1, at(1_500), dropped);
    recorder.preempted(1, at(1_500), 700_000);
    recorder.instant(1, at(1_500), Event::Fill { queue: 2, packets: 61 });
    recorder.span(3, at(5), at(6), Event::Host(HostWork::Softirq));
    drop(recorder);

    let written = written(&timeline);
    let spans: Vec<_> = events(&written, "B")
        .iter()
        .map(|span| (span["tid"].as_u64().unwrap(), span["name"].as_str().unwrap()))
        .collect();
    let first_task = 1 << 17;
    assert_eq!(
        spans,
        [
            (0, "asleep"),
            (3, "softirq"),
            (1, "turn"),
            (1, "rss"),
            (1, "beat"),
            (first_task, "segment"),
            (2, "target"),
        ]
    );
    let ends: Vec<_> = events(&written, "E")
        .iter()
        .map(|end| (end["tid"].as_u64().unwrap(), end["ts"].as_f64().unwrap()))
        .collect();
    // The function and the turn end before the segment begins.
    assert_eq!(ends[..2], [(1, 1.2), (1, 1.5)]);
    assert_eq!(ends.len(), spans.len());
    let threads: Vec<_> = events(&written, "M")
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    let expected =
        ["core 0, queues 0 2", "core 1, borrowed", "core 2, queue 1", "core 3", "task beat"];
    assert_eq!(threads, expected);
    let [start, end] = ["s", "f"].map(|phase| events(&written, phase)[0].clone());
    assert_eq!((&start["id"], &start["tid"], &start["ts"]), (&end["id"], &1.into(), &1.4.into()));
    assert_eq!((&end["tid"], &end["ts"]), (&2.into(), &4.0.into()));
    let instants = events(&written, "i");
    assert_eq!(instants[0]["name"], "drop ring_full@steer");
    assert_eq!(instants[0]["args"]["packets"], 3);
    assert_eq!(instants[1]["args"]["ns"], 700_000);
    assert_eq!(events(&written, "C")[0]["args"]["packets"], 61);
    assert_eq!(written["otherData"]["events_not_kept"], 0);
}

#[test]
fn memory_is_bounded_and_later_events_are_counted() {
    assert!(size_of::<Entry>() <= 32, "{}", size_of::<Entry>());
    let timeline = Timeline::keeping(100);
    let mut recorder = timeline.card("c").recorder();
    let capacity = recorder.entries.capacity();
    for moment in 0..107 {
        recorder.instant(0, at(moment), Event::Slept);
    }
    assert_eq!(recorder.entries.capacity(), capacity);
    drop(recorder);
    assert_eq!(timeline.lock().events[0].1.len(), 100);
    let note = timeline.note().unwrap();
    assert_eq!(note, "timeline: the first 100 events of each thread are kept, 7 later not");
}

#[test]
fn only_launches_during_a_recording_are_recorded() {
    let timeline = Timeline::keeping(100);
    assert!(Timeline::current().is_none());
    timeline.during(|| {
        let inner = Timeline::keeping(100);
        let panicked = std::panic::catch_unwind(|| inner.during(|| panic!("a point failed")));
        assert!(panicked.is_err());
        assert!(
            Arc::ptr_eq(&Timeline::current().unwrap().collected, &timeline.collected),
            "it is restored"
        );
    });
    assert!(Timeline::current().is_none());
}

/// The borrowed core must not wait for an allocator, not even at its first drop of a kind.
#[test]
fn the_first_drop_of_each_kind_and_the_first_depths_allocate_nothing() {
    let file = bench::card("");
    let card = bench::parts(&file).card;
    let timeline = Timeline::keeping(1 << 12);
    let mut recorder = CardRecorder::new(1, &timeline.card("card"), &card);
    let activity = Activity { received: 1, ..Activity::default() };
    let allocated = allocation_counter::measure(|| {
        for &reason in DropReason::ALL {
            for &stage in Stage::ALL {
                card.doors().ledger.card.drops.add(reason, stage, 3);
                recorder.turn(&card, at(1), at(2), &activity);
                recorder.fills(&card, at(2));
            }
        }
    });
    assert_eq!(allocated.count_total, 0);
    drop(recorder);
    let written = written(&timeline);
    let kinds = DropReason::ALL.len() * Stage::ALL.len();
    let dropped = events(&written, "i");
    assert_eq!(dropped.len(), kinds);
    assert!(dropped.iter().all(|event| event["args"]["packets"] == 3), "{dropped:?}");
}
