//! `picnic storm`: members as processes, their logs, and the check of the logs.

use crate::common::command;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};

/// Members as `NAME=ADDRESS`. No other process has the address of this group, nor do ports below
/// 32768 go to those that ask for any.
fn members(group: u8) -> Vec<String> {
    let [.., high, low] = std::process::id().to_be_bytes();
    let ports = ["a", "b", "c"].into_iter().zip(7001..);
    ports.map(|(name, port)| format!("{name}=127.{group}.{high}.{low}:{port}")).collect()
}

fn start(name: &str, members: &[String], folder: &Path, extra: &[&str]) -> Child {
    let mut command = command();
    command.args(["storm", "node", name]).args(members).args(extra).current_dir(folder);
    command.args(["--messages", "60", "--log", &format!("{name}.log")]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn check(folder: &Path, logs: &[&str]) -> (i32, String) {
    let mut command = command();
    let output = command.args(["storm", "check", "--json"]).args(logs).current_dir(folder).output();
    let output = output.unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn processes_print_the_same_lines_in_the_same_order_and_their_logs_agree() {
    let folder = tempfile::tempdir().unwrap();
    let members = members(87);
    let mut nodes: Vec<Child> = ["a", "b", "c"]
        .map(|name| {
            start(name, &members, folder.path(), if name == "c" { &["--json"] } else { &[] })
        })
        .into();
    for node in &mut nodes {
        let mut views = BufReader::new(node.stderr.as_mut().unwrap()).lines().map(Result::unwrap);
        assert!(views.any(|view| view.ends_with(": a, b, c")), "all members are in one view");
    }
    for (node, name) in nodes.iter_mut().zip(["a", "b", "c"]) {
        let mut lines = node.stdin.take().unwrap();
        for number in 0..20 {
            writeln!(lines, "line {number} of {name}").unwrap();
        }
    }
    let texts: Vec<String> = nodes
        .into_iter()
        .map(|node| {
            let output = node.wait_with_output().unwrap();
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap()
        })
        .collect();
    assert_eq!(texts[0].lines().count(), 60);
    assert_eq!(texts[0], texts[1]);
    assert!(texts[0].contains("b\tline 19 of b\n"));
    let json: serde_json::Value = serde_json::from_str(&texts[2]).unwrap();
    assert_eq!((&json["member"], &json["counts"]["delivered"]), (&"c".into(), &60.into()));

    let (code, report) = check(folder.path(), &["a.log", "b.log", "c.log"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((code, report["problems"].as_array().unwrap().len()), (0, 0));
    let log = folder.path().join("b.log");
    let edited = std::fs::read_to_string(&log).unwrap().replacen("deliver a", "deliver c", 1);
    std::fs::write(&log, edited).unwrap();
    assert_eq!(check(folder.path(), &["a.log", "b.log", "c.log"]).0, 1);
    std::fs::write(&log, "storm 1 b\ndeliver\n").unwrap();
    assert_eq!(check(folder.path(), &["a.log", "b.log"]).0, 2);
}

#[test]
fn other_member_lists_and_duplicate_names_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let members = members(88);
    let mut listed = start("a", &members, folder.path(), &[]);
    // Two others: b has no c in its list, and a process that claims to be a has b's address.
    let mut shorter = start("b", &members[..2], folder.path(), &[]);
    let [a, _, c] =
        ["a", "b", "c"].map(|name| members.iter().find(|m| m.starts_with(name)).unwrap());
    let swapped = [format!("a{}", &c[1..]), members[1].clone(), format!("c{}", &a[1..])];
    let mut twin = start("a", &swapped, folder.path(), &[]);
    let mut lines = BufReader::new(listed.stderr.take().unwrap()).lines().map(Result::unwrap);
    let expected = ["another process has this member's name", "another group or member list"];
    let mut missing = expected.to_vec();
    while !missing.is_empty() {
        let line = lines.next().expect("both are told");
        missing.retain(|text| !line.contains(text));
    }
    for node in [&mut listed, &mut shorter, &mut twin] {
        node.kill().unwrap();
        node.wait().unwrap();
    }
}

#[test]
fn unknown_member_and_wrong_address_are_usage_errors() {
    for (arguments, expected) in [
        (&["storm", "node", "x", "a=127.0.0.1:0"][..], "NAME: found x, allowed: a"),
        (&["storm", "node", "a", "a:127"], "expected NAME=HOST:PORT"),
        (&["storm", "node", "a", "a=127.0.0.1:0", "a=127.0.0.1:0"], "members: found \"a\""),
        (&["storm", "bench", "--loss", "99"], "allowed: 0 to 50"),
    ] {
        let output = command().args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{error}");
    }
}
