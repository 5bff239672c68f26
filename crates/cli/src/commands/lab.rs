//! `picnic lab list|run|report`: experiments, and what came of them.

use super::components::{describe, keys_table};
use crate::failure::Usage;
use crate::output::{self, Column};
use clap::{Args, Subcommand};
use picnic_core::config::Section;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Entry};
use picnic_lab::experiment::{Experiment, Outcome, Table};
use picnic_lab::facts::facts;
use picnic_lab::registry::EXPERIMENTS;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Run experiments that say what a NIC feature gives.
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// List the experiments, or the settings of one
    List {
        /// Show the settings of this one
        name: Option<String>,
    },
    /// Run an experiment
    Run(RunArgs),
    /// Print what earlier runs came to, from the files that `--output` wrote
    Report {
        /// Files written by `picnic lab run --output`
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Which; `picnic lab list` has their names
    name: String,
    /// A setting, as in `--set sets=50`; `picnic lab list NAME` has them
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Where it runs, for short: `--set world=host`
    #[arg(long, value_parser = ["sim", "host"])]
    world: Option<String>,
    /// Write the outcome to this file too, as JSON
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &LabArgs, json: bool) -> anyhow::Result<()> {
    match &args.command {
        LabCommand::List { name: None } => list(json),
        LabCommand::List { name: Some(name) } => settings(entry(name)?, json),
        LabCommand::Run(args) => run_one(args, json),
        LabCommand::Report { files } => report(files, json),
    }
}

fn entry(name: &str) -> anyhow::Result<&'static Entry<Box<dyn Experiment>>> {
    EXPERIMENTS.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let allowed: Vec<_> = EXPERIMENTS.iter().map(|entry| entry.name).collect();
        let message = format!("found experiment \"{name}\", allowed: {}", allowed.join(", "));
        Usage(message).into()
    })
}

fn list(json: bool) -> anyhow::Result<()> {
    if json {
        return output::print_json(&json!({ "experiments": describe(EXPERIMENTS) }));
    }
    let rows = EXPERIMENTS.iter().map(|entry| vec![entry.name.into(), entry.help.into()]);
    let table = output::table(&[Column::Text("name"), Column::Text("help")], rows);
    output::print(&(table + "\n`picnic lab list NAME` shows the settings of one.\n"))
}

fn settings(entry: &Entry<Box<dyn Experiment>>, json: bool) -> anyhow::Result<()> {
    if json {
        let [described] = &describe(std::slice::from_ref(entry))[..] else { return Ok(()) };
        return output::print_json(described);
    }
    output::print(&format!("{}: {}\n\n{}", entry.name, entry.help, keys_table(&entry.keys())))
}

fn run_one(args: &RunArgs, json: bool) -> anyhow::Result<()> {
    let entry = entry(&args.name)?;
    let experiment = build(entry, args)?;
    // A file that cannot be written is better known before than after.
    let mut file = match &args.output {
        Some(path) => Some(create(path)?),
        None => None,
    };
    let started = Instant::now();
    let mut progress = Progress::new();
    let outcome = experiment.run(&mut |share, what| progress.tell(share, what));
    progress.clear();
    let document = document(entry.name, outcome?, started.elapsed())?;
    if let Some(file) = &mut file {
        serde_json::to_writer_pretty(&mut *file, &document)?;
        writeln!(file)?;
    }
    if json { output::print_json(&document) } else { output::print(&text_of(&document)?) }
}

fn create(path: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::File::create(path)
        .map_err(|error| anyhow::anyhow!("{}: cannot be written: {error}", path.display()))
}

/// Builds an experiment from `KEY=VALUE`s: each value as TOML, or as text if it is none.
fn build(
    entry: &Entry<Box<dyn Experiment>>,
    args: &RunArgs,
) -> anyhow::Result<Box<dyn Experiment>> {
    let mut text = format!("experiment = \"{}\"\n", entry.name);
    let world = args.world.iter().map(|world| format!("world={world}"));
    for setting in args.settings.iter().cloned().chain(world) {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(Usage(format!("found --set {setting}, allowed is KEY=VALUE")).into());
        };
        let line = format!("{} = {value}\n", key.trim());
        text += &match toml::from_str::<toml::Table>(&line) {
            Ok(table) if table.len() == 1 => line,
            _ => format!("{} = {}\n", key.trim(), toml::Value::String(value.trim().into())),
        };
    }
    // Lines of a text that the user never saw say nothing.
    let wrong = |error: ConfigError| Usage(format!("--set {}: {}", error.key, error.message));
    let section = Section::from_text("experiment", &text).map_err(wrong)?;
    Ok(entry.build(&section, &BuildContext::default()).map_err(wrong)?)
}

/// One object: the figures, and all that they must be read with.
fn document(name: &str, outcome: Outcome, took: Duration) -> anyhow::Result<Map<String, Value>> {
    let mut document = Map::new();
    document.insert("experiment".into(), name.into());
    document.extend(outcome.figures);
    document.insert("took_s".into(), took.as_secs_f64().into());
    document.insert("facts".into(), serde_json::to_value(facts(env!("PICNIC_REVISION")))?);
    document.insert("notes".into(), serde_json::to_value(outcome.notes)?);
    document.insert("tables".into(), serde_json::to_value(outcome.tables)?);
    Ok(document)
}

fn report(files: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let mut documents = Vec::new();
    for path in files {
        let about = |what: &dyn std::fmt::Display| anyhow::anyhow!("{}: {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| about(&error))?;
        let document: Map<String, Value> = serde_json::from_str(&text)
            .map_err(|error| about(&format_args!("not the outcome of an experiment: {error}")))?;
        text_of(&document).map_err(|error| about(&error))?;
        documents.push(document);
    }
    if json {
        return output::print_json(&json!({ "runs": documents }));
    }
    let texts: anyhow::Result<Vec<_>> = documents.iter().map(text_of).collect();
    output::print(&texts?.join("\n"))
}

/// A document for people.
fn text_of(document: &Map<String, Value>) -> anyhow::Result<String> {
    let field =
        |name: &str| document.get(name).ok_or_else(|| anyhow::anyhow!("found no field \"{name}\""));
    let tables: Vec<Table> = serde_json::from_value(field("tables")?.clone())?;
    let notes: Vec<String> = serde_json::from_value(field("notes")?.clone())?;
    let name = field("experiment")?.as_str().unwrap_or("?");
    let facts = field("facts")?;
    let fact = |name: &str| facts[name].as_str().unwrap_or("unavailable").to_owned();
    let mut text = format!(
        "{name} on {}, {} cores, kernel {}, revision {}\n\n",
        fact("processor"),
        facts["cores"],
        fact("kernel"),
        fact("revision")
    );
    for table in tables {
        // Headings live as long as the table is being written.
        let columns = table.columns.iter().enumerate();
        let columns: Vec<_> = columns
            .map(|(index, name)| match index {
                0 => Column::Text(name),
                _ => Column::Number(name),
            })
            .collect();
        text += &output::table(&columns, table.rows);
        text.push('\n');
    }
    for note in notes {
        text += &format!("{note}\n");
    }
    Ok(text)
}

/// A line of progress, on a terminal only, a few times a second.
struct Progress {
    shown: Option<Instant>,
    wanted: bool,
}

impl Progress {
    fn new() -> Self {
        Progress { shown: None, wanted: std::io::stderr().is_terminal() }
    }

    fn tell(&mut self, share: f64, what: &str) {
        let fresh = self.shown.is_some_and(|shown| shown.elapsed() < Duration::from_millis(200));
        if self.wanted && !fresh {
            self.shown = Some(Instant::now());
            let _ = write!(std::io::stderr(), "\r{:3.0} % {what}\x1b[K", share * 100.0);
        }
    }

    fn clear(&mut self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
