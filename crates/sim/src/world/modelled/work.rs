//! The work of a modelled core: the piece that runs, and what is pending.

use crate::host::Done;
use picnic_control::timeline::HostWork;
use picnic_core::time::Time;
use std::collections::VecDeque;

/// The kind of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// An interrupt of the card, at this place of the targets.
    Interrupt(usize),
    /// Another core's, to wake a process.
    Wake,
    /// The target routine at this place.
    Routine(usize),
    /// The host's process of this number.
    Process(usize),
}

impl What {
    pub(super) fn kind(self, is_threaded: bool) -> HostWork {
        match self {
            What::Interrupt(_) => HostWork::Interrupt,
            What::Wake => HostWork::WakeUp,
            What::Routine(_) if is_threaded => HostWork::Thread,
            What::Routine(_) => HostWork::Softirq,
            What::Process(_) => HostWork::Process,
        }
    }
}

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) what: What,
    pub(super) started: Time,
    pub(super) done: Done,
    /// Target routines to wake, by place.
    pub(super) threads: Vec<usize>,
}

impl Piece {
    pub(super) fn of(what: What) -> Piece {
        Piece { what, started: Time::ZERO, done: Done::default(), threads: Vec::new() }
    }
}

/// Pending work of a core.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    /// The card's interrupts that have arrived, by place, and whether one goes on with what it
    /// found.
    pub(super) interrupts: VecDeque<usize>,
    pub(super) goes_on: bool,
    /// Another core's interrupt.
    pub(super) wake: bool,
    /// The target routine has work, as a softirq.
    pub(super) routine: bool,
    /// An interrupt was taken whose queue the routine has not polled.
    pub(super) taken: bool,
    /// When the softirqs under way began; none between them. And whether they wait for a process.
    pub(super) softirqs_since: Option<Time>,
    pub(super) yields: bool,
    /// Work that it owes to an earlier piece, in nanoseconds.
    pub(super) owed_ns: u64,
    /// The epoch whose end is already an event.
    pub(super) told_epoch: u64,
}
