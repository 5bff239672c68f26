//! Arrivals by flow and by wire, their order, and the core that took them.

use super::*;
use picnic_machine::napi::{Polling, named};
use picnic_machine::undo::Journal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

/// Interfaces of the same name in two namespaces: neither uses the other's threads, so it survives
/// when the other ends.
#[test]
fn threads_of_same_named_interfaces_are_left_alone() {
    let test = "threads_of_same_named_interfaces_are_left_alone";
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
    // Steering of the wire itself would come first: it is off while the card runs.
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
            assert_eq!(queue.doorbells, 0, "{handover}: {queue:?}");
        }
        let functions: Vec<_> =
            report.functions.iter().map(|found| (&*found.name, found.packets)).collect();
        let all = rounds as u64 * u64::from(FLOWS);
        assert_eq!(functions, [("pass", all), ("rss", all)]);
        assert_eq!(bed.state(), before, "{:?}", report.notes);
    }
}

/// Wires share a program, but not with an interface of the same number in another namespace.
#[test]
fn wires_sharing_a_program_are_distinguished() {
    let test = "wires_sharing_a_program_are_distinguished";
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
        bed.wait_for_carrier(far_of(place), &far).unwrap();
        let namespace = bed.netns(place);
        card += &format!(
            "[[wire]]\nport = \"xdp\"\ninterface = \"{near}\"\nnamespace = \"{namespace}\"\n"
        );
    }
    let sent = [1, 2, 3, 4].map(|share| share * BATCH as u64);
    for handover in [HANDOVERS[0], HANDOVERS[1], "hybrid"] {
        // With the poll engine, all packets go there: each wire has its own sockets.
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

/// Scheduling policy of the threads at the rings, by `sched(7)`: 0 normal, 3 batch.
#[test]
fn threads_have_the_cards_scheduling_policy() {
    let Some(bed) = Bed::new("threads_have_the_cards_scheduling_policy") else { return };
    let _machine = machine();
    for handover in HANDOVERS {
        for (key, wanted) in [("", "0"), ("scheduling = \"batch\"\n", "3")] {
            let before = named(&Machine::this(), "cpumap/");
            let card = bed.card(handover, "[[rx]]\nfunction = \"rss\"\n");
            let running = start(&format!("{card}{key}"));
            let now = named(&Machine::this(), "cpumap/");
            // Tests beside this one load programs, too, whose threads come and go.
            let stats = now
                .difference(&before)
                .filter_map(|thread| std::fs::read_to_string(format!("/proc/{thread}/stat")).ok());
            let policies = stats.map(|stat| {
                let (_, fields) = stat.rsplit_once(") ").unwrap();
                // The third field after the name.
                fields.split(' ').nth(41 - 3).unwrap().to_owned()
            });
            let policies: Vec<_> = policies.collect();
            let count = |wanted: &str| policies.iter().filter(|policy| *policy == wanted).count();
            assert!(count(wanted) >= CORES, "{handover}, {key}: {policies:?}");
            let batch = if wanted == "3" { CORES } else { 0 };
            assert_eq!((count("3"), count("0") + batch), (batch, policies.len()), "{policies:?}");
            bed.send(64);
            check(&running.stop().unwrap(), 64);
        }
    }
}

#[test]
fn resting_wires_interrupt_once() {
    let Some(bed) = Bed::new("resting_wires_interrupt_once") else { return };
    let _machine = machine();
    let before = bed.state();
    // By default, one empty poll; otherwise as many as fit in the time.
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
        // Those of a batch arrive together.
        let queue = &report.queues[0];
        assert!(queue.interrupts * 4 <= queue.packets, "{handover}: {queue:?}");
        assert_eq!(bed.state(), before, "{:?}", report.notes);
    }
}

/// Merged packets of a connection, with partial checksums, arrive only on its core.
#[test]
fn connections_stay_on_their_core() {
    const BYTES: usize = 4 << 20;
    let Some(bed) = Bed::new("connections_stay_on_their_core") else { return };
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
        // Super-frames count as the packets they consist of.
        assert!(packets > BYTES as u64 / 1460 && bytes > BYTES as u64, "{packets}, {bytes}");
        let mut wanted = [(0, 0); CORES];
        wanted[queue] = (packets, bytes);
        let found: Vec<_> =
            report.queues.iter().map(|queue| (queue.packets, queue.bytes)).collect();
        assert_eq!(found, wanted);
    }
}

/// Makes a link send super-frames of up to 180,000 bytes, also for IPv4, which older versions of
/// `ip` do not support.
const LENGTHEN: &str = "
import socket, struct, sys
length = struct.pack('=I', 180000)
body = struct.pack('=BxHiII', 0, 0, socket.if_nametoindex(sys.argv[1]), 0, 0)
body += b''.join(struct.pack('=HH', 8, kind) + length for kind in (41, 58, 63, 64))
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
link.send(struct.pack('=IHHII', 16 + len(body), 16, 5, 1, 0) + body)
sys.exit(-struct.unpack_from('=i', link.recv(4096), 16)[0])
";

/// Super-frames of more than 65,535 bytes, whose IP length is 0, keep their flow.
#[test]
fn super_frames_beyond_64_kib_keep_their_flow() {
    let test = "super_frames_beyond_64_kib_keep_their_flow";
    let Some(bed) = Bed::new(test) else { return };
    let _machine = machine();
    bed.0.within("far", "ethtool -K f0 tx on").unwrap();
    for (namespace, link) in [("card", "k0"), ("far", "f0")] {
        let netns = bed.0.netns(namespace);
        let set = ["ip", "netns", "exec", &netns, "python3", "-c", LENGTHEN, link];
        if let Err(error) = picnic_machine::command::run(&set) {
            return skip(test, &format!("no super-frames beyond 64 KiB here: {error}"));
        }
    }
    let keys = "protocol = \"tcp\"\ndestination_ports = ";
    let rx = format!(
        "[[rx]]\nfunction = \"rss\"\ntypes = [\"ipv4\", \"tcp-ipv4\"]\n\
         [[filter]]\nname = \"other\"\naction = \"drop\"\n{keys}\"7001\"\n\
         [[filter]]\nname = \"own\"\n{keys}\"{PORT}\"\n"
    );
    let running = start(&bed.card("skb", &rx));
    let netns = ["card", "far"].map(|short| bed.0.netns(short));
    let to = SocketAddr::from(TO);
    let server = within(Some(&netns[0]), || TcpListener::bind(to)).unwrap().unwrap();
    let mut client = within(Some(&netns[1]), || TcpStream::connect(to)).unwrap().unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    // The longest packet of the wire, as seen by a packet socket.
    let watch = ["tcpdump", "-nn", "-c", "1", "-i", "k0", "greater", "65600"];
    let mut watched = bed.0.start("card", &watch, &[0]).unwrap();
    wait_until("it is watched", || watched.last_words().contains("listening on"));
    let is_seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let (block, mut sent) = (vec![7; 1 << 20], 0);
            while !is_seen.load(Relaxed) {
                client.write_all(&block).unwrap();
                sent += block.len() as u64;
            }
            client.shutdown(Shutdown::Write).unwrap();
            sent
        });
        let receiver = scope.spawn(|| std::io::copy(&mut accepted, &mut std::io::sink()).unwrap());
        // On any failure, both threads end.
        let ends = Ends([&is_seen, &is_seen]);
        wait_until("a long one was seen", || watched.ended().is_some());
        drop(ends);
        assert_eq!(receiver.join().unwrap(), sender.join().unwrap());
    });
    watched.finish().unwrap();
    let filters = running.filters().clone();
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced() && report.ledger.dropped == 0, "{:?}", report.ledger);
    let of = |name: &str| {
        filters.list().into_iter().find(|info| info.filter.name == name).unwrap().packets
    };
    let packets = report.wires[0].rx_packets;
    assert_eq!((of("other"), of("own")), (0, packets));
    let mut used: Vec<_> = report.queues.iter().map(|queue| queue.packets).collect();
    used.retain(|&packets| packets != 0);
    assert_eq!(used, [packets], "one flow has one queue");
}

/// TCP continues to send where its last packet was freed: alternately on the target core and its
/// sender's. The borrowed core takes all of it, so the order is kept.
#[test]
fn connections_from_several_cores_stay_in_order() {
    const BYTES: u64 = 256 << 20;
    let test = "connections_from_several_cores_stay_in_order";
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

#[test]
fn packets_taken_on_other_cores_are_reported() {
    let test = "packets_taken_on_other_cores_are_reported";
    let Some(bed) = Bed::new(test) else { return };
    let _machine = machine();
    // A veth whose peer has segmentation offload is not polled: only receive packet steering brings
    // its packets to the borrowed core.
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
