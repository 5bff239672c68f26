//! The tasks that card files can name: one line each.

use crate::busy::Busy;
use crate::heartbeat::Heartbeat;
use picnic_core::registry::Entry;
use picnic_os::config::Setup;

/// THE LIST.
pub const TASKS: &[Entry<Setup>] = &[Entry::of::<Heartbeat>(), Entry::of::<Busy>()];
