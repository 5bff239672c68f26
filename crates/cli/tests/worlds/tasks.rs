//! Tasks by the command line: listed, created, controlled on a card that runs.

use crate::common;
use crate::common::{
    Running, command, folder, let_pass, machine, stderr, stdout, wait_for, wait_until,
};
use serde_json::Value;

const QUIET: &str = "[card]\nname = \"busy\"\n[[wire]]\nport = \"generator\"\nrate_pps = 1000\n[host]\nqueues = 1\n";

/// A card that is called `busy`.
fn start(text: &str) -> Running {
    Running::start("busy", folder(&[("card.toml", text.as_bytes())]))
}

/// The result of a command of tasks.
fn tasks(card: &Running, arguments: &[&str]) -> Value {
    card.json(&[&["tasks"], arguments].concat())
}

/// The exit code and errors of a failing one.
fn refused(card: &Running, arguments: &[&str]) -> (Option<i32>, String) {
    card.bad(&[&["tasks"], arguments].concat())
}

/// Waits until a task has ended this many invocations.
fn wait_for_invocations(card: &Running, task: &str, completed: u64) -> Value {
    wait_for("invocations have ended", || {
        let shown = tasks(card, &["show", task]);
        (shown["completed"].as_u64().unwrap() >= completed).then_some(shown)
    })
}

fn write(folder: &std::path::Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

fn names_and_states(list: &Value) -> Vec<(&str, &str)> {
    let text = |value: &'_ Value| value.as_str().map(str::to_owned);
    let tasks = list["tasks"].as_array().unwrap().iter();
    assert!(tasks.clone().all(|task| text(&task["name"]).is_some()));
    tasks.map(|task| (task["name"].as_str().unwrap(), task["state"].as_str().unwrap())).collect()
}

#[test]
fn running_tasks_take_their_commands() {
    let _machine = machine();
    let beat = "[[task]]\ntask = \"heartbeat\"\nperiod_us = 1000\n";
    let text = format!(
        "{QUIET}[[wire]]\nport = \"generator\"\nrate_pps = 1000\n{beat}{beat}name = \"other\"\n"
    );
    let card = start(&text);
    let told = |arguments: &[&str]| card.json(arguments);
    // The first of its kind, and another by its name and its number.
    assert_eq!(told(&["heartbeat"])["task"], 1);
    assert_eq!(told(&["heartbeat", "wire", "1", "--task", "other"])["task"], 2);
    assert_eq!(
        (&told(&["heartbeat"])["wire"], &told(&["heartbeat", "--task", "2"])["wire"]),
        (&0.into(), &1.into())
    );
    let sent = |wire: usize| told(&["stats"])["wires"][wire]["tx_packets"].as_u64().unwrap();
    let before = sent(1);
    wait_until("the other goes out by wire 1", || sent(1) > before);
    let text = card.ctl(&["heartbeat", "--task", "other"]);
    assert!(stdout(&text).starts_with("heartbeat, task 2\nwire 1\nsent_frames "));
    for (arguments, code, message) in [
        (&["heartbeat", "wire", "2"][..], 2, "wire: found 2, allowed: 0 to 1"),
        (&["busy"], 1, "the card runs no busy: found 1 (heartbeat), 2 (other)"),
        (
            &["busy", "--task", "other"],
            1,
            "task: found \"other\", which is heartbeat, allowed: a busy",
        ),
    ] {
        let output = card.ctl(arguments);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
    let counted = card.stop().0;
    assert_eq!(counted["ledger"]["balanced"], true);
}

#[test]
fn tasks_of_a_running_card_are_listed_created_suspended_resumed_and_killed() {
    let _machine = machine();
    let text = format!("{QUIET}[[task]]\ntask = \"heartbeat\"\nperiod_us = 1000\n");
    let card = start(&text);
    let list = tasks(&card, &[]);
    assert_eq!(list["tasks"][0]["name"], "heartbeat");
    assert_eq!(list["tasks"][0]["period_ns"], 1_000_000);
    assert!(list["tasks"][0]["wcet_ns"].as_u64().unwrap() > 0);
    assert!(list["tasks"][0]["bounds_from"].as_str().unwrap().starts_with("built-in"));

    // Created while the card runs, with its own keys and the keys of every task.
    let made = tasks(
        &card,
        &[
            "create",
            "busy",
            "name=load",
            "period_us=2000",
            "segments_ns=[20_000, 5000]",
            "priority=3",
        ],
    );
    assert_eq!(
        (&made["task"], &made["name"], &made["priority"]),
        (&2.into(), &"load".into(), &3.into())
    );
    assert_eq!((&made["period_ns"], &made["bounds_from"]), (&2_000_000.into(), &"stated".into()));
    let shown = wait_for_invocations(&card, "load", 5);
    assert!(shown["response_ns"]["mean_ns"].as_f64().unwrap() > 20_000.0, "{shown}");

    // A suspended task does not run, by name and by number, until it is resumed.
    assert_eq!(tasks(&card, &["suspend", "load"])["state"], "suspended");
    let count = |shown: &Value| shown["completed"].as_u64().unwrap();
    let before = tasks(&card, &["show", "2"]);
    let_pass(20);
    assert_eq!(count(&tasks(&card, &["show", "2"])), count(&before));
    assert_ne!(tasks(&card, &["resume", "2"])["state"], "suspended");
    wait_for_invocations(&card, "2", count(&before) + 3);
    assert_eq!(tasks(&card, &["set-priority", "load", "200"])["priority"], 200);

    assert_eq!(tasks(&card, &["kill", "load"])["state"], "killed");
    let list = tasks(&card, &["list"]);
    let states = names_and_states(&list);
    assert_eq!(states[0], ("load", "killed"));
    assert_eq!((states.len(), states[1].0), (2, "heartbeat"));
    let text = card.ctl(&["tasks"]);
    assert!(stdout(&text).contains("load"), "{}", stdout(&text));
    let text = card.ctl(&["tasks", "show", "heartbeat"]);
    assert!(stdout(&text).contains("jitter"), "{}", stdout(&text));
    assert!(stdout(&text).contains("bounds from: built-in"), "{}", stdout(&text));

    for (arguments, code, message) in [
        (&["kill", "load"][..], 1, "task: found \"load\", which has ended (killed)"),
        (&["kill", "9"], 1, "task: found 9, allowed: 1 (heartbeat)"),
        (&["suspend", "hartbeat"], 1, "task: found \"hartbeat\", allowed: 1 (heartbeat)"),
        (&["show", "9"], 1, "task: found 9, allowed: 2 (load), 1 (heartbeat)"),
        (
            &["create", "hartbeat"],
            2,
            "task: found \"hartbeat\", allowed: heartbeat, ping-drop, scrub, busy",
        ),
        (&["create", "heartbeat", "wire=1"], 2, "wire: found 1, allowed: 0 to 0"),
        (&["create", "heartbeat", "wire=x"], 2, "wire: found \"x\", allowed: a whole number"),
        (&["create", "heartbeat", "wires=0"], 2, "wires: found key \"wires\", allowed: "),
        (&["create", "busy", "segments_ns=[]"], 2, "segments_ns: found 0 segments, allowed: 1"),
        (&["create", "busy", "task=scrub"], 2, "keys: found task, which belongs next to keys"),
        (&["create", "busy", "period_us"], 2, "period_us: found no `=`, allowed: KEY=VALUE"),
        (
            &["create", "busy", "name=greedy", "period_us=10", "segments_ns=[20_000]"],
            1,
            "of the borrowed core",
        ),
    ] {
        let (found, error) = refused(&card, arguments);
        assert!(error.contains(message), "{arguments:?}: {error}");
        assert_eq!(found, Some(code), "{arguments:?}: {error}");
    }
    // Two of the same name are distinguished by their numbers.
    tasks(&card, &["create", "heartbeat", "period_us=5000"]);
    let (code, error) = refused(&card, &["kill", "heartbeat"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("use a number: 1, 3"), "{error}");

    let report = card.stop().0;
    assert_eq!(report["ledger"]["balanced"], true);
    assert_eq!(report["os"]["refused"], 1, "the greedy one: {}", report["os"]);
    let states = names_and_states(&report["os"]);
    assert_eq!(states, [("load", "killed"), ("heartbeat", "stopped"), ("heartbeat", "stopped")]);
}

#[test]
fn card_without_nic_os_reports_it_and_without_tasks_lists_none() {
    let _machine = machine();
    let card = start(QUIET);
    for arguments in [&["list"][..], &["kill", "1"], &["create", "busy"]] {
        let (code, error) = refused(&card, arguments);
        assert_eq!(code, Some(1), "{arguments:?}");
        assert!(
            error.contains("this card has no NIC OS: its card file has neither [os]"),
            "{error}"
        );
    }
    card.stop();
    let card = start(&format!("{QUIET}[os]\ntasks = 1\n"));
    assert_eq!(tasks(&card, &[])["tasks"], Value::Array(Vec::new()));
    assert_eq!(stdout(&card.ctl(&["tasks"])), "no tasks\n");
    let (_, error) = refused(&card, &["kill", "1"]);
    assert!(error.contains("task: found 1, but the card has no tasks"), "{error}");
    tasks(&card, &["create", "busy", "period_us=1000"]);
    let (code, error) = refused(&card, &["create", "heartbeat"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("the card has 1 tasks already (os.tasks)"), "{error}");
    // The place of a killed task is free again.
    tasks(&card, &["kill", "busy"]);
    assert_eq!(tasks(&card, &["create", "heartbeat"])["task"], 2);
    card.stop();
}

/// Tasks are bounded under the calibrated profile that the card names, including those created
/// while it runs; a wrong profile prevents the start.
#[test]
fn bounds_come_from_the_cards_profile() {
    let folder = folder(&[]);
    let good = |arguments: &[&str]| {
        let output = common::picnic_in(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        stdout(&output).to_owned()
    };
    good(&["wcet", "calibrate", "--samples", "100", "--output", "here.toml"]);
    // Whatever the costs of a busy moment are.
    const OVERRIDE: &str = "admission = \"override\"\n";
    let text = format!(
        "{QUIET}[os]\ncost_profile = \"here.toml\"\n{OVERRIDE}[[task]]\ntask = \"heartbeat\"\n"
    );
    write(folder.path(), "card.toml", &text);
    let shown: Value = serde_json::from_str(&good(&[
        "wcet",
        "show",
        "heartbeat",
        "--profile",
        "here.toml",
        "--json",
    ]))
    .unwrap();
    // Whichever segment comes next when the card is asked.
    let bounds: Vec<_> = shown["segments"].as_array().unwrap().iter().collect();
    let is_one = |task: &Value| bounds.iter().any(|segment| segment["bound_ns"] == task["wcet_ns"]);
    let plan = good(&["check", "card.toml"]);
    assert!(plan.contains("under the cost profile: here.toml"), "{plan}");
    let report: Value =
        serde_json::from_str(&good(&["run", "card.toml", "--duration", "0.2", "--json"])).unwrap();
    assert_eq!(report["os"]["tasks"][0]["bounds_from"], "here.toml");
    let list = good(&["tasks"]);
    assert!(list.contains("the cost profile") && list.contains("stated"), "{list}");
    assert!(good(&["tasks", "heartbeat"]).contains("picnic wcet show heartbeat"));
    assert!(good(&["wcet", "show"]).contains("[os] cost_profile"));

    let _machine = machine();
    let card = Running::start("busy", folder);
    let shown = tasks(&card, &["show", "1"]);
    assert!(is_one(&shown), "{shown} {bounds:?}");
    let made = tasks(&card, &["create", "heartbeat", "name=second"]);
    assert!(is_one(&made) && made["bounds_from"] == "here.toml", "{made} {bounds:?}");
    let path = card.folder().to_owned();
    let profile = std::fs::read_to_string(path.join("here.toml")).unwrap();
    let line = profile.lines().position(|line| line.starts_with("branch_ps")).unwrap() + 1;
    let bad: Vec<_> = profile
        .lines()
        .map(|line| if line.starts_with("branch_ps") { "branch_ps = 0" } else { line })
        .collect();
    write(&path, "here.toml", &bad.join("\n"));
    for arguments in
        [&["check", "card.toml"][..], &["run", "card.toml", "--set=control.socket=off"]]
    {
        let output = command().args(arguments).current_dir(&path).output().unwrap();
        let error = stderr(&output);
        let message = format!(
            "card.toml:9: os.cost_profile: here.toml:{line}: cost.branch_ps: found 0, allowed: 1 to"
        );
        assert!(error.contains(&message), "{error}");
        assert_eq!(output.status.code(), Some(2), "{error}");
    }
    card.stop();
}
