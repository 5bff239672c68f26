//! The target cores of a modelled machine: interrupts, softirqs, processes, and their costs.
//!
//! The engine's target routine and the host's code run at the start of a piece of work and return
//! its cost; frames, wake-ups and further work follow when the piece has ended. With
//! `interrupt.gate = "none"` the driver's share of a packet runs in the interrupt, as in PICNIC's
//! `target_intr()`; otherwise the interrupt masks the queue and leaves the rest to the routine.
//!
//! Guarantees: an interrupt is visible only after it has arrived; a core's accounts add up to the
//! time that has passed.
//!
//! Where the routine is a thread, an interrupt wakes it, and so does a core that hands it packets
//! in software. With `interrupts = "first-core"` the NIC interrupts one core for all queues.

mod work;

use super::Simulation;
use crate::event::{Actor, Event};
use crate::host::Hosts;
use crate::machine::{
    Accounts, Component, Core, Cost, Costs, Interrupts, Level, Lines, Lock, Parts, Pipelines,
    Profile, Routine, Scheduler, Woken,
};
use crate::trace::TraceEvent;
use picnic_control::timeline::{CardRecorder, Event as Timed};
use picnic_core::config::{CardFile, System};
use picnic_core::device::{Device, DeviceSection, Work};
use picnic_core::time::Time;
use picnic_engine::target::{Polled, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use work::{Pending, Piece, What};

/// Packets that the target routine handles before it checks for other work.
const PACKETS_AT_A_TIME: usize = 4;
/// Delay before a queue is polled again whose host waits for buffers or room, in nanoseconds.
const ROOM_AGAIN_NS: u64 = 5_000;

/// The machine of the card's host.
pub(crate) struct Modelled {
    cores: Vec<Core>,
    pending: Vec<Pending>,
    scheduler: Scheduler,
    costs: Costs,
    pub(super) pipelines: Pipelines,
    device: Option<Device>,
    routine: Routine,
    nic_interrupts: Interrupts,
    system: System,
    hosts: Arc<Hosts>,
    /// The target at each core.
    place_of: Vec<Option<usize>>,
    /// The process number of each target's kernel thread; the host's processes follow.
    first_process: usize,
    /// The core of the first queue, which hands packets over if `host.system` requires it.
    first_core: usize,
    /// The lock of each target's queue of packets handed over by other cores.
    locks: Vec<Lock>,
    /// The next lock: flows are assumed to be spread evenly.
    next_lock: usize,
    pieces: BTreeMap<u64, Piece>,
    /// When the hosts at each place next send by time alone.
    due: Vec<Time>,
    next_token: u64,
    /// Context switches, wake-ups from other cores, and interrupts, by core.
    pub(crate) switches: u64,
    pub(crate) remote_wakes: u64,
    pub(crate) interrupts: u64,
}

impl Modelled {
    pub(super) fn new(
        profile: &Profile,
        file: &CardFile,
        targets: &mut [Target],
        hosts: Arc<Hosts>,
    ) -> Modelled {
        let device = file.section::<DeviceSection>().device();
        let (asked, processes, stay_on) = match hosts.lock().as_ref() {
            Some(host) => {
                let config = &host.config;
                let stay_on = config.process_core.map(usize::from);
                (usize::from(config.cores), usize::from(config.processes), stay_on)
            }
            None => (0, 0, None),
        };
        let of_targets = targets.iter().map(|target| target.core + 1).max().unwrap_or(0);
        let count = of_targets.max(asked).max(stay_on.map_or(0, |core| core + 1));
        if let Some(host) = hosts.lock().as_mut() {
            host.on(profile, device, count);
        }
        let slice_ns = profile.costs.ns(Cost::Slice).max(1);
        let mut scheduler = Scheduler::new(count, profile.placement, slice_ns, profile.steals);
        let mut place_of = vec![None; count];
        for (place, target) in targets.iter_mut().enumerate() {
            target.limit_bursts(PACKETS_AT_A_TIME);
            place_of[target.core] = Some(place);
            scheduler.add(target.core, true);
        }
        for process in 0..processes {
            scheduler.add(stay_on.unwrap_or(process % count), stay_on.is_some());
        }
        Modelled {
            cores: vec![Core::new(Time::ZERO); count],
            pending: vec![Pending::default(); count],
            scheduler,
            costs: profile.costs.clone(),
            pipelines: Pipelines::new(
                count,
                profile.threads_per_pipeline,
                profile.costs.get(Cost::PipelineShare),
            ),
            device,
            routine: profile.routine,
            nic_interrupts: profile.interrupts,
            system: file.host.system,
            hosts,
            place_of,
            first_process: targets.len(),
            first_core: targets.first().map_or(0, |target| target.core),
            locks: vec![Lock::default(); targets.len()],
            next_lock: 0,
            pieces: BTreeMap::new(),
            due: vec![Time::MAX; targets.len()],
            next_token: 0,
            switches: 0,
            remote_wakes: 0,
            interrupts: 0,
        }
    }

    /// Cores of the host.
    pub(super) fn cores(&self) -> usize {
        self.cores.len()
    }

    /// How long a core has been idle.
    pub(super) fn idle_ns(&self, core: usize, now: Time) -> u64 {
        self.cores.get(core).map_or(0, |core| core.idle_ns(now))
    }

    /// The use of a core's time.
    pub(super) fn accounts(&mut self, core: usize, now: Time) -> Option<Accounts> {
        self.cores.get_mut(core).map(|core| core.accounts(now))
    }

    /// Calls a function with the host; nothing without a host.
    pub(super) fn with_host<R>(&self, of: impl FnOnce(&mut crate::host::Host) -> R) -> Option<R> {
        self.hosts.lock().as_mut().map(of)
    }

    fn add(&self, parts: &mut Parts, component: Component, cost: Cost) {
        parts.add(component, self.costs.ns(cost));
    }

    /// Unmasks an interrupt; a device's accesses per interrupt include that.
    fn unmask(&self, parts: &mut Parts) {
        if self.device.is_none() {
            parts.stall(Component::Registers, self.costs.ns(Cost::RegisterWrite));
        }
    }

    /// Whether the target routine runs in threads.
    fn is_threaded(&self) -> bool {
        self.routine == Routine::Thread
    }
}

impl Simulation {
    /// All target routines poll their queues for the first time.
    pub(super) fn start_modelled(&mut self) {
        for place in 0..self.targets.len() {
            self.raise_routine(place, None);
        }
    }

    fn modelled(&mut self) -> &mut Modelled {
        match &mut self.modelled {
            Some(modelled) => modelled,
            // Called only in a world that has one.
            None => unreachable!("no modelled machine"),
        }
    }

    /// The target routine at a place has work: its softirq is raised, or its thread is woken by the
    /// core `waker`.
    fn raise_routine(&mut self, place: usize, waker: Option<usize>) {
        let core = self.targets[place].core;
        if self.modelled().is_threaded() {
            self.wake_process(place, waker);
        } else {
            self.modelled().pending[core].routine = true;
        }
        self.dispatch(core);
    }

    /// A doorbell of the queues at a place has reached the core that it interrupts.
    pub(super) fn interrupt_arrives(&mut self, place: usize) {
        let of_queue = self.targets[place].core;
        let modelled = self.modelled();
        let core = match modelled.nic_interrupts {
            Interrupts::FirstCore if modelled.is_threaded() => modelled.first_core,
            _ => of_queue,
        };
        let waiting = &mut modelled.pending[core].interrupts;
        if !waiting.contains(&place) {
            waiting.push_back(place);
        }
        modelled.interrupts += 1;
        self.dispatch(core);
    }

    /// Wakes a process of the scheduler; `waker` is the core that does.
    fn wake_process(&mut self, process: usize, waker: Option<usize>) {
        let modelled = self.modelled();
        let Modelled { scheduler, cores, pending, .. } = modelled;
        let is_idle = |core: usize| cores[core].level().is_none() && !pending[core].routine;
        let Woken::On { core, .. } = scheduler.wake(process, waker, is_idle) else { return };
        if waker == Some(core) || waker.is_none() {
            return;
        }
        let was_idle = modelled.cores[core].level().is_none();
        modelled.remote_wakes += 1;
        if was_idle {
            modelled.pending[core].wake = true;
            if let Some(waker) = waker {
                modelled.pending[waker].owed_ns += modelled.costs.ns(Cost::InterruptSend);
            }
            self.dispatch(core);
        }
    }

    /// The running work of a core has ended.
    pub(super) fn work_ends(&mut self, core: usize, epoch: u64) -> bool {
        let now = self.now;
        let modelled = self.modelled();
        if modelled.cores[core].epoch() != epoch {
            return false;
        }
        let token = modelled.cores[core].end(now);
        let Some(Piece { what, started, mut done, threads }) = modelled.pieces.remove(&token)
        else {
            return true;
        };
        let is_threaded = modelled.is_threaded();
        if let Some(CardRecorder { recorder, .. }) = &mut self.recorder {
            recorder.span(core, started, now, Timed::Host(what.kind(is_threaded)));
        }
        let release = |host: &mut crate::host::Host| host.release(&mut done);
        let queues = self.modelled().with_host(release).unwrap_or_default();
        for queue in queues {
            self.send_from(queue);
        }
        for process in std::mem::take(&mut done.wakes) {
            let first = self.modelled().first_process;
            self.wake_process(first + process, Some(core));
        }
        for place in threads {
            let of_thread = self.targets[place].core;
            self.modelled().pending[of_thread].taken = true;
            self.raise_routine(place, Some(core));
        }
        match what {
            What::Interrupt(place) if !self.modelled().pending[core].goes_on => {
                self.raise_routine(place, Some(core));
            }
            What::Interrupt(_) | What::Wake => {}
            What::Routine(place) => {
                let rests = self.targets[place].is_resting();
                if self.modelled().is_threaded() {
                    if rests {
                        self.modelled().scheduler.sleep(core);
                    }
                } else {
                    // An interrupt may have arrived since the routine polled.
                    let pending = &mut self.modelled().pending[core];
                    pending.routine = !rests || pending.taken;
                }
                if self.targets[place].is_starved() {
                    self.events.push(now + ROOM_AGAIN_NS, Event::Room(place));
                }
                self.await_deadline(place);
            }
            What::Process(_) => {
                let pending = &mut self.modelled().pending[core];
                if std::mem::take(&mut pending.yields) {
                    pending.softirqs_since = None;
                }
                if done.sleeps {
                    self.modelled().scheduler.sleep(core);
                }
            }
        }
        self.dispatch(core);
        true
    }

    /// Makes a queue's host send its packets.
    fn send_from(&mut self, queue: u16) {
        let holds = |target: &Target| target.queues().iter().any(|found| found.index() == queue);
        let Some(place) = self.targets.iter().position(holds) else { return };
        self.send_from_target(place);
    }

    /// As [`Simulation::send_from`], for all queues of a target.
    pub(super) fn send_from_target(&mut self, place: usize) {
        let now = self.now;
        self.targets[place].transmit(now);
        self.send_rings(Actor::Target(place), now);
        if self.targets[place].is_starved() {
            self.events.push(now + ROOM_AGAIN_NS, Event::Room(place));
        }
        let due = &mut self.modelled().due[place];
        if *due <= now {
            *due = Time::MAX;
        }
        self.await_deadline(place);
    }

    /// Sees to it that the hosts at a place send at their next deadline.
    fn await_deadline(&mut self, place: usize) {
        let Some(deadline) = self.targets[place].next_deadline() else { return };
        let deadline = deadline.max(self.now + 1);
        let due = &mut self.modelled().due[place];
        if deadline < *due {
            *due = deadline;
            self.events.push(deadline, Event::Room(place));
        }
    }

    /// Starts a core's next work, if it may preempt the running work.
    fn dispatch(&mut self, core: usize) {
        self.start_next(core);
        let modelled = self.modelled();
        let (epoch, end) = (modelled.cores[core].epoch(), modelled.cores[core].ends_at());
        if let Some(end) = end
            && std::mem::replace(&mut modelled.pending[core].told_epoch, epoch) != epoch
        {
            self.events.push(end, Event::Work { core, epoch });
        }
    }

    fn start_next(&mut self, core: usize) {
        let now = self.now;
        let modelled = self.modelled();
        let level = modelled.cores[core].level();
        let place = modelled.place_of[core];
        let pending = &mut modelled.pending[core];
        if level < Some(Level::Interrupt) {
            if let Some(place) = place
                && std::mem::take(&mut pending.goes_on)
            {
                return self.start_interrupt(core, place, true);
            }
            if let Some(place) = pending.interrupts.pop_front() {
                return self.start_interrupt(core, place, false);
            }
            if std::mem::take(&mut pending.wake) {
                let parts = Parts::of(Component::Kernel, modelled.costs.ns(Cost::Interrupt));
                return self.start(core, Level::Interrupt, Piece::of(What::Wake), parts);
            }
        }
        if let Some(place) = place
            && pending.routine
            && !pending.yields
            && level < Some(Level::Softirq)
        {
            let most_ns = modelled.costs.ns(Cost::SoftirqMost).max(1);
            let since = *pending.softirqs_since.get_or_insert(now);
            let is_waited_for = level.is_some() || modelled.scheduler.load(core) != 0;
            if now.since(since) <= most_ns || !is_waited_for {
                return self.start_routine(core, place, Level::Softirq, Parts::default());
            }
            // One turn of a process, then the softirqs go on.
            pending.yields = true;
        } else if !pending.routine {
            pending.softirqs_since = None;
        }
        if level.is_some() {
            return;
        }
        let Some(next) = modelled.scheduler.next(core, now) else {
            return modelled.scheduler.idle(core);
        };
        let mut parts = Parts::default();
        parts.add(Component::Kernel, std::mem::take(&mut modelled.pending[core].owed_ns));
        if next.switched {
            modelled.switches += 1;
            modelled.add(&mut parts, Component::Kernel, Cost::Switch);
        }
        match next.process.checked_sub(modelled.first_process) {
            None => self.start_routine(core, next.process, Level::Process, parts),
            Some(process) => {
                let done = modelled.with_host(|host| host.step(process, core)).unwrap_or_default();
                let piece = Piece { done, ..Piece::of(What::Process(process)) };
                self.start(core, Level::Process, piece, parts);
            }
        }
    }

    fn start_interrupt(&mut self, core: usize, place: usize, goes_on: bool) {
        let now = self.now;
        let of_queue = self.targets[place].core;
        let modelled = self.modelled();
        let mut parts = Parts::default();
        let hands_over = modelled.system == System::Clas && place == 0;
        if !goes_on {
            modelled.pending[of_queue].taken = true;
            modelled.add(&mut parts, Component::Kernel, Cost::Interrupt);
            if modelled.system == System::Knet || place == 0 {
                // The NIC's own; others come from the core that hands packets over.
                let registers_ns = match modelled.device {
                    Some(device) => device.cost(&Work { interrupts: 1, ..Work::default() }),
                    None => {
                        let reads = modelled.costs.get(Cost::RegisterReads);
                        (reads * modelled.costs.get(Cost::RegisterRead)).round() as u64
                    }
                };
                parts.stall(Component::Registers, registers_ns);
                modelled.add(&mut parts, Component::Driver, Cost::DriverInterrupt);
            }
        }
        let mut piece = Piece::of(What::Interrupt(place));
        if hands_over || of_queue == core && self.targets[place].is_unmasked() {
            let modelled = self.modelled();
            let arrived = std::mem::take(&mut modelled.pending[core].taken);
            modelled.with_host(|host| host.begin(core, Lines::default()));
            let target = &mut self.targets[place];
            let polled = match (hands_over, arrived) {
                (true, arrived) => target.hand_over(now, arrived),
                (false, true) => target.poll(now),
                (false, false) => target.go_on(now),
            };
            self.charge(core, place, &polled, &mut parts);
            let modelled = self.modelled();
            piece.done = modelled.with_host(crate::host::Host::take_work).unwrap_or_default();
            modelled.pending[core].goes_on = hands_over && polled.moved != 0;
            if hands_over && polled.moved == 0 {
                modelled.add(&mut parts, Component::Driver, Cost::DriverDone);
                modelled.unmask(&mut parts);
            }
            self.note_polled(place, &polled);
            self.ring_from(core, place, &mut parts, &mut piece);
        }
        let modelled = self.modelled();
        let sleeps = modelled.is_threaded() && modelled.scheduler.is_asleep(place);
        if sleeps && !modelled.pending[core].goes_on {
            modelled.add(&mut parts, Component::Kernel, Cost::Wake);
        }
        self.start(core, Level::Interrupt, piece, parts);
    }

    fn start_routine(&mut self, core: usize, place: usize, level: Level, mut parts: Parts) {
        let now = self.now;
        let modelled = self.modelled();
        let arrived = std::mem::take(&mut modelled.pending[core].taken);
        if level == Level::Softirq {
            parts.add(Component::Kernel, std::mem::take(&mut modelled.pending[core].owed_ns));
            if arrived {
                modelled.add(&mut parts, Component::Kernel, Cost::Softirq);
            }
        }
        // If flows are assigned to cores in software, the assigning core has touched the packet.
        let headers = match modelled.system {
            System::Clas => Lines::at(modelled.first_core),
            _ => Lines::default(),
        };
        modelled.with_host(|host| host.begin(core, headers));
        let target = &mut self.targets[place];
        let polled = if arrived { target.poll(now) } else { target.go_on(now) };
        let rests = target.is_resting();
        let is_ungated = target.is_unmasked();
        self.charge(core, place, &polled, &mut parts);
        let modelled = self.modelled();
        if polled.moved == 0 && !is_ungated && modelled.system != System::Clas {
            modelled.add(&mut parts, Component::Driver, Cost::DriverDone);
            if rests {
                modelled.unmask(&mut parts);
            }
        }
        let mut piece = Piece::of(What::Routine(place));
        piece.done = modelled.with_host(crate::host::Host::take_work).unwrap_or_default();
        self.note_polled(place, &polled);
        self.ring_from(core, place, &mut parts, &mut piece);
        self.start(core, level, piece, parts);
    }

    /// The costs of a poll of the queues, without the host's own.
    fn charge(&mut self, core: usize, place: usize, polled: &Polled, parts: &mut Parts) {
        let now = self.now;
        // A modelled host counts its sent packets itself.
        let is_counted = self.modelled().hosts.lock().is_some();
        let registers_ns = match is_counted {
            true => self.device.map_or(0, |of| of.cost(&Work::of_look(0, polled.moved, 0))),
            false => self.registers_ns(place, &Polled { interrupts: 0, ..*polled }),
        };
        let modelled = self.modelled();
        let moved = polled.moved as u64;
        parts.add(Component::Driver, moved * modelled.costs.ns(Cost::DriverReceive));
        parts.stall(Component::Registers, registers_ns);
        parts.add(Component::Application, polled.work_ns);
        let is_handed = modelled.system == System::Clas && polled.moved == 0;
        let takes = if is_handed { polled.packets } else { 0 };
        // To find a packet's core, its headers are read.
        let lines = modelled.costs.get(Cost::HeaderLines) * modelled.costs.get(Cost::MemoryLine);
        let classify_ns = modelled.costs.ns(Cost::Classify) + lines.round() as u64;
        for handed in 0..polled.handed + takes {
            let lock = if handed < polled.handed {
                parts.add(Component::Driver, classify_ns);
                modelled.next_lock = (modelled.next_lock + 1) % modelled.locks.len();
                modelled.next_lock
            } else {
                place
            };
            let (hold_ns, hand_over_ns) =
                (modelled.costs.ns(Cost::LockHold), modelled.costs.ns(Cost::LockHandOver));
            let asked_at = now + parts.total();
            let taken = modelled.locks[lock].take(now, asked_at, core, hold_ns, hand_over_ns);
            parts.stall(Component::Lock, taken.total_ns() - taken.held_ns);
            parts.add(Component::Lock, taken.held_ns);
        }
    }

    /// The routine's doorbells go out when its work is done; sending them is work to come. Threads
    /// are woken instead, which is work of this piece.
    fn ring_from(&mut self, core: usize, place: usize, parts: &mut Parts, piece: &mut Piece) {
        let is_threaded = self.modelled().is_threaded();
        let rung = self.take_rings(Actor::Target(place));
        let rings_at = self.now + parts.total();
        let mut sent_at = rings_at;
        for &actor in &rung {
            match actor {
                Actor::Target(woken) if is_threaded => {
                    piece.threads.push(woken);
                    self.modelled().add(parts, Component::Kernel, Cost::Wake);
                }
                _ => sent_at = self.send_ring(Actor::Target(place), actor, sent_at),
            }
        }
        self.rung = rung;
        self.modelled().pending[core].owed_ns += sent_at.since(rings_at);
    }

    fn note_polled(&mut self, place: usize, polled: &Polled) {
        if polled.packets != 0 {
            let (packets, work_ns) = (polled.packets, polled.work_ns);
            self.record(Actor::Target(place), TraceEvent::TargetTurn { packets, work_ns });
        }
    }

    fn start(&mut self, core: usize, level: Level, mut piece: Piece, mut parts: Parts) {
        piece.started = self.now;
        parts.append(&piece.done.parts);
        if parts.total() == 0 {
            // Time advances with any costs of a profile.
            parts.add(Component::Kernel, 1);
        }
        let now = self.now;
        let modelled = self.modelled();
        let is_busy = |thread: usize| modelled.cores[thread].level().is_some();
        let parts = modelled.pipelines.run(core, parts, is_busy);
        let token = modelled.next_token;
        modelled.next_token += 1;
        modelled.pieces.insert(token, piece);
        modelled.cores[core].start(now, level, parts, token);
    }
}
