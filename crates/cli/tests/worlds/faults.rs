//! What can go wrong around a card: a clear error with file, line and key, exit code 2 or 1, and
//! the machine as it was found.
//!
//! | fault | here | elsewhere |
//! |---|---|---|
//! | not root, no TUN | yes | `crates/host/tests/packet_wire.rs`, `xdp_wire.rs` |
//! | name taken, wire or namespace absent | yes | `crates/host/tests/tap_host.rs` |
//! | MTU out of range, address malformed | yes | `crates/ports/src/tap/config.rs` |
//! | port in use | yes | `crates/host/tests/control.rs` |
//! | stale socket | | `control.rs` |
//! | second card on the same wire | yes | `tests/e2e/faults.py` |
//! | SIGKILL at any moment | yes | `tests/e2e/faults.py`, `tests/guest` |
//! | interface removed under load | | `crates/host/tests/{tap_host,packet_wire,xdp_wire}.rs` |
//! | target process stopped | | `tests/e2e/faults.py`; the card itself: here |
//! | disk full while capturing | yes | `crates/host/tests/capture.rs` |

use crate::common::*;
use picnic_machine::testbed::Testbed;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

/// Nobody, on every Linux.
const NOBODY: u32 = 65_534;
const GENERATOR: &str = "[[wire]]\nport = \"generator\"\nrate_pps = 20000\n";

/// A network namespace with a veth from w0 to c0; removed at the end of the test.
struct Namespace(Testbed);

impl Namespace {
    /// None if this machine allows none; prints the reason.
    fn new(test: &str) -> Option<Self> {
        let namespace = Namespace(bed::testbed(test, &["n"], &["ip"])?);
        namespace.0.add_veth(("n", "w0"), ("n", "c0"), "").unwrap();
        namespace.ip("link set w0 up");
        namespace.ip("link set c0 up");
        Some(namespace)
    }

    fn name(&self) -> String {
        self.0.netns("n")
    }

    fn ip(&self, rest: &str) -> String {
        self.0.ip("n", rest).unwrap()
    }

    /// Interfaces, without values that change on their own.
    fn links(&self) -> Vec<(String, u64)> {
        let links = self.ip("-d -j link show");
        let links: serde_json::Value = serde_json::from_str(&links).unwrap();
        let link = |link: &serde_json::Value| {
            let name = link["ifname"].as_str().unwrap().to_owned();
            (name, link["promiscuity"].as_u64().unwrap_or(0))
        };
        links.as_array().unwrap().iter().map(link).collect()
    }

    fn wire(&self) -> String {
        let place = self.name();
        format!("[[wire]]\nport = \"packet\"\ninterface = \"w0\"\nnamespace = \"{place}\"\n")
    }

    fn tap(&self) -> String {
        let place = self.name();
        format!("[host]\nattachment = \"tap\"\nname = \"h0\"\nnamespace = \"{place}\"\n")
    }
}

fn has_tun(test: &str) -> bool {
    let has_tun = std::path::Path::new("/dev/net/tun").exists();
    if !has_tun {
        skip(test, "there is no /dev/net/tun");
    }
    has_tun
}

/// Nothing on standard output, and on the other one line: file, line, and these words.
fn told(output: &Output, code: i32, place: &str, words: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(stdout(output), "");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(place) && text.contains(words), "no {place:?} or {words:?}: {text}");
}

#[test]
fn interface_errors_name_the_line_and_leave_nothing() {
    const NAME: &str = "interface_errors_name_the_line_and_leave_nothing";
    let Some(there) = Namespace::new(NAME) else { return };
    if !has_tun(NAME) {
        return;
    }
    let (wire, tap) = (there.wire(), there.tap());
    let found = there.links();
    let elsewhere = format!("{}-x", there.name());
    for (text, place, words) in [
        (wire.replace("w0", "w7"), "card.toml:3: wire[0].interface: ", "found \"w7\", but "),
        (
            wire.replace(&there.name(), &elsewhere),
            "card.toml:4: wire[0].namespace: ",
            "does not exist",
        ),
        (tap.replace(&there.name(), &elsewhere), "card.toml:4: host.namespace: ", "does not exist"),
        (tap.replace("h0", "c0"), "card.toml:3: host.name: ", "found \"c0\", "),
        (format!("{tap}mtu = 9001\n"), "card.toml:5: host.mtu: ", "allowed: 68 to 9000"),
        (format!("{tap}mtu = 67\n"), "card.toml:5: host.mtu: ", "allowed: 68 to 9000"),
        (
            format!("{tap}addresses = [\"10.0.0.1\"]\n"),
            "card.toml:5: host.addresses[0]: ",
            "found \"10.0.0.1\"",
        ),
        (
            format!("{tap}addresses = [\"10.0.0.1/24\", \"10.0.0.256/24\"]\n"),
            "card.toml:5: host.addresses[1]: ",
            "found \"10.0.0.256/24\"",
        ),
        // The wire exists, and is left unchanged when the host cannot be made.
        (format!("{}{wire}", tap.replace("h0", "c0")), "card.toml:3: host.name: ", "\"c0\""),
        (format!("{wire}{wire}"), "wire[1].interface: ", "w0"),
    ] {
        let (folder, _) = card(&text);
        let output = picnic_in(folder.path(), &["run", "card.toml", "--duration", "0.1"]);
        told(&output, 2, place, words);
        assert_eq!(there.links(), found, "{text}");
    }
}

#[test]
fn missing_root_is_explained() {
    const NAME: &str = "missing_root_is_explained";
    let Some(there) = Namespace::new(NAME) else { return };
    if !has_tun(NAME) {
        return;
    }
    let host = "[host]\nattachment = \"tap\"\n";
    let wire = |port| format!("[[wire]]\nport = \"{port}\"\ninterface = \"lo\"\n");
    let namespace = format!("{}namespace = \"{}\"\n", wire("packet"), there.name());
    for (text, words) in [
        (host.to_owned(), "CAP_NET_ADMIN"),
        (wire("tap").replace("lo", "picnic-none"), "CAP_NET_ADMIN"),
        (wire("packet"), "CAP_NET_RAW"),
        (wire("xdp"), "CAP_BPF"),
        (namespace, "CAP_SYS_ADMIN"),
    ] {
        let (folder, file) = card(&text);
        let binary = copy_of_picnic(folder.path());
        for path in [folder.path(), &binary, &file] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new(&binary);
        command.args(["run", "card.toml", "--duration=0.1"]).current_dir(folder.path());
        let output = command.env_clear().uid(NOBODY).gid(NOBODY).output().unwrap();
        told(&output, 2, "card.toml:", words);
    }
}

#[test]
fn missing_tun_is_explained() {
    const NAME: &str = "missing_tun_is_explained";
    let Some(there) = Namespace::new(NAME) else { return };
    let (folder, _) = card(&format!("{GENERATOR}{}", there.tap()));
    // A separate mount namespace, in which /dev/net is empty.
    let script = "mount -t tmpfs none /dev/net && exec \"$0\" run card.toml --duration 0.1";
    let unshare = ["-m", "--propagation", "private", "sh", "-c", script, PICNIC];
    let mut command = Command::new("unshare");
    let output = command.args(unshare).current_dir(folder.path()).output();
    let output = match output {
        // Failures of unshare and mount have exit codes 1 and 32.
        Ok(output) if output.status.code() == Some(2) => output,
        Ok(output) => return skip(NAME, &format!("/dev/net stays: {}", stderr(&output).trim())),
        Err(error) => return skip(NAME, &format!("unshare: {error}")),
    };
    told(&output, 2, "card.toml:6: host.name: ", "/dev/net/tun, which is absent: try `modprobe");
    assert!(there.links().iter().all(|(name, _)| name != "h0"));
}

#[test]
fn used_ports_are_reported() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (folder, _) = card(&format!("{GENERATOR}[control]\nmetrics = \"{address}\"\n"));
    let output = picnic_in(folder.path(), &["run", "card.toml", "--duration", "0.1"]);
    let words = format!("found {address}, which another program listens on");
    told(&output, 2, "card.toml:5: control.metrics: ", &words);
}

/// A card of a program that runs; killed with the test.
struct Card(Option<Child>);

impl Card {
    fn start(path: &std::path::Path) -> Self {
        let mut command = command();
        let command = command.arg("run").arg(path).args(["--json", "--quiet", "--duration", "600"]);
        Card(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    fn send(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(self.0.as_ref().unwrap());
        rustix::process::kill_process(id, signal).unwrap();
    }

    fn killed(mut self) {
        let mut child = self.0.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn ended(mut self) -> serde_json::Value {
        self.send(rustix::process::Signal::INT);
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report = json(&output);
        assert_balanced(&report);
        report
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_second_card_leaves_the_first_alone() {
    const NAME: &str = "a_second_card_leaves_the_first_alone";
    let Some(there) = Namespace::new(NAME) else { return };
    let _machine = machine();
    let (folder, path) = card(&format!("[card]\nname = \"first\"\n{}", there.wire()));
    let second = path.with_file_name("second.toml");
    std::fs::write(&second, format!("[card]\nname = \"second\"\n{}", there.wire())).unwrap();
    let first = Card::start(&path);
    wait_until("promiscuous", || there.links().contains(&("w0".into(), 1)));
    let mut command = command();
    let command = command.args(["run", "second.toml", "--duration", "0.1"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    told(&output, 2, "second.toml:5: wire[0].interface: ", "a card already");
    assert!(there.links().contains(&("w0".into(), 1)));
    first.ended();
    assert!(there.links().contains(&("w0".into(), 0)));
}

#[test]
fn killed_cards_leave_no_interface() {
    const NAME: &str = "killed_cards_leave_no_interface";
    let Some(there) = Namespace::new(NAME) else { return };
    if !has_tun(NAME) {
        return;
    }
    let _machine = machine();
    let found = there.links();
    let (_folder, path) = card(&format!("{}{}", there.wire(), there.tap()));
    // From before it has made anything to when all of it runs.
    for moment_ms in [0, 1, 2, 4, 8, 16, 32, 64, 128, 256] {
        let victim = Card::start(&path);
        let_pass(moment_ms);
        victim.killed();
        wait_until("as it was found", || there.links() == found);
    }
    let running = Card::start(&path);
    wait_until("h0 is made", || there.links().iter().any(|(name, _)| name == "h0"));
    running.ended();
    assert_eq!(there.links(), found);
}

#[test]
fn suspended_cards_resume_and_count_losses() {
    const NAME: &str = "suspended_cards_resume_and_count_losses";
    let Some(there) = Namespace::new(NAME) else { return };
    let _machine = machine();
    there.ip("address add 198.18.0.1/24 dev c0");
    there.ip("neighbour add 198.18.0.2 lladdr 02:00:00:00:00:02 dev c0");
    let text = format!("[card]\nname = \"stopped\"\n{}frames = 64\n", there.wire());
    let (_folder, path) = card(&text);
    let running = Card::start(&path);
    let seen = || counted("stopped", "in");
    wait_until("promiscuous", || there.links().contains(&("w0".into(), 1)));
    let send = |count: usize| {
        let path = format!("/run/netns/{}", there.name());
        // A separate thread, which never leaves the namespace.
        let sender = std::thread::spawn(move || {
            let namespace = std::fs::File::open(path).unwrap();
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
            for _ in 0..count {
                socket.send_to(&[0; 100], "198.18.0.2:9").unwrap();
            }
        });
        sender.join().unwrap();
    };
    send(10);
    wait_until("the first are seen", || seen() >= 10);
    running.send(rustix::process::Signal::STOP);
    send(2000);
    running.send(rustix::process::Signal::CONT);
    send(10);
    // A card that is asked to end takes neither packets nor counts from its wires: it must have
    // had a turn.
    wait_until("all are seen or counted", || seen() >= 2020);
    // The kernel has dropped packets that did not fit into the ring, and they are counted.
    let report = running.ended();
    let overrun = report["drops"]["wire_overrun"].as_u64().unwrap_or(0);
    assert!(report["ledger"]["in"].as_u64().unwrap() >= 2000, "{report:#}");
    assert!(overrun > 100, "{report:#}");
}

#[test]
fn full_disks_end_captures_but_not_the_card() {
    let _machine = machine();
    let (_folder, path) = card(&format!("[card]\nname = \"full\"\n{GENERATOR}"));
    let running = Card::start(&path);
    let capture = || {
        let arguments = ["capture", "--card", "full", "-w", "/dev/full"];
        command().args(arguments).output().unwrap()
    };
    wait_until("the card answers", || {
        let mut command = command();
        command.args(["ctl", "--card", "full"]).output().unwrap().status.success()
    });
    let output = capture();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("No space left"), "{}", stderr(&output));
    let before = counted("full", "delivered");
    wait_until("packets go on", || counted("full", "delivered") > before);
    let report = running.ended();
    assert!(report["ledger"]["delivered"].as_u64().unwrap() > 0);
}
