//! Finds the core that limits a run, and the cause of long waits in a target ring.
//!
//! A target core limits a run if its rings were full, or if it hardly slept and its polls found
//! work; the borrowed core if it was never idle or its wires overflowed. All of this is counted, so
//! it works in every world and engine.

use crate::output::{count, nanoseconds, percent, rate};
use picnic_control::report::{QueueReport, Report};

/// Share of packets dropped at full rings above which a core is the limit.
const LOST: f64 = 0.001;
/// Share of time asleep below which a target core has no time to spare.
const AWAKE: f64 = 0.05;
/// Share of polls that found work below which a core was awake for nothing.
const AT_WORK: f64 = 0.5;
/// Busy share of the borrowed core above which it has no time to spare.
const BUSY: f64 = 0.95;
/// 99th percentiles from here on are explained.
const LONG_NS: u64 = 1_000_000;

/// A core that limits a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// A target core, packets without room in its rings, and the share of time that it slept.
    Target { core: usize, ring_full: u64, asleep: Option<f64> },
    /// The borrowed core: its busy share, and packets without room in the wires.
    Borrowed { busy: f64, overrun: u64 },
}

fn limit(report: &Report) -> Option<Limit> {
    let mut cores: Vec<_> = report.queues.iter().map(|queue| queue.core).collect();
    cores.sort_unstable();
    cores.dedup();
    let targets = cores.into_iter().filter_map(|core| {
        let queues = || report.queues.iter().filter(|queue| queue.core == core);
        let sum = |count: fn(&QueueReport) -> u64| queues().map(count).sum::<u64>();
        let [packets, ring_full] = [sum(|queue| queue.packets), sum(|queue| queue.ring_full)];
        let [polls, empty] = [sum(|queue| queue.polls), sum(|queue| queue.empty_polls)];
        let target = report.target_cores.iter().find(|target| target.core == core);
        let asleep = target.map(|target| target.asleep_fraction);
        let is_at_work = polls.saturating_sub(empty) as f64 > AT_WORK * polls as f64;
        let is_awake = asleep.is_some_and(|share| share < AWAKE) && is_at_work;
        let is_full = ring_full as f64 > LOST * (packets + ring_full) as f64;
        (is_full || is_awake).then_some((ring_full, core, asleep))
    });
    let most = targets.max_by_key(|(ring_full, ..)| *ring_full);
    if let Some((ring_full, core, asleep)) = most {
        return Some(Limit::Target { core, ring_full, asleep });
    }
    let core = &report.borrowed_core;
    let busy = (core.busy_fraction + core.softirq_fraction.unwrap_or_default()).min(1.0);
    let overrun = report.drops.get("wire_overrun").copied().unwrap_or_default();
    let is_overrun = overrun as f64 > LOST * report.ledger.r#in as f64;
    (busy > BUSY || is_overrun).then_some(Limit::Borrowed { busy, overrun })
}

/// The core that limits the run, as text.
pub(crate) fn limit_in_words(report: &Report) -> String {
    let borrowed = report.borrowed_core.core;
    let (core, mut evidence) = match limit(report) {
        Some(Limit::Target { core, ring_full, asleep }) => {
            let also = if core == borrowed { ", which is also the borrowed core" } else { "" };
            let full = (ring_full != 0)
                .then(|| format!("{} packets found its rings full", count(ring_full)));
            let asleep = asleep.map(|share| format!("asleep {}", percent(share)));
            (format!("target core {core}{also}"), [full, asleep])
        }
        Some(Limit::Borrowed { busy, overrun }) => {
            let full = (overrun != 0)
                .then(|| format!("{} packets found the wires' buffers full", count(overrun)));
            (format!("borrowed core {borrowed}"), [Some(format!("busy {}", percent(busy))), full])
        }
        None => {
            return "no core of the card: all had idle time, so wires, hosts or other processes \
                    limit this run"
                .into();
        }
    };
    let evidence: Vec<_> = evidence.iter_mut().filter_map(Option::take).collect();
    format!("{core}: {}", evidence.join(", "))
}

/// The cause of a long wait in target rings; none if the waits are short.
pub(crate) fn wait_in_words(report: &Report) -> Option<String> {
    let latency = &report.latency_ns;
    let p99 = latency.p99.filter(|&p99| p99 >= LONG_NS)?;
    if latency.in_target_ring? < latency.mean? / 2 {
        return None;
    }
    let slowest = report.queues.iter().max_by_key(|queue| queue.latency_ns.p99)?;
    let QueueReport { core, queue, ring_size, .. } = *slowest;
    let p99 = nanoseconds(Some(p99));
    if core == report.borrowed_core.core {
        return Some(format!(
            "p99 {p99}: target core {core} is also the borrowed core, so the target runs only when the \
             card does not"
        ));
    }
    if matches!(limit(report), Some(Limit::Target { core: limiting, .. }) if limiting == core) {
        let per_second = slowest.packets as f64 / report.duration_s;
        let full_ns = (ring_size as f64 / per_second.max(1.0) * 1e9) as u64;
        return Some(format!(
            "p99 {p99}: packets wait for target core {core}; queue {queue} takes {} packets/s, so its \
             ring of {ring_size} holds up to {}; a shorter host.ring_size shortens the wait and drops \
             more",
            rate(per_second),
            nanoseconds(Some(full_ns))
        ));
    }
    let target = report.target_cores.iter().find(|target| target.core == core)?;
    let (priority, way_out) = match target.priority.as_str() {
        "normal" => (", at normal priority", "; try: --set host.priority=real-time"),
        _ => ("", ""),
    };
    Some(format!(
        "p99 {p99}: target core {core} had time to spare, so its thread was late to run{priority}: \
         other processes, moderation (rx_usecs) or a sleeping core delay it{way_out}"
    ))
}

/// The run in one line.
pub(crate) fn total(report: &Report) -> String {
    let ledger = &report.ledger;
    let bytes: u64 = report.wires.iter().map(|wire| wire.rx_bytes).sum();
    let per_second = |number: u64| number as f64 / report.duration_s;
    let dropped = ledger.dropped as f64 / ledger.r#in.max(1) as f64;
    format!(
        "{} packets in {:.2} s, {} packets/s, {} bit/s: {} delivered, {} transmitted, {} dropped ({})",
        count(ledger.r#in),
        report.duration_s,
        rate(per_second(ledger.r#in)),
        rate(per_second(bytes) * 8.0),
        count(ledger.delivered),
        count(ledger.transmitted),
        count(ledger.dropped),
        percent(dropped),
    )
}
