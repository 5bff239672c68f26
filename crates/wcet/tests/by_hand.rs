//! Graphs made by hand: what breaks the promises of a graph is refused, never wrong.

use picnic_wcet::{
    Block, CostProfile, Counts, Edge, EdgeKind, Graph, Loop, Segment, analyse, bounds, dot,
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
