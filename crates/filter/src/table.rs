//! One list of filters, compiled: what the data path reads, and nobody changes.
//!
//! Five-tuples are in the [`Classifier`], one for each address family; what else there is
//! (patterns, predicates, filters for every packet) is looked at one by one, as far as the place
//! of the first five-tuple that matches.

use super::Action;
use super::classifier::{Classifier, Key, NONE};
use super::matching::{Base, Pattern};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::Layers;
use picnic_core::stats::Counter;
use std::sync::Arc;

/// What one core counts of one filter.
#[derive(Debug, Default)]
#[repr(C)]
pub struct FilterCounters {
    /// Packets that matched.
    pub packets: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Packets that ended before the filter's pattern did.
    pub short_packets: Counter,
    /// Calls of a hook that panicked; it is not called again.
    pub panics: Counter,
}

/// Counters come in pages of so many.
pub(super) const PAGE: usize = 256;

/// The counters of some filters on one core.
pub(super) type Page = [FilterCounters; PAGE];

/// No hook.
pub(super) const NO_HOOK: u16 = u16::MAX;

/// What is to be done for a filter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) action: Action,
    /// Its group's number, in the order of the groups.
    pub(super) group: u16,
    /// Its hooks, or `NO_HOOK`.
    pub(super) hook: u16,
    /// Its counters.
    pub(super) counters: u32,
}

/// A filter that is no five-tuple.
#[derive(Clone, Debug)]
pub(super) struct Other {
    pub(super) position: u16,
    pub(super) test: Test,
}

#[derive(Clone, Debug)]
pub(super) enum Test {
    Any,
    Pattern(Arc<Pattern>),
    Predicate,
}

impl Other {
    /// Whether it looks behind the first header.
    fn needs_layers(&self) -> bool {
        matches!(&self.test, Test::Pattern(pattern) if pattern.base() != Base::Frame)
    }
}

/// One list of filters.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub(super) rows: Vec<Row>,
    pub(super) others: Vec<Other>,
    pub(super) v4: Classifier<u64>,
    pub(super) v6: Classifier<[u64; 4]>,
    /// The place behind each group's last filter.
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

    /// What follows from the rows and the others.
    pub(super) fn complete(&mut self, groups: usize) {
        self.ends.clear();
        self.ends.resize(groups, 0);
        for (position, row) in self.rows.iter().enumerate() {
            self.ends[usize::from(row.group)] = position as u16 + 1;
        }
        self.needs_layers = !self.v4.is_empty()
            || !self.v6.is_empty()
            || self.others.iter().any(Other::needs_layers);
    }

    /// The others from a place on.
    #[inline]
    pub(super) fn others_from(&self, from: u16) -> &[Other] {
        let start = match from {
            0 => 0,
            from => self.others.partition_point(|other| other.position < from),
        };
        &self.others[start..]
    }
}

/// A packet's key, of its family.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnyKey {
    V4(Key<u64>),
    V6(Key<[u64; 4]>),
    None,
}

impl AnyKey {
    #[inline(always)]
    pub(super) fn of(layers: &Layers, packet: &Descriptor) -> Self {
        if let Some(key) = Key::of_packet(layers, packet.data()) {
            return AnyKey::V4(key);
        }
        Key::of_packet(layers, packet.data()).map_or(AnyKey::None, AnyKey::V6)
    }

    /// The place of the first five-tuple from `from` on that matches, or [`NONE`].
    pub(super) fn find_from(&self, table: &Table, from: u16) -> u16 {
        match self {
            AnyKey::V4(key) => table.v4.find_from(key, from),
            AnyKey::V6(key) => table.v6.find_from(key, from),
            AnyKey::None => NONE,
        }
    }
}
