//! The keys of the task `storm`.

use super::records::RECORD;
use crate::settings::{Fault, Settings};
use picnic_core::error::ConfigError;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::SocketAddrV4;

/// The channel of a card that names no other.
pub const CHANNEL: &str = "storm";

/// The keys.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// All members in the same order at each: `NAME`, or `NAME=ADDRESS:PORT` at all of them for UDP
    /// over IPv4.
    pub members: Vec<String>,
    /// This member's name.
    pub me: String,
    /// Number of the group.
    pub group: u16,
    /// The wire to each member, in their order; empty: wire 0 to all.
    pub wires: Vec<u8>,
    /// Name of the channel to the host's program.
    pub channel: String,
    /// Bytes of a sender's messages that some member has not delivered; the same at each member.
    pub window_bytes: u32,
    /// Longest payload in bytes; the same at each member.
    pub payload_bytes: u16,
    /// Microseconds for which a silent member waits before it announces its clock.
    pub announce_us: u64,
    /// Microseconds until a request is repeated.
    pub repeat_us: u64,
    /// Microseconds of silence after which a member is left out; 0: the group is fixed.
    pub suspect_us: u64,
    /// Tells this life of the member from its earlier ones.
    pub incarnation: u32,
    /// Nanoseconds that a frame of the group represents, beside the code's own time; sim only.
    pub frame_ns: u64,
    /// The same for a message of the order.
    pub message_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        let Settings { window_bytes, payload_bytes, .. } = Settings::default();
        Config {
            members: vec!["a".into()],
            me: "a".into(),
            group: 0,
            wires: Vec::new(),
            channel: CHANNEL.into(),
            window_bytes,
            payload_bytes,
            announce_us: 0,
            repeat_us: 500,
            suspect_us: 0,
            incarnation: 0,
            frame_ns: 0,
            message_ns: 0,
        }
    }
}

impl Config {
    /// Bytes of the channel's messages.
    pub(super) fn message_bytes(&self) -> usize {
        RECORD + usize::from(self.payload_bytes)
    }

    /// Names, and addresses if every member has one.
    pub(super) fn read_members(&self) -> Result<(Vec<String>, Vec<SocketAddrV4>), ConfigError> {
        let (mut names, mut addresses) = (Vec::new(), Vec::new());
        for member in &self.members {
            let (name, address) = match member.split_once('=') {
                None => (member.as_str(), None),
                Some((name, address)) => {
                    let address = address.parse::<SocketAddrV4>().map_err(|_| {
                        let message = format!("found \"{member}\", allowed: NAME=ADDRESS:PORT");
                        ConfigError::new("members", message)
                    })?;
                    (name, Some(address))
                }
            };
            names.push(name.to_owned());
            addresses.extend(address);
        }
        if addresses.is_empty() || addresses.len() == names.len() {
            return Ok((names, addresses));
        }
        let message = format!(
            "found {} members with an address and {} without, allowed: all with one or none",
            addresses.len(),
            names.len() - addresses.len()
        );
        Err(ConfigError::new("members", message))
    }

    pub(super) fn settings(&self, names: &[String]) -> Result<Settings, ConfigError> {
        let Some(me) = names.iter().position(|name| *name == self.me) else {
            let message = format!("found \"{}\", allowed: {}", self.me, names.join(", "));
            return Err(ConfigError::new("me", message));
        };
        Ok(Settings {
            group: self.group,
            members: names.to_vec(),
            me: me.min(usize::from(u8::MAX)) as u8,
            window_bytes: self.window_bytes,
            payload_bytes: self.payload_bytes,
            announce_after_ns: self.announce_us * 1_000,
            repeat_after_ns: self.repeat_us * 1_000,
            suspect_after_ns: self.suspect_us * 1_000,
            incarnation: self.incarnation,
            ..Settings::default()
        })
    }
}

/// A fault of the settings, with the key of the card file.
pub(super) fn fault(Fault { key, found, allowed }: Fault) -> ConfigError {
    let key = match key {
        "repeat_after_ns" => "repeat_us",
        "packet_bytes" => "payload_bytes",
        key => key,
    };
    ConfigError::new(key, format!("found {found}, allowed: {allowed}"))
}
