//! Strict parsing of numbers and bytes.

use std::fmt;

/// The value found and the values allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The value found.
    pub found: String,
    /// The values allowed.
    pub allowed: String,
}

impl Reason {
    /// From the value found and the values allowed.
    pub fn new(found: impl Into<String>, allowed: impl Into<String>) -> Self {
        Reason { found: found.into(), allowed: allowed.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found {}, allowed: {}", self.found, self.allowed)
    }
}

impl std::error::Error for Reason {}

/// A decimal number, digits only: no sign, no space.
pub(super) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_digits { text.parse().ok() } else { None }
}

/// Bytes from hexadecimal digits, two each.
pub(super) fn bytes(text: &str) -> Result<Vec<u8>, Reason> {
    let wrong = || Reason::new(format!("\"{text}\""), "hexadecimal digits, two per byte");
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong());
    (0..text.len()).step_by(2).map(digit).collect()
}

/// Hexadecimal digits of bytes.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
