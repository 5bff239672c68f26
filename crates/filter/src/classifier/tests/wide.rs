//! Rule sets that are bad for hash tables: wide port ranges, short prefixes; and the work of
//! changes.

use super::{Random, agree, inside, packets};
use crate::classifier::vectors::Vectors;
use crate::classifier::{Address, BURST, Classifier, Key, NONE, Rule};
use crate::hidden::Hidden;
use crate::matching::{FiveTuple, PortRange, Prefix, Protocol, Tuple};
use proptest::prelude::*;
use std::net::IpAddr;

/// Kinds of rules; the last one mixes them.
const KINDS: u64 = 5;

/// Rules of a kind: any prefixes with wide ranges, wide ranges alone, nested ranges, ranges as
/// they are written, blocked sources and destinations, or all of these.
fn rule(kind: u64, place: u64, random: &mut Random) -> FiveTuple {
    let kind = if kind == KINDS { random.below(KINDS) } else { kind };
    let range = |random: &mut Random, width: u64| {
        let low = random.next() as u16;
        PortRange::new(low, low.saturating_add(random.below(width) as u16)).unwrap()
    };
    let prefix = |random: &mut Random, shortest: u64| {
        let length = shortest + random.below(33 - shortest);
        Prefix::new((random.next() as u32).to_be_bytes(), length as u8)
    };
    let mut rule = FiveTuple {
        protocol: Some([Protocol::TCP, Protocol::UDP][random.below(2) as usize]),
        ..FiveTuple::default()
    };
    match kind {
        0 => {
            (rule.source, rule.destination) = (prefix(random, 0), prefix(random, 0));
            rule.source_ports = range(random, 65_536);
            rule.destination_ports = range(random, 65_536);
        }
        1 => {
            rule.source_ports = range(random, 16_384);
            rule.destination_ports = range(random, 16_384);
        }
        2 => {
            let place = (place % 32_768) as u16;
            rule.source_ports = PortRange::new(place, 65_535 - place).unwrap();
        }
        3 => {
            let written = [(1024, 65_535), (0, 1023), (0, 65_534), (49_152, 65_535)];
            let (low, high) = written[random.below(4) as usize];
            rule.source_ports = PortRange::new(low, high).unwrap();
            rule.destination_ports = range(random, 4);
            rule.destination = prefix(random, 16);
        }
        _ if random.below(2) == 0 => rule.source = prefix(random, 8),
        _ => rule.destination = prefix(random, 8),
    }
    rule
}

fn rules(kind: u64, count: u64, random: &mut Random) -> Vec<FiveTuple> {
    (0..count).map(|place| rule(kind, place, random)).collect()
}

fn anywhere(count: usize, random: &mut Random) -> Vec<Tuple> {
    let mut address = || IpAddr::from((random.next() as u32).to_be_bytes());
    let addresses: Vec<_> = (0..count).map(|_| (address(), address())).collect();
    let packet = |(source, destination)| Tuple {
        source,
        destination,
        protocol: Protocol::TCP,
        ports: (random.below(16) != 0).then(|| (random.next() as u16, random.next() as u16)),
        hidden: Hidden::Nothing,
        authenticated: false,
    };
    addresses.into_iter().map(packet).collect()
}

fn compiled<A: Address>(rules: &[FiveTuple]) -> Vec<Rule<A>> {
    let positions = 0_u16..;
    let rules = rules.iter().zip(positions);
    rules.filter_map(|(rule, position)| Some(Rule { position, ..Rule::new(rule)? })).collect()
}

/// The vectors' answers for packets, against the list's.
fn vectors_agree<A: Address>(vectors: &Vectors<A>, rules: &[FiveTuple], packets: &[Tuple]) {
    for packet in packets {
        let Tuple { source, destination, protocol, ports, .. } = *packet;
        let Some(key) = Key::<A>::new(source, destination, protocol.0, ports) else { continue };
        for from in [0, rules.len() / 3] {
            let wanted = super::linear(rules, packet, from);
            assert_eq!(vectors.first(&key, from as u16, NONE), wanted, "from {from}: {packet:?}");
        }
        // A better earlier result stays.
        let wanted = super::linear(rules, packet, 0);
        for best in [0, wanted, rules.len() as u16 / 2] {
            let mut places = [best; BURST];
            vectors.search(&[key], &mut places);
            assert_eq!(places[0], wanted.min(best), "{packet:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn wide_sets_agree_with_the_list(seed in 1..u64::MAX, kind in 0..=KINDS, count in 0..500_u64) {
        let mut random = Random(seed);
        let rules = rules(kind, count, &mut random);
        let anywhere = anywhere(80, &mut random);
        let packets = packets(&rules[..rules.len().min(60)], &anywhere);
        agree(&super::build::<u64>(&rules), &rules, &packets);
        agree(&super::build::<[u64; 4]>(&rules), &rules, &packets);
    }

    #[test]
    fn changes_of_wide_sets_agree_with_the_list(
        seed in 1..u64::MAX, kind in 0..=KINDS, count in 0..300_u64,
    ) {
        let mut random = Random(seed);
        let mut rules = rules(kind, count, &mut random);
        let mut classifier = super::build::<u64>(&rules);
        for step in 0..200 {
            change(&mut classifier, &mut rules, kind, &mut random);
            if step % 50 == 49 {
                let packets = packets(&rules[..rules.len().min(40)], &anywhere(60, &mut random));
                agree(&classifier, &rules, &packets);
            }
        }
        prop_assert_eq!(classifier.len(), rules.len());
    }

    #[test]
    fn vectors_agree_with_the_list(
        rules in proptest::collection::vec(super::tuple(), 0..300),
        later in proptest::collection::vec((any::<prop::sample::Index>(), super::tuple()), 0..40),
        anywhere in proptest::collection::vec(super::packet(), 1..40),
        has_addresses in any::<bool>(),
    ) {
        // A single family, so that every rule is in the vectors.
        let v4 = |rule: &FiveTuple| rule.is_ipv4() != Some(false);
        let mut rules: Vec<_> = rules.into_iter().filter(v4).collect();
        if !has_addresses {
            // Vectors are by protocol, too; those that come later may have addresses.
            rules.iter_mut().for_each(|rule| (rule.source, rule.destination) = (None, None));
        }
        let mut vectors = Vectors::build(compiled::<u64>(&rules), &mut 0);
        vectors_agree(&vectors, &rules, &packets(&rules, &anywhere));
        for (place, rule) in later {
            if v4(&rule) {
                let place = place.index(rules.len() + 1);
                vectors.rules_mut()[place..].iter_mut().for_each(|rule| rule.position += 1);
                rules.insert(place, rule);
                vectors.insert(Rule { position: place as u16, ..Rule::new(&rule).unwrap() });
            } else if !rules.is_empty() {
                let place = place.index(rules.len());
                rules.remove(place);
                prop_assert!(vectors.remove(place as u16, &mut 0));
                vectors.rules_mut()[place..].iter_mut().for_each(|rule| rule.position -= 1);
            }
        }
        prop_assert_eq!(vectors.len(), rules.len());
        vectors_agree(&vectors, &rules, &packets(&rules, &anywhere));
    }
}

/// Inserts or removes one rule as the filters' list does; returns the work.
fn change(
    classifier: &mut Classifier<u64>,
    rules: &mut Vec<FiveTuple>,
    kind: u64,
    random: &mut Random,
) -> u64 {
    let before = classifier.touched();
    if random.below(2) == 0 && !rules.is_empty() {
        let place = random.below(rules.len() as u64) as u16;
        let gone = rules.remove(place.into());
        classifier.remove(place, &gone);
        classifier.close_gap(place);
    } else {
        let place = random.below(rules.len() as u64 + 1);
        let new = rule(kind, random.next(), random);
        rules.insert(place as usize, new);
        classifier.make_room(place as u16);
        classifier.insert(place as u16, &new);
    }
    classifier.touched() - before
}

#[test]
fn large_wide_sets_agree_and_compare_few_rules() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for kind in 0..=KINDS {
        let rules = rules(kind, 4096, &mut random);
        let classifier = super::build::<u64>(&rules);
        let of_rules: Vec<_> = rules.iter().step_by(101).copied().collect();
        let packets = packets(&of_rules, &anywhere(60, &mut random));
        agree(&classifier, &rules, &packets);
        // Not one slot of thousands.
        assert!(classifier.longest_slot() <= 16, "{kind}: {}", classifier.longest_slot());
        assert!(classifier.tables() <= 8, "{kind}: {} tables", classifier.tables());
        if kind <= 2 {
            assert!(classifier.in_vectors() >= 1000, "{kind}: {}", classifier.in_vectors());
        }
    }
}

/// Most work of one change among 4096 rules: places renumbered, words of vectors moved, and,
/// rarely, everything that a build reads. Each takes a few nanoseconds.
const MOST_TOUCHED: u64 = 300_000;
/// The same without compiling all rules again.
const OFTEN_TOUCHED: u64 = 60_000;

#[test]
fn one_change_among_4096_touches_a_bounded_number_of_entries() {
    for kind in 0..=KINDS {
        let mut random = Random(0x0123_4567_89ab_cdef + kind);
        // A list that grows rule by rule from nothing.
        let mut classifier = Classifier::<u64>::default();
        let mut rules: Vec<FiveTuple> = Vec::new();
        let (mut most, mut rebuilds) = (0, 0);
        let mut count = |touched: u64| {
            most = most.max(touched);
            rebuilds += u32::from(touched > OFTEN_TOUCHED);
        };
        while rules.len() < 4096 {
            let place = random.below(rules.len() as u64 + 1);
            let new = rule(kind, place, &mut random);
            let before = classifier.touched();
            classifier.make_room(place as u16);
            classifier.insert(place as u16, &new);
            rules.insert(place as usize, new);
            count(classifier.touched() - before);
        }
        // It then keeps changing.
        for _ in 0..500 {
            count(change(&mut classifier, &mut rules, kind, &mut random));
        }
        assert!(most <= MOST_TOUCHED, "kind {kind}: {most}");
        assert!(rebuilds <= 24, "kind {kind}: {rebuilds} of 4596 changes compiled anew");
        let packets = packets(&rules[..100], &anywhere(50, &mut random));
        agree(&classifier, &rules, &packets);
    }
}

#[test]
fn a_rule_of_one_family_is_inside_itself() {
    // The trial of vectors draws packets like this.
    let tuple = FiveTuple {
        source: Prefix::new([10, 1, 0, 0], 16),
        destination_ports: PortRange::new(1000, 65_535).unwrap(),
        protocol: Some(Protocol::UDP),
        ..FiveTuple::default()
    };
    let rule = Rule::<u64>::new(&tuple).unwrap();
    assert!(rule.matches(&rule.inside(&rule)));
    let other = Rule::<u64>::new(&FiveTuple { source: Prefix::new([11, 0, 0, 0], 8), ..tuple });
    assert!(!rule.matches(&rule.inside(&other.unwrap())));
    let any = anywhere(1, &mut Random(7))[0];
    assert!(tuple.matches(&inside(&tuple, any, true)));
    let of = |source: [u8; 16], destination: [u8; 16]| {
        let (source, destination) = (Prefix::new(source, 32), Prefix::new(destination, 100));
        Rule::<[u64; 4]>::new(&FiveTuple { source, destination, ..tuple }).unwrap()
    };
    let (rule, other) = (of([0x20; 16], [0x31; 16]), of([0x42; 16], [0x53; 16]));
    assert!(rule.matches(&rule.inside(&rule)));
    // Its source is the other's; the rest is its own.
    let key = rule.inside(&other);
    assert!(!rule.matches(&key) && !other.matches(&key));
    let both = of([0x42; 16], [0x31; 16]);
    assert!(both.matches(&key));
}

/// Port intervals are found at once, and so are intervals of prefixes of up to 16 bits; longer ones
/// need fewer halvings if few begin in the same part.
#[test]
fn only_intervals_inside_a_part_need_halvings() {
    let halvings =
        |rules: &[FiveTuple], field| Vectors::build(compiled::<u64>(rules), &mut 0).halvings(field);
    let ports = |n: u16| FiveTuple { source_ports: PortRange::one(3 * n), ..<_>::default() };
    assert_eq!(halvings(&(0..40).map(ports).collect::<Vec<_>>(), 2), 0);
    let prefix = |n: u8, length| FiveTuple {
        source: Prefix::new([10, n / 8, 2 * (n % 8), 1], length),
        ..<_>::default()
    };
    let prefixes = |length| (0..24).map(|n| prefix(n, length)).collect::<Vec<_>>();
    assert_eq!(halvings(&prefixes(16), 0), 0);
    assert_eq!(halvings(&[prefix(1, 23)], 0), 2);
    // Seven begin in each part and end there, and one begins with it.
    assert_eq!(halvings(&prefixes(24), 0), 4);
}

#[test]
fn packets_skip_rules_for_frequent_other_protocols() {
    let of = |protocol| FiveTuple { protocol: Some(Protocol(protocol)), ..<_>::default() };
    // A protocol that is required once has no class.
    let rules = [0, 6, 1, 255, 0, 6, 255].map(of);
    let vectors = Vectors::build(compiled::<u64>(&rules), &mut 0);
    let compared = [0, 6, 255, 1, 47].map(|protocol| {
        let key = Key::<u64>::new([1; 4].into(), [2; 4].into(), protocol, Some((1, 1))).unwrap();
        vectors.compared(&key)
    });
    assert_eq!(compared, [(0, Some(0)), (0, Some(1)), (0, Some(3)), (0, Some(2)), (1, None)]);
    // Nor if it is the only protocol required.
    let rules = [of(6), FiveTuple::default()];
    let vectors = Vectors::build(compiled::<u64>(&rules), &mut 0);
    let key = Key::<u64>::new([1; 4].into(), [2; 4].into(), 47, Some((1, 1))).unwrap();
    assert_eq!(vectors.compared(&key), (0, Some(1)));
}

#[test]
fn form_names_tables_and_cut_fields() {
    assert_eq!(super::build::<u64>(&[]).form(), "none");
    assert_eq!(super::build::<u64>(&[from(1)]).form(), "1 in vectors by source");
    let rules: Vec<_> = (0..300).map(from).chain((0..200).map(to)).collect();
    let form = super::build::<u64>(&rules).form();
    assert_eq!(form, "300 hashed by source/32; 200 hashed by destination/32");
    let ranges: Vec<_> = (0..300)
        .map(|n| FiveTuple {
            source_ports: PortRange::new(n, 65_535 - n).unwrap(),
            protocol: Some(Protocol::UDP),
            ..FiveTuple::default()
        })
        .collect();
    let form = super::build::<u64>(&ranges).form();
    assert_eq!(form, "300 in vectors by source port, protocol");
}

/// A range up to the highest value has no end: no interval begins after it.
#[test]
fn unused_fields_have_no_vectors() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut prefix = |shortest: u64| {
        let length = shortest + random.below(33 - shortest);
        Prefix::new((random.next() as u32).to_be_bytes(), length as u8)
    };
    let networks: Vec<_> = (0..400)
        .map(|_| FiveTuple { source: prefix(0), destination: prefix(0), ..<_>::default() })
        .collect();
    let cut = |rules: &[FiveTuple]| {
        let vectors = Vectors::trial(compiled::<u64>(rules), &mut 0);
        [0, 1, 2, 3].map(|field| vectors.is_cut(field))
    };
    assert_eq!(cut(&networks), [true, true, false, false]);
    let high = PortRange::new(1024, u16::MAX).unwrap();
    let rule = |n: u8| FiveTuple {
        source: Prefix::new([10, n, 0, 0], 16),
        destination_ports: high,
        ..<_>::default()
    };
    assert_eq!(cut(&[1, 2, 3].map(rule)), [true, false, false, true]);
    assert_eq!(cut(&[FiveTuple::default()]), [false; 4]);
    // Nor do those of a whole classifier; the answers are still the list's.
    let classifier = super::build::<u64>(&networks);
    assert_ne!(classifier.in_vectors(), 0);
    assert!(!classifier.vectors.is_cut(2) && !classifier.vectors.is_cut(3));
    agree(&classifier, &networks, &packets(&networks, &anywhere(40, &mut random)));
}

/// With one more end, some are left out, so that the intervals have equally many rules.
#[test]
fn fields_with_few_ends_are_cut_at_each() {
    let cuts = |rules: u16| {
        let from =
            |low| FiveTuple { source_ports: PortRange::new(low, 9999).unwrap(), ..<_>::default() };
        let rules: Vec<_> = (1..=rules).map(from).collect();
        let vectors = Vectors::build(compiled::<u64>(&rules), &mut 0);
        vectors.begins(2).iter().filter(|&&begin| begin != u64::MAX).count()
    };
    // The start of each, and the end of all.
    assert_eq!((cuts(1), cuts(62)), (2, 63));
    assert!((20..63).contains(&cuts(63)));
}

fn host(n: u16) -> [u8; 4] {
    let [a, b] = n.to_be_bytes();
    [10, a, b, 1]
}

fn from(n: u16) -> FiveTuple {
    FiveTuple { source: Prefix::new(host(n), 32), ..FiveTuple::default() }
}

fn to(n: u16) -> FiveTuple {
    FiveTuple { destination: Prefix::new(host(n), 32), ..FiveTuple::default() }
}

fn between(source: u16, destination: u16, port: u16) -> Tuple {
    Tuple {
        source: host(source).into(),
        destination: host(destination).into(),
        protocol: Protocol::UDP,
        ports: Some((port, 1)),
        hidden: Hidden::Nothing,
        authenticated: false,
    }
}

#[test]
fn tables_are_searched_in_order_of_their_first_rule() {
    let by_port = |n| FiveTuple {
        protocol: Some(Protocol::UDP),
        source_ports: PortRange::one(n),
        ..FiveTuple::default()
    };
    // Tables are chosen by their number of rules: sources, destinations, ports.
    let mut rules = vec![by_port(0), from(0), to(0)];
    rules.extend((1..600).map(from));
    rules.extend((1..500).map(to));
    rules.extend((1..400).map(by_port));
    let classifier = super::build::<u64>(&rules);
    assert_eq!((classifier.tables(), classifier.in_vectors()), (3, 0));
    assert!(classifier.tables.iter().map(|table| table.first).eq(0..3));
    agree(&classifier, &rules, &[between(0, 999, 0)]);
}

#[test]
fn search_end_follows_list_changes() {
    let mut rules: Vec<_> = (0..10).map(from).collect();
    rules.push(to(0));
    rules.extend((10..600).map(from));
    rules.extend((1..500).map(to));
    let mut classifier = super::build::<u64>(&rules);
    let firsts = |classifier: &Classifier<u64>| {
        classifier.tables.iter().map(|table| table.first).collect::<Vec<_>>()
    };
    assert_eq!(firsts(&classifier), [0, 10]);
    // The first destination moves before the source that the packet also has.
    for _ in 1..10 {
        classifier.remove(1, &rules.remove(1));
        classifier.close_gap(1);
    }
    assert_eq!(firsts(&classifier), [0, 1]);
    agree(&classifier, &rules, &[between(12, 0, 9)]);
    // A destination at the head of the list brings its table there.
    rules.insert(0, to(777));
    classifier.make_room(0);
    classifier.insert(0, &to(777));
    assert_eq!(firsts(&classifier), [0, 1]);
    agree(&classifier, &rules, &[between(0, 777, 9), between(12, 0, 9)]);
}

fn rule6(random: &mut Random) -> FiveTuple {
    let mut prefix = || {
        let bytes = u128::from(random.next()) << 64 | u128::from(random.next());
        Prefix::new(bytes.to_be_bytes(), (16 + random.below(113)) as u8)
    };
    let (source, destination) = (prefix(), prefix());
    let low = random.next() as u16;
    let destination_ports = PortRange::new(low, low.saturating_add(random.below(9) as u16));
    let protocol = (random.below(3) != 0).then_some(Protocol::UDP);
    let destination_ports = destination_ports.unwrap();
    FiveTuple { protocol, source, destination, destination_ports, ..FiveTuple::default() }
}

/// Tables, rules in vectors, the longest slot; the squares of all slots' lengths, and rules of
/// vectors compared in vain, summed over a packet of each rule; and the memory it touched.
fn figures<A: Address>(classifier: &Classifier<A>, rules: &[FiveTuple]) -> [u64; 6] {
    let slots = classifier.tables.iter().flat_map(|table| &table.slots);
    let lengths = slots.map(|&head| classifier.chain(head).count() as u64);
    let rules: Vec<_> = compiled::<A>(rules);
    let in_vain = rules.iter().map(|rule| classifier.vectors.compared(&rule.inside(rule)).0);
    [
        classifier.tables() as u64,
        classifier.in_vectors() as u64,
        classifier.longest_slot() as u64,
        lengths.map(|length| length * length).sum(),
        if classifier.in_vectors() == 0 { 0 } else { in_vain.sum() },
        classifier.touched(),
    ]
}

/// Known figures before and after changes: which tables are chosen, how even their slots are, how
/// fine the vectors, and how much work is counted. If your change alters them, check that they are
/// no worse and update them.
#[test]
fn known_sets_keep_their_compiled_form() {
    let mut found = Vec::new();
    for kind in 0..=KINDS {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 + kind);
        let mut rules = rules(kind, 300, &mut random);
        let mut classifier = super::build::<u64>(&rules);
        found.push(figures(&classifier, &rules));
        for _ in 0..120 {
            change(&mut classifier, &mut rules, kind, &mut random);
        }
        found.push(figures(&classifier, &rules));
    }
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut narrow: Vec<_> = (0..16).map(|_| super::random_rule(&mut random)).collect();
    let mut classifier = super::build::<u64>(&narrow);
    found.push(figures(&classifier, &narrow));
    for _ in 0..200 {
        let rule = super::random_rule(&mut random);
        classifier.insert(narrow.len() as u16, &rule);
        narrow.push(rule);
    }
    found.push(figures(&classifier, &narrow));
    let mut six: Vec<_> = (0..600).map(|_| rule6(&mut random)).collect();
    let mut classifier = super::build::<[u64; 4]>(&six);
    found.push(figures(&classifier, &six));
    while six.len() > 500 {
        classifier.remove(six.len() as u16 - 1, &six.pop().unwrap());
    }
    found.push(figures(&classifier, &six));
    // A classifier that grows from nothing, past its vectors and its first build.
    let (mut classifier, mut grown) = (Classifier::<u64>::default(), Vec::new());
    for place in 0..1200_u16 {
        grown.push(rule(0, place.into(), &mut random));
        classifier.insert(place, &grown[usize::from(place)]);
    }
    found.push(figures(&classifier, &grown));
    assert_eq!(found, KNOWN);
}

const KNOWN: &[[u64; 6]] = &[
    [0, 300, 0, 0, 23, 82749],
    [0, 302, 0, 0, 14, 336087],
    [0, 300, 0, 0, 47, 34295],
    [0, 318, 0, 0, 56, 387208],
    [0, 300, 0, 0, 0, 23696],
    [0, 278, 0, 0, 0, 381440],
    [1, 0, 3, 336, 0, 13420],
    [1, 0, 2, 308, 0, 50071],
    [2, 0, 4, 436, 0, 20991],
    [2, 0, 5, 456, 0, 58635],
    [0, 300, 0, 0, 158, 72083],
    [0, 308, 0, 0, 160, 323694],
    [1, 0, 2, 18, 0, 2736],
    [1, 0, 3, 380, 0, 3275],
    [1, 0, 2, 666, 0, 39720],
    [1, 0, 2, 546, 0, 39730],
    [0, 1200, 0, 0, 524, 1086386],
];

#[test]
fn vectors_begin_at_any_rule_and_stop_at_the_first() {
    let key = |port| Key::<u64>::new([1; 4].into(), [2; 4].into(), 6, Some((port, 1))).unwrap();
    let one = |port| FiveTuple { source_ports: PortRange::one(port), ..FiveTuple::default() };
    let all = vec![FiveTuple::default(); 600];
    let vectors = Vectors::build(compiled::<u64>(&all), &mut 0);
    for from in 0..600 {
        assert_eq!(vectors.first(&key(5), from, NONE), from);
    }
    assert_eq!(vectors.compared(&key(5)), (0, Some(0)));
    // One rule in each word, the first.
    let sparse: Vec<_> = (0..256).map(|n| one(if n % 64 == 0 { 5 } else { 9 })).collect();
    let mut vectors = Vectors::build(compiled::<u64>(&sparse), &mut 0);
    assert_eq!([0, 1, 65].map(|from| vectors.first(&key(5), from, NONE)), [0, 64, 128]);
    // Removing a rule leaves the earlier rules' bits alone.
    assert!(vectors.remove(130, &mut 0));
    assert_eq!(vectors.compared(&key(9)), (0, Some(1)));
    assert_eq!(vectors.compared(&key(5)), (0, Some(0)));
    assert_eq!(vectors.compared(&key(7)), (0, None));
}
