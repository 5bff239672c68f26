//! Tasks whose graphs are known, for `picnic wcet`: one line each.

use crate::scrub;
use picnic_os::task::{Program, program};
use picnic_wcet::Graph;

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
pub const GRAPHS: &[Graphed] = &[Graphed {
    name: "scrub",
    help: "read a block of memory piece by piece, and tell when it has changed",
    graph: &scrub::scrub::GRAPH,
    program: || program(|nic| scrub::scrub(nic, vec![0x5a; 16 << 10].into())),
}];
