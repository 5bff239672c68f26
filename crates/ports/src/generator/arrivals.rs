//! Arrival times of a generator's packets: evenly spaced, or random.
//!
//! Random arrivals are a Poisson process: the gaps between bursts are independent of each other and
//! exponentially distributed, with the rate as their mean. A measurement of, for example, every
//! sixteenth packet cannot resonate with them as it can with even ones.
//!
//! Guarantees: the same seed gives the same times, whenever it is polled, until packets are lost;
//! on average `rate * time` packets arrive, including lost ones; the time of a poll is bounded by
//! the room, however long ago the last poll was.
//!
//! Source: RFC 2330, 11.1.1, for why samples are taken by a Poisson process.

use super::config::{ArrivalsKind, GeneratorConfig};
use super::pace::{DueTimes, Pace};
use super::random::Random;
use picnic_core::packet::burst::BURST;
use picnic_core::port::Receiver;
use picnic_core::time::Time;
use std::collections::VecDeque;

const SECOND: u64 = 1_000_000_000;
/// Bits of a gap's part of a nanosecond.
const FRACTION_BITS: u32 = 16;
/// Bits after the first that choose from the table of logarithms.
const TABLE_BITS: u32 = 8;
/// The logarithm of 2, in units of 2^-32.
const LN_2: u64 = 2_977_044_472;

/// Packets at a rate.
#[derive(Debug)]
pub(super) enum Paced {
    /// Evenly spaced.
    Even {
        /// How many.
        pace: Pace,
        /// And when.
        due: DueTimes,
    },
    /// Random. On the heap, so that the other kind stays small.
    Random(Box<RandomArrivals>),
}

impl Paced {
    /// As configured, at a rate other than 0.
    pub(super) fn new(config: &GeneratorConfig, random: Random) -> Self {
        let (rate, burst) = (config.rate_pps, config.burst.into());
        match config.arrivals {
            ArrivalsKind::Even => {
                Paced::Even { pace: Pace::new(rate, burst), due: DueTimes::new(rate, burst) }
            }
            ArrivalsKind::Random => {
                let places = (config.backlog as usize).max(BURST);
                Paced::Random(Box::new(RandomArrivals::new(rate, burst, places, random)))
            }
        }
    }

    /// Advances to `now`: of `waiting` packets plus new arrivals, with `remaining` in total,
    /// returns how many wait, with `places` places, and how many are lost.
    #[inline]
    pub(super) fn advance(
        &mut self,
        now: Time,
        waiting: u64,
        remaining: u64,
        places: u64,
    ) -> (u64, u64) {
        match self {
            Paced::Even { pace, due } => {
                let all = waiting.saturating_add(pace.advance(now)).min(remaining);
                let kept = all.min(places);
                // The queue has no room for the last that came.
                due.note(now, kept.saturating_sub(waiting), all - kept);
                (kept, all - kept)
            }
            Paced::Random(arrivals) => arrivals.advance(now, remaining, places),
        }
    }

    /// Stamps the received packets, from number `first` on, with their arrival times.
    #[inline]
    pub(super) fn stamp(&mut self, first: usize, rx: &mut Receiver<'_>) {
        match self {
            Paced::Even { due, .. } => match due.take((rx.pushed().len() - first) as u64) {
                true => rx.stamp(first, || due.step()),
                false => rx.stamp(first, || due.next()),
            },
            Paced::Random(arrivals) => rx.stamp(first, || arrivals.next()),
        }
    }

    /// Removes the next `packets` waiting packets, which were lost after all.
    #[cold]
    pub(super) fn lose(&mut self, packets: u64) {
        match self {
            Paced::Even { due, .. } => due.lose(packets),
            Paced::Random(arrivals) => {
                arrivals.times.drain(..arrivals.times.len().min(packets as usize));
            }
        }
    }

    /// Packets per second.
    pub(super) fn rate(&self) -> u64 {
        match self {
            Paced::Even { pace, .. } => pace.rate(),
            Paced::Random(arrivals) => arrivals.rate,
        }
    }

    /// Changes the rate, with `waiting` packets waiting.
    pub(super) fn restart(&mut self, rate: u64, now: Time, waiting: u64) {
        match self {
            Paced::Even { pace, due } => {
                pace.restart(rate, now);
                due.restart(rate, now, waiting);
            }
            Paced::Random(arrivals) => arrivals.restart(rate, now),
        }
    }

    /// Time of the last poll.
    pub(super) fn last(&self) -> Time {
        match self {
            Paced::Even { pace, .. } => pace.last(),
            Paced::Random(arrivals) => arrivals.last,
        }
    }

    /// Arrival of the next packets, after those that wait.
    pub(super) fn next_arrival(&self) -> Time {
        match self {
            Paced::Even { pace, .. } => pace.next_deadline(),
            Paced::Random(arrivals) => arrivals.next.unwrap_or(Time::ZERO),
        }
    }
}

/// Bursts that arrive at random, and their waiting packets.
#[derive(Debug)]
pub(super) struct RandomArrivals {
    rate: u64,
    burst: u64,
    /// The mean of the gaps between bursts, in units of 2^-16 ns.
    mean: u64,
    random: Random,
    /// The logarithm of 2 minus the logarithms of the numbers from 1 to 2, in units of 2^-32.
    logarithms: [u32; 1 << TABLE_BITS],
    /// When the next burst arrives; none before it was first asked.
    next: Option<Time>,
    /// Part of a nanosecond that is added to the next gap.
    fraction: u64,
    /// Part of a burst that is lost with the next ones, in units of 2^-16 ns of the mean.
    lost: u64,
    last: Time,
    /// When the packets that wait arrived, oldest first.
    times: VecDeque<Time>,
}

impl RandomArrivals {
    /// `rate` packets per second in the mean, `burst` at a time, for whom there are up to `places`.
    fn new(rate: u64, burst: u64, places: usize, random: Random) -> Self {
        let logarithm = |place: usize| {
            let number = 1.0 + (place as f64 + 0.5) / f64::from(1 << TABLE_BITS);
            ((std::f64::consts::LN_2 - number.ln()) * 2_f64.powi(32)) as u32
        };
        RandomArrivals {
            rate,
            burst,
            mean: mean(rate, burst),
            random,
            logarithms: std::array::from_fn(logarithm),
            next: None,
            fraction: 0,
            lost: 0,
            last: Time::ZERO,
            times: VecDeque::with_capacity(places),
        }
    }

    /// As [`Paced::advance`]. The first call starts the clock.
    fn advance(&mut self, now: Time, remaining: u64, places: u64) -> (u64, u64) {
        self.last = self.last.max(now);
        let Some(mut next) = self.next else {
            self.next = Some(self.after(now));
            return (0, 0);
        };
        let places = places.min(self.times.capacity() as u64);
        let waiting = self.times.len() as u64;
        let (mut coming, mut lost) = (remaining.saturating_sub(waiting), 0);
        while next <= now && coming != 0 {
            let room = places.saturating_sub(self.times.len() as u64);
            if room == 0 {
                // All other arrivals are lost; their number is estimated by the mean. The next
                // arrival does not depend on the time of the last.
                let parts = u128::from(now.since(next)) << FRACTION_BITS;
                let parts = parts + u128::from(self.lost);
                let bursts = (parts / u128::from(self.mean)) as u64 + 1;
                self.lost = (parts % u128::from(self.mean)) as u64;
                lost += bursts.saturating_mul(self.burst).min(coming);
                next = self.after(now);
                break;
            }
            let came = self.burst.min(coming);
            let taken = came.min(room);
            self.times.extend(std::iter::repeat_n(next, taken as usize));
            lost += came - taken;
            coming -= came;
            next = self.after(next);
        }
        self.next = Some(next);
        (self.times.len() as u64, lost)
    }

    /// When the next packet that waits arrived.
    fn next(&mut self) -> Time {
        self.times.pop_front().unwrap_or(self.last)
    }

    /// Sets another rate from now on; waiting packets keep their arrival times.
    fn restart(&mut self, rate: u64, now: Time) {
        (self.rate, self.mean) = (rate, mean(rate, self.burst));
        (self.fraction, self.lost) = (0, 0);
        if self.next.is_some() {
            self.next = Some(self.after(now));
        }
    }

    /// When the burst after one at `time` arrives.
    #[inline]
    fn after(&mut self, time: Time) -> Time {
        let gap = (u128::from(self.mean) * u128::from(self.exponential())) >> 32;
        let parts = gap + u128::from(self.fraction);
        self.fraction = parts as u64 & ((1 << FRACTION_BITS) - 1);
        time + u64::try_from(parts >> FRACTION_BITS).unwrap_or(u64::MAX)
    }

    /// An exponentially distributed number with a mean of 1, in units of 2^-32: the negative
    /// logarithm of one that is evenly distributed below 1. Its first bit that is set says how
    /// many halves it is, the next eight how much is left.
    #[inline]
    fn exponential(&mut self) -> u64 {
        let bits = self.random.next() | 1;
        let halves = bits.leading_zeros();
        let place = bits << halves << 1 >> (u64::BITS - TABLE_BITS);
        u64::from(halves) * LN_2 + u64::from(self.logarithms[place as usize])
    }
}

/// The mean gap between bursts, in units of 2^-16 ns.
fn mean(rate: u64, burst: u64) -> u64 {
    let parts = (u128::from(burst) * u128::from(SECOND)) << FRACTION_BITS;
    u64::try_from(parts / u128::from(rate)).unwrap_or(u64::MAX).max(1)
}
