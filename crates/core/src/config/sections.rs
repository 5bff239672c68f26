//! The registry of sections that a program allows in a card file.

use super::document::{Document, Node, Origin, Value, entry, join};
use super::help::{KeyHelp, keys_of};
use super::section::{Names, Section, SectionConfig, Shape};
use super::setting::Setting;
use super::{CardFile, LONGEST_FILE, too_long};
use crate::error::{ConfigError, not_among};
use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// An entry of a registry of sections.
#[derive(Clone, Copy, Debug)]
pub struct SectionEntry {
    /// The section's name.
    pub name: &'static str,
    /// Its purpose.
    pub help: &'static str,
    /// Its form in the file.
    pub shape: Shape,
    /// The component it names.
    pub names: Option<Names>,
    keys: fn() -> Vec<KeyHelp>,
    read: fn(Section, &mut Vec<ConfigError>) -> Option<Stored>,
}

/// A `Placed<T>`.
pub(super) type Stored = Box<dyn Any + Send + Sync>;

impl SectionEntry {
    /// The entry of a section.
    pub const fn of<T: SectionConfig>() -> Self {
        SectionEntry {
            name: T::NAME,
            help: T::HELP,
            shape: T::SHAPE,
            names: T::NAMES,
            keys: keys_of::<T>,
            read: |section, faults| Some(Box::new(section.place::<T>(faults)?) as Stored),
        }
    }

    /// The keys, without the key that names a component.
    pub fn keys(&self) -> Vec<KeyHelp> {
        (self.keys)()
    }

    /// Keys that do not belong to the named component.
    pub(super) fn common(&self) -> Arc<[String]> {
        let own = self.keys().into_iter().map(|key| key.name);
        self.names.map(|names| names.key.to_owned()).into_iter().chain(own).collect()
    }

    /// The header in a card file.
    pub fn header(&self) -> String {
        match self.shape {
            Shape::List { .. } => format!("[[{}]]", self.name),
            _ => format!("[{}]", self.name),
        }
    }
}

/// The sections that a program allows in a card file.
#[derive(Clone, Debug)]
pub struct Sections(Vec<SectionEntry>);

impl Sections {
    /// The sections of every card: those that the engine reads.
    pub fn core() -> Self {
        Sections(super::keys::SECTIONS.to_vec())
    }

    /// These and more. Sections already present are kept.
    #[must_use]
    pub fn with(mut self, more: &[SectionEntry]) -> Self {
        for entry in more {
            if !self.0.iter().any(|known| known.name == entry.name) {
                self.0.push(*entry);
            }
        }
        self
    }

    /// In the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &SectionEntry> {
        self.0.iter()
    }

    /// Reads a card file.
    ///
    /// # Errors
    /// The file cannot be read, or an error of [`Sections::parse`].
    pub fn load(&self, path: &Path) -> Result<CardFile, ConfigError> {
        self.parse(&CardFile::read(path)?, Some(path))
    }

    /// Reads a card file's text; `file` is for messages and for relative paths.
    ///
    /// # Errors
    /// Not TOML, an unknown section or key, a wrong type, a value that is not allowed. Components
    /// check their own keys when they are built.
    pub fn parse(&self, text: &str, file: Option<&Path>) -> Result<CardFile, ConfigError> {
        self.parse_with(text, file, &[])
    }

    /// As [`Sections::parse`], with some keys replaced. Errors about those say `--set`.
    ///
    /// # Errors
    /// As [`Sections::parse`].
    pub fn parse_with(
        &self,
        text: &str,
        file: Option<&Path>,
        settings: &[Setting],
    ) -> Result<CardFile, ConfigError> {
        let (card, faults) = self.examine(text, file, settings)?;
        ConfigError::all(faults).map(|()| card)
    }

    /// The same, returning the errors beside a card without the wrong keys: for callers that also
    /// check its components.
    ///
    /// # Errors
    /// Not TOML.
    pub fn examine(
        &self,
        text: &str,
        file: Option<&Path>,
        settings: &[Setting],
    ) -> Result<(CardFile, Vec<ConfigError>), ConfigError> {
        if text.len() > LONGEST_FILE {
            return Err(too_long(text.as_bytes(), file));
        }
        let mut document = Document::parse(text, file)?;
        self.complete(&mut document);
        let mut faults = Vec::new();
        faults.extend(settings.iter().filter_map(|setting| document.set(setting).err()));
        let document = Arc::new(document);
        for (key, node) in document.table() {
            if !self.names().any(|name| name == key) {
                let message = not_among("section ", key, self.names());
                faults.push(document.error(node.place, key, &message));
            }
        }
        let mut read = BTreeMap::new();
        for entry in &self.0 {
            let sections = self.find(entry, &document, &mut faults);
            let stored =
                sections.into_iter().filter_map(|section| (entry.read)(section, &mut faults));
            read.insert(entry.name, stored.collect());
        }
        Ok((CardFile::of(self.clone(), document, read, &mut faults), faults))
    }

    /// The sections at the top level of a card file, without nested ones.
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|entry| entry.name).filter(|name| !name.contains('.'))
    }

    /// Adds the defaults of missing sections.
    fn complete(&self, document: &mut Document) {
        let Value::Table(root) = &mut document.root else { return };
        for section in &self.0 {
            let (Shape::List { least, built_in: true, .. }, Some(names)) =
                (section.shape, section.names)
            else {
                continue;
            };
            let built_in = |value| Node { place: Origin::BuiltIn, value };
            let is_left_out = |node: &Node| match &node.value {
                Value::List(items) => items.is_empty() && least > 0,
                _ => false,
            };
            root.retain(|(key, node)| key != section.name || !is_left_out(node));
            if entry(root, section.name).is_none() {
                let item = built_in(Value::keyed(names.key, names.example));
                root.push((section.name.into(), built_in(Value::List(vec![item]))));
            }
        }
    }

    /// The sections of one kind in the file. Errors go to `faults`.
    fn find(
        &self,
        entry: &SectionEntry,
        document: &Arc<Document>,
        faults: &mut Vec<ConfigError>,
    ) -> Vec<Section> {
        let (outer, inner) = entry.name.split_once('.').unwrap_or((entry.name, ""));
        let Some(node) = document.at(outer) else { return Vec::new() };
        let error = |node: &Node, path: &str, allowed: String| {
            let found = node.value.shown();
            document.error(node.place, path, &format!("found {found}, allowed: {allowed}"))
        };
        let mut places = vec![(outer.to_owned(), node)];
        if let Value::List(items) = &node.value {
            let items = items.iter().enumerate();
            places = items.map(|(index, node)| (format!("{outer}[{index}]"), node)).collect();
        }
        if !inner.is_empty() {
            // Its parent is checked by its own entry.
            let held = places.into_iter().filter_map(|(path, node)| {
                let held = super::document::entry(node.value.as_table()?, inner)?;
                Some((join(&path, inner), held))
            });
            let is_list = matches!(entry.shape, Shape::List { .. });
            let each = held.flat_map(|(path, held)| match &held.value {
                Value::List(items) if is_list => {
                    let items = items.iter().enumerate();
                    items.map(|(index, node)| (format!("{path}[{index}]"), node)).collect()
                }
                // The parent section reports that it is not a list.
                _ if is_list => Vec::new(),
                _ => vec![(path, held)],
            });
            places = each.collect();
        } else if let Shape::List { least, most, .. } = entry.shape {
            let is_list = matches!(&node.value, Value::List(_));
            if !is_list || places.iter().any(|(_, node)| node.value.as_table().is_none()) {
                faults.push(error(node, outer, format!("sections [[{outer}]]")));
                return Vec::new();
            }
            if places.len() > most {
                let message = format!("found {}, allowed: {least} to {most}", places.len());
                faults.push(document.error(node.place, outer, &message));
                return Vec::new();
            }
        } else {
            places = vec![(outer.to_owned(), node)];
        }
        let common = entry.common();
        let sections = places.into_iter().map(|(path, node)| match node.value.as_table() {
            Some(_) => Section::of(document, path, entry.names, entry.name, &common),
            None => Err(error(node, &path, format!("a section [{}]", entry.name))),
        });
        sections.filter_map(|section| section.map_err(|error| faults.push(error)).ok()).collect()
    }
}
