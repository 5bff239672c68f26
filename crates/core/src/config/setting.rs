//! A key of a card file and a value that replaces the file's: `--set host.queues=2`.

use super::document::{Document, Value};
use super::help::KeyHelp;
use serde_json::Value as Json;

/// A key and its replacement value.
#[derive(Clone, Debug)]
pub struct Setting {
    pub(super) key: String,
    pub(super) value: Value,
}

impl Setting {
    /// A key with a text value.
    pub fn text(key: &str, text: &str) -> Self {
        Setting { key: key.into(), value: Value::Text(text.into()) }
    }

    /// A key with a number.
    pub fn number(key: &str, number: u32) -> Self {
        Setting { key: key.into(), value: Value::Integer(number.into()) }
    }

    /// A key that is on or off.
    pub fn switch(key: &str, is_on: bool) -> Self {
        Setting { key: key.into(), value: Value::Boolean(is_on) }
    }

    /// Reads `KEY=VALUE`, the value in TOML. Text needs no quotes.
    ///
    /// # Errors
    /// The missing part.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (key, word) = text.split_once('=').ok_or("found no `=`, allowed: KEY=VALUE")?;
        let key = key.trim();
        if key.is_empty() {
            return Err("found no key, allowed: KEY=VALUE".into());
        }
        let document = Document::parse(&format!("value = {word}"), None);
        let value = document.ok().and_then(|document| match document.table() {
            [(_, node)] => Some(node.value.clone()),
            _ => None,
        });
        let value = match value {
            Some(value @ (Value::Text(_) | Value::Table(_) | Value::List(_))) => value,
            Some(value) => Value::Word(word.trim().into(), value.into()),
            None => Value::Text(word.into()),
        };
        Ok(Setting { key: key.into(), value: value.given() })
    }

    /// Key and value as JSON, for a config with the keys `known`: a word without quotes is text if
    /// the key's type is, else its TOML value.
    pub fn json(&self, known: &[KeyHelp]) -> (String, Json) {
        let is_text = known.iter().any(|known| known.name == self.key && known.is_text());
        let value = match &self.value {
            Value::Word(text, _) if is_text => text.as_str().into(),
            value => Json::from(value),
        };
        (self.key.clone(), value)
    }
}
