//! `picnic lab list|run|ab|breakdown|report|diff|merge|profiles|calibrate|fit`: experiments,
//! questions and their results.

pub(crate) mod ab;
mod breakdown;
mod machines;
pub(crate) mod progress;
pub(crate) mod question;
pub(crate) mod through;

use super::components::{describe, keys_table};
use crate::commands::later::Later;
use crate::failure::Usage;
use crate::output::{self, Column};
use anyhow::Context;
use clap::{Args, Subcommand};
use picnic_core::error::{ConfigError, not_among};
use picnic_lab::document::{Document, Kind};
use picnic_lab::experiment::{Effort, Experiment, LabError};
use picnic_lab::facts::facts;
use picnic_lab::folder::{Folder, Manifest, RunRequest};
use picnic_lab::outcome::Table;
use picnic_lab::registry::{ExperimentEntry, build, experiments};
use picnic_lab::report::{Report, diff};
use picnic_lab::runner::{self, Shard};
use picnic_machine::signals;
use progress::Progress;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The page in the folder of a run.
const PAGE: &str = "report.html";
/// A run's plots, each as picture and as points.
const PLOTS: &str = "plots";
/// Rows of a table that are printed; longer ones are only in the data files.
const LONGEST_TABLE: usize = 60;
/// Revision of this program.
pub(crate) const REVISION: &str = env!("PICNIC_REVISION");

/// Run experiments that measure the effect of a NIC feature.
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
    /// Run experiments (all if none is named) and keep their raw points in a folder
    Run(RunArgs),
    /// Compare two cards, or a card with a changed copy, and say which is better
    Ab(Box<Later<question::Asked>>),
    /// Say what a packet costs the host's cores, by component: sampled here, or in a model
    Breakdown(Box<Later<breakdown::BreakdownArgs>>),
    /// Write the results of a run as a page into its folder, and print them
    Report(ReportArgs),
    /// Compare two runs side by side: two machines, or two revisions
    Diff {
        /// The folder of a run
        a: PathBuf,
        /// The folder of another run
        b: PathBuf,
    },
    /// List the modelled machines, or the figures of one with their sources
    Profiles {
        /// Show the figures of this one
        name: Option<String>,
    },
    /// Measure this machine as the profile `here`, and compare modelled with real cards
    Calibrate {
        /// Write the profile to this file [default: picnic/here.toml in the user's data folder]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Fewer samples and shorter runs
        #[arg(long)]
        quick: bool,
    },
    /// Fit a machine's marked costs to a few figures of a paper, and predict the others
    Fit(FitArgs),
    /// Merge folders of shards, or of several experiments, into one
    Merge {
        /// Folders of runs with the same settings
        #[arg(required = true)]
        folders: Vec<PathBuf>,
        /// The folder to write
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Names of experiments; see `picnic lab list`
    names: Vec<String>,
    /// A setting of the named experiment, such as --set sets=50; see `picnic lab list NAME`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// World to run in: short for `--set world=host`
    #[arg(long, value_parser = ["sim", "host"])]
    world: Option<String>,
    /// The modelled machine [default: the paper's]; without names, all experiments of that machine
    #[arg(long, value_name = "NAME", conflicts_with = "world")]
    profile: Option<String>,
    /// Fewer repeats and points: everything in a few minutes
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// More repeats and points
    #[arg(long)]
    full: bool,
    /// Seconds after which a measured point is repeated no more
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Keep the raw points in this folder [default: picnic-lab/N]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,
    /// Continue the run in this folder: measure the missing and failed points
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["names", "settings", "world", "profile", "quick", "full", "limit", "shard"]
    )]
    resume: Option<PathBuf>,
    /// Measure only this share of all points, for `picnic lab merge`
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Run each side of a point once more, and write its timeline here
    #[arg(long, value_name = "DIR")]
    timelines: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct FitArgs {
    /// The machines (all if none is named); see `picnic lab profiles`
    names: Vec<String>,
    /// Shorter runs
    #[arg(long)]
    quick: bool,
    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// The folder of a run
    folder: PathBuf,
    /// Write the page to this file, instead of report.html in the folder
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print Markdown, and write no page
    #[arg(long, conflicts_with_all = ["out", "json"])]
    markdown: bool,
}

pub(crate) fn run(args: &LabArgs, json: bool) -> anyhow::Result<()> {
    match &args.command {
        LabCommand::List { name: None } => list(json),
        LabCommand::List { name: Some(name) } => settings(entry(name)?, json),
        LabCommand::Run(args) => run_all(args, json),
        LabCommand::Ab(args) => ab::run(&args.0.options, Kind::Experiment, "ab", json),
        LabCommand::Breakdown(args) => breakdown::run(&args.0, json),
        LabCommand::Report(args) => report(args, json),
        LabCommand::Diff { a, b } => side_by_side(a, b, json),
        LabCommand::Profiles { name } => machines::profiles(name.as_deref(), json),
        LabCommand::Calibrate { output, quick } => {
            machines::calibrate(output.as_deref(), *quick, json)
        }
        LabCommand::Fit(args) => machines::fit(args, json),
        LabCommand::Merge { folders, out } => merge(folders, out, json),
    }
}

/// A modelled machine by name.
pub(crate) fn machine(name: &str) -> anyhow::Result<picnic_sim::machine::Profile> {
    machines::named(name)
}

fn entry(name: &str) -> anyhow::Result<&'static ExperimentEntry> {
    experiments().find(|entry| entry.name == name).ok_or_else(|| {
        let allowed = experiments().map(|entry| entry.name);
        Usage(not_among("experiment ", name, allowed)).into()
    })
}

fn list(json: bool) -> anyhow::Result<()> {
    if json {
        let all: Vec<_> = experiments().copied().collect();
        return output::print_json(&json!({ "experiments": describe(&all) }));
    }
    let rows = experiments().map(|entry| vec![entry.name.into(), entry.help.into()]);
    let table = output::table(&output::columns("name|help"), rows);
    output::print(&(table + "\n`picnic lab list NAME` shows the settings of one.\n"))
}

fn settings(entry: &ExperimentEntry, json: bool) -> anyhow::Result<()> {
    if json {
        let [described] = &describe(std::slice::from_ref(entry))[..] else { return Ok(()) };
        return output::print_json(described);
    }
    output::print(&format!("{}: {}\n\n{}", entry.name, entry.help, keys_table(&entry.keys())))
}

fn run_all(args: &RunArgs, json: bool) -> anyhow::Result<()> {
    let mut folder = match &args.resume {
        Some(path) => Folder::open(path)?,
        None => create(args)?,
    };
    // The current measurement finishes, and all results are kept.
    signals::stop_flag()?;
    let progress = Progress::new();
    let timelines = args.timelines.as_deref();
    let done = folder.run(REVISION, timelines, &mut |share, what| progress.tell(share, what));
    drop(progress);
    if let Err(error) = done {
        let resume = format!("to continue: picnic lab run --resume {}", folder.path().display());
        return Err(match error.is::<signals::Interrupted>() {
            true => anyhow::anyhow!("interrupted; {resume}"),
            false => error.context(resume),
        });
    }
    if json {
        return show_folder(&folder, json);
    }
    // Fails if nothing was measured.
    concluded(&folder)?;
    let report = Report::of(&folder)?;
    let page = write_page(&report, &folder.path().join(PAGE))?;
    write_plots(&report, &folder)?;
    let path = folder.path().display();
    output::print(&format!(
        "{}\n\nPage: {page}\nTables: picnic lab report {path}\nRaw points: {path}/points.csv\n",
        report.summary().join("\n")
    ))
}

/// Writes a report's page; returns its path.
fn write_page(report: &Report, page: &Path) -> anyhow::Result<String> {
    let name = page.display().to_string();
    std::fs::write(page, report.html()).with_context(|| format!("{name}: cannot be written"))?;
    Ok(name)
}

/// Writes a report's plots into the folder of the run.
fn write_plots(report: &Report, folder: &Folder) -> anyhow::Result<()> {
    let path = folder.path().join(PLOTS);
    let about = || format!("{}: cannot be written", path.display());
    std::fs::create_dir_all(&path).with_context(about)?;
    let mut files = report.plots().into_iter();
    files.try_for_each(|(name, text)| std::fs::write(path.join(name), text)).with_context(about)
}

/// A folder for the run of the command line.
fn create(args: &RunArgs) -> anyhow::Result<Folder> {
    let profile = args.profile.as_deref().map(machines::named).transpose()?;
    let is_on = |entry: &&ExperimentEntry| match &profile {
        Some(profile) => machines::is_of(profile, entry.name),
        None => true,
    };
    let named: Vec<_> = match &args.names[..] {
        [] => experiments().filter(is_on).collect(),
        names => names.iter().map(|name| entry(name)).collect::<Result<_, _>>()?,
    };
    if args.names.len() != 1 && !args.settings.is_empty() {
        return Err(Usage("found --set, allowed: --set with one experiment's name".into()).into());
    }
    let given = args.settings.iter().map(|setting| {
        let Some((key, value)) = setting.split_once('=') else {
            let message = format!("found --set {setting}, allowed: KEY=VALUE");
            return Err(Usage(message));
        };
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    });
    let given = given.collect::<Result<Vec<_>, _>>()?;
    let mut experiments = Vec::new();
    for entry in named {
        let mut settings = given.clone();
        let keys = entry.keys();
        for (key, value) in [("world", &args.world), ("profile", &args.profile)] {
            let Some(value) = value else { continue };
            if args.names.len() == 1 || keys.iter().any(|known| known.name == key) {
                settings.push((key.into(), value.clone()));
            }
        }
        // `--world sim` for all leaves those that only run on the host there.
        if args.names.is_empty() && build(entry, &settings).is_err() {
            settings.clear();
        }
        // Before a folder is made for it.
        build(entry, &settings).map_err(|error| {
            wrong_setting(error, |key| match key {
                "profile" if args.profile.is_some() => "--profile".into(),
                key => format!("--set {key}"),
            })
        })?;
        let (kind, name) = (Kind::Experiment, entry.name.into());
        experiments.push(RunRequest { kind, name, settings });
    }
    let effort = match (args.quick, args.full) {
        (true, _) => Effort::Quick,
        (_, true) => Effort::Full,
        _ => Effort::Usual,
    };
    let (shard, limit_s) = (args.shard.unwrap_or_default(), args.limit);
    let manifest = Manifest { experiments, effort, shard, limit_s };
    let path = args.out.clone().unwrap_or_else(free_folder);
    Folder::create(&path, manifest)
}

/// The first of picnic-lab/1, 2, ... that does not exist.
fn free_folder() -> PathBuf {
    let numbered = |number: u32| Path::new("picnic-lab").join(number.to_string());
    (1..).map(numbered).find(|path| !path.exists()).unwrap_or_default()
}

fn report(args: &ReportArgs, json: bool) -> anyhow::Result<()> {
    if let Some(answer) = ab::kept(&args.folder)? {
        return ab::report(&answer, args, json);
    }
    let folder = Folder::open(&args.folder)?;
    let report = Report::of(&folder)?.with_breakdowns(folder.path())?;
    if json {
        return output::print_json(&report.json());
    }
    if args.markdown {
        return output::print(&report.markdown());
    }
    let page = args.out.clone().unwrap_or_else(|| folder.path().join(PAGE));
    let page = write_page(&report, &page)?;
    write_plots(&report, &folder)?;
    print_text(&folder, &format!("Page: {page}\n"))
}

fn side_by_side(a: &Path, b: &Path, json: bool) -> anyhow::Result<()> {
    let of = |path: &Path| Report::of(&Folder::open(path)?);
    let found = diff(&of(a)?, &of(b)?);
    if json {
        return output::print_json(&found.json());
    }
    let mut text = format!("A: {}\nB: {}\n", a.display(), b.display());
    for table in [&found.facts].into_iter().chain(&found.experiments) {
        if !table.rows.is_empty() {
            text += &format!("\n{}\n{}", table.title, table_text(table));
        }
    }
    for name in &found.missing {
        text += &format!("\n{name}: has figures in at most one of the two runs\n");
    }
    output::print(&text)
}

fn merge(folders: &[PathBuf], out: &Path, json: bool) -> anyhow::Result<()> {
    let folders = folders.iter().map(|path| Folder::open(path)).collect::<Result<Vec<_>, _>>()?;
    show_folder(&Folder::merge(&folders, out)?, json)
}

/// The results of a run, and lines about unmeasured points. An error if nothing was measured at
/// all.
fn concluded(folder: &Folder) -> anyhow::Result<(Vec<Document>, Vec<String>)> {
    let (mut documents, mut lines) = (Vec::new(), Vec::new());
    for (job, document) in folder.documents()? {
        match document {
            Some(document) => documents.push(document),
            None => lines.push(not_measured(folder, &job.name)),
        }
    }
    anyhow::ensure!(!documents.is_empty(), "nothing was measured: {}", lines.join("; "));
    Ok((documents, lines))
}

/// Prints the results of a run.
fn show_folder(folder: &Folder, json: bool) -> anyhow::Result<()> {
    let path = folder.path().display().to_string();
    if !json {
        let last = format!("Raw points: {path}\nA page: picnic lab report {path}\n");
        return print_text(folder, &last);
    }
    let (documents, lines) = concluded(folder)?;
    let mut runs: Vec<_> = documents.iter().map(Document::to_json).collect();
    runs.iter_mut().for_each(|run| run["folder"] = path.as_str().into());
    output::print_json(&match (&runs[..], &lines[..]) {
        ([_], []) => runs.swap_remove(0),
        _ => json!({ "runs": runs, "not_measured": lines }),
    })
}

/// Prints them as text, with a final line.
fn print_text(folder: &Folder, last: &str) -> anyhow::Result<()> {
    let (documents, lines) = concluded(folder)?;
    let mut text = documents.iter().map(text_of).collect::<Vec<_>>();
    text.extend((!lines.is_empty()).then(|| lines.join("\n") + "\n"));
    text.push(last.into());
    output::print(&text.join("\n"))
}

/// The reason why an experiment has no results.
fn not_measured(folder: &Folder, name: &str) -> String {
    let failures = folder.failures().into_iter().filter(|(record, _)| record.experiment == name);
    let reasons = failures.map(|(record, why)| (record.point.clone(), why.to_owned())).collect();
    let reasons: Vec<_> =
        runner::by_reason(reasons).into_iter().map(|(_, reason)| reason).collect();
    match &reasons[..] {
        [] => format!("{name}: not measured: its points are in other shards"),
        reasons => format!("{name}: not measured: {}", reasons.join("; ")),
    }
}

/// Runs an entry, with progress on the terminal, without keeping points.
pub(crate) fn measure(
    kind: Kind,
    name: &str,
    experiment: &dyn Experiment,
) -> anyhow::Result<Document> {
    let started = Instant::now();
    let progress = Progress::new();
    let mut watch = |share: f64, what: &str| progress.tell(share, what);
    let outcome = runner::outcome(name, experiment, Effort::Usual, &mut watch);
    drop(progress);
    let outcome = outcome.map_err(LabError::into_cause)?;
    let took_s = started.elapsed().as_secs_f64();
    Ok(Document { kind, name: name.into(), outcome, took_s, facts: facts(REVISION) })
}

/// Prints a result.
pub(crate) fn show(document: &Document, json: bool) -> anyhow::Result<()> {
    output::show(&document.to_json(), json, || text_of(document))
}

/// The error about a key given by an option, without the line number of a text that the user never
/// saw.
pub(crate) fn wrong_setting(error: ConfigError, option: impl Fn(&str) -> String) -> anyhow::Error {
    Usage(format!("{}: {}", option(&error.key), error.message)).into()
}

/// A document as text.
fn text_of(document: &Document) -> String {
    text_with(document, "")
}

/// The same, with a text after the tables.
fn text_with(document: &Document, behind: &str) -> String {
    let Document { name, outcome, facts, .. } = document;
    let mut text = format!(
        "{name} on {}, {} cores, kernel {}, revision {}\n",
        facts.processor, facts.cores, facts.kernel, facts.revision
    );
    for table in outcome.tables() {
        if table.rows.len() > LONGEST_TABLE {
            text += &format!("\n{}: {} rows, in points.csv\n", table.title, table.rows.len());
            continue;
        }
        text += "\n";
        if !table.title.is_empty() {
            text += &format!("{}\n", table.title);
        }
        text += &table_text(&table);
    }
    if !behind.is_empty() {
        text += &format!("\n{behind}");
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
