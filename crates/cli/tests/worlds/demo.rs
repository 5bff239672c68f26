//! `picnic demo`: real programs behind the card; needs root, nginx, wrk.

use crate::common::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// Whether the demo can run here; prints the reason if not.
fn can_run(test: &str) -> bool {
    let is_there = |tool: &str| Command::new(tool).arg("-v").output().is_ok();
    let reason = if !rustix::process::geteuid().is_root() {
        "it needs root"
    } else if !std::path::Path::new("/dev/net/tun").exists() {
        "there is no /dev/net/tun"
    } else if !is_there("nginx") || !is_there("wrk") {
        "nginx or wrk is not installed"
    } else {
        return true;
    };
    skip(test, reason);
    false
}

/// The names, in a directory, of everything made by the process with this number.
fn made_by(id: u32, folder: &str) -> Vec<String> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("picnic-demo-{id}-"))).collect()
}

fn left_by(id: u32) -> Vec<String> {
    let folders = ["/run/netns".into(), std::env::temp_dir()];
    folders.iter().flat_map(|folder| made_by(id, folder.to_str().unwrap())).collect()
}

fn spawn(arguments: &[&str]) -> Child {
    let mut command = Command::new(PICNIC);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until wrk and nginx run in the namespaces of the process with this number.
fn wait_for_load(id: u32) -> Vec<u32> {
    wait_for("the load", || {
        let ends = ["client", "server"].map(|end| {
            let netns = made_by(id, "/run/netns").into_iter().find(|name| name.ends_with(end));
            let output = netns.map(|name| {
                Command::new("ip").args(["netns", "pids", &name]).output().unwrap().stdout
            });
            let text = String::from_utf8(output.unwrap_or_default()).unwrap();
            text.split_whitespace().map(|id| id.parse::<u32>().unwrap()).collect::<Vec<_>>()
        });
        let is_asked = ends[0].iter().any(|id| {
            std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name == "wrk\n")
        });
        is_asked.then(|| ends.concat())
    })
}

/// The process and the figures of a demo that has served some requests. A machine that gives it no
/// core for a while serves them in the longer one.
fn served(more: &[&str]) -> (u32, Value) {
    let demo = |seconds: &str| {
        let child =
            spawn(&[&["demo", "web", seconds, "--connections=20", "--json"], more].concat());
        let id = child.id();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let figures = json(&output);
        assert_balanced(&figures["card"]);
        (id, figures)
    };
    let has_served = |(_, figures): &(u32, Value)| figures["web"]["requests"].as_u64() > Some(100);
    let some = ["--seconds=1", "--seconds=20"].into_iter().map(demo).find(has_served);
    some.expect("requests are served")
}

#[test]
fn the_web_demo_serves_every_request_and_leaves_nothing() {
    if !can_run("the_web_demo_serves_every_request_and_leaves_nothing") {
        return;
    }
    let _machine = machine();
    let (id, figures) = served(&[]);
    let web = &figures["web"];
    let requests = web["requests"].as_u64().unwrap();
    for kind in ["connect", "read", "write", "status", "timeout"] {
        assert_eq!(web["errors"][kind], 0, "{web}");
    }
    assert!(web["received_bytes"].as_u64().unwrap() > requests * 1024, "{web}");
    // All traffic of the client has passed the card, in both directions.
    let wire = &figures["card"]["wires"][0];
    assert!(wire["rx_packets"].as_u64().unwrap() > 20, "{wire}");
    assert!(wire["tx_bytes"].as_u64().unwrap() > web["received_bytes"].as_u64().unwrap(), "{wire}");
    assert_eq!(figures["card"]["queues"].as_array().unwrap().len(), 4);
    assert_eq!(left_by(id), Vec::<String>::new());
}

#[test]
fn ctrl_c_removes_everything_and_so_does_the_start_after_a_kill() {
    if !can_run("ctrl_c_removes_everything_and_so_does_the_start_after_a_kill") {
        return;
    }
    let _machine = machine();
    let killed = spawn(&["demo", "web", "--seconds=600"]);
    let id = killed.id();
    let programs = wait_for_load(id);
    kill_process(Pid::from_child(&killed), Signal::KILL).unwrap();
    killed.wait_with_output().unwrap();
    // Its programs end by themselves, its namespaces stay.
    let runs = |id: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z ")
    };
    wait_until("its programs have ended", || !programs.iter().any(runs));
    assert!(left_by(id).len() >= 3, "{:?}", left_by(id));

    let interrupted = spawn(&["demo", "web", "--seconds=600"]);
    wait_for_load(interrupted.id());
    assert_eq!(left_by(id), Vec::<String>::new(), "the next start has removed them");
    interrupt(&interrupted);
    let id = interrupted.id();
    let output = interrupted.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted; everything is removed"), "{}", stderr(&output));
    assert_eq!(left_by(id), Vec::<String>::new());
}

#[test]
fn missing_programs_are_named_with_the_fix() {
    let output =
        Command::new(PICNIC).args(["demo", "web"]).env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("nginx and wrk are not installed"), "{said}");
    assert!(said.contains("apt-get install iproute2 nginx-light procps util-linux wrk"), "{said}");
    for wrong in ["--seconds=0", "--connections=0", "--seconds=x"] {
        assert_eq!(picnic(&["demo", "web", wrong]).status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn wrong_keys_are_refused_before_any_change() {
    if !can_run("wrong_keys_are_refused_before_any_change") {
        return;
    }
    let child = spawn(&["demo", "web", "--set", "host.queues=0"]);
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--set: host.queues: found 0"), "{}", stderr(&output));
    assert_eq!(left_by(id), Vec::<String>::new());
}

#[test]
fn the_web_demo_runs_in_the_kernel() {
    let test = "the_web_demo_runs_in_the_kernel";
    if !can_run(test) {
        return;
    }
    if !picnic_kernel::is_built() {
        return skip(test, "it needs clang at build time");
    }
    let _machine = machine();
    let (id, figures) = served(&["--engine", "kernel", "--set", "host.queues=1"]);
    assert_eq!(figures["card"]["engine"], "kernel");
    let web = &figures["web"];
    // Requests that hold one packet each have come through the card.
    let wire = &figures["card"]["wires"][0];
    assert!(wire["rx_packets"].as_u64() > web["requests"].as_u64(), "{wire} {web}");
    // Of a core that did this work, in softirqs or polling.
    let core = &figures["card"]["borrowed_core"];
    let shares = ["softirq_fraction", "busy_fraction"].map(|share| core[share].as_f64().unwrap());
    assert!(shares[0] + shares[1] > 0.0, "{core}");
    assert_eq!(left_by(id), Vec::<String>::new());
}
