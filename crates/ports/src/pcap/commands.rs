//! What a running replay can be asked and told: how far it has come, and to begin again.

use super::PcapPort;
use picnic_core::command::{Command, CommandEntry, CommandError, Order};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// THE LIST.
pub(super) const COMMANDS: &[CommandEntry] =
    &[CommandEntry::of::<Get>(), CommandEntry::of::<Rewind>()];

/// The arguments of `pcap.get`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Get {}

/// The arguments of `pcap.rewind`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rewind {}

/// The result of both.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
struct Progress {
    /// Packets of this pass handed over (before the rewind, for `rewind`).
    replayed: u64,
    /// Packets of the file.
    packets: u64,
    /// Passes after this one; null: unlimited.
    passes_left: Option<u64>,
}

/// Asks, or begins the pass again.
struct Look {
    rewinds: bool,
    found: Progress,
}

impl Order for Look {
    type Target = PcapPort;

    fn apply(&mut self, port: &mut PcapPort, _now: Time) -> bool {
        self.found = Progress {
            replayed: port.next as u64,
            packets: port.file.len() as u64,
            passes_left: port.passes_left,
        };
        if self.rewinds {
            // Recorded times count from the next packet on.
            (port.next, port.start, port.passed_ns) = (0, None, 0);
        }
        true
    }
}

impl Command for Get {
    const NAME: &'static str = "get";
    const HELP: &'static str = "progress of the replay";
    type Order = Look;
    type Reply = Progress;

    fn prepare(self, _: &BuildContext) -> Result<Look, CommandError> {
        Ok(Look { rewinds: false, found: Progress::default() })
    }

    fn reply(order: Look) -> Result<Progress, CommandError> {
        Ok(order.found)
    }
}

impl Command for Rewind {
    const NAME: &'static str = "rewind";
    const HELP: &'static str = "restart this pass; the result has the progress before";
    type Order = Look;
    type Reply = Progress;

    fn prepare(self, _: &BuildContext) -> Result<Look, CommandError> {
        Ok(Look { rewinds: true, found: Progress::default() })
    }

    fn reply(order: Look) -> Result<Progress, CommandError> {
        Get::reply(order)
    }
}
