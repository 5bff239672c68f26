//! Doorbell to target routine, against a bare futex wake of the same run.
//!
//! The card gets a packet at a time, far enough apart that the target sleeps in
//! between; its latency histogram is from wire to target routine. The bare wake
//! is two threads on the same two cores and nothing else. Rounds alternate.

use super::median;
use clap::Args;
use picnic_core::config::CardFile;
use picnic_core::doorbell::Doorbell;
use picnic_host::clock::Clock;
use picnic_host::doorbell::FutexDoorbell;
use picnic_host::threads::spawn_pinned;
use picnic_host::topology::{available, place};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug, Args)]
pub(super) struct DoorbellArgs {
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

pub(super) fn run(args: &DoorbellArgs) -> anyhow::Result<Value> {
    anyhow::ensure!(args.rate > 0 && args.seconds > 0.0, "rate and seconds must be above zero");
    let (mut card, mut bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds.max(1) {
        let card_ns = card_latency(args.rate, args.seconds, 0)?.p50;
        let bare_ns = bare_wake(args.rate, args.seconds)?;
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
pub(super) struct CardLatency {
    pub(super) p50: f64,
    pub(super) p99: f64,
}

/// Has a card take `rate` packets per second for so long; its target polls on for `poll_usecs`
/// after each.
pub(super) fn card_latency(
    rate: u64,
    seconds: f64,
    poll_usecs: u32,
) -> anyhow::Result<CardLatency> {
    let running = picnic_host::run::start(&card_file(rate, poll_usecs)?)?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let latency = running.stop()?.latency_ns;
    match (latency.p50, latency.p99) {
        (Some(p50), Some(p99)) => Ok(CardLatency { p50: p50 as f64, p99: p99 as f64 }),
        _ => anyhow::bail!("no packet was delivered"),
    }
}

/// Two threads on the same two cores and nothing else, `rate` wakes per second: nanoseconds from
/// before the wake to behind it.
pub(super) fn bare_wake(rate: u64, seconds: f64) -> anyhow::Result<f64> {
    let placement = place(&card_file(rate, 0)?, &available())?;
    let clock = Clock::start();
    let doorbell = Arc::new(FutexDoorbell::default());
    // When the doorbell was rung, and 0 once the sleeper has noted it; 1 ends the sleeper.
    let rung = Arc::new(AtomicU64::new(0));
    let sleeper = {
        let (doorbell, rung) = (doorbell.clone(), rung.clone());
        spawn_pinned("sleeper".into(), placement.target_cores[0], move || {
            let mut delays = Vec::with_capacity(1 << 16);
            loop {
                doorbell.wait(Duration::from_secs(1));
                match rung.swap(0, Ordering::AcqRel) {
                    0 => {}
                    1 => return delays,
                    at => delays.push((clock.now().as_nanos() - at) as f64),
                }
            }
        })?
    };
    let waker = spawn_pinned("waker".into(), placement.borrowed_core, {
        let period = 1_000_000_000 / rate;
        move || {
            let end = clock.now() + (seconds * 1e9) as u64;
            let mut next = clock.now() + period;
            while clock.now() < end {
                while clock.now() < next {
                    std::hint::spin_loop();
                }
                next = next + period;
                rung.store(clock.now().as_nanos(), Ordering::Release);
                doorbell.ring();
            }
            while rung.swap(1, Ordering::AcqRel) > 1 {
                std::thread::yield_now();
            }
            doorbell.ring();
        }
    })?;
    let ended = |_| anyhow::anyhow!("a thread of the bare wake panicked");
    waker.join().map_err(ended)?;
    let (mut delays, _) = sleeper.join().map_err(ended)?;
    Ok(median(&mut delays))
}
