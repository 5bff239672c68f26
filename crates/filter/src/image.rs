//! The filters at the card as plain words, for who judges packets elsewhere: the kernel engine.
//!
//! A list is written as pages of words, with places in it in place of pointers. The first page says
//! where everything is; `crates/kernel/bpf/filter.h` has it as C. What is written is the compiled
//! list itself: both engines search the same tables.
//!
//! ```text
//! page 0       rows: place, number · protocols: number, place · first filter for every packet ·
//!              classifiers: IPv4, IPv6, and both again of the filters that stop what they cannot read
//! row          action, queue, end of its group, next filter for every packet
//!              next filter that stops IPv4, IPv6
//! ```
//!
//! Guarantees: no rule and no slot is in two pages. A list of no more than `n` filters takes no more
//! than [`most_words`] of `n`.

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

/// What a filter does, as a row says it.
const DROP: u16 = 1;
const ACCEPT: u16 = 2;
const STEER: u16 = 3;
const COUNT: u16 = 4;
const POLL: u16 = 5;

/// The most words that a list of so many filters takes.
pub const fn most_words(filters: usize) -> usize {
    // Protocols, four to a word of the list; two words to a row.
    let classifiers =
        Classifier::<u64>::most_words(filters) + Classifier::<[u64; 4]>::most_words(filters);
    PAGE + 2 * classifiers + 2 * filters + 64 + 1
}

/// Two numbers, as they lie one after the other.
pub(crate) fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// Four numbers, as they lie one after the other.
pub(crate) fn quarters([first, second, third, fourth]: [u16; 4]) -> u64 {
    let half = |a: u16, b: u16| {
        let ([a, b], [c, d]) = (a.to_ne_bytes(), b.to_ne_bytes());
        u32::from_ne_bytes([a, b, c, d])
    };
    pair(half(first, second), half(third, fourth))
}

/// Words, as they are written.
pub(crate) struct Image {
    /// The place of the first.
    base: usize,
    words: Vec<u64>,
}

impl Image {
    /// None yet, the first of which will be at a place.
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

    /// The place of what comes next.
    pub(crate) fn place(&self) -> u32 {
        (self.base + self.words.len()) as u32
    }

    /// Goes on at a multiple of so many words; returns the place.
    pub(crate) fn align(&mut self, words: usize) -> u32 {
        self.words.resize(self.words.len().next_multiple_of(words), 0);
        self.place()
    }
}

impl Table {
    fn image(&self, base: usize) -> Vec<u64> {
        let mut image = Image::at(base);
        image.words.resize(PAGE, 0);
        // A page is even: no row of two words is in two.
        let rows = image.place();
        let everything = |other: &&super::table::OtherFilter| matches!(other.test, Test::Any);
        let every: Vec<_> =
            self.others.iter().filter(everything).map(|other| other.position).collect();
        let (mut any, mut stops) = (NONE, [NONE; 2]);
        let mut written = Vec::with_capacity(2 * self.rows.len());
        // From the last to the first, as each says what comes next.
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
                // What else there is is not admitted.
                Action::Count | Action::Mark(_) | Action::Callback | Action::Deliver => (COUNT, 0),
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

/// What packets have met of one filter, since its list is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterHits {
    /// Packets that matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that could have matched, and ended there.
    pub unreadable: u64,
}

/// The filters at the card on rx, for who judges packets elsewhere. One for a card, in place of
/// [`Filters::head`].
pub struct OffloadedFilters {
    exchange: Arc<Exchange>,
    delivery: Delivery,
}

impl Filters {
    /// The filters at the card on rx, to be written down.
    pub fn elsewhere(&self) -> OffloadedFilters {
        OffloadedFilters {
            exchange: self.exchange_at_card(Direction::Rx),
            delivery: Delivery::default(),
        }
    }
}

impl OffloadedFilters {
    /// Takes the newest list, if there is a newer one; returns the one before.
    pub fn refresh(&mut self) -> Option<RetiredList> {
        let before = self.delivery.generation;
        let counters = self.counters();
        self.exchange.refresh(&mut self.delivery);
        (self.delivery.generation != before).then_some(RetiredList(counters))
    }

    /// Filters in the list.
    pub fn len(&self) -> usize {
        self.delivery.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.delivery.table.is_empty()
    }

    /// The list, to be put at a place that is a multiple of [`PAGE`]; compiled anew if that makes it
    /// better, or if it is longer than `room` otherwise.
    pub fn image(&self, base: usize, room: usize) -> Vec<u64> {
        let table = &self.delivery.table;
        // Rules that were added one by one stand in vectors, which are dear without vectors of the
        // processor.
        if table.v4.in_vectors() + table.v6.in_vectors() == 0 {
            let image = table.image(base);
            if image.len() <= room {
                return image;
            }
        }
        table.compacted().image(base)
    }

    /// Counts for the filter at a place of the list.
    pub fn count(&self, place: usize, met: FilterHits) {
        if let Some(row) = self.delivery.table.rows.get(place) {
            self.add(row.counters, met);
        }
    }

    /// Counts for a filter of the list before, if it is in this one too.
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

/// A list that is no longer in force: where its filters count.
#[derive(Debug)]
pub struct RetiredList(Vec<u32>);

/// Who judges packets by a list that is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The kernel, for all packets of the card.
    Kernel,
    /// The kernel, and what it hands over has the poll engine.
    Hybrid,
}

impl Judge {
    /// The name of the engine, and the actions that its filters can have.
    pub(crate) fn terms(self) -> (&'static str, &'static str) {
        match self {
            Judge::Kernel => ("kernel", "drop, accept, steer, count"),
            Judge::Hybrid => ("hybrid", "drop, accept, steer, count, poll"),
        }
    }
}

/// What of filters an image has no words for; the key that is wrong, what was found, and what is
/// allowed.
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
