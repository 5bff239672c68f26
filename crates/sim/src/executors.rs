//! Registries for virtual time, and the executors that run a card there.

use crate::cost::CostModel;
use crate::guests::Guests;
use crate::host::Model;
use crate::machine::Profile;
use crate::peers::Peers;
use crate::world::Simulation;
use picnic_control::error::RunError;
use picnic_control::{Executor, Launch, Registries, Running};
use picnic_core::config::{CardFile, CoreChoice, TargetCores};
use picnic_core::registry::{Entry, join};
use picnic_machine::config::IsolationSection;
use picnic_machine::topology::Placement;
use picnic_os::config::ProfileCosts;
use picnic_os::schedulers::registry::SCHEDULERS;
use picnic_ports::middleware;
use picnic_ports::registry::{ATTACHMENTS, WIRES};
use std::sync::LazyLock;

/// The engine that is simulated.
pub(crate) const ENGINE: &str = "poll";

/// PICNIC's own functions, functions of shared objects, and the ports and attachments that exist in
/// virtual time.
static OURS: LazyLock<Registries> = LazyLock::new(|| {
    in_virtual_time(Registries {
        executors: &[],
        functions: join(&[picnic_functions::registry::FUNCTIONS, &[picnic_plugin::ENTRY]]),
        wires: WIRES,
        attachments: ATTACHMENTS,
        middleware: middleware::wrap,
        schedulers: SCHEDULERS,
        tasks: &[],
        filters: &[],
    })
});

/// The names for card files in a simulation: all functions, and the ports and attachments that
/// exist in virtual time.
pub fn registries() -> Registries {
    *OURS
}

/// The same registries for cards in virtual time: with the wires and attachments that work there,
/// and those that exist only there. Allocated for the life of the program.
pub fn in_virtual_time(registries: Registries) -> Registries {
    fn living<P>(entries: &[Entry<P>]) -> &'static [Entry<P>] {
        entries.iter().filter(|entry| entry.in_virtual_time).copied().collect::<Vec<_>>().leak()
    }
    let Registries { wires, attachments, .. } = registries;
    Registries {
        executors: PLAIN,
        wires: join(&[living(wires), &[Entry::of::<Peers>()]]),
        attachments: join(&[living(attachments), &[Entry::of::<Model>(), Entry::of::<Guests>()]]),
        ..registries
    }
}

/// The poll engine on virtual cores, with the card file's seed: a [`Simulation`] at the default
/// costs of [`CostModel`], or in a machine.
#[derive(Clone, Debug)]
struct Virtual {
    machine: Option<Profile>,
}

/// For cards without a machine.
static PLAIN: &[&dyn Executor] = &[&Virtual { machine: None }];

impl Executor for Virtual {
    fn name(&self) -> &'static str {
        ENGINE
    }

    fn help(&self) -> &'static str {
        match self.machine {
            None => "the borrowed core, in virtual time",
            Some(_) => "the borrowed core of a modelled machine, in virtual time",
        }
    }

    fn place(&self, launch: &Launch<'_>) -> Result<Placement, RunError> {
        Ok(place(launch.file))
    }

    fn is_served(&self) -> bool {
        false
    }

    fn tells_events(&self) -> bool {
        true
    }

    fn records(&self) -> bool {
        true
    }

    fn path_costs(&self) -> Option<ProfileCosts> {
        let costs = self.machine.as_ref().map(CostModel::of).unwrap_or_default();
        Some(costs.of_path())
    }

    fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
        let seed = launch.file.card.seed;
        Ok(match &self.machine {
            None => Box::new(Simulation::new(launch, seed, CostModel::default())?),
            Some(profile) => Box::new(Simulation::on_machine(launch, seed, profile)?),
        })
    }
}

/// The same registries with the cards on a machine, at its profile's costs. Allocated for the life
/// of the program.
pub fn on_machine(registries: Registries, profile: Profile) -> Registries {
    let executor: &'static dyn Executor = Box::leak(Box::new(Virtual { machine: Some(profile) }));
    Registries { executors: Box::leak(Box::new([executor])), ..in_virtual_time(registries) }
}

/// Any machine has the cores that a card needs, and no two of them share anything.
pub(crate) fn place(file: &CardFile) -> Placement {
    let target_cores: Vec<usize> = match &file.host.target_cores {
        TargetCores::Auto => (0..usize::from(file.host.queues)).collect(),
        TargetCores::Chosen(cores) => cores.clone(),
    };
    let borrowed_core = match file.card.borrowed_core {
        CoreChoice::Auto => target_cores.iter().max().map_or(0, |core| core + 1),
        CoreChoice::Chosen(core) => core,
    };
    let level = file.section::<IsolationSection>().level;
    let (left_out, warnings) = (Vec::new(), Vec::new());
    Placement { borrowed_core, target_cores, level, left_out, warnings }
}
