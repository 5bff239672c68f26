//! What a running generator can be asked and told: its rate, and how far it has come.

use super::Generator;
use super::pace::MAX_RATE_PPS;
use picnic_core::command::{Command, CommandEntry, CommandError, Order};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// THE LIST.
pub(super) const COMMANDS: &[CommandEntry] =
    &[CommandEntry::of::<Get>(), CommandEntry::of::<Set>()];

/// The arguments of `generator.get`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Get {}

/// The arguments of `generator.set`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Set {
    /// The new rate in packets per second, 1 to 1000000000.
    rate_pps: u64,
}

/// The result of both.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
struct Progress {
    /// Packets per second (before the change, for `set`); 0: as fast as the card takes them.
    rate_pps: u64,
    /// Packets still to be offered; null: unlimited.
    remaining: Option<u64>,
}

/// Asks, or changes the rate.
struct Exchange {
    new: Option<u64>,
    old: Progress,
    is_done: bool,
}

impl Order for Exchange {
    type Target = Generator;

    fn apply(&mut self, generator: &mut Generator, now: Time) -> bool {
        self.old = Progress {
            rate_pps: generator.pace.as_ref().map_or(0, |paced| paced.rate()),
            remaining: Some(generator.remaining).filter(|&remaining| remaining != u64::MAX),
        };
        // Whether the card may let it wait was settled when it began.
        self.is_done = self.new.is_none_or(|new| (new == 0) == (self.old.rate_pps == 0));
        if let (true, Some(rate), Some(paced)) = (self.is_done, self.new, &mut generator.pace) {
            paced.restart(rate, now, generator.waiting);
        }
        self.is_done
    }
}

impl Command for Get {
    const NAME: &'static str = "get";
    const HELP: &'static str = "the rate in force, and packets still to come";
    type Order = Exchange;
    type Reply = Progress;

    fn prepare(self, _: &BuildContext) -> Result<Exchange, CommandError> {
        Ok(Exchange { new: None, old: Progress::default(), is_done: false })
    }

    fn reply(order: Exchange) -> Result<Progress, CommandError> {
        let Exchange { new: Some(new), old, is_done: false } = order else { return Ok(order.old) };
        let message = match old.rate_pps {
            0 => format!("found {new}, allowed is 0: it began without a rate"),
            _ => format!("found {new}, allowed is 1 to {MAX_RATE_PPS}: it began with a rate"),
        };
        Err(CommandError::argument("rate_pps", message))
    }
}

impl Command for Set {
    const NAME: &'static str = "set";
    const HELP: &'static str = "change the rate; the result has the one before";
    const EXAMPLE: &'static str = r#"{"rate_pps": 0}"#;
    type Order = Exchange;
    type Reply = Progress;

    fn prepare(self, _: &BuildContext) -> Result<Exchange, CommandError> {
        if self.rate_pps > MAX_RATE_PPS {
            let message = format!("found {}, allowed is 0 to {MAX_RATE_PPS}", self.rate_pps);
            return Err(CommandError::argument("rate_pps", message));
        }
        Ok(Exchange { new: Some(self.rate_pps), old: Progress::default(), is_done: false })
    }

    fn reply(order: Exchange) -> Result<Progress, CommandError> {
        Get::reply(order)
    }
}
