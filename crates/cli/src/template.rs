//! Card files written from the keys that components declare.

use picnic_core::config::KeyHelp;
use serde_json::Value;

/// The column at which comments are wrapped.
const WIDTH: usize = 90;

/// A key's default as TOML. Schemas hold it as JSON, whose tables are written differently.
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
    meaning(key) + &line(key)
}

/// A key's effect and type.
fn meaning(key: &KeyHelp) -> String {
    comment(&format!("{} ({})", key.help, key.r#type))
}

/// A key with its default; one without a default stands as a comment.
fn line(key: &KeyHelp) -> String {
    match key.default.as_str() {
        // These have sections of their own, which the key would contradict.
        _ if !key.keys.is_empty() => format!("# {} = [...]\n", key.name),
        "" => format!("# {} = {}\n", key.name, example(&key.r#type)),
        default => format!("{} = {}\n", key.name, toml_value(default)),
    }
}

/// An example value of a type.
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

/// A section of a card file.
pub(crate) struct SectionText {
    /// Such as `[[wire]]`.
    pub(crate) header: String,
    /// Its purpose.
    pub(crate) help: String,
    /// Whether the built-in card has it; if not, it stands as a comment.
    pub(crate) is_on: bool,
    /// Its keys, including the keys of the component that it names.
    pub(crate) keys: Vec<KeyHelp>,
}

impl SectionText {
    fn text(&self) -> String {
        let SectionText { header, help, is_on, .. } = self;
        if *is_on {
            let keys: String = self.keys.iter().map(explained).collect();
            return format!("\n{}{header}\n{keys}", comment(help));
        }
        // The help stays a comment when its keys are uncommented, as does each key without a
        // default.
        let marked = self.keys.iter().map(|key| {
            let lines: String = meaning(key).lines().map(|line| format!("# {line}\n")).collect();
            format!("{lines}# {}", line(key).trim_start_matches("# "))
        });
        let help = comment(&format!("{help} Uncomment to use:"));
        format!("\n{help}# {header}\n{}", marked.collect::<String>())
    }
}

/// The keys that help shows: with `all`, advanced ones too.
pub(crate) fn shown(keys: &[KeyHelp], all: bool) -> Vec<KeyHelp> {
    let mut keys = keys.to_vec();
    keys.retain(|key| all || !key.advanced);
    keys.iter_mut().for_each(|key| key.keys.retain(|key| all || !key.advanced));
    keys
}

/// The built-in card with every key of its sections, and the sections it does not have; `which`
/// keys it shows is stated at its top.
pub(crate) fn card(sections: &[SectionText], which: &str) -> String {
    let text: String = sections.iter().map(SectionText::text).collect();
    format!(
        "# The built-in demonstration card, {which}.\n\
         # A key that is left out has the value shown here; an empty file is this card.\n\
         # Run it with `picnic run FILE`, check it with `picnic check FILE`.\n{text}"
    )
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
