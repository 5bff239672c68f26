//! The world: one thread that runs all cores of a card, in virtual time.
//!
//! An actor (the card, or the target routine of one core) has a turn, which costs its core time; a
//! doorbell costs its sender time and reaches the other core later; an actor without work sleeps.
//! Turns on one core never overlap, so queues on the same core share its time. The work of a card's
//! turn becomes visible to others when its cost has passed; a sleeping card's deadlines are met to
//! the nanosecond.

mod events;
mod figures;
mod modelled;
mod processes;
mod turns;

use crate::bells::{Rings, VirtualDoorbell};
use crate::cluster::cables_of;
use crate::cost::CostModel;
use crate::digest::{Digest, Digesting};
use crate::event::{Actor, Event, EventQueue};
use crate::executors::{ENGINE, place};
use crate::host::Hosts;
use crate::machine::{Accounts, Profile};
use crate::peers::Ends;
use crate::trace::{Trace, TraceEvent};
use hdrhistogram::Histogram;
use picnic_control::error::RunError;
use picnic_control::launch::Built;
use picnic_control::monitor::{CoreTimes, Monitor, Notes, TargetTimes, latencies};
use picnic_control::own::Own;
use picnic_control::report::Times;
use picnic_control::timeline::CardRecorder;
use picnic_control::{Access, Launch, Report, Running};
use picnic_core::config::{CardFile, Idle};
use picnic_core::device::{Device, DeviceSection};
use picnic_core::doorbell::Doorbell;
use picnic_core::error::ConfigError;
use picnic_core::ledger::LedgerTotals;
use picnic_core::random::Random;
use picnic_core::stop::Stop;
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_engine::build::context;
use picnic_engine::poll::Card;
use picnic_engine::swap::{Answer, Command, Controller};
use picnic_engine::target::Target;
use picnic_engine::view::View;
use picnic_filter::Filters;
use picnic_os::config::OsHandle;
use picnic_ports::cable::Cables;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use figures::HostFigures;
use modelled::Modelled;
pub use processes::HostProcess;
use processes::Processes;

/// The random streams of a seed.
const TIES: u64 = 0;
const LATENCIES: u64 = 1;

/// Virtual time between two looks for a request to stop, in nanoseconds.
const STOP_LOOK_NS: u64 = 1_000_000;

/// Refuses a card that needs more cores than a machine has.
fn fits(
    profile: &Profile,
    file: &CardFile,
    modelled: &Modelled,
    borrowed_core: usize,
) -> Result<(), ConfigError> {
    let (cores, name) = (profile.cores(), &profile.name);
    let wanted = modelled.cores().max(borrowed_core + 1);
    let message = if borrowed_core < modelled.cores() {
        format!("found {borrowed_core}, which the host uses, allowed: from {}", modelled.cores())
    } else if wanted > cores {
        format!("found {borrowed_core}, allowed with profile {name}: 0 to {}", cores - 1)
    } else {
        return Ok(());
    };
    Err(file.locate(ConfigError::new("card.borrowed_core", message)))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// A turn is due.
    #[default]
    Awake,
    /// Spins until something happens elsewhere: nothing else can give it work.
    Parked,
    /// Waits for a doorbell, or for the turn at its deadline.
    Asleep,
}

/// The state of an actor.
#[derive(Debug, Default)]
struct ActorState {
    core: usize,
    state: State,
    /// When it fell asleep.
    slept_from: Time,
    /// The same, or when its sleep was last counted.
    asleep_since: Time,
    /// Turns of an earlier epoch are void.
    epoch: u64,
    /// A doorbell arrived while it was awake: the next sleep ends at once.
    rung: bool,
    /// A doorbell arrived since its last turn: a pending interrupt may be taken.
    arrived: bool,
}

impl ActorState {
    fn on(core: usize) -> Self {
        ActorState { core, ..ActorState::default() }
    }
}

#[derive(Debug, Default)]
struct Core {
    free_at: Time,
    busy_ns: u64,
}

/// A card with its cores in virtual time.
pub struct Simulation {
    now: Time,
    events: EventQueue,
    latencies: Random,
    stop: Stop,
    costs: CostModel,
    /// The device whose registers target cores access; none if it is ideal.
    device: Option<Device>,
    /// Packets that the hosts of each target had sent at its last turn.
    sent: Vec<u64>,
    _ends: Arc<Ends>,
    cores: BTreeMap<usize, Core>,
    card: Card,
    card_actor: ActorState,
    idle: Idle,
    idle_since: Option<Time>,
    /// When the card's turn began.
    turn_began: Time,
    /// When the work of the card's turn becomes visible to others; none between turns.
    publishes_at: Option<Time>,
    targets: Vec<Target>,
    target_actors: Vec<ActorState>,
    /// The machine around the card; none if target cores have [`CostModel`]'s costs.
    modelled: Option<Modelled>,
    rings: Arc<Rings>,
    rung: Vec<Actor>,
    controller: Controller,
    filters: Filters,
    os: Option<OsHandle>,
    commands: BTreeMap<u64, Command>,
    command_count: u64,
    answers: Vec<(Time, Answer)>,
    monitor: Monitor,
    own: Own,
    processes: Processes,
    /// The time for the monitor.
    clock: Arc<AtomicU64>,
    /// When the card was told to stop.
    received_for: Time,
    trace: Trace,
    /// Its part of a timeline, if it is recorded.
    recorder: Option<CardRecorder>,
    digest: Digest,
    /// Where events are also written, and why no longer.
    told: Option<Box<dyn Write + Send>>,
    not_told: Option<io::Error>,
    /// The card sleeps with its doorbell enabled.
    armed: bool,
    /// The cables of this card; other cards' are not in its world.
    _cables: Arc<Cables>,
    /// The card must stop receiving at its next turn.
    stopping: bool,
    /// It has stopped; the host has ended, and its work takes no more time.
    draining: bool,
}

impl Simulation {
    /// A card with its cores at time zero; `seed` orders events and determines latencies. The card
    /// file's own seed is used for its wires and functions, as in any world.
    ///
    /// # Errors
    /// Errors in the card file, or no memory for its buffers.
    pub fn new(launch: Launch<'_>, seed: u64, costs: CostModel) -> Result<Self, RunError> {
        Self::build(launch, seed, costs, None)
    }

    /// A card in a machine, at its profile's costs; see [`crate::machine`].
    ///
    /// # Errors
    /// As for [`Simulation::new`], or more cores are needed than the machine has.
    pub fn on_machine(launch: Launch<'_>, seed: u64, profile: &Profile) -> Result<Self, RunError> {
        Self::build(launch, seed, CostModel::of(profile), Some(profile))
    }

    fn build(
        launch: Launch<'_>,
        seed: u64,
        costs: CostModel,
        profile: Option<&Profile>,
    ) -> Result<Self, RunError> {
        let (file, stop) = (launch.file, launch.stop().clone());
        let placement = place(file);
        let (borrowed_core, queue_cores) =
            (placement.borrowed_core, placement.target_cores.clone());
        let mut target_cores = queue_cores.clone();
        target_cores.sort_unstable();
        target_cores.dedup();

        let rings = Arc::new(Rings::default());
        let doorbell = |wakes| Arc::new(VirtualDoorbell { rings: rings.clone(), wakes });
        let place = |core| target_cores.partition_point(|&other| other < core);
        let doorbells: Vec<Arc<dyn Doorbell>> = queue_cores
            .iter()
            .map(|&core| doorbell(Actor::Target(place(core))) as Arc<dyn Doorbell>)
            .collect();
        let hosts = file.shared.get_or_make(Hosts::default);
        let cables = cables_of(file);
        let ends = file.shared.get_or_make(Ends::default);
        let device = file.section::<DeviceSection>().device();
        ends.set_bus_ns(device.map_or(0, |device| device.bus_ns));
        let own = Own::new(&launch.registries, context(file));
        let digest = Digest::default();
        let timeline = launch.timeline();
        let Built { parts, filters, os, .. } =
            launch.hook(Digesting(digest.clone())).path_costs(costs.of_path()).build()?;
        let Assembled { card, queues, controller, view } =
            assemble(file, parts, &doorbells, doorbell(Actor::Card))?;

        let mut by_core: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for (queue, core) in queues.into_iter().zip(queue_cores) {
            by_core.entry(core).or_default().push(queue);
        }
        let mut cores: BTreeMap<usize, Core> =
            by_core.keys().map(|&core| (core, Core::default())).collect();
        cores.insert(borrowed_core, Core::default());
        let mut targets: Vec<_> =
            by_core.into_iter().map(|(core, queues)| Target::new(core, queues)).collect();
        let modelled = profile
            .map(|profile| {
                let modelled = Modelled::new(profile, file, &mut targets, hosts.clone());
                fits(profile, file, &modelled, borrowed_core)?;
                Ok::<_, RunError>(modelled)
            })
            .transpose()?;
        let clock = Arc::new(AtomicU64::new(0));
        let times = |core| Arc::new(TargetTimes { core, ..TargetTimes::default() });
        let notes = Notes {
            clock: {
                let clock = clock.clone();
                Arc::new(move || Time::from_nanos(clock.load(Ordering::Relaxed)))
            },
            core: Arc::new(CoreTimes::default()),
            targets: targets.iter().map(|target| times(target.core)).collect(),
            latencies: Vec::new(),
        };
        let monitor = Monitor { engine: ENGINE, times: Times::Modelled, view, placement, notes };
        let recorder = timeline.map(|timeline| {
            let tasks = os.as_ref().map(OsHandle::progress).unwrap_or_default();
            timeline.describe(&monitor, tasks.into_iter().map(|task| task.name).collect());
            CardRecorder::new(borrowed_core, &timeline, &card)
        });
        let target_actors = targets.iter().map(|target| ActorState::on(target.core)).collect();
        let mut simulation = Simulation {
            now: Time::ZERO,
            events: EventQueue::new(Random::new(seed, TIES)),
            latencies: Random::new(seed, LATENCIES),
            stop,
            costs,
            device,
            sent: vec![0; targets.len()],
            _ends: ends,
            cores,
            card,
            card_actor: ActorState::on(borrowed_core),
            idle: file.card.idle,
            idle_since: None,
            turn_began: Time::ZERO,
            publishes_at: None,
            targets,
            target_actors,
            modelled,
            rings,
            rung: Vec::new(),
            controller,
            filters,
            os,
            commands: BTreeMap::new(),
            command_count: 0,
            answers: Vec::new(),
            monitor,
            own,
            processes: Processes::default(),
            clock,
            received_for: Time::ZERO,
            trace: Trace::default(),
            recorder,
            digest,
            told: None,
            not_told: None,
            armed: false,
            _cables: cables,
            stopping: false,
            draining: false,
        };
        simulation.schedule(Actor::Card, Time::ZERO);
        if simulation.modelled.is_some() {
            simulation.start_modelled();
        } else {
            for place in 0..simulation.targets.len() {
                simulation.schedule(Actor::Target(place), Time::ZERO);
            }
        }
        Ok(simulation)
    }

    /// The virtual time reached.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The ledger at this moment. No turn is in progress, so it must balance exactly.
    pub fn ledger(&self) -> LedgerTotals {
        self.monitor.view.ledger.read()
    }

    /// The card's counters.
    pub fn view(&self) -> &View {
        &self.monitor.view
    }

    /// From wire to target routine of a queue, in nanoseconds, one packet in 16; modelled.
    pub fn latency(&self, queue: u16) -> Option<&Histogram<u64>> {
        let mut queues = self.targets.iter().flat_map(Target::queues);
        queues.find(|found| found.index() == queue).map(|queue| queue.latency())
    }

    /// Nanoseconds that a core has worked, including turns without work; modelled.
    pub fn busy_ns(&self, core: usize) -> u64 {
        self.cores.get(&core).map_or(0, |core| core.busy_ns)
    }

    /// The use of a host core's time so far; none without a machine, or for another core.
    pub fn accounts(&mut self, core: usize) -> Option<Accounts> {
        let now = self.now;
        self.modelled.as_mut()?.accounts(core, now)
    }

    /// Counts of the machine's host so far; none without a machine.
    pub fn host_figures(&self) -> Option<HostFigures> {
        self.modelled.as_ref().map(Modelled::figures)
    }

    /// The trace so far.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Sends `command` to the card at `time`, or now if that has passed.
    pub fn at(&mut self, time: Time, command: Command) {
        self.command_count += 1;
        self.commands.insert(self.command_count, command);
        self.events.push(time.max(self.now), Event::Command(self.command_count));
    }

    /// Takes the card's answers to commands, with their times.
    pub fn answers(&mut self) -> Vec<(Time, Answer)> {
        std::mem::take(&mut self.answers)
    }

    /// When the next event is due.
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.events.next_time()
    }

    /// Executes the next event, which may have been superseded.
    pub(crate) fn step_once(&mut self) {
        if let Some((time, event)) = self.events.pop() {
            self.happen(time, event);
        }
    }

    /// Frames reach the wires at `time`: a card that sleeps or spins takes them.
    pub(crate) fn wires_have_frames(&mut self, time: Time) {
        self.events.push(time.max(self.now), Event::Frames);
    }

    /// Executes the next event. False if only commands can follow.
    pub fn step(&mut self) -> bool {
        while let Some((time, event)) = self.events.pop() {
            if self.happen(time, event) {
                return true;
            }
        }
        false
    }

    /// Runs until `time`, or until nothing more can happen before it.
    pub fn run_until(&mut self, time: Time) {
        while self.events.next_time().is_some_and(|next| next <= time)
            && let Some((at, event)) = self.events.pop()
        {
            self.happen(at, event);
        }
        self.set_now(self.now.max(time));
        self.count_sleep();
    }

    /// Runs until nothing more can happen: every wire finished, every core asleep. Never returns
    /// for a wire without an end; use [`Simulation::run_until`] for those.
    pub fn run_to_end(&mut self) {
        while self.step() {}
    }

    /// Ends the card as the host world does: wires give no more packets, targets empty their rings,
    /// transmissions are served until then, and packets that wires do not accept are dropped.
    /// Unsent commands are dropped. Returns the report and the trace.
    pub fn finish(mut self) -> (Report, Trace) {
        self.commands.clear();
        self.stopping = true;
        self.schedule(Actor::Card, self.now);
        while !(self.draining && self.targets_are_done()) && self.step() {}
        self.targets.iter_mut().for_each(Target::stop_transmitting);
        let buffers_missing = self.card.finish(self.now);
        self.record(Actor::Card, TraceEvent::Ended { missing: buffers_missing });
        let latencies: Vec<_> = self.targets.iter().flat_map(latencies).collect();
        let mut report = self.monitor.report_over(self.received_for.as_nanos(), &latencies);
        self.own.ask_ended(&mut report, self.now, &mut self.card.take_functions());
        report.buffers_missing = buffers_missing;
        report.os = self.os.as_ref().and_then(OsHandle::report);
        if let Some(os) = &report.os {
            report.notes.extend(os.notes.iter().cloned());
        }
        report.notes.extend(self.card.wires().iter().flat_map(|wire| wire.notes.clone()));
        report
            .notes
            .extend(self.targets.iter().flat_map(Target::queues).flat_map(|queue| queue.report()));
        report.notes.extend(self.modelled_notes());
        report.notes.extend(self.end_telling());
        (report, self.trace)
    }

    /// Writes the remaining events; returns an error, if any.
    fn end_telling(&mut self) -> Option<String> {
        if let Some(mut told) = self.told.take() {
            let last =
                writeln!(told, "{} events, {:#018x}", self.trace.recorded(), self.trace.hash());
            self.not_told = last.and_then(|()| told.flush()).err();
        }
        let error = self.not_told.take()?;
        Some(format!("the events could not be written: {error}"))
    }

    fn targets_are_done(&mut self) -> bool {
        // Each is asked, since one may have to notify the others.
        let is_done = |target: &mut Target| target.is_empty() & target.is_resting();
        self.targets.iter_mut().fold(true, |all, target| is_done(target) & all)
    }
}

impl Running for Simulation {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    fn filters(&self) -> &Filters {
        &self.filters
    }

    /// None: outside requests would arrive at different times in each run. Changes are made by
    /// [`Simulation::at`].
    fn control(&mut self) -> Option<Access> {
        None
    }

    fn is_finished(&self) -> bool {
        self.card.is_finished() && self.ledger().in_flight == 0
    }

    fn tell_events(&mut self, sink: Box<dyn Write + Send>) {
        self.told = Some(sink);
    }

    /// Ends early if a stop is requested: a virtual second may take minutes.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time.as_nanos() as u64;
        while self.now < until && !self.stop.is_asked() {
            self.run_until(until.min(self.now + STOP_LOOK_NS));
        }
    }

    fn stop(self: Box<Self>) -> Result<Report, RunError> {
        if !self.is_finished() {
            self.stop.ask();
        }
        Ok(self.finish().0)
    }
}
