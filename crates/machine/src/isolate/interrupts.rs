//! Interrupts: the cores they may go to, and the devices that have them.

use super::IsolationRequest;
use super::apply::set;
use super::plan::SettingChange;
use crate::command;
use crate::error::MachineError;
use crate::topology::CoreSet;
use crate::undo::{Journal, Machine, process, within};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// An interrupt to be moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterruptChange {
    /// Its number.
    pub interrupt: i32,
    /// Its handlers, by the drivers' names.
    pub handlers: Vec<String>,
    /// Whether it is a wire's, and moves to the borrowed core.
    pub is_wire: bool,
    /// Its affinity file.
    pub path: PathBuf,
    /// The cores allowed before, as a list.
    pub was: String,
    /// The new ones.
    pub becomes: String,
}

impl From<&InterruptChange> for SettingChange {
    fn from(change: &InterruptChange) -> Self {
        SettingChange {
            setting: format!("interrupt {} ({})", change.interrupt, change.handlers.join(", ")),
            path: change.path.clone(),
            was: change.was.clone(),
            becomes: change.becomes.clone(),
        }
    }
}

/// Moves the interrupts of an interface's device to a core; returns warnings about those that
/// cannot be moved. An interface without a device, such as a veth, has none.
///
/// To be called after the driver is set up: it may request its interrupts anew until then.
///
/// # Errors
/// The journal cannot be written, or the namespace does not exist.
pub fn bring_interrupts(
    machine: &Machine,
    journal: &mut Journal,
    interface: &str,
    namespace: Option<&str>,
    core: usize,
) -> Result<Vec<String>, MachineError> {
    let Some(device) = device(machine, interface, namespace)? else { return Ok(Vec::new()) };
    let found = of_device(machine, &device);
    if found.is_empty() {
        return Ok(vec![none_of_its_own(interface)]);
    }
    let borrowed = CoreSet::from_iter([core]);
    let mut notes = Vec::new();
    let mut changes = Vec::new();
    for interrupt in found {
        let folder = machine.procfs.join("irq").join(interrupt.to_string());
        let path = folder.join("smp_affinity_list");
        // A device may have more than its driver requested.
        let Ok(was) = machine.read(&path) else { continue };
        let handlers = handlers(&folder);
        if handlers.len() > 1 {
            notes.push(format!(
                "interface {interface} shares interrupt {interrupt} ({}), which core \
                 {core} handles for all of them",
                handlers.join(", ")
            ));
        }
        if CoreSet::parse_list(&was).ok().as_ref() != Some(&borrowed) {
            let becomes = borrowed.to_string();
            let is_wire = true;
            changes.push(InterruptChange { interrupt, handlers, is_wire, path, was, becomes });
        }
    }
    let changes: Vec<_> = changes.iter().map(SettingChange::from).collect();
    let refused = set(machine, journal, &changes)?;
    notes.extend(refused.iter().map(|what| format!("interface {interface}: {what}")));
    Ok(notes)
}

/// The interrupts to be moved.
pub(super) fn changes(
    machine: &Machine,
    request: &IsolationRequest,
    others: &CoreSet,
    warnings: &mut Vec<String>,
) -> Vec<InterruptChange> {
    let mut of_wires = BTreeSet::new();
    for interface in &request.interfaces {
        let found = of_interface(machine, interface);
        if found.is_empty() {
            warnings.push(none_of_its_own(interface));
        }
        of_wires.extend(found);
    }
    let reserved = request.reserved();
    let borrowed = CoreSet::from_iter([request.borrowed_core]);
    let folder = machine.procfs.join("irq");
    let mut changes = Vec::new();
    for interrupt in process::numbered(&folder).unwrap_or_default() {
        let folder = folder.join(interrupt.to_string());
        let path = folder.join("smp_affinity_list");
        let Ok(was) = machine.read(&path) else { continue };
        let Ok(cores) = CoreSet::parse_list(&was) else { continue };
        let is_wire = of_wires.contains(&interrupt);
        let becomes = if is_wire { borrowed.clone() } else { elsewhere(&cores, others) };
        let is_right = if is_wire { cores == borrowed } else { !cores.meets(&reserved) };
        if !is_right {
            let (handlers, becomes) = (handlers(&folder), becomes.to_string());
            changes.push(InterruptChange { interrupt, handlers, is_wire, path, was, becomes });
        }
    }
    changes
}

/// The allowed ones of the cores; all allowed cores if none of them is allowed.
pub(super) fn elsewhere(cores: &CoreSet, others: &CoreSet) -> CoreSet {
    let left = cores.and(others);
    if left.is_empty() { others.clone() } else { left }
}

/// Handlers are directories beside the affinity file.
fn handlers(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn none_of_its_own(interface: &str) -> String {
    format!("interface {interface} has no interrupts of its own")
}

fn of_interface(machine: &Machine, interface: &str) -> Vec<i32> {
    let device = device(machine, interface, None).ok().flatten();
    device.map(|device| of_device(machine, &device)).unwrap_or_default()
}

/// The directory of an interface's device, if any: it is the same in all namespaces, but the path
/// to it differs.
fn device(
    machine: &Machine,
    interface: &str,
    namespace: Option<&str>,
) -> Result<Option<PathBuf>, MachineError> {
    let link = machine.sysfs.join("class/net").join(interface).join("device");
    if namespace.is_none() {
        return Ok(link.canonicalize().ok());
    }
    let link = link.to_string_lossy();
    let words = within(namespace, &["readlink", "-f", &link]);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let path = command::run(&words).map_err(|error| MachineError::Refused(error.to_string()))?;
    Ok(Path::new(path.trim()).canonicalize().ok())
}

/// The interrupts of a device. Those of a virtio device belong to its PCI device, so parents are
/// searched.
fn of_device(machine: &Machine, device: &Path) -> Vec<i32> {
    let Ok(top) = machine.sysfs.canonicalize() else { return Vec::new() };
    for folder in device.ancestors().take_while(|folder| folder.starts_with(&top)) {
        let messages = process::numbered(&folder.join("msi_irqs")).unwrap_or_default();
        if !messages.is_empty() {
            return messages;
        }
        let line = machine.read(&folder.join("irq")).ok().and_then(|line| line.parse().ok());
        if let Some(line) = line.filter(|&line: &i32| line > 0) {
            return vec![line];
        }
    }
    Vec::new()
}
