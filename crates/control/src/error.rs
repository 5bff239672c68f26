//! Why a card did not start, or did not end well.

use crate::socket::SocketError;
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
    Control(#[from] SocketError),
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
    /// What is wrong with the card file, if that is the error.
    pub fn config(&self) -> Option<&ConfigError> {
        match self {
            RunError::Build(BuildError::Config(error))
            | RunError::Control(SocketError::Config(error)) => Some(error),
            _ => None,
        }
    }

    /// Both values.
    ///
    /// # Errors
    /// What is wrong with the card file by both; else the first error.
    pub fn both<A, B>(a: Result<A, RunError>, b: Result<B, RunError>) -> Result<(A, B), RunError> {
        match (a, b) {
            (Ok(a), Ok(b)) => Ok((a, b)),
            (Err(a), Err(b)) => Err(match (a.config(), b.config()) {
                (Some(first), Some(second)) => first.clone().and(second.clone()).into(),
                (None, Some(_)) => b,
                _ => a,
            }),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
        }
    }

    /// A file or system call failed: `what` was tried.
    pub fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        RunError::System { what: what.into(), source: source.into() }
    }
}
