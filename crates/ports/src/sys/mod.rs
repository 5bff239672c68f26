//! What ports ask of the kernel by hand: the one place of this crate with unsafe code.
//!
//! * [`link`]: interfaces and their addresses;
//! * [`namespace`]: work done inside another network namespace;
//! * [`packet`]: packet sockets, their receive ring and batches;
//! * [`schedule`]: the priority of the calling thread;
//! * [`tun`]: TAP devices and their queues.
//!
//! Guarantees: everything offered to the rest of the crate is safe, whatever it is given.

#![allow(unsafe_code)]

pub(crate) mod link;
pub(crate) mod namespace;
pub(crate) mod packet;
pub mod schedule;
pub(crate) mod tun;
