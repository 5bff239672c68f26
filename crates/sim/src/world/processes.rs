//! Processes of the host that talk to tasks through channels: code called in virtual time.
//!
//! A process runs on a core outside the card, so it takes no time of the card. It is called at
//! the time that it asked for, and when the card rings its doorbell.

use super::Simulation;
use crate::event::{Actor, Event};
use picnic_core::doorbell::Doorbell;
use picnic_core::time::Time;
use picnic_os::channel::Channels;
use std::sync::{Arc, Mutex, PoisonError};

/// A process: does the work that is due, and returns the time of its next call, if its
/// doorbell does not ring before.
pub type HostProcess = Box<dyn FnMut(Time) -> Option<Time> + Send>;

/// The processes of a simulation.
#[derive(Default)]
pub(super) struct Processes {
    each: Vec<HostProcess>,
    rung: Arc<Mutex<Vec<usize>>>,
}

/// Wakes a process.
struct ProcessBell {
    number: usize,
    rung: Arc<Mutex<Vec<usize>>>,
}

impl Doorbell for ProcessBell {
    fn ring(&self) {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

impl Simulation {
    /// Adds a process of the host, called from `start` on. `make` gets the channels of the card's
    /// tasks, and the process's doorbell.
    pub fn add_process(
        &mut self,
        start: Time,
        make: impl FnOnce(Channels, Arc<dyn Doorbell>) -> HostProcess,
    ) {
        let number = self.processes.each.len();
        let bell = Arc::new(ProcessBell { number, rung: self.processes.rung.clone() });
        let channels = self.os.as_ref().map(|os| os.factory.channels().clone());
        self.processes.each.push(make(channels.unwrap_or_default(), bell));
        self.events.push(start.max(self.now), Event::Process(number));
    }

    /// A process's time has come.
    pub(super) fn run_process(&mut self, number: usize) {
        if self.draining {
            return;
        }
        if let Some(next) = self.processes.each[number](self.now) {
            self.events.push(next.max(self.now + 1), Event::Process(number));
        }
        // Its core is not one of the card's: only the latency counts.
        self.send_rings(Actor::Card, self.now);
    }

    /// Doorbells of processes, rung since the last call.
    pub(super) fn ring_processes(&mut self) {
        if self.processes.each.is_empty() {
            return;
        }
        let mut rung = self.processes.rung.lock().unwrap_or_else(PoisonError::into_inner);
        for number in rung.drain(..) {
            let latency = self.latencies.between(&self.costs.doorbell_arrive_ns);
            self.events.push(self.now + latency, Event::Process(number));
        }
    }
}
