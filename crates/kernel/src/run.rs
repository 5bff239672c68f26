//! A run: interfaces polled on the borrowed core, programs attached, and all of it taken back.
//!
//! Another rx chain is loaded beside the first, goes on with the maps that are the card's (rings,
//! filters, ways), and takes its place by link update; what programs that are replaced have counted stays.
//!
//! To stop, packets first go the way they went before: XDP programs are detached, tc programs let
//! them pass. What was handed over by then is taken by the target cores, and counted; then rings
//! and relays go, and last the machine is set back by its journal.

use crate::counters::{Counters, Taken};
use crate::hybrid::{self, Half, Sockets, Sums};
use crate::live::{Live, functions};
use crate::object::{Object, SETTLE, SharedMaps, Switch, Tables, refused};
use crate::plan::{Plan, Step, is_hybrid, of_engine, plan, steps};
use crate::rules::{Rules, room};
use aya::programs::links::FdLink;
use picnic_control::error::RunError;
use picnic_control::launch::Checked;
use picnic_control::monitor::{CoreTimes, Monitor, Notes, TargetTimes};
use picnic_control::report::Times;
use picnic_control::{Access, Executor, Launch, Registries, Report, Running, SwapRx};
use picnic_core::config::{CardFile, Section};
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::Handover;
use picnic_core::ledger::Ledger;
use picnic_core::registry::{self, BuildContext, Entry};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_engine::view::{FunctionView, Functions, QueueView, View, WireView};
use picnic_filter::image::Judge;
use picnic_filter::{Action, Filters, MOST_FILTERS};
use picnic_machine::command;
use picnic_machine::error::MachineError;
use picnic_machine::isolate::{told, told_of_end};
use picnic_machine::napi::{Polling, named, schedule};
use picnic_machine::steering::{self, Relay};
use picnic_machine::topology::Placement;
use picnic_machine::undo::{Journal, Machine, Which, restore_all};
use picnic_ports::interface::{lock, number, within};
use std::error::Error;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The purpose of this engine's journals.
const PURPOSE: &str = "kernel";
/// Between two looks at the counters.
const LOOK: Duration = Duration::from_millis(20);
/// How long what is under way may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The card file on XDP, in the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

/// The same, but for packets that filters send to the poll engine.
#[derive(Clone, Copy, Debug)]
pub struct Hybrid;

macro_rules! executor {
    ($executor:ident, $name:literal, $help:literal) => {
        impl Executor for $executor {
            fn name(&self) -> &'static str {
                $name
            }

            fn help(&self) -> &'static str {
                $help
            }

            fn place(&self, launch: &Launch<'_>) -> Result<Placement, RunError> {
                Ok(plan(launch)?.1)
            }

            fn check(&self, launch: &Launch<'_>) -> Result<Checked, RunError> {
                check(launch)
            }

            // At its end it starts commands that set interfaces back.
            fn may_be_confined(&self) -> bool {
                false
            }

            fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
                start($name, launch)
            }
        }
    };
}

executor!(Kernel, "kernel", "the borrowed core, in the kernel: tc or XDP programs");
executor!(Hybrid, "hybrid", "in the kernel, and what filters choose in user space");

fn check(launch: &Launch<'_>) -> Result<Checked, RunError> {
    let (mut plan, mut placement) = plan(launch)?;
    let filters = Filters::new(launch.file.host.queues);
    add_filters(launch, &filters)?;
    find_wires(launch.file, &mut plan)?;
    if plan.is_hybrid {
        placement.warnings.extend(hybrid::check(launch)?);
        placement.warnings.extend(in_part(launch.file, &filters));
    }
    Ok(Checked { placement, filters, os: None })
}

fn start(engine: &'static str, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
    // What killed runs have left behind, before the cores are counted.
    let cleaned = restore_all(&Machine::this(), Which::Stale);
    let (mut plan, mut placement) = plan(&launch)?;
    plan.room = add_filters(&launch, &launch.filters)?;
    find_wires(launch.file, &mut plan)?;
    placement.warnings.extend(told(cleaned));
    let cores = &placement.target_cores;
    let (mut object, half) = if plan.is_hybrid {
        let sockets = Sockets::new(launch.file, plan.wires.len())?;
        plan.stamp_mark = sockets.mark();
        let object = Object::load_with(sockets.map(), &plan, cores)?;
        // Before packets can be handed over.
        (object, Some(Half::start(&launch)?))
    } else {
        (Object::load(&plan, cores, false)?, None)
    };
    if plan.is_hybrid {
        placement.warnings.extend(in_part(launch.file, &launch.filters));
    }
    let tables = object.tables(&plan)?;
    let rules = Rules::new(&launch.filters, object.filters()?, plan.room)?;
    let card = Attached::new(launch.file, &plan, object, &placement)?;
    let parts = (tables, rules, half);
    Ok(Box::new(KernelRunning::new(engine, card, (plan, placement), parts, launch)?))
}

/// What a shared card has not all packets for: none for the poll engine, or a trace.
fn in_part(file: &CardFile, filters: &Filters) -> impl Iterator<Item = String> {
    let is_any = filters.list().iter().any(|listing| listing.filter.action == Action::Poll);
    let without = (!is_any).then_some(
        "engine = \"hybrid\", but no filter has action = \"poll\": all packets stay in the kernel",
    );
    let traced = file.has("trace").then_some(
        "[trace] has packets of the poll engine alone: those that stay in the kernel are not traced",
    );
    without.into_iter().chain(traced).map(String::from)
}

/// Adds the filters that the card file has, and says how many there is room for.
pub(crate) fn add_filters(launch: &Launch<'_>, filters: &Filters) -> Result<usize, ConfigError> {
    let judge = if is_hybrid(launch.file) { Judge::Hybrid } else { Judge::Kernel };
    filters.write_only(MOST_FILTERS, judge);
    for add in launch.registries.filters {
        add(launch.file, filters)?;
    }
    picnic_filter::config::add(filters, launch.file)?;
    let room = room(filters.list().len());
    filters.write_only(room, judge);
    Ok(room)
}

/// Looks up the wires' interfaces.
fn find_wires(file: &CardFile, plan: &mut Plan) -> Result<(), ConfigError> {
    for (index, wire) in plan.wires.iter_mut().enumerate() {
        let (found, namespace) = (&wire.interface, wire.namespace.as_deref());
        let number = within(namespace, || number(found));
        let number = number.map_err(|error| at_wire(file, index, error))?;
        wire.index = number.map_err(|error| {
            let place = namespace.unwrap_or("the card's network namespace");
            let message = match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("found \"{found}\", but {place} has no such interface")
                }
                _ => format!("{found} cannot be looked up in {place}: {error}"),
            };
            at_wire(file, index, ConfigError::new("interface", message))
        })?;
    }
    Ok(())
}

/// A card in the kernel, whose programs run.
struct Attached {
    /// Dropped first: programs end before what they use. Those that run the chain, by wire.
    chains: Vec<FdLink>,
    /// The others.
    links: Vec<FdLink>,
    /// Of packets that are handed over as socket buffers.
    switch: Option<Switch>,
    counters: Counters,
    polling: Vec<Polling>,
    view: View,
    _locks: Vec<UnixDatagram>,
    /// The programs that the card started with, some of which stay; last those of the chain in force.
    objects: Vec<Object>,
    journal: Option<Journal>,
}

impl Attached {
    fn new(
        file: &CardFile,
        plan: &Plan,
        mut object: Object,
        placement: &Placement,
    ) -> Result<Self, RunError> {
        let machine = Machine::this();
        // The poll engine's ports have them for themselves.
        let alone = if plan.is_hybrid { &[][..] } else { &plan.wires };
        let locks = alone.iter().enumerate().map(|(index, wire)| {
            let locked = within(wire.namespace.as_deref(), || lock(&wire.interface));
            let locked = locked.map_err(|error| at_wire(file, index, error))?;
            Ok(locked.map_err(|error| cannot_lock(file, index, &wire.interface, &error))?)
        });
        let locks = locks.collect::<Result<Vec<_>, RunError>>()?;
        let counters = Counters::new(&mut object, plan, placement)?;
        let mut attached = Attached {
            chains: Vec::new(),
            links: Vec::new(),
            switch: None,
            counters,
            polling: Vec::new(),
            view: view(file.card.name.clone(), plan, placement),
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
                // What cannot be taken back now stays in the journal, for the next start.
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
        for wire in &plan.wires {
            let namespace = wire.namespace.as_deref();
            let mut polling = Polling::start(machine, journal, &wire.interface, namespace)?;
            polling.pin(machine, journal, core)?;
            if plan.wire_usecs != 0 {
                polling.hold(journal, plan.wire_usecs)?;
            }
            self.polling.push(polling);
            steering::stop(journal, &wire.interface, namespace)?;
        }
        let relays = match plan.handover {
            Handover::Cpumap => Vec::new(),
            Handover::Skb => {
                let cores = placement.target_cores.iter().copied().collect();
                let relays = plan.wires.iter().map(|wire| {
                    let namespace = wire.namespace.as_deref();
                    Relay::make(journal, &wire.interface, namespace, &cores)
                });
                relays.collect::<Result<Vec<_>, _>>()?
            }
        };
        for ((index, wire), number) in plan.wires.iter().enumerate().zip(plan.programs()) {
            let (interface, namespace) = (&*wire.interface, wire.namespace.as_deref());
            let at = |error| RunError::from(at_wire(file, index, error));
            match relays.get(index) {
                None => {
                    if let Some(other) = other_program(interface, namespace) {
                        let message = format!(
                            "found {interface}, whose driver runs another XDP program ({other}): \
                             detach that first, or set host.handover = \"skb\""
                        );
                        return Err(at(ConfigError::new("interface", message)));
                    }
                    let program = object.wire(number)?;
                    let link = within(namespace, || Object::attach(program, interface));
                    self.chains.push(link.map_err(at)?.map_err(|error| {
                        refused(&format!("attached to the driver of {interface}"), &*error)
                    })?);
                    // A driver may have made its threads anew.
                    self.polling[index].pin(machine, journal, core)?;
                    if plan.objects().any(|(_, file)| file.metadata) {
                        let link = attach_tc(object, "mark", interface, namespace);
                        self.links.push(link.map_err(at)??);
                    }
                }
                // First the wire's, which then ends first, however the process does.
                Some(relay) => {
                    let link = attach_tc(object, &format!("steer_{number}"), interface, namespace);
                    self.chains.push(link.map_err(at)??);
                    let program = format!("relay_{index}");
                    let link = attach_tc(object, &program, &relay.name, namespace);
                    self.links.push(link.map_err(at)??);
                }
            }
        }
        if plan.handover == Handover::Skb {
            let mut switch = object.ways(&relays)?;
            switch.set(true)?;
            self.switch = Some(switch);
        }
        Ok(())
    }

    /// Lets packets go the way they went before; those that were handed over are under way still.
    fn let_go(&mut self) {
        // Programs of socket buffers stay, to count what arrives.
        let stays = self.switch.as_mut().is_some_and(|switch| switch.set(false).is_ok());
        if !stays {
            self.detach();
        }
    }

    fn detach(&mut self) {
        self.chains.clear();
        self.links.clear();
    }

    /// Puts another chain in force, wire by wire, from one packet to the next.
    fn swap(&mut self, plan: &Plan, mut object: Object) -> Result<(), RunError> {
        let replaced = |error: Box<dyn Error + Send + Sync>| refused("replaced", &*error);
        if self.chains.len() != plan.wires.len() {
            let message =
                "a wire has lost its program when its chain was to be replaced: start anew";
            return Err(MachineError::Refused(message.into()).into());
        }
        let counts = object.counts()?;
        // Those of a chain before this one do for it.
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
                // What is at work with it still ends first.
                std::thread::sleep(SETTLE);
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

    /// Puts the program of this number in place of a wire's, whose link goes if it cannot be.
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

    /// Puts the chain in force back, as that of this wire could not be replaced, which may have gone.
    fn put_back(&mut self, plan: &Plan, failed: usize) {
        let Some(mut object) = self.objects.pop() else { return };
        for (wire, number) in (0..failed).zip(plan.programs()) {
            // What cannot be put back is told when it is to be replaced again.
            let _ = self.replace(plan, wire, (number, &mut object));
        }
        let wire = &plan.wires[failed];
        let (interface, namespace) = (&*wire.interface, wire.namespace.as_deref());
        let number = plan.programs()[failed];
        let link = match plan.handover {
            Handover::Cpumap => object.wire(number).ok().and_then(|program| {
                within(namespace, || Object::attach(program, interface)).ok()?.ok()
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

    /// Lets go of chains that were replaced, and are at work no more.
    fn settle(&mut self) {
        self.counters.settle();
        while self.objects.len() > 2 {
            self.objects.remove(1);
        }
    }
}

/// Runs a program of socket buffers on what an interface receives, for as long as the answer lives.
fn attach_tc(
    object: &mut Object,
    program: &str,
    interface: &str,
    namespace: Option<&str>,
) -> Result<Result<FdLink, RunError>, ConfigError> {
    within(namespace, || {
        Object::attach_tc(object.tc(program)?, interface).map_err(|error| {
            let message = format!("attached to what {interface} receives (it wants Linux 6.6)");
            refused(&message, &*error)
        })
    })
}

/// The XDP program that an interface has, as `id 7 name guard`; none if it has none.
fn other_program(interface: &str, namespace: Option<&str>) -> Option<String> {
    let enter = namespace.map(|name| ["-n", name]);
    let words = ["ip"].into_iter().chain(enter.into_iter().flatten());
    let words: Vec<_> = words.chain(["-d", "link", "show", "dev", interface]).collect();
    let shown = command::run(&words).ok()?;
    let (_, program) = shown.split_once("prog/xdp ")?;
    // A name is not always there.
    let words: Vec<_> = program.split_whitespace().take(4).collect();
    let length = if words.get(2) == Some(&"name") { 4 } else { 2 };
    Some(words.get(..length)?.join(" "))
}

/// The counters of a card, all zero.
fn view(name: String, plan: &Plan, placement: &Placement) -> View {
    let wires = plan.wires.iter().map(|wire| WireView {
        name: wire.name.clone(),
        arrival: false,
        counters: Arc::default(),
    });
    let ring_size = match plan.handover {
        Handover::Cpumap => plan.ring_size as usize,
        // One for all that a core receives; not seen from everywhere.
        Handover::Skb => std::fs::read_to_string("/proc/sys/net/core/netdev_max_backlog")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or_default(),
    };
    let queues = placement.target_cores.iter().map(|_| QueueView {
        target: Arc::default(),
        steer: Arc::default(),
        ring_size,
    });
    View {
        name,
        wires: wires.collect(),
        queues: queues.collect(),
        functions: Functions::fixed(functions_of(plan)),
        ledger: Arc::new(Ledger::new(placement.target_cores.len())),
        warnings: Vec::new(),
        poll: None,
    }
}

/// The functions of a card, with counters at zero.
fn functions_of(plan: &Plan) -> Vec<FunctionView> {
    let view = |step: &Step| FunctionView { name: step.name.clone(), counters: Arc::default() };
    plan.steps.iter().map(view).collect()
}

/// An error about a key of a wire, with its place.
fn at_wire(file: &CardFile, index: usize, error: ConfigError) -> ConfigError {
    file.locate(ConfigError { key: format!("wire[{index}].{}", error.key), ..error })
}

fn cannot_lock(file: &CardFile, index: usize, interface: &str, error: &io::Error) -> ConfigError {
    let message = match error.kind() {
        io::ErrorKind::AddrInUse => format!("found {interface}, which is another card's wire"),
        _ => format!("{interface} cannot be taken for a wire: {error}"),
    };
    at_wire(file, index, ConfigError::new("interface", message))
}

/// A card at work, and those who change it. There is none any more when it has stopped.
struct Card {
    attached: Attached,
    live: Live,
    rules: Rules,
    /// With what the poll engine's part counts, if it has one.
    sums: Option<Sums>,
}

impl Card {
    /// Brings what the programs have counted into the card's counters. Packets on their way to the
    /// poll engine are told beside.
    fn take(&self) -> (Taken, u64) {
        let take = || self.attached.counters.take(&self.attached.view);
        self.sums.as_ref().map_or_else(|| (take(), 0), |sums| sums.take(take))
    }
}

/// Whoever panicked had it for as long as one change takes: what is told of it is whole.
fn lock_card(card: &Mutex<Option<Card>>) -> MutexGuard<'_, Option<Card>> {
    card.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts other chains in place of a card's own.
struct Swapper {
    card: Arc<Mutex<Option<Card>>>,
    /// Of the chain that is in force.
    plan: Plan,
    cores: Vec<usize>,
    shared: SharedMaps,
    functions: &'static [Entry<Box<dyn Function>>],
}

impl SwapRx for Swapper {
    fn swap(
        &mut self,
        sections: &[Section],
        base: &BuildContext,
        exchange: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<Vec<usize>, RunError> {
        let base = &BuildContext { in_kernel: true, ..base.clone() };
        let is_hybrid = self.plan.is_hybrid;
        let steps = steps(self.functions, sections, base, self.plan.handover)
            .map_err(|error| of_engine(is_hybrid, error))?;
        let plan = self.plan.with(steps);
        // All that takes long, or can be refused, comes first.
        let mut object = Object::load_beside(&plan, &self.cores, false, Some(&self.shared))?;
        for (_, number) in plan.wires.iter().zip(plan.programs()) {
            match plan.handover {
                Handover::Cpumap => object.wire(number).map(drop)?,
                Handover::Skb => object.tc(&format!("steer_{number}")).map(drop)?,
            }
        }
        object.count_delivered(plan.handover)?;
        let (tables, users) = (object.tables(&plan)?, object.take_users());
        let functions = functions(self.functions, sections, base, users)?;
        exchange()?;
        let swapped = match lock_card(&self.card).as_mut() {
            Some(Card { attached, live, sums, .. }) => attached.swap(&plan, object).map(|()| {
                live.replace(functions, tables);
                sums.iter_mut().for_each(|sums| sums.put(&plan));
            }),
            None => Err(MachineError::Refused("the card has stopped".into()).into()),
        };
        if let Err(error) = swapped {
            return Err(exchange().err().unwrap_or(error));
        }
        let alone = hybrid::alone(&plan);
        self.plan = plan;
        std::thread::sleep(SETTLE);
        if let Some(card) = lock_card(&self.card).as_mut() {
            card.attached.settle();
        }
        Ok(alone)
    }
}

/// A card at work in the kernel.
struct KernelRunning {
    card: Arc<Mutex<Option<Card>>>,
    monitor: Monitor,
    filters: Filters,
    access: Option<Access>,
    state: Arc<State>,
    looker: JoinHandle<()>,
    /// The poll engine's part, if it has one.
    half: Option<Half>,
}

#[derive(Default)]
struct State {
    is_stopping: AtomicBool,
    /// An interface has gone, or was taken down.
    is_lost: AtomicBool,
}

/// What a card in the kernel says to those who want more changed than its components' commands.
const FIXED: &str = "a card in the kernel cannot do this while it runs; allowed: the \
                     commands of its functions, swaps of its rx chain, filters, and figures";

/// The components as they are in the kernel: each with those of its commands that it has there. What
/// is not there is on the poll engine, if that takes part.
fn in_kernel(registries: Registries, is_hybrid: bool) -> Registries {
    if is_hybrid {
        let functions = registries.functions.iter();
        let functions = functions.map(|entry| match entry.has_kernel_form() {
            true => entry.in_kernel(),
            false => *entry,
        });
        let functions = functions.collect::<Vec<_>>().leak();
        return Registries { functions, schedulers: &[], tasks: &[], ..registries };
    }
    Registries {
        functions: registry::in_kernel(registries.functions),
        wires: registry::in_kernel(registries.wires),
        attachments: registry::in_kernel(registries.attachments),
        schedulers: &[],
        tasks: &[],
        ..registries
    }
}

/// The threads of the kernel that do the card's work, and what is noted of their time.
struct Watched {
    borrowed: Vec<i32>,
    core: Arc<CoreTimes>,
    targets: Vec<(Vec<i32>, Arc<TargetTimes>)>,
    start: Instant,
    /// What the poll engine notes of its threads on the same cores.
    poll: Option<Notes>,
}

impl Watched {
    /// Notes their time; false if one of the borrowed core's has ended.
    fn look(&self) -> bool {
        let elapsed_ns = self.start.elapsed().as_nanos() as u64;
        let sum = |threads: &[i32]| {
            threads.iter().try_fold((0, 0, 0), |(run, wait, turns), &thread| {
                let more = schedule(thread)?;
                Some((run + more.run_ns, wait + more.wait_ns, turns + more.turns))
            })
        };
        for (threads, times) in &self.targets {
            if let Some((run_ns, wait_ns, turns)) = sum(threads) {
                let beside = self.poll.iter().flat_map(|poll| &poll.targets);
                let beside = beside.clone().find(|beside| beside.core == times.core);
                let of =
                    |count: fn(&TargetTimes) -> &Counter| beside.map(|other| count(other).get());
                let asleep_ns = elapsed_ns.saturating_sub(run_ns + wait_ns);
                // Both at once, at most.
                times
                    .asleep_ns
                    .set(of(|times| &times.asleep_ns).unwrap_or(u64::MAX).min(asleep_ns));
                times.wakeups.set(turns + of(|times| &times.wakeups).unwrap_or_default());
                times.thread.set(of(|times| &times.thread).unwrap_or_default());
                times.real_time.set(of(|times| &times.real_time).unwrap_or_default());
                times.yields.set(of(|times| &times.yields).unwrap_or_default());
            }
        }
        let Some((run_ns, wait_ns, turns)) = sum(&self.borrowed) else { return false };
        let beside = self.poll.as_ref().map(|poll| &poll.core);
        let of = |count: fn(&CoreTimes) -> &Counter| beside.map(|other| count(other).get());
        let asleep_ns = elapsed_ns.saturating_sub(run_ns + wait_ns);
        self.core.asleep_ns.set(of(|core| &core.asleep_ns).unwrap_or(u64::MAX).min(asleep_ns));
        self.core.busy_ns.set(run_ns + of(|core| &core.busy_ns).unwrap_or_default());
        self.core.wakeups.set(turns + of(|core| &core.wakeups).unwrap_or_default());
        self.core.thread.set(of(|core| &core.thread).unwrap_or_default());
        self.core.packets_ns.set(of(|core| &core.packets_ns).unwrap_or_default());
        self.core.packets.set(of(|core| &core.packets).unwrap_or_default());
        true
    }
}

impl KernelRunning {
    fn new(
        engine: &'static str,
        mut card: Attached,
        (plan, placement): (Plan, Placement),
        (tables, rules, mut half): (Tables, Rules, Option<Half>),
        launch: Launch<'_>,
    ) -> Result<Self, RunError> {
        let machine = Machine::this();
        let start = Instant::now();
        let core = Arc::new(CoreTimes::default());
        let targets = placement.target_cores.iter().map(|&core| {
            // Those that are there: of another card, too, should it share the core.
            let threads = named(&machine, &format!("cpumap/{core}/map:")).into_iter().collect();
            (threads, Arc::new(TargetTimes { core, ..TargetTimes::default() }))
        });
        let watched = Watched {
            borrowed: card.polling.iter().flat_map(Polling::threads).collect(),
            core: core.clone(),
            targets: targets.collect(),
            start,
            poll: half.as_ref().and_then(Half::notes),
        };
        let latencies = watched.poll.iter().flat_map(|poll| poll.latencies.clone()).collect();
        let notes = Notes {
            clock: Arc::new(move || Time::from_nanos(start.elapsed().as_nanos() as u64)),
            core,
            targets: watched.targets.iter().map(|(_, times)| times.clone()).collect(),
            latencies,
        };
        let sums = half.as_ref().and_then(|half| half.sums(&card.view, &plan));
        let view = sums.as_ref().map_or_else(|| card.view.clone(), |sums| sums.whole.clone());
        let users = card.objects.iter_mut().flat_map(Object::take_users).collect();
        let (live, controller) = Live::new(&launch, &view, tables, users)?;
        let cores = placement.target_cores.clone();
        let shared = card.objects.iter_mut().flat_map(Object::take_shared).collect();
        let monitor = Monitor { engine, times: Times::Measured, view, placement, notes };
        let filters = launch.filters;
        let functions = launch.registries.functions;
        let card = Arc::new(Mutex::new(Some(Card { attached: card, live, rules, sums })));
        let state = Arc::new(State::default());
        let beside = half.as_mut().and_then(|half| half.beside(&plan));
        let is_hybrid = plan.is_hybrid;
        let swapper = Swapper { card: card.clone(), plan, cores, shared, functions };
        let access = Access {
            monitor: monitor.clone(),
            controller,
            registries: in_kernel(launch.registries, is_hybrid),
            hooks: launch.hooks,
            filters: filters.clone(),
            tasks: None,
            fixed: (!is_hybrid).then_some(FIXED),
            swap_rx: Some(Box::new(swapper)),
            beside,
        };
        let looker = {
            let (card, state) = (card.clone(), state.clone());
            let body = move || {
                while !state.is_stopping.load(Ordering::Acquire) {
                    if let Some(card) = lock_card(&card).as_mut() {
                        let (taken, _) = card.take();
                        card.live.note(taken.counts);
                        card.live.obey();
                        // As it was, should the kernel refuse: it is tried again.
                        let _ = card.rules.follow();
                    }
                    if !watched.look() {
                        state.is_lost.store(true, Ordering::Release);
                    }
                    std::thread::park_timeout(LOOK);
                }
                if let Some(card) = lock_card(&card).as_mut() {
                    let _ = card.rules.follow();
                }
            };
            let thread = std::thread::Builder::new().name("kernel-counters".into());
            thread.spawn(body).map_err(|error| RunError::system("cannot start a thread", error))?
        };
        Ok(KernelRunning { card, monitor, filters, access: Some(access), state, looker, half })
    }
}

impl Running for KernelRunning {
    fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    fn filters(&self) -> &Filters {
        &self.filters
    }

    fn control(&mut self) -> Option<Access> {
        self.access.take()
    }

    // An interface never has nothing more to hand over.
    fn is_finished(&self) -> bool {
        false
    }

    fn is_alive(&self) -> bool {
        let has_half = self.half.as_ref().is_none_or(Half::is_alive);
        has_half && !self.state.is_lost.load(Ordering::Acquire)
    }

    fn stop(self: Box<Self>) -> Result<Report, RunError> {
        let KernelRunning { card, monitor, state, looker, half, .. } = *self;
        state.is_stopping.store(true, Ordering::Release);
        looker.thread().unpark();
        looker.join().map_err(|_| RunError::Panicked("the counters".into()))?;
        let stopped = lock_card(&card).take();
        let mut card = stopped.ok_or_else(|| RunError::Panicked("the counters".into()))?;
        let received_for = monitor.elapsed();
        card.attached.let_go();
        let detached = Instant::now();
        let (Taken { under_way: missing, elsewhere, .. }, not_taken) = loop {
            // First the programs come to their end, and their last batches are handed over.
            std::thread::sleep(SETTLE);
            let (taken, to_sockets) = card.take();
            if taken.under_way + to_sockets == 0 || detached.elapsed() > PATIENCE {
                break (taken, to_sockets);
            }
        };
        // It has taken all that there is, and ends with nothing on its way.
        let of_half = half.map(Half::stop).transpose()?.flatten();
        let Card { attached: mut card, sums, .. } = card;
        if let Some(sums) = &sums {
            sums.end(|| card.counters.take(&card.view));
        }
        let mut report = monitor.report_over(received_for.as_nanos() as u64, &[]);
        if state.is_lost.load(Ordering::Acquire) {
            report
                .notes
                .push("an interface has gone or was taken down: the run ended there".into());
        }
        if elsewhere != 0 {
            report.notes.push(format!(
                "{elsewhere} packets were taken on the core that sent them, not on the borrowed one: \
                 a veth whose other end has segmentation offload does so (there: ethtool -K PEER \
                 tso off)"
            ));
        }
        if missing != 0 {
            report.notes.push(format!("{missing} packets handed over have not been taken: a bug"));
        }
        if not_taken != 0 {
            report.notes.push(format!(
                "{not_taken} packets for the poll engine were lost with the sockets of their wire"
            ));
        }
        if let Some(of_half) = of_half {
            hybrid::complete(&mut report, of_half);
        }
        card.detach();
        let restored: Option<Result<_, MachineError>> = card.journal.take().map(Journal::undo);
        if let Some(restored) = restored {
            report.notes.extend(told_of_end(restored.map(Some)));
        }
        Ok(report)
    }
}
