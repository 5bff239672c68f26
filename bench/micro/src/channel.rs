//! Channels between a host process and the card: messages per second, latency, and wake-ups.
//!
//! Two threads on two cores have an end each, as a host process and the borrowed core do. One-way
//! figures are of messages of 64 bytes, both sides awake: a stream in batches, and half of a round
//! trip of single messages. A message to a sleeping side is compared with a bare eventfd: both sleep
//! in poll(2), alternating, on the same cores.

use super::{above_zero, measured};
use picnic_channel::{Awaits, Bell, End, Region, Shape, Side};
use picnic_core::config::CardFile;
use picnic_core::doorbell::Doorbell;
use picnic_core::error::ConfigError;
use picnic_host::clock::Clock;
use picnic_lab::compare::median;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Comparison, Figure, Outcome};
use picnic_machine::threads::spawn_pinned;
use picnic_machine::topology::{available, place};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a message.
const BYTES: usize = 64;
/// Messages of a batch.
const BATCH: u64 = 32;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Channels {
    /// Interleaved repeats of each figure
    #[schemars(range(min = 1, max = 100_000))]
    repeats: u32,
    /// Messages per timing of the stream
    #[schemars(range(min = 1024, max = 1_000_000_000))]
    messages: u64,
    /// Seconds of wake-ups per repeat and side
    seconds: f64,
    /// Wake-ups per second
    #[schemars(range(min = 1, max = 100_000))]
    rate: u64,
}

impl Default for Channels {
    fn default() -> Self {
        Channels { repeats: 9, messages: 4 << 20, seconds: 0.5, rate: 2000 }
    }
}

impl Benchmark for Channels {
    const NAME: &'static str = "channel";
    const HELP: &'static str = "host channels: time per message, latency, wake-up of a side";
    const QUICK: &'static str = "repeats = 2\nmessages = 65536\nseconds = 0.1";

    fn check(&self) -> Result<(), ConfigError> {
        above_zero("seconds", self.seconds)
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        let placement = place(&CardFile::parse("[host]\nqueues = 1\n", None)?, &available())?;
        let cores = [placement.borrowed_core, placement.target_cores[0]];
        let (mut stream, mut latency) = (Vec::new(), Vec::new());
        let (mut asleep, mut bare) = (Vec::new(), Vec::new());
        let wakes = (self.seconds * self.rate as f64).ceil() as u64;
        for repeat in 0..self.repeats {
            run.round(repeat.into(), self.repeats.into());
            stream.push(streamed(cores, self.messages)?);
            latency.push(round_trip(cores, self.messages / 64)? / 2.0);
            asleep.push(woken(cores, wakes, self.rate, Pair::new()?)?);
            bare.push(woken(cores, wakes, self.rate, Bare(Arc::new(Bell::new()?)))?);
        }
        let mut outcome = measured();
        outcome.tell("message_bytes", BYTES);
        outcome.tell("batch", BATCH);
        outcome.add(Figure::of("one_way_message_ns", stream));
        outcome.add(Figure::of("one_way_awake_ns", latency));
        let sides = (("bare_eventfd_wake", bare), ("channel_wake", asleep));
        outcome.compare(Comparison::of("asleep_p50_ns", sides.0, sides.1));
        Ok(outcome)
    }
}

/// Both ends, with the doorbell of the host.
struct Pair {
    card: End,
    host: End,
    bell: Arc<Bell>,
}

impl Pair {
    fn new() -> anyhow::Result<Self> {
        let shape = Shape::new(BYTES, 1024).ok_or_else(|| anyhow::anyhow!("no such channel"))?;
        let region = Arc::new(Region::private(shape.bytes())?);
        let bell = Arc::new(Bell::new()?);
        let card = End::new(region.clone(), shape, Side::Card, bell.clone());
        let host = End::new(region, shape, Side::Host, Arc::new(Bell::new()?));
        Ok(Pair { card, host, bell })
    }
}

fn panicked<E>(_: E) -> anyhow::Error {
    anyhow::anyhow!("a thread of the benchmark panicked")
}

/// Nanoseconds per message of a stream.
fn streamed(cores: [usize; 2], messages: u64) -> anyhow::Result<f64> {
    let Pair { card, host, .. } = Pair::new()?;
    let clock = Clock::start();
    let messages = messages.next_multiple_of(BATCH);
    let sender = spawn_pinned("sender".into(), cores[0], move || {
        let message = [0x5a; BYTES];
        for _ in 0..messages / BATCH {
            for _ in 0..BATCH {
                while host.stage(&message).is_err() {
                    spin_loop();
                }
            }
            host.flush();
        }
    })?;
    let receiver = spawn_pinned("receiver".into(), cores[1], move || {
        let (mut into, mut received, mut since) = ([0; BYTES], 0, None);
        while received < messages {
            match card.take(&mut into) {
                Ok(Some(_)) => received += 1,
                _ => {
                    card.flush();
                    spin_loop();
                }
            }
            // The first message starts the clock: not the start of the threads.
            since = since.or_else(|| (received == 1).then(|| clock.now()));
        }
        clock.now().since(since.unwrap_or_default()) as f64
    })?;
    sender.join().map_err(panicked)?;
    Ok(receiver.join().map_err(panicked)?.0 / messages as f64)
}

/// Nanoseconds of a message and its return, both sides awake.
fn round_trip(cores: [usize; 2], trips: u64) -> anyhow::Result<f64> {
    let Pair { card, host, .. } = Pair::new()?;
    let clock = Clock::start();
    let take = |end: &End, into: &mut [u8; BYTES]| {
        while !matches!(end.take(into), Ok(Some(_))) {
            spin_loop();
        }
    };
    let other = spawn_pinned("other".into(), cores[1], move || {
        let mut into = [0; BYTES];
        for _ in 0..trips {
            take(&card, &mut into);
            let _ = card.stage(&into);
            card.flush();
        }
    })?;
    let own = spawn_pinned("own".into(), cores[0], move || {
        let (mut into, mut since) = ([0; BYTES], clock.now());
        for trip in 0..trips {
            let _ = host.stage(&into);
            host.flush();
            take(&host, &mut into);
            if trip == trips / 8 {
                since = clock.now();
            }
        }
        clock.now().since(since) as f64 / (trips - trips / 8 - 1) as f64
    })?;
    other.join().map_err(panicked)?;
    Ok(own.join().map_err(panicked)?.0)
}

/// A way of waking a thread, with a time for it.
trait Waking {
    type Waker: Send + 'static;
    type Sleeper: Send + 'static;

    fn split(self) -> (Self::Waker, Self::Sleeper);

    /// Passes a time to the sleeper and wakes it.
    fn wake(waker: &Self::Waker, time: u64);

    /// Sleeps until it is woken; returns the time.
    fn sleep(sleeper: &mut Self::Sleeper) -> u64;
}

/// Sleeps until this is rung.
fn sleep_on(bell: &Bell) {
    let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&timeout));
}

impl Waking for Pair {
    type Waker = End;
    type Sleeper = (End, Arc<Bell>);

    fn split(self) -> (End, (End, Arc<Bell>)) {
        (self.card, (self.host, self.bell))
    }

    fn wake(waker: &End, time: u64) {
        let mut message = [0; BYTES];
        message[..8].copy_from_slice(&time.to_le_bytes());
        let _ = waker.stage(&message);
        waker.flush();
    }

    fn sleep((end, bell): &mut Self::Sleeper) -> u64 {
        let mut into = [0; BYTES];
        loop {
            if let Ok(Some(_)) = end.take(&mut into) {
                return into.first_chunk().map_or(0, |time| u64::from_le_bytes(*time));
            }
            end.flush();
            end.rest(Awaits::Message);
            if !end.has_news(Awaits::Message) {
                sleep_on(bell);
            }
            end.wake();
            bell.quiet();
        }
    }
}

/// An eventfd, with a time beside it.
struct Bare(Arc<Bell>);

impl Waking for Bare {
    type Waker = (Arc<Bell>, Arc<AtomicU64>);
    /// With the last time.
    type Sleeper = (Arc<Bell>, Arc<AtomicU64>, u64);

    fn split(self) -> (Self::Waker, Self::Sleeper) {
        let time = Arc::<AtomicU64>::default();
        ((self.0.clone(), time.clone()), (self.0, time, 0))
    }

    fn wake((bell, slot): &Self::Waker, time: u64) {
        slot.store(time, Ordering::Release);
        bell.ring();
    }

    fn sleep((bell, slot, last): &mut Self::Sleeper) -> u64 {
        loop {
            let time = slot.load(Ordering::Acquire);
            if std::mem::replace(last, time) != time {
                return time;
            }
            sleep_on(bell);
            bell.quiet();
        }
    }
}

/// Nanoseconds from before a wake-up to after it, median.
fn woken<W: Waking>(cores: [usize; 2], count: u64, rate: u64, way: W) -> anyhow::Result<f64> {
    let (waker, mut sleeper) = way.split();
    let clock = Clock::start();
    let sleeping = spawn_pinned("sleeper".into(), cores[1], move || {
        let mut delays = Vec::with_capacity(count as usize);
        while (delays.len() as u64) < count {
            let time = W::sleep(&mut sleeper);
            delays.push(clock.now().as_nanos().saturating_sub(time) as f64);
        }
        delays
    })?;
    let waking = spawn_pinned("waker".into(), cores[0], move || {
        let period = 1_000_000_000 / rate;
        let mut next = clock.now() + 10_000_000;
        for _ in 0..count {
            while clock.now() < next {
                spin_loop();
            }
            next = next + period;
            W::wake(&waker, clock.now().as_nanos());
        }
        waker
    })?;
    // A sleeper that is late misses times of a bare eventfd: these are for it.
    let waker = waking.join().map_err(panicked)?.0;
    while !sleeping.is_finished() {
        std::thread::sleep(std::time::Duration::from_millis(1));
        W::wake(&waker, clock.now().as_nanos());
    }
    Ok(median(&sleeping.join().map_err(panicked)?.0))
}
