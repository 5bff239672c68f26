//! Common behaviour of wires at kernel interfaces, `packet` and `xdp`; needs root, iproute2, ping.

use crate::bridge::{Lab, let_look, start, stop};
use picnic_testing::{skip, this_test};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Each port, with the number of its interfaces' queues.
const PORTS: [(&str, usize); 2] = [("packet", 1), ("xdp", 4)];

/// Tries something with interfaces for each port.
fn with_each(test: &str, attempt: impl Fn(&str, Lab)) {
    for (port, queues) in PORTS {
        let Some(lab) = Lab::new(test, port, queues) else { return };
        attempt(port, lab);
    }
}

/// Why a card does not start.
fn refusal(card: &str) -> String {
    match start(card) {
        Ok(running) => panic!("runs: {card}: {:?}", stop(running).notes),
        Err(error) => error,
    }
}

#[test]
fn an_interface_is_the_wire_of_one_card() {
    with_each("an_interface_is_the_wire_of_one_card", |port, lab| {
        let running = start(&lab.wire(0)).unwrap();
        for (other, _) in PORTS {
            let error = refusal(&lab.wire(0).replace(port, other));
            let is_told = error.contains("interface") && error.contains("a card already");
            assert!(is_told, "{port}, {other}: {error}");
        }
        let error = refusal(&(lab.wire(1) + &lab.wire(1)));
        assert!(error.contains("wire[1].interface"), "{error}");
        stop(running);
        stop(start(&lab.wire(0)).unwrap());
    });
}

#[test]
fn interfaces_deleted_under_load_are_reopened() {
    with_each("interfaces_deleted_under_load_are_reopened", |port, lab| {
        // A window of packets fits in the buffers that wait for them.
        let (ring, pool) = match port {
            "xdp" => ("rx_ring = 4096\n", "[pool]\nbuffers = 65536\n"),
            _ => ("", ""),
        };
        let end = "[[rx]]\nfunction = \"bridge\"\n[host]\nqueues = 1\n";
        lab.loses_interfaces(&format!("{}{ring}{}{ring}{end}{pool}", lab.wire(0), lab.wire(1)));
    });
}

#[test]
fn cards_without_their_wire_rest_and_end() {
    with_each("cards_without_their_wire_rest_and_end", |_, lab| {
        let load = lab.spawn("a", "ping -q -f 10.9.0.2");
        let running = start(&(lab.wire(0) + "[host]\nmode = \"echo\"\n")).unwrap();
        lab.run("m", "ip link delete w0");
        drop(load);
        let_look(&*running);
        let report = stop(running);
        assert!(
            report.notes.join("\n").contains("w0: was missing at the end"),
            "{:?}",
            report.notes
        );
    });
}

#[test]
fn interface_errors_are_explained() {
    with_each("interface_errors_are_explained", |port, lab| {
        lab.run("m", "ip tuntap add dev notether mode tun");
        for (from, to, part) in [
            ("w0", "nosuch", "wire[0].interface: found \"nosuch\", but picnic-"),
            ("w0", "notether", "wire[0].interface: \"notether\" does not speak Ethernet"),
            ("-m\"", "-none\"", "wire[0].namespace: found \"picnic-"),
        ] {
            let error = refusal(&lab.wire(0).replace(from, to));
            assert!(error.contains(part), "{error}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        let error = refusal(&format!(
            "[[wire]]\nport = \"{port}\"\ninterface = \"lo\"\nnamespace = \"{path}\"\n"
        ));
        let is_told = error.contains("namespace: ") && error.contains("is not a network namespace");
        assert!(is_told, "{error}");
    });
}

/// Set for the child without privileges.
const UNPRIVILEGED: &str = "PICNIC_TEST_UNPRIVILEGED";

#[test]
fn missing_privileges_are_named() {
    const NAME: &str = "missing_privileges_are_named";
    let nobody = 65_534;
    if let Ok(namespace) = std::env::var(UNPRIVILEGED) {
        for (port, needs) in
            [("packet", &["CAP_NET_RAW"][..]), ("xdp", &["CAP_NET_RAW", "CAP_BPF"])]
        {
            let card = format!("[[wire]]\nport = \"{port}\"\ninterface = \"lo\"\n");
            let error = refusal(&card);
            let is_told = needs.iter().all(|need| error.contains(need));
            assert!(error.contains("interface: ") && is_told, "{error}");
            let error = refusal(&format!("{card}namespace = \"{namespace}\"\n"));
            assert!(error.contains("namespace: ") && error.contains("CAP_SYS_ADMIN"), "{error}");
        }
        return;
    }
    let Some(lab) = Lab::new(NAME, "packet", 1) else { return };
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([&*this_test(), "--exact"]).env(UNPRIVILEGED, lab.bed.netns("m"));
    match child.uid(nobody).gid(nobody).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => skip(NAME, &format!("another user cannot run this test: {error}")),
    }
}
