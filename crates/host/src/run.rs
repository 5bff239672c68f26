//! A run: one thread on the borrowed core, one on each target core, a clean stop.
//!
//! To stop, the borrowed core first stops the wires and lets the functions release their packets;
//! then the targets empty their rings while it still serves their transmissions; then packets
//! waiting for wires are sent. At the end every ring is empty, every buffer has returned, and the
//! ledger balances.

use crate::absence::{Absence, RingDrops, Seen, threshold_ns};
use crate::clock::Clock;
use crate::device::{self, Ideal, Paying};
use crate::doorbell::{CardDoorbell, TargetDoorbell};
use crate::idle::IdlePolicy;
use crate::loops::{CardEnd, CardLoop, Phase, Shared, TargetLoop, Turns, run_card, run_target};
use crate::preemption::{Preemption, permit_real_time};
use crate::watchdog::{Found, Watchdog};
use picnic_confine::{Role, set_up};
use picnic_control::error::RunError;
use picnic_control::launch::Built;
use picnic_control::monitor::{CoreTimes, LatencySlot, Monitor, Notes, TargetTimes, latencies};
use picnic_control::own::Own;
use picnic_control::report::Times;
use picnic_control::{Access, Executor, Launch, Report, Running};
use picnic_core::config::Priority;
use picnic_core::doorbell::Doorbell;
use picnic_core::stop::Stop;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_engine::build::context;
use picnic_engine::target::{Target, TargetQueue};
use picnic_filter::Filters;
use picnic_machine::isolate::{self, Isolated};
use picnic_machine::threads::{BORROWED, spawn_pinned};
use picnic_machine::topology::{Placement, available, place};
use picnic_machine::undo::{JournalSelection, Machine, restore_all};
use picnic_os::config::{OsHandle, TaskProgress};
use picnic_plugin::guard;
use rustix::thread::CapabilitySet;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time of a target core for a burst whose packets the kernel handles during the write, in
/// nanoseconds: 64 packets of 8 µs.
const LONGEST_HOST_NS: u64 = 500_000;

/// How long to wait for target cores after the borrowed core was abandoned.
const LEFT: Duration = Duration::from_millis(500);

/// A running card on real cores.
struct HostRunning {
    monitor: Monitor,
    filters: Filters,
    os: Option<OsHandle>,
    /// `None` once taken: commands have a single sender.
    access: Option<Access>,
    isolated: Option<Isolated>,
    shared: Arc<Shared>,
    stop: Stop,
    card: JoinHandle<(CardEnd, Option<String>)>,
    card_doorbell: Arc<CardDoorbell>,
    targets: Vec<JoinHandle<(TargetEnd, Option<String>)>>,
    /// Closed when the borrowed core has ended, and when all target cores have.
    card_ended: Receiver<()>,
    targets_ended: Receiver<()>,
    watchdog: Mutex<(Watchdog, Vec<String>)>,
    _watched: guard::Watched,
    own: Own,
}

type TargetEnd = (Target, Option<String>);

/// The poll engine on real cores, at wall-clock speed.
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl Executor for Host {
    fn name(&self) -> &'static str {
        "poll"
    }

    fn help(&self) -> &'static str {
        "the borrowed core, in user space"
    }

    fn place(&self, launch: &Launch<'_>) -> Result<Placement, RunError> {
        Ok(place(launch.file, &available())?)
    }

    fn records(&self) -> bool {
        true
    }

    fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
        Ok(Box::new(start(self.name(), launch)?))
    }
}

fn start(engine: &'static str, launch: Launch<'_>) -> Result<HostRunning, RunError> {
    let (file, stop) = (launch.file, launch.stop().clone());
    // Undo the changes of killed runs before counting cores.
    let cleaned = restore_all(&Machine::this(), JournalSelection::Stale);
    let here = available();
    let placement = place(file, &here).map_err(RunError::from);
    let built = launch.build().map_err(RunError::from);
    let (mut placement, Built { parts, filters, os, tolerates_ns }) =
        RunError::both(placement, built)?;
    placement.warnings.extend(isolate::told(cleaned));
    let real_time = match file.host.priority {
        Priority::Auto => parts.wants_real_time(),
        Priority::Normal => false,
        Priority::RealTime => true,
    };
    if real_time {
        permit_real_time();
    }
    let host_transmits = parts.host_transmits();
    let device = device::of(file, &mut placement, &here.topology)?;
    // One doorbell per target core: its queues share the thread it wakes.
    let mut doorbells = BTreeMap::<usize, Arc<TargetDoorbell>>::new();
    for &core in &placement.target_cores {
        let doorbell = TargetDoorbell::new(host_transmits)
            .map_err(|error| RunError::system("cannot make a target core's doorbell", error))?;
        doorbells.entry(core).or_insert_with(|| Arc::new(doorbell));
    }
    let by_queue: Vec<Arc<dyn Doorbell>> = placement
        .target_cores
        .iter()
        .map(|core| doorbells[core].clone() as Arc<dyn Doorbell>)
        .collect();
    let card_doorbell = CardDoorbell::new()
        .map(Arc::new)
        .map_err(|error| RunError::system("cannot make the card's doorbell", error))?;
    let assembled = assemble(file, parts, &by_queue, card_doorbell.clone())?;
    let Assembled { card, queues, controller, view } = assembled;

    let mut by_core = BTreeMap::<usize, Vec<_>>::new();
    for (queue, &core) in queues.into_iter().zip(&placement.target_cores) {
        by_core.entry(core).or_default().push(queue);
    }
    let shared = Arc::new(Shared {
        turns: Turns::default(),
        phase: AtomicU8::new(Phase::Running as u8),
        wires_finished: AtomicBool::new(false),
        finished: AtomicBool::new(false),
        targets_running: AtomicUsize::new(by_core.len()),
    });
    let isolated = isolate::for_run(file, &mut placement)?;
    let timeline = launch.timeline();
    let clock = Clock::start();
    doorbells.values().for_each(|doorbell| doorbell.set_clock(clock));
    let threshold_ns = threshold_ns(tolerates_ns);
    // A host's kernel takes long for a burst, which counts as the core's own work.
    let of_targets_ns =
        if host_transmits { threshold_ns.max(LONGEST_HOST_NS) } else { threshold_ns };
    let no_thread = |error| RunError::system("cannot start a thread", error);
    let watchdog_ms = file.host.watchdog_ms;
    let (ends, targets_ended) = mpsc::channel::<()>();
    let mut targets = Vec::new();
    let mut target_doorbells = Vec::new();
    let mut slots = Vec::new();
    let mut target_times = Vec::new();
    let mut seen = Vec::new();
    for (core, queues) in by_core {
        let numbers = queues.iter().map(|queue: &TargetQueue| queue.index().into()).collect();
        let target = Target::new(core, queues);
        let doorbell = doorbells[&core].clone();
        target_doorbells.push(doorbell.clone());
        let latency = Arc::new(LatencySlot::new(&target, doorbell.clone()));
        slots.push(latency.clone());
        let shared = shared.clone();
        let times = Arc::new(TargetTimes { core, ..TargetTimes::default() });
        times.absences.threshold_ns.set(of_targets_ns);
        target_times.push(times.clone());
        let presence = doorbell.presence().clone();
        seen.push(Seen { presence, times: times.clone(), queues: numbers });
        let ends = ends.clone();
        let timeline = timeline.clone().map(|timeline| (placement.borrowed_core, timeline));
        let body = move || {
            let _ends = ends;
            let (mut preemption, warning) = Preemption::start(real_time, watchdog_ms);
            times.real_time.set(preemption.is_permitted().into());
            // A reader that sees the phase sees the priority.
            times.thread.set(this_thread());
            set_up(Role::Target, CapabilitySet::empty());
            let around = TargetLoop {
                clock,
                doorbell: &doorbell,
                preemption: &mut preemption,
                latency: &latency,
                times: &times,
                timeline,
                shared: &shared,
            };
            let end = match device {
                None => run_target(target, around, Ideal),
                Some(device) => run_target(target, around, Paying::at(device)),
            };
            (end, warning.or_else(|| preemption.report()))
        };
        targets.push(spawn_pinned(format!("target-{core}"), core, body).map_err(no_thread)?);
    }
    drop(ends);
    let watched = guard::watch();
    let (ends, card_ended) = mpsc::channel::<()>();
    // A thread's first wait takes the loader's lock, which a hanging constructor of an object would
    // hold when this card is to stop.
    let _ = card_ended.recv_timeout(Duration::from_millis(1));
    let idle = IdlePolicy::new(file.card.idle);
    let times = Arc::new(CoreTimes::default());
    let card_thread = {
        let (shared, doorbell) = (shared.clone(), card_doorbell.clone());
        let (times, timeline) = (times.clone(), timeline.clone());
        let borrowed_core = placement.borrowed_core;
        let body = move || {
            let _ends: Sender<()> = ends;
            times.thread.set(this_thread());
            guard::this_thread();
            set_up(Role::Borrowed, CapabilitySet::empty());
            let around = CardLoop {
                core: borrowed_core,
                clock,
                idle,
                doorbell: &doorbell,
                targets: &target_doorbells,
                times: &times,
                absence: Absence::new(&times.absences, threshold_ns),
                ring_drops: RingDrops::new(seen),
                timeline,
                shared: &shared,
            };
            run_card(card, around)
        };
        spawn_pinned(BORROWED.into(), placement.borrowed_core, body).map_err(no_thread)?
    };
    let clock = Arc::new(move || clock.now());
    let notes = Notes { clock, core: times, targets: target_times, latencies: slots };
    let monitor = Monitor { engine, times: Times::Measured, view, placement, notes };
    if let Some(timeline) = timeline {
        let tasks = os.as_ref().map(OsHandle::progress).unwrap_or_default();
        timeline.describe(&monitor, tasks.into_iter().map(|task| task.name).collect());
    }
    let access = Access {
        monitor: monitor.clone(),
        controller,
        registries: launch.registries,
        hooks: launch.hooks,
        filters: filters.clone(),
        tasks: os.as_ref().map(|os| os.factory.clone()),
        fixed: None,
        swap_rx: None,
        beside: None,
        keeps: CapabilitySet::empty(),
    };
    Ok(HostRunning {
        monitor,
        filters,
        os,
        access: Some(access),
        isolated,
        shared,
        stop,
        card: card_thread,
        card_doorbell,
        targets,
        card_ended,
        targets_ended,
        watchdog: Mutex::new((Watchdog::new(), Vec::new())),
        _watched: watched,
        own: Own::new(&launch.registries, context(file)),
    })
}

/// The system's number of the calling thread.
fn this_thread() -> u64 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into()
}

impl HostRunning {
    /// The watchdog's findings, kept until read.
    fn look(&self) -> Found {
        let thread = self.monitor.notes.core.thread.get();
        let turns = self.shared.turns.0.load(Ordering::Relaxed);
        let mut watchdog = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = watchdog.0.look(thread, turns);
        watchdog.1.extend(found.news.take());
        found
    }

    /// Waits for the end of the borrowed core; the reason to give up, if it does not end.
    fn wait_for_card(&self) -> Option<String> {
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner).0.stops();
        loop {
            match self.card_ended.recv_timeout(guard::LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
            }
            if let Some(why) = self.look().end {
                return Some(why);
            }
        }
    }
}

impl Running for HostRunning {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    fn filters(&self) -> &Filters {
        &self.filters
    }

    fn control(&mut self) -> Option<Access> {
        self.access.take()
    }

    fn is_finished(&self) -> bool {
        self.shared.finished.load(Ordering::Acquire)
    }

    fn wires_are_finished(&self) -> bool {
        self.shared.wires_finished.load(Ordering::Acquire)
    }

    fn tasks(&self) -> Vec<TaskProgress> {
        self.os.as_ref().map(OsHandle::progress).unwrap_or_default()
    }

    fn is_alive(&self) -> bool {
        self.look().fault.is_none()
            && !self.card.is_finished()
            && !self.targets.iter().any(JoinHandle::is_finished)
    }

    fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.watchdog.lock().unwrap_or_else(PoisonError::into_inner).1)
    }

    fn stop(self: Box<Self>) -> Result<Report, RunError> {
        if !self.wires_are_finished() {
            self.stop.ask();
        }
        self.shared.phase.fetch_max(Phase::Stopping as u8, Ordering::AcqRel);
        self.card_doorbell.ring();
        let mut warnings = self.monitor.placement.warnings.clone();
        let left = self.wait_for_card();
        // A thread that panicked or was abandoned woke no other.
        let release = || self.shared.phase.fetch_max(Phase::Draining as u8, Ordering::AcqRel);
        let end = match &left {
            None => {
                let end = self.card.join();
                release();
                let (end, warning) =
                    end.map_err(|_| RunError::Panicked("the borrowed core".into()))?;
                warnings.extend(warning);
                Some(end)
            }
            Some(_) => {
                guard::abandon();
                release();
                None
            }
        };
        let mut latency = Vec::new();
        let mut notes_by_queue = BTreeMap::new();
        // Without the borrowed core, target rings and hosts may stay full.
        let have_ended = left.is_none()
            || matches!(self.targets_ended.recv_timeout(LEFT), Err(RecvTimeoutError::Disconnected));
        for target in self.targets.into_iter().filter(|_| have_ended) {
            let ((target, priority), warning) =
                target.join().map_err(|_| RunError::Panicked("a target core".into()))?;
            warnings.extend(warning);
            // One report is enough: all are refused for the same reason.
            warnings.extend(priority.filter(|warning| !warnings.contains(warning)));
            latency.extend(latencies(&target));
            for queue in target.queues() {
                notes_by_queue.insert(queue.index(), queue.report());
            }
        }
        let duration_ns = match &end {
            Some(end) => end.received_for.as_nanos(),
            None => self.monitor.elapsed().as_nanos() as u64,
        };
        let mut report = self.monitor.report_over(duration_ns, &latency);
        report.failed = left;
        if let Some(mut end) = end {
            warnings.extend(end.notes);
            self.own.ask_ended(&mut report, (self.monitor.notes.clock)(), &mut end.functions);
            report.buffers_missing = end.buffers_missing;
            // Functions end here, and may fail to.
            drop(end.functions);
            let mut failures = guard::failures().into_iter();
            report.failed = failures.next();
            warnings.extend(failures);
        }
        warnings.extend(notes_by_queue.into_values().flatten());
        if let Some(isolated) = self.isolated {
            warnings.extend(isolate::told_of_end(isolated.restore()));
        }
        report.os = self.os.and_then(|os| os.report());
        if let Some(os) = &report.os {
            warnings.extend(os.notes.iter().cloned());
        }
        report.notes = warnings;
        Ok(report)
    }
}
