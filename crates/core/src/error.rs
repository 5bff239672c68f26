//! Errors before a card runs; a running card counts drops instead.

use std::borrow::Cow;
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
        /// The system's error.
        source: rustix::io::Errno,
    },
}

/// The allowed values, in words.
pub(crate) fn allowed(low: u32, high: u32, step: u32) -> String {
    let steps = if step == 1 { String::new() } else { format!(" in steps of {step}") };
    format!("{low} to {high}{steps}")
}

/// An error in a card file: the place, and the found and allowed values.
///
/// Displayed as `FILE:LINE: KEY: MESSAGE` without unknown parts; one line per error.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The card file; none for the built-in card.
    pub file: Option<PathBuf>,
    /// Line in the file, from 1; zero if unknown.
    pub line: usize,
    /// The key, as a path such as `wire[0].path`.
    pub key: String,
    /// The found and allowed values.
    pub message: String,
    /// The other errors of the same file, in the order of lines.
    pub further: Vec<ConfigError>,
}

impl ConfigError {
    /// An error about `key`, its place not yet known.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        ConfigError { key: key.into(), message: message.into(), ..ConfigError::default() }
    }

    /// Several errors as one.
    ///
    /// # Errors
    /// There is at least one.
    pub fn all(errors: impl IntoIterator<Item = ConfigError>) -> Result<(), ConfigError> {
        errors.into_iter().reduce(ConfigError::and).map_or(Ok(()), Err)
    }

    /// Both values.
    ///
    /// # Errors
    /// Those of both.
    pub fn both<A, B>(
        a: Result<A, ConfigError>,
        b: Result<B, ConfigError>,
    ) -> Result<(A, B), ConfigError> {
        match (a, b) {
            (Ok(a), Ok(b)) => Ok((a, b)),
            (Err(a), Err(b)) => Err(a.and(b)),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
        }
    }

    /// Joins two errors: those of the command line first, then by line of the file, then those
    /// without a line, without duplicates.
    #[must_use]
    pub fn and(mut self, mut other: ConfigError) -> ConfigError {
        let (further, more) =
            (std::mem::take(&mut self.further), std::mem::take(&mut other.further));
        let mut all = vec![self];
        for error in further.into_iter().chain([other]).chain(more) {
            if !all.contains(&error) {
                all.push(error);
            }
        }
        all.sort_by_key(|error| match (error.line, &error.file) {
            (0, Some(file)) if file.as_os_str() == "--set" => (0, 0),
            (0, _) => (2, 0),
            (line, _) => (1, line),
        });
        let first = all.remove(0);
        ConfigError { further: all, ..first }
    }

    /// This error and the others of the same file.
    pub fn each(&self) -> impl Iterator<Item = &ConfigError> {
        std::iter::once(self).chain(&self.further)
    }

    /// The value found, if the message has the form `found X, allowed: Y`.
    pub fn found(&self) -> Option<&str> {
        let found = self.message.strip_prefix("found ")?;
        Some(found.split_once(", allowed: ").map_or(found, |(found, _)| found))
    }

    /// The values allowed, if the message has the form `found X, allowed: Y`.
    pub fn allowed(&self) -> Option<&str> {
        self.message.split_once(", allowed: ").map(|(_, allowed)| allowed)
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
            write!(f, ": {}", brief(&self.key))?;
        }
        write!(f, ": {}", brief(&self.message))?;
        self.further.iter().try_for_each(|error| write!(f, "\n{error}"))
    }
}

impl std::error::Error for ConfigError {}

/// Longest message, quoted text and word, in bytes.
const LONGEST_MESSAGE: usize = 2000;
const LONGEST_QUOTED: usize = 256;
const LONGEST_WORD: usize = 512;

/// A message with long parts shortened: the middle of a too long quoted text, word or message is
/// replaced.
///
/// ```
/// use picnic_core::error::brief;
/// let message = format!("found \"{}\", allowed: 1 to 64 letters", "x".repeat(900_000));
/// let shown = brief(&message);
/// assert!(shown.len() < 400 && shown.ends_with("x\", allowed: 1 to 64 letters"));
/// ```
pub fn brief(message: &str) -> Cow<'_, str> {
    if message.len() <= LONGEST_QUOTED {
        return Cow::Borrowed(message);
    }
    let mut parts = message.split('"').enumerate();
    let mut shown = parts.next().map_or_else(String::new, |(_, part)| words(part));
    for (number, part) in parts {
        shown.push('"');
        match number % 2 {
            1 => shown.push_str(&without_midst(part, LONGEST_QUOTED)),
            _ => shown.push_str(&words(part)),
        }
    }
    without_midst(&shown, LONGEST_MESSAGE).into_owned().into()
}

/// A text with each of its words shortened.
fn words(text: &str) -> String {
    let words = text.split_inclusive(char::is_whitespace);
    words.map(|word| without_midst(word, LONGEST_WORD)).collect()
}

/// The beginning and end of a text longer than `most` bytes.
fn without_midst(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let (first, last) = (most / 2, text.len() - most / 4);
    format!(
        "{} ... {}",
        &text[..text.floor_char_boundary(first)],
        &text[text.ceil_char_boundary(last)..]
    )
    .into()
}

/// The message for a word that is not among the allowed ones: `found "x", allowed: a, b`, and the
/// nearest of them if it is near. `kind` is put before the word: "key ", "section ".
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

/// The word that is probably meant: the nearest, if it is one typing error away.
pub fn nearest<'w>(found: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // A longer word is near to none. Any two words of two letters would be near.
    let most = match found.chars().count() {
        0..=2 | 65.. => return None,
        letters => letters.div_ceil(3).min(3),
    };
    let near = words.map(|word| (strsim::osa_distance(found, word), word)).min()?;
    (near.0 <= most).then_some(near.1)
}
