//! `picnic wcet show`: a task's graph, its bounds under a profile, and observed times.

use crate::failure::Usage;
use crate::output;
use clap::Args;
use picnic_core::error::not_among;
use picnic_lab::calibrate::observe::{Observed, observe};
use picnic_tasks::graphs::Graphed;
use picnic_tasks::registry::graphs;
use picnic_wcet::{Analysis, CostProfile, EdgeKind, Graph, analyse};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The task [default: list all with their largest bounds]
    task: Option<String>,
    /// Cost profile, as `picnic wcet calibrate` writes it [default: the built-in one]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Run this many segments of the task on this machine and show the times they took
    #[arg(long, value_name = "SEGMENTS", num_args = 0..=1, default_missing_value = "20000")]
    observe: Option<usize>,
    /// Print only the graph, in Graphviz's language
    #[arg(long, conflicts_with = "observe")]
    dot: bool,
}

pub(super) fn run(args: &ShowArgs, json: bool) -> anyhow::Result<()> {
    let profile = match &args.profile {
        Some(path) => CostProfile::load(path)?,
        None => CostProfile::built_in(),
    };
    let Some(name) = &args.task else {
        if args.dot || args.observe.is_some() {
            return Err(Usage(format!("which task? {}", allowed())).into());
        }
        return list(&profile, json);
    };
    let Some(task) = graphs().find(|task| task.name == *name) else {
        let allowed = graphs().map(|task| task.name);
        return Err(Usage(not_among("task ", name, allowed)).into());
    };
    let analysis = analyse(task.graph, &profile)?;
    if args.dot {
        let text = picnic_wcet::dot(task.graph, &analysis);
        return output::show(&json!({ "task": task.name, "dot": text }), json, || text);
    }
    let (observed, warning) = match args.observe {
        None => (None, None),
        Some(segments @ 1..=100_000_000) => {
            let (observed, warning) =
                observe((task.program)(), segments, &analysis.bounds.segments)?;
            (Some(observed), warning)
        }
        Some(found) => {
            let message = format!("--observe: found {found}, allowed: 1 to 100000000");
            return Err(Usage(message).into());
        }
    };
    if let Some(warning) = warning {
        output::tell(format_args!("warning: {warning}"));
    }
    let shown = Shown { task: &task, profile: &profile, analysis: &analysis, observed };
    output::show(&shown.json(), json, || shown.text())
}

/// The origin of the bounds of a card's tasks.
const IN_A_CARD: &str = "A card uses that of [os] cost_profile = \"FILE\", or the built-in one; \
                         wcet_ns of a [[task]] overrides it.\n";

fn allowed() -> String {
    let names: Vec<_> = graphs().map(|task| task.name).collect();
    format!("allowed: {}", names.join(", "))
}

fn list(profile: &CostProfile, json: bool) -> anyhow::Result<()> {
    let mut tasks = Vec::new();
    for task in graphs() {
        let bounds = analyse(task.graph, profile)?.bounds;
        let longest = bounds.segments.iter().copied().max().unwrap_or(0);
        tasks.push((task, bounds.segments.len(), longest));
    }
    if json {
        let tasks: Vec<_> = tasks
            .iter()
            .map(|(task, segments, longest)| {
                let (name, help) = (task.name, task.help);
                json!({
                    "task": name,
                    "help": help,
                    "segments": segments,
                    "longest_segment_bound_ns": bounded(*longest),
                })
            })
            .collect();
        return output::print_json(&json!({ "profile": profile.name, "tasks": tasks }));
    }
    let columns = output::columns("task|#segments|#longest bound|help");
    let rows = tasks.iter().map(|(task, segments, longest)| {
        vec![task.name.into(), segments.to_string(), bound_text(*longest), task.help.into()]
    });
    let table = output::table(&columns, rows);
    let told = format!("\nBounds under the cost profile: {}.\n{IN_A_CARD}", profile.name);
    output::print(&(table + &told))
}

/// A bound for programs: null if unbounded.
fn bounded(ns: u64) -> Option<u64> {
    (ns != u64::MAX).then_some(ns)
}

fn bound_text(ns: u64) -> String {
    bounded(ns).map_or_else(|| "none".into(), |ns| output::nanoseconds(Some(ns)))
}

struct Shown<'a> {
    task: &'a Graphed,
    profile: &'a CostProfile,
    analysis: &'a Analysis,
    observed: Option<Vec<Observed>>,
}

impl Shown<'_> {
    fn graph(&self) -> &Graph {
        self.task.graph
    }

    fn text(&self) -> String {
        let graph = self.graph();
        let mut text = format!("{}: {}\n", self.task.name, self.task.help);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}:{}\n", graph.file, graph.line);
        let _ = writeln!(text, "Segments, bounds under the cost profile: {}", self.profile.name);
        if let Some(machine) = &self.profile.machine {
            let picnic_wcet::Machine { cpu, kernel, date, build } = machine;
            let _ = writeln!(text, "measured on {cpu}, Linux {kernel}, {date}, {build} build");
        }
        text.push('\n');
        text.push_str(&self.segments());
        text.push_str("\nBlocks: what one run of each costs under the profile\n\n");
        text.push_str(&self.blocks());
        if !graph.loops.is_empty() {
            text.push_str("\nLoops\n\n");
            text.push_str(&self.loops());
        }
        text
    }

    fn segments(&self) -> String {
        let mut columns =
            output::columns("#segment|#line|begins after|then|#bound|#until it waits");
        if self.observed.is_some() {
            columns.extend(output::columns("#runs|#observed p50|#p99|#max|#over bound"));
        }
        let bounds = &self.analysis.bounds;
        let rows = self.graph().segments.iter().enumerate().map(|(number, segment)| {
            let after = match (number, segment.after, segment.wait) {
                (0, ..) => "the start".into(),
                (_, "", _) => "an await".into(),
                (_, after, true) => format!("{after} (a wait)"),
                (_, after, false) => after.into(),
            };
            let mut row = vec![
                number.to_string(),
                segment.line.to_string(),
                after,
                self.then(number),
                bound_text(bounds.segments[number]),
                bound_text(bounds.remaining[number]),
            ];
            if let Some(observed) = &self.observed {
                let seen = observed.get(number).cloned().unwrap_or_default();
                row.extend([
                    output::count(seen.runs as u64),
                    observed_text(seen.median_ns),
                    observed_text(seen.p99_ns),
                    observed_text(seen.max_ns),
                    output::count(seen.over_bound as u64),
                ]);
            }
            row
        });
        output::table(&columns, rows)
    }

    /// The segments that may follow.
    fn then(&self, segment: usize) -> String {
        let next = u16::try_from(segment).map(|segment| self.graph().after(segment));
        let next: Vec<_> = next.unwrap_or_default().iter().map(ToString::to_string).collect();
        if next.is_empty() { "the end".into() } else { next.join(", ") }
    }

    fn blocks(&self) -> String {
        let columns = output::columns("#block|#line|#cost|operations|goes to");
        let graph = self.graph();
        let rows = graph.blocks.iter().enumerate().map(|(place, block)| {
            let mut operations: Vec<_> = block
                .counts
                .iter()
                .map(|(class, count)| format!("{count} {}", class.name()))
                .collect();
            if block.declared_ns != 0 {
                operations.push(format!("{} ns given", block.declared_ns));
            }
            operations.extend(block.calls.iter().map(|called| format!("{}()", called.name)));
            let edges = graph.edges.iter().filter(|edge| usize::from(edge.from) == place);
            let edges: Vec<_> = edges
                .map(|edge| match edge.kind {
                    EdgeKind::Next => edge.to.to_string(),
                    EdgeKind::Back(number) => format!("{} (round of loop {number})", edge.to),
                    EdgeKind::Yield(number) => format!("{} (yield, segment {number})", edge.to),
                })
                .collect();
            vec![
                place.to_string(),
                if block.line == 0 { "-".into() } else { block.line.to_string() },
                output::nanoseconds(Some(self.analysis.block_ps[place].div_ceil(1000))),
                operations.join(", "),
                if edges.is_empty() { "the end".into() } else { edges.join(", ") },
            ]
        });
        output::table(&columns, rows)
    }

    fn loops(&self) -> String {
        let columns = output::columns("#loop|#line|inside|rounds at most");
        let rows = self.graph().loops.iter().enumerate().map(|(number, around)| {
            vec![
                number.to_string(),
                around.line.to_string(),
                around.parent.map_or_else(|| "-".into(), |parent| format!("loop {parent}")),
                around.bound.map_or_else(|| "yields on each".into(), |most| most.to_string()),
            ]
        });
        output::table(&columns, rows)
    }

    fn json(&self) -> Value {
        let graph = self.graph();
        let bounds = &self.analysis.bounds;
        let segments: Vec<_> = graph
            .segments
            .iter()
            .enumerate()
            .map(|(number, segment)| {
                json!({
                    "segment": number,
                    "line": segment.line,
                    "block": segment.entry,
                    "after": segment.after,
                    "wait": segment.wait,
                    "next": u16::try_from(number).map(|number| graph.after(number)).ok(),
                    "bound_ns": bounded(bounds.segments[number]),
                    "remaining_ns": bounded(bounds.remaining[number]),
                    "observed": self.observed.as_ref().and_then(|seen| seen.get(number)),
                })
            })
            .collect();
        let blocks: Vec<_> = graph
            .blocks
            .iter()
            .zip(&self.analysis.block_ps)
            .map(|(block, cost_ps)| json!({ "cost_ps": cost_ps, "block": block }))
            .collect();
        json!({
            "task": self.task.name,
            "file": graph.file,
            "line": graph.line,
            "profile": { "name": self.profile.name, "machine": self.profile.machine },
            "segments": segments,
            "blocks": blocks,
            "edges": graph.edges,
            "loops": graph.loops,
        })
    }
}

fn observed_text(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".into(), |ns| output::nanoseconds(Some(ns)))
}
