//! The filters of a member on a card, and the mailboxes that they fill.

use super::carrier::Carrier;
use super::records;
use super::task::Config;
use crate::wire::ETHERTYPE;
use picnic_core::error::ConfigError;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use picnic_filter::code::Closer;
use picnic_filter::{
    Action, Base, Direction, Filter, FiveTuple, Handover, Match, Pattern, PortRange, Prefix,
    Protocol, Unreadable,
};
use picnic_os::mailbox::MailboxSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Filters of a member: the group's frames, ARP requests, the host's frames, and false ones.
const FILTERS: usize = 4;

/// The filters of a member, each with the mailbox that it fills: 0 the group's, 1 the host's.
pub(super) fn filters(
    carrier: &Carrier,
    config: &Config,
) -> Result<Vec<(Filter, usize)>, ConfigError> {
    let filter = |name: &str, matching: Match, direction: Direction| {
        let mut filter = Filter::new(name, matching, Action::Deliver).on(direction);
        filter.unreadable = Unreadable::Accept;
        filter
    };
    let pattern = |mask: &[u8], value: &[u8]| {
        let pattern = Pattern::new(Base::Frame, 12, mask, &[value]);
        pattern.map(Match::from).map_err(|(key, why)| ConfigError::new(key, why.to_string()))
    };
    let of_type = |kind: u16| pattern(&[0xff; 2], &kind.to_be_bytes());
    let mut filters = Vec::with_capacity(FILTERS);
    match carrier.address() {
        None => filters.push((filter("storm-group", of_type(ETHERTYPE)?, Direction::Rx), 0)),
        Some(address) => {
            let port = address.port();
            let group = FiveTuple {
                protocol: Some(Protocol::UDP),
                destination: Prefix::new(*address.ip(), 32),
                destination_ports: PortRange::new(port, port).unwrap_or_default(),
                ..FiveTuple::default()
            };
            filters.push((filter("storm-group", group.into(), Direction::Rx), 0));
            // The type, a request, the target's address.
            let (mut mask, mut value) = ([0; 30], [0; 30]);
            for (at, bytes) in [(0, &[8, 6][..]), (8, &[0, 1]), (26, &address.ip().octets())] {
                mask[at..at + bytes.len()].fill(0xff);
                value[at..at + bytes.len()].copy_from_slice(bytes);
            }
            filters.push((filter("storm-arp", pattern(&mask, &value)?, Direction::Rx), 0));
        }
    }
    let of_host = if config.host_wire.is_some() { Direction::Rx } else { Direction::Tx };
    if of_host == Direction::Tx {
        // The host assumes that such frames are from the card, so none from a wire may reach it.
        filters.push((filter("storm-foreign", of_type(records::ETHERTYPE)?, Direction::Rx), 0));
    }
    filters.push((filter("storm-host", of_type(records::ETHERTYPE)?, of_host), 1));
    Ok(filters)
}

/// A mailbox that several filters fill. They run one after another on the borrowed core, so the
/// lock is always free.
pub(super) struct Common(pub(super) Arc<Mutex<MailboxSender>>);

impl Common {
    fn sender(&self) -> MutexGuard<'_, MailboxSender> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handover for Common {
    fn hand_over(&mut self, now: Time, packet: Descriptor) -> Result<(), Descriptor> {
        self.sender().hand_over(now, packet)
    }

    fn closer(&self) -> Option<Closer> {
        self.sender().closer()
    }
}
