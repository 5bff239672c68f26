//! Tasks whose graphs are known, for `picnic wcet`: one line each.

use crate::heartbeat::{self, Heartbeat};
use crate::ping_drop::{self, PingDrop};
use crate::scrub::{self, Scrub};
use picnic_core::registry::Component;
use picnic_filter::Place;
use picnic_os::task::{Program, program};
use picnic_wcet::Graph;
use std::sync::Arc;

/// A task written with `#[task]`.
#[derive(Clone, Copy)]
pub struct Graphed {
    /// Its name.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// What it can do.
    pub graph: &'static Graph,
    /// Its program, with settings that make it do the most, for `--observe`.
    pub program: fn() -> Program,
}

impl std::fmt::Debug for Graphed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graphed").field("name", &self.name).finish_non_exhaustive()
    }
}

/// THE LIST.
pub const GRAPHS: &[Graphed] = &[
    Graphed {
        name: Heartbeat::NAME,
        help: Heartbeat::HELP,
        graph: &heartbeat::heartbeat::GRAPH,
        program: || {
            program(|nic| {
                heartbeat::heartbeat(nic, Arc::default(), true, heartbeat::longest_frame())
            })
        },
    },
    Graphed {
        name: PingDrop::NAME,
        help: PingDrop::HELP,
        graph: &ping_drop::ping_drop::GRAPH,
        program: || program(|nic| ping_drop::ping_drop(nic, ping_drop::filters(Place::Driver))),
    },
    Graphed {
        name: Scrub::NAME,
        help: Scrub::HELP,
        graph: &scrub::scrub::GRAPH,
        program: || program(|nic| scrub::scrub(nic, vec![0x5a; 16 << 10].into(), Arc::default())),
    },
];
