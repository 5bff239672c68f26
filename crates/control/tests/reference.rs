//! The reference in docs/control.md is what the declarations say.
//!
//! `PICNIC_WRITE=1 cargo test -p picnic-control --test reference` writes it anew.

use picnic_control::request::{Method, methods};
use picnic_core::command::{Argument, CommandEntry};
use picnic_core::config::KeyHelp;
use picnic_functions::registry::FUNCTIONS;
use std::path::Path;

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

fn of_function(name: &str, command: &CommandEntry) -> String {
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

#[test]
fn the_reference_is_what_is_declared() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/control.md");
    let before = std::fs::read_to_string(&path).unwrap();
    let mut functions = String::new();
    for entry in FUNCTIONS {
        entry.commands.iter().for_each(|command| functions += &of_function(entry.name, command));
    }
    let mut after = before.clone();
    for (part, text) in [("methods", of_card(methods())), ("commands", functions)] {
        let (begin, end) = marks(part);
        let start = after.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
        let stop = after[start..].find(&end).unwrap_or_else(|| panic!("no {end}"));
        after.replace_range(start..start + stop, &format!("\n{}\n\n", text.trim_end()));
    }
    if std::env::var_os("PICNIC_WRITE").is_some() {
        return std::fs::write(&path, after).unwrap();
    }
    assert!(before == after, "docs/control.md is not what is declared; {HINT}");
}
