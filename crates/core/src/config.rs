//! The card file: passive data, validated whole before anything starts.
//!
//! ```
//! use picnic_core::config::CardFile;
//! let card = CardFile::parse("[host]\nqueues = 2\n", None).unwrap();
//! assert_eq!(card.host.queues, 2);
//! let error = CardFile::parse("[host]\nqueues = \"two\"\n", None).unwrap_err();
//! assert_eq!(error.line, 2);
//! ```
//!
//! Sections that belong to a component (a wire's, a function's) stay unparsed
//! here: [`Section`] keeps their text positions, and the component's own typed
//! config is read from it by the registry. Every error names file, line, key,
//! what was found and what is allowed.

use crate::error::{ConfigError, PoolError, allowed};
use crate::packet::pool::PoolConfig;
use crate::ring::moderation::ModerationMode;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The built-in demonstration card: an empty file.
pub const DEMONSTRATION: &str = "";

/// Bytes of the longest card file.
pub const LONGEST_FILE: usize = 1 << 20;
/// Wires of a card: they are numbered by a byte.
const MOST_WIRES: usize = 255;
/// Functions of a chain.
const MOST_FUNCTIONS: usize = 64;

/// A whole card file.
#[derive(Debug)]
pub struct CardFile {
    /// `[card]`.
    pub card: CardSection,
    /// `[pool]`.
    pub pool: PoolConfig,
    /// `[[wire]]`, at least one.
    pub wires: Vec<WireSection>,
    /// `[[rx]]`, in order.
    pub rx: Vec<Section>,
    /// `[[tx]]`, in order.
    pub tx: Vec<Section>,
    /// `[host]`.
    pub host: HostSection,
    /// `[interrupt]`.
    pub interrupt: InterruptSection,
    /// `[trace]`, if there is one.
    pub trace: Option<Section>,
    /// The folder that relative paths start from.
    pub directory: PathBuf,
    source: Arc<Source>,
}

/// `[card]`: the card as a whole.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CardSection {
    /// Name of the card.
    pub name: String,
    /// What runs the chain: "poll" (the borrowed core, in user space).
    pub engine: Engine,
    /// The core the card runs on: "auto" (the highest-numbered), or a number.
    pub borrowed_core: CoreChoice,
    /// What the borrowed core does without work: "spin", "adaptive" or "block".
    pub idle: Idle,
    /// Packets taken from one wire at a time, 1 to 64.
    pub burst: usize,
    /// Queue of packets that no function steers.
    pub default_queue: u16,
    /// Packets that may wait for one wire, 64 to 65536.
    pub wire_backlog: usize,
    /// Seed of everything that draws random numbers.
    pub seed: u64,
}

impl Default for CardSection {
    fn default() -> Self {
        CardSection {
            name: "picnic0".into(),
            engine: Engine::Poll,
            borrowed_core: CoreChoice::Auto,
            idle: Idle::Adaptive,
            burst: 64,
            default_queue: 0,
            wire_backlog: 1024,
            seed: 1,
        }
    }
}

/// What runs the chain.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The borrowed core, in user space.
    #[default]
    Poll,
}

/// What a core does without work.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Looks again at once, for the shortest latency.
    Spin,
    /// Spins, then pauses, then blocks.
    #[default]
    Adaptive,
    /// Blocks at once.
    Block,
}

/// `[[wire]]`: what is common to all ports.
#[derive(Debug)]
pub struct WireSection {
    /// Name of the wire, for output.
    pub name: String,
    /// The port and its own keys.
    pub port: Section,
    /// `[wire.fault]`: the fault injector between wire and card, if there is one.
    pub fault: Option<Section>,
}

/// `[host]`: the target side.
#[derive(Debug)]
pub struct HostSection {
    /// Target queues, 1 to 256.
    pub queues: u16,
    /// The core of each queue.
    pub target_cores: TargetCores,
    /// Descriptors in each target ring, a power of two, 64 to 65536.
    pub ring_size: usize,
    /// Descriptors in each tx ring, a power of two, 64 to 65536.
    pub tx_ring_size: usize,
    /// The attachment and its own keys.
    pub attachment: Section,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct HostKeys {
    /// Target queues, 1 to 256.
    queues: u16,
    /// The core of each queue: "auto", or one number per queue.
    target_cores: TargetCores,
    /// Descriptors in each target ring, a power of two, 64 to 65536.
    ring_size: usize,
    /// Descriptors in each tx ring, a power of two, 64 to 65536.
    tx_ring_size: usize,
}

impl Default for HostKeys {
    fn default() -> Self {
        HostKeys { queues: 4, target_cores: TargetCores::Auto, ring_size: 1024, tx_ring_size: 1024 }
    }
}

/// `[interrupt]`: gate and moderation of all queues.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InterruptSection {
    /// Microseconds a packet may wait for others before its queue is interrupted, up to 1000000.
    pub rx_usecs: u32,
    /// Packets that may wait; 0 for no limit by count.
    pub rx_frames: u32,
    /// Let the delay follow the packet rate, up to rx_usecs.
    pub adaptive: bool,
    /// Microseconds a target polls on without packets before it waits for an interrupt.
    pub poll_usecs: u32,
}

impl Default for InterruptSection {
    fn default() -> Self {
        InterruptSection { rx_usecs: 20, rx_frames: 64, adaptive: false, poll_usecs: 0 }
    }
}

impl InterruptSection {
    /// The moderation that the keys ask for.
    pub fn moderation(&self) -> ModerationMode {
        match self {
            InterruptSection { adaptive: true, rx_usecs, .. } => {
                ModerationMode::Adaptive { max_usecs: *rx_usecs }
            }
            InterruptSection { rx_usecs: 0, .. } => ModerationMode::None,
            InterruptSection { rx_usecs, rx_frames, .. } => {
                ModerationMode::Static { usecs: *rx_usecs, frames: *rx_frames }
            }
        }
    }
}

macro_rules! auto_or {
    ($(#[$meta:meta])* $name:ident($($value:tt)+), $expecting:literal) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            /// The program chooses.
            #[default]
            Auto,
            /// The user has chosen.
            Chosen($($value)+),
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl<'de> de::Visitor<'de> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        match text {
                            "auto" => Ok($name::Auto),
                            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                        }
                    }
                    auto_or!(@visit $name, $($value)+);
                }
                deserializer.deserialize_any(Visitor)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": $expecting, "default": "auto" })
            }
            fn inline_schema() -> bool {
                true
            }
        }
    };
    (@visit $name:ident, usize) => {
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
            usize::try_from(number)
                .map($name::Chosen)
                .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
        }
    };
    (@visit $name:ident, Vec<usize>) => {
        fn visit_seq<A: de::SeqAccess<'de>>(self, mut numbers: A) -> Result<$name, A::Error> {
            let mut list = Vec::new();
            while let Some(number) = numbers.next_element()? {
                list.push(number);
            }
            Ok($name::Chosen(list))
        }
    };
}

auto_or! {
    /// A core: chosen by the program, or by number.
    CoreChoice(usize), "\"auto\" or a core number"
}
auto_or! {
    /// The cores of the target queues.
    TargetCores(Vec<usize>), "\"auto\" or a list of core numbers"
}

/// Where a card file's text came from.
#[derive(Debug, Default)]
struct Source {
    file: Option<PathBuf>,
    text: String,
}

impl Source {
    fn line(&self, position: usize) -> usize {
        let position = position.min(self.text.len());
        self.text.as_bytes()[..position].iter().filter(|&&byte| byte == b'\n').count() + 1
    }

    fn error(&self, span: Option<Range<usize>>, key: String, message: String) -> ConfigError {
        ConfigError {
            file: self.file.clone(),
            line: span.map_or(0, |span| self.line(span.start)),
            key: one_line(&key),
            message: one_line(&message),
        }
    }

    fn table(&self) -> Result<Spanned<DeTable<'_>>, ConfigError> {
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
            _ => &["attachment"],
        };
        let root = source.table()?.into_inner();
        Section::of(&source, &root, String::new(), common, kind, None)
    }

    /// The section at `path`, which holds `table`; named by its key `kind`, or `default` where
    /// that is missing.
    fn of(
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

    fn with_table<R>(&self, body: impl FnOnce(&DeTable<'_>) -> R) -> Result<R, ConfigError> {
        let root = self.source.table()?.into_inner();
        if self.path.is_empty() {
            return Ok(body(&root));
        }
        let empty = DeTable::default();
        Ok(body(value_at(&root, &self.path).and_then(|value| value.as_table()).unwrap_or(&empty)))
    }
}

/// The value of a key.
fn entry<'t, 'i>(table: &'t DeTable<'i>, key: &str) -> Option<&'t Spanned<DeValue<'i>>> {
    table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
}

/// The part of a table whose keys are wanted.
fn select<'i>(table: &DeTable<'i>, wanted: impl Fn(&str) -> bool) -> DeTable<'i> {
    let chosen = table.iter().filter(|(key, _)| wanted(key.get_ref()));
    chosen.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The text found at a place, on one line and no longer than a message bears.
fn found_text(source: &Source, span: &Range<usize>) -> String {
    const LONGEST: usize = 60;
    let text = source.text.get(span.clone()).unwrap_or("something else");
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("found {}...", &line[..end]),
        None => format!("found {line}"),
    }
}

/// A message is one line, whatever the keys and values it quotes.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Puts into words what serde says with the name of a Rust type.
fn in_words(message: String) -> String {
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

fn join(path: &str, key: &str) -> String {
    match (path, key) {
        ("", key) => key.into(),
        (path, "") => path.into(),
        (path, key) => format!("{path}.{key}"),
    }
}

/// Splits `wire[0].port` into `wire`, index 0 and `port`.
fn split(path: &str) -> (&str, Option<usize>, &str) {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match first.split_once('[') {
        Some((name, index)) => (name, index.trim_end_matches(']').parse().ok(), rest),
        None => (first, None, rest),
    }
}

/// The value at a path such as `wire[0].fault`.
fn value_at<'t, 'i>(table: &'t DeTable<'i>, path: &str) -> Option<&'t DeValue<'i>> {
    let (name, index, rest) = split(path);
    let value = entry(table, name)?.get_ref();
    let value = match index {
        Some(index) => value.as_array()?.get(index)?.get_ref(),
        None => value,
    };
    if rest.is_empty() { Some(value) } else { value_at(value.as_table()?, rest) }
}

/// Where the key (or the list item) at a path stands; the nearest that exists.
fn key_span(table: &DeTable<'_>, path: &str) -> Option<Range<usize>> {
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
fn section_span(source: &Source, path: &str) -> Option<Range<usize>> {
    if path.is_empty() {
        return None;
    }
    key_span(source.table().ok()?.get_ref(), path)
}

/// The key whose own text or value holds a position.
fn key_at(table: &DeTable<'_>, position: usize) -> Option<String> {
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
const NO_WORD: &str = "wanted string or table";

/// The words that are allowed for the value at a place: those told of a word that is none.
fn words_for<T: DeserializeOwned>(table: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
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
fn read<T: DeserializeOwned>(
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

impl CardFile {
    /// Reads a card file.
    ///
    /// # Errors
    /// The file cannot be read, or what [`CardFile::parse`] says of its text.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        CardFile::parse(&CardFile::read(path)?, Some(path))
    }

    /// Reads a card file's text, no more than may be parsed.
    ///
    /// # Errors
    /// The file cannot be read, or is too long.
    pub fn read(path: &Path) -> Result<String, ConfigError> {
        let about = |message| ConfigError { file: Some(path.into()), message, ..<_>::default() };
        let mut bytes = Vec::new();
        // One byte more, to know a longer file from one that ends there.
        std::fs::File::open(path)
            .and_then(|file| file.take(LONGEST_FILE as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| about(format!("cannot be read: {error}")))?;
        if bytes.len() > LONGEST_FILE {
            return Err(about(too_long()));
        }
        let text = std::io::read_to_string(&*bytes);
        text.map_err(|error| about(format!("cannot be read: {error}")))
    }

    /// Reads a card file's text; `file` is for messages and for relative paths.
    ///
    /// # Errors
    /// Not TOML, an unknown key, a wrong type, a value that is not allowed. What components
    /// make of their own keys is known when they are built.
    pub fn parse(text: &str, file: Option<&Path>) -> Result<Self, ConfigError> {
        let source = Arc::new(Source { file: file.map(Path::to_owned), text: text.into() });
        if text.len() > LONGEST_FILE {
            return Err(source.error(None, String::new(), too_long()));
        }
        let root = source.table()?.into_inner();
        const TOP: [&str; 8] = ["card", "pool", "wire", "rx", "tx", "host", "interrupt", "trace"];
        for (key, _) in root.iter() {
            if !TOP.contains(&key.get_ref().as_ref()) {
                let message = format!("unknown section, allowed: {}", TOP.join(", "));
                return Err(source.error(Some(key.span()), key.get_ref().to_string(), message));
            }
        }
        let card = CardFile {
            card: read_section(&source, &root, "card")?,
            pool: read_section(&source, &root, "pool")?,
            wires: wires(&source, &root)?,
            rx: chain(&source, &root, "rx")?,
            tx: chain(&source, &root, "tx")?,
            host: host(&source, &root)?,
            interrupt: read_section(&source, &root, "interrupt")?,
            trace: match table_of(&source, &root, "trace")? {
                Some(table) => {
                    let path = "trace".into();
                    Some(Section::of(&source, table, path, &[], "trace", Some("tracer"))?)
                }
                None => None,
            },
            directory: file.and_then(Path::parent).map_or_else(PathBuf::new, Path::to_owned),
            source: source.clone(),
        };
        card.validate().map_err(|error| card.locate(error))?;
        Ok(card)
    }

    /// Puts file and line to an error about a key such as `host.target_cores[2]`.
    #[must_use]
    pub fn locate(&self, error: ConfigError) -> ConfigError {
        let span = self.source.table().ok().and_then(|root| key_span(root.get_ref(), &error.key));
        self.source.error(span, error.key, error.message)
    }

    /// Checks every value that does not belong to a component.
    fn validate(&self) -> Result<(), ConfigError> {
        range("card.burst", self.card.burst, 1, crate::packet::burst::BURST)?;
        range("card.wire_backlog", self.card.wire_backlog, 64, 65_536)?;
        range("host.queues", usize::from(self.host.queues), 1, 256)?;
        power_of_two("host.ring_size", self.host.ring_size)?;
        power_of_two("host.tx_ring_size", self.host.tx_ring_size)?;
        range("interrupt.rx_usecs", self.interrupt.rx_usecs as usize, 0, 1_000_000)?;
        range("interrupt.poll_usecs", self.interrupt.poll_usecs as usize, 0, 1_000_000)?;
        self.pool.validate().map_err(|error| match &error {
            PoolError::OutOfRange { key, found, low, high, step } => {
                let allowed = allowed(*low, *high, *step);
                ConfigError::new(
                    format!("pool.{key}"),
                    format!("found {found}, allowed is {allowed}"),
                )
            }
            PoolError::TooLarge { .. } => ConfigError::new("pool.buffers", error.to_string()),
            _ => ConfigError::new("pool", error.to_string()),
        })?;
        if self.card.default_queue >= self.host.queues {
            return Err(ConfigError::new(
                "card.default_queue",
                format!(
                    "found {}, allowed is 0 to {}",
                    self.card.default_queue,
                    self.host.queues - 1
                ),
            ));
        }
        if let TargetCores::Chosen(cores) = &self.host.target_cores
            && cores.len() != usize::from(self.host.queues)
        {
            return Err(ConfigError::new(
                "host.target_cores",
                format!(
                    "found {} cores for {} queues, wanted one core for each queue or \"auto\"",
                    cores.len(),
                    self.host.queues
                ),
            ));
        }
        Ok(())
    }
}

fn too_long() -> String {
    format!("found more than {LONGEST_FILE} bytes, allowed is up to {LONGEST_FILE}")
}

fn range(key: &str, found: usize, low: usize, high: usize) -> Result<(), ConfigError> {
    if (low..=high).contains(&found) {
        return Ok(());
    }
    Err(ConfigError::new(key, format!("found {found}, allowed is {low} to {high}")))
}

fn power_of_two(key: &str, found: usize) -> Result<(), ConfigError> {
    if found.is_power_of_two() && (64..=65_536).contains(&found) {
        return Ok(());
    }
    Err(ConfigError::new(key, format!("found {found}, allowed is a power of two, 64 to 65536")))
}

/// The table called `name`, if it is there; an error if it is not a table.
fn table_of<'t, 'i>(
    source: &Source,
    root: &'t DeTable<'i>,
    name: &str,
) -> Result<Option<&'t DeTable<'i>>, ConfigError> {
    let Some((key, value)) = root.iter().find(|(key, _)| key.get_ref() == name) else {
        return Ok(None);
    };
    match value.get_ref().as_table() {
        Some(table) => Ok(Some(table)),
        None => Err(source.error(
            Some(key.span()),
            name.into(),
            format!("a section [{name}] is wanted, {}", found_text(source, &value.span())),
        )),
    }
}

fn read_section<T: DeserializeOwned + Default>(
    source: &Source,
    root: &DeTable<'_>,
    name: &str,
) -> Result<T, ConfigError> {
    match table_of(source, root, name)? {
        Some(table) => read(source, name, table.clone()),
        None => Ok(T::default()),
    }
}

/// The `[[name]]` sections, if there are any; an error if there are too many, before any of
/// them is looked at.
fn tables_of<'t, 'i>(
    source: &Source,
    root: &'t DeTable<'i>,
    name: &str,
    allowed: RangeInclusive<usize>,
) -> Result<Option<Vec<&'t DeTable<'i>>>, ConfigError> {
    let Some((key, value)) = root.iter().find(|(key, _)| key.get_ref() == name) else {
        return Ok(None);
    };
    let error = |message| source.error(Some(key.span()), name.into(), message);
    let items = value.get_ref().as_array().map(|items| items.iter());
    let tables = items.and_then(|items| items.map(|item| item.get_ref().as_table()).collect());
    let tables: Vec<_> = tables.ok_or_else(|| {
        let found = found_text(source, &value.span());
        error(format!("sections [[{name}]] are wanted, {found}"))
    })?;
    if tables.len() > *allowed.end() {
        let (low, high) = allowed.into_inner();
        return Err(error(format!("found {}, allowed is {low} to {high}", tables.len())));
    }
    Ok(Some(tables))
}

fn wires(source: &Arc<Source>, root: &DeTable<'_>) -> Result<Vec<WireSection>, ConfigError> {
    const COMMON: &[&str] = &["port", "name", "fault"];
    let tables = tables_of(source, root, "wire", 1..=MOST_WIRES)?.unwrap_or_default();
    if tables.is_empty() {
        let port = Section::named("port", "generator");
        return Ok(vec![WireSection { name: "wire0".into(), port, fault: None }]);
    }
    let mut wires = Vec::new();
    for (index, &table) in tables.iter().enumerate() {
        let path = format!("wire[{index}]");
        let wrong = |key: &str, value: &Spanned<DeValue<'_>>, wanted| {
            let found = found_text(source, &value.span());
            let message = format!("{wanted} is wanted, {found}");
            source.error(key_span(table, key), join(&path, key), message)
        };
        let port = Section::of(source, table, path.clone(), COMMON, "port", Some("generator"))?;
        let name = match entry(table, "name") {
            None => format!("wire{index}"),
            Some(value) => match value.get_ref().as_str() {
                Some(name) => name.to_owned(),
                None => return Err(wrong("name", value, "a name in quotes")),
            },
        };
        let fault = match entry(table, "fault") {
            None => None,
            Some(value) => match value.get_ref().as_table() {
                Some(table) => {
                    let path = format!("{path}.fault");
                    Some(Section::of(source, table, path, &[], "fault", Some("fault"))?)
                }
                None => return Err(wrong("fault", value, "a section [wire.fault]")),
            },
        };
        wires.push(WireSection { name, port, fault });
    }
    check_names(source, &tables, &wires)?;
    Ok(wires)
}

/// Names tell wires apart in all output: each wire has one of its own.
fn check_names(
    source: &Source,
    tables: &[&DeTable<'_>],
    wires: &[WireSection],
) -> Result<(), ConfigError> {
    let mut numbers = HashMap::new();
    for (index, wire) in wires.iter().enumerate() {
        let Some(other) = numbers.insert(&*wire.name, index) else { continue };
        // Of a name given and one by number, the one given is the one to change.
        let is_given = entry(tables[index], "name").is_some();
        let (given, other) = if is_given { (index, other) } else { (other, index) };
        return Err(source.error(
            key_span(tables[given], "name"),
            format!("wire[{given}].name"),
            format!("found \"{}\", which is the name of wire[{other}]", wire.name),
        ));
    }
    Ok(())
}

fn chain(
    source: &Arc<Source>,
    root: &DeTable<'_>,
    name: &'static str,
) -> Result<Vec<Section>, ConfigError> {
    match tables_of(source, root, name, 0..=MOST_FUNCTIONS)? {
        // The demonstration card spreads flows over its queues.
        None if name == "rx" => Ok(vec![Section::named("function", "rss")]),
        tables => {
            let tables = tables.unwrap_or_default().into_iter().enumerate();
            let sections = tables.map(|(index, table)| {
                let path = format!("{name}[{index}]");
                Section::of(source, table, path, &["function"], "function", None)
            });
            sections.collect()
        }
    }
}

fn host(source: &Arc<Source>, root: &DeTable<'_>) -> Result<HostSection, ConfigError> {
    const OWN: [&str; 4] = ["queues", "target_cores", "ring_size", "tx_ring_size"];
    const COMMON: &[&str] = &["queues", "target_cores", "ring_size", "tx_ring_size", "attachment"];
    let table = table_of(source, root, "host")?.cloned().unwrap_or_default();
    let keys = select(&table, |key| OWN.contains(&key));
    let HostKeys { queues, target_cores, ring_size, tx_ring_size } = read(source, "host", keys)?;
    let path = "host".into();
    let attachment = Section::of(source, &table, path, COMMON, "attachment", Some("app"))?;
    Ok(HostSection { queues, target_cores, ring_size, tx_ring_size, attachment })
}

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
    ]
}

/// The keys of a typed config.
pub fn keys_of<T: JsonSchema>() -> Vec<KeyHelp> {
    let settings = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
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
