//! `picnic schema`: the shapes of the JSON that other programs read.

use crate::failure::ErrorList;
use crate::output;
use clap::Args;
use picnic_control::report::Report;
use picnic_lab::document;
use picnic_lab::folder::Manifest;
use picnic_lab::runner::Record;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

#[derive(Debug, Args)]
#[command(after_help = "\
The schema of each object is in `$defs`:
  Report      picnic run --json, picnic ctl stats --json, card.stats
  Document    picnic lab ab|run --json, answer.json
  Manifest    run.json in the folder of a run
  Record      a line of points.jsonl there
  ErrorList   any command with --json if the card file is wrong

Example:
  picnic schema > picnic.schema.json")]
pub(crate) struct SchemaArgs {}

pub(crate) fn run(_: &SchemaArgs) -> anyhow::Result<()> {
    output::print_json(&schema())
}

/// All objects, each with the objects that it refers to.
fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.subschema_for::<Report>();
    generator.subschema_for::<document::Fields<'_>>();
    generator.subschema_for::<Manifest>();
    generator.subschema_for::<Record>();
    generator.subschema_for::<ErrorList>();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": generator.take_definitions(true),
    })
}
