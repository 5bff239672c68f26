//! Card files written from the keys that components declare.

use picnic_core::config::{KeyHelp, common_sections};
use serde_json::Value;

/// A column that comments are broken at.
const WIDTH: usize = 90;

/// A key's default as TOML. Schemas hold it as JSON, which differs in tables only.
pub(crate) fn toml_value(json: &str) -> String {
    fn write(value: &Value) -> String {
        match value {
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(write).collect();
                format!("[{}]", items.join(", "))
            }
            Value::Object(fields) => {
                let fields: Vec<_> = fields
                    .iter()
                    .filter(|(_, value)| !value.is_null())
                    .map(|(name, value)| format!("{name} = {}", write(value)))
                    .collect();
                format!("{{ {} }}", fields.join(", "))
            }
            other => other.to_string(),
        }
    }
    serde_json::from_str(json).map_or_else(|_| json.into(), |value| write(&value))
}

/// A key with its default, explained; one without a default stands as a comment.
fn explained(key: &KeyHelp) -> String {
    let mut text = comment(&format!("{} ({})", key.help, key.r#type));
    text.push_str(&line(key));
    text
}

/// A key with its default; one without a default stands as a comment.
fn line(key: &KeyHelp) -> String {
    match key.default.as_str() {
        "" => format!("# {} = {}\n", key.name, example(&key.r#type)),
        default => format!("{} = {}\n", key.name, toml_value(default)),
    }
}

/// Something of a type, to show how it is written.
fn example(r#type: &str) -> String {
    match r#type {
        "string" => "\"...\"".into(),
        list if list.starts_with("list of") => "[...]".into(),
        choice if choice.starts_with('"') => choice.split(" | ").next().unwrap_or("...").into(),
        _ => "...".into(),
    }
}

fn comment(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split_whitespace() {
        let full = lines.last().is_some_and(|line| line.len() + 1 + word.len() > WIDTH);
        if full {
            lines.push("#".into());
        }
        if let Some(last) = lines.last_mut() {
            last.push(' ');
            last.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

/// The lines a component's section has in a card file, each key at its default.
pub(crate) fn snippet(header: &str, kind: &str, name: &str, keys: &[KeyHelp]) -> String {
    let keys: String = keys.iter().map(line).collect();
    format!("{header}\n{kind} = \"{name}\"\n{keys}")
}

/// A component of the built-in card.
pub(crate) struct Component {
    /// The key that names it.
    pub(crate) kind: &'static str,
    /// Its name.
    pub(crate) name: &'static str,
    /// One line of help.
    pub(crate) help: &'static str,
    /// Its keys.
    pub(crate) keys: Vec<KeyHelp>,
}

impl Component {
    fn explained(&self) -> String {
        let Component { kind, name, help, keys } = self;
        let named =
            comment(&format!("{}: {help}", capital(kind))) + &format!("{kind} = \"{name}\"\n");
        keys.iter().map(explained).fold(named, |text, key| text + &key)
    }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

/// The built-in card with every key of its sections, and the sections it does not have.
pub(crate) fn card(
    wire: &Component,
    rx: &Component,
    attachment: &Component,
    fault: &[KeyHelp],
    trace: &[KeyHelp],
) -> String {
    let sections = common_sections();
    let keys = |name: &str| -> String {
        let section = sections.iter().find(|(section, _)| *section == name);
        section.map_or_else(String::new, |(_, keys)| keys.iter().map(explained).collect())
    };
    format!(
        "# The built-in demonstration card, every key at its default.\n\
         # A key that is left out has the value shown here; an empty file is this card.\n\
         # Run it with `picnic run FILE`, check it with `picnic check FILE`.\n\
         \n# The card as a whole.\n[card]\n{}\
         \n# The buffers that packets lie in.\n[pool]\n{}\
         \n# Where packets come from: one [[wire]] or more, aggregated. See `picnic ports`.\n\
         [[wire]]\n# Name of the wire, for output. (string)\nname = \"wire0\"\n{}{}\
         \n# What the borrowed core does with them: [[rx]] by [[rx]], in order. See `picnic functions`.\n\
         # [[tx]] likewise, for packets that the host sends.\n[[rx]]\n{}\
         \n# Where packets go to. See `picnic attachments`.\n[host]\n{}{}\
         \n# When target cores are interrupted.\n[interrupt]\n{}\
         \n# What is kept away from the borrowed core. See `picnic isolate`.\n[isolation]\n{}\
         \n# How the running card is spoken to: `picnic ctl`, `picnic top`.\n[control]\n{}{}{}{}",
        keys("card"),
        keys("pool"),
        wire.explained(),
        switched_off("Faults between wire and card", "[wire.fault]", fault),
        rx.explained(),
        keys("host"),
        attachment.explained(),
        keys("interrupt"),
        keys("isolation"),
        keys("control"),
        switched_off("A pcapng file of the packets at some stages", "[trace]", trace),
        switched_off(
            "NIC OS, which runs tasks on the borrowed core; see `picnic schedulers`",
            "[os]",
            &[&[name_key("scheduler", "edf-plus")], listed("os").as_slice()].concat(),
        ),
        switched_off(
            "A task, one [[task]] for each; see `picnic tasks`",
            "[[task]]",
            &[&[name_key("task", "heartbeat")], listed("task").as_slice()].concat(),
        ),
    )
}

/// The keys of a common section.
fn listed(name: &str) -> Vec<KeyHelp> {
    let sections = common_sections().into_iter();
    sections.filter(|(section, _)| *section == name).flat_map(|(_, keys)| keys).collect()
}

/// The key that names a component.
fn name_key(key: &str, name: &str) -> KeyHelp {
    KeyHelp {
        name: key.into(),
        r#type: "string".into(),
        default: format!("\"{name}\""),
        help: "Its name.".into(),
    }
}

/// A section that the built-in card does not have.
fn switched_off(help: &str, header: &str, keys: &[KeyHelp]) -> String {
    let lines = keys.iter().map(line).collect::<String>();
    let lines = lines.lines().map(|line| format!("# {}\n", line.trim_start_matches("# ")));
    format!("\n# {help}, if you take the marks away:\n# {header}\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_defaults_become_toml() {
        let cases = [
            ("1.5", "1.5"),
            ("\"auto\"", "\"auto\""),
            ("[\"a\",2]", "[\"a\", 2]"),
            ("{\"a\":{\"b\":[1]},\"c\":null}", "{ a = { b = [1] } }"),
        ];
        for (json, expected) in cases {
            assert_eq!(toml_value(json), expected);
            let text = format!("key = {}", toml_value(json));
            assert!(toml::from_str::<toml::Table>(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn comments_are_broken_between_words() {
        let text = comment(&"word ".repeat(40));
        assert!(text.lines().all(|line| line.starts_with("# word") && line.len() <= WIDTH));
        assert_eq!(text.matches("word").count(), 40);
    }
}
