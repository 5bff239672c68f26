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

use super::distance::Distances;
use super::scheduler::Placement;
use super::wake::WakeUps;
use serde::{Deserialize, Serialize};
use std::fmt;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

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

/// Reads a profile and collects errors.
struct Reader<'t> {
    file: &'t str,
    text: &'t str,
    errors: Vec<String>,
}

type Table<'t> = DeTable<'t>;

impl<'t> Reader<'t> {
    fn wrong(&mut self, at: usize, key: &str, message: &str) {
        let line = self.text.get(..at).unwrap_or(self.text).matches('\n').count() + 1;
        self.errors.push(format!("{}:{line}: {key}: {message}", self.file));
    }

    fn profile(&mut self, name: &str) -> Option<Profile> {
        let table = match DeTable::parse(self.text) {
            Ok(table) => table.into_inner(),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                self.wrong(at, "", &format!("not TOML: {}", error.message()));
                return None;
            }
        };
        let mut profile = Profile {
            name: name.into(),
            help: String::new(),
            packages: Vec::new(),
            threads_per_pipeline: 1,
            placement: Placement::Stay,
            steals: false,
            routine: Routine::Softirq,
            interrupts: Interrupts::QueueCore,
            costs: Costs::default(),
            wake_ups: WakeUps::default(),
            figures: Vec::new(),
        };
        for (key, value) in sorted(&table) {
            let at = key.span().start;
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("help", DeValue::String(help)) => profile.help = help.to_string(),
                ("topology", DeValue::Table(table)) => self.topology(at, table, &mut profile),
                ("policy", DeValue::Table(table)) => self.policies(table, &mut profile),
                ("costs", DeValue::Table(table)) => self.costs(table, &mut profile),
                (key @ ("help" | "topology" | "policy" | "costs"), found) => {
                    let wanted = if key == "help" { "a text" } else { "a set of keys" };
                    self.wrong(at, key, &format!("found {}, allowed: {wanted}", shown(found)));
                }
                (key, _) => {
                    self.wrong(at, key, "unknown key, allowed: help, topology, policy, costs");
                }
            }
        }
        if table.get("topology").is_none() {
            self.wrong(0, "topology", "missing, expected packages of caches of cores");
        }
        Some(profile)
    }

    fn topology(&mut self, at: usize, table: &Table<'_>, profile: &mut Profile) {
        for (key, value) in sorted(table) {
            let at = key.span().start;
            if key.get_ref() == "threads_per_pipeline" {
                match core(value).filter(|threads| (1..=64).contains(threads)) {
                    Some(threads) => profile.threads_per_pipeline = threads,
                    None => {
                        let message = format!("found {}, allowed: 1 to 64", shown(value.get_ref()));
                        self.wrong(at, "topology.threads_per_pipeline", &message);
                    }
                }
                continue;
            }
            if key.get_ref() != "packages" {
                self.wrong(
                    at,
                    &format!("topology.{}", key.get_ref()),
                    "unknown key, allowed: packages, threads_per_pipeline",
                );
                continue;
            }
            let packages = list(value).and_then(|packages| {
                let cores = |cache| list(cache)?.iter().map(core).collect();
                let caches = |package| list(package)?.iter().map(cores).collect();
                packages.iter().map(caches).collect::<Option<Vec<Vec<Vec<usize>>>>>()
            });
            match packages {
                Some(packages) => profile.packages = packages,
                None => self.wrong(
                    at,
                    "topology.packages",
                    "expected a list of packages, each a list of caches, each a list of cores",
                ),
            }
        }
        let mut cores: Vec<usize> = profile.packages.iter().flatten().flatten().copied().collect();
        if cores.is_empty() {
            return self.wrong(at, "topology.packages", "found no core, expected at least one");
        }
        if profile.packages.iter().flatten().any(Vec::is_empty) {
            self.wrong(at, "topology.packages", "found a cache without a core");
        }
        cores.sort_unstable();
        for core in 0..cores.len() {
            if cores.get(core..).and_then(|rest| rest.first()) != Some(&core) {
                let twice = cores.windows(2).find(|two| two[0] == two[1]).map(|two| two[0]);
                let message = match twice {
                    Some(core) => format!("found core {core} twice, expected each core once"),
                    None => {
                        format!("found no core {core}, expected each of 0 to {}", cores.len() - 1)
                    }
                };
                return self.wrong(at, "topology.packages", &message);
            }
        }
    }

    fn policies(&mut self, table: &Table<'_>, profile: &mut Profile) {
        let mut first_core_at = None;
        for (key, value) in sorted(table) {
            let name = format!("policy.{}", key.get_ref());
            let Some(figure) = self.figure(key.span().start, &name, value, "") else { continue };
            let at = key.span().start;
            let word = figure.value.clone();
            let mut choose = |allowed: &[&str]| {
                let found = allowed.iter().position(|allowed| *allowed == word);
                if found.is_none() {
                    let message = format!("found {word}, allowed: {}", allowed.join(", "));
                    self.wrong(at, &name, &message);
                }
                found
            };
            match key.get_ref().as_ref() {
                "placement" => {
                    if let Some(found) = choose(&["stay", "idle-first", "near-waker"]) {
                        profile.placement =
                            [Placement::Stay, Placement::IdleFirst, Placement::NearWaker][found];
                    }
                }
                "steals" => {
                    if let Some(found) = choose(&["false", "true"]) {
                        profile.steals = found == 1;
                    }
                }
                "routine" => {
                    if let Some(found) = choose(&["softirq", "thread"]) {
                        profile.routine = [Routine::Softirq, Routine::Thread][found];
                    }
                }
                "interrupts" => {
                    if let Some(found) = choose(&["queue-core", "first-core"]) {
                        profile.interrupts = [Interrupts::QueueCore, Interrupts::FirstCore][found];
                        first_core_at = (found == 1).then_some(at);
                    }
                }
                _ => {
                    let allowed = "placement, steals, routine, interrupts";
                    self.wrong(at, &name, &format!("unknown key, allowed: {allowed}"));
                    continue;
                }
            }
            profile.figures.push(Figure { key: name, ..figure });
        }
        if let (Some(at), Routine::Softirq) = (first_core_at, profile.routine) {
            let message = "found first-core with routine softirq, expected routine = thread";
            self.wrong(at, "policy.interrupts", message);
        }
    }

    fn costs(&mut self, table: &Table<'_>, profile: &mut Profile) {
        for (key, value) in sorted(table) {
            let at = key.span().start;
            let name = format!("costs.{}", key.get_ref());
            let Some(cost) = Cost::ALL.iter().find(|cost| cost.key() == key.get_ref()).copied()
            else {
                let keys = Cost::ALL.iter().map(|cost| cost.key());
                let message = picnic_core::error::not_among("", key.get_ref(), keys);
                self.wrong(at, &name, &message);
                continue;
            };
            let Some(mut figure) = self.figure(at, &name, value, cost.unit()) else { continue };
            if cost == Cost::InterruptWay
                && let Some(pairs) = pairs(value)
            {
                match pairs.and_then(WakeUps::new) {
                    Ok(ways) => {
                        (figure.key, figure.value) = (cost.key().into(), ways.to_string());
                        profile.costs.set(cost, ways.shortest_sleep_ns().unwrap_or(0.0));
                        profile.wake_ups = ways;
                        profile.figures.push(figure);
                    }
                    Err(message) => self.wrong(at, &name, &message),
                }
                continue;
            }
            match figure.value.parse::<f64>() {
                Ok(number) if (0.0..=cost.most()).contains(&number) => {
                    profile.costs.set(cost, number);
                    profile.figures.push(Figure { key: cost.key().into(), ..figure });
                }
                _ => {
                    let message = format!("found {}, allowed: 0 to {}", figure.value, cost.most());
                    self.wrong(at, &name, &message);
                }
            }
        }
    }

    /// A figure with its source; `unit` is the required one.
    fn figure(
        &mut self,
        at: usize,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        unit: &'static str,
    ) -> Option<Figure> {
        let DeValue::Table(table) = value.get_ref() else {
            let keys =
                if unit.is_empty() { "value, source, from" } else { "value, unit, source, from" };
            let found = shown(value.get_ref());
            self.wrong(at, name, &format!("found {found}, expected {{ {keys} }}"));
            return None;
        };
        let errors = self.errors.len();
        let text = |key: &str| table.get(key).map(|value| shown(value.get_ref()));
        for (key, _) in sorted(table) {
            if !["value", "unit", "source", "from", "point"].contains(&key.get_ref().as_ref()) {
                let message = format!(
                    "unknown key {}, allowed: value, unit, source, from, point",
                    key.get_ref()
                );
                self.wrong(at, name, &message);
            }
        }
        for key in ["value", "source", "from"] {
            if text(key).is_none_or(|text| text.trim().is_empty()) {
                self.wrong(at, name, &format!("{key} is missing"));
            }
        }
        if text("unit").unwrap_or_default() != unit {
            let found = text("unit").unwrap_or("none".into());
            self.wrong(at, name, &format!("found unit {found}, expected {unit}"));
        }
        let found = text("source").unwrap_or_default();
        let source = Source::ALL.iter().find(|(name, _)| *name == found).map(|(_, source)| *source);
        if source.is_none() && table.get("source").is_some() {
            let message = format!(
                "found source {found}, allowed: paper, datasheet, assumed, fitted, measured"
            );
            self.wrong(at, name, &message);
        }
        match (source, text("point")) {
            (Some(Source::Fitted), None) => {
                self.wrong(
                    at,
                    name,
                    "fitted without point, expected the paper's figure that it was fitted to",
                );
            }
            (Some(other), Some(_)) if other != Source::Fitted => {
                self.wrong(at, name, "found point, allowed only with source = \"fitted\"");
            }
            _ => {}
        }
        (self.errors.len() == errors).then(|| Figure {
            key: name.into(),
            value: text("value").unwrap_or_default(),
            unit,
            source: source.unwrap_or(Source::Assumed),
            from: text("from").unwrap_or_default(),
            point: text("point"),
        })
    }
}

/// The entries of a table in the order of the file.
fn sorted<'a, 't>(
    table: &'a Table<'t>,
) -> Vec<(&'a Spanned<std::borrow::Cow<'t, str>>, &'a Spanned<DeValue<'t>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn list<'a, 't>(value: &'a Spanned<DeValue<'t>>) -> Option<&'a [Spanned<DeValue<'t>>]> {
    match value.get_ref() {
        DeValue::Array(items) => Some(items),
        _ => None,
    }
}

/// The pairs of numbers in a figure's value; none if it is no list.
fn pairs(figure: &Spanned<DeValue<'_>>) -> Option<Result<Vec<(f64, f64)>, String>> {
    let DeValue::Table(table) = figure.get_ref() else { return None };
    let number = |value: &Spanned<DeValue<'_>>| shown(value.get_ref()).parse::<f64>().ok();
    let pair = |value| match list(value)? {
        [slept, way] => Some((number(slept)?, number(way)?)),
        _ => None,
    };
    let pairs = list(table.get("value")?)?.iter().map(pair).collect::<Option<_>>();
    Some(pairs.ok_or_else(|| "expected a number, or a list of [SLEPT, WAY]".into()))
}

fn core(value: &Spanned<DeValue<'_>>) -> Option<usize> {
    match value.get_ref() {
        DeValue::Integer(number) => number.as_str().replace('_', "").parse().ok(),
        _ => None,
    }
}

fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().replace('_', ""),
        DeValue::Float(number) => number.as_str().replace('_', ""),
        DeValue::Boolean(is) => is.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a set of keys".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "help = \"a machine\"\n[topology]\npackages = [[[0, 1], [2, 3]]]\n\
        [policy]\nplacement = { value = \"near-waker\", source = \"assumed\", from = \"Linux 2.6\" }\n\
        [costs]\ninterrupt_ns = { value = 700, unit = \"ns\", source = \"assumed\", from = \"typical\" }\n\
        card_packet_ns = { value = 2_857.5, unit = \"ns\", source = \"fitted\", from = \"1 / 350\", \
        point = \"picnic-latency\" }\n";

    fn refused(text: &str) -> Vec<String> {
        Profile::parse("test", "test.toml", text).unwrap_err().0
    }

    #[test]
    fn a_profile_has_its_figures_with_their_sources() {
        let profile = Profile::parse("test", "test.toml", GOOD).unwrap();
        assert_eq!((profile.cores(), profile.placement), (4, Placement::NearWaker));
        assert_eq!(profile.costs.ns(Cost::Interrupt), 700);
        assert_eq!(profile.costs.get(Cost::CardPacket), 2857.5);
        assert_eq!(profile.costs.ns(Cost::Switch), 0);
        assert_eq!(profile.fitted().collect::<Vec<_>>(), [(Cost::CardPacket, "picnic-latency")]);
        let distances = profile.distances();
        assert_eq!((distances.cores_per_cache, distances.cores_per_package), (2, 4));
    }

    #[test]
    fn all_errors_are_reported_at_once_with_their_line() {
        let text = "[topology]\npackages = [[[0, 0]]]\n[costs]\nirq_ns = { value = 1 }\n\
            interrupt_ns = { value = 700, unit = \"us\", from = \"x\" }\n\
            switch_ns = { value = -1, unit = \"ns\", source = \"assumed\", from = \"x\" }\n\
            wake_ns = { value = 9, unit = \"ns\", source = \"fitted\", from = \"x\" }\n\
            free_ns = 7\nspeed = 1\n\
            slice_ns = { value = 1e10, unit = \"ns\", source = \"assumed\", from = \"x\" }\n\
            chunk_ns = { value = nan, unit = \"ns\", source = \"assumed\", from = \"x\" }\n\
            copy_byte_ns = { value = inf, unit = \"ns/byte\", source = \"guess\", from = \" \" }\n";
        let found = refused(text);
        for (wanted, line) in [
            ("topology.packages: found core 0 twice, expected each core once", 1),
            ("costs.irq_ns: ", 4),
            ("costs.interrupt_ns: source is missing", 5),
            ("costs.interrupt_ns: found unit us, expected ns", 5),
            ("costs.switch_ns: found -1, allowed: 0 to 1000000", 6),
            ("costs.wake_ns: fitted without point", 7),
            ("costs.free_ns: found 7, expected { value, unit, source, from }", 8),
            ("costs.speed: ", 9),
            ("costs.slice_ns: found 1e10, allowed: 0 to 1000000000", 10),
            ("costs.chunk_ns: found nan, allowed: 0 to 10000000", 11),
            ("costs.copy_byte_ns: from is missing", 12),
            ("costs.copy_byte_ns: found source guess, allowed: paper, ", 12),
        ] {
            let wanted = format!("test.toml:{line}: {wanted}");
            assert!(found.iter().any(|found| found.starts_with(&wanted)), "{wanted}: {found:#?}");
        }
        assert_eq!(found.len(), 12, "{found:#?}");
    }

    #[test]
    fn the_way_of_an_interrupt_may_follow_from_the_sleep() {
        let with = |value: &str| {
            format!(
                "help = \"x\"\n[topology]\npackages = [[[0]]]\n[costs]\ninterrupt_way_ns = {{ value = \
                 {value}, unit = \"ns\", source = \"measured\", from = \"x\" }}\n"
            )
        };
        let text = with("[[0, 9_000], [20_000, 21_000]]");
        let profile = Profile::parse("x", "x.toml", &text).unwrap();
        assert_eq!(profile.costs.ns(Cost::InterruptWay), 9_000);
        assert_eq!(profile.wake_ups.way_ns(10_000), Some(15_000));
        assert_eq!(profile.figures[0].value, "9000 after 0, 21000 after 20000");
        let one = Profile::parse("x", "x.toml", &with("9_000")).unwrap();
        assert_eq!((one.wake_ups.way_ns(7), one.costs.ns(Cost::InterruptWay)), (None, 9_000));
        for (value, wanted) in [
            ("[]", "5: costs.interrupt_way_ns: expected a first pair [0, WAY]"),
            ("[[0, 1, 2]]", "5: costs.interrupt_way_ns: expected a number, or a list"),
            ("[[0, 1], [0, 2]]", "5: costs.interrupt_way_ns: expected pairs in the order"),
        ] {
            let found = refused(&with(value));
            assert!(found[0].contains(wanted), "{found:?}");
        }
    }

    #[test]
    fn a_topology_needs_every_core_once() {
        let with = |packages: &str| refused(&format!("[topology]\npackages = {packages}\n"));
        assert!(with("[]")[0].contains("found no core, expected at least one"));
        assert!(with("[[[0], [2]]]")[0].contains("found no core 1"), "{:?}", with("[[[0], [2]]]"));
        assert!(with("[[0]]")[0].contains("expected a list of packages"));
        let first_core = "[topology]\npackages = [[[0]]]\n[policy]\n\
            interrupts = { value = \"first-core\", source = \"paper\", from = \"x\" }\n";
        assert!(
            refused(first_core)[0].contains("4: policy.interrupts: found first-core with routine")
        );
        assert!(refused("help = 3\n").iter().any(|error| error.contains("topology: missing")));
        assert!(refused("help = \n")[0].contains("not TOML"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_causes_a_panic(
            cut in 0..GOOD.len(),
            with in "[\\[\\]{}=\"',.0-9a-zé\n -]{0,12}",
        ) {
            let mut text = GOOD.to_owned();
            text.insert_str(cut, &with);
            if let Err(error) = Profile::parse("test", "test.toml", &text) {
                proptest::prop_assert!(error.0.iter().all(|line| line.starts_with("test.toml:")));
            }
        }
    }

    #[test]
    fn built_in_profiles_are_valid() {
        for (name, _) in PROFILES {
            let profile = Profile::named(name).unwrap_or_else(|error| panic!("{error}"));
            assert!(!profile.help.is_empty() && profile.fitted().count() <= 2, "{name}");
        }
        let error = Profile::named("netbrust").unwrap_err().to_string();
        assert!(error.contains("netbrust") && error.contains("netburst"), "{error}");
    }
}
