//! A request that a card stop, as those see it who wait for somebody outside.
//!
//! A card whose wires have nothing more ends by itself, and waits for as long as it takes whoever
//! reads what it writes. One that is asked to stop does not: see `picnic_ports::stream`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a stop was asked for. Clones are the same request.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    own: Arc<AtomicBool>,
    /// Another's request, which is one to the card too: that of a process.
    other: Option<Arc<AtomicBool>>,
}

impl Stop {
    /// Asked for as soon as the flag is set, too.
    pub fn by(flag: Arc<AtomicBool>) -> Self {
        Stop { other: Some(flag), ..Stop::default() }
    }

    /// Asks for it.
    pub fn ask(&self) {
        self.own.store(true, Ordering::Release);
    }

    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Acquire);
        is_set(&self.own) || self.other.as_ref().is_some_and(is_set)
    }
}
