//! `picnic ctl sciron`: SCIRON's rules on a running card.

use super::methods::reloaded;
use crate::control::CardChoice;
use crate::failure::Usage;
use crate::output;
use clap::{Args, Subcommand};
use picnic_control::listing::{Column, Form, Listing, count, made, text, words};
use picnic_filter::Place;
use picnic_filter::config::Keys;
use picnic_sciron::{GROUP, Installation, Rules, Sides};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic ctl sciron                       the rules with their counters
  picnic ctl sciron reload firewall.rules

Rules are checked by: picnic sciron check firewall.rules")]
pub(crate) struct ScironArgs {
    #[command(subcommand)]
    command: Option<ScironCommand>,
}

#[derive(Debug, Subcommand)]
enum ScironCommand {
    /// The rules with their counters (the default)
    Show,
    /// Replace all rules with the rules of a file, at once
    Reload {
        /// The rules file
        file: PathBuf,
        /// Place of the filters: nic or driver [default: unchanged, or nic]
        #[arg(long, value_parser = word::<Place>)]
        place: Option<Place>,
        /// Direction: rx, tx or both [default: unchanged, or rx]
        #[arg(long, value_parser = word::<Sides>)]
        direction: Option<Sides>,
    },
}

/// Parses a value by its word in card files.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(Value::String(text.into())).map_err(|error| error.to_string())
}

/// Shows the rules, or replaces them.
pub(super) fn run(args: &ScironArgs, choice: &CardChoice) -> anyhow::Result<(Value, String)> {
    let Some(ScironCommand::Reload { file, place, direction }) = &args.command else {
        let result = choice.connect()?.call("filter.list", json!({ "group": GROUP }))?;
        let text = output::listing(&RULES, &result);
        return Ok((result, text));
    };
    let rules = Rules::load(file).map_err(|faults| Usage(faults.to_string()))?;
    let mut card = choice.connect()?;
    let now = card.call("filter.list", json!({ "group": GROUP }))?;
    let installation = Installation {
        place: place.unwrap_or_else(|| {
            let is_driver = filters_of(&now).any(|filter| filter["place"] == "driver");
            if is_driver { Place::Driver } else { Place::Nic }
        }),
        sides: direction.unwrap_or_else(|| {
            let has = |side: &str| filters_of(&now).any(|filter| filter["direction"] == side);
            match (has("rx"), has("tx")) {
                (false, true) => Sides::Tx,
                (true, true) => Sides::Both,
                _ => Sides::Rx,
            }
        }),
    };
    let filters: Vec<_> = rules.filters(&installation).iter().map(Keys::of).collect();
    let params = json!({ "groups": [GROUP], "filters": filters });
    let result = card.call("filter.reload", params)?;
    let text = reloaded(&result);
    Ok((result, text))
}

fn filters_of(result: &Value) -> impl Iterator<Item = &Value> {
    result["filters"].as_array().into_iter().flatten()
}

/// A column for a rule's field.
const fn field(heading: &'static str, key: &'static str) -> Column {
    Column { form: Form::Words("any"), ..words(heading, key, 9) }
}

/// SCIRON's filters as rules.
const RULES: Listing = Listing {
    list: "filters",
    name: "rules",
    columns: &[
        made("where", |rule| format!("{} {}", text(&rule["direction"]), text(&rule["place"])), 3),
        Column {
            is_number: true,
            ..made(
                "line",
                |rule| match rule["name"] == "default" {
                    true => "default".into(),
                    false => text(&rule["priority"]),
                },
                9,
            )
        },
        field("protocol", "protocol"),
        field("source", "source"),
        field("destination", "destination"),
        field("source ports", "source_ports"),
        field("destination ports", "destination_ports"),
        words("action", "action", 9),
        count("packets", "packets", 9),
        count("bytes", "bytes", 2),
        count("unreadable", "unreadable_packets", 1),
    ],
};
