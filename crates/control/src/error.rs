//! Reasons why a card did not start, or failed.

use crate::socket::SocketError;
use picnic_core::error::ConfigError;
use picnic_engine::build::BuildError;
use picnic_machine::error::MachineError;

/// An error of a card.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The card file is wrong, or the machine lacks something it needs.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A file or system call failed.
    #[error("{what}")]
    System {
        /// The attempted operation.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The control socket cannot be opened.
    #[error(transparent)]
    Control(#[from] SocketError),
    /// The machine lacks or refuses something that the card needs.
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
    /// The error in the card file, if it is one.
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
    /// The errors of both in the card file, if both have some; otherwise the first error.
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

    /// A failed file operation or system call `what`.
    pub fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        RunError::System { what: what.into(), source: source.into() }
    }
}
