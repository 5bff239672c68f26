//! The pace: how many packets are due, by time alone.
//!
//! Guarantees: after `t` nanoseconds `t * rate / 10^9` packets have fallen due, rounded
//! down to whole bursts, one burst more at the start; nothing is lost to rounding however
//! often it is asked.

use picnic_core::time::Time;

const SECOND: u64 = 1_000_000_000;

/// The highest rate, in packets per second: one packet per nanosecond.
pub(crate) const MAX_RATE_PPS: u64 = SECOND;

/// Packets that fall due at a rate.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Packets per second.
    rate: u64,
    /// Packets that fall due together.
    burst: u64,
    /// When it was last asked; none before the first time.
    last: Option<Time>,
    /// Part of a packet, in packets / 10^9.
    fraction: u64,
    /// Packets of the next burst, until it is whole.
    gathered: u64,
}

impl Pace {
    /// A pace of `rate` packets per second, 1 up to [`MAX_RATE_PPS`], `burst` at a time.
    pub(crate) fn new(rate: u64, burst: u64) -> Self {
        Pace { rate, burst, last: None, fraction: 0, gathered: 0 }
    }

    /// Packets that have fallen due since it was last asked. The first call starts the clock,
    /// with one burst.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time) -> u64 {
        let Some(last) = self.last else {
            self.last = Some(now);
            return self.burst;
        };
        let elapsed = now.since(last);
        self.last = Some(last.max(now));
        // Whole seconds apart, so that the product fits: below 10^9 * 10^9, plus a fraction.
        let parts = (elapsed % SECOND) * self.rate + self.fraction;
        self.fraction = parts % SECOND;
        let packets = (elapsed / SECOND).saturating_mul(self.rate).saturating_add(parts / SECOND);
        self.gathered = self.gathered.saturating_add(packets);
        if self.gathered < self.burst {
            return 0;
        }
        let rest = if self.burst == 1 { 0 } else { self.gathered % self.burst };
        let due = self.gathered - rest;
        self.gathered = rest;
        due
    }

    /// When it was last asked.
    pub(crate) fn last(&self) -> Time {
        self.last.unwrap_or(Time::ZERO)
    }

    /// When the next burst falls due.
    pub(crate) fn next_deadline(&self) -> Time {
        match self.last {
            None => Time::ZERO,
            Some(last) => {
                let parts = (self.burst - self.gathered) * SECOND - self.fraction;
                last + parts.div_ceil(self.rate)
            }
        }
    }
}
