//! All tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod admission;
#[path = "../bench/mod.rs"]
mod bench;
mod channel;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod ends;
mod executor;
#[allow(dead_code)]
#[path = "../../../filter/tests/frames/mod.rs"]
mod frames;
mod limits;
mod memory;
mod own;
mod packets;
mod path;
mod schedulers;
#[path = "../../../core/tests/shared/registry.rs"]
mod shared;
mod switch;
mod task_filters;
mod tickets;
