//! Plans a card in the kernel: validates the whole card file and turns it into data.
//!
//! Guarantees: every key of a card file is honoured or refused, by file, line and key.

use crate::objects::ObjectFile;
use crate::rules::room;
use picnic_control::{Launch, Registries};
use picnic_core::config::{CardFile, Idle, InterruptSection, Section};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::{Form, refuse};
use picnic_core::ledger::DropReason;
use picnic_core::registry::{BuildContext, Entry, find};
use picnic_engine::build::context;
use picnic_forms::{Handover, KernelForm, Scheduling};
use picnic_machine::topology::{Placement, available, place};

/// As in the programs (`bpf/card.bpf.c`).
pub(crate) const MOST_WIRES: usize = 8;
pub(crate) const MOST_STEPS: usize = 8;
pub(crate) const MOST_QUEUES: usize = 256;
pub(crate) const MOST_CORES: usize = 256;
/// The kernel's limit for a cpumap's rings.
const LONGEST_RING: u32 = 16_384;
/// Extra length of the kernel's ring over the ring that the programs count, so that it is never
/// full: a packet from each core that adds one at the same moment, and packets already taken whose
/// slots the kernel clears later (16 at a time).
pub(crate) const SLACK: u32 = MOST_CORES as u32;

/// Honoured keys by section; wires, functions and attachments declare their own.
const HONOURED: &[(&str, &[&str])] = &[
    ("card", &["name", "engine", "borrowed_core", "default_queue"]),
    ("host", &["attachment", "queues", "target_cores", "ring_size"]),
    ("isolation", &["level"]),
    ("interrupt", &["wire_usecs", "poll_usecs"]),
];
/// Additional keys that the poll engine honours with `engine = "hybrid"`.
const HONOURED_BESIDE: &[(&str, &[&str])] = &[
    ("card", &["idle", "burst", "wire_backlog", "seed"]),
    ("pool", &["buffers", "buffer_size", "headroom"]),
    ("host", &["tx_ring_size", "tx_bytes_in_flight", "priority", "watchdog_ms"]),
    (
        "interrupt",
        &["rx_usecs", "rx_frames", "adaptive", "per_packet", "gate", "tx_complete", "tx_usecs"],
    ),
    ("trace", &["path", "stages", "snaplen", "buffer_bytes"]),
];
/// Sections for others: `picnic net`, the control plane; and filters, which have their own checks.
const OTHERS: &[&str] = &["net", "control", "filter", "sciron"];
/// Keys that are honoured with one value.
const HONOURED_AS: &[(&str, &str)] = &[("isolation.apply", "false")];

/// A card in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) wires: Vec<WirePlan>,
    /// The rx chain.
    pub(crate) steps: Vec<Step>,
    pub(crate) default_queue: u16,
    pub(crate) handover: Handover,
    /// Scheduling of the threads at the target rings.
    pub(crate) scheduling: Scheduling,
    /// Size of each target ring.
    pub(crate) ring_size: u32,
    /// For tests of only the programs: packets are not taken out.
    pub(crate) has_endless_rings: bool,
    /// The core on which drivers should run the programs.
    pub(crate) borrowed_core: u32,
    /// Microseconds that a wire rests after a poll; zero for none.
    pub(crate) wire_usecs: u32,
    /// Consecutive empty polls, at that distance, before it waits for an interrupt.
    pub(crate) wire_polls: u32,
    /// Number of filters that fit.
    pub(crate) room: usize,
    /// Whether filters can send packets to the poll engine.
    pub(crate) is_hybrid: bool,
    /// The mark of the times of these packets; zero until they have sockets.
    pub(crate) stamp_mark: u64,
}

/// A wire: an interface.
#[derive(Clone, Debug)]
pub(crate) struct WirePlan {
    pub(crate) name: String,
    pub(crate) interface: String,
    pub(crate) namespace: Option<String>,
    /// Packets to the poll engine carry their time.
    pub(crate) stamps: bool,
    /// The number of the interface in its namespace; zero until looked up.
    pub(crate) index: u32,
}

/// A function of the chain: its name in the card file, and its action.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) action: Action,
}

/// The action of a function.
#[derive(Debug)]
pub(crate) enum Action {
    Form(KernelForm),
    Object(Box<ObjectFile>),
    /// None: the function has no kernel form, and its packets go to the poll engine.
    Elsewhere,
}

impl Step {
    /// The reason of its drops.
    pub(crate) fn reason(&self) -> DropReason {
        match self.action {
            Action::Form(KernelForm::Police { .. }) => DropReason::RateLimited,
            _ => DropReason::Filtered,
        }
    }
}

impl Plan {
    /// The same card with another chain.
    pub(crate) fn with(&self, steps: Vec<Step>) -> Plan {
        Plan { wires: self.wires.clone(), steps, ..*self }
    }

    /// The number of the program that runs the chain for each wire: the number of the first wire
    /// that shares it. Sharing means that the verifier checks it once; interfaces with equal
    /// numbers, in different namespaces, cannot share.
    pub(crate) fn programs(&self) -> [usize; MOST_WIRES] {
        let mut programs = std::array::from_fn(|wire| wire);
        for (wire, planned) in self.wires.iter().enumerate().skip(1) {
            let is_apart = |first: usize| {
                let mut shared = (first..wire).filter(|&other| programs[other] == first);
                shared.all(|other| self.wires[other].index != planned.index)
            };
            let first = (0..wire).find(|&first| programs[first] == first && is_apart(first));
            programs[wire] = first.unwrap_or(wire);
        }
        programs
    }

    /// Users' own objects, by step.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (usize, &ObjectFile)> {
        self.steps.iter().enumerate().filter_map(|(step, planned)| match &planned.action {
            Action::Object(file) => Some((step, &**file)),
            _ => None,
        })
    }

    /// Whether a function assigns packets to pools.
    pub(crate) fn has_pools(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.action, Action::Form(KernelForm::ByPool(_))))
    }

    /// Most rules for flows.
    pub(crate) fn flow_room(&self) -> usize {
        let rooms = self.steps.iter().map(|step| match step.action {
            Action::Form(KernelForm::ByRules { room, .. }) => room,
            _ => 0,
        });
        rooms.max().unwrap_or_default()
    }
}

/// Plans a card and finds its cores.
pub(crate) fn plan(launch: &Launch<'_>) -> Result<(Plan, Placement), ConfigError> {
    plan_as_asked(launch).map_err(|error| of_engine(is_hybrid(launch.file), error))
}

/// Adapts an error to the engine's name: components know only one kernel engine.
pub(crate) fn of_engine(is_hybrid: bool, error: ConfigError) -> ConfigError {
    match is_hybrid {
        true => ConfigError {
            message: error.message.replace("engine = \"kernel\"", "engine = \"hybrid\""),
            ..error
        },
        false => error,
    }
}

/// Whether the kernel and the poll engine share the card's packets.
pub(crate) fn is_hybrid(file: &CardFile) -> bool {
    file.card.engine == "hybrid"
}

/// The builders' context for the kernel's part of a card.
pub(crate) fn base(file: &CardFile) -> BuildContext {
    BuildContext { in_kernel: true, ..context(file) }
}

fn plan_as_asked(launch: &Launch<'_>) -> Result<(Plan, Placement), ConfigError> {
    let file = launch.file;
    check_keys(file)?;
    let Registries { functions, wires, attachments, .. } = launch.registries;
    let base = base(file);
    let at = |position| BuildContext { position, ..base.clone() };

    if let Some(sends) = file.tx.first().filter(|_| !is_hybrid(file)) {
        find(functions, sends)?;
        let allowed = format!(
            "no tx chain, as these programs see no sent packets; engine = \"hybrid\" has one, for \
             packets of the poll engine; in [[rx]]: {}",
            with_form(functions)
        );
        let found = format!("\"{}\"", sends.name());
        return Err(sends.locate(refuse(sends.kind(), found, allowed)));
    }
    if file.wires.len() > MOST_WIRES {
        let message = refuse("wire", file.wires.len(), format!("1 to {MOST_WIRES}"));
        return Err(file.locate(message));
    }
    let mut plan = Plan {
        default_queue: file.card.default_queue,
        ring_size: (file.host.ring_size as u32).min(LONGEST_RING - SLACK),
        wire_usecs: file.interrupt.wire_usecs,
        wire_polls: wire_polls(&file.interrupt),
        room: room(0),
        is_hybrid: is_hybrid(file),
        ..Plan::default()
    };
    for (index, wire) in file.wires.iter().enumerate() {
        if let Some(link) = &wire.link {
            return Err(link.locate(refuse("", "a link", "none")));
        }
        if let Some(fault) = &wire.fault {
            return Err(fault.locate(refuse("", "a fault injector", "none")));
        }
        let interface = form(wires, &wire.port, &at(index))?;
        let KernelForm::Interface { name, namespace, stamps } = interface else {
            return Err(without_form(wires, &wire.port));
        };
        let (interface, name) = (name, wire.name.clone());
        plan.wires.push(WirePlan { name, interface, namespace, stamps, index: 0 });
    }
    let host = &file.host.section;
    let (handover, scheduling) = match (is_hybrid(file), form(attachments, host, &base)) {
        // The attachment belongs to the poll engine. Other packets go to the network stack.
        (true, Err(_)) => (Handover::Cpumap, Scheduling::Normal),
        (true, Ok(_)) => return Err(not_of_poll_engine(attachments, host)),
        (false, Ok(KernelForm::Stack(handover, scheduling))) => (handover, scheduling),
        (false, Ok(_)) => return Err(without_form(attachments, host)),
        (false, Err(error)) => return Err(error),
    };
    (plan.handover, plan.scheduling) = (handover, scheduling);
    plan.steps = steps(functions, &file.rx, &base, handover)
        .map_err(|error| if error.line == 0 { file.locate(error) } else { error })?;
    if file.host.ring_size > LONGEST_RING as usize {
        let allowed = format!("64 to {LONGEST_RING}");
        return Err(file.locate(refuse("host.ring_size", file.host.ring_size, allowed)));
    }
    let placement = cores(file)?;
    plan.borrowed_core = placement.borrowed_core as u32;
    Ok((plan, placement))
}

/// The steps of an rx chain, for a card with this context.
pub(crate) fn steps(
    functions: &'static [Entry<Box<dyn Function>>],
    sections: &[Section],
    base: &BuildContext,
    handover: Handover,
) -> Result<Vec<Step>, ConfigError> {
    if sections.len() > MOST_STEPS {
        return Err(refuse("rx", sections.len(), format!("0 to {MOST_STEPS}")));
    }
    let mut steps: Vec<Step> = Vec::new();
    for (position, section) in sections.iter().enumerate() {
        let context = BuildContext { position, ..base.clone() };
        let has_form = find(functions, section)?.has_kernel_form();
        if base.is_hybrid && !has_form {
            steps.push(Step { name: section.name().into(), action: Action::Elsewhere });
            continue;
        }
        let action = match form(functions, section, &context)? {
            KernelForm::Police { .. } | KernelForm::Object { .. } if base.is_hybrid => {
                let found = format!("\"{}\"", section.name());
                let allowed = match section.name() {
                    "rate-limit" => "one without a rate, since each engine would use all of it",
                    _ => "one that the poll engine also has",
                };
                return Err(section.locate(refuse(section.kind(), found, allowed)));
            }
            KernelForm::Object { path, program, metadata } => {
                let file = ObjectFile::read(section, path, program.as_deref(), metadata)?;
                Action::Object(Box::new(file))
            }
            KernelForm::Interface { .. } | KernelForm::Stack(..) => {
                return Err(without_form(functions, section));
            }
            form => Action::Form(form),
        };
        let name = match &action {
            Action::Object(file) => format!("{}:{}", section.name(), file.program),
            _ => section.name().into(),
        };
        let has_state = match &action {
            Action::Form(form) => !matches!(form, KernelForm::Next | KernelForm::Drop),
            Action::Object(_) | Action::Elsewhere => false,
        };
        if has_state && steps.iter().any(|step| step.name == name) {
            let error = refuse("function", format!("\"{name}\" twice"), "once");
            return Err(section.locate(error));
        }
        steps.push(Step { name, action });
    }
    let has_object = steps.iter().any(|step| matches!(step.action, Action::Object(_)));
    if handover == Handover::Skb && has_object {
        let allowed = "\"cpumap\", as the chain has an XDP object";
        return Err(refuse("host.handover", "\"skb\"", allowed));
    }
    Ok(steps)
}

/// The cores: a cpumap has one ring per core, so each queue needs its own.
fn cores(file: &CardFile) -> Result<Placement, ConfigError> {
    let placement = place(file, &available())?;
    let cores = &placement.target_cores;
    for (queue, core) in cores.iter().enumerate() {
        if let Some(other) = cores[..queue].iter().position(|other| other == core) {
            let found =
                format!("{} queues, of which {other} and {queue} have core {core}", cores.len());
            return Err(file.locate(refuse("host.queues", found, "one for each target core")));
        }
    }
    if let Some(core) = cores.iter().find(|&&core| core >= MOST_CORES) {
        let allowed = format!("0 to {}", MOST_CORES - 1);
        return Err(file.locate(refuse("host.target_cores", format!("core {core}"), allowed)));
    }
    Ok(placement)
}

/// Refuses the first key of a section that is not honoured.
fn check_keys(file: &CardFile) -> Result<(), ConfigError> {
    for (path, value) in file.settings() {
        let (section, key) = path.split_once('.').unwrap_or((&path, ""));
        let section = section.split('[').next().unwrap_or(section);
        // Their components declare their honoured keys.
        let has_component = matches!(section, "wire" | "rx" | "tx");
        let honoured = HONOURED.iter().find(|(name, _)| *name == section);
        let beside = HONOURED_BESIDE.iter().filter(|_| is_hybrid(file));
        let mut beside = beside.filter(|(name, _)| *name == section);
        let key_itself = key.split('[').next().unwrap_or(key);
        let is_honoured = honoured.is_some_and(|(_, keys)| keys.contains(&key_itself))
            || beside.any(|(_, keys)| keys.contains(&key_itself));
        let value = value.to_string();
        let is_honoured_as = HONOURED_AS.contains(&(path.as_str(), value.as_str()));
        if has_component || is_honoured || is_honoured_as || OTHERS.contains(&section) {
            continue;
        }
        // Keys of the attachment are its own concern, if it has a kernel form.
        let is_of_host = section == "host" && !is_host_key(file, key);
        if is_of_host {
            continue;
        }
        let only = HONOURED_AS.iter().find(|(key, _)| *key == path).map(|(_, value)| *value);
        let allowed = match section {
            "interrupt" if matches!(key, "rx_frames" | "wire_frames") => {
                "no key: a poll takes up to 64 packets, as the wire's driver has it"
            }
            "interrupt" => {
                "only wire_usecs and poll_usecs: a target is interrupted once per poll of a wire"
            }
            "os" | "task" => "no section: tasks run only with the poll engine",
            _ => only.unwrap_or("no key"),
        };
        return Err(file.locate(refuse(&path, value, allowed)));
    }
    if is_hybrid(file) && file.interrupt.wire_usecs != 0 {
        let allowed = "0, since packets of the poll engine would be delayed twice";
        let error = refuse("interrupt.wire_usecs", file.interrupt.wire_usecs, allowed);
        return Err(file.locate(error));
    }
    if !is_hybrid(file) && file.interrupt.poll_usecs != 0 && file.interrupt.wire_usecs == 0 {
        let allowed = "0, or with wire_usecs, the interval between empty polls of a wire";
        let error = refuse("interrupt.poll_usecs", file.interrupt.poll_usecs, allowed);
        return Err(file.locate(error));
    }
    if is_hybrid(file) && file.card.idle == Idle::Spin {
        let allowed = "\"adaptive\", \"block\": the kernel uses the core as well";
        return Err(file.locate(refuse("card.idle", "\"spin\"", allowed)));
    }
    Ok(())
}

/// Consecutive empty polls of a wire until `poll_usecs` have passed, at least one; zero if it does
/// not rest.
fn wire_polls(interrupt: &InterruptSection) -> u32 {
    match interrupt.wire_usecs {
        0 => 0,
        apart => interrupt.poll_usecs.div_ceil(apart).max(1),
    }
}

/// Whether a key is `[host]`'s own, not its attachment's.
fn is_host_key(file: &CardFile, key: &str) -> bool {
    let mut sections = file.sections().iter();
    let host = sections.find(|entry| entry.name == "host");
    host.is_some_and(|host| host.keys().iter().any(|known| known.name == key))
}

/// The error that a section's attachment cannot serve the poll engine, with those that can.
fn not_of_poll_engine<P>(registry: &'static [Entry<P>], section: &Section) -> ConfigError {
    let allowed: Vec<_> =
        registry.iter().filter(|entry| !entry.has_kernel_form()).map(|entry| entry.name).collect();
    let allowed = format!("the host of the poll engine's packets ({})", allowed.join(", "));
    section.locate(refuse(section.kind(), format!("\"{}\"", section.name()), allowed))
}

/// The kernel form of a section's component.
fn form<P>(
    registry: &'static [Entry<P>],
    section: &Section,
    context: &BuildContext,
) -> Result<KernelForm, ConfigError> {
    let form = find(registry, section)?.kernel_form(section, context).transpose()?;
    form.and_then(Form::open).ok_or_else(|| without_form(registry, section))
}

/// The error that a section's component has no kernel form, with those that have.
fn without_form<P>(registry: &'static [Entry<P>], section: &Section) -> ConfigError {
    let found = format!("\"{}\"", section.name());
    section.locate(refuse(section.kind(), found, with_form(registry)))
}

/// The names of components with a kernel form.
fn with_form<P>(registry: &'static [Entry<P>]) -> String {
    let names = registry.iter().filter(|entry| entry.has_kernel_form()).map(|entry| entry.name);
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wires_share_programs_unless_their_interfaces_have_the_same_number() {
        let programs = |indices: &[u32]| {
            let wire = |&index: &u32| WirePlan {
                name: String::new(),
                interface: String::new(),
                namespace: None,
                stamps: false,
                index,
            };
            let wires = indices.iter().map(wire).collect();
            let plan = Plan { wires, ..Plan::default() };
            plan.programs()
        };
        assert_eq!(programs(&[]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(programs(&[5]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(programs(&[5, 6, 7]), [0, 0, 0, 3, 4, 5, 6, 7]);
        assert_eq!(programs(&[5, 5, 5]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(programs(&[5, 6, 5, 6, 7, 5, 6, 7]), [0, 0, 2, 2, 0, 5, 5, 2]);
    }
}
