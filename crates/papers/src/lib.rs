//! The papers' experiments: what each paper measured, measured again.
//!
//! An experiment is one file (or folder) and one line in [`registry::EXPERIMENTS`]; what the paper
//! found is a row of [`rows::PAPERS`]. How to measure is the lab's: [`picnic_lab`].

#![forbid(unsafe_code)]

mod benchmarks;
mod cards;
mod gains;
pub mod knet_livelock;
pub mod knet_web;
pub mod nicos_edf;
pub mod nicos_firewall;
pub mod picnic_latency;
pub mod picnic_scaling;
pub mod picnic_utilization;
pub mod placement_single;
pub mod registry;
pub mod rows;
pub mod rss_randomness;
pub mod web_servers;
pub mod workloads;

#[cfg(test)]
mod tests;
