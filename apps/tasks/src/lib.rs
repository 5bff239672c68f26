//! Tasks for NIC OS that card files can name: one file each, and [`registry::TASKS`].
//!
//! ```
//! use picnic_core::config::Sections;
//! let text = "[[task]]\ntask = \"heartbeat\"\nperiod_us = 1000\n";
//! let sections = Sections::core().with(picnic_os::keys::SECTIONS);
//! let card = sections.parse(text, None).unwrap();
//! let filters = picnic_filter::Filters::new(card.host.queues);
//! assert!(picnic_tasks::build(&card, Vec::new(), filters).unwrap().is_some());
//! ```

#![forbid(unsafe_code)]

pub mod bounds;
pub mod busy;
pub mod graphs;
pub mod heartbeat;
pub mod ping_drop;
pub mod registry;
pub mod scrub;

use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::port::Arrivals;
use picnic_filter::Filters;
use picnic_os::config::{NicOs, Surroundings};

/// The NIC OS that a card file asks for, with tasks of [`registry::TASKS`]; none if it asks for
/// none; `arrivals` come to its wires. To be put into a program's `Registries`.
///
/// # Errors
/// What is wrong with `[os]`, the cost profile that it names, or a `[[task]]`.
pub fn build(
    file: &CardFile,
    arrivals: Vec<Arrivals>,
    filters: Filters,
) -> Result<Option<NicOs>, ConfigError> {
    let costs = bounds::path_costs(file)?;
    picnic_os::config::build(file, registry::TASKS, filters, &Surroundings { arrivals, costs })
}

// The README's example is built along with the documentation's other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
