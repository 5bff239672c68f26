//! NIC functions: the parts of a card's rx and tx chains.
//!
//! One file per function, one line per function in [`registry`]; `README.md`
//! beside this crate shows how to add one.
//!
//! ```
//! use picnic_core::{config::Section, registry::{BuildContext, find}};
//! use picnic_functions::registry::FUNCTIONS;
//!
//! let section = Section::from_text("function", "function = \"rss\"\ntable_size = 64")?;
//! let rss = find(FUNCTIONS, &section)?.build(&section, &BuildContext::default())?;
//! # drop(rss);
//! # Ok::<(), picnic_core::error::ConfigError>(())
//! ```
//!
//! Guarantees: no panic, no allocation and no system call per packet, whatever the
//! bytes; every packet leaves through one door or stays in the burst; order within a flow
//! is kept, except in the cases that [`rss`] counts and [`sample`] names.

#![forbid(unsafe_code)]

pub mod bond;
pub mod by_wire;
mod bytes;
pub mod checksum;
mod choice;
pub mod drop;
pub mod flow_director;
pub mod header_split;
pub mod lro;
pub mod mirror;
pub mod pass;
pub mod rate_limit;
pub mod registry;
pub mod rss;
pub mod sample;
mod settings;
pub mod timestamp;
pub mod tso;
pub mod tunnel;
pub mod vlan;
pub mod vmdq;

// Compiles the README's examples as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
