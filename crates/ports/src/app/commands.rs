//! Commands of a running app: the cost of a packet, and the observed order.

use super::{App, AppCounters, MAX_COST_NS};
use picnic_core::command::{CommandEntry, CommandError, ComponentChange, Get, Inspect, Set};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The list of commands.
pub(super) const COMMANDS: &[CommandEntry] =
    &[CommandEntry::of::<Get<App>>(), CommandEntry::of::<Set<NewCost>>()];

/// State of an app. The counters belong to `verify_order` and cover all queues.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct AppState {
    /// Nanoseconds of work per packet (before the change, for `set`).
    pub cost_ns: u64,
    /// Packets with a sequence number.
    pub numbered: u64,
    /// Packets that arrived after a later one of their flow, or twice.
    pub reordered: u64,
    /// Sequence numbers skipped.
    pub skipped: u64,
    /// Packets whose checksum is wrong.
    pub damaged: u64,
}

impl Inspect for App {
    type State = AppState;
    const HELP: &'static str = "cost of a packet, and result of the order check";

    fn inspect(&self) -> AppState {
        let sum = |of: fn(&AppCounters) -> u64| self.counters.iter().map(of).sum();
        AppState {
            cost_ns: self.cost_ns.0.get(),
            numbered: sum(|counters| counters.numbered.get()),
            reordered: sum(|counters| counters.reordered.get()),
            skipped: sum(|counters| counters.skipped.get()),
            damaged: sum(|counters| counters.damaged.get()),
        }
    }
}

/// The arguments of `app.set`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewCost {
    /// The new nanoseconds of work per packet.
    #[schemars(range(max = MAX_COST_NS))]
    cost_ns: u64,
}

impl ComponentChange for NewCost {
    const HELP: &'static str = "change the cost of a packet; the result has the state before";
    const EXAMPLE: &'static str = r#"{"cost_ns": 200}"#;
    type Of = App;
    type New = u64;

    fn prepare(self, _: &BuildContext) -> Result<u64, CommandError> {
        Ok(self.cost_ns)
    }

    fn apply(cost_ns: &mut u64, app: &mut App, _now: Time) -> bool {
        app.cost_ns.0.set(*cost_ns);
        true
    }
}
