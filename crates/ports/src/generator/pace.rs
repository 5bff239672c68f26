//! The pace: how many packets are due, by time alone.
//!
//! Guarantees: after `t` nanoseconds `t * rate / 10^9` packets have fallen due, rounded
//! down to whole bursts, one burst more at the start; nothing is lost to rounding however
//! often it is asked.

use picnic_core::time::Time;
use std::collections::VecDeque;

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

    /// Packets per second.
    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }

    /// Sets the rate from now on: the next burst is due when it is complete at this rate.
    pub(crate) fn restart(&mut self, rate: u64, now: Time) {
        self.rate = rate;
        if self.last.is_some() {
            (self.last, self.fraction, self.gathered) = (Some(now), 0, 0);
        }
    }

    /// Packets that fall due together.
    pub(crate) fn burst(&self) -> u64 {
        self.burst
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

/// Gaps that are kept apart; one more is joined to the last.
const MOST_GAPS: usize = 4096;

/// When the packets of a pace fell due, one after the other.
///
/// Guarantee: burst number `k` has the time at which [`Pace::advance`] gives it out at the
/// earliest, `k * burst * 10^9 / rate` after the first, rounded up; lost packets have their times
/// too.
#[derive(Debug)]
pub(crate) struct DueTimes {
    rate: u64,
    burst: u64,
    /// When the first burst fell due; none before the first packet.
    start: Option<Time>,
    /// Nanoseconds from there to the present burst: whole ones, and a part in ns / rate.
    elapsed_ns: u64,
    fraction: u64,
    /// The time between two bursts, in the same unit.
    step_ns: u64,
    step_fraction: u64,
    /// Packets of the present burst still to come.
    left: u64,
    /// Packets until the next gap, and packets lost there; oldest first.
    gaps: VecDeque<(u64, u64)>,
    /// Packets after the last gap that have no time yet.
    behind: u64,
    /// Packets before all others, which waited when the rate was changed.
    late: u64,
}

impl DueTimes {
    /// The times of [`Pace::new`] with the same arguments.
    pub(crate) fn new(rate: u64, burst: u64) -> Self {
        let parts = burst.saturating_mul(SECOND);
        DueTimes {
            rate,
            burst,
            start: None,
            elapsed_ns: 0,
            fraction: 0,
            step_ns: parts / rate,
            step_fraction: parts % rate,
            left: burst,
            gaps: VecDeque::with_capacity(MOST_GAPS),
            behind: 0,
            late: 0,
        }
    }

    /// As [`Pace::restart`]; waiting packets get this time.
    pub(crate) fn restart(&mut self, rate: u64, now: Time, waiting: u64) {
        let parts = self.burst.saturating_mul(SECOND);
        (self.rate, self.step_ns, self.step_fraction) = (rate, parts / rate, parts % rate);
        if self.start.is_none() {
            return;
        }
        self.gaps.clear();
        (self.start, self.late, self.behind, self.left) = (Some(now), waiting, 0, self.burst);
        (self.elapsed_ns, self.fraction) = (self.step_ns, self.step_fraction);
    }

    /// `packets` were due at or before `now`, and then `lost`, which were dropped.
    pub(crate) fn note(&mut self, now: Time, packets: u64, lost: u64) {
        self.start.get_or_insert(now);
        self.behind += packets;
        if lost == 0 {
            return;
        }
        let joins = self.behind == 0 || self.gaps.len() == MOST_GAPS;
        match self.gaps.back_mut() {
            // Packets between two joined gaps get later times than before, but none in the future.
            Some((_, last)) if joins => *last += lost,
            _ => self.gaps.push_back((std::mem::take(&mut self.behind), lost)),
        }
    }

    /// Takes the next `packets` packets together, if nothing lies between them: each then has the
    /// time of a [`DueTimes::step`]. Otherwise each must be taken by [`DueTimes::next`].
    #[inline]
    pub(crate) fn take(&mut self, packets: u64) -> bool {
        let is_one = self.late == 0 && self.gaps.is_empty() && self.behind >= packets;
        if is_one {
            self.behind -= packets;
        }
        is_one
    }

    /// When the next packet fell due.
    #[inline]
    pub(crate) fn next(&mut self) -> Time {
        if self.late != 0 {
            self.late -= 1;
            return self.start.unwrap_or(Time::ZERO);
        }
        self.pass_gap();
        match self.gaps.front_mut() {
            Some((packets, _)) => *packets -= 1,
            None => self.behind = self.behind.saturating_sub(1),
        }
        self.step()
    }

    /// When a packet fell due that was taken with others.
    #[inline]
    pub(crate) fn step(&mut self) -> Time {
        if self.left == 0 {
            self.elapsed_ns += self.step_ns;
            self.fraction += self.step_fraction;
            if self.fraction >= self.rate {
                self.fraction -= self.rate;
                self.elapsed_ns += 1;
            }
            self.left = self.burst;
        }
        self.left -= 1;
        let elapsed_ns = self.elapsed_ns + u64::from(self.fraction != 0);
        self.start.unwrap_or(Time::ZERO) + elapsed_ns
    }

    /// The next `packets` packets were lost after all.
    #[cold]
    pub(crate) fn lose(&mut self, mut packets: u64) {
        let late = packets.min(self.late);
        self.late -= late;
        packets -= late;
        while packets != 0 {
            self.pass_gap();
            let part = match self.gaps.front_mut() {
                Some((before, _)) => {
                    let part = packets.min(*before);
                    *before -= part;
                    part
                }
                None => {
                    self.behind = self.behind.saturating_sub(packets);
                    packets
                }
            };
            self.skip(part);
            packets -= part;
        }
    }

    #[inline]
    fn pass_gap(&mut self) {
        while let Some(&(0, lost)) = self.gaps.front() {
            self.gaps.pop_front();
            self.skip(lost);
        }
    }

    fn skip(&mut self, packets: u64) {
        let Some(beyond) = packets.checked_sub(self.left + 1) else {
            self.left -= packets;
            return;
        };
        // The last one skipped is in this burst, counted from the present one.
        let bursts = beyond / self.burst + 1;
        self.left = self.burst - 1 - beyond % self.burst;
        let parts = u128::from(self.fraction) + u128::from(bursts) * u128::from(self.step_fraction);
        let carried = (parts / u128::from(self.rate)) as u64;
        self.fraction = (parts % u128::from(self.rate)) as u64;
        let whole = bursts.saturating_mul(self.step_ns).saturating_add(carried);
        self.elapsed_ns = self.elapsed_ns.saturating_add(whole);
    }
}
