//! Unmodified programs behind a card: namespaces, programs in them, figures.
//!
//! What demonstrations, experiments and the benchmarks with real traffic share.

pub mod hosts;
pub mod tools;
pub mod web;
