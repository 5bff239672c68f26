//! A card with a firewall against an oracle that shares no code with it: the oracle reads the
//! rules' text and the frames' bytes itself, slowly.

use picnic_control::{Launch, Registries, Report};
use picnic_core::config::{CardFile, Sections};
use picnic_core::packet::layers;
use picnic_filter::matching::Tuple;
use picnic_filter::{Filters, Place};
use picnic_host::registries;
use picnic_sciron::{Installation, Rules, Sides, Verdict};
use picnic_testing::wait_until;
use std::collections::BTreeMap;
use std::fmt::Write;

/// xorshift64: the same files each time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u64) as usize]
    }
}

fn sections() -> Sections {
    picnic_host::sections().with(picnic_sciron::card::SECTIONS)
}

fn address(random: &mut Random, v6: bool) -> String {
    // Few networks, so that rules match packets.
    let (a, b) = (random.below(3), random.below(4));
    if v6 { format!("2001:db8:{a}::{b}") } else { format!("10.{a}.0.{b}") }
}

fn rules(random: &mut Random, count: usize) -> String {
    let mut text = String::from("# drawn\n");
    for _ in 0..count {
        let v6 = random.below(3) == 0;
        let proto = random.pick(&["tcp", "udp", "any", "icmp"]);
        let side = |random: &mut Random| match (random.below(4), v6) {
            (0, _) => "any".into(),
            (1, _) => address(random, v6),
            (2, true) => format!("2001:db8:{}::/48", random.below(3)),
            (_, true) => "2001:db8::/32".into(),
            (2, false) => format!("10.{}.0.0/16", random.below(3)),
            (_, false) => format!("10.{}.0.{}/31", random.below(3), random.below(2) * 2),
        };
        let (source, destination) = (side(random), side(random));
        let ports = |random: &mut Random| match random.below(4) {
            0 | 1 => "any".to_owned(),
            2 => random.below(6).to_string(),
            _ => format!("{}-{}", random.below(3), 3 + random.below(3)),
        };
        let (sport, dport) = match proto {
            "icmp" => ("any".into(), "any".into()),
            _ => (ports(random), ports(random)),
        };
        let action = random.pick(&["accept", "drop"]);
        let _ = writeln!(text, "{proto} {source} {destination} {sport} {dport} {action}");
    }
    let _ = writeln!(text, "default {}", random.pick(&["accept", "drop"]));
    text.push_str(random.pick(&["", "unreadable accept\n", "unreadable drop\n"]));
    text
}

fn frame(random: &mut Random) -> Vec<u8> {
    let mut frame = vec![0x11; 12];
    for _ in 0..[0, 0, 1, 2][random.below(4) as usize] {
        frame.extend([0x81, 0x00, 0x00, 0x07]);
    }
    let kind = random.below(20);
    if kind == 0 {
        frame.extend([0x08, 0x06]);
        frame.resize(60, 0);
        return frame;
    }
    let v6 = kind > 13;
    let protocol = [6, 17, 1, 47][random.below(4) as usize];
    let mut l4 = vec![0; 28];
    l4[1] = random.below(7) as u8;
    l4[3] = random.below(7) as u8;
    match protocol {
        6 => l4[12] = 0x50,
        17 => l4[5] = 28,
        _ => {}
    }
    let addresses: Vec<u8> = (0..2)
        .flat_map(|_| match address(random, v6).parse::<std::net::IpAddr>().unwrap() {
            std::net::IpAddr::V4(address) => address.octets().to_vec(),
            std::net::IpAddr::V6(address) => address.octets().to_vec(),
        })
        .collect();
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 28, protocol, 64]);
    } else {
        let fragment = if random.below(10) == 0 { [0x20, 0x00] } else { [0, 0] };
        frame.extend([0x08, 0x00, 0x45, 0, 0, 48, 0, 0, fragment[0], fragment[1], 64, protocol]);
        frame.extend([0, 0]);
    }
    frame.extend(addresses);
    frame.extend(l4);
    frame
}

/// The fate of a frame.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Accept,
    Drop,
    Unreadable,
}

/// The line that decides a frame, 0 for the default, and its decision; `None` if the frame is not
/// IP.
fn oracle(rules: &str, frame: &[u8]) -> Option<(usize, Fate)> {
    let mut at = 12;
    while frame[at..at + 2] == [0x81, 0x00] {
        at += 4;
    }
    let (protocol, addresses, l4, is_fragment) = match frame[at..at + 2] {
        [0x08, 0x00] => {
            let ip = &frame[at + 2..];
            (ip[9], ip[12..20].to_vec(), &ip[20..], ip[6] & 0x20 != 0)
        }
        [0x86, 0xdd] => {
            let ip = &frame[at + 2..];
            (ip[6], ip[8..40].to_vec(), &ip[40..], false)
        }
        _ => return None,
    };
    let ports = ([6, 17].contains(&protocol) && !is_fragment).then(|| {
        [u32::from(l4[0]) << 8 | u32::from(l4[1]), u32::from(l4[2]) << 8 | u32::from(l4[3])]
    });
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    let within = |text: &str, address: &[u8]| {
        if text == "any" {
            return true;
        }
        let (network, length) = text.split_once('/').unwrap_or((text, "999"));
        let network: Vec<u8> = match network.contains(':') {
            true => network.parse::<std::net::Ipv6Addr>().unwrap().octets().to_vec(),
            false => network.split('.').map(|part| part.parse().unwrap()).collect(),
        };
        let length = length.parse::<usize>().unwrap().min(network.len() * 8);
        let bit = |bytes: &[u8], n: usize| bytes[n / 8] >> (7 - n % 8) & 1;
        network.len() == address.len() && (0..length).all(|n| bit(&network, n) == bit(address, n))
    };
    // The reassembled packet has ports.
    let hides_ports = [6, 17].contains(&protocol) && is_fragment;
    let port_within = |text: &str, which: usize| {
        let Some(ports) = ports else { return text == "any" };
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        text == "any"
            || (low.parse::<u32>().unwrap()..=high.parse::<u32>().unwrap()).contains(&ports[which])
    };
    let accepts_unreadable = rules.contains("\nunreadable accept\n");
    let mut default = Fate::Accept;
    for (index, line) in rules.lines().enumerate() {
        let words: Vec<_> = line.split('#').next().unwrap().split(' ').collect();
        match words[..] {
            ["default", "drop"] => default = Fate::Drop,
            [proto, from, to, sport, dport, action] => {
                let number = match proto {
                    "tcp" => 6,
                    "udp" => 17,
                    "icmp" => 1,
                    _ => protocol,
                };
                if number == protocol && within(from, source) && within(to, destination) {
                    if port_within(sport, 0) && port_within(dport, 1) {
                        let accepts = action == "accept";
                        return Some((index + 1, if accepts { Fate::Accept } else { Fate::Drop }));
                    }
                    if hides_ports && action == "drop" && !accepts_unreadable {
                        return Some((index + 1, Fate::Unreadable));
                    }
                }
            }
            _ => {}
        }
    }
    Some((0, default))
}

/// The rules' own explanation: the line, 0 for the default, and its verdict.
fn explained(rules: &Rules, frame: &[u8]) -> Option<(usize, Verdict)> {
    let packet = Tuple::of(&layers::parse(frame), frame)?;
    let (verdict, rule) = rules.verdict(&packet);
    Some((rule.map_or(0, |rule| rule.line), verdict))
}

fn verdict((line, fate): (usize, Fate)) -> (usize, Verdict) {
    (line, if fate == Fate::Accept { Verdict::Accept } else { Verdict::Drop })
}

fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

fn run(card: &CardFile) -> (Report, Filters) {
    let registries = Registries { filters: &[picnic_sciron::card::add], ..registries() };
    let running = Launch::new(card, registries).start_alone().unwrap();
    let filters = running.filters().clone();
    wait_until("all frames are through", || running.is_finished());
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced());
    (report, filters)
}

#[test]
fn rule_counters_match_the_oracle_at_both_places() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..6 {
        let text = rules(&mut random, [1, 5, 20, 60, 200, 800][round]);
        let frames: Vec<_> = (0..4000).map(|_| frame(&mut random)).collect();
        let (mut counts, mut unread) = (BTreeMap::<usize, u64>::new(), BTreeMap::new());
        let mut passed = 0;
        let parsed: Rules = text.parse().unwrap();
        for frame in &frames {
            let decided = oracle(&text, frame);
            assert_eq!(explained(&parsed, frame), decided.map(verdict), "{frame:02x?} by\n{text}");
            match decided {
                None => passed += 1,
                Some((line, Fate::Unreadable)) => *unread.entry(line).or_default() += 1,
                Some((line, fate)) => {
                    *counts.entry(line).or_default() += 1;
                    passed += u64::from(fate == Fate::Accept);
                }
            }
        }
        let unreadable = unread.values().sum::<u64>();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("firewall.rules"), &text).unwrap();
        std::fs::write(folder.path().join("frames.pcap"), capture(&frames)).unwrap();
        for place in ["nic", "driver"] {
            let card = format!(
                "[[wire]]\nport = \"pcap\"\npath = \"frames.pcap\"\n[sciron]\n\
                 rules = \"firewall.rules\"\nplace = \"{place}\"\n[host]\nqueues = 2\n"
            );
            let path = folder.path().join("card.toml");
            let (report, filters) = run(&sections().parse(&card, Some(&path)).unwrap());
            assert_eq!(report.ledger.delivered, passed, "{place}\n{text}");
            let dropped = frames.len() as u64 - passed - unreadable;
            let drops = |reason| report.ledger.drops.get(reason).copied().unwrap_or(0);
            assert_eq!(drops("filtered"), dropped, "{place}");
            assert_eq!(drops("unreadable"), unreadable, "{place}");
            for listing in filters.list() {
                let is_default = listing.filter.name == "default";
                let line = if is_default { 0 } else { listing.filter.priority as usize };
                let wanted = counts.get(&line).copied().unwrap_or(0);
                assert_eq!(listing.packets, wanted, "{place}, line {line} of\n{text}");
                let wanted = unread.get(&line).copied().unwrap_or(0);
                assert_eq!(listing.unreadable_packets, wanted, "{place}, line {line} of\n{text}");
            }
        }
    }
}

#[test]
fn a_program_without_sciron_refuses_its_section() {
    let card = picnic_host::sections().parse("[sciron]\nrules = \"x\"\n", None);
    let error = card.unwrap_err().to_string();
    assert!(error.starts_with("card:1: sciron: found section \"sciron\", allowed: "), "{error}");
}

#[test]
fn wrong_rules_name_the_cards_line_and_their_own() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.rules"), "tcp any any any 22 allow\n").unwrap();
    let path = folder.path().join("card.toml");
    let told = |text: &str| {
        let add = |card| picnic_sciron::card::add(&card, &Filters::new(1));
        let read = sections().parse(text, Some(&path)).and_then(add);
        let error = read.unwrap_err().to_string();
        error.replace(&format!("{}/", folder.path().display()), "")
    };
    assert_eq!(
        told("[sciron]\n\nrules = \"bad.rules\"\n"),
        "card.toml:3: sciron.rules: bad.rules:1: action: found allow, allowed: accept or drop"
    );
    assert!(told("[sciron]\nrules = \"none\"\n").starts_with("card.toml:2: sciron.rules: none: "));
    assert!(
        told("[sciron]\nplace = \"nic\"\n").contains("sciron.rules: missing, expected the path")
    );
    assert!(
        told("[sciron]\nplace = \"card\"\n")
            .contains("2: sciron.place: found \"card\", allowed: nic, driver")
    );
}

#[test]
fn rules_for_both_sides_are_on_both_lists() {
    let rules: Rules = "tcp any any any 22 drop\n".parse().unwrap();
    let filters = Filters::new(2);
    let both = Installation { place: Place::Driver, sides: Sides::Both };
    let done = rules.install(&filters, &both).unwrap();
    assert_eq!((done.added, filters.list().len()), (4, 4));
    // On one side only: the filters on the other side are removed.
    let done = rules.install(&filters, &Installation { sides: Sides::Tx, ..both }).unwrap();
    assert_eq!((done.kept, done.removed), (2, 2));
}
