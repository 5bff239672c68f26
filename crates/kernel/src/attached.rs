//! Attaches a card's programs to its wires, replaces and detaches them.
//!
//! Guarantees: if a step fails, all earlier steps are undone before the error is returned. A chain
//! stays in use until each wire has the new one; counters of its programs are kept.

use crate::counters::Counters;
use crate::object::{Object, refused, settle, why};
use crate::plan::{Plan, Step};
use crate::tables::Switch;
use aya::programs::XdpMode;
use aya::programs::links::FdLink;
use picnic_control::error::RunError;
use picnic_core::config::CardFile;
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::ledger::Ledger;
use picnic_core::port::Capabilities;
use picnic_engine::view::{FunctionView, Functions, QueueView, View, WireView};
use picnic_forms::{Handover, Scheduling};
use picnic_machine::command;
use picnic_machine::error::MachineError;
use picnic_machine::isolate::bring_interrupts;
use picnic_machine::napi::{self, Polling};
use picnic_machine::relay::Relay;
use picnic_machine::steering;
use picnic_machine::topology::Placement;
use picnic_machine::undo::{Journal, Machine};
use picnic_machine::veth;
use picnic_machine::xdp;
use picnic_ports::interface::{WireLock, lock, within};
use std::error::Error;
use std::io;
use std::sync::Arc;

/// Purpose in this engine's journals.
const PURPOSE: &str = "kernel";

/// A card in the kernel, with running programs.
pub(crate) struct Attached {
    /// Dropped first: programs end before the objects they use. Programs that run the chain, by
    /// wire.
    chains: Vec<FdLink>,
    /// Other programs.
    links: Vec<FdLink>,
    /// For packets handed over as socket buffers.
    switch: Option<Switch>,
    pub(crate) counters: Counters,
    pub(crate) polling: Vec<Polling>,
    pub(crate) view: View,
    /// Notes for the user about the wires' interrupts.
    pub(crate) notes: Vec<String>,
    _locks: Vec<WireLock>,
    /// The programs that the card started with, some of which stay; the last are the programs of
    /// the current chain.
    pub(crate) objects: Vec<Object>,
    pub(crate) journal: Option<Journal>,
}

impl Attached {
    pub(crate) fn new(
        file: &CardFile,
        plan: &Plan,
        mut object: Object,
        placement: &Placement,
    ) -> Result<Self, RunError> {
        let machine = Machine::this();
        // The poll engine's ports hold their own.
        let alone = if plan.is_hybrid { &[][..] } else { &plan.wires };
        let locks = alone.iter().enumerate().map(|(index, wire)| {
            let locked = within(wire.namespace.as_deref(), || lock(&wire.interface));
            let locked = locked.map_err(|error| at_wire(file, index, error))?;
            Ok(locked.map_err(|error| cannot_lock(file, index, &wire.interface, &error))?)
        });
        let locks = locks.collect::<Result<Vec<_>, RunError>>()?;
        check_wires(file, plan)?;
        let counters = Counters::new(&mut object, plan, placement)?;
        let mut attached = Attached {
            chains: Vec::new(),
            links: Vec::new(),
            switch: None,
            counters,
            polling: Vec::new(),
            view: view(file.card.name.clone(), plan, placement),
            notes: Vec::new(),
            _locks: locks,
            objects: Vec::new(),
            journal: Some(Journal::create(&machine, PURPOSE)?),
        };
        let tried = attached.attach(file, &machine, plan, placement, &mut object);
        attached.objects.push(object);
        match tried {
            Ok(()) => Ok(attached),
            Err(error) => {
                attached.detach();
                // Changes that cannot be undone now stay in the journal, for the next start.
                let _ = attached.journal.take().map(Journal::undo);
                Err(error)
            }
        }
    }

    fn attach(
        &mut self,
        file: &CardFile,
        machine: &Machine,
        plan: &Plan,
        placement: &Placement,
        object: &mut Object,
    ) -> Result<(), RunError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let core = placement.borrowed_core;
        object.count(plan.handover)?;
        if plan.handover == Handover::Cpumap {
            // For the end, when it may be too late to load anything.
            object.letting_pass()?;
        }
        if plan.scheduling == Scheduling::Batch {
            for &core in &placement.target_cores {
                napi::schedule_as_batch(machine, &object.thread_of(core)?)?;
            }
        }
        for (index, wire) in plan.wires.iter().enumerate() {
            let namespace = wire.namespace.as_deref();
            let polled = Polling::start(machine, journal, &wire.interface, namespace)
                .and_then(|mut polling| polling.pin(machine, journal, core).map(|()| polling));
            let polling =
                polled.map_err(|error| not_polled(file, index, &wire.interface, error))?;
            if plan.wire_usecs != 0 {
                polling.hold(journal, plan.wire_usecs, plan.wire_polls)?;
            }
            self.polling.push(polling);
            // A veth passes packets that its peer does not segment on the sender's core, where no
            // thread polls. If the borrowed core takes those too, each flow stays in order.
            let is_gathered = plan.handover == Handover::Skb
                && veth::is_one(&wire.interface, namespace)
                && steering::gather(journal, &wire.interface, namespace, core).is_ok();
            // A core isolated at boot cannot be a target here: the report says so if packets
            // arrive.
            if !is_gathered {
                steering::stop(journal, &wire.interface, namespace)?;
            }
        }
        let relays = match plan.handover {
            Handover::Cpumap => Vec::new(),
            Handover::Skb => {
                let queues = placement.target_cores.len();
                let relays = plan.wires.iter().map(|wire| {
                    let namespace = wire.namespace.as_deref();
                    Relay::make(journal, &wire.interface, namespace, queues)
                });
                relays.collect::<Result<Vec<_>, _>>()?
            }
        };
        for (index, (wire, relay)) in plan.wires.iter().zip(&relays).enumerate() {
            let namespace = wire.namespace.as_deref();
            let at = |error| RunError::from(at_wire(file, index, error));
            let program = format!("relay_{index}");
            let link = attach_tc(object, &program, &relay.name, namespace);
            self.links.push(link.map_err(at)??);
            let program = object.at_relay()?;
            let link = within(namespace, || Object::attach(program, &relay.name, XdpMode::Skb));
            let what = "attached to a relay";
            self.links.push(link.map_err(at)?.map_err(|error| refused(what, &*error))?);
        }
        for ((index, wire), number) in plan.wires.iter().enumerate().zip(plan.programs()) {
            let (interface, namespace) = (&*wire.interface, wire.namespace.as_deref());
            let at = |error| RunError::from(at_wire(file, index, error));
            match plan.handover {
                Handover::Cpumap => {
                    let program = object.wire(number)?;
                    let link =
                        within(namespace, || Object::attach(program, interface, XdpMode::Driver));
                    self.chains.push(link.map_err(at)?.map_err(|error| {
                        let why = format!("{} (is its MTU too large?)", why(&*error));
                        RunError::from(takes_none(file, plan, index, &why))
                    })?);
                    // A driver may have recreated its threads.
                    self.polling[index].pin(machine, journal, core)?;
                    if plan.objects().any(|(_, file)| file.metadata) {
                        let link = attach_tc(object, "mark", interface, namespace);
                        self.links.push(link.map_err(at)??);
                    }
                }
                // After the relays' programs: when a process is killed, the kernel closes its most
                // recently opened files first, and no packet may be handed over that no one will
                // receive.
                Handover::Skb => {
                    let link = attach_tc(object, &format!("steer_{number}"), interface, namespace);
                    self.chains.push(link.map_err(at)??);
                }
            }
        }
        // Last: a driver may request its interrupts again when it gets a program.
        for wire in &plan.wires {
            let namespace = wire.namespace.as_deref();
            let notes = bring_interrupts(machine, journal, &wire.interface, namespace, core)?;
            self.notes.extend(notes.into_iter().map(|note| format!("wire {}: {note}", wire.name)));
        }
        if plan.handover == Handover::Skb {
            let mut switch = object.ways(&relays)?;
            switch.set(true)?;
            self.switch = Some(switch);
        }
        Ok(())
    }

    /// Returns packets to their normal path; packets already handed over are still in transit.
    pub(crate) fn let_go(&mut self) {
        // Programs on socket buffers stay, to count arrivals.
        let stays = self.switch.as_mut().is_some_and(|switch| switch.set(false).is_ok());
        if !stays {
            self.replace_by_passing();
            self.detach();
        }
    }

    /// Has XDP programs do nothing. A veth that loses its program while this handles a packet takes
    /// away the receive queue that the packet is checked by, and so loses it.
    fn replace_by_passing(&mut self) {
        let first = self.objects.first_mut().filter(|_| self.switch.is_none());
        let Some(Ok(program)) = first.map(Object::letting_pass) else { return };
        // A wire that is gone keeps no link.
        let links = std::mem::take(&mut self.chains).into_iter();
        self.chains = links.filter_map(|link| Object::replace(program, link).ok()).collect();
        settle();
    }

    pub(crate) fn detach(&mut self) {
        self.chains.clear();
        self.links.clear();
    }

    /// Replaces the chain, wire by wire, from one packet to the next.
    pub(crate) fn swap(&mut self, plan: &Plan, mut object: Object) -> Result<(), RunError> {
        let replaced = |error: Box<dyn Error + Send + Sync>| refused("replaced", &*error);
        if self.chains.len() != plan.wires.len() {
            let message = "a wire lost its program while its chain was replaced: restart the card";
            return Err(MachineError::Refused(message.into()).into());
        }
        let counts = object.counts()?;
        // Counters of an earlier chain serve it.
        let is_marked = !self.links.is_empty() || plan.handover == Handover::Skb;
        if !is_marked && plan.objects().any(|(_, file)| file.metadata) {
            for wire in &plan.wires {
                let namespace = wire.namespace.as_deref();
                self.links.push(attach_tc(&mut object, "mark", &wire.interface, namespace)??);
            }
        }
        for (wire, number) in (0..plan.wires.len()).zip(plan.programs()) {
            if let Err(error) = self.replace(plan, wire, (number, &mut object)) {
                self.put_back(plan, wire);
                // Running programs finish first.
                settle();
                self.counters.add(counts, plan);
                return Err(replaced(error));
            }
        }
        self.counters.put(counts, plan);
        self.objects.push(object);
        let functions = functions_of(plan);
        self.view.functions.replace(Direction::Rx, functions);
        Ok(())
    }

    /// Replaces a wire's program with the program of this number; on failure, removes the link.
    fn replace(
        &mut self,
        plan: &Plan,
        wire: usize,
        (number, object): (usize, &mut Object),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let link = self.chains.remove(wire);
        let link = match plan.handover {
            Handover::Cpumap => Object::replace(object.wire(number)?, link)?,
            Handover::Skb => Object::replace_tc(object.tc(&format!("steer_{number}"))?, link)?,
        };
        self.chains.insert(wire, link);
        Ok(())
    }

    /// Restores the current chain after replacing it on this wire failed; the wire may be gone.
    fn put_back(&mut self, plan: &Plan, failed: usize) {
        let Some(mut object) = self.objects.pop() else { return };
        for (wire, number) in (0..failed).zip(plan.programs()) {
            // A wire that cannot be restored is reported at the next replacement.
            let _ = self.replace(plan, wire, (number, &mut object));
        }
        let wire = &plan.wires[failed];
        let (interface, namespace) = (&*wire.interface, wire.namespace.as_deref());
        let number = plan.programs()[failed];
        let link = match plan.handover {
            Handover::Cpumap => object.wire(number).ok().and_then(|program| {
                within(namespace, || Object::attach(program, interface, XdpMode::Driver)).ok()?.ok()
            }),
            Handover::Skb => {
                let name = format!("steer_{number}");
                attach_tc(&mut object, &name, interface, namespace).ok().and_then(Result::ok)
            }
        };
        if let Some(link) = link {
            self.chains.insert(failed.min(self.chains.len()), link);
        }
        self.objects.push(object);
    }

    /// Releases replaced chains that no longer run.
    pub(crate) fn settle(&mut self) {
        self.counters.settle();
        while self.objects.len() > 2 {
            self.objects.remove(1);
        }
    }
}

/// Refuses wires that the card cannot use, as far as known without opening them.
pub(crate) fn check_wires(file: &CardFile, plan: &Plan) -> Result<(), RunError> {
    for (index, wire) in plan.wires.iter().enumerate() {
        let (interface, namespace) = (&*wire.interface, wire.namespace.as_deref());
        Polling::check(interface, namespace)
            .map_err(|error| not_polled(file, index, interface, error))?;
        if plan.handover == Handover::Cpumap
            && let Some(other) = other_program(interface, namespace)
        {
            let message = format!(
                "found {interface}, whose driver runs another XDP program ({other}): detach that \
                 first{}",
                or_skb(plan)
            );
            return Err(at_wire(file, index, ConfigError::new("interface", message)).into());
        }
        if plan.handover == Handover::Cpumap
            && let Some(why) = xdp::refusal(interface, namespace)
        {
            return Err(takes_none(file, plan, index, &why).into());
        }
    }
    Ok(())
}

/// The error that a wire's driver accepts no program.
fn takes_none(file: &CardFile, plan: &Plan, index: usize, why: &str) -> ConfigError {
    let mend = if plan.is_hybrid { "" } else { "; host.handover = \"skb\" needs none" };
    let interface = &plan.wires[index].interface;
    let message = format!("found \"{interface}\", whose driver takes no XDP program: {why}{mend}");
    at_wire(file, index, ConfigError::new("interface", message))
}

/// The alternative to cpumap, for a card that can use it.
pub(crate) fn or_skb(plan: &Plan) -> &'static str {
    if plan.is_hybrid { "" } else { ", or set host.handover = \"skb\"" }
}

/// Attaches a program on socket buffers to an interface's receive path, until the link is dropped.
fn attach_tc(
    object: &mut Object,
    program: &str,
    interface: &str,
    namespace: Option<&str>,
) -> Result<Result<FdLink, RunError>, ConfigError> {
    within(namespace, || {
        Object::attach_tc(object.tc(program)?, interface).map_err(|error| {
            let message = format!("attached to the receive path of {interface} (needs Linux 6.6)");
            refused(&message, &*error)
        })
    })
}

/// The XDP program of an interface, as `id 7 name guard`; none if it has none.
fn other_program(interface: &str, namespace: Option<&str>) -> Option<String> {
    let enter = namespace.map(|name| ["-n", name]);
    let words = ["ip"].into_iter().chain(enter.into_iter().flatten());
    let words: Vec<_> = words.chain(["-d", "link", "show", "dev", interface]).collect();
    let shown = command::run(&words).ok()?;
    let (_, program) = shown.split_once("prog/xdp ")?;
    // Some programs have no name.
    let words: Vec<_> = program.split_whitespace().take(4).collect();
    let length = if words.get(2) == Some(&"name") { 4 } else { 2 };
    Some(words.get(..length)?.join(" "))
}

/// A card's counters, all zero.
fn view(name: String, plan: &Plan, placement: &Placement) -> View {
    let wires = plan.wires.iter().map(|wire| WireView {
        name: wire.name.clone(),
        capabilities: Capabilities::default(),
        counters: Arc::default(),
    });
    let queues = placement.target_cores.iter().map(|_| QueueView {
        target: Arc::default(),
        steer: Arc::default(),
        ring_size: plan.ring_size as usize,
    });
    View {
        name,
        wires: wires.collect(),
        queues: queues.collect(),
        guests: Vec::new(),
        functions: Functions::fixed(functions_of(plan)),
        ledger: Arc::new(Ledger::new(placement.target_cores.len())),
        warnings: Vec::new(),
        poll: None,
        classes: Vec::new(),
        groups: None,
    }
}

/// A card's functions, with counters at zero.
fn functions_of(plan: &Plan) -> Vec<FunctionView> {
    let view = |step: &Step| FunctionView { name: step.name.clone(), counters: Arc::default() };
    plan.steps.iter().map(view).collect()
}

/// An error about a key of a wire, with its place.
pub(crate) fn at_wire(file: &CardFile, index: usize, error: ConfigError) -> ConfigError {
    file.locate(ConfigError { key: format!("wire[{index}].{}", error.key), ..error })
}

/// The error that an interface cannot be a wire here, since no thread would run its programs on the
/// borrowed core.
fn not_polled(file: &CardFile, index: usize, interface: &str, error: MachineError) -> RunError {
    match error {
        MachineError::Refused(why) => {
            let message = format!("found \"{interface}\", but {why}");
            at_wire(file, index, ConfigError::new("interface", message)).into()
        }
        error => error.into(),
    }
}

fn cannot_lock(file: &CardFile, index: usize, interface: &str, error: &io::Error) -> ConfigError {
    let message = match error.kind() {
        io::ErrorKind::AddrInUse => format!("found {interface}, which is another card's wire"),
        _ => format!("{interface} cannot be used as a wire: {error}"),
    };
    at_wire(file, index, ConfigError::new("interface", message))
}
