//! The experiments of the lab: one line each.

use crate::experiment::Experiment;
use crate::experiments::nicos_edf::NicosEdf;
use picnic_core::registry::Entry;

/// THE LIST.
pub const EXPERIMENTS: &[Entry<Box<dyn Experiment>>] = &[Entry::of::<NicosEdf>()];
