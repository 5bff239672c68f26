//! The `packet` wire between network namespaces; needs root, iproute2, ping, iperf3.

use crate::bridge::{Lab, start, stop};
use picnic_control::Launch;
use picnic_core::ledger::Ledger;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::{Rate, Receiver, WirePort};
use picnic_core::stats::WireCounters;
use picnic_host::clock::Clock;
use picnic_host::registries;
use picnic_ports::af_packet::{PacketConfig, PacketPort};
use picnic_testing::{let_pass, skip, wait_until};
use std::process::{Command, Stdio};

fn lab(test: &str) -> Option<Lab> {
    Lab::new(test, "packet", 1)
}

fn bridge(lab: &Lab) -> String {
    let end = "[[rx]]\nfunction = \"bridge\"\n[host]\nqueues = 1\n";
    format!("{}{}{end}", lab.wire(0), lab.wire(1))
}

/// Gives both ends an interface in VLAN 7; false if this kernel cannot.
fn tag(lab: &Lab) -> bool {
    [("a", 1), ("b", 2)].into_iter().all(|(place, number)| {
        let add = format!("ip link add link {place}0 name {place}0.7 type vlan id 7");
        lab.is_good(place, &add) && {
            lab.run(place, &format!("ip link set {place}0.7 up"));
            lab.run(place, &format!("ip address add 10.9.7.{number}/24 dev {place}0.7"));
            true
        }
    })
}

/// Makes one core receive each interface's packets; false if this kernel cannot. Otherwise veth
/// receives a flow that is sent from two cores on both, out of order.
fn keep_order(lab: &Lab) -> bool {
    [("a", "a0"), ("b", "b0"), ("m", "w0"), ("m", "w1")].iter().all(|(place, interface)| {
        let path = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        let mut tee = Command::new("ip");
        let tee = tee.args(["netns", "exec", &lab.bed.netns(place), "tee", &path]);
        let mut tee = tee.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        std::io::Write::write_all(&mut tee.stdin.take().unwrap(), b"1").unwrap();
        tee.wait().unwrap().success()
    })
}

/// A counter of a namespace's network stack.
fn count(lab: &Lab, place: &str, name: &str) -> Option<u64> {
    let text = lab.run(place, &format!("nstat -asz {name}"));
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
}

// ---------------------------------------------------------------- tests

/// Warnings about wires at the start come first in the report.
#[test]
fn interfaces_that_are_down_are_reported_first() {
    let Some(lab) = lab("interfaces_that_are_down_are_reported_first") else { return };
    lab.run("m", "ip link set w0 down");
    let text = lab.wire(0) + "[control]\nsocket = \"off\"\n";
    let card = picnic_host::sections().parse(&text, None).unwrap();
    let running = Launch::new(&card, registries()).start().unwrap();
    let told = running.view().warnings.clone();
    let command = format!("ip -n {} link set w0 up", lab.bed.netns("m"));
    assert_eq!(told, [format!("wire0: interface w0 is down: {command}")]);
    let report = running.stop().unwrap();
    assert_eq!(report.notes[..1], told, "{:?}", report.notes);
}

#[test]
fn a_card_joins_two_namespaces_and_loses_nothing() {
    let Some(lab) = lab("a_card_joins_two_namespaces_and_loses_nothing") else { return };
    let ordered = keep_order(&lab);
    let running = start(&bridge(&lab)).unwrap();
    lab.pings("a", "10.9.0.2");
    lab.pings("a", "fd09::2");
    // Fragments, both ways.
    lab.pings("a", "-s 8000 10.9.0.2");
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
    let udp = lab.iperf("-c 10.9.0.2 -n 4M -u -b 50M -l 1400");
    // A preempted receiver may lose packets: the kernel counts them.
    let refused = count(&lab, "b", "UdpRcvbufErrors");
    assert!(refused.is_some() && udp["end"]["sum"]["packets"].as_u64() > Some(0), "{udp:#}");
    assert!(udp["end"]["sum"]["lost_packets"].as_u64() <= refused, "{udp:#} {refused:?}");
    let report = stop(running);
    assert_eq!(report.ledger.dropped, 0, "{report:#?}");
    assert_eq!(report.notes, Vec::<String>::new());
    assert_eq!(report.ledger.transmitted, report.ledger.r#in);
    // Nothing was out of order, so nothing was lost: TCP resent because a core was slow. Packets
    // refused by the receiver itself would leave a gap too.
    for place in ["a", "b"] {
        let count = |name| count(&lab, place, name);
        let (gaps, refused) = (count("TcpExtTCPOFOQueue"), count("TcpExtTCPBacklogDrop"));
        assert!(!ordered || gaps == Some(0) || refused > Some(0), "{place}: {gaps:?} gaps");
    }
}

#[test]
fn wires_report_link_speed_and_ring_length() {
    let name = "wires_report_link_speed_and_ring_length";
    let Some(lab) = lab(name) else { return };
    let wire = PacketPort::open(&PacketConfig {
        interface: Some("w0".into()),
        namespace: Some(lab.bed.netns("m")),
        frames: 512,
        ..PacketConfig::default()
    });
    let arrivals = wire.unwrap().describe().arrivals;
    // A veth reports 10 Gb/s: 84 bytes for each of the shortest frames.
    assert_eq!((arrivals.rate, arrivals.room), (Rate::Pps(14_880_953), Some(512)));
    assert_eq!(arrivals.origin, "10000 Mb/s, frames of 64 bytes");
}

#[test]
fn packets_carry_the_kernels_receive_time() {
    let Some(lab) = lab("packets_carry_the_kernels_receive_time") else { return };
    lab.ask_once();
    let mut wire = PacketPort::open(&PacketConfig {
        interface: Some("w0".into()),
        namespace: Some(lab.bed.netns("m")),
        ..PacketConfig::default()
    })
    .unwrap();
    let clock = Clock::start();
    let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    let (counters, ledger, mut burst) = (WireCounters::default(), Ledger::new(0), Burst::new());
    let before = clock.now();
    // Nobody is there: the outgoing packet is the ARP request. The kernel waits a second for the
    // answer, and `ping` for the kernel.
    lab.is_good("a", "ping -c 1 -W 10 10.9.0.77");
    let after = clock.now();
    let_pass(20);
    // The real-time clock may be slightly off: it is read next to the other.
    let off_ns = 5_000_000;
    let mut questions = 0;
    wait_until("the question comes", || {
        let now = clock.now();
        let mut rx = Receiver::new(&mut pool, &mut burst, &counters, &ledger.card, now, 0, 64)
            .with_clocks(Some(clock.others()));
        wire.receive(now, &mut rx);
        drop(rx);
        for packet in burst.drain() {
            let ns = packet.received_at().as_nanos();
            // IPv6 packets of the kernel itself may have come before.
            if packet.data().get(12..14) == Some(&[0x08, 0x06]) {
                questions += 1;
                assert!(ns + off_ns >= before.as_nanos(), "{ns}");
                // The request is repeated until it is answered.
                assert!(questions != 1 || ns <= after.as_nanos() + off_ns, "{ns}");
            }
            pool.free(packet);
        }
        questions != 0
    });
    assert_eq!(counters.stamps_ahead.get(), 0);
}

#[test]
fn a_card_joins_two_vlans() {
    const NAME: &str = "a_card_joins_two_vlans";
    let Some(lab) = lab(NAME) else { return };
    if !tag(&lab) {
        return skip(NAME, "this kernel has no VLAN interfaces");
    }
    let running = start(&bridge(&lab)).unwrap();
    lab.pings("a", "10.9.7.2");
    let tcp = lab.iperf("-c 10.9.7.2 -n 128M -P 4");
    assert!(tcp["end"]["sum_received"]["bytes"].as_u64().unwrap() > 5_000_000);
    let report = stop(running);
    assert_eq!(report.ledger.dropped, 0, "{report:#?}");
}

#[test]
fn only_received_packets_are_counted() {
    let Some(lab) = lab("what_an_interface_receives_is_counted") else { return };
    let card = lab.wire(0) + "[[rx]]\nfunction = \"rss\"\n[host]\nqueues = 2\n";
    let running = start(&card).unwrap();
    let received = || running.view().wires[0].counters.rx_packets.get();
    // Nobody answers: the request is repeated.
    lab.is_good("a", "ping -q -c 3 -i 0.1 -W 1 10.9.0.77");
    wait_until("two requests", || received() >= 2);
    // With a known neighbour, each ping arrives; it is for another address than w0's.
    lab.run("a", "ip neighbour add 10.9.0.78 lladdr 02:00:00:00:00:78 dev a0");
    let before = received();
    lab.is_good("a", "ping -q -c 10 -i 0.01 -W 1 10.9.0.78");
    wait_until("every ping", || received() >= before + 10);
    // Packets that the other end sends itself are not the wire's.
    lab.run("m", "ip address add 10.9.0.99/24 dev w0");
    lab.run("m", "ip neighbour add 10.9.0.55 lladdr 02:00:00:00:00:55 dev w0");
    lab.run("a", "sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    let before = received();
    lab.is_good("m", "ping -q -c 50 -i 0.01 -W 1 10.9.0.55");
    // A packet that is received shows that the card has seen all before it.
    let last = received();
    lab.is_good("a", "ping -q -c 1 -W 1 10.9.0.78");
    wait_until("the last ping", || received() > last);
    assert!(received() < before + 50);
    let report = stop(running);
    assert_eq!(report.ledger.delivered, report.ledger.r#in, "{report:#?}");
    assert_eq!(report.ledger.r#in, report.wires[0].rx_packets + report.wires[0].rx_shed);
}

#[test]
fn promiscuous_mode_ends_with_the_card() {
    let Some(lab) = lab("promiscuous_mode_ends_with_the_card") else { return };
    let promiscuity = || {
        let text = lab.run("m", "ip -d -j link show w0");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()[0]["promiscuity"].as_u64()
    };
    assert_eq!(promiscuity(), Some(0));
    let running = start(&lab.wire(0)).unwrap();
    assert_eq!(promiscuity(), Some(1));
    stop(running);
    // A child that another test is just starting has the card's descriptors for a moment.
    wait_until("it has ended", || promiscuity() == Some(0));
    let running = start(&(lab.wire(0) + "promiscuous = false\n")).unwrap();
    assert_eq!(promiscuity(), Some(0));
    stop(running);
}

#[test]
fn interfaces_moved_between_namespaces_are_reopened() {
    const NAME: &str = "interfaces_moved_between_namespaces_are_reopened";
    let Some(lab) = lab(NAME) else { return };
    let running = start(&(lab.wire(0) + "[host]\nmode = \"echo\"\n")).unwrap();
    let index = || lab.bed.within("m", "cat /sys/class/net/w0/ifindex").ok();
    let before = index();
    // There is no interface with this index.
    lab.bed.add_namespace("x").unwrap();
    // First long enough to be noticed, then only for the time of the command.
    for pause in [100, 0] {
        let (here, away) = (lab.bed.netns("m"), lab.bed.netns("x"));
        lab.bed.ip("m", &format!("link set w0 netns {away}")).unwrap();
        let_pass(pause);
        lab.bed.ip("x", &format!("link set w0 netns {here}")).unwrap();
        assert_eq!(index(), before, "another index: that is another test");
        lab.run("m", "ip link set w0 up");
        // The card echoes packets to a host that answers for itself.
        let received = running.view().wires[0].counters.rx_packets.get();
        wait_until("w0 is reattached", || {
            lab.is_good("a", "ping -q -c 1 -W 1 10.9.0.77");
            running.view().wires[0].counters.rx_packets.get() > received
        });
    }
    let notes = stop(running).notes.join("\n");
    assert!(notes.contains("w0: was deleted or moved away 2 times"), "{notes}");
}
