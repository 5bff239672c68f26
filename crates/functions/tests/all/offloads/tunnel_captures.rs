//! `tunnel`: its packets according to Wireshark's dissector.
//!
//! The other tests check against this project's understanding of the standards; the dissector has
//! another.

use super::*;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

const NETWORK: u32 = 0x12_3456;
/// From and to, of the outer frames.
const MACS: [&str; 2] = ["02:00:00:00:07:01", "02:00:00:00:07:02"];
/// The same of the frames that [`frame`] makes.
const INNER_MACS: [&str; 2] = ["02:00:00:00:00:02", "02:00:00:00:00:01"];

/// A way to carry packets, and the dissector's name for it.
struct Carrier {
    kind: &'static str,
    keys: &'static str,
    /// The headers between the outer and the inner IP header.
    between: &'static str,
    carries_frames: bool,
}

const CARRIERS: [Carrier; 7] = [
    Carrier { kind: "vxlan", keys: "", between: ":udp:vxlan:eth:ethertype", carries_frames: true },
    Carrier {
        kind: "geneve",
        keys: "",
        between: ":udp:geneve:eth:ethertype",
        carries_frames: true,
    },
    Carrier {
        kind: "geneve",
        keys: "inner = \"ip\"\nchecksum = true",
        between: ":udp:geneve",
        carries_frames: false,
    },
    Carrier { kind: "gre", keys: "", between: ":gre", carries_frames: false },
    Carrier {
        kind: "gre",
        keys: "inner = \"ethernet\"",
        between: ":gre:eth:ethertype",
        carries_frames: true,
    },
    Carrier {
        kind: "gre",
        keys: "checksum = true\nsequence = true",
        between: ":gre",
        carries_frames: false,
    },
    Carrier { kind: "ipip", keys: "", between: "", carries_frames: false },
];

/// The requested fields of each packet; if a field occurs twice, the outer one is first.
const FIELDS: [&str; 22] = [
    "frame.protocols",
    "eth.src",
    "eth.dst",
    "ip.src",
    "ip.dst",
    "ip.ttl",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.hlim",
    "udp.dstport",
    "tcp.dstport",
    "vxlan.vni",
    "geneve.vni",
    "gre.key",
    "gre.sequence_number",
    "data.data",
    "ip.checksum.status",
    "udp.checksum.status",
    "tcp.checksum.status",
    "gre.checksum.status",
    "_ws.malformed",
    "_ws.expert.message",
];

/// The dissector's words for a correct checksum, and for a missing UDP checksum.
const GOOD: &str = "1";
const ABSENT: &str = "3";

/// One packet in a tunnel, and its expected fields: by field, outer before inner.
struct Case {
    packet: Vec<u8>,
    expected: BTreeMap<&'static str, String>,
}

fn case(carrier: &Carrier, is_outer_v6: bool, is_inner_v6: bool) -> Case {
    let Carrier { kind, keys, between, carries_frames } = *carrier;
    let ends =
        if is_outer_v6 { ["2001:db8::1", "2001:db8::2"] } else { ["192.0.2.1", "192.0.2.2"] };
    let has_network = kind == "vxlan" || kind == "geneve" || keys.contains("sequence");
    let network = if has_network { format!("network = {NETWORK}\n") } else { String::new() };
    let function_keys = format!(
        "mode = \"encapsulate\"\nkinds = [\"{kind}\"]\nlocal = \"{}\"\nremote = \"{}\"\n{network}\
         source_mac = \"{}\"\ndestination_mac = \"{}\"\nttl = 33\n{keys}\n",
        ends[0], ends[1], MACS[0], MACS[1]
    );
    let mut function = function("tunnel", &function_keys);
    let payload = bytes(20, 7);
    let inside = frame(is_inner_v6, 0, true, payload.clone());
    let seen = Card::new(&context(2048)).run(function.as_mut(), &from_wire_0([inside.build()]));

    let mut fields = BTreeMap::<_, Vec<String>>::new();
    let mut add = |values: &[(&'static str, &str)]| {
        for &(field, value) in values {
            fields.entry(field).or_default().push(value.to_owned());
        }
    };
    let name = |is_v6| if is_v6 { "ipv6" } else { "ip" };
    let (outer, inner) = (name(is_outer_v6), name(is_inner_v6));
    let protocols = format!("eth:ethertype:{outer}{between}:{inner}:tcp:data");
    add(&[("frame.protocols", &protocols)]);
    add(&[("eth.src", MACS[0]), ("eth.dst", MACS[1])]);
    if carries_frames {
        add(&[("eth.src", INNER_MACS[0]), ("eth.dst", INNER_MACS[1])]);
    }
    let mut ip = |is_v6, ends: [&'static str; 2], hops| {
        let names = match is_v6 {
            false => ["ip.src", "ip.dst", "ip.ttl"],
            true => ["ipv6.src", "ipv6.dst", "ipv6.hlim"],
        };
        add(&[(names[0], ends[0]), (names[1], ends[1]), (names[2], hops)]);
        if !is_v6 {
            add(&[("ip.checksum.status", GOOD)]);
        }
    };
    ip(is_outer_v6, ends, "33");
    if is_inner_v6 {
        let ends =
            ["2020:2020:2020:2020:2020:2020:2020:2020", "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd"];
        ip(true, ends, "64");
    } else {
        ip(false, ["10.0.0.1", "10.0.0.2"], "64");
    }
    if let Some(port) = [("vxlan", "4789"), ("geneve", "6081")].iter().find(|it| it.0 == kind) {
        add(&[("udp.dstport", port.1)]);
        let has_checksum = is_outer_v6 || keys.contains("checksum");
        add(&[("udp.checksum.status", if has_checksum { GOOD } else { ABSENT })]);
    }
    add(&[("tcp.dstport", "80"), ("tcp.checksum.status", GOOD)]);
    let (number, key) = (NETWORK.to_string(), format!("0x{NETWORK:08x}"));
    // Of 24 bits in GENEVE, of 32 in GRE.
    let short = format!("0x{NETWORK:06x}");
    match kind {
        "vxlan" => add(&[("vxlan.vni", &number)]),
        "geneve" => add(&[("geneve.vni", &short)]),
        _ if has_network => {
            add(&[("gre.key", &key), ("gre.sequence_number", "0"), ("gre.checksum.status", GOOD)]);
        }
        _ => {}
    }
    let payload = payload.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    add(&[("data.data", &payload)]);
    let expected = fields.into_iter().map(|(field, values)| (field, values.join(","))).collect();
    Case { packet: seen[0].data.clone(), expected }
}

/// A capture in the classic format, of Ethernet.
fn capture<'a>(packets: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1]);
    for packet in packets {
        let length = packet.len() as u32;
        file.extend(words(&[0, 0, length, length]));
        file.extend(packet);
    }
    file
}

#[test]
fn tshark_reads_the_tunnels() {
    let outer_and_inner = [(false, false), (false, true), (true, false), (true, true)];
    let cases: Vec<_> = CARRIERS
        .iter()
        .flat_map(|carrier| outer_and_inner.map(|(outer, inner)| case(carrier, outer, inner)))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tunnels.pcap");
    std::fs::write(&path, capture(cases.iter().map(|case| &case.packet[..]))).unwrap();
    let mut tshark = Command::new("tshark");
    for layer in ["ip", "udp", "tcp"] {
        tshark.args(["-o", &format!("{layer}.check_checksum:TRUE")]);
    }
    // The payload has no protocol, regardless of its port, and every tunnel has the same segment.
    tshark.args(["--disable-protocol", "http", "-o", "tcp.analyze_sequence_numbers:FALSE"]);
    tshark.args(["-n", "-T", "fields", "-E", "occurrence=a"]);
    tshark.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = match tshark.arg("-r").arg(&path).output() {
        Ok(output) => output,
        Err(error) => {
            let reason = format!("tshark cannot be run: {error}");
            return picnic_testing::skip("tshark_reads_the_tunnels", &reason);
        }
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), cases.len(), "{said}");
    for (line, case) in lines.into_iter().zip(cases) {
        let values = FIELDS.iter().copied().zip(line.split('\t').map(str::to_owned));
        let found: BTreeMap<_, _> = values.filter(|(_, value)| !value.is_empty()).collect();
        assert_eq!(found, case.expected);
    }
}
