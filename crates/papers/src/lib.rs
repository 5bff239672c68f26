//! The papers' experiments, reproduced.
//!
//! An experiment is one file (or directory) with the paper's figures as its constant, and one line
//! in [`registry::PAPERS`]. The methods of measurement are the lab's: [`picnic_lab`].

#![forbid(unsafe_code)]

pub mod antagonist;
pub mod borrowed_core_limit;
mod cards;
mod columns;
mod gains;
pub mod inic;
pub mod knet_livelock;
mod modelled;
pub mod nicos_edf;
pub mod nicos_firewall;
pub mod nicos_storm;
pub mod picnic_latency;
pub mod picnic_scaling;
pub mod picnic_utilization;
mod placement;
pub mod placement_multi;
pub mod placement_single;
pub mod registry;
pub mod rss_randomness;
pub mod testbeds;
pub mod web_servers;
pub mod workloads;

#[cfg(test)]
mod tests;
