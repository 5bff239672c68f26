//! One experiment for each figure that the lab reproduces.

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
pub mod rss_randomness;
pub mod web_servers;
