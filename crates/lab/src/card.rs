//! A card file from the command line: a path or the built-in card, and `--set`.
//!
//! Values of `--set` are put into the file before it is read, so they are checked like the file. An
//! error about a changed key says `--set`; any other has the file's line.

use clap::{Args, ValueEnum};
use picnic_core::config::{CardFile, DEMONSTRATION, Sections, Setting};
use picnic_core::error::ConfigError;
use std::path::{Path, PathBuf};

/// Behaviour of the borrowed core without work.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Idle {
    /// Poll again at once
    Spin,
    /// Spin, then block
    Adaptive,
    /// Block at once
    Block,
}

/// The card to use.
#[derive(Clone, Debug, Args)]
pub struct CardArgs {
    /// Card file [default: the built-in demonstration card]
    #[arg(value_name = "CARD.toml")]
    card: Option<PathBuf>,
    #[command(flatten)]
    changes: ChangeArgs,
}

/// Changes of a card.
#[derive(Clone, Debug, Default, Args)]
pub struct ChangeArgs {
    /// What the borrowed core does when idle; same as --set card.idle=...
    #[arg(long, value_enum)]
    idle: Option<Idle>,
    /// What runs the card, poll or kernel; same as --set card.engine=...
    #[arg(long, value_name = "NAME")]
    engine: Option<String>,
    /// Set a key of the card file, such as --set host.queues=2 or --set rx[0].hash=jhash
    #[arg(long, value_name = "KEY=VALUE", value_parser = Setting::parse)]
    set: Vec<Setting>,
}

impl CardArgs {
    /// The card file's path; none for the built-in card.
    pub fn path(&self) -> Option<&Path> {
        self.card.as_deref()
    }

    /// Reads the card file with these settings and the settings of the command line.
    ///
    /// # Errors
    /// Errors in the file or the settings.
    pub fn load(
        &self,
        sections: &Sections,
        settings: Vec<Setting>,
    ) -> Result<CardFile, ConfigError> {
        let (card, faults) = self.examine(sections, settings)?;
        ConfigError::all(faults).map(|()| card)
    }

    /// The same, returning the errors of keys separately: see [`Sections::examine`].
    ///
    /// # Errors
    /// The file cannot be read, or is not TOML.
    pub fn examine(
        &self,
        sections: &Sections,
        settings: Vec<Setting>,
    ) -> Result<(CardFile, Vec<ConfigError>), ConfigError> {
        let path = self.path();
        let text = path.map_or(Ok(DEMONSTRATION.into()), CardFile::read)?;
        sections.examine(&text, path, &self.changes.after(settings))
    }
}

impl ChangeArgs {
    /// Reads a card file's text with these settings, then the settings of the command line.
    ///
    /// # Errors
    /// Errors in the text or the settings.
    pub fn load(
        &self,
        sections: &Sections,
        text: &str,
        path: Option<&Path>,
        settings: Vec<Setting>,
    ) -> Result<CardFile, ConfigError> {
        sections.parse_with(text, path, &self.after(settings))
    }

    /// These settings, then the settings of the command line.
    fn after(&self, mut settings: Vec<Setting>) -> Vec<Setting> {
        let idle = self.idle.and_then(|idle| idle.to_possible_value());
        settings.extend(idle.map(|idle| Setting::text("card.idle", idle.get_name())));
        let engine = self.engine.as_deref();
        settings.extend(engine.map(|engine| Setting::text("card.engine", engine)));
        settings.extend(self.set.iter().cloned());
        settings
    }
}

/// Reads a card file's text with these settings, then a user's `KEY=VALUE`s.
///
/// # Errors
/// Errors in the text or the settings.
pub fn changed(
    sections: &Sections,
    text: &str,
    path: Option<&Path>,
    mut settings: Vec<Setting>,
    set: &[String],
) -> Result<CardFile, ConfigError> {
    for words in set {
        let setting = Setting::parse(words);
        settings.push(setting.map_err(|message| ConfigError::new("set", message))?);
    }
    sections.parse_with(text, path, &settings)
}
