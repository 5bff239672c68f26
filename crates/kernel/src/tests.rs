//! The kernel engine against the poll engine's functions, and between two namespaces.

mod differential;
mod filters;
mod frames;
#[path = "../../functions/tests/common/mod.rs"]
#[allow(unused_imports, unreachable_pub)]
mod functions;
mod objects;
mod refusals;
mod rings;
#[path = "../../core/tests/shared/registry.rs"]
mod shared;
mod traffic;

use crate::run::{Hybrid, Kernel};
use picnic_control::{Launch, Registries};
use picnic_core::config::{CardFile, Sections};
use picnic_core::function::Function;
use picnic_core::registry::{Entry, join};
use picnic_os::schedulers::registry::SCHEDULERS;
use picnic_testing::skip;
use std::sync::LazyLock;

/// Every way to the target cores.
const HANDOVERS: [&str; 2] = ["skb", "cpumap"];

static FUNCTIONS: LazyLock<&'static [Entry<Box<dyn Function>>]> =
    LazyLock::new(|| join(&[picnic_functions::registry::FUNCTIONS, &[crate::ENTRY]]));

/// The registries for these tests.
fn registries() -> Registries {
    Registries {
        executors: &[&Kernel, &Hybrid, &picnic_host::run::Host],
        functions: *FUNCTIONS,
        wires: picnic_ports::registry::WIRES,
        attachments: picnic_ports::registry::ATTACHMENTS,
        middleware: picnic_ports::middleware::wrap,
        schedulers: SCHEDULERS,
        tasks: &[],
        filters: &[],
    }
}

fn parse(text: &str) -> CardFile {
    let sections = Sections::core()
        .with(picnic_machine::config::SECTIONS)
        .with(picnic_control::config::SECTIONS)
        .with(picnic_filter::config::SECTIONS)
        .with(picnic_os::keys::SECTIONS)
        .with(picnic_ports::registry::SECTIONS);
    sections.parse(text, None).unwrap()
}

fn launch(card: &CardFile) -> Launch<'_> {
    Launch::new(card, registries())
}

/// Whether programs can be loaded here; prints a message if not.
pub(crate) fn can_load(test: &str) -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|me| {
        use std::os::unix::fs::MetadataExt;
        me.uid() == 0
    });
    if crate::object::is_built() && is_root {
        return true;
    }
    skip(test, "it needs root, and clang at build time");
    false
}
