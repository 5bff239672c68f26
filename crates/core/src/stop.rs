//! A request that a card stop, for parts that wait for other programs.
//!
//! A card whose wires are finished ends on its own, and waits as long as necessary for the readers
//! of its output. A card that is asked to stop does not: see `picnic_ports::stream`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a stop was requested. Clones are the same request.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    own: Arc<AtomicBool>,
    /// Another request that also applies to the card: the request to the process.
    other: Option<Arc<AtomicBool>>,
}

impl Stop {
    /// A request that is also made when the flag is set.
    pub fn by(flag: Arc<AtomicBool>) -> Self {
        Stop { other: Some(flag), ..Stop::default() }
    }

    /// Requests the stop.
    pub fn ask(&self) {
        self.own.store(true, Ordering::Release);
    }

    /// Whether it was requested.
    pub fn is_asked(&self) -> bool {
        let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Acquire);
        is_set(&self.own) || self.other.as_ref().is_some_and(is_set)
    }
}
