//! The filters of a member on a card, and the mailbox that they fill.

use super::carrier::Carrier;
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

/// The filters of a member: for the group's frames, and for ARP requests.
pub(super) fn filters(carrier: &Carrier) -> Result<Vec<Filter>, ConfigError> {
    let filter = |name: &str, matching: Match| {
        let mut filter = Filter::new(name, matching, Action::Deliver).on(Direction::Rx);
        filter.unreadable = Unreadable::Accept;
        filter
    };
    let pattern = |mask: &[u8], value: &[u8]| {
        let pattern = Pattern::new(Base::Frame, 12, mask, &[value]);
        pattern.map(Match::from).map_err(|(key, why)| ConfigError::new(key, why.to_string()))
    };
    match carrier.address() {
        None => {
            let of_group = pattern(&[0xff; 2], &ETHERTYPE.to_be_bytes())?;
            Ok(vec![filter("storm-group", of_group)])
        }
        Some(address) => {
            let port = address.port();
            let group = FiveTuple {
                protocol: Some(Protocol::UDP),
                destination: Prefix::new(*address.ip(), 32),
                destination_ports: PortRange::new(port, port).unwrap_or_default(),
                ..FiveTuple::default()
            };
            // The type, a request, the target's address.
            let (mut mask, mut value) = ([0; 30], [0; 30]);
            for (at, bytes) in [(0, &[8, 6][..]), (8, &[0, 1]), (26, &address.ip().octets())] {
                mask[at..at + bytes.len()].fill(0xff);
                value[at..at + bytes.len()].copy_from_slice(bytes);
            }
            let of_arp = pattern(&mask, &value)?;
            Ok(vec![filter("storm-group", group.into()), filter("storm-arp", of_arp)])
        }
    }
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
