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
mod tests {
    use super::*;
    use crate::outcome::Figure;
    use std::sync::{Arc, Mutex};

    /// Points that record their measurements. The fourth of each seven fails, the fifth panics, the
    /// sixth needs more cores than there are.
    struct Counting {
        points: u32,
        calls: Arc<Mutex<Vec<String>>>,
    }

    impl Experiment for Counting {
        fn points(&self, effort: Effort) -> Vec<Spec> {
            let spec = |number| {
                let spec = Spec::at("number", number).sides(&["a", "b"]).measured(effort.repeats());
                Spec { limit: if number == 6 { Duration::ZERO } else { spec.limit }, ..spec }
            };
            (0..self.points).map(spec).collect()
        }

        fn cores(&self, spec: &Spec) -> usize {
            if spec.number("number") == 5.0 { 100_000 } else { 1 }
        }

        fn measure(&self, spec: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
            let mut calls = self.calls.lock().unwrap();
            calls.push(format!("{}{side}", spec.number("number")));
            match spec.number("number") as u32 {
                3 => return Err(anyhow::anyhow!("no space").context("wrk").into()),
                4 => {
                    drop(calls);
                    panic!("as a test wants it");
                }
                _ => {}
            }
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::one("seed_low", (run.seed % 1000) as f64));
            outcome.add(Figure::count("call", calls.len() as u64));
            Ok(outcome)
        }

        fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::count("points", points.len() as u64));
            outcome
        }
    }

    fn job(points: u32) -> (Job, Arc<Mutex<Vec<String>>>) {
        let calls = Arc::default();
        let experiment = Box::new(Counting { points, calls: Arc::clone(&calls) });
        (Job { kind: Kind::Experiment, name: "counting".into(), experiment }, calls)
    }

    fn run_with(points: u32, shard: &str, there: &[Record]) -> (Vec<Record>, Vec<String>) {
        run_within(None, points, shard, there)
    }

    fn run_within(
        limit: Option<Duration>,
        points: u32,
        shard: &str,
        there: &[Record],
    ) -> (Vec<Record>, Vec<String>) {
        let (job, calls) = job(points);
        let shard = shard.parse().unwrap();
        let options =
            Options { effort: Effort::Quick, shard, limit, revision: "r", timelines: None };
        let (mut records, mut last) = (Vec::new(), 0.0);
        let mut keep = |record| {
            records.push(record);
            Ok(())
        };
        let mut watch = |share: f64, what: &str| {
            assert!(share >= last && share <= 1.0 && !what.is_empty(), "{share} {what}");
            last = share;
        };
        run(&[job], &options, there, &mut keep, &mut watch).unwrap();
        assert_eq!(last, 1.0);
        let calls = calls.lock().unwrap().clone();
        (records, calls)
    }

    #[test]
    fn sides_take_turns_in_alternating_order() {
        let (records, calls) = run_with(1, "1/1", &[]);
        assert_eq!(calls, ["0b", "0a", "0a", "0b", "0b", "0a", "0a", "0b"]);
        let [record] = &records[..] else { panic!("{records:?}") };
        assert_eq!((record.repeats, record.sides.len()), (3, 2));
        let values = |side: usize| record.sides[side].outcome.whole.figures[1].values.clone();
        assert_eq!((values(0), values(1)), (vec![3.0, 6.0, 7.0], vec![4.0, 5.0, 8.0]));
    }

    #[test]
    fn values_in_the_same_place_are_of_the_same_round() {
        let side = |round: u32, is_given: bool| {
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::one("cost_ns", is_given.then(|| f64::from(round))));
            outcome.add(Figure::count("round", round.into()));
            outcome
        };
        // The first side lacks its cost in round 1, the second in round 3.
        let round = |round| vec![side(round, round != 1), side(round, round != 3)];
        let sides = in_step((0..5).map(round).collect());
        let values = |side: usize, key: &str| {
            let figure = sides[side].whole.figures.iter().find(|figure| figure.key == key);
            figure.unwrap().values.clone()
        };
        assert_eq!(
            (values(0, "cost_ns"), values(1, "cost_ns")),
            (vec![0.0, 2.0, 4.0], vec![0.0, 2.0, 4.0])
        );
        assert_eq!(values(0, "round"), [0.0, 1.0, 2.0, 3.0, 4.0]);
        // A figure that a side never has is not missing there.
        let sides =
            in_step(vec![vec![side(0, true), side(0, false)], vec![side(1, true), side(1, false)]]);
        assert_eq!(sides[0].whole.figures[0].values, [0.0, 1.0]);
        assert!(in_step(Vec::new()).is_empty());
    }

    #[test]
    fn failed_points_have_a_reason_and_others_continue() {
        let (records, calls) = run_with(7, "1/1", &[]);
        let reason = |index: usize| records[index].failure.clone().map(|failure| failure.reason);
        assert_eq!((records.len(), reason(2), reason(6)), (7, None, None));
        assert_eq!(reason(3).unwrap(), "wrk: no space");
        assert_eq!(reason(4).unwrap(), "it panicked: a bug");
        assert!(reason(5).unwrap().starts_with("needs 100000 cores, this machine has "));
        assert!(records[5].failure.as_ref().unwrap().unavailable);
        assert!(!calls.contains(&"5a".to_owned()));
        // Its time is up at once: measured once after the warm-up, and reported.
        assert_eq!(records[6].repeats, 1);
        assert_eq!(records[6].cut.as_deref(), Some("1 of 3 repeats: time was up"));
        // A limit of the run is one of each point.
        let (limited, _) = run_within(Some(Duration::ZERO), 2, "1/1", &[]);
        assert_eq!(limited.iter().map(|record| record.repeats).collect::<Vec<_>>(), [1, 1]);
        let document = conclude(&job(7).0, Effort::Quick, &records).unwrap();
        assert_eq!(document.outcome.fields()["points"], 4);
        let notes = document.outcome.notes.join("\n");
        assert!(notes.contains("not measured: number=3: wrk: no space"), "{notes}");
        assert!(notes.contains("cut short: number=6: 1 of 3 repeats"), "{notes}");
        assert_eq!(conclude(&job(7).0, Effort::Quick, &records[3..6]), None);
    }

    #[test]
    fn only_missing_and_failed_points_are_measured_again() {
        let (first, _) = run_with(7, "1/1", &[]);
        let (again, calls) = run_with(7, "1/1", &first[1..]);
        let points: Vec<_> = again.iter().map(|record| record.point.as_str()).collect();
        assert_eq!(points, ["number=0", "number=3", "number=4", "number=5"]);
        assert_eq!(calls.iter().filter(|call| call.starts_with('0')).count(), 8);
        assert!(!calls.iter().any(|call| call.starts_with(['1', '2', '6'])), "{calls:?}");
    }

    #[test]
    fn shards_measure_each_point_once() {
        let (whole, _) = run_with(3, "1/1", &[]);
        let parts = ["1/2", "2/2"].map(|shard| run_with(3, shard, &[]).0);
        assert_eq!(parts.each_ref().map(Vec::len), [2, 1]);
        let seeds = |records: &[Record]| -> BTreeSet<_> {
            records.iter().map(|record| (record.point.clone(), record.seed)).collect()
        };
        assert_eq!(seeds(&whole), seeds(&parts.concat()));
        assert_eq!(seeds(&whole).len(), 3);
        for wrong in ["0/2", "3/2", "1", "a/b", "1/0"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    /// A point, and two that double its result. Each measurement gives another number.
    struct Doubling(Arc<Mutex<Vec<String>>>, bool);

    impl Experiment for Doubling {
        fn points(&self, _: Effort) -> Vec<Spec> {
            let behind =
                |number| Spec { follows: Some("part=first".into()), ..Spec::at("number", number) };
            vec![Spec::at("part", "first"), behind(1), behind(2)]
        }

        fn measure(&self, spec: &Spec, _: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
            let mut calls = self.0.lock().unwrap();
            calls.push(spec.name());
            if self.1 {
                return Err(LabError::Unavailable("no server".into()));
            }
            let first = run.followed.map(|found| found.values(0, "value")[0] * 2.0);
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::one("value", first.unwrap_or(calls.len() as f64 + 10.0)));
            Ok(outcome)
        }

        fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
            let mut outcome = Outcome::of(Source::Measured);
            let values = points.iter().map(|found| found.values(0, "value")[0]).collect();
            outcome.add(Figure::of("values", values));
            outcome
        }
    }

    fn doubled(shard: &str, there: &[Record], fails: bool) -> (Vec<Record>, Vec<String>) {
        let calls = Arc::default();
        let experiment = Box::new(Doubling(Arc::clone(&calls), fails));
        let job = Job { kind: Kind::Experiment, name: "doubling".into(), experiment };
        let shard = shard.parse().unwrap();
        let options =
            Options { effort: Effort::Quick, shard, limit: None, revision: "r", timelines: None };
        let mut records = Vec::new();
        let mut keep = |record| {
            records.push(record);
            Ok(())
        };
        run(&[job], &options, there, &mut keep, &mut |_, _| {}).unwrap();
        let calls = calls.lock().unwrap().clone();
        (records, calls)
    }

    fn value(record: &Record) -> f64 {
        record.sides[0].outcome.median("value").unwrap()
    }

    #[test]
    fn followed_points_are_reused_from_an_interrupted_run() {
        let (whole, _) = doubled("1/1", &[], false);
        assert_eq!(whole.iter().map(value).collect::<Vec<_>>(), [11.0, 22.0, 22.0]);
        let (rest, calls) = doubled("1/1", &whole[..2], false);
        assert_eq!(calls, ["number=2"]);
        assert_eq!(value(&rest[0]), 22.0);
        // On another machine the result differs, so it is measured there again.
        let mut other = whole[..2].to_vec();
        other.iter_mut().for_each(|record| record.facts.machine += "-other");
        assert_eq!(doubled("1/1", &other, false).1, ["part=first", "number=2"]);
        // Even then, only if something is missing.
        let mut all = whole.clone();
        all.iter_mut().for_each(|record| record.facts.machine += "-other");
        assert!(doubled("1/1", &all, false).1.is_empty());
        let experiment = Doubling(Arc::default(), false);
        let found = outcome("doubling", &experiment, Effort::Quick, &mut |_, _| {}).unwrap();
        assert_eq!(found.whole.figures[0].values, [11.0, 22.0, 22.0]);
    }

    #[test]
    fn shards_measure_followed_points() {
        let calls = ["1/3", "2/3", "3/3"].map(|shard| doubled(shard, &[], false).1);
        assert_eq!(calls[0], ["part=first"]);
        assert_eq!(calls[1], ["part=first", "number=1"]);
        assert_eq!(calls[2], ["part=first", "number=2"]);
    }

    #[test]
    fn followers_of_failed_points_are_not_measured() {
        let (records, calls) = doubled("1/1", &[], true);
        assert_eq!(calls, ["part=first"]);
        let reasons: Vec<_> =
            records.iter().map(|record| record.failure.as_ref().unwrap().reason.as_str()).collect();
        let wanted = "it follows part=first, which was not measured";
        assert_eq!(reasons, ["no server", wanted, wanted]);
        // Both are tried again.
        let (again, _) = doubled("1/1", &records, false);
        assert_eq!(again.iter().map(value).collect::<Vec<_>>(), [11.0, 22.0, 22.0]);
    }
}
