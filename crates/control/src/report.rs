//! What a run came to: the JSON of `picnic run --json`, and the same for people.
//!
//! Fields carry their unit as suffix. `latency_ns` is from a packet's receive time to its target
//! routine; what the receive time is says `stamp` of its wire. Counts are
//! exact in every world; `times` says how all that is time, or a share of it, came about.

use crate::instrument::TraceReport;
use crate::latency::Recorded;
use picnic_core::ledger::LedgerTotals;
use picnic_machine::facts::MachineFacts;
use picnic_os::report::OsReport;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

/// A run's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Which card this is of, and what its figures must be read with; left out if nobody said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<RunInfo>,
    /// What ran the chain.
    pub engine: String,
    /// How its times came about: duration, latency, shares of time, times of tasks.
    #[serde(default)]
    pub times: Times,
    /// Seconds from start to the end of receiving.
    pub duration_s: f64,
    /// By wire.
    pub wires: Vec<WireReport>,
    /// By queue.
    pub queues: Vec<QueueReport>,
    /// What has stayed in the kernel of the packets that it shares with the poll engine; left out
    /// if one engine has all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelReport>,
    /// What the poll engine has of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollReport>,
    /// By function of the rx chain.
    pub functions: Vec<FunctionReport>,
    /// By function of the tx chain.
    pub tx_functions: Vec<FunctionReport>,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Packets dropped, by `reason@stage`.
    pub drops_by_stage: BTreeMap<String, u64>,
    /// Every packet's fate.
    #[serde(deserialize_with = "read_totals")]
    pub ledger: LedgerTotals,
    /// Buffers that did not come home; not zero is a bug.
    pub buffers_missing: usize,
    /// Wire to target routine, one packet in 16.
    pub latency_ns: LatencyReport,
    /// All latencies that were recorded, by queue. Commands leave them out unless asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latencies: Option<Vec<Recorded>>,
    /// The borrowed core.
    pub borrowed_core: CoreReport,
    /// The target cores.
    pub target_cores: Vec<TargetCoreReport>,
    /// NIC OS; left out if the card has none, and while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<OsReport>,
    /// The trace; left out if the card has none, and while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceReport>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// What a report is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The card's name.
    pub card: String,
    /// Its file; null for the built-in card.
    pub file: Option<String>,
    /// The version of picnic.
    pub version: String,
    /// The revision that it was built from.
    pub revision: String,
    /// The machine.
    pub machine: MachineFacts,
}

/// How times came about. A world has one kind: that of its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Times {
    /// Taken from a clock of the machine.
    #[default]
    Measured,
    /// They follow from costs that a model gives.
    Modelled,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Times::Measured => "measured",
            Times::Modelled => "modelled",
        })
    }
}

/// A wire's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WireReport {
    /// Its name in the card file.
    pub name: String,
    /// Packets taken into buffers.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets that came and were dropped at the wire; `drops_by_stage` has the reasons.
    #[serde(default)]
    pub rx_shed: u64,
    /// Packets transmitted.
    pub tx_packets: u64,
    /// Bytes transmitted.
    pub tx_bytes: u64,
    /// What the receive time of its packets is.
    #[serde(default)]
    pub stamp: Stamp,
    /// Times the physical NIC would have interrupted; 0 unless that is moderated (`wire_usecs`).
    #[serde(default)]
    pub interrupts: u64,
    /// Packets whose stamp was later than the turn that took them, and was taken for its time.
    #[serde(default)]
    pub stamps_ahead: u64,
}

/// What the receive time of a wire's packets is, from which latency counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stamp {
    /// When the packet arrived at the wire.
    Arrival,
    /// When the borrowed core took it: what it waited before does not show.
    #[default]
    Taken,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stamp::Arrival => "arrival",
            Stamp::Taken => "taken",
        })
    }
}

/// What the kernel has handed over to the poll engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollReport {
    /// Packets that filters have sent there.
    pub packets: u64,
    /// Those of them that it has taken.
    pub taken: u64,
    /// Those that were lost on the way, among `drops`.
    pub lost: u64,
    /// Packets that it has handed to its host, among those of the queues.
    pub delivered: u64,
    /// Packets that it has dropped, with those that were lost on the way.
    #[serde(default)]
    pub dropped: u64,
}

/// What has stayed in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelReport {
    /// Packets that came in and that no filter has sent to the poll engine.
    pub packets: u64,
    /// Those of them that its network stack was given.
    pub delivered: u64,
    /// Those that were dropped.
    pub dropped: u64,
}

impl Report {
    /// Of a card that the kernel and the poll engine share, both parts and their sum: packets that
    /// came in, delivered, dropped.
    pub fn parts(&self) -> Option<[(&'static str, [u64; 3]); 3]> {
        let (kernel, poll) = self.kernel.zip(self.poll)?;
        let kernel = [kernel.packets, kernel.delivered, kernel.dropped];
        let poll = [poll.packets, poll.delivered, poll.dropped];
        let both = std::array::from_fn(|count| kernel[count] + poll[count]);
        Some([("kernel", kernel), ("poll engine", poll), ("both", both)])
    }
}

/// A queue's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueueReport {
    /// Its number.
    pub queue: u16,
    /// Its target core.
    pub core: usize,
    /// Packets handed to the host.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Packets per interrupt; null without interrupts.
    pub packets_per_interrupt: Option<f64>,
    /// Times the ring was looked at.
    pub polls: u64,
    /// Times it was empty.
    pub empty_polls: u64,
    /// Doorbells that the borrowed core rang for it.
    pub doorbells: u64,
    /// Those of them that found one pending already, so that both were taken at once.
    #[serde(default)]
    pub doorbells_coalesced: u64,
    /// Packets the host transmitted.
    pub transmitted: u64,
    /// Packets of those that have left for a wire, or were refused by it.
    pub tx_completed: u64,
    /// Their bytes.
    pub tx_completed_bytes: u64,
    /// Bytes on their way to the wires at this moment.
    pub tx_in_flight_bytes: u64,
    /// Times that its tx ring had to wait because enough was on its way.
    pub tx_limited: u64,
    /// Packets dropped because the ring was full.
    pub ring_full: u64,
    /// Descriptors in the ring, as of the last millisecond.
    pub ring_depth: u64,
    /// Descriptors that fit into it.
    pub ring_size: u64,
    /// Wire to target routine, one packet in 16.
    #[serde(default)]
    pub latency_ns: LatencyReport,
}

/// A function's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FunctionReport {
    /// Its name in the card file.
    pub name: String,
    /// Packets given to it.
    pub packets: u64,
    /// Packets it dropped.
    pub dropped: u64,
    /// Nanoseconds it takes for a packet, as measured on one burst in 256 (with it, what packets
    /// that it makes take behind it); null where no clock is read, as in virtual time.
    #[serde(default)]
    pub ns_per_packet: Option<f64>,
    /// Nanoseconds that those bursts took.
    #[serde(default)]
    pub timed_ns: u64,
    /// Their packets.
    #[serde(default)]
    pub timed_packets: u64,
    /// What it counts itself, since it was inserted, whatever the report is of: the numbers that its
    /// command `get` shows. Left out without any, and while it runs unless asked for.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub counters: Map<String, Value>,
    /// Those of these numbers that may fall, as they are.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub gauges: Map<String, Value>,
}

/// Percentiles and means in nanoseconds; null if nothing was recorded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyReport {
    /// Median.
    pub p50: Option<u64>,
    /// 99th percentile.
    pub p99: Option<u64>,
    /// 99.9th percentile.
    pub p999: Option<u64>,
    /// Mean, the sum of the three that follow.
    pub mean: Option<u64>,
    /// Mean wait at the wire, from arrival until the borrowed core took the packet; null if no
    /// wire knows when packets arrive.
    pub at_wire: Option<u64>,
    /// Of that, until the physical NIC would have interrupted; null unless that is moderated
    /// (`wire_usecs`).
    pub held_at_wire: Option<u64>,
    /// Mean length of the turn of the borrowed core that took the packet.
    pub on_borrowed_core: Option<u64>,
    /// Mean of the rest: in the target ring, with the doorbell. Means of packets that were
    /// dropped on the way are in the two before and not in this one.
    pub in_target_ring: Option<u64>,
}

/// The borrowed core's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CoreReport {
    /// Its number.
    pub core: usize,
    /// The system's number of its thread, for `chrt` or `perf`; null on a virtual core.
    #[serde(default)]
    pub thread: Option<u64>,
    /// Share of the time spent in turns that found work; of a card in the kernel, that its threads
    /// which poll the wires ran.
    pub busy_fraction: f64,
    /// Share of the time that the core spent in softirqs, those of other interfaces included; null
    /// unless the card is in the kernel.
    #[serde(default)]
    pub softirq_fraction: Option<f64>,
    /// Share of the time spent asleep.
    pub asleep_fraction: f64,
    /// Times it woke from sleep.
    pub wakeups: u64,
    /// How much of its time others had; null where that cannot be, as in virtual time.
    #[serde(default)]
    pub taken_away: Option<TakenAway>,
}

/// Times in which the borrowed core was not the card's: another thread had it, the kernel, or the
/// hypervisor another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenAway {
    /// Nanoseconds in all.
    pub total_ns: u64,
    /// Times it happened.
    pub times: u64,
    /// Nanoseconds of the longest; null if there was none, or if it may have been before the
    /// window that this is of.
    pub longest_ns: Option<u64>,
    /// Packets that were dropped in the turns right behind: they came meanwhile.
    pub drops: u64,
    /// Shorter ones are not seen.
    pub threshold_ns: u64,
}

/// A target core's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetCoreReport {
    /// Its number.
    pub core: usize,
    /// The system's number of its thread, for `chrt` or `perf`; null on a virtual core.
    #[serde(default)]
    pub thread: Option<u64>,
    /// Share of the time spent asleep.
    pub asleep_fraction: f64,
    /// Times its thread woke from sleep.
    pub wakeups: u64,
    /// How its thread is scheduled: "real-time" or "normal".
    pub priority: String,
    /// Times it had preempted others for 2 ms and let them have their turn.
    pub priority_yields: u64,
}

/// Reads the sums back; the drops by reason stand beside them in a report.
fn read_totals<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LedgerTotals, D::Error> {
    #[derive(Deserialize)]
    struct Sums {
        r#in: u64,
        delivered: u64,
        transmitted: u64,
        consumed: u64,
        dropped: u64,
        in_flight: u64,
    }
    let sums = Sums::deserialize(deserializer)?;
    Ok(LedgerTotals {
        r#in: sums.r#in,
        delivered: sums.delivered,
        transmitted: sums.transmitted,
        consumed: sums.consumed,
        dropped: sums.dropped,
        in_flight: sums.in_flight,
        ..LedgerTotals::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench;

    #[test]
    fn the_parts_of_a_shared_card_add_up() {
        let mut report = bench::parts(&bench::card("")).monitor.report();
        assert_eq!(report.parts(), None);
        report.kernel = Some(KernelReport { packets: 7, delivered: 4, dropped: 3 });
        let poll = PollReport { packets: 90, taken: 80, lost: 10, delivered: 60, dropped: 30 };
        report.poll = Some(poll);
        let parts = [("kernel", [7, 4, 3]), ("poll engine", [90, 60, 30]), ("both", [97, 64, 33])];
        assert_eq!(report.parts(), Some(parts));
    }
}
