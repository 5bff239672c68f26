//! A change to the machine, and how to restore it.

use super::machine::Machine;
use super::network::Home;
use super::process;
use crate::topology::CoreSet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Attempts to remove a control group whose last member is just ending, with pauses: half a minute, as
/// it needs a core to end; in tests, a second.
pub(super) const TRIES: u32 = if cfg!(test) { 100 } else { 3000 };
const PAUSE: Duration = Duration::from_millis(10);

/// A change about to be made, with everything needed to restore it.
///
/// Sets of cores are lists as the kernel writes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// A setting, read and written as a text.
    Setting {
        /// The file.
        path: PathBuf,
        /// Its value before.
        was: String,
        /// Its new value.
        becomes: String,
    },
    /// The allowed cores of a thread.
    Affinity {
        /// Its process.
        process: i32,
        /// Its number.
        thread: i32,
        /// Its start time: another thread may get its number.
        start_time: u64,
        /// The cores before.
        was: String,
        /// The new cores.
        becomes: String,
    },
    /// Threads not listed individually: those started later by listed parents. To be recorded after
    /// all existing threads, and before any is moved.
    Isolation {
        /// The isolated core.
        borrowed_core: usize,
        /// The cores reserved for it, including itself.
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
    /// A control group that is made. Members at the end move to its parent.
    Group {
        /// Its directory.
        path: PathBuf,
    },
    /// A process that is moved to another control group.
    Member {
        /// The process.
        process: i32,
        /// Its start time.
        start_time: u64,
        /// The directory of its group before.
        from: PathBuf,
    },
    /// A network interface that is made.
    Interface {
        /// Its name.
        name: String,
        /// The network namespace, a name of `ip netns`; none for the namespace of the journal's
        /// process.
        namespace: Option<String>,
    },
    /// A network namespace that is made, with all that will be in it.
    Namespace {
        /// A name of `ip netns`.
        name: String,
    },
    /// A program that is started and stopped at its gate until recorded.
    Process {
        /// Its number.
        process: i32,
        /// Its start time: another process may get its number.
        start_time: u64,
    },
    /// A feature of a network interface, as `ethtool -k` names it, or `threaded`, or
    /// `queues/rx-N/rps_cpus`.
    Feature {
        /// The interface.
        interface: String,
        /// The network namespace, a name of `ip netns`; none for the namespace of the journal's
        /// process.
        namespace: Option<String>,
        /// The feature.
        feature: String,
        /// Its value before.
        was: String,
    },
    /// A directory that is made, with all its later content.
    Folder {
        /// Its path; its last part begins with `picnic-`.
        path: PathBuf,
    },
}

/// The result of restoring a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UndoResult {
    Restored,
    /// It had its old value already.
    Unchanged,
    /// The changed object no longer exists.
    Gone,
    /// Nor does its network namespace.
    NetworkGone(String),
    /// The machine no longer allows it; another attempt would not help.
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
            Change::Process { process, .. } => write!(f, "program {process} to its end"),
            Change::Feature { interface, feature, was, .. } => {
                write!(f, "{feature} of interface {interface} to {was}")
            }
            Change::Folder { path } => write!(f, "folder {} away", path.display()),
        }
    }
}

impl Change {
    /// Restores a change that is independent of others. Threads are restored together, see
    /// [`super::threads`]. `lock` is the journal, locked: commands keep it until they end. `home`
    /// is the namespace of its process.
    pub(super) fn undo(&self, machine: &Machine, lock: &File, home: &Home) -> UndoResult {
        match self {
            Change::Setting { path, was, .. } => match attribute(machine, path) {
                Some((interface, feature)) if *home != Home::Here => {
                    let words = feature_words(interface, None, feature, was);
                    of_interface(machine, (lock, home), (interface, None), &words)
                }
                _ => setting(machine, path, was),
            },
            Change::Affinity { .. } | Change::Isolation { .. } => UndoResult::Unchanged,
            Change::Controller { path, name } => controller(machine, path, name),
            Change::Group { path } => group(machine, path),
            Change::Member { process, start_time, from } => {
                if process::start_time(&machine.procfs, *process, *process) != Some(*start_time) {
                    return UndoResult::Gone;
                }
                let members = from.join("cgroup.procs");
                undone(machine.kernel.write(&members, &process.to_string()))
            }
            Change::Interface { name, namespace } => {
                let namespace = namespace.as_deref();
                let words = match namespace {
                    None => vec!["ip", "link", "del", name],
                    Some(namespace) => vec!["ip", "-n", namespace, "link", "del", name],
                };
                let words: Vec<_> = words.into_iter().map(String::from).collect();
                of_interface(machine, (lock, home), (name, namespace), &words)
            }
            Change::Namespace { name } => namespace(machine, lock, name),
            Change::Process { process, start_time } => {
                let is_it = || {
                    process::start_time(&machine.procfs, *process, *process) == Some(*start_time)
                };
                if !is_it() {
                    return UndoResult::Gone;
                }
                undone(machine.kernel.end(*process, &is_it))
            }
            Change::Feature { interface, namespace, feature, was } => {
                let namespace = namespace.as_deref();
                let words = feature_words(interface, namespace, feature, was);
                of_interface(machine, (lock, home), (interface, namespace), &words)
            }
            Change::Folder { path } => folder(machine, path),
        }
    }
}

fn setting(machine: &Machine, path: &Path, was: &str) -> UndoResult {
    match machine.read(path) {
        Ok(now) if now == was => UndoResult::Unchanged,
        Ok(_) => undone(machine.kernel.write(path, was)),
        Err(error) => undone(Err(error)),
    }
}

fn controller(machine: &Machine, path: &Path, name: &str) -> UndoResult {
    match machine.read(path) {
        Ok(now) if now.split_whitespace().any(|other| other == name) => {
            undone(machine.kernel.write(path, &format!("-{name}")))
        }
        Ok(_) => UndoResult::Unchanged,
        Err(error) => undone(Err(error)),
    }
}

fn group(machine: &Machine, path: &Path) -> UndoResult {
    if !path.is_dir() {
        return UndoResult::Gone;
    }
    let parent = path.parent().unwrap_or(path).join("cgroup.threads");
    for left in (0..TRIES).rev() {
        // As long as threads may still appear: they are started by existing ones.
        let members = machine.read(&path.join("cgroup.threads")).unwrap_or_default();
        for thread in members.split_whitespace() {
            // One that has just ended needs no cores.
            let _ = machine.kernel.write(&parent, thread);
        }
        match machine.kernel.remove_folder(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && left != 0 => {
                std::thread::sleep(PAUSE);
            }
            result => return undone(result),
        }
    }
    UndoResult::Failed("it still has members".into())
}

fn namespace(machine: &Machine, lock: &File, name: &str) -> UndoResult {
    if !is_name(name) {
        return UndoResult::Refused("not a valid name".into());
    }
    match machine.namespaces.join(name).try_exists() {
        Ok(false) => UndoResult::Gone,
        _ => undone(machine.kernel.run(lock, &["ip", "netns", "del", name])),
    }
}

fn folder(machine: &Machine, path: &Path) -> UndoResult {
    let name = path.file_name().and_then(|name| name.to_str());
    let is_plain = path.components().all(|part| {
        matches!(part, std::path::Component::RootDir | std::path::Component::Normal(_))
    });
    if !path.is_absolute() || !is_plain || !name.is_some_and(|name| name.starts_with("picnic-")) {
        return UndoResult::Refused("the directory was not made by this program".into());
    }
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.is_dir() => {
            UndoResult::Refused("it is no longer a directory".into())
        }
        Ok(_) => undone(machine.kernel.remove_tree(path)),
        Err(error) => undone(Err(error)),
    }
}

/// Runs the command that restores a change of an interface, in its namespace.
fn of_interface(
    machine: &Machine,
    (lock, home): (&File, &Home),
    (interface, namespace): (&str, Option<&str>),
    words: &[String],
) -> UndoResult {
    if !is_name(interface) || !namespace.is_none_or(is_name) {
        return UndoResult::Refused("not a valid name".into());
    }
    let mut words: Vec<_> = words.iter().map(String::as_str).collect();
    let entered;
    match (namespace, home) {
        (Some(namespace), _) if !machine.namespaces.join(namespace).exists() => {
            return UndoResult::NetworkGone(format!("network namespace {namespace}"));
        }
        (None, Home::Gone) => {
            return UndoResult::NetworkGone("the network namespace it was in".into());
        }
        (None, Home::Here) if !machine.sysfs.join("class/net").join(interface).exists() => {
            return UndoResult::Gone;
        }
        (None, home) => {
            entered = home.within(&words);
            words = entered.iter().map(String::as_str).collect();
        }
        (Some(_), _) => {}
    }
    is_there(machine.kernel.run(lock, &words))
}

/// The interface and its attribute, if a setting is one: in the current network namespace.
fn attribute<'a>(machine: &Machine, path: &'a Path) -> Option<(&'a str, &'a str)> {
    let (interface, attribute) =
        path.strip_prefix(machine.sysfs.join("class/net")).ok()?.to_str()?.split_once('/')?;
    is_attribute(attribute).then_some((interface, attribute))
}

/// The result of a command about an interface, which may have disappeared meanwhile.
pub(super) fn is_there(result: io::Result<()>) -> UndoResult {
    const GONE: [&str; 3] = ["Cannot find device", "No such device", "does not exist"];
    match result {
        Err(error) if GONE.iter().any(|gone| error.to_string().contains(gone)) => UndoResult::Gone,
        result => undone(result),
    }
}

/// The command that sets a feature of an interface.
pub(crate) fn feature_words(
    interface: &str,
    namespace: Option<&str>,
    feature: &str,
    value: &str,
) -> Vec<String> {
    // An attribute without its own command: value and file are separate arguments. If it has
    // the value already it is left alone: `threaded` cannot be written while the interface has no
    // NAPI. Shells differ in their errors for a missing file.
    const WRITE: &str = "[ -e \"/sys/class/net/$2\" ] || exec ip link show dev \"$2\"; \
         file=\"/sys/class/net/$2/$3\"; \
         [ \"$(cat \"$file\" 2>/dev/null)\" = \"$1\" ] || echo \"$1\" > \"$file\"";
    match is_attribute(feature) {
        true => within(namespace, &["sh", "-c", WRITE, "sh", value, interface, feature]),
        false => within(namespace, &["ethtool", "-K", interface, feature, value]),
    }
}

/// Whether it is a file of the interface, below `/sys/class/net`, and not a feature of ethtool.
fn is_attribute(feature: &str) -> bool {
    let queue = feature.strip_prefix("queues/rx-").and_then(|rest| rest.strip_suffix("/rps_cpus"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    matches!(feature, "threaded" | "gro_flush_timeout" | "napi_defer_hard_irqs")
        || queue.is_some_and(is_number)
}

/// A command in a namespace, if not the current one.
pub(crate) fn within(namespace: Option<&str>, words: &[&str]) -> Vec<String> {
    let netns = namespace.map(|name| ["ip", "netns", "exec", name]);
    netns.into_iter().flatten().chain(words.iter().copied()).map(String::from).collect()
}

/// Whether `ip` takes it as a name: neither an option nor a path.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(['-', '.']) && !name.contains(['/', '\0'])
}

/// The result of a system call that restores a change.
pub(super) fn undone(result: io::Result<()>) -> UndoResult {
    use rustix::io::Errno;
    let Err(error) = result else { return UndoResult::Restored };
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::SRCH | Errno::NODEV) => UndoResult::Gone,
        // The kernel refuses: an unmovable interrupt, cores that are offline.
        Some(Errno::INVAL | Errno::IO | Errno::OPNOTSUPP) => UndoResult::Refused(error.to_string()),
        _ => UndoResult::Failed(error.to_string()),
    }
}

/// The list in a journal's line; empty if invalid, which no thread can be given.
pub(super) fn list(text: &str) -> CoreSet {
    CoreSet::parse_list(text).unwrap_or_default()
}
