//! The tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod admission;
mod channel;
mod commands;
mod conformance;
mod documented;
mod filters;
mod host;
#[path = "../../../../crates/core/tests/shared/reference.rs"]
mod reference;
#[path = "../../../../crates/core/tests/shared/registry.rs"]
mod shared;
mod sim;
