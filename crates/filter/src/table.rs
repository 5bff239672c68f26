//! One list of filters, compiled: read by the data path, never changed.
//!
//! Five-tuples are in the [`Classifier`], one for each address family. Other filters (patterns,
//! predicates, filters for every packet) are examined one by one, up to the first matching
//! five-tuple. The `stops` find filters that could match packets that cannot be read.

use super::classifier::{Classifier, Key, NONE};
use super::hidden::{self, Headers, Hidden};
use super::matching::{Base, Pattern, Protocol};
use super::stops::Stops;
use super::{Action, Filter, Match};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::Layers;
use picnic_core::stats::Counter;
use std::sync::Arc;

/// Counters of one filter on one core.
#[derive(Debug, Default)]
#[repr(C)]
pub struct FilterCounters {
    /// Packets that matched.
    pub packets: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Packets that ended before the filter's pattern did.
    pub short_packets: Counter,
    /// Panics of its code, which is then no longer called.
    pub panics: Counter,
    /// Packets that were dropped because they could match but could not be read.
    pub unreadable_packets: Counter,
}

impl FilterCounters {
    /// Packets, bytes, short packets, panics, unreadable packets.
    pub(super) fn all(&self) -> [&Counter; 5] {
        let FilterCounters { packets, bytes, short_packets, panics, unreadable_packets } = self;
        [packets, bytes, short_packets, panics, unreadable_packets]
    }
}

/// Counters per page.
pub(super) const PAGE: usize = 256;

/// The counters of some filters on one core.
pub(super) type Page = [FilterCounters; PAGE];

/// No code.
pub(super) const NO_CODE: u16 = u16::MAX;

/// The action of a filter, and where its state is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) action: Action,
    /// Its group's number, in the order of the groups.
    pub(super) group: u16,
    /// Its code, or `NO_CODE`.
    pub(super) slot: u16,
    /// Its counters.
    pub(super) counters: u32,
    /// Packets that it stops if they cannot be read: by family for a five-tuple, or for a pattern.
    pub(super) stops: u8,
}

impl Row {
    pub(super) const STOPS_V4: u8 = 1;
    pub(super) const STOPS_V6: u8 = 2;
    pub(super) const STOPS_PATTERN: u8 = 4;

    pub(super) fn new(filter: &Filter, group: u16, slot: u16, counters: u32) -> Self {
        let stops = match &filter.matching {
            _ if !filter.stops_unreadable() => 0,
            Match::FiveTuple(tuple) => match tuple.is_ipv4() {
                Some(true) => Row::STOPS_V4,
                Some(false) => Row::STOPS_V6,
                None => Row::STOPS_V4 | Row::STOPS_V6,
            },
            Match::Pattern(_) => Row::STOPS_PATTERN,
            Match::Any | Match::Predicate => 0,
        };
        Row { action: filter.action, group, slot, counters, stops }
    }
}

/// A filter that is not a five-tuple.
#[derive(Clone, Debug)]
pub(super) struct OtherFilter {
    pub(super) position: u16,
    pub(super) test: Test,
}

#[derive(Clone, Debug)]
pub(super) enum Test {
    Any,
    Pattern(Arc<Pattern>),
    Predicate,
}

impl OtherFilter {
    /// `None` for a five-tuple.
    fn of(position: u16, filter: &Filter) -> Option<Self> {
        let test = match &filter.matching {
            Match::Pattern(pattern) => Test::Pattern(Arc::new(pattern.clone())),
            Match::Predicate => Test::Predicate,
            Match::Any => Test::Any,
            Match::FiveTuple(_) => return None,
        };
        Some(OtherFilter { position, test })
    }

    /// Whether it reads past the first header.
    fn needs_layers(&self) -> bool {
        matches!(&self.test, Test::Pattern(pattern) if pattern.base() != Base::Frame)
    }
}

/// One list of filters.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub(super) rows: Vec<Row>,
    pub(super) others: Vec<OtherFilter>,
    pub(super) v4: Classifier<u64>,
    pub(super) v6: Classifier<[u64; 4]>,
    pub(super) stops: Stops,
    /// The place after each group's last filter.
    pub(super) ends: Vec<u16>,
    pub(super) needs_layers: bool,
}

impl Table {
    /// Whether there are no filters.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Filters in the list.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The classifier of IPv4.
    pub fn v4(&self) -> &Classifier<u64> {
        &self.v4
    }

    /// The classifier of IPv6.
    pub fn v6(&self) -> &Classifier<[u64; 4]> {
        &self.v6
    }

    /// Compiles filters with their places in the list.
    pub(super) fn compile<'f>(&mut self, filters: impl Iterator<Item = (u16, &'f Filter)> + Clone) {
        let tuples = filters.clone().filter_map(|(place, filter)| match &filter.matching {
            Match::FiveTuple(tuple) => Some((place, tuple)),
            _ => None,
        });
        let others = filters.clone().filter_map(|(place, filter)| OtherFilter::of(place, filter));
        self.others = others.collect();
        self.v4 = Classifier::build(tuples.clone());
        self.v6 = Classifier::build(tuples);
        self.stops = Stops::build(filters);
    }

    /// Adds one filter to the compiled list, at a place that others have freed.
    pub(super) fn insert(&mut self, position: u16, filter: &Filter) {
        self.v4.make_room(position);
        self.v6.make_room(position);
        self.stops.make_room(position);
        self.others.iter_mut().filter(|other| other.position >= position).for_each(|other| {
            other.position += 1;
        });
        if let Match::FiveTuple(tuple) = &filter.matching {
            self.v4.insert(position, tuple);
            self.v6.insert(position, tuple);
            self.stops.insert(position, filter);
        } else {
            let at = self.others.partition_point(|other| other.position < position);
            self.others.extend(OtherFilter::of(position, filter));
            self.others[at..].rotate_right(1);
        }
    }

    /// Removes one filter from the compiled list, and closes its gap.
    pub(super) fn remove(&mut self, position: u16, filter: &Filter) {
        if let Match::FiveTuple(tuple) = &filter.matching {
            self.v4.remove(position, tuple);
            self.v6.remove(position, tuple);
            self.stops.remove(position, filter);
        } else {
            self.others.retain(|other| other.position != position);
        }
        self.v4.close_gap(position);
        self.v6.close_gap(position);
        self.stops.close_gap(position);
        self.others.iter_mut().filter(|other| other.position > position).for_each(|other| {
            other.position -= 1;
        });
    }

    /// Derives the rest from the rows and the other filters.
    pub(super) fn complete(&mut self, groups: usize) {
        self.ends.clear();
        self.ends.resize(groups, 0);
        for (position, row) in self.rows.iter().enumerate() {
            self.ends[usize::from(row.group)] = position as u16 + 1;
        }
        self.stops.complete(&self.rows);
        self.needs_layers = !self.v4.is_empty()
            || !self.v6.is_empty()
            || self.others.iter().any(OtherFilter::needs_layers);
    }

    /// The others from a place on.
    #[inline]
    pub(super) fn others_from(&self, from: u16) -> &[OtherFilter] {
        let start = match from {
            0 => 0,
            from => self.others.partition_point(|other| other.position < from),
        };
        &self.others[start..]
    }
}

/// A packet's key, in its family.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnyKey {
    V4(Key<u64>),
    V6(Key<[u64; 4]>),
    None,
}

impl AnyKey {
    /// From a packet with this part hidden.
    #[inline(always)]
    pub(super) fn of(layers: &Layers, packet: &Descriptor, hidden: Hidden) -> Self {
        if let Some(key) = Key::of_packet(layers, packet.data()) {
            return AnyKey::V4(key.without(hidden));
        }
        if let Some(key) = Key::of_packet(layers, packet.data()) {
            return AnyKey::V6(key.without(hidden));
        }
        match hidden::is_ipv4(layers, packet.data()) {
            Some(true) => AnyKey::V4(Key::EMPTY.without(hidden)),
            Some(false) => AnyKey::V6(Key::EMPTY.without(hidden)),
            None => AnyKey::None,
        }
    }

    /// The same addresses with this protocol, and no ports.
    pub(super) fn with_protocol(&self, protocol: u8) -> Self {
        match self {
            AnyKey::V4(key) => AnyKey::V4(key.with_protocol(protocol)),
            AnyKey::V6(key) => AnyKey::V6(key.with_protocol(protocol)),
            AnyKey::None => AnyKey::None,
        }
    }

    /// The place of the first rule from `from` on that matches, or [`NONE`].
    #[inline(always)]
    pub(super) fn find(&self, v4: &Classifier<u64>, v6: &Classifier<[u64; 4]>, from: u16) -> u16 {
        match self {
            AnyKey::V4(key) => v4.find_from(key, from),
            AnyKey::V6(key) => v6.find_from(key, from),
            AnyKey::None => NONE,
        }
    }
}

/// State of a packet's search for five-tuples.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstMatches {
    /// The place of the first five-tuple that certainly matches, or [`NONE`].
    pub(super) certain: u16,
    /// The place of the first that could match and stops unreadable packets, or [`NONE`].
    pub(super) possible: u16,
}

impl Table {
    /// The first five-tuples from `from` on.
    pub(super) fn find(
        &self,
        packet: &Descriptor,
        layers: &Layers,
        headers: Headers,
        from: u16,
    ) -> FirstMatches {
        let Headers { hidden, authenticated } = headers;
        let key = AnyKey::of(layers, packet, hidden);
        let mut certain = key.find(&self.v4, &self.v6, from);
        if authenticated {
            let also = key.with_protocol(Protocol::AUTHENTICATION.0);
            certain = certain.min(also.find(&self.v4, &self.v6, from));
        }
        if hidden == Hidden::Nothing {
            return FirstMatches { certain, possible: NONE };
        }
        let is_ipv4 = hidden::is_ipv4(layers, packet.data());
        FirstMatches { certain, possible: self.stops.first(hidden, &key, is_ipv4, from) }
    }
}
