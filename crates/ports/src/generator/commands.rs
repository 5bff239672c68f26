//! Commands of a running generator: its rate and its progress.

use super::Generator;
use super::pace::MAX_RATE_PPS;
use picnic_core::command::{CommandEntry, CommandError, ComponentChange, Get, Inspect, Set};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The list of commands.
pub(super) const COMMANDS: &[CommandEntry] =
    &[CommandEntry::of::<Get<Generator>>(), CommandEntry::of::<Set<NewRate>>()];

/// State of a generator.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Progress {
    /// Packets per second (before the change, for `set`); 0: as fast as the card takes them.
    pub rate_pps: u64,
    /// Packets still to be offered; null: unlimited.
    pub remaining: Option<u64>,
}

impl Inspect for Generator {
    type State = Progress;
    const HELP: &'static str = "current rate and remaining packets";

    fn inspect(&self) -> Progress {
        Progress {
            rate_pps: self.pace.as_ref().map_or(0, |paced| paced.rate()),
            remaining: Some(self.remaining).filter(|&remaining| remaining != u64::MAX),
        }
    }
}

/// The arguments of `generator.set`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewRate {
    /// The new rate in packets per second.
    #[schemars(range(max = MAX_RATE_PPS))]
    rate_pps: u64,
}

impl ComponentChange for NewRate {
    const HELP: &'static str = "change the rate; the result has the previous one";
    const EXAMPLE: &'static str = r#"{"rate_pps": 0}"#;
    type Of = Generator;
    type New = u64;

    fn prepare(self, _: &BuildContext) -> Result<u64, CommandError> {
        Ok(self.rate_pps)
    }

    fn apply(rate: &mut u64, generator: &mut Generator, now: Time) -> bool {
        // Whether the card may let it wait was settled when it began.
        match &mut generator.pace {
            Some(paced) if *rate != 0 => {
                paced.restart(*rate, now, generator.waiting);
                true
            }
            pace => pace.is_none() && *rate == 0,
        }
    }

    fn refusal(rate: u64, before: Progress) -> CommandError {
        let message = match before.rate_pps {
            0 => format!("found {rate}, allowed: 0, since it started without a rate"),
            _ => {
                format!("found {rate}, allowed: 1 to {MAX_RATE_PPS}, since it started with a rate")
            }
        };
        CommandError::argument("rate_pps", message)
    }
}
