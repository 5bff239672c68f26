//! All tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod classes;
mod cluster;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod device;
mod guests;
mod links;
mod machine;
mod queues;
mod random_cards;
mod reasons;
mod systems;
mod timing;
mod tx_functions;
