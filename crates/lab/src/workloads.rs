//! Unmodified programs behind a card: namespaces, programs in them, figures.
//!
//! A workload is a file with the requests, the server and the client (`kind.rs`). Used by
//! questions, demonstrations and experiments with real traffic.

pub(crate) mod busiest;
pub mod client;
pub mod group;
pub mod hosts;
pub mod kind;
pub mod servers;
pub mod tools;
pub mod web;
