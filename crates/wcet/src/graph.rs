//! A function's control-flow graph, made by the attributes at compile time.
//!
//! Guarantees of a graph made by an attribute: a loop is entered only by its header; without the
//! `Back` edges there is no cycle; a cycle that does not yield belongs to a loop with a bound.

use crate::class::Counts;
use serde::Serialize;

/// The control flow of a function.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Graph {
    /// The function's name.
    pub name: &'static str,
    /// Its source file, as the compiler names it.
    pub file: &'static str,
    /// The line of its name.
    pub line: u32,
    /// Its blocks. A block without an outgoing edge ends the function.
    pub blocks: &'static [Block],
    /// Its edges.
    pub edges: &'static [Edge],
    /// Its loops; outer loops precede their inner loops.
    pub loops: &'static [Loop],
    /// Its segments, by number: the first begins at the start, each other one at an await.
    pub segments: &'static [Segment],
}

impl Graph {
    /// The segments that may follow a segment; empty if the task always ends there or the segment
    /// does not exist.
    pub fn after(&self, segment: u16) -> Vec<u16> {
        let Some(first) = self.segments.get(usize::from(segment)) else { return Vec::new() };
        let mut seen = vec![false; self.blocks.len()];
        let mut open = vec![first.entry];
        let mut next = Vec::new();
        while let Some(block) = open.pop() {
            if seen.get_mut(usize::from(block)).is_none_or(|seen| std::mem::replace(seen, true)) {
                continue;
            }
            for edge in self.edges.iter().filter(|edge| edge.from == block) {
                match edge.kind {
                    EdgeKind::Yield(segment) if next.contains(&segment) => {}
                    EdgeKind::Yield(segment) => next.push(segment),
                    _ => open.push(edge.to),
                }
            }
        }
        next.sort_unstable();
        next
    }
}

/// Code without a jump into it or out of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Block {
    /// The line of its first operation; zero if it has none.
    pub line: u32,
    /// Its operations.
    pub counts: Counts,
    /// Nanoseconds that `#[wcet]` gives.
    pub declared_ns: u64,
    /// The functions it calls, each listed once.
    #[serde(serialize_with = "names")]
    pub calls: &'static [&'static Graph],
}

/// From the end of one block to the start of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// Index of the block it leaves.
    pub from: u16,
    /// Index of the block it enters.
    pub to: u16,
    /// Kind of the edge.
    pub kind: EdgeKind,
}

/// Kind of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// Within the segment.
    Next,
    /// To the header of this loop, for another round.
    Back(u16),
    /// By an await, into the segment of this number.
    Yield(u16),
}

/// A loop.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Loop {
    /// Its line.
    pub line: u32,
    /// The block by which it is entered.
    pub header: u16,
    /// Most rounds per entry; `None` if every round yields.
    pub bound: Option<u64>,
    /// The loop around it.
    pub parent: Option<u16>,
    /// The blocks of its condition, which runs once more than the body.
    pub head: &'static [u16],
    /// The blocks of its body, including the blocks of inner loops.
    pub body: &'static [u16],
}

/// The code from one await to the next.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Segment {
    /// The line of the preceding await; for the first segment, the function's line.
    pub line: u32,
    /// Its first block.
    pub entry: u16,
    /// The method awaited before it; empty for the first segment, or if unknown.
    pub after: &'static str,
    /// Whether that await waits for the release or an event, which ends the invocation.
    pub wait: bool,
}

fn names<S: serde::Serializer>(
    calls: &&'static [&'static Graph],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(calls.iter().map(|called| called.name))
}
