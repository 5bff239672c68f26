//! Help for the keys of a config, from its schema: name, type, range, default, meaning.

use schemars::JsonSchema;
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
    /// What it does.
    pub help: String,
    /// Whether it is a number of a result that may fall; others only grow.
    #[serde(skip)]
    pub gauge: bool,
    /// For a list of sections, the keys of each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyHelp>,
    #[serde(skip)]
    range: Option<Range>,
}

/// The range of a whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    low: i128,
    high: i128,
    /// Powers of two only.
    powers: bool,
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Range { low, high, powers } = self;
        let powers = if *powers { "a power of two, " } else { "" };
        write!(f, "{powers}{low} to {high}")
    }
}

impl KeyHelp {
    /// A key with text for its default.
    pub fn text(name: &str, default: &str, help: String) -> Self {
        let default = serde_json::Value::from(default).to_string();
        let (name, r#type) = (name.into(), "string".into());
        KeyHelp { name, r#type, default, help, gauge: false, keys: Vec::new(), range: None }
    }

    /// Whether it holds a section with keys of its own, such as `[wire.fault]`, or a list of them.
    pub fn is_section(&self) -> bool {
        ["section", "list of section"].contains(&self.r#type.as_str())
    }

    /// Whether its values are texts.
    pub(super) fn is_text(&self) -> bool {
        self.r#type.starts_with("string")
    }

    /// The allowed range, if this number is outside.
    pub(super) fn refusal(&self, number: i128) -> Option<String> {
        let range = self.range?;
        let is_power = u128::try_from(number).is_ok_and(u128::is_power_of_two);
        let is_good = (range.low..=range.high).contains(&number) && (is_power || !range.powers);
        (!is_good).then(|| range.to_string())
    }
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

/// The keys of an object's schema, with everything that it refers to.
pub fn keys_in(schema: &serde_json::Value) -> Vec<KeyHelp> {
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    properties
        .iter()
        .map(|(name, property)| {
            let range = range_of(property);
            let range_text = range.map_or_else(String::new, |range| format!(", {range}"));
            let gauge = property["x-gauge"] == true;
            let kind = if gauge { ", gauge" } else { "" };
            KeyHelp {
                name: name.clone(),
                r#type: type_of(property) + &range_text + kind,
                default: match &property["default"] {
                    serde_json::Value::Null => String::new(),
                    value => value.to_string(),
                },
                help: property["description"].as_str().unwrap_or("").replace('\n', " "),
                gauge,
                keys: keys_in(&property["items"]),
                range,
            }
        })
        .collect()
}

/// The range that a key declares, or that of its type if the type is short.
fn range_of(property: &serde_json::Value) -> Option<Range> {
    let bound = |key: &str| property[key].as_i64().map(i128::from);
    let (low, high) = (bound("minimum")?, bound("maximum")?);
    Some(Range { low, high, powers: property["powerOfTwo"] == true })
}

fn type_of(schema: &serde_json::Value) -> String {
    let list = |values: &Vec<serde_json::Value>, item: fn(&serde_json::Value) -> String| {
        values.iter().map(item).filter(|text| text != "null").collect::<Vec<_>>().join(" | ")
    };
    if let Some(values) = schema["enum"].as_array() {
        return list(values, serde_json::Value::to_string);
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
        name => name.to_owned(),
    };
    match &schema["type"] {
        serde_json::Value::String(name) => named(name),
        serde_json::Value::Array(names) => {
            let names = names.iter().filter_map(|name| name.as_str());
            names.filter(|&name| name != "null").map(named).collect::<Vec<_>>().join(" | ")
        }
        _ => "value".into(),
    }
}
