//! Retries a packet that the interface has no room for, then drops it.

use picnic_core::time::Time;

/// How long such a packet is retried; below, how often.
pub(super) const FULL_NS: u64 = 100_000_000;
pub(super) const RETRY_NS: u64 = 20_000;

/// Retries a packet that the interface has no room for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retry {
    /// Time of the first refusal of the oldest packet.
    since: Option<Time>,
    next: Time,
}

impl Retry {
    /// Whether it is too early to retry.
    #[inline]
    pub(super) fn is_early(&self, now: Time) -> bool {
        self.since.is_some() && now < self.next
    }

    /// Notes a refusal; returns whether to retry.
    #[cold]
    pub(super) fn refused(&mut self, now: Time) -> bool {
        let since = self.since.unwrap_or(now);
        let again = now.since(since) < FULL_NS;
        *self = Retry { since: again.then_some(since), next: now + RETRY_NS };
        again
    }

    /// Notes that a packet was taken.
    #[inline]
    pub(super) fn taken(&mut self) {
        self.since = None;
    }
}
