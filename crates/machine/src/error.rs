//! What the machine does not give, or does not let be changed.

use picnic_core::error::ConfigError;

/// What went wrong with the machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The card file asks for what this machine does not have.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file or system call failed.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The machine, or what is in force on it, does not allow it.
    #[error("{0}")]
    Refused(String),
}

impl MachineError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        MachineError::System { what: what.into(), source: source.into() }
    }
}
