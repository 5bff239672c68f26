//! A classifier as words, searched as the kernel engine does it: by places, without a pointer.

use super::super::image::CLASSIFIER;
use super::super::rule::FIELDS;
use super::super::{Address, Classifier, Key, NONE, Rule};
use crate::image::{HEAD, Image, PAGE};
use crate::{Action, Filter, Filters, FiveTuple, Match, PortRange, Prefix, Protocol};
use std::net::IpAddr;

/// The start of the words: a page that is not the first.
const BASE: usize = 3 * PAGE;

/// Addresses out of words.
pub(super) trait OfWords: Address {
    fn of_words(words: &[u64]) -> Self;
}

impl OfWords for u64 {
    fn of_words(words: &[u64]) -> Self {
        words[0]
    }
}

impl OfWords for [u64; 4] {
    fn of_words(words: &[u64]) -> Self {
        words[..4].try_into().unwrap()
    }
}

pub(super) struct Written {
    head: [u64; CLASSIFIER],
    words: Vec<u64>,
}

fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

fn quarter(word: u64, number: usize) -> u16 {
    let bytes = word.to_ne_bytes();
    u16::from_ne_bytes([bytes[2 * number], bytes[2 * number + 1]])
}

/// Of addresses under a table's mask, and of ports and protocol under it, as
/// `crates/kernel/bpf/filter.h` has it.
fn hash(addresses: &[u64], masks: &[u64], rest: u64) -> u64 {
    // The digits of pi.
    const K0: u64 = 0x243f_6a88_85a3_08d3;
    const K1: u64 = 0x1319_8a2e_0370_7345;
    const K2: u64 = 0xa409_3822_299f_31d1;
    const K3: u64 = 0x082e_fa98_ec4e_6c89;
    let mix = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let masked: Vec<_> = addresses.iter().zip(masks).map(|(word, mask)| word & mask).collect();
    match masked[..] {
        [both] => mix(both ^ K0, rest ^ K1),
        [a, b, c, d] => {
            let last = mix(c ^ K2, d.rotate_left(32) ^ K3).rotate_left(17);
            mix(a ^ K0, b ^ K1) ^ last ^ mix(rest ^ K3, K2)
        }
        _ => unreachable!(),
    }
}

/// A key's fields as numbers: of both addresses the leading 64 bits, then the ports.
fn values<A: Address>(key: &Key<A>) -> [u64; FIELDS] {
    let [source, destination] = match *key.address.words().as_ref() {
        [both] => {
            let (source, destination) = halves(both);
            [source, destination].map(|address| u64::from(u32::from_be(address)) << 32)
        }
        [source, _, destination, _] => [source, destination].map(u64::from_be),
        _ => unreachable!(),
    };
    [source, destination, u64::from(key.ports & 0xffff), u64::from(key.ports >> 16)]
}

impl Written {
    pub(super) fn of<A: Address>(classifier: &Classifier<A>) -> Self {
        let mut image = Image::at(BASE);
        let head = classifier.write(&mut image);
        // A search that looked into more tables than it must would find the same.
        let firsts = head[4..].chunks_exact(8).map(|table| halves(table[6]));
        let tables = classifier.tables.iter().map(|table| (table.first.into(), 0));
        assert!(firsts.take(classifier.tables()).eq(tables), "where a search may end");
        Written { head, words: image.into_words() }
    }

    fn word(&self, place: u32) -> u64 {
        self.words[place as usize - BASE]
    }

    fn rule<A: OfWords>(&self, first: u32, index: u32) -> Rule<A> {
        let place = (first + index * A::RULE as u32) as usize;
        assert!(place % PAGE + A::RULE <= PAGE, "a rule is in two pages");
        let words = &self.words[place - BASE..][..A::RULE];
        let (low, span) = halves(words[2 * A::WORDS]);
        let rest = |number| quarter(words[2 * A::WORDS + 1], number);
        Rule {
            value: A::of_words(words),
            mask: A::of_words(&words[A::WORDS..]),
            low,
            span,
            protocol: rest(0),
            protocol_mask: rest(1),
            position: rest(2),
            next: rest(3),
        }
    }

    /// The place of the first rule from `from` on that matches, or [`NONE`].
    pub(super) fn find<A: OfWords>(&self, key: &Key<A>, from: u16) -> u16 {
        let (tables, entries) = halves(self.head[0]);
        let mut best = NONE;
        for table in self.head[4..].chunks_exact(8).take(tables as usize) {
            let ((slots, slot_mask), (first, _)) = (halves(table[5]), halves(table[6]));
            if first >= best.into() {
                break;
            }
            let rest = u64::from(key.ports) | u64::from(key.protocol) << 32;
            let slot = hash(key.address.words().as_ref(), table, rest & table[4]);
            let slot = slot as u32 & slot_mask;
            let mut next = quarter(self.word(slots + slot / 4), slot as usize % 4);
            while next != 0 {
                let rule = self.rule::<A>(entries, next.into());
                if rule.position >= best {
                    break;
                }
                if rule.position >= from && rule.matches(key) {
                    best = rule.position;
                    break;
                }
                next = rule.next;
            }
        }
        self.find_by_vectors(key, from).min(best)
    }

    fn find_by_vectors<A: OfWords>(&self, key: &Key<A>, from: u16) -> u16 {
        let ((rules, first_rule), (words, is_cut)) = (halves(self.head[1]), halves(self.head[2]));
        let (begins, bits) = halves(self.head[3]);
        if rules == 0 {
            return NONE;
        }
        assert!(begins as usize % PAGE + FIELDS * 64 <= PAGE, "intervals are in two pages");
        let vectors: [u32; FIELDS] = std::array::from_fn(|field| {
            let begin = |n| self.word(begins + field as u32 * 64 + n);
            let below = (0..63).take_while(|&n| begin(n) <= values(key)[field]).count() as u32;
            let interval = if is_cut >> field & 1 == 0 { 0 } else { below };
            bits + (field as u32 * 64 + interval) * words
        });
        for word in 0..words {
            let all = vectors.map(|vector| self.word(vector + word));
            let mut candidates = all.into_iter().fold(u64::MAX, |all, bits| all & bits);
            while candidates != 0 {
                let rule = self.rule::<A>(first_rule, word * 64 + candidates.trailing_zeros());
                if rule.position >= from && rule.matches(key) {
                    return rule.position;
                }
                candidates &= candidates - 1;
            }
        }
        NONE
    }
}

#[test]
fn first_page_has_four_classifiers() {
    let filters = Filters::new(1);
    let mut list = filters.elsewhere();
    let udp = |port| FiveTuple {
        protocol: Some(Protocol::UDP),
        destination_ports: PortRange::one(port),
        ..FiveTuple::default()
    };
    let tcp = |source| FiveTuple { protocol: Some(Protocol::TCP), source, ..FiveTuple::default() };
    for (tuple, action) in [
        (udp(7), Action::Count),
        (udp(9), Action::Drop),
        (tcp(Prefix::new([10, 0, 0, 0], 8)), Action::Drop),
        (tcp(Prefix::new([0x20; 16], 8)), Action::Drop),
    ] {
        filters.add(Filter::new("f", tuple, action)).unwrap();
    }
    list.refresh();
    let words = list.image(BASE, usize::MAX);
    let classifier = |number: usize| {
        let head = words[HEAD + number * CLASSIFIER..][..CLASSIFIER].try_into().unwrap();
        Written { head, words: words.clone() }
    };
    let (four, six) = (IpAddr::from([10; 4]), IpAddr::from([0x20; 16]));
    let v4 = |protocol, ports| Key::<u64>::new(four, four, protocol, ports).unwrap();
    let v6 = |protocol, ports| Key::<[u64; 4]>::new(six, six, protocol, ports).unwrap();
    let packets = [(17, Some((1, 7))), (17, Some((1, 9))), (6, Some((1, 7))), (1, None)];
    let found = packets.map(|(protocol, ports)| {
        [classifier(0).find(&v4(protocol, ports), 0), classifier(1).find(&v6(protocol, ports), 0)]
    });
    assert_eq!(found, [[0, 0], [1, 1], [2, 3], [NONE, NONE]]);
    // Rules that keep unreadable packets from the host, for all ports.
    let found = [17, 6, 1].map(|protocol| {
        [classifier(2).find(&v4(protocol, None), 0), classifier(3).find(&v6(protocol, None), 0)]
    });
    assert_eq!(found, [[1, 1], [2, 3], [NONE, NONE]]);
    // And the first filter for every packet.
    assert_eq!(halves(words[2]).0, u32::from(NONE));
    filters.add(Filter::new("all", Match::Any, Action::Count)).unwrap();
    list.refresh();
    assert_eq!(halves(list.image(BASE, usize::MAX)[2]).0, 4);
}
