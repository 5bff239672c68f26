//! How moderation is written and read over the control socket: `moderation.*`.

use crate::protocol::{RpcError, invalid};
use picnic_core::ring::moderation::ModerationMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Microseconds that moderation may be asked for at most, as in a card file.
const MOST_USECS: u32 = 1_000_000;

/// What `moderation.set` changes: one of these, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModerationSet {
    /// When target cores are interrupted.
    pub mode: Option<ModerationMode>,
    /// Microseconds that targets poll on without packets before they wait for an interrupt.
    pub poll_usecs: Option<u32>,
    /// Microseconds that packets of the host may wait for others.
    pub tx_usecs: Option<u32>,
}

/// How moderation is written.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ModerationParams {
    /// "none", "static" or "adaptive"; as it is if left out of a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModerationName>,
    /// Microseconds: the delay, or the longest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_usecs: Option<u32>,
    /// Packets that may wait; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_frames: Option<u32>,
    /// Microseconds that targets poll on; as it is if left out of a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_usecs: Option<u32>,
    /// Microseconds that packets of the host may wait; as it is if left out of a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_usecs: Option<u32>,
}

/// A moderation's name.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ModerationName {
    /// An interrupt at each packet.
    None,
    /// After a time or a count.
    Static,
    /// By the packet rate.
    Adaptive,
}

impl ModerationParams {
    /// How these are written.
    pub fn of(mode: ModerationMode, poll_usecs: u32, tx_usecs: u32) -> Self {
        let (mode, rx_usecs, rx_frames) = match mode {
            ModerationMode::None => (ModerationName::None, None, None),
            ModerationMode::Static { usecs, frames } => {
                (ModerationName::Static, Some(usecs), Some(frames))
            }
            ModerationMode::Adaptive { max_usecs } => {
                (ModerationName::Adaptive, Some(max_usecs), None)
            }
        };
        ModerationParams {
            mode: Some(mode),
            rx_usecs,
            rx_frames,
            poll_usecs: Some(poll_usecs),
            tx_usecs: Some(tx_usecs),
        }
    }

    /// The change.
    ///
    /// # Errors
    /// What is wrong.
    pub fn change(self) -> Result<ModerationSet, RpcError> {
        let times = [
            ("rx_usecs", self.rx_usecs),
            ("poll_usecs", self.poll_usecs),
            ("tx_usecs", self.tx_usecs),
        ];
        for (name, found) in times {
            if let Some(usecs) = found
                && usecs > MOST_USECS
            {
                let message = format!("{name}: found {usecs}, allowed is 0 to {MOST_USECS}");
                return Err(invalid(message));
            }
        }
        let mode = self.mode.map(|name| self.mode(name)).transpose()?;
        if mode.is_none() {
            for (name, found) in [("rx_usecs", self.rx_usecs), ("rx_frames", self.rx_frames)] {
                if found.is_some() {
                    return Err(invalid(format!("mode: is missing, wanted with {name}")));
                }
            }
            if self.poll_usecs.is_none() && self.tx_usecs.is_none() {
                return Err(invalid("params: found none, allowed: mode, poll_usecs, tx_usecs"));
            }
        }
        Ok(ModerationSet { mode, poll_usecs: self.poll_usecs, tx_usecs: self.tx_usecs })
    }

    fn mode(self, mode: ModerationName) -> Result<ModerationMode, RpcError> {
        let wrong = |message: String| Err(invalid(message));
        let name = match mode {
            ModerationName::None => "none",
            ModerationName::Static => "static",
            ModerationName::Adaptive => "adaptive",
        };
        if mode == ModerationName::None && self.rx_usecs.is_some() {
            return wrong("rx_usecs: allowed with mode \"static\" or \"adaptive\" only".into());
        }
        if mode != ModerationName::Static && self.rx_frames.is_some() {
            return wrong(format!("rx_frames: found with \"{name}\", allowed with \"static\""));
        }
        let usecs = || {
            let missing = format!("rx_usecs: is missing, wanted with \"{name}\"");
            self.rx_usecs.ok_or_else(|| invalid(missing))
        };
        Ok(match mode {
            ModerationName::None => ModerationMode::None,
            ModerationName::Static => {
                ModerationMode::Static { usecs: usecs()?, frames: self.rx_frames.unwrap_or(0) }
            }
            ModerationName::Adaptive => ModerationMode::Adaptive { max_usecs: usecs()? },
        })
    }
}
