//! A graph as a Graphviz picture.

use crate::analysis::Analysis;
use crate::graph::{EdgeKind, Graph};
use std::fmt::Write;

/// The graph in Graphviz's language. Each block shows its line and its cost under the profile of
/// the analysis; loops are frames, awaits are dashed edges.
pub fn dot(graph: &Graph, analysis: &Analysis) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "digraph \"{}\" {{", graph.name);
    let _ = writeln!(text, "  node [shape=box fontname=monospace]; edge [fontname=monospace];");
    for (number, segment) in graph.segments.iter().enumerate() {
        let bound = bound(analysis.bounds.segments[number]);
        let _ = writeln!(text, "  s{number} [shape=oval label=\"segment {number}\\n{bound}\"];");
        let _ = writeln!(text, "  s{number} -> b{} [style=dotted];", segment.entry);
    }
    for (place, block) in graph.blocks.iter().enumerate() {
        let cost = analysis.block_ps[place].div_ceil(1000);
        let line = if block.line == 0 { String::new() } else { format!(", line {}", block.line) };
        let _ = write!(text, "  b{place} [label=\"block {place}{line}\\n{cost} ns");
        for called in block.calls {
            let _ = write!(text, "\\ncalls {}", called.name);
        }
        text.push_str("\"];\n");
    }
    frames(graph, None, 1, &mut text);
    for edge in graph.edges {
        let style = match edge.kind {
            EdgeKind::Next => String::new(),
            EdgeKind::Back(number) => {
                let rounds = graph.loops[usize::from(number)].bound;
                let rounds = rounds.map_or_else(|| "yields".into(), |most| format!("<= {most}"));
                format!(" [label=\"{rounds}\" constraint=false]")
            }
            EdgeKind::Yield(number) => {
                let segment = &graph.segments[usize::from(number)];
                let after = if segment.after.is_empty() { "await" } else { segment.after };
                let style = if segment.wait { "bold" } else { "dashed" };
                format!(" [style={style} label=\"{after}\"]")
            }
        };
        let _ = writeln!(text, "  b{} -> b{}{style};", edge.from, edge.to);
    }
    text.push_str("}\n");
    text
}

fn bound(ns: u64) -> String {
    if ns == u64::MAX { "no bound".into() } else { format!("{ns} ns") }
}

/// Loops inside `parent`, each with its blocks and the loops inside it.
fn frames(graph: &Graph, parent: Option<u16>, depth: usize, text: &mut String) {
    for (number, around) in graph.loops.iter().enumerate() {
        if around.parent != parent {
            continue;
        }
        let pad = "  ".repeat(depth);
        let _ = writeln!(text, "{pad}subgraph cluster_{number} {{");
        let _ = writeln!(text, "{pad}  label=\"loop, line {}\";", around.line);
        let own = u16::try_from(number).ok();
        frames(graph, own, depth + 1, text);
        let blocks = around.head.iter().chain(around.body);
        let names: Vec<_> = blocks.map(|block| format!("b{block};")).collect();
        let _ = writeln!(text, "{pad}  {}\n{pad}}}", names.join(" "));
    }
}
