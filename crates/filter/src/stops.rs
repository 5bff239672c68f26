//! The filters that may keep a packet from its host, for packets that cannot be read in full.
//!
//! They are compiled once more, without their ports: a packet whose ports are hidden is looked up
//! there with its protocol, one whose protocol is hidden with each protocol that a filter names.
//! If its addresses are hidden, the first filter of its family could match.
//!
//! Guarantees: the answer is that of the list read from the top
//! ([`FiveTuple::could_match`](crate::FiveTuple::could_match)); the time it takes does not grow
//! with the filters in the list, but with the protocols that they name.

use super::classifier::{Classifier, NONE};
use super::hidden::Hidden;
use super::matching::{FiveTuple, PortRange};
use super::table::{AnyKey, Row};
use super::{Filter, Match};

#[derive(Clone, Debug, Default)]
pub(super) struct Stops {
    v4: Classifier<u64>,
    v6: Classifier<[u64; 4]>,
    /// Protocols that filters name, and how many do.
    named: Vec<(u8, u32)>,
    /// Protocols to look up: those, and one that none names.
    protocols: Vec<u8>,
    /// Where filters stand that packets of IPv4 could match, and of IPv6.
    places: [Vec<u16>; 2],
}

/// What a filter stands here as.
fn without_ports(filter: &Filter) -> Option<FiveTuple> {
    match filter.matching {
        Match::FiveTuple(tuple) if filter.stops_unreadable() => Some(FiveTuple {
            source_ports: PortRange::ANY,
            destination_ports: PortRange::ANY,
            ..tuple
        }),
        _ => None,
    }
}

impl Stops {
    /// Compiles filters with their places in the list.
    pub(super) fn build<'f>(filters: impl Iterator<Item = (u16, &'f Filter)>) -> Self {
        let tuples: Vec<_> =
            filters.filter_map(|(place, filter)| Some((place, without_ports(filter)?))).collect();
        let tuples = || tuples.iter().map(|(place, tuple)| (*place, tuple));
        let mut stops = Stops {
            v4: Classifier::build(tuples()),
            v6: Classifier::build(tuples()),
            ..Stops::default()
        };
        tuples().for_each(|(_, tuple)| stops.name(tuple));
        stops
    }

    pub(super) fn make_room(&mut self, position: u16) {
        self.v4.make_room(position);
        self.v6.make_room(position);
    }

    pub(super) fn close_gap(&mut self, position: u16) {
        self.v4.close_gap(position);
        self.v6.close_gap(position);
    }

    pub(super) fn insert(&mut self, position: u16, filter: &Filter) {
        if let Some(tuple) = without_ports(filter) {
            self.v4.insert(position, &tuple);
            self.v6.insert(position, &tuple);
            self.name(&tuple);
        }
    }

    pub(super) fn remove(&mut self, position: u16, filter: &Filter) {
        if let Some(tuple) = without_ports(filter) {
            self.v4.remove(position, &tuple);
            self.v6.remove(position, &tuple);
            let named = tuple.protocol.map(|protocol| protocol.0);
            for entry in self.named.iter_mut().filter(|entry| Some(entry.0) == named) {
                entry.1 -= 1;
            }
            self.named.retain(|entry| entry.1 != 0);
        }
    }

    fn name(&mut self, tuple: &FiveTuple) {
        let Some(protocol) = tuple.protocol else { return };
        match self.named.iter_mut().find(|entry| entry.0 == protocol.0) {
            Some(entry) => entry.1 += 1,
            None => self.named.push((protocol.0, 1)),
        }
    }

    /// Protocols to look packets up with whose own is hidden.
    pub(super) fn protocols(&self) -> &[u8] {
        &self.protocols
    }

    pub(super) fn classifiers(&self) -> (&Classifier<u64>, &Classifier<[u64; 4]>) {
        (&self.v4, &self.v6)
    }

    /// Compiles anew what changes have left.
    pub(super) fn compact(&mut self) {
        (self.v4, self.v6) = (self.v4.compacted(), self.v6.compacted());
    }

    /// What follows from the filters and their rows.
    pub(super) fn complete(&mut self, rows: &[Row]) {
        let is_named = |protocol: &u8| self.named.iter().any(|entry| entry.0 == *protocol);
        let other = (0..=u8::MAX).find(|protocol| !is_named(protocol));
        self.protocols = self.named.iter().map(|entry| entry.0).chain(other).collect();
        for (places, family) in self.places.iter_mut().zip([Row::STOPS_V4, Row::STOPS_V6]) {
            let stops = |row: &Row| row.stops & family != 0;
            let found = rows.iter().enumerate().filter(|(_, row)| stops(row));
            places.clear();
            places.extend(found.map(|(place, _)| place as u16));
        }
    }

    /// The place of the first filter from `from` on that the packet could match, or [`NONE`].
    /// `is_ipv4` is of packets whose addresses are hidden.
    pub(super) fn first(
        &self,
        hidden: Hidden,
        key: &AnyKey,
        is_ipv4: Option<bool>,
        from: u16,
    ) -> u16 {
        match hidden {
            Hidden::Nothing | Hidden::Authenticated => NONE,
            Hidden::Ports => key.find(&self.v4, &self.v6, from),
            Hidden::Protocol => {
                let found = self
                    .protocols
                    .iter()
                    .map(|&protocol| key.with_protocol(protocol).find(&self.v4, &self.v6, from));
                found.min().unwrap_or(NONE)
            }
            Hidden::Addresses | Hidden::Everything => {
                let families = match is_ipv4 {
                    Some(true) => &self.places[..1],
                    Some(false) => &self.places[1..],
                    None => &self.places[..],
                };
                let first = |places: &Vec<u16>| {
                    let start = places.partition_point(|&place| place < from);
                    places.get(start).copied()
                };
                families.iter().filter_map(first).min().unwrap_or(NONE)
            }
        }
    }
}
