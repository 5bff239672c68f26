//! What a card did between two looks at its figures.

use picnic_control::report::{FunctionReport, Report, TakenAway};
use serde::Serialize;
use serde_json::{Map, Value};

/// The rates of an interval.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rates {
    pub(crate) card: String,
    /// Seconds since the card started.
    pub(crate) elapsed_s: f64,
    /// Seconds that the rates are of.
    pub(crate) interval_s: f64,
    pub(crate) wires: Vec<WireRates>,
    /// Of a card that the kernel and the poll engine share: both, and their sum; else none.
    pub(crate) parts: Vec<PartRates>,
    pub(crate) queues: Vec<QueueRates>,
    pub(crate) functions: Vec<FunctionRates>,
    pub(crate) drops: Vec<DropRates>,
    pub(crate) borrowed_core: usize,
    /// Share of the interval in turns that found work.
    pub(crate) busy_fraction: f64,
    /// Share of the interval asleep.
    pub(crate) asleep_fraction: f64,
    /// How much of the interval others had the borrowed core; null where that cannot be.
    pub(crate) taken_away: Option<TakenAway>,
    /// Of the interval, median and 99th percentile.
    pub(crate) latency_p50_ns: Option<u64>,
    pub(crate) latency_p99_ns: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct WireRates {
    pub(crate) name: String,
    pub(crate) rx_pps: f64,
    pub(crate) rx_bits_per_s: f64,
    pub(crate) tx_pps: f64,
    pub(crate) tx_bits_per_s: f64,
    /// Packets that came and were dropped at the wire.
    pub(crate) shed_pps: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct PartRates {
    pub(crate) part: String,
    pub(crate) rx_pps: f64,
    pub(crate) delivered_pps: f64,
    pub(crate) dropped_pps: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct QueueRates {
    pub(crate) queue: u16,
    pub(crate) core: usize,
    pub(crate) pps: f64,
    pub(crate) bits_per_s: f64,
    pub(crate) interrupts_per_s: f64,
    /// Null without interrupts.
    pub(crate) packets_per_interrupt: Option<f64>,
    pub(crate) ring_depth: u64,
    pub(crate) ring_size: u64,
    pub(crate) ring_full_pps: f64,
    /// Packets per second that its host sends.
    pub(crate) tx_pps: f64,
    /// Of the interval, median and 99th percentile.
    pub(crate) latency_p50_ns: Option<u64>,
    pub(crate) latency_p99_ns: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct FunctionRates {
    /// Where it stands: `rx[0]`.
    pub(crate) place: String,
    pub(crate) name: String,
    pub(crate) pps: f64,
    pub(crate) dropped_pps: f64,
    /// Of the interval, as sampled; null if no burst was.
    pub(crate) ns_per_packet: Option<f64>,
    /// What it counts itself, since it was inserted.
    pub(crate) counters: Map<String, Value>,
    /// Those of its own figures that may fall.
    pub(crate) gauges: Map<String, Value>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct DropRates {
    pub(crate) reason: String,
    pub(crate) stage: String,
    pub(crate) pps: f64,
    /// Packets since the start.
    pub(crate) packets: u64,
}

impl Rates {
    /// The rates between two reports of a card. What has gone back (a function was replaced)
    /// has none.
    pub(crate) fn between(card: &str, before: &Report, now: &Report) -> Self {
        let interval = now.duration_s - before.duration_s;
        let seconds = interval.max(1e-9);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let share = |now: f64, before: f64, until: &Report, since: &Report| {
            let spent = now * until.duration_s - before * since.duration_s;
            (spent / seconds).clamp(0.0, 1.0)
        };
        let window = now.since(before);
        let wires = now.wires.iter().zip(&before.wires).map(|(now, before)| WireRates {
            name: now.name.clone(),
            rx_pps: rate(now.rx_packets, before.rx_packets),
            rx_bits_per_s: 8.0 * rate(now.rx_bytes, before.rx_bytes),
            tx_pps: rate(now.tx_packets, before.tx_packets),
            tx_bits_per_s: 8.0 * rate(now.tx_bytes, before.tx_bytes),
            shed_pps: rate(now.rx_shed, before.rx_shed),
        });
        let parts = window.parts().into_iter().flatten().map(|(part, counts)| {
            let [rx_pps, delivered_pps, dropped_pps] = counts.map(|count| rate(count, 0));
            PartRates { part: part.into(), rx_pps, delivered_pps, dropped_pps }
        });
        let queues = now.queues.iter().zip(&before.queues).zip(&window.queues);
        let queues = queues.map(|((now, before), window)| {
            let packets = now.packets.saturating_sub(before.packets);
            let interrupts = now.interrupts.saturating_sub(before.interrupts);
            QueueRates {
                queue: now.queue,
                core: now.core,
                pps: packets as f64 / seconds,
                bits_per_s: 8.0 * rate(now.bytes, before.bytes),
                interrupts_per_s: interrupts as f64 / seconds,
                packets_per_interrupt: (interrupts != 0)
                    .then(|| packets as f64 / interrupts as f64),
                ring_depth: now.ring_depth,
                ring_size: now.ring_size,
                ring_full_pps: rate(now.ring_full, before.ring_full),
                tx_pps: rate(now.transmitted, before.transmitted),
                latency_p50_ns: window.latency_ns.p50,
                latency_p99_ns: window.latency_ns.p99,
            }
        });
        let chains = [
            ("rx", &now.functions, &before.functions, &window.functions),
            ("tx", &now.tx_functions, &before.tx_functions, &window.tx_functions),
        ];
        let functions = chains.into_iter().flat_map(|(chain, now, before, window)| {
            now.iter().zip(window).enumerate().map(move |(position, (function, window))| {
                let same = |other: &&FunctionReport| {
                    other.name == function.name && other.packets <= function.packets
                };
                let before = before.get(position).filter(same);
                let (packets, dropped) = before.map_or((0, 0), |was| (was.packets, was.dropped));
                FunctionRates {
                    place: format!("{chain}[{position}]"),
                    name: function.name.clone(),
                    pps: rate(function.packets, packets),
                    dropped_pps: rate(function.dropped, dropped),
                    ns_per_packet: window.ns_per_packet,
                    counters: function.counters.clone(),
                    gauges: function.gauges.clone(),
                }
            })
        });
        let drops = now.drops_by_stage.iter().map(|(place, &packets)| {
            let (reason, stage) = place.split_once('@').unwrap_or((place, ""));
            let before = before.drops_by_stage.get(place).copied().unwrap_or(0);
            let (reason, stage) = (reason.to_owned(), stage.to_owned());
            DropRates { reason, stage, pps: rate(packets, before), packets }
        });
        let (core, was) = (&now.borrowed_core, &before.borrowed_core);
        let latency = &window.latency_ns;
        Rates {
            card: card.into(),
            elapsed_s: now.duration_s,
            interval_s: interval,
            wires: wires.collect(),
            parts: parts.collect(),
            queues: queues.collect(),
            functions: functions.collect(),
            drops: drops.collect(),
            borrowed_core: core.core,
            busy_fraction: share(core.busy_fraction, was.busy_fraction, now, before),
            asleep_fraction: share(core.asleep_fraction, was.asleep_fraction, now, before),
            taken_away: window.borrowed_core.taken_away,
            latency_p50_ns: latency.p50,
            latency_p99_ns: latency.p99,
        }
    }
}
