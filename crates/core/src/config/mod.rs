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

mod control;
mod help;
mod keys;
mod os;
mod section;

pub use control::{ControlSection, ControlSocket, MetricsAddress};
pub use help::{KeyHelp, common_sections, keys_in, keys_of};
pub use keys::{
    CardSection, CoreChoice, Engine, HostSection, Idle, InterruptSection, IsolationLevel,
    IsolationMethod, IsolationSection, Priority, TargetCores, WireSection,
};
pub use os::{Admission, OsKeys, OsSection, Overrun, TaskKeys, TaskSection};
pub use section::Section;

use crate::error::{ConfigError, PoolError, allowed};
use crate::packet::pool::PoolConfig;
use keys::HostKeys;
use section::{Source, entry, found_text, join, key_span, read, select};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::io::Read;
use std::ops::RangeInclusive;
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
/// `[[filter]]` sections; more belong into a file of rules.
const MOST_FILTERS: usize = 256;
/// Tasks that a card starts with.
const MOST_TASKS: usize = 1_024;

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
    /// `[[filter]]`, in order; NIC OS reads them.
    pub filters: Vec<Section>,
    /// `[sciron]`, if there is one: a firewall's file of rules, and where they are to be.
    pub sciron: Option<Section>,
    /// `[host]`.
    pub host: HostSection,
    /// `[interrupt]`.
    pub interrupt: InterruptSection,
    /// `[isolation]`.
    pub isolation: IsolationSection,
    /// `[control]`.
    pub control: ControlSection,
    /// `[os]`, if there is one, or there are tasks.
    pub os: Option<OsSection>,
    /// `[[task]]`, in order.
    pub tasks: Vec<TaskSection>,
    /// `[trace]`, if there is one.
    pub trace: Option<Section>,
    /// The folder that relative paths start from.
    pub directory: PathBuf,
    source: Arc<Source>,
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
        const TOP: [&str; 14] = [
            "card",
            "pool",
            "wire",
            "rx",
            "tx",
            "filter",
            "sciron",
            "host",
            "interrupt",
            "isolation",
            "os",
            "task",
            "control",
            "trace",
        ];
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
            filters: filters(&source, &root)?,
            sciron: match table_of(&source, &root, "sciron")? {
                Some(table) => {
                    let path = "sciron".into();
                    Some(Section::of(&source, table, path, &[], "sciron", Some("sciron"))?)
                }
                None => None,
            },
            host: host(&source, &root)?,
            interrupt: read_section(&source, &root, "interrupt")?,
            isolation: read_section(&source, &root, "isolation")?,
            os: os_section(&source, &root)?,
            tasks: tasks(&source, &root)?,
            control: read_section(&source, &root, "control")?,
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

    /// The file it was read from; none for the built-in card.
    pub fn path(&self) -> Option<&Path> {
        self.source.file.as_deref()
    }

    /// Whether the file itself has a section or list of this name, be it empty.
    pub fn has(&self, name: &str) -> bool {
        self.source.table().is_ok_and(|root| entry(root.get_ref(), name).is_some())
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
        range("host.tx_bytes_in_flight", self.host.tx_bytes_in_flight as usize, 1514, 1 << 30)?;
        range("interrupt.rx_usecs", self.interrupt.rx_usecs as usize, 0, 1_000_000)?;
        range("interrupt.poll_usecs", self.interrupt.poll_usecs as usize, 0, 1_000_000)?;
        range("interrupt.tx_usecs", self.interrupt.tx_usecs as usize, 0, 1_000_000)?;
        if let Some(os) = &self.os {
            range("os.tasks", os.keys.tasks, 1, 1_024)?;
            range("os.arena_bytes", os.keys.arena_bytes, 4_096, 1 << 30)?;
            range("os.host_bytes", os.keys.host_bytes, 0, 1 << 40)?;
            range("os.transfer_bytes_per_us", os.keys.transfer_bytes_per_us as usize, 1, 1 << 40)?;
            range("os.switch_ns", os.keys.switch_ns as usize, 0, 1_000_000_000)?;
            range("os.cold_ns", os.keys.cold_ns as usize, 0, 1_000_000_000)?;
        }
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

fn filters(source: &Arc<Source>, root: &DeTable<'_>) -> Result<Vec<Section>, ConfigError> {
    let tables = tables_of(source, root, "filter", 0..=MOST_FILTERS)?.unwrap_or_default();
    let sections = tables.into_iter().enumerate().map(|(index, table)| {
        let path = format!("filter[{index}]");
        Section::of(source, table, path, &[], "filter", Some("filter"))
    });
    sections.collect()
}

/// A card with tasks has a NIC OS, be its section left out.
fn os_section(source: &Arc<Source>, root: &DeTable<'_>) -> Result<Option<OsSection>, ConfigError> {
    let empty = DeTable::default();
    let table = match table_of(source, root, "os")? {
        None if entry(root, "task").is_some() => Some(&empty),
        table => table,
    };
    table.map(|table| os::os(source, table)).transpose()
}

fn tasks(source: &Arc<Source>, root: &DeTable<'_>) -> Result<Vec<TaskSection>, ConfigError> {
    let tables = tables_of(source, root, "task", 0..=MOST_TASKS)?.unwrap_or_default();
    let tables = tables.into_iter().enumerate();
    tables.map(|(index, table)| os::task(source, table, format!("task[{index}]"))).collect()
}

fn host(source: &Arc<Source>, root: &DeTable<'_>) -> Result<HostSection, ConfigError> {
    const COMMON: &[&str] = &[
        "queues",
        "target_cores",
        "ring_size",
        "tx_ring_size",
        "tx_bytes_in_flight",
        "priority",
        "attachment",
    ];
    let table = table_of(source, root, "host")?.cloned().unwrap_or_default();
    let keys = select(&table, |key| key != "attachment" && COMMON.contains(&key));
    let keys: HostKeys = read(source, "host", keys)?;
    let path = "host".into();
    let attachment = Section::of(source, &table, path, COMMON, "attachment", Some("app"))?;
    Ok(HostSection {
        queues: keys.queues,
        target_cores: keys.target_cores,
        ring_size: keys.ring_size,
        tx_ring_size: keys.tx_ring_size,
        tx_bytes_in_flight: keys.tx_bytes_in_flight,
        priority: keys.priority,
        attachment,
    })
}
