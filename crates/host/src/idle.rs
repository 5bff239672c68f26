//! Idle policies of the borrowed core: spin, or spin, pause, then block.
//!
//! | idle | first | then | then |
//! |---|---|---|---|
//! | spin | look again at once | | |
//! | adaptive | 50 µs of looking again | block until a doorbell, a wire or a deadline | |
//! | block | block at once | | |
//!
//! While a wire could hand over packets at once (a file, a generator running flat
//! out) and only the targets hold it up, there is no one to wake the card, so it
//! yields the core instead of blocking.

use crate::doorbell::CardDoorbell;
use picnic_core::config::Idle;
use picnic_core::time::Time;
use picnic_engine::poll::Card;
use std::time::Duration;

/// Adaptive: polling time before it blocks.
const SPIN_NS: u64 = 50_000;
/// The longest sleep, so that a stop request is noticed.
const LONGEST_SLEEP_NS: u64 = 20_000_000;
/// Nearer deadlines are waited for awake: a sleep would overshoot.
const SHORTEST_SLEEP_NS: u64 = 60_000;

/// The borrowed core's idle policy and its idle time so far.
#[derive(Debug)]
pub struct IdlePolicy {
    idle: Idle,
    since: Option<Time>,
    /// Nanoseconds asleep.
    pub slept_ns: u64,
    /// Number of sleeps.
    pub sleeps: u64,
}

impl IdlePolicy {
    /// A policy without idle time yet.
    pub fn new(idle: Idle) -> Self {
        IdlePolicy { idle, since: None, slept_ns: 0, sleeps: 0 }
    }

    /// Notes that there was work.
    #[inline]
    pub fn busy(&mut self) {
        self.since = None;
    }

    /// Notes that there was no work at `now`, and waits until polling is worthwhile. Returns the
    /// intended wait in nanoseconds; `u64::MAX` if it yielded to other threads. `clock` is read
    /// only after a sleep.
    pub fn pass(
        &mut self,
        now: Time,
        card: &mut Card,
        doorbell: &CardDoorbell,
        clock: impl Fn() -> Time,
    ) -> u64 {
        let since = *self.since.get_or_insert(now);
        let deadline = card.next_deadline(now);
        let held_up = deadline.is_some_and(|deadline| deadline <= now);
        let spin_ns = match self.idle {
            Idle::Spin => u64::MAX,
            Idle::Adaptive => SPIN_NS,
            Idle::Block => 0,
        };
        if now.since(since) < spin_ns {
            std::hint::spin_loop();
            return 0;
        }
        if held_up {
            std::thread::yield_now();
            return u64::MAX;
        }
        let sleep_ns =
            deadline.map_or(LONGEST_SLEEP_NS, |deadline| deadline.since(now).min(LONGEST_SLEEP_NS));
        if sleep_ns < SHORTEST_SLEEP_NS || !card.arm() {
            std::hint::spin_loop();
            return 0;
        }
        doorbell.wait(card.wires(), Duration::from_nanos(sleep_ns));
        card.disarm();
        self.sleeps += 1;
        let slept_ns = clock().since(now);
        self.slept_ns += slept_ns;
        slept_ns.min(sleep_ns)
    }
}
