//! A card file from the command line: a path or the built-in card, and `--set`.
//!
//! The file is checked as it stands, then with the changes of `--set` in it. An
//! error about a changed key says `--set`; any other keeps the file's own line.

use clap::Args;
use clap::ValueEnum;
use picnic_control::error::RunError;
use picnic_control::socket::SocketError;
use picnic_core::config::{CardFile, DEMONSTRATION};
use picnic_core::error::ConfigError;
use picnic_engine::build::BuildError;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// What the borrowed core does without work.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Idle {
    /// Look again at once
    Spin,
    /// Spin, then block
    Adaptive,
    /// Block at once
    Block,
}

/// Which card.
#[derive(Debug, Args)]
pub struct CardArgs {
    /// Card file; without one, the built-in demonstration card
    #[arg(value_name = "CARD.toml")]
    card: Option<PathBuf>,
    #[command(flatten)]
    changes: ChangeArgs,
}

/// What is changed of a card.
#[derive(Clone, Debug, Default, Args)]
pub struct ChangeArgs {
    /// What the borrowed core does without work: the same as --set card.idle=...
    #[arg(long, value_enum)]
    idle: Option<Idle>,
    /// Change a key of the card, as in --set host.queues=2 or --set 'rx[0].hash="jhash"'
    #[arg(long, value_name = "KEY=VALUE", value_parser = Setting::parse)]
    set: Vec<Setting>,
}

/// A key and the value it is given.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    key: String,
    value: Value,
}

impl Setting {
    /// This key with this word for a value.
    pub fn word(key: &str, word: &str) -> Self {
        Setting { key: key.into(), value: word.into() }
    }

    /// This key with this number for a value.
    pub fn number(key: &str, number: u32) -> Self {
        Setting { key: key.into(), value: Value::Integer(number.into()) }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("found no `=`, wanted KEY=VALUE")?;
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err("found no key, wanted KEY=VALUE".into());
        }
        // What is no TOML value is a word: `card.idle=spin`.
        let parsed = toml::from_str::<Table>(&format!("value = {value}")).ok();
        let parsed = parsed.filter(|table| table.len() == 1);
        let value = parsed.and_then(|mut table| table.remove("value"));
        let word = || Value::String(text.split_once('=').map_or("", |(_, word)| word).into());
        Ok(Setting { key: key.into(), value: value.unwrap_or_else(word) })
    }

    /// Puts the value into a card file's table.
    fn apply(&self, root: &mut Table) -> Result<(), ConfigError> {
        let wrong = |message: String| from_set(ConfigError::new(&self.key, message));
        let mut table = root;
        let mut rest = self.key.as_str();
        loop {
            let (name, after) = rest.split_once('.').map_or((rest, None), |(a, b)| (a, Some(b)));
            let (name, index) = indexed(name).ok_or_else(|| {
                wrong(format!("found `{name}`, wanted a name or a name with an index as in rx[0]"))
            })?;
            let place = table.entry(name).or_insert_with(|| initial(name, index, after));
            let place = match index {
                None => place,
                Some(index) => {
                    let items = place.as_array_mut().ok_or_else(|| {
                        wrong(format!("found an index, but {name} is not a list"))
                    })?;
                    let count = items.len();
                    if index == count {
                        items.push(Value::Table(Table::new()));
                    }
                    items.get_mut(index).ok_or_else(|| {
                        wrong(format!("found index {index}, allowed is 0 to {count}"))
                    })?
                }
            };
            match after {
                None => {
                    *place = self.value.clone();
                    return Ok(());
                }
                Some(after) => {
                    table = place.as_table_mut().ok_or_else(|| {
                        wrong(format!("found `.{after}`, but {name} is not a section"))
                    })?;
                    rest = after;
                }
            }
        }
    }
}

/// Takes `rx[0]` apart into name and index.
fn indexed(text: &str) -> Option<(&str, Option<usize>)> {
    let (name, index) = match text.split_once('[') {
        Some((name, index)) => (name, Some(index.strip_suffix(']')?.parse().ok()?)),
        None => (text, None),
    };
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    (!name.is_empty() && name.chars().all(is_letter)).then_some((name, index))
}

/// What a key that is not there starts from: a section, or a list of sections. The rx chain
/// starts from the one that is built in.
fn initial(name: &str, index: Option<usize>, after: Option<&str>) -> Value {
    let mut section = Table::new();
    if name == "rx" && after != Some("function") {
        section.insert("function".into(), "rss".into());
    }
    match index {
        Some(_) => Value::Array(vec![Value::Table(section)]),
        None => Value::Table(Table::new()),
    }
}

/// The error as one about the command line.
fn from_set(error: ConfigError) -> ConfigError {
    ConfigError { file: Some("--set".into()), line: 0, ..error }
}

/// A card, and where its keys came from.
#[derive(Debug)]
pub struct Card {
    /// The card file, changes included.
    pub file: CardFile,
    path: Option<PathBuf>,
    /// The file as it stands, and the keys that were changed; none without changes.
    changed: Option<(CardFile, Table, Vec<String>)>,
}

impl CardArgs {
    /// The card file's path; none for the built-in card.
    pub fn path(&self) -> Option<&Path> {
        self.card.as_deref()
    }

    /// Reads the card file and applies what the command line changes.
    ///
    /// # Errors
    /// What is wrong with the file or with the changes.
    pub fn load(&self) -> Result<Card, ConfigError> {
        let path = self.path();
        let text = path.map_or(Ok(DEMONSTRATION.into()), CardFile::read)?;
        self.changes.load(&text, path, Vec::new())
    }
}

impl ChangeArgs {
    /// Reads a card file's text and applies first `settings`, then what the command line changes.
    ///
    /// # Errors
    /// What is wrong with the text or with the changes.
    pub fn load(
        &self,
        text: &str,
        path: Option<&Path>,
        mut settings: Vec<Setting>,
    ) -> Result<Card, ConfigError> {
        let file = CardFile::parse(text, path)?;
        settings.extend(self.settings());
        let mut card = Card { file, path: path.map(Path::to_owned), changed: None };
        if settings.is_empty() {
            return Ok(card);
        }
        let as_written: Table = toml::from_str(text).map_err(unexpected)?;
        let mut table = as_written.clone();
        for setting in &settings {
            setting.apply(&mut table)?;
        }
        let text = toml::to_string(&table).map_err(unexpected)?;
        let keys = settings.into_iter().map(|setting| setting.key).collect();
        let original = std::mem::replace(&mut card.file, CardFile::parse(DEMONSTRATION, None)?);
        card.changed = Some((original, as_written, keys));
        card.file = CardFile::parse(&text, path).map_err(|error| card.explain(error))?;
        Ok(card)
    }

    fn settings(&self) -> Vec<Setting> {
        let idle = self
            .idle
            .and_then(|idle| idle.to_possible_value())
            .map(|idle| Setting { key: "card.idle".into(), value: idle.get_name().into() });
        idle.into_iter().chain(self.set.iter().cloned()).collect()
    }
}

impl Card {
    /// The card file's path as text, for output; none for the built-in card.
    pub fn path(&self) -> Option<String> {
        self.path.as_ref().map(|path| path.display().to_string())
    }

    /// Gives an error about this card its right place.
    pub fn explain(&self, error: ConfigError) -> ConfigError {
        let Some((original, as_written, keys)) = &self.changed else { return error };
        let is_below = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with(['.', '[']))
        };
        let is_set = keys.iter().any(|key| {
            *key == error.key
                || is_below(&error.key, key)
                || is_below(key, &error.key) && !is_there(as_written, &error.key)
        });
        if is_set {
            return from_set(error);
        }
        let mut located = original.locate(error);
        located.file = self.path.clone();
        located
    }

    /// Gives an error that may be about this card its right place.
    pub fn explain_host(&self, error: RunError) -> anyhow::Error {
        match error {
            RunError::Build(BuildError::Config(error))
            | RunError::Control(SocketError::Config(error)) => self.explain(error).into(),
            error => error.into(),
        }
    }
}

/// Whether a table has a key such as `rx[0].hash`.
fn is_there(table: &Table, key: &str) -> bool {
    let (first, rest) = key.split_once('.').map_or((key, None), |(a, b)| (a, Some(b)));
    let Some((name, index)) = indexed(first) else { return false };
    let value = table.get(name);
    let value = match index {
        Some(index) => value.and_then(Value::as_array).and_then(|items| items.get(index)),
        None => value,
    };
    match (value, rest) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(value), Some(rest)) => value.as_table().is_some_and(|inner| is_there(inner, rest)),
    }
}

/// TOML that was read once and is not read again: a bug, told as an error all the same.
fn unexpected(error: impl std::fmt::Display) -> ConfigError {
    from_set(ConfigError::new("", error.to_string().replace('\n', ", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, settings: &[&str]) -> Result<Card, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let set = settings.iter().map(|text| Setting::parse(text).unwrap()).collect();
        let changes = ChangeArgs { idle: None, set };
        CardArgs { card: Some(file.path().into()), changes }.load().map_err(|error| {
            let is_file = error.file.as_deref() == Some(file.path());
            if is_file { ConfigError { file: Some("FILE".into()), ..error } } else { error }
        })
    }

    fn error(text: &str, settings: &[&str]) -> String {
        load(text, settings).unwrap_err().to_string()
    }

    #[test]
    fn values_are_toml_and_anything_else_is_a_word() {
        let value = |text| Setting::parse(text).unwrap().value;
        assert_eq!(value("a.b=2"), Value::Integer(2));
        assert_eq!(value("a.b = [1, 2]"), Value::Array(vec![1.into(), 2.into()]));
        assert_eq!(value("a.b=spin"), Value::String("spin".into()));
        assert_eq!(value("a.b=\"2\""), Value::String("2".into()));
        assert_eq!(value("a.b=1\nc = 2"), Value::String("1\nc = 2".into()));
        assert_eq!(value("a.b=x=y"), Value::String("x=y".into()));
        assert!(Setting::parse("a.b").is_err());
        assert!(Setting::parse("=1").is_err());
    }

    #[test]
    fn a_set_key_replaces_the_files_and_leaves_the_others() {
        let text = "[host]\nqueues = 8\nring_size = 128\n[[rx]]\nfunction = \"pass\"\n";
        let card = load(text, &["host.queues=2", "rx[1].function=rss", "card.idle=spin"]).unwrap();
        assert_eq!(card.file.host.queues, 2);
        assert_eq!(card.file.host.ring_size, 128);
        let names: Vec<_> = card.file.rx.iter().map(|section| section.name()).collect();
        assert_eq!(names, ["pass", "rss"]);
        assert_eq!(card.file.card.idle, picnic_core::config::Idle::Spin);
    }

    #[test]
    fn the_built_in_chain_can_be_changed_by_its_place() {
        let card = load("", &["rx[0].table_size=64"]).unwrap();
        assert_eq!(card.file.rx[0].name(), "rss");
        let card = load("", &["rx[0].function=pass"]).unwrap();
        assert_eq!(card.file.rx[0].name(), "pass");
    }

    const PASS: &str = "[[rx]]\nfunction = \"pass\"\n";

    #[test]
    fn errors_of_set_keys_say_so() {
        let zero = "--set: host.queues: found 0, allowed is 1 to 256";
        assert_eq!(error("", &["host.queues=0"]), zero);
        let beyond = "--set: rx[5].function: found index 5, allowed is 0 to 1";
        assert_eq!(error("", &["rx[5].function=pass"]), beyond);
        let missing = "--set: rx[1]: key `function` is missing";
        assert_eq!(error(PASS, &["rx[1].hash=toeplitz"]), missing);
        let section = "--set: host.queues.x: found `.x`, but queues is not a section";
        assert_eq!(error("[host]\nqueues = 1\n", &["host.queues.x=1"]), section);
        assert_eq!(
            error("", &["hots.queues=1"]).split(',').next().unwrap(),
            "--set: hots: unknown section"
        );
    }

    #[test]
    fn odd_keys_are_refused_and_never_panic() {
        for key in [
            ".",
            "a..b",
            "host.",
            "a[",
            "a[]",
            "a[-1]",
            "[0]",
            "a]b[0",
            "rx[0][0]",
            "rx[0].",
            "rx[99999999999999999999]",
            "rx",
            "host[0]",
            "card.name.x",
            "a.b.c.d",
            "\u{0}",
            "é[0].ü",
        ] {
            let found = error("[card]\nname = \"x\"\n[host]\n", &[&format!("{key}=1")]);
            assert!(found.starts_with("--set: "), "{key}: {found}");
        }
    }

    #[test]
    fn errors_of_other_keys_keep_the_files_line() {
        // Fewer queues make the file's own default_queue wrong.
        let text = "# a comment\n\n[card]\ndefault_queue = 3\n";
        let expected = "FILE:4: card.default_queue: found 3, allowed is 0 to 1";
        assert_eq!(error(text, &["host.queues=2"]), expected);
    }
}
