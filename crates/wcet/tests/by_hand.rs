//! Graphs made by hand: what breaks the promises of a graph is refused, never wrong.

use picnic_wcet::{
    Block, Class, CostProfile, Counts, Edge, EdgeKind, Graph, Loop, Segment, analyse, bounds, dot,
};

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
    assert_eq!(told(cycle), "hand: a way round is no loop");
    let past = Graph {
        edges: const { &[edge(0, 2, EdgeKind::Next), edge(2, 1, EdgeKind::Back(0))] },
        ..GOOD
    };
    assert!(told(past).contains("entered past its header"));
    assert!(told(Graph { segments: &[], ..GOOD }).contains("no first block"));
    assert!(told(Graph { blocks: const { &[block(1)] }, ..GOOD }).contains("not there"));
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
    assert!(told(FIRST).contains("calls go deeper than"), "{}", told(FIRST));
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

/// Nanoseconds that are within one of what 64 bits hold in picoseconds.
const NEARLY: u64 = u64::MAX / 1000;
/// No bound.
const TOP: u64 = u64::MAX;

#[test]
fn a_sum_past_the_top_is_no_bound_and_not_a_small_one() {
    let told = |graph: Graph| bounds(&graph, &CostProfile::built_in()).unwrap().segments.to_vec();
    // Alone it is a bound still.
    let alone = Graph { blocks: const { &[block(NEARLY)] }, edges: &[], loops: &[], ..GOOD };
    assert_eq!(told(alone), [NEARLY]);
    let more = Graph { blocks: const { &[block(NEARLY + 1)] }, ..alone };
    assert_eq!(told(more), [TOP], "by its picoseconds");

    // A block and what it calls; both of two calls.
    static CALLED: Graph = Graph { blocks: &[block(1)], edges: &[], loops: &[], ..GOOD };
    static CALLS: Block = Block { calls: &[&CALLED], ..block(NEARLY) };
    assert_eq!(told(Graph { blocks: std::slice::from_ref(&CALLS), ..alone }), [TOP]);

    // Its operations: with what is declared, and by themselves.
    let dear = CostProfile::of("dear", &[(Class::Load, 1 << 63), (Class::Store, 1 << 63)]);
    static LOADS: Block =
        Block { counts: Counts::of(&[(Class::Load, 1), (Class::Store, 1)]), ..block(1) };
    static LOADS_TWICE: Block = Block { counts: Counts::of(&[(Class::Load, 2)]), ..block(0) };
    for block in [&LOADS, &LOADS_TWICE] {
        let graph = Graph { blocks: std::slice::from_ref(block), ..alone };
        assert_eq!(bounds(&graph, &dear).unwrap().segments[..], [TOP]);
    }

    // A block behind another.
    let behind = Graph {
        blocks: const { &[block(NEARLY), block(1)] },
        edges: const { &[edge(0, 1, EdgeKind::Next)] },
        ..alone
    };
    assert_eq!(told(behind), [TOP]);

    // A loop that is left, behind a block; one that yields for ever, behind a block.
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

    // A loop's rounds, and the way out of it: 2 rounds of a half each, then the condition.
    let rounds = Graph {
        blocks: const { &[block(0), block(1), block(NEARLY / 2), block(0)] },
        loops: const {
            &[Loop { line: 0, header: 1, bound: Some(2), parent: None, head: &[1], body: &[2] }]
        },
        ..GOOD
    };
    assert_eq!(told(rounds), [TOP]);
}

/// From the midst of a loop: the rest of the round, then the rounds that are left, then out.
#[test]
fn what_is_left_of_a_loop_adds_up_to_no_bound_too() {
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
    // The rest of the round, and a round of another way.
    static ROUND: [Block; 5] = [block(0), block(0), block(1), block(NEARLY), block(0)];
    assert_eq!(told(&ROUND), TOP);
    // The rest of the round, and the condition before the way out.
    static OUT: [Block; 5] = [block(0), block(1), block(0), block(NEARLY), block(0)];
    assert_eq!(told(&OUT), TOP);
}

#[test]
fn a_part_of_a_nanosecond_is_one() {
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
    let expected = "hand: a loop stands before the one around it";
    assert_eq!(told(Graph { loops: &ITSELF, ..GOOD }), expected);
}

#[test]
fn a_picture_says_what_a_yield_waits_for() {
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
fn the_built_in_profile_is_what_its_page_says() {
    let profile = CostProfile::built_in();
    let costs: Vec<_> = Class::ALL.iter().map(|&class| (class, profile.cost_ps(class))).collect();
    let expected = [
        (Class::Branch, 12_000),
        (Class::Arithmetic, 2_000),
        (Class::Bitwise, 1_000),
        (Class::Multiply, 5_000),
        (Class::Divide, 50_000),
        (Class::Load, 120_000),
        (Class::Store, 20_000),
        (Class::Call, 25_000),
        (Class::Service, 1_000_000),
        (Class::Segment, 1_000_000),
    ];
    assert_eq!(costs.len(), expected.len());
    assert!(expected.iter().all(|cost| costs.contains(cost)), "{costs:?}");
}
