//! Tasks for NIC OS that card files can name: one file each, and [`registry::TASKS`].
//!
//! ```
//! use picnic_core::config::Sections;
//! let text = "[[task]]\ntask = \"heartbeat\"\nperiod_us = 1000\n";
//! let sections = Sections::core().with(picnic_os::keys::SECTIONS);
//! let card = sections.parse(text, None).unwrap();
//! let os = picnic_os::config::build_os(&card, picnic_tasks::registry::TASKS).unwrap();
//! assert_eq!(os.unwrap().lines().count(), 1);
//! ```

#![forbid(unsafe_code)]

pub mod bounds;
pub mod busy;
pub mod echo;
pub mod graphs;
pub mod heartbeat;
pub mod ping_drop;
pub mod registry;
pub mod scrub;

// Compiles the README's examples as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
