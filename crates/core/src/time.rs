//! Time as a value: nanoseconds since a world began.
//!
//! The data path reads no clock. Its driver (`picnic-host` on real cores, `picnic-sim` on virtual
//! ones) passes the time of each poll.

use std::fmt;
use std::ops::{Add, Sub};

/// A point in time: nanoseconds since the world that made it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The moment at which a world begins.
    pub const ZERO: Time = Time(0);
    /// A time later than any run can reach.
    pub const MAX: Time = Time(u64::MAX);

    /// The time `nanoseconds` after the world began.
    #[inline]
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Time(nanoseconds)
    }

    /// Nanoseconds since the world began.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Nanoseconds from `earlier` to `self`; zero if `earlier` is in fact later.
    #[inline]
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Time {
    type Output = Time;
    #[inline]
    fn add(self, nanoseconds: u64) -> Time {
        Time(self.0.saturating_add(nanoseconds))
    }
}

impl Sub<u64> for Time {
    type Output = Time;
    #[inline]
    fn sub(self, nanoseconds: u64) -> Time {
        Time(self.0.saturating_sub(nanoseconds))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09} s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
