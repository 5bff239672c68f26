//! Cards between two namespaces: real sockets, exact counts, and the machine as it was.

mod hybrid;
mod objects;
mod swaps;

use super::{HANDOVERS, can_load, launch, parse};
use crate::doctor::Facts;
use crate::object::Object;
use crate::plan::plan;
use picnic_control::{Access, Report, Running};
use picnic_core::config::Section;
use picnic_core::direction::Direction;
use picnic_core::registry::{BuildContext, find};
use picnic_engine::swap::{Answer, Command as Order};
use picnic_filter::{Action, Filter, FiveTuple, PortRange, Protocol};
use picnic_functions::rss::{Config, HashType, Rss};
use picnic_machine::napi::Polling;
use picnic_machine::testbed::Testbed;
use picnic_machine::undo::{Journal, Machine, Which, restore_all};
use picnic_ports::interface::within;
use picnic_testing::{PATIENCE, machine, skip, wait_for, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const CORES: usize = 2;
const PORT: u16 = 7000;
/// Where all flows go.
const TO: ([u8; 4], u16) = ([10, 77, 0, 1], PORT);
const FLOWS: u16 = 64;
/// Packets that may be under way at once: fewer than a veth's ring holds.
const BATCH: usize = 32;
/// Set for a process that is to be killed: how its packets are handed over, and the namespace of
/// its card.
const VICTIM: &str = "PICNIC_KERNEL_VICTIM";
const VICTIM_NAMESPACE: &str = "PICNIC_KERNEL_VICTIM_NAMESPACE";

/// A veth pair: the card's wire `k0` in one namespace, those who send in the other.
pub(super) struct Bed(pub(super) Testbed);

/// Told to end when dropped.
struct Ends<'a>([&'a AtomicBool; 2]);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|is_told| is_told.store(true, Relaxed));
    }
}

impl Bed {
    /// None if this machine cannot have one; says so.
    pub(super) fn new(test: &str) -> Option<Bed> {
        if !can_load(test) {
            return None;
        }
        if std::thread::available_parallelism().map_or(1, usize::from) < CORES {
            skip(test, "it needs two cores");
            return None;
        }
        let bed = Bed(Testbed::build("kernel-test").unwrap());
        let testbed = &bed.0;
        for namespace in ["card", "far"] {
            testbed.add_namespace(namespace).unwrap();
            // Nothing but what these tests send.
            testbed.within(namespace, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1").unwrap();
        }
        let mac = |last: u8| format!("02:00:00:00:77:{last:02x}");
        testbed.add_veth(("card", "k0"), ("far", "f0"), "").unwrap();
        for (namespace, link, own, other) in [("card", "k0", 1, 2), ("far", "f0", 2, 1)] {
            let ip = |rest: String| testbed.ip(namespace, &rest).unwrap();
            ip(format!("link set {link} address {} arp off up", mac(own)));
            ip(format!("address add 10.77.0.{own}/24 dev {link}"));
            ip(format!("neighbour replace 10.77.0.{other} lladdr {} dev {link}", mac(other)));
        }
        // XDP carries no word of unfinished checksums.
        testbed.within("far", "ethtool -K f0 tx off").unwrap();
        testbed.wait_for_carrier("card", "k0").unwrap();
        Some(bed)
    }

    fn socket(&self, namespace: &str, address: SocketAddr) -> UdpSocket {
        let name = self.0.netns(namespace);
        let socket = within(Some(&name), || UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket
    }

    /// The sockets of all flows, and the one they send to.
    fn sockets(&self) -> (UdpSocket, Vec<UdpSocket>) {
        let flows = (0..FLOWS).map(|flow| self.socket("far", ([10, 77, 0, 2], 9000 + flow).into()));
        (self.socket("card", TO.into()), flows.collect())
    }

    /// Sends so many packets in turns of all flows, and waits for each to arrive.
    fn send(&self, packets: usize) {
        let (server, flows) = self.sockets();
        let mut next = flows.iter().cycle();
        let mut left = packets;
        let mut buffer = [0; 64];
        while left != 0 {
            let batch = left.min(BATCH);
            for _ in 0..batch {
                next.next().unwrap().send_to(b"picnic", SocketAddr::from(TO)).unwrap();
            }
            for _ in 0..batch {
                assert_eq!(server.recv(&mut buffer).unwrap(), 6);
            }
            left -= batch;
        }
    }

    /// Sends in turns of all flows, some packets always under way, while `body` is at work, which can
    /// ask how many have arrived. All that was sent arrives.
    fn under_load(&self, body: impl FnOnce(&AtomicU64)) {
        const UNDER_WAY: u64 = 64;
        let (server, flows) = self.sockets();
        server.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let [sent, arrived] = [const { AtomicU64::new(0) }; 2];
        let [is_sent, is_done] = [const { AtomicBool::new(false) }; 2];
        std::thread::scope(|scope| {
            // Whatever fails, both threads end.
            let ends = Ends([&is_sent, &is_done]);
            let sender = scope.spawn(|| {
                for flow in flows.iter().cycle() {
                    while sent.load(Relaxed) - arrived.load(Relaxed) >= UNDER_WAY {
                        if is_sent.load(Relaxed) {
                            return;
                        }
                        std::thread::yield_now();
                    }
                    if is_sent.load(Relaxed) {
                        return;
                    }
                    flow.send_to(b"picnic", SocketAddr::from(TO)).unwrap();
                    sent.fetch_add(1, Relaxed);
                }
            });
            scope.spawn(|| {
                let mut buffer = [0; 64];
                while !is_done.load(Relaxed) {
                    arrived.fetch_add(u64::from(server.recv(&mut buffer).is_ok()), Relaxed);
                }
            });
            body(&arrived);
            is_sent.store(true, Relaxed);
            sender.join().unwrap();
            wait_until("all has arrived", || arrived.load(Relaxed) == sent.load(Relaxed));
            drop(ends);
        });
    }

    /// How the wire is: polled by threads, GRO, and what stands in its way.
    fn state(&self) -> State {
        let threaded = self.0.within("card", "cat /sys/class/net/k0/threaded").unwrap();
        let steering = "cat /sys/class/net/k0/queues/rx-0/rps_cpus";
        let steering = self.0.within("card", steering).unwrap();
        let features = self.0.within("card", "ethtool -k k0").unwrap();
        let links = self.0.ip("card", "link show").unwrap();
        let held = ["gro_flush_timeout", "napi_defer_hard_irqs"].map(|name| {
            let told = self.0.within("card", &format!("cat /sys/class/net/k0/{name}")).unwrap();
            told.trim().parse().unwrap()
        });
        State {
            held,
            threaded: threaded.trim() == "1",
            steered: u64::from_str_radix(steering.trim(), 16).unwrap(),
            gro: features.contains("generic-receive-offload: on"),
            program: if links.contains("xdp") {
                "cpumap"
            } else if links.contains("picnic-r") {
                "skb"
            } else {
                ""
            },
        }
    }

    /// Sets the receive packet steering of the wire.
    fn steer(&self, cores: &str) {
        let netns = self.0.netns("card");
        let set = format!("echo {cores} > /sys/class/net/k0/queues/rx-0/rps_cpus");
        picnic_machine::command::run(&["ip", "netns", "exec", &netns, "sh", "-c", &set]).unwrap();
    }

    /// Another wire `k1`, which is not sent to, as a section of a card file.
    fn second_wire(&self) -> String {
        self.0.add_veth(("card", "k1"), ("far", "f1"), "").unwrap();
        for (namespace, link) in [("card", "k1"), ("far", "f1")] {
            self.0.ip(namespace, &format!("link set {link} arp off up")).unwrap();
        }
        self.0.wait_for_carrier("card", "k1").unwrap();
        let namespace = self.0.netns("card");
        format!("[[wire]]\nport = \"xdp\"\ninterface = \"k1\"\nnamespace = \"{namespace}\"\n")
    }

    fn card(&self, handover: &str, rx: &str) -> String {
        card(handover, &self.0.netns("card"), rx)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    threaded: bool,
    /// Cores that it is steered to, a bit each.
    steered: u64,
    gro: bool,
    /// Nanoseconds after a poll, and how often that is waited for without packets.
    held: [u64; 2],
    program: &'static str,
}

/// As the wire is while a card is at work.
fn at_work(program: &'static str) -> State {
    // What is not polled comes to the borrowed core, which is 1, by steering.
    let steered = if program == "skb" { 2 } else { 0 };
    State { threaded: true, steered, gro: true, held: [0, 0], program }
}

/// Has wires left alone for a while after each poll.
const HELD: &str = "[interrupt]\nwire_usecs = 20000\n";

/// The same with [`HELD`].
fn held_at_work(program: &'static str) -> State {
    State { held: [20_000_000, 1], ..at_work(program) }
}

/// With `handover` "hybrid", the poll engine sends back what it gets.
fn card(handover: &str, namespace: &str, rx: &str) -> String {
    let (engine, host) = match handover {
        "hybrid" => ("hybrid", "attachment = \"app\"\nmode = \"echo\"".into()),
        _ => ("kernel", format!("attachment = \"stack\"\nhandover = \"{handover}\"")),
    };
    format!(
        "[card]\nengine = \"{engine}\"\nborrowed_core = 1\n[[wire]]\nport = \"xdp\"\n\
         interface = \"k0\"\nnamespace = \"{namespace}\"\n{rx}\n\
         [host]\n{host}\nqueues = 2\ntarget_cores = [0, 1]\n"
    )
}

fn start(text: &str) -> Box<dyn Running> {
    launch(&parse(text)).start_alone().unwrap()
}

/// Why a card is refused, by `check` as by `run`.
fn refusal(text: &str) -> String {
    let found = launch(&parse(text)).start_alone().map(drop).unwrap_err().to_string();
    let checked = launch(&parse(text)).check().map(drop).unwrap_err().to_string();
    assert_eq!(checked, found);
    found
}

/// The queue of each flow, as the poll engine has it.
fn queues(config: &Config) -> Vec<usize> {
    let context = BuildContext { queues: CORES as u16, ..BuildContext::default() };
    let rss = Rss::new(config, &context).unwrap();
    let queue = |flow: u16| {
        let mut frame = [0; 60];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        frame[17] = 34;
        frame[23] = 17;
        frame[26..34].copy_from_slice(&[10, 77, 0, 2, 10, 77, 0, 1]);
        frame[34..36].copy_from_slice(&(9000 + flow).to_be_bytes());
        frame[36..38].copy_from_slice(&PORT.to_be_bytes());
        frame[39] = 14;
        rss.classify(&frame).queue.unwrap().into()
    };
    (0..FLOWS).map(queue).collect()
}

fn check(report: &Report, packets: usize) {
    let ledger = &report.ledger;
    assert!(ledger.balanced(), "{ledger:?}");
    assert_eq!((ledger.r#in, ledger.in_flight), (packets as u64, 0), "{report:?}");
    assert_eq!(report.wires[0].rx_packets, packets as u64);
    assert_eq!(report.engine, "kernel");
}

/// Interfaces of one name in two namespaces: neither takes the other's threads, and so is not lost
/// when the other ends.
#[test]
fn threads_of_another_interface_of_that_name_are_left_alone() {
    let test = "threads_of_another_interface_of_that_name_are_left_alone";
    if !can_load(test) {
        return;
    }
    let bed = Testbed::build("kernel-test").unwrap();
    for place in ["one", "other"] {
        bed.add_namespace(place).unwrap();
    }
    bed.add_veth(("one", "k0"), ("other", "k0"), "").unwrap();
    let machine = Machine::this();
    let mut journal = Journal::create(&machine, test).unwrap();
    let mut polled = ["one", "other"].map(|place| {
        bed.ip(place, "link set k0 up").unwrap();
        Polling::start(&machine, &mut journal, "k0", Some(&bed.netns(place))).unwrap()
    });
    let [one, other] = polled.each_mut().map(|polling| {
        polling.pin(&machine, &mut journal, 0).unwrap();
        polling.threads().collect::<Vec<_>>()
    });
    journal.undo().unwrap();
    assert!(!one.is_empty() && !other.is_empty(), "{one:?}, {other:?}");
    assert!(one.iter().all(|thread| !other.contains(thread)), "{one:?}, {other:?}");
}

#[test]
fn each_target_core_gets_the_packets_of_its_flows() {
    let test = "each_target_core_gets_the_packets_of_its_flows";
    let Some(bed) = Bed::new(test) else { return };
    let _machine = machine();
    // Steering of the wire's own would come first: it is off while the card is at work.
    bed.steer("3");
    let before = bed.state();
    assert_eq!(before.steered, 3);
    let types = vec![HashType::Ipv4, HashType::UdpIpv4];
    let with =
        |table: Option<Vec<u16>>| Config { types: types.clone(), table, ..Config::default() };
    let tables = [
        ("", None),
        ("table = [1, 1, 0]\n", Some(vec![1, 1, 0])),
        ("table = [1]\n", Some(vec![1])),
    ];
    for (handover, (keys, table)) in
        HANDOVERS.into_iter().flat_map(|handover| tables.clone().map(|table| (handover, table)))
    {
        let rx = format!(
            "[[rx]]\nfunction = \"pass\"\n[[rx]]\nfunction = \"rss\"\n\
             types = [\"ipv4\", \"udp-ipv4\"]\n{keys}"
        );
        let running = start(&bed.card(handover, &rx));
        assert_eq!(bed.state(), at_work(handover));
        let rounds = 50;
        bed.send(rounds * usize::from(FLOWS));
        assert!(running.is_alive());
        let report = running.stop().unwrap();
        check(&report, rounds * usize::from(FLOWS));
        let mut wanted = [0; CORES];
        queues(&with(table)).into_iter().for_each(|queue| wanted[queue] += rounds as u64);
        let found: Vec<_> = report.queues.iter().map(|queue| queue.packets).collect();
        assert_eq!(found, wanted, "{handover}, {keys}");
        // An Ethernet header, 20 bytes of IPv4, 8 of UDP, 6 of its own.
        let bytes: Vec<_> = report.queues.iter().map(|queue| queue.bytes).collect();
        assert_eq!(bytes, wanted.map(|packets| packets * 48));
        for queue in report.queues.iter().filter(|queue| queue.packets != 0) {
            assert!((1..=queue.packets).contains(&queue.interrupts), "{handover}: {queue:?}");
            assert!(queue.polls >= queue.interrupts, "{handover}: {queue:?}");
            assert_eq!(queue.doorbells != 0, handover == "cpumap", "{queue:?}");
        }
        let functions: Vec<_> =
            report.functions.iter().map(|found| (&*found.name, found.packets)).collect();
        let all = rounds as u64 * u64::from(FLOWS);
        assert_eq!(functions, [("pass", all), ("rss", all)]);
        assert_eq!(bed.state(), before, "{:?}", report.notes);
    }
}

/// Wires share a program, but not with an interface of another namespace that has the same number.
#[test]
fn wires_that_share_a_program_are_told_apart() {
    let test = "wires_that_share_a_program_are_told_apart";
    if !can_load(test) {
        return;
    }
    let _machine = machine();
    let bed = Testbed::build("kernel-test").unwrap();
    for place in ["one", "far-one", "other", "far-other"] {
        bed.add_namespace(place).unwrap();
        bed.within(place, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1").unwrap();
    }
    let wires = [("one", 20), ("one", 21), ("other", 20), ("other", 21)];
    let far_of = |place| if place == "one" { "far-one" } else { "far-other" };
    let mut card = String::new();
    for (wire, (place, index)) in wires.into_iter().enumerate() {
        let (near, far) = (format!("k{wire}"), format!("f{wire}"));
        let ends = [(place, &*near), (far_of(place), &*far)];
        bed.add_veth(ends[0], ends[1], &format!("index {index}")).unwrap();
        for (place, link) in ends {
            bed.ip(place, &format!("link set {link} arp off up")).unwrap();
        }
        let address = format!("address add 10.77.{wire}.2/24 dev {far}");
        bed.ip(far_of(place), &address).unwrap();
        bed.wait_for_carrier(place, &near).unwrap();
        let namespace = bed.netns(place);
        card += &format!(
            "[[wire]]\nport = \"xdp\"\ninterface = \"{near}\"\nnamespace = \"{namespace}\"\n"
        );
    }
    let sent = [1, 2, 3, 4].map(|share| share * BATCH as u64);
    for handover in [HANDOVERS[0], HANDOVERS[1], "hybrid"] {
        // With the poll engine, all packets are for that: each wire has sockets of its own.
        let (engine, host) = match handover {
            "hybrid" => ("hybrid", "attachment = \"app\"\n[[filter]]\naction = \"poll\"\n".into()),
            _ => ("kernel", format!("attachment = \"stack\"\nhandover = \"{handover}\"\n")),
        };
        let running = start(&format!(
            "[card]\nengine = \"{engine}\"\nborrowed_core = 1\n{card}\
             [[rx]]\nfunction = \"by-wire\"\n\
             [host]\nqueues = 2\ntarget_cores = [0, 1]\n{host}"
        ));
        for (wire, (place, _)) in wires.into_iter().enumerate() {
            let from = SocketAddr::from(([10, 77, wire as u8, 2], 9000));
            let netns = bed.netns(far_of(place));
            let socket = within(Some(&netns), || UdpSocket::bind(from)).unwrap().unwrap();
            for _ in 0..sent[wire] {
                let to = SocketAddr::from(([10, 77, wire as u8, 1], PORT));
                socket.send_to(b"picnic", to).unwrap();
            }
            let received = || running.view().wires[wire].counters.rx_packets.get();
            wait_until("all has come", || received() == sent[wire]);
        }
        let report = running.stop().unwrap();
        assert!(report.ledger.balanced(), "{:?}", report.ledger);
        let received: Vec<_> = report.wires.iter().map(|wire| wire.rx_packets).collect();
        assert_eq!(received, sent, "{handover}");
        let queues: Vec<_> = report.queues.iter().map(|queue| queue.packets).collect();
        assert_eq!(queues, [sent[0] + sent[2], sent[1] + sent[3]], "{handover}");
        let by_poll = report.poll.map_or(0, |poll| poll.delivered);
        assert_eq!(by_poll, if handover == "hybrid" { sent.iter().sum() } else { 0 });
    }
}

#[test]
fn what_a_wire_is_held_for_interrupts_once() {
    let Some(bed) = Bed::new("what_a_wire_is_held_for_interrupts_once") else { return };
    let _machine = machine();
    let before = bed.state();
    // With nothing said, one poll without packets; otherwise as many as the time has.
    for (handover, (keys, polls)) in HANDOVERS.into_iter().flat_map(|handover| {
        [("", 1), ("poll_usecs = 20000\n", 1), ("poll_usecs = 90000\n", 5)]
            .map(|keys| (handover, keys))
    }) {
        let rx = format!("[[rx]]\nfunction = \"rss\"\ntable = [0]\n{HELD}{keys}");
        let running = start(&bed.card(handover, &rx));
        let wanted = State { held: [20_000_000, polls], ..at_work(handover) };
        assert_eq!(bed.state(), wanted, "{keys}");
        let packets = 20 * BATCH;
        bed.send(packets);
        let report = running.stop().unwrap();
        check(&report, packets);
        // Those of a batch come together.
        let queue = &report.queues[0];
        assert!(queue.interrupts * 4 <= queue.packets, "{handover}: {queue:?}");
        assert_eq!(bed.state(), before, "{:?}", report.notes);
    }
}

/// Merged packets of a connection, with checksums that are unfinished, arrive on its core alone.
#[test]
fn a_connection_stays_on_its_core() {
    const BYTES: usize = 4 << 20;
    let Some(bed) = Bed::new("a_connection_stays_on_its_core") else { return };
    let _machine = machine();
    bed.0.within("far", "ethtool -K f0 tx on").unwrap();
    for queue in 0..CORES {
        let rx = format!("[[rx]]\nfunction = \"rss\"\ntable = [{queue}]\n");
        let running = start(&bed.card("skb", &rx));
        let netns = ["card", "far"].map(|short| bed.0.netns(short));
        let to: SocketAddr = ([10, 77, 0, 1], PORT + queue as u16).into();
        let server = within(Some(&netns[0]), || TcpListener::bind(to)).unwrap().unwrap();
        let mut client = within(Some(&netns[1]), || TcpStream::connect(to)).unwrap().unwrap();
        let (mut accepted, _) = server.accept().unwrap();
        let sent: Vec<u8> = (0..BYTES).map(|byte| (byte % 251) as u8).collect();
        let mut arrived = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                client.write_all(&sent).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            });
            accepted.read_to_end(&mut arrived).unwrap();
        });
        assert!(arrived == sent);
        let report = running.stop().unwrap();
        assert!(report.ledger.balanced() && report.ledger.in_flight == 0, "{:?}", report.ledger);
        let (packets, bytes) = (report.wires[0].rx_packets, report.wires[0].rx_bytes);
        // Super-frames count as the packets they are made of.
        assert!(packets > BYTES as u64 / 1460 && bytes > BYTES as u64, "{packets}, {bytes}");
        let mut wanted = [(0, 0); CORES];
        wanted[queue] = (packets, bytes);
        let found: Vec<_> =
            report.queues.iter().map(|queue| (queue.packets, queue.bytes)).collect();
        assert_eq!(found, wanted);
    }
}

/// TCP goes on sending where its last packet was freed: on the target core, by turns with its
/// sender's. The borrowed core takes all of it, so none overtakes another.
#[test]
fn a_connection_whose_sender_is_on_several_cores_is_in_order() {
    const BYTES: u64 = 256 << 20;
    let test = "a_connection_whose_sender_is_on_several_cores_is_in_order";
    let Some(bed) = Bed::new(test) else { return };
    let _machine = machine();
    bed.0.within("far", "ethtool -K f0 tx on").unwrap();
    let out_of_order = || {
        let text = bed.0.within("card", "cat /proc/net/netstat").unwrap();
        let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
        let [names, counts] = [(); 2].map(|()| lines.next().unwrap().split(' '));
        let (_, count) = names.zip(counts).find(|(name, _)| *name == "TCPOFOQueue").unwrap();
        count.parse::<u64>().unwrap()
    };
    let before = out_of_order();
    let running = start(&bed.card("skb", "[[rx]]\nfunction = \"rss\"\ntable = [0]\n"));
    let server =
        within(Some(&bed.0.netns("card")), || TcpListener::bind(SocketAddr::from(TO))).unwrap();
    let server = server.unwrap();
    let script = format!("head -c {BYTES} /dev/zero > /dev/tcp/10.77.0.1/{PORT}");
    let mut sender = bed.0.start("far", &["bash", "-c", &script], &[1]).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    assert_eq!(std::io::copy(&mut accepted, &mut std::io::sink()).unwrap(), BYTES);
    wait_until("it has ended", || sender.ended().is_some());
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced() && report.ledger.dropped == 0, "{:?}", report.ledger);
    assert_eq!(out_of_order() - before, 0, "{:?}", report.notes);
}

/// Packets whose checksums their sender leaves to a veth are lost behind XDP: it is told, with what
/// mends it, before any is.
#[test]
fn checksums_left_to_a_veth_are_told_where_xdp_loses_them() {
    let Some(bed) = Bed::new("checksums_left_to_a_veth_are_told_where_xdp_loses_them") else {
        return;
    };
    let _machine = machine();
    let poll = "[[filter]]\naction = \"poll\"\nprotocol = \"udp\"\n";
    let told = |handover: &str| {
        let text = bed.card(handover, "[[rx]]\nfunction = \"rss\"\n");
        let text = if handover == "hybrid" { text + poll } else { text };
        let file = parse(&text);
        let checked = launch(&file).check().unwrap().placement.warnings;
        let running = start(&text);
        let report = running.stop().unwrap();
        let about = |all: &[String]| {
            let all = all.iter().filter(|warning| warning.contains("checksums"));
            all.cloned().collect::<Vec<_>>()
        };
        let found = about(&checked);
        assert_eq!(found, about(&report.notes), "by `check` as by `run`");
        found.join("\n")
    };
    let mend = format!("(ip netns exec {} ethtool -K f0 tx off)", bed.0.netns("far"));
    for (handover, is_told) in [("skb", false), ("cpumap", true), ("hybrid", true)] {
        bed.0.within("far", "ethtool -K f0 tx on").unwrap();
        let found = told(handover);
        let message = "card:6: wire[0].interface: found k0, a veth whose other end f0 leaves checksums \
                       to it: TCP and UDP packets that start there are lost behind an XDP program; ";
        assert_eq!(found.starts_with(message), is_told, "{handover}: {found}");
        assert_eq!(found.contains(&mend), is_told, "{found}");
        let is_other_way = found.ends_with("or set host.handover = \"skb\"");
        assert_eq!(is_other_way, handover == "cpumap", "{found}");
        bed.0.within("far", "ethtool -K f0 tx off").unwrap();
        assert_eq!(told(handover), "", "{handover}");
    }
}

/// Has the card's `rss` obey a command, and waits for what comes of it.
fn tell(access: &mut Access, name: &str, arguments: Value) -> Value {
    tell_function(access, (1, "rss"), name, arguments)
}

/// The same with a function at its place in the chain.
fn tell_function(
    access: &mut Access,
    (place, function): (usize, &str),
    name: &str,
    arguments: Value,
) -> Value {
    let functions = access.registries.functions;
    let function = find(functions, &Section::named("function", function)).unwrap();
    let command = function.commands.iter().find(|command| command.name == name).unwrap();
    let context = BuildContext { queues: CORES as u16, ..BuildContext::default() };
    let order = command.prepare(&arguments, &context).unwrap();
    assert!(access.controller.send(Order::Function(Direction::Rx, place, order)).is_ok());
    let Answer { done, replaced } = wait_for("an answer", || access.controller.answer());
    let Order::Function(_, _, order) = replaced else { panic!("the answer to another command") };
    assert!(done);
    command.reply(order).unwrap()
}

#[test]
fn packets_that_the_borrowed_core_does_not_take_are_told() {
    let test = "packets_that_the_borrowed_core_does_not_take_are_told";
    let Some(bed) = Bed::new(test) else { return };
    let _machine = machine();
    // A veth whose other end has segmentation offload is not polled: receive packet steering alone
    // brings its packets to the borrowed core.
    for (handover, offload, is_steered, told) in [
        ("skb", "off", true, false),
        ("skb", "on", true, false),
        ("skb", "on", false, true),
        ("cpumap", "off", false, false),
    ] {
        bed.0.within("far", &format!("ethtool -K f0 tx {offload}")).unwrap();
        let running = start(&bed.card(handover, "[[rx]]\nfunction = \"rss\"\n"));
        if !is_steered {
            bed.steer("0");
        }
        let script = format!("for i in 1 2 3; do echo picnic > /dev/udp/10.77.0.1/{PORT}; done");
        // The borrowed core is 1.
        let mut sender = bed.0.start("far", &["bash", "-c", &script], &[0]).unwrap();
        wait_until("they are sent", || sender.ended().is_some());
        wait_until("they are taken", || running.monitor().report().wires[0].rx_packets >= 3);
        let report = running.stop().unwrap();
        let notes = report.notes.iter().filter(|note| note.starts_with("3 packets were taken on"));
        assert_eq!(
            notes.count(),
            usize::from(told),
            "{handover}, {offload}, {is_steered}: {:?}",
            report.notes
        );
    }
}

#[test]
fn key_and_table_are_changed_while_packets_flow() {
    let Some(bed) = Bed::new("key_and_table_are_changed_while_packets_flow") else { return };
    let _machine = machine();
    HANDOVERS.into_iter().for_each(|handover| change_key_and_table(&bed, handover));
}

fn change_key_and_table(bed: &Bed, handover: &str) {
    let types = vec![HashType::Ipv4, HashType::UdpIpv4];
    let rx = "[[rx]]\nfunction = \"pass\"\n[[rx]]\nfunction = \"rss\"\n\
              types = [\"ipv4\", \"udp-ipv4\"]\n";
    let mut running = start(&bed.card(handover, rx));
    let mut access = running.control().unwrap();
    // All components have the commands that they have in the kernel, and no others.
    let rss = access.registries.functions.iter().find(|entry| entry.name == "rss").unwrap();
    assert_eq!(rss.commands.iter().map(|command| command.name).collect::<Vec<_>>(), ["get", "set"]);
    let count = |running: &dyn Running| {
        let report = running.monitor().report();
        report.queues.iter().map(|queue| queue.packets).collect::<Vec<_>>()
    };
    let all = u64::from(FLOWS);
    let mut wanted = vec![0; CORES];
    let symmetric = Config { symmetric: true, types: types.clone(), ..Config::default() };
    let one =
        Config { table: Some(vec![1]), symmetric: true, types: types.clone(), ..Config::default() };
    for (arguments, config) in [
        (json!({}), Config { types: types.clone(), ..Config::default() }),
        (json!({ "key": "symmetric" }), symmetric),
        (json!({ "table": [1] }), one.clone()),
        (json!({ "table": [1, 0, 0] }), Config { table: Some(vec![1, 0, 0]), ..one }),
    ] {
        if arguments != json!({}) {
            assert!(tell(&mut access, "set", arguments)["moved_entries"].as_u64() > Some(0));
        }
        bed.send(usize::from(FLOWS));
        queues(&config).into_iter().for_each(|queue| wanted[queue] += 1);
        wait_until("all have been counted", || {
            count(&*running).iter().sum::<u64>() == wanted.iter().sum::<u64>()
        });
        assert_eq!(count(&*running), wanted, "{config:?}");
    }
    let state = tell(&mut access, "get", json!({}));
    assert_eq!((&state["table"], &state["symmetric"]), (&json!([1, 0, 0]), &json!(true)));
    // While packets flow, none is lost, whatever is changed how often.
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| bed.send(20 * usize::from(FLOWS)));
        let mut turn = 0;
        while !traffic.is_finished() {
            turn += 1;
            let table: Vec<_> = (0..1 + turn % 100).map(|entry| (entry + turn) % 2).collect();
            tell(&mut access, "set", json!({ "table": table, "key": "symmetric" }));
        }
    });
    let report = running.stop().unwrap();
    check(&report, 24 * all as usize);
}

/// Rules, VLANs and rates are changed as in the poll engine, and nothing is lost over it.
#[test]
fn rules_vlans_and_rates_are_changed_while_packets_flow() {
    let Some(bed) = Bed::new("rules_vlans_and_rates_are_changed_while_packets_flow") else {
        return;
    };
    let _machine = machine();
    HANDOVERS.into_iter().for_each(|handover| change_rules_vlans_and_rates(&bed, handover));
}

#[test]
fn pools_are_replaced_while_packets_flow() {
    let Some(bed) = Bed::new("pools_are_replaced_while_packets_flow") else {
        return;
    };
    let _machine = machine();
    HANDOVERS.into_iter().for_each(|handover| replace_pools(&bed, handover));
}

fn replace_pools(bed: &Bed, handover: &str) {
    const VMDQ: (usize, &str) = (0, "vmdq");
    let rx = "[[rx]]\nfunction = \"vmdq\"\npools = [{ queues = [0] }]\ndefault_pool = 0\n";
    let mut running = start(&bed.card(handover, rx));
    let mut access = running.control().unwrap();
    let count = |queue: usize| running.view().queues[queue].target.packets.get();
    let of = |queue: u16| json!({ "pools": [{ "queues": [queue] }] });
    bed.send(FLOWS.into());
    wait_until("the first queue has them", || count(0) >= FLOWS.into());
    assert_eq!(count(1), 0);
    tell_function(&mut access, VMDQ, "replace", of(1));
    let before = count(0);
    bed.send(FLOWS.into());
    wait_until("the second queue has them", || count(1) >= FLOWS.into());
    assert_eq!(count(0), before);
    bed.under_load(|arrived| {
        for turn in 0..10 {
            let wanted = arrived.load(Relaxed) + 50;
            tell_function(&mut access, VMDQ, "replace", of(turn % 2));
            wait_until("more has arrived", || arrived.load(Relaxed) >= wanted);
        }
    });
    wait_until("all of it is told", || {
        let received = running.view().wires[0].counters.rx_packets.get();
        let found = tell_function(&mut access, VMDQ, "get", json!({}));
        found["received_packets"] == received && count(0) + count(1) == received
    });
    let report = running.stop().unwrap();
    assert!(
        report.ledger.balanced() && report.drops.values().all(|&drops| drops == 0),
        "{report:?}"
    );
}

fn change_rules_vlans_and_rates(bed: &Bed, handover: &str) {
    const VLAN: (usize, &str) = (0, "vlan");
    const LIMITER: (usize, &str) = (1, "rate-limit");
    const DIRECTOR: (usize, &str) = (2, "flow-director");
    let rx = "[[rx]]\nfunction = \"vlan\"\n[[rx]]\nfunction = \"rate-limit\"\n\
              [[rx]]\nfunction = \"flow-director\"\n\
              rules = [{ protocol = \"udp\", source_port = 9000, queue = 1 }]\n";
    let mut running = start(&bed.card(handover, rx));
    let mut access = running.control().unwrap();
    let udp = |port: u16| json!({ "protocol": "udp", "source_port": port, "queue": 1 });
    // Of each 64 packets one is of each flow: so many of them are to go to the second queue.
    let mut second = 0;
    let mut send = |more: u64| {
        bed.send(FLOWS.into());
        second += more;
        let count = |queue: usize| running.view().queues[queue].target.packets.get();
        wait_until("all have been counted", || (count(0) + count(1)) % u64::from(FLOWS) == 0);
        wait_until("the second queue's, too", || count(1) == second);
    };
    send(1);
    assert_eq!(tell_function(&mut access, DIRECTOR, "add", udp(9001))["number"], 2);
    send(2);
    let listed = tell_function(&mut access, DIRECTOR, "list", json!({}));
    let packets: Vec<_> =
        listed["rules"].as_array().unwrap().iter().map(|rule| &rule["packets"]).collect();
    assert_eq!(packets, [&json!(2), &json!(1)]);
    tell_function(&mut access, DIRECTOR, "remove", json!({ "number": 1 }));
    send(1);
    let all = json!({ "rules": [{ "protocol": "udp", "queue": 1 }, { "protocol": "tcp", "drop": true }] });
    tell_function(&mut access, DIRECTOR, "replace", all.clone());
    send(FLOWS.into());
    let listed = tell_function(&mut access, DIRECTOR, "list", json!({}));
    assert_eq!(listed["rules"][0]["packets"], FLOWS, "counted anew: {listed}");
    wait_until("it is told", || {
        let found = tell_function(&mut access, DIRECTOR, "get", json!({}));
        found["matched_packets"] == 68 && found["unmatched_packets"] == 256 - 68
    });

    // While packets flow, none is lost, whatever is changed how often.
    bed.under_load(|arrived| {
        for turn in 0..10_u64 {
            let wanted = arrived.load(Relaxed) + 50;
            let rules = if turn % 2 == 0 { json!({ "rules": [udp(9000)] }) } else { all.clone() };
            tell_function(&mut access, DIRECTOR, "replace", rules);
            tell_function(&mut access, VLAN, "set", json!({ "allow": [1 + turn] }));
            let rate = json!({ "packets_per_second": 1_000_000_000_u64 + turn });
            tell_function(&mut access, LIMITER, "set", rate);
            wait_until("more has arrived", || arrived.load(Relaxed) >= wanted);
        }
    });
    wait_until("all of it is told", || {
        let received = running.view().wires[0].counters.rx_packets.get();
        let found = tell_function(&mut access, VLAN, "get", json!({}));
        found["untagged"] == received && found["tagged"] == 0
    });
    let dropped = |function: usize| {
        running.view().functions.of(Direction::Rx)[function].counters.dropped.get()
    };
    assert_eq!((dropped(0), dropped(1), dropped(2)), (0, 0, 0));

    // And what is to be dropped is.
    let (_server, flows) = bed.sockets();
    let send = |packets: usize| {
        for flow in &flows[..packets] {
            flow.send_to(b"picnic", SocketAddr::from(TO)).unwrap();
        }
    };
    tell_function(&mut access, VLAN, "set", json!({ "allow": [5], "untagged": false }));
    send(10);
    wait_until("no VLAN has dropped them", || dropped(0) == 10);
    assert_eq!(tell_function(&mut access, VLAN, "get", json!({}))["filtered"], 10);
    tell_function(&mut access, VLAN, "set", json!({ "allow": [] }));
    let limit = json!({ "packets_per_second": 1, "burst_packets": 5 });
    tell_function(&mut access, LIMITER, "set", limit);
    let before = running.view().wires[0].counters.rx_packets.get();
    send(60);
    wait_until("all have been counted", || {
        running.view().wires[0].counters.rx_packets.get() == before + 60
    });
    // One more for each second that this takes.
    let over = dropped(1);
    assert!((40..=55).contains(&over), "{over}");
    let found = tell_function(&mut access, LIMITER, "get", json!({}));
    assert_eq!((&found["dropped_packets"], &found["burst_packets"]), (&json!(over), &json!(5)));
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced() && report.ledger.in_flight == 0, "{report:?}");
    assert_eq!((report.drops["filtered"], report.drops["rate_limited"]), (10, over));
}

#[test]
fn what_is_dropped_is_counted() {
    let Some(bed) = Bed::new("what_is_dropped_is_counted") else { return };
    let _machine = machine();
    let rx = "[[rx]]\nfunction = \"sample\"\nevery = 4\nqueue = 1\n[[rx]]\nfunction = \"drop\"\n";
    for handover in HANDOVERS {
        let running = start(&bed.card(handover, rx));
        let to: SocketAddr = ([10, 77, 0, 1], PORT).into();
        let (server, client) =
            (bed.socket("card", to), bed.socket("far", ([10, 77, 0, 2], 9000).into()));
        let mut buffer = [0; 64];
        for _ in 0..100 {
            for _ in 0..4 {
                client.send_to(b"picnic", to).unwrap();
            }
            assert_eq!(server.recv(&mut buffer).unwrap(), 6);
        }
        wait_until("all have been counted", || {
            running.view().wires[0].counters.rx_packets.get() == 400
        });
        let report = running.stop().unwrap();
        check(&report, 400);
        assert_eq!((report.ledger.dropped, report.drops["filtered"]), (300, 300));
        assert_eq!(report.drops_by_stage["filtered@rx"], 300);
        assert_eq!((report.queues[0].packets, report.queues[1].packets), (0, 100));
        assert_eq!(report.functions[1].dropped, 300);
    }
}

/// Filters in front of the chain, put in, counted and taken out while packets flow.
#[test]
fn filters_are_changed_while_packets_flow() {
    let Some(bed) = Bed::new("filters_are_changed_while_packets_flow") else { return };
    let _machine = machine();
    let port = |port| FiveTuple {
        protocol: Some(Protocol::UDP),
        source_ports: PortRange::one(port),
        ..FiveTuple::default()
    };
    for handover in HANDOVERS {
        let rx = "[[rx]]\nfunction = \"rss\"\n[[filter]]\nname = \"seen\"\n[[filter]]\n\
                  name = \"other\"\nprotocol = \"tcp\"\naction = \"drop\"\n";
        let running = start(&bed.card(handover, rx));
        bed.send(64);
        let filters = running.filters().clone();
        let seen = filters.list()[0].id;
        wait_until("all have been counted", || filters.get(seen).unwrap().packets == 64);
        // A filter that none of these packets meets comes and goes: none is lost.
        bed.under_load(|arrived| {
            let more = || {
                let wanted = arrived.load(Relaxed) + 200;
                wait_until("more has arrived", || arrived.load(Relaxed) >= wanted);
            };
            for _ in 0..5 {
                let id = filters.add(Filter::new("none", port(1), Action::Drop)).unwrap();
                more();
                filters.remove(id).unwrap();
                more();
            }
        });
        // One that does: each of its packets ends there, and no other.
        let id = filters.add(Filter::new("one", port(9001), Action::Drop)).unwrap();
        let (server, flows) = bed.sockets();
        wait_until("the filter is in force", || {
            flows[1].send_to(b"picnic", SocketAddr::from(TO)).unwrap();
            filters.get(id).unwrap().packets != 0
        });
        let mut buffer = [0; 64];
        let before = filters.get(id).unwrap().packets;
        server.set_nonblocking(true).unwrap();
        while server.recv(&mut buffer).is_ok() {}
        server.set_nonblocking(false).unwrap();
        for flow in &flows[..3] {
            flow.send_to(b"picnic", SocketAddr::from(TO)).unwrap();
        }
        let mut from = [server.recv_from(&mut buffer), server.recv_from(&mut buffer)]
            .map(|found| found.unwrap().1.port());
        from.sort_unstable();
        assert_eq!(from, [9000, 9002]);
        wait_until("it is counted", || filters.get(id).unwrap().packets > before);
        let listing = filters.remove(id).unwrap();
        assert_eq!(listing.bytes, listing.packets * 48);
        drop((server, flows));
        wait_until("it is out of force", || filters.is_taken());
        let report = running.stop().unwrap();
        let ledger = &report.ledger;
        assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger:?}");
        assert_eq!((ledger.dropped, report.drops["filtered"]), (listing.packets, listing.packets));
        assert_eq!(filters.get(seen).unwrap().packets, report.wires[0].rx_packets);
        assert_eq!(report.functions[0].packets, report.wires[0].rx_packets - listing.packets);
    }
}

#[test]
fn a_wire_that_cannot_be_had_is_told() {
    let Some(bed) = Bed::new("a_wire_that_cannot_be_had_is_told") else { return };
    let _machine = machine();
    let before = bed.state();
    let text = bed.card("cpumap", "[[rx]]\nfunction = \"rss\"\n");
    let found = refusal(&text.replace("\"k0\"", "\"no-such\""));
    assert!(found.contains("wire[0].interface: found \"no-such\", but"), "{found}");
    let found = refusal(&text.replace(&bed.0.netns("card"), "no-such"));
    assert!(
        found.starts_with("card:")
            && found.contains("wire[0].namespace")
            && found.contains("no-such"),
        "{found}"
    );
    let running = start(&text);
    let found = launch(&parse(&text)).start_alone().map(drop).unwrap_err().to_string();
    assert!(
        found.contains("wire[0].interface") && found.contains("another card's wire"),
        "{found}"
    );
    assert!(found.starts_with("card:"), "with its line: {found}");
    // It goes on as if nothing had happened.
    bed.send(64);
    check(&running.stop().unwrap(), 64);
    assert_eq!(bed.state(), before);
}

/// Interfaces that no thread of the kernel polls are refused, whichever way: nothing would put the
/// programs on the borrowed core.
#[test]
fn an_interface_that_cannot_be_polled_is_refused() {
    let Some(bed) = Bed::new("an_interface_that_cannot_be_polled_is_refused") else { return };
    let _machine = machine();
    bed.0.ip("card", "tuntap add k2 mode tap").unwrap();
    bed.0.ip("card", "link set k2 up").unwrap();
    bed.0.ip("card", "link set lo up").unwrap();
    let _ = bed.second_wire();
    bed.0.ip("card", "link set k1 down").unwrap();
    let up = format!("it is down (ip -n {} link set k1 up)", bed.0.netns("card"));
    let namespace = bed.0.netns("card");
    let state = || {
        let ask = "for of in k1 k2 lo; do ethtool -k $of; cat /sys/class/net/$of/threaded; done; \
                   ip -o link";
        let words = ["ip", "netns", "exec", &namespace, "sh", "-c", ask];
        picnic_machine::command::run(&words).unwrap()
    };
    for handover in [HANDOVERS[0], HANDOVERS[1], "hybrid"] {
        for (interface, why) in
            [("k2", "its driver (tun) has no NAPI"), ("lo", "it has no NAPI"), ("k1", &*up)]
        {
            let before = state();
            let text = bed.card(handover, "[[rx]]\nfunction = \"rss\"\n");
            let text = text.replace("\"k0\"", &format!("\"{interface}\""));
            let found = refusal(&text);
            let message = format!(
                "card:6: wire[0].interface: found \"{interface}\", but interface {interface} cannot be \
                 polled by a thread of the kernel: {why}"
            );
            assert_eq!(found, message, "{handover}");
            assert_eq!(state(), before, "{handover}, {interface}");
        }
    }
}

/// What a driver does not take a program for is told with the wire and what there is beside it.
#[test]
fn a_driver_that_takes_no_program_is_named() {
    let Some(bed) = Bed::new("a_driver_that_takes_no_program_is_named") else { return };
    let _machine = machine();
    // A veth takes no program whose packets may be longer than a page.
    for (namespace, link) in [("card", "k0"), ("far", "f0")] {
        bed.0.ip(namespace, &format!("link set {link} mtu 9000")).unwrap();
    }
    let before = bed.state();
    let text = bed.card("cpumap", "[[rx]]\nfunction = \"rss\"\n");
    let found = launch(&parse(&text)).start_alone().map(drop).unwrap_err().to_string();
    let message = "card:6: wire[0].interface: found \"k0\", whose driver takes no XDP program: ";
    assert!(found.starts_with(message), "{found}");
    assert!(
        found.ends_with("; is its MTU too large? host.handover = \"skb\" needs none"),
        "{found}"
    );
    assert_eq!(bed.state(), before);
    let running = start(&text.replace("cpumap", "skb"));
    bed.send(64);
    check(&running.stop().unwrap(), 64);
    assert_eq!(bed.state(), before);
}

/// Set for a process without rights: the card that it tries to start.
const POWERLESS: &str = "PICNIC_KERNEL_POWERLESS";

#[test]
fn without_rights_a_card_says_which_it_wants() {
    let test = "without_rights_a_card_says_which_it_wants";
    if let Ok(card) = std::env::var(POWERLESS) {
        let card = parse(&card);
        let started = launch(&card).start_alone().map(drop).unwrap_err();
        let checked = launch(&card).check().map(drop).unwrap_err();
        for error in [started, checked] {
            println!("\nrefused: {}", error.to_string().replace('\n', " "));
        }
        return;
    }
    if !can_load(test) {
        return;
    }
    for handover in HANDOVERS {
        let card = card(handover, "", "[[rx]]\nfunction = \"rss\"\n")
            .replace("\"k0\"", "\"lo\"")
            .replace("namespace = \"\"\n", "");
        // Nobody's, but that the test program can be read.
        let output = Command::new("setpriv")
            .args(["--bounding-set=-all,+dac_override", "--inh-caps=-all"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", &format!("tests::traffic::{test}")])
            .env(POWERLESS, card)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let refused = text.lines().filter(|line| line.starts_with("refused: "));
        let told = refused.filter(|line| line.contains("CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"));
        assert_eq!(told.count(), 2, "by `run` and by `check`: {text}");
    }
}

/// A core that is not there is named, and nothing of the machine is changed.
#[test]
fn a_core_that_is_offline_is_named() {
    let Some(bed) = Bed::new("a_core_that_is_offline_is_named") else { return };
    let _machine = machine();
    let before = bed.state();
    for handover in HANDOVERS {
        let text = bed.card(handover, "[[rx]]\nfunction = \"rss\"\n");
        let text = text.replace("target_cores = [0, 1]", "target_cores = [0, 255]");
        let found = refusal(&text);
        assert!(found.contains("target_cores") && found.contains("255"), "{found}");
        assert_eq!(bed.state(), before);
    }
}

/// What a kernel does not have is named with what mends it, and nothing of the machine is changed.
#[test]
fn a_kernel_without_a_handover_is_told() {
    let Some(bed) = Bed::new("a_kernel_without_a_handover_is_told") else { return };
    let _machine = machine();
    let before = bed.state();
    let all = Facts { release: "6.18.0".into(), has_tun: true, has_cpumap: true };
    let without_cpumap = Facts { has_cpumap: false, ..all.clone() };
    let old = Facts { release: "6.1.0".into(), ..all };
    let cpumap = "but this kernel has no cpumap: Linux 5.17 or newer with CONFIG_BPF_SYSCALL and \
                  CONFIG_NET";
    let skb = "but Linux 6.1.0 has no links of tc programs: Linux 6.6 or newer; or host.handover = \
               \"cpumap\"";
    let or_skb = format!("{cpumap}, or set host.handover = \"skb\"");
    for (handover, kernel, place, why) in [
        ("cpumap", &without_cpumap, "card:13: host.handover: found \"cpumap\"", &*or_skb),
        ("hybrid", &without_cpumap, "card:2: card.engine: found \"hybrid\"", cpumap),
        ("skb", &old, "card:13: host.handover: found \"skb\"", skb),
    ] {
        let card = parse(&bed.card(handover, "[[rx]]\nfunction = \"rss\"\n"));
        let found = crate::run::start("kernel", kernel, launch(&card)).map(drop).unwrap_err();
        assert_eq!(found.to_string(), format!("{place}, {why}"));
        assert_eq!(bed.state(), before, "{handover}");
    }
    // The other one is there still.
    let text = bed.card("skb", "[[rx]]\nfunction = \"rss\"\n");
    let running = crate::run::start("kernel", &without_cpumap, launch(&parse(&text))).unwrap();
    bed.send(64);
    check(&running.stop().unwrap(), 64);
}

/// Another's XDP program is named and left alone; the way without one is open still.
#[test]
fn another_program_on_the_wire_is_named() {
    let Some(bed) = Bed::new("another_program_on_the_wire_is_named") else { return };
    let _machine = machine();
    let before = bed.state();
    let rx = "[[rx]]\nfunction = \"rss\"\n";
    let text = bed.card("cpumap", rx);
    let (plan, placement) = plan(&launch(&parse(&text))).unwrap();
    let mut object = Object::load(&plan, &placement.target_cores, false).unwrap();
    let program = object.wire(0).unwrap();
    let attached = within(Some(&bed.0.netns("card")), || Object::attach(program, "k0"));
    let other = attached.unwrap().unwrap();
    let found = refusal(&text);
    assert!(found.starts_with("card:") && found.contains("wire[0].interface: found k0"), "{found}");
    assert!(found.contains("another XDP program (id ") && found.contains("skb"), "{found}");
    assert_eq!(bed.state(), State { program: "cpumap", ..before.clone() }, "it is there still");
    drop(other);
    wait_until("it has gone", || bed.state() == before);
    let running = start(&text);
    bed.send(64);
    check(&running.stop().unwrap(), 64);
}

/// A wire that goes ends the run, and the rest of the machine is as it was.
#[test]
fn a_wire_that_goes_ends_the_run() {
    for handover in HANDOVERS {
        let Some(bed) = Bed::new("a_wire_that_goes_ends_the_run") else { return };
        let _machine = machine();
        let links = bed.0.ip("card", "link show").unwrap();
        let running = start(&bed.card(handover, "[[rx]]\nfunction = \"rss\"\n"));
        bed.send(64);
        bed.0.ip("card", "link del k0").unwrap();
        wait_until("the card has noticed", || !running.is_alive());
        let report = running.stop().unwrap();
        check(&report, 64);
        assert!(report.notes.iter().any(|note| note.contains("gone")), "{:?}", report.notes);
        assert!(links.contains("k0"), "{links}");
        let left = bed.0.ip("card", "link show").unwrap();
        assert!(!left.contains("picnic") && !left.contains("k0"), "{left}");
    }
}

#[test]
fn a_killed_card_leaves_a_journal_that_takes_all_back() {
    let test = "a_killed_card_leaves_a_journal_that_takes_all_back";
    if let Ok(handover) = std::env::var(VICTIM) {
        let namespace = std::env::var(VICTIM_NAMESPACE).unwrap();
        let keys = if handover == "hybrid" { hybrid::chain() } else { HELD.into() };
        let _running = start(&card(&handover, &namespace, &keys));
        println!("\nrunning");
        loop {
            std::thread::park();
        }
    }
    let Some(bed) = Bed::new(test) else { return };
    let _machine = machine();
    let before = bed.state();
    let state = bed.0.folder().join("state");
    for handover in HANDOVERS {
        let mut victim = Victim::start(&bed, handover, &state);
        assert_eq!(bed.state(), held_at_work(handover));
        victim.kill();
        // The programs have ended with their process; what had been set is taken back now.
        wait_until("XDP has gone", || bed.state().program != "cpumap");
        let left = if handover == "skb" { "skb" } else { "" };
        assert_eq!(bed.state(), held_at_work(left));
        let machine = Machine { state: state.clone(), ..Machine::this() };
        let restored = restore_all(&machine, Which::Stale).unwrap();
        assert!(
            restored.iter().all(|journal| journal.is_whole()) && restored.len() == 1,
            "{restored:?}"
        );
        assert_eq!(bed.state(), before);
        assert_eq!(restore_all(&machine, Which::Stale).unwrap(), []);
    }
}

/// PICNIC, section 3.2.1: what is in a ring when the card ends still gets to its host.
#[test]
fn nothing_is_lost_when_a_card_ends_under_load() {
    let Some(bed) = Bed::new("nothing_is_lost_when_a_card_ends_under_load") else { return };
    let _machine = machine();
    // Another way of polling loses what a veth holds: it is what the card wants from the start.
    bed.0.within("card", "ethtool -K k0 gro on").unwrap();
    let netns = bed.0.netns("card");
    let set = "echo 1 > /sys/class/net/k0/threaded; \
               for of in all default; do echo 0 > /proc/sys/net/ipv4/conf/$of/rp_filter; done";
    picnic_machine::command::run(&["ip", "netns", "exec", &netns, "sh", "-c", set]).unwrap();
    let state = bed.0.folder().join("state");
    for handover in HANDOVERS {
        let card = bed.card(handover, "[[rx]]\nfunction = \"rss\"\ntypes = [\"udp-ipv4\"]\n");
        bed.under_load(|arrived| {
            let more = || {
                let wanted = arrived.load(Relaxed) + 500;
                wait_until("more has arrived", || arrived.load(Relaxed) >= wanted);
            };
            for _ in 0..5 {
                let running = start(&card);
                more();
                let report = running.stop().unwrap();
                let (ledger, packets) = (&report.ledger, report.wires[0].rx_packets);
                assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger:?}");
                assert_eq!((packets, ledger.dropped), (ledger.delivered, 0), "{report:?}");
                assert!(packets > 100, "there was no load: {packets}");
                assert!(report.notes.iter().all(|note| !note.contains("bug")), "{report:?}");
            }
            for _ in 0..3 {
                let mut victim = Victim::start(&bed, handover, &state);
                more();
                victim.kill();
                more();
                let machine = Machine { state: state.clone(), ..Machine::this() };
                let restored = restore_all(&machine, Which::Stale).unwrap();
                assert!(restored.iter().all(|journal| journal.is_whole()), "{restored:?}");
            }
        });
    }
}

/// A card in a process of its own, to be killed.
struct Victim(Child);

impl Victim {
    fn start(bed: &Bed, handover: &str, state: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["tests::traffic::a_killed_card_leaves_a_journal_that_takes_all_back"])
            .args(["--exact", "--nocapture"])
            .env(VICTIM, handover)
            .env(VICTIM_NAMESPACE, bed.0.netns("card"))
            .env("PICNIC_STATE_DIR", state)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        wait_for("the card has started", || (lines.next()?.ok()? == "running").then_some(()));
        Victim(child)
    }

    fn kill(&mut self) {
        // It has ended by itself otherwise.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}
