//! How a failure is told, and the exit code it gives.
//!
//! What is wrong with a card file reads `FILE:LINE: KEY: MESSAGE`, as compilers
//! write it, a line for each error; all else reads `picnic: MESSAGE`, one line for each cause.

use crate::output::{self, is_broken_pipe};
use picnic_control::error::RunError;
use picnic_core::error::{ConfigError, brief};
use picnic_sciron::rules::Faults;
use serde_json::{Value, json};

/// The user asked for something that is not there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// A failure, and what mends it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(crate) struct Hinted {
    pub(crate) error: anyhow::Error,
    pub(crate) hint: String,
}

/// Tells the user of a failure, and says what to exit with.
///
/// With `json`, what is wrong with a card file is one JSON object on standard output.
pub(crate) fn exit_code(error: &anyhow::Error, json: bool) -> u8 {
    if let Some(Hinted { error, hint }) = error.downcast_ref() {
        let status = exit_code(error, json);
        output::tell(format_args!("picnic: {hint}"));
        return status;
    }
    // Whoever read the output has seen enough.
    if is_broken_pipe(error) {
        return 0;
    }
    if let Some(error) = config_error(error) {
        match json {
            true => drop(output::print_json(&json!({ "errors": listed(error) }))),
            false => {
                for error in error.each() {
                    // A line of its own, whatever the name of the file.
                    output::tell(ConfigError { further: Vec::new(), ..error.clone() });
                }
            }
        }
        // Not the file is wrong then, but what it names.
        return if picnic_plugin::guard::has_tried_to_end() { 1 } else { 2 };
    }
    // A file of rules is told of in the same way.
    if let Some(faults) = error.downcast_ref::<Faults>() {
        faults.to_string().lines().for_each(output::tell);
        return 2;
    }
    for cause in error.chain() {
        output::tell(format_args!("picnic: {cause}"));
    }
    if error.is::<Usage>() { 2 } else { 1 }
}

/// The card file's error, if that is what the error is about.
fn config_error(error: &anyhow::Error) -> Option<&ConfigError> {
    error.downcast_ref::<ConfigError>().or_else(|| match error.downcast_ref::<RunError>() {
        Some(error) => error.config(),
        None => None,
    })
}

/// The errors of a card file, each with its place; null where there is none.
fn listed(error: &ConfigError) -> Vec<Value> {
    let of = |error: &ConfigError| {
        json!({
            "file": error.file,
            "line": (error.line != 0).then_some(error.line),
            "key": brief(&error.key),
            "found": error.found().map(brief),
            "allowed": error.allowed(),
            "message": brief(&error.message),
        })
    };
    error.each().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_files_error_is_found_however_it_came() {
        let error = ConfigError::new("host.queues", "found 0");
        assert!(config_error(&anyhow::Error::new(error.clone())).is_some());
        assert!(config_error(&anyhow::Error::new(RunError::from(error))).is_some());
        assert!(config_error(&anyhow::anyhow!("something else")).is_none());
    }
}
