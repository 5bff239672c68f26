//! One builder for a card: what it is made of, and the order in which it starts.
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
//! Guarantees: what [`Launch::check`] refuses does not start, and what it passes is refused
//! only for what has changed since. A card that does not start leaves nothing behind.

use crate::captures::Captures;
use crate::error::RunError;
use crate::executor::{EnginePlan, Executor, Running};
use crate::instrument::{self, Tracing};
use crate::path;
use crate::report::{Report, RunInfo};
use crate::server::{Doors, Limits, Server};
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
use picnic_os::config::{NicOs, OsHandle, OsRegistries, Schedulers, Surroundings, Tasks};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

/// What card files can name, in one world.
#[derive(Clone, Copy)]
pub struct Registries {
    /// What runs cards, by the name of the engine.
    pub executors: &'static [&'static dyn Executor],
    /// NIC functions.
    pub functions: &'static [Entry<Box<dyn Function>>],
    /// Wire ports.
    pub wires: &'static [Entry<Box<dyn WirePort>>],
    /// Host attachments.
    pub attachments: &'static [Entry<Box<dyn HostAttachment>>],
    /// What stands between wires and the card.
    pub middleware: WrapWire,
    /// Schedulers of NIC OS.
    pub schedulers: Schedulers,
    /// Tasks of NIC OS.
    pub tasks: Tasks,
    /// What adds the filters of sections beside `[[filter]]`.
    pub filters: &'static [AddFilters],
}

/// Adds the filters that a section describes, all or none; an error has its place.
pub type AddFilters = fn(&CardFile, &Filters) -> Result<(), ConfigError>;

impl Registries {
    /// Those that the parts of a card are found in.
    pub fn components(&self) -> Components {
        let Registries { functions, wires, attachments, middleware, .. } = *self;
        Components { functions, wires, attachments, middleware }
    }

    /// Those that the parts of its NIC OS are found in.
    pub fn kinds(&self) -> OsRegistries {
        OsRegistries { schedulers: self.schedulers, tasks: self.tasks }
    }

    /// What is to run a card.
    ///
    /// # Errors
    /// `card.engine` names none of the executors.
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

/// A card that is to be started.
pub struct Launch<'a> {
    /// Its file.
    pub file: &'a CardFile,
    /// What the file can name.
    pub registries: Registries,
    /// Filters that are there already; those of the card file stand behind them.
    pub filters: Filters,
    /// Who looks on.
    pub hooks: Hooks,
    limits: Limits,
    is_confined: bool,
    watch: Option<Watch>,
    stop: Stop,
    revision: &'static str,
    is_judged: bool,
}

/// The parts of a card, its filters in front of them and its tasks beside them; nothing is
/// connected or started.
pub struct Built {
    /// The parts.
    pub parts: Parts,
    /// The filters.
    pub filters: Filters,
    /// Its NIC OS, if it has one.
    pub os: Option<OsHandle>,
}

/// What a check has found.
pub struct Checked {
    /// Where the card would run.
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
        }
    }

    /// The same card for an executor that has its packets handed over by another, which has judged
    /// them: without filters.
    #[must_use]
    pub fn behind(&self) -> Self {
        let (hooks, stop) = (self.hooks.clone(), self.stop.clone());
        Launch { is_judged: true, hooks, stop, ..Launch::new(self.file, self.registries) }
    }

    /// Built from this revision, which reports name.
    #[must_use]
    pub fn revision(self, revision: &'static str) -> Self {
        Launch { revision, ..self }
    }

    /// What its reports are of.
    pub fn about(&self) -> RunInfo {
        RunInfo {
            card: self.file.card.name.clone(),
            file: self.file.path().map(|path| path.display().to_string()),
            version: env!("CARGO_PKG_VERSION").into(),
            revision: self.revision.into(),
            machine: MachineFacts::read(),
        }
    }

    /// With filters that are there already.
    #[must_use]
    pub fn filters(self, filters: Filters) -> Self {
        Launch { filters, ..self }
    }

    /// With somebody more who looks on.
    #[must_use]
    pub fn hook(self, hook: impl Hook + 'static) -> Self {
        Launch { hooks: self.hooks.with(hook), ..self }
    }

    /// With clients of its control socket held to other limits.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Launch { limits, ..self }
    }

    /// What is to run it.
    ///
    /// # Errors
    /// `card.engine` names none of the executors.
    pub fn executor(&self) -> Result<&'static dyn Executor, ConfigError> {
        self.registries.executor(self.file)
    }

    /// The card's threads give up the privileges and system calls that a running card has no use
    /// for, and so does the one that starts it, unless it has programs to start at the end. They do
    /// not get them back: for programs that run one card and nothing else.
    #[must_use]
    pub fn confined(self) -> Self {
        Launch { is_confined: true, ..self }
    }

    /// Files that change while it runs are taken up: see [`Watch`].
    #[must_use]
    pub fn watched(self, watch: Watch) -> Self {
        Launch { watch: Some(watch), ..self }
    }

    /// With a request to stop that others make too: see [`Launch::stop`].
    #[must_use]
    pub fn stopped_by(self, stop: Stop) -> Self {
        Launch { stop, ..self }
    }

    /// The request to stop: executors make it if they are to end a card before its wires have
    /// finished. Who waits for somebody outside waits for a second more then.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Whether the card has, or may be given, functions that are loaded from files.
    fn loads_code(&self) -> bool {
        let chains = self.file.rx.iter().chain(&self.file.tx);
        let mut entries =
            chains.filter_map(|section| find(self.registries.functions, section).ok());
        self.watch.is_some() || entries.any(|entry| entry.loads_code)
    }

    /// Builds all that the card file names: for executors.
    ///
    /// # Errors
    /// All that is wrong with the file.
    pub fn build(&self) -> Result<Built, ConfigError> {
        build(self, self.filters.clone(), &self.hooks)
    }

    /// Passes if no faults were found while the file was read, and an executor has its engine.
    ///
    /// # Errors
    /// These faults and what is wrong with the file's components. Where a key is wrong that builders
    /// are given, or another engine than poll is to run the card, the keys of its components are read
    /// and nothing is built: an error might follow from the first, or be none there.
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
    /// All that is wrong with it, or what the machine cannot give.
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

    /// What its engine will do with the card, if there is more to say than the card file does.
    ///
    /// # Errors
    /// What the engine cannot do for the card file; what the machine cannot give is not asked here.
    pub fn describe(&self) -> Result<Option<EnginePlan>, RunError> {
        self.registries.executor(self.file)?.describe(self)
    }

    /// Builds all that the card file names, to see whether it can be: for executors whose cards
    /// are made of these parts.
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

    /// Starts the card and nothing beside it: what its file says of a trace and of control does
    /// not count.
    ///
    /// # Errors
    /// The card file is wrong, or the machine cannot give what it asks for. Nothing runs then.
    pub fn start_alone(self) -> Result<Box<dyn Running>, RunError> {
        self.registries.executor(self.file)?.start(self)
    }

    /// Starts the card with all that its file asks for.
    ///
    /// # Errors
    /// The card file is wrong, or the machine cannot give what it asks for. Nothing runs then.
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
            // Before any thread is started, all of which inherit it.
            notes.extend(confine::forbid_new().err());
            confine::ask_for();
        }
        if file.has("trace") {
            // A trace's file is made anew: not for a card that cannot start.
            self.check()?;
        }
        // Before anything is touched: a card of this name may be running.
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
            // Behind its threads, which would inherit it.
            confine::set_up(confine::Role::Main, isolate::needed_to_restore(file));
        }
        Ok(ServedCard { running, server, metrics, tracing, asked: stop, notes, about, is_confined })
    }
}

fn build(launch: &Launch<'_>, filters: Filters, hooks: &Hooks) -> Result<Built, ConfigError> {
    let Launch { file, registries, .. } = launch;
    let parts = Parts::build(file, &registries.components(), hooks, &launch.stop);
    // Without parts, its tasks are looked at as beside wires of which nothing is known.
    let arrivals = parts.as_ref().map(Parts::arrivals).unwrap_or_default();
    let os = path::costs(file).and_then(|costs| {
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
    Ok(Built { parts, filters, os })
}

/// Whether a component's builder might object to a value because of this error: it is about a key
/// that all builders are given, or about a key of such a section that might have been meant.
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

/// A card at work with all that its file asks for.
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
    /// Where its metrics are served; none if they are not.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// What has been said of watched files, and by the watchdog, since the last look.
    pub fn said(&self) -> Vec<String> {
        let mut said = self.running.said();
        said.extend(self.server.as_ref().map(Server::said).unwrap_or_default());
        said
    }

    /// Whether a client has asked for its end.
    pub fn stop_is_asked(&self) -> bool {
        self.server.as_ref().is_some_and(Server::stop_is_asked)
    }

    /// From now on clients' changes are refused, as it is about to stop.
    pub fn refuse_changes(&self) {
        if let Some(server) = &self.server {
            server.card_stops();
        }
    }

    /// Whether there is no sense in waiting any longer: all is handled, a part of it has
    /// panicked, or a client has asked for its end.
    pub fn is_over(&self) -> bool {
        self.stop_is_asked() || self.running.is_finished() || !self.running.is_alive()
    }

    /// Stops it, all rings flushed, and says what the run came to. Clients see the socket go
    /// when the card has stopped.
    ///
    /// # Errors
    /// A part of it panicked.
    pub fn stop(self) -> Result<Report, RunError> {
        self.refuse_changes();
        let ServedCard { running, server, tracing, asked, notes, about, is_confined, .. } = self;
        let warnings = running.view().warnings.clone();
        let report = running.stop().inspect_err(|_| asked.ask());
        // Clients can ask for the end while it waits for a reader.
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
