//! Help for the keys of a config, from its schema: name, type, range, default, meaning.

use super::document::{Node, Origin, Value, join};
use crate::json::InvalidValue;
use schemars::JsonSchema;
use serde_json::Value as Json;
use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// One key of a config, for help.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct KeyHelp {
    /// The key.
    pub name: String,
    /// Its type, with the range if there is one, or the values allowed.
    pub r#type: String,
    /// Its default, as TOML; empty if it is required or optional without a default.
    pub default: String,
    /// One line of help.
    pub help: String,
    /// Whether it is a number of a result that may fall; others only grow.
    #[serde(skip)]
    pub gauge: bool,
    /// For a list of sections, the keys of each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyHelp>,
    /// Whether few ever turn it: help leaves it out unless all is asked for.
    #[serde(skip)]
    pub advanced: bool,
    /// Its JSON schema.
    #[serde(skip)]
    schema: Json,
}

/// The range of a number.
#[derive(Clone, Copy, Debug)]
struct Range {
    low: f64,
    high: f64,
    /// Whether the lower bound is not itself allowed.
    is_above: bool,
    /// Powers of two only.
    powers: bool,
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Range { low, high, is_above, powers } = self;
        let powers = if *powers { "a power of two, " } else { "" };
        match (low.is_finite(), high.is_finite()) {
            _ if *is_above => write!(f, "above {low}"),
            (true, true) => write!(f, "{powers}{low} to {high}"),
            (true, false) => write!(f, "{powers}{low} or more"),
            (false, _) => write!(f, "{powers}up to {high}"),
        }
    }
}

impl Range {
    /// The range that a schema states; none if every number of its type is allowed.
    fn of(schema: &Json) -> Option<Range> {
        let bound = |key: &str| schema[key].as_f64();
        let above = bound("exclusiveMinimum");
        let (low, high) = (above.or(bound("minimum")), bound("maximum"));
        let types = [&schema["type"], &schema["type"][0]];
        let is_unsigned =
            types.contains(&&Json::from("integer")) && low == Some(0.0) && above.is_none();
        if high.is_none() && (low.is_none() || is_unsigned) {
            return None;
        }
        Some(Range {
            low: low.unwrap_or(f64::NEG_INFINITY),
            high: high.unwrap_or(f64::INFINITY),
            is_above: above.is_some(),
            powers: schema["powerOfTwo"] == true,
        })
    }

    fn has(&self, number: f64) -> bool {
        let is_power = number >= 1.0 && (number as u64).is_power_of_two();
        number.is_finite()
            && (self.low..=self.high).contains(&number)
            && !(self.is_above && number == self.low)
            && (is_power || !self.powers)
    }
}

impl KeyHelp {
    /// A key with text for its default.
    pub fn text(name: &str, default: &str, help: String) -> Self {
        let default = Json::from(default).to_string();
        let (name, r#type, schema) = (name.into(), "string".into(), Json::Null);
        let (gauge, advanced, keys) = (false, false, Vec::new());
        KeyHelp { name, r#type, default, help, gauge, keys, advanced, schema }
    }

    /// Whether it holds a section with its own keys, such as `[wire.fault]`, or a list of such
    /// sections.
    pub fn is_section(&self) -> bool {
        ["section", "list of section"].contains(&self.r#type.as_str())
    }

    /// Whether its values are texts.
    pub(super) fn is_text(&self) -> bool {
        self.r#type.starts_with("string")
    }

    pub(super) fn schema(&self) -> &Json {
        &self.schema
    }

    /// Tells `wrong` of each number in a value of the key that is out of its range.
    pub(super) fn check(&self, path: &str, node: &Node, wrong: &mut impl FnMut(&Node, &str, &str)) {
        check(&self.schema, path, node, wrong);
    }
}

fn check(schema: &Json, path: &str, node: &Node, wrong: &mut impl FnMut(&Node, &str, &str)) {
    let number = match node.value.plain() {
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        Value::List(items) => {
            for (index, item) in items.iter().enumerate() {
                let by_place = &schema["prefixItems"][index];
                let schema = if by_place.is_null() { &schema["items"] } else { by_place };
                check(schema, &format!("{path}[{index}]"), item, wrong);
            }
            return;
        }
        Value::Table(entries) => {
            let keys = entries.iter();
            keys.for_each(|(key, node)| {
                check(&schema["properties"][key], &join(path, key), node, wrong)
            });
            return;
        }
        _ => return,
    };
    if let Some(range) = Range::of(schema).filter(|range| !range.has(number)) {
        let found = match node.value.plain() {
            Value::Float(number) => number.to_string(),
            _ => node.value.shown(),
        };
        wrong(node, path, &format!("found {found}, allowed: {range}"));
    }
}

/// The first number in a value that is out of the range that its JSON schema states.
///
/// # Errors
/// There is one: its path, what was found and what is allowed.
pub fn check_ranges(schema: &Json, path: &str, json: &Json) -> Result<(), InvalidValue> {
    let mut first = Ok(());
    let node = Node { place: Origin::BuiltIn, value: Value::from(json) };
    check(schema, path, &node, &mut |_, path, message| {
        if first.is_ok() {
            first = Err(InvalidValue::new(path, message));
        }
    });
    first
}

/// The keys of a typed config.
pub fn keys_of<T: JsonSchema + 'static>() -> Vec<KeyHelp> {
    cached_keys::<T>().to_vec()
}

/// As [`keys_of`], cached. Schemas are made once per type: a program reads many cards.
pub(super) fn cached_keys<T: JsonSchema + 'static>() -> Arc<[KeyHelp]> {
    static KNOWN: LazyLock<Mutex<HashMap<TypeId, Arc<[KeyHelp]>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(TypeId::of::<T>()).or_insert_with(|| read_schema::<T>().into()).clone()
}

fn read_schema<T: JsonSchema>() -> Vec<KeyHelp> {
    let settings = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true);
    keys_in(&settings.into_generator().into_root_schema_for::<T>().to_value())
}

/// The keys of an object's schema, with all that it refers to in it.
pub fn keys_in(schema: &Json) -> Vec<KeyHelp> {
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    properties
        .iter()
        .map(|(name, property)| {
            let gauge = property["x-gauge"] == true;
            let kind = if gauge { ", gauge" } else { "" };
            KeyHelp {
                name: name.clone(),
                r#type: type_of(property) + kind,
                default: match &property["default"] {
                    Json::Null => String::new(),
                    value => value.to_string(),
                },
                help: property["description"].as_str().unwrap_or("").replace('\n', " "),
                gauge,
                keys: keys_in(&property["items"]),
                advanced: property["x-advanced"] == true,
                schema: property.clone(),
            }
        })
        .collect()
}

fn type_of(schema: &Json) -> String {
    let list = |values: &Vec<Json>, item: fn(&Json) -> String| {
        values.iter().map(item).filter(|text| text != "null").collect::<Vec<_>>().join(" | ")
    };
    if let Some(values) = schema["enum"].as_array() {
        return list(values, Json::to_string);
    }
    if !schema["const"].is_null() {
        return schema["const"].to_string();
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(values) = schema[key].as_array() {
            return list(values, type_of);
        }
    }
    let named = |name: &str| match name {
        "array" => format!("list of {}", type_of(&schema["items"])),
        "integer" | "number" => match Range::of(schema) {
            Some(range) => format!("{name}, {range}"),
            None => name.to_owned(),
        },
        name => name.to_owned(),
    };
    match &schema["type"] {
        Json::String(name) => named(name),
        Json::Array(names) => {
            let names = names.iter().filter_map(|name| name.as_str());
            names.filter(|&name| name != "null").map(named).collect::<Vec<_>>().join(" | ")
        }
        _ => "value".into(),
    }
}
