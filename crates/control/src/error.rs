//! Why a card did not start, or did not end well.

use picnic_core::error::ConfigError;
use picnic_engine::build::BuildError;
use picnic_machine::error::MachineError;

/// What went wrong with a card.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The card file is wrong, or what it asks for cannot be had.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A file or system call failed.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The card cannot be given its control socket.
    #[error(transparent)]
    Control(#[from] crate::socket::SocketError),
    /// The machine does not give, or does not let be changed, what the card needs.
    #[error(transparent)]
    Machine(MachineError),
    /// A thread of the card panicked. A bug: the data path must not.
    #[error("the thread of {0} panicked")]
    Panicked(String),
}

impl From<ConfigError> for RunError {
    fn from(error: ConfigError) -> Self {
        RunError::Build(BuildError::Config(error))
    }
}

impl From<MachineError> for RunError {
    fn from(error: MachineError) -> Self {
        match error {
            MachineError::Config(error) => error.into(),
            error => RunError::Machine(error),
        }
    }
}

impl RunError {
    /// A file or system call failed: `what` was tried.
    pub fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        RunError::System { what: what.into(), source: source.into() }
    }
}
