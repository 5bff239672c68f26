//! `picnic ctl COMPONENT COMMAND ...`: made from the declarations of functions, ports, hosts,
//! schedulers and tasks.
//!
//! Each command is a subcommand, each argument an option. `get` is the default. `picnic ctl
//! COMPONENT ARGUMENT VALUE` is short for `set --ARGUMENT VALUE`.

use crate::commands::keyed::{about, valued, word};
use crate::control::CardChoice;
use crate::registries::registries;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use picnic_control::methods::components::{Kind, commanded};
use picnic_control::request::PLACE;
use picnic_core::command::{Argument, CommandEntry};
use picnic_core::direction::Direction;
use serde_json::{Map, Value};

/// A call of a component's command.
#[derive(Clone, Debug)]
pub(crate) struct ComponentCall {
    kind: Kind,
    name: &'static str,
    command: &'static CommandEntry,
    params: Map<String, Value>,
}

impl ComponentCall {
    /// The commands of components.
    pub(super) fn commands() -> impl Iterator<Item = Command> {
        components().map(command_of)
    }

    /// Whether this is a component with commands.
    pub(super) fn has(name: &str) -> bool {
        components().any(|(_, component, _)| component == name)
    }

    /// The call of a command, if it is one of a component.
    pub(super) fn of(name: &str, given: &ArgMatches) -> Option<Self> {
        call_of(components().find(|(_, component, _)| *component == name)?, given)
    }

    /// The method and its parameters.
    fn call(&self) -> (String, Value) {
        let method = format!("{}.{}", self.name, self.command.name);
        (method, Value::Object(self.params.clone()))
    }

    /// Calls it; the result, and that for people.
    pub(super) fn run(&self, choice: &CardChoice) -> anyhow::Result<(Value, String)> {
        let (method, params) = self.call();
        let result = choice.connect()?.call(&method, params)?;
        let text = self.text(&result);
        Ok((result, text))
    }

    /// The result as text.
    fn text(&self, result: &Value) -> String {
        let (name, position) = (self.name, &result["position"]);
        let place = match self.kind {
            Kind::Function => {
                format!("{name} at {}[{position}]", result["chain"].as_str().unwrap_or("rx"))
            }
            Kind::Wire => format!("{name} at wire[{position}]"),
            Kind::Task => format!("{name}, task {}", result["task"]),
            Kind::Attachment | Kind::Scheduler => name.to_owned(),
        };
        let mut reply = result.clone();
        if let Some(fields) = reply.as_object_mut() {
            fields.retain(|name, _| !PLACE.contains(&name.as_str()));
        }
        self.command.text(&reply, &place)
    }
}

/// A component with commands: kind, name, commands.
type Commanded = (Kind, &'static str, &'static [CommandEntry]);

fn components() -> impl Iterator<Item = Commanded> {
    commanded(&registries())
}

fn named(list: &'static [CommandEntry], name: &str) -> Option<&'static CommandEntry> {
    list.iter().find(|command| command.name == name)
}

/// An argument as an option.
pub(super) fn option(argument: &Argument) -> Arg {
    let name = word(&argument.key.name);
    let aliases = argument.aliases.iter().map(|alias| word(alias));
    valued(Arg::new(name).long(name).aliases(aliases.collect::<Vec<_>>()), &argument.key)
}

fn command_of((kind, name, list): Commanded) -> Command {
    let names: Vec<_> = list.iter().map(|command| command.name).collect();
    let mut whole = Command::new(name)
        .about(format!("A running {name}: {}", names.join(", ")))
        .subcommand_required(named(list, "get").is_none());
    if kind == Kind::Function {
        let chain = Arg::new("chain")
            .long("chain")
            .global(true)
            .default_value("rx")
            .value_parser(PossibleValuesParser::new(Direction::ALL.map(Direction::name)))
            .help("Its chain");
        whole = whole.arg(chain);
    }
    if let Kind::Function | Kind::Wire = kind {
        let place = if kind == Kind::Wire { "wire number" } else { "place in the chain" };
        let position = Arg::new("position")
            .long("position")
            .global(true)
            .value_parser(value_parser!(usize))
            .help(format!("Its {place}, from 0 [default: the first {name}]"));
        whole = whole.arg(position);
    }
    if kind == Kind::Task {
        let task = Arg::new("task")
            .long("task")
            .global(true)
            .value_name("TASK")
            .help(format!("Its number or name [default: the first {name}]"));
        whole = whole.arg(task);
    }
    for command in list {
        let arguments = command.arguments();
        let mut sub = Command::new(word(command.name))
            .about(about(command.help))
            .args(arguments.iter().map(|argument| option(argument).required(argument.required)));
        if command.name == "get" {
            sub = sub.about(about(&format!("{} (the default)", command.help))).alias("show");
        }
        whole = whole.subcommand(sub);
    }
    let Some(set) = named(list, "set") else { return whole };
    let arguments = set.arguments();
    for argument in arguments.iter().filter(|argument| named(list, &argument.key.name).is_none()) {
        let name = word(&argument.key.name);
        let others = arguments.iter().filter(|other| other.key.name != argument.key.name);
        let others = others.map(|other| option(other).required(other.required));
        // Other arguments may follow instead; without any, the card's error lists them.
        let is_alone = arguments.len() == 1;
        let sub = Command::new(name)
            .about(format!("Set {}", argument.key.name))
            .arg(valued(Arg::new(name), &argument.key).required(argument.required || is_alone))
            .args(others);
        whole = whole.subcommand(sub);
    }
    whole
}

/// A word of the command line as JSON: a word that does not parse as the expected kind stays text,
/// and the card's error has the allowed values. A list is comma-separated, or JSON.
pub(super) fn value(text: &str, kind: &str) -> Value {
    if kind.starts_with("list of ")
        && let Ok(list @ Value::Array(_)) = serde_json::from_str(text)
    {
        return list;
    }
    if let Some(item) = kind.strip_prefix("list of ") {
        return text.split(',').map(|text| value(text.trim(), item)).collect();
    }
    let parsed = match kind {
        kind if kind.starts_with("string") || kind.contains('"') => None,
        REFERENCE => text.parse().ok().map(|number: u64| number.into()),
        _ => serde_json::from_str(text).ok(),
    };
    parsed.unwrap_or_else(|| text.into())
}

/// The type of a number or a name.
const REFERENCE: &str = "integer | string";

fn call_of((kind, name, list): Commanded, matches: &ArgMatches) -> Option<ComponentCall> {
    let (command, given) = match matches.subcommand() {
        None => (named(list, "get")?, matches),
        Some((name, given)) => {
            let meant = list.iter().find(|command| word(command.name) == name);
            (meant.or_else(|| named(list, "set"))?, given)
        }
    };
    let mut params = Map::new();
    for argument in command.arguments() {
        let id = word(&argument.key.name);
        if let Ok(Some(text)) = given.try_get_one::<String>(id) {
            params.insert(argument.key.name, value(text, &argument.key.r#type));
        }
    }
    if kind == Kind::Function {
        let chain = given.get_one::<String>("chain").map_or("rx", String::as_str);
        params.insert("chain".into(), chain.into());
    }
    if let Ok(Some(position)) = given.try_get_one::<usize>("position") {
        params.insert("position".into(), (*position).into());
    }
    if let Ok(Some(task)) = given.try_get_one::<String>("task") {
        params.insert("task".into(), value(task, REFERENCE));
    }
    Some(ComponentCall { kind, name, command, params })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;
    use serde_json::json;

    fn call(words: &[&str]) -> (String, Value) {
        let command = Command::new("ctl").subcommands(ComponentCall::commands());
        let matches = command.try_get_matches_from([&["ctl"], words].concat()).unwrap();
        let (name, given) = matches.subcommand().unwrap();
        ComponentCall::of(name, given).unwrap().call()
    }

    #[test]
    fn commands_are_called_as_they_are_declared() {
        for (words, method, params) in [
            (&["rss"][..], "rss.get", json!({ "chain": "rx" })),
            (&["rss", "show"], "rss.get", json!({ "chain": "rx" })),
            (&["rss", "get", "--chain", "tx"], "rss.get", json!({ "chain": "tx" })),
            (
                &["rss", "--position", "2", "key", "symmetric"],
                "rss.set",
                json!({ "key": "symmetric", "chain": "rx", "position": 2 }),
            ),
            (&["rss", "table", "0,1"], "rss.set", json!({ "table": [0, 1], "chain": "rx" })),
            (
                &["rss", "table", "--uniform", "8"],
                "rss.set",
                json!({ "table_size": 8, "chain": "rx" }),
            ),
            (
                &["rss", "set", "--key", "00", "--table-size", "x"],
                "rss.set",
                json!({ "key": "00", "table_size": "x", "chain": "rx" }),
            ),
            (&["generator"], "generator.get", json!({})),
            (
                &["generator", "rate-pps", "500", "--position", "1"],
                "generator.set",
                json!({ "rate_pps": 500, "position": 1 }),
            ),
            (&["pcap", "rewind"], "pcap.rewind", json!({})),
            (&["edf-plus", "slack", "best-fit"], "edf-plus.set", json!({ "slack": "best-fit" })),
            (&["sample", "every", "10"], "sample.set", json!({ "every": 10, "chain": "rx" })),
            (&["scrub"], "scrub.get", json!({})),
            (
                &["heartbeat", "--task", "3", "wire", "1"],
                "heartbeat.set",
                json!({ "wire": 1, "task": 3 }),
            ),
            (&["busy", "get", "--task", "load"], "busy.get", json!({ "task": "load" })),
        ] {
            assert_eq!(call(words), (method.to_owned(), params), "{words:?}");
        }
    }

    #[test]
    fn no_component_has_the_name_of_another_or_of_a_command_of_the_card() {
        let mut own = crate::commands::ctl::CtlArgs::augment_args(Command::new("ctl"));
        own.build();
        let mut names: Vec<_> = own.get_subcommands().map(Command::get_name).collect();
        let count = names.len();
        assert!(count > components().count(), "{names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }

    #[test]
    fn every_declared_command_can_be_called() {
        for (_, name, list) in components() {
            for entry in list {
                let mut words = vec![name.to_owned(), word(entry.name).to_owned()];
                let example: Map<String, Value> = serde_json::from_str(entry.example).unwrap();
                for (name, value) in &example {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    words.extend([format!("--{}", word(name)), text]);
                }
                let words: Vec<_> = words.iter().map(String::as_str).collect();
                let (method, mut params) = call(&words);
                assert_eq!(method, format!("{name}.{}", entry.name));
                params.as_object_mut().unwrap().remove("chain");
                assert_eq!(params, Value::Object(example), "{words:?}");
            }
        }
    }
}
