//! The trace: the events of a simulation, in order, and one hash of all of them.
//!
//! Guarantees: the hash covers every entry, kept or not, with the bytes and the queue of every
//! packet delivered to a host; entries past the limit are counted and hashed, but not kept, so a
//! long run needs no more memory.

use picnic_core::random::mix;
use picnic_core::time::Time;
use std::fmt;

/// Entries that a trace keeps.
pub const KEPT: usize = 1 << 18;

/// An event on a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// The borrowed core had a turn.
    CardTurn {
        /// Packets taken from wires.
        received: usize,
        /// Packets taken from tx rings.
        submitted: usize,
        /// Packets taken by the wires.
        transmitted: usize,
    },
    /// The borrowed core ran a segment of a task.
    Segment {
        /// The task's place.
        task: u32,
        /// Nanoseconds it took.
        segment_ns: u64,
    },
    /// A target core polled its queues.
    TargetTurn {
        /// Packets delivered to the host.
        packets: usize,
        /// Nanoseconds of the host's work.
        work_ns: u64,
    },
    /// The core rang the doorbell of another.
    Rang {
        /// The core to be woken.
        core: usize,
    },
    /// A doorbell reached the core.
    DoorbellArrived,
    /// The core went to sleep.
    Slept,
    /// A command was sent to the card.
    CommandSent,
    /// The card answered a command.
    Answered {
        /// Whether it was done.
        done: bool,
    },
    /// The card was told to stop receiving.
    Stopped,
    /// The card ended.
    Ended {
        /// Buffers that did not return.
        missing: usize,
    },
}

/// An event with time and core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// The time.
    pub time: Time,
    /// The core.
    pub core: usize,
    /// The event.
    pub happening: TraceEvent,
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} core {}: ", self.time, self.core)?;
        match self.happening {
            TraceEvent::CardTurn { received, submitted, transmitted } => {
                write!(f, "card: {received} received, {submitted} submitted, {transmitted} sent")
            }
            TraceEvent::Segment { task, segment_ns } => {
                write!(f, "task {task}: a segment of {segment_ns} ns")
            }
            TraceEvent::TargetTurn { packets, work_ns } => {
                write!(f, "target: {packets} packets, {work_ns} ns of work")
            }
            TraceEvent::Rang { core } => write!(f, "rings core {core}"),
            TraceEvent::DoorbellArrived => write!(f, "doorbell arrives"),
            TraceEvent::Slept => write!(f, "sleeps"),
            TraceEvent::CommandSent => write!(f, "command sent"),
            TraceEvent::Answered { done: true } => write!(f, "command done"),
            TraceEvent::Answered { done: false } => write!(f, "command refused"),
            TraceEvent::Stopped => write!(f, "stops receiving"),
            TraceEvent::Ended { missing } => write!(f, "ends, {missing} buffers missing"),
        }
    }
}

/// The ordered record of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    entries: Vec<TraceEntry>,
    recorded: u64,
    hash: u64,
}

impl Trace {
    /// Adds an entry; `digest` represents the packets delivered to hosts so far.
    pub(crate) fn record(&mut self, time: Time, core: usize, happening: TraceEvent, digest: u64) {
        let (kind, first, second) = match happening {
            TraceEvent::CardTurn { received, submitted, transmitted } => {
                (1, received as u64, (submitted as u64) << 32 | transmitted as u64)
            }
            TraceEvent::TargetTurn { packets, work_ns } => (2, packets as u64, work_ns),
            TraceEvent::Rang { core } => (3, core as u64, 0),
            TraceEvent::DoorbellArrived => (4, 0, 0),
            TraceEvent::Slept => (5, 0, 0),
            TraceEvent::CommandSent => (6, 0, 0),
            TraceEvent::Answered { done } => (7, u64::from(done), 0),
            TraceEvent::Stopped => (8, 0, 0),
            TraceEvent::Ended { missing } => (9, missing as u64, 0),
            TraceEvent::Segment { task, segment_ns } => (10, u64::from(task), segment_ns),
        };
        for word in [time.as_nanos(), core as u64, kind, first, second, digest] {
            self.hash = mix(self.hash.rotate_left(23) ^ mix(word.wrapping_add(1)));
        }
        self.recorded += 1;
        if self.entries.len() < KEPT {
            self.entries.push(TraceEntry { time, core, happening });
        }
    }

    /// The first [`KEPT`] entries.
    pub fn entries(&self) -> &[TraceEntry] {
        &self.entries
    }

    /// Number of entries ever recorded, including those not kept.
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// One hash of everything recorded.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            writeln!(f, "{entry}")?;
        }
        let more = self.recorded - self.entries.len() as u64;
        if more != 0 {
            writeln!(f, "... and {more} more")?;
        }
        writeln!(f, "trace {:#018x}", self.hash)
    }
}
