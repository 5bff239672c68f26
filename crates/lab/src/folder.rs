//! A run's directory: the request, and the raw points as measured.
//!
//! - `run.json`: experiments with their settings, effort, shard. Written once.
//! - `points.jsonl`: a line for each point, written completely when measured: an
//!   incomplete last line of a killed process is ignored.
//! - `points.csv`: the same figures, a row for each repeat, for other programs.
//!
//! Tables and reports are derived from these each time. Directories of shards are merged into one
//! that is the same as a single run's.

use crate::document::{Document, Kind};
use crate::experiment::Effort;
use crate::outcome::{Figure, Outcome, Point};
use crate::registry::{ExperimentEntry, build, experiments};
use crate::runner::{Job, Options, Record, Shard, Watch, conclude, run};
use anyhow::{Context, bail, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MANIFEST: &str = "run.json";
const POINTS: &str = "points.jsonl";
const CSV: &str = "points.csv";

/// A requested experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunRequest {
    /// Experiment or benchmark.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Keys and values, as given.
    pub settings: Vec<(String, String)>,
}

impl RunRequest {
    /// The entry of the registry.
    ///
    /// # Errors
    /// Nothing has this name.
    pub fn entry(&self) -> anyhow::Result<&'static ExperimentEntry> {
        let found = experiments().find(|entry| entry.name == self.name);
        found.with_context(|| format!("there is no {} \"{}\"", self.kind.key(), self.name))
    }

    fn job(&self) -> anyhow::Result<Job> {
        let experiment = build(self.entry()?, &self.settings)
            .map_err(|error| anyhow::anyhow!("{}: {error}", self.name))?;
        Ok(Job { kind: self.kind, name: self.name.clone(), experiment })
    }
}

/// The request of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// In the order of running and display.
    pub experiments: Vec<RunRequest>,
    /// The effort.
    pub effort: Effort,
    /// The part of all points.
    #[serde(default)]
    pub shard: Shard,
    /// No repeat of a point begins later than this after its first, in seconds, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_s: Option<u32>,
}

/// A run's directory.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The request.
    pub manifest: Manifest,
    /// The measured points; of two with the same name the later counts.
    pub records: Vec<Record>,
}

impl Folder {
    /// Creates one, with its parents.
    ///
    /// # Errors
    /// There is a run in it already, or the system refuses.
    pub fn create(path: &Path, manifest: Manifest) -> anyhow::Result<Self> {
        let about = || format!("{}: cannot be written", path.display());
        std::fs::create_dir_all(path).with_context(about)?;
        let file = path.join(MANIFEST);
        ensure!(
            !file.exists(),
            "{}: found a run, allowed: a new or empty directory (--resume continues a run)",
            path.display()
        );
        std::fs::write(&file, serde_json::to_string_pretty(&manifest)? + "\n")
            .with_context(about)?;
        Ok(Folder { path: path.into(), manifest, records: Vec::new() })
    }

    /// Reads one.
    ///
    /// # Errors
    /// The missing or invalid file, with the place.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = path.join(MANIFEST);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{}: not the directory of a run", path.display()))?;
        let manifest = serde_json::from_str(&text)
            .with_context(|| format!("{}: not the request of a run", file.display()))?;
        let records = records(&path.join(POINTS))?;
        Ok(Folder { path: path.into(), manifest, records })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The experiments, built from their settings.
    ///
    /// # Errors
    /// A name or a setting unknown to this program.
    pub fn jobs(&self) -> anyhow::Result<Vec<Job>> {
        self.manifest.experiments.iter().map(RunRequest::job).collect()
    }

    /// Measures the points that are missing or have failed, and writes each at once; with the folder
    /// `timelines`, records one of each side first.
    ///
    /// # Errors
    /// A point cannot be written, or a stop was requested: written points are kept.
    pub fn run(
        &mut self,
        revision: &str,
        timelines: Option<&Path>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<()> {
        let jobs = self.jobs()?;
        let manifest = self.manifest.clone();
        let Manifest { effort, shard, limit_s, .. } = manifest;
        let limit = limit_s.map(|seconds| Duration::from_secs(seconds.into()));
        let options = Options { effort, shard, limit, revision, timelines };
        let mut writer = Writer::open(&self.path, &self.records)?;
        let there = self.records.clone();
        let (records, path) = (&mut self.records, &self.path);
        let mut keep = |record: Record| {
            writer.write(&record).map_err(|error| {
                let message = format!("{}: a point cannot be written: {error}", path.display());
                io::Error::new(error.kind(), message)
            })?;
            records.push(record);
            Ok(())
        };
        run(&jobs, &options, &there, &mut keep, watch)
    }

    /// The result of each experiment; none if no point was measured.
    ///
    /// # Errors
    /// A name or a setting unknown to this program.
    pub fn documents(&self) -> anyhow::Result<Vec<(Job, Option<Document>)>> {
        let jobs = self.jobs()?.into_iter();
        let concluded = jobs.map(|job| {
            let document = conclude(&job, self.manifest.effort, &self.records);
            (job, document)
        });
        Ok(concluded.collect())
    }

    /// The points that have failed and were not measured since, with the reason.
    pub fn failures(&self) -> Vec<(&Record, &str)> {
        let last = self.records.iter().enumerate().filter(|(place, record)| {
            let same = |other: &&Record| {
                other.experiment == record.experiment && other.point == record.point
            };
            !self.records[place + 1..].iter().any(|other| same(&other))
        });
        last.filter_map(|(_, record)| Some((record, record.failure.as_ref()?.reason.as_str())))
            .collect()
    }

    /// Writes a directory with the experiments and points of all. Effort and settings of an
    /// experiment must be the same in all. Of a point in several, the first measured counts.
    ///
    /// # Errors
    /// Effort or settings differ, or the directory cannot be written.
    pub fn merge(folders: &[Folder], path: &Path) -> anyhow::Result<Folder> {
        let Some((first, others)) = folders.split_first() else { bail!("nothing to merge") };
        let mut manifest = Manifest { shard: Shard::default(), ..first.manifest.clone() };
        for other in others {
            let mut same = other.manifest.effort == manifest.effort;
            for experiment in &other.manifest.experiments {
                match manifest.experiments.iter().find(|known| known.name == experiment.name) {
                    Some(known) => same &= known == experiment,
                    None => manifest.experiments.push(experiment.clone()),
                }
            }
            ensure!(
                same,
                "{}: has other settings or another effort than {}",
                other.path.display(),
                first.path.display()
            );
            manifest.limit_s =
                manifest.limit_s.filter(|_| other.manifest.limit_s == manifest.limit_s);
        }
        let mut kept: Vec<Record> = Vec::new();
        for record in folders.iter().flat_map(|folder| &folder.records) {
            let same = |other: &&mut Record| {
                other.experiment == record.experiment && other.point == record.point
            };
            match kept.iter_mut().find(same) {
                Some(other) if other.failure.is_some() => *other = record.clone(),
                Some(_) => {}
                None => kept.push(record.clone()),
            }
        }
        let mut merged = Folder::create(path, manifest)?;
        let mut writer = Writer::open(path, &[])?;
        // In the order of a single run.
        for job in merged.jobs()? {
            for spec in job.experiment.points(merged.manifest.effort) {
                let name = spec.name();
                let own = |record: &&Record| record.experiment == job.name && record.point == name;
                if let Some(record) = kept.iter().find(own) {
                    writer.write(record)?;
                    merged.records.push(record.clone());
                }
            }
        }
        Ok(merged)
    }
}

/// The lines of a file; none if there is no file. An incomplete last line is ignored.
fn records(path: &Path) -> anyhow::Result<Vec<Record>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("{}: cannot be read", path.display()))?,
    };
    let lines = text.split_inclusive('\n').enumerate().filter(|(_, line)| line.ends_with('\n'));
    lines
        .map(|(index, line)| {
            serde_json::from_str(line)
                .with_context(|| format!("{}:{}: not a point", path.display(), index + 1))
        })
        .collect()
}

/// Both files of points.
struct Writer {
    lines: File,
    rows: csv::Writer<File>,
}

/// Columns of `points.csv`.
const COLUMNS: [&str; 10] =
    ["experiment", "point", "side", "series", "at", "figure", "unit", "source", "repeat", "value"];

impl Writer {
    /// Drops an incomplete last line of a killed process; the rows are written anew.
    fn open(path: &Path, there: &[Record]) -> anyhow::Result<Self> {
        let about = |name: &str| format!("{}: cannot be written", path.join(name).display());
        let open = || -> io::Result<File> {
            let mut options = OpenOptions::new();
            let file = options.read(true).append(true).create(true).open(path.join(POINTS))?;
            let text = std::fs::read(path.join(POINTS))?;
            let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
            file.set_len(whole as u64)?;
            Ok(file)
        };
        let lines = open().with_context(|| about(POINTS))?;
        let file = File::create(path.join(CSV)).with_context(|| about(CSV))?;
        let mut writer = Writer { lines, rows: csv::Writer::from_writer(file) };
        writer.rows.write_record(COLUMNS).with_context(|| about(CSV))?;
        for record in there {
            writer.rows_of(record).with_context(|| about(CSV))?;
        }
        Ok(writer)
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        let line = serde_json::to_string(record)? + "\n";
        self.lines.write_all(line.as_bytes())?;
        self.rows_of(record)
    }

    fn rows_of(&mut self, record: &Record) -> io::Result<()> {
        let mut rows = Vec::new();
        for side in &record.sides {
            let Outcome { whole, series, .. } = &side.outcome;
            let points = series.iter().flat_map(|series| {
                series.points.iter().map(move |point| (series.name.as_str(), point))
            });
            for (series, point) in [("", whole)].into_iter().chain(points) {
                let at = match series {
                    "" => String::new(),
                    _ => serde_json::to_string(&point.labels)?,
                };
                for figure in figures(point) {
                    for (repeat, value) in figure.values.iter().enumerate() {
                        rows.push([
                            record.experiment.clone(),
                            record.point.clone(),
                            side.side.clone(),
                            series.into(),
                            at.clone(),
                            figure.key.clone(),
                            figure.unit.name(),
                            figure.source.label().into(),
                            repeat.to_string(),
                            value.to_string(),
                        ]);
                    }
                }
            }
        }
        rows.iter().try_for_each(|row| self.rows.write_record(row)).map_err(io::Error::other)?;
        self.rows.flush()
    }
}

/// All figures of a point, including the sides of comparisons.
fn figures(point: &Point) -> Vec<Figure> {
    let compared = point.comparisons.iter().flat_map(|comparison| comparison.sides());
    compared.chain(point.figures.iter().cloned()).collect()
}
