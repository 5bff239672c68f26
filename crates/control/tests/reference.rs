//! The references in docs/control.md and docs/functions/ are what the declarations say.
//!
//! `PICNIC_WRITE=1 cargo test -p picnic-control --test reference` writes it anew.

use picnic_control::methods::components::commanded;
use picnic_control::request::{Method, methods};
use picnic_core::command::{Argument, CommandEntry};
use picnic_core::config::KeyHelp;
use picnic_core::ledger::{DropReason, Stage};
use picnic_engine::build::Components;
use picnic_functions::registry::FUNCTIONS;
use picnic_ports::registry::{ATTACHMENTS, WIRES};
use std::path::Path;

/// All that card files can name.
const COMPONENTS: Components = Components {
    functions: FUNCTIONS,
    wires: WIRES,
    attachments: ATTACHMENTS,
    fault: |port, _, _| Ok(port),
};

/// How the document is brought up to date.
const HINT: &str = "write it: PICNIC_WRITE=1 cargo test -p picnic-control --test reference";

/// Where a part of the document begins and ends.
fn marks(part: &str) -> (String, String) {
    (format!("<!-- {part}: from the declarations -->\n"), format!("<!-- end of {part} -->\n"))
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn of_card(methods: &[Method]) -> String {
    let mut text = "| method | parameters | what it does |\n|---|---|---|\n".to_owned();
    for method in methods {
        let params = method.params.iter().map(|param| {
            let note = if param.required { "" } else { "?" };
            format!("`{}{note}`", param.key.name)
        });
        let params: Vec<_> = params.collect();
        text +=
            &format!("| `{}` | {} | {} |\n", method.name, params.join(", "), cell(&method.help));
    }
    text
}

/// Every name that drops are counted under, and what it says.
fn of_drops() -> String {
    let mut text = "| reason | the packet was dropped because |\n|---|---|\n".to_owned();
    for reason in DropReason::ALL {
        text += &format!("| `{}` | {} |\n", reason.name(), cell(reason.help()));
    }
    text += "\n| stage | where that was |\n|---|---|\n";
    for stage in Stage::ALL {
        text += &format!("| `{}` | {} |\n", stage.name(), cell(stage.help()));
    }
    text
}

fn of_component(name: &str, command: &CommandEntry) -> String {
    let mut text = format!("### `{name}.{}`: {}\n", command.name, command.help);
    let arguments = command.arguments();
    if !arguments.is_empty() {
        text += "\n| argument | type | default | meaning |\n|---|---|---|---|\n";
    }
    for Argument { key, required, .. } in &arguments {
        let default = match (&*key.default, required) {
            ("", true) => "must be given".to_owned(),
            ("" | "null", false) => "none".to_owned(),
            (default, _) => format!("`{}`", cell(default)),
        };
        let (kind, help) = (cell(&key.r#type), cell(&key.help));
        text += &format!("| `{}` | {kind} | {default} | {help} |\n", key.name);
    }
    text += "\n| result | type | meaning |\n|---|---|---|\n";
    for KeyHelp { name, r#type, help, .. } in command.results() {
        text += &format!("| `{name}` | {} | {} |\n", cell(&r#type), cell(&help));
    }
    text + "\n"
}

/// The keys of a function, as they stand in a card file.
fn keys(keys: &[KeyHelp]) -> String {
    if keys.is_empty() {
        return "It has none.\n".to_owned();
    }
    let mut text = "| key | type | default | meaning |\n|---|---|---|---|\n".to_owned();
    for KeyHelp { name, r#type, default, help, .. } in keys {
        let default = match &**default {
            "" | "null" => "none".to_owned(),
            default => format!("`{}`", cell(default)),
        };
        text += &format!("| `{name}` | {} | {default} | {} |\n", cell(r#type), cell(help));
    }
    text
}

fn commands(name: &str, commands: &[CommandEntry]) -> String {
    if commands.is_empty() {
        return "It has none.\n".to_owned();
    }
    commands.iter().map(|command| of_component(name, command)).collect()
}

/// Brings the parts of a document up to date, or says that they are not. A document that is not
/// there is begun with `start`.
fn check(document: &str, start: &str, parts: &[(&str, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(document);
    let write = std::env::var_os("PICNIC_WRITE").is_some();
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(_) if write => start.to_owned(),
        Err(error) => panic!("docs/{document}: {error}; {HINT}"),
    };
    let mut after = before.clone();
    for (part, text) in parts {
        let (begin, end) = marks(part);
        let start = after.find(&begin).unwrap_or_else(|| panic!("{document}: no {begin}"));
        let start = start + begin.len();
        let stop = after[start..].find(&end).unwrap_or_else(|| panic!("{document}: no {end}"));
        after.replace_range(start..start + stop, &format!("\n{}\n\n", text.trim_end()));
    }
    if write {
        return std::fs::write(&path, after).unwrap();
    }
    assert!(before == after, "docs/{document} is not what is declared; {HINT}");
}

#[test]
fn the_reference_is_what_is_declared() {
    let all = commanded(&COMPONENTS).map(|(_, name, list)| commands(name, list));
    let parts =
        [("methods", of_card(methods())), ("commands", all.collect()), ("drops", of_drops())];
    check("control.md", "", &parts);
}

#[test]
fn every_function_has_its_page() {
    let mut list = "| function | what it does |\n|---|---|\n".to_owned();
    for entry in FUNCTIONS {
        let name = entry.name;
        list += &format!("| [`{name}`]({name}.md) | {} |\n", entry.help);
        let mut start = format!("# `{name}`: {}\n", entry.help);
        for (title, part) in [("Keys", "keys"), ("Commands", "commands")] {
            let (begin, end) = marks(part);
            start += &format!("\n## {title}\n\n{begin}{end}");
        }
        let parts = [("keys", keys(&entry.keys())), ("commands", commands(name, entry.commands))];
        check(&format!("functions/{name}.md"), &start, &parts);
    }
    check("functions/README.md", "", &[("functions", list)]);
}
