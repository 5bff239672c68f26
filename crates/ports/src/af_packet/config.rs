//! The keys of `port = "packet"`, checked.

use picnic_core::packet::pool::MAX_PACKET_BYTES;
use schemars::JsonSchema;
use serde::Deserialize;

/// Keys of the `packet` port.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PacketConfig {
    /// The interface, Ethernet; mandatory.
    pub interface: Option<String>,
    /// Its network namespace: a name of `ip netns`, or a path; default: the card's own.
    pub namespace: Option<String>,
    /// Whether to receive packets for other addresses too, until the card ends.
    pub promiscuous: bool,
    /// Slots of the receive ring; rounded up to fill its memory.
    #[schemars(range(min = 16, max = 65_536), extend("x-advanced" = true))]
    pub frames: u32,
    /// Bytes of a packet that fit in a slot; a longer one takes a system call.
    #[schemars(range(min = 128, max = MAX_PACKET_BYTES), extend("x-advanced" = true))]
    pub frame_size: u32,
}

impl Default for PacketConfig {
    fn default() -> Self {
        PacketConfig {
            interface: None,
            namespace: None,
            promiscuous: true,
            frames: 4096,
            // Ordinary frames with tags: 2 KiB, including the bytes before them.
            frame_size: 1920,
        }
    }
}
