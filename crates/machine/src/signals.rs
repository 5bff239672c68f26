//! Requests to stop: Ctrl-C, SIGTERM, a closed terminal.
//!
//! The first one requests a clean stop. A second Ctrl-C or SIGTERM ends the process at once; a
//! second hang-up does not, since the kernel and the shell both send one when a terminal closes.

use picnic_core::stop::Stop;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The longest time until a request to stop is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// A stop was requested during an operation that will be undone.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted; everything is removed")]
pub struct Interrupted;

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// A flag that SIGINT, SIGTERM, SIGQUIT and SIGHUP set. From the first call on they no longer end
/// the process directly.
///
/// # Errors
/// A signal cannot be handled.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    if let Some(stop) = STOP.get() {
        return Ok(stop.clone());
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGQUIT] {
        // In this order: the signal that sets the flag must not find it set.
        flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| flag::register(signal, stop.clone()))?;
    }
    // nohup(1) ignores it on purpose.
    if !is_ignored(SIGHUP) {
        flag::register(SIGHUP, stop.clone())?;
    }
    Ok(STOP.get_or_init(|| stop).clone())
}

/// The process's request to stop by signals: never set without a [`stop_flag`].
pub fn stop() -> Stop {
    STOP.get().cloned().map_or_else(Stop::default, Stop::by)
}

/// Whether a stop was requested, in a process with a [`stop_flag`].
pub fn is_asked() -> bool {
    STOP.get().is_some_and(|stop| stop.load(Ordering::Acquire))
}

/// Sleeps, unless a stop is requested.
///
/// # Errors
/// It was requested. The caller undoes its work as for any other error.
pub fn sleep(time: Duration) -> Result<(), Interrupted> {
    let start = Instant::now();
    loop {
        if is_asked() {
            return Err(Interrupted);
        }
        match time.saturating_sub(start.elapsed()) {
            Duration::ZERO => return Ok(()),
            left => std::thread::sleep(left.min(LOOK)),
        }
    }
}

/// Whether this process was started with the signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal - 1) != 0
}
