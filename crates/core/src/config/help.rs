//! Help for the keys of a config, from its schema: name, type, default, meaning.

use super::control::ControlSection;
use super::keys::{CardSection, HostKeys, InterruptSection, IsolationSection};
use super::os::{OsKeys, TaskKeys};
use crate::packet::pool::PoolConfig;
use schemars::JsonSchema;

/// One key of a config, for help.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct KeyHelp {
    /// The key.
    pub name: String,
    /// Its type, or the values allowed.
    pub r#type: String,
    /// Its default, as TOML; empty if it must be given or may be left out.
    pub default: String,
    /// What it does.
    pub help: String,
}

/// The sections of a card file that do not belong to a component, with their keys.
pub fn common_sections() -> Vec<(&'static str, Vec<KeyHelp>)> {
    vec![
        ("card", keys_of::<CardSection>()),
        ("pool", keys_of::<PoolConfig>()),
        ("host", keys_of::<HostKeys>()),
        ("interrupt", keys_of::<InterruptSection>()),
        ("isolation", keys_of::<IsolationSection>()),
        ("os", keys_of::<OsKeys>()),
        ("task", keys_of::<TaskKeys>()),
        ("control", keys_of::<ControlSection>()),
    ]
}

/// The keys of a typed config.
pub fn keys_of<T: JsonSchema>() -> Vec<KeyHelp> {
    let settings = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true);
    keys_in(&settings.into_generator().into_root_schema_for::<T>().to_value())
}

/// The keys of an object's schema, with all that it refers to in it.
pub fn keys_in(schema: &serde_json::Value) -> Vec<KeyHelp> {
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    properties
        .iter()
        .map(|(name, property)| KeyHelp {
            name: name.clone(),
            r#type: type_of(property),
            default: match &property["default"] {
                serde_json::Value::Null => String::new(),
                value => value.to_string(),
            },
            help: property["description"].as_str().unwrap_or("").replace('\n', " "),
        })
        .collect()
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
