//! A watchdog: names the function of a shared object that does not return, and decides when waiting
//! for a stopping card is pointless.
//!
//! The data path reads no clock for it: calls into an object are recorded
//! ([`guard`](picnic_plugin::guard)), and each turn of the borrowed core is counted.
//!
//! Guarantees: for a suspended process no time passes.

use picnic_plugin::guard::{self, LOOK, PATIENCE};
use std::time::{Duration, Instant};

/// Longest turn of a stopping borrowed core, unless it is in an object. The last turn closes the
/// wires, and may have to wait for the kernel's locks on a busy machine; clients wait for longer.
const LONGEST_TURN: Duration = Duration::from_secs(20);

/// Observes a borrowed core from another thread.
#[derive(Debug)]
pub(crate) struct Watchdog {
    looked: Instant,
    /// The unfinished call.
    call: Option<(usize, u64)>,
    stuck: Duration,
    has_told: bool,
    /// Turns at the last check, and the time since the number changed.
    turns: u64,
    still: Duration,
}

/// The result of a check.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Reported once per call.
    pub(crate) news: Option<String>,
    /// The reason why the call will never return.
    pub(crate) fault: Option<String>,
    /// The reason to stop waiting for the card.
    pub(crate) end: Option<String>,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Watchdog {
            looked: Instant::now(),
            call: None,
            stuck: Duration::ZERO,
            has_told: false,
            turns: 0,
            still: Duration::ZERO,
        }
    }

    /// Counts turns from now on: before, the borrowed core may sleep.
    pub(crate) fn stops(&mut self) {
        self.still = Duration::ZERO;
    }

    /// Checks a borrowed core's thread, given its number of turns.
    pub(crate) fn look(&mut self, thread: u64, turns: u64) -> Found {
        let now = Instant::now();
        let passed = now.duration_since(self.looked).min(4 * LOOK);
        self.looked = now;
        self.still = if turns == self.turns { self.still + passed } else { Duration::ZERO };
        self.turns = turns;
        let Some(pending) = guard::pending(thread) else {
            self.call = None;
            let end = (self.still >= LONGEST_TURN).then(|| {
                let seconds = LONGEST_TURN.as_secs();
                format!("the borrowed core has not ended a turn for {seconds} s")
            });
            return Found { end, ..Found::default() };
        };
        if self.call != Some(pending.call) {
            (self.call, self.stuck, self.has_told) = (Some(pending.call), Duration::ZERO, false);
        } else {
            self.stuck += passed;
        }
        let name = pending.name;
        let fault = pending.fault.map(|fault| format!("{name} {fault}"));
        let is_stuck = fault.is_none() && self.stuck >= PATIENCE;
        let stuck = is_stuck
            .then(|| format!("{name} has not returned for {:.1} s", self.stuck.as_secs_f64()));
        let news = stuck.clone().filter(|_| !std::mem::replace(&mut self.has_told, is_stuck));
        Found { news, end: fault.clone().or(stuck), fault }
    }
}
