//! The result of a run: the JSON of `picnic run --json`.
//!
//! Every figure is declared here and nowhere else: see [`crate::figures`]. Fields carry their unit
//! as suffix. `latency_ns` counts from a packet's receive time to its target routine; the `stamp`
//! of its wire defines the receive time. Counts are exact in every world; `times` tells whether
//! times and shares of time are measured or modelled.

mod guest;
mod ledger;

pub use guest::{GuestPhase, GuestQueues, GuestReport};

use crate::figures::{Figure, Figures, Kind, Shown, Span, figures, quotient};
use crate::instrument::TraceReport;
use crate::latency::Recorded;
use crate::monitor::{Absences, CoreTimes, TargetTimes};
pub(crate) use ledger::LEDGER;
use ledger::{LedgerReport, read_totals};
use picnic_core::guard::GroupCounts;
use picnic_core::ledger::LedgerTotals;
use picnic_core::stats::Counter;
use picnic_engine::view::{ClassView, FunctionView, PollCounters, QueueView, WireView};
use picnic_machine::facts::MachineFacts;
use picnic_os::report::OsReport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// A run's figures.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The card and the conditions of the run; omitted if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<RunInfo>,
    /// The engine.
    pub engine: String,
    /// How its times came about: duration, latency, shares of time, times of tasks.
    #[serde(default)]
    pub times: Times,
    /// Seconds from start to the end of receiving.
    pub duration_s: f64,
    /// By wire.
    pub wires: Vec<WireReport>,
    /// By queue.
    pub queues: Vec<QueueReport>,
    /// By guest; omitted unless the host is virtual machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestReport>,
    /// Packets that stayed in the kernel, for a card that the kernel and the poll engine share;
    /// omitted if one engine has all packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelReport>,
    /// Packets that the kernel sent to the poll engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollReport>,
    /// By function of the rx chain.
    pub functions: Vec<FunctionReport>,
    /// By function of the tx chain.
    pub tx_functions: Vec<FunctionReport>,
    /// By traffic class and wire; omitted if the card has no classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassReport>,
    /// By group of filters; omitted if the card has no filters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter_groups: Vec<FilterGroupReport>,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Packets dropped, by `reason@stage`.
    pub drops_by_stage: BTreeMap<String, u64>,
    /// Every packet's fate.
    #[serde(deserialize_with = "read_totals")]
    #[schemars(with = "LedgerReport")]
    pub ledger: LedgerTotals,
    /// Buffers that did not return; not zero is a bug.
    pub buffers_missing: usize,
    /// Wire to target routine, one packet in 16.
    pub latency_ns: LatencyReport,
    /// All recorded latencies, by queue. Commands omit them unless requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latencies: Option<Vec<Recorded>>,
    /// The borrowed core.
    pub borrowed_core: CoreReport,
    /// The target cores.
    pub target_cores: Vec<TargetCoreReport>,
    /// NIC OS; omitted if the card has none, and while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<OsReport>,
    /// The trace; omitted if the card has none, and while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceReport>,
    /// The reason why a part of the card failed or was abandoned; omitted if all is well. Figures
    /// are included if available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The subject of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunInfo {
    /// The card's name.
    pub card: String,
    /// Its file; null for the built-in card.
    pub file: Option<String>,
    /// The version of picnic.
    pub version: String,
    /// The revision that it was built from.
    pub revision: String,
    /// The machine.
    pub machine: MachineFacts,
}

/// Whether times are measured or modelled: the same for all times of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Times {
    /// Read from a clock of the machine.
    #[default]
    Measured,
    /// Computed from the costs of a model.
    Modelled,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Times::Measured => "measured",
            Times::Modelled => "modelled",
        })
    }
}

/// Defines the receive time of a wire's packets, from which latency counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stamp {
    /// Arrival of the packet at the wire.
    Arrival,
    /// Reception by the borrowed core; the wait before that is unknown.
    #[default]
    Taken,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stamp::Arrival => "arrival",
            Stamp::Taken => "taken",
        })
    }
}

figures! {
    /// A wire's figures.
    WireReport from (wire: &WireView) {
        /// Name in the card file.
        Label name: String = wire.name.clone() => { live: "name" };
        /// Packets taken into buffers.
        Counter rx_packets: u64 = wire.counters.rx_packets.get() => {
            unit: Packets, metric: "picnic_wire_received", live: "rx_pps", heading: "rx packets",
            totals: 9, pace: 5, rates: 9
        };
        /// Bytes of the packets taken.
        Counter rx_bytes: u64 = wire.counters.rx_bytes.get() => {
            unit: Bytes, metric: "picnic_wire_received", live: "rx_bits_per_s",
            heading: "rx bytes", totals: 2, rates: 2
        };
        /// Packets dropped at the wire; `drops_by_stage` has the reasons.
        Loss rx_shed: u64 = wire.counters.rx_shed.get() => {
            unit: Packets, metric: "picnic_wire_shed", live: "shed_pps", heading: "shed", rates: 9
        };
        /// Packets transmitted.
        Counter tx_packets: u64 = wire.counters.tx_packets.get() => {
            unit: Packets, metric: "picnic_wire_transmitted", live: "tx_pps",
            heading: "tx packets", totals: 9, pace: 4, rates: 9
        };
        /// Bytes transmitted.
        Counter tx_bytes: u64 = wire.counters.tx_bytes.get() => {
            unit: Bytes, metric: "picnic_wire_transmitted", live: "tx_bits_per_s",
            heading: "tx bytes", totals: 1, rates: 1
        };
        /// Receive time of its packets: "arrival", or "taken" (when the borrowed core took them).
        Label stamp: Stamp = match wire.capabilities.arrival {
            true => Stamp::Arrival,
            false => Stamp::Taken,
        } => { heading: "stamp", totals: 3 };
        /// Interrupts of the physical NIC; 0 unless they are moderated (`wire_usecs`).
        Counter interrupts: u64 = wire.counters.interrupts.get() => { unit: Interrupts };
        /// Packets whose stamp was later than the turn that took them, and was replaced with its
        /// time.
        Counter stamps_ahead: u64 = wire.counters.stamps_ahead.get() => { unit: Packets };
    }

    /// Packets that the kernel sent to the poll engine.
    PollReport from (poll: &PollCounters) {
        /// Packets that filters sent to the poll engine.
        Counter packets: u64 = poll.packets.get() => { unit: Packets, metric: "picnic_poll_sent" };
        /// Packets that the poll engine took.
        Counter taken: u64 = poll.taken.get() => { unit: Packets, metric: "picnic_poll_taken" };
        /// Packets lost on the way, among `drops`.
        Loss lost: u64 = poll.lost.get() => { unit: Packets, metric: "picnic_poll_lost" };
        /// Packets that the poll engine handed to its host; the queues count them too.
        Counter delivered: u64 = poll.delivered.get() => {
            unit: Packets, metric: "picnic_poll_delivered"
        };
        /// Packets that the poll engine dropped, or lost on the way.
        Loss dropped: u64 = poll.dropped.get() => { unit: Packets, metric: "picnic_poll_dropped" };
    }

    /// Packets that stayed in the kernel.
    KernelReport from (received: u64, totals: &LedgerTotals, poll: &PollReport) {
        /// Packets received that no filter sent to the poll engine.
        Counter packets: u64 = received.saturating_sub(poll.packets) => {
            unit: Packets, metric: "picnic_kernel_received", live: "rx_pps",
            heading: "rx packets", totals: 9, pace: 5, rates: 9
        };
        /// Packets handed to the kernel's network stack.
        Counter delivered: u64 = totals.delivered.saturating_sub(poll.delivered) => {
            unit: Packets, metric: "picnic_kernel_delivered", live: "delivered_pps",
            heading: "delivered", totals: 9, rates: 1
        };
        /// Packets dropped in the kernel.
        Loss dropped: u64 = totals.dropped.saturating_sub(poll.dropped) => {
            unit: Packets, metric: "picnic_kernel_dropped", live: "dropped_pps",
            heading: "dropped", totals: 9, rates: 9
        };
    }

    /// A queue's figures.
    QueueReport from (number: usize, core: usize, view: &QueueView) {
        /// Number of the queue.
        Label queue: u16 = number as u16 => { live: "queue" };
        /// Its guest; omitted if it has none.
        #[serde(skip_serializing_if = "Option::is_none")]
        Label guest: Option<String> = None => {
            live: "guest", heading: "guest", totals: 6, rates: 8
        };
        /// Its target core.
        Label core: usize = core => { live: "core", heading: "core", totals: 4, rates: 6 };
        /// Packets handed to the host.
        Counter packets: u64 = view.target.packets.get() => {
            unit: Packets, metric: "picnic_queue_delivered", live: "pps", heading: "packets",
            totals: 9, pace: 6, rates: 9
        };
        /// Bytes handed to the host.
        Counter bytes: u64 = view.target.bytes.get() => {
            unit: Bytes, metric: "picnic_queue_delivered", live: "bits_per_s", heading: "bytes",
            totals: 1, rates: 7
        };
        /// Interrupts taken.
        Counter interrupts: u64 = view.target.interrupts.get() => {
            unit: Interrupts, metric: "picnic_queue", live: "interrupts_per_s",
            heading: "interrupts", totals: 3, rates: 4
        };
        /// Packets per interrupt; null without interrupts.
        Quotient packets_per_interrupt: Option<f64> = |q| quotient(q.packets, q.interrupts) => {
            live: "packets_per_interrupt", heading: "packets/int", totals: 5, rates: 5
        };
        /// Polls of the ring.
        Counter polls: u64 = view.target.polls.get() => { unit: Polls, metric: "picnic_queue" };
        /// Polls that found it empty.
        Counter empty_polls: u64 = view.target.empty_polls.get() => {
            unit: Polls, metric: "picnic_queue_empty"
        };
        /// Doorbells that the borrowed core rang.
        Counter doorbells: u64 = view.steer.doorbells.get() => { unit: Times };
        /// Doorbells rung while one was pending, so that the target core took both at once.
        Counter doorbells_coalesced: u64 = view.steer.coalesced.get() => { unit: Times };
        /// Packets that the host sent.
        Counter transmitted: u64 = view.target.transmitted.get() => {
            unit: Packets, metric: "picnic_queue_transmitted", live: "tx_pps",
            heading: "tx packets", totals: 2, rates: 1
        };
        /// Bytes that the host sent.
        Counter transmitted_bytes: u64 = view.target.transmitted_bytes.get() => {
            unit: Bytes, metric: "picnic_queue_transmitted", live: "tx_bits_per_s"
        };
        /// Packets of those that left for a wire, or were refused by it.
        Counter tx_completed: u64 = view.steer.tx_completed.get() => { unit: Packets };
        /// Bytes of the packets in `tx_completed`.
        Counter tx_completed_bytes: u64 = view.steer.tx_completed_bytes.get() => { unit: Bytes };
        /// Bytes in flight to the wires.
        Gauge tx_in_flight_bytes: u64 = view.steer.tx_in_flight_bytes.get() => { unit: Bytes };
        /// Times that its tx ring waited because enough bytes were in flight.
        Counter tx_limited: u64 = view.steer.tx_limited.get() => { unit: Times };
        /// Packets dropped because the ring was full.
        Loss ring_full: u64 = view.steer.ring_full.get() => {
            unit: Packets, metric: "picnic_queue_ring_full", live: "ring_full_pps",
            heading: "ring full", totals: 9, rates: 9
        };
        /// Descriptors in the target ring, as of the last millisecond.
        Gauge ring_depth: u64 = view.steer.depth.get() => {
            unit: Descriptors, metric: "picnic_queue_ring", live: "ring_depth", heading: "ring",
            of: "ring_size", rates: 9
        };
        /// Number of descriptors that fit in the target ring.
        Gauge ring_size: u64 = view.ring_size as u64 => {
            unit: Descriptors, metric: "picnic_queue_ring_size", live: "ring_size"
        };
        /// Latency from wire to target routine, one packet in 16.
        Part latency_ns: LatencyReport = LatencyReport::default();
    }

    /// A function's figures.
    FunctionReport from (function: FunctionView) {
        /// Name in the card file.
        Label name: String = function.name.clone() => { live: "name" };
        /// Packets given to the function.
        Counter packets: u64 = function.counters.packets.get() => {
            unit: Packets, metric: "picnic_function_received", live: "pps", heading: "packets",
            totals: 9, rates: 9
        };
        /// Packets that the function dropped.
        Loss dropped: u64 = function.counters.dropped.get() => {
            unit: Packets, metric: "picnic_function_dropped", live: "dropped_pps",
            heading: "dropped", totals: 9, rates: 9
        };
        /// Nanoseconds per packet, sampled on one burst in 256, including packets that the function
        /// makes; null where no clock is read, as in virtual time.
        Quotient ns_per_packet: Option<f64> = |f| quotient(f.timed_ns, f.timed_packets) => {
            live: "ns_per_packet", heading: "ns/packet", totals: 9, rates: 2
        };
        /// Nanoseconds of the sampled bursts.
        Counter timed_ns: u64 = function.counters.timed_ns.get() => { unit: Nanoseconds };
        /// Packets in the sampled bursts.
        Counter timed_packets: u64 = function.counters.timed_packets.get() => { unit: Packets };
        /// The function's own counters since it was inserted, also in windows: the numbers of its
        /// `get`. Omitted without any, and while it runs unless requested.
        #[serde(skip_serializing_if = "Map::is_empty")]
        Label counters: Map<String, Value> = Map::new() => { live: "counters" };
        /// The function's own figures that may fall.
        #[serde(skip_serializing_if = "Map::is_empty")]
        Label gauges: Map<String, Value> = Map::new() => { live: "gauges" };
    }

    /// The figures of a traffic class at a wire.
    ClassReport from (view: &ClassView) {
        /// Name of the wire.
        Label wire: String = view.wire.clone() => { live: "wire" };
        /// Name of the class.
        Label class: String = view.name.clone() => { live: "class" };
        /// Packets that left for the wire, or were refused by it.
        Counter packets: u64 = view.counters.packets.get() => {
            unit: Packets, metric: "picnic_class_sent", live: "pps", heading: "packets",
            totals: 9, rates: 9
        };
        /// Bytes of these packets.
        Counter bytes: u64 = view.counters.bytes.get() => {
            unit: Bytes, metric: "picnic_class_sent", live: "bits_per_s", heading: "bytes",
            totals: 8, rates: 8
        };
        /// Packets dropped because a lane of the class was full.
        Loss dropped: u64 = view.counters.dropped.get() => {
            unit: Packets, metric: "picnic_class_dropped", live: "dropped_pps",
            heading: "dropped", totals: 9, rates: 9
        };
    }

    /// The figures of a group of filters.
    FilterGroupReport from (group: GroupCounts) {
        /// Name of the group.
        Label group: String = group.name.clone() => { live: "group" };
        /// Filters in the group.
        Gauge filters: u64 = group.filters => {
            live: "filters", heading: "filters", totals: 5, rates: 5
        };
        /// Packets that its filters matched; a packet counts for each filter.
        Counter packets: u64 = group.packets => {
            unit: Packets, metric: "picnic_filter_group_matched", live: "pps",
            heading: "packets", totals: 9, rates: 9
        };
        /// Bytes of these packets.
        Counter bytes: u64 = group.bytes => {
            unit: Bytes, metric: "picnic_filter_group_matched", live: "bits_per_s",
            heading: "bytes", totals: 8, rates: 8
        };
        /// Packets that its filters dropped because they could not be read.
        Loss unreadable_packets: u64 = group.unreadable_packets => {
            unit: Packets, metric: "picnic_filter_group_unreadable", live: "unreadable_pps",
            heading: "unreadable", totals: 4, rates: 4
        };
    }

    /// Percentiles and means in nanoseconds; null if nothing was recorded.
    LatencyReport from () {
        /// Median.
        Latency p50: Option<u64> = None => {
            unit: Nanoseconds, metric: "picnic_latency", tag: Some(("quantile", "0.5")),
            family: "Latency from wire to target routine since the start, one packet in 16",
            live: "latency_p50_ns", heading: "p50", totals: 7, rates: 3
        };
        /// 99th percentile.
        Latency p99: Option<u64> = None => {
            unit: Nanoseconds, metric: "picnic_latency", tag: Some(("quantile", "0.99")),
            live: "latency_p99_ns", heading: "p99", totals: 9, rates: 2
        };
        /// 99.9th percentile.
        Latency p999: Option<u64> = None => {
            unit: Nanoseconds, metric: "picnic_latency", tag: Some(("quantile", "0.999"))
        };
        /// Mean: the sum of `at_wire`, `on_borrowed_core` and `in_target_ring`.
        Latency mean: Option<u64> = None => { unit: Nanoseconds };
        /// Mean wait at the wire, from arrival until the borrowed core took the packet; null if no
        /// wire knows when packets arrive.
        Latency at_wire: Option<u64> = None => {
            unit: Nanoseconds, metric: "picnic_latency_mean", tag: Some(("part", "wire")),
            family: "Mean of each part of the latency since the start"
        };
        /// Part of `at_wire` until the physical NIC interrupted; null unless its interrupts are
        /// moderated (`wire_usecs`).
        Latency held_at_wire: Option<u64> = None => { unit: Nanoseconds };
        /// Mean length of the turn of the borrowed core that took the packet.
        Latency on_borrowed_core: Option<u64> = None => {
            unit: Nanoseconds, metric: "picnic_latency_mean", tag: Some(("part", "borrowed_core"))
        };
        /// Mean of the rest: the target ring and the doorbell. Packets dropped on the way count in
        /// `at_wire` and `on_borrowed_core` only.
        Latency in_target_ring: Option<u64> = None => {
            unit: Nanoseconds, metric: "picnic_latency_mean", tag: Some(("part", "target_ring"))
        };
    }

    /// The borrowed core's figures.
    CoreReport from (core: usize, times: &CoreTimes, duration_ns: f64) {
        /// Number of the core.
        Label core: usize = core;
        /// The system's number of its thread, for `chrt` or `perf`; null on a virtual core.
        Label thread: Option<u64> = thread(&times.thread);
        /// Share of the time in turns that found work; for a card in the kernel, in the threads
        /// that poll its wires.
        Share busy_fraction: f64 = share(times.busy_ns.get(), duration_ns) => {
            metric: "picnic_borrowed_core_busy"
        };
        /// Share of the time in softirqs, including softirqs of other interfaces; null unless the
        /// card is in the kernel.
        Share softirq_fraction: Option<f64> =
            times.softirq_ns().map(|ns| share(ns, duration_ns)) => {
            metric: "picnic_borrowed_core_softirq"
        };
        /// Share of the time asleep.
        Share asleep_fraction: f64 = share(times.asleep_ns.get(), duration_ns) => {
            metric: "picnic_borrowed_core_asleep"
        };
        /// Times that it woke from sleep.
        Counter wakeups: u64 = times.wakeups.get() => { unit: Times };
        /// Preemptions by another thread, the kernel or the hypervisor; null where that cannot
        /// happen, as in virtual time.
        Part taken_away: Option<TakenAway> =
            (times.absences.threshold_ns.get() != 0).then(|| TakenAway::read(&times.absences));
    }

    /// Time in which the borrowed core was preempted.
    TakenAway from (absences: &Absences) {
        /// Nanoseconds preempted, in intervals above the threshold.
        Counter total_ns: u64 = absences.total_ns.get() => {
            unit: Nanoseconds, metric: "picnic_borrowed_core_taken_away"
        };
        /// Intervals in which the core was preempted.
        Counter times: u64 = absences.times.get() => {
            unit: Times, metric: "picnic_borrowed_core_absences"
        };
        /// Nanoseconds of the longest interval; null without one, or if it may have been before the
        /// window.
        Peak longest_ns: Option<u64> = Some(absences.longest_ns.get()).filter(|&ns| ns != 0)
            => { unit: Nanoseconds };
        /// Packets dropped because of an interval: until the wires were empty again, for as long again
        /// as the interval at most.
        Loss drops: u64 = absences.drops.get() => {
            unit: Packets, metric: "picnic_borrowed_core_absence_drops"
        };
        /// Nanoseconds of the shortest interval that is noticed.
        Label threshold_ns: u64 = absences.threshold_ns.get();
    }

    /// A target core's figures.
    TargetCoreReport from (times: &TargetTimes, duration_ns: f64) {
        /// Number of the core.
        Label core: usize = times.core;
        /// The system's number of its thread, for `chrt` or `perf`; null on a virtual core.
        Label thread: Option<u64> = thread(&times.thread);
        /// Share of the time asleep.
        Share asleep_fraction: f64 = share(times.asleep_ns.get(), duration_ns);
        /// Times that its thread woke from sleep.
        Counter wakeups: u64 = times.wakeups.get() => { unit: Times };
        /// Scheduling of its thread: "real-time" or "normal".
        Label priority: String = match times.real_time.get() {
            0 => "normal".into(),
            _ => "real-time".into(),
        };
        /// Times that it had preempted other threads for 2 ms and let them run.
        Counter priority_yields: u64 = times.yields.get() => { unit: Times };
        /// Time in which it was preempted, as of the borrowed core.
        Part taken_away: Option<TargetTakenAway> = (times.absences.threshold_ns.get() != 0)
            .then(|| TargetTakenAway::read(&times.absences));
    }

    /// Time in which a target core was preempted while it had work or was woken for some.
    TargetTakenAway from (absences: &Absences) {
        /// Nanoseconds preempted, in intervals above the threshold.
        Counter total_ns: u64 = absences.total_ns.get() => {
            unit: Nanoseconds, metric: "picnic_target_core_taken_away"
        };
        /// Intervals in which the core was preempted.
        Counter times: u64 = absences.times.get() => {
            unit: Times, metric: "picnic_target_core_absences"
        };
        /// Nanoseconds of the longest interval; null without one, or if it may have been before the
        /// window.
        Peak longest_ns: Option<u64> = Some(absences.longest_ns.get()).filter(|&ns| ns != 0)
            => { unit: Nanoseconds };
        /// Packets that found no room in its rings during an interval, or for the same time after
        /// it.
        Loss drops: u64 = absences.drops.get() => {
            unit: Packets, metric: "picnic_target_core_absence_drops"
        };
        /// Nanoseconds of the shortest interval that is noticed.
        Label threshold_ns: u64 = absences.threshold_ns.get();
    }
}

fn share(part_ns: u64, duration_ns: f64) -> f64 {
    (part_ns as f64 / duration_ns).min(1.0)
}

fn thread(number: &Counter) -> Option<u64> {
    Some(number.get()).filter(|&thread| thread != 0)
}

/// All declared figures, by their place in a report.
pub fn declared() -> Vec<(String, Figure)> {
    let groups = [
        ("wires[].", WireReport::default().figures()),
        ("queues[].", QueueReport::default().figures()),
        ("guests[].", GuestReport::default().figures()),
        ("kernel.", KernelReport::default().figures()),
        ("poll.", PollReport::default().figures()),
        ("functions[].", FunctionReport::default().figures()),
        ("classes[].", ClassReport::default().figures()),
        ("filter_groups[].", FilterGroupReport::default().figures()),
        ("latency_ns.", LatencyReport::default().figures()),
        ("borrowed_core.", CoreReport::default().figures()),
        ("target_cores[].", TargetCoreReport::default().figures()),
    ];
    let all = groups.into_iter().flat_map(|(place, figures)| {
        figures.into_iter().map(move |shown| (place.to_owned() + &shown.path, shown.figure))
    });
    // A queue's latencies are declared once, with the card's.
    all.filter(|(place, _)| !place.starts_with("queues[].latency_ns.")).collect()
}

impl Report {
    /// Both parts of a card that the kernel and the poll engine share, and their sum.
    pub fn parts(&self) -> Option<[(&'static str, KernelReport); 3]> {
        let (kernel, poll) = self.kernel.as_ref().zip(self.poll.as_ref())?;
        let poll = KernelReport {
            packets: poll.packets,
            delivered: poll.delivered,
            dropped: poll.dropped,
        };
        let both = KernelReport {
            packets: kernel.packets + poll.packets,
            delivered: kernel.delivered + poll.delivered,
            dropped: kernel.dropped + poll.dropped,
        };
        Some([("kernel", kernel.clone()), ("poll engine", poll), ("both", both)])
    }

    /// Each function with its chain and its position there.
    pub fn places(&self) -> impl Iterator<Item = (&'static str, usize, &FunctionReport)> {
        let chains = [("rx", &self.functions), ("tx", &self.tx_functions)];
        chains.into_iter().flat_map(|(chain, functions)| {
            let places = functions.iter().enumerate();
            places.map(move |(position, function)| (chain, position, function))
        })
    }
}

#[cfg(test)]
mod tests;
