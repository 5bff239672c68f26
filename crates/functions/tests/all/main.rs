//! The tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod bond;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod conformance;
mod flow_director;
mod mirror;
mod offloads;
mod rate_limit;
mod rss;
#[path = "../../../core/tests/shared/registry.rs"]
mod shared;
mod timestamp;
mod vmdq;
