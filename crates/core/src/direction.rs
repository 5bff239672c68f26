//! Which way packets go: received from the wire, or transmitted to it.

use crate::ledger::Stage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A direction, as seen from the card.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Wire to target.
    #[default]
    Rx,
    /// Target to wire.
    Tx,
}

impl Direction {
    /// Both, in the order that lists have them.
    pub const ALL: [Direction; 2] = [Direction::Rx, Direction::Tx];

    /// Its name in card files.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Rx => "rx",
            Direction::Tx => "tx",
        }
    }

    /// That of packets at a stage; on the target core, of those that the host is given.
    pub const fn at(stage: Stage) -> Self {
        match stage {
            Stage::Tx | Stage::WireTx => Direction::Tx,
            _ => Direction::Rx,
        }
    }

    /// The stage that a chain of this direction drops at.
    pub fn stage(self) -> Stage {
        match self {
            Direction::Rx => Stage::Rx,
            Direction::Tx => Stage::Tx,
        }
    }
}
