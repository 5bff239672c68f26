//! Registries of the command line.

use picnic_control::Registries;
use picnic_core::config::Sections;
use picnic_core::function::Function;
use picnic_core::registry::{Entry, join};
use picnic_os::config::Tasks;
use std::sync::{LazyLock, OnceLock};

/// The program's own, if it has any.
static OTHERS: OnceLock<Registries> = OnceLock::new();

/// Sets the registries, once per program.
pub(crate) fn set(registries: Registries) {
    let _ = OTHERS.set(registries);
}

/// The registries.
pub(crate) fn registries() -> Registries {
    OTHERS.get().copied().unwrap_or_else(own)
}

/// A world for cards.
pub(crate) struct World {
    /// Its name.
    pub(crate) name: &'static str,
    /// One line of help.
    pub(crate) help: &'static str,
    /// Its registries, given the program's.
    registries: fn(Registries) -> Registries,
}

impl World {
    /// Its registries.
    pub(crate) fn registries(&self) -> Registries {
        (self.registries)(registries())
    }
}

/// The list of worlds; the first is the default.
pub(crate) static WORLDS: &[World] = &[
    World { name: "host", help: "real cores, at wall-clock speed", registries: |own| own },
    World {
        name: "sim",
        help: "virtual cores in virtual time: times are modelled, and every run is identical",
        registries: picnic_sim::in_virtual_time,
    },
];

/// The host world's functions, and the one for the kernel engine only.
static FUNCTIONS: LazyLock<&'static [Entry<Box<dyn Function>>]> =
    LazyLock::new(|| join(&[picnic_host::registries().functions, &[picnic_kernel::ENTRY]]));

/// The tasks of `apps/tasks`, and STORM's.
static TASKS: LazyLock<Tasks> =
    LazyLock::new(|| join(&[picnic_tasks::registry::TASKS, picnic_storm::card::TASKS]));

/// Everything that comes with picnic: the host world's lists, the kernel engine, the tasks, and the
/// firewall.
pub fn own() -> Registries {
    Registries {
        executors: &[&picnic_host::run::Host, &picnic_kernel::Kernel, &picnic_kernel::Hybrid],
        functions: *FUNCTIONS,
        tasks: *TASKS,
        filters: &[picnic_sciron::card::add],
        ..picnic_host::registries()
    }
}

/// The sections of card files.
pub(crate) fn sections() -> Sections {
    picnic_host::sections().with(picnic_sciron::card::SECTIONS)
}
