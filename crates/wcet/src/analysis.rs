//! Longest paths: from each segment's entry to the nearest following yield, on any path.
//!
//! Loops form a tree. Without the edges back to its header, and with each inner loop as a single
//! node, the inside of a loop has no cycle. So one pass in topological order finds the longest path
//! to each edge out of the loop, to each yield in it, and back to the header. A loop costs its
//! longest round times its bound, plus its exit from the last round.
//!
//! A segment may begin inside loops. It then runs the rest of the current round and all remaining
//! rounds, loop by loop from the inside out.
//!
//! Guarantees: every path counts at full cost; sums saturate, and a saturated sum means "no bound".

use crate::class::Class;
use crate::graph::{Edge, EdgeKind, Graph};
use crate::profile::CostProfile;
use petgraph::algo::toposort;
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::BTreeMap;
use std::sync::Arc;

/// No bound, or a bound too large for 64 bits.
const UNBOUNDED: u64 = u64::MAX;
/// Deepest allowed nesting of calls. The compiler refuses recursion.
const DEEPEST: usize = 256;

/// Reason why a graph has no bounds. Graphs made by an attribute never fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{graph}: {problem}")]
pub struct GraphError {
    /// The graph's name.
    pub graph: String,
    /// The problem, in words.
    pub problem: String,
}

/// Bounds of a task's segments under a cost profile, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// By segment: from its entry to any next yield.
    pub segments: Arc<[u64]>,
    /// By segment: from its entry until the task next waits or ends; `u64::MAX` without a bound.
    pub remaining: Arc<[u64]>,
}

/// Bounds, with the cost of each block.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The bounds.
    pub bounds: Bounds,
    /// By block: cost of one run in picoseconds, including its calls.
    pub block_ps: Vec<u64>,
}

/// Computes the bounds of a graph under a profile.
///
/// # Errors
/// The graph was written by hand and breaks the guarantees of [`Graph`].
pub fn bounds(graph: &Graph, profile: &CostProfile) -> Result<Bounds, GraphError> {
    analyse(graph, profile).map(|analysis| analysis.bounds)
}

/// Computes the bounds of a graph under a profile, and the cost of each block.
///
/// # Errors
/// The graph was written by hand and breaks the guarantees of [`Graph`].
pub fn analyse(graph: &Graph, profile: &CostProfile) -> Result<Analysis, GraphError> {
    let block_ps = block_costs(graph, profile, &mut BTreeMap::new(), 0)?;
    let regions = Regions::of(graph)?;
    let by = |cut| {
        let longest = Longest::of(&regions, &block_ps, cut);
        let entries = graph.segments.iter().map(|segment| usize::from(segment.entry));
        entries.map(|entry| nanoseconds(longest.from(entry))).collect()
    };
    let bounds = Bounds { segments: by(Cut::Yields), remaining: by(Cut::Waits) };
    Ok(Analysis { bounds, block_ps })
}

/// Picoseconds to nanoseconds, rounded up.
fn nanoseconds(ps: u64) -> u64 {
    if ps == UNBOUNDED { UNBOUNDED } else { ps.div_ceil(1000) }
}

type Known = BTreeMap<*const Graph, u64>;

fn block_costs(
    graph: &Graph,
    profile: &CostProfile,
    known: &mut Known,
    depth: usize,
) -> Result<Vec<u64>, GraphError> {
    let mut costs = Vec::with_capacity(graph.blocks.len());
    for block in graph.blocks {
        let mut cost = block_cost_ps(block, profile);
        for called in block.calls {
            let place = std::ptr::from_ref::<Graph>(called);
            let called = match known.get(&place) {
                Some(cost) => *cost,
                None => {
                    let cost = call_cost(called, profile, known, depth + 1)?;
                    known.insert(place, cost);
                    cost
                }
            };
            cost = cost.saturating_add(called);
        }
        costs.push(cost);
    }
    Ok(costs)
}

/// Cost of one run of a block in picoseconds, without its calls.
pub fn block_cost_ps(block: &crate::graph::Block, profile: &CostProfile) -> u64 {
    let operations = Class::ALL
        .iter()
        .map(|&class| u64::from(block.counts.get(class)).saturating_mul(profile.cost_ps(class)));
    let declared = block.declared_ns.saturating_mul(1000);
    operations.fold(declared, u64::saturating_add)
}

/// Cost of a function without yields, from start to end.
fn call_cost(
    graph: &Graph,
    profile: &CostProfile,
    known: &mut Known,
    depth: usize,
) -> Result<u64, GraphError> {
    if depth > DEEPEST {
        return Err(error(graph, format!("calls are nested deeper than {DEEPEST} functions")));
    }
    let costs = block_costs(graph, profile, known, depth)?;
    let regions = Regions::of(graph)?;
    let entry = graph.segments.first().map_or(0, |segment| segment.entry);
    Ok(Longest::of(&regions, &costs, Cut::Nothing).from(entry.into()))
}

fn error(graph: &Graph, problem: impl Into<String>) -> GraphError {
    GraphError { graph: graph.name.into(), problem: problem.into() }
}

/// Awaits at which a path ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Yields,
    Waits,
    Nothing,
}

// ---------------------------------------------------------------- regions

/// A block, or a whole loop, of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Block(usize),
    Loop(usize),
}

/// The tree of loops: each is a region, and the function is the outermost one.
struct Regions<'g> {
    graph: &'g Graph,
    /// By block, its innermost loop.
    inner: Vec<Option<usize>>,
    /// By block and loop: whether the block belongs to the loop's condition.
    head: Vec<Vec<usize>>,
    /// Edges out of each block.
    out: Vec<Vec<Edge>>,
    /// The nodes of all regions, each region in topological order.
    order: Vec<Node>,
}

impl<'g> Regions<'g> {
    fn of(graph: &'g Graph) -> Result<Self, GraphError> {
        let blocks = graph.blocks.len();
        let is_block = |block: u16| usize::from(block) < blocks;
        let parent = |number: usize| graph.loops[number].parent.map(usize::from);
        let mut inner = vec![None; blocks];
        let mut head = vec![Vec::new(); blocks];
        for (number, around) in graph.loops.iter().enumerate() {
            if parent(number).is_some_and(|parent| parent >= number) {
                return Err(error(graph, "a loop precedes its outer loop"));
            }
            for &block in around.head.iter().chain(around.body) {
                if !is_block(block) {
                    return Err(error(graph, "a loop names a block that does not exist"));
                }
                // Inner loops follow outer loops and overwrite their entries.
                inner[usize::from(block)] = Some(number);
            }
            for &block in around.head {
                head[usize::from(block)].push(number);
            }
            if !is_block(around.header) {
                return Err(error(graph, "a loop's header does not exist"));
            }
        }
        for (number, around) in graph.loops.iter().enumerate() {
            if inner[usize::from(around.header)] != Some(number) {
                return Err(error(graph, "a loop has no header of its own"));
            }
        }
        let mut out = vec![Vec::new(); blocks];
        for edge in graph.edges {
            let there = is_block(edge.from) && is_block(edge.to);
            let kind = match edge.kind {
                EdgeKind::Next => true,
                EdgeKind::Back(number) => graph
                    .loops
                    .get(usize::from(number))
                    .is_some_and(|around| around.header == edge.to),
                EdgeKind::Yield(number) => graph
                    .segments
                    .get(usize::from(number))
                    .is_some_and(|segment| segment.entry == edge.to),
            };
            if !there || !kind {
                return Err(error(graph, "an edge leads nowhere"));
            }
            out[usize::from(edge.from)].push(*edge);
        }
        if graph.segments.is_empty() || graph.segments.iter().any(|found| !is_block(found.entry)) {
            return Err(error(graph, "a segment has no first block"));
        }
        let mut regions = Regions { graph, inner, head, out, order: Vec::new() };
        regions.order = regions.sorted()?;
        Ok(regions)
    }

    fn parent(&self, number: usize) -> Option<usize> {
        self.graph.loops[number].parent.map(usize::from)
    }

    fn header(&self, number: usize) -> usize {
        self.graph.loops[number].header.into()
    }

    /// The node of `region` that contains a block; `None` for a block outside.
    fn node(&self, region: Option<usize>, block: usize) -> Option<Node> {
        let mut at = self.inner[block];
        if at == region {
            return Some(Node::Block(block));
        }
        while let Some(number) = at {
            at = self.parent(number);
            if at == region {
                return Some(Node::Loop(number));
            }
        }
        None
    }

    /// Sorts the nodes of all regions at once: edges never connect two regions here.
    fn sorted(&self) -> Result<Vec<Node>, GraphError> {
        let mut ways = DiGraph::<Node, ()>::new();
        let mut indices: BTreeMap<Node, NodeIndex> = BTreeMap::new();
        for region in (0..self.graph.loops.len()).map(Some).chain([None]) {
            for block in 0..self.graph.blocks.len() {
                if let Some(node) = self.node(region, block) {
                    indices.entry(node).or_insert_with(|| ways.add_node(node));
                }
            }
            for edge in self.graph.edges {
                if matches!(edge.kind, EdgeKind::Back(number) if Some(usize::from(number)) == region)
                {
                    continue;
                }
                let ends = [edge.from, edge.to].map(|block| self.node(region, block.into()));
                let [Some(from), Some(to)] = ends else { continue };
                if from == to {
                    continue;
                }
                self.enters_by_header(edge, to)?;
                ways.add_edge(indices[&from], indices[&to], ());
            }
        }
        let order = toposort(&ways, None)
            .map_err(|_| error(self.graph, "a cycle is not a declared loop"))?;
        Ok(order.into_iter().map(|index| ways[index]).collect())
    }

    /// Checks that an edge into a loop ends at its header.
    fn enters_by_header(&self, edge: &Edge, to: Node) -> Result<(), GraphError> {
        match to {
            Node::Loop(number) if self.header(number) != usize::from(edge.to) => {
                Err(error(self.graph, "a loop is entered elsewhere than at its header"))
            }
            _ => Ok(()),
        }
    }
}

// ---------------------------------------------------------------- longest paths

/// Paths that left a region or ended in it, with their costs.
#[derive(Clone, Debug, Default)]
struct Ways {
    /// By edge out of the region.
    exits: Vec<(Edge, u64)>,
    /// To a yield or the end, from the loop's condition and from its body.
    ends: [Option<u64>; 2],
    /// Back to the header.
    back: Option<u64>,
}

const HEAD: usize = 0;
const BODY: usize = 1;

fn raise(place: &mut Option<u64>, cost: u64) {
    *place = Some(place.map_or(cost, |old| old.max(cost)));
}

struct Longest<'r> {
    regions: &'r Regions<'r>,
    costs: &'r [u64],
    cut: Cut,
    /// By loop: one round from its header.
    once: Vec<Ways>,
    /// By loop: from entry at its header to exit.
    whole: Vec<Ways>,
}

/// Starting points of the paths through a region, with the cost so far.
#[derive(Clone, Copy, Debug)]
enum Start {
    Block(usize, u64),
    Edge(Edge, u64),
}

impl<'r> Longest<'r> {
    fn of(regions: &'r Regions<'r>, costs: &'r [u64], cut: Cut) -> Self {
        let loops = regions.graph.loops.len();
        let mut longest = Longest {
            regions,
            costs,
            cut,
            once: vec![Ways::default(); loops],
            whole: vec![Ways::default(); loops],
        };
        // Inner loops follow outer loops.
        for number in (0..loops).rev() {
            let start = Start::Block(regions.header(number), 0);
            longest.once[number] = longest.through(Some(number), &[start]);
            longest.whole[number] = longest.entered(number);
        }
        longest
    }

    fn cuts(&self, edge: &Edge) -> bool {
        match (self.cut, edge.kind) {
            (Cut::Yields, EdgeKind::Yield(_)) => true,
            (Cut::Waits, EdgeKind::Yield(segment)) => {
                self.regions.graph.segments[usize::from(segment)].wait
            }
            _ => false,
        }
    }

    /// Whether a path that leaves from this block leaves the loop's condition or its body.
    fn part(&self, region: Option<usize>, block: usize) -> usize {
        match region {
            Some(number) if !self.regions.head[block].contains(&number) => BODY,
            _ => HEAD,
        }
    }

    /// The longest paths through one round of a region.
    fn through(&self, region: Option<usize>, starts: &[Start]) -> Ways {
        let mut ways = Ways::default();
        let mut reached: BTreeMap<Node, u64> = BTreeMap::new();
        for start in starts {
            match *start {
                Start::Block(block, cost) => {
                    // This is the only start.
                    reached.extend(self.regions.node(region, block).map(|node| (node, cost)));
                }
                Start::Edge(edge, cost) => self.follow(region, edge, cost, &mut reached, &mut ways),
            }
        }
        for node in &self.regions.order {
            let Some(&cost) = reached.get(node) else { continue };
            match *node {
                Node::Block(block) => {
                    let cost = cost.saturating_add(self.costs[block]);
                    let out = &self.regions.out[block];
                    if out.is_empty() {
                        raise(&mut ways.ends[self.part(region, block)], cost);
                    }
                    for edge in out {
                        self.follow(region, *edge, cost, &mut reached, &mut ways);
                    }
                }
                Node::Loop(number) => {
                    let whole = &self.whole[number];
                    for end in whole.ends.into_iter().flatten() {
                        let part = self.part(region, self.regions.header(number));
                        raise(&mut ways.ends[part], cost.saturating_add(end));
                    }
                    for (edge, exit) in &whole.exits {
                        let cost = cost.saturating_add(*exit);
                        self.follow(region, *edge, cost, &mut reached, &mut ways);
                    }
                }
            }
        }
        ways
    }

    /// Follows an edge, which may stay in the region, leave it, begin another round or end the
    /// path.
    fn follow(
        &self,
        region: Option<usize>,
        edge: Edge,
        cost: u64,
        reached: &mut BTreeMap<Node, u64>,
        ways: &mut Ways,
    ) {
        if self.cuts(&edge) {
            return raise(&mut ways.ends[self.part(region, edge.from.into())], cost);
        }
        if matches!(edge.kind, EdgeKind::Back(number) if Some(usize::from(number)) == region) {
            return raise(&mut ways.back, cost);
        }
        match self.regions.node(region, edge.to.into()) {
            Some(node) => {
                let place = reached.entry(node).or_insert(cost);
                *place = (*place).max(cost);
            }
            None => ways.exits.push((edge, cost)),
        }
    }

    /// A loop from its header to each exit, with all its rounds.
    fn entered(&self, number: usize) -> Ways {
        let once = &self.once[number];
        self.rounds(number, 0, self.regions.graph.loops[number].bound, once.back)
    }

    /// From the header, after cost `before`, with `left` runs of the body remaining.
    fn rounds(&self, number: usize, before: u64, left: Option<u64>, round: Option<u64>) -> Ways {
        let once = &self.once[number];
        // Exits from the condition follow all rounds; exits from the body belong to the last round.
        let after = |rounds: Option<u64>| match (round, rounds) {
            (_, Some(rounds)) => round.unwrap_or(0).saturating_mul(rounds),
            (None, None) => 0,
            (Some(_), None) => UNBOUNDED,
        };
        let parts = [
            Some(after(left)),
            match left {
                Some(0) => None,
                left => Some(after(left.map(|left| left - 1))),
            },
        ];
        let total = |part: usize, cost: u64| {
            parts[part].map(|rounds| before.saturating_add(rounds).saturating_add(cost))
        };
        let mut ways = Ways::default();
        for part in [HEAD, BODY] {
            ways.ends[part] = once.ends[part].and_then(|cost| total(part, cost));
        }
        if round.is_some() && left.is_none() {
            ways.ends[BODY] = Some(UNBOUNDED);
        }
        for (edge, cost) in &once.exits {
            let part = self.part(Some(number), edge.from.into());
            if let Some(cost) = total(part, *cost) {
                ways.exits.push((*edge, cost));
            }
        }
        ways
    }

    /// The longest path from a block to a yield or the end, in picoseconds.
    fn from(&self, block: usize) -> u64 {
        let mut region = self.regions.inner[block];
        let mut starts = vec![Start::Block(block, 0)];
        let mut longest = None;
        loop {
            let mut ways = self.through(region, &starts);
            let Some(number) = region else {
                ways.ends.into_iter().flatten().for_each(|end| raise(&mut longest, end));
                // If no path from here ends, there is no longest path.
                return longest.unwrap_or(UNBOUNDED);
            };
            if let Some(back) = ways.back {
                // The current round counts towards the bound.
                let left =
                    self.regions.graph.loops[number].bound.map(|bound| bound.saturating_sub(1));
                let again = self.rounds(number, back, left, self.once[number].back);
                again.ends.into_iter().flatten().for_each(|end| raise(&mut longest, end));
                ways.exits.extend(again.exits);
            }
            ways.ends.into_iter().flatten().for_each(|end| raise(&mut longest, end));
            starts = ways.exits.into_iter().map(|(edge, cost)| Start::Edge(edge, cost)).collect();
            region = self.regions.parent(number);
        }
    }
}
