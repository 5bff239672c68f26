//! The control-flow graph under construction: blocks, edges, loops, segments.
//!
//! Guarantees: a loop is entered only through its header, has a separate header, and lists all
//! blocks of its source text, including the blocks of inner loops.

use crate::cost::{Class, Counts};
use proc_macro2::Span;

/// A call in a block: an index into [`Flow::callees`] or [`Flow::closures`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A function looked up by path.
    Path(usize),
    /// A closure of this body.
    Closure(usize),
}

/// Code without a jump into or out of it.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Its start, once it is not empty.
    pub(crate) span: Option<Span>,
    pub(crate) counts: Counts,
    /// Nanoseconds that `#[wcet]` gave.
    pub(crate) declared_ns: u64,
    pub(crate) calls: Vec<Call>,
}

/// Kind of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Within the segment.
    Next,
    /// To the header of this loop, for another round.
    Back(usize),
    /// By an await, into this segment.
    Yield(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) kind: Kind,
}

/// A loop of the source.
#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) span: Span,
    pub(crate) header: usize,
    /// Most rounds.
    pub(crate) bound: Option<u64>,
    /// Its outer loop.
    pub(crate) parent: Option<usize>,
    /// Blocks of its condition, which runs once more than the body.
    pub(crate) head: Vec<usize>,
    /// Blocks of its body.
    pub(crate) body: Vec<usize>,
    /// Whether new blocks belong to the condition.
    pub(crate) in_head: bool,
}

/// The code from one await to the next.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) entry: usize,
    pub(crate) span: Span,
    /// The method awaited before it; empty for the first.
    pub(crate) after: String,
    /// Whether that await waits for the release or for an event.
    pub(crate) wait: bool,
}

/// A called function, looked up next to its own graph.
pub(crate) struct Callee {
    pub(crate) path: syn::Path,
}

/// The graph of one body.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) blocks: Vec<Block>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) loops: Vec<Loop>,
    /// The first is the start; the others by their number.
    pub(crate) segments: Vec<Segment>,
    pub(crate) closures: Vec<(Span, Flow)>,
    /// The open loops, innermost last; new blocks belong to them.
    pub(crate) inside: Vec<usize>,
}

impl Flow {
    /// A new block, in the open loops.
    pub(crate) fn block(&mut self) -> usize {
        let block = self.blocks.len();
        self.blocks.push(Block::default());
        for &number in &self.inside {
            let around = &mut self.loops[number];
            if around.in_head { &mut around.head } else { &mut around.body }.push(block);
        }
        block
    }

    pub(crate) fn edge(&mut self, from: usize, to: usize, kind: Kind) {
        self.edges.push(Edge { from, to, kind });
    }

    /// Opens a loop, with a new block as its header.
    pub(crate) fn open(&mut self, span: Span, bound: Option<u64>, in_head: bool) -> usize {
        let number = self.loops.len();
        let parent = self.inside.last().copied();
        let (head, body) = (Vec::new(), Vec::new());
        self.loops.push(Loop { span, header: 0, bound, parent, head, body, in_head });
        self.inside.push(number);
        self.loops[number].header = self.block();
        number
    }

    /// A path around the loop, from its header to its header, without an await: its blocks, last
    /// first.
    pub(crate) fn round_without_yield(&self, number: usize) -> Option<Vec<usize>> {
        let header = self.loops[number].header;
        let mut from = vec![None; self.blocks.len()];
        let mut open = vec![header];
        from[header] = Some(header);
        while let Some(block) = open.pop() {
            for edge in self.edges.iter().filter(|edge| edge.from == block) {
                match edge.kind {
                    Kind::Back(back) if back == number => {
                        let way = std::iter::successors(Some(block), |&at| {
                            from[at].filter(|_| at != header)
                        });
                        return Some(way.collect());
                    }
                    Kind::Yield(_) => {}
                    _ if !self.has(number, edge.to) || from[edge.to].is_some() => {}
                    _ => {
                        from[edge.to] = Some(block);
                        open.push(edge.to);
                    }
                }
            }
        }
        None
    }

    /// Whether there is an await in the loop.
    pub(crate) fn yields_in(&self, number: usize) -> bool {
        let mut yields = self.edges.iter().filter(|edge| matches!(edge.kind, Kind::Yield(_)));
        yields.any(|edge| self.has(number, edge.from))
    }

    fn has(&self, number: usize, block: usize) -> bool {
        let around = &self.loops[number];
        around.head.contains(&block) || around.body.contains(&block)
    }

    /// Removes unreachable blocks except segments, whose numbers the body uses.
    pub(crate) fn prune(&mut self) {
        let mut reached = vec![false; self.blocks.len()];
        let mut open: Vec<_> = self.segments.iter().map(|segment| segment.entry).collect();
        for &block in &open {
            reached[block] = true;
        }
        while let Some(block) = open.pop() {
            for edge in self.edges.iter().filter(|edge| edge.from == block) {
                if !std::mem::replace(&mut reached[edge.to], true) {
                    open.push(edge.to);
                }
            }
        }
        let mut renumbered = vec![usize::MAX; self.blocks.len()];
        let kept = reached.iter().enumerate().filter(|(_, reached)| **reached);
        for (number, (block, _)) in kept.enumerate() {
            renumbered[block] = number;
        }
        let mut place = 0..;
        self.blocks.retain(|_| place.next().is_some_and(|block| reached[block]));
        self.edges.retain(|edge| reached[edge.from]);
        for edge in &mut self.edges {
            (edge.from, edge.to) = (renumbered[edge.from], renumbered[edge.to]);
        }
        for segment in &mut self.segments {
            segment.entry = renumbered[segment.entry];
        }
        self.prune_loops(&renumbered);
    }

    fn prune_loops(&mut self, renumbered: &[usize]) {
        let kept: Vec<_> =
            self.loops.iter().map(|around| renumbered[around.header] != usize::MAX).collect();
        let mut numbers = Vec::new();
        let mut next = 0;
        for &kept in &kept {
            numbers.push(kept.then_some(next));
            next += usize::from(kept);
        }
        // A loop with an unreachable header may contain an unreachable segment.
        let parents: Vec<_> = self.loops.iter().map(|around| around.parent).collect();
        let new_parent = |mut parent: Option<usize>| loop {
            match parent {
                Some(number) if numbers[number].is_none() => parent = parents[number],
                parent => return parent.and_then(|number| numbers[number]),
            }
        };
        let mut place = 0..;
        self.loops.retain(|_| place.next().is_some_and(|number| kept[number]));
        for around in &mut self.loops {
            around.header = renumbered[around.header];
            around.parent = new_parent(around.parent);
            for blocks in [&mut around.head, &mut around.body] {
                *blocks = blocks.iter().map(|&block| renumbered[block]).collect();
                blocks.retain(|&block| block != usize::MAX);
            }
        }
        for edge in &mut self.edges {
            if let Kind::Back(number) = edge.kind {
                edge.kind = numbers[number].map_or(Kind::Next, Kind::Back);
            }
        }
    }

    /// Charges `count` of a class to a block.
    pub(crate) fn charge(&mut self, block: usize, class: Class, count: u32, span: Span) {
        let block = &mut self.blocks[block];
        block.counts.add(class, count);
        block.span.get_or_insert(span);
    }
}
