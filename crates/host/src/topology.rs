//! Which cores there are, and which of them a card takes.
//!
//! The borrowed core is the highest-numbered one, as in the paper (PICNIC
//! 3.2.1); target queues go round the others. Only cores this process may run on
//! count.

use picnic_core::config::{CardFile, CoreChoice, TargetCores};
use picnic_core::error::ConfigError;
use rustix::thread::{CpuSet, sched_getaffinity};

/// The cores of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Runs the card.
    pub borrowed_core: usize,
    /// The core of each queue.
    pub target_cores: Vec<usize>,
    /// What the user should know of this placement.
    pub warnings: Vec<String>,
}

/// The cores this process may run on, in ascending order.
pub fn cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect(),
        // The kernel knows no smaller answer than this one.
        Err(_) => vec![0],
    }
}

/// Places a card on `cores`.
///
/// # Errors
/// The card file names a core that is not there.
pub fn place(file: &CardFile, cores: &[usize]) -> Result<Placement, ConfigError> {
    let allowed = || {
        let numbers: Vec<_> = cores.iter().map(usize::to_string).collect();
        format!("this process may run on {}", numbers.join(", "))
    };
    let absent = |key: String, core: usize| {
        ConfigError::new(key, format!("found core {core}, but {}", allowed()))
    };
    let highest = cores.last().copied().unwrap_or(0);
    let borrowed_core = match file.card.borrowed_core {
        CoreChoice::Auto => highest,
        CoreChoice::Chosen(core) if cores.contains(&core) => core,
        CoreChoice::Chosen(core) => {
            return Err(file.locate(absent("card.borrowed_core".into(), core)));
        }
    };
    let mut warnings = Vec::new();
    let queues = usize::from(file.host.queues);
    let target_cores = match &file.host.target_cores {
        TargetCores::Chosen(chosen) => {
            for (index, &core) in chosen.iter().enumerate() {
                if !cores.contains(&core) {
                    return Err(file.locate(absent(format!("host.target_cores[{index}]"), core)));
                }
            }
            chosen.clone()
        }
        TargetCores::Auto => {
            let mut others: Vec<_> =
                cores.iter().copied().filter(|&core| core != borrowed_core).collect();
            if others.is_empty() {
                others.push(borrowed_core);
            }
            (0..queues).map(|queue| others[queue % others.len()]).collect()
        }
    };
    if target_cores.contains(&borrowed_core) {
        warnings.push(format!(
            "core {borrowed_core} is both borrowed core and target core: they take turns on it, \
             and figures say little"
        ));
    }
    Ok(Placement { borrowed_core, target_cores, warnings })
}
