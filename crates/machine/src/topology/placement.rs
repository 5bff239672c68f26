//! The cores that a card uses, and those excluded for their caches.
//!
//! The borrowed core is the highest-numbered one; target queues use the others in turn. Cores that
//! share a cache of the chosen level with the borrowed core are excluded, so that it does not
//! change the caches of a target core, as a physical NIC would not either (PICNIC 3.2.1). Levels
//! include one another: `l2` excludes what `smt` does, `llc` what `l2` does. A level that would
//! leave no target core is replaced by the next weaker one, with a warning. Only cores this process
//! may run on count.

use super::{CoreSet, Topology};
use crate::config::{IsolationLevel, IsolationSection};
use picnic_core::config::{CardFile, CoreChoice, TargetCores};
use picnic_core::error::ConfigError;
use serde::Serialize;
use std::fmt;

/// The cores available to a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Available {
    /// Those this process may run on, in ascending order.
    pub cores: Vec<usize>,
    /// Their shared resources.
    pub topology: Topology,
    /// The core that is already isolated, if any: "auto" means it.
    pub isolated: Option<usize>,
}

impl Available {
    /// Cores about which nothing else is known.
    pub fn of(cores: impl IntoIterator<Item = usize>) -> Self {
        Available { cores: cores.into_iter().collect(), ..Available::default() }
    }
}

/// The cores of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Runs the card.
    pub borrowed_core: usize,
    /// The core of each queue.
    pub target_cores: Vec<usize>,
    /// The level at which cores were excluded: the requested one, or a weaker one.
    pub level: IsolationLevel,
    /// Cores that are not target cores, and why.
    pub left_out: Vec<LeftOut>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// A core excluded from the target cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The core.
    pub core: usize,
    /// The resource that it shares with the borrowed core.
    #[serde(serialize_with = "as_text")]
    pub shares: Shared,
}

/// The nearest resource that two cores share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// A core: they are its SMT threads.
    Core,
    /// A cache of this level.
    Cache(usize),
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shared::Core => f.write_str("SMT"),
            Shared::Cache(level) => write!(f, "L{level}"),
        }
    }
}

fn as_text<S: serde::Serializer>(shared: &Shared, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(shared)
}

/// The levels from a given one down to the weakest.
fn downwards(level: IsolationLevel) -> impl Iterator<Item = IsolationLevel> {
    use IsolationLevel::{L2, Llc, None, Smt};
    [Llc, L2, Smt, None].into_iter().skip_while(move |&weaker| weaker != level)
}

/// The cores that share with `borrowed` the resource of the level.
pub fn sharers(topology: &Topology, borrowed: usize, level: IsolationLevel) -> Vec<LeftOut> {
    let caches = match level {
        IsolationLevel::None => return Vec::new(),
        IsolationLevel::Smt => 0,
        IsolationLevel::L2 => 2,
        IsolationLevel::Llc => topology.last_level(borrowed).unwrap_or(0),
    };
    let siblings = topology.siblings(borrowed);
    let mut found: Vec<_> =
        siblings.iter().map(|core| LeftOut { core, shares: Shared::Core }).collect();
    for cache in 1..=caches {
        for core in topology.sharing(borrowed, cache).unwrap_or_default().iter() {
            if !found.iter().any(|other| other.core == core) {
                found.push(LeftOut { core, shares: Shared::Cache(cache) });
            }
        }
    }
    found.retain(|other| topology.online.contains(other.core));
    found.sort_by_key(|other| other.core);
    found
}

/// Warns if the machine does not report the resource of a level.
fn unknown(topology: &Topology, borrowed: usize, level: IsolationLevel) -> Option<String> {
    let missing = match level {
        IsolationLevel::None => return None,
        IsolationLevel::Smt => {
            let known = topology.cores.get(&borrowed);
            if known.is_some_and(|known| !known.siblings.is_empty()) {
                return None;
            }
            "the SMT siblings"
        }
        IsolationLevel::L2 if topology.sharing(borrowed, 2).is_some() => return None,
        IsolationLevel::L2 => "the L2 cache",
        IsolationLevel::Llc if topology.last_level(borrowed).is_some() => return None,
        IsolationLevel::Llc => "the last-level cache",
    };
    Some(format!(
        "isolation level \"{level}\": this machine does not report {missing} of core {borrowed}, \
         so a target core may share it"
    ))
}

/// Places a card on the available cores.
///
/// # Errors
/// The card file names a core that does not exist.
pub fn place(file: &CardFile, available: &Available) -> Result<Placement, ConfigError> {
    let Available { cores, topology, isolated } = available;
    let allowed = || {
        let numbers: Vec<_> = cores.iter().map(usize::to_string).collect();
        format!("this process may run on {}", numbers.join(", "))
    };
    let absent = |key: String, core: usize| {
        ConfigError::new(key, format!("found core {core}, but {}", allowed()))
    };
    let highest = cores.last().copied().unwrap_or(0);
    let borrowed_core = match file.card.borrowed_core {
        CoreChoice::Auto => isolated.filter(|core| cores.contains(core)).unwrap_or(highest),
        CoreChoice::Chosen(core) if cores.contains(&core) => core,
        CoreChoice::Chosen(core) => {
            return Err(file.locate(absent("card.borrowed_core".into(), core)));
        }
    };
    let asked = file.section::<IsolationSection>().level;
    let mut placement = Placement {
        borrowed_core,
        target_cores: Vec::new(),
        level: asked,
        left_out: Vec::new(),
        warnings: Vec::new(),
    };
    let others: CoreSet = cores.iter().copied().filter(|&core| core != borrowed_core).collect();
    match &file.host.target_cores {
        TargetCores::Chosen(chosen) => {
            for (index, &core) in chosen.iter().enumerate() {
                if !cores.contains(&core) {
                    return Err(file.locate(absent(format!("host.target_cores[{index}]"), core)));
                }
            }
            placement.target_cores = chosen.clone();
            choose_around(&mut placement, topology, chosen);
        }
        TargetCores::Auto => {
            let mut targets: Vec<_> = choose(&mut placement, topology, &others).iter().collect();
            if targets.is_empty() {
                targets.push(borrowed_core);
            }
            let queues = usize::from(file.host.queues);
            placement.target_cores =
                (0..queues).map(|queue| targets[queue % targets.len()]).collect();
        }
    }
    if placement.target_cores.contains(&borrowed_core) {
        placement.warnings.push(format!(
            "core {borrowed_core} is both borrowed core and target core: they take turns on it, \
             and figures mean little"
        ));
    }
    Ok(placement)
}

/// The target cores at the strongest level, from the requested one down, that leaves any.
fn choose(placement: &mut Placement, topology: &Topology, others: &CoreSet) -> CoreSet {
    let asked = placement.level;
    let borrowed = placement.borrowed_core;
    for level in downwards(asked) {
        let left_out = sharers(topology, borrowed, level);
        let targets = others.without(&left_out.iter().map(|other| other.core).collect());
        if targets.is_empty() && level != IsolationLevel::None {
            continue;
        }
        if level != asked && !others.is_empty() {
            let refused: CoreSet =
                sharers(topology, borrowed, asked).iter().map(|other| other.core).collect();
            let refused = refused.and(others);
            placement.warnings.push(format!(
                "isolation level \"{asked}\" leaves no target core ({refused} would be left out): \
                 using level \"{level}\", so target cores share caches with borrowed core \
                 {borrowed}"
            ));
        } else if !others.is_empty() {
            placement.warnings.extend(unknown(topology, borrowed, level));
        }
        placement.level = level;
        placement.left_out = left_out;
        return targets;
    }
    others.clone()
}

/// Excludes cores at the level, except those chosen by number.
fn choose_around(placement: &mut Placement, topology: &Topology, chosen: &[usize]) {
    let borrowed = placement.borrowed_core;
    let (kept, left_out): (Vec<_>, Vec<_>) = sharers(topology, borrowed, placement.level)
        .into_iter()
        .partition(|other| chosen.contains(&other.core));
    for LeftOut { core, shares } in kept {
        placement.warnings.push(match shares {
            Shared::Core => {
                format!("target core {core} is an SMT sibling of borrowed core {borrowed}")
            }
            Shared::Cache(_) => {
                format!("target core {core} shares its {shares} with borrowed core {borrowed}")
            }
        });
    }
    placement.left_out = left_out;
}
