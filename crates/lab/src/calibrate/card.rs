//! A card of one task, with isolated wires: used by `picnic wcet`.
//!
//! Its time moves directly to the next event, so that no turn waits for another. The caller
//! measures the duration of a turn.

use picnic_core::ledger::Ledger;
use picnic_core::out::Doors;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::resident::{Resident, Turn};
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use picnic_filter::Filters;
use picnic_os::executor::{Os, OsSettings};
use picnic_os::schedulers::edf::Edf;
use picnic_os::schedulers::plus::Plus;
use picnic_os::schedulers::slack::FirstFit;
use picnic_os::task::{Bounds, Program, TaskSpec};
use std::sync::Arc;

/// Wires of the card.
const WIRES: u8 = 4;
/// Nanoseconds of card time per turn.
const TURN_NS: u64 = 1_000;

/// A card of one task.
pub(super) struct OneTask {
    os: Os,
    doors: Doors,
    now: Time,
}

impl OneTask {
    /// A card with a task of this many segments, each distinguishable.
    pub(super) fn new(segments: usize, program: Program) -> anyhow::Result<Self> {
        let (pool, _) = Pool::new(&PoolConfig { buffers: 1024, ..PoolConfig::default() }, 0)?;
        let ledger = Arc::new(Ledger::new(0));
        let settings = OsSettings { wires: WIRES, ..OsSettings::default() };
        let doors = Doors::new(pool, Vec::new(), usize::from(WIRES), 64, ledger);
        let scheduler = Plus::new(Edf, Box::new(FirstFit));
        let mut os = Os::new(&settings, Box::new(scheduler));
        // The bound of a segment is its number plus one: so the ticket tells the next one.
        let numbers: Arc<[u64]> = (1..=segments as u64).collect();
        let bounds = Bounds { segments: numbers.clone(), remaining: numbers };
        let spec = TaskSpec::new("observed").periodic(1_000_000).bounds(bounds);
        os.attach_filters(Filters::new(1));
        os.create(spec, program)?;
        Ok(OneTask { os, doors, now: Time::ZERO })
    }

    /// The segment that runs next; none if the task has ended.
    pub(super) fn next_segment(&self) -> Option<usize> {
        let line = self.os.lines().find(|line| line.wcet_ns.is_some())?;
        line.wcet_ns.and_then(|number| usize::try_from(number).ok()?.checked_sub(1))
    }

    /// One turn of the executor. Returns the nanoseconds of work that the segment represented
    /// beyond its code, if one ran.
    pub(super) fn turn(&mut self) -> Option<u64> {
        match self.os.turn(self.now, &mut self.doors) {
            Turn::Ran(segment) => Some(segment.work_ns),
            Turn::Idle(due) => {
                self.now = due.unwrap_or(self.now).max(self.now);
                None
            }
        }
    }

    /// After a turn with a segment: the wires take all waiting packets.
    pub(super) fn settle(&mut self) {
        self.now = self.now + TURN_NS;
        if let Some(due) = self.os.ended(self.now) {
            self.now = due.max(self.now);
        }
        let counters = WireCounters::default();
        for wire in 0..self.doors.backlog.wires() {
            self.doors.serve_wire(wire, self.now, &counters, |mut transmitter| {
                while let Some(packet) = transmitter.next() {
                    transmitter.sent(packet);
                }
            });
        }
        self.os.attention().lower();
    }
}

impl Drop for OneTask {
    fn drop(&mut self) {
        self.os.stop(self.now, &mut self.doors);
        while let Some(packet) = self.doors.backlog.take() {
            self.doors.pool.free(packet);
        }
    }
}
