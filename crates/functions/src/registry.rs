//! THE LIST: every function a card file can name, one line each.
//!
//! Command-line help, the docs page and the conformance tests come from it.

use crate::{by_wire, drop, pass, rss, sample};
use picnic_core::function::Function;
use picnic_core::registry::Entry;

/// All functions, in the order in which they are listed.
pub static FUNCTIONS: &[Entry<Box<dyn Function>>] = &[
    Entry::of::<rss::Rss>(),
    Entry::of::<pass::Pass>(),
    Entry::of::<drop::Drop>(),
    Entry::of::<by_wire::ByWire>(),
    Entry::of::<sample::Sample>(),
];
