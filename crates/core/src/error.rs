//! What can go wrong before a card runs; a running card counts drops instead.

use std::fmt;
use std::path::PathBuf;

/// Why a buffer pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A size is not allowed.
    #[error("{key} is {found}, allowed is {low} to {high}{}", in_steps(*step))]
    OutOfRange {
        /// The key of the `[pool]` section.
        key: &'static str,
        /// The value found.
        found: u32,
        /// The lowest value allowed.
        low: u32,
        /// The highest value allowed.
        high: u32,
        /// Values must be multiples of this.
        step: u32,
    },
    /// All pools of the process together are too large.
    #[error("{bytes} bytes of buffers do not fit into the process's 32 GiB buffer space")]
    SpaceExhausted {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The system gave no memory.
    #[error("cannot map {bytes} bytes of buffers")]
    Map {
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        source: rustix::io::Errno,
    },
}

fn in_steps(step: u32) -> String {
    if step == 1 { String::new() } else { format!(" in steps of {step}") }
}

/// What is wrong with a card file: where, what was found, what is allowed.
///
/// Displayed as `FILE:LINE: KEY: MESSAGE`, leaving out what is not known.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The card file; none for the built-in card.
    pub file: Option<PathBuf>,
    /// Line in the file, from 1; zero if it has none.
    pub line: usize,
    /// The key, as a path such as `wire[0].path`.
    pub key: String,
    /// What was found and what is allowed.
    pub message: String,
}

impl ConfigError {
    /// An error about `key`, its place not yet known.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        ConfigError { file: None, line: 0, key: key.into(), message: message.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}", file.display())?,
            None => write!(f, "card")?,
        }
        if self.line != 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ConfigError {}
