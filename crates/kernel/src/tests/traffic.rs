//! Cards between two namespaces: real sockets, exact counts, and the machine restored.

mod arrivals;
mod changes;
mod ends;
mod hybrid;
mod losses;
mod objects;
mod refused;
mod swaps;

use super::{HANDOVERS, can_load, launch, parse};
use picnic_control::{Access, Report, Running};
use picnic_core::config::Section;
use picnic_core::direction::Direction;
use picnic_core::registry::{BuildContext, find};
use picnic_engine::swap::{Answer, Command as Order};
use picnic_filter::{Action, Filter, FiveTuple, Protocol};
use picnic_functions::rss::{Config, HashType, Rss};
use picnic_machine::testbed::Testbed;
use picnic_machine::undo::{JournalSelection, Machine, restore_all};
use picnic_ports::interface::within;
use picnic_testing::{PATIENCE, machine, skip, wait_for, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const CORES: usize = 2;
const PORT: u16 = 7000;
/// Destination of all flows.
const TO: ([u8; 4], u16) = ([10, 77, 0, 1], PORT);
const FLOWS: u16 = 64;
/// Most packets in flight: fewer than a veth's ring holds.
const BATCH: usize = 32;

/// A veth pair: the card's wire `k0` in one namespace, the senders in the other.
pub(super) struct Bed(pub(super) Testbed);

/// Flags set when dropped, to end threads.
struct Ends<'a>([&'a AtomicBool; 2]);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|is_told| is_told.store(true, Relaxed));
    }
}

impl Bed {
    /// None, with a message, if this machine cannot have one.
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
            // Only packets of these tests.
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
        // XDP has no information about partial checksums.
        testbed.within("far", "ethtool -K f0 tx off").unwrap();
        testbed.wait_for_carrier("card", "k0").unwrap();
        testbed.wait_for_carrier("far", "f0").unwrap();
        Some(bed)
    }

    fn socket(&self, namespace: &str, address: SocketAddr) -> UdpSocket {
        let name = self.0.netns(namespace);
        let socket = within(Some(&name), || UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// The sockets of all flows, and their receiver.
    fn sockets(&self) -> (UdpSocket, Vec<UdpSocket>) {
        let flows = (0..FLOWS).map(|flow| self.socket("far", ([10, 77, 0, 2], 9000 + flow).into()));
        (self.socket("card", TO.into()), flows.collect())
    }

    /// Sends packets of all flows in turn, and waits for each to arrive.
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

    /// Sends packets of all flows in turn, always with some in flight, while `body` runs, which can
    /// read the number of arrivals. All packets arrive; returns how many there were.
    fn under_load(&self, body: impl FnOnce(&AtomicU64)) -> u64 {
        const UNDER_WAY: u64 = 64;
        let (server, flows) = self.sockets();
        server.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let [sent, arrived] = [const { AtomicU64::new(0) }; 2];
        let [is_sent, is_done] = [const { AtomicBool::new(false) }; 2];
        std::thread::scope(|scope| {
            // On any failure, both threads end.
            let ends = Ends([&is_sent, &is_done]);
            let sender = scope.spawn(|| {
                for flow in flows.iter().cycle() {
                    while sent.load(Relaxed) - arrived.load(Relaxed) >= UNDER_WAY {
                        if is_sent.load(Relaxed) {
                            return;
                        }
                        std::thread::sleep(Duration::from_micros(20));
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
        sent.into_inner()
    }

    /// The wire's state: polled by threads, GRO, and obstacles.
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
            program: if links.contains("picnic-r") {
                "skb"
            } else if links.contains("xdp") {
                "cpumap"
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

    /// Another wire `k1`, which gets no packets, as a section of a card file.
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
    /// Nanoseconds of rest after a poll, and the number of empty polls.
    held: [u64; 2],
    program: &'static str,
}

/// The wire's state while a card runs.
fn at_work(program: &'static str) -> State {
    // Packets that are not polled reach the borrowed core, 1, by steering.
    let steered = if program == "skb" { 2 } else { 0 };
    State { threaded: true, steered, gro: true, held: [0, 0], program }
}

/// Makes wires rest after each poll.
const HELD: &str = "[interrupt]\nwire_usecs = 20000\n";

/// The same with [`HELD`].
fn held_at_work(program: &'static str) -> State {
    State { held: [20_000_000, 1], ..at_work(program) }
}

/// With `handover` "hybrid", the poll engine echoes its packets.
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

/// The queue of each flow, by the poll engine.
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

/// Sends a command to the card's `rss` and waits for the result.
fn tell(access: &mut Access, name: &str, arguments: Value) -> Value {
    tell_function(access, (1, "rss"), name, arguments)
}

/// The same to a function at its position in the chain.
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
