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
mod rss_balance;
mod rss_commands;
#[path = "../../../core/tests/shared/registry.rs"]
mod shared;
mod timestamp;
mod vmdq;
