//! The keys of `port = "packet"`, checked.

use picnic_core::error::ConfigError;
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
    /// Slots of the receive ring, 16 to 65536; rounded up to fill its memory.
    pub frames: u32,
    /// Bytes of a packet that fit in a slot, 128 to 131072; a longer one takes a system call.
    pub frame_size: u32,
}

impl Default for PacketConfig {
    fn default() -> Self {
        PacketConfig {
            interface: None,
            namespace: None,
            promiscuous: true,
            frames: 4096,
            // Ordinary frames with tags; including the bytes in front of them, 2 KiB.
            frame_size: 1920,
        }
    }
}

impl PacketConfig {
    /// Checks the numbers.
    ///
    /// # Errors A value out of range: key, value found, values allowed.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check("frames", self.frames, 16, 65_536)?;
        check("frame_size", self.frame_size, 128, MAX_PACKET_BYTES as u32)
    }
}

fn check(key: &str, found: u32, low: u32, high: u32) -> Result<(), ConfigError> {
    if (low..=high).contains(&found) {
        return Ok(());
    }
    Err(ConfigError::new(key, format!("found {found}, allowed: {low} to {high}")))
}
