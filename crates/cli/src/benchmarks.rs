//! A program of benchmarks: `NAME --KEY VALUE`, with `--json`.
//!
//! Names, options and help come from the registry of benchmarks. Nothing here is a test: times vary
//! with the machine. Figures of one call are measured interleaved, so that a drift of the machine's
//! speed affects all equally.

use crate::commands::keyed::{about, valued, word};
use crate::commands::lab::{self, wrong_setting};
use clap::{Arg, ArgAction, ArgMatches, Command};
use picnic_core::config::KeyHelp;
use picnic_lab::document::Kind;
use picnic_lab::registry::{ExperimentEntry, build};

/// The benchmarks as commands of the program.
fn command(benchmarks: &[ExperimentEntry]) -> Command {
    let json = Arg::new("json").long("json").global(true).action(ArgAction::SetTrue);
    Command::new("picnic-micro")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Measure single parts of a card on this machine")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(json.help("Print only one JSON object on standard output"))
        .subcommands(benchmarks.iter().map(command_of))
}

/// Runs the benchmark that the command line names.
pub(crate) fn run(benchmarks: &[ExperimentEntry]) -> anyhow::Result<()> {
    let matches = command(benchmarks).get_matches();
    let chosen = matches.subcommand().and_then(|(name, given)| {
        Some((benchmarks.iter().find(|entry| entry.name == name)?, given))
    });
    let Some((entry, given)) = chosen else { return Ok(()) };
    let option = |key: &str| format!("--{}", word(key));
    let settings = settings(entry, given);
    let benchmark = build(entry, &settings).map_err(|error| wrong_setting(error, option))?;
    let document = lab::measure(Kind::Benchmark, entry.name, &*benchmark)?;
    lab::show(&document, given.get_flag("json"))
}

/// An option for a key.
fn option(key: &KeyHelp) -> Arg {
    let name = word(&key.name);
    let kind = key.r#type.as_str();
    let arg = valued(Arg::new(name).long(name), key);
    let arg = match kind {
        "boolean" => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        kind if kind.starts_with("list of ") => arg.action(ArgAction::Append),
        kind if kind.starts_with("integer") => arg.value_parser(number::<i64>),
        kind if kind.starts_with("number") => arg.value_parser(number::<f64>),
        _ => arg,
    };
    let help = key.help.trim_end_matches('.');
    match key.default.as_str() {
        "" | "[]" | "false" => arg.help(help.to_owned()),
        default => arg.help(format!("{help} [default: {}]", default.replace('"', ""))),
    }
}

/// Checks that it is a number.
fn number<T: std::str::FromStr>(text: &str) -> Result<String, String>
where
    T::Err: std::fmt::Display,
{
    text.parse::<T>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn command_of(entry: &ExperimentEntry) -> Command {
    Command::new(entry.name).about(about(entry.help)).args(entry.keys().iter().map(option))
}

/// Keys and values as given.
fn settings(entry: &ExperimentEntry, given: &ArgMatches) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    for key in entry.keys() {
        let values = given.try_get_many::<String>(word(&key.name)).ok().flatten();
        settings.extend(values.into_iter().flatten().map(|text| (key.name.clone(), text.clone())));
    }
    settings
}
