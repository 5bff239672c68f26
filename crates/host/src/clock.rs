//! The host world's clock: nanoseconds since the card started.

use picnic_core::time::Time;
use std::time::Instant;

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
}
