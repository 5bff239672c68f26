//! Shared objects that crash, end the process or their thread, or do not return: the object and the
//! function are named, the run fails, and the report is there.

use crate::common::*;
use crate::plugins::Bench;
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const CARD: &str = "[[wire]]\nport = \"generator\"\nrate_pps = 20000\n[[rx]]\nplugin = ";
/// As messages call the functions.
const CONSTRUCTOR: &str = "loading (a constructor)";
const DESTRUCTOR: &str = "unloading (a destructor)";

struct Odd(Bench);

impl Odd {
    fn open(test: &str) -> Option<Self> {
        let bench = Bench::open(test)?;
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/worlds/misbehaving.c");
        bench.compile(&source, "bursts", &[]);
        bench.compile(&source, "packets", &["-DBY_PACKET"]);
        bench.write("bursts.toml", format!("{CARD}\"bursts.so\"\n"));
        bench.write("packets.toml", format!("{CARD}\"packets.so\"\n"));
        Some(Odd(bench))
    }

    /// Of `bursts.so`, unless it is about `process_packet`.
    fn object(place: &str) -> &'static str {
        if place == "process_packet" { "packets" } else { "bursts" }
    }

    fn run(&self, (place, how): (&str, &str), arguments: &[&str]) -> Command {
        let card = format!("{}.toml", Odd::object(place));
        let mut run = command();
        run.args(["run", &card, "--quiet", "--json"]).args(arguments);
        run.current_dir(self.0.folder()).env("WHERE", place).env("HOW", how);
        run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        run
    }

    fn ended(&self, case: (&str, &str), arguments: &[&str]) -> Output {
        self.run(case, arguments).output().unwrap()
    }
}

/// As messages call the place.
fn called(place: &str) -> &str {
    match place {
        "constructor" => CONSTRUCTOR,
        "destructor" => DESTRUCTOR,
        place => place,
    }
}

fn assert_named(output: &Output, place: &str, what: &str) {
    let mut said = stderr(output).to_owned();
    // A function that cannot be made is an error of the card file: JSON, as the rest.
    if is_early(place) {
        said += stdout(output);
    }
    let wanted = format!("{}.so: {} {what}", Odd::object(place), called(place));
    assert!(said.contains(&wanted), "no {wanted:?} in {said}");
}

/// Before the function is there.
fn is_early(place: &str) -> bool {
    ["constructor", "init"].contains(&place)
}

/// Ends a run once all functions have been called, however late its cores are.
const PACKETS: &str = "--set=wire[0].packets=1000";

/// A card that runs has a report; one whose function never came to be has the error instead.
fn assert_reported(output: &Output, place: &str) {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    if is_early(place) {
        return assert_eq!(report["errors"].as_array().map(Vec::len), Some(1), "{report}");
    }
    assert!(report["ledger"]["in"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn an_object_that_ends_the_process_is_named_and_the_run_fails_with_its_report() {
    const NAME: &str = "an_object_that_ends_the_process_is_named_and_the_run_fails_with_its_report";
    let Some(odd) = Odd::open(NAME) else { return };
    let _machine = machine();
    let places = [
        "constructor",
        "init",
        "process_burst",
        "process_packet",
        "next_deadline",
        "flush",
        "count",
        "exit",
        "destructor",
    ];
    let every = places.map(|place| (place, "exit")).into_iter();
    let others = ["_exit", "quick_exit", "exit_group"].into_iter();
    let others =
        others.flat_map(|how| ["constructor", "process_burst", "exit"].map(|place| (place, how)));
    for case in every.chain(others).chain([("flush", "_exit"), ("init", "_exit")]) {
        let output = odd.ended(case, &["--duration", "60", PACKETS]);
        assert_eq!(output.status.code(), Some(1), "{case:?}: {}", stderr(&output));
        assert_named(&output, case.0, "tried to end the process");
        assert_reported(&output, case.0);
    }
    // Threads and processes started by an object may end in any way.
    let output = odd.ended(("init", "child"), &["--duration", "0.2"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn an_object_that_ends_its_thread_is_named_and_the_run_fails_with_its_report() {
    const NAME: &str = "an_object_that_ends_its_thread_is_named_and_the_run_fails_with_its_report";
    let Some(odd) = Odd::open(NAME) else { return };
    let _machine = machine();
    for place in ["constructor", "init", "process_burst", "process_packet", "flush", "exit"] {
        let output = odd.ended((place, "thread"), &["--duration", "60", PACKETS]);
        let code = if ["constructor", "init"].contains(&place) { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{place}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{place}: {}", stderr(&output));
        assert_named(&output, place, "ended its thread");
        assert_reported(&output, place);
    }
}

/// Signals end the process as usual, but with a message.
#[test]
fn an_object_that_crashes_is_named_before_its_signal_ends_the_card() {
    const NAME: &str = "an_object_that_crashes_is_named_before_its_signal_ends_the_card";
    let Some(odd) = Odd::open(NAME) else { return };
    let _machine = machine();
    let signals = [
        ("SIGSEGV", Signal::SEGV),
        ("SIGBUS", Signal::BUS),
        ("SIGFPE", Signal::FPE),
        ("SIGILL", Signal::ILL),
        ("SIGTRAP", Signal::TRAP),
        ("SIGABRT", Signal::ABORT),
    ];
    let everywhere = signals.map(|(name, signal)| ("process_burst", name, name, signal));
    let elsewhere = ["constructor", "init", "process_packet", "count", "exit", "destructor"]
        .map(|place| (place, "SIGSEGV", "SIGSEGV", Signal::SEGV));
    let deep = ["init", "process_burst"].map(|at| (at, "recursion", "SIGSEGV", Signal::ABORT));
    for (place, how, name, signal) in everywhere.into_iter().chain(elsewhere).chain(deep) {
        let output = odd.ended((place, how), &["--duration", "60", PACKETS]);
        assert_eq!(output.status.signal(), Some(signal.as_raw()), "{place}, {how}");
        assert_named(&output, place, &format!("raised {name}, which ends the process"));
    }
}

/// A load leaves nothing behind, however it ends.
#[test]
fn objects_ending_the_process_at_load_leave_no_file() {
    let Some(odd) = Odd::open("objects_ending_the_process_at_load_leave_no_file") else { return };
    let temporary = tempfile::tempdir().unwrap();
    for how in ["kill", "SIGSEGV", "_exit"] {
        for place in ["constructor", "init"] {
            let output =
                odd.run((place, how), &[]).env("TMPDIR", temporary.path()).output().unwrap();
            assert!(!output.status.success(), "{place}, {how}");
            let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
            assert!(left.is_empty(), "{place}, {how}: {left:?}");
        }
    }
}

/// A child process, killed on drop unless it has exited.
struct Ends(Option<Child>);

impl Ends {
    fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a run says on standard error that it waits, which the file holds.
fn says(path: &Path, part: &str) -> bool {
    std::fs::read_to_string(path).unwrap().contains(part)
}

#[test]
fn a_first_signal_or_a_client_stops_a_card_whose_object_does_not_return() {
    const NAME: &str = "a_first_signal_or_a_client_stops_a_card_whose_object_does_not_return";
    let Some(odd) = Odd::open(NAME) else { return };
    let _machine = machine();
    let said = odd.0.folder().join("said.txt");
    let name = format!("odd-{}", std::process::id());
    let running = ["process_burst", "process_packet", "next_deadline", "flush", "command"];
    let ending = ["count", "exit", "destructor"];
    let starting = ["constructor", "init"];
    // Before a card has started there is no socket; then a client and a signal take turns.
    let with_socket = running.iter().chain(&ending).zip([true, false].into_iter().cycle());
    for (&place, by_client) in starting.iter().map(|place| (place, false)).chain(with_socket) {
        let file = std::fs::File::create(&said).unwrap();
        let settings = format!("card.name={name}");
        let mut run = odd.run((place, "hang"), &["--set", &settings]);
        let child = Ends(Some(run.stderr(file).spawn().unwrap()));
        let ctl = |arguments: &[&str]| picnic(&[&["ctl", "--card", &name][..], arguments].concat());
        if starting.contains(&place) {
            wait_until("its thread is at work", || threads_of(child.0.as_ref().unwrap().id()) > 1);
        } else {
            wait_until("the card serves", || ctl(&["info"]).status.success());
        }
        if ending.contains(&place) {
            // Without counters, for which the function would be asked.
            wait_until("packets come", || {
                let stats = ctl(&["call", "card.stats"]);
                let stats: Value = serde_json::from_slice(&stats.stdout).unwrap_or_default();
                stats["ledger"]["in"].as_u64() > Some(0)
            });
        }
        if place == "command" {
            let call = ["plugin", "call", "--command", "x", "--position", "0"];
            assert!(!ctl(&call).status.success());
        }
        if running.contains(&place) {
            let wanted = format!("{}.so: {place} has not returned for", Odd::object(place));
            wait_until("the watchdog names the function", || says(&said, &wanted));
        }
        if by_client {
            let output = ctl(&["stop"]);
            assert!(output.status.success(), "{place}: {}", stderr(&output));
        } else {
            let id = rustix::process::Pid::from_child(child.0.as_ref().unwrap());
            rustix::process::kill_process(id, Signal::TERM).unwrap();
        }
        let output = child.output();
        let text = std::fs::read_to_string(&said).unwrap();
        let code = if starting.contains(&place) { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{place}: {text}");
        let output = Output { stderr: text.into_bytes(), ..output };
        assert_named(&output, place, "has not returned for");
        assert_reported(&output, place);
    }
}
