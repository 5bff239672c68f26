//! `picnic lab list|run|report`: experiments, and what came of them.

use super::components::{describe, keys_table};
use crate::failure::Usage;
use crate::output::{self, Column};
use clap::{Args, Subcommand};
use picnic_core::error::ConfigError;
use picnic_lab::document::{Document, Kind};
use picnic_lab::experiment::{Experiment, LabError, Run};
use picnic_lab::facts::facts;
use picnic_lab::outcome::Table;
use picnic_lab::registry::{EXPERIMENTS, ExperimentEntry, build};
use serde_json::{Value, json};
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

fn entry(name: &str) -> anyhow::Result<&'static ExperimentEntry> {
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

fn settings(entry: &ExperimentEntry, json: bool) -> anyhow::Result<()> {
    if json {
        let [described] = &describe(std::slice::from_ref(entry))[..] else { return Ok(()) };
        return output::print_json(described);
    }
    output::print(&format!("{}: {}\n\n{}", entry.name, entry.help, keys_table(&entry.keys())))
}

fn run_one(args: &RunArgs, json: bool) -> anyhow::Result<()> {
    let entry = entry(&args.name)?;
    let experiment = build_from(entry, args)?;
    // A file that cannot be written is better known before than after.
    let mut file = match &args.output {
        Some(path) => Some(create(path)?),
        None => None,
    };
    let document = measure(Kind::Experiment, entry.name, &*experiment)?;
    if let Some(file) = &mut file {
        serde_json::to_writer_pretty(&mut *file, &document.to_json())?;
        writeln!(file)?;
    }
    show(&document, json)
}

/// Runs an entry, with its progress on the terminal.
pub(crate) fn measure(
    kind: Kind,
    name: &str,
    experiment: &dyn Experiment,
) -> anyhow::Result<Document> {
    let started = Instant::now();
    let mut progress = Progress::new();
    let outcome = experiment.run(&mut Run::new(|share, what| progress.tell(share, what)));
    progress.clear();
    let outcome = outcome.map_err(LabError::into_cause)?;
    let took_s = started.elapsed().as_secs_f64();
    let facts = facts(env!("PICNIC_REVISION"));
    Ok(Document { kind, name: name.into(), outcome, took_s, facts })
}

/// Prints a result.
pub(crate) fn show(document: &Document, json: bool) -> anyhow::Result<()> {
    if json {
        return output::print_json(&document.to_json());
    }
    output::print(&text_of(document))
}

fn create(path: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::File::create(path)
        .map_err(|error| anyhow::anyhow!("{}: cannot be written: {error}", path.display()))
}

/// Builds an experiment from `KEY=VALUE`s.
fn build_from(entry: &ExperimentEntry, args: &RunArgs) -> anyhow::Result<Box<dyn Experiment>> {
    let world = args.world.iter().map(|world| format!("world={world}"));
    let mut settings = Vec::new();
    for setting in args.settings.iter().cloned().chain(world) {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(Usage(format!("found --set {setting}, allowed is KEY=VALUE")).into());
        };
        settings.push((key.trim().to_owned(), value.trim().to_owned()));
    }
    build(entry, &settings).map_err(|error| wrong_setting(error, |key| format!("--set {key}")))
}

/// The error about a key that was given by an option. Lines of a text that the user never saw say
/// nothing.
pub(crate) fn wrong_setting(error: ConfigError, option: impl Fn(&str) -> String) -> anyhow::Error {
    Usage(format!("{}: {}", option(&error.key), error.message)).into()
}

fn report(files: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let mut documents = Vec::new();
    for path in files {
        let about = |what: &dyn std::fmt::Display| anyhow::anyhow!("{}: {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| about(&error))?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| about(&format_args!("not the outcome of an experiment: {error}")))?;
        documents.push(Document::from_json(&value).map_err(|error| about(&error))?);
    }
    if json {
        let runs: Vec<_> = documents.iter().map(Document::to_json).collect();
        return output::print_json(&json!({ "runs": runs }));
    }
    output::print(&documents.iter().map(text_of).collect::<Vec<_>>().join("\n"))
}

/// A document for people.
fn text_of(document: &Document) -> String {
    let Document { name, outcome, facts, .. } = document;
    let mut text = format!(
        "{name} on {}, {} cores, kernel {}, revision {}\n",
        facts.processor, facts.cores, facts.kernel, facts.revision
    );
    for table in outcome.tables() {
        text += "\n";
        if !table.title.is_empty() {
            text += &format!("{}\n", table.title);
        }
        text += &table_text(&table);
    }
    if !outcome.notes.is_empty() {
        text += "\n";
    }
    for note in &outcome.notes {
        text += &format!("{note}\n");
    }
    text
}

fn table_text(table: &Table) -> String {
    let columns: Vec<_> = (table.columns.iter().enumerate())
        .map(|(index, name)| match index < table.words {
            true => Column::Text(name),
            false => Column::Number(name),
        })
        .collect();
    output::page_table(&columns, &table.rows)
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
