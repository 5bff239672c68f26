//! The macros' lowering without a compiler: text in, graph out.

#![expect(dead_code, reason = "the attributes themselves use it")]

extern crate proc_macro;

mod constructs;
mod programs;

// Only a proc-macro crate's own tests can use its internals.
#[path = "../../../wcet-macros/src"]
mod internals {
    pub(crate) mod attributes;
    pub(crate) mod cost;
    pub(crate) mod count;
    pub(crate) mod emit;
    pub(crate) mod flow;
    pub(crate) mod lower;
    pub(crate) mod table;
}

use internals::{attributes, cost, count, emit, flow, lower, table};

use crate::cost::Class;
use crate::flow::{Call, Flow, Kind};
use crate::lower::Item;
use picnic_wcet::{Block, Bounds, CostProfile, Counts, Edge, EdgeKind, Graph, Loop, Segment};

/// A lowered function, or its errors.
fn lowered(text: &str) -> Result<(Flow, Item), Vec<String>> {
    let mut function: syn::ItemFn = syn::parse_str(text).unwrap_or_else(|error| {
        panic!("{error} in {text}");
    });
    let task = function.sig.asyncness.is_some();
    let mut item = Item {
        name: function.sig.ident.to_string(),
        context: task.then(|| syn::parse_str("card").unwrap()),
        ..Item::default()
    };
    crate::emit::number_awaits(&mut function);
    let span = function.sig.ident.span();
    let mut names = Vec::new();
    for input in &function.sig.inputs {
        if let syn::FnArg::Typed(input) = input {
            lower::names_in(&input.pat, &mut names);
        }
    }
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let flow = lower::body(&mut item, &names, &function.block, span);
    if item.errors.is_empty() {
        Ok((flow, item))
    } else {
        Err(item.errors.iter().map(ToString::to_string).collect())
    }
}

/// A task's body.
fn task(body: &str) -> Result<Flow, Vec<String>> {
    lowered(&format!("async fn name(card: Card) {{ {body} }}")).map(|(flow, _)| flow)
}

fn leaked<T>(items: impl IntoIterator<Item = T>) -> &'static [T] {
    Vec::leak(items.into_iter().collect())
}

/// The graph as in the compiled program; looked-up paths cost nothing.
fn graph(flow: &Flow) -> Graph {
    let numbers = |blocks: &[usize]| leaked(blocks.iter().map(|&block| block as u16));
    let closures: Vec<&'static Graph> =
        flow.closures.iter().map(|(_, flow)| &*Box::leak(Box::new(graph(flow)))).collect();
    Graph {
        name: "name",
        file: "",
        line: 0,
        blocks: leaked(flow.blocks.iter().map(|block| Block {
            line: 0,
            counts: Counts::of(
                &picnic_wcet::Class::ALL.map(|class| (class, block.counts.0[class as usize])),
            ),
            declared_ns: block.declared_ns,
            calls: leaked(block.calls.iter().filter_map(|call| match call {
                Call::Path(_) => None,
                Call::Closure(number) => Some(closures[*number]),
            })),
        })),
        edges: leaked(flow.edges.iter().map(|edge| Edge {
            from: edge.from as u16,
            to: edge.to as u16,
            kind: match edge.kind {
                Kind::Next => EdgeKind::Next,
                Kind::Back(number) => EdgeKind::Back(number as u16),
                Kind::Yield(number) => EdgeKind::Yield(number as u16),
            },
        })),
        loops: leaked(flow.loops.iter().map(|around| Loop {
            line: 0,
            header: around.header as u16,
            bound: around.bound,
            parent: around.parent.map(|parent| parent as u16),
            head: numbers(&around.head),
            body: numbers(&around.body),
        })),
        segments: leaked(flow.segments.iter().map(|segment| Segment {
            line: 0,
            entry: segment.entry as u16,
            after: "",
            wait: segment.wait,
        })),
    }
}

/// Operations cost nothing, so only declared times count.
fn declared_only() -> CostProfile {
    CostProfile::of("declared", &picnic_wcet::Class::ALL.map(|class| (class, 0)))
}

fn bounds(flow: &Flow) -> Bounds {
    picnic_wcet::bounds(&graph(flow), &declared_only()).expect("a graph of ours")
}

#[test]
fn classes_are_those_of_picnic_wcet() {
    for (ours, theirs) in Class::ALL.into_iter().zip(picnic_wcet::Class::ALL) {
        assert_eq!(ours as usize, theirs as usize);
        assert_eq!(ours.tokens().to_string(), format!("{theirs:?}"));
    }
}
