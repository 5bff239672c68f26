//! Prints a failure, and returns its exit code.
//!
//! Errors in a card file read `FILE:LINE: KEY: MESSAGE`, like a compiler's, a line for each error;
//! others read `picnic: MESSAGE`, one line for each cause.

use crate::output::{self, is_broken_pipe};
use picnic_control::error::RunError;
use picnic_core::error::{ConfigError, brief};
use picnic_sciron::rules::Faults;
use schemars::JsonSchema;
use serde::Serialize;

/// A usage error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// A failure with its fix.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(crate) struct Hinted {
    pub(crate) error: anyhow::Error,
    pub(crate) hint: String,
}

/// Prints a failure, and returns the exit code.
///
/// With `json`, standard output has the errors of a card file as one JSON object, too.
pub(crate) fn exit_code(error: &anyhow::Error, json: bool) -> u8 {
    if let Some(Hinted { error, hint }) = error.downcast_ref() {
        let status = exit_code(error, json);
        output::tell(format_args!("picnic: {hint}"));
        return status;
    }
    // The reader of the output has seen enough.
    if is_broken_pipe(error) {
        return 0;
    }
    if let Some(error) = config_error(error) {
        if json {
            let _ = output::print_json(&ErrorList { errors: listed(error) });
        }
        for error in error.each() {
            // On its own line, for any file name.
            output::tell(ConfigError { further: Vec::new(), ..error.clone() });
        }
        // The error is not in the file, but in a component that it names.
        return if picnic_plugin::guard::has_tried_to_end() { 1 } else { 2 };
    }
    // Errors in a rules file have the same form.
    if let Some(faults) = error.downcast_ref::<Faults>() {
        faults.to_string().lines().for_each(output::tell);
        return 2;
    }
    for cause in error.chain() {
        output::tell(format_args!("picnic: {cause}"));
    }
    if error.is::<Usage>() { 2 } else { 1 }
}

/// The card file's error, if it is one.
fn config_error(error: &anyhow::Error) -> Option<&ConfigError> {
    error.downcast_ref::<ConfigError>().or_else(|| match error.downcast_ref::<RunError>() {
        Some(error) => error.config(),
        None => None,
    })
}

/// The output of `--json` on standard output instead of a result if a card file is wrong.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ErrorList {
    /// All errors of the file.
    errors: Vec<CardFileError>,
}

/// An error of a card file.
#[derive(Serialize, JsonSchema)]
struct CardFileError {
    /// The file; null for the built-in card.
    file: Option<String>,
    /// The line, from 1; null if the error is in no line, as of a key of `--set`.
    line: Option<usize>,
    /// The key.
    key: String,
    /// The value found; null if the error is of no value.
    found: Option<String>,
    /// The values allowed.
    allowed: Option<String>,
    /// The error in words.
    message: String,
}

/// The errors of a card file, each with its place.
fn listed(error: &ConfigError) -> Vec<CardFileError> {
    let of = |error: &ConfigError| CardFileError {
        file: error.file.as_ref().map(|file| file.display().to_string()),
        line: (error.line != 0).then_some(error.line),
        key: brief(&error.key).into(),
        found: error.found().map(|found| brief(found).into()),
        allowed: error.allowed().map(Into::into),
        message: brief(&error.message).into(),
    };
    error.each().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn card_file_errors_are_found_in_any_chain() {
        let error = ConfigError::new("host.queues", "found 0");
        assert!(config_error(&anyhow::Error::new(error.clone())).is_some());
        assert!(config_error(&anyhow::Error::new(RunError::from(error))).is_some());
        assert!(config_error(&anyhow::anyhow!("something else")).is_none());
    }
}
