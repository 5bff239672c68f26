//! What several functions check of their settings and ask of packets.

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

/// The outer VLAN of a packet that was parsed to `layers`: of a tag kept aside, else of the first
/// in the packet.
#[inline(always)]
pub(crate) fn vlan_of(packet: &Descriptor, layers: &Layers) -> Option<u16> {
    let within = (layers.vlan_count != 0).then_some(layers.vlan_tci);
    packet.vlan_aside().map(|tag| tag.tci).or(within).map(|tci| tci & 0xfff)
}
