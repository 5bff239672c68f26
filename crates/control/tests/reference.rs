//! Checks that docs/control.md and docs/functions/ match the declarations.
//!
//! `PICNIC_WRITE=1 cargo test -p picnic-control --test reference` writes them.

#[path = "../../core/tests/shared/reference.rs"]
mod shared;

use picnic_control::Registries;
use picnic_control::methods::components::commanded;
use picnic_control::report::declared;
use picnic_control::request::{Method, methods};
use picnic_core::config::KeyHelp;
use picnic_core::ledger::{DropReason, Stage};
use picnic_functions::registry::FUNCTIONS;
use picnic_os::schedulers::registry::SCHEDULERS;
use picnic_ports::registry::{ATTACHMENTS, WIRES};
use shared::{cell, check, commands, marks};

/// All registries; tasks, in a higher layer, write their own part.
const REGISTRIES: Registries = Registries {
    executors: &[],
    functions: FUNCTIONS,
    wires: WIRES,
    attachments: ATTACHMENTS,
    middleware: |port, _, _| Ok(port),
    schedulers: SCHEDULERS,
    tasks: &[],
    filters: &[],
};

fn of_card(methods: &[Method]) -> String {
    let mut text = "| method | parameters | effect |\n|---|---|---|\n".to_owned();
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

/// Every drop reason, with its meaning.
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

/// Every figure of a report.
fn of_figures() -> String {
    let mut text =
        "| figure | kind | unit | metric | meaning |\n|---|---|---|---|---|\n".to_owned();
    for (place, figure) in declared() {
        let series = figure.series().map_or_else(String::new, |series| format!("`{series}`"));
        let (kind, unit, help) = (figure.kind.name(), figure.unit.name(), cell(figure.help));
        text += &format!("| `{place}` | {kind} | {unit} | {series} | {help} |\n");
    }
    text
}

/// The keys of a function in a card file.
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

#[test]
fn reference_matches_the_declarations() {
    let all = commanded(&REGISTRIES).map(|(_, name, list)| commands(name, list));
    let parts = [
        ("methods", of_card(methods())),
        ("commands", all.collect()),
        ("drops", of_drops()),
        ("figures", of_figures()),
    ];
    check("control.md", "", &parts);
}

#[test]
fn every_function_has_its_page() {
    let mut list = "| function | effect |\n|---|---|\n".to_owned();
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
