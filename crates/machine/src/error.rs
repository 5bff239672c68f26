//! Errors about the machine: missing features, failed calls, refused changes.

use picnic_core::error::ConfigError;

/// An error about the machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The card file requests something that this machine does not have.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file or system call failed.
    #[error("{what}")]
    System {
        /// The operation.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The machine, or its current state, does not allow it.
    #[error("{0}")]
    Refused(String),
}

impl MachineError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        MachineError::System { what: what.into(), source: source.into() }
    }
}
