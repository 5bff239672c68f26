//! The `xdp` wire between network namespaces; needs root, iproute2, ping, iperf3.

use crate::bridge::{Lab, start, start_with, stop};
use picnic_control::report::Stamp;
use picnic_control::{Registries, Report};
use picnic_core::ledger::Ledger;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::{Description, Receiver, Status, Transmitter, WirePort};
use picnic_core::registry::BuildContext;
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use picnic_host::clock::Clock;
use picnic_host::registries;
use picnic_ports::af_xdp::{Mode, XdpConfig, XdpPort};
use picnic_testing::{let_pass, skip, this_test, wait_for, wait_until};
use std::collections::VecDeque;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

fn lab(test: &str) -> Option<Lab> {
    Lab::new(test, "xdp", 4)
}

fn bridge(lab: &Lab) -> String {
    // A window of packets fits in the buffers that wait for them.
    let end = "[[rx]]\nfunction = \"bridge\"\n[host]\nqueues = 1\n[pool]\nbuffers = 65536\n";
    let deep = "rx_ring = 4096\n";
    format!("{}{deep}{}{deep}{end}", lab.wire(0), lab.wire(1))
}

/// The mode of the program at w0, if there is one.
fn program(lab: &Lab) -> Option<u64> {
    let text = lab.run("m", "ip -j link show w0");
    let link: serde_json::Value = serde_json::from_str(&text).unwrap();
    link[0]["xdp"]["mode"].as_u64()
}

// ---------------------------------------------------------------- tests

#[test]
fn a_card_joins_two_namespaces_and_loses_nothing() {
    let Some(lab) = lab("a_card_joins_two_namespaces_and_loses_nothing") else { return };
    let running = start(&bridge(&lab)).unwrap();
    assert_eq!(program(&lab), Some(1), "native");
    lab.pings("a", "10.9.0.2");
    lab.pings("a", "fd09::2");
    // Fragments, both ways.
    lab.pings("a", "-s 8000 10.9.0.2");
    for options in [
        "-c 10.9.0.2 -n 32M",
        "-c 10.9.0.2 -n 32M -R",
        "-c fd09::2 -n 32M",
        "-c 10.9.0.2 -n 32M -P 8",
    ] {
        let tcp = lab.iperf(options);
        let bytes = tcp["end"]["sum_received"]["bytes"].as_u64().unwrap();
        assert!(bytes > 5_000_000, "{options}: {bytes}");
    }
    let udp = lab.iperf("-c 10.9.0.2 -n 4M -u -b 50M -l 1400");
    // A preempted receiver may lose packets: the kernel counts them.
    let counters = lab.run("b", "nstat -asz UdpRcvbufErrors");
    let line = counters.lines().find(|line| line.starts_with("UdpRcvbufErrors")).unwrap();
    let refused = line.split_whitespace().nth(1).and_then(|count| count.parse::<u64>().ok());
    assert!(udp["end"]["sum"]["lost_packets"].as_u64() <= refused, "{udp:#} {counters}");
    let report = stop(running);
    assert_eq!(report.ledger.dropped, 0, "{report:#?}");
    // For one thing, no packet came without an arrival time.
    assert_eq!(report.notes, Vec::<String>::new());
    assert!(report.wires.iter().all(|wire| wire.stamp == Stamp::Arrival));
    assert_eq!(report.ledger.transmitted, report.ledger.r#in);
    assert_eq!(report.wires[0].tx_packets + report.wires[1].tx_packets, report.ledger.r#in);
    wait_until("the program is gone", || program(&lab).is_none());
}

#[test]
fn jumbo_frames_pass_in_pieces() {
    const NAME: &str = "jumbo_frames_pass_in_pieces";
    let Some(lab) = lab(NAME) else { return };
    for (place, interface) in [("a", "a0"), ("b", "b0"), ("m", "w0"), ("m", "w1")] {
        lab.run(place, &format!("ip link set {interface} mtu 9000"));
    }
    let running = match start(&bridge(&lab)) {
        Ok(running) => running,
        Err(error) if error.contains("accepts no packets in pieces") => {
            return skip(NAME, "this kernel has no AF_XDP packets in pieces");
        }
        Err(error) => panic!("{error}"),
    };
    lab.pings("a", "-M do -s 8972 10.9.0.2");
    let tcp = lab.iperf("-c 10.9.0.2 -n 32M");
    assert!(tcp["end"]["sum_received"]["bytes"].as_u64().unwrap() > 5_000_000);
    let report = stop(running);
    assert_eq!(report.ledger.dropped, 0, "{report:#?}");
    assert_eq!(report.notes, Vec::<String>::new());
}

#[test]
fn packets_carry_the_programs_time() {
    let Some(lab) = lab("packets_carry_the_programs_time") else { return };
    lab.ask_once();
    for (mode, stamps) in [(Mode::Native, true), (Mode::Generic, true), (Mode::Native, false)] {
        let config = XdpConfig {
            interface: Some("w0".into()),
            namespace: Some(lab.bed.netns("m")),
            mode,
            stamps,
            ..XdpConfig::default()
        };
        let pool = PoolConfig::default();
        let context = BuildContext {
            buffer_size: pool.buffer_size as usize,
            buffers: pool.buffers as usize,
            wires: 1,
            ..BuildContext::default()
        };
        let mut wire = XdpPort::open(&config, &context).unwrap();
        let clock = Clock::start();
        let (mut pool, _) = Pool::new(&pool, 0).unwrap();
        let (counters, ledger, mut burst) = (WireCounters::default(), Ledger::new(0), Burst::new());
        wire.start(&mut pool).unwrap();
        let before = clock.now();
        // Nobody is there: the outgoing packet is the ARP request, for an address not requested
        // before. The kernel waits a second for the answer, and `ping` for the kernel.
        let address = if stamps { mode as u8 } else { 7 };
        lab.is_good("a", &format!("ping -c 1 -W 10 10.9.0.{}", 70 + address));
        let after = clock.now();
        let_pass(50);
        // Both are the same clock, read one after the other.
        let off_ns = 5_000_000;
        let asked = before.as_nanos() - off_ns..after.as_nanos() + off_ns;
        // IPv6 packets of the kernel itself may come before.
        wait_until(&format!("{mode:?}: the question comes"), || {
            let now = clock.now();
            let mut rx = Receiver::new(&mut pool, &mut burst, &counters, &ledger.card, now, 0, 64)
                .with_clocks(Some(clock.others()));
            wire.receive(now, &mut rx);
            drop(rx);
            let mut has_come = false;
            for packet in burst.drain() {
                let time = packet.received_at();
                assert!(
                    if stamps { time < now } else { time == now },
                    "{mode:?}: {time:?} {now:?}"
                );
                has_come |= !stamps || asked.contains(&time.as_nanos());
                pool.free(packet);
            }
            has_come
        });
        assert_eq!(counters.stamps_ahead.get(), 0, "{mode:?}: {:?}", clock.others());
        let mut queue = VecDeque::new();
        let mut tx = Transmitter::new(&mut pool, &mut queue, &counters, &ledger.card);
        assert_eq!(wire.stop(&mut tx), [""; 0]);
    }
}

/// Turns in which the generator may still send, up to 64 packets in each.
static TURNS: AtomicU32 = AtomicU32::new(0);
/// Turns at a time. Their packets fit in every ring and backlog, however long a core is away.
const WINDOW: u32 = 6;

/// A generator that sends in a limited number of turns.
struct Valve(Box<dyn WirePort>);

impl WirePort for Valve {
    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        if TURNS.load(Ordering::Relaxed) != 0 {
            self.0.receive(now, rx);
            TURNS.fetch_sub(1, Ordering::Release);
        }
    }

    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>) {
        self.0.transmit(now, tx);
    }

    fn status(&self) -> Status<'_> {
        self.0.status()
    }
}

/// Numbered packets from a generator and an xdp wire to another xdp wire and a card's host.
fn numbered(lab: &Lab, keys: &str, host: &str) -> (Report, Report) {
    // Nobody else may send before the first card polls: with one packet of the kernel's own, more
    // would arrive than was sent.
    for place in ["a", "m"] {
        lab.run(place, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    }
    let keys = &format!("rx_ring = 4096\n{keys}");
    let pool = "[pool]\nbuffers = 65536\n";
    let there = format!("{}{keys}{pool}[[rx]]\nfunction = \"rss\"\n[host]\n{host}\n", lab.wire(0));
    let running = start(&there).unwrap();
    let from = format!(
        "[card]\nname = \"from\"\n[[wire]]\nport = \"generator\"\npackets = 20000\n\
         size = [60, 1514]\nsequence_numbers = true\n\
         [[wire]]\nport = \"xdp\"\ninterface = \"a0\"\nnamespace = \"{}\"\n{keys}\
         [[rx]]\nfunction = \"bridge\"\n[host]\nqueues = 1\n{pool}",
        lab.bed.netns("a")
    );
    TURNS.store(0, Ordering::Relaxed);
    let valve = Registries {
        middleware: |port, wire, _| match wire.port.name() {
            "generator" => Ok(Box::new(Valve(port))),
            _ => Ok(port),
        },
        ..registries()
    };
    let sender = start_with(&from, valve).unwrap();
    let received = || running.view().wires[0].counters.rx_packets.get();
    let wire = |number: usize| &sender.view().wires[number].counters;
    let made = || wire(0).rx_packets.get();
    let arrived = || received() == made() && wire(1).tx_packets.get() == made();
    let answered = || !host.contains("echo") || wire(1).rx_packets.get() == received();
    wait_until("all is sent and answered", || {
        let has_settled = TURNS.load(Ordering::Acquire) == 0 && arrived() && answered();
        if has_settled && made() < 20_000 {
            TURNS.store(WINDOW, Ordering::Release);
        }
        has_settled && made() == 20_000
    });
    let sender = stop(sender);
    (sender, stop(running))
}

#[test]
fn numbered_packets_arrive_complete_and_in_order() {
    let Some(lab) = lab("numbered_packets_arrive_complete_and_in_order") else { return };
    for keys in ["", "mode = \"generic\"\n", "need_wakeup = false\n", "busy_poll = 64\n"] {
        let (sender, receiver) =
            numbered(&lab, keys, "queues = 2\nring_size = 16384\nverify_order = true");
        assert_eq!(sender.ledger.transmitted, 20_000, "{sender:#?}");
        assert_eq!(
            (receiver.ledger.delivered, receiver.ledger.dropped),
            (20_000, 0),
            "{receiver:#?}"
        );
        let notes = receiver.notes.join("\n");
        assert!(notes.contains(", 0 reordered, 0 skipped"), "{keys}: {notes}");
    }
}

#[test]
fn echoes_return_complete() {
    let Some(lab) = lab("echoes_return_complete") else { return };
    let (sender, receiver) =
        numbered(&lab, "", "queues = 2\nring_size = 16384\ntx_ring_size = 16384\nmode = \"echo\"");
    let sent = sender.wires[1].tx_packets;
    assert_eq!(sent, 20_000, "{sender:#?}");
    assert_eq!((receiver.ledger.transmitted, receiver.ledger.dropped), (sent, 0), "{receiver:#?}");
    assert_eq!(sender.wires[1].rx_packets, sent, "{sender:#?}");
}

#[test]
fn tap_host_behind_xdp_acts_as_a_nic() {
    const NAME: &str = "tap_host_behind_xdp_acts_as_a_nic";
    if !std::path::Path::new("/dev/net/tun").exists() {
        return skip(NAME, "there is no /dev/net/tun");
    }
    let Some(lab) = lab(NAME) else { return };
    lab.run("b", "ip link delete b0");
    let host = format!(
        "[[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"tap\"\nqueues = 2\nname = \"h0\"\n\
         namespace = \"{}\"\naddresses = [\"10.9.0.2/24\", \"fd09::2/64\"]\n[pool]\nbuffers = 32768\n",
        lab.bed.netns("b")
    );
    let running = start(&(lab.wire(0) + "rx_ring = 4096\n" + &host)).unwrap();
    lab.pings("a", "10.9.0.2");
    lab.pings("a", "fd09::2");
    for options in ["-c 10.9.0.2 -n 32M", "-c 10.9.0.2 -n 32M -R", "-c fd09::2 -n 32M -P 4"] {
        let tcp = lab.iperf(options);
        let bytes = tcp["end"]["sum_received"]["bytes"].as_u64().unwrap();
        assert!(bytes > 5_000_000, "{options}: {bytes}");
    }
    let report = stop(running);
    assert_eq!(report.notes, Vec::<String>::new());
    // The kernel's own checksums would have caught unfinished packets.
    let counters = lab.run("a", "nstat -asz TcpInCsumErrors UdpInCsumErrors");
    let wrong = counters.lines().filter(|line| line.contains("CsumErrors"));
    assert!(
        wrong.clone().count() > 0 && wrong.clone().all(|line| line.contains(" 0 ")),
        "{counters}"
    );
}

#[test]
fn packets_of_other_queues_stay_with_the_kernel() {
    let Some(lab) = lab("packets_of_other_queues_stay_with_the_kernel") else { return };
    // The sender chooses the queue of a flow: of 16, some take another than the last.
    let mac = |place, interface| lab.run(place, &format!("cat /sys/class/net/{interface}/address"));
    let (mac, peer) = (mac("m", "w0"), mac("a", "a0"));
    lab.run("m", &format!("ip neighbour add 10.9.0.1 lladdr {} dev w0", peer.trim()));
    for host in 101..117 {
        lab.run("m", &format!("ip address add 10.9.0.{host}/24 dev w0"));
        let neighbour = format!("ip neighbour add 10.9.0.{host} lladdr {} dev a0", mac.trim());
        lab.run("a", &neighbour);
    }
    let running = start(&(lab.wire(0) + "queues = [3]\n")).unwrap();
    wait_until("packets pass to the kernel", || {
        let pings = (101..117)
            .map(|host| lab.spawn("a", &format!("ping -q -c 3 -i 0.1 -w 2 10.9.0.{host}")));
        let pings = pings.collect::<Vec<_>>().into_iter();
        pings.filter_map(|mut ping| ping.finish().ok()).count() != 0
    });
    stop(running);
    let error = start(&(lab.wire(0) + "queues = 5\n")).map(drop).unwrap_err();
    assert!(error.contains("wire[0].queues") && error.contains("the interface has 4"), "{error}");
}

#[test]
fn promiscuous_mode_and_program_end_with_the_card() {
    let Some(lab) = lab("promiscuous_mode_and_program_end_with_the_card") else { return };
    let promiscuity = || {
        let text = lab.run("m", "ip -d -j link show w0");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()[0]["promiscuity"].as_u64()
    };
    assert_eq!((promiscuity(), program(&lab)), (Some(0), None));
    // A child that another test is just starting has the card's descriptors for a moment.
    let is_as_before = || (promiscuity(), program(&lab)) == (Some(0), None);
    let running = start(&lab.wire(0)).unwrap();
    assert_eq!((promiscuity(), program(&lab)), (Some(1), Some(1)));
    stop(running);
    wait_until("both have ended", is_as_before);
    let running = start(&(lab.wire(0) + "promiscuous = false\nmode = \"generic\"\n")).unwrap();
    assert_eq!((promiscuity(), program(&lab)), (Some(0), Some(2)));
    stop(running);
    wait_until("both have ended", is_as_before);
}

#[test]
fn unsupported_settings_of_an_interface_are_explained() {
    let Some(lab) = lab("unsupported_settings_of_an_interface_are_explained") else { return };
    let wrong = |card: &str| match start(card) {
        Ok(running) => panic!("runs: {card}: {:?}", stop(running).notes),
        Err(error) => error,
    };
    let error = wrong(&(lab.wire(0) + "copy_mode = \"zero-copy\"\n"));
    assert!(error.contains("wire[0].copy_mode: found \"zero-copy\""), "{error}");
    let error = wrong(&(lab.wire(0) + "[pool]\nbuffer_size = 1024\n"));
    assert!(error.contains("raise buffer_size in [pool]"), "{error}");
    // A program attached by another card's wire of this name.
    let running = start(&lab.wire(0)).unwrap();
    lab.run("m", "ip link set w0 down");
    lab.run("m", "ip link set w0 name w9");
    lab.run("m", "ip link set w9 up");
    let error = wrong(&lab.wire(9));
    let held = ["has an XDP program already", "has an AF_XDP socket already"];
    assert!(held.iter().any(|part| error.contains(part)), "{error}");
    stop(running);
    stop(start(&lab.wire(9)).unwrap());
}

/// Set for a child that runs this card until it is killed.
const VICTIM: &str = "PICNIC_TEST_XDP_VICTIM";

/// The child, killed when the test ends.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nothing_is_left_after_sigkill() {
    const NAME: &str = "nothing_is_left_after_sigkill";
    if let Ok(card) = std::env::var(VICTIM) {
        let _running = start(&card).unwrap();
        loop {
            std::thread::park();
        }
    }
    let Some(lab) = lab(NAME) else { return };
    let load = lab.spawn("a", "ping -q -f 10.9.0.2");
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child
        .args([&*this_test(), "--exact"])
        .env(VICTIM, lab.wire(0) + "[host]\nmode = \"echo\"\n");
    let mut child = Victim(child.stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(wait_for("the program", || program(&lab)), 1);
    let_pass(200);
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    wait_until("the program is gone", || program(&lab).is_none());
    drop(load);
    // The kernel lets go of the sockets a moment later.
    stop(wait_for("the queues are free", || start(&lab.wire(0)).ok()));
}
