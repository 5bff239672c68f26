//! Checks and look-ups that several functions share.

use picnic_core::error::ConfigError;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::Layers;

/// Refuses a queue that the card does not have.
pub(crate) fn check_queue(key: &str, found: u16, queues: u16) -> Result<(), ConfigError> {
    if found < queues {
        return Ok(());
    }
    let last = queues.saturating_sub(1);
    Err(ConfigError::new(key, format!("found queue {found}, allowed: 0 to {last}")))
}

/// The outer VLAN of a packet parsed to `layers`: from a stripped tag, or else from the first tag
/// in the packet.
#[inline(always)]
pub(crate) fn vlan_of(packet: &Descriptor, layers: &Layers) -> Option<u16> {
    let within = (layers.vlan_count != 0).then_some(layers.vlan_tci);
    packet.vlan_aside().map(|tag| tag.tci).or(within).map(|tci| tci & 0xfff)
}
