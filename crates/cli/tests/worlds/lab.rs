//! `picnic lab`: list, run, report, and errors for wrong settings.

use crate::common::{command, good, good_json, machine, picnic, printed, stderr, wait_until};
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

#[test]
fn runs_can_be_reported_resumed_and_merged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let whole = path("whole");
    let set = ["sets=12", "milliseconds=100", "tight=0", "matched=1"];
    let set = set.map(|setting| ["--set", setting]).concat();
    let run = |out: &str, more: &[&str]| {
        good_json(&[&["lab", "run", "nicos-edf", "--json", "--out", out], &set[..], more].concat())
    };
    let figures = run(&whole, &[]);
    assert_eq!(figures["figures_are"], "modelled");
    for row in figures["schedulers"].as_array().unwrap() {
        for field in ["idle_fraction", "busy_fraction", "response_mean_ms", "response_stddev_ms"] {
            assert!(row[field].is_f64(), "{field}: {row}");
        }
        assert!(row["deadline_misses"].is_u64());
    }
    assert!(figures["throughput_gain"].is_f64() && figures["response_change"].is_f64());
    let text = good(&["lab", "report", &whole]);
    assert!(text.starts_with("nicos-edf on ") && text.contains("lookahead"), "{text}");
    let page = std::fs::read_to_string(folder.path().join("whole/report.html")).unwrap();
    assert!(page.contains("rss-web") && page.contains("<svg"), "{page}");
    let rows = &good_json(&["lab", "report", &whole, "--json"])["rows"];
    let edf = rows.as_array().unwrap().iter().find(|row| row["name"] == "nicos-edf").unwrap();
    assert_eq!(
        (&edf["status"], edf["figures"][0]["judged"].is_object()),
        (&"modelled".into(), true)
    );
    // Figures 2 and 3 as files, beside the page.
    for name in [
        "figure-2-task-a-time-between-invocations",
        "figure-3-task-b-between-invocations-ready-to-end",
    ] {
        let read = |ending| {
            let file = folder.path().join(format!("whole/plots/nicos-edf-{name}.{ending}"));
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"))
        };
        assert!(read("svg").contains("xmlns=") && read("svg").contains("edf-plus"), "{name}");
        assert!(read("csv").lines().count() > 6, "{name}");
    }
    assert!(good(&["lab", "report", &whole, "--markdown"]).contains("| nicos-edf |"));
    let same = good(&["lab", "diff", &whole, &whole]);
    assert!(same.contains("1.00 ×") && same.contains("lookahead"), "{same}");

    // A killed run: a point and half of another. Only missing points are measured.
    let points = folder.path().join("whole/points.jsonl");
    let lines = std::fs::read_to_string(&points).unwrap();
    let first = lines.split_inclusive('\n').next().unwrap();
    std::fs::write(&points, format!("{first}{}", &lines[first.len()..first.len() + 100])).unwrap();
    let again = good_json(&["lab", "run", "--resume", &whole, "--json"]);
    assert_eq!(again["schedulers"], figures["schedulers"]);
    assert!(std::fs::read_to_string(&points).unwrap().starts_with(first));
    let rows = std::fs::read_to_string(folder.path().join("whole/points.csv")).unwrap();
    assert!(rows.contains("nicos-edf,\"sets=usual,first=10,count=2\",all,schedulers,"), "{rows}");

    // Shards give the same as one run.
    let shards = [path("one"), path("two")];
    for (shard, number) in shards.iter().zip(["1/2", "2/2"]) {
        assert_ne!(run(shard, &["--shard", number])["schedulers"], figures["schedulers"]);
    }
    let merged = path("merged");
    let merged = good_json(&["lab", "merge", &shards[0], &shards[1], "--out", &merged, "--json"]);
    assert_eq!(merged["schedulers"], figures["schedulers"]);
    let refused = picnic(&["lab", "run", "nicos-edf", "--out", &whole]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("found a run, allowed: a new"), "{}", stderr(&refused));
}

#[test]
fn a_run_ends_with_ten_lines_and_leaves_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let set = ["sets=2", "milliseconds=100", "tight=0", "matched=1"];
    let names = [vec!["nicos-edf"], set.map(|setting| ["--set", setting]).concat()].concat();
    let text = printed(&[&["lab", "run"], &names[..], &["--out", out.to_str().unwrap()]].concat());
    let page = format!("Page: {}\n", out.join("report.html").display());
    let (answers, paths) = text.split_once("\n\n").unwrap_or_else(|| panic!("{text}"));
    assert!(answers.lines().count() <= 10 && answers.starts_with("idle under EDF: "), "{text}");
    assert!(paths.starts_with(&page) && paths.lines().count() == 3, "{text}");
    assert!(std::fs::read_to_string(out.join("report.html")).unwrap().contains("class=\"card\""));
}

#[test]
fn a_breakdown_adds_up_in_a_model_and_by_samples() {
    let _machine = machine();
    let sum = |found: &Value| -> f64 {
        let parts = found["components"].as_array().unwrap().iter();
        parts.map(|part| part["fraction"].as_f64().unwrap()).sum()
    };
    let modelled = ["lab", "breakdown", "--profile", "x5355", "--seconds", "0.01"];
    let found = good_json(&[&modelled[..], &["--json"]].concat());
    assert_eq!(found["source"], "modelled");
    assert!((sum(&found) - 1.0).abs() < 1e-6, "{found}");
    assert!(good(&modelled).contains("ns per packet"));
    let refused = picnic(&["lab", "breakdown", "--set", "card.borrowed_core=0", "--cores", "0"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("--cores: found 0, the borrowed core"),
        "{}",
        stderr(&refused)
    );
    // In the folder of a run, whose report shows it.
    let run = tempfile::tempdir().unwrap();
    let folder = run.path().join("results");
    let results = folder.to_str().unwrap();
    let quick = ["--set", "rules=[16]", "--set", "milliseconds=1", "--out", results];
    good(&[&["lab", "run", "nicos-firewall"][..], &quick].concat());
    let folder = folder.join("one-core");
    let out = folder.to_str().unwrap();
    let measured = picnic(&["lab", "breakdown", "--seconds", "0.5", "--out", out, "--json"]);
    if stderr(&measured).contains("unavailable") {
        return picnic_testing::skip("lab_breakdown", stderr(&measured).trim());
    }
    let found: Value = serde_json::from_slice(&measured.stdout)
        .unwrap_or_else(|_| panic!("{}", stderr(&measured)));
    assert!((sum(&found) - 1.0).abs() < 1e-6 && found["samples"].as_u64() > Some(0), "{found}");
    let drawn = std::fs::read_to_string(folder.join("flame.svg")).unwrap();
    assert!(drawn.contains("<rect") && drawn.contains("<title>borrowed core "), "{drawn}");
    good(&["lab", "report", results]);
    let page = std::fs::read_to_string(run.path().join("results/report.html")).unwrap();
    let has = |text: &str| page.contains(text);
    assert!(has("<section id=\"breakdown-one-core\">") && has("<title>borrowed core "), "{page}");
    std::fs::write(folder.join("stacks.folded"), "nothing\n").unwrap();
    let wrong = picnic(&["lab", "report", results]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        stderr(&wrong).contains("one-core/stacks.folded:1: found \"nothing\""),
        "{}",
        stderr(&wrong)
    );
}

#[test]
fn cores_are_advised_in_a_model() {
    let asked = ["advise", "cores", "--profile", "x5355", "--seconds", "0.01"];
    let found = good_json(&[&asked[..], &["--json"]].concat());
    assert_eq!((&found["source"], &found["figure"]), (&"modelled".into(), &"delivered_pps".into()));
    let tried = found["tried"].as_array().unwrap();
    assert!(tried.len() >= 4 && tried.iter().all(|tried| tried["interval"].is_null()), "{found}");
    let text = good(&asked);
    assert!(text.contains("borrowed core") && text.contains("another package"), "{text}");
}

#[test]
fn answers_are_kept_with_curve_and_page() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("answer");
    let out = out.to_str().unwrap();
    // An effect that no load of the machine hides, and pairs in place of those that a load spoilt.
    let short = ["--seconds", "0.1", "--no-cost", "--allow-loss", "100", "--allow-others", "100"];
    let sweep = ["--sweep", "wire[0].fault.drop=0.5,0.999", "--most-pairs", "60", "--out", out];
    let text = printed(&[&["lab", "ab"], &sweep[..], &short].concat());
    assert!(text.contains("░ noise: the baseline against itself") && text.contains("●"), "{text}");
    assert!(text.contains("wire[0].fault.drop=0.999: the baseline against itself: "), "{text}");
    let json = std::fs::read_to_string(folder.path().join("answer/answer.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["sweep"][0]["wire_0_fault_drop"], 0.5);
    assert_eq!(json["sweep"][1]["verdict_delivered"], "worse", "{json}");
    let is_text =
        |(key, value): (&String, &serde_json::Value)| value.is_string() && !key.contains("verdict");
    assert!(!json["sweep"][0].as_object().unwrap().iter().any(is_text), "{json}");
    let page = std::fs::read_to_string(folder.path().join("answer/report.html")).unwrap();
    assert!(page.contains("class=\"band\"") && page.contains("picnic lab ab --sweep"), "{page}");
    // It is printed again, and not written over.
    assert!(good(&["lab", "report", out]).starts_with("ab on "));
    let again = picnic(&[&["lab", "ab"], &sweep[..], &short].concat());
    assert!(stderr(&again).contains("found an answer, allowed: a new or empty folder"));
}

#[test]
fn wrong_settings_name_the_allowed_values() {
    let cases = [
        (
            &["run", "nicos-ed"][..],
            "found experiment \"nicos-ed\", allowed: picnic-utilization, picnic-latency, ",
        ),
        (&["run", "nicos-edf", "--set", "sets=0"], "--set sets: found 0, allowed: 1 to"),
        (&["run", "nicos-edf", "--set", "sets=few"], "--set sets: "),
        (&["run", "nicos-edf", "--set", "sets"], "allowed: KEY=VALUE"),
        (&["run", "nicos-edf", "--set", "size=1"], "found key \"size\", allowed: "),
        (&["run", "--set", "sets=1"], "allowed: --set with one experiment's name"),
        (&["run", "--shard", "3/2"], "found \"3/2\", allowed: I/N"),
        (&["run", "picnic-latency", "--profile", "netbrust"], "did you mean \"netburst\""),
        (
            &["run", "rss-web", "--profile", "netburst"],
            "--profile: found \"netburst\" with 4 cores",
        ),
        (&["run", "knet-pages", "--world", "sim"], "world: found \"sim\", allowed: \"host\""),
        (&["fit", "piiii"], "found profile \"piiii\""),
    ];
    for (arguments, wanted) in cases {
        let output = picnic(&[&["lab"], arguments].concat());
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(wanted), "{message}");
        assert!(output.stdout.is_empty());
    }
    let output = picnic(&["lab", "report", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn machines_are_listed_and_run_user_cards() {
    let text = good(&["lab", "profiles"]);
    for name in ["netburst", "x5355", "x5355-tx", "piii"] {
        assert!(text.contains(name), "{text}");
    }
    let one = good_json(&["lab", "profiles", "netburst", "--json"]);
    let figures = one["figures"].as_array().unwrap();
    assert!(
        figures.iter().all(|figure| figure["source"].is_string() && figure["from"].is_string())
    );
    let fitted = figures.iter().find(|figure| figure["source"] == "fitted").unwrap();
    assert_eq!(fitted["key"], "card_packet_ns");
    let refused = picnic(&["lab", "profiles", "netbrust"]);
    let told = stderr(&refused);
    assert!(refused.status.code() == Some(2) && told.contains("netburst"), "{told}");
    let card = ["--set", "host.queues=1", "--set", "wire[0].rate_pps=100000"];
    let run = ["run", "--world", "sim", "--profile", "x5355", "--duration", "0.005", "--json"];
    let report = good_json(&[&run[..], &card].concat());
    assert_eq!(report["ledger"]["balanced"], true, "{report}");
    // How each core of the host spent its time, and the host's work.
    let notes: Vec<_> =
        report["notes"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
    let core = notes.iter().find(|note| note.starts_with("core 0 (modelled): ")).unwrap();
    for part in ["driver ", "kernel ", "idle "] {
        assert!(core.contains(part), "{notes:?}");
    }
    let shares = core.split([' ', ',']).filter_map(|word| word.parse::<f64>().ok());
    assert!((shares.sum::<f64>() - 100.0).abs() < 1.0, "{core}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.toml");
    let web = "[card]\nborrowed_core = 2\n[[wire]]\nport = \"peers\"\n[host]\n\
               attachment = \"model\"\nqueues = 2\n";
    std::fs::write(&path, web).unwrap();
    let path = path.to_str().unwrap();
    let report = good_json(&[&run[..6], &["0.05", path, "--json"]].concat());
    let notes = report["notes"].to_string();
    assert!(notes.contains("host (modelled): ") && notes.contains(" requests answered"), "{notes}");
    assert!(notes.contains("core 1 (modelled): ") && notes.contains("application "), "{notes}");
    // A machine that has too few cores for it.
    let few = ["run", "--world", "sim", "--profile", "piii", "--duration", "0.01"];
    let refused = picnic(&[&few[..], &[path, "--set", "card.borrowed_core=5"]].concat());
    let told = stderr(&refused);
    assert!(told.contains("found 5, allowed with profile piii: 0 to 4"), "{told}");
    let refused = picnic(&["run", "--profile", "x5355", "--duration", "0.1"]);
    let told = stderr(&refused);
    assert!(told.contains("--profile: found with --world host, allowed only with sim"), "{told}");
}

/// No figure of a loaded machine is judged here: each measured figure has its source, is read back,
/// and runs a card; each card that was run here was run in the model.
#[test]
fn this_machine_is_measured_and_then_a_profile() {
    let _machine = machine();
    let data = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        command().args(arguments).env("XDG_DATA_HOME", data.path()).output().unwrap()
    };
    let card = ["run", "--world", "sim", "--profile", "here", "--duration", "0.001"];
    let one = ["--set", "host.queues=1", "--json"];
    let refused = run(&[&card[..], &one].concat());
    let told = stderr(&refused);
    assert!(told.contains("--profile: found here, but this machine was not measured"), "{told}");
    assert!(told.contains("try: picnic lab calibrate"), "{told}");
    let found = run(&["lab", "calibrate", "--quick", "--json"]);
    assert!(found.status.success(), "{}", stderr(&found));
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    let measured = found["figures"].as_array().unwrap().iter();
    let measured = measured.filter(|figure| figure["source"] == "measured");
    assert_eq!(measured.count(), 6, "{found:#}");
    let rows = found["checks"].as_array().unwrap();
    assert_eq!(rows.len(), 5, "{found:#}");
    for row in rows {
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(of("measured") > 0.0 && of("modelled") > 0.0, "{row:#}");
        let ratio = |key: &str| row["ratio"][key].as_f64().unwrap();
        assert!(ratio("low") <= ratio("ratio") && ratio("ratio") <= ratio("high"), "{row:#}");
        assert_eq!(ratio("pairs"), 11.0, "{row:#}");
        let (verdict, why) = (row["verdict"].as_str().unwrap(), row["why"].as_array().unwrap());
        assert_eq!(verdict == "holds", why.is_empty(), "{row:#}");
        // A reason has its number.
        let has_number = |why: &Value| why.as_str().unwrap().contains(|c: char| c.is_ascii_digit());
        assert!(why.iter().all(has_number), "{row:#}");
    }
    let shown = run(&["lab", "profiles", "here", "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["figures"], found["figures"]);
    let report = run(&[&card[..], &one].concat());
    assert!(report.status.success(), "{}", stderr(&report));
}

/// Whether every thread of a process is stopped.
fn is_held(id: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).unwrap().flatten();
    let state = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat"));
    threads.map(state).all(|state| state.is_ok_and(|state| state.contains(") T ")))
}

#[test]
fn a_signal_ends_a_calibration_while_it_models() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("here.toml");
    let mut calibrate = command();
    calibrate.args(["lab", "calibrate", "--quick", "--output"]).arg(&profile);
    let mut child = calibrate.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("modelling dispatch") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it models");
    }
    // It is held, to know what it said before the signal, however late the signal is.
    let id = Pid::from_child(&child);
    kill_process(id, Signal::STOP).unwrap();
    wait_until("it is held", || is_held(child.id()));
    let before = said.buffer().len() + ioctl_fionread(said.get_ref()).unwrap() as usize;
    said.read_exact(&mut vec![0; before]).unwrap();
    kill_process(id, Signal::TERM).unwrap();
    kill_process(id, Signal::CONT).unwrap();
    let rest: Vec<String> = said.lines().map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{rest:#?}");
    let [last] = &rest[..] else { panic!("it went on: {rest:#?}") };
    assert!(last.contains("interrupted; the profile is in "), "{last}");
    assert!(profile.exists());
}
