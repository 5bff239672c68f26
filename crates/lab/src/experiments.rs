//! One experiment for each figure that the lab reproduces.

pub mod nicos_edf;
pub mod nicos_firewall;
