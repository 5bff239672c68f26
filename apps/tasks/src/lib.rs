//! Tasks for NIC OS that card files can name: one file each, and [`registry::TASKS`].
//!
//! ```
//! use picnic_core::config::CardFile;
//! let text = "[[task]]\ntask = \"heartbeat\"\nperiod_us = 1000\n";
//! let card = CardFile::parse(text, None).unwrap();
//! assert!(picnic_os::config::build(&card, picnic_tasks::registry::TASKS).unwrap().is_some());
//! ```

#![forbid(unsafe_code)]

pub mod busy;
pub mod graphs;
pub mod heartbeat;
pub mod ping_drop;
pub mod registry;
pub mod scrub;

// The README's example is built along with the documentation's other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
