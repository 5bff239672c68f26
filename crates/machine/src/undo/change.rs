//! One change to the machine, and how it is taken back.

use super::machine::Machine;
use super::process;
use crate::topology::CoreSet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Tries to remove a control group whose last member is just ending, a pause between two.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// What is about to be changed, with all that it takes to take it back.
///
/// Sets of cores are lists as the kernel writes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// A setting, read and written as a text.
    Setting {
        /// The file.
        path: PathBuf,
        /// What it holds.
        was: String,
        /// What it will hold.
        becomes: String,
    },
    /// Where a thread may run.
    Affinity {
        /// Its process.
        process: i32,
        /// Its number.
        thread: i32,
        /// When it was started: another thread may get its number.
        start_time: u64,
        /// The cores.
        was: String,
        /// The cores from now on.
        becomes: String,
    },
    /// Threads that are not listed one by one: those started later, by parents that are. To be
    /// recorded after all that there are, and before any is moved.
    Isolation {
        /// The core that all is kept off for.
        borrowed_core: usize,
        /// The cores that nothing else shall use, it among them.
        reserved: String,
        /// All other cores.
        others: String,
        /// Whether a cpuset partition holds the reserved ones.
        is_partition: bool,
    },
    /// A controller, given to the children of a control group.
    Controller {
        /// The group's `cgroup.subtree_control`.
        path: PathBuf,
        /// The controller.
        name: String,
    },
    /// A control group that is made. Who is in it at the end goes to its parent.
    Group {
        /// Its folder.
        path: PathBuf,
    },
    /// A process that is moved to another control group.
    Member {
        /// The process.
        process: i32,
        /// When it was started.
        start_time: u64,
        /// The folder of the group it is in.
        from: PathBuf,
    },
    /// A network interface that is made.
    Interface {
        /// Its name.
        name: String,
        /// The network namespace, if it is not this one: a name of `ip netns`.
        namespace: Option<String>,
    },
    /// A network namespace that is made, with all that will be in it.
    Namespace {
        /// A name of `ip netns`.
        name: String,
    },
}

/// How taking a change back went.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Restored,
    /// It was as it had been.
    Unchanged,
    /// What was changed is no longer there.
    Gone,
    /// The machine no longer allows it; trying again would not help.
    Refused(String),
    /// It may be tried again.
    Failed(String),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Setting { path, was, .. } => write!(f, "{} to {was}", path.display()),
            Change::Affinity { process, thread, was, .. } => {
                write!(f, "thread {thread} of process {process} to cores {was}")
            }
            Change::Isolation { borrowed_core, .. } => {
                write!(f, "threads started while core {borrowed_core} was isolated")
            }
            Change::Controller { path, name } => write!(f, "{name} out of {}", path.display()),
            Change::Group { path } => write!(f, "control group {} away", path.display()),
            Change::Member { process, from, .. } => {
                write!(f, "process {process} to control group {}", from.display())
            }
            Change::Interface { name, .. } => write!(f, "interface {name} away"),
            Change::Namespace { name } => write!(f, "network namespace {name} away"),
        }
    }
}

impl Change {
    /// Takes a change back that stands for itself. Threads' are taken back together, see
    /// [`super::journal`].
    pub(super) fn undo(&self, machine: &Machine) -> Outcome {
        match self {
            Change::Setting { path, was, .. } => setting(machine, path, was),
            Change::Affinity { .. } | Change::Isolation { .. } => Outcome::Unchanged,
            Change::Controller { path, name } => controller(machine, path, name),
            Change::Group { path } => group(machine, path),
            Change::Member { process, start_time, from } => {
                if process::start_time(&machine.procfs, *process, *process) != Some(*start_time) {
                    return Outcome::Gone;
                }
                let members = from.join("cgroup.procs");
                outcome(machine.kernel.write(&members, &process.to_string()))
            }
            Change::Interface { name, namespace } => interface(machine, name, namespace.as_deref()),
            Change::Namespace { name } => {
                if !is_name(name) {
                    return Outcome::Refused("that is no name".into());
                }
                let path = Path::new("/run/netns").join(name);
                match path.try_exists() {
                    Ok(false) => Outcome::Gone,
                    _ => outcome(machine.kernel.ip(&["netns", "del", name])),
                }
            }
        }
    }
}

fn setting(machine: &Machine, path: &Path, was: &str) -> Outcome {
    match machine.read(path) {
        Ok(now) if now == was => Outcome::Unchanged,
        Ok(_) => outcome(machine.kernel.write(path, was)),
        Err(error) => outcome(Err(error)),
    }
}

fn controller(machine: &Machine, path: &Path, name: &str) -> Outcome {
    match machine.read(path) {
        Ok(now) if now.split_whitespace().any(|other| other == name) => {
            outcome(machine.kernel.write(path, &format!("-{name}")))
        }
        Ok(_) => Outcome::Unchanged,
        Err(error) => outcome(Err(error)),
    }
}

fn group(machine: &Machine, path: &Path) -> Outcome {
    if !path.is_dir() {
        return Outcome::Gone;
    }
    let parent = path.parent().unwrap_or(path).join("cgroup.threads");
    for left in (0..TRIES).rev() {
        // As often as threads may still come: they are started by those that are there.
        let members = machine.read(&path.join("cgroup.threads")).unwrap_or_default();
        for thread in members.split_whitespace() {
            // One that has just ended needs no place.
            let _ = machine.kernel.write(&parent, thread);
        }
        match machine.kernel.remove_folder(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && left != 0 => {
                std::thread::sleep(PAUSE);
            }
            result => return outcome(result),
        }
    }
    Outcome::Failed("it has members still".into())
}

fn interface(machine: &Machine, name: &str, namespace: Option<&str>) -> Outcome {
    if !is_name(name) || !namespace.is_none_or(is_name) {
        return Outcome::Refused("that is no name".into());
    }
    let arguments = match namespace {
        None => vec!["link", "del", name],
        Some(namespace) => vec!["-n", namespace, "link", "del", name],
    };
    let is_gone = match namespace {
        None => !machine.sysfs.join("class/net").join(name).exists(),
        Some(namespace) => !Path::new("/run/netns").join(namespace).exists(),
    };
    if is_gone {
        return Outcome::Gone;
    }
    match machine.kernel.ip(&arguments) {
        Err(error) if error.to_string().contains("Cannot find device") => Outcome::Gone,
        result => outcome(result),
    }
}

/// Whether `ip` takes it for a name: neither an option nor a path.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(['-', '.']) && !name.contains(['/', '\0'])
}

/// What a system call's answer means for a change that is taken back.
pub(super) fn outcome(result: io::Result<()>) -> Outcome {
    use rustix::io::Errno;
    let Err(error) = result else { return Outcome::Restored };
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::SRCH | Errno::NODEV) => Outcome::Gone,
        // The kernel will not: an interrupt with a mind of its own, cores that are offline.
        Some(Errno::INVAL | Errno::IO | Errno::OPNOTSUPP) => Outcome::Refused(error.to_string()),
        _ => Outcome::Failed(error.to_string()),
    }
}

/// The list in a journal's line; empty if it is none, which no thread can be given.
pub(super) fn list(text: &str) -> CoreSet {
    CoreSet::parse_list(text).unwrap_or_default()
}
