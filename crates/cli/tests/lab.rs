//! `picnic lab`: list, run, report, and what is said to a wrong setting.

mod common;

use common::{good, good_json, picnic, stderr};

#[test]
fn an_experiment_runs_and_is_reported_from_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outcome.json");
    let file = file.to_str().unwrap();
    let set = ["--set", "sets=3", "--set", "milliseconds=2000", "--json"];
    let figures = good_json(&[&["lab", "run", "nicos-edf", "--output", file], &set[..]].concat());
    assert_eq!(figures["figures_are"], "modelled");
    for row in figures["schedulers"].as_array().unwrap() {
        for field in ["idle_fraction", "busy_fraction", "response_mean_ms", "response_stddev_ms"] {
            assert!(row[field].is_f64(), "{field}: {row}");
        }
        assert!(row["deadline_misses"].is_u64());
    }
    assert!(figures["throughput_gain"].is_f64() && figures["response_change"].is_f64());
    let text = good(&["lab", "report", file]);
    assert!(text.starts_with("nicos-edf on ") && text.contains("lookahead"), "{text}");
}

#[test]
fn wrong_settings_are_told_with_what_is_allowed() {
    let cases = [
        (
            &["run", "nicos-ed"][..],
            "found experiment \"nicos-ed\", allowed: nicos-edf, nicos-firewall",
        ),
        (&["run", "nicos-edf", "--set", "sets=0"], "--set sets: found 0, allowed is 1 to"),
        (&["run", "nicos-edf", "--set", "sets=few"], "--set sets: "),
        (&["run", "nicos-edf", "--set", "sets"], "allowed is KEY=VALUE"),
        (&["run", "nicos-edf", "--set", "size=1"], "found key \"size\", allowed: "),
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
