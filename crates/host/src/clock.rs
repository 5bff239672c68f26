//! The host world's clock: nanoseconds since the card started.

use picnic_core::time::Time;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A monotonic clock, read without a system call (the kernel's vDSO).
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Clock { start: Instant::now() }
    }

    /// Nanoseconds since the start.
    #[inline]
    pub fn now(&self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// What the machine's clock of real time showed when this one started, in nanoseconds, as it
    /// is set now. Both are read, three times; the closest pair counts.
    pub fn realtime_zero(&self) -> u64 {
        let pairs = [(); 3].map(|()| {
            let before = self.now();
            let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let apart_ns = self.now().since(before);
            let at_ns = before.as_nanos() + apart_ns / 2;
            (apart_ns, (real.as_nanos() as u64).saturating_sub(at_ns))
        });
        pairs.into_iter().min().map_or(0, |(_, zero)| zero)
    }
}
