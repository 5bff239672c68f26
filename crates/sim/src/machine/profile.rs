//! A machine as data: topology, policies and costs, each figure with its source.
//!
//! ```toml
//! help = "one line"
//! [topology]
//! packages = [[[0, 1], [2, 3]]]   # packages of caches of cores
//! [costs]
//! interrupt_ns = { value = 700, unit = "ns", source = "assumed", from = "typical of the period" }
//! ```
//!
//! A figure's `source` is `"paper"`, `"datasheet"`, `"assumed"`, `"fitted"` or `"measured"`; `from` is
//! the sentence, or the reason. A fitted figure also has its `point`: the figure of a paper that it was
//! fitted to. A profile must give this for every figure and policy, or it is refused.
//!
//! `interrupt_way_ns` may be a list of pairs: the way of an interrupt to a core after each length of
//! its sleep.
//!
//! Guarantees: all errors of a profile are reported at once, with file, line, key, found and
//! allowed values; a missing cost is 0.

mod reader;

use super::distance::Distances;
use super::scheduler::Placement;
use super::wake::WakeUps;
use reader::Reader;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The source of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A sentence of the paper.
    Paper,
    /// A datasheet, or the defaults of a driver.
    Datasheet,
    /// Typical of the period: a guess.
    Assumed,
    /// Chosen to reproduce one figure of the paper.
    Fitted,
    /// Timed on the machine that it describes: `picnic lab calibrate`.
    Measured,
}

impl Source {
    const ALL: [(&'static str, Source); 5] = [
        ("paper", Source::Paper),
        ("datasheet", Source::Datasheet),
        ("assumed", Source::Assumed),
        ("fitted", Source::Fitted),
        ("measured", Source::Measured),
    ];

    /// Its name in profiles.
    pub fn name(self) -> &'static str {
        Source::ALL.iter().find(|(_, source)| *source == self).map_or("", |(name, _)| name)
    }
}

macro_rules! costs {
    ($($name:ident $key:literal $unit:literal $most:literal $help:literal,)*) => {
        /// A cost in a profile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Cost { $(#[doc = $help] $name,)* }

        impl Cost {
            /// All of them.
            pub const ALL: &'static [Cost] = &[$(Cost::$name,)*];

            /// Its key in profiles.
            pub const fn key(self) -> &'static str {
                match self { $(Cost::$name => $key,)* }
            }

            /// Its unit.
            pub const fn unit(self) -> &'static str {
                match self { $(Cost::$name => $unit,)* }
            }

            /// The largest plausible value.
            pub const fn most(self) -> f64 {
                match self { $(Cost::$name => $most,)* }
            }

            /// One line of help.
            pub const fn help(self) -> &'static str {
                match self { $(Cost::$name => $help,)* }
            }
        }
    };
}

costs! {
    CardTurn "card_turn_ns" "ns" 1e6 "a turn of the borrowed core beside its packets; 0: part of card_packet_ns",
    CardPacket "card_packet_ns" "ns" 1e6 "one received packet on the borrowed core",
    CardSend "card_send_ns" "ns" 1e6 "one sent packet on the borrowed core",
    InterruptSend "interrupt_send_ns" "ns" 1e6 "interrupting another core, for the sender",
    InterruptWay "interrupt_way_ns" "ns" 1e6 "from sending an interrupt to its arrival",
    NicGap "nic_gap_ns" "ns" 1e7 "least time between two interrupts of the physical NIC",
    Interrupt "interrupt_ns" "ns" 1e6 "entering and leaving an interrupt",
    Softirq "softirq_ns" "ns" 1e6 "entering and leaving a softirq",
    SoftirqMost "softirq_most_ns" "ns" 1e9 "longest run of softirqs before a process gets a turn",
    RegisterRead "register_read_ns" "ns" 1e6 "one read of a device register",
    RegisterReads "register_reads" "reads/interrupt" 100.0 "register reads in an interrupt of the NIC",
    RegisterWrite "register_write_ns" "ns" 1e6 "one write of a device register",
    DriverInterrupt "driver_interrupt_ns" "ns" 1e6 "the driver's work for an interrupt of the NIC",
    DriverReceive "driver_receive_ns" "ns" 1e6 "the driver's work for a received packet",
    DriverDone "driver_done_ns" "ns" 1e6 "the driver's look at an empty ring",
    DriverSend "driver_send_ns" "ns" 1e6 "the driver's work for a sent packet",
    StackReceive "stack_receive_ns" "ns" 1e6 "the stack's work for a received segment with data",
    StackAck "stack_ack_ns" "ns" 1e6 "the stack's work for a received acknowledgement",
    StackSend "stack_send_ns" "ns" 1e6 "the stack's work for a sent segment",
    StackSendAck "stack_send_ack_ns" "ns" 1e6 "the stack's work for a sent acknowledgement",
    Allocate "allocate_ns" "ns" 1e6 "allocating a buffer",
    Free "free_ns" "ns" 1e6 "freeing a buffer",
    SystemCall "system_call_ns" "ns" 1e6 "one system call on a socket",
    CopySegment "copy_segment_ns" "ns" 1e6 "copying a segment, independent of its length",
    CopyByte "copy_byte_ns" "ns/byte" 1e3 "copying one byte",
    Wake "wake_ns" "ns" 1e6 "waking a process, for the waking core",
    Switch "switch_ns" "ns" 1e6 "a context switch",
    Slice "slice_ns" "ns" 1e9 "a time slice",
    Chunk "chunk_ns" "ns" 1e7 "longest work of a process between two checks of the run queue",
    CardSlowdown "card_slowdown" "times" 1e4 "how much longer the card's processor takes for the host's code; 0: as long",
    Filter "filter_ns" "ns" 1e6 "one packet in a single filter, on a core of the host",
    FilterDoubling "filter_doubling_ns" "ns" 1e6 "the same, for each doubling of the filters",
    Classify "classify_ns" "ns" 1e6 "finding a packet's core in software",
    LockHold "lock_hold_ns" "ns" 1e6 "holding the lock of a core's queue",
    LockHandOver "lock_hand_over_ns" "ns" 1e6 "moving a lock to another core",
    Application "application_ns" "ns/request" 1e8 "the application's work for a request",
    HeaderLines "header_lines" "lines" 1e3 "lines of a packet's headers, read from memory",
    SocketLines "socket_lines" "lines" 1e3 "lines of a socket's state",
    BufferLines "buffer_lines" "lines" 1e3 "lines of a buffer's state",
    ProcessLines "process_lines" "lines" 1e4 "lines that a process needs to continue after a move",
    SharedCacheLine "shared_cache_line_ns" "ns/line" 1e4 "a line from a core of the same cache",
    PackageLine "package_line_ns" "ns/line" 1e4 "a line from a core of the same package",
    RemoteLine "remote_line_ns" "ns/line" 1e4 "a line from another package",
    MemoryLine "memory_line_ns" "ns/line" 1e4 "a line from memory",
    SequenceLine "sequence_line_ns" "ns/line" 1e4 "a line of received payload from memory, in sequence",
    LinesInFlight "lines_in_flight" "lines" 64.0 "lines of a copy that are fetched at a time",
    PipelineShare "pipeline_share" "pipelines/thread" 1.0 "share of a pipeline that one hardware thread uses; 0: a pipeline each",
    IntegratedRead "integrated_read_ns" "ns" 1e6 "one register read of a device on the processor",
    BusWay "bus_ns" "ns" 1e6 "from a discrete device to memory, or back",
}

/// The costs of a machine; 0 unless given.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs(Vec<f64>);

impl Default for Costs {
    fn default() -> Self {
        Costs(vec![0.0; Cost::ALL.len()])
    }
}

impl Costs {
    /// A cost, unrounded.
    pub fn get(&self, cost: Cost) -> f64 {
        self.0[cost as usize]
    }

    /// A cost in whole nanoseconds.
    pub fn ns(&self, cost: Cost) -> u64 {
        self.get(cost).round() as u64
    }

    /// Changes a cost.
    pub fn set(&mut self, cost: Cost, value: f64) {
        self.0[cost as usize] = value;
    }

    /// The same costs with one of them changed.
    #[must_use]
    pub fn with(mut self, cost: Cost, value: f64) -> Self {
        self.set(cost, value);
        self
    }
}

/// A figure of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its key.
    pub key: String,
    /// Its value, as text.
    pub value: String,
    /// Its unit; empty for policies.
    pub unit: &'static str,
    /// Its source.
    pub source: Source,
    /// The sentence, or the reason.
    pub from: String,
    /// For a fitted figure: the figure of the paper.
    pub point: Option<String>,
}

/// Where the target routine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routine {
    /// In a softirq.
    #[default]
    Softirq,
    /// In a kernel thread of each core, with the priority of a process.
    Thread,
}

/// Which cores the NIC interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interrupts {
    /// The core of the queue.
    #[default]
    QueueCore,
    /// The core of the first queue, which wakes the threads of the others.
    FirstCore,
}

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// One line about it.
    pub help: String,
    /// Packages of caches of cores.
    pub packages: Vec<Vec<Vec<usize>>>,
    /// Cores with consecutive numbers that share a pipeline: hardware threads.
    pub threads_per_pipeline: usize,
    /// The placement of woken processes.
    pub placement: Placement,
    /// Whether idle cores take processes from others.
    pub steals: bool,
    /// Where the target routine runs.
    pub routine: Routine,
    /// Which cores the NIC interrupts.
    pub interrupts: Interrupts,
    /// Its costs.
    pub costs: Costs,
    /// The ways of interrupts to cores that sleep, if they differ.
    pub wake_ups: WakeUps,
    /// All figures with their sources, in the order of the file.
    pub figures: Vec<Figure>,
}

/// The built-in profiles: name and text.
pub const PROFILES: &[(&str, &str)] = &[
    ("netburst", include_str!("../../profiles/netburst.toml")),
    ("x5355", include_str!("../../profiles/x5355.toml")),
    ("x5355-tx", include_str!("../../profiles/x5355-tx.toml")),
    ("piii", include_str!("../../profiles/piii.toml")),
    ("niagara2", include_str!("../../profiles/niagara2.toml")),
    ("core2", include_str!("../../profiles/core2.toml")),
    ("tigon", include_str!("../../profiles/tigon.toml")),
];

/// All errors of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileError(pub Vec<String>);

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ProfileError {}

impl Profile {
    /// A built-in profile.
    ///
    /// # Errors
    /// No profile has this name; the message lists the known ones.
    pub fn named(name: &str) -> Result<Profile, ProfileError> {
        match PROFILES.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Profile::parse(name, &format!("{name}.toml"), text),
            None => {
                let known = PROFILES.iter().map(|(known, _)| *known);
                let message = picnic_core::error::not_among("profile ", name, known);
                Err(ProfileError(vec![message]))
            }
        }
    }

    /// Reads a profile's text; `file` is for messages.
    ///
    /// # Errors
    /// All errors: file, line, key, found, allowed.
    pub fn parse(name: &str, file: &str, text: &str) -> Result<Profile, ProfileError> {
        let mut reader = Reader { file, text, errors: Vec::new() };
        let profile = reader.profile(name);
        match profile {
            Some(profile) if reader.errors.is_empty() => Ok(profile),
            _ => Err(ProfileError(reader.errors)),
        }
    }

    /// Cores of the machine.
    pub fn cores(&self) -> usize {
        self.packages.iter().flatten().map(Vec::len).sum()
    }

    /// The costs of lines by distance. Cores that share are assumed to have consecutive numbers.
    pub fn distances(&self) -> Distances {
        let first = self.packages.first();
        Distances {
            cores_per_cache: first.and_then(|package| package.first()).map_or(1, Vec::len),
            cores_per_package: first.map_or(1, |package| package.iter().map(Vec::len).sum()),
            shared_cache_ns: self.costs.get(Cost::SharedCacheLine),
            package_ns: self.costs.get(Cost::PackageLine),
            remote_ns: self.costs.get(Cost::RemoteLine),
            memory_ns: self.costs.get(Cost::MemoryLine),
            in_sequence_ns: self.costs.get(Cost::SequenceLine),
            in_flight: self.costs.get(Cost::LinesInFlight),
        }
    }

    /// Nanoseconds of a processor of the card for code that takes a core of the host `host_ns`.
    pub fn on_card_ns(&self, host_ns: f64) -> f64 {
        match self.costs.get(Cost::CardSlowdown) {
            0.0 => host_ns,
            times => host_ns * times,
        }
    }

    /// The fitted costs, with the figures that they were fitted to.
    pub fn fitted(&self) -> impl Iterator<Item = (Cost, &str)> {
        self.of_source(Source::Fitted)
            .filter_map(|(cost, figure)| Some((cost, figure.point.as_deref()?)))
    }

    /// The costs of one source.
    pub fn of_source(&self, source: Source) -> impl Iterator<Item = (Cost, &Figure)> {
        self.figures.iter().filter(move |figure| figure.source == source).filter_map(|figure| {
            let cost = Cost::ALL.iter().find(|cost| cost.key() == figure.key)?;
            Some((*cost, figure))
        })
    }
}

#[cfg(test)]
mod tests;
