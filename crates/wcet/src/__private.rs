//! Names that the attributes' output refers to; not for direct use.

use crate::class::Counts;
use crate::graph::{Block, Graph, Segment};

/// An empty graph, used if an attribute has already reported an error.
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

/// Functions with a known cost.
#[diagnostic::on_unimplemented(
    message = "the cost of this call is not known",
    label = "a function without `#[bounded]` or `#[wcet(ns = N)]`",
    note = "put `#[bounded]` on the called function, or `#[wcet(ns = N)]` on it or before this \
            statement"
)]
pub trait CostIsKnown {}

impl CostIsKnown for Known {}

/// Fails to compile for an unknown cost.
pub const fn cost_is_known<T: CostIsKnown>(_: &T) {}
