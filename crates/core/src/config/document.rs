//! A card file as a tree of values with their lines, for errors that name the place.
//!
//! The tree owns its values, so a [`Section`](super::Section) can be read long after the text is
//! gone. Values of `--set` are put into the same tree and keep their origin.

use super::setting::Setting;
use crate::error::ConfigError;
use crate::files::Files;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The origin of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    /// This line of the file, from 1.
    Line(usize),
    /// The command line.
    Set,
    /// The program: the default of a section that the file does not have.
    #[default]
    BuiltIn,
}

/// A value and its place: for the value of a key, the key's own line.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Origin,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    /// Given to `--set` without quotes: text where text is expected, else its TOML value.
    Word(String, Box<Value>),
    Integer(i128),
    Float(f64),
    Boolean(bool),
    /// JSON's; TOML has none.
    Null,
    /// A date, or a number with more digits than any type takes: never read.
    Other(String),
    List(Vec<Node>),
    Table(Vec<(String, Node)>),
}

impl Value {
    pub(super) fn as_table(&self) -> Option<&[(String, Node)]> {
        match self {
            Value::Table(entries) => Some(entries),
            _ => None,
        }
    }

    /// The same, given on the command line, with everything inside.
    pub(super) fn given(mut self) -> Self {
        fn mark(value: &mut Value) {
            let mark = |node: &mut Node| {
                node.place = Origin::Set;
                mark(&mut node.value);
            };
            match value {
                Value::List(items) => items.iter_mut().for_each(mark),
                Value::Table(entries) => entries.iter_mut().map(|(_, node)| node).for_each(mark),
                _ => {}
            }
        }
        mark(&mut self);
        self
    }

    /// A table with this one key.
    pub(super) fn keyed(key: &str, text: &str) -> Self {
        let node = Node { place: Origin::BuiltIn, value: Value::Text(text.into()) };
        Value::Table(vec![(key.into(), node)])
    }

    /// As quoted in messages: one line, not too long.
    pub(super) fn shown(&self) -> String {
        const LONGEST: usize = 60;
        let text = self.written();
        match text.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        }
    }

    fn written(&self) -> String {
        match self {
            Value::Text(text) => format!("\"{text}\""),
            Value::Word(text, _) | Value::Other(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => format!("{number:?}"),
            Value::Boolean(is) => is.to_string(),
            Value::Null => "null".into(),
            Value::Table(_) => "a set of keys".into(),
            Value::List(items) => {
                let items: Vec<_> = items.iter().map(|item| item.value.written()).collect();
                format!("[{}]", items.join(", "))
            }
        }
    }
}

impl From<&serde_json::Value> for Value {
    fn from(json: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        let node = |json| Node { place: Origin::BuiltIn, value: Value::from(json) };
        match json {
            Json::Null => Value::Null,
            Json::Bool(is) => Value::Boolean(*is),
            Json::Number(number) => match (number.as_i128(), number.as_f64()) {
                (Some(number), _) => Value::Integer(number),
                (None, float) => Value::Float(float.unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::Text(text.clone()),
            Json::Array(items) => Value::List(items.iter().map(node).collect()),
            Json::Object(keys) => {
                Value::Table(keys.iter().map(|(key, json)| (key.clone(), node(json))).collect())
            }
        }
    }
}

impl From<&Value> for serde_json::Value {
    fn from(value: &Value) -> Self {
        match value {
            Value::Text(text) | Value::Other(text) => text.as_str().into(),
            Value::Word(_, value) => Self::from(&**value),
            Value::Integer(number) => match i64::try_from(*number) {
                Ok(number) => number.into(),
                Err(_) => {
                    u64::try_from(*number).map_or_else(|_| number.to_string().into(), Self::from)
                }
            },
            Value::Float(number) => (*number).into(),
            Value::Boolean(is) => (*is).into(),
            Value::Null => Self::Null,
            Value::List(items) => items.iter().map(|item| Self::from(&item.value)).collect(),
            Value::Table(entries) => {
                let entries =
                    entries.iter().map(|(key, node)| (key.clone(), Self::from(&node.value)));
                Self::Object(entries.collect())
            }
        }
    }
}

/// The value of a key.
pub(super) fn entry<'t>(table: &'t [(String, Node)], key: &str) -> Option<&'t Node> {
    table.iter().find(|(name, _)| name == key).map(|(_, node)| node)
}

/// A whole card file.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) file: Option<PathBuf>,
    pub(super) root: Value,
    /// The files that its sections name, and the file itself.
    pub(super) files: Files,
}

impl Default for Document {
    fn default() -> Self {
        Document { file: None, root: Value::Table(Vec::new()), files: Files::default() }
    }
}

impl Document {
    /// Reads TOML.
    pub(super) fn parse(text: &str, file: Option<&Path>) -> Result<Self, ConfigError> {
        let file = file.map(Path::to_owned);
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut lines = BTreeSet::new();
        ConfigError::all(errors.iter().filter_map(|error| {
            let (line, key, message) = syntax_error(text, error);
            let (key, message) = (one_line(&key), one_line(&message));
            // A second error on the same line follows from the first.
            lines.insert(line).then(|| ConfigError {
                file: file.clone(),
                line,
                key,
                message,
                ..ConfigError::default()
            })
        }))?;
        let lines = Lines::of(text);
        let files = Files::default();
        if let Some(file) = &file {
            files.of("the card file").read("", file)?;
        }
        Ok(Document { file, files, root: tree(DeValue::Table(table.into_inner()), &lines) })
    }

    pub(super) fn table(&self) -> &[(String, Node)] {
        self.root.as_table().unwrap_or_default()
    }

    /// The value at a path such as `wire[0].fault`.
    pub(super) fn at(&self, path: &str) -> Option<&Node> {
        let (node, rest) = self.nearest(path);
        node.filter(|_| rest.is_empty())
    }

    /// The value at a path, or the nearest one above it and the rest of the path.
    fn nearest<'p>(&self, path: &'p str) -> (Option<&Node>, &'p str) {
        let (mut table, mut last, mut left) = (self.table(), None, path);
        while !left.is_empty() {
            let (name, index, rest) = split(left);
            let Some(mut node) = entry(table, name) else { break };
            if let Some(index) = index {
                last = Some(node);
                let Value::List(items) = &node.value else { break };
                let Some(item) = items.get(index) else { break };
                node = item;
            }
            (last, left) = (Some(node), rest);
            match &node.value {
                Value::Table(entries) => table = entries,
                _ => break,
            }
        }
        (last, left)
    }

    /// Every key that is set, by its path.
    pub(super) fn settings(&self) -> Vec<(String, serde_json::Value)> {
        fn of(path: &str, node: &Node, found: &mut Vec<(String, serde_json::Value)>) {
            let is_section = |node: &Node| matches!(node.value, Value::Table(_));
            match &node.value {
                Value::Table(entries) => {
                    for (key, node) in entries {
                        of(&join(path, key), node, found);
                    }
                }
                Value::List(items) if !items.is_empty() && items.iter().all(is_section) => {
                    for (index, node) in items.iter().enumerate() {
                        of(&format!("{path}[{index}]"), node, found);
                    }
                }
                value if node.place != Origin::BuiltIn => found.push((path.into(), value.into())),
                _ => {}
            }
        }
        let mut found = Vec::new();
        for (key, node) in self.table() {
            of(key, node, &mut found);
        }
        found
    }

    /// Adds the place of an error's key, or of the nearest existing one.
    pub(super) fn locate(&self, error: ConfigError) -> ConfigError {
        let place = self.nearest(&error.key).0.map(|node| node.place);
        self.error(place.unwrap_or_default(), &error.key, &error.message)
    }

    pub(super) fn error(&self, place: Origin, key: &str, message: &str) -> ConfigError {
        let (file, line) = match place {
            Origin::Line(line) => (self.file.clone(), line),
            Origin::Set => (Some("--set".into()), 0),
            Origin::BuiltIn => (self.file.clone(), 0),
        };
        let (key, message) = (one_line(key), one_line(message));
        ConfigError { file, line, key, message, ..ConfigError::default() }
    }

    /// Puts a value of the command line into the tree.
    pub(super) fn set(&mut self, setting: &Setting) -> Result<(), ConfigError> {
        let odd = setting.key.split('.').find(|part| !is_key(part)).map(|part| {
            format!("found \"{part}\", allowed: a name, or a name with an index as in rx[0]")
        });
        let message = odd.map_or_else(|| put(&mut self.root, &setting.key, &setting.value), Err);
        message.map_err(|message| self.error(Origin::Set, &setting.key, &message))
    }
}

/// Puts a value at a path below `root`, creating the sections on the way.
fn put(root: &mut Value, path: &str, value: &Value) -> Result<(), String> {
    let new = |value| Node { place: Origin::Set, value };
    let (name, index, rest) = split(path);
    let Value::Table(entries) = root else {
        return Err(format!("found .{path}, allowed only after a section"));
    };
    let position = entries.iter().position(|(key, _)| key == name).unwrap_or_else(|| {
        let value = if index.is_some() { Value::List(vec![]) } else { Value::Table(vec![]) };
        entries.push((name.to_owned(), new(value)));
        entries.len() - 1
    });
    let mut node = &mut entries[position].1;
    if let Some(index) = index {
        let Value::List(items) = &mut node.value else {
            return Err(format!("found an index, but {name} is not a list"));
        };
        let count = items.len();
        if index == count {
            items.push(new(Value::Table(vec![])));
        }
        node = items
            .get_mut(index)
            .ok_or_else(|| format!("found index {index}, allowed: 0 to {count}"))?;
    }
    if rest.is_empty() {
        *node = new(value.clone());
        return Ok(());
    }
    put(&mut node.value, rest, value)
}

/// Whether this is `name` or `name[0]`.
fn is_key(text: &str) -> bool {
    let (name, index) = text.split_once('[').map_or((text, None), |(a, b)| (a, Some(b)));
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let is_number = |index: &str| index.strip_suffix(']').is_some_and(|n| n.parse::<u32>().is_ok());
    !name.is_empty() && name.chars().all(is_letter) && index.is_none_or(is_number)
}

/// Splits `wire[0].port` into `wire`, index 0 and `port`.
fn split(path: &str) -> (&str, Option<usize>, &str) {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match first.split_once('[') {
        Some((name, index)) => (name, index.trim_end_matches(']').parse().ok(), rest),
        None => (first, None, rest),
    }
}

/// `wire[0]` and `port` make `wire[0].port`.
pub(super) fn join(path: &str, key: &str) -> String {
    match (path, key) {
        ("", key) => key.into(),
        (path, "") => path.into(),
        (path, key) if key.starts_with('[') => format!("{path}{key}"),
        (path, key) => format!("{path}.{key}"),
    }
}

/// A message on one line, even if it quotes keys and values with line ends.
pub(super) fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// The start of each line of a text.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Lines(ends.map(|(position, _)| position).collect())
    }

    /// The line of a position, from 1.
    fn line(&self, position: usize) -> usize {
        self.0.partition_point(|&end| end < position) + 1
    }
}

fn tree(value: DeValue<'_>, lines: &Lines) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => {
            let digits = number.as_str();
            match i128::from_str_radix(digits, number.radix()) {
                Ok(number) => Value::Integer(number),
                Err(_) => Value::Other(digits.into()),
            }
        }
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(is) => Value::Boolean(is),
        DeValue::Datetime(time) => Value::Other(time.to_string()),
        DeValue::Array(items) => {
            let nodes = items.into_iter().map(|item| Node {
                place: Origin::Line(lines.line(item.span().start)),
                value: tree(item.into_inner(), lines),
            });
            Value::List(nodes.collect())
        }
        DeValue::Table(table) => {
            let mut entries: Vec<_> = table.into_iter().collect();
            // In the order of the file, even if the parser sorts them.
            entries.sort_by_key(|(key, _)| key.span().start);
            let nodes = entries.into_iter().map(|(key, value)| {
                let place = Origin::Line(lines.line(key.span().start));
                let value = tree(value.into_inner(), lines);
                (key.into_inner().into_owned(), Node { place, value })
            });
            Value::Table(nodes.collect())
        }
    }
}

/// Line, key and message of a TOML syntax error.
fn syntax_error(text: &str, error: &toml::de::Error) -> (usize, String, String) {
    let Some(span) = error.span() else {
        // For keys with too many dots the parser gives no place: find the first line that fails.
        let is_good =
            |end: &usize| DeTable::parse(&text[..*end]).is_err_and(|e| e.span().is_none());
        let ends: Vec<_> = text.match_indices('\n').map(|(end, _)| end).collect();
        let line = ends.partition_point(|end| !is_good(end)) + 1;
        return (line, String::new(), "found too many levels, allowed: up to 80".into());
    };
    let line = Lines::of(text).line(span.start);
    let section = section_at(text, line);
    if let Some((key, word)) = bare_word(text, span.start) {
        let message = format!("found {word}, allowed: a value; text needs quotes: \"{word}\"");
        return (line, join(&section, &key), message);
    }
    if let Some(key) = without_value(text, line) {
        return (line, join(&section, &key), "missing value".into());
    }
    match error.message() {
        "duplicate key" => {
            let key = text.get(span).unwrap_or_default();
            // A repeated header is not a key of the section before it.
            let is_header = text.lines().nth(line - 1).is_some_and(|line| header(line).is_some());
            let path = if is_header { key.into() } else { join(&section, key) };
            (line, path, "found twice, allowed: once".into())
        }
        message => (line, String::new(), message.replace('\n', ", ")),
    }
}

/// The section that a line is in, as a path: `wire[1].link`. Text that is not TOML has no tree to
/// ask.
fn section_at(text: &str, line: usize) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    let mut section = String::new();
    for (name, is_list) in text.lines().take(line).filter_map(header) {
        if is_list {
            *counts.entry(name.into()).or_default() += 1;
        }
        let (mut plain, mut path) = (String::new(), String::new());
        for part in name.split('.').map(str::trim) {
            plain = join(&plain, part);
            path = join(&path, part);
            if let Some(count) = counts.get(&plain) {
                path = format!("{path}[{}]", count - 1);
            }
        }
        section = path;
    }
    section
}

/// The name in a line such as `[host]` or `[[wire]]`, and whether it is a list's.
fn header(line: &str) -> Option<(&str, bool)> {
    let inner = line.trim_start().strip_prefix('[')?;
    let is_list = inner.starts_with('[');
    let (name, _) = inner.trim_start_matches('[').split_once(']')?;
    let is_name = |letter: char| letter.is_alphanumeric() || "-_. ".contains(letter);
    // `[1]` may be a list item.
    let is_named = name.trim_start().starts_with(char::is_alphabetic);
    (is_named && name.chars().all(is_name)).then(|| (name.trim(), is_list))
}

/// The key of a line that ends after its equals sign.
fn without_value(text: &str, line: usize) -> Option<String> {
    let (key, value) = text.lines().nth(line - 1)?.split_once('=')?;
    let value = value.trim();
    (value.is_empty() || value.starts_with('#')).then(|| key.trim().to_owned())
}

/// The word at a place where a value should be, and its key.
fn bare_word(text: &str, position: usize) -> Option<(String, String)> {
    let is_part = |letter: char| letter.is_alphanumeric() || "-_.:/+".contains(letter);
    let (before, behind) = text.split_at_checked(position)?;
    let start = before.trim_end_matches(is_part).len();
    let end = position + (behind.len() - behind.trim_start_matches(is_part).len());
    let word = &text[start..end];
    let line = text[..start].rsplit('\n').next()?;
    // A header is not a list.
    let is_value = line.trim_end().ends_with(['=', ',', '['])
        && !line.trim_start().starts_with('[')
        || line.trim().is_empty() && text[..start].trim_end().ends_with(['=', ',', '[']);
    let is_word = word.contains(char::is_alphabetic) || word.matches(['.', ':']).count() > 1;
    let key = line.split('=').next().unwrap_or_default();
    (is_value && is_word).then(|| (key.trim().to_owned(), word.to_owned()))
}
