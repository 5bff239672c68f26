//! The experiments of the lab: one line each.

use crate::experiment::Experiment;
use crate::experiments::nicos_edf::NicosEdf;
use crate::experiments::nicos_firewall::NicosFirewall;
use picnic_core::registry::Entry;

/// THE LIST.
pub const EXPERIMENTS: &[Entry<Box<dyn Experiment>>] =
    &[Entry::of::<NicosEdf>(), Entry::of::<NicosFirewall>()];
