//! What ports ask of the kernel by hand: the one place of this crate with unsafe code.
//!
//! * [`namespace`]: work done inside another network namespace;
//! * [`packet`]: packet sockets, their receive ring and batches.
//!
//! Guarantees: everything offered to the rest of the crate is safe, whatever it is given.

#![allow(unsafe_code)]

pub(crate) mod namespace;
pub(crate) mod packet;
