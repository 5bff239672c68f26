//! Interrupts: where they may go, which devices have them.

use super::IsolationRequest;
use crate::topology::CoreSet;
use crate::undo::{Machine, process};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// An interrupt that is to go elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterruptChange {
    /// Its number.
    pub interrupt: i32,
    /// Who handles it, by the names the drivers gave.
    pub handlers: Vec<String>,
    /// Whether it is a wire's, and goes to the borrowed core.
    pub is_wire: bool,
    /// Its affinity file.
    pub path: PathBuf,
    /// The cores it may go to, as a list.
    pub was: String,
    /// Those it shall go to.
    pub becomes: String,
}

/// The interrupts that are not where they should be.
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
            warnings.push(format!("interface {interface} has no interrupts of its own"));
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

/// Those of the cores that are allowed; all that are allowed if there are none.
pub(super) fn elsewhere(cores: &CoreSet, others: &CoreSet) -> CoreSet {
    let left = cores.and(others);
    if left.is_empty() { others.clone() } else { left }
}

/// A folder for each handler lies beside the affinity.
fn handlers(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The interrupts of an interface's device. A virtio device's are those of the PCI device it
/// is on, so the way up is searched.
fn of_interface(machine: &Machine, interface: &str) -> Vec<i32> {
    let device = machine.sysfs.join("class/net").join(interface).join("device");
    let (Ok(device), Ok(top)) = (device.canonicalize(), machine.sysfs.canonicalize()) else {
        return Vec::new();
    };
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
