//! Parts of a card file with their places in the text, for errors that say where.
//!
//! A [`Section`] is one component's part. It keeps where it stands, not what it
//! says, and reads the text again when asked: card files are short and read at
//! start only (`docs/decisions/007-toml-sections-reparsed.md`).

use crate::error::ConfigError;
use serde::de::DeserializeOwned;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where a card file's text came from.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) file: Option<PathBuf>,
    pub(super) text: String,
}

impl Source {
    pub(super) fn line(&self, position: usize) -> usize {
        let position = position.min(self.text.len());
        self.text.as_bytes()[..position].iter().filter(|&&byte| byte == b'\n').count() + 1
    }

    pub(super) fn error(
        &self,
        span: Option<Range<usize>>,
        key: String,
        message: String,
    ) -> ConfigError {
        ConfigError {
            file: self.file.clone(),
            line: span.map_or(0, |span| self.line(span.start)),
            key: one_line(&key),
            message: one_line(&message),
        }
    }

    pub(super) fn table(&self) -> Result<Spanned<DeTable<'_>>, ConfigError> {
        DeTable::parse(&self.text).map_err(|error| {
            self.error(error.span(), String::new(), error.message().replace('\n', ", "))
        })
    }
}

/// One component's part of a card file, with its place in the text.
///
/// It keeps the place, not the parsed value, and reads the text again when asked: card
/// files are short and read at start only.
#[derive(Clone, Debug)]
pub struct Section {
    source: Arc<Source>,
    /// Where it stands: `wire[0]`; empty for the whole text.
    path: String,
    /// Keys that are not the component's own, its name among them.
    common: &'static [&'static str],
    /// The key that names the component: `port`.
    kind: &'static str,
    name: String,
}

impl Section {
    /// A section with a name and no keys.
    pub fn named(kind: &'static str, name: &str) -> Self {
        Section {
            source: Arc::default(),
            path: String::new(),
            common: &[],
            kind,
            name: name.into(),
        }
    }

    /// A section from TOML text alone: `Section::from_text("function", "function = \"rss\"")`.
    ///
    /// # Errors
    /// The text is not TOML, or does not name a component.
    pub fn from_text(kind: &'static str, text: &str) -> Result<Self, ConfigError> {
        let source = Arc::new(Source { file: None, text: text.into() });
        let common: &'static [&'static str] = match kind {
            "function" => &["function"],
            "port" => &["port"],
            "scheduler" => &["scheduler"],
            "task" => &["task"],
            "experiment" => &["experiment"],
            _ => &["attachment"],
        };
        let root = source.table()?.into_inner();
        Section::of(&source, &root, String::new(), common, kind, None)
    }

    /// The section at `path`, which holds `table`; named by its key `kind`, or `default` where
    /// that is missing.
    pub(super) fn of(
        source: &Arc<Source>,
        table: &DeTable<'_>,
        path: String,
        common: &'static [&'static str],
        kind: &'static str,
        default: Option<&str>,
    ) -> Result<Self, ConfigError> {
        let mut section =
            Section { source: source.clone(), path, common, kind, name: String::new() };
        section.name = match (entry(table, kind), default) {
            (Some(value), _) => match value.get_ref().as_str() {
                Some(name) => name.into(),
                None => {
                    let found = found_text(source, &value.span());
                    let message = format!("a name in quotes is wanted, {found}");
                    let key = join(&section.path, kind);
                    return Err(source.error(Some(value.span()), key, message));
                }
            },
            (None, Some(name)) => name.into(),
            (None, None) => {
                return Err(
                    section.locate(ConfigError::new("", format!("key `{kind}` is missing")))
                );
            }
        };
        Ok(section)
    }

    /// The component's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key that holds the name.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Reads the component's own keys.
    ///
    /// # Errors
    /// An unknown key, a wrong type, a value that is not allowed.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        self.with_table(|table| {
            let own = select(table, |key| !self.common.contains(&key));
            read(&self.source, &self.path, own)
        })?
    }

    /// Puts file, line and the full key to an error about one of the section's keys.
    #[must_use]
    pub fn locate(&self, error: ConfigError) -> ConfigError {
        if error.line != 0 {
            return error;
        }
        let span = match self.with_table(|table| key_span(table, &error.key)) {
            Ok(Some(span)) => Some(span),
            _ => section_span(&self.source, &self.path),
        };
        self.source.error(span, join(&self.path, &error.key), error.message)
    }

    pub(super) fn with_table<R>(
        &self,
        body: impl FnOnce(&DeTable<'_>) -> R,
    ) -> Result<R, ConfigError> {
        let root = self.source.table()?.into_inner();
        if self.path.is_empty() {
            return Ok(body(&root));
        }
        let empty = DeTable::default();
        Ok(body(value_at(&root, &self.path).and_then(|value| value.as_table()).unwrap_or(&empty)))
    }
}

/// The value of a key.
pub(super) fn entry<'t, 'i>(table: &'t DeTable<'i>, key: &str) -> Option<&'t Spanned<DeValue<'i>>> {
    table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
}

/// The part of a table whose keys are wanted.
pub(super) fn select<'i>(table: &DeTable<'i>, wanted: impl Fn(&str) -> bool) -> DeTable<'i> {
    let chosen = table.iter().filter(|(key, _)| wanted(key.get_ref()));
    chosen.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The text found at a place, on one line and no longer than a message bears.
pub(super) fn found_text(source: &Source, span: &Range<usize>) -> String {
    const LONGEST: usize = 60;
    let text = source.text.get(span.clone()).unwrap_or("something else");
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("found {}...", &line[..end]),
        None => format!("found {line}"),
    }
}

/// A message is one line, whatever the keys and values it quotes.
pub(super) fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Puts into words what serde says with the name of a Rust type.
pub(super) fn in_words(message: String) -> String {
    let words = [
        ("u8", "a whole number, 0 to 255"),
        ("u16", "a whole number, 0 to 65535"),
        ("u32", "a whole number, 0 to 4294967295"),
        ("u64", "a whole number from 0"),
        ("usize", "a whole number from 0"),
        ("f64", "a number"),
    ];
    let found = words.iter().find_map(|(name, words)| {
        let start = message.strip_suffix(name)?.strip_suffix("expected ")?;
        Some(format!("{start}expected {words}"))
    });
    found.unwrap_or(message)
}

pub(super) fn join(path: &str, key: &str) -> String {
    match (path, key) {
        ("", key) => key.into(),
        (path, "") => path.into(),
        (path, key) => format!("{path}.{key}"),
    }
}

/// Splits `wire[0].port` into `wire`, index 0 and `port`.
pub(super) fn split(path: &str) -> (&str, Option<usize>, &str) {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match first.split_once('[') {
        Some((name, index)) => (name, index.trim_end_matches(']').parse().ok(), rest),
        None => (first, None, rest),
    }
}

/// The value at a path such as `wire[0].fault`.
pub(super) fn value_at<'t, 'i>(table: &'t DeTable<'i>, path: &str) -> Option<&'t DeValue<'i>> {
    let (name, index, rest) = split(path);
    let value = entry(table, name)?.get_ref();
    let value = match index {
        Some(index) => value.as_array()?.get(index)?.get_ref(),
        None => value,
    };
    if rest.is_empty() { Some(value) } else { value_at(value.as_table()?, rest) }
}

/// Where the key (or the list item) at a path stands; the nearest that exists.
pub(super) fn key_span(table: &DeTable<'_>, path: &str) -> Option<Range<usize>> {
    let (name, index, rest) = split(path);
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == name)?;
    let (span, value) = match index.and_then(|index| value.get_ref().as_array()?.get(index)) {
        Some(item) => (item.span(), item.get_ref()),
        None => (key.span(), value.get_ref()),
    };
    let inner = value.as_table().filter(|_| !rest.is_empty());
    inner.and_then(|table| key_span(table, rest)).or(Some(span))
}

/// Where a section starts: its header line.
pub(super) fn section_span(source: &Source, path: &str) -> Option<Range<usize>> {
    if path.is_empty() {
        return None;
    }
    key_span(source.table().ok()?.get_ref(), path)
}

/// The key whose own text or value holds a position.
pub(super) fn key_at(table: &DeTable<'_>, position: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let holds = |span: Range<usize>| span.start <= position && position < span.end;
        let inner = match value.get_ref() {
            DeValue::Table(table) => key_at(table, position),
            _ => None,
        };
        (inner.is_some() || holds(key.span()) || holds(value.span()))
            .then(|| join(key.get_ref(), inner.as_deref().unwrap_or("")))
    })
}

/// What the parser says of a number or a list where one of several words is wanted.
pub(super) const NO_WORD: &str = "wanted string or table";

/// The words that are allowed for the value at a place: those told of a word that is none.
pub(super) fn words_for<T: DeserializeOwned>(
    table: &DeTable<'_>,
    span: &Range<usize>,
) -> Option<String> {
    fn put<'i>(value: &mut Spanned<DeValue<'i>>, span: &Range<usize>) {
        if value.span() == *span {
            *value.get_mut() = DeValue::String("".into());
            return;
        }
        match value.get_mut() {
            DeValue::Array(items) => items.iter_mut().for_each(|item| put(item, span)),
            DeValue::Table(table) => table.iter_mut().for_each(|(_, value)| put(value, span)),
            _ => {}
        }
    }
    let mut table = table.clone();
    table.iter_mut().for_each(|(_, value)| put(value, span));
    let error = T::deserialize(toml::Deserializer::from(Spanned::new(0..0, table))).err()?;
    error.message().strip_prefix("unknown variant ``, ").map(str::to_owned)
}

/// Reads a typed config from a table; errors get file, line and key.
pub(super) fn read<T: DeserializeOwned>(
    source: &Source,
    path: &str,
    table: DeTable<'_>,
) -> Result<T, ConfigError> {
    let keys = table.clone();
    T::deserialize(toml::Deserializer::from(Spanned::new(0..0, table))).map_err(|error| {
        let span = error.span().filter(|span| *span != (0..0));
        let key = span.as_ref().and_then(|span| key_at(&keys, span.start)).unwrap_or_default();
        let mut message = in_words(error.message().replace('\n', ", "));
        if let Some(span) = &span
            && message == NO_WORD
            && let Some(words) = words_for::<T>(&keys, span)
        {
            message = words;
        }
        if let Some(span) = &span
            && !message.starts_with("unknown field")
        {
            message = format!("{message} ({})", found_text(source, span));
        }
        source.error(span.or_else(|| section_span(source, path)), join(path, &key), message)
    })
}
