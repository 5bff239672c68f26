//! The keys of a shared object, from its JSON schema.
//!
//! Supported: `properties` with `type` (integer, number, boolean, string, array), `items`, `enum`
//! or `oneOf` constants, `minimum`, `maximum`, `default`, `description`, and `required`, also in
//! the form that the `schemars` crate writes. The object's `init` checks everything else.
//!
//! Guarantees: an accepted section has every required key, no unknown key, and values of the stated
//! types and ranges; missing keys get their defaults.

use picnic_core::config::{KeyHelp, check_ranges, keys_in};
use picnic_core::error::{ConfigError, not_among};
use serde_json::{Map, Value};

/// A schema that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema(Value);

const TYPES: [&str; 5] = ["integer", "number", "boolean", "string", "array"];

impl Schema {
    /// Reads a schema; without a text, there are no keys.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn parse(text: Option<&str>) -> Result<Self, String> {
        let mut schema: Value = match text {
            Some(text) => serde_json::from_str(text)
                .map_err(|error| format!("its config_schema is not JSON: {error}"))?,
            None => Value::Object(Map::new()),
        };
        let Some(object) = schema.as_object() else {
            return Err("its config_schema is not a JSON object".into());
        };
        if object.get("properties").is_some_and(|properties| !properties.is_object()) {
            return Err("the properties of its config_schema are not an object".into());
        }
        for property in schema["properties"].as_object_mut().into_iter().flatten() {
            simplify(property.1);
        }
        let schema = Schema(schema);
        for (key, property) in schema.properties() {
            if ["function", "plugin"].contains(&&**key) {
                return Err(format!("its config_schema has a key \"{key}\", which is the card's"));
            }
            let kind = property["type"].as_str().unwrap_or_default();
            if !TYPES.contains(&kind) && !property["enum"].is_array() {
                let allowed = not_among("", kind, TYPES.into_iter());
                return Err(format!("config_schema: type of {key}: {allowed}"));
            }
            if let Some(default) = property.get("default") {
                check(property, key, default)
                    .map_err(|error| format!("config_schema: default of {error}"))?;
            }
        }
        Ok(schema)
    }

    fn properties(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0["properties"].as_object().into_iter().flatten()
    }

    /// Its keys, for help.
    pub fn keys(&self) -> Vec<KeyHelp> {
        keys_in(&self.0)
    }

    /// Checks the keys of a section and fills in defaults.
    ///
    /// # Errors
    /// The wrong key, with the value found and the values allowed.
    pub fn complete(
        &self,
        mut given: Map<String, Value>,
    ) -> Result<Map<String, Value>, ConfigError> {
        for (key, value) in &given {
            let Some(property) = self.0["properties"].get(key) else {
                let allowed = self.properties().map(|(key, _)| &**key).chain(["plugin"]);
                return Err(ConfigError::new(key, not_among("key ", key, allowed)));
            };
            check(property, key, value)?;
        }
        for key in self.0["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !given.contains_key(key) {
                let message = format!("found no key \"{key}\", which must be given");
                return Err(ConfigError::new("", message));
            }
        }
        for (key, property) in self.properties() {
            if let (false, Some(default)) = (given.contains_key(key), property.get("default")) {
                given.insert(key.clone(), default.clone());
            }
        }
        Ok(given)
    }
}

/// Rewrites `oneOf` constants and nullable types into forms that [`check`] supports.
fn simplify(property: &mut Value) {
    if let Some(types) = property["type"].as_array() {
        let other = types.iter().find(|name| *name != "null").cloned();
        property["type"] = other.unwrap_or_default();
    }
    for choice in ["oneOf", "anyOf"] {
        let words: Option<Vec<_>> = property[choice].as_array().map(|choices| {
            choices.iter().filter_map(|choice| choice.get("const").cloned()).collect()
        });
        if let Some(words) = words.filter(|words| !words.is_empty()) {
            property["enum"] = words.into();
        }
    }
    if let Some(object) = property.as_object_mut() {
        // A null default means no default.
        object.retain(|_, value| !value.is_null());
    }
}

fn check(property: &Value, key: &str, value: &Value) -> Result<(), ConfigError> {
    let wrong = |allowed: &str| {
        const LONGEST: usize = 60;
        let found: String = value.to_string().chars().take(LONGEST).collect();
        Err(ConfigError::new(key, format!("found {found}, allowed: {allowed}")))
    };
    if let Some(words) = property["enum"].as_array() {
        if words.contains(value) {
            return Ok(());
        }
        let words: Vec<_> = words.iter().map(Value::to_string).collect();
        return wrong(&words.join(", "));
    }
    let other_type = match property["type"].as_str() {
        Some("integer") if !(value.is_i64() || value.is_u64()) => "a whole number",
        Some("number") if !value.is_number() => "a number",
        Some("boolean") if !value.is_boolean() => "true or false",
        Some("string") if !value.is_string() => "text in quotes",
        Some("array") if !value.is_array() => "a list",
        _ => "",
    };
    if !other_type.is_empty() {
        return wrong(other_type);
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        if property["items"].is_object() {
            check(&property["items"], &format!("{key}[{index}]"), item)?;
        }
    }
    check_ranges(property, key, value).map_err(|error| ConfigError::new(error.key, error.message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn schema() -> Schema {
        let text = json!({
            "properties": {
                "rate": { "type": "integer", "minimum": 1, "maximum": 100, "default": 10,
                          "description": "Packets per second." },
                "share": { "type": "number", "minimum": 0 },
                "mode": { "enum": ["drop", "pass"], "default": "drop" },
                "ports": { "type": "array", "items": { "type": "integer", "maximum": 65535 } },
                "name": { "type": "string" },
            },
            "required": ["name"],
        });
        Schema::parse(Some(&text.to_string())).unwrap()
    }

    fn complete(given: Value) -> Result<Value, String> {
        let Value::Object(given) = given else { panic!("an object is wanted") };
        schema().complete(given).map(Value::Object).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_filled_in() {
        let complete = complete(json!({ "name": "a", "ports": [53] })).unwrap();
        let wanted = json!({ "name": "a", "ports": [53], "rate": 10, "mode": "drop" });
        assert_eq!(complete, wanted);
        assert_eq!(schema().keys()[0].help, "Packets per second.");
        assert_eq!(schema().keys()[0].r#type, "integer, 1 to 100");
    }

    #[test]
    fn schema_violations_name_the_key() {
        for (given, message) in [
            (json!({}), "card: found no key \"name\", which must be given"),
            (json!({ "name": 3 }), "card: name: found 3, allowed: text in quotes"),
            (json!({ "name": "", "rate": 0 }), "card: rate: found 0, allowed: 1 to 100"),
            (json!({ "name": "", "rate": 1.5 }), "card: rate: found 1.5, allowed: a whole number"),
            (json!({ "name": "", "share": -1 }), "card: share: found -1, allowed: 0 or more"),
            (
                json!({ "name": "", "mode": "x" }),
                "card: mode: found \"x\", allowed: \"drop\", \"pass\"",
            ),
            (json!({ "ports": 5 }), "card: ports: found 5, allowed: a list"),
            (json!({ "ports": [1, 70000] }), "card: ports[1]: found 70000, allowed: up to 65535"),
        ] {
            assert_eq!(complete(given).unwrap_err(), message);
        }
        let unknown = complete(json!({ "rates": 3 })).unwrap_err();
        assert!(unknown.starts_with("card: rates: found key \"rates\", allowed: rate, "));
        assert!(unknown.ends_with("did you mean \"rate\"?"), "{unknown}");
    }

    #[test]
    fn invalid_schemas_are_refused() {
        for text in [
            "x",
            "[]",
            r#"{"properties": 1}"#,
            r#"{"properties": {"a": {}}}"#,
            r#"{"properties": {"a": {"type": "object"}}}"#,
            r#"{"properties": {"plugin": {"type": "string"}}}"#,
            r#"{"properties": {"a": {"type": "integer", "default": "x"}}}"#,
        ] {
            assert!(Schema::parse(Some(text)).is_err(), "{text}");
        }
        assert!(Schema::parse(None).unwrap().keys().is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_a_schema_or_an_error(text in "\\PC{0,80}") {
            let _ = Schema::parse(Some(&text));
        }

        #[test]
        fn a_number_passes_if_it_is_in_range(rate: i64) {
            let given = json!({ "name": "a", "rate": rate });
            prop_assert_eq!(complete(given).is_ok(), (1..=100).contains(&rate));
        }
    }
}
