//! Compares two runs: two machines, or two revisions.
//!
//! A ratio here compares medians of two runs at different times: it is a hint and has no verdict.
//! Proper comparisons alternate between the sides in one run.

use super::{Report, facts_of};
use crate::outcome::{Figure, Outcome, Point, Table};
use crate::unit::Unit;
use serde_json::{Value, json};

/// Common and different parts of two runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Diff {
    /// Facts that differ.
    pub facts: Table,
    /// By experiment: each figure that both have.
    pub experiments: Vec<Table>,
    /// Experiments without figures on one side.
    pub missing: Vec<String>,
}

/// Compares two runs.
pub fn diff(a: &Report, b: &Report) -> Diff {
    let columns = ["fact", "A", "B"].map(String::from).to_vec();
    let mut facts = Table { columns, words: 3, ..Table::default() };
    let told = |report: &Report| report.machines.first().map(facts_of).unwrap_or_default();
    for ((name, left), (_, right)) in told(a).into_iter().zip(told(b)) {
        if left != right {
            facts.rows.push(vec![name.into(), left, right]);
        }
    }
    let names = a.sections.iter().chain(&b.sections).map(|section| section.name.as_str());
    let mut seen: Vec<&str> = Vec::new();
    let (mut experiments, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        match (outcome(a, name), outcome(b, name)) {
            (Some(left), Some(right)) => experiments.push(beside(name, left, right)),
            _ => missing.push(name.to_owned()),
        }
    }
    Diff { facts, experiments, missing }
}

impl Diff {
    /// For programs.
    pub fn json(&self) -> Value {
        let table = |table: &Table| {
            let rows = table.rows.iter().map(|row| {
                let cells = table.columns.iter().zip(row).map(|(k, v)| (k.clone(), json!(v)));
                Value::Object(cells.collect())
            });
            json!({ "name": table.title, "rows": rows.collect::<Vec<_>>() })
        };
        json!({
            "facts": table(&self.facts),
            "experiments": self.experiments.iter().map(table).collect::<Vec<_>>(),
            "missing": self.missing,
        })
    }
}

fn outcome<'r>(report: &'r Report, name: &str) -> Option<&'r Outcome> {
    let section = report.sections.iter().find(|section| section.name == name)?;
    Some(&section.document.as_ref()?.outcome)
}

fn beside(name: &str, left: &Outcome, right: &Outcome) -> Table {
    let columns = ["at", "figure", "A", "B", "B / A"].map(String::from).to_vec();
    let mut table = Table { title: name.into(), columns, words: 2, rows: Vec::new() };
    let mut add = |at: &str, left: &Point, right: &Point| {
        for (left, right) in shown(left).iter().zip(shown(right)) {
            if left.key != right.key {
                continue;
            }
            let ratio = left.spread().zip(right.spread()).map(|(a, b)| b.median / a.median);
            let ratio = ratio.filter(|ratio| ratio.is_finite());
            let ratio = ratio.map_or_else(|| "-".into(), |ratio| Unit::Ratio.text(ratio));
            table.rows.push(vec![at.into(), left.label(), left.text(), right.text(), ratio]);
        }
    };
    add("whole run", &left.whole, &right.whole);
    for series in &left.series {
        let Some(other) = right.series.iter().find(|other| other.name == series.name) else {
            continue;
        };
        for point in &series.points {
            let same = other.points.iter().find(|other| other.labels == point.labels);
            if let Some(same) = same {
                add(&format!("{}: {}", series.name, at(point)), point, same);
            }
        }
    }
    table
}

/// Both sides of comparisons, and figures for people.
fn shown(point: &Point) -> Vec<Figure> {
    let sides = point.comparisons.iter().flat_map(|comparison| comparison.sides());
    sides.chain(point.figures.iter().filter(|figure| !figure.detail).cloned()).collect()
}

fn at(point: &Point) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    point.labels.values().map(text).collect::<Vec<_>>().join(", ")
}
