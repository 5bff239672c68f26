//! Typed values from JSON; errors say what was found and what is allowed.
//!
//! ```
//! use picnic_core::json::typed;
//! #[derive(serde::Deserialize, Debug)]
//! struct Arguments { table: Vec<u16> }
//! let error = typed::<Arguments>(&serde_json::json!({ "table": [0, 70000] })).unwrap_err();
//! assert_eq!(error.to_string(), "table[1]: found 70000, allowed is 0 to 65535");
//! ```
//!
//! Guarantees: any JSON is read to a value or an error, and the error names the key. Texts
//! that are found are shown cut to 60 characters.

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Expected, IntoDeserializer,
    MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde_json::{Map, Value};
use std::fmt;

/// The longest part of a text that an error shows, in characters.
const SHOWN: usize = 60;

/// What is wrong with a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wrong {
    /// The key it is about, as a path such as `table[3]`; empty for the whole.
    pub key: String,
    /// What was found and what is allowed.
    pub message: String,
}

/// Reads a value.
///
/// # Errors
/// The key that is wrong, what was found and what is allowed.
pub fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, Wrong> {
    T::deserialize(Reader(value))
}

impl Wrong {
    /// An error about a key.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Wrong { key: key.into(), message: message.into() }
    }

    /// The same error, seen from outside: `step` is `key` or `[3]`.
    fn within(mut self, step: &str) -> Self {
        let dot = if self.key.is_empty() || self.key.starts_with('[') { "" } else { "." };
        self.key = format!("{step}{dot}{}", self.key);
        self
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Wrong {}

/// Text as an error shows it.
fn quoted(text: &str) -> String {
    let cut = if text.chars().nth(SHOWN).is_some() { "..." } else { "" };
    format!("\"{}{cut}\"", text.chars().take(SHOWN).collect::<String>())
}

/// What was found, in words.
fn found(unexpected: Unexpected<'_>) -> String {
    match unexpected {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => number.to_string(),
        Unexpected::Str(text) => quoted(text),
        Unexpected::Unit | Unexpected::Option => "null".into(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map | Unexpected::NewtypeStruct => "an object".into(),
        other => other.to_string(),
    }
}

/// What is allowed, in words: serde's own speak of Rust.
fn allowed(expected: &dyn Expected) -> String {
    let text = expected.to_string();
    match &*text {
        "u8" => format!("0 to {}", u8::MAX),
        "u16" => format!("0 to {}", u16::MAX),
        "u32" => format!("0 to {}", u32::MAX),
        "u64" | "usize" => "a whole number, 0 or more".into(),
        "i8" => format!("{} to {}", i8::MIN, i8::MAX),
        "i16" => format!("{} to {}", i16::MIN, i16::MAX),
        "i32" => format!("{} to {}", i32::MIN, i32::MAX),
        "i64" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "a text".into(),
        "unit" => "null".into(),
        text if text.starts_with("struct ") || text == "a map" => "an object".into(),
        text if text.ends_with("sequence") => "a list".into(),
        text if text.starts_with("enum ") || text.ends_with("variant identifier") => {
            "a name".into()
        }
        _ => text,
    }
}

/// Names in a list; `none` if there are none.
fn names(names: &[&str]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Wrong::new("", message.to_string())
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Wrong::new("", format!("found {}, allowed is {}", found(unexpected), allowed(expected)))
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(unexpected, expected)
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        Wrong::new("", format!("found {length} values, allowed is {expected}"))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Wrong::new("", format!("found {}, allowed: {}", quoted(variant), names(expected)))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::unknown_variant(field, expected)
    }

    fn missing_field(field: &'static str) -> Self {
        Wrong::new(field, "is missing")
    }

    fn duplicate_field(field: &'static str) -> Self {
        Wrong::new(field, "stands twice")
    }
}

/// A value on its way to a type.
struct Reader<'v>(&'v Value);

impl<'v> Reader<'v> {
    fn unexpected(&self) -> Unexpected<'v> {
        match self.0 {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => Unexpected::Unsigned(number),
                (None, Some(number)) => Unexpected::Signed(number),
                (None, None) => Unexpected::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        }
    }
}

impl<'de> Deserializer<'de> for Reader<'de> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(_) => match self.unexpected() {
                Unexpected::Unsigned(number) => visitor.visit_u64(number),
                Unexpected::Signed(number) => visitor.visit_i64(number),
                Unexpected::Float(number) => visitor.visit_f64(number),
                other => Err(de::Error::invalid_type(other, &visitor)),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => visitor.visit_seq(Items { items: items.iter(), index: 0 }),
            Value::Object(fields) => {
                visitor.visit_map(Fields { fields: fields.iter(), value: None })
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    /// By name only: a list says nothing about which is which.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        match self.0 {
            Value::Object(_) => self.deserialize_any(visitor),
            _ => Err(de::Error::invalid_type(self.unexpected(), &visitor)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        match self.0 {
            Value::String(name) => visitor.visit_enum(Variant { name, content: &Value::Null }),
            Value::Object(fields) if fields.len() == 1 => {
                let (name, content) = only(fields);
                visitor.visit_enum(Variant { name, content })
            }
            _ => Err(de::Error::invalid_type(self.unexpected(), &visitor)),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// Name and content of the only field.
fn only(fields: &Map<String, Value>) -> (&str, &Value) {
    fields.iter().next().map_or(("", &Value::Null), |(name, content)| (name, content))
}

struct Items<'v> {
    items: std::slice::Iter<'v, Value>,
    index: usize,
}

impl<'v> SeqAccess<'v> for Items<'v> {
    type Error = Wrong;

    fn next_element_seed<S: DeserializeSeed<'v>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Wrong> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let step = format_args!("[{}]", self.index).to_string();
        self.index += 1;
        seed.deserialize(Reader(item)).map(Some).map_err(|error| error.within(&step))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Fields<'v> {
    fields: serde_json::map::Iter<'v>,
    value: Option<(&'v str, &'v Value)>,
}

impl<'v> MapAccess<'v> for Fields<'v> {
    type Error = Wrong;

    fn next_key_seed<S: DeserializeSeed<'v>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Wrong> {
        let Some((name, value)) = self.fields.next() else { return Ok(None) };
        self.value = Some((name, value));
        let name: StrDeserializer<'_, Wrong> = name.as_str().into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'v>>(&mut self, seed: S) -> Result<S::Value, Wrong> {
        let (name, value) = self.value.take().unwrap_or(("", &Value::Null));
        seed.deserialize(Reader(value)).map_err(|error| error.within(name))
    }
}

struct Variant<'v> {
    name: &'v str,
    content: &'v Value,
}

impl<'v> EnumAccess<'v> for Variant<'v> {
    type Error = Wrong;
    type Variant = Reader<'v>;

    fn variant_seed<S: DeserializeSeed<'v>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Reader<'v>), Wrong> {
        let name: StrDeserializer<'_, Wrong> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, Reader(self.content)))
    }
}

impl<'v> VariantAccess<'v> for Reader<'v> {
    type Error = Wrong;

    fn unit_variant(self) -> Result<(), Wrong> {
        match self.0 {
            Value::Null => Ok(()),
            _ => Err(de::Error::invalid_type(self.unexpected(), &"a name alone")),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'v>>(self, seed: S) -> Result<S::Value, Wrong> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'v>>(self, _: usize, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'v>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        self.deserialize_any(visitor)
    }
}

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
    fn what_serde_json_reads_is_read_alike() {
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
    fn errors_name_the_key_and_speak_no_rust() {
        let long = "x".repeat(100);
        for (value, message) in [
            (json!(3), "found 3, allowed is an object".to_owned()),
            (json!(["a"]), "found a list, allowed is an object".into()),
            (json!({}), "name: is missing".into()),
            (json!({ "name": 1 }), "name: found 1, allowed is a text".into()),
            (
                json!({ "name": "a", "x": 1 }),
                "found \"x\", allowed: name, table, inner, mode, on".into(),
            ),
            (json!({ "name": "a", "table": [1, -1] }), {
                "table[1]: found -1, allowed is 0 to 65535".into()
            }),
            (json!({ "name": "a", "table": {} }), {
                "table: found an object, allowed is a list".into()
            }),
            (json!({ "name": "a", "inner": [{ "y": 0 }] }), {
                "inner[0]: found \"y\", allowed: number, share".into()
            }),
            (json!({ "name": "a", "inner": [{ "share": "much" }] }), {
                "inner[0].share: found \"much\", allowed is a number".into()
            }),
            (json!({ "name": "a", "mode": long }), {
                format!("mode: found \"{}...\", allowed: fast, slow", "x".repeat(60))
            }),
            (json!({ "name": "a", "mode": 7 }), "mode: found 7, allowed is a name".into()),
            (json!({ "name": "a", "on": null }), {
                "on: found null, allowed is true or false".into()
            }),
        ] {
            assert_eq!(typed::<Outer>(&value).unwrap_err().to_string(), message, "{value}");
        }
    }
}
