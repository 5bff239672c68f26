//! The tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
mod handover;
mod hooks;
mod modes;
mod resident;
mod rx;
mod targets;
mod trial;
mod tx;
