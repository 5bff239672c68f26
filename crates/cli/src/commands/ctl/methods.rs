//! `picnic ctl info`, `picnic ctl filter ...` and the like: made from the card's methods.
//!
//! A command calls one method, or each method of a group is a subcommand; `list` is meant when none
//! is named. Mandatory parameters are positional, the others are options, and `keys`
//! are KEY=VALUE words.

use super::components::{option, value};
use super::moderation::{self, Mode};
use super::text::{chains, info, number, swapped, text_of};
use crate::commands::capture::{self, CaptureWhat};
use crate::commands::keyed::{valued, word};
use crate::commands::later::later;
use crate::control::CardChoice;
use crate::failure::Usage;
use crate::output::{self, time};
use crate::registries::{registries, sections};
use anyhow::{Context, bail};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint, value_parser};
use picnic_control::listing::text;
use picnic_control::request::{Method, methods};
use picnic_core::command::Argument;
use picnic_core::config::{CardFile, KeyHelp, Setting, keys_of};
use picnic_core::json::typed;
use picnic_filter::Filters;
use picnic_filter::config::Keys;
use picnic_os::keys::TaskSection;
use serde_json::{Map, Value, json};
use std::path::Path;

/// A command: one method, or a group of methods.
#[derive(Debug)]
struct Group {
    word: &'static str,
    /// The method, or how the methods' names begin.
    methods: &'static str,
    about: &'static str,
    examples: &'static str,
}

static GROUPS: [Group; 9] = [
    Group {
        word: "info",
        methods: "card.info",
        about: "Show the card and its cores (the default)",
        examples: "",
    },
    Group {
        word: "moderation",
        methods: MODERATE,
        about: "Show or change interrupt moderation and polling of target cores",
        examples: "",
    },
    Group {
        word: "chain",
        methods: "chain.list",
        about: "List the functions of both chains",
        examples: "",
    },
    Group { word: "swap", methods: "chain.swap", about: "Replace a chain", examples: "" },
    Group {
        word: "capture",
        methods: "capture",
        about: "Captures that continue after this command",
        examples: "",
    },
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
        word: "scheduler",
        methods: SCHEDULER,
        about: "Show the scheduler of NIC OS, or replace it",
        examples: "Examples:
  picnic ctl scheduler                            the current one
  picnic ctl scheduler edf
  picnic ctl scheduler edf-plus slack=best-fit

`picnic schedulers` lists them with their keys. A scheduler that cannot schedule the tasks of the card
is refused, with the arithmetic.",
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
    Group {
        word: "channels",
        methods: "channel.list",
        about: "List the channels between tasks and host processes",
        examples: "",
    },
];

const SCHEDULER: &str = "os.scheduler";
/// A change of moderation, or a query without changes.
const MODERATE: &str = "moderation.set";

impl Group {
    /// The command of this name.
    fn named(word: &str) -> Option<&'static Group> {
        GROUPS.iter().find(|group| group.word == word)
    }

    /// The method, if this is no group of several.
    fn only(&self) -> Option<&'static Method> {
        methods().iter().find(|method| method.name == self.methods)
    }

    /// Its methods, with their subcommands.
    fn methods(&self) -> impl Iterator<Item = (&'static str, &'static Method)> {
        let named = methods().iter().filter_map(|method| {
            let (group, name) = method.name.split_once('.')?;
            Some((group, word(name), method))
        });
        // Waiting for a capture keeps the connection open: `picnic capture`.
        let named = named.filter(|(group, name, _)| *group == self.methods && *name != "wait");
        named.map(|(_, name, method)| (name, method))
    }

    fn command(&self) -> Command {
        let command = Command::new(self.word).about(self.about);
        let command = match self.examples {
            "" => command,
            examples => command.after_help(examples),
        };
        // Clap describes a command's own arguments on use: see `later`.
        later(command, |command| match Group::named(command.get_name()) {
            Some(group) => group.described(command),
            None => command,
        })
    }

    fn described(&self, command: Command) -> Command {
        if let Some(method) = self.only() {
            return with_arguments(command, method);
        }
        let of_method = |(name, method): (&'static str, &Method)| {
            let help = match &*method.name {
                // The card gets all keys.
                "filter.change" => "Change some keys of a filter; KEY= removes a key".to_owned(),
                _ => plain(&method.help),
            };
            let help = if name == "list" { format!("{help} (the default)") } else { help };
            // After the arguments, which have a comment of their own.
            with_arguments(Command::new(name), method).about(help)
        };
        let keys = Command::new(KEYS).about("The keys of a filter");
        let keys = (self.methods == "filter").then_some(keys);
        command.subcommands(self.methods().map(of_method).chain(keys))
    }
}

/// The subcommand that lists the keys of a filter.
const KEYS: &str = "keys";

/// Help text in the form used for commands.
fn plain(help: &str) -> String {
    help.trim_end_matches('.').replace('`', "")
}

fn with_arguments(command: Command, method: &Method) -> Command {
    match &*method.name {
        // It sends a file along, and has the options of `picnic capture`.
        "capture.start" => CaptureWhat::augment_args(command),
        MODERATE => {
            let mode =
                Arg::new("mode").value_parser(value_parser!(Mode)).help("Shorthand for the keys");
            // The modes explain `adaptive`.
            let keys = method.params.iter().filter(|argument| argument.key.name != "adaptive");
            command.arg(mode).args(keys.map(option))
        }
        _ => command.args(method.params.iter().filter_map(|param| argument(method, param))),
    }
}

/// A parameter of a method as an argument; none if it is derived from another.
fn argument(method: &Method, Argument { key, required, .. }: &Argument) -> Option<Arg> {
    let name = word(&key.name);
    // No word of them begins with a hyphen: options may follow.
    let arg = valued(Arg::new(name), key).help(plain(&key.help)).allow_hyphen_values(false);
    let file = |sections| {
        let help = format!("A card file; its {sections} sections are used");
        let hint = ValueHint::FilePath;
        Arg::new("file").value_name("FILE").value_hint(hint).required(true).help(help)
    };
    Some(match (&*method.name, &*key.name) {
        ("chain.swap", "functions" | "file") => return None,
        ("chain.swap", "toml") => file("[[rx]] or [[tx]]"),
        ("capture.stop", _) => arg.help("Its number; optional if only one is running"),
        (_, "filters") => file("[[filter]]"),
        (_, "keys") => {
            let words = arg.value_name("KEY=VALUE").num_args(1..).action(ArgAction::Append);
            words.required(*required)
        }
        (_, "groups") => arg.long("group").value_name("GROUP").action(ArgAction::Append),
        (_, "id") => arg.value_name("FILTER").required(true),
        (SCHEDULER, "scheduler") => arg.value_name("NAME"),
        _ if *required => arg.required(true),
        _ => arg.long(name),
    })
}

/// A call of a method.
#[derive(Clone, Debug, Default)]
pub(crate) struct MethodCall {
    /// None: list the keys of a filter.
    method: Option<&'static Method>,
    params: Map<String, Value>,
    /// KEY=VALUE words, or groups.
    words: Vec<String>,
    file: Option<String>,
    mode: Option<Mode>,
    capture: Option<CaptureWhat>,
}

impl MethodCall {
    /// The commands of the card.
    pub(super) fn commands() -> impl Iterator<Item = Command> {
        GROUPS.iter().map(Group::command)
    }

    /// Whether this is a command of the card.
    pub(super) fn has(name: &str) -> bool {
        Group::named(name).is_some()
    }

    /// The call of a command, if it is one of the card.
    pub(super) fn of(name: &str, given: &ArgMatches) -> Option<Self> {
        let group = Group::named(name)?;
        let Some(method) = group.only() else {
            let (name, given) = given.subcommand().unwrap_or(("list", given));
            let method = group.methods().find(|(word, _)| *word == name).map(|(_, method)| method);
            return Some(MethodCall::read(method, given));
        };
        Some(MethodCall::read(Some(method), given))
    }

    fn read(method: Option<&'static Method>, given: &ArgMatches) -> Self {
        let mut call = MethodCall { method, ..MethodCall::default() };
        for Argument { key, .. } in method.map_or(&[][..], |method| &method.params) {
            let id = word(&key.name);
            match &*key.name {
                "keys" | "groups" => {
                    let all = given.try_get_many::<String>(id).ok().flatten();
                    call.words = all.unwrap_or_default().cloned().collect();
                }
                // Of the card file, whose path is known only when the call is made.
                "file" => {}
                name => {
                    if let Ok(Some(text)) = given.try_get_one::<String>(id) {
                        call.params.insert(name.into(), value(text, &key.r#type));
                    }
                }
            }
        }
        call.file = given.try_get_one::<String>("file").ok().flatten().cloned();
        call.mode = given.try_get_one("mode").ok().flatten().copied();
        let is_start = method.is_some_and(|method| method.name == "capture.start");
        call.capture = is_start.then(|| CaptureWhat::from_arg_matches(given).ok()).flatten();
        call
    }

    /// Calls it; the result, and that for people.
    pub(super) fn run(&self, choice: &CardChoice) -> anyhow::Result<(Value, String)> {
        let Some(method) = self.method else { return filter_keys() };
        let params = self.params(method, choice)?;
        let result = match &self.capture {
            Some(what) => what.start(&mut choice.connect()?, false)?,
            None => {
                let is_question = method.name == MODERATE && params.is_empty();
                let name = if is_question { "moderation.get" } else { &method.name };
                choice.connect()?.call(name, Value::Object(params))?
            }
        };
        let text = in_words(method, &result);
        Ok((result, text))
    }

    /// The parameters; some need a query to the card first.
    fn params(&self, method: &Method, choice: &CardChoice) -> anyhow::Result<Map<String, Value>> {
        let mut params = self.params.clone();
        let file = Path::new(self.file.as_deref().unwrap_or_default());
        match &*method.name {
            MODERATE => moderation::change(&mut params, self.mode, choice)?,
            "capture.start" if self.capture.as_ref().is_some_and(CaptureWhat::is_stdout) => {
                let message = "allowed: --write FILE: this command ends before the capture does";
                return Err(Usage(message.into()).into());
            }
            "capture.stop" if params.is_empty() => {
                let list = choice.connect()?.call("capture.list", json!({}))?;
                params.insert("capture".into(), only_capture(&list)?);
            }
            "chain.swap" => {
                params.insert("toml".into(), CardFile::read(file)?.into());
                // The card may run elsewhere: relative paths in the file start from where it is
                // here.
                let path = std::path::absolute(file);
                let path = path.context("the working directory no longer exists")?;
                let Some(path) = path.to_str() else {
                    let message = "a path without UTF-8 cannot be sent";
                    return Err(Usage(format!("{}: {message}", path.display())).into());
                };
                params.insert("file".into(), path.into());
            }
            "filter.add" => {
                params.insert("keys".into(), changed(Map::new(), &self.words)?.into());
            }
            "filter.change" => {
                let id = json!({ "id": params["id"] });
                let mut shown = choice.connect()?.call("filter.show", id)?;
                // Its name may be among the changed keys.
                params.insert("id".into(), shown["id"].clone());
                let mut keys = shown.as_object_mut().map(std::mem::take).unwrap_or_default();
                let known = keys_of::<Keys>();
                keys.retain(|name, _| known.iter().any(|key| key.name == *name));
                params.insert("keys".into(), changed(keys, &self.words)?.into());
            }
            "filter.reload" => {
                let card = sections().load(file)?;
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
            SCHEDULER if !self.words.is_empty() => {
                let entries = registries().schedulers;
                let name = params["scheduler"].as_str().unwrap_or_default();
                let entry = entries.iter().find(|entry| entry.name == name);
                let known = entry.map(|entry| entry.keys()).unwrap_or_default();
                params.insert("keys".into(), keys_of_words(&known, &self.words)?.into());
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

/// The number of the capture that runs.
fn only_capture(list: &Value) -> anyhow::Result<Value> {
    let numbers: Vec<_> = list["captures"].as_array().into_iter().flatten().collect();
    match &numbers[..] {
        [] => bail!("no capture runs"),
        [only] => Ok(only["capture"].clone()),
        several => {
            let numbers: Vec<_> = several.iter().map(|one| text_of(&one["capture"])).collect();
            let message =
                format!("several captures are running, choose one: {}", numbers.join(", "));
            Err(Usage(message).into())
        }
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
    keys_of_words(&known, words)
}

/// Keys from `KEY=VALUE` words, each once.
fn keys_of_words(known: &[KeyHelp], words: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut keys = Map::new();
    for word in words {
        let setting = Setting::parse(word).map_err(|wrong| Usage(format!("{word}: {wrong}")))?;
        let (key, value) = setting.json(known);
        if keys.insert(key.clone(), value).is_some() {
            return Err(Usage(format!("found key \"{key}\" twice, allowed: once")).into());
        }
    }
    Ok(keys)
}

/// The keys of a filter.
fn filter_keys() -> anyhow::Result<(Value, String)> {
    let keys = keys_of::<Keys>();
    let result = serde_json::to_value(&keys)?;
    let columns = output::columns("key|type|meaning");
    let rows = keys.into_iter().map(|key| vec![key.name, key.r#type, key.help]);
    Ok((result, output::fitting_table(&columns, rows)))
}

/// A result as text.
fn in_words(method: &Method, result: &Value) -> String {
    let table = || method.listing().map_or_else(String::new, |it| output::listing(it, result));
    let lines = |first: String, then: &Value| match then.as_str() {
        Some(then) => format!("{first}\n{then}\n"),
        None => first + "\n",
    };
    match &*method.name {
        "card.info" => info(result),
        SCHEDULER => {
            let next = result["next"].as_str();
            let next = next.map(|next| format!("{next} follows once no periodic task is due"));
            lines(text_of(&result["scheduler"]), &next.into())
        }
        MODERATE => moderation::text(result),
        "chain.list" => chains(result),
        "chain.swap" => swapped(result),
        "capture.start" => {
            let of = text_of(&result["interfaces"]);
            lines(format!("capture {} of {of}", number(&result["capture"])), &result["note"])
        }
        "capture.stop" => {
            let error = result["error"].as_str().map(|error| format!("it ended early: {error}"));
            lines(capture::summary(result), &error.into())
        }
        "filter.reload" => reloaded(result),
        "filter.remove" => format!("removed\n{}", table()),
        "task.create" => format!("created task {}\n{}", result["task"], table()),
        "task.show" => format!("{}\n{}", table(), times(result)),
        _ => table(),
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
    let columns = output::columns("time|#mean|#deviation|#p50|#p99|#max");
    let from = text(&task["bounds_from"]);
    format!("{}\nbounds from: {from}\n", output::table(&columns, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(words: &[&str]) -> MethodCall {
        let json = Arg::new("json").long("json").global(true).action(ArgAction::SetTrue);
        let command = Command::new("ctl").arg(json).subcommands(MethodCall::commands());
        let matches = command.try_get_matches_from([&["ctl"], words].concat()).unwrap();
        let (name, given) = matches.subcommand().unwrap();
        MethodCall::of(name, given).unwrap()
    }

    #[test]
    fn methods_are_called_as_they_are_declared() {
        for (words, method, params, rest) in [
            (&["filter"][..], "filter.list", json!({}), &[][..]),
            (&["filter", "list", "--group", "3"], "filter.list", json!({ "group": "3" }), &[]),
            (&["filter", "show", "3"], "filter.show", json!({ "id": 3 }), &[]),
            (&["filter", "remove", "web"], "filter.remove", json!({ "id": "web" }), &[]),
            (&["filter", "add", "a=1", "b=2"], "filter.add", json!({}), &["a=1", "b=2"]),
            (&["filter", "add", "a=1", "--json"], "filter.add", json!({}), &["a=1"]),
            (&["filter", "change", "web", "a="], "filter.change", json!({ "id": "web" }), &["a="]),
            (
                &["filter", "reload", "my.toml", "--group", "x", "--group", "y"],
                "filter.reload",
                json!({}),
                &["x", "y"],
            ),
            (&["info"], "card.info", json!({}), &[]),
            (&["swap", "tx", "my.toml"], "chain.swap", json!({ "chain": "tx" }), &[]),
            (&["capture"], "capture.list", json!({}), &[]),
            (&["capture", "stop", "7"], "capture.stop", json!({ "capture": 7 }), &[]),
            (
                &["moderation", "static", "--rx-usecs", "5", "--per-packet", "true"],
                "moderation.set",
                json!({ "rx_usecs": 5, "per_packet": true }),
                &[],
            ),
            (&["tasks"], "task.list", json!({}), &[]),
            (&["scheduler"], "os.scheduler", json!({}), &[]),
            (&["scheduler", "edf"], "os.scheduler", json!({ "scheduler": "edf" }), &[]),
            (
                &["scheduler", "edf-plus", "slack=best-fit"],
                "os.scheduler",
                json!({ "scheduler": "edf-plus" }),
                &["slack=best-fit"],
            ),
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
