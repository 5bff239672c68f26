//! The filters at the card as an array of words, for the kernel engine.
//!
//! A list is written as pages of words, with indices instead of pointers. The first page locates
//! everything else; `crates/kernel/bpf/filter.h` has it as C. The image is the compiled list
//! itself: both engines search the same tables.
//!
//! ```text
//! page 0       rows: place, number · protocols: number, place · first filter for every packet ·
//!              classifiers: IPv4, IPv6, and both again for the filters that stop unreadable packets
//! row          action, queue, end of its group, next filter for every packet
//!              next filter that stops IPv4, IPv6
//! ```
//!
//! Guarantees: no rule and no slot spans two pages. A list of at most `n` filters takes at
//! most [`most_words`] of `n`.

use super::classifier::image::CLASSIFIER;
use super::classifier::{Classifier, NONE};
use super::exchange::{Delivery, Exchange};
use super::table::{PAGE as COUNTERS, Row, Table, Test};
use super::{Action, Filters, Match};
use picnic_core::direction::Direction;
use std::sync::Arc;

/// Words of a page.
pub const PAGE: usize = 512;

/// Words of the first page before the classifiers.
pub(crate) const HEAD: usize = 3;

const _: () = assert!(HEAD + 4 * CLASSIFIER <= PAGE);

/// A filter's action, as in its row.
const DROP: u16 = 1;
const ACCEPT: u16 = 2;
const STEER: u16 = 3;
const COUNT: u16 = 4;
const POLL: u16 = 5;

/// Most words that this number of filters takes.
pub const fn most_words(filters: usize) -> usize {
    // Protocols, four to a word of the list; two words to a row.
    let classifiers =
        Classifier::<u64>::most_words(filters) + Classifier::<[u64; 4]>::most_words(filters);
    PAGE + 2 * classifiers + 2 * filters + 64 + 1
}

/// Packs two numbers into a word.
pub(crate) fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// Packs four numbers into a word.
pub(crate) fn quarters([first, second, third, fourth]: [u16; 4]) -> u64 {
    let half = |a: u16, b: u16| {
        let ([a, b], [c, d]) = (a.to_ne_bytes(), b.to_ne_bytes());
        u32::from_ne_bytes([a, b, c, d])
    };
    pair(half(first, second), half(third, fourth))
}

/// An image being written.
pub(crate) struct Image {
    /// Place of the first word.
    base: usize,
    words: Vec<u64>,
}

impl Image {
    /// An empty image that begins at a place.
    pub(crate) fn at(base: usize) -> Self {
        Image { base, words: Vec::new() }
    }

    #[cfg(test)]
    pub(crate) fn into_words(self) -> Vec<u64> {
        self.words
    }

    pub(crate) fn push(&mut self, word: u64) {
        self.words.push(word);
    }

    /// The place of the next word.
    pub(crate) fn place(&self) -> u32 {
        (self.base + self.words.len()) as u32
    }

    /// Aligns to a multiple of `words`; returns the place.
    pub(crate) fn align(&mut self, words: usize) -> u32 {
        self.words.resize(self.words.len().next_multiple_of(words), 0);
        self.place()
    }
}

impl Table {
    fn image(&self, base: usize) -> Vec<u64> {
        let mut image = Image::at(base);
        image.words.resize(PAGE, 0);
        // A page is even: no row of two words spans two pages.
        let rows = image.place();
        let everything = |other: &&super::table::OtherFilter| matches!(other.test, Test::Any);
        let every: Vec<_> =
            self.others.iter().filter(everything).map(|other| other.position).collect();
        let (mut any, mut stops) = (NONE, [NONE; 2]);
        let mut written = Vec::with_capacity(2 * self.rows.len());
        // From last to first, since each row names its successor.
        for (place, row) in self.rows.iter().enumerate().rev() {
            let place = place as u16;
            if every.binary_search(&place).is_ok() {
                any = place;
            }
            for (stops, family) in stops.iter_mut().zip([Row::STOPS_V4, Row::STOPS_V6]) {
                if row.stops & family != 0 {
                    *stops = place;
                }
            }
            let (action, queue) = match row.action {
                Action::Drop => (DROP, 0),
                Action::Accept => (ACCEPT, 0),
                Action::Steer(queue) => (STEER, queue),
                Action::Poll => (POLL, 0),
                // Other actions are not accepted.
                Action::Count
                | Action::Mark(_)
                | Action::Callback
                | Action::Deliver
                | Action::Allocate => (COUNT, 0),
            };
            written.push(quarters([stops[0], stops[1], 0, 0]));
            written.push(quarters([action, queue, self.ends[usize::from(row.group)], any]));
        }
        written.into_iter().rev().for_each(|word| image.push(word));
        let named = self.stops.protocols();
        let protocols = image.place();
        for four in named.chunks(4) {
            let number = |n: usize| four.get(n).copied().map_or(0, u16::from);
            image.push(quarters([number(0), number(1), number(2), number(3)]));
        }
        let (stops_v4, stops_v6) = self.stops.classifiers();
        let heads = [
            self.v4.write(&mut image),
            self.v6.write(&mut image),
            stops_v4.write(&mut image),
            stops_v6.write(&mut image),
        ];
        image.words[0] = pair(rows, self.rows.len() as u32);
        image.words[1] = pair(named.len() as u32, protocols);
        image.words[2] = pair(any.into(), 0);
        image.words[HEAD..][..4 * CLASSIFIER].copy_from_slice(heads.as_flattened());
        image.words
    }

    fn compacted(&self) -> Table {
        let mut table = Table { v4: self.v4.compacted(), v6: self.v6.compacted(), ..self.clone() };
        table.stops.compact();
        table
    }
}

/// Counts of one filter since its list took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterHits {
    /// Packets that matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that could match and were dropped.
    pub unreadable: u64,
}

/// The filters at the card on rx, for an engine that judges packets elsewhere. One per card,
/// instead of [`Filters::head`].
pub struct OffloadedFilters {
    exchange: Arc<Exchange>,
    delivery: Delivery,
}

impl Filters {
    /// The filters at the card on rx, for writing an image.
    pub fn elsewhere(&self) -> OffloadedFilters {
        OffloadedFilters {
            exchange: self.exchange_at_card(Direction::Rx),
            delivery: Delivery::default(),
        }
    }
}

impl OffloadedFilters {
    /// Takes the newest list, if there is a newer one; returns the previous one.
    pub fn refresh(&mut self) -> Option<RetiredList> {
        let before = self.delivery.generation;
        let counters = self.counters();
        self.exchange.refresh(&mut self.delivery);
        (self.delivery.generation != before).then_some(RetiredList(counters))
    }

    /// Number of filters in the list.
    pub fn len(&self) -> usize {
        self.delivery.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.delivery.table.is_empty()
    }

    /// The list as an image at a place that is a multiple of [`PAGE`]; compiled again if that
    /// improves it, or if it would be longer than `room`.
    pub fn image(&self, base: usize, room: usize) -> Vec<u64> {
        let table = &self.delivery.table;
        // Rules added one by one are in vectors, which are slow without the processor's vector
        // instructions.
        if table.v4.in_vectors() + table.v6.in_vectors() == 0 {
            let image = table.image(base);
            if image.len() <= room {
                return image;
            }
        }
        table.compacted().image(base)
    }

    /// Adds counts to the filter at a place of the list.
    pub fn count(&self, place: usize, met: FilterHits) {
        if let Some(row) = self.delivery.table.rows.get(place) {
            self.add(row.counters, met);
        }
    }

    /// Adds counts to a filter of the previous list, if it is still in this one.
    pub fn count_late(&self, left: &RetiredList, place: usize, met: FilterHits) {
        let Some(&counters) = left.0.get(place) else { return };
        if self.delivery.table.rows.iter().any(|row| row.counters == counters) {
            self.add(counters, met);
        }
    }

    fn counters(&self) -> Vec<u32> {
        self.delivery.table.rows.iter().map(|row| row.counters).collect()
    }

    fn add(&self, counters: u32, met: FilterHits) {
        let index = counters as usize;
        let Some(page) = self.delivery.pages.get(index / COUNTERS) else { return };
        let counters = &page[index % COUNTERS];
        counters.packets.add(met.packets);
        counters.bytes.add(met.bytes);
        counters.unreadable_packets.add(met.unreadable);
    }
}

impl std::fmt::Debug for OffloadedFilters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Elsewhere").field("filters", &self.len()).finish_non_exhaustive()
    }
}

/// A list that is no longer in effect: the counters of its filters.
#[derive(Debug)]
pub struct RetiredList(Vec<u32>);

/// The engine that judges packets by the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The kernel, for all packets of the card.
    Kernel,
    /// The kernel, which passes some packets to the poll engine.
    Hybrid,
}

impl Judge {
    /// The engine's name and the actions that it supports.
    pub(crate) fn terms(self) -> (&'static str, &'static str) {
        match self {
            Judge::Kernel => ("kernel", "drop, accept, steer, count"),
            Judge::Hybrid => ("hybrid", "drop, accept, steer, count, poll"),
        }
    }
}

/// Checks whether an image can express a filter; otherwise the wrong key, the value found and the
/// values allowed.
pub(crate) fn unwritable(
    filter: &super::Filter,
    judge: Judge,
) -> Option<(&'static str, &'static str, &'static str)> {
    let found = |key, found, allowed| Some((key, found, allowed));
    let actions = judge.terms().1;
    if filter.direction == Direction::Tx {
        return found("direction", "tx", "rx");
    }
    if filter.place == super::Place::Driver {
        return found("place", "driver", "nic");
    }
    match (&filter.matching, filter.action) {
        (Match::Pattern(_), _) => found("start", "a pattern", "a five-tuple, or every packet"),
        (Match::Predicate, _) => found("predicate", "one", "none"),
        (_, Action::Mark(_)) => found("action", "mark", actions),
        (_, Action::Callback) => found("action", "callback", actions),
        (_, Action::Deliver) => found("action", "deliver", actions),
        (_, Action::Poll) if judge == Judge::Kernel => found(
            "action",
            "poll",
            "drop, accept, steer, count, or \"poll\" with engine = \"hybrid\"",
        ),
        _ => None,
    }
}
