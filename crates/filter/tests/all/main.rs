//! The tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod edges;
mod filters;
#[path = "../frames/mod.rs"]
mod frames;
#[path = "../host/mod.rs"]
mod host;
mod image;
mod unreadable;
