//! The effect of each event on the world.

use super::{Simulation, State};
use crate::event::{Actor, Event};
use crate::trace::TraceEvent;
use picnic_core::time::Time;

/// Delay of a command that found too many in progress, in nanoseconds.
const COMMAND_RETRY_NS: u64 = 1_000;

impl Simulation {
    /// Whether the event had an effect: superseded turns have none.
    pub(super) fn happen(&mut self, time: Time, event: Event) -> bool {
        match event {
            Event::Turn { actor, epoch } => {
                if self.actor(actor).epoch != epoch {
                    return false;
                }
                if self.publishes_at.is_some_and(|at| at <= time)
                    && self.actor(actor).core == self.card_actor.core
                {
                    // The turn that is due first ends first.
                    self.set_now(time);
                    self.publish_card(time);
                    if self.actor(actor).epoch != epoch {
                        return true;
                    }
                }
                let free_at = self.core(actor).free_at;
                if free_at > time {
                    // Another actor has the core.
                    self.events.push(free_at, event);
                    return false;
                }
                self.set_now(time);
                self.wakes(actor);
                match actor {
                    Actor::Card => self.card_turn(),
                    Actor::Target(place) => self.target_turn(place),
                }
            }
            Event::Work { core, epoch } => {
                self.set_now(time);
                if !self.work_ends(core, epoch) {
                    return false;
                }
            }
            Event::Room(place) => {
                self.set_now(time);
                self.send_from_target(place);
            }
            Event::Publish => {
                if self.publishes_at != Some(time) {
                    return false;
                }
                self.set_now(time);
                self.publish_card(time);
            }
            Event::Arrival(actor) => {
                self.set_now(time);
                self.actor(actor).arrived = true;
                if let (Actor::Target(place), true) = (actor, self.modelled.is_some()) {
                    self.record(actor, TraceEvent::DoorbellArrived);
                    self.interrupt_arrives(place);
                    self.wake_parked_card();
                    return true;
                }
                self.record(actor, TraceEvent::DoorbellArrived);
                if self.actor(actor).state == State::Asleep {
                    self.schedule(actor, time);
                } else {
                    self.actor(actor).rung = true;
                }
            }
            Event::Frames => {
                self.set_now(time);
                // A turn in progress is followed by another.
                if self.publishes_at.is_none() {
                    self.schedule(Actor::Card, time);
                }
            }
            Event::Process(number) => {
                self.set_now(time);
                self.run_process(number);
            }
            Event::Command(number) => {
                let Some(command) = self.commands.remove(&number) else { return false };
                self.set_now(time);
                if let Err(command) = self.controller.send(command) {
                    self.commands.insert(number, command);
                    self.events.push(time + COMMAND_RETRY_NS, event);
                    return false;
                }
                self.record(Actor::Card, TraceEvent::CommandSent);
                // The sender's core is not one of the card's: only the latency counts.
                self.send_rings(Actor::Card, time);
            }
        }
        if !matches!(event, Event::Turn { actor: Actor::Card, .. } | Event::Publish) {
            self.wake_parked_card();
        }
        self.ring_processes();
        true
    }

    /// A spinning card sees events elsewhere.
    fn wake_parked_card(&mut self) {
        if self.card_actor.state == State::Parked {
            self.schedule(Actor::Card, self.now);
        }
    }
}
