//! The loops of a card's threads: the borrowed core's, and each target core's.
//!
//! A loop reads the clock once per turn. With a timeline it also records its turns, sleeps, doorbells
//! and drops; without one it pays a branch per turn.

use crate::absence::{Absence, RingDrops};
use crate::clock::Clock;
use crate::device::Driver;
use crate::doorbell::{CardDoorbell, TargetDoorbell};
use crate::idle::IdlePolicy;
use crate::preemption::Preemption;
use picnic_control::monitor::{CoreTimes, LatencySlot, TargetTimes};
use picnic_control::timeline::{CardRecorder, CardTimeline, Event, FunctionRecorder, Recorder};
use picnic_core::doorbell::Doorbell;
use picnic_core::out::TargetRing;
use picnic_core::resident::Segment;
use picnic_core::time::Time;
use picnic_engine::chain::{ChainFunction, Stopwatch};
use picnic_engine::poll::Card;
use picnic_engine::target::{Polled, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The longest sleep of a target core, in case a doorbell is missed.
const TARGET_SLEEP: Duration = Duration::from_millis(100);
/// How long a stopping card waits for wires to send: a working one has room again once the kernel's
/// thread has a core, a broken one must not delay the stop for long.
const LEAVING_NS: u64 = 1_000_000_000;

/// Interval for reading ring depths and comparing clocks, in nanoseconds.
const GAUGES_NS: u64 = 1_000_000;

/// Phase of a run.
#[repr(u8)]
pub(crate) enum Phase {
    Running = 0,
    /// The borrowed core shall stop receiving.
    Stopping = 1,
    /// It has stopped; the targets end when their rings are empty.
    Draining = 2,
}

pub(crate) struct Shared {
    pub(crate) turns: Turns,
    pub(crate) phase: AtomicU8,
    /// The wires have finished, and all their packets have been handled.
    pub(crate) wires_finished: AtomicBool,
    /// And no task has anything to run.
    pub(crate) finished: AtomicBool,
    pub(crate) targets_running: AtomicUsize,
}

/// Turns of the borrowed core; on separate cache lines, since target cores read the rest.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Turns(pub(crate) AtomicU64);

impl Shared {
    /// Called only by the borrowed core.
    #[inline(always)]
    fn turn(&self) {
        let turns = self.turns.0.load(Ordering::Relaxed);
        self.turns.0.store(turns.wrapping_add(1), Ordering::Relaxed);
    }

    pub(crate) fn phase_is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Acquire) >= phase as u8
    }
}

pub(crate) struct CardEnd {
    pub(crate) received_for: Time,
    pub(crate) buffers_missing: usize,
    pub(crate) notes: Vec<String>,
    /// They end on the thread that stops the card, which has more privileges than the borrowed
    /// core.
    pub(crate) functions: [Vec<ChainFunction>; 2],
}

/// What the borrowed core's loop is given beside the card.
pub(crate) struct CardLoop<'a> {
    pub(crate) core: usize,
    pub(crate) clock: Clock,
    pub(crate) idle: IdlePolicy,
    pub(crate) doorbell: &'a CardDoorbell,
    pub(crate) targets: &'a [Arc<TargetDoorbell>],
    pub(crate) times: &'a CoreTimes,
    pub(crate) absence: Absence<'a>,
    pub(crate) ring_drops: RingDrops,
    pub(crate) timeline: Option<CardTimeline>,
    pub(crate) shared: &'a Shared,
}

/// Runs the card until it is to stop, and ends it.
pub(crate) fn run_card(mut card: Card, around: CardLoop<'_>) -> CardEnd {
    let CardLoop { core, clock, mut idle, doorbell, targets, times, .. } = around;
    let CardLoop { mut absence, mut ring_drops, timeline, shared, .. } = around;
    let mut now = clock.now();
    let mut gauges_due = now;
    let reading = move || clock.now();
    card.time_functions_by([(); 2].map(|()| -> Box<dyn Stopwatch> {
        match &timeline {
            Some(timeline) => Box::new(FunctionRecorder::new(reading, core, timeline.recorder())),
            None => Box::new(reading),
        }
    }));
    let mut recording = timeline.map(|timeline| CardRecorder::new(core, &timeline, &card));
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
            if let Some(recording) = &mut recording {
                recording.fills(&card, now);
            }
        }
        let mut willing_ns = 0;
        if activity.is_without_packets() && card.is_finished() {
            shared.wires_finished.store(true, Ordering::Release);
            if activity.is_idle() {
                shared.finished.store(true, Ordering::Release);
            }
        }
        if activity.is_idle() {
            let sleeps = idle.sleeps;
            willing_ns = idle.pass(now, &mut card, doorbell, || clock.now());
            times.asleep_ns.set(idle.slept_ns);
            times.wakeups.set(idle.sleeps);
            let since = std::mem::replace(&mut now, clock.now());
            if let Some(recording) = &mut recording
                && idle.sleeps != sleeps
            {
                recording.recorder.span(core, since, now, Event::Slept);
            }
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
            if let Some(recording) = &mut recording {
                recording.turn(&card, then, now, &activity);
            }
        }
        ring_drops.look(&card, then, || clock.now());
        let away_ns = absence.turn(now, now.since(then), willing_ns, || {
            let doors = card.doors();
            // A segment does not touch the wires.
            let is_behind = activity.is_behind
                || activity.segment.is_some()
                || doors.targets.iter().any(TargetRing::is_half_full);
            let drops = doors.ledger.card.drops.total();
            (is_behind, drops.saturating_sub(ring_drops.put_down()))
        });
        if let Some(ns) = away_ns
            && let Some(recording) = &mut recording
        {
            recording.recorder.preempted(core, now, ns);
        }
    }
    // The core may have been preempted since its last turn.
    let received_for = clock.now();
    card.stop_receiving(received_for);
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

/// What a target core's loop is given beside its queues.
pub(crate) struct TargetLoop<'a> {
    pub(crate) clock: Clock,
    pub(crate) doorbell: &'a TargetDoorbell,
    pub(crate) preemption: &'a mut Preemption,
    pub(crate) latency: &'a LatencySlot,
    pub(crate) times: &'a TargetTimes,
    /// The borrowed core, and the card's timeline.
    pub(crate) timeline: Option<(usize, CardTimeline)>,
    pub(crate) shared: &'a Shared,
}

/// A target core's part of a timeline.
struct TargetRecording {
    borrowed: usize,
    core: usize,
    recorder: Recorder,
    /// The last look, if it did something, until the time of its end is read.
    look: Option<(Time, Polled)>,
    slept: bool,
}

impl TargetRecording {
    fn new(core: usize, borrowed: usize, timeline: &CardTimeline) -> Self {
        TargetRecording { borrowed, core, recorder: timeline.recorder(), look: None, slept: false }
    }

    /// The next look begins; `rung` is when the doorbell woke the core.
    #[cold]
    fn looks(&mut self, now: Time, rung: Option<Time>) {
        if let Some((since, polled)) = self.look.take() {
            let (packets, transmitted) = (polled.packets as u16, polled.transmitted as u16);
            self.recorder.span(self.core, since, now, Event::Target { packets, transmitted });
        }
        if std::mem::take(&mut self.slept)
            && let Some(rung) = rung
        {
            let event = Event::Doorbell { to: self.core as u16 };
            self.recorder.span(self.borrowed, rung, now, event);
        }
    }
}

/// Runs a target core until its rings are empty and the card drains.
pub(crate) fn run_target(
    mut target: Target,
    around: TargetLoop<'_>,
    mut driver: impl Driver,
) -> Target {
    let TargetLoop { clock, doorbell, preemption, latency, times, timeline, shared } = around;
    let mut recording =
        timeline.map(|(borrowed, timeline)| TargetRecording::new(target.core, borrowed, &timeline));
    let _leaving = Leaving(&shared.targets_running);
    let presence = doorbell.presence();
    presence.looks(clock.now());
    let mut willing_ns = 0;
    loop {
        let now = clock.now();
        let absent_ns = presence.missed_ns(now).saturating_sub(std::mem::take(&mut willing_ns));
        if let Some(recording) = &mut recording {
            recording.looks(now, presence.rung());
        }
        if absent_ns >= times.absences.threshold_ns.get() {
            times.absences.absent(now, absent_ns);
            if let Some(recording) = &mut recording {
                recording.recorder.preempted(target.core, now, absent_ns);
            }
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
        if let Some(recording) = &mut recording
            && polled.packets + polled.transmitted != 0
        {
            recording.look = Some((now, polled));
        }
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
            let woke = clock.now();
            times.asleep_ns.add(woke.since(now));
            if let Some(recording) = &mut recording {
                recording.recorder.span(target.core, now, woke, Event::Slept);
                recording.slept = true;
            }
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
