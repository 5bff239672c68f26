//! Tasks for NIC OS that card files can name.

#![forbid(unsafe_code)]

pub mod graphs;
pub mod scrub;
