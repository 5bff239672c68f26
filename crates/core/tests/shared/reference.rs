//! Parts of documents generated from declarations, between marks.
//!
//! Included by the tests of each crate that has some.

#![allow(dead_code, unreachable_pub)]

use picnic_core::command::{Argument, CommandEntry};
use picnic_core::config::KeyHelp;
use std::path::Path;

/// How to update the document.
const HINT: &str = concat!("write it: PICNIC_WRITE=1 cargo test -p ", env!("CARGO_PKG_NAME"));

/// The marks around a part of the document.
pub fn marks(part: &str) -> (String, String) {
    (format!("<!-- {part}: from the declarations -->\n"), format!("<!-- end of {part} -->\n"))
}

/// Text in a cell of a table.
pub fn cell(text: &str) -> String {
    text.replace('|', "\\|")
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

/// The commands of a component.
pub fn commands(name: &str, commands: &[CommandEntry]) -> String {
    if commands.is_empty() {
        return "It has none.\n".to_owned();
    }
    commands.iter().map(|command| of_component(name, command)).collect()
}

/// Updates the parts of a document, or reports that they are outdated. A missing document is
/// created with `start`.
pub fn check(document: &str, start: &str, parts: &[(&str, String)]) {
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
