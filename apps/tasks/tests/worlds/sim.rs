//! Cards with tasks in virtual time: exact figures, and the same figures twice.

use picnic_control::{Launch, Registries, Report, Running};
use picnic_core::command::Prepared;
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::time::Time;
use picnic_engine::swap::Command;
use picnic_os::control::TaskControl;
use picnic_os::report::{OsReport, TaskReport};
use picnic_os::roster::State;
use picnic_os::task::TaskId;
use picnic_sim::{CostModel, Simulation, Trace, TraceEvent};
use picnic_tasks::registry::TASKS;

/// Costs that isolate tasks: everything else takes a nanosecond.
fn quick() -> CostModel {
    CostModel {
        card_turn_ns: 1,
        card_packet_ns: 0,
        switch_ns: 0,
        doorbell_send_ns: 0,
        adaptive_spin_ns: 0,
        ..CostModel::default()
    }
}

fn registries() -> Registries {
    Registries { tasks: TASKS, ..picnic_sim::registries() }
}

/// Checks a card file.
fn build(file: &CardFile) -> Result<(), ConfigError> {
    Launch::new(file, registries()).build().map(drop)
}

fn simulation(text: &str, seed: u64, costs: CostModel) -> Simulation {
    let file = picnic_host::sections().parse(text, None).unwrap();
    let registries = registries();
    Simulation::new(Launch::new(&file, registries), seed, costs)
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[track_caller]
fn end(simulation: Simulation) -> (Report, OsReport) {
    let (outcome, os, _) = end_traced(simulation);
    (outcome, os)
}

#[track_caller]
fn end_traced(simulation: Simulation) -> (Report, OsReport, Trace) {
    let (mut outcome, trace) = simulation.finish();
    assert!(outcome.ledger.balanced(), "{:?}", outcome.ledger);
    assert_eq!((outcome.buffers_missing, outcome.ledger.in_flight), (0, 0));
    let os = outcome.os.take().unwrap();
    (outcome, os, trace)
}

fn task<'a>(os: &'a OsReport, name: &str) -> &'a TaskReport {
    os.tasks.iter().find(|task| task.name == name).unwrap()
}

/// A card whose wire has no packets.
const QUIET: &str = "[[wire]]\nport = \"generator\"\npackets = 1\n[host]\nqueues = 1\n";

const MIXED: &str = r#"
[card]
seed = 5
[[wire]]
port = "generator"
rate_pps = 200000
flows = 16
[host]
queues = 2
[os]
scheduler = "edf-plus"
# There are no cold caches in virtual time, and no gap for a segment and 50 µs more.
cold_ns = 0
[[task]]
task = "heartbeat"
period_us = 100
wait = true
[[task]]
task = "busy"
name = "control"
period_us = 250
segments_ns = [20_000, 10_000]
[[task]]
task = "busy"
name = "background"
segments_ns = [30_000, 5_000, 15_000]
pause_us = 40
"#;

#[test]
fn the_same_seed_gives_the_same_trace() {
    let run = |seed| {
        // With dearer doorbells the set is refused.
        let costs = CostModel { doorbell_send_ns: 3_000, ..CostModel::default() };
        let mut simulation = simulation(MIXED, seed, costs);
        simulation.run_until(Time::from_nanos(5_000_000));
        assert!(simulation.ledger().balanced());
        end_traced(simulation)
    };
    let ((once, os, trace), (_, os_again, same), (_, _, other)) = (run(7), run(7), run(8));
    assert_eq!(trace, same);
    assert_eq!(os, os_again);
    assert_ne!(trace.hash(), other.hash());
    assert_eq!(once.ledger.transmitted, 50);
    for task in &os.tasks {
        assert_eq!((task.overruns, task.deadline_misses), (0, 0), "{task:?}");
    }
    assert!(task(&os, "background").completed > 20, "{os:?}");
}

#[test]
fn packets_waiting_for_a_segment_show_latency() {
    // A segment of a millisecond, then 10 µs for the packets; a packet every 100 µs.
    let text = "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nrate_pps = 10_000\n\
                [host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\n[[task]]\ntask = \"busy\"\n\
                segments_ns = [1_000_000]\npause_us = 10\n";
    let mut simulation = simulation(text, 1, quick());
    simulation.run_until(Time::from_nanos(100_000_000));
    let (report, _) = end(simulation);
    let latency = report.latency_ns;
    let (most, mean) = (latency.p999.unwrap(), latency.mean.unwrap());
    assert!((900_000..1_100_000).contains(&most), "{latency:?}");
    assert!((400_000..600_000).contains(&mean), "{latency:?}");
    // Nearly all of it at the wire: the rest is the doorbell.
    assert!(latency.at_wire.is_some_and(|ns| (400_000..550_000).contains(&ns)), "{latency:?}");
    assert!(latency.in_target_ring.is_some_and(|ns| ns < 60_000), "{latency:?}");
}

#[test]
fn segments_take_their_time_and_periods_hold() {
    let text = format!(
        "{QUIET}[[task]]\ntask = \"busy\"\nperiod_us = 100\nsegments_ns = [20_000, 30_000]\n"
    );
    let mut simulation = simulation(&text, 1, quick());
    simulation.run_until(Time::from_nanos(1_000_000 - 1));
    let starts: Vec<_> = simulation
        .trace()
        .entries()
        .iter()
        .filter_map(|entry| match entry.happening {
            TraceEvent::Segment { segment_ns, .. } => {
                Some((entry.time.as_nanos() / 1_000, segment_ns))
            }
            _ => None,
        })
        .collect();
    assert_eq!(starts[..4], [(0, 20_000), (20, 30_000), (100, 20_000), (120, 30_000)]);
    let (_, os) = end(simulation);
    let busy = task(&os, "busy");
    assert_eq!((busy.invocations, busy.segments, busy.busy_ns), (10, 20, 500_000));
    // The packet path's turns between them take a nanosecond or two.
    assert!((50_000.0..50_010.0).contains(&busy.response_ns.mean_ns.unwrap()), "{busy:?}");
    assert!(busy.jitter_ns.max_ns.unwrap() < 5, "{busy:?}");
}

#[test]
fn a_card_asleep_wakes_for_its_tasks() {
    let text = format!("{QUIET}[[task]]\ntask = \"heartbeat\"\nperiod_us = 1000\n");
    let mut simulation = simulation(&text, 1, quick());
    simulation.run_until(Time::from_nanos(20_500_000));
    let slept = simulation.trace().entries().iter();
    let slept = slept.filter(|entry| entry.happening == TraceEvent::Slept).count();
    assert!(slept >= 20, "{slept}");
    let (outcome, os) = end(simulation);
    assert_eq!(outcome.ledger.transmitted, 21);
    assert!(task(&os, "heartbeat").jitter_ns.max_ns.unwrap() < 10);
}

#[test]
fn overruns_are_counted_or_kill_the_task() {
    for (policy, state) in [("warn", State::Stopped), ("kill", State::Overran)] {
        let text = format!(
            "{QUIET}[os]\noverrun = \"{policy}\"\nswitch_ns = 0\ncold_ns = 0\n[[task]]\ntask = \"busy\"\n\
             period_us = 100\nsegments_ns = [20_000]\nbound_percent = 50\n\
             [[task]]\ntask = \"heartbeat\"\nperiod_us = 100\n"
        );
        let mut simulation = simulation(&text, 1, quick());
        simulation.run_until(Time::from_nanos(1_000_000 - 1));
        let (outcome, os) = end(simulation);
        let busy = task(&os, "busy");
        assert_eq!(busy.state, state);
        assert_eq!(busy.overruns, if policy == "kill" { 1 } else { 10 });
        assert_eq!(outcome.ledger.transmitted, 10);
    }
}

#[test]
fn packets_pass_between_segments() {
    // A task that runs for ever, and packets all the time.
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 100000\n[host]\nqueues = 1\n\
                [[task]]\ntask = \"busy\"\nsegments_ns = [50_000]\npause_us = 0\n";
    let mut simulation = simulation(text, 1, CostModel::default());
    simulation.run_until(Time::from_nanos(10_000_000));
    let latency = simulation.latency(0).unwrap().max();
    let (outcome, os) = end(simulation);
    assert!(outcome.ledger.delivered > 990, "{:?}", outcome.ledger);
    assert_eq!(outcome.ledger.dropped, 0);
    assert!(task(&os, "busy").segments > 150, "{os:?}");
    // A segment at the wire, a segment until the moderated doorbell, and the doorbell.
    assert!(latency < 2 * 50_000 + 40_000, "{latency}");
}

#[test]
fn tasks_are_controlled_while_the_card_runs() {
    let text = format!("{QUIET}[[task]]\ntask = \"heartbeat\"\nperiod_us = 100\n");
    let mut simulation = simulation(&text, 1, quick());
    let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
    let id = TaskId(1);
    let order = |control: TaskControl| Command::Resident(Prepared::new(control));
    simulation.at(at(1), order(TaskControl::Suspend(id)));
    simulation.at(at(2), order(TaskControl::Resume(id)));
    simulation.at(at(3), order(TaskControl::list(8)));
    simulation.at(at(4), order(TaskControl::Kill(id)));
    simulation.at(at(5), order(TaskControl::Kill(id)));
    simulation.run_until(at(6));
    let answers: Vec<_> = simulation.answers().into_iter().map(|(_, answer)| answer.done).collect();
    assert_eq!(answers, [true, true, true, true, false]);
    let (outcome, os) = end(simulation);
    assert!((29..=31).contains(&outcome.ledger.transmitted), "{:?}", outcome.ledger);
    assert_eq!(os.tasks[0].state, State::Killed);
}

#[test]
fn unschedulable_sets_are_refused_with_arithmetic_or_counted() {
    let task = |us: u64| {
        format!(
            "[[task]]\ntask = \"busy\"\nname = \"b{us}\"\nperiod_us = {us}\nsegments_ns = [60_000]\n"
        )
    };
    let (first, second) = (task(100), task(120));
    let text = |os: &str| format!("{QUIET}[os]\nswitch_ns = 0\ncold_ns = 0\n{os}{first}{second}");
    let build = |text: &str| {
        let file = picnic_host::sections().parse(text, None).unwrap();
        picnic_os::config::build_os(&file, TASKS)
    };
    let error = build(&text("")).unwrap_err().to_string();
    assert!(error.starts_with("card:15: task[1].task: "), "{error}");
    assert!(error.contains("110.0 % of the borrowed core"), "{error}");
    assert!(error.contains("60000 ns of every 100000 ns (b100)"), "{error}");
    let os = build(&text("admission = \"override\"\n")).unwrap().unwrap();
    assert_eq!(os.report().overridden, 1);
    assert!(os.report().notes[0].starts_with("admission overridden: "));
    // A segment that the receive rings cannot absorb.
    let rate = "line_rate_pps = 100_000_000\nreceive_room = 1_024\n";
    let error = build(&text(rate)).unwrap_err().to_string();
    assert!(error.contains("60000 ns x 100000000 packets/s = 6001 packets"), "{error}");
    assert!(error.contains("but 1024 fit"), "{error}");
}

#[test]
fn errors_name_line_and_key() {
    let cases = [
        (
            "[[task]]\ntask = \"busi\"\n",
            "card:7: task[0].task: found \"busi\", allowed: heartbeat, ping-drop, scrub, busy",
        ),
        ("[[task]]\nperiod_us = 1\n", "card:6: task[0]: missing task, expected a name"),
        (
            "[[task]]\ntask = \"busy\"\nlength = 1\n",
            "card:8: task[0].length: found key \"length\", allowed: ",
        ),
        ("[[task]]\ntask = \"busy\"\nsegments_ns = []\n", "card:8: task[0].segments_ns: found 0"),
        ("[[task]]\ntask = \"heartbeat\"\nwire = 1\n", "card:8: task[0].wire: found 1, allowed: 0"),
        (
            "[[task]]\ntask = \"heartbeat\"\nsize = 8\n",
            "card:8: task[0].size: found 8, allowed: 26",
        ),
        ("[os]\nscheduler = \"fair\"\n", "card:7: os.scheduler: found \"fair\", allowed: edf-plus"),
        ("[os]\ntasks = 0\n", "card:7: os.tasks: found 0, allowed: 1 to 1024"),
        ("[os]\narena_bytes = 1\n", "card:7: os.arena_bytes: found 1, allowed: 4096"),
        ("[os]\noverrun = \"stop\"\n", "card:7: os.overrun: found \"stop\", allowed: warn, kill"),
        (
            "[os]\nscheduler = \"edf\"\nslack = \"x\"\n",
            "card:8: os.slack: found key \"slack\", allowed: ",
        ),
        (
            "[os]\ntasks = 1\n[[task]]\ntask = \"busy\"\n[[task]]\ntask = \"busy\"\n",
            "card:11: task[1].task: the card has 1 tasks already",
        ),
    ];
    for (text, expected) in cases {
        let text = format!("{QUIET}{text}");
        let built = picnic_host::sections()
            .parse(&text, None)
            .and_then(|file| picnic_os::config::build_os(&file, TASKS).map(drop));
        let error = built.unwrap_err().to_string();
        assert!(error.starts_with(expected), "found {error}\nwanted {expected}\n{text}");
    }
}

#[test]
fn panicking_tasks_are_killed_and_packets_pass() {
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 100000\n[host]\nqueues = 1\n\
                [[task]]\ntask = \"heartbeat\"\nperiod_us = 100\n";
    let mut simulation = simulation(text, 1, CostModel::default());
    let bad = picnic_os::task::program(|nic| async move {
        nic.sleep_ns(1_000_000).await;
        panic!("as it is meant to");
    });
    let order = TaskControl::create(picnic_os::task::TaskSpec::new("bad"), bad);
    simulation.at(Time::from_nanos(1_000_000), Command::Resident(Prepared::new(order)));
    simulation.run_until(Time::from_nanos(10_000_000 - 1));
    let (outcome, os) = end(simulation);
    assert_eq!((os.panics, task(&os, "bad").state), (1, State::Panicked));
    assert_eq!((outcome.ledger.dropped, outcome.ledger.transmitted), (0, 100));
    assert!(outcome.ledger.delivered > 990, "{:?}", outcome.ledger);
    assert_eq!(task(&os, "heartbeat").deadline_misses, 0);
}

/// A profile with equal costs, and the text of a card that names it.
fn with_profile(folder: &std::path::Path, cost_ps: u64, os: &str, tasks: &str) -> CardFile {
    let classes = picnic_wcet::Class::ALL.map(|class| (class, cost_ps));
    let profile = picnic_wcet::CostProfile::of("", &classes);
    std::fs::write(folder.join("here.toml"), profile.to_toml()).unwrap();
    let text = format!("{QUIET}[os]\ncost_profile = \"here.toml\"\n{os}{tasks}");
    picnic_host::sections().parse(&text, Some(&folder.join("card.toml"))).unwrap()
}

#[test]
fn bounds_come_from_the_cards_profile() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = "[[task]]\ntask = \"heartbeat\"\n[[task]]\ntask = \"scrub\"\nperiod_us = 0\n\
                 [[task]]\ntask = \"ping-drop\"\n[[task]]\ntask = \"busy\"\nperiod_us = 1000\n\
                 [[task]]\ntask = \"heartbeat\"\nname = \"mine\"\nwcet_ns = 77\n";
    let bounds = |file: &CardFile| -> Vec<(u64, String)> {
        let os = picnic_os::config::build_os(file, TASKS).unwrap().unwrap();
        let lines = os.lines().map(|line| (line.wcet_ns.unwrap(), line.bounds_from.to_string()));
        lines.collect()
    };
    let [cheap, dear] =
        [1_000, 3_000].map(|cost| bounds(&with_profile(folder.path(), cost, "", tasks)));
    for place in 0..3 {
        let [(cheap, from), (dear, _)] = [&cheap[place], &dear[place]];
        assert!(from.ends_with("here.toml"), "{from}");
        // Times from `#[wcet]` stay; everything else triples.
        assert!(dear > cheap && *dear <= 3 * cheap, "{place}: {cheap} {dear}");
    }
    assert_eq!((cheap[3].0, &*cheap[3].1), (10_000, "stated"));
    assert_eq!((dear[4].0, &*dear[4].1), (77, "the card file"));
    // One nanosecond per operation: at least the eight bytes of the number.
    assert!((50..500).contains(&cheap[0].0), "{cheap:?}");
    let file = picnic_host::sections().parse(&format!("{QUIET}{tasks}"), None).unwrap();
    assert!(bounds(&file)[0].1.starts_with("built-in"));
}

#[test]
fn bad_profiles_are_reported_with_both_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("here.toml");
    let shown = |name: &str| folder.path().join(name).display().to_string();
    let (card, here) = (shown("card.toml"), shown("here.toml"));
    let heartbeat = "[[task]]\ntask = \"heartbeat\"\n";
    let good = picnic_wcet::CostProfile::built_in().to_toml();
    for (from, to, message) in [
        ("load_ps = 120000", "load_ps = 0", "cost.load_ps: found 0, allowed: 1 to 1000000000"),
        ("load_ps = 120000\n", "", "cost: missing field `load_ps`"),
        ("format = 1", "format = 9", "format: found 9, allowed: 1"),
        ("[cost]", "[costs]", "costs: unknown field `costs`"),
    ] {
        let text = good.replace(from, to);
        assert_ne!(text, good);
        // Even if the task does not use it.
        for tasks in [heartbeat, ""] {
            let file = with_profile(folder.path(), 1, "", tasks);
            std::fs::write(&path, &text).unwrap();
            let error = build(&file).unwrap_err().to_string();
            let place = format!("{card}:7: os.cost_profile: {here}:");
            assert!(error.starts_with(&place), "{error}");
            let rest = &error[place.len()..];
            let (line, rest) = rest.split_once(": ").unwrap();
            assert!(line.parse::<usize>().unwrap() > 0, "{error}");
            assert!(rest.starts_with(message), "{error}");
        }
    }
    let file = with_profile(folder.path(), 1, "", heartbeat);
    std::fs::remove_file(&path).unwrap();
    let error = build(&file).unwrap_err().to_string();
    let message = format!("{card}:7: os.cost_profile: {here}: cannot be read: ");
    assert!(error.starts_with(&message), "{error}");
    // In a program that builds without the check, the task that needs it reports the error.
    let error = picnic_os::config::build_os(&file, TASKS).map(drop).unwrap_err().to_string();
    assert!(error.contains("task[0].task: os.cost_profile: "), "{error}");
}

#[test]
fn cost_profile_cannot_be_an_output() {
    let folder = tempfile::tempdir().unwrap();
    let build = |output: &str| {
        let file = with_profile(folder.path(), 1, "", "");
        let wire = file.host.section.files();
        wire.write("output", &folder.path().join(output)).unwrap();
        self::build(&file)
    };
    assert!(build("another.toml").is_ok());
    let error = build("./here.toml").unwrap_err().to_string();
    assert!(error.contains("card.toml:7: os.cost_profile: found "), "{error}");
    assert!(error.contains("which is written as host.output"), "{error}");
}

/// A capture with a packet every ten microseconds, one in seven of them ICMP; returns both counts.
fn pings(path: &std::path::Path) -> (usize, usize) {
    let mut capture = Vec::from(0xa1b2_c3d4u32.to_le_bytes());
    capture.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
    let (all, mut icmp) = (700usize, 0);
    for number in 0..all {
        let protocol = if number % 7 == 0 { 1 } else { 17 };
        icmp += usize::from(protocol == 1);
        let mut frame = vec![0x02; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, protocol, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.resize(60, 0);
        let micros = (number as u32 * 10).to_le_bytes();
        capture.extend([0; 4].into_iter().chain(micros));
        capture.extend(60u32.to_le_bytes().into_iter().chain(60u32.to_le_bytes()));
        capture.extend(frame);
    }
    std::fs::write(path, capture).unwrap();
    (all, icmp)
}

#[test]
fn ping_drop_drops_pings_while_it_runs_at_the_card_and_at_the_driver() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pings.pcap");
    let (all, icmp) = pings(&path);
    for place in ["nic", "driver"] {
        let text = format!(
            "[[wire]]\nport = \"pcap\"\npath = {path:?}\npace = \"recorded\"\n[host]\n\
             queues = 2\n[[task]]\ntask = \"ping-drop\"\nplace = {place:?}\n"
        );
        let mut sim = simulation(&text, 1, CostModel::default());
        // Half of the capture, then the task ends, and its filters with it.
        sim.at(
            Time::from_nanos(3_500_000),
            Command::Resident(Prepared::new(TaskControl::Kill(TaskId(1)))),
        );
        sim.run_until(Time::from_nanos(3_400_000));
        assert_eq!(sim.filters().list().len(), 4);
        sim.run_to_end();
        assert_eq!(sim.filters().list().len(), 0);
        let (outcome, os) = end(sim);
        assert_eq!(os.tasks[0].state, State::Killed);
        let dropped = outcome.ledger.dropped as usize;
        let half = icmp / 2;
        assert!((half - 3..=half + 3).contains(&dropped), "{place}: {:?}", outcome.ledger);
        assert_eq!(outcome.ledger.delivered as usize, all - dropped);
    }
}

#[test]
fn scrub_runs_within_its_bounds() {
    let text = format!("{QUIET}[[task]]\ntask = \"scrub\"\nbytes = 1024\n");
    let mut sim = simulation(&text, 1, quick());
    sim.run_until(Time::from_nanos(1_000_000_000 - 1));
    let (_, os) = end(sim);
    let scrub = task(&os, "scrub");
    assert_eq!((scrub.completed, scrub.segments), (10, 50), "four pieces, then the comparison");
    assert_eq!(scrub.overruns, 0);
}
