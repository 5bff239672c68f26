//! What a simulation came to. Counts are exact; every time in it is modelled.

use crate::trace::Trace;
use hdrhistogram::Histogram;
use picnic_core::ledger::LedgerTotals;
use picnic_os::report::OsReport;

/// A card's end.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Virtual nanoseconds from the start to the end; modelled.
    pub duration_ns: u64,
    /// The ledger, with nothing in flight.
    pub ledger: LedgerTotals,
    /// Buffers that did not come home; anything but zero is a bug.
    pub buffers_missing: usize,
    /// By queue.
    pub queues: Vec<QueueOutcome>,
    /// By core, lowest first.
    pub cores: Vec<CoreOutcome>,
    /// NIC OS; times in it are modelled.
    pub os: Option<OsReport>,
    /// What happened.
    pub trace: Trace,
}

/// What one queue came to.
#[derive(Clone, Debug)]
pub struct QueueOutcome {
    /// The queue's number.
    pub queue: u16,
    /// Packets handed to the host.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Times the ring was looked at.
    pub polls: u64,
    /// Times it was empty.
    pub empty_polls: u64,
    /// Packets the host sent.
    pub transmitted: u64,
    /// Packets dropped because the ring was full.
    pub ring_full: u64,
    /// From wire to target routine, in nanoseconds, one packet in 16; modelled.
    pub latency: Histogram<u64>,
}

/// What one virtual core came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreOutcome {
    /// Its number.
    pub core: usize,
    /// Whether it is the borrowed core.
    pub borrowed: bool,
    /// Nanoseconds it worked, idle turns included; modelled.
    pub busy_ns: u64,
}
