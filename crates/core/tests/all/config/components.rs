//! Keys of components, which the registry reads.

use super::{parse, sections};
use picnic_core::config::{Section, keys_of};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component, Entry, find};
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CounterConfig {
    /// Where to start.
    start: u32,
    /// Names,
    /// in order.
    names: Vec<String>,
    /// A word, if any.
    word: Option<String>,
}

struct CounterPart;

impl Component for CounterPart {
    type Product = u32;
    type Config = CounterConfig;
    const NAME: &'static str = "counter";
    const HELP: &'static str = "counts";

    fn build(config: CounterConfig, context: &BuildContext) -> Result<u32, ConfigError> {
        if config.start > 9 {
            return Err(ConfigError::new("start", "found more than 9"));
        }
        if let Some(index) = config.names.iter().position(String::is_empty) {
            return Err(ConfigError::new(format!("names[{index}]"), "found no name"));
        }
        Ok(config.start + context.position as u32)
    }
}

const REGISTRY: &[Entry<u32>] = &[Entry::of::<CounterPart>()];

fn build(text: &str) -> Result<u32, ConfigError> {
    let card = parse(text)?;
    let context = BuildContext { position: 100, ..BuildContext::default() };
    find(REGISTRY, &card.rx[0])?.build(&card.rx[0], &context)
}

#[test]
fn components_are_found_and_built() {
    assert_eq!(build("[[rx]]\nfunction = \"counter\"\nstart = 3").unwrap(), 103);
    let told = |text: &str| build(text).unwrap_err().to_string();
    assert_eq!(
        told("[[rx]]\nfunction = \"conter\""),
        "cards/nic.toml:2: rx[0].function: found \"conter\", allowed: counter; did you mean \"counter\"?"
    );
    assert_eq!(
        told("[[rx]]\nfunction = \"counter\"\n\nstart = 10"),
        "cards/nic.toml:4: rx[0].start: found more than 9"
    );
    assert_eq!(
        told("[[rx]]\nfunction = \"counter\"\nnames = [\n\"a\",\n\"\"]"),
        "cards/nic.toml:5: rx[0].names[1]: found no name"
    );
    assert_eq!(
        told("[[rx]]\nfunction = \"counter\"\nstrt = 10"),
        "cards/nic.toml:3: rx[0].strt: found key \"strt\", allowed: start, names, word, function; \
         did you mean \"start\"?"
    );
    let section = Section::from_text("function", "function = \"counter\"\nstart = \"x\"").unwrap();
    assert_eq!(
        REGISTRY[0].build(&section, &BuildContext::default()).unwrap_err().to_string(),
        "card:2: start: found \"x\", allowed: a whole number, 0 to 4294967295"
    );
    let unnamed = Section::from_text("port", "path = \"x\"").unwrap_err();
    assert_eq!(unnamed.to_string(), "card: missing port, expected a name");
    assert_eq!(Section::named("function", "counter").parse::<CounterConfig>().unwrap().start, 0);
}

#[test]
fn every_key_has_type_default_and_help() {
    for entry in sections().iter() {
        let section = entry.name;
        assert!(!entry.help.is_empty(), "[{section}] has help");
        for key in entry.keys() {
            let place = format!("{section}.{}", key.name);
            assert!(!key.r#type.is_empty() && !key.r#type.contains("value"), "{place}: {key:?}");
            assert!(!key.help.is_empty() && !key.help.contains('\n'), "{place}: {key:?}");
            if matches!(section, "wire" | "trace" | "class" | "device") {
                continue;
            }
            assert!(!key.default.is_empty(), "{place}: {key:?}");
            // The default is TOML that the section takes.
            parse(&format!("[{section}]\n{} = {}", key.name, key.default)).expect(&place);
        }
    }
    let keys = keys_of::<CounterConfig>();
    let rows: Vec<_> = keys
        .iter()
        .map(|key| [&key.name, &key.r#type, &key.default, &key.help].map(String::as_str))
        .collect();
    for row in [
        ["start", "integer", "0", "Where to start."],
        ["names", "list of string", "[]", "Names, in order."],
        ["word", "string", "", "A word, if any."],
    ] {
        assert!(rows.contains(&row), "{row:?} in {rows:?}");
    }
}

#[test]
fn all_errors_in_lists_of_tables_are_reported() {
    #[derive(Debug, Default, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct Part {
        #[schemars(range(min = 1, max = 9))]
        size: u32,
        word: String,
        bytes: Vec<u8>,
    }
    #[derive(Debug, Default, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct Config {
        part: Vec<Part>,
        count: u32,
    }
    let text = "function = \"counter\"\ncount = \"a\"\n[[part]]\nsize = 10\nword = 3\nwrod = 4\n\
                [[part]]\nsize = \"b\"\nbytes = [1, 300, 400]\n[[part]]\nzise = 2\n";
    let section = Section::from_text("function", text).unwrap();
    let error = section.parse::<Config>().unwrap_err();
    let found: Vec<_> = error.each().map(|error| (error.line, error.key.as_str())).collect();
    let wanted = [
        (2, "count"),
        (4, "part[0].size"),
        (5, "part[0].word"),
        (6, "part[0].wrod"),
        (8, "part[1].size"),
        (9, "part[1].bytes[1]"),
        (9, "part[1].bytes[2]"),
        (11, "part[2].zise"),
    ];
    assert_eq!(found, wanted, "{error}");
}
