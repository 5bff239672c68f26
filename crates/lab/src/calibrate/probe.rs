//! The clock for measuring costs, and detection of disturbances.

use picnic_wcet::calibrate::Probe;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The calling thread's clock.
pub(super) struct Thread {
    start: Instant,
    /// The kernel's count of times it was scheduled.
    turns: Option<File>,
}

impl Thread {
    pub(super) fn start() -> Self {
        let turns = File::open("/proc/thread-self/schedstat").ok();
        let mut probe = Thread { start: Instant::now(), turns };
        if probe.read().is_none() {
            probe.turns = None;
        }
        probe
    }

    /// The resolution of the clock.
    pub(super) fn description(&self) -> &'static str {
        match self.turns {
            Some(_) => {
                "samples in whose batch of 16 the thread was switched out (schedstat) are not kept"
            }
            None => "whether the thread was switched out is unavailable (no schedstat)",
        }
    }

    /// Nanoseconds on a core, nanoseconds waiting for one, times scheduled.
    fn read(&self) -> Option<u64> {
        let mut text = [0; 96];
        let length = self.turns.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..length]).ok()?;
        text.split_whitespace().nth(2)?.parse().ok()
    }
}

impl Probe for Thread {
    fn now_ns(&mut self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn switches(&mut self) -> u64 {
        self.read().unwrap_or(0)
    }
}

/// Today, UTC.
pub(super) fn date() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let (year, month, day) = civil(since.map_or(0, |since| since.as_secs() / 86_400));
    format!("{year:04}-{month:02}-{day:02}")
}

/// A day since 1970 in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let (mut year, mut left) = (1970, days);
    loop {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = 365 + u64::from(leap);
        if left < length {
            let february = 28 + u64::from(leap);
            let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            for (month, length) in (1..).zip(months) {
                if left < length {
                    return (year, month, left + 1);
                }
                left -= length;
            }
        }
        left -= length;
        year += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(59), (1970, 3, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(19_723), (2024, 1, 1));
        assert_eq!(civil(20_148), (2025, 3, 1));
        assert_eq!(civil(20_088), (2024, 12, 31));
    }

    #[test]
    fn time_and_switches_only_grow() {
        let mut probe = Thread::start();
        let (time, switches) = (probe.now_ns(), probe.switches());
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(probe.now_ns() - time >= 2_000_000);
        match probe.turns {
            Some(_) => assert!(probe.switches() > switches, "it slept"),
            None => assert!(probe.description().contains("unavailable")),
        }
    }
}
