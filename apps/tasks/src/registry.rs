//! The tasks that card files can name: one line each.

use crate::busy::Busy;
use crate::heartbeat::Heartbeat;
use crate::ping_drop::PingDrop;
use crate::scrub::Scrub;
use picnic_core::registry::Entry;
use picnic_os::config::Setup;

/// THE LIST.
pub const TASKS: &[Entry<Setup>] =
    &[Entry::of::<Heartbeat>(), Entry::of::<PingDrop>(), Entry::of::<Scrub>(), Entry::of::<Busy>()];
