//! A token bucket in whole numbers.
//!
//! Credit is kept in billionths of a packet and of a byte, so that a rate per second gives a whole
//! number per nanosecond: nothing is rounded, however often it is updated. Guarantees: no overflow,
//! for any times; credit never exceeds the burst. Source: RFC 2697, section 3 (one bucket:
//! committed rate and burst).

use picnic_core::time::Time;

/// Billionths in one.
const ONE: u64 = 1_000_000_000;

/// A rate and a burst; a rate of zero means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limit {
    pub per_second: u64,
    /// At most 2^32.
    pub burst: u64,
}

impl Limit {
    fn most(self) -> u64 {
        self.burst * ONE
    }

    /// Nanoseconds until credit `have` has grown to `need`.
    fn wait(self, have: u64, need: u64) -> u64 {
        if self.per_second == 0 { 0 } else { need.saturating_sub(have).div_ceil(self.per_second) }
    }
}

/// Limits in packets and in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub packets: Limit,
    pub bytes: Limit,
}

/// Credit in packets and bytes at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    packets: u64,
    bytes: u64,
    at: Time,
    /// Not used before: full.
    is_used: bool,
}

impl Bucket {
    /// Updates the credit to `now`.
    #[inline]
    pub(super) fn refill(&mut self, limits: &Limits, now: Time) {
        let nanoseconds = if self.is_used { now.since(self.at) } else { u64::MAX };
        let grown = |credit: u64, limit: Limit| {
            credit.saturating_add(limit.per_second.saturating_mul(nanoseconds)).min(limit.most())
        };
        self.packets = grown(self.packets, limits.packets);
        self.bytes = grown(self.bytes, limits.bytes);
        // Time that goes back gives nothing twice.
        self.at = if self.is_used { self.at.max(now) } else { now };
        self.is_used = true;
    }

    /// Nanoseconds until a packet of `length` bytes conforms; zero if it does. `None` if it never
    /// will, being longer than the burst.
    #[inline]
    pub(super) fn wait(&self, limits: &Limits, length: u32) -> Option<u64> {
        let cost = u64::from(length) * ONE;
        if limits.bytes.per_second != 0 && cost > limits.bytes.most() {
            return None;
        }
        Some(limits.packets.wait(self.packets, ONE).max(limits.bytes.wait(self.bytes, cost)))
    }

    /// Takes the credit for a conforming packet.
    #[inline]
    pub(super) fn take(&mut self, limits: &Limits, length: u32) {
        if limits.packets.per_second != 0 {
            self.packets = self.packets.saturating_sub(ONE);
        }
        if limits.bytes.per_second != 0 {
            self.bytes = self.bytes.saturating_sub(u64::from(length) * ONE);
        }
    }
}
