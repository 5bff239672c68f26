//! What a running app can be asked and told: what a packet costs, and what order it has seen.

use super::{App, AppCounters, MAX_COST_NS};
use picnic_core::command::{Command, CommandEntry, CommandError, Order};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// THE LIST.
pub(super) const COMMANDS: &[CommandEntry] =
    &[CommandEntry::of::<Get>(), CommandEntry::of::<Set>()];

/// The arguments of `app.get`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Get {}

/// The arguments of `app.set`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Set {
    /// The new nanoseconds of work per packet, 0 to 1000000000.
    cost_ns: u64,
}

/// The result of both. Counts are those of `verify_order`, all queues together.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
struct Seen {
    /// Nanoseconds of work per packet (before the change, for `set`).
    cost_ns: u64,
    /// Packets with a sequence number.
    numbered: u64,
    /// Packets that arrived after a later one of their flow, or twice.
    reordered: u64,
    /// Sequence numbers passed over.
    skipped: u64,
    /// Packets whose checksum is wrong.
    damaged: u64,
}

/// Asks, or changes the cost.
struct Exchange {
    new: Option<u64>,
    old: Seen,
}

impl Order for Exchange {
    type Target = App;

    fn apply(&mut self, app: &mut App, _now: Time) -> bool {
        let sum = |of: fn(&AppCounters) -> u64| app.counters.iter().map(of).sum();
        self.old = Seen {
            cost_ns: app.cost_ns.0.get(),
            numbered: sum(|counters| counters.numbered.get()),
            reordered: sum(|counters| counters.reordered.get()),
            skipped: sum(|counters| counters.skipped.get()),
            damaged: sum(|counters| counters.damaged.get()),
        };
        if let Some(new) = self.new {
            app.cost_ns.0.set(new);
        }
        true
    }
}

impl Command for Get {
    const NAME: &'static str = "get";
    const HELP: &'static str = "cost of a packet, and packet order as checked";
    type Order = Exchange;
    type Reply = Seen;

    fn prepare(self, _: &BuildContext) -> Result<Exchange, CommandError> {
        Ok(Exchange { new: None, old: Seen::default() })
    }

    fn reply(order: Exchange) -> Result<Seen, CommandError> {
        Ok(order.old)
    }
}

impl Command for Set {
    const NAME: &'static str = "set";
    const HELP: &'static str = "change the cost of a packet; the result has the state before";
    const EXAMPLE: &'static str = r#"{"cost_ns": 200}"#;
    type Order = Exchange;
    type Reply = Seen;

    fn prepare(self, _: &BuildContext) -> Result<Exchange, CommandError> {
        if self.cost_ns > MAX_COST_NS {
            let message = format!("found {}, allowed is 0 to {MAX_COST_NS}", self.cost_ns);
            return Err(CommandError::argument("cost_ns", message));
        }
        Ok(Exchange { new: Some(self.cost_ns), old: Seen::default() })
    }

    fn reply(order: Exchange) -> Result<Seen, CommandError> {
        Get::reply(order)
    }
}
