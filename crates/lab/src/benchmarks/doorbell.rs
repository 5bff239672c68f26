//! Doorbell to target routine, against a bare futex wake of the same run.
//!
//! The card gets a packet at a time, far enough apart that the target sleeps in
//! between; its latency histogram is from wire to target routine. The bare wake
//! is two threads on the same two cores, a slot for each wake's time between
//! them, and nothing else. Rounds alternate.

use super::median;
use clap::Args;
use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_core::doorbell::Doorbell;
use picnic_host::clock::Clock;
use picnic_host::doorbell::FutexDoorbell;
use picnic_machine::threads::spawn_pinned;
use picnic_machine::topology::{available, place};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

#[derive(Debug, Args)]
pub struct DoorbellArgs {
    /// Alternating rounds
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds per round and side
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Wake-ups per second
    #[arg(long, default_value_t = 2000)]
    rate: u64,
}

pub fn run(args: &DoorbellArgs) -> anyhow::Result<Value> {
    anyhow::ensure!(args.rate > 0 && args.seconds > 0.0, "rate and seconds must be above zero");
    let (mut card, mut bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds.max(1) {
        let card_ns = card_latency(args.rate, args.seconds, 0)?.p50;
        let bare_ns = bare_wake(args.rate, args.seconds)?.p50;
        ratios.push(card_ns / bare_ns);
        card.push(card_ns);
        bare.push(bare_ns);
    }
    let ratio = median(&mut ratios);
    Ok(json!({
        "benchmark": "doorbell",
        "doorbell_to_target_p50_ns": median(&mut card),
        "bare_futex_wake_p50_ns": median(&mut bare),
        "ratio": ratio,
        "ratio_min": ratios.first(),
        "ratio_max": ratios.last(),
        "rounds": args.rounds,
        "rate_pps": args.rate,
    }))
}

fn card_file(rate: u64, poll_usecs: u32) -> anyhow::Result<CardFile> {
    // The borrowed core spins, as the waking side of the bare wake does.
    Ok(CardFile::parse(
        &format!(
            "[card]\nidle = \"spin\"\n[host]\nqueues = 1\n\
             [interrupt]\nrx_usecs = 0\npoll_usecs = {poll_usecs}\n\
             [[wire]]\nport = \"generator\"\nrate_pps = {rate}\n"
        ),
        None,
    )?)
}

/// From wire to target routine, in nanoseconds.
pub struct CardLatency {
    pub p50: f64,
    pub p99: f64,
    /// None without an interrupt.
    pub packets_per_interrupt: Option<f64>,
}

/// Has a card take `rate` packets per second for so long; its target polls on for `poll_usecs`
/// after each.
pub fn card_latency(rate: u64, seconds: f64, poll_usecs: u32) -> anyhow::Result<CardLatency> {
    let card = card_file(rate, poll_usecs)?;
    let running = Launch::new(&card, picnic_host::registries()).start_alone()?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let report = running.stop()?;
    let packets_per_interrupt = report.queues.first().and_then(|queue| queue.packets_per_interrupt);
    match (report.latency_ns.p50, report.latency_ns.p99) {
        (Some(p50), Some(p99)) => {
            Ok(CardLatency { p50: p50 as f64, p99: p99 as f64, packets_per_interrupt })
        }
        _ => anyhow::bail!("no packet was delivered"),
    }
}

/// What a bare wake takes.
pub struct BareWake {
    /// From before the wake to behind it, in nanoseconds.
    pub p50: f64,
    /// How many it found each time that it had slept.
    pub per_wake: f64,
}

/// Slots for times on their way to the sleeper.
const SLOTS: usize = 1 << 16;

/// Times handed over from the waker to the sleeper, oldest first.
struct Times {
    slots: Vec<AtomicU64>,
    written: AtomicUsize,
    ended: AtomicBool,
}

/// Two threads on the same two cores and nothing else, `rate` wakes per second. As with packets,
/// each wake counts: one that comes while the sleeper is still on its way is found with the one
/// before, and its own delay is counted. Were the last of them taken alone, a late wake would
/// pass for an early one.
pub fn bare_wake(rate: u64, seconds: f64) -> anyhow::Result<BareWake> {
    let placement = place(&card_file(rate, 0)?, &available())?;
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
            let (mut delays, mut wakes) = (Vec::with_capacity(1 << 20), 0_usize);
            let (mut read, mut has_slept) = (0, false);
            loop {
                // What is there is looked for once more after the doorbell has been reset, so
                // that no wake is lost.
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
                    wakes += usize::from(std::mem::take(&mut has_slept));
                } else if ended {
                    return (delays, wakes);
                } else {
                    doorbell.wait(Duration::from_secs(1));
                    has_slept = true;
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
    let ((mut delays, wakes), _) = sleeper.join().map_err(ended)?;
    let per_wake = delays.len() as f64 / wakes.max(1) as f64;
    Ok(BareWake { p50: median(&mut delays), per_wake })
}
