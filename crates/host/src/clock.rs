//! The host world's clock: nanoseconds since the card started.

use picnic_core::port::Clocks;
use picnic_core::time::Time;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A monotonic clock, read without a system call (the kernel's vDSO).
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    /// The machine's monotonic clock at the start, in nanoseconds. Read once, by a thread that may
    /// still make any system call.
    monotonic_ns: u64,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        let clock = Clock { start: Instant::now(), monotonic_ns: 0 };
        let monotonic_ns = clock.zero_of(|| {
            let shown = clock_gettime(ClockId::Monotonic);
            shown.tv_sec as u64 * 1_000_000_000 + shown.tv_nsec as u64
        });
        Clock { monotonic_ns, ..clock }
    }

    /// Nanoseconds since the start.
    #[inline]
    pub fn now(&self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Readings of the machine's other clocks at the start; the real-time clock as set now.
    pub fn others(&self) -> Clocks {
        let realtime_ns = self.zero_of(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            since.as_nanos() as u64
        });
        Clocks { realtime_ns, monotonic_ns: self.monotonic_ns }
    }

    /// A clock's reading at the start. Both clocks are read three times; the closest pair counts.
    fn zero_of(&self, read_ns: impl Fn() -> u64) -> u64 {
        let pairs = [(); 3].map(|()| {
            let before = self.now();
            let shown_ns = read_ns();
            let apart_ns = self.now().since(before);
            (apart_ns, shown_ns.saturating_sub(before.as_nanos() + apart_ns / 2))
        });
        pairs.into_iter().min().map_or(0, |(_, zero)| zero)
    }
}
