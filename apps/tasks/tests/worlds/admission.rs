//! Admission in virtual time, under the simulator's own costs: admitted task sets lose no packet and
//! meet every deadline.

use picnic_control::{Launch, Registries, Report};
use picnic_core::time::Time;
use picnic_os::report::OsReport;
use picnic_os::schedulers::registry::SCHEDULERS;
use picnic_sim::{CostModel, Simulation};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::fmt::Write;

/// Costs of a turn, a packet, a switch and a doorbell in these simulations.
const TURN_NS: u64 = 300;
const PACKET_NS: u64 = 90;
const SWITCH_NS: u64 = 400;
const DOORBELL_NS: u64 = 700;

fn costs(doorbell_send_ns: u64) -> CostModel {
    CostModel {
        card_turn_ns: TURN_NS,
        card_packet_ns: PACKET_NS,
        switch_ns: SWITCH_NS,
        target_packet_ns: 1,
        doorbell_send_ns,
        // Targets sleep again before the next turn, so that each doorbell that may ring does.
        doorbell_arrive_ns: 0..=0,
        ..CostModel::default()
    }
}

/// A task of the tests: its period and its segments, in nanoseconds.
#[derive(Clone, Debug)]
struct Busy {
    period_ns: Option<u64>,
    segments: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Card {
    rate_pps: u64,
    /// Packets that fit in the wire's ring.
    room: u64,
    /// Packets that arrive together.
    burst: u64,
    scheduler: &'static str,
    cold_ns: u64,
    /// More keys of `[os]`.
    keys: String,
    /// Queues, steered to by `rss` if there are several, and the keys of `[interrupt]`.
    queues: u16,
    interrupt: &'static str,
    doorbell_ns: u64,
    tasks: Vec<Busy>,
}

impl Card {
    fn text(&self) -> String {
        let Card { rate_pps, room, burst, scheduler, cold_ns, keys, tasks, .. } = self;
        let Card { queues, interrupt, .. } = self;
        let rss = if *queues == 1 { "" } else { "[[rx]]\nfunction = \"rss\"\n" };
        let mut text = format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nrate_pps = {rate_pps}\n\
             burst = {burst}\nbacklog = {room}\nflows = 256\n{rss}[host]\nqueues = {queues}\n\
             ring_size = 8192\n[pool]\nbuffers = 65536\n[interrupt]\n{interrupt}[os]\n\
             scheduler = \"{scheduler}\"\nswitch_ns = {SWITCH_NS}\ncold_ns = {cold_ns}\n{keys}"
        );
        for (number, Busy { period_ns, segments }) in tasks.iter().enumerate() {
            let period_us = period_ns.map_or(0, |period_ns| period_ns / 1_000);
            let _ = write!(
                text,
                "[[task]]\ntask = \"busy\"\nname = \"t{number}\"\nperiod_us = {period_us}\n\
                 pause_us = 0\nsegments_ns = {segments:?}\n"
            );
        }
        text
    }

    /// Runs it for a number of milliseconds, or returns the reason of its refusal.
    fn run(&self, milliseconds: u64) -> Result<(Report, OsReport), String> {
        let file = picnic_host::sections().parse(&self.text(), None).unwrap();
        let registries =
            Registries { tasks: picnic_tasks::registry::TASKS, ..picnic_sim::registries() };
        let built = Simulation::new(Launch::new(&file, registries), 1, costs(self.doorbell_ns));
        let mut simulation = built.map_err(|error| error.to_string())?;
        simulation.run_until(Time::from_nanos(milliseconds * 1_000_000));
        let (mut report, _) = simulation.finish();
        assert!(report.ledger.balanced(), "{:?}", report.ledger);
        assert_eq!((report.buffers_missing, report.ledger.in_flight), (0, 0));
        let os = report.os.take().unwrap();
        Ok((report, os))
    }
}

fn one_task(rate_pps: u64, segment_ns: u64, keys: &str) -> Card {
    let tasks = vec![Busy { period_ns: None, segments: vec![segment_ns] }];
    let (scheduler, keys, interrupt) = ("edf-plus", keys.to_owned(), "");
    let (burst, queues, doorbell_ns) = (1, 1, DOORBELL_NS);
    Card {
        rate_pps,
        room: 256,
        burst,
        scheduler,
        cold_ns: 0,
        keys,
        queues,
        interrupt,
        doorbell_ns,
        tasks,
    }
}

const OVERRIDE: &str = "admission = \"override\"\n";

/// The longest admitted segment, in nanoseconds.
fn longest(admitted: impl Fn(u64) -> bool) -> u64 {
    longest_below(10_000_000, admitted)
}

/// The same, at most `high`; none if `high` is admitted.
fn longest_below(mut high: u64, admitted: impl Fn(u64) -> bool) -> u64 {
    let mut low = 0;
    while high - low > 1 {
        let middle = (low + high) / 2;
        if admitted(middle) { low = middle } else { high = middle }
    }
    low
}

#[test]
fn segments_too_long_for_the_wires_are_refused_for_a_reason() {
    let longest_ns = longest(|ns| one_task(1_000_000, ns, "").run(0).is_ok());
    let (report, os) = one_task(1_000_000, longest_ns, "").run(20).unwrap();
    assert_eq!(report.ledger.dropped, 0, "{longest_ns}");
    assert!(os.tasks[0].segments > 30, "{os:?}");
    let message = one_task(1_000_000, longest_ns + 1, "").run(0).unwrap_err();
    assert!(message.contains("packets arrive on wire0, but 256 fit"), "{message}");
    // The allowance (a turn that takes a burst, doorbells) is at most a twentieth here.
    let (report, os) = one_task(1_000_000, longest_ns * 105 / 100, OVERRIDE).run(20).unwrap();
    assert!(report.ledger.dropped > 0, "{:?}", report.ledger);
    assert_eq!(os.overridden, 1);
}

#[test]
fn packets_waiting_after_a_segment_are_taken_before_the_next() {
    // A hundred thousand per second more than a burst per segment.
    let card = Card { room: 1_024, ..one_task(1_000_000, 900_000, "") };
    let (report, os) = card.run(50).unwrap();
    assert_eq!(report.ledger.dropped, 0, "{:?}", report.ledger);
    assert!(report.ledger.delivered > 48_000, "{:?}", report.ledger);
    assert!(os.tasks[0].segments > 40, "{os:?}");
}

#[test]
fn budgets_too_short_are_refused_for_a_reason() {
    // Packets use half of the core.
    let keys = "catch_up_us = 20\n";
    let message = one_task(5_000_000, 40_000, keys).run(0).unwrap_err();
    assert!(message.contains("but may take 20000 ns (os.catch_up_us)"), "{message}");
    assert!(message.contains("5000000 packets/s x 106 ns per packet"), "{message}");
    let (report, os) = one_task(5_000_000, 40_000, &format!("{keys}{OVERRIDE}")).run(20).unwrap();
    assert!(report.ledger.dropped > 1_000, "{:?}", report.ledger);
    // The task has the rest of the core: packets do not stop it.
    assert!(os.tasks[0].segments > 200, "{os:?}");
    let (report, _) = one_task(5_000_000, 40_000, "").run(20).unwrap();
    assert_eq!(report.ledger.dropped, 0);
}

#[test]
fn packets_and_periodic_tasks_share_the_core() {
    let card = |segment_ns: u64, keys: &str| Card {
        tasks: vec![Busy { period_ns: Some(200_000), segments: vec![segment_ns] }],
        room: 2_048,
        ..one_task(2_000_000, 0, keys)
    };
    let longest_ns = longest(|ns| card(ns, "").run(0).is_ok());
    let (report, os) = card(longest_ns, "").run(20).unwrap();
    assert_eq!((report.ledger.dropped, os.tasks[0].deadline_misses), (0, 0), "{longest_ns}");
    // A release may find the path in a turn, so a little of the core must stay free.
    let message = card(longest_ns + 1, "").run(0).unwrap_err();
    assert!(message.contains("6760 ns of \"the packet path\", which has begun"), "{message}");
    let message = card(longest_ns * 110 / 100, "").run(0).unwrap_err();
    assert!(message.contains("of every 200000 ns (t0) + 2000000 packets/s x 106 ns"), "{message}");
    // Packets come first: the task is late.
    let (_, os) = card(longest_ns * 110 / 100, OVERRIDE).run(20).unwrap();
    assert!(os.tasks[0].deadline_misses > 0, "{os:?}");
}

#[test]
fn rates_above_the_path_are_refused_for_any_task() {
    let stated = one_task(12_000_000, 10, "line_rate_pps = 12_000_000\n");
    let message = stated.run(0).unwrap_err();
    assert!(message.contains("12000000 packets/s x 106 ns per packet = 126.7 %"), "{message}");
    // A rate that the wire reports, rather than the user, is no task's fault: there must be room.
    let (report, os) = one_task(12_000_000, 10, "").run(5).unwrap();
    assert!(report.ledger.dropped > 0 && os.tasks[0].segments > 3, "{os:?}");
    let message = one_task(12_000_000, 20_000, "").run(0).unwrap_err();
    assert!(message.contains("but 256 fit"), "{message}");
}

fn segments(most_ns: u64) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1_000..most_ns, 1..4)
}

fn cards() -> impl Strategy<Value = Card> {
    let periods = prop::sample::select(vec![200_000u64, 400_000, 800_000, 1_600_000]);
    let periodic = (periods, segments(60_000))
        .prop_map(|(period_ns, segments)| Busy { period_ns: Some(period_ns), segments });
    let other = segments(120_000).prop_map(|segments| Busy { period_ns: None, segments });
    let tasks = (prop::collection::vec(periodic, 0..4), prop::collection::vec(other, 0..3));
    // Those that promise deadlines.
    let names = SCHEDULERS.iter().map(|entry| entry.name).filter(|name| *name != "event");
    let scheduler = prop::sample::select(names.collect::<Vec<_>>());
    let wire = (50_000u64..4_000_000, 64u64..1_024, 1u64..33);
    (wire, scheduler, tasks).prop_map(|((rate_pps, room, burst), scheduler, (periodic, other))| {
        let tasks = periodic.into_iter().chain(other).collect();
        Card { room, burst, scheduler, tasks, ..one_task(rate_pps, 0, "") }
    })
}

/// Admitted sets lose no packet, for any behaviour of the tasks, and meet every deadline.
#[test]
fn admitted_sets_drop_nothing_and_miss_no_deadline() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut admitted, mut refused, mut segments) = (0, 0, 0);
    while admitted < 60 {
        let card = cards().new_tree(&mut runner).unwrap().current();
        match card.run(10) {
            Ok((report, os)) => {
                assert_eq!(report.ledger.dropped, 0, "{card:?}\n{:?}", report.ledger);
                let misses: u64 = os.tasks.iter().map(|task| task.deadline_misses).sum();
                assert_eq!(misses, 0, "{card:?}\n{os:?}");
                segments += os.tasks.iter().map(|task| task.segments).sum::<u64>();
                admitted += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 10 && segments > 5_000, "{refused} refused, {segments} segments");
}

/// The highest rate at which a card's tasks are admitted is within a tenth of its capacity: at nine
/// tenths nothing is lost, and at eleven, admitted by override, packets are.
#[test]
fn nine_tenths_of_the_highest_rate_lose_nothing_and_eleven_tenths_lose_packets() {
    let (by_time, queues) = ("rx_frames = 0\n", 4);
    let with_room = |room, segment_ns| Card { room, ..one_task(1, segment_ns, "") };
    // With so long to catch up, a card is admitted until it never does.
    let in_time = || Card { keys: "catch_up_us = 10_000\n".into(), ..with_room(2_048, 50_000) };
    for (what, card) in [
        ("room", with_room(1_024, 900_000)),
        ("room, four queues", Card { queues, ..with_room(1_024, 900_000) }),
        ("room, dear doorbells", Card { queues, doorbell_ns: 5_000, ..with_room(1_024, 900_000) }),
        ("time", in_time()),
        ("time, four queues", Card { queues, interrupt: by_time, ..in_time() }),
        ("time, dear doorbells", Card { doorbell_ns: 5_000, ..in_time() }),
        (
            "time, dear doorbells, four queues",
            Card {
                queues,
                interrupt: "rx_usecs = 100\nrx_frames = 0\n",
                doorbell_ns: 5_000,
                ..in_time()
            },
        ),
    ] {
        let at = |rate_pps: u64, keys: &str| {
            let keys = format!("{}line_rate_pps = {rate_pps}\n{keys}", card.keys);
            Card { rate_pps, keys, ..card.clone() }
        };
        let highest_pps = longest(|rate_pps| rate_pps == 0 || at(rate_pps, "").run(0).is_ok());
        assert!(highest_pps < 9_900_000, "{what}: {highest_pps}");
        let (report, os) = at(highest_pps * 9 / 10, "").run(30).unwrap();
        assert_eq!(report.ledger.dropped, 0, "{what}: {highest_pps} {:?}", report.ledger);
        assert!(os.tasks[0].segments > 20 && os.overridden == 0, "{what}: {os:?}");
        assert!(at(highest_pps * 11 / 10, "").run(0).is_err(), "{what}: {highest_pps}");
        let (report, os) = at(highest_pps * 11 / 10, OVERRIDE).run(30).unwrap();
        assert!(report.ledger.dropped > 0, "{what}: {highest_pps} {:?}", report.ledger);
        assert_eq!(os.overridden, 1, "{what}");
    }
}

/// A random set in which one segment grows. Just beyond the limit it is refused; once more packets
/// arrive during the segment alone than fit, packets are lost. Between the two are a turn, a switch
/// and two bursts: the allowance of admission. Tasks that are not periodic are refused here for the
/// wires' room, not for deadlines.
#[test]
fn refused_segments_lose_packets_a_little_beyond() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut lost, mut kept_out) = (0, 0);
    while lost < 8 || kept_out == 0 {
        let card = cards().new_tree(&mut runner).unwrap().current();
        let Some(grown) = card.tasks.iter().position(|task| task.period_ns.is_none()) else {
            continue;
        };
        if card.run(0).is_err() {
            continue;
        }
        let with = |segment_ns: u64, keys: &str| {
            let mut card = Card { keys: keys.into(), ..card.clone() };
            card.tasks[grown].segments = vec![segment_ns];
            card
        };
        let Card { rate_pps, room, burst, .. } = card;
        // Over this time more packets arrive than fit, however bursts fall.
        let too_long_ns = (room + burst + 1) * 1_000_000_000 / rate_pps + 1;
        let longest_ns = longest_below(too_long_ns, |ns| with(ns, "").run(0).is_ok());
        let message = with(longest_ns + 1, "").run(0).unwrap_err();
        assert!(message.contains(" fit; yield"), "{message}\n{card:?}");
        let packets_ns = (2 * burst + 2) * 1_000_000_000 / rate_pps;
        let allowed_ns = TURN_NS + DOORBELL_NS + 64 * PACKET_NS + SWITCH_NS + packets_ns;
        assert!(too_long_ns - longest_ns <= allowed_ns, "{longest_ns} ns\n{card:?}");
        let milliseconds = 10 + 3 * too_long_ns / 1_000_000;
        let (report, os) = with(too_long_ns, OVERRIDE).run(milliseconds).unwrap();
        assert!(os.overridden > 0, "{card:?}");
        // If its slack is too short, the segment never runs and does no harm.
        let task = os.tasks.iter().find(|task| task.name == format!("t{grown}")).unwrap();
        let has_run = task.segments > 0;
        assert_eq!(report.ledger.dropped > 0, has_run, "{card:?}\n{os:?}");
        *if has_run { &mut lost } else { &mut kept_out } += 1;
    }
}

/// The longest time from release to start of each periodic task, in nanoseconds, and the number of
/// segments of the others.
fn jitters(card: &Card) -> (Vec<u64>, u64) {
    let (report, os) = card.run(30).unwrap();
    assert_eq!(report.ledger.dropped, 0, "{card:?}");
    let is_periodic =
        |name: &str| card.tasks[name[1..].parse::<usize>().unwrap()].period_ns.is_some();
    let (periodic, others): (Vec<_>, Vec<_>) =
        os.tasks.iter().partition(|task| is_periodic(&task.name));
    let jitter = periodic.iter().map(|task| task.jitter_ns.max_ns.unwrap()).collect();
    (jitter, others.iter().map(|task| task.segments).sum())
}

/// Fillers delay no release, with costs for switches, packets and cold caches.
#[test]
fn fillers_add_no_release_jitter() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut filled = 0;
    for number in 0..40 {
        let fillers = prop::collection::vec(segments(120_000), 1..5);
        let fillers = fillers.new_tree(&mut runner).unwrap().current();
        // Two tasks with distant releases: only a filler or packets can delay one.
        let periodic = Busy { period_ns: Some(400_000), segments: vec![30_000, 5_000] };
        let alone = Card {
            rate_pps: [1, 500_000, 4_000_000][number % 3],
            room: 8_000,
            scheduler: ["edf-plus", "cyclic-plus"][number % 2],
            cold_ns: 20_000,
            tasks: vec![periodic],
            ..one_task(1, 0, "")
        };
        let mut with = alone.clone();
        with.tasks.extend(fillers.into_iter().map(|segments| Busy { period_ns: None, segments }));
        let ((without, _), (with_fillers, segments)) = (jitters(&alone), jitters(&with));
        filled += segments;
        let turn_ns = TURN_NS + DOORBELL_NS + 64 * PACKET_NS;
        for (without_ns, with_ns) in without.into_iter().zip(with_fillers) {
            assert!(
                with_ns <= without_ns + turn_ns,
                "{with_ns} ns with fillers, {without_ns} ns without\n{with:?}"
            );
        }
    }
    assert!(filled > 1_000, "{filled}");
}
