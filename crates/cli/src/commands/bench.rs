//! `picnic bench`: what the card costs on this machine, by ratio and median.
//!
//! Nothing here is a test: times vary with the machine. Figures of one call are
//! measured interleaved, so that a drift of the machine's speed hits all alike.

use crate::output;
use clap::Args;
use picnic_lab::benchmarks::{self, What};
use picnic_lab::facts::facts;
use serde_json::Value;

/// Measure the card on this machine.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

/// Runs a benchmark.
pub(crate) fn run(args: &BenchArgs, json: bool) -> anyhow::Result<()> {
    let mut result = benchmarks::run(&args.what)?;
    let facts = serde_json::to_value(facts(env!("PICNIC_REVISION")))?;
    if let (Some(result), Value::Object(facts)) = (result.as_object_mut(), facts) {
        result.extend(facts);
    }
    if json {
        return output::print_json(&result);
    }
    output::print(&text(&result))
}

/// A result for people: a line for each figure, then the tables.
fn text(result: &Value) -> String {
    let Some(fields) = result.as_object() else { return String::new() };
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    let mut tables = String::new();
    for (name, value) in fields {
        match value.as_array() {
            Some(rows) => tables += &format!("\n{name}\n{}", table(rows)),
            None => text += &format!("{name:width$}  {}\n", figure(value)),
        }
    }
    text + &tables
}

/// A figure as people read it.
fn figure(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if value.is_f64() => format!("{number:.3}"),
        _ => value.to_string().trim_matches('"').to_owned(),
    }
}

/// Objects of the same fields, one a line.
fn table(rows: &[Value]) -> String {
    let objects: Vec<_> = rows.iter().filter_map(Value::as_object).collect();
    let names: Vec<&String> = objects.first().map_or(Vec::new(), |first| first.keys().collect());
    let cell = |value: Option<&Value>| value.map_or_else(String::new, figure);
    let cells: Vec<Vec<String>> = objects
        .iter()
        .map(|object| names.iter().map(|name| cell(object.get(name.as_str()))).collect())
        .collect();
    let widths: Vec<usize> = names
        .iter()
        .enumerate()
        .map(|(place, name)| cells.iter().map(|row| row[place].len()).fold(name.len(), usize::max))
        .collect();
    let line = |words: &mut dyn Iterator<Item = &String>| {
        let padded: Vec<_> =
            words.zip(&widths).map(|(word, width)| format!("{word:>width$}")).collect();
        padded.join("  ") + "\n"
    };
    let mut text = line(&mut names.iter().copied());
    for row in &cells {
        text += &line(&mut row.iter());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_stand_under_each_other_and_rows_in_a_table() {
        let result = json!({ "benchmark": "x", "long_name_ns": 1.5, "curve": [
            { "rate_pps": 1000, "p50_ns": 20.25 }, { "rate_pps": 20, "p50_ns": 3.0 },
        ] });
        let expected = "benchmark     x\nlong_name_ns  1.500\n\ncurve\n\
                        rate_pps  p50_ns\n    1000  20.250\n      20   3.000\n";
        assert_eq!(text(&result), expected);
    }
}
