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
    /// Both, in the order of lists.
    pub const ALL: [Direction; 2] = [Direction::Rx, Direction::Tx];

    /// Its name in card files.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Rx => "rx",
            Direction::Tx => "tx",
        }
    }

    /// The direction of packets at a stage; for the target core, the direction to the host.
    pub const fn at(stage: Stage) -> Self {
        match stage {
            Stage::Tx | Stage::WireTx => Direction::Tx,
            _ => Direction::Rx,
        }
    }

    /// The stage at which a chain of this direction drops.
    pub fn stage(self) -> Stage {
        match self {
            Direction::Rx => Stage::Rx,
            Direction::Tx => Stage::Tx,
        }
    }
}
