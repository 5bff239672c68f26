//! The rules file: parsing, errors, findings.

use picnic_filter::{FiveTuple, PortRange, Prefix, Protocol, Unreadable};
use picnic_sciron::{Pair, Rule, Rules, Verdict};
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

fn told(text: &str) -> String {
    text.parse::<Rules>().unwrap_err().to_string()
}

#[test]
fn a_file_is_read_with_comments_blanks_and_a_default() {
    let rules: Rules = "# a firewall\n\n  tcp any 10.0.0.1 any 22 accept # ssh\n\
                        17 2001:db8::/32 any 53 1024-65535 drop\r\n\tdefault drop\n"
        .parse()
        .unwrap();
    assert_eq!(rules.default, Verdict::Drop);
    assert_eq!(rules.rules.iter().map(|rule| rule.line).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(
        rules.to_string(),
        "tcp any 10.0.0.1/32 any 22 accept\nudp 2001:db8::/32 any 53 1024-65535 drop\n\
         default drop\n"
    );
    assert_eq!("".parse::<Rules>().unwrap(), Rules::default());
    assert_eq!(Rules::default().default, Verdict::Accept);
}

#[test]
fn faults_name_line_field_found_and_allowed_values() {
    let cases = [
        (
            "tcp any any 22 accept",
            "rules:1: found 5 fields, allowed: 6: protocol source destination source_ports destination_ports action",
        ),
        (
            "\n\ntpc any any any 22 drop",
            "rules:3: protocol: found tpc, allowed: any, icmp, igmp, tcp, udp, gre, esp, ah, icmpv6, sctp, or a number from 0 to 255",
        ),
        (
            "256 any any any any drop",
            "rules:1: protocol: found 256, allowed: any, icmp, igmp, tcp, udp, gre, esp, ah, icmpv6, sctp, or a number from 0 to 255",
        ),
        (
            "any 10.0.0.1/8 any any any drop",
            "rules:1: source: found 10.0.0.1/8, allowed: 10.0.0.0/8: the bits after the prefix must be zero",
        ),
        (
            "any any 10.0.0.0/33 any any drop",
            "rules:1: destination: found 10.0.0.0/33, allowed: any, a length of 0 to 32 bits",
        ),
        (
            "any any 10.0.0/8 any any drop",
            "rules:1: destination: found 10.0.0/8, allowed: any, an address, or a prefix such as 10.0.0.0/8 or 2001:db8::/32",
        ),
        (
            "any 10.0.0.0/8 ::1 any any drop",
            "rules:1: destination: found ::1, allowed: an address of the same family as the source",
        ),
        (
            "tcp any any 5-4 any drop",
            "rules:1: source_ports: found 5-4, allowed: any, a port, or a range such as 1024-2047, from 0 to 65535, low first",
        ),
        (
            "tcp any any any 65536 drop",
            "rules:1: destination_ports: found 65536, allowed: any, a port, or a range such as 1024-2047, from 0 to 65535, low first",
        ),
        (
            "icmp any any any 8 drop",
            "rules:1: destination_ports: found 8, allowed: any, as icmp has no ports here",
        ),
        ("tcp any any any any deny", "rules:1: action: found deny, allowed: accept or drop"),
        (
            "default",
            "rules:1: found default with 0 words, allowed: default accept, or default drop",
        ),
        ("default deny", "rules:1: action: found deny, allowed: accept or drop"),
        ("unreadable maybe", "rules:1: action: found maybe, allowed: accept or drop"),
        (
            "unreadable drop\n\nunreadable accept",
            "rules:3: found a second unreadable, allowed: one; the first is in line 1",
        ),
        (
            "default drop\ndefault drop",
            "rules:2: found a second default, allowed: one; the first is in line 1",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(told(text), message);
    }
    // All of them, one per line, up to a readable number.
    let many = "x\n".repeat(30);
    assert_eq!(told(&many).lines().count(), 20);
    let long = format!("{} any any any any drop", "x".repeat(100_000));
    assert!(told(&long).len() < 300);
}

#[test]
fn rules_that_never_apply_and_rules_in_conflict_are_found() {
    let rules: Rules = "\
tcp 10.0.0.0/8 any any 1-1023 accept
tcp 10.1.0.0/16 any any 80 drop
tcp 10.2.0.0/16 192.168.0.1 any 22 accept
udp 10.0.0.0/8 any any any drop
any any 192.168.0.0/16 any 53 accept
tcp any 0.0.0.0/0 any 80 drop
icmp any 192.168.0.1 any any drop
any any any any any drop
tcp 2001:db8::/32 any any any accept
"
    .parse()
    .unwrap();
    let pair = |line, earlier_line| Pair { line, earlier_line };
    let found = rules.check();
    assert_eq!(found.shadowed, [pair(2, 1), pair(9, 8)]);
    assert_eq!(found.redundant, [pair(3, 1)]);
    let overlaps = [pair(5, 4), pair(6, 1), pair(8, 1), pair(8, 3), pair(8, 5)];
    assert_eq!(found.overlaps, overlaps);
    assert_eq!(found.overlap_count, overlaps.len());
    assert!(!found.all_apply());
}

#[test]
fn rules_per_file_are_limited_by_the_filter_list() {
    let mut text = "tcp any any any 22 drop\n".repeat(picnic_sciron::rules::MOST_RULES);
    text.push_str("default drop\n");
    assert_eq!(text.parse::<Rules>().unwrap().rules.len(), picnic_sciron::rules::MOST_RULES);
    text.push_str("# and one more\ntcp any any any 22 drop\nno rule\n");
    let most = picnic_sciron::rules::MOST_RULES;
    // Reading stops here, so later faults are not listed.
    let told = told(&text);
    assert_eq!(told, format!("rules:{}: found more than {most} rules, allowed: no more", most + 3));
}

/// Rules disjoint in one field have no packet in common; without that field they do.
#[test]
fn rules_disjoint_in_one_field_do_not_overlap() {
    let cases = [
        ("tcp any any any any", "udp any any any any", "any any any any any"),
        ("any 10.0.0.0/8 any any any", "any 11.0.0.0/8 any any any", "any any any any any"),
        (
            "any any 10.1.0.0/16 any any",
            "any any 10.2.0.0/16 any any",
            "any any 10.0.0.0/8 any any",
        ),
        ("any ::/1 any any any", "any 8000::/1 any any any", "any ::/0 any any any"),
        ("any ::/0 any any any", "any 0.0.0.0/0 any any any", "any any any any any"),
        ("any ::/0 any any any", "any any 0.0.0.0/0 any any", "any any 8000::/1 any any"),
        ("any 0.0.0.0/0 any any any", "any any ::/0 any any", "any any 128.0.0.0/1 any any"),
        ("any any any 1-5 any", "any any any 6-9 any", "any any any 5-9 any"),
        ("any any any any 6-9", "any any any any 1-5", "any any any any 1-6"),
        ("icmp any any any any", "any any any any 80", "any any any any any"),
        // In IPv6, the protocol after an authentication header also counts.
        ("ah 10.0.0.0/8 any any any", "udp any any any any", "ah any any any any"),
        ("ah any any any any", "udp 10.0.0.0/8 any any any", "udp any any any 53"),
        ("ah ::/0 any any any", "any 10.0.0.0/8 any any any", "any any any any 53"),
    ];
    for (one, apart, meets) in cases {
        let found = |other: &str, swapped: bool| {
            let lines = [format!("{one} accept\n"), format!("{other} drop\n")];
            let [first, second] =
                if swapped { [&lines[1], &lines[0]] } else { [&lines[0], &lines[1]] };
            let found = format!("{first}{second}").parse::<Rules>().unwrap().check();
            found.overlap_count + found.shadowed.len()
        };
        for swapped in [false, true] {
            assert_eq!(found(apart, swapped), 0, "{one} and {apart}");
            assert_eq!(found(meets, swapped), 1, "{one} and {meets}");
        }
    }
}

#[test]
fn a_hundred_overlaps_are_listed_and_all_are_counted() {
    // Each rule for a source port overlaps each for a destination port.
    let mut text: String = (1..=15).map(|n| format!("tcp any any {n} any accept\n")).collect();
    text.extend((1..=15).map(|n| format!("tcp any any any {n} drop\n")));
    let found = text.parse::<Rules>().unwrap().check();
    assert_eq!((found.overlaps.len(), found.overlap_count), (100, 15 * 15));
}

fn prefix(v6: bool) -> impl Strategy<Value = Option<Prefix>> {
    let prefix = (any::<u32>(), 0..=32_u8).prop_map(move |(bits, length)| {
        if v6 {
            Prefix::new(Ipv6Addr::from(u128::from(bits) << 96), length * 4)
        } else {
            Prefix::new(Ipv4Addr::from(bits), length)
        }
    });
    prop_oneof![1 => Just(None), 3 => prefix]
}

fn rule() -> impl Strategy<Value = Rule> {
    let ports = prop_oneof![
        Just(PortRange::ANY),
        (any::<u16>(), any::<u16>()).prop_map(|(a, b)| PortRange::new(a.min(b), a.max(b)).unwrap()),
    ];
    let protocol = prop_oneof![Just(None), any::<u8>().prop_map(Some), Just(Some(6))];
    let prefixes = any::<bool>().prop_flat_map(|v6| (prefix(v6), prefix(v6)));
    (protocol, prefixes, ports.clone(), ports, any::<bool>()).prop_map(
        |(protocol, (source, destination), sport, dport, accept)| {
            let has_ports = protocol.is_none_or(|protocol| [6, 17].contains(&protocol));
            let keep = |ports| if has_ports { ports } else { PortRange::ANY };
            Rule {
                line: 1,
                tuple: FiveTuple {
                    protocol: protocol.map(Protocol),
                    source,
                    destination,
                    source_ports: keep(sport),
                    destination_ports: keep(dport),
                },
                verdict: if accept { Verdict::Accept } else { Verdict::Drop },
            }
        },
    )
}

proptest! {
    #[test]
    fn printed_text_reads_back(
        rules in proptest::collection::vec(rule(), 0..40),
        drop in any::<bool>(),
        accept_unreadable in any::<bool>(),
    ) {
        let rules = (1..).zip(rules).map(|(line, rule)| Rule { line, ..rule }).collect();
        let default = if drop { Verdict::Drop } else { Verdict::Accept };
        let unreadable = if accept_unreadable { Unreadable::Accept } else { Unreadable::Drop };
        let rules = Rules { rules, default, unreadable };
        prop_assert_eq!(rules.to_string().parse::<Rules>().unwrap(), rules);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[ -~\n\u{e9}]{0,200}") {
        if let Ok(rules) = text.parse::<Rules>() {
            let printed = rules.to_string();
            prop_assert_eq!(printed.parse::<Rules>().unwrap().to_string(), printed);
        }
    }

    /// A rule reported as never applying decides no packet. If two rules match a packet and decide
    /// differently, they are reported as an overlap, or the later one as never applying.
    #[test]
    fn reported_rules_never_apply_and_overlaps_are_reported(
        rules in proptest::collection::vec(rule(), 1..12),
        packets in proptest::collection::vec((any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>(), 0..4_usize), 1..200),
    ) {
        use picnic_filter::{Hidden, matching::Tuple};
        let rules = (1..).zip(rules).map(|(line, rule)| Rule { line, ..rule }).collect();
        let rules = Rules { rules, ..Rules::default() };
        let found = rules.check();
        let dead: Vec<_> = found.shadowed.iter().chain(&found.redundant).map(|pair| pair.line).collect();
        for (source, destination, sport, dport, how) in packets {
            let packet = Tuple {
                source: Ipv4Addr::from(source).into(),
                destination: Ipv4Addr::from(destination).into(),
                protocol: Protocol([6, 17, 1, 6][how]),
                ports: (how < 2).then_some((sport, dport)),
                hidden: Hidden::Nothing,
                authenticated: false,
            };
            if let (_, Some(rule)) = rules.verdict(&packet) {
                prop_assert!(!dead.contains(&rule.line), "line {} in\n{}", rule.line, rules);
            }
            let matching: Vec<_> =
                rules.rules.iter().filter(|rule| rule.tuple.matches(&packet)).collect();
            for (place, later) in matching.iter().enumerate() {
                for earlier in &matching[..place] {
                    let pair = Pair { line: later.line, earlier_line: earlier.line };
                    prop_assert!(
                        earlier.verdict == later.verdict
                            || dead.contains(&later.line)
                            || found.overlaps.contains(&pair),
                        "{pair:?} in\n{rules}"
                    );
                }
            }
        }
    }
}

#[test]
fn valid_files_are_reported_as_valid() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules");
    std::fs::write(&path, "tcp any any any 22 accept\nudp any any any 7 drop\n").unwrap();
    let report = picnic_sciron::report::of(&path);
    let json = report.json();
    assert_eq!((json["valid"].clone(), json["rules"].clone()), (true.into(), 2.into()));
    let rules = Rules::load(&path).unwrap();
    assert!(rules.check().all_apply());
    std::fs::write(&path, "tcp any any any 22 accept\ntcp any any any 22 accept\n").unwrap();
    assert!(!Rules::load(&path).unwrap().check().all_apply(), "the second is redundant");
}

#[test]
fn dropping_filters_get_the_unreadable_setting() {
    let rules: Rules =
        "unreadable accept\ntcp any any any 22 accept\nudp any any any 7 drop\ndefault drop\n"
            .parse()
            .unwrap();
    let filters = rules.filters(&picnic_sciron::Installation::default());
    assert!(filters.iter().any(|filter| filter.action == picnic_filter::Action::Accept));
    for filter in filters {
        let drops = filter.action == picnic_filter::Action::Drop;
        let expected = if drops { Unreadable::Accept } else { Unreadable::default() };
        assert_eq!(filter.unreadable, expected, "{filter:?}");
    }
}

#[test]
fn faults_and_findings_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules");
    std::fs::write(&path, "tcp any any any 22\n").unwrap();
    let report = picnic_sciron::report::of(&path);
    assert_eq!(report.json()["valid"], false);
    assert_eq!(report.json()["faults"][0]["line"], 1);
    assert_eq!(report.text(), "");
    std::fs::write(&path, "tcp any any any 22 accept\ntcp 10.0.0.0/8 any any any drop\n").unwrap();
    let text = picnic_sciron::report::of(&path).text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].contains(":2: overlap: tcp 10.0.0.0/8"), "{text}");
    assert!(lines[1].contains("line 1: tcp any any any 22 accept"), "{text}");
    assert!(lines[2].contains("0 redundant, 1 overlaps"), "{text}");
    for (second, what, why) in [
        ("accept", "redundant", "never applies; the same is decided by"),
        ("drop", "shadowed", "never applies; the opposite is decided by"),
    ] {
        let rules = format!("tcp any any any any accept\ntcp any any any 22 {second}\n");
        std::fs::write(&path, rules).unwrap();
        let text = picnic_sciron::report::of(&path).text();
        let told = format!(":2: {what}: tcp any any any 22 {second}\n    {why} line 1: tcp any");
        assert!(text.contains(&told) && text.contains(&format!("1 {what}")), "{text}");
    }
}

#[test]
fn files_are_read_to_their_last_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules");
    let (longest, rule) = (8 * picnic_core::config::LONGEST_FILE, "\nany any any any any accept");
    let text = format!("#{}{rule}", " ".repeat(longest - 1 - rule.len()));
    assert_eq!(text.len(), longest);
    std::fs::write(&path, &text).unwrap();
    assert_eq!(Rules::load(&path).unwrap().rules.len(), 1);
    std::fs::write(&path, text + " ").unwrap();
    assert!(Rules::load(&path).unwrap_err().to_string().contains("found more than"));
}

#[test]
fn non_files_are_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let told = Rules::load(folder.path()).unwrap_err().to_string();
    let shown = folder.path().display();
    assert_eq!(told, format!("{shown}: found a folder, allowed: a file of rules"));
    let told = Rules::load(&folder.path().join("absent")).unwrap_err().to_string();
    assert!(told.ends_with("(os error 2), allowed: a file of rules"), "{told}");
}
