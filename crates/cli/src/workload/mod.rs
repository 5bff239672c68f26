//! Unmodified programs behind a card: namespaces, programs in them, figures.
//!
//! What `picnic demo` and the benchmarks with real traffic share.

pub(crate) mod hosts;
pub(crate) mod owner;
pub(crate) mod program;
pub(crate) mod web;
