//! Ctrl-C: the first asks for a clean stop, the second ends the process.

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that Ctrl-C (or a polite kill) sets; once set, the next one kills as if unhandled.
pub(crate) fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the signal that sets the flag must not yet find it set.
        flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| flag::register(signal, stop.clone()))
            .context("cannot handle Ctrl-C")?;
    }
    Ok(stop)
}
