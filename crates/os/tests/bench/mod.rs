//! A NIC OS on a virtual core: turns, and a clock advanced by the segments' work.
#![allow(dead_code, unreachable_pub, missing_docs)]

use picnic_core::ledger::DropReason;
use picnic_core::ledger::Ledger;
use picnic_core::out::Doors;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::resident::{Resident, Turn};
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use picnic_os::executor::{Os, OsSettings};
use picnic_os::schedulers::Scheduler;
use picnic_os::schedulers::edf::Edf;
use picnic_os::schedulers::plus::Plus;
use std::sync::{Arc, Mutex};

/// Cost of a packet turn between two of NIC OS's, in nanoseconds.
pub const PACKET_TURN_NS: u64 = 50;

pub struct Bench {
    pub os: Os,
    pub doors: Doors,
    pub now: Time,
    pub counters: WireCounters,
}

pub fn micros(microseconds: u64) -> Time {
    Time::from_nanos(microseconds * 1000)
}

pub fn edf_plus() -> Box<dyn Scheduler> {
    Box::new(Plus::new(Edf, Box::new(picnic_os::schedulers::slack::FirstFit)))
}

impl Bench {
    pub fn new() -> Self {
        Bench::with(&OsSettings { switch_ns: 0, cold_ns: 0, ..OsSettings::default() }, edf_plus())
    }

    pub fn with(settings: &OsSettings, scheduler: Box<dyn Scheduler>) -> Self {
        let config = PoolConfig { buffers: 256, ..PoolConfig::default() };
        let (pool, _) = Pool::new(&config, 0).unwrap();
        let ledger = Arc::new(Ledger::new(0));
        let doors = Doors::new(pool, Vec::new(), usize::from(settings.wires), 64, ledger);
        let counters = WireCounters::default();
        Bench { os: Os::new(settings, scheduler), doors, now: Time::ZERO, counters }
    }

    /// One turn, and its time. False if there was nothing to run by then.
    pub fn turn(&mut self) -> (bool, Option<Time>) {
        self.os.attention().lower();
        match self.os.turn(self.now, &mut self.doors) {
            Turn::Ran(segment) => {
                let took = if segment.work_ns != 0 { segment.work_ns } else { segment.model_ns };
                self.now = self.now + took;
                let due = self.os.ended(self.now);
                (true, due)
            }
            Turn::Idle(due) => (false, due),
        }
    }

    /// Turns until nothing is due before `end`.
    pub fn run_until(&mut self, end: Time) {
        while self.now < end {
            let (ran, due) = self.turn();
            if self.os.attention().is_raised() {
                continue;
            }
            match due {
                Some(due) if due <= self.now && ran => {}
                Some(due) => self.now = due.max(self.now + 1).min(end),
                None => break,
            }
        }
        self.now = self.now.max(end);
    }

    /// Lets wire `wire` take up to `count` waiting packets: each is sent unless `refuse`.
    pub fn wire_takes(&mut self, wire: usize, count: usize, refuse: bool) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let (doors, counters) = (&mut self.doors, &self.counters);
        doors.serve_wire(wire, self.now, counters, |mut transmitter| {
            while frames.len() < count
                && let Some(packet) = transmitter.next()
            {
                frames.push(packet.data().to_vec());
                match refuse {
                    true => transmitter.drop(packet, DropReason::WireDown),
                    false => transmitter.sent(packet),
                }
            }
        });
        if self.doors.is_watched() {
            self.os.attention().raise();
        }
        frames
    }

    /// Lets wire `wire` take all waiting packets.
    pub fn wire_takes_all(&mut self, wire: usize) {
        let (doors, counters) = (&mut self.doors, &self.counters);
        doors.serve_wire(wire, self.now, counters, |mut transmitter| {
            while let Some(packet) = transmitter.next() {
                transmitter.sent(packet);
            }
        });
        if self.doors.is_watched() {
            self.os.attention().raise();
        }
    }

    /// Stops it, and checks that all buffers have returned.
    #[track_caller]
    pub fn end(mut self) {
        self.os.stop(self.now, &mut self.doors);
        while let Some(packet) = self.doors.backlog.take() {
            self.doors.pool.free(packet);
        }
        assert_eq!(self.os.attention().held().get(), 0);
        assert_eq!(self.doors.pool.outstanding(), 0);
    }
}

/// Entries logged by tasks, with their times.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<(u64, String)>>>);

impl Log {
    pub fn say(&self, now: Time, what: impl Into<String>) {
        self.0.lock().unwrap().push((now.as_nanos() / 1000, what.into()));
    }

    pub fn take(&self) -> Vec<(u64, String)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// `time:entry` in microseconds, in order.
    pub fn text(&self) -> String {
        let said: Vec<_> = self.take().iter().map(|(at, what)| format!("{at}:{what}")).collect();
        said.join(" ")
    }
}
