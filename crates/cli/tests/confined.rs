//! The example cards with a network, their threads confined: nothing they need is refused.

mod common;

use common::*;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
/// The card's interfaces by example.
const LINKS: [&str; 7] = ["wire0", "eth1", "w0", "w1", "w2", "w3", "w4"];

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments:?}: {}", stderr(&output).trim())),
    }
}

/// A namespace for the card's interfaces, and one for their other ends and the card's host.
struct Hosts {
    card: String,
    others: String,
}

impl Hosts {
    fn new(test: &str) -> Result<Self, String> {
        let id = std::process::id();
        let hosts = Hosts { card: format!("{test}-c-{id}"), others: format!("{test}-o-{id}") };
        for name in [&hosts.card, &hosts.others] {
            ip(&["netns", "add", name])?;
        }
        Ok(hosts)
    }

    fn link(&self, name: &str) {
        let (index, peer) =
            (name.bytes().map(usize::from).sum::<usize>() % 200, format!("p{name}"));
        let others = ["-n", &*self.others];
        let run = |arguments: &[&str]| ip(&[&others, arguments].concat()).unwrap();
        run(&["link", "add", &peer, "type", "veth", "peer", "name", name, "netns", &self.card]);
        run(&["address", "add", &format!("198.18.{index}.1/24"), "dev", &peer]);
        run(&["link", "set", &peer, "up"]);
        ip(&["-n", &self.card, "link", "set", name, "up"]).unwrap();
    }

    /// Questions for addresses that nobody has, at every interface.
    fn ask(&self, name: &str) {
        let peer = format!("p{name}");
        let words = ["netns", "exec", &self.others, "ping", "-c", "2", "-i", "0.2", "-W", "1"];
        let _ = ip(&[&words[..], &["-I", &peer, "198.18.255.9"]].concat());
    }

    fn start(&self, example: &str, settings: &[String]) -> Child {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cards");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.card, PICNIC, "run"]);
        command.arg(folder.join(example)).args(["--json", "--set=control.socket=off"]);
        command.args(settings.iter().map(|setting| format!("--set={setting}")));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in [&self.card, &self.others] {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn hosts(test: &str) -> Option<Hosts> {
    if !rustix::process::geteuid().is_root() {
        skip(test, "network namespaces need root");
        return None;
    }
    Hosts::new(&test.replace('_', "-")[..10]).inspect_err(|error| skip(test, error)).ok()
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

#[test]
fn example_cards_need_nothing_that_is_refused() {
    let Some(hosts) = hosts("example_cards_need_nothing_that_is_refused") else { return };
    let _machine = machine();
    LINKS.iter().for_each(|name| hosts.link(name));
    let server = || vec![format!("host.namespace={}", hosts.others)];
    let web = [server(), vec![format!("wire[0].namespace={}", hosts.card)]].concat();
    let cards: [(&str, Vec<String>, &[&str]); 4] = [
        ("packet.toml", vec![], &LINKS[..1]),
        ("tap.toml", server(), &LINKS[1..2]),
        ("web.toml", web, &LINKS[2..3]),
        ("five-wires.toml", vec![], &LINKS[2..]),
    ];
    for (example, settings, links) in cards {
        let child = hosts.start(example, &settings);
        wait_for_threads(child.id());
        links.iter().for_each(|name| hosts.ask(name));
        let report = ended(child);
        let wires = report["wires"].as_array().unwrap();
        assert_eq!(wires.len(), links.len());
        for wire in wires {
            assert!(wire["rx_packets"].as_u64().unwrap() > 0, "{example}: {report}");
        }
    }
}

#[test]
fn the_xdp_thread_keeps_what_it_needs_and_no_more() {
    const NAME: &str = "the_xdp_thread_keeps_what_it_needs_and_no_more";
    /// CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF.
    const NEEDED: u64 = 1 << 12 | 1 << 13 | 1 << 39;
    const IPC_LOCK: u64 = 1 << 14;
    let Some(hosts) = hosts(NAME) else { return };
    let _machine = machine();
    hosts.link("wire0");
    let child = hosts.start("xdp.toml", &[]);
    let id = child.id();
    let start = Instant::now();
    let is_confined = || {
        let found = statuses(id, "CapPrm:");
        let xdp = found.iter().find(|(name, _)| name == "xdp");
        let others = found.iter().filter(|(name, _)| name != "xdp");
        xdp.is_some_and(|(_, has)| has & !IPC_LOCK == NEEDED)
            && others.into_iter().all(|(_, has)| *has == 0)
            && statuses(id, "Seccomp:").iter().all(|(_, mode)| *mode == 2)
    };
    while !is_confined() {
        let (caps, modes) = (statuses(id, "CapPrm:"), statuses(id, "Seccomp:"));
        assert!(start.elapsed() < PATIENCE, "{caps:x?} {modes:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // With these it takes up its interface again.
    ip(&["-n", &hosts.card, "link", "del", "wire0"]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    hosts.link("wire0");
    std::thread::sleep(Duration::from_millis(1500));
    hosts.ask("wire0");
    let report = ended(child);
    let notes = report["notes"].to_string();
    assert!(notes.contains("taken up again"), "{report}");
}
