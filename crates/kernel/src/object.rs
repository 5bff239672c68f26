//! Loads the programs for a plan: sets constants, fills maps, attaches nothing.
//!
//! Guarantees: the verifier sees the plan as constants, so unused features cost nothing. An error
//! includes the kernel's message.
//!
//! Source: bpf(2); Documentation/bpf/map_cpumap.rst.

use crate::constants::Constants;
use crate::counters::{COUNTS, CoreCounts};
use crate::elf::share;
use crate::flows::slots;
use crate::objects::XdpObject;
use crate::plan::{MOST_CORES, MOST_QUEUES, MOST_STEPS, Plan, SLACK};
use crate::pools::places;
use crate::rules::{Maps, pages};
use crate::tables::{Switch, Tables};
use aya::maps::{Array, CpuMap, Map, MapData, PerCpuArray, ProgramArray};
use aya::programs::links::FdLink;
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::xdp::XdpLink;
use aya::programs::{
    LinkOrder, ProgramError, RawTracePoint, SchedClassifier, TcAttachType, Xdp, XdpMode,
};
use aya::{Ebpf, EbpfLoader, Pod};
use picnic_control::error::RunError;
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_forms::Handover;
use picnic_machine::error::MachineError;
use picnic_machine::relay::Relay;
use rustix::thread::{MembarrierCommand, membarrier};
use std::error::Error;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The programs as compiled by clang; empty without it.
pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/card.bpf.o"));

/// The error for missing programs, with the fix.
const WITHOUT_CLANG: &str = "picnic was built without clang, which compiles its programs: install it \
                             (apt-get install clang), then build picnic again";

/// Operation not permitted.
const EPERM: i32 = 1;

/// How long a detached program may keep running, or keep using replaced data, unless it is
/// preempted.
const SETTLE: Duration = Duration::from_millis(20);

/// Waits until no program that was running at the call still runs, and its packets have been handed
/// over.
pub(crate) fn settle() {
    std::thread::sleep(SETTLE);
    // A program may be preempted for longer, in the middle of a batch; but a batch is one RCU
    // read-side section, and this waits for those. Kernels with tickless cores (nohz_full) lack
    // this call.
    let _ = membarrier(MembarrierCommand::Global);
}

/// Index of the program that continues after a user's own program.
const RESUME: u32 = 8;

/// The kernel's tracepoints that are counted, with their programs.
const fn traced(handover: Handover) -> &'static [(&'static str, &'static str)] {
    match handover {
        Handover::Skb => &[("polled", "xdp_cpumap_kthread"), ("freed", "kfree_skb")],
        Handover::Cpumap => &[("polled", "xdp_cpumap_kthread"), ("refused", "xdp_redirect_err")],
    }
}

/// Counters of each core.
pub(crate) type CountsMap = PerCpuArray<MapData, CoreCounts>;
/// Maps that belong to the card rather than to its chain: rings, filters, ways to the target cores.
const SHARED: &[&str] =
    &["TARGETS", ".bss.ends", "RINGS", ".bss.filters", "FILTERS", "FILTERS_MET", "WAYS", "STEERS"];

/// These maps, by name.
pub(crate) type SharedMaps = Vec<(&'static str, OwnedFd)>;

/// Packets that found a ring full, by the ring's core.
pub(crate) type RingsMap = PerCpuArray<MapData, u64>;

/// Whether the programs were built: not without clang.
pub fn is_built() -> bool {
    !OBJECT.is_empty()
}

/// Programs and maps of a card.
pub(crate) struct Object {
    card: Ebpf,
    /// Maps that the programs of a later chain share.
    shared: SharedMaps,
    /// Users' own objects for commands, by step.
    users: Vec<(usize, XdpObject)>,
}

impl Object {
    /// Loads the programs of a card whose queues have these cores. With `explains` they write their
    /// result before each packet, for tests.
    pub(crate) fn load(plan: &Plan, cores: &[usize], explains: bool) -> Result<Self, RunError> {
        Self::load_beside(plan, cores, explains, None)
    }

    /// The same with the poll engine's sockets, which get packets from the programs.
    pub(crate) fn load_with(
        sockets: Option<BorrowedFd<'_>>,
        plan: &Plan,
        cores: &[usize],
    ) -> Result<Self, RunError> {
        let maps = sockets.map(|sockets| ("SOCKETS", sockets.as_raw_fd()));
        let bytes = share(OBJECT, maps.as_slice()).ok_or_else(|| missing("maps"))?;
        let mut object = Self::load_bytes(&bytes, plan, cores, false, None)?;
        let sockets = sockets.map(|sockets| sockets.try_clone_to_owned()).transpose();
        let sockets = sockets.map_err(|error| RunError::system("cannot keep a map", error))?;
        object.shared.extend(sockets.map(|sockets| ("SOCKETS", sockets)));
        Ok(object)
    }

    /// The maps that a later chain shares; can be taken once.
    pub(crate) fn take_shared(&mut self) -> SharedMaps {
        std::mem::take(&mut self.shared)
    }

    /// Loads another chain for a running card, with the shared maps.
    pub(crate) fn load_beside(
        plan: &Plan,
        cores: &[usize],
        explains: bool,
        first: Option<&SharedMaps>,
    ) -> Result<Self, RunError> {
        Self::load_bytes(OBJECT, plan, cores, explains, first)
    }

    fn load_bytes(
        bytes: &[u8],
        plan: &Plan,
        cores: &[usize],
        explains: bool,
        first: Option<&SharedMaps>,
    ) -> Result<Self, RunError> {
        if !is_built() {
            return Err(without_clang());
        }
        let constants = Constants::of(plan);
        let mut core_of_queue = [0_u32; MOST_QUEUES];
        core_of_queue.iter_mut().zip(cores).for_each(|(place, &core)| *place = core as u32);
        let ring_size = if plan.has_endless_rings { u32::MAX } else { plan.ring_size };
        let (queues, default_queue) = (cores.len() as u32, u32::from(plan.default_queue));
        let explains = u32::from(explains);
        let is_hybrid = u32::from(plan.is_hybrid);
        let flow_slots = slots(plan.flow_room()) as u32;
        let flow_last = flow_slots - 1;
        let places = places(plan.has_pools()) as u32;
        let station_last = places - 1;
        let (filter_pages, filter_room) = (pages(plan.room), plan.room as u32);
        let mut loader = EbpfLoader::new();
        loader
            .map_max_entries("FILTERS", if first.is_none() { 2 * filter_pages } else { 1 })
            .map_max_entries("FILTERS_MET", if first.is_none() { 2 * filter_room } else { 1 })
            .override_global("FILTER_PAGES", &filter_pages, true)
            .override_global("FILTER_ROOM", &filter_room, true)
            .override_global("STEPS", &constants.steps, true)
            .override_global("DEFAULT_QUEUE", &default_queue, true)
            .override_global("QUEUES", &queues, true)
            .override_global("RING_SIZE", &ring_size, true)
            .override_global("BORROWED_CORE", &plan.borrowed_core, true)
            .override_global("READS_METADATA", &constants.reads_metadata, true)
            .override_global("CORE_OF_QUEUE", &core_of_queue, true)
            .override_global("QUEUE_OF_WIRE", &constants.queue_of_wire, true)
            .override_global("INTERFACES", &constants.interfaces, true)
            .override_global("PROGRAMS", &constants.programs, true)
            .override_global("ARE_SHARED", &constants.are_shared, true)
            .override_global("RSS_HASH", &constants.rss_hash, true)
            .override_global("RSS_INITIAL", &constants.rss_initial, true)
            .override_global("RSS_DEFAULT_QUEUE", &constants.rss_default_queue, true)
            .override_global("RSS_OVER", &constants.rss_over, true)
            .override_global("POLICE_PER_WIRE", &constants.police_per_wire, true)
            .override_global("FLOW_LAST", &flow_last, true)
            .map_max_entries("FLOW_RULES", 2 * flow_slots)
            .override_global("STATION_LAST", &station_last, true)
            .override_global("POOL_HASH", &*constants.pool_hash, true)
            .override_global("POOL_OVER", &constants.pool_over, true)
            .map_max_entries("STATIONS", 2 * places)
            .override_global("SAMPLE_EVERY", &constants.sample_every, true)
            .override_global("SAMPLE_QUEUE", &constants.sample_queue, true)
            .override_global("SAMPLE_DROPS_REST", &constants.sample_drops_rest, true)
            .override_global("EXPLAINS", &explains, true)
            .override_global("IS_HYBRID", &is_hybrid, true)
            .override_global("STAMPED", &constants.stamped, true)
            .override_global("STAMP_MARK", &plan.stamp_mark, true);
        let Some(first) = first else {
            let card = loader.load(bytes).map_err(|error| refused("loaded", &error))?;
            let shared = SHARED.iter().map(|&name| Ok((name, descriptor(&card, name)?)));
            let shared = shared.collect::<Result<_, RunError>>()?;
            let mut object = Object { card, shared, users: Vec::new() };
            object.place_users(plan)?;
            object.fill(plan, cores)?;
            return Ok(object);
        };
        let maps: Vec<_> = first.iter().map(|(name, map)| (*name, map.as_raw_fd())).collect();
        let bytes = share(bytes, &maps).ok_or_else(|| missing("maps"))?;
        let card = loader.load(&bytes).map_err(|error| refused("loaded", &error))?;
        let mut object = Object { card, shared: Vec::new(), users: Vec::new() };
        object.place_users(plan)?;
        Ok(object)
    }

    /// Loads the programs of the first wire, and those that count.
    pub(crate) fn verify(&mut self, plan: &Plan) -> Result<(), RunError> {
        match plan.handover {
            Handover::Cpumap => self.wire(0).map(drop)?,
            Handover::Skb => {
                self.tc("steer_0")?;
                self.tc("relay_0")?;
                self.at_relay()?;
            }
        }
        for (program, _) in traced(plan.handover) {
            self.tracing(program)?.load().map_err(|error| refused("loaded", &error))?;
        }
        Ok(())
    }

    /// Creates the target rings.
    fn fill(&mut self, plan: &Plan, cores: &[usize]) -> Result<(), RunError> {
        let deliver = match plan.handover {
            // Counted after the relay, and at the wire.
            Handover::Skb => None,
            Handover::Cpumap => {
                let deliver = self.xdp("deliver")?;
                deliver.load().map_err(|error| refused("loaded", &error))?;
                let deliver = deliver.fd().and_then(|fd| Ok(fd.try_clone()?));
                Some(deliver.map_err(|error| refused("loaded", &error))?)
            }
        };
        let targets = self.card.map_mut("TARGETS").ok_or_else(|| missing("TARGETS"))?;
        let mut targets: CpuMap<&mut MapData> =
            targets.try_into().map_err(|error| refused("filled", &error))?;
        for &core in cores {
            let (size, program) = (plan.ring_size + SLACK, deliver.as_ref());
            targets.set(core as u32, size, program, 0).map_err(|error| {
                refused(&format!("given core {core} for a target core"), &error)
            })?;
        }
        let id = match self.card.map("TARGETS") {
            Some(Map::CpuMap(map)) => map.info().map(|info| info.id()),
            _ => return Err(missing("TARGETS")),
        };
        let id = id.map_err(|error| refused("filled", &error))?;
        let mut known = self.array::<u32>("TARGETS_ID")?;
        known.set(0, id, 0).map_err(|error| refused("filled", &error))
    }

    /// The name of the thread of a core's ring.
    pub(crate) fn thread_of(&mut self, core: usize) -> Result<String, RunError> {
        let id = self.array::<u32>("TARGETS_ID")?.get(&0, 0);
        let id = id.map_err(|error| refused("read", &error))?;
        Ok(format!("cpumap/{core}/map:{id}"))
    }

    /// Starts to count the fate of packets after the chain.
    pub(crate) fn count(&mut self, handover: Handover) -> Result<(), RunError> {
        self.trace(traced(handover))
    }

    fn trace(&mut self, all: &[(&str, &str)]) -> Result<(), RunError> {
        for &(program, tracepoint) in all {
            let traced = self.tracing(program)?;
            let attached = traced.load().and_then(|()| traced.attach(tracepoint).map(drop));
            attached.map_err(|error| refused(&format!("attached to {tracepoint}"), &error))?;
        }
        Ok(())
    }

    /// Loads users' own programs, and the program that continues after them.
    fn place_users(&mut self, plan: &Plan) -> Result<(), RunError> {
        if plan.objects().next().is_none() {
            return Ok(());
        }
        let resume = self.xdp("resume")?;
        resume.load().map_err(|error| refused("loaded", &error))?;
        let resume = resume.fd().and_then(|fd| Ok(fd.try_clone()?));
        let resume = resume.map_err(|error| refused("loaded", &error))?;
        let states = match self.card.map("OBJECT_STATE") {
            Some(Map::PerCpuArray(map)) => map,
            _ => return Err(missing("OBJECT_STATE")),
        };
        let programs = match self.card.map("OBJECTS") {
            Some(Map::ProgramArray(map)) => map,
            _ => return Err(missing("OBJECTS")),
        };
        let mut ids = [0; 2];
        for (id, map) in ids.iter_mut().zip([states, programs]) {
            *id = map.info().map_err(|error| refused("filled", &error))?.id();
        }
        let mut all = vec![(RESUME, resume)];
        for (step, file) in plan.objects() {
            let namespace = plan.wires.first().and_then(|wire| wire.namespace.clone());
            let maps = [states.fd(), programs.fd()];
            let (program, user) = file.load(maps, ids, RESUME, namespace)?;
            self.users.push((step, user));
            all.push((step as u32, program));
        }
        let programs = self.card.map_mut("OBJECTS").ok_or_else(|| missing("OBJECTS"))?;
        let mut programs: ProgramArray<&mut MapData> =
            programs.try_into().map_err(|error| refused("filled", &error))?;
        for (place, program) in all {
            programs.set(place, &program, 0).map_err(|error| refused("filled", &error))?;
        }
        Ok(())
    }

    /// Users' own objects for commands, by step.
    pub(crate) fn take_users(&mut self) -> Vec<(usize, XdpObject)> {
        std::mem::take(&mut self.users)
    }

    /// Simulates the kernel's message, on `cpu`, that it refused a packet for a core's ring.
    #[cfg(test)]
    pub(crate) fn refuse(&mut self, core: usize, cpu: usize) -> Result<(), Box<dyn Error>> {
        use aya::programs::{RawTracePointRunOptions, TestRun};
        let id = self.array::<u32>("TARGETS_ID")?.get(&0, 0)?;
        let mut options = RawTracePointRunOptions::new();
        (options.args[5], options.args[6], options.cpu) =
            (id.into(), core as u64, Some(cpu as u32));
        let program = self.card.program_mut("refused").ok_or_else(|| missing("refused"))?;
        let program: &mut RawTracePoint = program.try_into()?;
        Ok(program.test_run(options).map(drop)?)
    }

    /// Loads the program of this number ([`Plan::programs`]).
    pub(crate) fn wire(&mut self, number: usize) -> Result<&mut Xdp, RunError> {
        self.loaded(&format!("wire_{number}"))
    }

    /// Loads the program that lets all packets pass.
    pub(crate) fn letting_pass(&mut self) -> Result<&mut Xdp, RunError> {
        self.loaded("let_pass")
    }

    /// Loads the program of the relays.
    pub(crate) fn at_relay(&mut self) -> Result<&mut Xdp, RunError> {
        self.loaded("to_ring")
    }

    fn loaded(&mut self, name: &str) -> Result<&mut Xdp, RunError> {
        let program = self.xdp(name)?;
        if program.fd().is_err() {
            program.load().map_err(|error| refused("loaded", &error))?;
        }
        Ok(program)
    }

    /// Attaches a program to the receive path of an interface in this namespace, in its driver or
    /// in the network stack, until the link is dropped.
    pub(crate) fn attach(
        program: &mut Xdp,
        interface: &str,
        mode: XdpMode,
    ) -> Result<FdLink, Box<dyn Error + Send + Sync>> {
        let link = program.attach(interface, mode)?;
        // Anything but a link would outlive this process; a link detaches when dropped.
        Ok(FdLink::try_from(program.take_link(link)?)?)
    }

    /// Replaces the program of a link, from one packet to the next.
    pub(crate) fn replace(
        program: &mut Xdp,
        link: FdLink,
    ) -> Result<FdLink, Box<dyn Error + Send + Sync>> {
        let link = program.attach_to_link(XdpLink::try_from(link)?)?;
        Ok(FdLink::try_from(program.take_link(link)?)?)
    }

    /// The same for programs of the network stack.
    pub(crate) fn replace_tc(
        program: &mut SchedClassifier,
        link: FdLink,
    ) -> Result<FdLink, Box<dyn Error + Send + Sync>> {
        let link = program.attach_to_link(SchedClassifierLink::try_from(link)?)?;
        Ok(FdLink::try_from(program.take_link(link)?)?)
    }

    /// Loads a program of the network stack: `steer_` or `relay_` of a wire, or `mark`.
    pub(crate) fn tc(&mut self, name: &str) -> Result<&mut SchedClassifier, RunError> {
        let program = self.card.program_mut(name).ok_or_else(|| missing(name))?;
        let program: Result<&mut SchedClassifier, ProgramError> = program.try_into();
        let program = program.map_err(|error| refused("loaded", &error))?;
        if program.fd().is_err() {
            program.load().map_err(|error| refused("loaded", &error))?;
        }
        Ok(program)
    }

    /// Attaches a program to the receive path of an interface in this namespace, before all others,
    /// until the link is dropped.
    pub(crate) fn attach_tc(
        program: &mut SchedClassifier,
        interface: &str,
    ) -> Result<FdLink, Box<dyn Error + Send + Sync>> {
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        let link = program.attach_with_options(interface, TcAttachType::Ingress, first)?;
        Ok(FdLink::try_from(program.take_link(link)?)?)
    }

    /// Sets the way of each wire's packets; the returned switch turns it off.
    pub(crate) fn ways(&mut self, relays: &[Relay]) -> Result<Switch, RunError> {
        let mut ways = self.array::<[u64; 3]>("WAYS")?;
        for (wire, relay) in (0..).zip(relays) {
            let way = ways.set(wire, [relay.of.into(), relay.index.into(), relay.network], 0);
            way.map_err(|error| refused("filled", &error))?;
        }
        let map = self.card.take_map("STEERS").ok_or_else(|| missing("STEERS"))?;
        Ok(Switch::new(map.try_into().map_err(|error| refused("filled", &error))?))
    }

    /// The maps that commands change, filled from the plan.
    pub(crate) fn tables(&mut self, plan: &Plan) -> Result<Tables, RunError> {
        Tables::new(plan, |name| self.card.take_map(name).ok_or_else(|| missing(name)))
    }

    /// The map of filters, empty.
    pub(crate) fn filters(&mut self) -> Result<Maps, RunError> {
        let mut take = |name: &str| self.card.take_map(name).ok_or_else(|| missing(name));
        let (now, pages, met) = (take(".bss.filters")?, take("FILTERS")?, take("FILTERS_MET")?);
        Ok(Maps {
            now: now.try_into().map_err(|error| refused("filled", &error))?,
            pages: pages.try_into().map_err(|error| refused("filled", &error))?,
            met: met.try_into().map_err(|error| refused("filled", &error))?,
        })
    }

    /// The map of per-core counters.
    pub(crate) fn counts(&mut self) -> Result<CountsMap, RunError> {
        let counts = self.card.take_map(COUNTS).ok_or_else(|| missing(COUNTS))?;
        counts.try_into().map_err(|error| refused("read", &error))
    }

    /// The map of ring counters.
    pub(crate) fn rings(&mut self) -> Result<RingsMap, RunError> {
        let rings = self.card.take_map("RINGS").ok_or_else(|| missing("RINGS"))?;
        rings.try_into().map_err(|error| refused("read", &error))
    }

    fn xdp(&mut self, name: &str) -> Result<&mut Xdp, RunError> {
        let program = self.card.program_mut(name).ok_or_else(|| missing(name))?;
        program.try_into().map_err(|error: ProgramError| refused("loaded", &error))
    }

    fn tracing(&mut self, name: &str) -> Result<&mut RawTracePoint, RunError> {
        let program = self.card.program_mut(name).ok_or_else(|| missing(name))?;
        program.try_into().map_err(|error: ProgramError| refused("loaded", &error))
    }

    fn array<V: Pod>(&mut self, name: &str) -> Result<Array<&mut MapData, V>, RunError> {
        let map = self.card.map_mut(name).ok_or_else(|| missing(name))?;
        map.try_into().map_err(|error| refused("filled", &error))
    }
}

/// Loads the program that sends a test run's packet out of an interface.
pub(crate) fn flood(interface: u32) -> Result<Ebpf, RunError> {
    let mut loader = EbpfLoader::new();
    let mut object = loader
        .override_global("FLOOD_TO", &interface, true)
        .load(OBJECT)
        .map_err(|error| refused("loaded", &error))?;
    let program = object.program_mut("flood").ok_or_else(|| missing("flood"))?;
    let program: &mut Xdp =
        program.try_into().map_err(|error: ProgramError| refused("loaded", &error))?;
    program.load().map_err(|error| refused("loaded", &error))?;
    Ok(object)
}

const _: () = assert!(MOST_STEPS == RESUME as usize);
const _: () = assert!(MOST_CORES <= 256 && MOST_QUEUES <= 256);

/// The error that there are no programs.
pub(crate) fn without_clang() -> RunError {
    MachineError::Refused(format!("cards in the kernel: {WITHOUT_CLANG}")).into()
}

/// Refuses a card if its programs are missing.
pub(crate) fn check_built(file: &CardFile, is_built: bool) -> Result<(), ConfigError> {
    if is_built {
        return Ok(());
    }
    let message = format!("found \"{}\", but {WITHOUT_CLANG}", file.card.engine);
    Err(file.locate(ConfigError::new("card.engine", message)))
}

/// A duplicate of a map's descriptor.
fn descriptor(card: &Ebpf, name: &str) -> Result<OwnedFd, RunError> {
    let map = match card.map(name) {
        Some(Map::Array(map) | Map::PerCpuArray(map) | Map::CpuMap(map)) => map,
        _ => return Err(missing(name)),
    };
    let cloned = map.fd().as_fd().try_clone_to_owned();
    cloned.map_err(|error| RunError::system("cannot keep a map", error))
}

pub(crate) fn missing(name: &str) -> RunError {
    MachineError::Refused(format!("cards in the kernel: their programs have no {name}")).into()
}

/// An error of the programs, with the kernel's full message.
pub(crate) fn refused(what: &str, error: &(dyn Error + 'static)) -> RunError {
    MachineError::Refused(format!("cards in the kernel: programs cannot be {what}: {}", why(error)))
        .into()
}

/// An error with its causes, where only the last has the system's message; and the missing
/// privilege, if that is the reason.
pub(crate) fn why(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    let mut is_denied = false;
    while let Some(error) = next {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        let system = error.downcast_ref::<io::Error>();
        // The verifier's own refusals are EACCES.
        is_denied |= system.is_some_and(|error| error.raw_os_error() == Some(EPERM));
        next = error.source();
    }
    // The verifier gives the reason at the end.
    const LONGEST: usize = 600;
    if let Some((cut, _)) = text.char_indices().rev().nth(LONGEST) {
        text = format!("... {}", &text[cut..]);
    }
    match is_denied {
        true => format!("{text} (root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, is needed)"),
        false => text,
    }
}
