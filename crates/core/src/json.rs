//! Typed values from JSON, with errors that give the found and allowed values.
//!
//! ```
//! use picnic_core::json::typed;
//! #[derive(serde::Deserialize, Debug)]
//! struct Arguments { table: Vec<u16> }
//! let error = typed::<Arguments>(&serde_json::json!({ "table": [0, 70000] })).unwrap_err();
//! assert_eq!(error.to_string(), "table[1]: found 70000, allowed: a whole number, 0 to 65535");
//! ```
//!
//! Guarantees: any JSON gives a value or an error, and the error names the key. Found texts are
//! shortened to 60 characters.

use crate::config::typed as read;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;

/// An error about a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvalidValue {
    /// Its key, as a path such as `table[3]`; empty for the whole.
    pub key: String,
    /// The found and allowed values.
    pub message: String,
}

/// Reads a value, as from a card file.
///
/// # Errors
/// The wrong key, with the found and allowed values.
pub fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, InvalidValue> {
    read(value).map_err(|(key, message)| InvalidValue { key, message })
}

impl InvalidValue {
    /// An error about a key.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        InvalidValue { key: key.into(), message: message.into() }
    }
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for InvalidValue {}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        Fast,
        Slow(u8),
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        number: i32,
        share: Option<f64>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        name: String,
        #[serde(default)]
        table: Vec<u16>,
        #[serde(default)]
        inner: Vec<Inner>,
        #[serde(default)]
        mode: Option<Mode>,
        #[serde(default)]
        on: bool,
    }

    #[test]
    fn values_agree_with_serde_json() {
        for value in [
            json!({ "name": "a" }),
            json!({ "name": "a", "table": [1, 2], "mode": "fast", "on": true }),
            json!({ "name": "", "inner": [{ "number": -3, "share": 0.5 }, {}], "mode": null }),
            json!({ "name": "a", "mode": { "slow": 3 } }),
        ] {
            let wanted: Outer = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(typed::<Outer>(&value), Ok(wanted), "{value}");
        }
    }

    #[test]
    fn errors_name_the_key_without_rust_terms() {
        let long = "x".repeat(100);
        for (value, message) in [
            (json!(3), "found 3, allowed: a set of keys".to_owned()),
            (json!(["a"]), "found [\"a\"], allowed: a set of keys".into()),
            (json!({}), "name: missing, must be given".into()),
            (json!({ "name": 1 }), "name: found 1, allowed: text in quotes".into()),
            (
                json!({ "name": "a", "x": 1 }),
                "x: found key \"x\", allowed: name, table, inner, mode, on".into(),
            ),
            (json!({ "name": "a", "table": [1, -1] }), {
                "table[1]: found -1, allowed: a whole number, 0 to 65535".into()
            }),
            (json!({ "name": "a", "table": {} }), {
                "table: found a set of keys, allowed: a list".into()
            }),
            (json!({ "name": "a", "inner": [{ "y": 0 }] }), {
                "inner[0].y: found key \"y\", allowed: number, share".into()
            }),
            (json!({ "name": "a", "inner": [{ "share": "much" }] }), {
                "inner[0].share: found \"much\", allowed: a number".into()
            }),
            (json!({ "name": "a", "mode": long }), {
                format!("mode: found \"{}...\", allowed: fast, slow", "x".repeat(60))
            }),
            (json!({ "name": "a", "mode": 7 }), "mode: found 7, allowed: fast, slow".into()),
            (json!({ "name": "a", "on": null }), {
                "on: found null, allowed: true or false".into()
            }),
        ] {
            assert_eq!(typed::<Outer>(&value).unwrap_err().to_string(), message, "{value}");
        }
    }
}
