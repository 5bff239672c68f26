//! A function's control-flow graph, as the attributes make it at compile time.
//!
//! Guarantees of a graph that an attribute made: a loop is entered by its header
//! alone; without the `Back` edges there is no way round; every way round that
//! does not yield is of a loop with a bound.

use crate::class::Counts;
use serde::Serialize;

/// What a function can do.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Graph {
    /// The function's name.
    pub name: &'static str,
    /// The file it stands in, as the compiler names it.
    pub file: &'static str,
    /// The line of its name.
    pub line: u32,
    /// Its blocks. One without an edge out of it ends the function.
    pub blocks: &'static [Block],
    /// Its edges.
    pub edges: &'static [Edge],
    /// Its loops; outer ones stand before those inside them.
    pub loops: &'static [Loop],
    /// Its segments, by number: the first from the start, the others from an await each.
    pub segments: &'static [Segment],
}

impl Graph {
    /// The segments that may come next after one; none if the task ends there always, or if there
    /// is no such segment.
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
    /// What it calls, each once. Reports give the names alone.
    #[serde(serialize_with = "names")]
    pub calls: &'static [&'static Graph],
}

/// From the end of a block to the start of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// The block left, by its place.
    pub from: u16,
    /// The block entered.
    pub to: u16,
    /// How.
    pub kind: EdgeKind,
}

/// How an edge is gone.
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
    /// How often its body runs at most, each time it is entered; `None`: it yields on every way round.
    pub bound: Option<u64>,
    /// The loop around it.
    pub parent: Option<u16>,
    /// The blocks of its condition, which is gone through once more than the body.
    pub head: &'static [u16],
    /// The blocks of its body, those of loops inside too.
    pub body: &'static [u16],
}

/// The code from one await to the next.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Segment {
    /// The line of the await before it; the function's, for the first.
    pub line: u32,
    /// Its first block.
    pub entry: u16,
    /// The method awaited before it; empty for the first, or if it is not known.
    pub after: &'static str,
    /// Whether that await waits for the release or for an event, so that the invocation ends there.
    pub wait: bool,
}

fn names<S: serde::Serializer>(
    calls: &&'static [&'static Graph],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(calls.iter().map(|called| called.name))
}
