//! What card files can name on the command line.

use picnic_control::Registries;
use picnic_core::config::Sections;
use picnic_core::function::Function;
use picnic_core::registry::{Entry, join};
use std::sync::{LazyLock, OnceLock};

/// Those of the program, if it has others.
static OTHERS: OnceLock<Registries> = OnceLock::new();

/// From now on these are what card files can name. Once a program.
pub(crate) fn set(registries: Registries) {
    let _ = OTHERS.set(registries);
}

/// What card files can name.
pub(crate) fn registries() -> Registries {
    OTHERS.get().copied().unwrap_or_else(own)
}

/// Where cards can run.
pub(crate) struct World {
    /// Its name.
    pub(crate) name: &'static str,
    /// One line of help.
    pub(crate) help: &'static str,
    /// What card files can name there, of what the program has.
    registries: fn(Registries) -> Registries,
}

impl World {
    /// What card files can name there.
    pub(crate) fn registries(&self) -> Registries {
        (self.registries)(registries())
    }
}

/// THE LIST of worlds; the first is where cards run unless told otherwise.
pub(crate) static WORLDS: &[World] = &[
    World { name: "host", help: "real cores, at wall-clock speed", registries: |own| own },
    World {
        name: "sim",
        help: "virtual cores, in virtual time: times are modelled, and each run is the same",
        registries: picnic_sim::in_virtual_time,
    },
];

/// The host world's functions, and the one that is for the kernel engine alone.
static FUNCTIONS: LazyLock<&'static [Entry<Box<dyn Function>>]> =
    LazyLock::new(|| join(&[picnic_host::registries().functions, &[picnic_kernel::ENTRY]]));

/// All that comes with picnic: the host world's lists, the kernel engine, the tasks, and the
/// firewall.
pub fn own() -> Registries {
    Registries {
        executors: &[&picnic_host::run::Host, &picnic_kernel::Kernel, &picnic_kernel::Hybrid],
        functions: *FUNCTIONS,
        tasks: picnic_tasks::registry::TASKS,
        filters: &[picnic_sciron::card::add],
        ..picnic_host::registries()
    }
}

/// The sections that card files can have.
pub(crate) fn sections() -> Sections {
    picnic_host::sections().with(picnic_sciron::card::SECTIONS)
}
