//! What card files can name on the command line: all that comes with picnic.

use picnic_control::Registries;
use picnic_core::config::Sections;
use picnic_core::registry::Entry;
use picnic_os::config::Setup;
use picnic_tasks::registry::TASKS;

/// The host world's lists, the tasks, and the firewall.
pub(crate) fn registries() -> Registries {
    Registries {
        os: picnic_tasks::build,
        filters: &[picnic_sciron::card::add],
        ..picnic_host::registries()
    }
}

/// The sections that card files can have.
pub(crate) fn sections() -> Sections {
    picnic_host::sections().with(picnic_sciron::card::SECTIONS)
}

/// The tasks that `[[task]]` can name.
pub(crate) fn tasks() -> &'static [Entry<Setup>] {
    TASKS
}
