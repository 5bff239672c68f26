//! Runs experiments point by point, and records the result of each.
//!
//! Sides of a point take turns in random order, repeat by repeat, and each second repeat reverses
//! the order, so that drift and other programs affect all equally. A failed point is a line with
//! its reason, and the others continue. A point's seed depends only on its name, so that shards
//! give the same results as one run.
//!
//! ```no_run
//! use picnic_lab::experiment::{Effort, Experiment, LabError};
//! use picnic_lab::{outcome::Outcome, runner};
//!
//! fn measured(experiment: &dyn Experiment) -> Result<Outcome, LabError> {
//!     runner::outcome("my-experiment", experiment, Effort::Usual, &mut |_, _| {})
//! }
//! ```

use crate::compare::order;
use crate::document::{Document, Kind};
use crate::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec};
use crate::facts::{Facts, facts};
use crate::meter::{Load, Meter};
use crate::outcome::{Outcome, Source};
use crate::timeline;
use picnic_machine::signals;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};

/// An experiment to be run.
pub struct Job {
    /// Experiment or benchmark.
    pub kind: Kind,
    /// Its name in the registry.
    pub name: String,
    /// Built from its settings.
    pub experiment: Box<dyn Experiment>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A part of all points: `2/5` is the second of five.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Shard {
    /// From 1.
    pub number: usize,
    /// Number of parts.
    pub of: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Shard { number: 1, of: 1 }
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("found \"{text}\", allowed: I/N with I from 1 to N");
        let (number, of) = text.split_once('/').ok_or_else(wrong)?;
        let shard = Shard {
            number: number.parse().map_err(|_| wrong())?,
            of: of.parse().map_err(|_| wrong())?,
        };
        if (1..=shard.of).contains(&shard.number) { Ok(shard) } else { Err(wrong()) }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// The result of one side of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SideFound {
    /// Its name.
    pub side: String,
    /// All repeats in each figure.
    pub outcome: Outcome,
}

/// Why a point was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// For people.
    pub reason: String,
    /// This machine cannot do it; otherwise it failed.
    pub unavailable: bool,
}

/// The result of a point: a line of a run's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// The experiment's name.
    pub experiment: String,
    /// The point's name, unique in its experiment.
    pub point: String,
    /// The varied values, by key.
    pub labels: Map<String, Value>,
    /// Its seed.
    pub seed: u64,
    /// The results of each side; empty if it failed.
    pub sides: Vec<SideFound>,
    /// Measurements of each side.
    pub repeats: u32,
    /// Why it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Why it was measured less often than requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// When it began, in seconds since 1970.
    pub started_s: u64,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// The machine's load during the measurement.
    pub load: Load,
    /// The machine and the build.
    pub facts: Facts,
}

impl Record {
    /// Why its figures are less reliable; none if they are not, or are modelled.
    pub fn noise(&self) -> Option<String> {
        if self.is_measured() { self.load.noise() } else { None }
    }

    /// Whether some of its figures are measured.
    pub fn is_measured(&self) -> bool {
        self.sides.iter().any(|side| side.outcome.source() == Source::Measured)
    }
}

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The effort.
    pub effort: Effort,
    /// The part of all points.
    pub shard: Shard,
    /// No repeat of a point begins later than this after its first, if given.
    pub limit: Option<Duration>,
    /// The program's source revision.
    pub revision: &'a str,
    /// The folder for a timeline of each side, if wanted.
    pub timelines: Option<&'a Path>,
}

/// Receives the share done, and the current task.
pub type Watch<'a> = dyn FnMut(f64, &str) + 'a;

/// Runs the points of all jobs that are in this shard and not `there` yet, and passes each record
/// to `keep` at once. A point that others follow is measured on each machine that measures those.
///
/// # Errors
/// `keep` failed, or a stop was requested.
pub fn run(
    jobs: &[Job],
    options: &Options<'_>,
    there: &[Record],
    keep: &mut dyn FnMut(Record) -> io::Result<()>,
    watch: &mut Watch<'_>,
) -> anyhow::Result<()> {
    let Wanted { points, mut followed } = wanted(jobs, options, there);
    let all = points.iter().map(|(_, spec)| spec.turns()).sum::<u64>().max(1) as f64;
    let mut begun = 0.0;
    for (job, spec) in &points {
        let (name, turns) = (spec.name(), spec.turns() as f64);
        let mut tell = |share: f64, what: &str| {
            watch((begun + share * turns) / all, &format!("{} {name}: {what}", job.name));
        };
        let before = spec.follows.as_ref().map(|before| {
            let own = followed.get(&(job.name.clone(), before.clone())).and_then(Option::as_ref);
            own.ok_or_else(|| not_there(before))
        });
        let record = record(job, spec, before.transpose(), options, &mut tell)?;
        if let Some(found) = followed.get_mut(&(job.name.clone(), name)) {
            *found = found_by(&record, spec);
        }
        keep(record)?;
        begun += turns;
    }
    watch(1.0, "done");
    Ok(())
}

/// Points by job and name that others follow; none for a point that was not measured on this
/// machine.
type Followed = BTreeMap<(String, String), Option<MeasuredPoint>>;

/// The points to measure.
struct Wanted<'a> {
    points: Vec<(&'a Job, Spec)>,
    followed: Followed,
}

/// The missing points of this shard, each preceded by the point that it follows.
fn wanted<'a>(jobs: &'a [Job], options: &Options<'_>, there: &[Record]) -> Wanted<'a> {
    let all = jobs.iter().flat_map(|job| {
        job.experiment.points(options.effort).into_iter().map(move |spec| (job, spec))
    });
    let within = options.limit.unwrap_or(Duration::MAX);
    let all = all.map(|(job, spec)| (job, Spec { limit: spec.limit.min(within), ..spec }));
    let all: Vec<_> = all.enumerate().collect();
    let last = |job: &Job, name: &str| {
        let mut records = there.iter().rev();
        records.find(|record| record.experiment == job.name && record.point == name)
    };
    let is_missing = |place: usize, job: &Job, spec: &Spec| {
        place % options.shard.of + 1 == options.shard.number
            && last(job, &spec.name()).is_none_or(|record| record.failure.is_some())
    };
    let missing = all.iter().filter(|(place, (job, spec))| is_missing(*place, job, spec));
    let mut followed: Followed = missing
        .filter_map(|(_, (job, spec))| Some(((job.name.clone(), spec.follows.clone()?), None)))
        .collect();
    let machine = |facts: &Facts| (facts.machine.clone(), facts.processor.clone());
    let here = (!followed.is_empty()).then(|| machine(&facts(options.revision)));
    let points = all.iter().filter(|(place, (job, spec))| {
        let name = spec.name();
        let Some(found) = followed.get_mut(&(job.name.clone(), name.clone())) else {
            return is_missing(*place, job, spec);
        };
        let own = last(job, &name).filter(|record| Some(machine(&record.facts)) == here);
        *found = own.and_then(|record| found_by(record, spec));
        found.is_none()
    });
    let points = points.map(|(_, point)| point.clone()).collect();
    Wanted { points, followed }
}

/// The measured point of a record; none if it has failed.
fn found_by(record: &Record, spec: &Spec) -> Option<MeasuredPoint> {
    let sides = record.sides.iter().map(|side| side.outcome.clone()).collect();
    record.failure.is_none().then(|| MeasuredPoint { spec: spec.clone(), sides })
}

fn not_there(before: &str) -> LabError {
    LabError::Failed(format!("it follows {before}, which was not measured"))
}

/// Measures a point; only a request to stop is an error.
fn record(
    job: &Job,
    spec: &Spec,
    before: Result<Option<&MeasuredPoint>, LabError>,
    options: &Options<'_>,
    watch: &mut Watch<'_>,
) -> Result<Record, signals::Interrupted> {
    let seed = seed(&job.name, &spec.name());
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let (started, meter) = (Instant::now(), Meter::start());
    let measured = catch_unwind(AssertUnwindSafe(|| {
        let before = before?;
        if let Some(folder) = options.timelines {
            for side in &spec.sides {
                let name = format!("{}_{}_{side}", job.name, spec.name());
                watch(0.0, &format!("{side}, for its timeline"));
                let mut tell = |_: f64, what: &str| watch(0.0, what);
                timeline::record(folder, &name, || {
                    let mut run = Run::new(options.effort, seed, &mut tell).behind(before);
                    job.experiment.measure(spec, side, &mut run)
                })?;
            }
        }
        measure(&*job.experiment, spec, before, options.effort, seed, watch)
    }));
    let measured = measured.unwrap_or_else(|_| Err(LabError::Failed("it panicked: a bug".into())));
    let mut record = Record {
        experiment: job.name.clone(),
        point: spec.name(),
        labels: spec.labels.clone(),
        seed,
        sides: Vec::new(),
        repeats: 0,
        failure: None,
        cut: None,
        started_s: since_1970.map_or(0, |time| time.as_secs()),
        took_s: started.elapsed().as_millis() as f64 / 1e3,
        load: meter.stop(),
        facts: facts(options.revision),
    };
    match measured {
        Ok(turns) => {
            let sides = spec.sides.iter().cloned().zip(turns.sides);
            record.sides = sides.map(|(side, outcome)| SideFound { side, outcome }).collect();
            record.repeats = turns.repeats;
            record.cut = (turns.repeats < spec.repeats)
                .then(|| format!("{} of {} repeats: time was up", turns.repeats, spec.repeats));
        }
        Err(error) => {
            if let LabError::Other(error) = &error
                && let Some(interrupted) = error.downcast_ref::<signals::Interrupted>()
            {
                return Err(*interrupted);
            }
            record.failure = Some(failure(&error));
        }
    }
    Ok(record)
}

fn failure(error: &LabError) -> Failure {
    match error {
        LabError::Unavailable(reason) => Failure { reason: reason.clone(), unavailable: true },
        LabError::Other(error) => Failure { reason: format!("{error:#}"), unavailable: false },
        error => Failure { reason: error.to_string(), unavailable: false },
    }
}

/// All sides of a point, and the number of turns of each.
struct Turns {
    sides: Vec<Outcome>,
    repeats: u32,
}

/// Measures all sides alternately, in the order of [`order`].
fn measure(
    experiment: &dyn Experiment,
    spec: &Spec,
    before: Option<&MeasuredPoint>,
    effort: Effort,
    seed: u64,
    watch: &mut Watch<'_>,
) -> Result<Turns, LabError> {
    let (needed, cores) = (experiment.cores(spec), picnic_machine::topology::cores().len());
    if needed > cores {
        let message = format!("needs {needed} cores, this machine has {cores}");
        return Err(LabError::Unavailable(message));
    }
    let warm_ups = u32::from(spec.warm_up);
    let turns = spec.turns() as f64;
    let mut rounds: Vec<Vec<Outcome>> = Vec::new();
    let (start, mut turn, mut repeats) = (Instant::now(), 0.0, 0);
    for round in 0..spec.repeats + warm_ups {
        if repeats != 0 && start.elapsed() > spec.limit {
            break;
        }
        let mut found: Vec<Option<Outcome>> = vec![None; spec.sides.len()];
        for side in order(round as usize, spec.sides.len()) {
            signals::sleep(std::time::Duration::ZERO).map_err(anyhow::Error::from)?;
            let name = &spec.sides[side];
            watch(turn / turns, name);
            let mut tell = |share: f64, what: &str| watch((turn + share) / turns, what);
            let given = {
                let mut run = Run::new(effort, seed, &mut tell).behind(before);
                experiment.measure(spec, name, &mut run)?
            };
            turn += 1.0;
            found[side] = Some(given);
        }
        if round >= warm_ups {
            rounds.push(found.into_iter().flatten().collect());
            repeats += 1;
        }
    }
    Ok(Turns { sides: in_step(rounds), repeats })
}

/// All rounds of each side. A figure that one side lacks in a round is taken from all sides of that
/// round, so that values in the same place are of the same round.
fn in_step(mut rounds: Vec<Vec<Outcome>>) -> Vec<Outcome> {
    let figures = |rounds: &[Vec<Outcome>]| -> BTreeSet<(usize, String)> {
        let sides = rounds.iter().flat_map(|round| round.iter().enumerate());
        let figures = sides.flat_map(|(side, outcome)| {
            let given = outcome.whole.figures.iter().filter(|figure| !figure.values.is_empty());
            given.map(move |figure| (side, figure.key.clone()))
        });
        figures.collect()
    };
    let usual = figures(&rounds);
    for round in &mut rounds {
        let given = figures(std::slice::from_ref(round));
        for (_, lacked) in usual.difference(&given) {
            let figures = round.iter_mut().flat_map(|side| &mut side.whole.figures);
            figures.filter(|of| of.key == *lacked).for_each(|of| of.values.clear());
        }
    }
    let mut rounds = rounds.into_iter();
    let mut sides = rounds.next().unwrap_or_default();
    for round in rounds {
        sides.iter_mut().zip(round).for_each(|(side, again)| side.repeat(again));
    }
    sides
}

/// Runs a single experiment without storing anything.
///
/// # Errors
/// The first error of a point.
pub fn outcome(
    name: &str,
    experiment: &dyn Experiment,
    effort: Effort,
    watch: &mut Watch<'_>,
) -> Result<Outcome, LabError> {
    let specs = experiment.points(effort);
    let all = specs.iter().map(Spec::turns).sum::<u64>().max(1) as f64;
    let (mut found, mut begun): (Vec<MeasuredPoint>, _) = (Vec::new(), 0.0);
    for spec in specs {
        let (seed, turns) = (seed(name, &spec.name()), spec.turns() as f64);
        let mut tell = |share: f64, what: &str| watch((begun + share * turns) / all, what);
        let before = spec.follows.as_ref().map(|before| {
            let own = found.iter().find(|found| found.spec.name() == *before);
            own.ok_or_else(|| not_there(before))
        });
        let sides = measure(experiment, &spec, before.transpose()?, effort, seed, &mut tell)?.sides;
        found.push(MeasuredPoint { spec, sides });
        begun += turns;
    }
    watch(1.0, "done");
    Ok(experiment.conclude(&found))
}

/// The result of a job's records; none if no point was measured. Reports which points are missing,
/// incomplete or noisy.
pub fn conclude(job: &Job, effort: Effort, records: &[Record]) -> Option<Document> {
    let own: Vec<_> = records.iter().filter(|record| record.experiment == job.name).collect();
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for spec in job.experiment.points(effort) {
        let name = spec.name();
        // The last one counts: a failed point may have been tried again.
        match own.iter().rev().find(|record| record.point == name) {
            Some(record) => match &record.failure {
                Some(failure) => missing.push((name, failure.reason.clone())),
                None => found.extend(found_by(record, &spec)),
            },
            None => missing.push((name, "not measured yet".into())),
        }
    }
    let first = own.iter().find(|record| record.failure.is_none())?;
    let mut outcome = job.experiment.conclude(&found);
    for (names, reason) in by_reason(missing) {
        outcome.note(format!("not measured: {names}: {reason}"));
    }
    for record in own.iter().filter(|record| record.failure.is_none()) {
        let noise = record.noise().map(|noise| format!("noisy: {}: {noise}", record.point));
        let cut = record.cut.as_ref().map(|cut| format!("cut short: {}: {cut}", record.point));
        noise.into_iter().chain(cut).for_each(|note| outcome.note(note));
    }
    Some(Document {
        kind: job.kind,
        name: job.name.clone(),
        outcome,
        took_s: own.iter().map(|record| record.took_s).sum(),
        facts: first.facts.clone(),
    })
}

/// Groups names of points by reason.
pub fn by_reason(missing: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for (name, reason) in missing {
        match found.iter_mut().find(|(_, other)| *other == reason) {
            Some((names, _)) => *names = format!("{names}; {name}"),
            None => found.push((name, reason)),
        }
    }
    found
}

/// A seed from names: FNV-1a (Fowler, Noll, Vo), which is the same on every machine.
fn seed(experiment: &str, point: &str) -> u64 {
    let bytes = experiment.bytes().chain([0]).chain(point.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
