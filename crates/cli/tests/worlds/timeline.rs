//! `--timeline`: what each core did, for a trace viewer.

use crate::common::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The timeline in a file: its events by phase, all checked to be well formed. Spans of a thread
/// nest, and each arrow ends after its start.
fn timeline(path: &Path) -> BTreeMap<String, Vec<Value>> {
    let text = std::fs::read_to_string(path).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    let ns = |event: &Value| (event["ts"].as_f64().unwrap() * 1e3).round() as u64;
    let mut phases = BTreeMap::<String, Vec<Value>>::new();
    // Per thread: the open spans, and the time of the last begin or end.
    let mut threads = BTreeMap::<u64, (u64, u64)>::new();
    for event in written["traceEvents"].as_array().unwrap() {
        let phase = event["ph"].as_str().unwrap();
        phases.entry(phase.into()).or_default().push(event.clone());
        if phase == "B" || phase == "E" {
            let (open, last) = threads.entry(event["tid"].as_u64().unwrap()).or_default();
            *open = open.checked_add_signed(if phase == "B" { 1 } else { -1 }).unwrap();
            assert!(ns(event) >= std::mem::replace(last, ns(event)), "out of order: {event}");
        }
    }
    assert!(threads.values().all(|(open, _)| *open == 0), "{threads:?}");
    let arrows = |phase: &str| phases.get(phase).cloned().unwrap_or_default();
    for (start, end) in arrows("s").iter().zip(&arrows("f")) {
        assert_eq!(start["id"], end["id"]);
        assert!(ns(start) <= ns(end), "{start} {end}");
    }
    phases
}

#[test]
fn a_timeline_shows_every_core_task_and_drop() {
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 1000000\nflows = 64\n\
                [[rx]]\nfunction = \"rss\"\n[host]\nqueues = 2\ncost_ns = 3000\nring_size = 64\n\
                [[task]]\ntask = \"heartbeat\"\nperiod_us = 1000\n";
    let (folder, _path) = card(text);
    let run = |more: &[&str], file: &str| {
        let arguments = [&["run", "card.toml", "--json", "--timeline", file][..], more].concat();
        let output = picnic_in(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report = json(&output);
        assert_balanced(&report);
        (report, folder.path().join(file))
    };
    let sim = ["--world=sim", "--seed=7", "--duration=0.004"];
    let (report, path) = run(&sim, "a.json");
    let phases = timeline(&path);
    let named = |phase: &str, name: &str| {
        let of = phases.get(phase).into_iter().flatten();
        of.filter(|event| event["name"] == name).count()
    };
    for (phase, name) in
        [("B", "turn"), ("B", "target"), ("B", "heartbeat"), ("B", "segment"), ("B", "asleep")]
    {
        assert!(named(phase, name) > 0, "{name} of {:?}", phases.keys());
    }
    let received: u64 =
        phases["B"].iter().filter_map(|span| span["args"]["received"].as_u64()).sum();
    let drops: u64 = phases["i"].iter().filter_map(|drop| drop["args"]["packets"].as_u64()).sum();
    let ledger = &report["ledger"];
    assert!(drops > 0, "{ledger}");
    assert_eq!(ledger["dropped"], drops);
    assert!(received.abs_diff(ledger["in"].as_u64().unwrap()) <= 64, "{received} {ledger}");
    assert!(named("C", "target ring 0") > 0 && named("s", "doorbell") > 0);
    let threads: Vec<_> = phases["M"].iter().map(|named| &named["args"]["name"]).collect();
    assert!(threads.contains(&&"task heartbeat".into()), "{threads:?}");

    // Recording changes nothing in virtual time, and is the same for a seed.
    let (again, other) = run(&sim, "b.json");
    assert_eq!(again, report);
    let read = |path: &Path| std::fs::read(path).unwrap();
    assert_eq!(read(&path), read(&other));
    let without = [&["run", "card.toml", "--json"][..], &sim].concat();
    assert_eq!(json(&picnic_in(folder.path(), &without)), report);

    // On a modelled machine, with the host's own work; and on real cores, with functions.
    let modelled = ["--world=sim", "--profile=x5355", "--duration=0.002"];
    let phases = timeline(&run(&modelled, "c.json").1);
    assert!(phases["B"].iter().any(|span| span["name"] == "softirq"));
    let packets = ["--set=wire[0].packets=100000", "--until=wires", "--quiet"];
    let phases = timeline(&run(&packets, "d.json").1);
    for name in ["turn", "rss", "target", "heartbeat"] {
        assert!(phases["B"].iter().any(|span| span["name"] == name), "{name}");
    }
    assert!(phases.contains_key("s"), "no doorbell");
}

#[test]
fn a_timeline_that_cannot_be_written_is_an_error() {
    let (folder, _path) = card("[[wire]]\nport = \"generator\"\npackets = 1000\n");
    let run = |more: &[&str]| {
        let output =
            picnic_in(folder.path(), &[&["run", "card.toml", "--quiet"][..], more].concat());
        (output.status.code(), stderr(&output).to_owned())
    };
    let (code, text) = run(&["--timeline=/dev/full"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("--timeline: /dev/full"), "{text}");
    let (code, text) = run(&["--timeline=none/t.json"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--timeline: none/t.json: cannot be created"), "{text}");
    let (code, text) = run(&["--timeline=card.toml"]);
    assert_eq!(code, Some(2), "{text}");
    let (code, text) = run(&["--engine=kernel", "--timeline=t.json"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--timeline: not supported with --engine kernel"), "{text}");
}

/// The disk fills up while the file is written: the card's report is printed all the same.
#[test]
fn a_timeline_on_a_disk_that_fills_up_is_an_error_with_its_file() {
    if !rustix::process::geteuid().is_root() {
        return picnic_testing::skip("a_timeline_on_a_disk_that_fills_up", "it needs root");
    }
    let (folder, path) = card("[[wire]]\nport = \"generator\"\npackets = 20000\n");
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    // Gone with the command: the mount is in its own namespace.
    let script = "mount -t tmpfs -o size=64k tmpfs \"$0\" && \"$@\"; \
                  code=$?; wc -c < \"$0/t.json\"; exit $code";
    let file = disk.join("t.json");
    let mut inside = std::process::Command::new("unshare");
    inside.args(["--mount", "sh", "-c", script]).arg(&disk).args([PICNIC, "run"]).arg(&path);
    inside.args(["--json", "--timeline"]).arg(&file).env("XDG_CACHE_HOME", "/dev/null");
    let output = inside.env("PICNIC_RUNTIME_DIR", sockets()).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(file.to_str().unwrap()) && text.contains("No space left"), "{text}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("\"delivered\": 20000"), "{printed}");
    let kept: u64 = printed.lines().last().unwrap().trim().parse().unwrap();
    assert!(kept <= 65_536, "{kept}");
}
