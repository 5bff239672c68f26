//! The `packet` wire between network namespaces of its own; needs root, iproute2, ping, iperf3.

use picnic_control::{Launch, Registries, Report, Running};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::function::{Function, PacketMut, Verdict, per_packet};
use picnic_core::ledger::Ledger;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::{Receiver, WirePort};
use picnic_core::registry::{BuildContext, Component, Entry};
use picnic_core::stats::WireCounters;
use picnic_functions::rss::Rss;
use picnic_host::clock::Clock;
use picnic_host::registries;
use picnic_ports::af_packet::{PacketConfig, PacketPort};
use picnic_testing::{let_pass, skip, wait_for, wait_until};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

// ---------------------------------------------------------------- a bridge of two wires

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoKeys {}

/// Sends what comes in by one wire out by the other.
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

fn start(card: &str) -> Result<Box<dyn Running>, String> {
    let card = CardFile::parse(card, None).map_err(|error| error.to_string())?;
    let registries = Registries { functions: FUNCTIONS, ..registries() };
    Launch::new(&card, registries).start_alone().map_err(|error| error.to_string())
}

fn stop(running: Box<dyn Running>) -> Report {
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced(), "{report:#?}");
    assert_eq!((report.ledger.in_flight, report.buffers_missing), (0, 0), "{report:#?}");
    report
}

#[test]
fn a_packet_has_the_time_at_which_the_kernel_took_it() {
    let Some(lab) = Lab::new("a_packet_has_the_time_at_which_the_kernel_took_it") else { return };
    let mut wire = PacketPort::open(&PacketConfig {
        interface: Some("w0".into()),
        namespace: Some(format!("{}-m", lab.0)),
        ..PacketConfig::default()
    })
    .unwrap();
    let clock = Clock::start();
    let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    let (counters, ledger, mut burst) = (WireCounters::default(), Ledger::new(0), Burst::new());
    let before = clock.now();
    // Nobody is there: what goes out is the question who has the address, at once.
    let _ = attempt(&lab.within("a", "ping -c 1 -W 1 10.9.0.77"));
    let after = clock.now();
    let_pass(20);
    let now = clock.now();
    let mut rx = Receiver::new(&mut pool, &mut burst, &counters, &ledger.card, now, 0, 64)
        .with_realtime(Some(clock.realtime_zero()));
    wire.receive(now, &mut rx);
    drop(rx);
    assert!(!burst.is_empty() && counters.stamps_ahead.get() == 0);
    // The clock of real time may be a little off: it is read beside the other.
    let off_ns = 5_000_000;
    for packet in burst.drain() {
        let ns = packet.received_at().as_nanos();
        assert!(ns + off_ns >= before.as_nanos() && ns <= after.as_nanos() + off_ns, "{ns}");
        pool.free(packet);
    }
}

// ---------------------------------------------------------------- namespaces

/// Three namespaces: a0 in `a`, b0 in `b`, their other ends w0 and w1 in `m`. Gone when dropped.
struct Lab(String);

impl Lab {
    /// None if this machine gives none; says so.
    fn new(test: &str) -> Option<Lab> {
        static LABS: AtomicUsize = AtomicUsize::new(0);
        let lab = format!("picnic-{}-{}", std::process::id(), LABS.fetch_add(1, Ordering::Relaxed));
        if !rustix::process::geteuid().is_root() {
            skip(test, "it needs root");
            return None;
        }
        for tool in ["ip", "ping", "iperf3"] {
            if Command::new(tool).arg("--help").output().is_err() {
                skip(test, &format!("{tool} is not installed"));
                return None;
            }
        }
        let lab = Lab(lab);
        for place in ["a", "b", "m"] {
            if let Err(error) = attempt(&format!("ip netns add {}-{place}", lab.0)) {
                skip(test, &format!("no network namespace can be made: {error}"));
                return None;
            }
        }
        lab.run("m", "sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        for side in 0..2 {
            lab.connect(side);
        }
        Some(lab)
    }

    /// Makes the veth pair of side `a` (0) or `b` (1).
    fn connect(&self, side: usize) {
        let (place, number) = (["a", "b"][side], side + 1);
        let lab = &self.0;
        let pair = format!("ip link add w{side} type veth peer name {place}0 netns {lab}-{place}");
        self.run("m", &pair);
        self.run("m", &format!("ip link set w{side} up"));
        for command in [
            format!("ip link set {place}0 up"),
            format!("ip address add 10.9.0.{number}/24 dev {place}0"),
            format!("ip -6 address add fd09::{number}/64 dev {place}0 nodad"),
        ] {
            self.run(place, &command);
        }
    }

    /// Gives both ends an interface in VLAN 7; false if this kernel has none.
    fn tag(&self) -> bool {
        [("a", 1), ("b", 2)].into_iter().all(|(place, number)| {
            let add = format!("ip link add link {place}0 name {place}0.7 type vlan id 7");
            attempt(&self.within(place, &add)).is_ok_and(|_| {
                self.run(place, &format!("ip link set {place}0.7 up"));
                self.run(place, &format!("ip address add 10.9.7.{number}/24 dev {place}0.7"));
                true
            })
        })
    }

    /// Has each interface's packets received on one core; false if this kernel cannot. Without
    /// it, veth receives a flow that is sent from two cores on both, in an order of its own.
    fn keep_order(&self) -> bool {
        [("a", "a0"), ("b", "b0"), ("m", "w0"), ("m", "w1")].iter().all(|(place, interface)| {
            let path = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
            let command = self.within(place, &format!("tee {path}"));
            let words: Vec<_> = command.split_whitespace().collect();
            let mut tee = Command::new(words[0]);
            let tee = tee.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null());
            let mut tee = tee.spawn().unwrap();
            std::io::Write::write_all(&mut tee.stdin.take().unwrap(), b"1").unwrap();
            tee.wait().unwrap().success()
        })
    }

    fn within(&self, place: &str, command: &str) -> String {
        format!("ip netns exec {}-{place} {command}", self.0)
    }

    /// Runs a command in a namespace; its output.
    fn run(&self, place: &str, command: &str) -> String {
        attempt(&self.within(place, command)).unwrap()
    }

    /// Starts a command in a namespace.
    fn spawn(&self, place: &str, command: &str) -> Background {
        let command = self.within(place, command);
        let words: Vec<_> = command.split_whitespace().collect();
        let mut command = Command::new(words[0]);
        Background(command.args(&words[1..]).stdout(Stdio::null()).spawn().unwrap())
    }

    /// A counter of the kernel's network stack in a namespace.
    fn count(&self, place: &str, name: &str) -> Option<u64> {
        let text = self.run(place, &format!("nstat -asz {name}"));
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
    }

    /// One of the card's wires.
    fn wire(&self, side: usize) -> String {
        let lab = &self.0;
        format!("[[wire]]\nport = \"packet\"\ninterface = \"w{side}\"\nnamespace = \"{lab}-m\"\n")
    }

    fn bridge(&self) -> String {
        let end = "[[rx]]\nfunction = \"bridge\"\n[host]\nqueues = 1\n";
        format!("{}{}{end}", self.wire(0), self.wire(1))
    }

    /// Runs iperf3 from `a` to `b`; its output as JSON.
    fn iperf(&self, options: &str) -> serde_json::Value {
        let _server = self.spawn("b", "iperf3 -s -1");
        let client = self.within("a", &format!("iperf3 --json --connect-timeout 2000 {options}"));
        // The server needs a moment.
        wait_for("iperf3 has run", || {
            let output = attempt(&client).ok()?;
            let output: serde_json::Value = serde_json::from_str(&output).ok()?;
            output.get("error").is_none().then_some(output)
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for place in ["a", "b", "m"] {
            let _ = attempt(&format!("ip netns delete {}-{place}", self.0));
        }
    }
}

/// A child that ends with the test.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attempt(command: &str) -> Result<String, String> {
    let words: Vec<_> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(text) } else { Err(format!("{command}: {text}{error}")) }
}

// ---------------------------------------------------------------- tests

#[test]
fn a_card_joins_two_namespaces_and_loses_nothing() {
    let Some(lab) = Lab::new("a_card_joins_two_namespaces_and_loses_nothing") else { return };
    let ordered = lab.keep_order();
    let running = start(&lab.bridge()).unwrap();
    lab.run("a", "ping -q -c 20 -i 0.01 -W 2 10.9.0.2");
    lab.run("a", "ping -q -c 20 -i 0.01 -W 2 fd09::2");
    // Fragments, there and back.
    lab.run("a", "ping -q -c 20 -i 0.01 -W 2 -s 8000 10.9.0.2");
    let before: u64 = running.view().wires.iter().map(|wire| wire.counters.rx_packets.get()).sum();
    let tcp = lab.iperf("-c 10.9.0.2 -n 64M");
    let bytes = tcp["end"]["sum_received"]["bytes"].as_u64().unwrap();
    let after: u64 = running.view().wires.iter().map(|wire| wire.counters.rx_packets.get()).sum();
    // Super-frames pass whole: far fewer packets than segments, acknowledgements included.
    assert!(bytes > 10_000_000 && bytes / (after - before) > 3000, "{bytes} {before} {after}");
    for options in ["-c 10.9.0.2 -n 32M -R", "-c fd09::2 -n 32M", "-c 10.9.0.2 -n 32M -P 8"] {
        let tcp = lab.iperf(options);
        let bytes = tcp["end"]["sum_received"]["bytes"].as_u64().unwrap();
        assert!(bytes > 5_000_000, "{options}: {bytes}");
    }
    let udp = lab.iperf("-c 10.9.0.2 -n 8M -u -b 50M -l 1400");
    // Packets may be lost for whom they are, if that one is kept from its core: the kernel counts.
    let refused = lab.count("b", "UdpRcvbufErrors");
    assert!(refused.is_some() && udp["end"]["sum"]["packets"].as_u64() > Some(0), "{udp:#}");
    assert!(udp["end"]["sum"]["lost_packets"].as_u64() <= refused, "{udp:#} {refused:?}");
    let report = stop(running);
    assert_eq!(report.ledger.dropped, 0, "{report:#?}");
    assert_eq!(report.notes, Vec::<String>::new());
    assert_eq!(report.ledger.transmitted, report.ledger.r#in);
    // Nothing came out of order, so nothing was lost either: what TCP has sent again it sent
    // because a core was slow. What the receiver itself refused would leave a gap too.
    for place in ["a", "b"] {
        let count = |name| lab.count(place, name);
        let (gaps, refused) = (count("TcpExtTCPOFOQueue"), count("TcpExtTCPBacklogDrop"));
        assert!(!ordered || gaps == Some(0) || refused > Some(0), "{place}: {gaps:?} gaps");
    }
}

#[test]
fn a_card_joins_two_vlans() {
    const NAME: &str = "a_card_joins_two_vlans";
    let Some(lab) = Lab::new(NAME) else { return };
    if !lab.tag() {
        return skip(NAME, "this kernel has no VLAN interfaces");
    }
    let running = start(&lab.bridge()).unwrap();
    lab.run("a", "ping -q -c 20 -i 0.01 -W 2 10.9.7.2");
    let tcp = lab.iperf("-c 10.9.7.2 -n 32M -P 4");
    assert!(tcp["end"]["sum_received"]["bytes"].as_u64().unwrap() > 5_000_000);
    let report = stop(running);
    assert_eq!(report.ledger.dropped, 0, "{report:#?}");
}

#[test]
fn what_an_interface_receives_is_counted_and_what_the_machine_sends_is_not() {
    let Some(lab) = Lab::new("what_an_interface_receives_is_counted") else { return };
    let card = lab.wire(0) + "[[rx]]\nfunction = \"rss\"\n[host]\nqueues = 2\n";
    let running = start(&card).unwrap();
    let received = || running.view().wires[0].counters.rx_packets.get();
    // No one answers: the request is repeated.
    let _ = attempt(&lab.within("a", "ping -q -c 3 -i 0.1 -w 2 10.9.0.77"));
    wait_until("two requests", || received() >= 2);
    // With the neighbour given, each ping comes; it is for another address than w0's.
    lab.run("a", "ip neighbour add 10.9.0.78 lladdr 02:00:00:00:00:78 dev a0");
    let before = received();
    let _ = attempt(&lab.within("a", "ping -q -c 10 -i 0.01 -w 1 10.9.0.78"));
    assert!(received() >= before + 10);
    // What the other end sends itself is not the wire's.
    lab.run("m", "ip address add 10.9.0.99/24 dev w0");
    lab.run("m", "ip neighbour add 10.9.0.55 lladdr 02:00:00:00:00:55 dev w0");
    lab.run("a", "sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    let before = received();
    let _ = attempt(&lab.within("m", "ping -q -c 50 -i 0.01 -w 1 10.9.0.55"));
    assert!(received() < before + 50);
    let report = stop(running);
    assert_eq!(report.ledger.delivered, report.ledger.r#in, "{report:#?}");
    assert_eq!(report.ledger.r#in, report.wires[0].rx_packets);
}

#[test]
fn promiscuous_mode_ends_with_the_card() {
    let Some(lab) = Lab::new("promiscuous_mode_ends_with_the_card") else { return };
    let promiscuity = || {
        let text = lab.run("m", "ip -d -j link show w0");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()[0]["promiscuity"].as_u64()
    };
    assert_eq!(promiscuity(), Some(0));
    let running = start(&lab.wire(0)).unwrap();
    assert_eq!(promiscuity(), Some(1));
    stop(running);
    assert_eq!(promiscuity(), Some(0));
    let running = start(&(lab.wire(0) + "promiscuous = false\n")).unwrap();
    assert_eq!(promiscuity(), Some(0));
    stop(running);
}

#[test]
fn an_interface_is_the_wire_of_one_card() {
    let Some(lab) = Lab::new("an_interface_is_the_wire_of_one_card") else { return };
    let running = start(&lab.wire(0)).unwrap();
    let error = start(&lab.wire(0)).map(drop).unwrap_err();
    assert!(error.contains("interface") && error.contains("a card already"), "{error}");
    let error = start(&(lab.wire(1) + &lab.wire(1))).map(drop).unwrap_err();
    assert!(error.contains("wire[1].interface"), "{error}");
    stop(running);
    stop(start(&lab.wire(0)).unwrap());
}

#[test]
fn an_interface_deleted_under_load_is_taken_up_again() {
    let Some(lab) = Lab::new("an_interface_deleted_under_load_is_taken_up_again") else { return };
    let running = start(&lab.bridge()).unwrap();
    lab.run("a", "ping -q -c 1 -W 2 10.9.0.2");
    let load = lab.spawn("a", "ping -q -f -s 1000 10.9.0.2");
    let also = lab.spawn("b", "ping -q -f -s 1000 10.9.0.1");
    let ledger = || running.view().ledger.read();
    wait_until("under load", || ledger().transmitted > 1000);
    lab.run("m", "ip link delete w1");
    wait_until("w1 is missed", || {
        ledger().drops.get("wire_down").is_some_and(|&drops| drops > 100)
    });
    drop((load, also));
    lab.connect(1);
    // b0 has another address now.
    lab.run("a", "ip neighbour flush dev a0");
    wait_until("w1 is taken up again", || {
        attempt(&lab.within("a", "ping -q -c 1 -W 1 10.9.0.2")).is_ok()
    });
    lab.run("m", "ip link set w0 down");
    let_pass(100);
    lab.run("m", "ip link set w0 up");
    wait_until("w0 is taken up again", || {
        attempt(&lab.within("b", "ping -q -c 1 -W 1 10.9.0.1")).is_ok()
    });
    let report = stop(running);
    let notes = report.notes.join("\n");
    for part in [
        "w0: went down or lost its carrier 1 times",
        "w0: came back and was taken up again 1 times",
        "w1: was deleted or moved away 1 times",
        "w1: came back and was taken up again",
    ] {
        assert!(notes.contains(part), "{notes}");
    }
}

/// A namespace, gone when dropped.
struct Elsewhere(String);

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = attempt(&format!("ip netns delete {}", self.0));
    }
}

#[test]
fn an_interface_that_was_away_in_another_namespace_is_taken_up_again() {
    const NAME: &str = "an_interface_that_was_away_in_another_namespace_is_taken_up_again";
    let Some(lab) = Lab::new(NAME) else { return };
    let running = start(&(lab.wire(0) + "[host]\nmode = \"echo\"\n")).unwrap();
    let index = || attempt(&lab.within("m", "cat /sys/class/net/w0/ifindex")).ok();
    let before = index();
    // One that has no interface of that index.
    let elsewhere = Elsewhere(format!("{}-x", lab.0));
    attempt(&format!("ip netns add {}", elsewhere.0)).unwrap();
    // First for long enough to be missed, then for no longer than the command takes.
    for pause in [100, 0] {
        let (here, away) = (format!("{}-m", lab.0), &elsewhere.0);
        attempt(&format!("ip -n {here} link set w0 netns {away}")).unwrap();
        let_pass(pause);
        attempt(&format!("ip -n {away} link set w0 netns {here}")).unwrap();
        assert_eq!(index(), before, "another index: that is another test");
        lab.run("m", "ip link set w0 up");
        // The card sends back what it is given: to a host that answers for itself.
        let received = running.view().wires[0].counters.rx_packets.get();
        wait_until("w0 is taken up again", || {
            let _ = attempt(&lab.within("a", "ping -q -c 1 -W 1 10.9.0.77"));
            running.view().wires[0].counters.rx_packets.get() > received
        });
    }
    let notes = stop(running).notes.join("\n");
    assert!(notes.contains("w0: was deleted or moved away 2 times"), "{notes}");
}

#[test]
fn a_card_whose_wire_is_gone_rests_and_ends() {
    let Some(lab) = Lab::new("a_card_whose_wire_is_gone_rests_and_ends") else { return };
    let load = lab.spawn("a", "ping -q -f 10.9.0.2");
    let running = start(&(lab.wire(0) + "[host]\nmode = \"echo\"\n")).unwrap();
    lab.run("m", "ip link delete w0");
    drop(load);
    let_pass(500);
    let report = stop(running);
    assert!(report.notes.join("\n").contains("w0: is gone at the end"), "{:?}", report.notes);
}

#[test]
fn what_is_wrong_with_an_interface_is_said() {
    let Some(lab) = Lab::new("what_is_wrong_with_an_interface_is_said") else { return };
    lab.run("m", "ip tuntap add dev notether mode tun");
    for (from, to, part) in [
        ("w0", "nosuch", "wire[0].interface: found \"nosuch\", but picnic-"),
        ("w0", "notether", "wire[0].interface: \"notether\" does not speak Ethernet"),
        ("-m\"", "-none\"", "wire[0].namespace: found \"picnic-"),
    ] {
        let error = start(&lab.wire(0).replace(from, to)).map(drop).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = format!("namespace = \"{}\"", file.path().display());
    let card = format!("[[wire]]\nport = \"packet\"\ninterface = \"lo\"\n{path}\n");
    let error = start(&card).map(drop).unwrap_err();
    assert!(error.contains("namespace: ") && error.contains("is no network namespace"), "{error}");
}

/// Set for the child that has no privileges.
const UNPRIVILEGED: &str = "PICNIC_TEST_UNPRIVILEGED";

#[test]
fn without_privileges_it_says_which_are_needed() {
    const NAME: &str = "without_privileges_it_says_which_are_needed";
    let nobody = 65_534;
    if let Ok(namespace) = std::env::var(UNPRIVILEGED) {
        let card = "[[wire]]\nport = \"packet\"\ninterface = \"lo\"\n";
        let error = start(card).map(drop).unwrap_err();
        assert!(error.contains("interface: ") && error.contains("CAP_NET_RAW"), "{error}");
        let card = format!("{card}namespace = \"{namespace}\"\n");
        let error = start(&card).map(drop).unwrap_err();
        assert!(error.contains("namespace: ") && error.contains("CAP_SYS_ADMIN"), "{error}");
        return;
    }
    let Some(lab) = Lab::new(NAME) else { return };
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([NAME, "--exact"]).env(UNPRIVILEGED, format!("{}-m", lab.0));
    match child.uid(nobody).gid(nobody).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => skip(NAME, &format!("another user cannot run this test: {error}")),
    }
}
