//! Unmodified programs behind a card: namespaces, programs in them, figures.
//!
//! A workload is a file that says what is asked of which server, and how (`kind.rs`); `run.rs` runs one
//! behind a card. What demonstrations, experiments and the benchmarks with real traffic share.

pub(crate) mod busiest;
pub mod census;
pub mod client;
pub mod hosts;
pub mod kind;
pub mod run;
pub mod servers;
pub mod tools;
pub mod web;
