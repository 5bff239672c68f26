//! `picnic ctl filter` and `picnic ctl sciron`: the filters of a running card.

use super::tasks::reference;
use crate::control::Connection;
use crate::failure::Usage;
use crate::output::{self, Column, count};
use crate::registries::sections;
use clap::{Args, Subcommand};
use picnic_core::config::{Setting, keys_of};
use picnic_core::json::typed;
use picnic_filter::config::Keys;
use picnic_filter::{Filters, Place};
use picnic_sciron::{GROUP, Installation, Rules, Sides};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic ctl filter                       all filters with their counters
  picnic ctl filter add name=no-ping protocol=icmp action=drop
  picnic ctl filter add name=web protocol=tcp destination_ports=80-443 action=steer queue=1
  picnic ctl filter add start=12 'values=[\"0806\"]' action=drop place=driver
  picnic ctl filter change web action=count
  picnic ctl filter remove 3
  picnic ctl filter reload my.toml        replace groups by the file's [[filter]] sections

FILTER is a number, or a name if only one filter has it. Keys are those of [[filter]] in a card
file: picnic ctl filter keys")]
pub(crate) struct FilterArgs {
    #[command(subcommand)]
    command: Option<FilterCommand>,
}

#[derive(Debug, Subcommand)]
enum FilterCommand {
    /// All filters, or those of a group (the default)
    List {
        /// The group
        #[arg(long)]
        group: Option<String>,
    },
    /// One filter
    Show {
        /// Its number or name
        filter: String,
    },
    /// Add a filter
    Add {
        /// Its keys
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
    },
    /// Change some keys of a filter
    Change {
        /// Its number or name
        filter: String,
        /// The keys to change; KEY= removes a key
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
    },
    /// Remove a filter
    Remove {
        /// Its number or name
        filter: String,
    },
    /// Replace the filters of some groups by the [[filter]] sections of a card file
    Reload {
        /// The card file
        file: PathBuf,
        /// Further groups to empty
        #[arg(long)]
        group: Vec<String>,
    },
    /// The keys of a filter
    Keys,
}

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
    /// Replace the rules by those of a file, without a gap
    Reload {
        /// The file of rules
        file: PathBuf,
        /// Where to filter: nic or driver [default: as now, else nic]
        #[arg(long, value_parser = word::<Place>)]
        place: Option<Place>,
        /// Which packets: rx, tx or both [default: as now, else rx]
        #[arg(long, value_parser = word::<Sides>)]
        direction: Option<Sides>,
    },
}

/// A value by the word that card files have for it.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(Value::String(text.into())).map_err(|error| error.to_string())
}

/// A call that a command makes, and how its result is told.
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) params: Value,
    pub(crate) text: fn(&Value) -> String,
}

/// What `ctl filter` calls; none if all is said without the card.
pub(crate) fn filter_call(
    args: &FilterArgs,
    connect: impl FnOnce() -> anyhow::Result<Connection>,
    json: bool,
) -> anyhow::Result<Option<Call>> {
    let call = |method, params, text| Ok(Some(Call { method, params, text }));
    match &args.command {
        None => call("filter.list", json!({}), list),
        Some(FilterCommand::List { group }) => call("filter.list", json!({ "group": group }), list),
        Some(FilterCommand::Show { filter }) => {
            call("filter.show", json!({ "id": reference(filter) }), one)
        }
        Some(FilterCommand::Remove { filter }) => {
            call("filter.remove", json!({ "id": reference(filter) }), removed)
        }
        Some(FilterCommand::Add { keys }) => {
            let keys = changed(Map::new(), keys)?;
            call("filter.add", json!({ "keys": keys }), one)
        }
        Some(FilterCommand::Change { filter, keys }) => {
            let mut shown = connect()?.call("filter.show", json!({ "id": reference(filter) }))?;
            // Its name may be one of the keys that change.
            let id = shown["id"].clone();
            let Some(fields) = shown.as_object_mut() else { return Ok(None) };
            for counted in
                ["id", "packets", "bytes", "short_packets", "unreadable_packets", "broken"]
            {
                fields.remove(counted);
            }
            let keys = changed(std::mem::take(fields), keys)?;
            call("filter.change", json!({ "id": id, "keys": keys }), one)
        }
        Some(FilterCommand::Reload { file, group }) => {
            let card = sections().load(file)?;
            // Wrong filters are told with their lines, before the card is asked. What it has
            // of queues it knows itself.
            let all = Filters::new(u16::MAX);
            picnic_filter::config::add(&all, &card)?;
            let filters: Vec<_> =
                all.list().iter().map(|listing| Keys::of(&listing.filter)).collect();
            let mut groups = group.clone();
            groups.extend(filters.iter().map(|keys| keys.group.clone()));
            call("filter.reload", json!({ "groups": groups, "filters": filters }), reloaded)
        }
        Some(FilterCommand::Keys) => {
            let keys = keys_of::<Keys>();
            if json {
                output::print_json(&keys)?;
            } else {
                let columns = [Column::Text("key"), Column::Text("type"), Column::Text("meaning")];
                let rows = keys.into_iter().map(|key| vec![key.name, key.r#type, key.help]);
                output::print(&output::fitting_table(&columns, rows))?;
            }
            Ok(None)
        }
    }
}

/// What `ctl sciron` calls.
pub(crate) fn sciron_call(
    args: &ScironArgs,
    connect: impl FnOnce() -> anyhow::Result<Connection>,
) -> anyhow::Result<Call> {
    let Some(ScironCommand::Reload { file, place, direction }) = &args.command else {
        return Ok(Call { method: "filter.list", params: json!({ "group": GROUP }), text: rules });
    };
    let rules = Rules::load(file).map_err(|faults| Usage(faults.to_string()))?;
    let now = connect()?.call("filter.list", json!({ "group": GROUP }))?;
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
    Ok(Call { method: "filter.reload", params, text: reloaded })
}

/// Keys changed by `KEY=VALUE` words; one without a value is left out.
fn changed(mut keys: Map<String, Value>, words: &[String]) -> anyhow::Result<Map<String, Value>> {
    let known = keys_of::<Keys>();
    for word in words {
        let setting = Setting::parse(word).map_err(|wrong| Usage(format!("{word}: {wrong}")))?;
        let (key, value) = setting.json(&known);
        keys.insert(key, if value == "" { Value::Null } else { value });
    }
    // What is wrong with a value is told here, as of the command line.
    let parsed: Keys =
        typed(&Value::Object(keys.clone())).map_err(|wrong| Usage(wrong.to_string()))?;
    parsed.filter().map_err(|error| Usage(error.to_string()))?;
    keys.retain(|_, value| !value.is_null());
    Ok(keys)
}

fn filters_of(result: &Value) -> impl Iterator<Item = &Value> {
    result["filters"].as_array().into_iter().flatten()
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text_of).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// What a filter looks at, in words.
fn matching(filter: &Value) -> String {
    let names = [
        ("protocol", "protocol"),
        ("source", "from"),
        ("source_ports", "port"),
        ("destination", "to"),
        ("destination_ports", "port"),
        ("base", "bytes of"),
        ("start", "at"),
        ("mask", "mask"),
        ("values", "values"),
    ];
    let mut words: Vec<_> = names
        .iter()
        .filter(|(key, _)| !filter[key].is_null())
        .map(|(key, name)| format!("{name} {}", text_of(&filter[key])))
        .collect();
    if filter["predicate"] == true {
        words.push("predicate".into());
    }
    if words.is_empty() { "every packet".into() } else { words.join(" ") }
}

fn action(filter: &Value) -> String {
    let argument = [&filter["queue"], &filter["mark"]].into_iter().find(|value| !value.is_null());
    let broken = if filter["broken"] == true { " (broken)" } else { "" };
    match argument {
        Some(value) => format!("{} {value}{broken}", text_of(&filter["action"])),
        None => format!("{}{broken}", text_of(&filter["action"])),
    }
}

fn number(value: &Value) -> String {
    count(value.as_u64().unwrap_or(0))
}

fn list(result: &Value) -> String {
    let rows: Vec<_> = filters_of(result)
        .map(|filter| {
            vec![
                text_of(&filter["id"]),
                text_of(&filter["name"]),
                format!("{} {}", text_of(&filter["direction"]), text_of(&filter["place"])),
                text_of(&filter["group"]),
                text_of(&filter["priority"]),
                matching(filter),
                action(filter),
                number(&filter["packets"]),
                number(&filter["bytes"]),
                number(&filter["short_packets"]),
                number(&filter["unreadable_packets"]),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no filters\n".into();
    }
    let columns = [
        Column::Number("id"),
        Column::Text("name"),
        Column::Text("where"),
        Column::Text("group"),
        Column::Number("priority"),
        Column::Text("matches"),
        Column::Text("action"),
        Column::Number("packets"),
        Column::Number("bytes"),
        Column::Number("short"),
        Column::Number("unreadable"),
    ];
    output::narrow_table(
        &columns,
        &["unreadable", "short", "bytes", "group", "priority", "where"],
        rows,
    )
}

fn one(filter: &Value) -> String {
    list(&json!({ "filters": [filter] }))
}

fn removed(filter: &Value) -> String {
    format!("removed\n{}", one(filter))
}

fn reloaded(result: &Value) -> String {
    let count = |key: &str| number(&result[key]);
    format!("{} kept, {} added, {} removed\n", count("kept"), count("added"), count("removed"))
}

/// SCIRON's filters, as the rules that they are.
fn rules(result: &Value) -> String {
    let field = |filter: &Value, key: &str| match text_of(&filter[key]) {
        text if text.is_empty() => "any".to_owned(),
        text => text,
    };
    let rows: Vec<_> = filters_of(result)
        .map(|filter| {
            let is_default = filter["name"] == "default";
            let line = if is_default { "default".into() } else { text_of(&filter["priority"]) };
            let mut row = vec![
                format!("{} {}", text_of(&filter["direction"]), text_of(&filter["place"])),
                line,
            ];
            let keys = ["protocol", "source", "destination", "source_ports", "destination_ports"];
            row.extend(keys.map(|key| field(filter, key)));
            row.extend([
                text_of(&filter["action"]),
                number(&filter["packets"]),
                number(&filter["bytes"]),
                number(&filter["unreadable_packets"]),
            ]);
            row
        })
        .collect();
    if rows.is_empty() {
        return "no rules\n".into();
    }
    let columns = [
        Column::Text("where"),
        Column::Number("line"),
        Column::Text("protocol"),
        Column::Text("source"),
        Column::Text("destination"),
        Column::Text("source ports"),
        Column::Text("destination ports"),
        Column::Text("action"),
        Column::Number("packets"),
        Column::Number("bytes"),
        Column::Number("unreadable"),
    ];
    output::narrow_table(&columns, &["unreadable", "bytes", "where"], rows)
}
