//! The tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod arrival;
#[path = "../common/bed.rs"]
mod bed;
#[path = "../common/bridge.rs"]
mod bridge;
mod capture;
mod classes;
#[path = "../common/mod.rs"]
mod common;
mod control;
mod device;
mod executors;
mod filters;
mod guests;
mod kernel_wires;
mod offline;
#[path = "../common/openmetrics.rs"]
mod openmetrics;
mod order;
mod packet_wire;
mod panics;
mod swaps;
mod systems;
mod tap_host;
mod tap_offloads;
mod transmitting_host;
mod xdp_wire;
