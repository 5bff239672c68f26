//! Builds a NIC OS from a card file: `[os]` and `[[task]]`, fully checked.
//!
//! ```
//! use picnic_core::config::Sections;
//! use picnic_filter::Filters;
//! let sections = Sections::core().with(picnic_os::keys::SECTIONS);
//! let card = sections.parse("[os]\nscheduler = \"edf\"\n", None).unwrap();
//! use picnic_os::config::{OsRegistries, Surroundings, build};
//! let os = build(&card, OsRegistries::default(), Filters::new(1), &Surroundings::default()).unwrap();
//! assert!(os.is_some());
//! ```
//!
//! Tasks and schedulers are named from registries that the caller passes in: the command
//! line uses the tasks of `apps/tasks`, other programs their own.

use crate::channel::Channels;
use crate::control::TaskLine;
use crate::executor::{MOST_ENDED, Os, OsSettings};
use crate::keys::{OsSection, TaskSection};
use crate::memory::TransferCost;
use crate::path::PacketPath;
use crate::report::OsReport;
use crate::schedulers::Scheduler;
use crate::schedulers::registry::SCHEDULERS;
use crate::task::{Bounds, Program, TaskSpec};
use picnic_core::config::{CardFile, Placed};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Entry, find};
use picnic_core::resident::Resident;
use picnic_filter::Filters;
use std::fmt;
use std::sync::{Arc, OnceLock};

mod origins;

pub use origins::{Interrupted, Origin, PathReport, ProfileCosts, Surroundings, WireReport};

/// A task made by a registry's entry.
pub struct Setup {
    /// Its specification.
    pub spec: TaskSpec,
    /// Its code.
    pub program: Program,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// The tasks that card files can name.
pub type Tasks = &'static [Entry<Setup>];

/// The schedulers that card files can name.
pub type Schedulers = &'static [Entry<Box<dyn Scheduler>>];

/// The registries of NIC OS.
#[derive(Clone, Copy)]
pub struct OsRegistries {
    /// Schedulers.
    pub schedulers: Schedulers,
    /// Tasks.
    pub tasks: Tasks,
}

/// The built-in schedulers, and no tasks.
impl Default for OsRegistries {
    fn default() -> Self {
        OsRegistries { schedulers: SCHEDULERS, tasks: &[] }
    }
}

/// `[os]`, if the file requests a NIC OS by that section or by tasks.
pub fn asked_for(file: &CardFile) -> Option<Placed<OsSection>> {
    (file.has("os") || file.has("task")).then(|| file.section())
}

/// A NIC OS, ready to be put on a card.
pub struct NicOs {
    /// Its resident part on the borrowed core.
    pub resident: Box<dyn Resident>,
    /// Access for other threads.
    pub handle: OsHandle,
}

/// Access to a NIC OS while its card runs, and after it has stopped.
#[derive(Clone, Debug)]
pub struct OsHandle {
    /// Makes tasks.
    pub factory: Factory,
    /// The figures used by admission, with their origin.
    pub path: PathReport,
    /// The tasks of the card file.
    tasks: Arc<[TaskLine]>,
    report: Arc<OnceLock<OsReport>>,
}

/// The progress of a task of the card file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskProgress {
    /// Its name.
    pub name: String,
    /// Whether it waits for releases.
    pub is_periodic: bool,
    /// Segments run.
    pub segments: u64,
}

impl OsHandle {
    /// The progress of the card file's tasks, from any thread.
    pub fn progress(&self) -> Vec<TaskProgress> {
        let each = self.tasks.iter().map(|task| TaskProgress {
            name: task.name.to_string(),
            is_periodic: task.period_ns.is_some(),
            segments: task.counters.segments.get(),
        });
        each.collect()
    }

    /// Its report; none while its card runs.
    pub fn report(&self) -> Option<OsReport> {
        self.report.get().cloned()
    }
}

/// The NIC OS that a card file requests, with its tasks, which may install filters of their own in
/// `filters`; none if none is requested.
///
/// # Errors
/// Errors in `[os]` or a `[[task]]`, including a task that is refused admission.
pub fn build(
    file: &CardFile,
    kinds: OsRegistries,
    filters: Filters,
    around: &Surroundings,
) -> Result<Option<NicOs>, ConfigError> {
    let Some((mut os, path)) = build_with(file, kinds, around)? else { return Ok(None) };
    os.attach_filters(filters);
    let (factory, report) = (os.factory.clone(), os.report.clone());
    let handle = OsHandle { factory, path, tasks: os.lines().collect(), report };
    Ok(Some(NicOs { resident: Box::new(os), handle }))
}

/// As [`build`], for callers that need the NIC OS itself: with the built-in schedulers, and without
/// knowledge of its surroundings.
///
/// # Errors
/// As [`build`].
pub fn build_os(file: &CardFile, tasks: Tasks) -> Result<Option<Os>, ConfigError> {
    let kinds = OsRegistries { tasks, ..OsRegistries::default() };
    Ok(build_with(file, kinds, &Surroundings::default())?.map(|(os, _)| os))
}

fn build_with(
    file: &CardFile,
    kinds: OsRegistries,
    around: &Surroundings,
) -> Result<Option<(Os, PathReport)>, ConfigError> {
    let Some(keys) = asked_for(file) else { return Ok(None) };
    let factory = Factory::of(file, &keys, kinds.tasks);
    let context = &factory.context;
    if let Some(profile) = &context.cost_profile {
        let read = keys.section.files().read("cost_profile", profile);
        read.map_err(|error| keys.section.locate(error))?;
    }
    let scheduler = find(kinds.schedulers, &keys.section)
        .and_then(|entry| Ok((entry.name, entry.build(&keys.section, context)?)));
    let (mut faults, mut setups) = (Vec::new(), Vec::new());
    for (position, task) in file.given::<TaskSection>().into_iter().enumerate() {
        match factory.make(&task, position) {
            Ok(setup) => setups.push((task, setup)),
            Err(error) => faults.push(error),
        }
    }
    let ((name, policy), ()) = ConfigError::both(scheduler, ConfigError::all(faults))?;
    let (path, mut report) = origins::packet_path(&keys, file, around);
    let mut os = Os::new(&settings(&keys, context, path), policy);
    os.scheduler_name = name.into();
    for (task, Setup { spec, program }) in setups {
        os.create(spec, program)
            .map_err(|error| task.section.locate(ConfigError::new("task", error.to_string())))?;
    }
    os.factory = Factory { channels: os.services().channels(), ..factory };
    report.tolerates_ns = os.tolerates_ns;
    Ok(Some((os, report)))
}

/// Makes tasks as `[[task]]` sections describe them: at the start, and while the card runs.
#[derive(Clone, Default)]
pub struct Factory {
    tasks: Tasks,
    context: BuildContext,
    /// Maximum number of tasks at a time.
    most: usize,
    channels: Channels,
}

impl Factory {
    /// For a NIC OS without a registry: it knows no task.
    pub(crate) fn without_kinds(most: usize) -> Self {
        Factory { most, ..Factory::default() }
    }

    fn of(file: &CardFile, keys: &OsSection, tasks: Tasks) -> Self {
        let profile = keys.cost_profile();
        let context = BuildContext {
            queues: file.host.card_queues(),
            wires: file.wires.len() as u8,
            seed: file.card.seed,
            directory: file.directory.clone(),
            buffer_size: file.pool.buffer_size as usize,
            cost_profile: profile.map(|path| file.directory.join(path)),
            ..BuildContext::default()
        };
        Factory { tasks, context, most: keys.tasks, channels: Channels::default() }
    }

    /// Makes the task of a section, with this number.
    ///
    /// # Errors
    /// It names no task of the registry, or a key is wrong.
    pub fn make(&self, task: &Placed<TaskSection>, position: usize) -> Result<Setup, ConfigError> {
        let context = BuildContext { position, ..self.context.clone() };
        let entry = find(self.tasks, &task.section)?;
        let Setup { spec, program } = entry.build(&task.section, &context)?;
        let spec = TaskSpec { kind: Some(entry.name), ..with_keys(spec, task) };
        Ok(Setup { spec, program })
    }

    /// The channels of its tasks, for host processes.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// The names of known tasks.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.tasks.iter().map(|entry| entry.name)
    }

    /// Maximum length of a list of tasks: current ones, and ended ones that are kept.
    pub fn longest_list(&self) -> usize {
        self.most + MOST_ENDED
    }
}

impl fmt::Debug for Factory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Factory").field("kinds", &self.kinds().collect::<Vec<_>>()).finish()
    }
}

fn settings(keys: &OsSection, context: &BuildContext, path: PacketPath) -> OsSettings {
    OsSettings {
        tasks: keys.tasks,
        wires: context.wires,
        buffer_size: context.buffer_size,
        arena_bytes: keys.arena_bytes,
        host_bytes: keys.host_bytes,
        overrun: keys.overrun,
        switch_ns: keys.switch_ns,
        cold_ns: keys.cold_ns,
        admission: keys.admission,
        path,
        transfer: TransferCost {
            latency_ns: keys.transfer_latency_ns,
            bytes_per_us: keys.transfer_bytes_per_us,
        },
    }
}

/// A task's specification with the card file's changes.
fn with_keys(mut spec: TaskSpec, keys: &TaskSection) -> TaskSpec {
    if let Some(name) = &keys.name {
        spec.name.clone_from(name);
    }
    if let Some(period_us) = keys.period_us {
        spec.period_ns = (period_us != 0).then(|| period_us.saturating_mul(1_000));
    }
    if let Some(offset_us) = keys.offset_us {
        spec.offset_ns = offset_us.saturating_mul(1_000);
    }
    if let Some(priority) = keys.priority {
        spec.priority = priority;
    }
    if let Some(wcet_ns) = keys.wcet_ns {
        spec.bounds = Bounds::stated(wcet_ns);
        spec.bounds_from = "the card file".into();
    }
    spec
}
