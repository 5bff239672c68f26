//! Unmodified programs behind the card of `picnic demo web`: a workload run, and what passed its wire.

pub mod census;
pub(crate) mod joined;
pub mod run;
