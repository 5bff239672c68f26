//! The host world: a card on real cores, at wall-clock speed.
//!
//! ```no_run
//! use picnic_control::Launch;
//! use picnic_core::config::CardFile;
//! let card = CardFile::parse("", None)?;
//! let mut running = Launch::new(&card, picnic_host::registries()).start()?;
//! running.pass(std::time::Duration::from_secs(1));
//! let report = running.stop()?;
//! println!("{} packets delivered", report.ledger.delivered);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`clock`], [`doorbell`]: the parts that a world supplies;
//! * [`idle`]: the borrowed core without work;
//! * [`run`]: threads, start to clean stop.

#![forbid(unsafe_code)]

mod absence;
pub mod clock;
mod device;
pub mod doorbell;
pub mod idle;
mod loops;
mod preemption;
pub mod run;
mod watchdog;

use picnic_control::Registries;
use picnic_core::config::Sections;
use picnic_core::function::Function;
use picnic_core::registry::{Entry, join};
use std::sync::LazyLock;

/// The functions of picnic, and those loaded from shared objects.
static FUNCTIONS: LazyLock<&'static [Entry<Box<dyn Function>>]> =
    LazyLock::new(|| join(&[picnic_functions::registry::FUNCTIONS, &[picnic_plugin::ENTRY]]));

/// The registries for the card files of this world.
pub fn registries() -> Registries {
    Registries {
        executors: &[&run::Host],
        functions: *FUNCTIONS,
        wires: picnic_ports::registry::WIRES,
        attachments: picnic_ports::registry::ATTACHMENTS,
        middleware: picnic_ports::middleware::wrap,
        schedulers: picnic_os::schedulers::registry::SCHEDULERS,
        tasks: &[],
        filters: &[],
    }
}

/// The sections for the card files of this world.
pub fn sections() -> Sections {
    Sections::core()
        .with(picnic_machine::config::SECTIONS)
        .with(picnic_control::config::SECTIONS)
        .with(picnic_ports::registry::SECTIONS)
        .with(picnic_filter::config::SECTIONS)
        .with(picnic_os::keys::SECTIONS)
}
