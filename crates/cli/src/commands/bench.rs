//! `picnic bench NAME`: runs a question of `examples/questions` as `picnic lab ab`.

use super::lab::ab;
use super::lab::question::Named;
use picnic_lab::document::Kind;

pub(crate) type BenchArgs = super::later::Later<Named>;

/// Runs the question.
pub(crate) fn run(args: &BenchArgs, json: bool) -> anyhow::Result<()> {
    ab::run(&args.0.options, Kind::Benchmark, &args.0.name, json)
}
