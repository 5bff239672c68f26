//! Graphs written by hand: a graph that breaks the guarantees is refused, never given a wrong
//! bound.

use picnic_wcet::{
    Block, Class, CostProfile, Counts, Edge, EdgeKind, Graph, Loop, Segment, analyse, bounds, dot,
};
use proptest::prelude::*;

const fn block(declared_ns: u64) -> Block {
    Block { line: 0, counts: Counts::NONE, declared_ns, calls: &[] }
}

const fn edge(from: u16, to: u16, kind: EdgeKind) -> Edge {
    Edge { from, to, kind }
}

const START: Segment = Segment { line: 0, entry: 0, after: "", wait: false };

const GOOD: Graph = Graph {
    name: "hand",
    file: "",
    line: 0,
    blocks: &[block(1), block(10), block(100), block(1000)],
    edges: &[
        edge(0, 1, EdgeKind::Next),
        edge(1, 2, EdgeKind::Next),
        edge(2, 1, EdgeKind::Back(0)),
        edge(1, 3, EdgeKind::Next),
    ],
    loops: &[Loop { line: 0, header: 1, bound: Some(5), parent: None, head: &[1], body: &[2] }],
    segments: &[START],
};

fn told(graph: Graph) -> String {
    bounds(&graph, &CostProfile::built_in()).unwrap_err().to_string()
}

#[test]
fn a_good_graph_has_its_bound() {
    let found = bounds(&GOOD, &CostProfile::built_in()).unwrap();
    assert_eq!(found.segments[..], [1 + 5 * 110 + 10 + 1000]);
}

#[test]
fn broken_graphs_are_refused() {
    assert!(told(Graph { loops: &[], ..GOOD }).contains("an edge leads nowhere"));
    let cycle = Graph {
        edges: const { &[edge(0, 1, EdgeKind::Next), edge(1, 0, EdgeKind::Next)] },
        loops: &[],
        ..GOOD
    };
    assert_eq!(told(cycle), "hand: a cycle is not a declared loop");
    let past = Graph {
        edges: const { &[edge(0, 2, EdgeKind::Next), edge(2, 1, EdgeKind::Back(0))] },
        ..GOOD
    };
    assert!(told(past).contains("entered elsewhere than at its header"));
    assert!(told(Graph { segments: &[], ..GOOD }).contains("no first block"));
    assert!(told(Graph { blocks: const { &[block(1)] }, ..GOOD }).contains("does not exist"));
    let alien = Graph { edges: const { &[edge(0, 9, EdgeKind::Next)] }, ..GOOD };
    assert!(told(alien).contains("leads nowhere"));
    let segment = Graph { edges: const { &[edge(0, 1, EdgeKind::Yield(3))] }, ..GOOD };
    assert!(told(segment).contains("leads nowhere"));
    static SHARED: [Loop; 1] =
        [Loop { line: 0, header: 1, bound: None, parent: None, head: &[], body: &[2] }];
    assert!(told(Graph { loops: &SHARED, ..GOOD }).contains("no header of its own"));
}

#[test]
fn calls_without_end_are_refused() {
    static FIRST: Graph = Graph { blocks: &CALLS_SECOND, edges: &[], loops: &[], ..GOOD };
    static SECOND: Graph = Graph { blocks: &CALLS_FIRST, edges: &[], loops: &[], ..GOOD };
    static CALLS_FIRST: [Block; 1] =
        [Block { line: 0, counts: Counts::NONE, declared_ns: 0, calls: &[&FIRST] }];
    static CALLS_SECOND: [Block; 1] =
        [Block { line: 0, counts: Counts::NONE, declared_ns: 0, calls: &[&SECOND] }];
    assert!(told(FIRST).contains("calls are nested deeper than"), "{}", told(FIRST));
}

#[test]
fn a_picture_names_blocks_loops_and_bounds() {
    let analysis = analyse(&GOOD, &CostProfile::built_in()).unwrap();
    let text = dot(&GOOD, &analysis);
    assert!(text.starts_with("digraph \"hand\" {") && text.ends_with("}\n"), "{text}");
    for part in ["segment 0\\n1561 ns", "block 2\\n100 ns", "b2 -> b1 [label=\"<= 5\"", "cluster_0"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(text.matches('{').count(), text.matches('}').count());
}

/// Nanoseconds just below the limit of 64 bits in picoseconds.
const NEARLY: u64 = u64::MAX / 1000;
/// No bound.
const TOP: u64 = u64::MAX;

#[test]
fn overflowing_sums_mean_no_bound() {
    let told = |graph: Graph| bounds(&graph, &CostProfile::built_in()).unwrap().segments.to_vec();
    // Alone it still has a bound.
    let alone = Graph { blocks: const { &[block(NEARLY)] }, edges: &[], loops: &[], ..GOOD };
    assert_eq!(told(alone), [NEARLY]);
    let more = Graph { blocks: const { &[block(NEARLY + 1)] }, ..alone };
    assert_eq!(told(more), [TOP], "by its picoseconds");

    // A block and its calls; both of two calls.
    static CALLED: Graph = Graph { blocks: &[block(1)], edges: &[], loops: &[], ..GOOD };
    static CALLS: Block = Block { calls: &[&CALLED], ..block(NEARLY) };
    assert_eq!(told(Graph { blocks: std::slice::from_ref(&CALLS), ..alone }), [TOP]);

    // Operations: with the declared time, and alone.
    let dear = CostProfile::of("dear", &[(Class::Load, 1 << 63), (Class::Store, 1 << 63)]);
    static LOADS: Block =
        Block { counts: Counts::of(&[(Class::Load, 1), (Class::Store, 1)]), ..block(1) };
    static LOADS_TWICE: Block = Block { counts: Counts::of(&[(Class::Load, 2)]), ..block(0) };
    for block in [&LOADS, &LOADS_TWICE] {
        let graph = Graph { blocks: std::slice::from_ref(block), ..alone };
        assert_eq!(bounds(&graph, &dear).unwrap().segments[..], [TOP]);
    }

    // A block after another.
    let behind = Graph {
        blocks: const { &[block(NEARLY), block(1)] },
        edges: const { &[edge(0, 1, EdgeKind::Next)] },
        ..alone
    };
    assert_eq!(told(behind), [TOP]);

    // A loop that is left, after a block; a loop that yields for ever, after a block.
    let left = Graph { blocks: const { &[block(NEARLY), block(1), block(0), block(0)] }, ..GOOD };
    assert_eq!(told(left), [TOP]);
    let yields = Graph {
        blocks: const { &[block(NEARLY), block(1)] },
        edges: const { &[edge(0, 1, EdgeKind::Next), edge(1, 1, EdgeKind::Yield(1))] },
        loops: const { &[Loop { line: 0, header: 1, bound: None, parent: None, head: &[], body: &[1] }] },
        segments: const { &[START, Segment { entry: 1, ..START }] },
        ..GOOD
    };
    assert_eq!(told(yields), [TOP, 1]);

    // A loop's rounds and its exit: 2 rounds of a half each, then the condition.
    let rounds = Graph {
        blocks: const { &[block(0), block(1), block(NEARLY / 2), block(0)] },
        loops: const {
            &[Loop { line: 0, header: 1, bound: Some(2), parent: None, head: &[1], body: &[2] }]
        },
        ..GOOD
    };
    assert_eq!(told(rounds), [TOP]);
}

/// From inside a loop: the rest of the round, the remaining rounds, then the exit.
#[test]
fn overflowing_loop_remainders_mean_no_bound() {
    const MIDST: Graph = Graph {
        edges: &[
            edge(0, 1, EdgeKind::Next),
            edge(1, 2, EdgeKind::Next),
            edge(1, 3, EdgeKind::Yield(1)),
            edge(2, 1, EdgeKind::Back(0)),
            edge(3, 1, EdgeKind::Back(0)),
            edge(1, 4, EdgeKind::Next),
        ],
        loops: &[Loop {
            line: 0,
            header: 1,
            bound: Some(5),
            parent: None,
            head: &[1],
            body: &[2, 3],
        }],
        segments: &[START, Segment { entry: 3, ..START }],
        ..GOOD
    };
    let told =
        |blocks| bounds(&Graph { blocks, ..MIDST }, &CostProfile::built_in()).unwrap().segments[1];
    static SMALL: [Block; 5] = [block(0), block(1), block(10), block(100), block(1000)];
    assert_eq!(told(&SMALL), 100 + 4 * 11 + 1 + 1000);
    // The rest of the round, and a round on another path.
    static ROUND: [Block; 5] = [block(0), block(0), block(1), block(NEARLY), block(0)];
    assert_eq!(told(&ROUND), TOP);
    // The rest of the round, and the condition before the exit.
    static OUT: [Block; 5] = [block(0), block(1), block(0), block(NEARLY), block(0)];
    assert_eq!(told(&OUT), TOP);
}

#[test]
fn fractions_of_a_nanosecond_round_up() {
    static STORE: Block = Block { counts: Counts::of(&[(Class::Store, 1)]), ..block(0) };
    let graph = Graph { blocks: std::slice::from_ref(&STORE), edges: &[], loops: &[], ..GOOD };
    for (ps, ns) in [(1, 1), (999, 1), (1000, 1), (1001, 2)] {
        let profile = CostProfile::of("p", &[(Class::Store, ps)]);
        assert_eq!(bounds(&graph, &profile).unwrap().segments[..], [ns]);
        let text = dot(&graph, &analyse(&graph, &profile).unwrap());
        assert!(text.contains(&format!("block 0\\n{ns} ns\"];")), "{text}");
    }
}

#[test]
fn a_loop_around_itself_is_refused() {
    static ITSELF: [Loop; 1] =
        [Loop { line: 0, header: 1, bound: Some(5), parent: Some(0), head: &[1], body: &[2] }];
    let expected = "hand: a loop precedes its outer loop";
    assert_eq!(told(Graph { loops: &ITSELF, ..GOOD }), expected);
}

#[test]
fn pictures_name_the_awaited_method() {
    for (wait, after, expected) in [
        (false, "", "b0 -> b0 [style=dashed label=\"await\"];"),
        (false, "send", "b0 -> b0 [style=dashed label=\"send\"];"),
        (true, "sleep", "b0 -> b0 [style=bold label=\"sleep\"];"),
    ] {
        let segments = [START, Segment { after, wait, ..START }];
        let graph = Graph {
            blocks: const { &[block(1)] },
            edges: const { &[edge(0, 0, EdgeKind::Yield(1))] },
            loops: &[],
            segments: Box::leak(Box::new(segments)),
            ..GOOD
        };
        let text = dot(&graph, &analyse(&graph, &CostProfile::built_in()).unwrap());
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

#[test]
fn indices_one_past_the_end_are_refused() {
    let edges = |edges: Vec<Edge>| Graph { edges: Vec::leak(edges), ..GOOD };
    let with = |extra: Edge| edges([GOOD.edges, &[extra]].concat());
    for extra in [
        edge(0, 4, EdgeKind::Next),
        edge(4, 0, EdgeKind::Next),
        edge(2, 1, EdgeKind::Back(1)),
        edge(2, 3, EdgeKind::Back(0)),
        edge(2, 1, EdgeKind::Yield(0)),
        edge(2, 0, EdgeKind::Yield(1)),
    ] {
        assert_eq!(told(with(extra)), "hand: an edge leads nowhere", "{extra:?}");
    }
    let with_loop = |around: Loop| Graph { loops: Vec::leak(vec![around]), ..GOOD };
    let around = GOOD.loops[0];
    let not_there = "hand: a loop names a block that does not exist";
    assert_eq!(told(with_loop(Loop { body: &[2, 4], ..around })), not_there);
    assert_eq!(told(with_loop(Loop { head: &[1, 4], ..around })), not_there);
    assert_eq!(
        told(with_loop(Loop { header: 4, ..around })),
        "hand: a loop's header does not exist"
    );
    let segments = |segments: Vec<Segment>| Graph { segments: Vec::leak(segments), ..GOOD };
    let first = "hand: a segment has no first block";
    assert_eq!(told(segments(vec![START, Segment { entry: 4, ..START }])), first);
    assert_eq!(told(segments(vec![Segment { entry: 4, ..START }, START])), first);
}

/// A chain of `depth` blocks, each calling the next `times` times.
fn calls(depth: usize, times: usize) -> &'static Graph {
    let mut graph = Graph { blocks: const { &[block(1)] }, edges: &[], loops: &[], ..GOOD };
    for _ in 0..depth {
        let called: &'static Graph = Box::leak(Box::new(graph));
        let calls: &'static [&'static Graph] = Vec::leak(vec![called; times]);
        graph.blocks = Vec::leak(vec![Block { calls, ..block(0) }]);
    }
    Box::leak(Box::new(graph))
}

#[test]
fn call_depth_is_limited_and_callees_are_analysed_once() {
    let profile = CostProfile::built_in();
    assert_eq!(bounds(calls(256, 1), &profile).unwrap().segments[..], [1]);
    assert_eq!(told(*calls(257, 1)), "hand: calls are nested deeper than 256 functions");
    // Without memoisation, this would take 2^40 calls.
    assert_eq!(bounds(calls(40, 2), &profile).unwrap().segments[..], [1 << 40]);
}

#[test]
fn paths_without_an_end_have_no_bound() {
    let graph = Graph {
        blocks: const { &[block(1), block(10)] },
        edges: const { &[edge(0, 1, EdgeKind::Next), edge(1, 1, EdgeKind::Back(0))] },
        loops: const {
            &[Loop { line: 0, header: 1, bound: Some(5), parent: None, head: &[], body: &[1] }]
        },
        ..GOOD
    };
    let found = bounds(&graph, &CostProfile::built_in()).unwrap();
    assert_eq!((found.segments[0], found.remaining[0]), (TOP, TOP));
}

#[test]
fn endless_yielding_loops_have_no_remaining_bound() {
    let graph = Graph {
        blocks: const { &[block(1), block(10), block(100), block(1000)] },
        edges: const {
            &[
                edge(0, 1, EdgeKind::Next),
                edge(0, 2, EdgeKind::Next),
                edge(2, 3, EdgeKind::Yield(1)),
                edge(3, 2, EdgeKind::Back(0)),
            ]
        },
        loops: const {
            &[Loop { line: 0, header: 2, bound: None, parent: None, head: &[], body: &[2, 3] }]
        },
        segments: const { &[START, Segment { entry: 3, ..START }] },
        ..GOOD
    };
    let found = bounds(&graph, &CostProfile::built_in()).unwrap();
    assert_eq!((&found.segments[..], &found.remaining[..]), (&[101, 1100][..], &[TOP, TOP][..]));
}

#[test]
fn a_class_that_a_profile_does_not_name_costs_a_picosecond() {
    let profile = CostProfile::of("loads", &[(Class::Load, 7)]);
    for class in Class::ALL {
        assert_eq!(profile.cost_ps(class), if class == Class::Load { 7 } else { 1 }, "{class:?}");
    }
}

#[test]
fn a_called_function_begins_with_its_first_segment() {
    static CALLED: Graph = Graph {
        blocks: &[block(1), block(10)],
        edges: &[edge(0, 1, EdgeKind::Next)],
        loops: &[],
        segments: &[START, Segment { entry: 1, ..START }],
        ..GOOD
    };
    static CALLS: Block = Block { calls: &[&CALLED], ..block(100) };
    let graph = Graph { blocks: std::slice::from_ref(&CALLS), edges: &[], loops: &[], ..GOOD };
    assert_eq!(bounds(&graph, &CostProfile::built_in()).unwrap().segments[..], [111]);
}

#[test]
fn following_segments_are_listed_in_order() {
    let graph = Graph {
        edges: const {
            &[
                edge(0, 1, EdgeKind::Next),
                edge(1, 2, EdgeKind::Yield(2)),
                edge(1, 0, EdgeKind::Next),
                edge(0, 3, EdgeKind::Yield(1)),
                edge(3, 2, EdgeKind::Yield(2)),
            ]
        },
        loops: &[],
        segments: const { &[START, Segment { entry: 3, ..START }, Segment { entry: 2, ..START }] },
        ..GOOD
    };
    assert_eq!(
        [0, 1, 2, 3].map(|segment| graph.after(segment)),
        [vec![1, 2], vec![2], vec![], vec![]]
    );
    // A missing first block leads nowhere.
    let graph = Graph { segments: const { &[Segment { entry: 9, ..START }] }, ..graph };
    assert!(graph.after(0).is_empty());
}

#[test]
fn the_whole_picture() {
    static CALLED: Graph =
        Graph { name: "other", blocks: &[block(1)], edges: &[], loops: &[], ..GOOD };
    let graph = Graph {
        blocks: const {
            &[
                Block { line: 7, calls: &[&CALLED], ..block(1) },
                block(10),
                block(100),
                block(u64::MAX),
            ]
        },
        edges: const {
            &[
                edge(0, 1, EdgeKind::Next),
                edge(1, 2, EdgeKind::Next),
                edge(2, 2, EdgeKind::Back(1)),
                edge(2, 1, EdgeKind::Back(0)),
                edge(1, 3, EdgeKind::Next),
            ]
        },
        loops: const {
            &[
                Loop { line: 3, header: 1, bound: Some(5), parent: None, head: &[1], body: &[2] },
                Loop { line: 4, header: 2, bound: None, parent: Some(0), head: &[], body: &[2] },
            ]
        },
        segments: const { &[START, Segment { entry: 2, ..START }] },
        ..GOOD
    };
    let analysis = analyse(&graph, &CostProfile::built_in()).unwrap();
    let cost = u64::MAX.div_ceil(1000);
    let expected = format!(
        r#"digraph "hand" {{
  node [shape=box fontname=monospace]; edge [fontname=monospace];
  s0 [shape=oval label="segment 0\nno bound"];
  s0 -> b0 [style=dotted];
  s1 [shape=oval label="segment 1\nno bound"];
  s1 -> b2 [style=dotted];
  b0 [label="block 0, line 7\n2 ns\ncalls other"];
  b1 [label="block 1\n10 ns"];
  b2 [label="block 2\n100 ns"];
  b3 [label="block 3\n{cost} ns"];
  subgraph cluster_0 {{
    label="loop, line 3";
    subgraph cluster_1 {{
      label="loop, line 4";
      b2;
    }}
    b1; b2;
  }}
  b0 -> b1;
  b1 -> b2;
  b2 -> b2 [label="yields" constraint=false];
  b2 -> b1 [label="<= 5" constraint=false];
  b1 -> b3;
}}
"#
    );
    assert_eq!(dot(&graph, &analysis), expected);
}

// ---------------------------------------------------------------- every path, one by one

/// Statements of a generated function.
#[derive(Clone, Debug)]
enum Statement {
    Step,
    Either(Vec<Statement>, Vec<Statement>),
    /// At most `.0` rounds of a condition and a body.
    Loop(u64, Vec<Statement>, Vec<Statement>),
    Leave,
    /// Whether it waits.
    Await(bool),
}

fn statements() -> impl Strategy<Value = Vec<Statement>> {
    use Statement::{Await, Either, Leave, Loop, Step};
    let simple = prop_oneof![
        3 => Just(Step),
        1 => any::<bool>().prop_map(Await),
        1 => Just(Leave),
    ];
    let condition = prop::collection::vec(
        prop_oneof![3 => Just(Step), 1 => any::<bool>().prop_map(Await)],
        0..3,
    );
    let list = prop::collection::vec(simple, 1..4);
    let nested = list.prop_recursive(3, 24, 4, move |inner| {
        let either = (inner.clone(), inner.clone()).prop_map(|(a, b)| vec![Either(a, b)]);
        let around = (1..4_u64, condition.clone(), inner.clone())
            .prop_map(|(bound, head, body)| vec![Loop(bound, head, body)]);
        prop::collection::vec(prop_oneof![inner, either, around], 1..4)
            .prop_map(|lists| lists.concat())
    });
    nested.prop_map(|mut list| {
        list.push(Step);
        list
    })
}

/// A loop: its parent, first block, bound, and the blocks of condition and body.
type WrittenLoop = (Option<u16>, u16, u64, Vec<u16>, Vec<u16>);

/// A graph under construction from statements.
#[derive(Default)]
struct Written {
    blocks: u16,
    edges: Vec<Edge>,
    loops: Vec<WrittenLoop>,
    segments: Vec<Segment>,
    /// Open loops: number, whether in the condition, and the blocks that leave it.
    open: Vec<(usize, bool, Vec<u16>)>,
}

impl Written {
    fn block(&mut self) -> u16 {
        let block = self.blocks;
        self.blocks += 1;
        // A loop in the condition of an inner loop belongs to the body of the outer one.
        for (depth, (number, is_head, _)) in self.open.iter().enumerate() {
            let is_innermost = depth + 1 == self.open.len();
            let around = &mut self.loops[*number];
            let part = if *is_head && is_innermost { &mut around.3 } else { &mut around.4 };
            part.push(block);
        }
        block
    }

    fn next(&mut self, from: u16) -> u16 {
        let to = self.block();
        self.edges.push(edge(from, to, EdgeKind::Next));
        to
    }

    /// Continues from a block; returns the last block unless the statements leave a loop.
    fn all(&mut self, list: &[Statement], mut at: u16) -> Option<u16> {
        for statement in list {
            at = self.one(statement, at)?;
        }
        Some(at)
    }

    fn one(&mut self, statement: &Statement, at: u16) -> Option<u16> {
        match statement {
            Statement::Step => Some(self.next(at)),
            Statement::Await(wait) => {
                let (entry, number) = (self.block(), self.segments.len() as u16);
                self.segments.push(Segment { entry, wait: *wait, ..START });
                self.edges.push(edge(at, entry, EdgeKind::Yield(number)));
                Some(entry)
            }
            Statement::Leave => match self.open.last_mut() {
                Some((_, _, leave)) => {
                    leave.push(at);
                    None
                }
                None => Some(at),
            },
            Statement::Either(one, other) => {
                let ends = [one, other].map(|list| {
                    let begin = self.next(at);
                    self.all(list, begin)
                });
                let ends: Vec<_> = ends.into_iter().flatten().collect();
                if ends.is_empty() {
                    return None;
                }
                let join = self.block();
                ends.iter().for_each(|&end| self.edges.push(edge(end, join, EdgeKind::Next)));
                Some(join)
            }
            Statement::Loop(bound, head, body) => {
                let number = self.loops.len();
                let parent = self.open.last().map(|open| open.0 as u16);
                self.loops.push((parent, self.blocks, *bound, Vec::new(), Vec::new()));
                self.open.push((number, true, Vec::new()));
                let header = self.next(at);
                let condition = self.all(head, header).unwrap();
                if let Some(open) = self.open.last_mut() {
                    open.1 = false;
                    open.2.push(condition);
                }
                let begin = self.next(condition);
                if let Some(end) = self.all(body, begin) {
                    self.edges.push(edge(end, header, EdgeKind::Back(number as u16)));
                }
                let (_, _, leave) = self.open.pop().unwrap();
                let after = self.block();
                leave.iter().for_each(|&from| self.edges.push(edge(from, after, EdgeKind::Next)));
                Some(after)
            }
        }
    }

    fn graph(self, costs: &[u64]) -> Graph {
        let blocks: Vec<_> =
            (0..usize::from(self.blocks)).map(|place| block(costs[place % costs.len()])).collect();
        let loops: Vec<_> = self
            .loops
            .into_iter()
            .map(|(parent, header, bound, head, body)| Loop {
                line: 0,
                header,
                bound: Some(bound),
                parent,
                head: Vec::leak(head),
                body: Vec::leak(body),
            })
            .collect();
        Graph {
            blocks: Vec::leak(blocks),
            edges: Vec::leak(self.edges),
            loops: Vec::leak(loops),
            segments: Vec::leak(self.segments),
            ..GOOD
        }
    }
}

/// By loop: runs of its body since it was entered, and whether one has begun in this round.
type Rounds = Vec<(u64, bool)>;

/// The most expensive path from a block to its end, followed step by step.
struct Ways<'g> {
    graph: &'g Graph,
    waits_only: bool,
    known: std::collections::HashMap<(u16, Rounds), Option<u64>>,
}

impl Ways<'_> {
    fn is_in(&self, number: usize, block: u16) -> bool {
        let around = &self.graph.loops[number];
        around.head.contains(&block) || around.body.contains(&block)
    }

    /// None if a loop has exceeded its bound.
    fn arrive(&self, block: u16, rounds: &Rounds) -> Option<Rounds> {
        let mut rounds = rounds.clone();
        for (number, around) in self.graph.loops.iter().enumerate() {
            if !self.is_in(number, block) {
                rounds[number] = (0, false);
            } else if around.body.contains(&block) && !rounds[number].1 {
                rounds[number] = (rounds[number].0 + 1, true);
                if rounds[number].0 > around.bound.unwrap() {
                    return None;
                }
            }
        }
        Some(rounds)
    }

    fn from(&mut self, block: u16, rounds: Rounds) -> Option<u64> {
        if let Some(known) = self.known.get(&(block, rounds.clone())) {
            return *known;
        }
        let graph = self.graph;
        let mut longest: Option<u64> = None;
        let mut is_end = true;
        for edge in graph.edges.iter().filter(|edge| edge.from == block) {
            is_end = false;
            let rest = match edge.kind {
                EdgeKind::Yield(number)
                    if !self.waits_only || graph.segments[usize::from(number)].wait =>
                {
                    Some(0)
                }
                kind => {
                    let mut after = rounds.clone();
                    if let EdgeKind::Back(number) = kind {
                        after[usize::from(number)].1 = false;
                    }
                    let after = self.arrive(edge.to, &after);
                    after.and_then(|after| self.from(edge.to, after))
                }
            };
            longest = longest.max(rest);
        }
        let rest = if is_end { Some(0) } else { longest };
        let found = rest.map(|rest| rest + graph.blocks[usize::from(block)].declared_ns);
        self.known.insert((block, rounds), found);
        found
    }
}

fn longest(graph: &Graph, entry: u16, waits_only: bool) -> u64 {
    let mut ways = Ways { graph, waits_only, known: <_>::default() };
    let rounds = vec![(0, false); graph.loops.len()];
    let rounds = ways.arrive(entry, &rounds).unwrap();
    ways.from(entry, rounds).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn bounds_equal_the_most_expensive_path(
        list in statements(),
        costs in prop::collection::vec(0..100_u64, 1..40),
    ) {
        let mut written = Written { segments: vec![START], ..Written::default() };
        let first = written.block();
        written.all(&list, first);
        let graph = written.graph(&costs);
        let found = bounds(&graph, &CostProfile::built_in()).unwrap();
        for (number, segment) in graph.segments.iter().enumerate() {
            prop_assert_eq!(
                found.segments[number], longest(&graph, segment.entry, false), "{} of {:?}", number, graph
            );
            prop_assert_eq!(
                found.remaining[number], longest(&graph, segment.entry, true), "{} of {:?}", number, graph
            );
        }
    }
}
