//! A custom executor: a type, and a line in the registries.

use crate::common::Client;
use picnic_control::error::RunError;
use picnic_control::monitor::Monitor;
use picnic_control::{Access, Executor, Launch, Registries, Report, Running};
use picnic_core::config::CardFile;
use picnic_core::port::{Description, Receiver, Transmitter, WirePort};
use picnic_core::time::Time;
use picnic_filter::Filters;
use picnic_host::registries;
use picnic_host::run::Host;
use picnic_machine::threads::spawn_pinned;
use picnic_machine::topology::Placement;
use picnic_testing::{machine, wait_until};
use serde_json::json;
use std::ffi::OsStr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Refuses chains, and passes the rest to the host world.
struct Plain;

impl Executor for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn help(&self) -> &'static str {
        "cards without functions"
    }

    fn place(&self, launch: &Launch<'_>) -> Result<Placement, RunError> {
        match launch.file.rx.first() {
            Some(section) => {
                let message = "found a function, allowed with engine = \"poll\"";
                Err(section.locate(picnic_core::error::ConfigError::new("", message)).into())
            }
            None => Host.place(launch),
        }
    }

    fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
        self.place(&launch)?;
        Host.start(launch)
    }
}

/// Starts programs at the end of its cards, like an executor that changes interfaces.
struct WithPrograms;

impl Executor for WithPrograms {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn help(&self) -> &'static str {
        "cards that leave work to programs"
    }

    fn place(&self, launch: &Launch<'_>) -> Result<Placement, RunError> {
        Host.place(launch)
    }

    fn ends_by_programs(&self) -> bool {
        true
    }

    fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
        Host.start(launch)
    }
}

/// With its own time.
struct Virtual;

impl Executor for Virtual {
    fn name(&self) -> &'static str {
        "virtual"
    }

    fn help(&self) -> &'static str {
        "cards that nobody reaches"
    }

    fn place(&self, launch: &Launch<'_>) -> Result<Placement, RunError> {
        Host.place(launch)
    }

    fn is_served(&self) -> bool {
        false
    }

    fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
        Host.start(launch)
    }
}

/// A client requests a change while its cards end.
struct AskedLate;

impl Executor for AskedLate {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn help(&self) -> &'static str {
        "cards that are asked for a change as they end"
    }

    fn place(&self, launch: &Launch<'_>) -> Result<Placement, RunError> {
        Host.place(launch)
    }

    fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
        let socket = launch.file.directory.join("card.sock");
        Ok(Box::new(EndingCard { running: Host.start(launch)?, socket }))
    }
}

struct EndingCard {
    running: Box<dyn Running>,
    socket: PathBuf,
}

impl Running for EndingCard {
    fn monitor(&self) -> &Monitor {
        self.running.monitor()
    }

    fn filters(&self) -> &Filters {
        self.running.filters()
    }

    fn control(&mut self) -> Option<Access> {
        self.running.control()
    }

    fn is_finished(&self) -> bool {
        self.running.is_finished()
    }

    fn stop(self: Box<Self>) -> Result<Report, RunError> {
        let mut client = Client::connect(&self.socket);
        let refused = client.error("chain.swap", json!({ "chain": "rx", "functions": [] }));
        assert_eq!(refused, "the card is stopping");
        client.good("card.stats", json!({}));
        self.running.stop()
    }
}

#[test]
fn ending_cards_refuse_changes() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let text = "[card]\nengine = \"plain\"\n[control]\nsocket = \"./card.sock\"\n\
                [[wire]]\nport = \"generator\"\n";
    let path = folder.path().join("card.toml");
    let file = picnic_host::sections().parse(text, Some(&path)).unwrap();
    let registries = Registries { executors: &[&AskedLate], ..registries() };
    let running = Launch::new(&file, registries).start().unwrap();
    assert!(running.stop().unwrap().ledger.balanced());
}

fn card(before: &str, behind: &str) -> CardFile {
    let head = "[card]\nname = \"executors\"\nengine = \"plain\"\n[control]\nsocket = \"off\"\n";
    let wire = "[[wire]]\nport = \"generator\"\npackets = 100\n";
    picnic_host::sections().parse(&format!("{before}{head}{wire}{behind}"), None).unwrap()
}

/// Its packets were judged by the executor before it.
#[test]
fn second_executor_has_no_filters() {
    let _machine = machine();
    let file = card("rx = []\n", "[[filter]]\nname = \"wall\"\naction = \"drop\"\n");
    let launch = Launch::new(&file, registries());
    let filters = |launch: &Launch<'_>| launch.build().unwrap().filters.list().len();
    assert_eq!((filters(&launch), filters(&launch.behind())), (1, 0));
}

#[test]
fn the_cards_engine_picks_one_from_the_registry() {
    let _machine = machine();
    let registries = Registries { executors: &[&Host, &Plain], ..registries() };
    let good = card("rx = []\n", "");
    let mut running = Launch::new(&good, registries).start().unwrap();
    while !running.is_over() {
        running.pass(Duration::from_millis(1));
    }
    let report = running.stop().unwrap();
    assert_eq!((report.ledger.r#in, report.ledger.balanced()), (100, true));
    // Both `check` and `start` refuse it by name.
    let chained = card("", "[[rx]]\nfunction = \"rss\"\n");
    let message = "card:9: rx[0]: found a function, allowed with engine = \"poll\"";
    let checked = Launch::new(&chained, registries).check().map(drop);
    assert_eq!(checked.unwrap_err().to_string(), message);
    let started = Launch::new(&chained, registries).start().map(drop);
    assert_eq!(started.unwrap_err().to_string(), message);
}

#[test]
fn unknown_engines_are_refused_with_the_list() {
    let _machine = machine();
    let error = Launch::new(&card("", ""), registries()).start().map(drop).unwrap_err();
    assert_eq!(error.to_string(), "card:3: card.engine: found \"plain\", allowed: poll");
}

/// The metrics address is checked only for cards that serve clients.
#[test]
fn metrics_address_is_checked_only_if_served() {
    let registries = Registries { executors: &[&Plain, &Virtual], ..registries() };
    let checked = |engine: &str| {
        let text = format!(
            "rx = []\n[card]\nengine = \"{engine}\"\n[control]\nsocket = \"off\"\n\
             metrics = \"192.0.2.1:1\"\n[[wire]]\nport = \"generator\"\n"
        );
        let card = picnic_host::sections().parse(&text, None).unwrap();
        Launch::new(&card, registries).check().map(drop).map_err(|error| error.to_string())
    };
    assert!(checked("plain").unwrap_err().contains("192.0.2.1:1"), "{:?}", checked("plain"));
    assert_eq!(checked("virtual"), Ok(()));
}

/// A wire with a problem.
struct Broken;

impl WirePort for Broken {
    fn describe(&self) -> Description {
        Description {
            warnings: vec!["it has no cable".into(), "and no light".into()],
            notes: vec!["it is long".into()],
            ..Description::default()
        }
    }

    fn receive(&mut self, _: Time, _: &mut Receiver<'_>) {}

    fn transmit(&mut self, _: Time, _: &mut Transmitter<'_>) {}
}

#[test]
fn check_reports_wire_problems() {
    let registries = Registries { middleware: |_, _, _| Ok(Box::new(Broken)), ..registries() };
    let file = CardFile::parse("[[wire]]\nport = \"generator\"\n", None).unwrap();
    let warnings = Launch::new(&file, registries).check().unwrap().placement.warnings;
    let of_wires: Vec<_> = warnings.iter().filter(|warning| warning.starts_with("wire")).collect();
    assert_eq!(of_wires, ["wire0: it has no cable", "wire0: and no light", "wire0: it is long"]);
}

/// Target cores send their latencies on request, and the report waits for them.
#[test]
fn first_report_has_current_latencies() {
    let _machine = machine();
    let card = CardFile::parse("[[wire]]\nport = \"generator\"\npackets = 1000\n", None).unwrap();
    // Not for ever: a target core may be preempted.
    wait_until("the first report has a latency", || {
        let running = Launch::new(&card, registries()).start_alone().unwrap();
        wait_until("all are delivered", || running.view().ledger.read().delivered == 1000);
        let median = running.monitor().report().latency_ns.p50;
        running.stop().unwrap();
        median.is_some()
    });
}

/// Another thread works on the borrowed core: the report has its time and the loss.
#[test]
fn preempted_borrowed_core_is_reported() {
    let _machine = machine();
    let text = "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nrate_pps = 1000000\n\
                [host]\nqueues = 1\n";
    let card = CardFile::parse(text, None).unwrap();
    let running = Launch::new(&card, registries()).start_alone().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let thief = {
        let over = over.clone();
        let work = move || while !over.load(Ordering::Relaxed) {};
        spawn_pinned("thief".into(), running.placement().borrowed_core, work).unwrap()
    };
    wait_until("it is taken, and packets are lost", || {
        let report = running.monitor().report();
        let taken = report.borrowed_core.taken_away;
        report.drops.contains_key("backlog_full") && taken.is_some_and(|taken| taken.drops != 0)
    });
    over.store(true, Ordering::Relaxed);
    thief.join().unwrap();
    let report = running.stop().unwrap();
    let taken = report.borrowed_core.taken_away.unwrap();
    assert!(taken.times != 0 && taken.longest_ns >= Some(taken.threshold_ns), "{taken:?}");
    assert!(taken.total_ns >= taken.times * taken.threshold_ns, "{taken:?}");
    assert!(taken.total_ns as f64 <= report.duration_s * 1e9, "{taken:?}");
    assert!(taken.drops <= report.ledger.dropped, "{taken:?}");
}

/// Programs take both cores now and then: each lost packet has its reason, even one that found a
/// ring full of the packets that waited while the borrowed core was away.
#[test]
fn drops_beside_programs_on_both_cores_have_their_reason() {
    let _machine = machine();
    let text = "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nrate_pps = 400000\n\
                backlog = 1024\n[host]\nqueues = 1\n";
    let card = CardFile::parse(text, None).unwrap();
    let running = Launch::new(&card, registries()).start_alone().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let placement = running.placement();
    let thieves = [placement.borrowed_core, placement.target_cores[0]].map(|core| {
        let over = over.clone();
        let work = move || {
            while !over.load(Ordering::Relaxed) {
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(8) {}
                std::thread::sleep(Duration::from_millis(22));
            }
        };
        spawn_pinned("thief".into(), core, work).unwrap()
    });
    wait_until("packets are lost in both places", || {
        let drops = running.monitor().report().drops;
        ["backlog_full", "ring_full"].iter().all(|why| drops.get(*why) >= Some(&5_000))
    });
    over.store(true, Ordering::Relaxed);
    thieves.into_iter().for_each(|thief| assert_eq!(thief.join().unwrap().1, None));
    let report = running.stop().unwrap();
    let of_borrowed = report.borrowed_core.taken_away.map_or(0, |taken| taken.drops);
    let of_target = report.target_cores[0].taken_away.as_ref().map_or(0, |taken| taken.drops);
    assert_eq!(report.ledger.dropped, of_borrowed + of_target, "{:?}", report.drops_by_stage);
}

/// Privileges that a thread has dropped.
fn given_up() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let of = |line: &&str| {
        ["NoNewPrivs:", "Seccomp:", "CapPrm:"].iter().any(|key| line.starts_with(key))
    };
    status.lines().filter(of).map(String::from).collect()
}

#[test]
fn unconfined_cards_do_not_confine_their_starter() {
    let _machine = machine();
    let registries = Registries { executors: &[&Host, &Plain], ..registries() };
    let before = given_up();
    assert_eq!(before.len(), 3, "{before:?}");
    let card = card("rx = []\n", "");
    let running = Launch::new(&card, registries).start().unwrap();
    assert_eq!(given_up(), before);
    let report = running.stop().unwrap();
    assert_eq!(given_up(), before);
    assert!(report.ledger.balanced());
}

/// Starts a card in a child process, whose privileges may be dropped.
fn in_a_child(kind: &str) {
    run_in_a_child("executors::child_of_a_confined_card", ("PICNIC_CHILD", kind.as_ref()));
}

/// Runs an ignored test in a separate process, with a variable set.
fn run_in_a_child(test: &str, (variable, value): (&str, &OsStr)) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--ignored", "--nocapture"]);
    let done = child.env(variable, value).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{value:?}: {said}");
}

/// Sockets of killed cards are removed from this process's own folder.
#[test]
fn stale_sockets_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(folder.path().join("left.sock")).unwrap());
    let _live = UnixListener::bind(folder.path().join("live.sock")).unwrap();
    let variable = ("PICNIC_RUNTIME_DIR", folder.path().as_os_str());
    run_in_a_child("executors::child_that_looks_at_sockets", variable);
}

#[test]
#[ignore = "run by stale_sockets_are_removed"]
fn child_that_looks_at_sockets() {
    let running = picnic_control::socket::running();
    assert_eq!(running.iter().map(|card| &*card.name).collect::<Vec<_>>(), ["live"]);
    let removed = picnic_control::socket::remove_stale();
    let names: Vec<_> = removed.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["left.sock"]);
}

/// The thread that ends the card can start a program that needs its privileges.
#[test]
fn starter_keeps_privileges_for_end_programs() {
    let _machine = machine();
    run_in_a_child("executors::child_that_ends_by_programs", ("PICNIC_CHILD", "".as_ref()));
}

#[test]
#[ignore = "run by starter_keeps_privileges_for_end_programs"]
fn child_that_ends_by_programs() {
    let registries = Registries { executors: &[&WithPrograms], ..registries() };
    let before = given_up();
    let card = card("rx = []\n", "");
    let running = Launch::new(&card, registries).confined().start().unwrap();
    let promised = |line: &String| match line.starts_with("NoNewPrivs:") {
        true => "NoNewPrivs:\t1".into(),
        false => line.clone(),
    };
    assert_eq!(given_up(), before.iter().map(promised).collect::<Vec<_>>());
    assert!(std::process::Command::new("true").status().unwrap().success());
    assert!(running.stop().unwrap().ledger.balanced());
}

#[test]
fn watch_messages_reach_the_starter() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.toml");
    let text = "rx = []\n[control]\nsocket = \"off\"\n[[wire]]\nport = \"generator\"\n";
    std::fs::write(&path, text).unwrap();
    let file = picnic_host::sections().parse(text, Some(&path)).unwrap();
    let wrong = || picnic_core::error::ConfigError::new("rx", "found nonsense");
    let watch = picnic_control::watch::Watch::new(move || Err(wrong()));
    let running = Launch::new(&file, registries()).watched(watch).start().unwrap();
    std::fs::write(&path, "nonsense").unwrap();
    wait_until("it is told", || running.said().iter().any(|line| line.contains("found nonsense")));
    assert_eq!(running.said(), <[String; 0]>::default(), "it is told once");
    running.stop().unwrap();
}

#[test]
fn confined_cards_confine_their_starter() {
    let _machine = machine();
    ["plain", "watched"].into_iter().for_each(in_a_child);
}

#[test]
#[ignore = "run by confined_cards_confine_their_starter"]
fn child_of_a_confined_card() {
    let is_watched = std::env::var("PICNIC_CHILD").is_ok_and(|kind| kind == "watched");
    let registries = Registries { executors: &[&Host, &Plain], ..registries() };
    let card = card("rx = []\n", "");
    let mut launch = Launch::new(&card, registries).confined();
    if is_watched {
        launch = launch.watched(picnic_control::watch::Watch::new(|| CardFile::parse("", None)));
    }
    let running = launch.start().unwrap();
    let has = |line: &str| given_up().iter().any(|found| found == line);
    assert!(has("NoNewPrivs:\t1") && has("Seccomp:\t2"), "{:?}", given_up());
    assert!(has("CapPrm:\t0000000000000000"), "{:?}", given_up());
    assert_eq!(picnic_confine::may_load(), is_watched);
    if is_watched {
        wait_until("the thread that watches is confined too", || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let mut statuses =
                tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
            statuses.any(|status| {
                status.starts_with("Name:\tcontrol\n") && status.contains("\nSeccomp:\t2\n")
            })
        });
    }
    // Calls refused from then on are in the report.
    assert!(UnixStream::pair().is_err());
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced());
    let refused = "system calls refused to the main thread: socketpair (1 times)";
    assert!(report.notes.iter().any(|note| note.starts_with(refused)), "{:?}", report.notes);
}
