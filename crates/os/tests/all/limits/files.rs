//! Keys of card files at the ends of their ranges.

use crate::bench::{Bench, micros};
use picnic_core::config::Sections;
use picnic_core::error::ConfigError;
use picnic_core::port::{Arrivals, Rate};
use picnic_core::registry::{BuildContext, Component, Entry, NoKeys};
use picnic_core::time::Time;
use picnic_filter::Filters;
use picnic_os::config::{
    Origin, OsRegistries, ProfileCosts, Setup, Surroundings, Tasks, build, build_os,
};
use picnic_os::task::{TaskSpec, program};

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
