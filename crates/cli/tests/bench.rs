//! `picnic bench`: that each figure is there; what it is, is no matter of tests.

mod common;

use common::*;
use serde_json::Value;

/// A benchmark's figures, if this machine lets it run.
fn figures(arguments: &[&str]) -> Option<Value> {
    let _machine = machine();
    let output = picnic(&[&["bench"], arguments, &["--json"]].concat());
    if !rustix::process::geteuid().is_root() && stderr(&output).contains("needs root") {
        skip(&format!("bench {}", arguments[0]), "it needs root");
        return None;
    }
    let absent = ["not installed: try", "cannot be entered", "Operation not permitted"];
    if absent.iter().any(|part| stderr(&output).contains(part)) {
        skip(&format!("bench {}", arguments[0]), stderr(&output).trim());
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    let figures = json(&output);
    assert_eq!(figures["benchmark"], arguments[0]);
    assert!(figures["revision"].is_string() && figures["cores"].is_u64(), "{figures}");
    Some(figures)
}

fn are_positive(figures: &Value, names: &[&str]) {
    for name in names {
        assert!(figures[*name].as_f64().is_some_and(|value| value > 0.0), "{name}: {figures:#}");
    }
}

#[test]
fn latency_tells_bare_sleeping_and_polling_by_rate() {
    let arguments = ["latency", "--rates", "500,2000", "--rounds", "1", "--seconds", "0.1"];
    let figures = figures(&arguments).unwrap();
    let curve = figures["curve"].as_array().unwrap();
    let rates: Vec<_> = curve.iter().map(|point| point["rate_pps"].as_u64().unwrap()).collect();
    assert_eq!(rates, [500, 2000]);
    for point in curve {
        are_positive(
            point,
            &[
                "bare_futex_wake_p50_ns",
                "bare_packets_per_wake",
                "sleeping_p50_ns",
                "packets_per_interrupt",
                "sleeping_ratio",
                "polling_p50_ns",
            ],
        );
    }
}

#[test]
fn idle_tells_the_first_packets_wait_beside_a_bare_wake() {
    let arguments = ["idle", "--seconds", "0.2", "--pauses", "3", "--pause-ms", "5"];
    let Some(figures) = figures(&arguments) else { return };
    are_positive(&figures, &["borrowed_core_cpu_fraction"]);
    for figure in ["first_packet_wait", "next_packet_wait", "bare_wake", "veth_first", "veth_next"]
    {
        for part in ["p50", "p90", "max"] {
            are_positive(&figures, &[&format!("{figure}_{part}_ns")]);
        }
    }
}

#[test]
fn wire_tells_each_way_between_two_ports() {
    let arguments = ["wire", "--ports", "packet", "--rounds", "1", "--seconds", "0.1"];
    let Some(figures) = figures(&arguments) else { return };
    let ways = figures["ways"].as_array().unwrap();
    assert_eq!((ways.len(), &ways[0]["sends"]), (1, &Value::from("packet")));
    are_positive(&ways[0], &["pps_of_core", "ratio_to_first"]);
}
