//! Reads typed configs from a card file's tree, or from JSON, through serde.
//!
//! Errors are made where the value is known, so each has the found and allowed values and the line;
//! none is derived from a parser's message.

use super::document::{Node, Origin, Value, join};
use crate::error::not_among;
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use std::fmt::{self, Display};

/// A wrong value and its place.
#[derive(Debug)]
pub(super) struct Fault {
    /// Path relative to the part that was read; empty if it concerns the whole part.
    pub(super) key: String,
    /// None if it is about the whole.
    pub(super) place: Option<Origin>,
    what: FaultKind,
}

#[derive(Debug)]
enum FaultKind {
    /// A whole message.
    Message(String),
    /// The allowed values; the text starts with the value found.
    Allowed(String),
    /// An unknown key, and the known ones.
    Key(String, &'static [&'static str]),
}

impl Fault {
    fn new(what: FaultKind) -> Self {
        Fault { key: String::new(), place: None, what }
    }

    fn allowed(allowed: impl Display) -> Self {
        Fault::new(FaultKind::Allowed(allowed.to_string()))
    }

    /// The fault as one of the node stored under this key.
    fn within(self, key: &str, node: &Node) -> Self {
        let what = match self.what {
            FaultKind::Allowed(allowed) => {
                FaultKind::Message(format!("found {}, allowed: {allowed}", node.value.shown()))
            }
            what => what,
        };
        Fault { key: join(key, &self.key), place: self.place.or(Some(node.place)), what }
    }

    /// As a message; `beside` are further allowed keys.
    pub(super) fn message(&self, beside: &[String]) -> String {
        match &self.what {
            FaultKind::Message(message) => message.clone(),
            FaultKind::Allowed(allowed) => format!("found something else, allowed: {allowed}"),
            FaultKind::Key(key, own) => {
                // Keys of a nested section have no further ones.
                let beside = if self.key == *key { beside } else { &[] };
                let allowed = own.iter().copied().chain(beside.iter().map(String::as_str));
                not_among("key ", key, allowed)
            }
        }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(&[]))
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: Display>(message: T) -> Self {
        Fault::new(FaultKind::Message(message.to_string()))
    }

    fn invalid_type(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Fault::allowed(expected)
    }

    fn invalid_value(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Fault::allowed(expected)
    }

    fn invalid_length(_: usize, expected: &dyn de::Expected) -> Self {
        Fault::allowed(expected)
    }

    fn unknown_variant(word: &str, words: &'static [&'static str]) -> Self {
        Fault::new(FaultKind::Message(not_among("", word, words.iter().copied())))
    }

    fn unknown_field(key: &str, keys: &'static [&'static str]) -> Self {
        Fault::new(FaultKind::Key(key.into(), keys))
    }

    fn missing_field(key: &'static str) -> Self {
        Fault { key: key.into(), ..Fault::new(FaultKind::Message("missing, must be given".into())) }
    }
}

/// Reads JSON.
///
/// # Errors
/// The wrong key, with the found and allowed values.
pub(crate) fn typed<T: DeserializeOwned>(json: &serde_json::Value) -> Result<T, (String, String)> {
    let node = Node { place: Origin::BuiltIn, value: Value::from(json) };
    T::deserialize(&node.value).map_err(|fault| {
        let fault = fault.within("", &node);
        (fault.key.clone(), fault.message(&[]))
    })
}

/// A section's keys, or some of them.
pub(super) struct Keys<'t>(pub(super) Vec<&'t (String, Node)>);

impl<'de> de::Deserializer<'de> for Keys<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_map(Entries { entries: self.0.into_iter(), next: None })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

/// The keys of a table, one by one.
struct Entries<'t, I: Iterator<Item = &'t (String, Node)>> {
    entries: I,
    next: Option<&'t (String, Node)>,
}

impl<'t, 'de, I: Iterator<Item = &'t (String, Node)>> de::MapAccess<'de> for Entries<'t, I> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.next = self.entries.next();
        let Some((key, node)) = self.next else { return Ok(None) };
        let word: StrDeserializer<'_, Fault> = key.as_str().into_deserializer();
        seed.deserialize(word).map(Some).map_err(|fault| fault.within(key, node))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let Some((key, node)) = self.next.take() else {
            return Err(de::Error::custom("found a value without a key"));
        };
        seed.deserialize(&node.value).map_err(|fault| fault.within(key, node))
    }
}

/// The items of a list, one by one.
struct Items<'t> {
    items: std::iter::Enumerate<std::slice::Iter<'t, Node>>,
}

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let read = seed.deserialize(&node.value);
        read.map(Some).map_err(|fault| fault.within(&format!("[{index}]"), node))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// Whole numbers of one type.
macro_rules! integer {
    ($($method:ident $visit:ident $type:ty),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            match self.plain() {
                Value::Integer(number) => match <$type>::try_from(*number) {
                    Ok(number) => visitor.$visit(number),
                    Err(_) => Err(whole(<$type>::MIN.into(), <$type>::MAX.into())),
                },
                _ => Err(whole(<$type>::MIN.into(), <$type>::MAX.into())),
            }
        }
    )*};
}

/// A range of numbers too long to print is not printed.
fn whole(low: i128, high: i128) -> Fault {
    match (low, u32::try_from(high)) {
        (0, Err(_)) => Fault::allowed("a whole number from 0"),
        (_, Err(_)) if high > u32::MAX.into() => Fault::allowed("a whole number"),
        _ => Fault::allowed(format!("a whole number, {low} to {high}")),
    }
}

impl Value {
    /// The value unless it is text.
    pub(super) fn plain(&self) -> &Value {
        match self {
            Value::Word(_, value) => value,
            value => value,
        }
    }

    fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) | Value::Word(text, _) => Some(text),
            _ => None,
        }
    }
}

impl<'de> de::Deserializer<'de> for &Value {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.plain() {
            Value::Text(text) | Value::Word(text, _) => visitor.visit_str(text),
            Value::Integer(number) => match (i64::try_from(*number), u64::try_from(*number)) {
                (Ok(number), _) => visitor.visit_i64(number),
                (_, Ok(number)) => visitor.visit_u64(number),
                _ => visitor.visit_i128(*number),
            },
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(is) => visitor.visit_bool(*is),
            Value::Null => visitor.visit_unit(),
            Value::Other(text) => {
                Err(de::Error::invalid_type(de::Unexpected::Other(text), &visitor))
            }
            Value::List(items) => visitor.visit_seq(Items { items: items.iter().enumerate() }),
            Value::Table(entries) => {
                visitor.visit_map(Entries { entries: entries.iter(), next: None })
            }
        }
    }

    integer! {
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64, deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.plain() {
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Integer(number) => visitor.visit_f64(*number as f64),
            _ => Err(Fault::allowed("a number")),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.plain() {
            Value::Boolean(is) => visitor.visit_bool(*is),
            _ => Err(Fault::allowed("true or false")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.as_text() {
            Some(text) => visitor.visit_str(text),
            None => Err(Fault::allowed("text in quotes")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self {
            Value::Null => visitor.visit_none(),
            value => visitor.visit_some(value),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self {
            Value::List(_) => self.deserialize_any(visitor),
            _ => Err(Fault::allowed("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self {
            Value::Table(_) => self.deserialize_any(visitor),
            _ => Err(Fault::allowed("a set of keys")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if let Some(word) = self.as_text() {
            let word: StrDeserializer<'_, Fault> = word.into_deserializer();
            return visitor.visit_enum(word);
        }
        match self {
            // A variant with content.
            Value::Table(entries) if entries.len() == 1 => {
                let entries = Entries { entries: entries.iter(), next: None };
                visitor.visit_enum(de::value::MapAccessDeserializer::new(entries))
            }
            value => {
                let (found, words) = (value.shown(), words.join(", "));
                Err(Fault::new(FaultKind::Message(format!("found {found}, allowed: {words}"))))
            }
        }
    }

    forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}
