//! A run: one thread on the borrowed core, one on each target core, a clean stop.
//!
//! To stop, the borrowed core first stops the wires and lets the functions release their packets;
//! then the targets empty their rings while it still serves their transmissions; then packets
//! waiting for wires are sent. At the end every ring is empty, every buffer has returned, and the
//! ledger balances.

use crate::absence::{Absence, RingDrops, Seen, threshold_ns};
use crate::clock::Clock;
use crate::device::{self, Driver, Ideal, Paying};
use crate::doorbell::{CardDoorbell, TargetDoorbell};
use crate::idle::IdlePolicy;
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
use picnic_core::resident::Segment;
use picnic_core::stop::Stop;
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_engine::build::context;
use picnic_engine::chain::ChainFunction;
use picnic_engine::poll::Card;
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
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest sleep of a target core, in case a doorbell is missed.
const TARGET_SLEEP: Duration = Duration::from_millis(100);
/// How long a stopping card waits for wires to send: a working one has room again in a few
/// milliseconds, a broken one must not delay the stop.
const LEAVING_NS: u64 = 200_000_000;

/// Longest time of a target core for a burst whose packets the kernel handles during the write, in
/// nanoseconds: 64 packets of 8 µs.
const LONGEST_HOST_NS: u64 = 500_000;

/// How long to wait for target cores after the borrowed core was abandoned.
const LEFT: Duration = Duration::from_millis(500);

/// Interval for reading ring depths and comparing clocks, in nanoseconds.
const GAUGES_NS: u64 = 1_000_000;

/// Phase of a run.
#[repr(u8)]
enum Phase {
    Running = 0,
    /// The borrowed core shall stop receiving.
    Stopping = 1,
    /// It has stopped; the targets end when their rings are empty.
    Draining = 2,
}

struct Shared {
    turns: Turns,
    phase: AtomicU8,
    /// The wires have finished, and all their packets have been handled.
    wires_finished: AtomicBool,
    /// And no task has anything to run.
    finished: AtomicBool,
    targets_running: AtomicUsize,
}

/// Turns of the borrowed core; on separate cache lines, since target cores read the rest.
#[derive(Default)]
#[repr(align(128))]
struct Turns(AtomicU64);

impl Shared {
    /// Called only by the borrowed core.
    #[inline(always)]
    fn turn(&self) {
        let turns = self.turns.0.load(Ordering::Relaxed);
        self.turns.0.store(turns.wrapping_add(1), Ordering::Relaxed);
    }

    fn phase_is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Acquire) >= phase as u8
    }
}

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

struct CardEnd {
    received_for: Time,
    buffers_missing: usize,
    notes: Vec<String>,
    /// They end on the thread that stops the card, which has more privileges than the borrowed
    /// core.
    functions: [Vec<ChainFunction>; 2],
}

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
        let body = move || {
            let _ends = ends;
            let (mut preemption, warning) = Preemption::start(real_time, watchdog_ms);
            times.real_time.set(preemption.is_permitted().into());
            // A reader that sees the phase sees the priority.
            times.thread.set(this_thread());
            set_up(Role::Target, CapabilitySet::empty());
            let own = (&mut preemption, &*latency, &*times);
            let end = match device {
                None => run_target(target, clock, &doorbell, own, &shared, Ideal),
                Some(device) => {
                    run_target(target, clock, &doorbell, own, &shared, Paying::at(device))
                }
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
        let times = times.clone();
        let body = move || {
            let _ends: Sender<()> = ends;
            times.thread.set(this_thread());
            guard::this_thread();
            set_up(Role::Borrowed, CapabilitySet::empty());
            let watched = Watched {
                absence: Absence::new(&times.absences, threshold_ns),
                ring_drops: RingDrops::new(seen),
            };
            run_card(card, clock, idle, &doorbell, &target_doorbells, &times, watched, &shared)
        };
        spawn_pinned(BORROWED.into(), placement.borrowed_core, body).map_err(no_thread)?
    };
    let clock = Arc::new(move || clock.now());
    let notes = Notes { clock, core: times, targets: target_times, latencies: slots };
    let monitor = Monitor { engine, times: Times::Measured, view, placement, notes };
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

/// Checks while the borrowed core works.
struct Watched<'a> {
    absence: Absence<'a>,
    ring_drops: RingDrops,
}

#[expect(clippy::too_many_arguments, reason = "a loop, made of what its thread was given")]
fn run_card(
    mut card: Card,
    clock: Clock,
    mut idle: IdlePolicy,
    doorbell: &CardDoorbell,
    targets: &[Arc<TargetDoorbell>],
    times: &CoreTimes,
    watched: Watched<'_>,
    shared: &Shared,
) -> CardEnd {
    let mut now = clock.now();
    let mut gauges_due = now;
    let Watched { mut absence, mut ring_drops } = watched;
    card.time_functions_by(Arc::new(move || clock.now()));
    card.set_clocks(clock.others());
    while !shared.phase_is(Phase::Stopping) {
        let then = now;
        shared.turn();
        let activity = card.poll(now);
        // Due after each sleep: the packet that ended one does not wait for this.
        if now >= gauges_due {
            card.doors().note_depths();
            card.set_clocks(clock.others());
            gauges_due = now + GAUGES_NS;
        }
        let mut willing_ns = 0;
        if activity.is_without_packets() && card.is_finished() {
            shared.wires_finished.store(true, Ordering::Release);
            if activity.is_idle() {
                shared.finished.store(true, Ordering::Release);
            }
        }
        if activity.is_idle() {
            willing_ns = idle.pass(now, &mut card, doorbell, || clock.now());
            times.asleep_ns.set(idle.slept_ns);
            times.wakeups.set(idle.sleeps);
            now = clock.now();
        } else {
            idle.busy();
            now = clock.now();
            if let Some(Segment { work_ns, model_ns, .. }) = activity.segment {
                // A segment takes exactly its bound, which is its model.
                willing_ns = work_ns.max(model_ns);
                // Let the segment's time pass; unnecessary when stopping.
                while now.since(then) < work_ns && !shared.phase_is(Phase::Stopping) {
                    std::hint::spin_loop();
                    now = clock.now();
                }
            }
            times.turn(activity.received, now.since(then));
        }
        ring_drops.look(&card, then, || clock.now());
        // A segment does not touch the wires.
        let is_behind = activity.is_behind || activity.segment.is_some();
        absence.turn(now, now.since(then), willing_ns, is_behind, || {
            card.doors().ledger.card.drops.total().saturating_sub(ring_drops.put_down())
        });
    }
    let received_for = now;
    card.stop_receiving(now);
    shared.phase.store(Phase::Draining as u8, Ordering::Release);
    targets.iter().for_each(|target| target.ring());
    while shared.targets_running.load(Ordering::Acquire) != 0 {
        shared.turn();
        if card.poll(clock.now()).is_idle() {
            std::thread::yield_now();
        }
    }
    let until = clock.now() + LEAVING_NS;
    while card.is_transmitting() {
        let now = clock.now();
        shared.turn();
        let is_idle = card.poll(now).is_idle();
        if now >= until {
            break;
        }
        if is_idle {
            std::thread::yield_now();
        }
    }
    let buffers_missing = card.finish(clock.now());
    let notes = card.wires().iter().flat_map(|wire| wire.notes.clone()).collect();
    CardEnd { received_for, buffers_missing, notes, functions: card.take_functions() }
}

fn run_target(
    mut target: Target,
    clock: Clock,
    doorbell: &TargetDoorbell,
    (preemption, latency, times): (&mut Preemption, &LatencySlot, &TargetTimes),
    shared: &Shared,
    mut driver: impl Driver,
) -> Target {
    let _leaving = Leaving(&shared.targets_running);
    let presence = doorbell.presence();
    presence.looks(clock.now());
    let mut willing_ns = 0;
    loop {
        let now = clock.now();
        let absent_ns = presence.missed_ns(now).saturating_sub(std::mem::take(&mut willing_ns));
        if absent_ns >= times.absences.threshold_ns.get() {
            times.absences.absent(now, absent_ns);
        }
        presence.looks(now);
        let draining = shared.phase_is(Phase::Draining);
        if draining {
            // The borrowed core hands out no more buffers; unused ones return.
            target.stop_transmitting();
        }
        if preemption.works(now, || target.is_unmasked()) {
            times.yields.add(1);
        }
        let polled = target.poll(now);
        latency.fill_if_wanted(&target);
        // The host's work; while draining there is no host left to do it for.
        let work_ns = polled.work_ns + driver.waits_ns(&target, &polled);
        if work_ns != 0 && !draining {
            willing_ns = work_ns;
            let done = clock.now() + work_ns;
            while clock.now() < done && !shared.phase_is(Phase::Draining) {
                std::hint::spin_loop();
            }
        }
        if polled.packets + polled.transmitted + polled.moved != 0 {
            // There may be more to do, to send, or to be preempted by.
        } else if draining && target.is_empty() {
            break;
        } else if target.is_resting() && target.next_deadline().is_none_or(|due| due > now) {
            preemption.rests();
            let left_ns = target.next_deadline().map_or(u64::MAX, |due| due.since(now));
            let longest = TARGET_SLEEP.min(Duration::from_nanos(left_ns));
            match target.tx_pause_ns() {
                Some(ns) => doorbell.wait_rung(longest.min(Duration::from_nanos(ns))),
                None => doorbell.wait(&target, longest),
            }
            times.wakeups.add(1);
            times.asleep_ns.add(clock.now().since(now));
        } else {
            std::hint::spin_loop();
        }
    }
    target
}

/// Signs a target core off, however its thread ends; the borrowed core waits for that.
struct Leaving<'a>(&'a AtomicUsize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
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
