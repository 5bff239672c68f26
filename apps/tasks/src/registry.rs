//! The tasks that card files can name: one line each.

use crate::busy::Busy;
use crate::echo::Echo;
use crate::graphs::{Graphed, Line};
use crate::heartbeat::Heartbeat;
use crate::ping_drop::PingDrop;
use crate::scrub::Scrub;
use picnic_core::registry::Entry;
use picnic_os::config::Setup;

/// The list of tasks.
const LINES: &[Line] = &[
    Line::of::<Heartbeat>(),
    Line::of::<PingDrop>(),
    Line::of::<Scrub>(),
    Line::of::<Busy>(),
    Line::of::<Echo>(),
];

/// Their entries.
pub const TASKS: &[Entry<Setup>] = &{
    let mut entries = [LINES[0].entry; LINES.len()];
    let mut place = 0;
    while place < LINES.len() {
        entries[place] = LINES[place].entry;
        place += 1;
    }
    entries
};

/// The tasks with known graphs, for `picnic wcet`.
pub fn graphs() -> impl Iterator<Item = Graphed> {
    LINES.iter().filter_map(|line| line.graphed)
}
