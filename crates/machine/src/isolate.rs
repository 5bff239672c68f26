//! Isolation of the borrowed core: interrupts and processes move to other cores.
//!
//! ```no_run
//! use picnic_core::config::CardFile;
//! use picnic_machine::isolate::{IsolationRequest, apply, plan};
//! use picnic_machine::topology::{available, place};
//! use picnic_machine::undo::Machine;
//! let (card, machine) = (CardFile::parse("", None)?, Machine::this());
//! let request = IsolationRequest::of(&card, &place(&card, &available())?);
//! println!("{} threads would move", plan(&machine, &request)?.threads.len());
//! let isolated = apply(&machine, &request, false)?;
//! // ... nothing else runs on the borrowed core ...
//! isolated.restore()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Isolation covers the borrowed core and the cores excluded for their caches. The wires' own
//! interrupts are the exception: the borrowed core is the card, and takes them (PICNIC 2.1). Moved
//! are interrupts (their affinity, and that of future interrupts), the kernel's work queues,
//! packets that receive packet steering would send there, and all threads: by a cpuset partition if
//! possible, and by affinity for threads that the kernel did not move. Anything that the kernel
//! refuses to move is listed and stays; so does anything that a running card has put there, such as
//! interrupts and threads of a card in the kernel.
//!
//! Guarantees: every change is in a journal before it is made ([`crate::undo`]), and is restored
//! exactly. A thread that another program moved meanwhile stays there; a thread started meanwhile
//! goes where its parent goes.
//!
//! Source: PICNIC 3.2.1; Documentation/core-api/irq/irq-affinity.rst,
//! Documentation/admin-guide/cgroup-v2.rst (cpuset), Documentation/core-api/workqueue.rst.

mod apply;
mod claims;
mod interrupts;
mod partition;
mod plan;
#[cfg(test)]
mod tests;

pub use apply::{Isolated, apply};
pub use interrupts::{InterruptChange, bring_interrupts};
pub use plan::{Method, Plan, SettingChange, ThreadChange, plan};

use crate::config::{IsolationLevel, IsolationMethod, IsolationSection};
use crate::error::MachineError;
use crate::topology::{CoreSet, LeftOut, Placement};
use crate::undo::{
    Change, JournalInfo, JournalSelection, Machine, Restored, journals, restore_all,
};
use picnic_core::config::CardFile;
use rustix::thread::CapabilitySet;
use schemars::JsonSchema;
use serde::Deserialize;
use std::io::ErrorKind;

/// The purpose of this module's journals.
pub const PURPOSE: &str = "isolate";

/// What to isolate, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsolationRequest {
    /// The core.
    pub borrowed_core: usize,
    /// The level at which cores are excluded.
    pub level: IsolationLevel,
    /// Cores kept idle because they share a resource with the borrowed core.
    pub left_out: Vec<LeftOut>,
    /// How threads are kept off.
    pub method: IsolationMethod,
    /// Interfaces whose interrupts the borrowed core takes.
    pub interfaces: Vec<String>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// The keys of a wire that name an interface.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct InterfaceKeys {
    interface: Option<String>,
    namespace: Option<String>,
}

impl IsolationRequest {
    /// The isolation that a card requests.
    pub fn of(file: &CardFile, placement: &Placement) -> Self {
        let mut warnings = placement.warnings.clone();
        let mut interfaces = Vec::new();
        for wire in &file.wires {
            let keys = wire.port.parse::<InterfaceKeys>().unwrap_or_default();
            match keys {
                InterfaceKeys { interface: Some(interface), namespace: None } => {
                    interfaces.push(interface);
                }
                InterfaceKeys { interface: Some(interface), namespace: Some(namespace) } => {
                    warnings.push(format!(
                        "wire {}: interface {interface} is in namespace {namespace}, so isolation \
                         does not move its interrupts to core {}",
                        wire.name, placement.borrowed_core
                    ));
                }
                _ => {}
            }
        }
        IsolationRequest {
            borrowed_core: placement.borrowed_core,
            level: placement.level,
            left_out: placement.left_out.clone(),
            method: file.section::<IsolationSection>().method,
            interfaces,
            warnings,
        }
    }

    /// The borrowed core and the excluded ones.
    pub fn reserved(&self) -> CoreSet {
        self.left_out.iter().map(|other| other.core).chain([self.borrowed_core]).collect()
    }
}

/// The isolation currently applied.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The core.
    pub borrowed_core: usize,
    /// It and the excluded cores.
    pub reserved: CoreSet,
    /// All others.
    pub others: CoreSet,
    /// Whether a cpuset partition holds the reserved ones.
    pub is_partition: bool,
    journal: JournalInfo,
}

impl Applied {
    /// Whether this process can run on the reserved cores.
    pub(crate) fn may_be_entered(&self) -> bool {
        !self.is_partition || rustix::process::geteuid().is_root()
    }
}

/// The isolation currently applied, if any.
pub fn applied(machine: &Machine) -> Option<Applied> {
    // Without permission to read the journals, their content is of no use anyway.
    let journals = journals(machine).ok()?;
    journals.into_iter().flatten().filter(|journal| !journal.is_stale()).find_map(|journal| {
        let of = |change: &Change| match change {
            Change::Isolation { borrowed_core, reserved, others, is_partition } => {
                let list = |text| CoreSet::parse_list(text).ok();
                Some((*borrowed_core, list(reserved)?, list(others)?, *is_partition))
            }
            _ => None,
        };
        let (borrowed_core, reserved, others, is_partition) =
            journal.changes.iter().rev().find_map(of).filter(|_| journal.purpose == PURPOSE)?;
        Some(Applied { borrowed_core, reserved, others, is_partition, journal })
    })
}

/// Restores the changes of `isolate apply`, and those left by killed processes.
///
/// # Errors
/// A journal cannot be read, or a running card has its core isolated.
pub fn restore(machine: &Machine) -> Result<Vec<Restored>, MachineError> {
    let restored = restore_all(machine, JournalSelection::Held(PURPOSE))?;
    match applied(machine) {
        Some(applied) if restored.is_empty() => Err(MachineError::Refused(format!(
            "core {} is isolated for process {} and is restored when this process ends",
            applied.borrowed_core, applied.journal.process
        ))),
        _ => Ok(restored),
    }
}

/// The capabilities that the thread that started a card needs at the end: to restore the affinity
/// of other processes, and to remove its control group, whose parent even root may not write
/// without DAC_OVERRIDE.
pub fn needed_to_restore(file: &CardFile) -> CapabilitySet {
    match file.section::<IsolationSection>().apply {
        true => CapabilitySet::SYS_NICE | CapabilitySet::DAC_OVERRIDE,
        false => CapabilitySet::empty(),
    }
}

/// Isolates the borrowed core for a run, if its card requests it; deviations are added to the
/// placement's warnings.
pub fn for_run(
    file: &CardFile,
    placement: &mut Placement,
) -> Result<Option<Isolated>, MachineError> {
    if !file.section::<IsolationSection>().apply {
        return Ok(None);
    }
    let request = IsolationRequest::of(file, placement);
    let known = placement.warnings.len();
    let isolated = apply(&Machine::this(), &request, false)?;
    placement.warnings.extend(isolated.plan.warnings.iter().skip(known).cloned());
    placement.warnings.extend(isolated.refused.iter().map(|what| format!("isolation: {what}")));
    Ok(Some(isolated))
}

/// The result of restoring, if it matters to the user.
pub fn told(restored: Result<Vec<Restored>, MachineError>) -> Vec<String> {
    let restored = match restored {
        Ok(restored) => restored,
        // Another user's journals, which this user must not restore.
        Err(MachineError::System { source, .. })
            if source.kind() == ErrorKind::PermissionDenied =>
        {
            return Vec::new();
        }
        Err(error) => {
            return vec![format!("changes left by killed runs are not restored: {error}")];
        }
    };
    restored.into_iter().map(|journal| journal.to_string()).collect()
}

/// The result of ending a run's isolation, if something failed.
pub fn told_of_end(restored: Result<Option<Restored>, MachineError>) -> Option<String> {
    match restored {
        Ok(restored) => {
            restored.filter(|journal| !journal.is_whole()).map(|journal| journal.to_string())
        }
        Err(error) => Some(format!("isolation is not restored: {error}")),
    }
}

/// Lets a thread of the kernel run on a core that a partition holds. False if none does.
pub(crate) fn let_in(machine: &Machine, core: usize, thread: i32) -> bool {
    partition::let_in(machine, core, thread).unwrap_or(false)
}

/// Lets the calling thread run on a core that a partition holds. False if none does.
pub(crate) fn enter(machine: &Machine, core: usize) -> bool {
    partition::enter(machine, core).unwrap_or(false)
}
