//! Paced messages: a rate kept exactly.
//!
//! A message's time follows from its number, so that a late message does not delay later ones: the
//! mean rate is kept while the socket accepts it. The thread sleeps until each time with a
//! timer slack of a nanosecond, and does not spin, since its processor time is a result, too.

use hdrhistogram::Histogram;
use picnic_machine::signals::Interrupted;
use rustix::thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::{Timespec, clock_gettime};
use serde::Serialize;
use std::num::NonZeroU64;
use std::time::Duration;

/// Delay of messages against their schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PacingError {
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The maximum.
    pub max_ns: u64,
}

/// The schedule of messages.
pub(super) struct Pacer {
    start_ns: u64,
    bits: u128,
    rate_bps: u128,
    late: Histogram<u64>,
}

/// Nanoseconds of a monotonic clock.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Pacer {
    /// Messages of `bytes` bytes, the first at `start_ns`.
    pub(super) fn new(start_ns: u64, bytes: usize, rate_bps: u64) -> anyhow::Result<Self> {
        // Only for this thread; the kernel's default would be 50 microseconds.
        set_current_timer_slack(NonZeroU64::new(1))?;
        Ok(Pacer {
            start_ns,
            bits: bytes as u128 * 8,
            rate_bps: rate_bps.max(1).into(),
            late: Histogram::new(3)?,
        })
    }

    /// When a message is due.
    pub(super) fn due(&self, number: u64) -> u64 {
        let after = self.bits * u128::from(number) * 1_000_000_000 / self.rate_bps;
        self.start_ns.saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }

    /// Waits until a message is due.
    pub(super) fn wait(&mut self, number: u64) -> anyhow::Result<()> {
        let due = self.due(number);
        // In parts, so that a long wait can be ended.
        while now_ns() < due {
            if picnic_machine::signals::sleep(Duration::ZERO).is_err() {
                return Err(Interrupted.into());
            }
            let until = due.min(now_ns() + 100_000_000);
            let until = Timespec {
                tv_sec: (until / 1_000_000_000) as i64,
                tv_nsec: (until % 1_000_000_000) as _,
            };
            // A signal ends it early, and the time is checked again.
            let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
        }
        self.late.saturating_record((now_ns() - due).max(1));
        Ok(())
    }

    /// The delays of all messages.
    pub(super) fn into_late(self) -> Histogram<u64> {
        self.late
    }
}

impl PacingError {
    /// Over all connections; none if nothing was paced.
    pub(super) fn of(late: &Histogram<u64>) -> Option<Self> {
        (!late.is_empty()).then(|| PacingError {
            p50_ns: late.value_at_quantile(0.5),
            p99_ns: late.value_at_quantile(0.99),
            max_ns: late.max(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_times_do_not_accumulate_rounding() {
        let pacer = Pacer::new(1000, 125, 3_000_000).unwrap();
        // A message is 1000 bits: 333.3 microseconds.
        assert_eq!([pacer.due(0), pacer.due(1), pacer.due(2)], [1000, 334_333, 667_666]);
        assert_eq!(pacer.due(3_000_000), 1000 + 1_000_000_000_000);
        assert_eq!(PacingError::of(&pacer.into_late()), None);
    }

    #[test]
    fn nothing_is_sent_before_its_time() {
        let start = now_ns();
        let mut pacer = Pacer::new(start, 125, 1_000_000).unwrap();
        for number in 0..5 {
            pacer.wait(number).unwrap();
            assert!(now_ns() >= start + number * 1_000_000);
        }
        let error = PacingError::of(&pacer.into_late()).unwrap();
        assert!(error.p50_ns <= error.p99_ns && error.p99_ns <= error.max_ns);
    }
}
