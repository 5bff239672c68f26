//! The settings of a member: some shared by the group, some its own.

use crate::store::units;
use crate::wire::{DATA, HEADER, MESSAGE, MOST_MEMBERS};

/// The settings of one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Number of the group.
    pub group: u16,
    /// Names of all members; the same list for each member. A member's number is its place.
    pub members: Vec<String>,
    /// This member's number.
    pub me: u8,
    /// Bytes of a sender's messages that some member has not delivered: a power of two. Each
    /// message counts 16 bytes more than its payload, rounded up to 16. The same for each member.
    pub window_bytes: u32,
    /// Longest payload in bytes. The same for each member.
    pub payload_bytes: u16,
    /// Longest packet in bytes.
    pub packet_bytes: u16,
    /// Nanoseconds that a silent member waits before it announces its clock.
    pub announce_after_ns: u64,
    /// Nanoseconds until a request is sent again.
    pub repeat_after_ns: u64,
    /// Nanoseconds of silence after which a member is excluded; 0: the group is fixed, and a member
    /// that fails stops it. Zero for all members or for none.
    pub suspect_after_ns: u64,
    /// Distinguishes this run of the member from earlier ones.
    pub incarnation: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            group: 0,
            members: vec!["0".to_owned()],
            me: 0,
            window_bytes: 256 << 10,
            payload_bytes: 1400,
            packet_bytes: 1472,
            announce_after_ns: 0,
            repeat_after_ns: 500_000,
            suspect_after_ns: 0,
            incarnation: 0,
        }
    }
}

/// A setting with a value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: found {found}, allowed: {allowed}")]
pub struct Fault {
    /// Name of the setting.
    pub key: &'static str,
    /// Its value.
    pub found: String,
    /// The allowed values.
    pub allowed: String,
}

const WINDOW: std::ops::RangeInclusive<u32> = 1 << 10..=16 << 20;

impl Settings {
    /// All faults of the settings.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut fault = |key, found: &dyn ToString, allowed: String| {
            faults.push(Fault { key, found: found.to_string(), allowed });
        };
        let count = self.members.len();
        if count == 0 || count > MOST_MEMBERS {
            fault("members", &format!("{count} members"), format!("1 to {MOST_MEMBERS}"));
        }
        for (place, name) in self.members.iter().enumerate() {
            if name.is_empty() || self.members[..place].contains(name) {
                fault("members", &format!("{name:?}"), "names that differ".to_owned());
            }
        }
        if usize::from(self.me) >= count {
            fault("me", &self.me, format!("a member's number, below {count}"));
        }
        if !WINDOW.contains(&self.window_bytes) || !self.window_bytes.is_power_of_two() {
            let allowed = format!("a power of two, {} to {}", WINDOW.start(), WINDOW.end());
            fault("window_bytes", &self.window_bytes, allowed);
        } else if units(self.payload_bytes.into()) > self.window() / 2 {
            let most = (self.window() / 2 - 1) * 16;
            fault("payload_bytes", &self.payload_bytes, format!("up to half the window, {most}"));
        }
        let data = DATA + MESSAGE + usize::from(self.payload_bytes);
        let least = data.max(HEADER + crate::agreement::bytes(count));
        if usize::from(self.packet_bytes) < least {
            let allowed = format!("{least} or more");
            fault("packet_bytes", &self.packet_bytes, allowed);
        }
        if self.repeat_after_ns == 0 {
            fault("repeat_after_ns", &0, "1 or more".to_owned());
        }
        faults
    }

    /// The window in units.
    pub(crate) fn window(&self) -> u64 {
        u64::from(self.window_bytes) / 16
    }

    /// Digest of what all members share (FNV-1a, folded).
    pub fn digest(&self) -> u16 {
        let names = self.members.iter().flat_map(|name| name.bytes().chain([0]));
        let window = self.window_bytes.to_le_bytes().into_iter();
        let is_fixed = [u8::from(self.suspect_after_ns == 0)];
        let shared = names.chain(window).chain(self.payload_bytes.to_le_bytes()).chain(is_fixed);
        let hash = shared
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        (hash ^ (hash >> 16)) as u16
    }
}
