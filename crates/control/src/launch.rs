//! The builder of a card: its parts, and the order of its start.
//!
//! ```
//! use picnic_control::launch::{Launch, Registries};
//! use picnic_core::config::CardFile;
//!
//! // `registries` is a world's: `picnic_host::registries()`, say.
//! fn run(registries: Registries) -> Result<u64, Box<dyn std::error::Error>> {
//!     let card = CardFile::parse("", None)?;
//!     let mut running = Launch::new(&card, registries).start()?;
//!     running.pass(std::time::Duration::from_secs(1));
//!     Ok(running.stop()?.ledger.delivered)
//! }
//! ```
//!
//! [`Launch::start`] starts a card with all that its file asks for: control socket, metrics,
//! trace, captures. [`Launch::start_alone`] starts the card and nothing beside it.
//!
//! Guarantees: a card that [`Launch::check`] refuses does not start; a card that it passes fails to
//! start only if something has changed since. A card that does not start leaves nothing behind.

use crate::captures::Captures;
use crate::error::RunError;
use crate::executor::{EnginePlan, Executor, Running};
use crate::instrument::{self, Tracing};
use crate::path;
use crate::report::{Report, RunInfo};
use crate::server::{Doors, Limits, Server};
use crate::timeline::{CardTimeline, Timeline};
use crate::watch::Watch;
use picnic_confine as confine;
use picnic_core::attachment::HostAttachment;
use picnic_core::config::CardFile;
use picnic_core::error::{ConfigError, nearest, not_among};
use picnic_core::function::Function;
use picnic_core::hook::{Hook, Hooks};
use picnic_core::port::WirePort;
use picnic_core::registry::{Entry, find};
use picnic_core::stop::Stop;
use picnic_engine::build::{Components, Parts, WrapWire};
use picnic_filter::Filters;
use picnic_machine::facts::MachineFacts;
use picnic_machine::isolate;
use picnic_machine::topology::Placement;
use picnic_os::config::{
    NicOs, OsHandle, OsRegistries, ProfileCosts, Schedulers, Surroundings, Tasks,
};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

/// The registries of one world.
#[derive(Clone, Copy)]
pub struct Registries {
    /// Executors, by the name of the engine.
    pub executors: &'static [&'static dyn Executor],
    /// NIC functions.
    pub functions: &'static [Entry<Box<dyn Function>>],
    /// Wire ports.
    pub wires: &'static [Entry<Box<dyn WirePort>>],
    /// Host attachments.
    pub attachments: &'static [Entry<Box<dyn HostAttachment>>],
    /// Middleware between wires and the card.
    pub middleware: WrapWire,
    /// Schedulers of NIC OS.
    pub schedulers: Schedulers,
    /// Tasks of NIC OS.
    pub tasks: Tasks,
    /// Add filters of sections other than `[[filter]]`.
    pub filters: &'static [AddFilters],
}

/// Adds the filters that a section describes, all or none; an error has its place.
pub type AddFilters = fn(&CardFile, &Filters) -> Result<(), ConfigError>;

impl Registries {
    /// The registries of a card's parts.
    pub fn components(&self) -> Components {
        let Registries { functions, wires, attachments, middleware, .. } = *self;
        Components { functions, wires, attachments, middleware }
    }

    /// The registries of the parts of its NIC OS.
    pub fn kinds(&self) -> OsRegistries {
        OsRegistries { schedulers: self.schedulers, tasks: self.tasks }
    }

    /// The executor of a card.
    ///
    /// # Errors
    /// `card.engine` names no executor.
    pub fn executor(&self, file: &CardFile) -> Result<&'static dyn Executor, ConfigError> {
        let wanted = &file.card.engine;
        let found = self.executors.iter().find(|executor| executor.name() == wanted);
        found.copied().ok_or_else(|| {
            let allowed = self.executors.iter().map(|executor| executor.name());
            let message = not_among("", wanted, allowed);
            file.locate(ConfigError::new("card.engine", message))
        })
    }
}

/// A card to be started.
pub struct Launch<'a> {
    /// Its file.
    pub file: &'a CardFile,
    /// Registries for the file.
    pub registries: Registries,
    /// Existing filters; the filters of the card file follow them.
    pub filters: Filters,
    /// Observers.
    pub hooks: Hooks,
    limits: Limits,
    is_confined: bool,
    watch: Option<Watch>,
    stop: Stop,
    revision: &'static str,
    is_judged: bool,
    path_costs: Option<ProfileCosts>,
    timeline: Option<Timeline>,
}

/// The parts of a card, with filters and tasks; not connected or started.
pub struct Built {
    /// The parts.
    pub parts: Parts,
    /// The filters.
    pub filters: Filters,
    /// Its NIC OS, if it has one.
    pub os: Option<OsHandle>,
    /// Nanoseconds that a core may be interrupted without loss; none if nothing is known to
    /// come in, or all of it waits.
    pub tolerates_ns: Option<u64>,
}

/// The result of a check.
pub struct Checked {
    /// The cores that the card would use.
    pub placement: Placement,
    /// The filters it would start with.
    pub filters: Filters,
    /// Its NIC OS, if it has one.
    pub os: Option<OsHandle>,
}

impl<'a> Launch<'a> {
    /// A card as its file describes it.
    pub fn new(file: &'a CardFile, registries: Registries) -> Self {
        Launch {
            file,
            registries,
            filters: Filters::new(file.host.card_queues()),
            hooks: Hooks::none(),
            limits: Limits::default(),
            is_confined: false,
            watch: None,
            stop: Stop::default(),
            revision: "unavailable",
            is_judged: false,
            path_costs: None,
            timeline: Timeline::current(),
        }
    }

    /// The same card without filters, for an executor that gets packets already judged by another.
    #[must_use]
    pub fn behind(&self) -> Self {
        let (hooks, stop) = (self.hooks.clone(), self.stop.clone());
        Launch { is_judged: true, hooks, stop, ..Launch::new(self.file, self.registries) }
    }

    /// With this revision in its reports.
    #[must_use]
    pub fn revision(self, revision: &'static str) -> Self {
        Launch { revision, ..self }
    }

    /// The metadata of its reports.
    pub fn about(&self) -> RunInfo {
        RunInfo {
            card: self.file.card.name.clone(),
            file: self.file.path().map(|path| path.display().to_string()),
            version: env!("CARGO_PKG_VERSION").into(),
            revision: self.revision.into(),
            machine: MachineFacts::read(),
        }
    }

    /// With existing filters.
    #[must_use]
    pub fn filters(self, filters: Filters) -> Self {
        Launch { filters, ..self }
    }

    /// With another observer.
    #[must_use]
    pub fn hook(self, hook: impl Hook + 'static) -> Self {
        Launch { hooks: self.hooks.with(hook), ..self }
    }

    /// With other limits for clients of its control socket.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Launch { limits, ..self }
    }

    /// With the costs of its packet path, for admission, unless the card file names a profile; as
    /// its executor knows them by default.
    #[must_use]
    pub fn path_costs(self, costs: ProfileCosts) -> Self {
        Launch { path_costs: Some(costs), ..self }
    }

    /// Recorded in this timeline, if its executor [records](Executor::records).
    #[must_use]
    pub fn recorded(self, timeline: &Timeline) -> Self {
        Launch { timeline: Some(timeline.clone()), ..self }
    }

    /// Its card's part of the timeline, if it is recorded.
    pub fn timeline(&self) -> Option<CardTimeline> {
        self.timeline.as_ref().map(|timeline| timeline.card(&self.file.card.name))
    }

    /// Its executor.
    ///
    /// # Errors
    /// `card.engine` names no executor.
    pub fn executor(&self) -> Result<&'static dyn Executor, ConfigError> {
        self.registries.executor(self.file)
    }

    /// Makes the card's threads drop privileges and system calls that a running card does not need,
    /// including the starting thread, unless it must start programs at the end. They are dropped
    /// for good: for programs that run one card and nothing else.
    #[must_use]
    pub fn confined(self) -> Self {
        Launch { is_confined: true, ..self }
    }

    /// Reloads files that change while it runs: see [`Watch`].
    #[must_use]
    pub fn watched(self, watch: Watch) -> Self {
        Launch { watch: Some(watch), ..self }
    }

    /// With a stop request shared with others: see [`Launch::stop`].
    #[must_use]
    pub fn stopped_by(self, stop: Stop) -> Self {
        Launch { stop, ..self }
    }

    /// The stop request: executors set it when they end a card before its wires have finished.
    /// Waits for outside readers then last one more second.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Whether the card has, or may get, functions that are loaded from files.
    fn loads_code(&self) -> bool {
        let chains = self.file.rx.iter().chain(&self.file.tx);
        let mut entries =
            chains.filter_map(|section| find(self.registries.functions, section).ok());
        self.watch.is_some() || entries.any(|entry| entry.loads_code)
    }

    /// Builds everything in the card file: for executors.
    ///
    /// # Errors
    /// All errors in the file.
    pub fn build(&self) -> Result<Built, ConfigError> {
        build(self, self.filters.clone(), &self.hooks)
    }

    /// Passes if no faults were found while reading the file and the engine has an executor.
    ///
    /// # Errors
    /// These faults and the errors in the file's components. If a wrong key affects builders, or
    /// another engine than poll runs the card, only the keys of components are checked: building
    /// might cause errors that follow from the first, or do not apply.
    pub fn judge(&self, faults: Vec<ConfigError>) -> Result<(), ConfigError> {
        let faults = ConfigError::both(ConfigError::all(faults), self.executor());
        let Err(faults) = faults else { return Ok(()) };
        let components = self.registries.components();
        let context = picnic_engine::build::context(self.file);
        let is_kept = context.in_kernel || context.is_hybrid;
        let is_given = |fault| is_given_to_builders(self.file, fault);
        let parts = match is_kept || faults.each().any(is_given) {
            true => Parts::check(self.file, &components),
            false => Parts::build(self.file, &components, &Hooks::none(), &self.stop).map(drop),
        };
        ConfigError::both(Err(faults), parts).map(|((), ())| ())
    }

    /// Checks the card file against this machine; nothing is started or changed.
    ///
    /// # Errors
    /// All errors in the file, or a missing feature of the machine.
    pub fn check(&self) -> Result<Checked, RunError> {
        self.judge(Vec::new())?;
        let executor = self.executor()?;
        let checked = executor.check(self);
        let trace = instrument::check(self.file).map_err(RunError::from);
        let doors = match executor.is_served() {
            true => Doors::check(self.file).map_err(RunError::from),
            false => Ok(()),
        };
        let around = RunError::both(trace, doors);
        RunError::both(checked, around).map(|(checked, _)| checked)
    }

    /// Its engine's plan for the card, if there is more than the card file says.
    ///
    /// # Errors
    /// Settings that the engine does not support; the machine is not checked.
    pub fn describe(&self) -> Result<Option<EnginePlan>, RunError> {
        self.registries.executor(self.file)?.describe(self)
    }

    /// Builds everything in the card file as a check: for executors whose cards consist of these
    /// parts.
    pub(crate) fn check_parts(
        &self,
        placement: Result<Placement, RunError>,
    ) -> Result<Checked, RunError> {
        let filters = Filters::new(self.file.host.card_queues());
        let built = build(self, filters.clone(), &Hooks::none()).map_err(RunError::from);
        let (mut placement, Built { parts, os, .. }) = RunError::both(placement, built)?;
        placement.warnings.extend(parts.warnings());
        placement.warnings.extend(parts.notes());
        Ok(Checked { placement, filters, os })
    }

    /// Starts only the card: its file's trace and control sections are ignored.
    ///
    /// # Errors
    /// The card file is wrong, or the machine lacks something it needs. Then nothing runs.
    pub fn start_alone(self) -> Result<Box<dyn Running>, RunError> {
        self.registries.executor(self.file)?.start(self)
    }

    /// Starts the card with everything in its file.
    ///
    /// # Errors
    /// The card file is wrong, or the machine lacks something it needs. Then nothing runs.
    pub fn start(mut self) -> Result<ServedCard, RunError> {
        let (file, is_confined, about) = (self.file, self.is_confined, self.about());
        if self.loads_code() {
            picnic_plugin::guard::install();
            if is_confined {
                confine::allow_loading();
            }
        }
        let watch = self.watch.take();
        let mut notes = Vec::new();
        if is_confined {
            // Before any thread is started, since all inherit it.
            notes.extend(confine::forbid_new().err());
            confine::ask_for();
        }
        if file.has("trace") {
            // A trace's file is created: not for a card that cannot start.
            self.check()?;
        }
        // Before anything is changed: a card of this name may be running.
        let doors = match self.registries.executor(file)?.is_served() {
            true => Doors::open(file)?.with_limits(self.limits),
            false => Doors::none(),
        };
        let metrics = doors.metrics();
        let stop = self.stop.clone();
        let tracing = Tracing::of(file, &stop)?;
        let captures = Captures::default();
        let is_served = doors.are_any() || watch.is_some();
        let probes = doors.are_any().then(|| captures.clone());
        let ends_by_programs = self.registries.executor(file)?.ends_by_programs();
        let mut running = self.hook(tracing.clone()).hook(probes).start_alone()?;
        let server = match is_served.then(|| running.control()).flatten() {
            Some(access) => {
                let stop = stop.clone();
                Some(Server::start(doors, access, file, about.clone(), captures, watch, stop)?)
            }
            None => None,
        };
        if is_confined && !ends_by_programs {
            // After its threads, which would inherit it.
            confine::set_up(confine::Role::Main, isolate::needed_to_restore(file));
        }
        Ok(ServedCard { running, server, metrics, tracing, asked: stop, notes, about, is_confined })
    }
}

fn build(launch: &Launch<'_>, filters: Filters, hooks: &Hooks) -> Result<Built, ConfigError> {
    let Launch { file, registries, .. } = launch;
    let parts = Parts::build(file, &registries.components(), hooks, &launch.stop);
    // Without parts, its tasks are checked as if nothing were known about its wires.
    let arrivals = parts.as_ref().map(Parts::arrivals).unwrap_or_default();
    let without_os_ns = path::tolerates_ns(file, &arrivals);
    let known = || launch.executor().ok()?.path_costs();
    let costs = path::costs(file, launch.path_costs.clone().or_else(known));
    let is_assumed = matches!(&costs, Ok(Some(costs)) if costs.is_assumed);
    let os = costs.and_then(|costs| {
        let around = Surroundings { arrivals, costs };
        picnic_os::config::build(file, registries.kinds(), filters.clone(), &around)
    });
    let filled = match launch.is_judged {
        true => Ok(()),
        false => {
            let more = registries.filters.iter().filter_map(|add| add(file, &filters).err());
            let more = ConfigError::all(more);
            ConfigError::both(more, picnic_filter::config::add(&filters, file)).map(drop)
        }
    };
    let (mut parts, (os, ())) = ConfigError::both(parts, ConfigError::both(os, filled))?;
    if !launch.is_judged {
        parts.guard(Box::new(filters.clone()));
    }
    let os = os.map(|NicOs { resident, handle }| {
        parts.house(resident);
        handle
    });
    if is_assumed {
        parts.warn(
            "tasks are admitted under costs that were measured on no machine; try: picnic wcet \
             calibrate, and os.cost_profile",
        );
    }
    let with_os = os.as_ref().map(|os| os.path.tolerates_ns);
    Ok(Built { parts, filters, tolerates_ns: with_os.unwrap_or(without_os_ns), os })
}

/// Whether this error may cause a component's builder to refuse a value: it is about a key that all
/// builders get, or about a key that may have been intended.
fn is_given_to_builders(file: &CardFile, fault: &ConfigError) -> bool {
    const GIVEN: [&str; 6] = ["engine", "queues", "system", "buffers", "buffer_size", "headroom"];
    let Some((section, key)) = fault.key.split_once('.') else {
        return ["card", "host", "pool", "wire"].contains(&fault.key.as_str());
    };
    if !["card", "host", "pool"].contains(&section) {
        return false;
    }
    let entry = file.sections().iter().find(|entry| entry.name == section);
    let is_known = entry.is_some_and(|entry| entry.keys().iter().any(|known| known.name == key));
    GIVEN.contains(&key) || !is_known && nearest(key, GIVEN.into_iter()).is_some()
}

/// A running card with everything in its file.
pub struct ServedCard {
    running: Box<dyn Running>,
    server: Option<Server>,
    metrics: Option<SocketAddr>,
    tracing: Tracing,
    asked: Stop,
    notes: Vec<String>,
    about: RunInfo,
    is_confined: bool,
}

impl ServedCard {
    /// The address of its metrics; none without metrics.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Messages about watched files, and of the watchdog, since the last call.
    pub fn said(&self) -> Vec<String> {
        let mut said = self.running.said();
        said.extend(self.server.as_ref().map(Server::said).unwrap_or_default());
        said
    }

    /// Whether a client has requested its end.
    pub fn stop_is_asked(&self) -> bool {
        self.server.as_ref().is_some_and(Server::stop_is_asked)
    }

    /// Refuses clients' changes from now on, because the card is about to stop.
    pub fn refuse_changes(&self) {
        if let Some(server) = &self.server {
            server.card_stops();
        }
    }

    /// Whether waiting is pointless: all is handled, a part has panicked, or a client has requested
    /// its end.
    pub fn is_over(&self) -> bool {
        self.stop_is_asked() || self.running.is_finished() || !self.running.is_alive()
    }

    /// Stops it with all rings flushed, and returns the result. Clients see the socket close when
    /// the card has stopped.
    ///
    /// # Errors
    /// A part of it panicked.
    pub fn stop(self) -> Result<Report, RunError> {
        self.refuse_changes();
        let ServedCard { running, server, tracing, asked, notes, about, is_confined, .. } = self;
        let warnings = running.view().warnings.clone();
        let report = running.stop().inspect_err(|_| asked.ask());
        // Clients can request the end while it waits for a reader.
        let trace = tracing.finish();
        drop(server);
        let mut report = report?;
        report.about = Some(about);
        report.notes.splice(..0, warnings);
        report.trace = trace;
        report.notes.extend(notes);
        if is_confined {
            report.notes.extend(confine::notes());
        }
        Ok(report)
    }
}

impl Deref for ServedCard {
    type Target = dyn Running;

    fn deref(&self) -> &Self::Target {
        &*self.running
    }
}

impl DerefMut for ServedCard {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.running
    }
}
