//! Doorbell to target routine, against a bare futex wake-up in the same run.
//!
//! The card gets one packet at a time, with pauses in which the target falls asleep; its latency
//! histogram runs from wire to target routine. The bare wake-up uses two threads on the same two
//! cores, with a slot for each wake-up's time. Rounds alternate.

use super::{above_zero, measured};
use picnic_control::Launch;
use picnic_control::report::Stamp;
use picnic_core::config::CardFile;
use picnic_core::doorbell::Doorbell;
use picnic_core::error::ConfigError;
use picnic_host::clock::Clock;
use picnic_host::doorbell::FutexDoorbell;
use picnic_lab::compare::median;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Comparison, Outcome};
use picnic_machine::threads::spawn_pinned;
use picnic_machine::topology::{available, place};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wake {
    /// Alternating rounds
    #[schemars(range(min = 1, max = 100_000))]
    rounds: u32,
    /// Seconds per round and side
    seconds: f64,
    /// Wake-ups per second
    #[schemars(range(min = 1, max = 10_000_000))]
    rate: u64,
}

impl Default for Wake {
    fn default() -> Self {
        Wake { rounds: 9, seconds: 0.5, rate: 2000 }
    }
}

impl Benchmark for Wake {
    const NAME: &'static str = "doorbell";
    const HELP: &'static str = "latency from doorbell to target routine, against a futex wake-up";
    const QUICK: &'static str = "rounds = 2\nseconds = 0.2";

    fn check(&self) -> Result<(), ConfigError> {
        above_zero("seconds", self.seconds)
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        let (mut card, mut bare, mut stamp) = (Vec::new(), Vec::new(), None);
        for round in 0..self.rounds {
            run.round(round.into(), self.rounds.into());
            let (p50, counts_from) = card_latency(self.rate, self.seconds)?;
            stamp = Some(counts_from);
            card.push(p50);
            bare.push(bare_wake(self.rate, self.seconds)?);
        }
        let mut outcome = measured();
        let sides = (("bare_futex_wake", bare), ("doorbell_to_target", card));
        outcome.compare(Comparison::of("p50_ns", sides.0, sides.1));
        if let Some(stamp) = stamp {
            outcome.tell("stamp", stamp.to_string());
        }
        Ok(outcome)
    }
}

fn card_file(rate: u64) -> anyhow::Result<CardFile> {
    // The borrowed core spins, like the waking side of the bare wake-up.
    Ok(CardFile::parse(
        &format!(
            "[card]\nidle = \"spin\"\n[host]\nqueues = 1\n\
             [interrupt]\nrx_usecs = 0\npoll_usecs = 0\n\
             [[wire]]\nport = \"generator\"\nrate_pps = {rate}\n"
        ),
        None,
    )?)
}

/// Nanoseconds from wire to target routine, and the kind of stamp they start from, for a card that
/// takes `rate` packets per second for `seconds`; for longer if it delivered nothing, since a core may
/// be preempted for all of a short run.
fn card_latency(rate: u64, seconds: f64) -> anyhow::Result<(f64, Stamp)> {
    let card = card_file(rate)?;
    for times in [1.0, 10.0, 100.0] {
        let running = Launch::new(&card, picnic_host::registries()).start_alone()?;
        std::thread::sleep(Duration::from_secs_f64(seconds * times));
        let report = running.stop()?;
        let stamp = report.wires.first().map_or(Stamp::Taken, |wire| wire.stamp);
        if let Some(p50) = report.latency_ns.p50 {
            return Ok((p50 as f64, stamp));
        }
    }
    anyhow::bail!("no packet was delivered")
}

/// Slots for times that the sleeper has not read.
const SLOTS: usize = 1 << 16;

/// Times handed over from the waker to the sleeper, oldest first.
struct Times {
    slots: Vec<AtomicU64>,
    written: AtomicUsize,
    ended: AtomicBool,
}

/// Nanoseconds from before a wake-up to after it: two threads on the same two cores, `rate`
/// wake-ups per second. As with packets, each wake-up counts: a wake-up during which the sleeper is
/// still waking is found with the previous one, and its own delay is counted. Counting only the
/// last would make a late wake-up look early.
fn bare_wake(rate: u64, seconds: f64) -> anyhow::Result<f64> {
    let placement = place(&card_file(rate)?, &available())?;
    let clock = Clock::start();
    let doorbell = Arc::new(FutexDoorbell::default());
    let times = Arc::new(Times {
        slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
        written: AtomicUsize::new(0),
        ended: AtomicBool::new(false),
    });
    let sleeper = {
        let (doorbell, times) = (doorbell.clone(), times.clone());
        spawn_pinned("sleeper".into(), placement.target_cores[0], move || {
            let (mut delays, mut read) = (Vec::with_capacity(1 << 20), 0);
            loop {
                // After the doorbell was reset, the slots are checked once more, so that no wake-up
                // is lost.
                fence(Ordering::SeqCst);
                let ended = times.ended.load(Ordering::Acquire);
                let written = times.written.load(Ordering::Acquire);
                if read != written {
                    let now = clock.now().as_nanos();
                    for index in read..written {
                        let at = times.slots[index % SLOTS].load(Ordering::Relaxed);
                        delays.push((now - at) as f64);
                    }
                    read = written;
                } else if ended {
                    return delays;
                } else {
                    doorbell.wait(Duration::from_secs(1));
                }
            }
        })?
    };
    let waker = spawn_pinned("waker".into(), placement.borrowed_core, {
        let period = 1_000_000_000 / rate;
        move || {
            let end = clock.now() + (seconds * 1e9) as u64;
            let mut next = clock.now() + period;
            let mut count = 0;
            while clock.now() < end {
                while clock.now() < next {
                    std::hint::spin_loop();
                }
                next = next + period;
                times.slots[count % SLOTS].store(clock.now().as_nanos(), Ordering::Relaxed);
                count += 1;
                times.written.store(count, Ordering::Release);
                doorbell.ring();
            }
            times.ended.store(true, Ordering::Release);
            doorbell.ring();
        }
    })?;
    let ended = |_| anyhow::anyhow!("a thread of the bare wake panicked");
    waker.join().map_err(ended)?;
    let (delays, _) = sleeper.join().map_err(ended)?;
    Ok(median(&delays))
}
