//! Offloads by the card's functions, under real traffic of the kernel's network stack.
//!
//! Packets leaving on the wire are recorded and checked with tshark, an independent implementation
//! of the standards. Needs root, iproute2, ping, iperf3 and python3; the recordings also tcpdump
//! and tshark.

use crate::tap_host::{Lab, run, stop};
use picnic_control::Running;
use picnic_core::direction::Direction;
use picnic_core::registry::BuildContext;
use picnic_engine::swap::{Answer, Command as Change};
use picnic_functions::registry::FUNCTIONS;
use picnic_machine::testbed::Program;
use picnic_testing::{skip, wait_for, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// Payload of the last packet of a recording.
const LAST: &[u8; 16] = b"picnic-ends-here";
/// Sizes of the datagrams echoed besides the stream; over IPv6 the last is two fragments.
const DATAGRAMS: [usize; 8] = [1, 2, 63, 64, 500, 1001, 1400, 1472];

/// Echoes the stream, then datagrams of all sizes.
const ECHO: &str = "import socket, sys\n\
    listener = socket.create_server(('::', 5000), family=socket.AF_INET6, dualstack_ipv6=True)\n\
    datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n\
    while True:\n\
    \x20   stream, address = listener.accept()\n\
    \x20   data = bytearray()\n\
    \x20   while piece := stream.recv(1 << 20):\n\
    \x20       data += piece\n\
    \x20   stream.sendall(data)\n\
    \x20   for size in sys.argv[1:]:\n\
    \x20       datagrams.sendto(bytes(data[:int(size)]), (address[0], 5001, 0, 0))\n\
    \x20   stream.close()\n";

/// Sends a file, and records the echo. Datagrams arrive in any order: each tx queue has its own,
/// and fragments are in the queue of no flow.
const ASK: &str = "import socket, sys, threading\n\
    address, sent, came, sizes = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]\n\
    datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n\
    datagrams.bind(('::', 5001))\n\
    datagrams.settimeout(100)\n\
    stream = socket.create_connection((address, 5000), 100)\n\
    data = open(sent, 'rb').read()\n\
    stream.sendall(data)\n\
    stream.shutdown(socket.SHUT_WR)\n\
    with open(came, 'wb') as file:\n\
    \x20   while piece := stream.recv(1 << 20):\n\
    \x20       file.write(piece)\n\
    came = sorted((datagrams.recv(2000) for size in sizes), key=len)\n\
    assert came == [data[:int(size)] for size in sizes], [len(it) for it in came]\n";

/// Random bytes.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        (0..3).for_each(|step| {
            state ^= if step == 1 { state >> 7 } else { state << [13, 0, 17][step] };
        });
        (state >> 32) as u8
    };
    (0..count).map(|_| next()).collect()
}

impl Lab {
    fn file(&self, name: &str) -> PathBuf {
        self.0.folder().join(name)
    }

    /// Sends megabytes from `client` to an address and back: every bit must match.
    fn echo(&self, address: &str, data: &[u8]) {
        let sizes: Vec<_> = DATAGRAMS.iter().map(usize::to_string).collect();
        let words = ["python3", "-c", ECHO].into_iter().chain(sizes.iter().map(String::as_str));
        let mut server = self.0.start("server", &words.collect::<Vec<_>>(), &[]).unwrap();
        wait_until("the echo server listens", || server.wait_for_port(5000).is_ok());
        std::fs::write(self.file("ask.py"), ASK).unwrap();
        std::fs::write(self.file("sent"), data).unwrap();
        let [ask, sent, came] = ["ask.py", "sent", "came"].map(|name| self.file(name));
        let (ask, sent, came) = (ask.display(), sent.display(), came.display());
        let sizes = sizes.join(" ");
        let command = format!("timeout 110 python3 {ask} {address} {sent} {came} {sizes}");
        self.within("client", &command).unwrap();
        assert!(std::fs::read(self.file("came")).unwrap() == data, "{address}: other bytes");
    }

    /// Records packets of an interface, if tcpdump is available.
    fn record(&self, place: &str, options: &[&str], name: &str) -> Option<(Program, PathBuf)> {
        for tool in ["tcpdump", "tshark"] {
            if let Err(error) = Command::new(tool).arg("--version").output() {
                let part = format!("{}, what is on the wire", picnic_testing::this_test());
                skip(&part, &format!("{tool} cannot be run: {error}"));
                return None;
            }
        }
        let path = self.file(name);
        // Large enough for everything, even if preempted; written packet by packet.
        let words = ["tcpdump", "-Z", "root", "-U", "-B", "65536", "-w", path.to_str().unwrap()];
        let tcpdump = self.0.start(place, &[&words, options].concat(), &[]).unwrap();
        wait_until("tcpdump listens", || tcpdump.last_words().contains("listening on"));
        Some((tcpdump, path))
    }

    /// Ends a recording after a last ping of `client`; returns tshark's view of it.
    fn recorded(&self, (tcpdump, path): (Program, PathBuf), address: &str) -> Recording {
        let last: String = LAST.iter().map(|byte| format!("{byte:02x}")).collect();
        wait_for("the last packet is recorded", || {
            let _ = self.within("client", &format!("ping -q -c 1 -W 1 -p {last} {address}"));
            let bytes = std::fs::read(&path).ok()?;
            bytes.windows(LAST.len()).any(|found| found == LAST).then_some(())
        });
        drop(tcpdump);
        Recording(path)
    }
}

/// A capture file, for tshark.
struct Recording(PathBuf);

impl Recording {
    fn tshark(&self, arguments: &[&str]) -> String {
        let mut tshark = Command::new("tshark");
        for layer in ["ip", "tcp", "udp"] {
            tshark.args(["-o", &format!("{layer}.check_checksum:TRUE")]);
        }
        let output = tshark.arg("-n").arg("-r").arg(&self.0).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The packets that match a filter, a line each.
    fn those(&self, filter: &str) -> Vec<String> {
        self.tshark(&["-Y", filter]).lines().map(str::to_owned).collect()
    }

    /// Checks that no packet is longer than the link allows and no checksum is wrong; returns the
    /// number of valid TCP and UDP packets.
    fn right(&self) -> [usize; 2] {
        for layer in ["ip", "tcp", "udp", "icmp", "icmpv6"] {
            let bad = self.those(&format!("{layer}.checksum.status == 0"));
            assert_eq!(bad, [""; 0], "{layer}");
        }
        // Lengths that disagree, and overlapping segments with different bytes.
        for wrong in [
            "ip.len > 1500 || ipv6.plen > 1460",
            "ip.bogus_ip_length || ip.bogus_header_length",
            "tcp.bogus_header_length || udp.length.bad || tcp.segment.overlap.conflict",
        ] {
            assert_eq!(self.those(wrong), [""; 0], "{wrong}");
        }
        ["tcp", "udp"].map(|layer| self.those(&format!("{layer}.checksum.status == 1")).len())
    }

    /// The bytes sent by each end of each echo, if recorded.
    fn streams(&self) -> Vec<Vec<u8>> {
        let numbers = self.tshark(&["-Y", "tcp.port == 5000", "-T", "fields", "-e", "tcp.stream"]);
        let numbers: BTreeSet<_> = numbers.lines().collect();
        numbers
            .into_iter()
            .flat_map(|number| self.ends(number))
            .filter(|end| !end.is_empty())
            .collect()
    }

    fn ends(&self, number: &str) -> [Vec<u8>; 2] {
        let text = self.tshark(&["-q", "-z", &format!("follow,tcp,raw,{number}")]);
        let mut ends = [Vec::new(), Vec::new()];
        for line in text.lines() {
            // Data of the second end is indented.
            let (end, digits) = line.strip_prefix('\t').map_or((0, line), |digits| (1, digits));
            if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                let value = |digit: u8| char::from(digit).to_digit(16).unwrap_or_default() as u8;
                let pairs = digits.as_bytes().chunks(2);
                ends[end].extend(pairs.map(|pair| value(pair[0]) << 4 | value(pair[1])));
            }
        }
        ends
    }
}

/// Counters of functions in a card's rx chain, by position.
fn counts<const N: usize>(running: &mut Box<dyn Running>, asked: [(&str, usize); N]) -> [Value; N] {
    let mut controller = running.control().unwrap().controller;
    asked.map(|(name, position)| {
        let entry = FUNCTIONS.iter().find(|entry| entry.name == name).unwrap();
        let get = entry.commands.iter().find(|command| command.name == "get").unwrap();
        let order = get.prepare(&json!({}), &BuildContext::default()).unwrap();
        assert!(controller.send(Change::Function(Direction::Rx, position, order)).is_ok());
        let answer = wait_for("the card answers", || controller.answer());
        let Answer { done: true, replaced: Change::Function(_, _, order) } = answer else {
            panic!("{name} is not at {position}");
        };
        get.reply(order).unwrap()
    })
}

// ---------------------------------------------------------------- tests

const ADDRESSES: [&str; 2] = ["10.88.0.1", "fd88::1"];
const ECHOED: usize = 4 << 20;

/// Checks recorded echoes of both addresses: streams of these bytes, from one end each or both, in
/// segments cut by the card.
fn assert_sent(recording: &Recording, ends: usize, data: &[u8]) {
    let [tcp, udp] = recording.right();
    // In segments of 1448 bytes each stream has 2897 packets.
    assert!(tcp > ADDRESSES.len() * (ECHOED / 1460), "{tcp} right checksums of TCP");
    assert!(udp >= ADDRESSES.len() * DATAGRAMS.len(), "{udp} right checksums of UDP");
    let streams = recording.streams();
    assert_eq!(streams.len(), ends * ADDRESSES.len());
    for stream in streams {
        assert!(stream == data, "{} bytes on the wire, not those sent", stream.len());
    }
}

#[test]
fn card_offloads_carry_tcp() {
    let Some(lab) = Lab::new("card_offloads_carry_tcp") else { return };
    lab.join();
    // Segments on the wire; the client's kernel verifies the card's checksums.
    lab.ip("client", "link set c0 gso_max_segs 1");
    // Checksums that the client's kernel left partial are completed; then all are verified, even if
    // already marked valid.
    let chains = "[[rx]]\nfunction = \"checksum\"\nmode = \"complete\"\n\
        [[rx]]\nfunction = \"checksum\"\nmode = \"verify\"\ntrust = false\n\
        [[rx]]\nfunction = \"lro\"\n[[rx]]\nfunction = \"rss\"\n\
        [[tx]]\nfunction = \"tso\"\nmtu = 1500\n[[tx]]\nfunction = \"checksum\"\n";
    let host = lab.host("addresses = [\"10.88.0.1/24\", \"fd88::1/64\"]");
    let mut running = run(&format!("{}{chains}{host}", lab.wire())).unwrap();
    lab.pings("client", 10, "10.88.0.1");
    let of_card = || &running.view().ledger.card;
    for address in ADDRESSES {
        // Segments become super-frames, which are fewer.
        let before = of_card().consumed.get();
        let bytes = lab.iperf(&format!("-c {address} -n 16M"));
        let merged = of_card().consumed.get() - before;
        assert!(bytes > 5_000_000 && merged > 500, "{bytes} in, {merged} merged");
        // And the reverse: super-frames from the host leave as segments.
        let before = of_card().made.get();
        let bytes = lab.iperf(&format!("-c {address} -n 16M -R"));
        let made = of_card().made.get() - before;
        assert!(bytes > 5_000_000 && made > 2000, "{bytes} out, {made} segments");
    }
    let recording = lab.record("client", &["-i", "c0", "-Q", "in"], "sent.pcap");
    let data = noise(ECHOED);
    ADDRESSES.iter().for_each(|address| lab.echo(address, &data));
    if let Some(recording) = recording {
        assert_sent(&lab.recorded(recording, "10.88.0.1"), 1, &data);
    }
    for counter in ["TcpInCsumErrors", "IpInHdrErrors"] {
        for place in ["client", "server"] {
            assert_eq!(lab.count(place, counter), 0, "{counter} at the {place}");
        }
    }
    let [completed, verified] = counts(&mut running, [("checksum", 0), ("checksum", 1)]);
    assert!(completed["completed"].as_u64() > Some(1000), "{completed}");
    assert!(verified["good"].as_u64() > Some(1000), "{verified}");
    assert_eq!((&verified["bad"], &verified["trusted"]), (&json!(0), &json!(0)), "{verified}");
    let report = stop(running);
    assert_eq!(report.ledger.dropped, 0, "{report:#?}");
}

/// Between two cards, since not every kernel has VLAN interfaces: each tags packets from its host
/// and untags received ones.
#[test]
fn traffic_between_cards_is_tagged() {
    const NAME: &str = "traffic_between_cards_is_tagged";
    let Some(lab) = Lab::new(NAME) else { return };
    lab.0.add_veth(("client", "c0"), ("card", "w0"), "").unwrap();
    for (place, link) in [("client", "c0"), ("card", "w0")] {
        // Its own packets would have no tag.
        lab.ip(place, &format!("link set {link} addrgenmode none up"));
    }
    lab.0.wait_for_carrier("card", "w0").unwrap();
    let card = |wire: (&str, &str), host: (&str, &str), addresses: &str| {
        let namespaces = [wire.1, host.1].map(|place| lab.netns(place));
        format!(
            "[card]\nname = \"tagged-{}\"\n\
             [[wire]]\nport = \"packet\"\ninterface = \"{}\"\nnamespace = \"{}\"\n\
             [[rx]]\nfunction = \"vlan\"\nallow = [42]\nuntagged = false\nstrip = true\n\
             [[rx]]\nfunction = \"checksum\"\ntrust = false\n\
             [[rx]]\nfunction = \"lro\"\n[[rx]]\nfunction = \"rss\"\n\
             [[tx]]\nfunction = \"tso\"\nmtu = 1500\n[[tx]]\nfunction = \"checksum\"\n\
             [[tx]]\nfunction = \"vlan\"\ninsert = \"all\"\nidentifier = 42\npriority = 5\n\
             [host]\nattachment = \"tap\"\nqueues = 2\nname = \"{}\"\nnamespace = \"{}\"\n\
             addresses = [{addresses}]\n",
            host.0, wire.0, namespaces[0], host.0, namespaces[1]
        )
    };
    let near = card(("c0", "client"), ("h1", "client"), "\"10.88.0.2/24\", \"fd88::2/64\"");
    let far = card(("w0", "card"), ("h0", "server"), "\"10.88.0.1/24\", \"fd88::1/64\"");
    let mut cards = [run(&near).unwrap(), run(&far).unwrap()];
    ADDRESSES.iter().for_each(|address| lab.pings("client", 10, address));
    let recording = lab.record("card", &["-i", "w0"], "tagged.pcap");
    let data = noise(ECHOED);
    ADDRESSES.iter().for_each(|address| lab.echo(address, &data));
    if let Some(recording) = recording {
        let recording = lab.recorded(recording, "10.88.0.1");
        assert_sent(&recording, 2, &data);
        let other = recording.those("!(vlan.id == 42 && vlan.priority == 5)");
        assert_eq!(other, [""; 0], "not as tagged");
    }
    for card in &mut cards {
        let [tags, checksums] = counts(card, [("vlan", 0), ("checksum", 1)]);
        assert!(tags["stripped"].as_u64() > Some(1000), "{tags}");
        assert_eq!((&tags["untagged"], &tags["filtered"]), (&json!(0), &json!(0)), "{tags}");
        assert!(checksums["good"].as_u64() > Some(1000), "{checksums}");
        assert_eq!((&checksums["bad"], &checksums["trusted"]), (&json!(0), &json!(0)));
    }
    for counter in ["TcpInCsumErrors", "IpInHdrErrors"] {
        for place in ["client", "server"] {
            assert_eq!(lab.count(place, counter), 0, "{counter} at the {place}");
        }
    }
    for card in cards {
        let report = stop(card);
        assert_eq!(report.ledger.dropped, 0, "{report:#?}");
    }
}
