//! Real sockets behind a card whose filters drop their packets: whatever headers, fragments, tags
//! and routes a packet has, Linux delivers none, with any engine; needs root and iproute2.

use crate::common::{bed, has_kernel_cards};
use crate::written::{ELSEWHERE, Written, address, written};
use picnic_cli::registries;
use picnic_control::{Launch, Running};
use picnic_core::ledger::LedgerTotals;
use picnic_machine::testbed::Testbed;
use picnic_testing::{PATIENCE, let_pass, machine};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// Datagrams and connection attempts; the latter wait in the listener's queue, which is short.
const DATAGRAMS: u32 = 1500;
const ATTEMPTS: u32 = 100;
/// Microseconds from frame to frame, as captured: a veth's ring is short.
const APART_US: u32 = 50;
/// The filtered port, and another port.
const CLOSED: u16 = 7;
const OPEN: u16 = 8;

/// A namespace whose host takes every route that Linux knows; gone when dropped.
struct Server(Testbed);

impl Server {
    fn new(test: &str) -> Option<Server> {
        let bed = bed::testbed(test, &["client", "server"], &["ip", "/dev/net/tun"])?;
        for setting in [
            "ipv6.conf.all.seg6_enabled=1",
            "ipv6.conf.default.seg6_enabled=1",
            "ipv6.conf.all.accept_source_route=1",
            "ipv6.conf.default.accept_source_route=1",
            "ipv4.conf.all.accept_source_route=1",
            "ipv4.conf.default.accept_source_route=1",
            "ipv4.conf.all.rp_filter=0",
            "ipv4.conf.default.rp_filter=0",
            "ipv4.tcp_syncookies=0",
        ] {
            // A kernel without it is a host that takes less.
            let _ = bed.within("server", &format!("sysctl -qw net.{setting}"));
        }
        Some(Server(bed))
    }

    /// Everything made here stays in the namespace.
    fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let path = format!("/run/netns/{}", self.0.netns("server"));
        let thread = std::thread::spawn(move || {
            let namespace = std::fs::File::open(path).unwrap();
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind)
                .unwrap();
            work()
        });
        thread.join().unwrap()
    }
}

/// Packets of every kind, each with its number in its payload and source port.
fn packets() -> Vec<Written> {
    let mut runner = TestRunner::deterministic();
    let mut draw = || written().new_tree(&mut runner).unwrap().current();
    let mut attempts = 0;
    (0..DATAGRAMS)
        .map(|number| {
            let mut packet = draw();
            packet.source = 200;
            packet.destination = if number % 5 == 0 { ELSEWHERE } else { 1 };
            packet.ports = (10_000 + number as u16, if number % 3 == 0 { OPEN } else { CLOSED });
            packet.payload[..4].copy_from_slice(&number.to_be_bytes());
            // Tags of no VLAN: those that a host takes off without being told.
            let is_tcp = packet.protocol == 6 && attempts < ATTEMPTS;
            attempts += u32::from(is_tcp);
            packet.protocol = if is_tcp { 6 } else { 17 };
            packet
        })
        .collect()
}

/// A file of them, and how many frames they are.
fn capture(packets: &[Written]) -> (Vec<u8>, u32) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    let mut frames = 0;
    for (number, packet) in packets.iter().enumerate() {
        for frame in packet.frames(number as u16) {
            let (at, length) = (frames * APART_US, frame.len() as u32);
            frames += 1;
            for word in [at / 1_000_000, at % 1_000_000, length, length] {
                file.extend(word.to_le_bytes());
            }
            file.extend(frame);
        }
    }
    (file, frames)
}

/// The filtering engine and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The poll engine, at this place, before a tap.
    Poll(&'static str),
    /// The kernel, before its stack, by this hand-over.
    Kernel(&'static str),
}

/// The host's address on the wire, and its addresses.
const MAC: &str = "02:00:00:00:88:01";
const ADDRESSES: [&str; 4] = ["10.88.0.1/24", "10.88.0.9/24", "fd88::1/64", "fd88::9/64"];

/// The card that filters, before the server's sockets. Its target ring holds all frames: a target core
/// that is taken away for a while loses none.
fn card(way: Way, server: &Server, file: &Path, unreadable: &str) -> String {
    let place = match way {
        Way::Poll(place) => place,
        Way::Kernel(_) => "nic",
    };
    let filter = |keys: &str| {
        format!(
            "[[filter]]\nplace = \"{place}\"\naction = \"drop\"\nunreadable = \"{unreadable}\"\n{keys}\n"
        )
    };
    let filters = [
        filter(&format!("destination_ports = \"{CLOSED}\"")),
        filter(&format!("destination = \"{}\"", address(false, ELSEWHERE))),
        filter(&format!("destination = \"{}\"", address(true, ELSEWHERE))),
    ];
    let netns = server.0.netns("server");
    let rest = match way {
        Way::Poll(_) => format!(
            "[[wire]]\nport = \"pcap\"\npath = \"{}\"\n[host]\nattachment = \"tap\"\nqueues = 1\n\
             ring_size = 4096\n\
             name = \"h0\"\nnamespace = \"{netns}\"\nmac = \"{MAC}\"\naddresses = {ADDRESSES:?}\n",
            file.display(),
        ),
        Way::Kernel(handover) => format!(
            "[card]\nengine = \"kernel\"\n\
             [[wire]]\nport = \"xdp\"\ninterface = \"k0\"\nnamespace = \"{netns}\"\n\
             [host]\nattachment = \"stack\"\nhandover = \"{handover}\"\nqueues = 1\n\
             ring_size = 4096\n",
        ),
    };
    rest + &filters.concat()
}

fn start(text: &str) -> Box<dyn Running> {
    let card = picnic_host::sections().parse(text, None).unwrap();
    Launch::new(&card, registries()).start_alone().unwrap()
}

/// A link to the server, for a card in the kernel. Some of the frames are long.
fn link(server: &Server) {
    server.0.add_veth(("client", "c0"), ("server", "k0"), "mtu 3500").unwrap();
    server.0.ip("server", &format!("link set k0 address {MAC} up")).unwrap();
    server.0.ip("client", "link set c0 up").unwrap();
    // Packets that do not fit in the veth's ring of 256 wait here: on a busy machine the thread
    // that empties it may have no core for longer than the sending card retries.
    server.0.within("client", "tc qdisc add dev c0 root pfifo limit 4096").unwrap();
    for address in ADDRESSES {
        // Nobody answers who would ask whether it is taken.
        let duplicates = if address.contains(':') { "nodad" } else { "" };
        server.0.ip("server", &format!("address add {address} dev k0 {duplicates}")).unwrap();
    }
}

/// A card that sends copies of a file's packets over that link.
///
/// All copies may wait for the wire: a machine that is busy keeps the sender from it for a while.
fn sender(server: &Server, file: &Path) -> Box<dyn Running> {
    start(&format!(
        "[card]\nwire_backlog = 4096\n\
         [[wire]]\nport = \"pcap\"\npath = \"{}\"\npace = \"recorded\"\n\
         [[wire]]\nport = \"packet\"\ninterface = \"c0\"\nnamespace = \"{}\"\n\
         [[rx]]\nfunction = \"mirror\"\nfrom_wire = 0\nwire = 1\n[host]\nqueues = 1\n",
        file.display(),
        server.0.netns("client"),
    ))
}

/// Of the sender's copies, the few that are longer than a frame of a veth with XDP can be. Its own
/// host, which is given the packets themselves, may be too slow for them.
fn oversize(sent: &LedgerTotals) -> u64 {
    sent.drops.get("oversize").copied().unwrap_or(0)
}

/// The numbers of the packets that reached a socket, through a card with the filters; waits until
/// they are enough. `None` if this machine allows no namespace; prints the reason.
fn reached(
    test: &str,
    way: Way,
    unreadable: &str,
    (file, frames): (&Path, u32),
    are_enough: impl Fn(&BTreeSet<u32>) -> bool,
) -> Option<(BTreeSet<u32>, u64)> {
    // One for each card: attempts outlive their listener.
    let server = Server::new(test)?;
    let (udp, _tcp) = server.within(|| {
        let udp = [CLOSED, OPEN].map(|port| {
            let socket = UdpSocket::bind(("::", port)).unwrap();
            socket.set_nonblocking(true).unwrap();
            // A reader that has no core for a while loses nothing.
            set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
            socket
        });
        (udp, [CLOSED, OPEN].map(|port| TcpListener::bind(("::", port)).unwrap()))
    });
    let (running, sending) = match way {
        Way::Poll(_) => (start(&card(way, &server, file, unreadable)), None),
        Way::Kernel(_) => {
            link(&server);
            let filtering = start(&card(way, &server, file, unreadable));
            (filtering, Some(sender(&server, file)))
        }
    };
    let mut numbers = BTreeSet::new();
    let mut bytes = [0; 64];
    let begun = Instant::now();
    let mut last = Instant::now();
    // Until all has been handed over and nothing more has come for a while. The kernel's threads may
    // still be without a core then: what is missing in the end has not come for long.
    loop {
        if last.elapsed() >= Duration::from_millis(300) {
            let half_open = server.0.within("server", "ss -Htan state syn-recv").unwrap();
            for line in half_open.lines() {
                let port = line.split_whitespace().last().and_then(|peer| peer.rsplit(':').next());
                numbers.insert(port.and_then(|port| port.parse::<u32>().ok()).unwrap() - 10_000);
            }
            if are_enough(&numbers) || begun.elapsed() >= PATIENCE {
                break;
            }
            last = Instant::now();
        }
        assert!(
            begun.elapsed() < 2 * PATIENCE,
            "{frames} frames, {:?}, {:?}",
            sending.as_ref().map(|card| card.view().ledger.read()),
            running.view().ledger.read()
        );
        let is_over = match &sending {
            Some(sending) => {
                let sent = sending.view().ledger.read();
                sent.transmitted + oversize(&sent) == u64::from(frames)
            }
            None => running.is_finished(),
        };
        if !is_over {
            last = Instant::now();
        }
        for socket in &udp {
            while let Ok(length) = socket.recv(&mut bytes) {
                assert_eq!(length, 16);
                numbers.insert(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
                last = Instant::now();
            }
        }
        let_pass(2);
    }
    if let Some(sending) = sending {
        let report = sending.stop().unwrap();
        assert!(oversize(&report.ledger) * 100 < u64::from(frames), "{report:#?}");
    }
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced(), "{report:#?}");
    Some((numbers, report.ledger.drops.get("unreadable").copied().unwrap_or(0)))
}

/// None of these ways lets a packet reach a socket whose packets a filter drops. The first also
/// accepts unreadable packets, to see Linux's reaction.
fn drops_for_good(test: &str, ways: &[Way]) {
    let _machine = machine();
    let packets = packets();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hidden.pcap");
    let (bytes, frames) = capture(&packets);
    std::fs::write(&file, bytes).unwrap();
    let file = (file.as_path(), frames);
    let is_dropped = |packet: &Written| {
        packet.ports.1 == CLOSED || packet.reached() == address(packet.v6, ELSEWHERE)
    };
    // Those hidden from the filters, by kind.
    let hidden = |numbers: &BTreeSet<u32>| {
        let mut hidden = BTreeMap::<_, u32>::new();
        let packets = numbers.iter().map(|number| &packets[*number as usize]);
        for packet in packets.filter(|packet| is_dropped(packet)) {
            let way = (packet.v6, packet.protocol, packet.pieces.is_some(), packet.tags.len() > 2);
            *hidden.entry(way).or_default() += 1;
        }
        hidden
    };
    let is_plain = |number: &u32| {
        let packet = &packets[*number as usize];
        let Written { before, behind, pieces, options, tags, .. } = packet;
        let headers = if packet.v6 { before.len() + behind.len() } else { 0 };
        !is_dropped(packet)
            && headers <= 8
            && pieces.is_none()
            && tags.len() < 3
            && (packet.v6 || *options < 2)
            && before.iter().chain(behind).all(|header| header.kind == 60 && header.units < 8)
    };
    // Linux reads packets that filters cannot read: otherwise this shows nothing.
    let are_many = |numbers: &BTreeSet<u32>| {
        hidden(numbers).len() > 5 && numbers.iter().filter(|number| is_plain(number)).count() > 20
    };
    let Some((accepted, unreadable)) = reached(test, ways[0], "accept", file, are_many) else {
        return;
    };
    assert_eq!(unreadable, 0);
    let hidden = hidden(&accepted);
    eprintln!(
        "hidden from the filters and delivered, by (IPv6, protocol, fragments, tags): {hidden:?}"
    );
    // Plainly readable packets for the other port are delivered as before.
    let plain: BTreeSet<_> = accepted.iter().copied().filter(is_plain).collect();
    assert!(are_many(&accepted), "{hidden:?}, {}", plain.len());
    let are_all = |numbers: &BTreeSet<u32>| plain.is_subset(numbers);
    for &way in ways {
        let Some((numbers, unreadable)) = reached(test, way, "drop", file, are_all) else { return };
        assert!(unreadable > 100, "{way:?}: {unreadable}");
        for number in &numbers {
            let packet = &packets[*number as usize];
            assert!(!is_dropped(packet), "{way:?}: {packet:?} was delivered");
        }
        let missing = plain.difference(&numbers);
        let missing: Vec<_> = missing.map(|number| &packets[*number as usize]).collect();
        assert!(missing.is_empty(), "{way:?}: {missing:?} were not delivered");
    }
}

#[test]
fn sockets_receive_no_dropped_packets() {
    drops_for_good("sockets_receive_no_dropped_packets", &[Way::Poll("nic"), Way::Poll("driver")]);
}

#[test]
fn sockets_receive_no_packets_dropped_in_the_kernel() {
    const NAME: &str = "sockets_receive_no_packets_dropped_in_the_kernel";
    if !has_kernel_cards(NAME) {
        return;
    }
    drops_for_good(NAME, &[Way::Kernel("skb"), Way::Kernel("cpumap")]);
}
