//! Two namespaces joined by a card, for the tests of kernel interfaces as wires.

#![allow(unreachable_pub)]

use crate::bed;
use picnic_control::{Launch, Registries, Report, Running};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::function::{Function, PacketMut, Verdict, per_packet};
use picnic_core::registry::{BuildContext, Component, Entry, NoKeys};
use picnic_functions::rss::Rss;
use picnic_host::registries;
use picnic_machine::testbed::{Program, Testbed};
use picnic_testing::{let_pass, machine, wait_for, wait_until};

/// Sends packets from one wire out on the other.
struct Bridge;

impl Component for Bridge {
    type Product = Box<dyn Function>;
    type Config = NoKeys;
    const NAME: &'static str = "bridge";
    const HELP: &'static str = "from each of two wires to the other";

    fn build(_: NoKeys, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(per_packet(|packet: &mut PacketMut<'_>| Verdict::Transmit(1 - packet.wire))))
    }
}

static FUNCTIONS: &[Entry<Box<dyn Function>>] = &[Entry::of::<Bridge>(), Entry::of::<Rss>()];

pub fn start(card: &str) -> Result<Box<dyn Running>, String> {
    start_with(card, registries())
}

/// Starts a card whose wires are wrapped as in these registries.
pub fn start_with(card: &str, registries: Registries) -> Result<Box<dyn Running>, String> {
    let card = CardFile::parse(card, None).map_err(|error| error.to_string())?;
    let registries = Registries { functions: FUNCTIONS, ..registries };
    Launch::new(&card, registries).start_alone().map_err(|error| error.to_string())
}

/// Waits until an idle card has looked at its interfaces, which it does at least every 20 ms while
/// its core is not taken away.
pub fn let_look(running: &dyn Running) {
    let_pass(100);
    let wakeups = || running.monitor().notes.core.wakeups.get();
    let before = wakeups();
    // A whole turn is between two.
    wait_until("the card has looked", || wakeups() >= before + 2);
}

pub fn stop(running: Box<dyn Running>) -> Report {
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced(), "{report:#?}");
    assert_eq!((report.ledger.in_flight, report.buffers_missing), (0, 0), "{report:#?}");
    report
}

/// Three namespaces: a0 in `a`, b0 in `b`, their other ends w0 and w1 in `m`. Removed when dropped.
pub struct Lab {
    pub bed: Testbed,
    port: &'static str,
    /// Options of each veth end.
    options: String,
    _machine: picnic_testing::Machine,
}

impl Lab {
    /// For wires of a port. None, with a message, if this machine has no namespaces.
    pub fn new(test: &str, port: &'static str, queues: usize) -> Option<Lab> {
        let machine = machine();
        let bed = bed::testbed(test, &["a", "b", "m"], &["ip", "ping", "iperf3"])?;
        let options = format!("numrxqueues {queues} numtxqueues {queues}");
        let lab = Lab { bed, port, options, _machine: machine };
        lab.run("m", "sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        (0..2).for_each(|side| lab.connect(side));
        Some(lab)
    }

    /// Makes the veth pair of side `a` (0) or `b` (1).
    pub fn connect(&self, side: usize) {
        let (place, number) = (["a", "b"][side], side + 1);
        let (near, far) = (format!("w{side}"), format!("{place}0"));
        self.bed.add_veth(("m", &near), (place, &far), &self.options).unwrap();
        self.run("m", &format!("ip link set {near} up"));
        for command in [
            format!("ip link set {far} up"),
            format!("ip address add 10.9.0.{number}/24 dev {far}"),
            format!("ip -6 address add fd09::{number}/64 dev {far} nodad"),
        ] {
            self.run(place, &command);
        }
        // Until then the kernel drops what is sent.
        self.bed.wait_for_carrier("m", &near).unwrap();
        self.bed.wait_for_carrier(place, &far).unwrap();
    }

    /// Runs a command in a namespace; returns its output.
    pub fn run(&self, place: &str, command: &str) -> String {
        self.bed.within(place, command).unwrap()
    }

    /// Runs a command in a namespace; returns whether it succeeded.
    pub fn is_good(&self, place: &str, command: &str) -> bool {
        self.bed.within(place, command).is_ok()
    }

    /// Makes the kernel of `a` ask only once for a neighbour, and send nothing by itself.
    pub fn ask_once(&self) {
        self.run("a", "sysctl -qw net.ipv4.neigh.a0.mcast_solicit=1");
        self.is_good("a", "sysctl -qw net.ipv6.conf.a0.disable_ipv6=1");
    }

    /// Starts a program in a namespace; dropping it ends it.
    pub fn spawn(&self, place: &str, command: &str) -> Program {
        self.bed.start(place, &command.split_whitespace().collect::<Vec<_>>(), &[]).unwrap()
    }

    /// Pings an address every ten milliseconds. On a busy machine the kernel may give up address
    /// resolution and drop waiting packets, so the pings are repeated until all are answered.
    pub fn pings(&self, place: &str, rest: &str) {
        let ping = format!("ping -q -c 20 -i 0.01 -W 20 {rest}");
        wait_until("pings are answered", || self.is_good(place, &ping));
    }

    /// One of the card's wires.
    pub fn wire(&self, side: usize) -> String {
        let (port, namespace) = (self.port, self.bed.netns("m"));
        format!(
            "[[wire]]\nport = \"{port}\"\ninterface = \"w{side}\"\nnamespace = \"{namespace}\"\n"
        )
    }

    /// Removes one interface under load, and the other for a moment, while a card joins both: the
    /// card reopens both, and reports it.
    pub fn loses_interfaces(&self, card: &str) {
        let running = start(card).unwrap();
        self.pings("a", "10.9.0.2");
        let load = self.spawn("a", "ping -q -f -s 1000 10.9.0.2");
        let also = self.spawn("b", "ping -q -f -s 1000 10.9.0.1");
        let ledger = || running.view().ledger.read();
        wait_until("under load", || ledger().transmitted > 1000);
        self.run("m", "ip link delete w1");
        wait_until("w1 is missed", || {
            ledger().drops.get("wire_down").is_some_and(|&drops| drops > 100)
        });
        drop((load, also));
        self.connect(1);
        // b0 has another address now.
        self.run("a", "ip neighbour flush dev a0");
        wait_until("w1 is reattached", || self.is_good("a", "ping -q -c 1 -W 1 10.9.0.2"));
        self.run("m", "ip link set w0 down");
        let_look(&*running);
        self.run("m", "ip link set w0 up");
        wait_until("w0 is reattached", || self.is_good("b", "ping -q -c 1 -W 1 10.9.0.1"));
        let report = stop(running);
        let notes = report.notes.join("\n");
        for part in [
            "w0: went down or lost its carrier 1 times",
            "w0: reappeared and was reattached 1 times",
            "w1: was deleted or moved away 1 times",
            "w1: reappeared and was reattached",
        ] {
            assert!(notes.contains(part), "{notes}");
        }
    }

    /// Runs iperf3 from `a` to `b`; returns its JSON output.
    ///
    /// Packets in flight fit in the rings of interfaces and card, if a core is preempted.
    pub fn iperf(&self, options: &str) -> serde_json::Value {
        let client = format!("timeout 50 iperf3 --json --connect-timeout 10000 -w 256K {options}");
        // A server whose only connection failed gets no other, so each try has its own.
        wait_for("iperf3 has run", || {
            let mut server = self.spawn("b", "iperf3 -s -1");
            server.wait_for_port(5201).ok()?;
            let output = self.bed.within("a", &client).ok()?;
            let output: serde_json::Value = serde_json::from_str(&output).ok()?;
            output.get("error").is_none().then_some(output)
        })
    }
}
