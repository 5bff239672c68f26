//! The card file: passive data, validated as a whole before anything starts.
//!
//! ```
//! use picnic_core::config::CardFile;
//! let card = CardFile::parse("[host]\nqueues = 2\n", None).unwrap();
//! assert_eq!(card.host.queues, 2);
//! let error = CardFile::parse("[host]\nqueues = \"two\"\n", None).unwrap_err();
//! assert_eq!(error.line, 2);
//! ```
//!
//! This crate knows the sections that the engine reads. Other crates add theirs as types, and a
//! program's [`Sections`] list those that a card file may have. Keys of a component (a wire, a
//! function) are not read here: [`Section`] keeps them until the registry builds the component.
//! Every error names file, line and key, and the found and allowed values.

mod document;
mod help;
mod keys;
mod reader;
mod section;
mod sections;
mod setting;

pub use help::{KeyHelp, check_ranges, keys_in, keys_of};
pub use keys::{
    Amount, CardSection, CoreChoice, GateMode, HostSection, Idle, Inner, InterruptSection,
    Priority, RxSection, StampDemand, System, TargetCores, TxComplete, TxSection, WireSection,
};
pub(crate) use reader::typed;
pub use section::{Names, Placed, Section, SectionConfig, Shape, from_json, in_range};
pub use sections::{SectionEntry, Sections};
pub use setting::Setting;

use crate::error::ConfigError;
use crate::files::Files;
use crate::packet::pool::PoolConfig;
use crate::shared::Shared;
use document::{Document, Origin};
use sections::Stored;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The built-in demonstration card: an empty file.
pub const DEMONSTRATION: &str = "";

/// Largest size of a card file, in bytes.
pub const LONGEST_FILE: usize = 1 << 20;

/// A whole card file.
#[derive(Debug)]
pub struct CardFile {
    /// `[card]`.
    pub card: CardSection,
    /// `[pool]`.
    pub pool: PoolConfig,
    /// `[[wire]]`, at least one.
    pub wires: Vec<Wire>,
    /// `[[rx]]`, in order.
    pub rx: Vec<Section>,
    /// `[[tx]]`, in order.
    pub tx: Vec<Section>,
    /// `[host]`, and the attachment it names.
    pub host: Placed<HostSection>,
    /// `[interrupt]`.
    pub interrupt: InterruptSection,
    /// The directory that relative paths start from.
    pub directory: PathBuf,
    /// State that the parts of the card share. Clones of the file are the same card.
    pub shared: Shared,
    sections: Sections,
    document: Arc<Document>,
    /// Every section of the file, by name.
    read: BTreeMap<&'static str, Vec<Stored>>,
}

/// A wire of a card.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Its name, for output.
    pub name: String,
    /// The port and its own keys.
    pub port: Section,
    /// `[wire.link]`: the link that the wire is held to, if any.
    pub link: Option<Section>,
    /// `[wire.fault]`: the fault injector between wire and card, if any.
    pub fault: Option<Section>,
}

impl CardFile {
    /// Reads the text of a card file with only the sections of [`Sections::core`]; `file` is for
    /// messages and for relative paths.
    ///
    /// # Errors
    /// See [`Sections::parse`].
    pub fn parse(text: &str, file: Option<&Path>) -> Result<Self, ConfigError> {
        Sections::core().parse(text, file)
    }

    /// Reads a card file's text, up to the largest size allowed.
    ///
    /// # Errors
    /// The file cannot be read, is too long, or is not UTF-8.
    pub fn read(path: &Path) -> Result<String, ConfigError> {
        let about = |line, message| ConfigError {
            file: Some(path.into()),
            line,
            message,
            ..ConfigError::default()
        };
        let mut bytes = Vec::new();
        // One more byte, to detect a longer file.
        std::fs::File::open(path)
            .and_then(|file| file.take(LONGEST_FILE as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| about(0, format!("cannot be read: {error}")))?;
        if bytes.len() > LONGEST_FILE {
            return Err(too_long(&bytes, Some(path)));
        }
        String::from_utf8(bytes).map_err(|error| {
            let good = error.utf8_error().valid_up_to();
            let bytes = error.as_bytes();
            let message = format!("found byte {:#04x}, allowed: UTF-8 text", bytes[good]);
            about(line_of(bytes, good), message)
        })
    }

    /// Builds the card from sections that have been read. Errors go to `faults`.
    fn of(
        sections: Sections,
        document: Arc<Document>,
        read: BTreeMap<&'static str, Vec<Stored>>,
        faults: &mut Vec<ConfigError>,
    ) -> Self {
        let folder = document.file.as_deref().and_then(Path::parent);
        let mut card = CardFile {
            card: CardSection::default(),
            pool: PoolConfig::default(),
            wires: Vec::new(),
            rx: Vec::new(),
            tx: Vec::new(),
            host: Placed::default(),
            interrupt: InterruptSection::default(),
            directory: folder.map_or_else(PathBuf::new, Path::to_owned),
            shared: Shared::default(),
            sections,
            document,
            read,
        };
        card.card = card.section().keys;
        card.pool = card.section().keys;
        card.host = card.section();
        card.interrupt = card.section().keys;
        let parts = |section: Placed<RxSection>| section.section;
        card.rx = card.given().into_iter().map(parts).collect();
        card.tx = card.given::<TxSection>().into_iter().map(|tx| tx.section).collect();
        card.wires = card.named_wires(faults);
        if card.card.default_queue >= card.host.card_queues() {
            let (found, most) = (card.card.default_queue, card.host.card_queues() - 1);
            let message = format!("found {found}, allowed: 0 to {most}");
            faults.push(card.locate(ConfigError::new("card.default_queue", message)));
        }
        card
    }

    /// Gives each wire a unique name.
    fn named_wires(&self, faults: &mut Vec<ConfigError>) -> Vec<Wire> {
        let mut numbers = HashMap::new();
        let sections = self.given::<WireSection>().into_iter().enumerate();
        let wires = sections.map(|(index, Placed { keys, section: port })| {
            let is_given = keys.name.is_some();
            let name = keys.name.unwrap_or_else(|| format!("wire{index}"));
            if let Some(other) = numbers.insert(name.clone(), index) {
                // Between a given name and a default one, the given one must change.
                let (given, other) = if is_given { (index, other) } else { (other, index) };
                let message = format!("found \"{name}\", which is the name of wire[{other}]");
                faults.push(self.locate(ConfigError::new(format!("wire[{given}].name"), message)));
            }
            let (link, fault) = (port.inner("link"), port.inner("fault"));
            Wire { name, port, link, fault }
        });
        wires.collect()
    }

    /// The file it was read from; none for the built-in card.
    pub fn path(&self) -> Option<&Path> {
        self.document.file.as_deref()
    }

    /// The sections that it may have.
    pub fn sections(&self) -> &Sections {
        &self.sections
    }

    /// The card's files, for users that no section names.
    pub fn files(&self) -> Files {
        self.document.files.clone()
    }

    /// The keys set by the file or the command line, with their values, in the file's order.
    pub fn settings(&self) -> Vec<(String, serde_json::Value)> {
        self.document.settings()
    }

    /// Whether the file itself has a section or list of this name, even an empty one.
    pub fn has(&self, name: &str) -> bool {
        self.document.at(name).is_some_and(|node| node.place != Origin::BuiltIn)
    }

    /// Adds file and line to an error about a key such as `host.target_cores[2]`.
    #[must_use]
    pub fn locate(&self, error: ConfigError) -> ConfigError {
        self.document.locate(error)
    }
}

fn too_long(bytes: &[u8], file: Option<&Path>) -> ConfigError {
    ConfigError {
        file: file.map(Path::to_owned),
        line: line_of(bytes, LONGEST_FILE),
        message: format!("found more than {LONGEST_FILE} bytes, allowed: up to {LONGEST_FILE}"),
        ..ConfigError::default()
    }
}

/// The line of a position, from 1.
fn line_of(bytes: &[u8], position: usize) -> usize {
    bytes[..position.min(bytes.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}
