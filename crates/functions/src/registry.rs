//! The list of functions that a card file can name, one line each.
//!
//! Command-line help, the docs page and the conformance tests come from it.

use crate::{
    bond, by_wire, checksum, drop, flow_director, header_split, lro, mirror, pass, rate_limit, rss,
    sample, timestamp, tso, tunnel, vlan, vmdq,
};
use picnic_core::function::Function;
use picnic_core::registry::Entry;

/// All functions, in their listing order.
pub static FUNCTIONS: &[Entry<Box<dyn Function>>] = &[
    Entry::of::<rss::Rss>(),
    Entry::of::<pass::Pass>(),
    Entry::of::<drop::Drop>(),
    Entry::of::<by_wire::ByWire>(),
    Entry::of::<sample::Sample>(),
    Entry::of::<checksum::Checksum>(),
    Entry::of::<vlan::Vlan>(),
    Entry::of::<tso::Tso>(),
    Entry::of::<lro::Lro>(),
    Entry::of::<header_split::HeaderSplit>(),
    Entry::of::<flow_director::FlowDirector>(),
    Entry::of::<rate_limit::RateLimit>(),
    Entry::of::<vmdq::Vmdq>(),
    Entry::of::<mirror::Mirror>(),
    Entry::of::<tunnel::Tunnel>(),
    Entry::of::<bond::Bond>(),
    Entry::of::<timestamp::Timestamp>(),
];
