//! What the attributes' output names; not for use by hand.

use crate::class::Counts;
use crate::graph::{Block, Graph, Segment};

/// The graph of nothing, where an error was told already.
pub const NOTHING: Graph = Graph {
    name: "",
    file: "",
    line: 0,
    blocks: &[Block { line: 0, counts: Counts::NONE, declared_ns: 0, calls: &[] }],
    edges: &[],
    loops: &[],
    segments: &[Segment { line: 0, entry: 0, after: "", wait: false }],
};

/// A function with a graph.
#[derive(Clone, Copy, Debug)]
pub struct Known;

/// A function without.
#[derive(Clone, Copy, Debug)]
pub struct Unknown;

/// Functions whose cost is known.
#[diagnostic::on_unimplemented(
    message = "what this call costs is not known",
    label = "a function without `#[bounded]` or `#[wcet(ns = N)]`",
    note = "put `#[bounded]` on the function called, or `#[wcet(ns = N)]` on it or before this \
            statement"
)]
pub trait CostIsKnown {}

impl CostIsKnown for Known {}

/// Fails to compile for an unknown cost.
pub const fn cost_is_known<T: CostIsKnown>(_: &T) {}
