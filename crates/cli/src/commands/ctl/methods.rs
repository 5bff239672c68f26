//! `picnic ctl filter ...` and `picnic ctl tasks ...`: made from the card's methods.
//!
//! Each method of a group is a subcommand; `list` is the default. Mandatory parameters are
//! positional, the others are options, and `keys` are KEY=VALUE words.

use crate::commands::keyed::word;
use crate::commands::later::later;
use crate::control::{CardChoice, Connection};
use crate::failure::Usage;
use crate::output::{self, Column, time};
use crate::registries::{registries, sections};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand};
use picnic_control::listing::text;
use picnic_control::request::{Method, methods};
use picnic_core::command::Argument;
use picnic_core::config::{Setting, keys_of};
use picnic_core::json::typed;
use picnic_filter::Filters;
use picnic_filter::config::Keys;
use picnic_os::keys::TaskSection;
use serde_json::{Map, Value, json};

/// A group of methods that forms a command.
struct Group {
    word: &'static str,
    /// Prefix of its methods' names.
    methods: &'static str,
    about: &'static str,
    examples: &'static str,
}

const GROUPS: [Group; 2] = [
    Group {
        word: "filter",
        methods: "filter",
        about: "Filters: list, show, add, change, remove, reload",
        examples: "Examples:
  picnic ctl filter                       all filters with their counters
  picnic ctl filter add name=no-ping protocol=icmp action=drop
  picnic ctl filter add name=web protocol=tcp destination_ports=80-443 action=steer queue=1
  picnic ctl filter add start=12 'values=[\"0806\"]' action=drop place=driver
  picnic ctl filter change web action=count
  picnic ctl filter remove 3
  picnic ctl filter reload my.toml        replace groups by the file's [[filter]] sections

FILTER is a number, or a name if only one filter has it. Keys are those of [[filter]] in a card
file: picnic ctl filter keys",
    },
    Group {
        word: "tasks",
        methods: "task",
        about: "Tasks of NIC OS: list, show, create, kill, suspend, resume, set-priority",
        examples: "Examples:
  picnic ctl tasks                        all tasks with their counters
  picnic ctl tasks create heartbeat period_us=1000 wire=0
  picnic ctl tasks create busy name=load segments_ns=[20000,50000] priority=3
  picnic ctl tasks show load              one task with its response times and jitter
  picnic ctl tasks suspend heartbeat
  picnic ctl tasks resume heartbeat
  picnic ctl tasks kill 2

TASK is a number, or a name if only one task has it. `picnic tasks` lists the kinds and their keys.
A task that the card cannot schedule is refused, with the arithmetic.",
    },
];

impl Group {
    /// Its methods, with their subcommands.
    fn methods(&self) -> impl Iterator<Item = (&'static str, &'static Method)> {
        let named = methods().iter().filter_map(|method| {
            let (group, name) = method.name.split_once('.')?;
            Some((group, word(name), method))
        });
        named.filter(|(group, ..)| *group == self.methods).map(|(_, name, method)| (name, method))
    }

    fn command(&self) -> Command {
        // Clap describes a command's own arguments on use: see `later`.
        let command = Command::new(self.word).about(self.about).after_help(self.examples);
        later(command, |command| {
            let group = GROUPS.iter().find(|group| group.word == command.get_name());
            group
                .map(|group| group.subcommands())
                .into_iter()
                .flatten()
                .fold(command, Command::subcommand)
        })
    }

    fn subcommands(&self) -> Vec<Command> {
        let of_method = |(name, method): (&'static str, &Method)| {
            let help = match &*method.name {
                // The card gets all keys.
                "filter.change" => "Change some keys of a filter; KEY= removes a key".to_owned(),
                _ => plain(&method.help),
            };
            let help = if name == "list" { format!("{help} (the default)") } else { help };
            Command::new(name).about(help).args(method.params.iter().map(argument))
        };
        let keys = Command::new(KEYS).about("The keys of a filter");
        let keys = (self.methods == "filter").then_some(keys);
        self.methods().map(of_method).chain(keys).collect()
    }
}

/// The subcommand that lists the keys of a filter.
const KEYS: &str = "keys";

/// Help text in the form used for commands.
fn plain(help: &str) -> String {
    help.trim_end_matches('.').replace('`', "")
}

/// A parameter of a method as an argument.
fn argument(Argument { key, required, .. }: &Argument) -> Arg {
    let shown = if key.name == "id" { "FILTER".to_owned() } else { key.name.to_uppercase() };
    let shown: &'static str = shown.leak();
    let arg = Arg::new(word(&key.name)).help(plain(&key.help)).value_name(shown);
    match &*key.name {
        "keys" => {
            arg.value_name("KEY=VALUE").num_args(1..).action(ArgAction::Append).required(*required)
        }
        // They come from a card file.
        "filters" => Arg::new("file")
            .value_name("FILE")
            .required(true)
            .help("A card file; its [[filter]] sections are used"),
        "groups" => arg.long("group").value_name("GROUP").action(ArgAction::Append),
        _ if *required => arg.required(true),
        name => arg.long(word(name)),
    }
}

/// A call of a method.
#[derive(Clone, Debug)]
pub(crate) struct MethodCall {
    /// None: list the keys of a filter.
    method: Option<&'static Method>,
    params: Map<String, Value>,
    /// KEY=VALUE words.
    words: Vec<String>,
    file: Option<String>,
}

impl MethodCall {
    pub(crate) fn run(&self, choice: &CardChoice, json: bool) -> anyhow::Result<()> {
        let Some(method) = self.method else { return filter_keys(json) };
        let params = self.params(method, || choice.connect())?;
        let result = choice.connect()?.call(&method.name, Value::Object(params))?;
        match json {
            true => output::print_json(&result),
            false => output::print(&in_words(method, &result)),
        }
    }

    /// The parameters; some need a query to the card first.
    fn params(
        &self,
        method: &Method,
        connect: impl FnOnce() -> anyhow::Result<Connection>,
    ) -> anyhow::Result<Map<String, Value>> {
        let mut params = self.params.clone();
        match &*method.name {
            "filter.add" => {
                params.insert("keys".into(), changed(Map::new(), &self.words)?.into());
            }
            "filter.change" => {
                let mut shown = connect()?.call("filter.show", json!({ "id": params["id"] }))?;
                // Its name may be among the changed keys.
                params.insert("id".into(), shown["id"].clone());
                let mut keys = shown.as_object_mut().map(std::mem::take).unwrap_or_default();
                let known = keys_of::<Keys>();
                keys.retain(|name, _| known.iter().any(|key| key.name == *name));
                params.insert("keys".into(), changed(keys, &self.words)?.into());
            }
            "filter.reload" => {
                let card = sections().load(self.file.as_deref().unwrap_or_default().as_ref())?;
                // Errors with file and line come before any call to the card. Only the card knows
                // its number of queues.
                let all = Filters::new(u16::MAX);
                picnic_filter::config::add(&all, &card)?;
                let listed = all.list();
                let filters: Vec<_> =
                    listed.iter().map(|listing| Keys::of(&listing.filter)).collect();
                let mut groups: Vec<_> = self.words.iter().map(String::as_str).collect();
                groups.extend(filters.iter().map(|keys| &*keys.group));
                params.insert("groups".into(), groups.into());
                params.insert("filters".into(), json!(filters));
            }
            "task.create" => {
                let kind = params["task"].as_str().unwrap_or_default();
                let keys = keys_from(kind, &self.words)?;
                params.insert("keys".into(), keys.into());
            }
            _ => {}
        }
        Ok(params)
    }
}

/// A word of the command line as a parameter: a number unless it is a name.
fn value(text: &str, kind: &str) -> Value {
    let number = text.parse::<u64>().ok().filter(|_| !kind.starts_with("string"));
    number.map_or_else(|| text.into(), Value::from)
}

fn call_of(group: &Group, matches: &ArgMatches) -> Option<MethodCall> {
    let (name, given) = matches.subcommand().unwrap_or(("list", matches));
    let method = group.methods().find(|(word, _)| *word == name).map(|(_, method)| method);
    if method.is_none() && name != KEYS {
        return None;
    }
    let (mut params, mut words) = (Map::new(), Vec::new());
    for Argument { key, .. } in method.map_or(&[][..], |method| &method.params) {
        let id = word(&key.name);
        match &*key.name {
            "keys" | "groups" => {
                let all = given.try_get_many::<String>(id).ok().flatten();
                words = all.unwrap_or_default().cloned().collect();
            }
            name => {
                if let Ok(Some(text)) = given.try_get_one::<String>(id) {
                    params.insert(name.into(), value(text, &key.r#type));
                }
            }
        }
    }
    let file = given.try_get_one::<String>("file").ok().flatten().cloned();
    Some(MethodCall { method, params, words, file })
}

impl FromArgMatches for MethodCall {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let call = matches.subcommand().and_then(|(name, given)| {
            call_of(GROUPS.iter().find(|group| group.word == name)?, given)
        });
        call.ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingSubcommand))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for MethodCall {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(GROUPS.iter().map(Group::command))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        GROUPS.iter().any(|group| group.word == name)
    }
}

/// Applies `KEY=VALUE` words; an empty value removes the key.
fn changed(mut keys: Map<String, Value>, words: &[String]) -> anyhow::Result<Map<String, Value>> {
    let known = keys_of::<Keys>();
    for word in words {
        let setting = Setting::parse(word).map_err(|wrong| Usage(format!("{word}: {wrong}")))?;
        let (key, value) = setting.json(&known);
        keys.insert(key, if value == "" { Value::Null } else { value });
    }
    // A wrong value is an error of the command line.
    let parsed: Keys =
        typed(&Value::Object(keys.clone())).map_err(|wrong| Usage(wrong.to_string()))?;
    parsed.filter().map_err(|error| Usage(error.to_string()))?;
    keys.retain(|_, value| !value.is_null());
    Ok(keys)
}

/// Keys from `KEY=VALUE` words. The card checks them, since it may know other kinds.
fn keys_from(kind: &str, words: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut known = keys_of::<TaskSection>();
    known.extend(
        registries().tasks.iter().filter(|entry| entry.name == kind).flat_map(|entry| entry.keys()),
    );
    let mut keys = Map::new();
    for word in words {
        let setting = Setting::parse(word).map_err(|wrong| Usage(format!("{word}: {wrong}")))?;
        let (key, value) = setting.json(&known);
        if keys.insert(key.clone(), value).is_some() {
            return Err(Usage(format!("found key \"{key}\" twice, allowed: once")).into());
        }
    }
    Ok(keys)
}

/// Prints the keys of a filter.
fn filter_keys(json: bool) -> anyhow::Result<()> {
    let keys = keys_of::<Keys>();
    if json {
        return output::print_json(&keys);
    }
    let columns = [Column::Text("key"), Column::Text("type"), Column::Text("meaning")];
    let rows = keys.into_iter().map(|key| vec![key.name, key.r#type, key.help]);
    output::print(&output::fitting_table(&columns, rows))
}

/// A result as text.
fn in_words(method: &Method, result: &Value) -> String {
    if method.name == "filter.reload" {
        return reloaded(result);
    }
    let table = method.listing().map(|listing| output::listing(listing, result));
    let table = table.unwrap_or_default();
    match &*method.name {
        "filter.remove" => format!("removed\n{table}"),
        "task.create" => format!("created task {}\n{table}", result["task"]),
        "task.show" => format!("{table}\n{}", times(result)),
        _ => table,
    }
}

/// How many filters were kept, added and removed.
pub(crate) fn reloaded(result: &Value) -> String {
    let count = |key: &str| output::count(result[key].as_u64().unwrap_or(0));
    format!("{} kept, {} added, {} removed\n", count("kept"), count("added"), count("removed"))
}

/// Response times and jitter of a task.
fn times(task: &Value) -> String {
    let rows = [("response", "response_ns"), ("jitter", "jitter_ns")].map(|(name, key)| {
        let times = ["mean_ns", "stddev_ns", "p50_ns", "p99_ns", "max_ns"];
        let times = times.map(|figure| time(&task[key][figure]));
        [vec![name.to_owned()], times.to_vec()].concat()
    });
    let columns = [
        Column::Text("time"),
        Column::Number("mean"),
        Column::Number("deviation"),
        Column::Number("p50"),
        Column::Number("p99"),
        Column::Number("max"),
    ];
    let from = text(&task["bounds_from"]);
    format!("{}\nbounds from: {from}\n", output::table(&columns, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(words: &[&str]) -> MethodCall {
        let command = MethodCall::augment_subcommands(Command::new("ctl"));
        let matches = command.try_get_matches_from([&["ctl"], words].concat()).unwrap();
        MethodCall::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn methods_are_called_as_they_are_declared() {
        for (words, method, params, rest) in [
            (&["filter"][..], "filter.list", json!({}), &[][..]),
            (&["filter", "list", "--group", "3"], "filter.list", json!({ "group": "3" }), &[]),
            (&["filter", "show", "3"], "filter.show", json!({ "id": 3 }), &[]),
            (&["filter", "remove", "web"], "filter.remove", json!({ "id": "web" }), &[]),
            (&["filter", "add", "a=1", "b=2"], "filter.add", json!({}), &["a=1", "b=2"]),
            (&["filter", "change", "web", "a="], "filter.change", json!({ "id": "web" }), &["a="]),
            (
                &["filter", "reload", "my.toml", "--group", "x", "--group", "y"],
                "filter.reload",
                json!({}),
                &["x", "y"],
            ),
            (&["tasks"], "task.list", json!({}), &[]),
            (&["tasks", "create", "busy"], "task.create", json!({ "task": "busy" }), &[]),
            (
                &["tasks", "create", "busy", "a=1"],
                "task.create",
                json!({ "task": "busy" }),
                &["a=1"],
            ),
            (&["tasks", "kill", "2"], "task.kill", json!({ "task": 2 }), &[]),
            (
                &["tasks", "set-priority", "b-3", "5"],
                "task.set_priority",
                json!({ "task": "b-3", "priority": 5 }),
                &[],
            ),
        ] {
            let call = call(words);
            assert_eq!(call.method.unwrap().name, method, "{words:?}");
            assert_eq!(Value::Object(call.params), params, "{words:?}");
            assert_eq!(call.words, rest, "{words:?}");
        }
        assert_eq!(call(&["filter", "reload", "my.toml"]).file.as_deref(), Some("my.toml"));
        assert!(call(&["filter", "keys"]).method.is_none());
    }

    #[test]
    fn words_become_the_keys_of_a_section() {
        let words = ["period_us=1_000", "wait=true", "name=3", "wire=0"].map(str::to_owned);
        let keys = keys_from("heartbeat", &words).unwrap();
        assert_eq!(
            Value::Object(keys),
            json!({ "period_us": 1000, "wait": true, "name": "3", "wire": 0 })
        );
        let keys = keys_from("busy", &["segments_ns=[20_000, 5]".into()]).unwrap();
        assert_eq!(keys["segments_ns"], json!([20_000, 5]));
        let keys = keys_from("ping-drop", &["place=driver".into()]).unwrap();
        assert_eq!(keys["place"], "driver");
        for (words, message) in [
            (vec!["period_us"], "period_us: found no `=`, allowed: KEY=VALUE"),
            (vec!["wire=0", "wire=1"], "found key \"wire\" twice"),
        ] {
            let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
            let error = keys_from("heartbeat", &words).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
