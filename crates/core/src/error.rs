//! What can go wrong before a card runs; a running card counts drops instead.

use std::fmt;
use std::path::PathBuf;

/// Why a buffer pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A size is not allowed.
    #[error("{key} is {found}, allowed: {}", allowed(*low, *high, *step))]
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
    /// The buffers take more than all pools of a process may.
    #[error(
        "found {buffers} of {stride} bytes each (buffer_size, headroom and header), together \
         {bytes} bytes; allowed: {allowed} bytes, {} buffers",
        *allowed / *stride
    )]
    TooLarge {
        /// Buffers asked for.
        buffers: u32,
        /// Bytes from one buffer to the next.
        stride: usize,
        /// Bytes of all of them.
        bytes: usize,
        /// Bytes of the buffer space.
        allowed: usize,
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

/// The values allowed, in words.
pub(crate) fn allowed(low: u32, high: u32, step: u32) -> String {
    let steps = if step == 1 { String::new() } else { format!(" in steps of {step}") };
    format!("{low} to {high}{steps}")
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

/// What is said of a word that is none of those allowed: `found "x", allowed: a, b`, and the
/// nearest of them if it is near. `kind` stands before the word: "key ", "section ".
pub fn not_among<'w>(kind: &str, found: &str, allowed: impl Iterator<Item = &'w str>) -> String {
    let allowed: Vec<_> = allowed.collect();
    let list = if allowed.is_empty() { "none".into() } else { allowed.join(", ") };
    let hint = match nearest(found, allowed.into_iter()) {
        Some(word) => format!("; did you mean \"{word}\"?"),
        None => String::new(),
    };
    const LONGEST: usize = 60;
    let shown: String = found.chars().take(LONGEST).collect();
    let dots = if shown.len() < found.len() { "..." } else { "" };
    format!("found {kind}\"{shown}{dots}\", allowed: {list}{hint}")
}

/// The word that is probably meant: the nearest, if it is a typing error away.
pub fn nearest<'w>(found: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // A longer word is near none. Of two letters any two words are near.
    let most = match found.chars().count() {
        0..=2 | 65.. => return None,
        letters => letters.div_ceil(3).min(3),
    };
    let near = words.map(|word| (strsim::osa_distance(found, word), word)).min()?;
    (near.0 <= most).then_some(near.1)
}
