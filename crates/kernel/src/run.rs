//! A run in the kernel: interfaces polled on the borrowed core, programs attached, everything
//! undone at the end.
//!
//! To stop, packets first return to their normal path: XDP programs are detached, tc programs pass
//! them on. Target cores take and count packets already handed over; then rings and relays are
//! removed, and last the journal restores the machine.

use crate::attached::{Attached, at_wire, check_wires, or_skb};
use crate::counters::Taken;
use crate::describe::describe;
use crate::doctor::Facts;
use crate::hybrid::{self, Half, Sockets};
use crate::live::Live;
use crate::object::{Object, check_built, is_built, settle};
use crate::plan::{Plan, WirePlan, is_hybrid, plan};
use crate::rules::{Rules, room};
use crate::swap::{Card, Swapper, lock_card};
use crate::tables::Tables;
use picnic_confine::{Role, set_up};
use picnic_control::error::RunError;
use picnic_control::launch::Checked;
use picnic_control::monitor::{CoreTimes, Monitor, Notes, TargetTimes};
use picnic_control::own::Own;
use picnic_control::report::Times;
use picnic_control::{Access, EnginePlan, Executor, Launch, Registries, Report, Running};
use picnic_core::config::CardFile;
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::guard::Guard;
use picnic_core::registry;
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_engine::build::context;
use picnic_filter::image::Judge;
use picnic_filter::{Action, Filters, MOST_FILTERS};
use picnic_forms::Handover;
use picnic_machine::error::MachineError;
use picnic_machine::isolate::{told, told_of_end};
use picnic_machine::napi::{Polling, named, schedule, softirq_ns};
use picnic_machine::topology::Placement;
use picnic_machine::undo::{Journal, JournalSelection, Machine, restore_all};
use picnic_machine::veth::{VethPeer, far};
use picnic_ports::interface::{number, within};
use rustix::thread::CapabilitySet;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between readings of the counters.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for the next of the packets in transit.
const PATIENCE: Duration = Duration::from_secs(10);

/// The card file in the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

/// The same, except for packets that filters send to the poll engine.
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

            fn describe(&self, launch: &Launch<'_>) -> Result<Option<EnginePlan>, RunError> {
                describe(launch).map(Some)
            }

            // Commands restore interfaces.
            fn ends_by_programs(&self) -> bool {
                true
            }

            fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
                start($name, &Facts::of_this(), launch)
            }
        }
    };
}

executor!(Kernel, "kernel", "the borrowed core, in the kernel: tc or XDP programs");
executor!(Hybrid, "hybrid", "in the kernel, and packets that filters choose in user space");

fn check(launch: &Launch<'_>) -> Result<Checked, RunError> {
    let filters = Filters::new(launch.file.host.queues);
    let (mut plan, mut placement) = prepare(launch, &Facts::of_this(), &filters)?;
    load(launch.file, &mut plan, &placement)?.0.verify(&plan)?;
    check_wires(launch.file, &plan)?;
    placement.warnings.extend(unfinished(launch.file, &plan));
    if plan.is_hybrid {
        placement.warnings.extend(hybrid::check(launch)?);
        placement.warnings.extend(in_part(launch.file, &filters));
    }
    Ok(Checked { placement, filters, os: None })
}

/// Checks before programs are loaded, for `check` and `run`.
fn prepare(
    launch: &Launch<'_>,
    kernel: &Facts,
    filters: &Filters,
) -> Result<(Plan, Placement), ConfigError> {
    let (mut plan, placement) = plan(launch)?;
    plan.room = add_filters(launch, filters)?;
    find_wires(launch.file, &mut plan)?;
    check_built(launch.file, is_built())?;
    check_kernel(launch.file, &plan, kernel)?;
    Ok((plan, placement))
}

/// Refuses a hand-over that this kernel lacks.
fn check_kernel(file: &CardFile, plan: &Plan, kernel: &Facts) -> Result<(), ConfigError> {
    let Some((why, mend)) = kernel.lacks(plan.handover) else { return Ok(()) };
    let (key, found) = match plan.handover {
        Handover::Skb => ("host.handover", "skb"),
        Handover::Cpumap if plan.is_hybrid => ("card.engine", "hybrid"),
        Handover::Cpumap => ("host.handover", "cpumap"),
    };
    let message = format!("found \"{found}\", but {why}: {mend}");
    Err(file.locate(ConfigError::new(key, message)))
}

/// Loads the programs, with the sockets of a shared card.
fn load(
    file: &CardFile,
    plan: &mut Plan,
    placement: &Placement,
) -> Result<(Object, Option<Sockets>), RunError> {
    let cores = &placement.target_cores;
    if !plan.is_hybrid {
        return Ok((Object::load(plan, cores, false)?, None));
    }
    let sockets = Sockets::new(file, plan.wires.len())?;
    plan.stamp_mark = sockets.mark();
    Ok((Object::load_with(sockets.map(), plan, cores)?, Some(sockets)))
}

pub(crate) fn start(
    engine: &'static str,
    kernel: &Facts,
    launch: Launch<'_>,
) -> Result<Box<dyn Running>, RunError> {
    // Remains of killed runs, before the cores are counted.
    let cleaned = restore_all(&Machine::this(), JournalSelection::Stale);
    let (mut plan, mut placement) = prepare(&launch, kernel, &launch.filters)?;
    placement.warnings.extend(told(cleaned));
    placement.warnings.extend(unfinished(launch.file, &plan));
    let (mut object, sockets) = load(launch.file, &mut plan, &placement)?;
    // Before packets can be handed over.
    let half = sockets.is_some().then(|| Half::start(&launch)).transpose()?;
    if plan.is_hybrid {
        placement.warnings.extend(in_part(launch.file, &launch.filters));
    }
    let tables = object.tables(&plan)?;
    let rules = Rules::new(&launch.filters, object.filters()?, plan.room)?;
    let mut card = Attached::new(launch.file, &plan, object, &placement)?;
    card.view.groups = Guard::groups(&launch.filters);
    placement.warnings.extend(card.notes.iter().cloned());
    let parts = (tables, rules, half);
    Ok(Box::new(KernelRunning::new(engine, card, (plan, placement), parts, launch)?))
}

/// Notes about a shared card's parts: no packets for the poll engine, or a partial trace.
fn in_part(file: &CardFile, filters: &Filters) -> impl Iterator<Item = String> {
    let is_any = filters.list().iter().any(|listing| listing.filter.action == Action::Poll);
    let without = (!is_any).then_some(
        "engine = \"hybrid\", but no filter has action = \"poll\": all packets stay in the kernel",
    );
    let traced = file.has("trace").then_some(
        "[trace] has only packets of the poll engine: those that stay in the kernel are not traced",
    );
    without.into_iter().chain(traced).map(String::from)
}

/// Adds the filters of the card file, and limits their number.
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

/// Wires whose packets may have partial checksums: XDP does not mark these, so the network stack
/// would drop them as broken. Of the drivers that run XDP, only veth passes such packets;
/// virtio-net makes its peer complete them while it has a program.
fn unfinished(file: &CardFile, plan: &Plan) -> Vec<String> {
    if plan.handover != Handover::Cpumap {
        return Vec::new();
    }
    let or_skb = or_skb(plan);
    let warn = |(index, wire): (usize, &WirePlan)| {
        let interface = &wire.interface;
        let (end, mend) = match far(interface, wire.namespace.as_deref()) {
            VethPeer::End(end) if end.leaves_checksums => (
                format!("end {} leaves checksums to it", end.interface),
                format!("have it finish them ({})", end.mend()),
            ),
            VethPeer::Unknown => (
                "end is in a namespace without a name, and may leave checksums to it".into(),
                "have it finish them (there: ethtool -K PEER tx off)".into(),
            ),
            VethPeer::End(_) | VethPeer::None => return None,
        };
        let message = format!(
            "found {interface}, a veth whose other {end}: TCP and UDP packets that start there are \
             lost after an XDP program; {mend}{or_skb}"
        );
        Some(at_wire(file, index, ConfigError::new("interface", message)).to_string())
    };
    plan.wires.iter().enumerate().filter_map(warn).collect()
}

/// A running card in the kernel.
struct KernelRunning {
    card: Arc<Mutex<Option<Card>>>,
    monitor: Monitor,
    filters: Filters,
    access: Option<Access>,
    state: Arc<State>,
    looker: JoinHandle<()>,
    /// The poll engine's part, if it has one.
    half: Option<Half>,
    own: Own,
}

#[derive(Default)]
struct State {
    is_stopping: AtomicBool,
    /// An interface is gone or was taken down.
    is_lost: AtomicBool,
}

/// The error for changes other than commands of components.
const FIXED: &str = "a card in the kernel cannot do this while it runs; allowed: the \
                     commands of its functions, swaps of its rx chain, filters, and figures";

/// The components in the kernel: each with the commands that work there. Others run in the poll
/// engine, if it takes part.
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

/// The kernel threads that do the card's work, and their processor time.
struct Watched {
    borrowed: Vec<i32>,
    core: Arc<CoreTimes>,
    targets: Vec<(Vec<i32>, Arc<TargetTimes>)>,
    start: Instant,
    machine: Machine,
    borrowed_core: usize,
    /// Softirq time at the start.
    softirq_start_ns: Option<u64>,
    /// The poll engine's notes of its threads on the same cores.
    poll: Option<Notes>,
}

impl Watched {
    /// Records their time; false if a thread of the borrowed core has ended.
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
        let softirq = softirq_ns(&self.machine, self.borrowed_core).zip(self.softirq_start_ns);
        if let Some((now, before)) = softirq {
            self.core.set_softirq_ns(now.saturating_sub(before));
        }
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
            // Threads that exist: including another card's, if it shares the core.
            let threads = named(&machine, &format!("cpumap/{core}/map:")).into_iter().collect();
            (threads, Arc::new(TargetTimes { core, ..TargetTimes::default() }))
        });
        let watched = Watched {
            borrowed: card.polling.iter().flat_map(Polling::threads).collect(),
            core: core.clone(),
            targets: targets.collect(),
            start,
            borrowed_core: placement.borrowed_core,
            softirq_start_ns: softirq_ns(&machine, placement.borrowed_core),
            machine,
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
        let in_namespaces = plan.wires.iter().any(|wire| wire.namespace.is_some());
        let mut keeps = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
        keeps.set(CapabilitySet::SYS_ADMIN, in_namespaces);
        picnic_confine::allow_programs(in_namespaces);
        let swapper = Swapper { card: card.clone(), plan, cores, shared, functions };
        let registries = in_kernel(launch.registries, is_hybrid);
        let own = Own::new(&registries, context(launch.file));
        let access = Access {
            monitor: monitor.clone(),
            controller,
            registries,
            hooks: launch.hooks,
            filters: filters.clone(),
            tasks: None,
            fixed: (!is_hybrid).then_some(FIXED),
            swap_rx: Some(Box::new(swapper)),
            beside,
            keeps,
        };
        let looker = {
            let (card, state) = (card.clone(), state.clone());
            let body = move || {
                set_up(Role::Programs, keeps & !CapabilitySet::PERFMON);
                while !state.is_stopping.load(Ordering::Acquire) {
                    if let Some(card) = lock_card(&card).as_mut() {
                        let (taken, _) = card.take();
                        card.live.note(taken.counts);
                        card.live.obey();
                        // If the kernel refuses, the old value stays: it is tried again.
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
        let access = Some(access);
        Ok(KernelRunning { card, monitor, filters, access, state, looker, half, own })
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

    // An interface never finishes.
    fn is_finished(&self) -> bool {
        false
    }

    fn said(&self) -> Vec<String> {
        self.half.as_ref().map(Half::said).unwrap_or_default()
    }

    fn is_alive(&self) -> bool {
        let has_half = self.half.as_ref().is_none_or(Half::is_alive);
        has_half && !self.state.is_lost.load(Ordering::Acquire)
    }

    fn stop(self: Box<Self>) -> Result<Report, RunError> {
        let KernelRunning { card, monitor, state, looker, half, own, .. } = *self;
        state.is_stopping.store(true, Ordering::Release);
        looker.thread().unpark();
        looker.join().map_err(|_| RunError::Panicked("the counters".into()))?;
        let stopped = lock_card(&card).take();
        let mut card = stopped.ok_or_else(|| RunError::Panicked("the counters".into()))?;
        let received_for = monitor.elapsed();
        card.attached.let_go();
        let (mut left, mut since) = (u64::MAX, Instant::now());
        let (Taken { under_way: missing, elsewhere, counts, .. }, not_taken) = loop {
            // First the programs finish, and their last batches are handed over.
            settle();
            let (taken, to_sockets) = card.take();
            let still = taken.under_way + to_sockets;
            if still < left {
                (left, since) = (still, Instant::now());
            }
            if left == 0 || since.elapsed() > PATIENCE {
                break (taken, to_sockets);
            }
        };
        // It has taken all packets, and ends with none in transit.
        let of_half = half.map(Half::stop).transpose()?.flatten();
        let Card { attached: mut card, mut live, sums, .. } = card;
        if let Some(sums) = &sums {
            sums.end(|| card.counters.take(&card.view));
        }
        let mut report = monitor.report_over(received_for.as_nanos() as u64, &[]);
        live.note(counts);
        let asked = own.ask(&mut report, |direction, position, mut order| {
            let done = direction == Direction::Rx && live.tell(position, &mut order);
            Ok::<_, Infallible>(done.then_some(order))
        });
        let Ok(()) = asked;
        if state.is_lost.load(Ordering::Acquire) {
            report
                .notes
                .push("an interface disappeared or was taken down, which ended the run".into());
        }
        if elsewhere != 0 {
            report.notes.push(format!(
                "{elsewhere} packets were taken on the core that sent them, not on the borrowed one, \
                 and may be out of order: a veth whose other end has segmentation offload does so \
                 where receive packet steering does not lead to the borrowed core (isolcpus, \
                 nohz_full); there: ethtool -K PEER tso off"
            ));
        }
        if missing != 0 {
            report
                .notes
                .push(format!("{missing} packets handed over were never taken: this is a bug"));
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
