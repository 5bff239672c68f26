//! Sections of a card file.
//!
//! A crate defines a section as a type: its fields are the keys, their doc comments the help, its
//! `Default` the defaults, and [`SectionConfig::check`] checks what types cannot express. One line
//! in a program's [`Sections`](super::Sections) allows it in card files.
//!
//! ```
//! use picnic_core::config::{SectionConfig, SectionEntry, Sections};
//! use picnic_core::error::ConfigError;
//!
//! /// `[lamp]`: a light that is on while the card runs.
//! #[derive(Clone, Debug, Default, serde::Deserialize, schemars::JsonSchema)]
//! #[serde(deny_unknown_fields, default)]
//! struct Lamp {
//!     /// How bright, in percent.
//!     #[schemars(range(max = 100))]
//!     percent: u32,
//! }
//!
//! impl SectionConfig for Lamp {
//!     const NAME: &'static str = "lamp";
//!     const HELP: &'static str = "A light that is on while the card runs.";
//! }
//!
//! let sections = Sections::core().with(&[SectionEntry::of::<Lamp>()]);
//! let card = sections.parse("[lamp]\npercent = 40\n", None)?;
//! assert_eq!(card.section::<Lamp>().percent, 40);
//! # Ok::<(), ConfigError>(())
//! ```

use super::CardFile;
use super::document::{Document, Node, Value, entry, join};
use super::help::{cached_keys, check_ranges};
use super::reader::Keys;
use super::sections::SectionEntry;
use crate::error::{ConfigError, nearest, not_among};
use crate::files::Files;
use crate::json::{InvalidValue, typed};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::ops::Deref;
use std::sync::Arc;

/// The form of a section in a card file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `[name]`: applies with its defaults if missing.
    Table,
    /// `[name]`: applies only if present.
    Optional,
    /// `[[name]]`, in order.
    List {
        /// Least number of sections; unless that is 0, an empty list counts as missing.
        least: usize,
        /// Largest number of sections.
        most: usize,
        /// Whether the built-in card has one, which is used if the list is missing.
        built_in: bool,
    },
}

/// The component that a section names: a port, a function, a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// The key that holds the name, such as `port`.
    pub key: &'static str,
    /// The component if the key is missing; none if the key is required.
    pub default: Option<&'static str>,
    /// The component in the built-in card, or in an example.
    pub example: &'static str,
}

/// The keys of a section that a crate adds to card files.
///
/// Numbers, and numbers in lists, are held to `#[schemars(range(min = ..., max = ...))]` and
/// `#[schemars(inner(range(...)))]`. The range is part of their help.
pub trait SectionConfig:
    DeserializeOwned + JsonSchema + Clone + Default + Send + Sync + 'static
{
    /// The section's name, lower case.
    const NAME: &'static str;
    /// Its purpose: a sentence.
    const HELP: &'static str;
    /// Its form in the file.
    const SHAPE: Shape = Shape::Table;
    /// The component it names, whose own keys are in the same section.
    const NAMES: Option<Names> = None;

    /// Checks what types do not express. An error names its key.
    ///
    /// # Errors
    /// A wrong value.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}

/// A section of a card file: its keys and its place.
#[derive(Clone, Debug)]
pub struct Placed<T> {
    /// Its keys.
    pub keys: T,
    /// Its place, and the component it names.
    pub section: Section,
}

impl<T: SectionConfig> Default for Placed<T> {
    fn default() -> Self {
        Placed { keys: T::default(), section: Section::absent::<T>(&Arc::default()) }
    }
}

impl<T> Deref for Placed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.keys
    }
}

/// Keys whose presence names the component if the usual key is missing: `plugin = "my.so"` is the
/// `function` called `plugin`.
const NAMED_BY_KEY: &[(&str, &str)] = &[("function", "plugin"), ("function", "object")];

/// A part of a card file whose keys are not read yet, usually a component's.
#[derive(Clone, Debug)]
pub struct Section {
    document: Arc<Document>,
    /// Its place: `wire[0]`; empty for the whole text.
    path: String,
    /// Keys that are not the component's own, including the one with its name.
    common: Arc<[String]>,
    /// The key that names the component: `port`.
    kind: &'static str,
    name: String,
}

impl Section {
    /// A section with a name and no keys.
    pub fn named(kind: &'static str, name: &str) -> Self {
        let (document, common) = (Arc::default(), Arc::default());
        Section { document, path: String::new(), common, kind, name: name.into() }
    }

    /// A section from TOML text: `Section::from_text("function", "function = \"rss\"")`.
    ///
    /// # Errors
    /// The text is not TOML, or does not name a component.
    pub fn from_text(kind: &'static str, text: &str) -> Result<Self, ConfigError> {
        let document = Arc::new(Document::parse(text, None)?);
        let names = Names { key: kind, default: None, example: "" };
        Section::of(&document, String::new(), Some(names), kind, &Arc::from([kind.to_owned()]))
    }

    /// The section at `path`, which holds a table or nothing.
    pub(super) fn of(
        document: &Arc<Document>,
        path: String,
        names: Option<Names>,
        name: &'static str,
        common: &Arc<[String]>,
    ) -> Result<Self, ConfigError> {
        let kind = names.map_or(name, |names| names.key);
        let mut section = Section {
            document: document.clone(),
            path,
            common: common.clone(),
            kind,
            name: names.and_then(|names| names.default).unwrap_or(name).into(),
        };
        let Some(names) = names else { return Ok(section) };
        match entry(section.table(), kind).map(|node| &node.value) {
            Some(Value::Text(name) | Value::Word(name, _)) => section.name = name.clone(),
            Some(value) => {
                let message = format!("found {}, allowed: a name in quotes", value.shown());
                return Err(section.locate(ConfigError::new(kind, message)));
            }
            None if let Some(name) = section.name_by_key() => section.name = name.into(),
            None if names.default.is_none() => {
                section.misspelt(names)?;
                let message = format!("missing {kind}, expected a name");
                return Err(section.locate(ConfigError::new("", message)));
            }
            None => {}
        }
        Ok(section)
    }

    /// For a section that must name its component: one of its keys is probably a typing error of
    /// that key.
    fn misspelt(&self, names: Names) -> Result<(), ConfigError> {
        let by_key = NAMED_BY_KEY.iter().filter(|(kind, _)| *kind == names.key);
        let allowed: Vec<_> =
            std::iter::once(names.key).chain(by_key.map(|(_, key)| *key)).collect();
        let found = self.table().iter().map(|(key, _)| key);
        match found.into_iter().find(|key| nearest(key, allowed.iter().copied()).is_some()) {
            None => Ok(()),
            Some(key) => {
                let message = not_among("key ", key, allowed.into_iter());
                Err(self.locate(ConfigError::new(key.as_str(), message)))
            }
        }
    }

    /// The component that a present key implies, if any.
    fn name_by_key(&self) -> Option<&'static str> {
        let stands =
            |(kind, key): &&(&str, &str)| *kind == self.kind && entry(self.table(), key).is_some();
        NAMED_BY_KEY.iter().find(stands).map(|(_, key)| *key)
    }

    /// The section of a kind that the file does not have.
    fn absent<T: SectionConfig>(document: &Arc<Document>) -> Self {
        Section {
            document: document.clone(),
            path: T::NAME.into(),
            common: SectionEntry::of::<T>().common(),
            kind: T::NAMES.map_or(T::NAME, |names| names.key),
            name: T::NAMES.and_then(|names| names.default).unwrap_or(T::NAME).into(),
        }
    }

    /// The card's files, for those that this section's keys name.
    pub fn files(&self) -> Files {
        self.document.files.of(&self.path)
    }

    /// The component's name, or the section's if it names none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key that holds the name.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The component's own keys in the file, each with its value as quoted in messages.
    pub(crate) fn own_keys(&self) -> impl Iterator<Item = (&str, String)> {
        let own = self.table().iter().filter(|(key, _)| !self.common.contains(key));
        own.map(|(key, node)| (key.as_str(), node.value.shown()))
    }

    /// Reads the component's own keys.
    ///
    /// # Errors
    /// An unknown key, a wrong type, a value that is not allowed.
    pub fn parse<T: DeserializeOwned + JsonSchema + 'static>(&self) -> Result<T, ConfigError> {
        let own = self.table().iter().filter(|(key, _)| !self.common.contains(key)).cloned();
        let mut faults = Vec::new();
        let config = self.read(own.collect(), &self.common, &mut faults);
        ConfigError::all(faults)?;
        config.ok_or_else(|| self.locate(ConfigError::new("", "found keys that cannot be read")))
    }

    /// A nested section, if present.
    pub(super) fn inner(&self, name: &'static str) -> Option<Self> {
        entry(self.table(), name)?.value.as_table()?;
        let (path, common) = (join(&self.path, name), Arc::default());
        Some(Section { path, common, kind: name, name: name.into(), ..self.clone() })
    }

    /// Adds file, line and the full key to an error about one of the section's keys.
    #[must_use]
    pub fn locate(&self, error: ConfigError) -> ConfigError {
        let errors = error.each().map(|error| {
            let error = ConfigError { further: Vec::new(), ..error.clone() };
            if error.line != 0 || error.file.is_some() {
                return error;
            }
            self.document.locate(ConfigError { key: join(&self.path, &error.key), ..error })
        });
        errors.reduce(ConfigError::and).unwrap_or_default()
    }

    /// Reads the keys of the section itself, not the keys of its component.
    pub(super) fn place<T: SectionConfig>(
        self,
        faults: &mut Vec<ConfigError>,
    ) -> Option<Placed<T>> {
        let known = cached_keys::<T>();
        let is_own = |key: &str| T::NAMES.is_none() || known.iter().any(|known| known.name == key);
        let own = self.table().iter().filter(|(key, _)| is_own(key)).cloned().collect();
        let before = faults.len();
        let keys: T = self.read(own, &[], faults)?;
        if faults.len() == before {
            faults.extend(keys.check().map_err(|error| self.locate(error)).err());
        }
        Some(Placed { keys, section: self })
    }

    /// A config of the valid keys; none if a required one is not valid. Errors go to `faults`.
    fn read<T: DeserializeOwned + JsonSchema + 'static>(
        &self,
        mut keys: Vec<(String, Node)>,
        beside: &[String],
        faults: &mut Vec<ConfigError>,
    ) -> Option<T> {
        let known = cached_keys::<T>();
        let before = faults.len();
        for (key, node) in keys.clone() {
            let Some(known) = known.iter().find(|known| known.name == *key) else { continue };
            known.check(&join(&self.path, &key), &node, &mut |node, key, message| {
                faults.push(self.document.error(node.place, key, message));
            });
        }
        let own = |key: &str| {
            key.strip_prefix(&*self.path).map(|key| key.trim_start_matches('.').to_owned())
        };
        for fault in &faults[before..] {
            remove(&mut keys, &own(&fault.key).unwrap_or_default());
        }
        loop {
            let fault = match T::deserialize(Keys(keys.iter().collect())) {
                Ok(config) => return Some(config),
                Err(fault) => fault,
            };
            let (key, message) = (join(&self.path, &fault.key), fault.message(beside));
            // A required key may be present and wrong.
            if !faults[before..].iter().any(|fault| fault.key == key) {
                faults.push(match fault.place {
                    Some(place) => self.document.error(place, &key, &message),
                    None => self.document.locate(ConfigError::new(key, message)),
                });
            }
            let whole = fault.key.split(['.', '[']).next().unwrap_or_default();
            if fault.place.is_none() || !(remove(&mut keys, &fault.key) || remove(&mut keys, whole))
            {
                return None;
            }
        }
    }

    fn table(&self) -> &[(String, Node)] {
        if self.path.is_empty() {
            return self.document.table();
        }
        self.document.at(&self.path).and_then(|node| node.value.as_table()).unwrap_or_default()
    }
}

/// Removes the key that a path such as `flow[1].size` names, so that the others can be read. Whether
/// there was one.
fn remove(table: &mut Vec<(String, Node)>, path: &str) -> bool {
    let is_in = |key: &str| {
        let rest = path.strip_prefix(key);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let Some(position) = table.iter().position(|(key, _)| is_in(key)) else { return false };
    let (key, node) = &mut table[position];
    let rest = &path[key.len()..];
    if rest.contains('.') {
        return remove_within(node, rest);
    }
    table.remove(position);
    true
}

/// The same within a value; `path` starts with `[` or `.`.
fn remove_within(node: &mut Node, path: &str) -> bool {
    match &mut node.value {
        Value::Table(inner) => path.strip_prefix('.').is_some_and(|path| remove(inner, path)),
        Value::List(items) => {
            let split = path.strip_prefix('[').and_then(|path| path.split_once(']'));
            let found = split.and_then(|(index, rest)| Some((index.parse().ok()?, rest)));
            let item =
                found.and_then(|(index, rest): (usize, _)| Some((items.get_mut(index)?, rest)));
            item.is_some_and(|(item, rest)| remove_within(item, rest))
        }
        _ => false,
    }
}

impl CardFile {
    /// A section of the file; its defaults if the file does not have it.
    pub fn section<T: SectionConfig>(&self) -> Placed<T> {
        let absent = || {
            let section = Section::absent::<T>(&self.document);
            Placed { keys: T::default(), section }
        };
        self.given::<T>().into_iter().next().unwrap_or_else(absent)
    }

    /// The sections of one kind that the file itself has, in order.
    pub fn given<T: SectionConfig>(&self) -> Vec<Placed<T>> {
        let stored = self.read.get(T::NAME).into_iter().flatten();
        stored.filter_map(|stored| stored.downcast_ref::<Placed<T>>().cloned()).collect()
    }
}

/// Reads a typed value from JSON, with the ranges that its schema states.
///
/// # Errors
/// An unknown key, a wrong type, a number out of its range; the error names the key.
pub fn in_range<T: DeserializeOwned + JsonSchema + 'static>(
    json: &Json,
) -> Result<T, InvalidValue> {
    for known in &*cached_keys::<T>() {
        if let Some(value) = json.get(&known.name) {
            check_ranges(known.schema(), &known.name, value)?;
        }
    }
    typed(json)
}

/// Reads a typed config from JSON, with the same checks as a card file's section.
///
/// # Errors
/// An unknown key, a wrong type, a value that is not allowed; the error names the key.
pub fn from_json<T: SectionConfig>(json: &Json) -> Result<T, InvalidValue> {
    let keys: T = in_range(json)?;
    keys.check().map_err(|error| InvalidValue::new(error.key, error.message))?;
    Ok(keys)
}
