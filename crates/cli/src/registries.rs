//! What card files can name on the command line: all that comes with picnic.

use picnic_core::config::Sections;
use picnic_core::registry::Entry;
use picnic_engine::build::Registries;
use picnic_host::run;
use picnic_os::config::Setup;
use picnic_tasks::registry::TASKS;

/// The host world's lists, and the tasks.
pub(crate) fn registries() -> Registries {
    Registries { resident: picnic_tasks::build, ..run::registries() }
}

/// The sections that card files can have.
pub(crate) fn sections() -> Sections {
    run::sections().with(picnic_sciron::card::SECTIONS)
}

/// The tasks that `[[task]]` can name.
pub(crate) fn tasks() -> &'static [Entry<Setup>] {
    TASKS
}
