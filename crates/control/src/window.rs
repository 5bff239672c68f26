//! The figures of a window: what one report of a running card has beyond an earlier one.

use crate::latency::{Recorded, merged};
use crate::report::{
    CoreReport, FunctionReport, LatencyReport, QueueReport, Report, TakenAway, TargetCoreReport,
    WireReport,
};
use std::collections::BTreeMap;

impl Report {
    /// What has come since `before`, an earlier report of the same card. What was under way then
    /// counts as in. A function that was put in meanwhile has all its counts; latencies are those
    /// of the window if both reports have what was recorded, and unavailable else.
    #[must_use]
    pub fn since(&self, before: &Report) -> Report {
        let duration_s = (self.duration_s - before.duration_s).max(1e-9);
        let share = |now: f64, was: f64| {
            ((now * self.duration_s - was * before.duration_s) / duration_s).clamp(0.0, 1.0)
        };
        let latencies = match (&self.latencies, &before.latencies) {
            (Some(now), Some(was)) => Some(window(now, was)),
            _ => None,
        };
        let of_queue = |queue| latencies.as_ref()?.iter().find(|part| part.queue == queue);
        let mut queues: Vec<_> =
            self.queues.iter().zip(&before.queues).map(|(now, was)| now.since(was)).collect();
        for queue in &mut queues {
            queue.latency_ns = of_queue(queue.queue)
                .map_or_else(LatencyReport::default, |part| LatencyReport::of(&part.histogram()));
        }
        let mut ledger = self.ledger.clone();
        let was = &before.ledger;
        ledger.r#in = (ledger.r#in + was.in_flight).saturating_sub(was.r#in);
        ledger.delivered = ledger.delivered.saturating_sub(was.delivered);
        ledger.transmitted = ledger.transmitted.saturating_sub(was.transmitted);
        ledger.consumed = ledger.consumed.saturating_sub(was.consumed);
        ledger.dropped = ledger.dropped.saturating_sub(was.dropped);
        let core = &self.borrowed_core;
        let targets = self.target_cores.iter().zip(&before.target_cores);
        Report {
            duration_s,
            wires: self.wires.iter().zip(&before.wires).map(|(now, was)| now.since(was)).collect(),
            queues,
            functions: functions(&self.functions, &before.functions),
            tx_functions: functions(&self.tx_functions, &before.tx_functions),
            drops: counts(&self.drops, &before.drops),
            drops_by_stage: counts(&self.drops_by_stage, &before.drops_by_stage),
            ledger,
            latency_ns: latencies
                .as_ref()
                .map_or_else(LatencyReport::default, |parts| LatencyReport::of(&merged(parts))),
            latencies,
            borrowed_core: CoreReport {
                busy_fraction: share(core.busy_fraction, before.borrowed_core.busy_fraction),
                asleep_fraction: share(core.asleep_fraction, before.borrowed_core.asleep_fraction),
                wakeups: core.wakeups.saturating_sub(before.borrowed_core.wakeups),
                taken_away: match (core.taken_away, before.borrowed_core.taken_away) {
                    (Some(now), Some(was)) => Some(now.since(was)),
                    (now, _) => now,
                },
                ..core.clone()
            },
            target_cores: targets
                .map(|(now, was)| TargetCoreReport {
                    asleep_fraction: share(now.asleep_fraction, was.asleep_fraction),
                    wakeups: now.wakeups.saturating_sub(was.wakeups),
                    priority_yields: now.priority_yields.saturating_sub(was.priority_yields),
                    ..now.clone()
                })
                .collect(),
            notes: Vec::new(),
            ..self.clone()
        }
    }
}

fn window(now: &[Recorded], before: &[Recorded]) -> Vec<Recorded> {
    let none = Recorded::default();
    let was = |queue| before.iter().find(|part| part.queue == queue).unwrap_or(&none);
    now.iter().map(|part| part.since(was(part.queue))).collect()
}

fn counts(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let left = now.iter().map(|(name, &count)| {
        (name.clone(), count.saturating_sub(before.get(name).copied().unwrap_or(0)))
    });
    left.filter(|&(_, count)| count != 0).collect()
}

fn functions(now: &[FunctionReport], before: &[FunctionReport]) -> Vec<FunctionReport> {
    let each = now.iter().enumerate().map(|(position, function)| {
        let is_same =
            |was: &&FunctionReport| was.name == function.name && was.packets <= function.packets;
        match before.get(position).filter(is_same) {
            Some(was) => function.since(was),
            None => function.clone(),
        }
    });
    each.collect()
}

impl WireReport {
    fn since(&self, before: &WireReport) -> WireReport {
        WireReport {
            rx_packets: self.rx_packets.saturating_sub(before.rx_packets),
            rx_bytes: self.rx_bytes.saturating_sub(before.rx_bytes),
            rx_shed: self.rx_shed.saturating_sub(before.rx_shed),
            tx_packets: self.tx_packets.saturating_sub(before.tx_packets),
            tx_bytes: self.tx_bytes.saturating_sub(before.tx_bytes),
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            stamps_ahead: self.stamps_ahead.saturating_sub(before.stamps_ahead),
            ..self.clone()
        }
    }
}

impl QueueReport {
    fn since(&self, before: &QueueReport) -> QueueReport {
        let packets = self.packets.saturating_sub(before.packets);
        let interrupts = self.interrupts.saturating_sub(before.interrupts);
        QueueReport {
            packets,
            bytes: self.bytes.saturating_sub(before.bytes),
            interrupts,
            packets_per_interrupt: (interrupts != 0).then(|| packets as f64 / interrupts as f64),
            polls: self.polls.saturating_sub(before.polls),
            empty_polls: self.empty_polls.saturating_sub(before.empty_polls),
            doorbells: self.doorbells.saturating_sub(before.doorbells),
            doorbells_coalesced: self
                .doorbells_coalesced
                .saturating_sub(before.doorbells_coalesced),
            transmitted: self.transmitted.saturating_sub(before.transmitted),
            tx_completed: self.tx_completed.saturating_sub(before.tx_completed),
            tx_completed_bytes: self.tx_completed_bytes.saturating_sub(before.tx_completed_bytes),
            tx_limited: self.tx_limited.saturating_sub(before.tx_limited),
            ring_full: self.ring_full.saturating_sub(before.ring_full),
            ..self.clone()
        }
    }
}

impl FunctionReport {
    fn since(&self, before: &FunctionReport) -> FunctionReport {
        let timed_packets = self.timed_packets.saturating_sub(before.timed_packets);
        let timed_ns = self.timed_ns.saturating_sub(before.timed_ns);
        FunctionReport {
            packets: self.packets.saturating_sub(before.packets),
            dropped: self.dropped.saturating_sub(before.dropped),
            timed_packets,
            timed_ns,
            ns_per_packet: (timed_packets != 0).then(|| timed_ns as f64 / timed_packets as f64),
            ..self.clone()
        }
    }
}

impl TakenAway {
    fn since(self, before: TakenAway) -> TakenAway {
        // The longest may have been before; then this one is unknown.
        let is_new = self.longest_ns > before.longest_ns;
        TakenAway {
            total_ns: self.total_ns.saturating_sub(before.total_ns),
            times: self.times.saturating_sub(before.times),
            longest_ns: self.longest_ns.filter(|_| is_new),
            drops: self.drops.saturating_sub(before.drops),
            threshold_ns: self.threshold_ns,
        }
    }
}
