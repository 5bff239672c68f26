//! Builds the parts of a card from its file; validates everything before anything starts.
//!
//! The engine knows no function or port by name; [`Components`] provides them.

use crate::chain::ChainFunction;
use crate::rx::{Wire, check_throttle};
use picnic_core::attachment::HostAttachment;
use picnic_core::classes::Classes;
use picnic_core::config::{self, CardFile, InterruptSection, Section, StampDemand};
use picnic_core::direction::Direction;
use picnic_core::error::{ConfigError, PoolError};
use picnic_core::function::{Disorder, Function};
use picnic_core::guard::Guard;
use picnic_core::hook::{HookPoint, Hooks};
use picnic_core::port::{Arrivals, WirePort};
use picnic_core::registry::{BuildContext, Entry, find};
use picnic_core::resident::Resident;
use picnic_core::stop::Stop;
use picnic_core::time::Time;

/// Wraps a wire in the middleware that its section names.
pub type WrapWire =
    fn(Box<dyn WirePort>, &config::Wire, &BuildContext) -> Result<Box<dyn WirePort>, ConfigError>;

/// The registries for the parts of a card.
#[derive(Clone, Copy)]
pub struct Components {
    /// NIC functions.
    pub functions: &'static [Entry<Box<dyn Function>>],
    /// Wire ports.
    pub wires: &'static [Entry<Box<dyn WirePort>>],
    /// Host attachments.
    pub attachments: &'static [Entry<Box<dyn HostAttachment>>],
    /// The middleware between wires and the card.
    pub middleware: WrapWire,
}

/// Wires that know arrival times, for messages.
pub const STAMPING: &str = "packet, xdp with stamps = true, pcap as it was recorded, generator with \
                            a rate, any with [wire.link]";

/// The reason why a card could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The card file is wrong, or the machine cannot provide its requirements.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no memory for the buffers.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// The context for the builders of a card file.
pub fn context(file: &CardFile) -> BuildContext {
    BuildContext {
        card: file.card.name.clone(),
        queues: file.host.card_queues(),
        wires: file.wires.len() as u8,
        seed: file.card.seed,
        position: 0,
        directory: file.directory.clone(),
        shared: file.shared.clone(),
        buffer_size: file.pool.buffer_size as usize,
        buffers: file.pool.buffers as usize,
        in_kernel: file.card.engine == "kernel",
        is_hybrid: file.card.engine == "hybrid",
        ..BuildContext::default()
    }
}

/// Builds the functions of one chain, at the start or for a swap while the card runs
/// (`Command::Swap`).
///
/// # Errors
/// All errors in the sections.
pub fn links(
    sections: &[Section],
    direction: Direction,
    components: &Components,
    context: &BuildContext,
    hooks: &Hooks,
) -> Result<Vec<ChainFunction>, ConfigError> {
    let links = sections.iter().enumerate().map(|(position, section)| {
        let entry = find(components.functions, section)?;
        let function = entry.build(section, &BuildContext { position, ..context.clone() })?;
        let point = HookPoint::Function { direction, position, name: entry.name };
        let name = match function.name() {
            Some(own) => format!("{}:{own}", entry.name),
            None => entry.name.into(),
        };
        Ok(ChainFunction::new(name, function).observed(hooks.observers(&point)))
    });
    let mut faults = Vec::new();
    let links: Vec<ChainFunction> = links.filter_map(|link| keep(link, &mut faults)).collect();
    ConfigError::all(faults)?;
    check_order(&links, sections, direction)?;
    Ok(links)
}

/// Returns the built components; an error goes to `faults`.
fn keep<T>(built: Result<T, ConfigError>, faults: &mut Vec<ConfigError>) -> Option<T> {
    built.map_err(|error| faults.push(error)).ok()
}

/// Refuses a function that needs flows in order after a function that breaks their order.
fn check_order(
    links: &[ChainFunction],
    sections: &[Section],
    direction: Direction,
) -> Result<(), ConfigError> {
    for (place, link) in links.iter().enumerate() {
        let Some(Disorder { key, found, allowed }) = link.breaks_order(direction) else {
            continue;
        };
        if let Some(behind) = links[place..].iter().find(|link| link.needs_order()) {
            let behind = &behind.name;
            let message = format!(
                "found \"{found}\" before \"{behind}\", which needs packets of a flow in \
                 order, allowed: {allowed}, or \"{behind}\" before it"
            );
            return Err(sections[place].locate(ConfigError::new(key, message)));
        }
    }
    Ok(())
}

/// Checks a section's name and keys.
fn check_in<P>(registry: &[Entry<P>], section: &Section) -> Option<ConfigError> {
    find(registry, section).and_then(|entry| entry.check(section)).err()
}

/// Refuses a wire without arrival times if the card requires them.
fn check_stamp(file: &CardFile, section: &config::Wire, wire: &Wire) -> Result<(), ConfigError> {
    if file.card.stamp == StampDemand::Any || wire.capabilities.arrival {
        return Ok(());
    }
    let (name, port) = (&section.name, section.port.name());
    let message = format!(
        "found \"arrival\" with {name} ({port}), which knows only the time of reception, \
         allowed: \"any\", or wires that know when they arrived ({STAMPING})"
    );
    Err(file.locate(ConfigError::new("card.stamp", message)))
}

/// The parts of a card, built and checked, but neither connected nor started.
pub struct Parts {
    pub(crate) wires: Vec<(String, Wire)>,
    pub(crate) rx: Vec<ChainFunction>,
    pub(crate) tx: Vec<ChainFunction>,
    pub(crate) attachment: Box<dyn HostAttachment>,
    pub(crate) resident: Option<Box<dyn Resident>>,
    pub(crate) guard: Option<Box<dyn Guard>>,
    pub(crate) hooks: Hooks,
    warnings: Vec<String>,
    pub(crate) classes: Option<Classes>,
}

impl Parts {
    /// Builds everything in the card file. `stop` tells when the card shall stop.
    ///
    /// # Errors
    /// All errors in the file's components.
    pub fn build(
        file: &CardFile,
        components: &Components,
        hooks: &Hooks,
        stop: &Stop,
    ) -> Result<Parts, ConfigError> {
        let base = BuildContext { stop: stop.clone(), ..context(file) };
        let at = |position| BuildContext { position, ..base.clone() };
        let wire = |index: usize, section: &config::Wire| {
            let entry = find(components.wires, &section.port)?;
            let port = entry.build(&section.port, &at(index))?;
            let port = (components.middleware)(port, section, &at(index))?;
            let observers = hooks.observers(&HookPoint::Wire { index, name: &section.name });
            let mut wire = Wire::new(port, observers);
            let InterruptSection { wire_usecs, wire_frames, .. } = file.interrupt;
            check_throttle(wire.capabilities, wire_usecs, wire_frames)
                .map_err(|wrong| file.locate(wrong))?;
            wire.throttle(Time::ZERO, wire_usecs, wire_frames);
            check_stamp(file, section, &wire)?;
            Ok((section.name.clone(), wire))
        };
        let mut faults = Vec::new();
        let wires = file.wires.iter().enumerate();
        let wires = wires.filter_map(|(index, section)| keep(wire(index, section), &mut faults));
        let wires: Vec<_> = wires.collect();
        let rx = links(&file.rx, Direction::Rx, components, &base, hooks);
        let rx = keep(rx, &mut faults).unwrap_or_default();
        let tx = links(&file.tx, Direction::Tx, components, &base, hooks);
        let tx = keep(tx, &mut faults).unwrap_or_default();
        let classes = keep(Classes::of(file), &mut faults).flatten();
        let section = &file.host.section;
        let super_frames = wires.iter().all(|(_, wire)| wire.capabilities.super_frames)
            || tx.iter().any(ChainFunction::cuts_super_frames);
        let host = BuildContext { super_frames, queues: file.host.queues, ..base };
        let attachment =
            find(components.attachments, section).and_then(|entry| entry.build(section, &host));
        let ((), attachment) = ConfigError::both(ConfigError::all(faults), attachment)?;
        let (resident, guard, hooks, warnings) = (None, None, hooks.clone(), Vec::new());
        Ok(Parts { wires, rx, tx, attachment, resident, guard, hooks, warnings, classes })
    }

    /// Checks the keys of all components without building them, for a file with wrong keys that
    /// affect every component.
    ///
    /// # Errors
    /// All errors in the components' keys.
    pub fn check(file: &CardFile, components: &Components) -> Result<(), ConfigError> {
        let mut faults = Vec::new();
        for wire in &file.wires {
            faults.extend(check_in(components.wires, &wire.port));
        }
        for section in file.rx.iter().chain(&file.tx) {
            faults.extend(check_in(components.functions, section));
        }
        faults.extend(check_in(components.attachments, &file.host.section));
        faults.extend(Classes::of(file).err());
        ConfigError::all(faults)
    }

    /// The highest arrival rate at each wire.
    pub fn arrivals(&self) -> Vec<Arrivals> {
        self.wires.iter().map(|(_, wire)| wire.port.describe().arrivals).collect()
    }

    /// By wire, whether it knows arrival times; other packets get the time of the turn that
    /// received them.
    pub fn know_arrival(&self) -> Vec<bool> {
        self.wires.iter().map(|(_, wire)| wire.capabilities.arrival).collect()
    }

    /// Notes about the wires before the run, each with the wire's name.
    pub fn notes(&self) -> Vec<String> {
        let of = |(name, wire): &(String, Wire)| {
            let notes = wire.port.describe().notes.into_iter();
            notes.map(|note| format!("{name}: {note}")).collect::<Vec<_>>()
        };
        self.wires.iter().flat_map(of).collect()
    }

    /// Adds a warning to the warnings of the wires.
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Problems that keep wires from working, each with the wire's name; whether the host uses only
    /// one of several wires; and the warnings added by [`Parts::warn`].
    pub fn warnings(&self) -> Vec<String> {
        let of = |(name, wire): &(String, Wire)| {
            let warnings = wire.port.describe().warnings.into_iter();
            warnings.map(|warning| format!("{name}: {warning}")).collect::<Vec<_>>()
        };
        let unused = match &*self.wires {
            [(first, _), _, ..] if self.host_transmits() && self.tx.is_empty() => Some(format!(
                "packets from the host leave only on {first}: no function of the tx chain chooses \
                 among the {} wires",
                self.wires.len()
            )),
            _ => None,
        };
        let added = self.warnings.iter().cloned();
        self.wires.iter().flat_map(of).chain(unused).chain(added).collect()
    }

    /// Installs a guard, which sees packets before everything else.
    pub fn guard(&mut self, guard: Box<dyn Guard>) {
        self.guard = Some(guard);
    }

    /// Installs a resident of the borrowed core, such as NIC OS.
    pub fn house(&mut self, resident: Box<dyn Resident>) {
        self.resident = Some(resident);
    }

    /// Whether the host sends on its own, so that its descriptors must be waited for.
    pub fn host_transmits(&self) -> bool {
        self.attachment.wants_buffers() != 0
    }

    /// Whether the target routine shall preempt other work on its core.
    pub fn wants_real_time(&self) -> bool {
        self.attachment.wants_real_time()
    }
}
