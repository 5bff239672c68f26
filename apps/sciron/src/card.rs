//! `[sciron]` of a card file: a firewall in force from the first packet.
//!
//! ```toml
//! [sciron]
//! rules = "firewall.rules"     # relative to the card file
//! place = "nic"                # or "driver"
//! direction = "rx"             # or "tx", or "both"
//! ```

use crate::install::{Installation, Sides};
use crate::rules::Rules;
use picnic_core::config::{CardFile, SectionConfig, SectionEntry, Shape};
use picnic_core::error::ConfigError;
use picnic_filter::{Filters, Place};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The section of the firewall.
pub const SECTIONS: &[SectionEntry] = &[SectionEntry::of::<Keys>()];

/// The keys of `[sciron]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Keys {
    /// The rules file, relative to the card file.
    pub rules: Option<PathBuf>,
    /// Place of the filters: "nic" (borrowed core) or "driver" (target core).
    pub place: Place,
    /// Direction of the packets: "rx", "tx" or "both".
    pub direction: Sides,
}

impl SectionConfig for Keys {
    const NAME: &'static str = "sciron";
    const HELP: &'static str = "A firewall, in force from the first packet.";
    const SHAPE: Shape = Shape::Optional;

    fn check(&self) -> Result<(), ConfigError> {
        let message = "missing, expected the path of a rules file";
        let missing = || ConfigError::new("rules", message);
        self.rules.as_ref().map(drop).ok_or_else(missing)
    }
}

/// Adds the filters of a card's `[sciron]` section, if it has one; for a program's `Registries`.
///
/// # Errors
/// The section or the rules file is wrong.
pub fn add(file: &CardFile, filters: &Filters) -> Result<(), ConfigError> {
    for keys in file.given::<Keys>() {
        let section = &keys.section;
        let path = file.directory.join(keys.rules.as_deref().unwrap_or(Path::new("")));
        section.files().read("rules", &path).map_err(|error| section.locate(error))?;
        let rules = Rules::load(&path).map_err(|faults| {
            // The place of the error, and the key that led there.
            let lines = faults.to_string().replace('\n', "; ");
            section.locate(ConfigError::new("rules", lines))
        })?;
        let installation = Installation { place: keys.place, sides: keys.direction };
        rules.install(filters, &installation).map_err(|error| section.locate(error.into()))?;
    }
    Ok(())
}
