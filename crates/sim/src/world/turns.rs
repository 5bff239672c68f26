//! Turns: an actor's work when its time has come, and its cost.
//!
//! Guarantee: a core is busy from a turn's start until its cost, the doorbells it rang and the
//! host's work have passed; no turn starts before.

use super::{ActorState, Core, Simulation, State};
use crate::event::{Actor, Event};
use crate::trace::{TraceEntry, TraceEvent};
use picnic_control::timeline::{CardRecorder, Event as Timed};
use picnic_core::config::Idle;
use picnic_core::device::Work;
use picnic_core::time::Time;
use picnic_engine::poll::Activity;
use picnic_engine::target::{LOOKS_AGAIN_NS, Polled};
use std::io::Write;
use std::sync::atomic::Ordering;

impl Simulation {
    pub(super) fn card_turn(&mut self) {
        let now = self.now;
        if std::mem::take(&mut self.armed) {
            self.card.disarm();
        }
        if self.stopping && !self.draining {
            self.count_sleep();
            self.draining = true;
            self.received_for = now;
            self.card.stop_receiving(now);
            self.record(Actor::Card, TraceEvent::Stopped);
            let cost_ns = self.costs.card_work(&Activity::default());
            let free_at = self.occupy(Actor::Card, now, cost_ns, 0);
            return self.schedule(Actor::Card, free_at);
        }
        let activity = self.card.work(now);
        self.turn_began = now;
        if let Some(segment) = activity.segment {
            let segment_ns = self.costs.segment(&segment);
            self.record(Actor::Card, TraceEvent::Segment { task: segment.task, segment_ns });
        }
        let work_ns = self.costs.card_work(&activity);
        let done_at = self.occupy(Actor::Card, now, work_ns, 0);
        if activity.is_idle() {
            // The poll itself is invisible; output due by time alone is sent at once.
            self.publish_card(now);
        } else {
            self.publishes_at = Some(done_at);
            self.events.push(done_at, Event::Publish);
        }
    }

    /// The work of the card's turn is done: target rings, doorbells and wires get its output.
    pub(super) fn publish_card(&mut self, now: Time) {
        self.publishes_at = None;
        let activity = self.card.publish(now);
        if !activity.is_idle() {
            self.idle_since = None;
        }
        if activity.received + activity.submitted + activity.transmitted != 0 {
            let happening = TraceEvent::CardTurn {
                received: activity.received,
                submitted: activity.submitted,
                transmitted: activity.transmitted,
            };
            self.record(Actor::Card, happening);
        }
        while let Some(answer) = self.controller.answer() {
            self.record(Actor::Card, TraceEvent::Answered { done: answer.done });
            self.answers.push((now, answer));
        }
        let work_done_at = self.core(Actor::Card).free_at.max(now);
        let free_at =
            self.occupy(Actor::Card, work_done_at, self.costs.card_transmit(&activity), 0);
        let turn_ns = free_at.since(self.turn_began);
        if let Some(recorder) = &mut self.recorder {
            recorder.turn(&self.card, self.turn_began, free_at, &activity);
            recorder.fills(&self.card, now);
        }
        if activity.is_idle() {
            // Due doorbells are work, too.
            if free_at > work_done_at && !self.draining {
                self.monitor.notes.core.turn(0, turn_ns);
            }
            self.rest_card(free_at);
        } else {
            if !self.draining {
                self.monitor.notes.core.turn(activity.received, turn_ns);
            }
            self.schedule(Actor::Card, free_at);
        }
    }

    /// The card had nothing to do; its core is free from `free_at`.
    fn rest_card(&mut self, free_at: Time) {
        let since = *self.idle_since.get_or_insert(self.now);
        let deadline = self.card.next_deadline(self.now);
        if deadline.is_some_and(|deadline| deadline <= free_at) {
            return self.schedule(Actor::Card, free_at);
        }
        let spins_until = match self.idle {
            Idle::Spin => Time::MAX,
            Idle::Adaptive => since + self.costs.adaptive_spin_ns,
            Idle::Block => Time::ZERO,
        };
        if !self.card.arm() {
            // There is work that this turn could not do yet: a tx queue's deficit must grow, for
            // example, or a wire takes nothing.
            self.schedule(Actor::Card, free_at);
        } else if free_at < spins_until {
            self.card.disarm();
            // Until something happens elsewhere, all turns are as idle as this one.
            let end = (spins_until != Time::MAX).then_some(spins_until);
            match deadline.into_iter().chain(end).chain(self.events.next_time()).min() {
                Some(next) => self.schedule(Actor::Card, next.max(free_at)),
                None => self.card_actor.state = State::Parked,
            }
        } else if std::mem::take(&mut self.card_actor.rung) {
            self.card.disarm();
            self.schedule(Actor::Card, free_at);
        } else {
            self.armed = true;
            self.falls_asleep(Actor::Card);
            self.record(Actor::Card, TraceEvent::Slept);
            if let Some(deadline) = deadline {
                self.events.push(
                    deadline,
                    Event::Turn { actor: Actor::Card, epoch: self.card_actor.epoch },
                );
            }
        }
    }

    pub(super) fn target_turn(&mut self, place: usize) {
        let (actor, now) = (Actor::Target(place), self.now);
        if self.draining {
            self.targets[place].stop_transmitting();
        }
        let has_arrived = std::mem::take(&mut self.target_actors[place].arrived);
        let target = &mut self.targets[place];
        let mut polled = if has_arrived { target.poll(now) } else { target.go_on(now) };
        if self.draining {
            polled.work_ns = 0;
        }
        if polled.packets != 0 {
            let (packets, work_ns) = (polled.packets, polled.work_ns);
            self.record(actor, TraceEvent::TargetTurn { packets, work_ns });
        }
        let cost_ns = self.costs.target(&polled) + self.registers_ns(place, &polled);
        let free_at = self.occupy(actor, now, cost_ns, polled.work_ns);
        if polled.packets + polled.transmitted != 0 {
            let (packets, transmitted) = (polled.packets as u16, polled.transmitted as u16);
            self.span(actor, now, free_at, Timed::Target { packets, transmitted });
        }
        let resting = self.targets[place].is_resting();
        if resting && !std::mem::take(&mut self.target_actors[place].rung) {
            self.falls_asleep(actor);
            self.record(actor, TraceEvent::Slept);
            if self.targets[place].looks_again_soon() {
                let epoch = self.target_actors[place].epoch;
                self.events.push(free_at + LOOKS_AGAIN_NS, Event::Turn { actor, epoch });
            }
            if let Some(deadline) = self.targets[place].next_deadline() {
                let epoch = self.target_actors[place].epoch;
                self.events.push(deadline.max(free_at), Event::Turn { actor, epoch });
            }
        } else {
            self.schedule(actor, free_at);
        }
    }

    /// A driver's accesses to its device for a look at the queues.
    pub(super) fn registers_ns(&mut self, place: usize, polled: &Polled) -> u64 {
        let Some(device) = self.device else { return 0 };
        let sent = self.targets[place].sent();
        let newly = sent - std::mem::replace(&mut self.sent[place], sent);
        device.cost(&Work::of_look(polled.interrupts, polled.moved, newly))
    }

    // ------------------------------------------------------------ sleep

    fn falls_asleep(&mut self, actor: Actor) {
        let now = self.core(actor).free_at;
        let state = self.actor(actor);
        (state.state, state.asleep_since, state.slept_from) = (State::Asleep, now, now);
    }

    /// Ends its sleep, if it sleeps.
    pub(super) fn wakes(&mut self, actor: Actor) {
        if self.actor(actor).state != State::Asleep {
            return;
        }
        self.count_sleep_of(actor);
        self.actor(actor).state = State::Awake;
        let slept_from = self.actor(actor).slept_from;
        self.span(actor, slept_from, self.now, Timed::Slept);
        if self.draining {
            return;
        }
        match actor {
            Actor::Card => self.monitor.notes.core.wakeups.add(1),
            Actor::Target(place) => self.monitor.notes.targets[place].wakeups.add(1),
        }
    }

    /// Counts the sleep of all sleepers up to now.
    pub(super) fn count_sleep(&mut self) {
        self.count_sleep_of(Actor::Card);
        if !self.draining {
            self.note_idle();
        }
        (0..self.targets.len()).for_each(|place| self.count_sleep_of(Actor::Target(place)));
    }

    /// The report covers the time until the card was told to stop.
    fn count_sleep_of(&mut self, actor: Actor) {
        let (now, is_counted) = (self.now, !self.draining);
        let state = self.actor(actor);
        if state.state != State::Asleep {
            return;
        }
        let slept_ns = now.since(state.asleep_since);
        state.asleep_since = state.asleep_since.max(now);
        if is_counted {
            match actor {
                Actor::Card => self.monitor.notes.core.asleep_ns.add(slept_ns),
                Actor::Target(place) => self.monitor.notes.targets[place].asleep_ns.add(slept_ns),
            }
        }
    }

    // ------------------------------------------------------------ time

    pub(super) fn set_now(&mut self, now: Time) {
        self.now = now;
        self.clock.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Accounts for an actor's turn that began at `now`: its own cost, the doorbells it rang, then
    /// the host's work. Returns when the core is free.
    fn occupy(&mut self, actor: Actor, now: Time, cost_ns: u64, work_ns: u64) -> Time {
        let free_at = self.send_rings(actor, now + cost_ns) + work_ns;
        let core = self.core(actor);
        core.busy_ns += free_at.since(now);
        core.free_at = free_at;
        free_at
    }

    /// Makes events of the doorbells rung in a turn, one after another from `time` on; returns when
    /// the last is sent.
    pub(super) fn send_rings(&mut self, actor: Actor, mut time: Time) -> Time {
        let rung = self.take_rings(actor);
        for &wakes in &rung {
            time = self.send_ring(actor, wakes, time);
        }
        self.rung = rung;
        time
    }

    /// Makes an event of a doorbell rung; returns when it is sent.
    pub(super) fn send_ring(&mut self, from: Actor, wakes: Actor, time: Time) -> Time {
        let bus_ns = match wakes {
            Actor::Target(_) => self.device.map_or(0, |device| device.bus_ns.into()),
            Actor::Card => 0,
        };
        let slept_ns = self.slept_ns(wakes, time);
        let way_ns = match self.costs.wake_ups.way_ns(slept_ns) {
            Some(way_ns) => way_ns,
            None => self.latencies.between(&self.costs.doorbell_arrive_ns),
        };
        let latency = way_ns + bus_ns;
        self.events.push(time + latency, Event::Arrival(wakes));
        let to = self.actor(wakes).core as u16;
        self.span(from, time, time + latency, Timed::Doorbell { to });
        time + self.costs.doorbell_send_ns
    }

    /// How long an actor's core has slept at `time`; 0 if it is awake.
    fn slept_ns(&self, actor: Actor, time: Time) -> u64 {
        let state = match actor {
            Actor::Card => &self.card_actor,
            Actor::Target(place) => &self.target_actors[place],
        };
        match (&self.modelled, actor) {
            (Some(modelled), Actor::Target(_)) => modelled.idle_ns(state.core, time),
            _ if state.state == State::Asleep => time.since(state.slept_from),
            _ => 0,
        }
    }

    /// The doorbells rung in a turn.
    pub(super) fn take_rings(&mut self, actor: Actor) -> Vec<Actor> {
        let mut rung = std::mem::take(&mut self.rung);
        self.rings.take(&mut rung);
        for &wakes in &rung {
            let core = self.actor(wakes).core;
            self.record(actor, TraceEvent::Rang { core });
        }
        rung
    }

    /// Gives an actor a turn at `time`, or when its core is free, replacing any other.
    pub(super) fn schedule(&mut self, actor: Actor, time: Time) {
        let free_at = self.core(actor).free_at;
        self.wakes(actor);
        let state = self.actor(actor);
        state.epoch += 1;
        let epoch = state.epoch;
        state.state = State::Awake;
        self.events.push(time.max(free_at), Event::Turn { actor, epoch });
    }

    pub(super) fn record(&mut self, actor: Actor, happening: TraceEvent) {
        let core = self.actor(actor).core;
        let digest = self.digest.load(Ordering::Relaxed);
        self.trace.record(self.now, core, happening, digest);
        if let Some(told) = &mut self.told
            && let Err(error) = writeln!(told, "{}", TraceEntry { time: self.now, core, happening })
        {
            (self.told, self.not_told) = (None, Some(error));
        }
    }

    /// Records something in the timeline, if there is one.
    pub(super) fn span(&mut self, actor: Actor, start: Time, end: Time, event: Timed) {
        let core = self.actor(actor).core;
        if let Some(CardRecorder { recorder, .. }) = &mut self.recorder {
            recorder.span(core, start, end, event);
        }
    }

    pub(super) fn actor(&mut self, actor: Actor) -> &mut ActorState {
        match actor {
            Actor::Card => &mut self.card_actor,
            Actor::Target(place) => &mut self.target_actors[place],
        }
    }

    pub(super) fn core(&mut self, actor: Actor) -> &mut Core {
        let core = self.actor(actor).core;
        // Created at the start for every actor's core.
        self.cores.entry(core).or_default()
    }
}
