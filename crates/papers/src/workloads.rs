//! Unmodified programs behind the card of `picnic demo web`: runs a workload and counts its wire's
//! traffic.

pub mod census;
pub(crate) mod joined;
pub mod run;
