//! Commands of a running replay: show its progress, and restart the pass.

use super::PcapPort;
use picnic_core::command::{CommandEntry, CommandError, ComponentChange, Get, Inspect, Set};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The list of commands.
pub(super) const COMMANDS: &[CommandEntry] =
    &[CommandEntry::of::<Get<PcapPort>>(), CommandEntry::of::<Set<Rewind>>()];

/// Progress of a replay.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Progress {
    /// Packets replayed in this pass (before the rewind, for `rewind`).
    pub replayed: u64,
    /// Packets in the file.
    pub packets: u64,
    /// Passes after this one; null: unlimited.
    pub passes_left: Option<u64>,
}

impl Inspect for PcapPort {
    type State = Progress;
    const HELP: &'static str = "progress of the replay";

    fn inspect(&self) -> Progress {
        Progress {
            replayed: self.next as u64,
            packets: self.file.len() as u64,
            passes_left: self.passes_left,
        }
    }
}

/// The arguments of `pcap.rewind`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rewind {}

impl ComponentChange for Rewind {
    const NAME: &'static str = "rewind";
    const HELP: &'static str = "restart this pass; the result has the progress before";
    type Of = PcapPort;
    type New = ();

    fn prepare(self, _: &BuildContext) -> Result<(), CommandError> {
        Ok(())
    }

    fn apply((): &mut (), port: &mut PcapPort, _now: Time) -> bool {
        // Recorded times count from the next packet on.
        (port.next, port.start, port.passed_ns) = (0, None, 0);
        true
    }
}
