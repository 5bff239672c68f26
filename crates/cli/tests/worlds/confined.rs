//! The example cards with a network, their threads confined: nothing they need is refused.

use crate::common::*;
use picnic_machine::testbed::Testbed;
use serde_json::Value;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The card's interfaces by example.
const LINKS: [&str; 7] = ["wire0", "eth1", "w0", "w1", "w2", "w3", "w4"];

/// A namespace for the card's interfaces, and one for their other ends and the card's host.
struct Hosts(Testbed);

impl Hosts {
    fn link(&self, name: &str) {
        let (index, peer) =
            (name.bytes().map(usize::from).sum::<usize>() % 200, format!("p{name}"));
        self.0.add_veth(("others", &peer), ("card", name), "").unwrap();
        self.0.ip("others", &format!("address add 198.18.{index}.1/24 dev {peer}")).unwrap();
        self.0.ip("others", &format!("link set {peer} up")).unwrap();
        self.0.ip("card", &format!("link set {name} up")).unwrap();
    }

    /// Requests for unused addresses, at every interface.
    fn ask(&self, name: &str) {
        let ping = format!("ping -c 2 -i 0.2 -W 1 -I p{name} 198.18.255.9");
        let _ = self.0.within("others", &ping);
    }

    fn start(&self, example: &str, settings: &[String]) -> Child {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cards");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0.netns("card"), PICNIC, "run"]);
        command.arg(folder.join(example)).arg("--json");
        command.args(settings.iter().map(|setting| format!("--set={setting}")));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

fn hosts(test: &str) -> Option<Hosts> {
    bed::testbed(test, &["card", "others"], &["ip", "ping"]).map(Hosts)
}

fn ended(child: Child) -> Value {
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Says so if a call was refused.
    let report = json(&output);
    assert_balanced(&report);
    report
}

/// How many packets each wire of the card with this socket has received; none until it answers.
fn received(socket: &str) -> Vec<u64> {
    let output = picnic(&["ctl", "--socket", socket, "stats", "--json"]);
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let wires = stats["wires"].as_array().into_iter().flatten();
    wires.map(|wire| wire["rx_packets"].as_u64().unwrap()).collect()
}

#[test]
fn a_guest_that_stays_does_not_hold_up_the_end() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("vm0.sock");
    let guest = format!("[[host.guest]]\nsocket = {socket:?}\n");
    let text = format!("[card]\nname = \"stays\"\n[host]\nattachment = \"vhost-user\"\n{guest}");
    std::fs::write(folder.path().join("card.toml"), text).unwrap();
    let card = Running::start_in("stays", folder.path(), &[]);
    let mut front_end = UnixStream::connect(&socket).unwrap();
    // In the middle of a message, so that its thread must be woken.
    front_end.write_all(&[1]).unwrap();
    let (report, told) = card.stop();
    assert!(!format!("{}{told}", report["notes"]).contains("system calls refused"), "{report}");
    assert!(!socket.exists(), "its thread has ended");
}

#[test]
fn example_cards_need_nothing_that_is_refused() {
    let Some(hosts) = hosts("example_cards_need_nothing_that_is_refused") else { return };
    let _machine = machine();
    LINKS.iter().for_each(|name| hosts.link(name));
    let server = || vec![format!("host.namespace={}", hosts.0.netns("others"))];
    let web = [server(), vec![format!("wire[0].namespace={}", hosts.0.netns("card"))]].concat();
    let cards: [(&str, Vec<String>, &[&str]); 4] = [
        ("packet.toml", vec![], &LINKS[..1]),
        ("tap.toml", server(), &LINKS[1..2]),
        ("web.toml", web, &LINKS[2..3]),
        ("five-wires.toml", vec![], &LINKS[2..]),
    ];
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket").display().to_string();
    for (example, mut settings, links) in cards {
        settings.push(format!("control.socket={socket}"));
        let child = hosts.start(example, &settings);
        wait_until(&format!("packets at each wire of {example}"), || {
            let received = received(&socket);
            assert!(received.is_empty() || received.len() == links.len(), "{received:?}");
            if received.is_empty() || received.contains(&0) {
                links.iter().for_each(|name| hosts.ask(name));
            }
            !received.is_empty() && !received.contains(&0)
        });
        ended(child);
    }
}

#[test]
fn xdp_thread_keeps_only_needed_privileges() {
    const NAME: &str = "xdp_thread_keeps_only_needed_privileges";
    /// CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF.
    const NEEDED: u64 = 1 << 12 | 1 << 13 | 1 << 39;
    const IPC_LOCK: u64 = 1 << 14;
    let Some(hosts) = hosts(NAME) else { return };
    let _machine = machine();
    hosts.link("wire0");
    let child = hosts.start("xdp.toml", &["control.socket=off".into()]);
    let id = child.id();
    let is_confined = || {
        let found = statuses(id, "CapPrm:");
        let xdp = found.iter().find(|(name, _)| name == "xdp");
        let others = found.iter().filter(|(name, _)| name != "xdp");
        xdp.is_some_and(|(_, has)| has & !IPC_LOCK == NEEDED)
            && others.into_iter().all(|(_, has)| *has == 0)
            && statuses(id, "Seccomp:").iter().all(|(_, mode)| *mode == 2)
    };
    wait_until("each thread has what it needs and no more", is_confined);
    // With these it takes up its interface again.
    hosts.0.ip("card", "link del wire0").unwrap();
    hosts.link("wire0");
    wait_until("an XDP program on the new interface", || {
        hosts.0.ip("card", "-details link show wire0").unwrap().contains("prog/xdp")
    });
    hosts.ask("wire0");
    let report = ended(child);
    let notes = report["notes"].to_string();
    assert!(notes.contains("reattached"), "{report}");
}

/// Capabilities for programs in the kernel: CAP_NET_ADMIN, CAP_BPF, and, to be loaded, CAP_PERFMON.
const PROGRAMS: u64 = 1 << 12 | 1 << 39;
const LOADED: u64 = PROGRAMS | 1 << 38;
/// CAP_SYS_ADMIN: to enter the namespaces of wires.
const NAMESPACES: u64 = 1 << 21;

/// A card in the kernel, or a hybrid card, with every possible command and query:
/// its threads keep exactly the needed privileges, and nothing is refused.
fn in_the_kernel(test: &str, engine: &str, in_namespace: bool) {
    let Some(hosts) = hosts(test) else { return };
    if !has_kernel_cards(test) {
        return;
    }
    let _machine = machine();
    hosts.link("wire0");
    let place = hosts.0.netns("card");
    let namespace = if in_namespace { format!("namespace = \"{place}\"\n") } else { String::new() };
    let (host, handover) = match engine {
        "hybrid" => ("app", ""),
        _ => ("stack", "handover = \"cpumap\"\n"),
    };
    let text = |chain: &str| {
        format!(
            "[card]\nname = \"confined\"\nengine = \"{engine}\"\n\
             [[wire]]\nport = \"xdp\"\ninterface = \"wire0\"\n{namespace}{chain}\
             [host]\nattachment = \"{host}\"\nqueues = 1\n{handover}"
        )
    };
    let rss = "[[rx]]\nfunction = \"rss\"\n";
    let other = text(&format!("{rss}[[rx]]\nfunction = \"vlan\"\nallow = [7]\n"));
    let folder = folder(&[("card.toml", text(rss).as_bytes()), ("other.toml", other.as_bytes())]);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let socket = path("socket");
    let mut program = match in_namespace {
        true => Command::new(PICNIC),
        false => {
            let mut inside = Command::new("ip");
            inside.args(["netns", "exec", &place, PICNIC]);
            inside
        }
    };
    program
        .args(["run", &path("card.toml"), "--json"])
        .arg(format!("--set=control.socket={socket}"));
    let child = piped(&mut program);
    let ctl = |arguments: &[&str]| good(&[&["ctl", "--socket", &socket], arguments].concat());
    wait_until("the card answers", || {
        picnic(&["ctl", "--socket", &socket, "info"]).status.success()
    });
    let id = child.id();
    let namespaces = if in_namespace { NAMESPACES } else { 0 };
    // Except for the thread that ends the card with external programs.
    let wrong = || {
        let bound = |name: &str| match name {
            "control" => LOADED | namespaces,
            "kernel-counters" => PROGRAMS | namespaces,
            // Of the poll engine's part: see xdp_thread_keeps_only_needed_privileges.
            "xdp" => PROGRAMS | 1 << 13 | 1 << 14,
            _ => 0,
        };
        let kept = statuses(id, "CapPrm:").into_iter();
        let open = statuses(id, "Seccomp:").into_iter().filter(|(_, mode)| *mode != 2);
        let kept = kept.filter(|(name, has)| has & !bound(name) != 0);
        kept.chain(open).filter(|(name, _)| name != "picnic").collect::<Vec<_>>()
    };
    wait_until("its threads keep what they need and no more", || wrong().is_empty());
    hosts.ask("wire0");
    for asked in [
        &["stats"][..],
        &["rss", "get"],
        &["rss", "set", "--key", "symmetric"],
        &["filter", "add", "name=no-echo", "protocol=udp", "destination_ports=7", "action=drop"],
        &["filter", "list"],
        &["swap", "rx", &path("other.toml")],
        &["vlan", "get"],
        &["chain"],
        &["swap", "rx", &path("card.toml")],
    ] {
        ctl(asked);
        if asked[0] == "swap" {
            hosts.ask("wire0");
        }
    }
    wait_until("packets", || {
        hosts.ask("wire0");
        received(&socket).iter().any(|packets| *packets > 0)
    });
    ended(child);
}

#[test]
fn a_card_in_the_kernel_needs_nothing_that_is_refused() {
    in_the_kernel("a_card_in_the_kernel_needs_nothing_that_is_refused", "kernel", false);
}

#[test]
fn a_card_in_the_kernel_with_wires_in_namespaces_needs_nothing_that_is_refused() {
    const NAME: &str =
        "a_card_in_the_kernel_with_wires_in_namespaces_needs_nothing_that_is_refused";
    in_the_kernel(NAME, "kernel", true);
}

#[test]
fn a_hybrid_card_needs_nothing_that_is_refused() {
    in_the_kernel("a_hybrid_card_needs_nothing_that_is_refused", "hybrid", false);
}
