//! Text output of `picnic ctl`.

use super::moderation::in_words;
use crate::output::{self, count};
use serde_json::Value;

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A value as text.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => output::name(text),
        Value::Array(items) => items.iter().map(text_of).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

pub(super) fn info(card: &Value) -> String {
    let elapsed = card["elapsed_s"].as_f64().unwrap_or(0.0);
    let chain = |name: &str| match card[name].as_array() {
        Some(functions) if !functions.is_empty() => {
            functions.iter().map(text_of).collect::<Vec<_>>().join(" -> ")
        }
        _ => "-".into(),
    };
    let file = match &card["file"] {
        Value::Null => "the built-in card".into(),
        file => text_of(file),
    };
    let lines = [
        ("card", format!("{}, pid {}, for {elapsed:.1} s", text_of(&card["name"]), card["pid"])),
        ("file", file),
        ("borrowed core", text_of(&card["borrowed_core"])),
        ("target cores", text_of(&card["target_cores"])),
        ("wires", text_of(&card["wires"])),
        ("rx chain", chain("rx")),
        ("tx chain", chain("tx")),
        ("host", text_of(&card["attachment"])),
        ("moderation", in_words(&card["moderation"])),
    ];
    lines.into_iter().map(|(name, value)| format!("{name:<13} {value}\n")).collect()
}

pub(super) fn chains(lists: &Value) -> String {
    let rows = ["rx", "tx"].into_iter().flat_map(|chain| {
        lists[chain].as_array().into_iter().flatten().map(move |function| {
            vec![
                format!("{chain}[{}]", function["position"]),
                text_of(&function["function"]),
                count(number(&function["packets"])),
                count(number(&function["dropped"])),
            ]
        })
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return "no functions: rx packets go to the default queue, tx packets to their wire\n"
            .into();
    }
    let columns = output::columns("place|function|#packets|#dropped");
    output::table(&columns, rows)
}

pub(super) fn swapped(result: &Value) -> String {
    let names = |list: &Value, key: Option<&str>| {
        let items = list.as_array().into_iter().flatten();
        let names: Vec<_> = items.map(|item| text_of(key.map_or(item, |key| &item[key]))).collect();
        if names.is_empty() { "no functions".to_owned() } else { names.join(" -> ") }
    };
    format!(
        "{} chain: {}, was {}\n",
        text_of(&result["chain"]),
        names(&result["functions"], None),
        names(&result["replaced"], Some("name"))
    )
}
