//! Unmodified programs behind a card: namespaces, programs in them, figures.
//!
//! A workload is a file that says what is asked of which server, and how (`kind.rs`). What questions,
//! demonstrations and experiments with real traffic share.

pub(crate) mod busiest;
pub mod client;
pub mod group;
pub mod hosts;
pub mod kind;
pub mod servers;
pub mod tools;
pub mod web;
