//! `picnic-micro`: that each figure is there; its value is no matter of tests.

use picnic_testing::{machine, skip};
use serde_json::Value;
use std::process::{Command, Output};

fn micro(arguments: &[&str]) -> Output {
    let _machine = machine();
    Command::new(env!("CARGO_BIN_EXE_picnic-micro")).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A benchmark's figures, if this machine lets it run.
fn figures(arguments: &[&str]) -> Option<Value> {
    let output = micro(&[arguments, &["--json"]].concat());
    if !rustix::process::geteuid().is_root() && stderr(&output).contains("needs root") {
        skip(&format!("the benchmark {}", arguments[0]), "it needs root");
        return None;
    }
    let absent = ["not installed: try", "cannot be entered", "Operation not permitted"];
    if absent.iter().any(|part| stderr(&output).contains(part)) {
        skip(&format!("the benchmark {}", arguments[0]), stderr(&output).trim());
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures["benchmark"], arguments[0]);
    let facts = &figures["facts"];
    assert!(facts["revision"].is_string() && facts["cores"].is_u64(), "{figures}");
    Some(figures)
}

fn are_positive(figures: &Value, names: &[&str]) {
    for name in names {
        assert!(figures[*name].as_f64().is_some_and(|value| value > 0.0), "{name}: {figures:#}");
    }
}

#[test]
fn idle_compares_the_first_packet_with_a_bare_wake() {
    let arguments = ["idle", "--seconds", "0.2", "--pauses", "3", "--pause-ms", "5"];
    let Some(figures) = figures(&arguments) else { return };
    are_positive(&figures, &["borrowed_core_cpu_fraction"]);
    let waits = figures["waits"].as_array().unwrap();
    for name in ["first_packet_wait", "next_packet_wait", "bare_wake", "veth_first", "veth_next"] {
        let wait = waits.iter().find(|wait| wait["wait"] == name).unwrap();
        are_positive(wait, &["p50_ns", "p90_ns", "max_ns"]);
    }
}

#[test]
fn wire_tells_each_way_between_two_ports() {
    let arguments = ["wire", "--ports", "packet", "--rounds", "1", "--seconds", "0.5"];
    let Some(figures) = figures(&arguments) else { return };
    let ways = figures["ways"].as_array().unwrap();
    assert_eq!((ways.len(), &ways[0]["sends"]), (1, &Value::from("packet")));
    are_positive(&ways[0], &["pps_of_core", "ratio_to_first"]);
}

#[test]
fn classifier_draws_the_rules_of_its_peer_and_tells_each_family() {
    // Output of bench/peers/dpdk_acl for 16 rules and seed 1: rules and packets, verdicts.
    let families = [
        ("random", "ced7ef77b93fcf24", "b906a0bdf927f332"),
        ("access-list", "a9f1e286006a7406", "ab4874c01c5e22aa"),
        ("firewall", "45326d8003e765fc", "8c825137f82a3cb0"),
        ("wide-ports", "27ea8cf5a249bac4", "594ab34bb9faa965"),
        ("ports-only", "70ba890414376cae", "2d8feec6370084ce"),
    ];
    let names = families.map(|(name, ..)| name).join(",");
    let quick = ["--seconds", "0.001", "--repeats", "1", "--changes", "4"];
    let arguments = [&["classifier", "--rules", "16", "--families", &names], &quick[..]].concat();
    let figures = figures(&arguments).unwrap();
    let sizes = figures["sizes"].as_array().unwrap();
    assert_eq!(sizes.len(), families.len());
    for (size, (name, fingerprint, verdicts)) in sizes.iter().zip(families) {
        assert_eq!((&size["family"], &size["rules"]), (&Value::from(name), &Value::from(16)));
        assert_eq!(size["fingerprint"], fingerprint, "{name}: not the peer's rules");
        let form = size["form"].as_str().unwrap();
        assert!(form.contains(" hashed by ") || form.contains(" in vectors by "), "{name}: {form}");
        assert_eq!(size["verdicts"], verdicts, "{name}: not the peer's verdicts");
        are_positive(
            size,
            &["ns_per_packet", "build_ms", "change_us", "max_change_us", "max_least_change_us"],
        );
    }
}

#[test]
fn people_read_three_digits_in_tables_that_fit_a_page() {
    for arguments in [
        &["hash", "--repeats", "3"][..],
        &["os", "--repeats", "2"],
        &["classifier", "--rules", "16", "--seconds", "0.001", "--repeats", "2"],
    ] {
        let output = micro(arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(&format!("{} on ", arguments[0])), "{text}");
        // Milliseconds where the machine is busy.
        let has_times = [" ns", " µs", " ms"].iter().any(|unit| text.contains(unit));
        assert!(has_times && !text.contains("_ns"), "{text}");
        let long = text.lines().skip(1).find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{text}");
    }
}

#[test]
fn wrong_options_are_reported_with_allowed_values() {
    for (arguments, wanted) in [
        (&["hash", "--repeats", "0"][..], "--repeats: found 0, allowed: 1 to"),
        (&["link", "--packets", "0"], "--packets: found 0, allowed: one or more, each 1 to"),
        (&["idle", "--pause", "0"], "--pause"),
        (&["doorbell", "--seconds", "-1"], "--seconds: found -1, allowed: more than 0"),
    ] {
        let output = micro(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    }
}

#[test]
fn machine_tells_real_time_for_virtual_and_memory() {
    let figures = figures(&["machine", "--rounds", "1", "--milliseconds", "20"]).unwrap();
    are_positive(&figures, &["real_s_per_virtual_s", "sent_gbps", "peak_memory_mib"]);
}
