//! A list as words: never longer than the stated limit.

use picnic_filter::image::{FilterHits, PAGE, most_words};
use picnic_filter::{
    Action, Filter, FilterCode, FilterId, Filters, FiveTuple, Match, PortRange, Prefix, Protocol,
    filters::FilterChange,
};

/// Rules of all shapes, all different.
fn filter(number: u32) -> Filter {
    let length = [32, 24, 31, 17, 8][number as usize % 5];
    let prefix = |word: u32| Prefix::new(word.wrapping_mul(0x9e37_79b9).to_be_bytes(), length);
    let low = (number % 1000) as u16;
    let tuple = FiveTuple {
        protocol: Some(Protocol::UDP),
        source: prefix(number),
        destination: prefix(!number).filter(|_| number.is_multiple_of(3)),
        source_ports: PortRange::new(low, low + (number % 7) as u16).unwrap(),
        destination_ports: PortRange::one((number / 1000) as u16),
    };
    let any_family = FiveTuple { source: None, destination: None, ..tuple };
    let tuple = if number.is_multiple_of(4) { any_family } else { tuple };
    Filter::new("f", tuple, Action::Drop)
}

#[test]
fn images_stay_within_their_limit() {
    for count in [0, 1, 40, 700] {
        let (filters, room) = (Filters::new(1), most_words(count as usize));
        let mut list = filters.elsewhere();
        let add = |number| FilterChange::Add(filter(number), FilterCode::default());
        filters.apply((0..count).map(add).collect()).unwrap();
        // Replace all filters, a few at a time: leftovers of changes do not stay.
        for turn in 1..20 {
            let listed = filters.list();
            let oldest: Vec<FilterId> = listed.iter().take(20).map(|listing| listing.id).collect();
            let new = (0..oldest.len() as u32).map(|number| add(turn * 1000 + number));
            let gone = oldest.into_iter().map(FilterChange::Remove);
            filters.apply(gone.chain(new).collect()).unwrap();
            list.refresh();
            assert_eq!(list.len(), count as usize);
            let words = list.image(0, room).len();
            assert!(words <= room, "{words} words for {count} filters, {room} are room");
        }
    }
}

/// A list that was changed and then compiled again depends only on its filters.
#[test]
fn grown_lists_are_written_like_fresh_ones() {
    let written = |at_once: u32| {
        let filters = Filters::new(1);
        let mut list = filters.elsewhere();
        for first in (0..240).step_by(at_once as usize) {
            let add = |number| FilterChange::Add(filter(number), FilterCode::default());
            filters.apply((first..first + at_once).map(add).collect()).unwrap();
        }
        list.refresh();
        // It does not fit unchanged.
        list.image(0, 0)
    };
    let whole = written(240);
    assert!([1, 20, 60].into_iter().all(|at_once| written(at_once) == whole));
}

/// A list without rules in vectors is written unchanged while it fits, with leftovers.
#[test]
fn lists_that_do_not_fit_are_compiled_again() {
    let filters = Filters::new(1);
    let mut list = filters.elsewhere();
    let from = |number: u32| {
        let source = Prefix::new((0x0a00_0000 + number).to_be_bytes(), 32);
        let filter = Filter::new("f", FiveTuple { source, ..FiveTuple::default() }, Action::Drop);
        FilterChange::Add(filter, FilterCode::default())
    };
    let ids = filters.apply((0..300).map(from).collect()).unwrap();
    filters.apply(ids[20..].iter().copied().map(FilterChange::Remove).collect()).unwrap();
    let ids = filters.apply((300..500).map(from).collect()).unwrap();
    for id in ids {
        filters.remove(id).unwrap();
    }
    list.refresh();
    let words = |room| list.image(0, room).len();
    let (compiled, grown) = (words(0), words(usize::MAX));
    assert!(compiled < grown, "{compiled} words, {grown} with what changes have left");
    assert_eq!([words(grown - 1), words(grown)], [compiled, grown]);
}

fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

fn quarters(word: u64) -> [u16; 4] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [[a, b], [c, d], [e, f], [g, h]].map(u16::from_ne_bytes)
}

#[test]
fn rows_hold_action_and_successor() {
    const BASE: usize = 2 * PAGE;
    let filters = Filters::new(2);
    let mut list = filters.elsewhere();
    let tcp = FiveTuple { protocol: Some(Protocol::TCP), ..FiveTuple::default() };
    let v6 = FiveTuple { source: Prefix::new([0x20; 16], 8), ..tcp };
    let udp_v4 = FiveTuple {
        protocol: Some(Protocol::UDP),
        source: Prefix::new([10, 0, 0, 0], 8),
        ..FiveTuple::default()
    };
    for (matching, action) in [
        (Match::from(tcp), Action::Count),
        (Match::from(v6), Action::Drop),
        (Match::Any, Action::Count),
        (Match::from(udp_v4), Action::Drop),
        (Match::from(tcp), Action::Steer(1)),
        (Match::from(tcp), Action::Accept),
        (Match::Any, Action::Drop),
    ] {
        filters.add(Filter::new("f", matching, action)).unwrap();
    }
    list.refresh();
    let image = list.image(BASE, usize::MAX);
    let [rows, count] = halves(image[0]);
    assert_eq!((rows as usize % 2, count), (0, 7));
    const NONE: u16 = u16::MAX;
    // Action, queue, end of the group, next for every packet; next that stops IPv4, IPv6. Steering
    // keeps nothing from the host, and a filter for every packet reads nothing.
    let expected = [
        ([4, 0, 7, 2], [3, 1]),
        ([1, 0, 7, 2], [3, 1]),
        ([4, 0, 7, 2], [3, NONE]),
        ([1, 0, 7, 6], [3, NONE]),
        ([3, 1, 7, 6], [NONE, NONE]),
        ([2, 0, 7, 6], [NONE, NONE]),
        ([1, 0, 7, 6], [NONE, NONE]),
    ];
    for (place, (row, stops)) in expected.into_iter().enumerate() {
        let at = rows as usize - BASE + 2 * place;
        let [v4, v6, ..] = quarters(image[at + 1]);
        assert_eq!((quarters(image[at]), [v4, v6]), (row, stops), "row {place}");
    }
    // The protocols of filters that stop unreadable packets, and one more.
    let [protocols, first] = halves(image[1]);
    let all = quarters(image[first as usize - BASE]);
    let mut named = all[..protocols as usize].to_vec();
    named.sort_unstable();
    assert_eq!(named, [0, 6, 17]);
}

#[test]
fn named_protocols_are_packed_four_to_a_word() {
    let filters = Filters::new(1);
    let mut list = filters.elsewhere();
    assert!(list.is_empty());
    for protocol in [1, 6, 17, 47, 58, 132] {
        let tuple = FiveTuple { protocol: Some(Protocol(protocol)), ..FiveTuple::default() };
        filters.add(Filter::new("f", tuple, Action::Drop)).unwrap();
    }
    list.refresh();
    assert!(!list.is_empty());
    let image = list.image(0, usize::MAX);
    let [protocols, first] = halves(image[1]);
    let words = &image[first as usize..][..2];
    let mut named: Vec<_> = words.iter().flat_map(|&word| quarters(word)).collect();
    named.truncate(protocols as usize);
    named.sort_unstable();
    assert_eq!(named, [0, 1, 6, 17, 47, 58, 132]);
}

#[test]
fn hits_elsewhere_count_for_their_filter() {
    let filters = Filters::new(1);
    let mut list = filters.elsewhere();
    let ids: Vec<_> = (0..3).map(|number| filters.add(filter(number)).unwrap()).collect();
    list.refresh();
    let met = |packets| FilterHits { packets, bytes: 100 * packets, unreadable: 10 + packets };
    list.count(0, met(1));
    list.count(1, met(2));
    list.count(3, met(9));
    let counts = |id| {
        let listing = filters.list().into_iter().find(|listing| listing.id == id).unwrap();
        (listing.packets, listing.bytes, listing.unreadable_packets)
    };
    assert_eq!(
        ids.iter().map(|&id| counts(id)).collect::<Vec<_>>(),
        [(1, 100, 11), (2, 200, 12), (0, 0, 0)]
    );
    // Counts from before a change, reported after it, for filters that still exist.
    filters.apply(vec![FilterChange::Remove(ids[0])]).unwrap();
    let left = list.refresh().expect("it is another list");
    assert!(list.refresh().is_none());
    list.count_late(&left, 0, met(5));
    list.count_late(&left, 1, met(5));
    list.count_late(&left, 7, met(5));
    assert_eq!((counts(ids[1]), counts(ids[2])), ((7, 700, 27), (0, 0, 0)));
}
