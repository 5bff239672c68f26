//! A packet that the interface has no room for: offered again for a while, then dropped.

use picnic_core::time::Time;

/// How long a packet for which the interface has no room is offered again, and how often.
pub(super) const FULL_NS: u64 = 100_000_000;
pub(super) const RETRY_NS: u64 = 20_000;

/// Offers a packet again for which the interface has no room, for a while.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retry {
    /// Since when the oldest packet is offered, if it was refused.
    since: Option<Time>,
    next: Time,
}

impl Retry {
    /// Whether it is too early to offer the packet again.
    #[inline]
    pub(super) fn is_early(&self, now: Time) -> bool {
        self.since.is_some() && now < self.next
    }

    /// The packet was refused: whether it is to be offered again.
    #[cold]
    pub(super) fn refused(&mut self, now: Time) -> bool {
        let since = self.since.unwrap_or(now);
        let again = now.since(since) < FULL_NS;
        *self = Retry { since: again.then_some(since), next: now + RETRY_NS };
        again
    }

    /// A packet was taken.
    #[inline]
    pub(super) fn taken(&mut self) {
        self.since = None;
    }
}
