//! The card's guarantees as a process: no privileges, little memory, few system calls.

use crate::common::*;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Nobody, on every Linux.
const NOBODY: u32 = 65_534;
const MIB: u64 = 1 << 20;

#[test]
fn an_ordinary_user_can_run_it() {
    let folder = tempfile::tempdir().unwrap();
    let binary = copy_of_picnic(folder.path());
    for path in [folder.path(), &binary] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(&binary);
    command.args(["run", "--set=wire[0].packets=1000", "--json"]).current_dir("/").env_clear();
    if rustix::process::geteuid().is_root() {
        // With the user id go all capabilities and supplementary groups.
        command.uid(NOBODY).gid(NOBODY);
    }
    let _machine = machine();
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    assert!(report["ledger"]["delivered"].as_u64().unwrap() > 0);
    assert_balanced(&report);
}

#[test]
fn memory_is_the_pool_and_little_more() {
    let plan = good_json(&["check", "--json"]);
    let pool = plan["pool"]["mapped_bytes"].as_u64().unwrap();
    let machine = machine();
    let child = start(&machine, &["run", "--duration=600", "--json"]);
    // Every buffer of the pool has been used many times over.
    wait_until("packets are delivered", || counted("picnic0", "delivered") > 200_000);
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Pages of the program's file are the kernel's to drop, and a build without optimisation has
    // many more of them: the card's memory is the memory that no file backs.
    let resident: u64 = ["RssAnon:", "RssShmem:"]
        .map(|key| {
            let line = status.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
        })
        .iter()
        .sum();
    assert!(
        resident <= pool + 16 * MIB,
        "{} MiB resident with a pool of {} MiB",
        resident / MIB,
        pool / MIB
    );
}

/// The system calls that a run made.
struct Traced {
    calls: u64,
    /// Those that give the core away: the borrowed core's while it waits for its targets to end.
    yields: u64,
    seconds: f64,
}

/// Runs the card flat out and awake for a number of packets.
fn traced_run(packets: u64) -> Option<Traced> {
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("counts");
    let mut command = Command::new("strace");
    // A card reads the journals of others when it starts: a separate folder has none.
    command.env("PICNIC_RUNTIME_DIR", folder.path());
    command.args(["-f", "-c", "-o"]).arg(&counts).arg(PICNIC).args(["run", "--json", "--quiet"]);
    command.args(["--duration=600", "--idle=spin", "--set=interrupt.poll_usecs=1000000"]);
    command.arg(format!("--set=wire[0].packets={packets}"));
    let _machine = machine();
    let output = command.output().unwrap();
    if output.status.code() != Some(0) {
        skip("no system call per packet", &format!("strace: {}", stderr(&output).trim()));
        return None;
    }
    let report = json(&output);
    assert_balanced(&report);
    assert_eq!(report["ledger"]["in"], packets);
    let counts = std::fs::read_to_string(counts).unwrap();
    // Share, seconds, microseconds per call, calls, errors if any, name.
    let of = |name: &str| {
        let line = counts.lines().find(|line| line.split_whitespace().last() == Some(name));
        line.map_or(0, |line| line.split_whitespace().nth(3).unwrap().parse().unwrap())
    };
    let yields = of("sched_yield");
    let seconds = report["duration_s"].as_f64().unwrap();
    Some(Traced { calls: of("total") - yields, yields, seconds })
}

#[test]
fn no_system_call_is_made_per_packet() {
    if Command::new("strace").arg("--version").output().is_err() {
        return skip("no system call per packet", "strace is not installed");
    }
    let Some(short) = traced_run(200_000) else { return };
    let Some(long) = traced_run(1_000_000) else { return };
    // The command's own thread checks for Ctrl-C twenty times a second, and a busy machine takes its
    // time; no other thread makes calls.
    let more_calls = long.calls.saturating_sub(short.calls);
    let most = 200.0 + 100.0 * long.seconds;
    assert!((more_calls as f64) < most, "{more_calls} system calls more in {} s", long.seconds);
    assert!(long.yields < 500_000, "{} yields for 1,000,000 packets", long.yields);
}
