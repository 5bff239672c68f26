//! The cores of the machine, their shared caches, and the cores of a card.
//!
//! ```
//! use picnic_core::config::Sections;
//! use picnic_machine::config::SECTIONS;
//! use picnic_machine::topology::{available, place};
//! let sections = Sections::core().with(SECTIONS);
//! let card = sections.parse("[isolation]\nlevel = \"smt\"\n", None)?;
//! let placement = place(&card, &available())?;
//! assert_eq!(placement.target_cores.len(), 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod distance;
mod placement;
mod sysfs;
#[cfg(test)]
mod tests;

pub use distance::Distance;
pub use picnic_core::cores::{CoreSet, CoreSetError};
pub use placement::{Available, LeftOut, Placement, Shared, place, sharers};
pub use sysfs::{Cache, CacheKind, Core, Topology};

use crate::isolate;
use crate::undo::Machine;
use rustix::thread::{CpuSet, sched_getaffinity};

/// The cores this process may run on, in ascending order, including cores isolated for a card.
pub fn cores() -> Vec<usize> {
    available_on(&Machine::this()).cores
}

/// The same, with shared caches.
pub fn available() -> Available {
    available_on(&Machine::this())
}

pub(crate) fn available_on(machine: &Machine) -> Available {
    let mut cores: CoreSet = match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect(),
        // The kernel accepts no smaller buffer than this.
        Err(_) => CoreSet::from_iter([0]),
    };
    let topology = Topology::read(&machine.sysfs);
    let isolated = isolate::applied(machine).filter(|applied| applied.may_be_entered());
    if let Some(applied) = &isolated {
        cores = cores.or(&applied.reserved.and(&topology.online));
    }
    Available {
        cores: cores.iter().collect(),
        topology,
        isolated: isolated.map(|applied| applied.borrowed_core),
    }
}
