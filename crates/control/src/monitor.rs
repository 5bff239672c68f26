//! The figures of a running card: the report of `picnic run`, at any moment.
//!
//! Everything is read from counters, except the latencies, which belong to the target cores: a
//! `LatencySlot` asks a target core for a copy, made between two polls of its queues. Neither side
//! waits for the lock: both only try it.

use crate::latency::QueueLatency;
use crate::report::{
    ClassReport, CoreReport, FilterGroupReport, FunctionReport, GuestReport, KernelReport,
    LatencyReport, PollReport, QueueReport, Report, TargetCoreReport, Times, WireReport,
};
use picnic_core::attachment::Guest;
use picnic_core::direction::Direction;
use picnic_core::doorbell::Doorbell;
use picnic_core::stats::{Counter, WireCounters};
use picnic_core::time::Time;
use picnic_engine::target::{Target, latency_histogram};
use picnic_engine::view::View;
use picnic_machine::topology::Placement;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for a target core's latencies.
const PATIENCE: Duration = Duration::from_millis(20);
/// Interval between checks for them.
const NAP: Duration = Duration::from_micros(50);

/// Time since a card started, as its world counts it.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// The borrowed core's own times, written by its thread.
#[derive(Debug, Default)]
pub struct CoreTimes {
    /// The system's number of the thread; 0 for none.
    pub thread: Counter,
    /// Nanoseconds in turns that found work.
    pub busy_ns: Counter,
    /// Nanoseconds that the core spent in softirqs, plus one; 0 if not measured.
    softirq_ns_and_one: Counter,
    /// Nanoseconds asleep.
    pub asleep_ns: Counter,
    /// Times it woke.
    pub wakeups: Counter,
    /// Nanoseconds of the turns that received packets, counted once per packet.
    pub packets_ns: Counter,
    /// The number of these packets.
    pub packets: Counter,
    /// When others had the core.
    pub absences: Absences,
}

/// When somebody else had a core, as the core's own loop sees it. The core's thread writes all but
/// `drops` of a target core, which are the borrowed core's.
#[derive(Debug, Default)]
pub struct Absences {
    /// The shortest absence that is seen, in nanoseconds; 0 if none is looked for.
    pub threshold_ns: Counter,
    /// Nanoseconds of preemption of the core.
    pub total_ns: Counter,
    /// Times that this happened.
    pub times: Counter,
    /// Nanoseconds of the longest.
    pub longest_ns: Counter,
    /// Packets dropped for it.
    pub drops: Counter,
    /// Until when drops may be its consequence: as long again as it was, in nanoseconds.
    pub recovers_by_ns: Counter,
}

impl Absences {
    /// Somebody else had the core for `ns` nanoseconds, until `now`.
    pub fn absent(&self, now: Time, ns: u64) {
        self.total_ns.add(ns);
        self.times.add(1);
        self.longest_ns.set(self.longest_ns.get().max(ns));
        // A short absence does not end the recovery from a long one.
        let recovers_by_ns = now.as_nanos().saturating_add(ns);
        self.recovers_by_ns.set(self.recovers_by_ns.get().max(recovers_by_ns));
    }
}

impl CoreTimes {
    /// Sets the core's softirq time in nanoseconds.
    pub fn set_softirq_ns(&self, ns: u64) {
        self.softirq_ns_and_one.set(ns.saturating_add(1));
    }

    /// Nanoseconds that the core spent in softirqs; none if not measured.
    pub fn softirq_ns(&self) -> Option<u64> {
        self.softirq_ns_and_one.get().checked_sub(1)
    }

    /// Records a turn of `ns` nanoseconds that found work and received `packets` packets.
    #[inline]
    pub fn turn(&self, packets: usize, ns: u64) {
        self.busy_ns.add(ns);
        if packets != 0 {
            self.packets_ns.add(ns.saturating_mul(packets as u64));
            self.packets.add(packets as u64);
        }
    }
}

/// A target core's own times, written by its thread.
#[derive(Debug, Default)]
pub struct TargetTimes {
    /// The core.
    pub core: usize,
    /// The system's number of the thread; 0 for none.
    pub thread: Counter,
    /// Times it woke, by doorbell, descriptor or timeout.
    pub wakeups: Counter,
    /// Nanoseconds asleep.
    pub asleep_ns: Counter,
    /// Whether it preempts ordinary threads: 1 if so.
    pub real_time: Counter,
    /// Times that it had preempted for too long and continued as an ordinary thread.
    pub yields: Counter,
    /// When others had the core.
    pub absences: Absences,
}

/// The place for a target core's copy of its queues' latencies.
pub struct LatencySlot {
    wanted: AtomicBool,
    copy: Mutex<Vec<QueueLatency>>,
    doorbell: Arc<dyn Doorbell>,
}

impl LatencySlot {
    /// A slot for this target core, with its doorbell.
    pub fn new(target: &Target, doorbell: Arc<dyn Doorbell>) -> Self {
        let copy = Mutex::new(latencies(target));
        LatencySlot { wanted: AtomicBool::new(false), copy, doorbell }
    }

    /// The target core's side: reads a flag, and copies if requested.
    #[inline]
    pub fn fill_if_wanted(&self, target: &Target) {
        if self.wanted.load(Ordering::Relaxed) {
            self.fill(target);
        }
    }

    #[cold]
    fn fill(&self, target: &Target) {
        let Ok(mut copy) = self.copy.try_lock() else { return };
        for (copy, queue) in copy.iter_mut().zip(target.queues()) {
            copy.histogram.reset();
            // All have the same bounds, so there is room.
            let _ = copy.histogram.add(queue.latency());
        }
        self.wanted.store(false, Ordering::Release);
    }

    /// The current latencies, or the previous ones if the target core is delayed.
    fn read(&self, until: Instant) -> Vec<QueueLatency> {
        while self.wanted.load(Ordering::Acquire) && Instant::now() < until {
            std::thread::sleep(NAP);
        }
        loop {
            match self.copy.try_lock() {
                Ok(copy) => return copy.clone(),
                Err(std::sync::TryLockError::Poisoned(copy)) => return copy.into_inner().clone(),
                Err(std::sync::TryLockError::WouldBlock) => std::thread::sleep(NAP),
            }
        }
    }
}

/// The latencies of a target core's queues.
pub fn latencies(target: &Target) -> Vec<QueueLatency> {
    let queues = target
        .queues()
        .iter()
        .map(|queue| QueueLatency { queue: queue.index(), histogram: queue.latency().clone() });
    queues.collect()
}

/// A world's notes of figures that the card's counters lack.
#[derive(Clone)]
pub struct Notes {
    /// Time since the start.
    pub clock: Clock,
    /// Of the borrowed core.
    pub core: Arc<CoreTimes>,
    /// Of the target cores, lowest first.
    pub targets: Vec<Arc<TargetTimes>>,
    /// Slots for target cores' latencies.
    pub latencies: Vec<Arc<LatencySlot>>,
}

/// Reads the figures of a card from any thread; cheap to clone.
#[derive(Clone)]
pub struct Monitor {
    /// The engine.
    pub engine: &'static str,
    /// Whether its times are measured or modelled.
    pub times: Times,
    /// The card's counters.
    pub view: View,
    /// Its cores.
    pub placement: Placement,
    /// Notes of its world.
    pub notes: Notes,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("placement", &self.placement).finish_non_exhaustive()
    }
}

impl Monitor {
    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos((self.notes.clock)().as_nanos())
    }

    /// The current figures, as at the end of a run, except that packets are in flight and no buffer
    /// counts as missing; with all recorded latencies. The ledger is balanced if every burst was.
    /// Takes up to 20 ms for the target cores' latencies.
    pub fn report(&self) -> Report {
        for slot in &self.notes.latencies {
            slot.wanted.store(true, Ordering::Release);
            slot.doorbell.ring();
        }
        let until = Instant::now() + PATIENCE;
        let mut latency: Vec<_> =
            self.notes.latencies.iter().flat_map(|slot| slot.read(until)).collect();
        latency.sort_by_key(|part| part.queue);
        let mut report = self.report_over((self.notes.clock)().as_nanos(), &latency);
        // Counters change while they are read: packets that have not left are in flight, or arrived
        // meanwhile.
        let ledger = &mut report.ledger;
        let left = ledger.delivered + ledger.transmitted + ledger.consumed + ledger.dropped;
        ledger.in_flight = ledger.r#in.saturating_sub(left);
        report
    }

    /// The figures over `duration_ns`, with these latencies: for worlds, at a run's end.
    pub fn report_over(&self, duration_ns: u64, latency: &[QueueLatency]) -> Report {
        let (view, placement) = (&self.view, &self.placement);
        let duration_ns = duration_ns.max(1) as f64;
        let totals = view.ledger.read();
        let received = view.ledger.card.received.get();
        let poll = view.poll.as_deref().map(PollReport::read);
        let queues = view.queues.iter().zip(&placement.target_cores).enumerate();
        let queues = queues.map(|(number, (queue, &core))| {
            let recorded = latency.iter().find(|part| usize::from(part.queue) == number);
            let latency_ns = recorded.map(|part| LatencyReport::of(&part.histogram));
            let latency_ns = latency_ns.unwrap_or_default();
            let is_its = |guest: &&Arc<dyn Guest>| guest.queues().contains(&(number as u16));
            let guest = view.guests.iter().find(is_its).map(|guest| guest.name().to_owned());
            QueueReport { latency_ns, guest, ..QueueReport::read(number, core, queue) }
        });
        Report {
            about: None,
            engine: self.engine.into(),
            times: self.times,
            duration_s: duration_ns / 1e9,
            wires: view.wires.iter().map(WireReport::read).collect(),
            queues: queues.collect(),
            guests: GuestReport::all(view),
            kernel: poll.as_ref().map(|poll| KernelReport::read(received, &totals, poll)),
            poll,
            functions: function_reports(view, Direction::Rx),
            tx_functions: function_reports(view, Direction::Tx),
            classes: view.classes.iter().map(ClassReport::read).collect(),
            filter_groups: (view.groups.iter())
                .flat_map(|groups| groups.counts())
                .map(FilterGroupReport::read)
                .collect(),
            drops: totals.drops.iter().map(|(reason, count)| ((*reason).into(), *count)).collect(),
            drops_by_stage: totals.drops_by_stage.clone(),
            ledger: totals,
            buffers_missing: 0,
            failed: None,
            latency_ns: self.latency_report(latency),
            latencies: Some(latency.iter().map(QueueLatency::recorded).collect()),
            borrowed_core: CoreReport::read(placement.borrowed_core, &self.notes.core, duration_ns),
            target_cores: (self.notes.targets.iter())
                .map(|target| TargetCoreReport::read(target, duration_ns))
                .collect(),
            os: None,
            trace: None,
            notes: placement.warnings.clone(),
        }
    }
}

/// The current figures of a chain's functions.
pub fn function_reports(view: &View, direction: Direction) -> Vec<FunctionReport> {
    view.functions.of(direction).into_iter().map(FunctionReport::read).collect()
}

impl Monitor {
    fn latency_report(&self, parts: &[QueueLatency]) -> LatencyReport {
        let mut latency = latency_histogram();
        for part in parts {
            // All have the same bounds, so there is room.
            let _ = latency.add(&part.histogram);
        }
        if latency.is_empty() {
            return LatencyReport::default();
        }
        let view = &self.view;
        let mean = sampled_mean(
            view.queues
                .iter()
                .map(|queue| (&queue.target.latency_ns, &queue.target.latency_packets)),
        );
        let at_wire = self.wait_at_wires(|wire| Some(&wire.waited_ns));
        let core = &self.notes.core;
        let on_borrowed_core = sampled_mean([(&core.packets_ns, &core.packets)]);
        let before = at_wire.unwrap_or(0) + on_borrowed_core.unwrap_or(0);
        LatencyReport {
            mean,
            at_wire,
            held_at_wire: self
                .wait_at_wires(|wire| Some(&wire.held_ns).filter(|_| wire.interrupts.get() != 0)),
            on_borrowed_core,
            in_target_ring: mean.map(|mean| mean.saturating_sub(before)),
            ..LatencyReport::of(&latency)
        }
    }

    /// The mean wait from the sum `waited_ns`, over the packets of all wires, where wires without
    /// arrival times count as zero; `None` if no wire has arrival times.
    fn wait_at_wires(
        &self,
        waited_ns_of: impl Fn(&WireCounters) -> Option<&Counter>,
    ) -> Option<u64> {
        let (mut known, mut waited_ns, mut packets) = (false, 0.0, 0.0);
        for wire in &self.view.wires {
            let (counters, rx) = (&wire.counters, wire.counters.rx_packets.get() as f64);
            packets += rx;
            let sum = waited_ns_of(counters).map(|sum| (sum, &counters.waited_packets));
            if let Some(mean) = sum.and_then(|sum| sampled_mean([sum])) {
                known = true;
                waited_ns += mean as f64 * rx;
            }
        }
        known.then(|| (waited_ns / packets).round() as u64)
    }
}

/// The rounded mean of summed parts; none without samples.
fn sampled_mean<'a>(parts: impl IntoIterator<Item = (&'a Counter, &'a Counter)>) -> Option<u64> {
    let sum = |(ns, count): (u64, u64), (more_ns, more): (&Counter, &Counter)| {
        (ns + more_ns.get(), count + more.get())
    };
    let (ns, count) = parts.into_iter().fold((0, 0), sum);
    (count != 0).then(|| (ns + count / 2) / count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench;
    use crate::bench::Bell;
    use crate::latency::merged;
    use picnic_core::ledger::{DropReason, Stage};
    use picnic_engine::view::{FunctionView, PollCounters};

    /// A card with two wires and two queues that does not run, with one target core, and its bell.
    fn monitor() -> (Monitor, Target, Arc<Bell>) {
        let bench::Parts { monitor, target, bell, .. } = bench::parts(&bench::card(""));
        (monitor, target, bell)
    }

    fn recorded(queue: u16, values: &[u64]) -> QueueLatency {
        let mut histogram = latency_histogram();
        values.iter().for_each(|&value| histogram.saturating_record(value));
        QueueLatency { queue, histogram }
    }

    #[test]
    fn turns_count_once_per_received_packet() {
        let times = CoreTimes::default();
        for (packets, ns) in [(0, 5), (1, 7), (3, 10)] {
            times.turn(packets, ns);
        }
        assert_eq!((times.busy_ns.get(), times.packets_ns.get(), times.packets.get()), (22, 37, 4));
        let away = |times: &CoreTimes| CoreReport::read(0, times, 1.0).taken_away;
        assert!(away(&times).is_none());
        let now = Time::ZERO;
        let long = CoreTimes::default();
        long.turn(3, u64::MAX / 2);
        assert_eq!(long.packets_ns.get(), u64::MAX);
        times.absences.threshold_ns.set(1);
        assert_eq!(away(&times).unwrap().longest_ns, None);
        times.absences.absent(now, 9);
        times.absences.absent(now, 4);
        let away = away(&times).unwrap();
        assert_eq!((away.total_ns, away.times, away.longest_ns), (13, 2, Some(9)));
    }

    #[test]
    fn shares_are_at_most_one() {
        let (monitor, ..) = monitor();
        let notes = &monitor.notes;
        notes.core.busy_ns.set(500);
        notes.core.asleep_ns.set(3_000);
        notes.targets[0].asleep_ns.set(250);
        let queue = &monitor.view.queues[1];
        queue.target.packets.set(10);
        queue.target.interrupts.set(4);
        let report = monitor.report_over(1_000, &[]);
        assert_eq!((report.buffers_missing, report.borrowed_core.thread), (0, None));
        let core = &report.borrowed_core;
        assert_eq!((core.busy_fraction, core.asleep_fraction), (0.5, 1.0));
        let target = &report.target_cores[0];
        assert_eq!((target.asleep_fraction, &*target.priority), (0.25, "normal"));
        let per_interrupt: Vec<_> =
            report.queues.iter().map(|queue| queue.packets_per_interrupt).collect();
        assert_eq!(per_interrupt, [None, Some(2.5)]);
        assert_eq!(monitor.report_over(0, &[]).duration_s, 1e-9);
        notes.targets[0].real_time.set(1);
        assert_eq!(monitor.report_over(1_000, &[]).target_cores[0].priority, "real-time");
    }

    #[test]
    fn function_times_are_per_timed_packet() {
        let (monitor, ..) = monitor();
        let counters = [Arc::default(), Arc::default()];
        let views = counters.clone().map(|counters| FunctionView { name: "f".into(), counters });
        monitor.view.functions.replace(Direction::Rx, views.into());
        counters[0].packets.set(1000);
        counters[0].timed_ns.set(300);
        counters[0].timed_packets.set(40);
        let reports = function_reports(&monitor.view, Direction::Rx);
        let times: Vec<_> = reports.iter().map(|report| report.ns_per_packet).collect();
        assert_eq!(times, [Some(7.5), None]);
    }

    #[test]
    fn latency_copies_are_waited_for_with_a_limit() {
        let (_, target, bell) = monitor();
        let slot = LatencySlot::new(&target, bell);
        slot.wanted.store(true, Ordering::Release);
        let until = Instant::now() + 10 * NAP;
        assert_eq!(slot.read(until).len(), 2);
        assert!(Instant::now() >= until, "nobody has made a copy");
        slot.fill_if_wanted(&target);
        let hour = std::time::Duration::from_secs(3600);
        assert_eq!(slot.read(Instant::now() + hour).len(), 2);
    }

    #[test]
    fn latencies_are_ordered_by_queue() {
        let (monitor, ..) = monitor();
        monitor.notes.latencies[0].copy.lock().unwrap().reverse();
        let latencies = monitor.report().latencies.unwrap();
        assert_eq!(latencies.iter().map(|part| part.queue).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn latency_parts_add_up_to_the_mean() {
        let (monitor, ..) = monitor();
        let none = monitor.report_over(1_000, &[]).latency_ns;
        assert_eq!((none.p50, none.mean, none.in_target_ring), (None, None, None));
        let parts = [recorded(0, &[500]), recorded(1, &[700, 900])];
        let latency = |monitor: &Monitor| monitor.report_over(1_000, &parts).latency_ns;
        let queues = monitor.report_over(1_000, &parts).queues.into_iter();
        let of_parts = parts.iter().map(|part| LatencyReport::of(&part.histogram).p50);
        assert!(queues.map(|queue| queue.latency_ns.p50).eq(of_parts));
        let [first, second] = &monitor.view.queues[..] else { panic!("two queues") };
        for (queue, ns, packets) in [(first, 500, 1), (second, 1_601, 2)] {
            queue.target.latency_ns.set(ns);
            queue.target.latency_packets.set(packets);
        }
        // 2101 of 3, rounded.
        let found = latency(&monitor);
        assert_eq!((found.mean, found.at_wire, found.on_borrowed_core), (Some(700), None, None));
        assert_eq!(found.in_target_ring, Some(700));
        let core = &monitor.notes.core;
        core.packets_ns.set(5);
        core.packets.set(2);
        // One packet in four came from a wire without arrival times.
        for (wire, packets) in monitor.view.wires.iter().zip([3, 1]) {
            wire.counters.rx_packets.set(packets);
        }
        monitor.view.wires[0].counters.waited_ns.set(200);
        monitor.view.wires[0].counters.waited_packets.set(2);
        let found = latency(&monitor);
        assert_eq!((found.at_wire, found.on_borrowed_core), (Some(75), Some(3)));
        assert_eq!(found.in_target_ring, Some(700 - 75 - 3));
        // The parts of other packets may sum to more.
        core.packets_ns.set(2_000);
        assert_eq!(latency(&monitor).in_target_ring, Some(0));
        // The held part is the wait for a NIC's interrupt, if there are interrupts.
        let held = |interrupts: u64| {
            monitor.view.wires[0].counters.held_ns.set(120);
            monitor.view.wires[0].counters.interrupts.set(interrupts);
            latency(&monitor).held_at_wire
        };
        assert_eq!((held(0), held(5)), (None, Some(45)));
    }

    #[test]
    fn kernel_share_is_the_rest() {
        let (mut monitor, ..) = monitor();
        let report = monitor.report_over(1_000, &[]);
        assert!(report.kernel.is_none() && report.poll.is_none(), "one engine has all");
        let poll = Arc::new(PollCounters::default());
        monitor.view.poll = Some(poll.clone());
        let ledger = &monitor.view.ledger;
        ledger.card.received.set(100);
        ledger.queues[1].delivered.set(60);
        ledger.card.drops.add(DropReason::BacklogFull, Stage::Target, 30);
        for (counter, packets) in [
            (&poll.packets, 40),
            (&poll.taken, 38),
            (&poll.lost, 2),
            (&poll.delivered, 25),
            (&poll.dropped, 13),
        ] {
            counter.set(packets);
        }
        let report = monitor.report_over(1_000, &[]);
        let of_poll = PollReport { packets: 40, taken: 38, lost: 2, delivered: 25, dropped: 13 };
        assert_eq!(report.poll, Some(of_poll));
        let of_kernel = KernelReport { packets: 60, delivered: 35, dropped: 17 };
        assert_eq!(report.kernel, Some(of_kernel));
        // Counters change while they are read: the poll engine's may be ahead.
        for counter in [&poll.packets, &poll.delivered, &poll.dropped] {
            counter.set(101);
        }
        assert_eq!(monitor.report_over(1_000, &[]).kernel, Some(KernelReport::default()));
    }

    #[test]
    fn unfinished_packets_are_in_flight() {
        let (monitor, target, bell) = monitor();
        let ledger = &monitor.view.ledger;
        ledger.card.received.add(20);
        ledger.queues[0].delivered.add(4);
        ledger.card.transmitted.add(3);
        ledger.card.consumed.add(2);
        let report = monitor.report();
        assert_eq!((report.ledger.r#in, report.ledger.in_flight), (20, 11));
        // Counters change while they are read.
        ledger.queues[0].delivered.add(100);
        assert_eq!(monitor.report().ledger.in_flight, 0);
        // The target core was asked for its latencies, and has not answered.
        let slot = &monitor.notes.latencies[0];
        assert_eq!((slot.wanted.load(Ordering::Relaxed), bell.count()), (true, 2));
        slot.copy.lock().unwrap()[0].histogram.saturating_record(77);
        slot.fill_if_wanted(&target);
        assert!(!slot.wanted.load(Ordering::Relaxed));
        let copied = slot.read(Instant::now());
        assert_eq!((copied.len(), copied[0].histogram.len()), (2, 0), "they are the target's");
        assert!(merged(&[copied[0].recorded()]).is_empty());
    }

    #[test]
    fn every_series_has_the_card_label_first() {
        let (monitor, ..) = monitor();
        let text = crate::metrics::text("c", monitor.report());
        let series: Vec<_> = text.lines().filter(|line| line.contains('{')).collect();
        assert!(series.len() > 20, "{text}");
        for line in series {
            assert!(line.contains("{card=\"c\""), "{line}");
        }
    }
}
