//! What a figure was taken on: machine, system, revision.

use serde_json::{Value, json};

/// The facts, as fields of a result.
pub(super) fn facts() -> Value {
    let cores = picnic_machine::topology::cores().len();
    json!({
        "revision": env!("PICNIC_REVISION"),
        "processor": processor().unwrap_or_else(|| "unavailable".into()),
        "cores": cores,
        "kernel": read("/proc/sys/kernel/osrelease"),
        "load_average": read("/proc/loadavg").split_whitespace().next().unwrap_or("unavailable"),
    })
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(path);
    text.map_or_else(|_| "unavailable".into(), |text| text.trim().to_owned())
}
