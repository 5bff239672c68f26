//! `picnic wcet`: calibrate, show, and refusals.

use crate::common::*;

#[test]
fn a_calibrated_profile_is_a_file_that_show_reads() {
    let folder = folder(&[]);
    let output = picnic_in(
        folder.path(),
        &["wcet", "calibrate", "--samples", "200", "--output", "p.toml", "--json"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = json(&output);
    let classes = told["classes"].as_array().unwrap();
    assert_eq!(classes.len(), 10);
    for class in classes {
        let cost = class["cost_ps"].as_u64().unwrap();
        let percentile = class["percentile_ps"].as_u64().unwrap();
        assert!(cost >= percentile && percentile >= class["median_ps"].as_u64().unwrap());
        assert!(class["samples"].as_u64().unwrap() >= 200 && class["dearest_kernel"].is_string());
    }
    let path = |key: &str| told["path"][key].as_u64().unwrap();
    assert!(path("turn_ps") > 0 && path("packet_ps") > 0 && path("doorbell_ps") > 0);
    // With another core there is one to wake.
    let warned = stderr(&output).contains("there is no other core to wake");
    assert_eq!(warned, picnic_machine::topology::cores().len() == 1, "{}", stderr(&output));
    assert!(told["machine"]["kernel"].is_string());
    let text = std::fs::read_to_string(folder.path().join("p.toml")).unwrap();
    assert!(text.contains("percentile = 99.9\n") && text.contains("[measured.load]\n"), "{text}");
    let shown = picnic_in(
        folder.path(),
        &["wcet", "show", "scrub", "--profile", "p.toml", "--json", "--observe", "200"],
    );
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    let shown = json(&shown);
    assert_eq!(shown["profile"]["name"], "p.toml");
    let segments = shown["segments"].as_array().unwrap();
    let runs: Vec<_> =
        segments.iter().map(|segment| segment["observed"]["runs"].as_u64().unwrap()).collect();
    assert_eq!(runs.iter().sum::<u64>(), 200);
    assert!(segments.iter().all(|segment| segment["bound_ns"].as_u64().unwrap() > 0));
}

#[test]
fn without_a_file_the_profile_goes_to_standard_output() {
    let output = picnic(&["wcet", "calibrate", "--samples", "100"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("\n[cost]\n") && text.contains("\nsegment_ps = "), "{text}");
}

#[test]
fn show_names_the_profile() {
    let text = good(&["wcet", "show", "scrub"]);
    assert!(text.contains("bounds under the cost profile: built-in (conservative"), "{text}");
    assert!(text.contains("next_release (a wait)") && text.contains("crc_step()"), "{text}");
    let list = good(&["wcet", "show"]);
    assert!(list.contains("scrub") && list.contains("Bounds under the cost profile"), "{list}");
    let json = good_json(&["wcet", "show", "scrub", "--json"]);
    assert_eq!(json["segments"][2]["wait"], true);
    assert_eq!(json["segments"][0]["next"], serde_json::json!([1, 2]));
    assert_eq!(json["segments"][1]["observed"], serde_json::Value::Null);
    assert_eq!(json["loops"][2]["bound"], 256);
    let dot = good(&["wcet", "show", "scrub", "--dot"]);
    assert!(dot.starts_with("digraph \"scrub\" {"), "{dot}");
}

#[test]
fn usage_errors_exit_with_two() {
    let folder = folder(&[
        ("typo.toml", b"format = 1\n[cost]\nbranch_ps = 1\nlode_ps = 3\n"),
        ("zero.toml", b"format = 3\n"),
    ]);
    let cases: [(&[&str], &str); 7] = [
        (
            &["wcet", "show", "nothing"],
            "found task \"nothing\", allowed: heartbeat, ping-drop, scrub",
        ),
        (&["wcet", "show", "--dot"], "which task? allowed: heartbeat, ping-drop, scrub"),
        (&["wcet", "show", "--profile", "absent.toml"], "absent.toml: cannot be read"),
        (&["wcet", "show", "--profile", "typo.toml"], "typo.toml:4: cost.lode_ps: unknown field"),
        (&["wcet", "calibrate", "--samples", "3"], "--samples: found 3, allowed: 100 to"),
        (&["wcet", "calibrate", "--margin", "0.5"], "--margin: found 0.5, allowed: 1 to 100"),
        (&["wcet", "calibrate", "--core", "9999"], "--core: found 9999, allowed: "),
    ];
    for (arguments, wanted) in cases {
        let output = picnic_in(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(wanted), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn a_profile_that_cannot_be_written_is_a_failure() {
    let arguments =
        ["wcet", "calibrate", "--samples", "100", "--output", "/nonexistent/folder/p.toml"];
    let output = picnic(&arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nonexistent/folder/p.toml: cannot write"));
}

/// A busy machine is not measured; the card then starts under the built-in costs, with a warning.
#[test]
fn the_first_card_with_tasks_measures_the_machine_once() {
    let files = folder(&[(
        "card.toml",
        // Admitted under the costs of a busy moment, too.
        b"[[wire]]\nport = \"generator\"\nrate_pps = 10\n[host]\nqueues = 1\n[[task]]\n\
          task = \"heartbeat\"\nperiod_us = 1000000\n",
    )]);
    let cache = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = command();
        command.env("XDG_CACHE_HOME", cache.path()).current_dir(files.path());
        command.args(arguments).output().unwrap()
    };
    let start = || {
        let _machine = picnic_testing::machine();
        let output = run(&["run", "card.toml", "--duration=0.05", "--quiet", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let origin = json(&output)["os"]["tasks"][0]["bounds_from"].as_str().unwrap().to_owned();
        (stderr(&output).to_owned(), origin)
    };
    let built_in = run(&["check", "card.toml"]);
    assert!(stdout(&built_in).contains("(built-in (conservative, measured on no machine))"));
    let (said, origin) = start();
    if said.contains("warning: tasks are admitted under costs that were measured on no machine") {
        assert!(origin.starts_with("built-in"), "{origin}");
        return;
    }
    assert!(
        said.contains("picnic: measured the cost of code and packets on this machine"),
        "{said}"
    );
    assert!(origin.starts_with(&cache.path().display().to_string()), "{origin}");
    let (again, same) = start();
    assert!(!again.contains("measured") && same == origin, "{again} {same}");
    assert!(stdout(&run(&["check", "card.toml"])).contains(&origin));
    // One that the card file names, or a virtual core, needs none.
    std::fs::copy(&origin, files.path().join("mine.toml")).unwrap();
    std::fs::remove_dir_all(cache.path().join("picnic")).unwrap();
    for more in [["--set", "os.cost_profile=mine.toml"], ["--world", "sim"]] {
        let output =
            run(&[&["run", "card.toml", "--duration=0.01", "--quiet"][..], &more[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!cache.path().join("picnic").exists(), "{}", stderr(&output));
    }
    // Only a refusal under costs of a busy moment says how to measure again.
    let text = std::fs::read_to_string(files.path().join("mine.toml")).unwrap();
    let longer = text.lines().map(|line| match line.split_once(" = ") {
        Some((key @ "doorbell_ps", _)) => format!("{key} = 900_000_000\n"),
        _ => format!("{line}\n"),
    });
    std::fs::create_dir(cache.path().join("picnic")).unwrap();
    std::fs::write(&origin, longer.collect::<String>()).unwrap();
    let hint = format!("picnic wcet calibrate --output {origin}\n");
    let named = format!("--set=os.cost_profile={origin}");
    for (command, period_us, more, is_hinted) in [
        ("check", 1_000, None, true),
        ("run", 1_000, None, true),
        ("run", 1, None, false),
        ("run", 1_000, Some(&*named), false),
    ] {
        let often = format!("--set=task[0].period_us={period_us}");
        let busy = [command, "card.toml", &often, "--set=wire[0].rate_pps=1000"];
        let output = run(&busy.into_iter().chain(more).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert_eq!(stderr(&output).ends_with(&hint), is_hinted, "{}", stderr(&output));
    }
}
