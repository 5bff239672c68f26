//! The tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]
// Each of `templates` has what registries share.
#![allow(clippy::duplicate_mod)]

mod bad_input;
mod channels;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod confined;
mod control;
mod demo;
mod examples;
mod faults;
mod filters;
mod hidden_ports;
mod kernel;
mod lab;
mod misbehaving;
mod names;
#[path = "../../../host/tests/common/openmetrics.rs"]
mod openmetrics;
mod plugins;
mod promises;
mod run;
mod sciron;
mod signals;
mod storm;
mod tasks;
mod templates;
mod timeline;
mod wcet;
#[path = "../../../filter/tests/host/written.rs"]
mod written;
