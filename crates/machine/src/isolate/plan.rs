//! Plans isolation without changing anything.

use super::claims::{Claims, told};
use super::interrupts::{self, InterruptChange, elsewhere};
use super::{IsolationRequest, applied, partition};
use crate::config::{IsolationLevel, IsolationMethod};
use crate::error::MachineError;
use crate::topology::{CoreSet, LeftOut, Topology};
use crate::undo::{Machine, process};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// How threads are kept off the reserved cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// A cpuset partition takes the cores away from all others.
    Cpuset,
    /// Each thread's affinity is set.
    Affinity,
}

/// The planned changes.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The borrowed core.
    pub borrowed_core: usize,
    /// The cores for everything else.
    pub target_cores: CoreSet,
    /// The level at which cores are excluded.
    pub level: IsolationLevel,
    /// Cores that are kept idle, and why.
    pub left_out: Vec<LeftOut>,
    /// Whether the isolation is applied already; the listed changes are new since then.
    pub is_applied: bool,
    /// How threads are kept off.
    pub method: Method,
    /// Why this method, if another would be better.
    pub method_reason: Option<String>,
    /// The control group of the partition.
    pub partition: Option<PathBuf>,
    /// Interrupts that move.
    pub interrupts: Vec<InterruptChange>,
    /// Other settings that change.
    pub settings: Vec<SettingChange>,
    /// Threads that move.
    pub threads: Vec<ThreadChange>,
    /// Kernel threads that belong to a reserved core and stay.
    pub bound_threads: usize,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// A setting that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingChange {
    /// Its name.
    pub setting: String,
    /// Its file.
    pub path: PathBuf,
    /// Its value.
    pub was: String,
    /// Its new value.
    pub becomes: String,
}

/// A thread that moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadChange {
    /// Its process.
    pub process: i32,
    /// Its number.
    pub thread: i32,
    /// Clock ticks from boot to its start.
    #[serde(skip)]
    pub start_time: u64,
    /// Its name.
    pub name: String,
    /// Whether it is a kernel thread.
    pub is_kernel: bool,
    /// Its allowed cores, as a list.
    pub was: String,
    /// Its new allowed cores, as a list.
    pub becomes: String,
}

/// Plans the changes of [`super::apply`].
///
/// # Errors
/// There is no other core, the processes cannot be listed, or the card requires a partition that is
/// not possible.
pub fn plan(machine: &Machine, request: &IsolationRequest) -> Result<Plan, MachineError> {
    let reserved = request.reserved();
    let topology = Topology::read(&machine.sysfs);
    let others = topology.online.without(&reserved);
    if others.is_empty() {
        return Err(MachineError::Refused(format!(
            "core {} cannot be isolated: there is no other core for everything else",
            request.borrowed_core
        )));
    }
    let mut warnings = request.warnings.clone();
    let (in_force, other) = match applied(machine) {
        Some(applied) if applied.reserved != reserved => (None, Some(applied)),
        applied => (applied, None),
    };
    warnings.extend(
        other.map(|other| format!("cores {} are isolated now: restore them first", other.reserved)),
    );
    warnings.extend(topology.problems);
    let claims = Claims::read(machine);
    let mut spared = BTreeSet::new();
    let mut is_spared = |claim: Option<i32>| {
        spared.extend(claim);
        claim.is_some()
    };
    let mut interrupts = interrupts::changes(machine, request, &others, &mut warnings);
    interrupts.retain(|change| !is_spared(claims.of_setting(&change.path)));
    let mut settings = settings(machine, &reserved, &others);
    settings.retain(|change| !is_spared(claims.of_setting(&change.path)));
    let threads = process::threads(&machine.procfs)
        .map_err(|error| MachineError::system("cannot list the processes", error))?;
    let (method, method_reason) = match &in_force {
        Some(applied) if applied.is_partition => (Method::Cpuset, None),
        Some(_) => (Method::Affinity, None),
        None => method(machine, request, &threads, &topology.online, &claims)?,
    };
    let on_reserved = threads.iter().filter(|thread| thread.allowed.meets(&reserved));
    let bound_threads = on_reserved.clone().filter(|thread| thread.is_bound).count();
    let threads = on_reserved
        .filter(|thread| !thread.is_bound && !is_borrowed(thread, request.borrowed_core))
        .filter(|thread| !is_spared(claims.of_thread(thread, &reserved)))
        .map(|thread| change(thread, &others))
        .collect();
    warnings.extend(told(&spared));
    Ok(Plan {
        borrowed_core: request.borrowed_core,
        level: request.level,
        left_out: request.left_out.clone(),
        is_applied: in_force.is_some(),
        method,
        method_reason,
        partition: (method == Method::Cpuset).then(|| partition::folder(machine)),
        interrupts,
        settings,
        threads,
        bound_threads,
        warnings,
        target_cores: others,
    })
}

/// The method possible here, and why not a better one.
fn method(
    machine: &Machine,
    request: &IsolationRequest,
    threads: &[process::Thread],
    everywhere: &CoreSet,
    claims: &Claims,
) -> Result<(Method, Option<String>), MachineError> {
    let reserved = request.reserved();
    let card = threads.iter().find_map(|thread| match is_borrowed(thread, request.borrowed_core) {
        true => Some(thread.process),
        false => claims.of_thread(thread, &reserved),
    });
    let why_not = partition::why_not(machine).or_else(|| {
        let card = card.map(|process| {
            format!("process {process} has a card on that core, which a partition would move")
        });
        card.or_else(|| {
            let thread = threads.iter().find(|thread| would_be_unbound(thread, everywhere))?;
            Some(format!(
                "kernel thread {} is bound to core {}, which a partition may undo for good",
                thread.name, thread.allowed
            ))
        })
    });
    match (request.method, why_not) {
        (IsolationMethod::Affinity, _) => Ok((Method::Affinity, None)),
        (_, None) => Ok((Method::Cpuset, None)),
        (IsolationMethod::Auto, Some(reason)) => Ok((Method::Affinity, Some(reason))),
        (IsolationMethod::Cpuset, Some(reason)) => Err(MachineError::Refused(format!(
            "isolation.method \"cpuset\" is not possible: {reason}"
        ))),
    }
}

/// Whether a partition, in some kernels, would move a thread that cannot be moved back: one bound
/// to its core individually, as any kernel module may do (`kthread_bind`), not as one of a set of
/// threads for all cores. The latter have names such as `ksoftirqd/3`.
fn would_be_unbound(thread: &process::Thread, everywhere: &CoreSet) -> bool {
    let suffix = thread.name.rsplit_once('/').and_then(|(_, suffix)| suffix.parse().ok());
    let is_of_a_set = suffix.is_some_and(|core| thread.allowed == CoreSet::from_iter([core]));
    thread.is_bound && !thread.is_worker && !is_of_a_set && thread.allowed != *everywhere
}

/// Whether it is the thread of a card on this core.
pub(super) fn is_borrowed(thread: &process::Thread, core: usize) -> bool {
    thread.name == crate::threads::BORROWED && thread.allowed == CoreSet::from_iter([core])
}

pub(super) fn change(thread: &process::Thread, others: &CoreSet) -> ThreadChange {
    ThreadChange {
        process: thread.process,
        thread: thread.thread,
        start_time: thread.start_time,
        name: thread.name.clone(),
        is_kernel: thread.is_kernel,
        was: thread.allowed.to_string(),
        becomes: elsewhere(&thread.allowed, others).to_string(),
    }
}

/// Masks that include a reserved core.
fn settings(machine: &Machine, reserved: &CoreSet, others: &CoreSet) -> Vec<SettingChange> {
    let mut files = vec![
        (
            "affinity of future interrupts".to_owned(),
            machine.procfs.join("irq/default_smp_affinity"),
        ),
        ("unbound work queues".to_owned(), machine.sysfs.join("devices/virtual/workqueue/cpumask")),
    ];
    for interface in folders(&machine.sysfs.join("class/net")) {
        let name = interface.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for queue in folders(&interface.join("queues")) {
            let queue_name = queue.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((format!("packet steering of {name} {queue_name}"), queue.join("rps_cpus")));
        }
    }
    let change = |(setting, path): (String, PathBuf)| {
        let was = machine.read(&path).ok()?;
        let cores = CoreSet::parse_mask(&was).ok()?;
        let becomes = elsewhere(&cores, others).to_mask();
        cores.meets(reserved).then_some(SettingChange { setting, path, was, becomes })
    };
    files.into_iter().filter_map(change).collect()
}

/// The subdirectories, including links to directories, by name.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}
