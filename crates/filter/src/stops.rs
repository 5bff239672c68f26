//! Filters that may keep a packet from the host, for packets that cannot be read in full.
//!
//! They are compiled a second time without ports: a packet with hidden ports is looked up there by
//! its protocol, a packet with a hidden protocol by each protocol that a filter names. If its
//! destination is hidden, the first filter of its family could match.
//!
//! Guarantees: the answer is that of the list read from the top
//! ([`FiveTuple::could_match`](crate::FiveTuple::could_match)); its time grows with the number of
//! protocols that filters name, not with the number of filters.

use super::classifier::{Classifier, NONE};
use super::hidden::Hidden;
use super::matching::{FiveTuple, PortRange};
use super::table::{AnyKey, Row};
use super::{Filter, Match};

#[derive(Clone, Debug, Default)]
pub(super) struct Stops {
    v4: Classifier<u64>,
    v6: Classifier<[u64; 4]>,
    /// Protocols that filters name, with the number of filters.
    named: Vec<(u8, u32)>,
    /// Protocols to look up: the named ones, and one that no rule names.
    protocols: Vec<u8>,
    /// Places of filters that IPv4 packets could match, and IPv6 packets.
    places: [Vec<u16>; 2],
}

/// A filter's five-tuple without its ports.
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

    /// Protocols to look up for packets whose protocol is hidden.
    pub(super) fn protocols(&self) -> &[u8] {
        &self.protocols
    }

    pub(super) fn classifiers(&self) -> (&Classifier<u64>, &Classifier<[u64; 4]>) {
        (&self.v4, &self.v6)
    }

    /// Compiles again, without the leftovers of changes.
    pub(super) fn compact(&mut self) {
        (self.v4, self.v6) = (self.v4.compacted(), self.v6.compacted());
    }

    /// Derives the rest from the filters and their rows.
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
    /// `is_ipv4` is the family of packets with hidden addresses.
    pub(super) fn first(
        &self,
        hidden: Hidden,
        key: &AnyKey,
        is_ipv4: Option<bool>,
        from: u16,
    ) -> u16 {
        match hidden {
            Hidden::Nothing => NONE,
            Hidden::Ports => key.find(&self.v4, &self.v6, from),
            Hidden::Protocol => {
                let found = self
                    .protocols
                    .iter()
                    .map(|&protocol| key.with_protocol(protocol).find(&self.v4, &self.v6, from));
                found.min().unwrap_or(NONE)
            }
            Hidden::Destination | Hidden::Chain | Hidden::Addresses | Hidden::Everything => {
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

#[cfg(test)]
mod tests {
    use super::super::classifier::Key;
    use super::super::matching::{Prefix, Protocol, Tuple};
    use super::super::table::NO_CODE;
    use super::super::{Action, Unreadable};
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use std::net::IpAddr;

    fn address(v6: bool, last: u8) -> IpAddr {
        if v6 { IpAddr::from([last; 16]) } else { IpAddr::from([last; 4]) }
    }

    fn filter() -> impl Strategy<Value = Filter> {
        let protocol = proptest::option::of(prop::sample::select(vec![0, 1, 6, 17, 47]));
        let prefix = || proptest::option::of((0..3_u8, prop::sample::select(vec![0, 7, 32])));
        let ports = prop_oneof![Just(PortRange::ANY), Just(PortRange::one(7))];
        let action = prop_oneof![3 => Just(Action::Drop), 1 => Just(Action::Count)];
        let accepts = prop::bool::weighted(0.2);
        let is_any = prop::bool::weighted(0.1);
        (any::<bool>(), protocol, prefix(), prefix(), ports, action, accepts, is_any).prop_map(
            |(v6, protocol, source, destination, ports, action, accepts, is_any)| {
                let prefix = |prefix: Option<(u8, u8)>| {
                    prefix.and_then(|(last, length)| Prefix::new(address(v6, last), length))
                };
                let tuple = FiveTuple {
                    protocol: protocol.map(Protocol),
                    source: prefix(source),
                    destination: prefix(destination),
                    source_ports: PortRange::ANY,
                    destination_ports: ports,
                };
                let matching = if is_any { Match::Any } else { tuple.into() };
                let unreadable = if accepts { Unreadable::Accept } else { Unreadable::Drop };
                Filter::new("f", matching, action).with_unreadable(unreadable)
            },
        )
    }

    fn packet() -> impl Strategy<Value = Tuple> {
        let hidden = [
            Hidden::Ports,
            Hidden::Protocol,
            Hidden::Destination,
            Hidden::Chain,
            Hidden::Addresses,
            Hidden::Everything,
        ];
        let protocol = prop::sample::select(vec![0, 1, 6, 17, 47, 60]).prop_map(Protocol);
        let hidden = prop::sample::select(hidden.to_vec());
        (any::<bool>(), 0..4_u8, 0..4_u8, protocol, hidden).prop_map(
            |(v6, source, destination, protocol, hidden)| Tuple {
                source: address(v6, source),
                destination: address(v6, destination),
                protocol,
                ports: None,
                hidden,
                authenticated: false,
            },
        )
    }

    fn tuple(filter: &Filter) -> Option<&FiveTuple> {
        match &filter.matching {
            Match::FiveTuple(tuple) if filter.stops_unreadable() => Some(tuple),
            _ => None,
        }
    }

    fn first(stops: &Stops, packet: &Tuple, from: u16) -> u16 {
        let &Tuple { source, destination, protocol, hidden, .. } = packet;
        let v6 =
            || Key::new(source, destination, protocol.0, None).map_or(AnyKey::None, AnyKey::V6);
        let key = Key::new(source, destination, protocol.0, None).map_or_else(v6, AnyKey::V4);
        let is_known = hidden != Hidden::Everything;
        stops.first(hidden, &key, is_known.then(|| source.is_ipv4()), from)
    }

    proptest! {
        #[test]
        fn stops_agree_with_the_list_after_any_change(
            changes in proptest::collection::vec(
                (any::<Index>(), prop::bool::weighted(0.6), filter()), 1..40),
            packets in proptest::collection::vec(packet(), 1..20),
        ) {
            let (mut stops, mut list) = (Stops::default(), Vec::<Filter>::new());
            for (place, is_added, filter) in changes {
                let at = place.index(list.len() + usize::from(is_added || list.is_empty()));
                if is_added || list.is_empty() {
                    stops.make_room(at as u16);
                    stops.insert(at as u16, &filter);
                    list.insert(at, filter);
                } else {
                    stops.remove(at as u16, &list.remove(at));
                    stops.close_gap(at as u16);
                }
                let rows: Vec<_> = list.iter().map(|filter| Row::new(filter, 0, NO_CODE, 0)).collect();
                stops.complete(&rows);
                let mut compiled = Stops::build((0..).zip(&list));
                compiled.complete(&rows);
                // The protocols that filters name, and one more: the limit of look-ups.
                let mut named: Vec<_> = list.iter().filter_map(tuple).filter_map(|t| t.protocol).collect();
                named.sort_unstable();
                named.dedup();
                for stops in [&stops, &compiled] {
                    let mut protocols: Vec<_> = stops.protocols().iter().copied().map(Protocol).collect();
                    prop_assert_eq!(protocols.len(), named.len() + 1);
                    protocols.retain(|protocol| named.contains(protocol));
                    protocols.sort_unstable();
                    prop_assert_eq!(&protocols, &named);
                }
                for (packet, from) in packets.iter().zip((0..=list.len()).cycle()) {
                    let could = |filter: &&Filter| tuple(filter).is_some_and(|t| t.could_match(packet));
                    let wanted = list.iter().skip(from).position(|filter| could(&filter));
                    let wanted = wanted.map_or(NONE, |place| (place + from) as u16);
                    prop_assert_eq!(first(&stops, packet, from as u16), wanted, "{:?}", packet);
                    prop_assert_eq!(first(&compiled, packet, from as u16), wanted, "{:?}", packet);
                }
            }
        }
    }
}
