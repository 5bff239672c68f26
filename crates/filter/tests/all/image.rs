//! A list as words: never longer than is said.

use picnic_filter::image::most_words;
use picnic_filter::{
    Action, Filter, FilterCode, FilterId, Filters, FiveTuple, PortRange, Prefix, Protocol,
    filters::FilterChange,
};

/// Rules of all shapes, of which no two are the same.
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
fn an_image_takes_no_more_room_than_is_said() {
    for count in [0, 1, 40, 700] {
        let (filters, room) = (Filters::new(1), most_words(count as usize));
        let mut list = filters.elsewhere();
        let add = |number| FilterChange::Add(filter(number), FilterCode::default());
        filters.apply((0..count).map(add).collect()).unwrap();
        // Others in the place of all, a few at a time: what changes leave behind does not stay.
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
