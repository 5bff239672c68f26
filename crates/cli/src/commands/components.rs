//! `picnic functions|ports|attachments|...`: lists the components for card files.

use super::try_function::is_path;
use crate::failure::Usage;
use crate::output::{self, Column};
use crate::registries::registries;
use crate::template::{shown, snippet, toml_value};
use clap::Args;
use picnic_core::command::{Argument, CommandEntry};
use picnic_core::config::{KeyHelp, Section};
use picnic_core::error::not_among;
use picnic_core::registry::{BuildContext, Entry};
use picnic_os::config::Setup;
use picnic_plugin::Description;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write;

#[derive(Debug, Args)]
pub(crate) struct ComponentsArgs {
    /// Show the keys of this one, and an example for a card file
    name: Option<String>,
    /// Show advanced keys as well
    #[arg(long)]
    all: bool,
}

/// A registry, as the command line and card files name it.
pub(crate) struct Kind {
    /// Plural of its items.
    plural: &'static str,
    /// The key that selects one.
    pub(crate) key: &'static str,
    /// Its section.
    header: &'static str,
    /// The entries of the registry, in order.
    pub(crate) list: fn() -> Vec<Described>,
}

pub(crate) static FUNCTIONS: Kind = Kind {
    plural: "functions",
    key: "function",
    header: "[[rx]]",
    list: || describe(registries().functions),
};
pub(crate) static PORTS: Kind = Kind {
    plural: "ports",
    key: "port",
    header: "[[wire]]",
    list: || describe(registries().wires),
};
pub(crate) static ATTACHMENTS: Kind = Kind {
    plural: "attachments",
    key: "attachment",
    header: "[host]",
    list: || describe(registries().attachments),
};
pub(crate) static SCHEDULERS: Kind = Kind {
    plural: "schedulers",
    key: "scheduler",
    header: "[os]",
    list: || describe(registries().schedulers),
};
pub(crate) static TASKS: Kind = Kind {
    plural: "tasks",
    key: "task",
    header: "[[task]]",
    list: || {
        let tasks = registries().tasks;
        let described = describe(tasks).into_iter().zip(tasks);
        described
            .map(|(task, entry)| Described { bounds_from: Some(bounds_of(entry)), ..task })
            .collect()
    },
};

impl Kind {
    /// The registry of the components that a key names.
    pub(crate) fn of(key: &str) -> Option<&'static Kind> {
        let all = [&FUNCTIONS, &PORTS, &ATTACHMENTS, &SCHEDULERS, &TASKS];
        all.into_iter().find(|kind| kind.key == key)
    }

    /// The names in the registry, in its order.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        (self.list)().iter().map(|entry| entry.name).collect()
    }
}

/// A registry's entry, without its product.
#[derive(Debug, Serialize)]
pub(crate) struct Described {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) keys: Vec<KeyHelp>,
    /// Commands of a running component.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) commands: Vec<DescribedCommand>,
    /// For a task: the origin of its segments' bounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bounds_from: Option<&'static str>,
}

/// A command of a component.
#[derive(Debug, Serialize)]
pub(crate) struct DescribedCommand {
    name: &'static str,
    help: &'static str,
    arguments: Vec<Argument>,
    results: Vec<KeyHelp>,
}

/// Bounds of `#[task]`.
const PROFILE: &str = "the cost profile";
/// Bounds stated by the task or its section.
const STATED: &str = "stated";

/// The origin of a task's bounds.
fn bounds_of(entry: &Entry<Setup>) -> &'static str {
    match entry.build(&Section::named("task", entry.name), &BuildContext::default()) {
        Ok(setup) if setup.spec.is_stated() => STATED,
        Ok(_) => PROFILE,
        Err(_) => "depends on its keys",
    }
}

pub(crate) fn describe<P>(registry: &[Entry<P>]) -> Vec<Described> {
    let described = registry.iter().map(|entry| Described {
        name: entry.name,
        help: entry.help,
        keys: entry.keys(),
        commands: entry.commands.iter().map(described).collect(),
        bounds_from: None,
    });
    described.collect()
}

fn described(command: &CommandEntry) -> DescribedCommand {
    DescribedCommand {
        name: command.name,
        help: command.help,
        arguments: command.arguments(),
        results: command.results(),
    }
}

pub(crate) fn run(kind: &Kind, args: &ComponentsArgs, json: bool) -> anyhow::Result<()> {
    let list = (kind.list)();
    let Some(wanted) = &args.name else {
        if json {
            return output::print_json(&json!({ kind.plural: list }));
        }
        let rows = list.iter().map(|entry| {
            let mut row = vec![entry.name.into(), entry.help.into()];
            row.extend(entry.bounds_from.map(str::to_owned));
            row
        });
        let mut columns = output::columns("name|help");
        let mut hint = format!("\n`picnic {} NAME` shows the keys of one.\n", kind.plural);
        if kind.key == TASKS.key {
            columns.push(Column::Text("bounds from"));
            hint.push_str(PROFILE_HINT);
        }
        return output::print(&(output::table(&columns, rows) + &hint));
    };
    if kind.key == FUNCTIONS.key && is_path(wanted) {
        return object(wanted, json);
    }
    let Some(entry) = list.iter().find(|entry| entry.name == *wanted) else {
        let allowed = list.iter().map(|entry| entry.name);
        let message = not_among(&format!("{} ", kind.key), wanted, allowed);
        return Err(Usage(message).into());
    };
    if json {
        return output::print_json(entry);
    }
    let mut text = format!("{}: {}\n\n", entry.name, entry.help);
    match entry.bounds_from {
        Some(PROFILE) => {
            text.push_str("Bounds of its segments: under the card's cost profile, unless wcet_ns ");
            text.push_str(&format!("states one.\nSee: picnic wcet show {}\n\n", entry.name));
        }
        Some(STATED) => text.push_str("Bounds of its segments: stated, none is analysed.\n\n"),
        Some(other) => text.push_str(&format!("Bounds of its segments: {other}.\n\n")),
        None => {}
    }
    let keys = shown(&entry.keys, args.all);
    text.push_str(&keys_table(&keys));
    for command in &entry.commands {
        let (name, method) = (command.name.replace('_', "-"), command.name);
        let function = entry.name;
        text.push_str(&format!("\npicnic ctl {function} {name} ({function}.{method}): "));
        text.push_str(&format!("{}\n", command.help));
        if !command.arguments.is_empty() {
            let keys: Vec<_> =
                command.arguments.iter().map(|argument| argument.key.clone()).collect();
            text.push_str(&keys_table(&keys));
        }
    }
    if keys.len() < entry.keys.len() {
        text.push_str("\nAdvanced keys are left out: --all shows them.\n");
    }
    text.push_str("\nIn a card file, each at its default:\n\n");
    text.push_str(&snippet(kind.header, kind.key, entry.name, &keys));
    output::print(&text)
}

/// A shared object's description of itself.
fn object(path: &str, json: bool) -> anyhow::Result<()> {
    let described = picnic_plugin::describe(path.as_ref())?;
    if json {
        return output::print_json(&described);
    }
    let Description { name, help, keys, counters } = described;
    let key = KeyHelp::text("plugin", path, String::new());
    let mut text = format!("{name}: {help}\n\n{}", keys_table(&keys));
    if !counters.is_empty() {
        text.push('\n');
        let columns = output::columns("counter|help");
        let rows = counters.into_iter().map(|counter| vec![counter.name, counter.help]);
        text.push_str(&output::fitting_table(&columns, rows));
    }
    text.push_str("\nIn a card file, every key at its default:\n\n");
    let _ = writeln!(text, "[[rx]]\nplugin = {}", key.default);
    for key in keys {
        let mark = if key.default.is_empty() { "# " } else { "" };
        let default = if key.default.is_empty() { "..." } else { &*toml_value(&key.default) };
        let _ = writeln!(text, "{mark}{} = {default}", key.name);
    }
    output::print(&text)
}

/// The hint below the list of tasks.
const PROFILE_HINT: &str = "The cost profile is that of [os] cost_profile, or the built-in one: \
                            `picnic wcet show`.\n";

/// Keys as a table.
pub(crate) fn keys_table(keys: &[KeyHelp]) -> String {
    if keys.is_empty() {
        return " It has no keys.\n".into();
    }
    let columns = output::columns("key|type|default|help");
    let row = |place: &str, key: &KeyHelp| {
        let default = match key.default.as_str() {
            "" => "-".into(),
            default => shortened(toml_value(default)),
        };
        vec![format!("{place}{}", key.name), key.r#type.clone(), default, key.help.clone()]
    };
    let rows = keys.iter().flat_map(|key| {
        let place = format!("{}.", key.name);
        let inner: Vec<_> = key.keys.iter().map(|inner| row(&place, inner)).collect();
        std::iter::once(row("", key)).chain(inner)
    });
    output::fitting_table(&columns, rows)
}

/// A long default, shortened; the snippet below has all of it.
fn shortened(text: String) -> String {
    const MOST: usize = 28;
    if text.chars().count() <= MOST {
        return text;
    }
    text.chars().take(MOST - 3).chain("...".chars()).collect()
}
