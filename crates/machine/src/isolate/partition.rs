//! A cpuset partition: the kernel itself keeps others off its cores.
//!
//! The group is threaded, so that one thread of a process, the one on the borrowed core, can be in
//! it while the others stay outside; its process then belongs to the root group.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst, "Threads" and "Cpuset Interface Files".

use crate::error::MachineError;
use crate::topology::CoreSet;
use crate::undo::{Change, Journal, Machine, process};
use rustix::thread::gettid;
use std::io;
use std::path::{Path, PathBuf};

/// The group's name, in the root group.
const NAME: &str = "picnic";

fn root(machine: &Machine) -> PathBuf {
    machine.sysfs.join("fs/cgroup")
}

/// The group's directory.
pub(super) fn folder(machine: &Machine) -> PathBuf {
    root(machine).join(NAME)
}

/// Why a partition is not possible here; none if it is.
pub(super) fn why_not(machine: &Machine) -> Option<String> {
    let root = root(machine);
    let Ok(controllers) = machine.read(&root.join("cgroup.controllers")) else {
        return Some(format!("{} is not a control group of version 2", root.display()));
    };
    if !controllers.split_whitespace().any(|name| name == "cpuset") {
        return Some("the control groups of version 2 have no cpuset controller here".into());
    }
    // Only a true root group has no type.
    if root.join("cgroup.type").exists() {
        return Some("this is a container, whose cores are assigned from outside".into());
    }
    folder(machine).exists().then(|| format!("{} already exists", folder(machine).display()))
}

/// Makes the partition. All changes are in the journal.
///
/// # Errors
/// The journal's. Errors of the kernel are in the result.
pub(super) fn make(
    machine: &Machine,
    journal: &mut Journal,
    cores: &CoreSet,
) -> Result<Result<(), String>, MachineError> {
    let (root, folder) = (root(machine), folder(machine));
    let control = root.join("cgroup.subtree_control");
    let enabled = machine.read(&control).unwrap_or_default();
    if !enabled.split_whitespace().any(|name| name == "cpuset") {
        journal.record(Change::Controller { path: control.clone(), name: "cpuset".into() })?;
        if let Err(error) = machine.kernel.write(&control, "+cpuset") {
            return Ok(Err(format!("{}: {error}", control.display())));
        }
    }
    journal.record(Change::Group { path: folder.clone() })?;
    let said = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    if let Err(error) = machine.kernel.make_folder(&folder) {
        return Ok(Err(said(&folder, error)));
    }
    for (file, text) in [("cgroup.type", "threaded"), ("cpuset.cpus", &cores.to_string())] {
        let path = folder.join(file);
        if let Err(error) = machine.kernel.write(&path, text) {
            return Ok(Err(said(&path, error)));
        }
    }
    let path = folder.join("cpuset.cpus.partition");
    let mut reason = String::new();
    // Without load balancing if the kernel supports that, else as any root partition.
    for kind in ["isolated", "root"] {
        let state = machine.kernel.write(&path, kind).and_then(|()| machine.read(&path));
        match state {
            Ok(state) if state == kind => return Ok(Ok(())),
            Ok(state) => reason = format!("{} is \"{state}\"", path.display()),
            Err(error) => reason = said(&path, error),
        }
    }
    Ok(Err(reason))
}

/// Removes the parts of a partition that could not be made. Its journal's entries then have nothing
/// to restore.
pub(super) fn discard(machine: &Machine) {
    let _ = machine.kernel.remove_folder(&folder(machine));
}

/// Moves this process to the root group, where its threads can enter the partition.
///
/// # Errors
/// The journal's. Errors of the kernel are in the result.
pub(super) fn join_root(
    machine: &Machine,
    journal: &mut Journal,
) -> Result<Result<(), String>, MachineError> {
    let from = match group_of(machine, "self") {
        Some(group) if group != "/" => root(machine).join(group.trim_start_matches('/')),
        _ => return Ok(Ok(())),
    };
    let me = std::process::id() as i32;
    let start_time = process::start_time(&machine.procfs, me, me).unwrap_or(0);
    journal.record(Change::Member { process: me, start_time, from })?;
    let path = root(machine).join("cgroup.procs");
    let result = machine.kernel.write(&path, &me.to_string());
    Ok(result.map_err(|error| format!("{}: {error}", path.display())))
}

/// Lets the calling thread into the partition, if it holds the core.
pub(super) fn enter(machine: &Machine, core: usize) -> io::Result<bool> {
    if !holds(machine, core) {
        return Ok(false);
    }
    let me = gettid().as_raw_nonzero().get();
    // A thread can only enter a group below its process's. The process of a thread in the partition
    // must not be moved, which would move the thread out again.
    let group = group_of(machine, "thread-self").unwrap_or_default();
    if group != "/" && group != format!("/{NAME}") {
        let procs = root(machine).join("cgroup.procs");
        machine.kernel.write(&procs, &std::process::id().to_string())?;
    }
    let_in(machine, core, me)
}

/// Lets a thread whose process is in the root group into the partition, if it holds the core.
pub(super) fn let_in(machine: &Machine, core: usize, thread: i32) -> io::Result<bool> {
    if !holds(machine, core) {
        return Ok(false);
    }
    machine.kernel.write(&folder(machine).join("cgroup.threads"), &thread.to_string())?;
    Ok(true)
}

fn holds(machine: &Machine, core: usize) -> bool {
    let cores = machine.read(&folder(machine).join("cpuset.cpus.effective"));
    let cores = cores.ok().and_then(|cores| CoreSet::parse_list(&cores).ok());
    cores.is_some_and(|cores| cores.contains(core))
}

/// The path of the group of version 2 that a process or thread is in.
fn group_of(machine: &Machine, who: &str) -> Option<String> {
    let groups = machine.read(&machine.procfs.join(who).join("cgroup")).ok()?;
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}
